"""Metadatasets whose shares count tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    ItemCost,
    MetadatasetError,
    NotIndexedError,
    Sample,
    TaskEncoder,
    TextSample,
    get_train_dataset,
    get_val_dataset,
    prepare,
    prepare_columns,
    write_shards,
)
from energize.energon.names import edataclass
from energize.errors import ColumnError, ConfigError, EncoderError
from energize.metadataset import resolve
from energize.metadataset.documents import json_schema
from tests.support.loading import loader_of, take
from tests.support.prepared import image_bytes
from tests.support.texts import COUNTS, MEANS, lengths

LETTERS = {name: chr(ord("A") + number) for number, name in enumerate(MEANS)}


@edataclass
class Tokens(Sample):
    tokens: torch.Tensor


class Encoder(TaskEncoder):
    """A token for each byte of a text; which one tells the folder."""

    def encode_sample(self, sample: TextSample) -> Tokens:
        data = torch.frombuffer(bytearray(sample.text.encode()), dtype=torch.uint8)
        return Tokens.derive_from(sample, tokens=data)

    def batch(self, samples: list[Any]) -> list[str]:
        """Also of packs, which are dicts."""
        found = [each["tokens"] if isinstance(each, dict) else each.tokens for each in samples]
        return ["".join(map(chr, each.tolist())) for each in found]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    for name in MEANS:
        rows = [
            {"__key__": f"{number}", "txt": LETTERS[name] * length}
            for number, length in enumerate(lengths(name).tolist())
        ]
        write_shards(rows, root / name, samples_per_shard=100)
        prepare(
            root / name,
            split_ratios={"train": 1},
            sample_type="TextSample",
            field_map={"text": "txt"},
        )
        if name != "chats":
            prepare_columns(root / name, {"tokens": "size:txt"})
    return root


@pytest.fixture
def measured(folders):
    prepare_columns(folders / "chats", {"tokens": "size:txt"})
    return folders


def mix(root, text, name="mix.yaml"):
    (root / name).write_text("__module__: energize\n__class__: MetadatasetV2" + text)
    return root / name


TOKENS = """
splits:
  train:
    unit: tokens
    blend:
      - {path: books, weight: 0.5}
      - weight: 0.5
        blend:
          - {path: captions, weight: 3}
          - {path: chats, weight: 2}
"""
ENCODED = TOKENS.replace("unit: tokens", "unit: {field: tokens}")


def shares_of(batches):
    found = dict.fromkeys(MEANS, 0)
    for text in (each for batch in batches for each in batch):
        for name, letter in LETTERS.items():
            found[name] += text.count(letter)
    return {name: each / sum(found.values()) for name, each in found.items()}


ASKED = pytest.approx({"books": 0.5, "captions": 0.3, "chats": 0.2}, abs=0.01)


@pytest.mark.parametrize("text", [TOKENS, ENCODED], ids=["index", "encoded"])
def test_shares_hold_in_tokens_over_nested_blends(measured, text):
    dataset = get_train_dataset(mix(measured, text), batch_size=4, task_encoder=Encoder())
    assert dataset.indexed == (text is TOKENS)
    with loader_of(dataset) as loader:
        assert shares_of(take(loader, 500)) == ASKED


@pytest.mark.parametrize("text", [TOKENS, ENCODED], ids=["index", "encoded"])
def test_packs_are_of_the_same_samples(measured, text):
    def dataset():
        packed = text.replace(
            "    blend:\n      - {path: books",
            "    packing: {length: tokens, capacity: 3000, buffer_size: 40}\n"
            "    blend:\n      - {path: books",
        )
        return get_train_dataset(mix(measured, packed), batch_size=2, task_encoder=Encoder())

    options = {"lanes": 2}
    with loader_of(dataset(), **options) as loader:
        batches = take(loader, 60)
    assert shares_of(batches) == pytest.approx(ASKED.expected, abs=0.03)
    with loader_of(dataset(), 1, **options) as first, loader_of(dataset(), **options) as other:
        assert take(first, 7) == batches[:7]
        other.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert take(other, 10) == batches[7:17]


def test_a_stage_has_a_unit_of_its_own(measured):
    text = """
splits:
  train:
    steps: 400
    stages:
      - name: samples
        start_step: 0
        blend:
          - {path: books, weight: 1}
          - {path: captions, weight: 1}
      - name: tokens
        start_step: 200
        unit: tokens
        blend:
          - {path: books, weight: 1}
          - {path: captions, weight: 1}
"""
    dataset = get_train_dataset(mix(measured, text), batch_size=4, task_encoder=Encoder())
    batches = dataset.at(range(400))
    assert shares_of(batches[:200])["books"] > 0.85
    assert shares_of(batches[200:])["books"] == pytest.approx(0.5, abs=0.01)


class Captions(Encoder):
    """The same of another type of samples."""

    def encode_sample(self, sample: CaptioningSample) -> Tokens:
        return super().encode_sample(TextSample.derive_from(sample, text=sample.caption))


def test_batches_of_several_encoders_count_what_their_samples_cost(measured):
    """Captions and chats of one encoder, books of another: whole batches are blended."""
    rows = [
        {"__key__": f"{number}", "txt": LETTERS["books"] * length, "jpg": image_bytes(number)}
        for number, length in enumerate(lengths("books").tolist())
    ]
    folder = measured / "captioned"
    write_shards(rows, folder, samples_per_shard=100)
    fields = {"caption": "txt", "image": "jpg"}
    prepare(folder, split_ratios={"train": 1}, sample_type="CaptioningSample", field_map=fields)
    prepare_columns(folder, {"tokens": "size:txt"})
    path = mix(measured, TOKENS.replace("books", "captioned"))
    encoders = {TextSample: Encoder(), CaptioningSample: Captions()}
    dataset = get_train_dataset(path, batch_size=4, task_encoder=encoders)
    assert shares_of(dataset.at(range(500)))["books"] == pytest.approx(0.5, abs=0.02)


def test_blends_inside_take_over_the_unit_or_say_their_own(measured):
    def options(inner, outer="unit: tokens"):
        text = f"""
splits:
  train:
    {outer}
    blend:
      - {{path: books, weight: 1}}
      - {{weight: 2, {inner} blend: [{{path: captions}}, {{path: chats}}]}}
"""
        node = resolve(mix(measured, text), "train")
        return dict(node.options), dict(node.children[1][0].options)

    assert options("") == ({"unit": "tokens"}, {"unit": "tokens"})
    assert options("unit: samples,") == ({"unit": "tokens"}, {})
    assert options("unit: {field: tokens},")[1] == {"unit": ItemCost("tokens")}
    assert options("scheme: exact,")[1] == {"scheme": "exact"}
    assert options("block_size: 7,")[1] == {"scheme": "block", "block_size": 7}
    assert options("unit: tokens,", "scheme: exact") == ({"scheme": "exact"}, {"unit": "tokens"})


@pytest.mark.parametrize("text", [TOKENS, ENCODED], ids=["index", "encoded"])
def test_validation_reads_everything_once_whatever_the_unit(measured, text):
    val = text.replace("train:", "val:")
    for name in MEANS:
        val = val.replace(f"path: {name},", f"path: {name}, split_part: train,")
    batches = list(get_val_dataset(mix(measured, val), batch_size=8, task_encoder=Encoder()))
    assert sum(map(len, batches)) == sum(COUNTS.values())


# Errors


def test_a_folder_without_the_column_is_an_error_with_the_command(folders):
    (folders / "bare").mkdir()
    write_shards([{"__key__": "1", "txt": "a"}], folders / "bare", samples_per_shard=10)
    prepare(
        folders / "bare",
        split_ratios={"train": 1},
        sample_type="TextSample",
        field_map={"text": "txt"},
    )
    path = mix(folders, TOKENS.replace("path: books", "path: bare"))
    with pytest.raises(ColumnError) as told:
        get_train_dataset(path, batch_size=4)
    for part in ("bare", "no column 'tokens'", "energize prepare", "--column", "mix.yaml"):
        assert part in str(told.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("unit: 3", "expected the name of a column"),
        ("unit: {fields: tokens}", "expected the name of a column"),
        ("unit: {field: }", "expected the name of a column"),
        ("unit: tokens\n    scheme: exact", "unit decides it by what samples cost"),
        ("unit: tokens\n    block_size: 5", "unit decides it by what samples cost"),
        ("units: tokens", "unknown key 'units'; did you mean 'unit'"),
        ("unit: tokens\n    epoch_size: 5", "mixed by weights or by quotas"),
    ],
)
def test_what_a_unit_may_not_be(folders, line, says):
    path = mix(folders, TOKENS.replace("unit: tokens", line))
    with pytest.raises(MetadatasetError, match=r"mix.yaml:[4567]") as told:
        get_train_dataset(path, batch_size=4)
    assert says in str(told.value)


def test_a_blend_that_ends_has_no_unit_of_the_index(measured):
    path = mix(measured, TOKENS.replace("unit: tokens", "unit: tokens\n    stop: all_exhausted"))
    with pytest.raises(ConfigError, match=r"(?s)with unit='tokens' none does.*mix.yaml"):
        get_train_dataset(path, batch_size=4)


def test_a_quota_of_a_blend_by_encoded_samples(measured):
    text = """
splits:
  train:
    blend:
      - {path: books, proportion: 1}
      - proportion: 1
        unit: {field: tokens}
        blend: [{path: captions}, {path: chats}]
"""
    with pytest.raises(NotIndexedError, match="stream"):
        get_train_dataset(mix(measured, text), batch_size=4, task_encoder=Encoder())


def test_a_field_that_samples_do_not_have(measured):
    path = mix(measured, ENCODED.replace("tokens}", "tokns}"))
    dataset = get_train_dataset(path, batch_size=4, task_encoder=Encoder())
    with pytest.raises(EncoderError, match=r"sample .*no field 'tokns'.*did you mean 'tokens'"):
        take(loader_of(dataset), 1)


def shapes_of(schema):
    """All schemas of mappings in one."""
    if isinstance(schema, dict):
        yield schema
        schema = list(schema.values())
    for each in schema if isinstance(schema, list) else []:
        yield from shapes_of(each)


def test_the_schema_of_editors_knows_the_unit():
    blends = [each for each in shapes_of(json_schema()) if "unit" in each.get("properties", {})]
    assert blends
    for each in blends:
        assert "or {field: NAME} of encoded samples" in json.dumps(each["properties"]["unit"])


def test_the_default_encoder_counts_fields_of_samples(measured):
    path = mix(measured, ENCODED.replace("field: tokens", "field: text"))
    dataset = get_train_dataset(path, batch_size=None, task_encoder=DefaultTaskEncoder())
    with loader_of(dataset) as loader:
        assert shares_of([[each.text for each in take(loader, 2000)]]) == ASKED
