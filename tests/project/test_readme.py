"""The README's code runs, and its metadataset means what it says."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from energize import get_train_dataset, prepare, write_shards
from energize.metadataset import leaves_with_weights, resolve
from tests.support.prepared import captions, classes

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    classes(root / "images", 40)
    for name in ("captions", "captions_a", "captions_b"):
        captions(root / name, 40)
    return root


def test_preparing(tmp_path):
    (text,) = [block for block in blocks("python") if "write_shards" in block]
    text = text.replace('"/data/captions"', repr(str(tmp_path / "ds")))
    names = {"pairs": [(b"jpeg", "one"), (b"jpeg", "two")]}
    exec(compile(text, "README", "exec", dont_inherit=True), names)
    report = prepare(tmp_path / "ds", split_ratios={"train": 1}, sample_type="CaptioningSample")
    assert report.samples == 2
    assert report.config.field_map == {"image": "jpg", "caption": "txt"}


def test_training(data, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (text,) = [block for block in blocks("python") if "get_train_dataset" in block]
    text = text.replace('"/data/captions"', repr(str(data / "captions")))
    assert "in loader:" in text
    names = {"islice": islice, "__name__": "readme"}
    exec(
        compile(
            text.replace("in loader:", "in islice(loader, 3):"), "README", "exec", dont_inherit=True
        ),
        names,
    )
    assert tuple(names["batch"].image.shape) == (32, 3, 24, 32)
    following = next(iter(names["loader"]))
    assert following.__key__ == names["dataset"][3].__key__


def test_mixing(data):
    (text,) = [block for block in blocks("python") if "MixBatchDataset" in block]
    images, texts = (
        get_train_dataset(data / name, batch_size=1) for name in ("images", "captions")
    )
    stored = [
        get_train_dataset(data / name, batch_size=4, repeat=False)
        for name in ("images", "captions")
    ]
    names = {
        "images": images,
        "captions": texts,
        "images_1": images,
        "captions_1": texts,
        "my_mix": list,
        "val_images": stored[0],
        "val_captions": stored[1],
    }
    exec(compile(text, "README", "exec", dont_inherit=True), names)
    assert len(names["mixed"][0]) == 32
    assert len(list(names["val"])) == 16
    assert names["blend"].shares() == [0.6, 0.4]


def test_the_metadataset(data):
    text, _ = blocks("yaml")
    file = data / "mix.yaml"
    file.write_text(text)
    shares = {
        leaf.path.name: float(share) for leaf, share in leaves_with_weights(resolve(file, "train"))
    }
    assert shares == pytest.approx({"images": 0.6, "captions_a": 0.3, "captions_b": 0.1})
    assert len(get_train_dataset(file, batch_size=4, task_encoder=None).sources) == 3


def test_the_metadataset_in_tokens(tmp_path):
    _, text = blocks("yaml")
    for name in ("captions", "web"):
        facts = [{"quality": "high" if number % 4 else "low"} for number in range(40)]
        samples = [
            {"__key__": str(number), "txt": "word " * (number % 9 + 1), "json": each}
            for number, each in enumerate(facts)
        ]
        write_shards(samples, tmp_path / name)
        columns = {"tokens": "len:txt", "quality": "json[quality]"}
        options = {"split_ratios": {"train": 1}, "sample_type": "TextSample"}
        prepare(tmp_path / name, columns=columns, field_map={"text": "txt"}, **options)
    file = tmp_path / "mix.yaml"
    file.write_text(text)
    blend = get_train_dataset(file, batch_size=None)
    spent = dict(zip(blend.names, blend.spent(10_000), strict=True))
    total = sum(spent.values())
    shares = {name: cost / total for name, cost in spent.items()}
    asked = {"captions": 0.75, "web/high": 0.1875, "web/low": 0.0625}
    assert shares == pytest.approx(asked, abs=0.001)
    weights = {source.name: set() for source in blend.sources}
    for sample in blend.at(range(200)):
        name = sample.__sources__[0].dataset_path.rpartition("/")[2]
        weights.setdefault(name, set()).add(sample.__sample_weight__)
    assert weights["captions"] == {0.5}
    assert weights["web"] == {1.0}
