"""What `simulate` and `plan` say, against what real loaders deliver: of one task encoder and of one
for each type of samples, in training and in validation, by ranks with workers.
"""

import json
from collections import Counter
from itertools import islice, zip_longest

import pytest

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from tests.cli.commands import run
from tests.support.prepared import captions, classes

HEAD = """\
__module__: energize
__class__: MetadatasetV2
splits:
"""
SPLITS = {
    "plain": """
    blend:
      - {path: web, weight: 0.6}
      - {path: books, weight: 0.1}
      - {path: classes, weight: 0.3}""",
    "nested": """
    scheme: exact
    blend:
      - weight: 3
        blend:
          - {path: web, weight: 2}
          - {path: classes, weight: 1}
      - {path: books, weight: 1}""",
    "changing": """
    blend:
      - {path: web, weight: {points: {0: 1, 20: 0.25}, interpolation: linear}}
      - {path: classes, weight: {points: {0: 0, 12: 1}}}
      - {path: books, weight: 1}""",
    "staged": """
    stages:
      - name: first
        start_step: 0
        end_step: 14
        blend: [{path: web, weight: 1}, {path: classes, weight: 2}]
      - name: then
        start_step: 14
        blend: [{path: books, weight: 1}, {path: classes, weight: 1}]""",
}
STEPS, RANKS, BATCH = 24, 2, 5


class Keys(DefaultTaskEncoder):
    """One encoder for samples of all types: a batch is their keys."""

    def batch(self, samples):
        return [sample.__key__ for sample in samples]


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    captions(folder / "web", 80)
    captions(folder / "books", 30, shards=2, start=500)
    classes(folder / "classes", 40)
    text = HEAD + "".join(f"  {name}:{split}\n" for name, split in SPLITS.items())
    text = text.replace("{path: web,", "{path: web, split_part: train,")
    text = text.replace("{path: books,", "{path: books, split_part: train,")
    text = text.replace("{path: classes,", "{path: classes, split_part: train,")
    text += "  val:\n    blend:\n" + "".join(
        f"      - {{path: {name}, weight: {weight}}}\n"
        for name, weight in (("web", 5), ("books", 1), ("classes", 1))
    )
    (folder / "mix.yaml").write_text(text)
    return folder / "mix.yaml"


def keys_of_ranks(mix, split, workers, **options):
    """The keys of the batches of all ranks, in the order of the run."""
    by_rank = []
    for rank in range(RANKS):
        config = WorkerConfig(rank=rank, world_size=RANKS, num_workers=workers, seed_offset=3)
        dataset = get_train_dataset(
            mix, split_part=split, batch_size=BATCH, worker_config=config, **options
        )
        with get_loader(dataset) as loader:
            by_rank.append([list(map(key_of, batch)) for batch in islice(loader, STEPS // RANKS)])
    return [keys for step in zip(*by_rank, strict=True) for keys in step]


def planned(mix, *options):
    lines = run("plan", mix, *options, "--batch-size", BATCH, "--keys", "--json").splitlines()
    return [json.loads(line) for line in lines]


def key_of(sample):
    return sample if isinstance(sample, str) else sample.__key__


def keys_of(batches):
    return [[sample["key"] for sample in batch["samples"]] for batch in batches]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("per_type", [False, True])
def test_plan_and_simulation_are_the_run(mix, split, per_type):
    kinds = (CaptioningSample, ImageClassificationSample)
    encoder = {kind: Keys() for kind in kinds} if per_type else Keys()
    options = ("--split", split, "--seed", 3, *(["--encoder-per-type"] if per_type else []))
    batches = planned(mix, *options, "--steps", STEPS)
    workers = 2 if split == "nested" else 0
    assert keys_of(batches) == keys_of_ranks(mix, split, workers, task_encoder=encoder)
    told = json.loads(
        run("simulate", mix, *options, "--batch-size", BATCH, "--steps", STEPS, "--json")
    )
    assert told["weights_count"] == ("whole batches" if per_type else "samples")
    assert told["types"] == ["CaptioningSample", "ImageClassificationSample"]
    drawn = Counter(sample["source"] for batch in batches for sample in batch["samples"])
    assert {each["name"]: each["drawn"] for each in told["sources"]} == drawn


def test_who_has_samples_of_several_types_is_told_that_encoders_matter(mix):
    for command in ("plan", "simulate"):
        args = (command, mix, "--split", "plain", "--steps", 3)
        shown = " ".join(run(*args).split())
        assert "samples are of 2 types, CaptioningSample, ImageClassificationSample" in shown
        assert "give --encoder-per-type" in shown
        assert "Note:" not in run(*args, "--encoder-per-type")


@pytest.mark.parametrize("per_type", [False, True])
def test_validation_is_what_get_val_dataset_reads(mix, per_type):
    kinds = (CaptioningSample, ImageClassificationSample)
    encoder = {kind: Keys() for kind in kinds} if per_type else Keys()
    by_rank = []
    for rank in range(RANKS):
        config = WorkerConfig(rank=rank, world_size=RANKS, num_workers=2)
        dataset = get_val_dataset(mix, batch_size=BATCH, worker_config=config, task_encoder=encoder)
        with get_loader(dataset) as loader:
            by_rank.append(list(loader))
    steps = [batch for step in zip_longest(*by_rank) for batch in step if batch is not None]
    options = ("--split", "val", *(["--encoder-per-type"] if per_type else []))
    told = json.loads(run("simulate", mix, *options, "--batch-size", BATCH, "--json"))
    batches = planned(mix, *options, "--steps", told["steps"])
    assert [keys for keys in keys_of(batches) if keys] == steps[: told["steps"]]
    assert (told["validates"], told["weights_count"]) == (True, None)
    parts = {
        each["name"]: (each["drawn"], each["count"], each["epochs"]) for each in told["sources"]
    }
    assert parts == {"web": (20, 20, 1.0), "books": (15, 15, 1.0), "classes": (10, 10, 1.0)}
    assert {each["asked"] for each in told["sources"]} == {None}


def test_validation_is_said_to_be_such(mix):
    shown = run("simulate", mix, "--split", "val", "--batch-size", BATCH)
    assert "Validation, every sample once in stored order: 9 steps, 45 samples" in shown
    assert "asked %" not in shown
    assert "Never reached: classes: not in 3 steps" in run(
        "simulate", mix, "--split", "val", "--batch-size", BATCH, "--steps", 3
    )
    trained = run("simulate", mix, "--split", "val", "--training", "--steps", 70)
    assert "70 steps, 70 samples; weights count samples" in trained
    assert "Validation" in run("simulate", mix.parent / "web", "--validation")
    said = run("simulate", mix, "--split", "val", "--shuffle-buffer-size", 5, code=2)
    assert "--shuffle-buffer-size keeps the reads of training local" in said
    assert "validation reads every sample once" in run(
        "simulate", mix, "--split", "staged", "--validation", code=1
    )
