"""What README.md and docs/ print runs, and means what they say."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import PIL.Image
import pytest
from typer.testing import CliRunner

from energize import (
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.cli.main import app
from energize.metadataset import leaves_with_weights, resolve
from tests.support.images import encoded
from tests.support.prepared import captions, classes
from tests.support.tables import row

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/data.md", "docs/mixing.md", "docs/weights.md")
README = "".join((ROOT / name).read_text() for name in PAGES)


@pytest.mark.jobs
def test_examples_of_the_pages_run_as_they_are_printed():
    pages = [
        page for page in (ROOT / "docs").glob("*.md") if ">>> " in page.read_text()
    ]
    assert len(pages) >= 14
    for page in pages:
        with row(page.name):
            found = doctest.testfile(
                str(page), module_relative=False, optionflags=doctest.ELLIPSIS
            )
            assert found.attempted >= 5
            assert found.failed == 0


def readme(language: str, word: str) -> str:
    """The block of the README that has a word."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    [text] = [block for block in blocks if word in block]
    return text


def run(text: str, **names):
    exec(compile(text, "README", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    classes(root / "images", 40)
    for name in ("captions", "captions_a", "captions_b"):
        captions(root / name, 40)
    return root


def test_preparing(tmp_path):
    text = readme("python", "enumerate(pairs)").replace(
        '"/data/captions"', repr(str(tmp_path / "ds"))
    )
    run(text, pairs=[(b"jpeg", "one"), (b"jpeg", "two")])
    report = prepare(
        tmp_path / "ds", split_ratios={"train": 1}, sample_type="CaptioningSample"
    )
    assert report.samples == 2
    assert report.config.field_map == {"image": "jpg", "caption": "txt"}


def test_training(data, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = readme("python", "CaptionTask")
    assert "range(100_000)" in text
    text = text.replace("100_000", "3").replace("step % 1000 == 999", "step == 2")
    found = run(
        text.replace('"/data/captions"', repr(str(data / "captions"))),
        __name__="readme",
    )
    assert tuple(found["batch"].image.shape) == (32, 3, 24, 32)
    following = next(iter(found["loader"]))
    assert following.__key__ == found["dataset"][3].__key__


@pytest.mark.jobs
@pytest.mark.parametrize("count", [10, 300])
def test_the_recipe_from_an_empty_folder_on(count, tmp_path, monkeypatch):
    """Written, prepared by the command as it is printed, looked at, trained and
    validated on."""
    monkeypatch.chdir(tmp_path)
    here = repr(str(tmp_path / "ds"))
    picture = encoded(PIL.Image.new("RGB", (8, 6)), "JPEG")
    write = readme("python", "enumerate(pairs)").replace('"/data/captions"', here)
    run(write, pairs=[(picture, f"caption {i}") for i in range(count)])
    [command] = re.findall(r"energize (prepare /.*?)\n\n", README, re.DOTALL)
    prepared = shlex.split(command.replace("\\\n", "").replace("/data/captions", here))
    for arguments in (
        prepared,
        ["info", tmp_path / "ds"],
        ["preview", tmp_path / "ds", "-n", "1"],
    ):
        done = CliRunner().invoke(app, [str(each) for each in arguments])
        assert done.exit_code == 0, done.output
    text = readme("python", "CaptionTask").replace('"/data/captions"', here)
    text = text.replace("100_000", "3").replace("step % 1000 == 999", "step == 2")
    found = run(text, __name__="readme")
    assert len(found["batch"].caption) == 32
    for split in ("val", "test"):
        with get_loader(
            get_val_dataset(tmp_path / "ds", split_part=split, batch_size=4)
        ) as loader:
            assert [len(batch.caption) for batch in loader] == [max(1, count // 100)]


def test_mixing(data):
    kinds = ("images", "captions")
    endless = [get_train_dataset(data / name, batch_size=1) for name in kinds]
    stored = [
        get_train_dataset(data / name, batch_size=4, repeat=False) for name in kinds
    ]
    names = {
        f"{kind}{end}": each
        for end in ("", "_1")
        for kind, each in zip(kinds, endless, strict=True)
    }
    names |= {f"val_{kind}": each for kind, each in zip(kinds, stored, strict=True)}
    found = run(readme("python", "MixBatchDataset"), my_mix=list, **names)
    assert len(found["mixed"][0]) == 32
    assert len(list(found["val"])) == 16
    assert found["blend"].shares() == [0.6, 0.4]


def test_the_metadataset(data):
    file = data / "mix.yaml"
    file.write_text(readme("yaml", "captions_a"))
    leaves = leaves_with_weights(resolve(file, "train"))
    shares = {leaf.path.name: float(share) for leaf, share in leaves}
    assert shares == pytest.approx(
        {"images": 0.6, "captions_a": 0.3, "captions_b": 0.1}
    )
    assert len(get_train_dataset(file, batch_size=4, task_encoder=None).sources) == 3


def test_the_metadataset_in_tokens(tmp_path):
    for name in ("captions", "web"):
        samples = [
            {
                "__key__": str(number),
                "txt": "word " * (number % 9 + 1),
                "json": {"quality": "high" if number % 4 else "low"},
            }
            for number in range(40)
        ]
        write_shards(samples, tmp_path / name)
        columns = {"tokens": "len:txt", "quality": "json[quality]"}
        options = {"split_ratios": {"train": 1}, "sample_type": "TextSample"}
        prepare(tmp_path / name, columns=columns, field_map={"text": "txt"}, **options)
    file = tmp_path / "mix.yaml"
    file.write_text(readme("yaml", "unit: tokens"))
    blend = get_train_dataset(file, batch_size=None)
    spent = dict(zip(blend.names, blend.spent(10_000), strict=True))
    shares = {name: cost / sum(spent.values()) for name, cost in spent.items()}
    asked = {"captions": 0.75, "web/high": 0.1875, "web/low": 0.0625}
    assert shares == pytest.approx(asked, abs=0.001)
    weights = {
        (
            sample.__sources__[0].dataset_path.rpartition("/")[2],
            sample.__sample_weight__,
        )
        for sample in blend.at(range(200))
    }
    assert weights == {("captions", 0.5), ("web", 1.0)}


def test_the_first_example_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    [draw] = re.findall(r'title="make_data.py"\n(.*?)```', tutorial, re.DOTALL)
    run(draw)
    run(readme("python", "resumed = "))
    assert capsys.readouterr().out == readme("text", "a disc")
