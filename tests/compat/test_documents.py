"""The code of pages about mixing in other libraries runs with `energize` in the
imports.

`tests/documents` has it as it is written there. What the pages leave out is supplied:
datasets of the hub are small local files, loops that would never end stop after some
batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import make_dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Union  # noqa: UP035 - names that examples use

import datasets
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, get_worker_info

import energize
from energize import CaptioningSample, DefaultTaskEncoder, ImageClassificationSample
from energize.compat import easydel, squirrel, streaming
from tests.support.mds import numbered_mds
from tests.support.prepared import captions, classes
from tests.support.rows import texts, write_lines, write_parquet

DOCUMENTS = Path(__file__).parents[1] / "documents"

MENDED = yaml.safe_load((DOCUMENTS / "mended.yaml").read_text())
HUB = {"bigcode/starcoderdata": "code", "HuggingFaceFW/fineweb": "text"}
HUB["hendrycks/competition_math"] = "math"


class Enough(Exception):
    """Ends a loop that a page lets run for ever."""


def run(
    page: str, *names: str, replaced: dict[str, str] | None = None, **supplied
) -> dict:
    """Run examples of a page one after the other; return all their names."""
    for name in names:
        text = (DOCUMENTS / page / f"{name}.py").read_text()
        for written, mended in MENDED.get(name, {}).items():
            assert written in text
            text = text.replace(written, mended)
        for written, there in (replaced or {}).items():
            text = text.replace(written, there)
        for theirs, ours in MENDED["imports"].items():
            text = text.replace(f"from {theirs} import", f"from {ours} import")
        try:
            exec(compile(text, name, "exec", dont_inherit=True), supplied)
        except Enough:
            supplied["stopped"] = True
    return supplied


def of(module) -> dict:
    return {name: getattr(module, name) for name in module.__all__}


def stopping(seen: list, after: int) -> Callable:
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


@pytest.fixture
def of_easydel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = {'"meta-llama/Llama-2-7b"': "tokenizer"}
    for hub, name in HUB.items():
        write_parquet(Path(f"{name}.parquet"), texts(name, 60))
        local[f'"{hub}", '] = (
            f'"parquet", data_files="{name}.parquet", cache_dir="cache", '
        )
    return lambda name, **given: run(
        "easydel_mixing", name, replaced=local, **of(easydel), **given
    )


def test_easydels_mixes(of_easydel):
    trained: Counter[str] = Counter()

    class SFTTrainer:
        """Stands for any that takes an iterable dataset."""

        def __init__(self, train_dataset):
            for batch in islice(DataLoader(train_dataset, batch_size=10), 200):
                trained.update(text.split()[0] for text in batch["text"])

    names = of_easydel("quick_start", ed=SimpleNamespace(SFTTrainer=SFTTrainer))
    assert isinstance(names["mixed"], datasets.IterableDataset)
    assert trained == {"code": 800, "text": 1000, "math": 200}
    names = of_easydel(
        "interleave", ds1=rows("code"), ds2=rows("text"), ds3=rows("math")
    )
    assert shares(names["mixed"]) == {"code": 500, "text": 500}
    names = of_easydel("block_sizes", datasets=named("code", "text"))
    assert shares(names["mixed"]) == {"code": 500, "text": 500}
    names = of_easydel("reproducibility", datasets=named("code", "text"))
    orders = [[e["text"] for e in names[f"mixed{k}"].take(200)] for k in (1, 2, 3)]
    assert orders[0] == orders[1] != orders[2]


def test_easydels_sources(of_easydel):
    seen: list = []
    take = stopping(seen, 1000)
    names = of_easydel(
        "mixed_source", dataset1=rows("code"), dataset2=rows("text"), print=take
    )
    assert names["stopped"]
    assert Counter(seen) == {"code": 300, "text": 700}
    sources = {
        name: easydel.HFDatasetShardedSource(rows(name), name)
        for name in ("code", "text")
    }
    assert len(of_easydel("stop_strategies", sources=sources)["mixed"]) == 120
    tagged: list = []

    def some(examples):
        for example in islice(examples, 20):
            tagged.append(example)
            yield example

    of_easydel("track_source", sources=named("code", "text"), some=some)
    assert tagged
    assert all(each["text"].split()[0] == each["__source__"] for each in tagged)
    mixes = [
        of_easydel("distributed", sources=sources)["mixed"].dataset for _ in range(2)
    ]
    assert mixes[0].at(range(50)) == mixes[1].at(range(50))


def test_easydels_schedules(of_easydel):
    names = of_easydel(
        "weight_scheduling", code_dataset=rows("code"), text_dataset=rows("text")
    )
    mixed = names["mixed"].dataset
    code = [
        sum(row["__source__"] == "code" for row in mixed.at(range(start, start + 1000)))
        for start in (0, 10_000, 60_000)
    ]
    assert code == [pytest.approx(215, abs=1), pytest.approx(504, abs=1), 800]
    shown: list[dict[str, float]] = []
    of_easydel("visualizing_schedule", print=shown.append)
    assert [weights["code"] for weights in shown] == pytest.approx(
        [0.2, 0.35, 0.5, 0.65]
    )
    assert [sum(weights.values()) for weights in shown] == pytest.approx([1] * 4)
    config = of_easydel("mix_stage_config")["config"]
    assert config.scheduler().get_weights(5000) == pytest.approx(
        {"code": 0.35, "text": 0.65}
    )
    easy = of_easydel("curriculum")["scheduler"].get_weights
    found = [easy(step)["easy"] for step in (0, 25_000, 50_000, 75_000, 200_000)]
    assert found == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])
    weights = of_easydel("imbalanced")["scheduler"].get_weights
    assert [weights(step)["small_important"] for step in (9_999, 10_000)] == [0.5, 0.1]


def test_easydels_files(of_easydel):
    for name, count in {"code": 40, "text": 40}.items():
        write_parquet(Path(f"{name}_data/0.parquet"), texts(name, count))
    seen: list[dict] = []
    lengths = {"tokenizer": lambda text: [len(word) for word in text.split()]}
    assert of_easydel("pipeline", train_step=stopping(seen, 125), **lengths)["stopped"]
    assert {batch["input_ids"].shape for batch in seen} == {(8, 2)}
    assert Counter(s for batch in seen for s in batch["__source__"]) == {
        "code": 300,
        "text": 700,
    }
    write_parquet(Path("data1/0.parquet"), texts("one", 30))
    write_parquet(Path("data2/0.parquet"), texts("two", 2))
    processed: list[dict] = []
    assert len(of_easydel("composite", process=processed.append)["combined"]) == 32
    assert processed == texts("one", 30) + texts("two", 2)
    write_lines(
        Path("data2/0.json"), [{"content": row["text"]} for row in texts("two", 30)]
    )
    assert shares(of_easydel("legacy_mixture")["dataset"], 2048) == {
        "one": 1434,
        "two": 614,
    }


def test_streamings_quotas(tmp_path):
    numbered_mds(tmp_path / "stream_A", 100)
    numbered_mds(tmp_path / "stream_B", 200, start=1000)
    local = {"'/tmp/": f"'{tmp_path}/", "'/local/path'": f"'{tmp_path}/stream_A'"}

    def of_streaming(*names: str) -> dict:
        return run("mosaicml_mixing", *names, replaced=local, **of(streaming))

    for names, size, drawn in (
        (["proportion"], 300, 75),
        (["proportion", "epoch_size"], 400, 100),
    ):
        dataset = of_streaming(*names)["dataset"]
        assert len(dataset) == size
        for _ in range(2):
            assert sum(each["number"] < 1000 for each in dataset) == drawn
    for name, often in (("repeat", {3: 100}), ("choose", {2: 50, 3: 50})):
        alone = streaming.StreamingDataset(streams=[of_streaming(name)["stream_A"]])
        visits = Counter(each["number"] for each in alone)
        assert Counter(visits.values()) == often, name
    found = of_streaming("registry")
    stream = found["dataset"].streams[0]
    assert type(stream) is found["MyStream"]
    assert (len(found["dataset"]), stream.arg1) == (100, "val1")


class SplitByWorker:
    """A source that gives every torch worker a part of its own."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        return iter(
            self.samples[worker.id :: worker.num_workers] if worker else self.samples
        )


def test_squirrels_sources_that_split_themselves():
    def driver(url):  # in place of the page's store
        return SimpleNamespace(
            get_iter=lambda key_hooks: key_hooks[0](range(url, url + 10))
        )

    given = {"MessagepackDriver": driver, "SplitByWorker": SplitByWorker}
    mux = run(
        "squirrel", "split_by_worker", local_msgpack_url=100, **of(squirrel), **given
    )["mux"]
    for workers in (0, 2):
        loader = DataLoader(mux, batch_size=None, num_workers=workers)
        assert sorted(loader) == sorted(2 * list(range(100, 110))), workers


ImageBatch = make_dataclass("ImageBatch", ["__key__", "image", "label"])
CaptioningBatch = make_dataclass("CaptioningBatch", ["__key__", "image", "caption"])
ImageWithOptionalCaptionBatch = make_dataclass(
    "ImageWithOptionalCaptionBatch", ["images", "captions"]
)


class ImageTask(
    DefaultTaskEncoder[
        ImageClassificationSample, ImageClassificationSample, ImageBatch, ImageBatch
    ]
):
    def __init__(self):
        super().__init__(batch_type=ImageBatch)


class CaptioningTask(
    DefaultTaskEncoder[
        CaptioningSample, CaptioningSample, CaptioningBatch, CaptioningBatch
    ]
):
    def __init__(self):
        super().__init__(batch_type=CaptioningBatch)


TYPES = [
    ImageBatch,
    CaptioningBatch,
    ImageWithOptionalCaptionBatch,
    ImageTask,
    CaptioningTask,
]


@pytest.fixture(scope="module")
def of_energon(tmp_path_factory):
    root = tmp_path_factory.mktemp("my_dataset")
    classes(root / "image_dataset")
    for number, name in enumerate(("", "_1", "_2", "1", "2")):
        captions(root / f"captioning_dataset{name}", start=100 * number)
    local = {
        "'/my/dataset/": f"'{root}/",
        "for sample in train_loader:": "for sample in some(train_loader):",
    }

    def of_energon(name: str, batches: int, **given) -> dict:
        seen: list = []

        def some(loader):
            for batch in islice(loader, batches):
                seen.append(batch)
                yield batch

        known = {kind.__name__: kind for kind in TYPES} | {"List": list, "Union": Union}
        known |= {"Callable": Callable, "some": some, "__name__": name}
        return run("energon_blending", name, replaced=local, **known, **given) | {
            "seen": seen
        }

    return of_energon


@pytest.mark.jobs
def test_energons_blends(of_energon):
    names = of_energon("blend", 1000)
    kinds = Counter(type(batch).__name__ for batch in names["seen"])
    assert kinds == {"ImageBatch": 600, "CaptioningBatch": 400}
    assert all(
        len(batch.__key__) == 32 and batch.image.shape[0] == 32
        for batch in names["seen"]
    )
    validated = list(names["val_loader"])
    assert [type(batch).__name__ for batch in validated] == [
        "ImageBatch",
        "CaptioningBatch",
    ]
    keys = [key for batch in validated for key in batch.__key__]
    assert sorted(keys) == sorted(2 * [f"{number:06d}" for number in range(60, 80)])
    seen = of_energon("mix_homogeneous", 25)["seen"]
    assert {(type(batch), tuple(batch.image.shape)) for batch in seen} == {
        (CaptioningBatch, (32, 3, 24, 32))
    }
    first = Counter(
        int(text.split()[1]) < 200 for batch in seen for text in batch.caption
    )
    assert first == {True: 480, False: 320}
    seen = of_energon("mix_heterogeneous", 125)["seen"]
    assert {tuple(batch.images.shape) for batch in seen} == {(32, 3, 24, 32)}
    assert sum(caption is None for batch in seen for caption in batch.captions) == 2400
    assert all(
        len(caption) == 1 for batch in seen for caption in batch.captions if caption
    )


def test_energons_weights_of_samples(of_energon):
    model = torch.nn.Linear(3, 1)

    def tokenizer(texts):
        return torch.tensor([[int(text.split()[1])] for text in texts])

    def forward_and_compute_loss(images, text):
        return (model(images.mean(dim=(2, 3))) - text / 1000).square().mean()

    names = of_energon(
        "sample_weights",
        20,
        tokenizer=tokenizer,
        forward_and_compute_loss=forward_and_compute_loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        get_loader=energize.get_loader,
        BlendDataset=energize.BlendDataset,
        get_train_dataset=energize.get_train_dataset,
    )
    for batch in names["seen"]:
        assert batch.weight == (0.2 if batch.text[0] < 400 else 0.8)
        assert batch.images.shape[0] == batch.text.shape[0] == len(batch.__keys__) == 32
    assert {batch.weight for batch in names["seen"]} == {0.2, 0.8}
    assert torch.isfinite(names["loss"])
