"""Values that contradict the types that fields declare, and lists of several parts."""

import re
from dataclasses import dataclass
from typing import Any, Literal, Optional

import numpy as np
import PIL.Image
import pytest
import torch

from energize.core.samples import (
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    Sample,
    SimilarityInterleavedSample,
    TextSample,
    VQASample,
)
from energize.errors import ConfigError, DataError, PrepareError
from energize.preparation import prepare
from energize.task.decode import SampleDecoder
from energize.task.fields import PartAccess, declared_types, fits, parse_field
from energize.task.load import SampleLoader
from tests.support.prepared import image_bytes
from tests.support.tars import write_tar

TENSOR = torch.zeros(2)
ARRAY = np.zeros(2)
IMAGE = PIL.Image.new("RGB", (1, 1))


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ("a", str),
        (1, int),
        (1, float),
        (np.int64(1), int),
        (np.float32(1), float),
        (True, bool),
        (None, int | None),
        (None, Optional[str]),  # noqa: UP045 - as older programs write it
        (["a"], list[str]),
        ([], list[str]),
        (["a"], list),
        (["a", 1], list[Any]),
        ([["a"]], list[list[str]]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ({"a": 1}, dict[str, int]),
        ({"a": [1]}, dict),
        ("b", Literal["a", "b"]),
        (TENSOR, torch.Tensor),
        (ARRAY, torch.Tensor),
        (IMAGE, torch.Tensor),
        (TENSOR, list[str] | torch.Tensor),
        ([TENSOR, "a"], list[torch.Tensor | str]),
        (object(), Any),
        ("a", "Unknown"),
    ],
)
def test_what_fits(value, declared):
    assert fits(value, declared)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ("yes", list[str]),
        (b"yes", str),
        (3, str),
        ("3", int),
        (True, int),
        (1.5, int),
        (None, str),
        ([1], list[str]),
        (["a"], torch.Tensor),
        ("a", torch.Tensor),
        (None, torch.Tensor),
        (b"data", torch.Tensor),
        (1.0, torch.Tensor),
        (TENSOR, str),
        (TENSOR, list[float]),
        (IMAGE, str),
        ({"a": 1}, list[str]),
        (["a"], dict[str, str]),
        ({"a": "b"}, dict[str, int]),
        ((1, 2), tuple[int]),
        ((1, 2), tuple[int, str]),
        ("c", Literal["a", "b"]),
        ([["a"]], list[torch.Tensor | str]),
    ],
)
def test_what_contradicts(value, declared):
    assert not fits(value, declared)


def raw(**parts):
    return {
        "__key__": "k",
        "__dataset__": "/data/ds",
        "__shard__": "0.tar",
        "__index__": 3,
    } | {name.replace("_", "."): data for name, data in parts.items()}


VQA = {
    "image": "jpg",
    "context": "json[q]",
    "answers": "json[a]",
    "answer_weights": "json[w]",
}


@pytest.mark.parametrize(
    ("values", "field", "declared", "seen"),
    [
        ('{"q": "?", "a": "yes", "w": null}', "answers", r"list\[str\] \| None", "str 'yes'"),
        ('{"q": 1, "a": ["yes"], "w": null}', "context", "str", "int 1"),
        ('{"q": "?", "a": [1], "w": null}', "answers", r"list\[str\] \| None", r"list \[1\]"),
        (
            '{"q": "?", "a": ["yes"], "w": [0.5]}',
            "answer_weights",
            r"torch.Tensor \| None",
            r"list \[0.5\]",
        ),
    ],
)
def test_a_contradiction_names_sample_field_and_both_types(values, field, declared, seen):
    load = SampleLoader(sample_type=VQASample, field_map=VQA)
    with pytest.raises(ConfigError) as caught:
        load(raw(jpg=image_bytes(0), json=values.encode()))
    pattern = (
        rf"/data/ds, 0\.tar, sample 'k': the field '{field}' of VQASample is declared as "
        rf"{declared}, and its value is {seen}, from json\[.\]\. "
    )
    assert re.search(pattern, str(caught.value)), str(caught.value)


def test_a_contradiction_stays_one():
    """Where exceptions are counted and passed over, it must not come through after a few."""
    load = SampleLoader(sample_type=TextSample, field_map={"text": "json[t]"})
    for _ in range(10):
        with pytest.raises(ConfigError):
            load(raw(json=b'{"t": 3}'))


def test_every_loader_looks_at_its_first_samples_only():
    load = SampleLoader(sample_type=TextSample, field_map={"text": "json[t]"})
    for i in range(4):
        assert load(raw(json=b'{"t": "x"}')).text == "x", i
    assert load(raw(json=b'{"t": 3}')).text == 3
    with pytest.raises(ConfigError):
        SampleLoader(sample_type=TextSample, field_map={"text": "json[t]"})(raw(json=b'{"t": 3}'))


@pytest.mark.parametrize("image_decode", ["torchrgb", "rgb8", "pil", "l"])
def test_what_decoders_make_is_their_choice(image_decode):
    decoder = SampleDecoder(image_decode=image_decode)
    load = SampleLoader(sample_type=ImageSample, field_map={"image": "jpg"}, decoder=decoder)
    assert load(raw(jpg=image_bytes(0))).image is not None
    raws = SampleLoader(sample_type=ImageSample, field_map={"image": "jpg"}, decoder=None)
    assert isinstance(raws(raw(jpg=image_bytes(0))).image, bytes)


def test_bytes_that_nobody_decodes_are_a_contradiction():
    load = SampleLoader(sample_type=ImageSample, field_map={"image": "heic"})
    with pytest.raises(ConfigError, match="its value is bytes b'data', from heic"):
        load(raw(heic=b"data"))


def test_a_name_for_a_number():
    load = SampleLoader(sample_type=ImageClassificationSample)
    with pytest.raises(ConfigError, match="'label' of ImageClassificationSample is declared as"):
        load(raw(jpg=image_bytes(0), json=b'{"label": "cat"}'))


@dataclass(kw_only=True)
class Loose(Sample):
    anything: "Unknown"  # noqa: F821 - a name that cannot be found
    text: str


def test_types_that_cannot_be_found_are_not_compared():
    assert declared_types(Loose)["anything"] is Any
    load = SampleLoader(sample_type=Loose, field_map={"anything": "json", "text": "json[t]"})
    assert load(raw(json=b'{"t": "x"}')).anything == {"t": "x"}
    with pytest.raises(ConfigError):
        load(raw(json=b'{"t": 3}'))


@pytest.mark.parametrize(
    ("pattern", "parts", "expected"),
    [
        ("*.jpg", ["10.jpg", "2.jpg", "jpg", "2.png", "1.jpg"], ["1.jpg", "2.jpg", "10.jpg"]),
        ("img?.jpg", ["img1.jpg", "img10.jpg", "img0.jpg"], ["img0.jpg", "img1.jpg"]),
        ("*.*", ["b.txt", "a.jpg", "json", "__key__"], ["a.jpg", "b.txt"]),
        ("p*.txt", ["p2.txt", "p10.txt", "p02.txt"], ["p02.txt", "p2.txt", "p10.txt"]),
        ("*", ["__key__", "txt"], ["txt"]),
        ("jpg", ["jpg", "1.jpg"], ["jpg"]),
        ("png", ["jpg"], []),
    ],
)
def test_several_parts_in_the_order_of_their_numbers(pattern, parts, expected):
    (access,) = parse_field(pattern)
    assert access == PartAccess(pattern)
    assert access.several == ("*" in pattern or "?" in pattern)
    found = access.among(dict.fromkeys(parts))
    assert found == expected


def test_images_of_one_sample():
    told = {"images": "*.jpg,*.png", "texts": "*.json[caption]", "matched_text_indices": "json[m]"}
    load = SampleLoader(
        sample_type=SimilarityInterleavedSample,
        field_map=told,
        decoder=SampleDecoder(image_decode="rgb8"),
    )
    given = raw(json=b'{"m": [1, 0, 0]}', **{"1.json": b'{"caption": "b"}'})
    given |= {f"{i}.jpg": image_bytes(i, (8 + i, 8)) for i in (10, 9, 0)}
    given |= {"0.json": b'{"caption": "a"}'}
    sample = load(given)
    assert [image.shape[0] for image in sample.images] == [8, 17, 18]
    assert sample.texts == ["a", "b"]
    assert sample.matched_text_indices == [1, 0, 0]
    assert "k.10.jpg" in sample.__sources__[0].file_names
    with pytest.raises(DataError, match=r"field 'images' is read from \*\.jpg or \*\.png, but"):
        load(raw(json=b'{"m": []}', **{"0.json": b'{"caption": "a"}'}))
    with pytest.raises(DataError, match=r"\*\.json\[caption\] leads nowhere"):
        load(given | {"1.json": b"{}"})


def test_texts_and_images_in_turn():
    load = SampleLoader(sample_type=InterleavedSample, field_map={"sequence": "*.*"})
    given = raw(**{"0.txt": b"see", "10.txt": b"end", "1.jpg": image_bytes(1)}, json=b"{}")
    assert [type(each).__name__ for each in load(given).sequence] == ["str", "Tensor", "str"]


def test_prepare_knows_patterns(tmp_path):
    files = [("a.0.txt", b"x"), ("a.1.txt", b"y"), ("b.0.txt", b"z")]
    write_tar(tmp_path / "0.tar", files)
    told = {"sequence": "*.txt"}
    report = prepare(
        tmp_path, split_ratios={"train": 1}, sample_type="InterleavedSample", field_map=told
    )
    assert report.config.field_map == told
    assert report.notes == ()
    with pytest.raises(PrepareError, match="no sample has such a part"):
        prepare(
            tmp_path,
            split_ratios={"train": 1},
            sample_type="InterleavedSample",
            field_map={"sequence": "*.png"},
            overwrite=True,
        )


def test_metadata_is_a_part_too():
    load = SampleLoader(sample_type=TextSample, field_map={"text": "__key__"})
    sample = load(raw(txt=b"x"))
    assert sample.text == "k"
    assert sample.__sources__[0].file_names == ()


def test_keys_lead_into_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.arange(3))
    load = SampleLoader(sample_type=ImageSample, field_map={"image": "npz[ids]"})
    assert load(raw(npz=(tmp_path / "a.npz").read_bytes())).image.tolist() == [0, 1, 2]
