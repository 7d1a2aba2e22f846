"""The code examples of EasyDeL's page on dataset mixing run with `energize` in the imports.

Datasets of the hub are replaced by small local files; what the page leaves out is supplied. Mixes
under "restart" never end, so the loops over them stop after some examples.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
from torch.utils.data import DataLoader

import energize.compat.easydel as face
from energize.compat.easydel import HFDatasetShardedSource
from tests.support.rows import texts, write_lines, write_parquet

EXAMPLES = Path(__file__).parents[1] / "documents" / "easydel_mixing"

HUB = {
    '"bigcode/starcoderdata", ': "code",
    '"HuggingFaceFW/fineweb", ': "text",
    '"hendrycks/competition_math", ': "math",
}

MENDED = {
    # The page's `...` stands for what it leaves out; Python does not take it there.
    "quick_start.py": {"train_dataset=mixed, ...": "train_dataset=mixed"},
    "block_sizes.py": {"interleave(...,": "interleave(datasets,"},
    "track_source.py": {
        "MixedShardedSource(sources, ...)": "MixedShardedSource(sources)",
        # Nothing in this loop could end it.
        "in mixed.open_shard(mixed.shard_names[0]):": "in some(mixed.iter_shards()):",
    },
}


class Enough(Exception):
    """Ends a loop that the page lets run for ever."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("code", "text", "math"):
        write_parquet(Path(f"{name}.parquet"), texts(name, 60))

    def run(name: str, **supplied) -> dict:
        source = (EXAMPLES / name).read_text()
        source = source.replace("from easydel.data import", "from energize.compat.easydel import")
        source = source.replace('"meta-llama/Llama-2-7b"', "tokenizer")
        for hub, local in HUB.items():
            files = f'"parquet", data_files="{local}.parquet", cache_dir="cache", '
            source = source.replace(hub, files)
        for written, mended in MENDED.get(name, {}).items():
            assert written in source
            source = source.replace(written, mended)
        names = {each: getattr(face, each) for each in face.__all__} | supplied
        try:
            exec(compile(source, name, "exec", dont_inherit=True), names)
        except Enough:
            names["stopped"] = True
        return names

    return run


def stopping(seen: list, after: int):
    def take(value, *_):
        seen.append(value)
        if len(seen) == after:
            raise Enough

    return take


def rows(name: str) -> datasets.Dataset:
    return datasets.Dataset.from_list(texts(name, 60))


def named(*names: str) -> dict:
    return {name: rows(name) for name in names}


def shares(mixed, count: int = 1000) -> Counter:
    return Counter(example["text"].split()[0] for example in islice(mixed, count))


def test_quick_start(run):
    """The trainer stands for any that takes an iterable dataset: it reads with a torch loader."""
    trained: Counter[str] = Counter()

    class SFTTrainer:
        def __init__(self, train_dataset):
            loader = DataLoader(train_dataset, batch_size=10, num_workers=0)
            for batch in islice(loader, 200):
                trained.update(text.split()[0] for text in batch["text"])

    names = run("quick_start.py", ed=SimpleNamespace(SFTTrainer=SFTTrainer))
    assert isinstance(names["mixed"], datasets.IterableDataset)
    assert trained == {"code": 800, "text": 1000, "math": 200}


def test_interleave(run):
    names = run("interleave.py", ds1=rows("code"), ds2=rows("text"), ds3=rows("math"))
    assert shares(names["mixed"]) == {"code": 500, "text": 500}


def test_mixed_source(run):
    seen: list[str] = []
    names = run(
        "mixed_source.py",
        dataset1=rows("code"),
        dataset2=rows("text"),
        print=stopping(seen, 1000),
    )
    assert names["stopped"]
    assert Counter(seen) == {"code": 300, "text": 700}


def test_weight_scheduling(run):
    names = run("weight_scheduling.py", code_dataset=rows("code"), text_dataset=rows("text"))
    mixed = names["mixed"].dataset
    code = [
        sum(row["__source__"] == "code" for row in mixed.at(range(start, start + 1000)))
        for start in (0, 10_000, 60_000)
    ]
    assert code == [pytest.approx(215, abs=1), pytest.approx(504, abs=1), 800]


def test_visualizing_schedule(run):
    shown: list[dict[str, float]] = []
    run("visualizing_schedule.py", print=shown.append)
    assert [weights["code"] for weights in shown] == pytest.approx([0.2, 0.35, 0.5, 0.65])
    assert [weights["text"] for weights in shown] == pytest.approx([0.8, 0.65, 0.5, 0.35])


def test_stop_strategies(run):
    sources = {name: HFDatasetShardedSource(rows(name), name) for name in ("code", "text")}
    names = run("stop_strategies.py", sources=sources)
    assert len(names["mixed"]) == 120


def test_pipeline(run):
    write_parquet(Path("code_data/0.parquet"), texts("code", 40))
    write_parquet(Path("text_data/0.parquet"), texts("text", 40))
    seen: list[dict] = []

    def tokenizer(text):
        return [len(word) for word in text.split()]

    names = run("pipeline.py", tokenizer=tokenizer, train_step=stopping(seen, 125))
    assert names["stopped"]
    assert {batch["input_ids"].shape for batch in seen} == {(8, 2)}
    assert Counter(s for batch in seen for s in batch["__source__"]) == {"code": 300, "text": 700}


def test_mix_stage_config(run):
    config = run("mix_stage_config.py")["config"]
    assert config.scheduler().get_weights(5000) == pytest.approx({"code": 0.35, "text": 0.65})


def test_composite(run):
    write_parquet(Path("data1/0.parquet"), texts("one", 3))
    write_parquet(Path("data2/0.parquet"), texts("two", 2))
    seen: list[dict] = []
    names = run("composite.py", process=seen.append)
    assert seen == texts("one", 3) + texts("two", 2)
    assert len(names["combined"]) == 5


def test_legacy_mixture(run):
    write_parquet(Path("data1/0.parquet"), texts("one", 30))
    write_lines(Path("data2/0.json"), [{"content": row["text"]} for row in texts("two", 30)])
    dataset = run("legacy_mixture.py")["dataset"]
    assert shares(dataset, 2048) == {"one": 1434, "two": 614}


def test_block_sizes(run):
    names = run("block_sizes.py", datasets=named("code", "text"))
    assert shares(names["mixed"]) == {"code": 500, "text": 500}


def test_curriculum(run):
    scheduler = run("curriculum.py")["scheduler"]
    easy = [scheduler.get_weights(step)["easy"] for step in (0, 25_000, 50_000, 75_000, 200_000)]
    assert easy == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])


def test_imbalanced(run):
    scheduler = run("imbalanced.py")["scheduler"]
    assert scheduler.get_weights(9_999) == {"small_important": 0.5, "large": 0.5}
    assert scheduler.get_weights(10_000) == {"small_important": 0.1, "large": 0.9}


def test_track_source(run):
    seen: list[dict] = []

    def some(examples):
        for example in islice(examples, 20):
            seen.append(example)
            yield example

    names = run("track_source.py", sources=named("code", "text"), some=some)
    assert names["source_name"] in ("code", "text")
    assert all(each["text"].split()[0] == each["__source__"] for each in seen)


def test_reproducibility(run):
    names = run("reproducibility.py", datasets=named("code", "text"))
    first, second, other = (
        [example["text"] for example in names[name].take(200)]
        for name in ("mixed1", "mixed2", "mixed3")
    )
    assert first == second != other


def test_distributed(run):
    names = run("distributed.py", sources=named("code", "text"))
    again = run("distributed.py", sources=named("code", "text"))
    assert names["mixed"].dataset.at(range(50)) == again["mixed"].dataset.at(range(50))
