"""EasyDeL's words: exact shares in blocks, Hugging Face datasets, shards, pipelines."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import energize as ez
from energize import (
    ConfigError,
    EmptyDatasetError,
    EncoderError,
    StateMismatchError,
    WeightError,
)
from energize.compat import easydel as ed
from energize.errors import DatasetNotFoundError, NotIndexedError, StateError
from energize.testing import check_laws
from tests.support.rows import Stream, texts, write_lines, write_parquet

Mixed = ed.MixedShardedSource


def lists(**sizes):
    return {name: [{"i": i} for i in range(size)] for name, size in sizes.items()}


def streams(**sizes):
    return {name: Stream(rows) for name, rows in lists(**sizes).items()}


MAKE = (lists, streams)


def taken(mixed, count):
    return list(islice(mixed.open_shard("mixed_shard_0"), count))


def tags(mixed, count):
    return "".join(example["__source__"] for example in taken(mixed, count))


# Block size, weights, and how many of the first block are of each: as EasyDeL 0.3 has
# them, or by largest remainders where it gives the whole rest to one source.
BLOCKS = [
    (1000, [0.4, 0.5, 0.1], [400, 500, 100]),
    (1000, [1, 1, 1], [334, 333, 333]),
    (100, [2, 6], [25, 75]),
    (10, [0.15, 0.15, 0.7], [2, 1, 7]),
    (3, [0.4, 0.4, 0.2], [1, 1, 1]),
]


def test_blocks_hold_the_shares():
    for (size, weights, held), make in [(row, make) for row in BLOCKS for make in MAKE]:
        by_name = dict(zip("abcdefg", weights, strict=False))
        mixed = Mixed(make(**dict.fromkeys(by_name, 7)), by_name, size, 5)
        found = Counter(tags(mixed, size))
        assert sorted(found.values()) == sorted(held), (size, weights, make)
    for size, weights in ((100, {"a": 0.005, "b": 0.995}), (1, {"a": 0.5, "b": 0.5})):
        mixed = Mixed(lists(a=7, b=7), weights, size, 5).dataset
        counts = mixed.consumed(200_000).tolist()
        assert counts == pytest.approx(
            [200_000 * w for w in weights.values()], abs=2
        ), size


def test_the_order_of_a_seed():
    """It does not depend on the order of names; neighbouring seeds have none in
    common."""

    def order(seed, names="ab"):
        sources = {name: lists(a=9, b=8)[name] for name in names}
        return tags(Mixed(sources, {"a": 0.3, "b": 0.7}, 10, seed), 200)

    assert order(0) == order(0) == order(0, "ba")
    blocks = [{order(seed)[k : k + 10] for k in range(0, 200, 10)} for seed in (42, 43)]
    assert order(42)[10:] != order(43)[:190]
    assert len(blocks[0] & blocks[1]) < 15
    assert order(None) != order(None)


def test_how_mixes_end():
    for make in MAKE:
        for sizes, block in product(({"a": 3, "b": 50, "c": 50}, {"a": 10}), (3, 1000)):
            mixed = Mixed(make(**sizes), None, block, 0, "all_exhausted")
            seen = Counter((e["__source__"], e["i"]) for e in mixed.iter_shards())
            whole = [(name, i) for name, size in sizes.items() for i in range(size)]
            assert seen == dict.fromkeys(whole, 1), (make, sizes, block)
        whole = Mixed(make(a=50, b=50), None, 10, 0, "first_exhausted")
        assert sum(1 for _ in whole.iter_shards()) == 100
        untouched = Mixed(make(a=10, b=0), {"a": 1, "b": 0}, 10, 0, "first_exhausted")
        assert tags(untouched, 99) == "a" * 10
        endless = tags(Mixed(make(a=10, b=1000), None, 100, 0), 500)
        assert [endless[k : k + 100].count("a") for k in (0, 100, 400)] == [50] * 3
        with pytest.raises(
            EmptyDatasetError, match=r"'a' returned no item|no items \(it reads 'a'\)"
        ):
            taken(Mixed(make(a=0, b=5), None, 4, 0), 10)
    assert len(Mixed(lists(a=5, b=12), None, 4, 3, "all_exhausted")) == 17
    with pytest.raises(NotIndexedError):
        len(Mixed(streams(a=5, b=12), None, 4, 3, "all_exhausted"))


def test_every_mix_keeps_the_laws():
    for make, stop in product(MAKE, ("restart", "first_exhausted", "all_exhausted")):
        mixed = Mixed(make(a=5, b=12), {"a": 1, "b": 2}, 4, 3, stop)
        check_laws(mixed.dataset, items=18)


def test_passes_over_a_source():
    """Shuffled anew, or as stored; the example is copied, and any row is one look
    away."""
    shared = [{"i": i} for i in range(20)]
    before = copy.deepcopy(shared)
    mixed = Mixed({"a": shared}, None, 10, 0)
    passes = [
        [e["i"] for e in mixed.dataset.at(range(20 * k, 20 * k + 20))] for k in (0, 1)
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(20))
    assert passes[0] != passes[1]
    stored = Mixed({"a": shared, "b": shared}, None, 10, 0, shuffle=False)
    assert [e["i"] for e in taken(stored, 60) if e["__source__"] == "a"] == [
        *range(20),
        *range(10),
    ]
    assert shared == before
    for source in (mixed, Mixed(streams(a=9), None, 10, 0)):
        resumed = source.open_shard_at_row("mixed_shard_0", 34)
        assert list(islice(resumed, 9)) == taken(source, 43)[34:]
        again = source.open_shard("mixed_shard_0", state=resumed.state())
        assert next(again) == next(resumed)
    assert next(mixed.open_shard_at_row("mixed_shard_0", 10**9))["__source__"] == "a"


# Hugging Face datasets


def rows(count, start=0):
    return datasets.Dataset.from_dict({"x": list(range(start, start + count))})


KINDS = {
    "map-style": lambda: (rows(70), rows(90, 1000)),
    "both": lambda: (rows(70), rows(90, 1000).to_iterable_dataset(num_shards=4)),
}


def mix(kind, stop="restart", weights=(0.3, 0.7)):
    sources = dict(zip(("code", "text"), KINDS[kind](), strict=True))
    shares = dict(zip(sources, weights, strict=True))
    return ed.block_mixture_interleave(sources, shares, 100, 7, stop)


def xs(examples, count=None):
    return [example["x"] for example in islice(examples, count)]


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_datasets(kind):
    """Ranks and torch workers take turns in one order; states stay with their part."""
    mixed = mix(kind)
    assert isinstance(mixed, datasets.IterableDataset)
    assert sum(x < 1000 for x in xs(mixed, 300)) == 90
    sources = dict(zip(("code", "text"), KINDS[kind](), strict=True))
    source = Mixed(sources, {"code": 3, "text": 7}, 100, 7)
    assert (
        xs(source.iter_shards(), 300)
        == xs(source.to_iterable_dataset(), 300)
        == xs(mixed, 300)
    )
    for at in (1, 134):
        iterator = iter(mixed)
        xs(iterator, at)
        state = mixed.state_dict()
        kept = copy.deepcopy(state)
        rest = xs(iterator, 50)
        assert state == kept != mixed.state_dict()
        fresh = mix(kind)
        fresh.load_state_dict(json.loads(json.dumps(state)))
        assert xs(fresh, 50) == rest, at
    doubled = (
        mixed.map(lambda e: {"y": 2 * e["x"]}).shuffle(seed=1, buffer_size=10).take(20)
    )
    assert all(example["y"] == 2 * example["x"] for example in doubled)
    whole = xs(mix(kind, "all_exhausted"))
    assert sorted(whole) == [*range(70), *range(1000, 1090)]
    parts = [
        split_dataset_by_node(mix(kind, "all_exhausted"), rank, 3) for rank in range(3)
    ]
    assert [xs(part) for part in parts] == [whole[rank::3] for rank in range(3)]
    batches = DataLoader(parts[1], batch_size=7, num_workers=2)
    assert sorted(x for batch in batches for x in batch["x"].tolist()) == sorted(
        whole[1::3]
    )
    if kind == "both":
        with pytest.raises(ConfigError, match="split_dataset_by_node"):
            mixed.shard(2, 1)
        return
    assert xs(pickle.loads(pickle.dumps(mixed)), 3)
    next(iter(parts[0]))
    parts[1].load_state_dict(parts[0].state_dict())
    with pytest.raises(StateError, match=r"part \[0, 3\].*part \[1, 3\]"):
        next(iter(parts[1]))
    other = mix(kind, weights=(0.25, 0.75))
    other.load_state_dict(mixed.state_dict())
    with pytest.raises(StateMismatchError, match="weights"):
        next(iter(other))


# Shards


def test_shards(tmp_path):
    for name in ("x", "y"):
        write_parquet(tmp_path / f"{name}.parquet", texts(name, 3))
    source = ed.ParquetShardedSource(f"{tmp_path}/*.parquet")
    assert (source.num_shards(), len(source)) == (2, 6)
    assert list(source.open_shard(source.shard_names[1])) == texts("y", 3)
    assert list(source) == list(source.dataset) == texts("x", 3) + texts("y", 3)
    assert next(source.open_shard_at_row(source.shard_names[0], 2)) == texts("x", 3)[2]
    with pytest.raises(ConfigError, match="shard_name='z' is not one of"):
        source.open_shard("z")
    write_parquet(tmp_path / "labels", [{"text": "x", "label": 1}])
    part = ed.ParquetShardedSource(tmp_path / "labels", columns=["label"])
    assert [*part, *part.open_shard(part.shard_names[0])] == [{"label": 1}] * 2
    combined = ed.CompositeShardedSource(
        [source, ed.HFDatasetShardedSource(texts("last", 1)), source]
    )
    assert len(set(combined.shard_names)) == combined.num_shards() == 5
    opened = [row for name in combined.shard_names for row in combined.open_shard(name)]
    assert opened == list(combined) == [*source, *texts("last", 1), *source]
    batches = DataLoader(combined, batch_size=4, num_workers=2)
    seen = sorted(text for batch in batches for text in batch["text"])
    assert seen == sorted(each["text"] for each in opened)


# Pipelines


def letters(text):
    return [ord(letter) for letter in text]


@pytest.fixture
def files(tmp_path):
    write_parquet(tmp_path / "code/0.parquet", texts("code", 30))
    write_parquet(tmp_path / "code/1.parquet", texts("code", 20))
    write_lines(tmp_path / "text/0.jsonl", texts("prose", 40))
    return tmp_path


def pipeline(files, tokenizer=letters, mixed=None, **options):
    given = {"code": f"{files}/code/*.parquet", "text": f"{files}/text/*.jsonl"}
    read = [
        {"name": n, "data_files": p, "tokenizer": tokenizer} for n, p in given.items()
    ]
    return ed.Pipeline.from_config(
        {"datasets": read, "seed": 3, "mix": mixed or {}} | options
    )


def test_from_files_to_batches(files):
    mixed = {"weights": {"code": 0.3, "text": 0.7}, "block_size": 100}
    loader, again = (
        pipeline(files, mixed=mixed).source().tokenize().mix().load().build()
        for _ in range(2)
    )
    iterator = iter(loader)
    batches = list(islice(iterator, 25))
    assert Counter(n for batch in batches for n in batch["__source__"]) == {
        "code": 60,
        "text": 140,
    }
    for batch in batches:
        assert len(batch["input_ids"]) == 8
        for ids, mask, source in zip(*(batch[name] for name in batch), strict=True):
            text = "".join(map(chr, ids))
            assert text.startswith("code " if source == "code" else "prose ")
            assert list(mask) == [1] * len(text)
    again.load_state_dict(loader.state_dict())
    for one, other in zip(islice(again, 5), islice(iterator, 5), strict=True):
        pairs = zip(one["input_ids"], other["input_ids"], strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)


def test_a_tokenizer_file(files):
    """`tokenizer.json` itself, as the tokenizers library writes it."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    words = {"code": 0, "prose": 1, "?": 2}
    model = tokenizers.models.WordLevel(words, unk_token="?")
    path = files / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    loader = pipeline(files, tokenizer=str(path)).source().tokenize().mix().load()
    batch = next(iter(loader.build()))
    for ids, source in zip(batch["input_ids"], batch["__source__"], strict=True):
        assert list(ids) == [words["code" if source == "code" else "prose"], 2]
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be loaded from this machine"):
        pipeline(files, tokenizer=str(path)).source().tokenize().build()


def test_settings_of_pipelines(files):
    def order(seed, own=None, **mixed):
        built = (
            pipeline(files, None, {"seed": own, **mixed}, seed=seed)
            .source()
            .mix()
            .build()
        )
        return [row["__source__"] + row["text"] for row in built.at(range(100))]

    assert order(5, 0) == order(6, 0) != order(5) == order(7, 5)
    steps = [
        ed.WeightSchedulePoint(k, {"code": 1.0 - k, "text": float(k)}) for k in (0, 1)
    ]
    given = {
        "weights": {"code": 0.5, "text": 0.5},
        "weight_schedule": steps,
        "block_size": 1,
    }
    assert [row.startswith("text") for row in order(5, **given)] == [False] + [
        True
    ] * 99
    given = {"input_ids": [1, 2], "token_type_ids": [0, 0]}
    row = pipeline(files, lambda _: given).source().tokenize().mix().build()[0]
    assert {**row, "__source__": ""} == {
        **given,
        "attention_mask": [1, 1],
        "__source__": "",
    }
    sized = pipeline(files, None).source().mix().load(batch_size=3).build()
    assert len(next(iter(sized))["text"]) == 3
    opened = pipeline(files).source()
    for call, told in (
        (lambda: pipeline(files).mix(), "the mix has no datasets"),
        (opened.load, r"code, text. Call source\(\) and mix\(\)"),
        (opened.build, r"code, text. Call source\(\) and mix\(\)"),
        (lambda: opened.mix().tokenize(), "before mix"),
    ):
        with pytest.raises(ConfigError, match=told):
            call()


def test_the_older_mixture(files):
    informs = [
        ed.TextDatasetInform(data_files=f"{files}/{path}", content_field="text")
        for path in ("code/*.parquet", "text/*.jsonl")
    ]

    def built(weights=None, **options):
        given = {"informs": informs, "mixture_weights": weights, "streaming": False}
        return ed.build_dataset(ed.DatasetMixture(**given | options))

    def code(rows):
        return [row["text"].startswith("code") for row in rows]

    whole = built(stop_strategy="all_exhausted")
    assert (len(whole), set(whole[0])) == (90, {"text"})
    drawn = built({"ds1": 0.2, "ds2": 0.8}, block_mixture=False)
    assert sum(code(drawn.at(range(5000)))) == pytest.approx(1000, abs=120)
    assert code(built(block_mixture=False).at(range(6))) == [True, False] * 3


REFUSED = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text())[
    "easydel"
]
UNKNOWN = ed.WeightScheduler([ed.WeightSchedulePoint(0, {"a": 0.5, "c": 0.5})])
NAMED_ALIKE = [{"data_files": "a", "name": "x"}] * 2
WRONG_FILES = [
    ({"type": "parket"}, ConfigError, "did you mean 'parquet'"),
    ({"data_files": "none*.jsonl"}, DatasetNotFoundError, "none"),
    (
        {"tokenizer": letters, "content_field": "txt"},
        EncoderError,
        "mean 'text'[^$]*line 1",
    ),
    ({"tokenizer": lambda _: {"ids": [7]}}, EncoderError, "KeyError: 'input_ids'"),
]
if not find_spec("transformers"):
    WRONG_FILES.append(({"tokenizer": "Llama"}, ConfigError, "needs transformers.*pip"))


def test_what_is_refused(files, monkeypatch):
    sources = {"sources": lists(a=2, b=2), "seed": 0}
    for name, given, error, told in REFUSED:
        usual = sources if name == "MixedShardedSource" else {}
        with pytest.raises(getattr(ez, error), match=told):
            getattr(ed, name)(**usual | given)
    with pytest.raises(WeightError, match="missing 'b'; unknown 'c'"):
        Mixed(**sources, weight_scheduler=UNKNOWN)
    with pytest.raises(ConfigError, match="'x'"):
        ed.Pipeline.from_config({"datasets": NAMED_ALIKE}).source()
    for given, error, told in WRONG_FILES:
        config = {"datasets": [{"data_files": f"{files}/text/0.jsonl", **given}]}
        with pytest.raises(error, match=told):
            ed.Pipeline.from_config(config).source().tokenize().build()[0]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="Pass the same seed on all ranks"):
        Mixed(lists(a=9, b=9))


class LineSource(ed.ShardedDataSource[dict]):
    """Files of lines, as users of EasyDeL write a source of their own."""

    def __init__(self, files: list[Path]):
        self.files = files

    @property
    def shard_names(self):
        return [str(each) for each in self.files]

    def num_shards(self):
        return len(self.files)

    def open_shard(self, shard_name):
        for number, line in enumerate(Path(shard_name).read_text().splitlines()):
            yield {"text": line, "row": number}


@pytest.fixture
def lines(tmp_path):
    files = [tmp_path / name for name in ("a", "b")]
    for each in files:
        each.write_text("\n".join(f"{each.name}{k}" for k in range(5)))
    return LineSource(files)


def texts_of(examples):
    return [each["text"] for each in examples]


def test_a_source_of_ones_own(lines):
    everything = [f"{name}{k}" for name in "ab" for k in range(5)]
    assert texts_of(lines) == texts_of(lines.iter_shards()) == everything
    assert texts_of(lines.iter_shards(start_shard=1, start_row=2)) == everything[7:]
    assert texts_of(lines.iter_shards([1, 0], start_row=4)) == ["b4", *everything[:5]]
    assert texts_of(lines.open_shard_at_row(lines.shard_names[0], 3)) == ["a3", "a4"]
    changed = (
        lines.map(lambda each: {**each, "long": each["text"] * 2})
        .filter(lambda each: each["row"] % 2 == 0)
        .rename_fields({"long": "twice"})
        .drop_fields(["row"])
    )
    assert list(changed)[1] == {"text": "a2", "twice": "a2a2"}
    assert changed.num_shards() == 2
    assert texts_of(changed.open_shard(changed.shard_names[1])) == ["b0", "b2", "b4"]
    assert list(changed.select_fields(["twice"]))[-1] == {"twice": "b4b4"}
    shuffled = lines.shuffle(4, seed=1)
    assert sorted(texts_of(shuffled)) == everything
    assert texts_of(shuffled) != everything
    sources = {"lines": lines, "rows": [{"text": "r", "row": 0}] * 50}
    options = {"weights": {"lines": 0.5, "rows": 0.5}, "block_size": 10, "seed": 3}
    mixed = ed.MixedShardedSource(sources, **options)
    first = list(islice(mixed, 40))
    assert [each["__source__"] for each in first].count("lines") == 20
    assert (
        texts_of(each for each in first if each["__source__"] == "lines")
        == 2 * everything
    )
    workers = DataLoader(lines, batch_size=None, num_workers=2)
    assert sorted(texts_of(workers)) == everything
    with pytest.raises(TypeError):
        len(lines)

    class Nothing(LineSource):
        open_shard = ed.ShardedDataSource.open_shard

    with pytest.raises(ez.ConfigError, match="Nothing has no open_shard"):
        list(Nothing(lines.files))


def test_samples_are_examples_of_their_fields():
    texts = [
        ez.TextSample(__key__=f"{k}", __restore_key__=(), text=f"t{k}")
        for k in range(3)
    ]
    mixed = Mixed({"typed": texts, "plain": [{"text": "p"}]}, block_size=4, seed=1)
    assert {each["text"] for each in taken(mixed, 16)} == {"t0", "t1", "t2", "p"}
    assert tags(mixed, 4).count("typed") == 2
    with pytest.raises(EncoderError, match="_named raised TypeError"):
        taken(Mixed({"words": ["a", "b"]}), 1)


def test_options_in_their_order():
    config = ed.DatasetConfig("a.parquet", "letters")
    assert (config.name, config.data_files) == ("letters", "a.parquet")
    with pytest.raises(TypeError, match="set twice"):
        ed.DatasetConfig("a.parquet", "letters", name="other")
