"""`energize report`: a saved state told as a table and a picture, against what was delivered."""

import json
from collections import Counter

import pytest
import torch
from PIL import Image

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from tests.cli.commands import program, run
from tests.support.prepared import captions, classes

MIX = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: web, weight: 3}
      - {path: books, weight: 1}
  staged:
    stages:
      - name: first
        start_step: 0
        end_step: 10
        blend:
          - {path: web, split_part: train, weight: 3}
          - {path: books, split_part: train, weight: 1}
      - name: second
        start_step: 10
        blend:
          - {path: books, split_part: train, weight: 1}
          - {path: web, split_part: train, weight: 1}
  changed:
    blend:
      - {path: web, split_part: train, weight: 3}
      - {path: books, split_part: train, weight: 1}
  quotas:
    blend:
      - {path: web, split_part: train, repeat: 1.5}
      - {path: books, split_part: train}
  types:
    blend:
      - {path: web, split_part: train, weight: 3}
      - {path: classes, split_part: train, weight: 1}
"""
BATCH, STEPS = 4, 9


class Folders(DefaultTaskEncoder):
    """A batch is the folders of its samples."""

    def batch(self, samples):
        return [folder_of(getattr(sample, "caption", "")) for sample in samples]


def folder_of(caption):
    number = int(caption.removeprefix("caption ") or -1)
    return "classes" if number < 0 else "books" if number >= 500 else "web"


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    captions(folder / "web", 80)
    captions(folder / "books", 30, shards=2, start=500)
    classes(folder / "classes", 40)
    (folder / "mix.yaml").write_text(MIX)
    return folder / "mix.yaml"


def delivered(mix, split, *, workers=0, change=None, per_type=False, steps=STEPS):
    """The state of two ranks after so many steps, and what was delivered to them, by folder."""
    kinds = (CaptioningSample, ImageClassificationSample)
    encoder = {kind: Folders() for kind in kinds} if per_type else Folders()
    loaders = [
        get_loader(
            get_train_dataset(
                mix,
                split_part=split,
                batch_size=BATCH,
                worker_config=WorkerConfig(
                    rank=rank, world_size=2, num_workers=workers, seed_offset=3
                ),
                task_encoder=encoder,
            )
        )
        for rank in range(2)
    ]
    seen = Counter()
    iterators = [iter(loader) for loader in loaders]
    for step in range(steps):
        for loader, iterator in zip(loaders, iterators, strict=True):
            if change is not None and step == 5:
                loader.set_weights(change)
            seen.update(next(iterator))
    states = [loader.state_dict() for loader in loaders]
    for loader in loaders:
        loader.close()
    assert states[0] == states[1]
    return states[0], seen


def saved(mix, split, **options):
    """The same, with the state in a file beside other things."""
    state, seen = delivered(mix, split, **options)
    file = mix.parent / f"{split}.pt"
    torch.save({"model": torch.zeros(3), "data": state}, file)
    return file, seen


def told(*arguments):
    """What a report says: samples, and asked shares, by the names of sources."""
    seed = ("--seed", 3) if len(arguments) > 1 else ()
    report = json.loads(run("report", *arguments, *seed, "--json"))
    samples = Counter()
    for row in report["rows"]:
        if row["is_source"]:
            samples[row["path"][-1].partition(" ")[0]] += row["samples"]
    return samples, report


@pytest.mark.parametrize(
    ("split", "options"),
    [
        ("train", {"workers": 2}),
        ("staged", {"steps": 14}),
        ("changed", {"change": {"web": 1, "books": 9}, "steps": 20}),
        ("types", {"per_type": True}),
    ],
)
def test_a_state_with_its_mix_tells_what_was_delivered(mix, split, options):
    file, seen = saved(mix, split, **options)
    given = ("--split", split, *(["--encoder-per-type"] if "per_type" in options else []))
    samples, report = told(file, mix, *given)
    assert samples == seen
    assert report["title"] == f"After {2 * options.get('steps', STEPS)} items to all ranks"
    page = mix.parent / f"{split}.html"
    run("report", file, mix, *given, "--seed", 3, "--plot", page)
    text = page.read_text()
    assert f"<h1>{split}.pt of {mix}, split {split}</h1>" in text
    assert "over the steps, delivered" in text
    for name, count in seen.items():
        row = next(
            line
            for line in text.splitlines()
            if line.startswith("<tr><td>") and f"{name}</td>" in line
        )
        assert f"<td>{count}</td>" in row or split == "staged"


@pytest.mark.jobs
def test_a_picture_of_a_state(mix):
    file, _ = saved(mix, "train")
    picture = mix.parent / "state.png"
    out, errors = program("report", file, mix, "--seed", 3, "--plot", picture)
    assert "web" in out
    assert errors == f"Drawn: {picture}\n"
    with Image.open(picture) as image:
        assert image.format == "PNG"


def test_what_does_not_fit_is_said(mix, tmp_path):
    file, _ = saved(mix, "train")
    for options in (["--seed", 4], ["--seed", 3, "--split", "staged"]):
        said = run("report", file, mix, *options, code=1)
        assert "does not fit" in said
        assert "Here: the options are those of the run" in said
    assert "batch_size was 4, is 5" in run("report", file, mix, "--batch-size", 5, code=1)
    assert "does not exist" in run("report", tmp_path / "none.pt", mix, code=2)
    empty, _ = delivered(mix, "train", steps=0)
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    said = run(
        "report", tmp_path / "empty.json", mix, "--seed", 3, "--plot", tmp_path / "a.html", code=2
    )
    assert "nothing was delivered yet" in said
    (tmp_path / "other.json").write_text("{}")
    assert "holds no state of a loader" in run("report", tmp_path / "other.json", code=1)


def test_a_run_whose_mix_was_edited_is_not_drawn(mix):
    state, _ = delivered(mix, "train")
    edited = mix.with_name("edited.yaml")
    edited.write_text(MIX.replace("{path: books, weight: 1}", "{path: classes, weight: 1}", 1))
    config = WorkerConfig(rank=0, world_size=1, seed_offset=3)
    dataset = get_train_dataset(
        edited, batch_size=BATCH, worker_config=config, task_encoder=Folders()
    )
    with get_loader(dataset) as loader:
        loader.load_state_dict(state, on_mismatch="remap")
        next(iter(loader))
        later = mix.with_name("later.json")
        later.write_text(json.dumps(loader.state_dict()))
    assert f"After {2 * STEPS + 1} items" in run("report", later, edited, "--seed", 3)
    page = mix.with_name("later.html")
    said = run("report", later, edited, "--seed", 3, "--plot", page, code=2)
    assert "was edited on the way" in said
    assert not page.exists()
