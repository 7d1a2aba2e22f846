"""`energize plan` and `energize simulate`, against what loaders deliver."""

from collections import Counter
from itertools import chain, islice, zip_longest

import pytest
import torch

from energize import (
    CaptioningSample,
    DefaultTaskEncoder,
    ImageClassificationSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energize.experimental import get_staged_train_dataset
from tests.cli.commands import as_json, refused, run
from tests.support.prepared import captions

SPLITS = ("train", "ends", "quotas", "changing", "types", "staged")
RANKS, STEPS, BATCH = 3, 12, 6
KINDS = (CaptioningSample, ImageClassificationSample)


class Keys(DefaultTaskEncoder):
    """One encoder for samples of all types: a batch is their keys."""

    def batch(self, samples):
        return [sample.__key__ for sample in samples]


@pytest.fixture(scope="module")
def mix(home):
    return home / "mix.yaml"


def keys_of(batches):
    return [[sample["key"] for sample in batch["samples"]] for batch in batches]


def delivered(make, path, **options):
    """The batches of all ranks, in the order of the run."""
    by_rank = []
    for rank in range(RANKS):
        config = WorkerConfig(rank=rank, world_size=RANKS, seed_offset=3)
        dataset = make(path, batch_size=BATCH, worker_config=config, **options)
        with get_loader(dataset) as loader:
            by_rank.append(list(islice(loader, STEPS // RANKS)))
    return [
        batch for step in zip_longest(*by_rank) for batch in step if batch is not None
    ]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("per_type", [False, True])
def test_a_plan_is_what_the_loaders_of_all_ranks_deliver(mix, split, per_type):
    encoder = {kind: Keys() for kind in KINDS} if per_type else Keys()
    options = ["--batch-size", BATCH, "--seed", 3, "--split", split]
    options += ["--encoder-per-type"] if per_type else []
    batches = as_json(
        "plan", mix, *options, "--keys", "--steps", STEPS, "--world-size", RANKS
    )
    assert [(each["step"], each["rank"]) for each in batches] == [
        (step, step % RANKS) for step in range(STEPS)
    ]
    read = delivered(get_train_dataset, mix, split_part=split, task_encoder=encoder)
    assert keys_of(batches) == read
    told = as_json("simulate", mix, *options, "--steps", STEPS)
    mixes_types = per_type and split in ("types", "staged")
    assert ("whole batches" in told["weights_count"]) == mixes_types
    drawn = Counter(
        sample["source"] for batch in batches for sample in batch["samples"]
    )
    assert {e["name"]: e["drawn"] for e in told["sources"] if e["drawn"]} == drawn


PACKED = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend: [{path: web/captions, weight: 3}, {path: books/captions, weight: 1}]
    packing: {length: text, capacity: 40, buffer_size: 20}
"""


class Texts(DefaultTaskEncoder):
    """Packs of the letters of captions."""

    @stateless
    def encode_sample(self, sample):
        text = torch.tensor(list(sample.caption.encode()))
        return {"__key__": sample.__key__, "text": text}

    def batch(self, packs):
        return [pack["__key__"].split(",") for pack in packs]


def test_a_packed_run_is_read_where_that_is_asked_for(home):
    mix = home / "packed.yaml"
    mix.write_text(PACKED)
    for command in ("plan", "simulate"):
        refused(
            [([], 2, "its samples are known only by reading", "--read")],
            command,
            mix,
        )
    options = (mix, "--read", "--encoder", f"{__name__}:Texts")
    with get_loader(
        get_train_dataset(mix, batch_size=2, task_encoder=Texts())
    ) as loader:
        read = [list(chain(*batch)) for batch in islice(loader, 9)]
    plan = ("plan", *options, "--batch-size", 2, "--at", 5, "--steps", 4, "--keys")
    assert keys_of(as_json(*plan)) == read[5:]
    assert "; read, as no plan says what is packed or left out" in run(*plan)
    options = ("simulate", mix, "--read", 20, *options[2:], "--batch-size", 2)
    told = as_json(*options, "--steps", 200)
    assert told["read"] >= 20
    assert told["samples"] == pytest.approx(200 * sum(map(len, read)) / 9, rel=0.2)
    asked = [(each["asked"], round(each["share"], 2)) for each in told["sources"]]
    assert asked == [(0.75, 0.75), (0.25, 0.25)]
    shown = run(*options, "--steps", 200)
    assert f"samples, estimated from the {told['read']} batches that were read" in shown
    refused([([], 2, "only reading shows its end. Set --steps")], *options)


def test_order_options_of_the_run(home):
    folder = home / "classes"
    dataset = get_train_dataset(folder, batch_size=5, max_samples_per_sequence=4)
    options = ("plan", folder, "--steps", 6, "--batch-size", 5, "--keys")
    got = keys_of(as_json(*options, "--max-samples-per-sequence", 4))
    assert got == [batch.__key__ for batch in dataset.at(range(6))]
    assert got != keys_of(as_json(*options))


def test_tables(mix, home):
    shown = run(
        "plan", home / "classes", "--at", 10**9, "--steps", 25, "--batch-size", 30,
        "--max-samples-per-sequence", 10, "--world-size", 2,
    )  # fmt: skip
    assert "Steps 1,000,000,000 to 1,000,000,019" in shown
    assert "Steps 1,000,000,020 to 1,000,000,024" in shown
    assert ".tar[0-9]" in shown
    assert (
        "25 steps, 750 samples: classes 750 (100.0 %); weights count samples" in shown
    )
    assert "web/captions [train] #1" in run("plan", mix, "--batch-size", 20, "--keys")
    shown = run("simulate", mix, "--steps", 10**12, "--batch-size", 10)
    assert (
        "1,000,000,000,000 steps, 10,000,000,000,000 samples; weights count samples"
        in shown
    )
    rows = {
        line.split()[0]: line.split()
        for line in shown.splitlines()
        if "captions" in line
    }
    assert rows["books/captions"][1:5] == ["30.000", "30.000", "3.00T", "15"]
    assert "Never reached: web/captions [val]: its weight is 0" in shown
    short = run("simulate", mix, "--steps", 1)
    assert "Never reached: web/captions [train] #2: not in 1 step\n" in short


def test_validation_is_what_get_val_dataset_reads(mix):
    steps = delivered(get_val_dataset, mix, task_encoder=Keys())
    options = (mix, "--split", "val", "--batch-size", BATCH)
    told = as_json("simulate", *options)
    batches = as_json("plan", *options, "--steps", told["steps"], "--keys")
    assert [keys for keys in keys_of(batches) if keys] == steps[: told["steps"]]
    assert (told["validates"], told["weights_count"]) == (True, None)
    parts = {e["name"]: (e["drawn"], e["count"], e["asked"]) for e in told["sources"]}
    assert parts == {
        "web/captions": (20, 20, None), "books/captions": (15, 15, None), "classes": (10, 10, None),
    }  # fmt: skip
    shown = run("simulate", *options)
    assert (
        f"Validation, every sample once in stored order: {told['steps']} steps" in shown
    )
    assert "asked %" not in shown
    refused(
        [(["--shuffle-buffer-size", 5], 2, "keep the reads of training")],
        "simulate",
        *options,
    )


STAGES = """\
training:
  steps: 30
  data_stages:
    - {name: first, start_step: 0, end_step: 20, seq_len: 8, dataset_type: energize,
       dataset_folders: [one/shards, two/shards], dataset_weights: [0.75, 0.25]}
    - {name: second, start_step: 20, seq_len: 8, dataset_type: energize,
       dataset_folders: [two/shards, three/shards], dataset_weights: [0.5, 0.5],
       dataset_random_seed: 5}
"""


def test_a_file_of_stages(tmp_path):
    for name in ("one", "two", "three"):
        captions(tmp_path / name / "shards", 40)
    (tmp_path / "run.yaml").write_text(STAGES)
    options = (tmp_path / "run.yaml", "--batch-size", 4, "--seed", 3)
    batches = as_json("plan", *options, "--keys", "--steps", 30)
    config = WorkerConfig(seed_offset=3)
    read = get_staged_train_dataset(options[0], batch_size=4, worker_config=config)
    assert keys_of(batches) == [batch.__key__ for batch in read]
    told = as_json("simulate", *options)
    assert told["steps"] == 30
    drawn = Counter(each["source"] for batch in batches for each in batch["samples"])
    assert {each["name"]: each["drawn"] for each in told["sources"]} == drawn
    assert [(each["name"], each["asked"]) for each in told["sources"]] == [
        ("one/shards", 0.5),
        ("two/shards #1", 0.166666667),
        ("two/shards #2", 0.166666667),
        ("three/shards", 0.166666667),
    ]
    (tmp_path / "endless.yaml").write_text(STAGES.replace("  steps: 30\n", ""))
    refused(
        [([], 2, "Set --steps to the number")], "simulate", tmp_path / "endless.yaml"
    )
    stages = as_json("simulate", tmp_path / "endless.yaml", "--steps", 50)["stages"]
    assert stages == [
        {"name": "first", "start": 0, "stop": 20}, {"name": "second", "start": 20, "stop": 50},
    ]  # fmt: skip


def test_steps_that_are_not_given(mix):
    refused([([], 2, "Set --steps to the number")], "simulate", mix)
    ends = as_json("simulate", mix, "--split", "quotas", "--batch-size", 5)
    assert (ends["steps"], ends["samples"]) == (21, 105)
    composed = ("simulate", mix, "--split", "composed", "--steps", 3)
    assert [each["drawn"] for each in as_json(*composed)["sources"]] == [18, 6]
    assert as_json(*composed, "--batch-size", 2)["samples"] == 6


def test_shares_are_drawn(mix, tmp_path):
    page = tmp_path / "changing.html"
    run("simulate", mix, "--steps", 400, "--split", "changing", "--plot", page)
    assert "books/captions" in page.read_text()
    refused(
        [
            ([tmp_path / "a.jpg"], 2, ".png, .svg, .pdf, .html, got '.jpg'"),
            ([tmp_path / "none" / "shares.png"], 2, "cannot be written"),
        ],
        "simulate", mix, "--steps", 10, "--plot",
    )  # fmt: skip


def test_wrong_arguments(mix, tmp_path):
    refused([([tmp_path / "none"], 2, "does not exist")], "plan")
    refused(
        [
            (["--split", "test"], 1, "no split 'test'"),
            (["--at", -1], 2, "--at"),
            (["--steps", 0], 2, "--steps"),
            (["--at", 2**61, "--batch-size", 8], 2, "too far away"),
            (["--batch-size", 0], 2, "--batch-size"),
        ],
        "plan", mix,
    )  # fmt: skip
