"""Loose files made prepared folders: the same samples, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

from energize import convert, get_loader, get_train_dataset, get_val_dataset, prepare
from energize.errors import (
    ConfigError,
    DatasetNotFoundError,
    NotPreparedError,
    PrepareError,
)
from energize.preparation import prepare_checksums
from energize.preparation.index import prepare_jsonl
from tests.cli.commands import run
from tests.preparation.test_loose import (
    JPEG,
    KINDS,
    N,
    cache,  # noqa: F401
    classes,
    described,
    files,
    table,
    tars,
)
from tests.support.metadatasets import written
from tests.support.refusals import check_refusals
from tests.support.rows import write_lines
from tests.support.s3 import SECRET, s3_server, s3fs
from tests.support.tars import contents


def whole(folder):
    """What a conversion comes to, without its markers."""
    return {
        name: data for name, data in contents(folder).items() if "/tasks/" not in name
    }


def same(one, other):
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def fields_of(sample):
    places = ("__sources__", "__restore_key__")
    names = (each.name for each in fields(sample) if each.name not in places)
    return {name: getattr(sample, name) for name in names}


@pytest.mark.parametrize("kind", KINDS)
def test_converted_samples_are_the_loose_ones_and_a_run_goes_on_with_either(
    kind, tmp_path
):
    make, _, _ = KINDS[kind]
    (tmp_path / "here").mkdir()
    path, out = make(tmp_path / "here" / kind), tmp_path / "out"
    convert(path, out, samples_per_shard=3, workers=1)
    part = {"split_part": "train", "batch_size": None}
    for given in (part, part | {"subset": {"range": ["30%", "90%"]}}):
        loose, converted = (get_val_dataset(each, **given) for each in (path, out))
        assert converted.describe() == loose.describe()
        assert converted.sources[0].run_length == loose.sources[0].run_length
        pairs = [*zip(loose, converted, strict=True)]
        assert len(pairs) == len(loose)
        for one, other in pairs:
            mine, its = fields_of(one), fields_of(other)
            assert mine.keys() == its.keys()
            assert all(same(mine[name], its[name]) for name in mine), (mine, its)
    datasets = [
        get_train_dataset(each, batch_size=2, shuffle_buffer_size=4)
        for each in (path, out)
    ]
    keys = [each.__key__ for each in islice(datasets[0], 9)]
    for first, then in (datasets, datasets[::-1]):
        before, after = get_loader(first), get_loader(then)
        begun = [each.__key__ for each in islice(before, 4)]
        after.load_state_dict(before.state_dict())
        rest = [each.__key__ for each in islice(after, 5)]
        assert begun + rest == keys


def test_every_number_of_tasks_writes_the_same_bytes(tmp_path):
    source, alone = described(tmp_path / "photos", ".csv"), tmp_path / "alone"
    report = convert(source, alone, samples_per_shard=4, workers=2)
    assert [*report.shard_counts.values()] == [4, 4, 4, 2]
    assert not [name for name in contents(alone) if "/tasks/" in name]
    for tasks in (1, 3, 5):
        out = tmp_path / f"by-{tasks}"
        convert(source, out, samples_per_shard=4, workers=1, tasks=tasks)
        assert whole(out) == whole(alone)
    by = {"samples_per_shard": 4, "workers": 1, "tasks": 3}
    seen = []
    convert(
        source,
        out,
        **by | {"tasks": 5},
        task=1,
        on_progress=lambda *each: seen.append(each),
    )
    assert not seen
    out = tmp_path / "by"
    for task in (2, 0):
        convert(source, out, **by, task=task)
    with pytest.raises(PrepareError, match=r"have not ended .*: 1\."):
        convert(source, out, **by, merge=True)
    (source / "more/5.v1.jpg").write_bytes(JPEG + b"more")
    convert(source, out, **by, task=1)
    with pytest.raises(
        PrepareError, match=r"shards: 2; task 2 ran with others .*'train-000003"
    ):
        convert(source, out, **by, merge=True)
    convert(source, out, **by, task=2)
    convert(source, out, **by, merge=True)
    source = get_val_dataset(out, split_part="train", batch_size=None).sources[0]
    assert source.read(np.array([12]))[0]["jpg"] == JPEG + b"more"


def test_columns_weigh_converted_samples_as_they_did(tmp_path):
    described(tmp_path / "csv", ".csv")
    convert(tmp_path / "csv", tmp_path / "tars", workers=1)
    mixes = []
    for name in ("csv", "tars"):
        low = {"path": name, "by": "n", "weights": {"0..5": 3, "5..": 1}}
        mixes.append(
            get_train_dataset(written(tmp_path / f"{name}.yaml", low), batch_size=2)
        )
    assert mixes[0].describe() == mixes[1].describe()


def test_split_parts_are_all_converted(tmp_path):
    for split, number in (("train", 3), ("validation", 2)):
        classes(tmp_path / "photos" / split)
        files(tmp_path / "photos" / split, [f"dog/more{i}.jpg" for i in range(number)])
    report = convert(
        tmp_path / "photos", tmp_path / "out", samples_per_shard=9, workers=1
    )
    assert [*report.shard_counts.values()] == [9, 8, 9, 7]
    for part in ("train", "val"):
        loose, out = (
            get_val_dataset(tmp_path / each, split_part=part, batch_size=3)
            for each in ("photos", "out")
        )
        assert loose.describe() == out.describe()
        assert loose[0].__key__ == out[0].__key__


def test_what_cannot_be_written_is_told_and_the_rest_is_kept(tmp_path):
    source, out = described(tmp_path / "photos", ".jsonl"), tmp_path / "out"
    data = (source / "3.v1.jpg").read_bytes()
    (source / "3.v1.jpg").unlink()
    (source / "3.v1.jpg").symlink_to("gone.jpg")
    with pytest.raises(PrepareError) as told:
        convert(source, out, samples_per_shard=4, workers=1)
    for words in (
        "1 of 4 shards",
        "metadata.jsonl, line 4, sample '3_v1'",
        "The others are done",
    ):
        assert words in str(told.value)
    with pytest.raises(NotPreparedError, match="its conversion was interrupted"):
        get_train_dataset(out, batch_size=1)
    with pytest.raises(PrepareError, match=r"a conversion to .*out has not ended"):
        prepare(out, split_ratios={"train": 1})
    first = (out / "train-000001.tar").stat().st_ino
    (source / "3.v1.jpg").unlink()
    (source / "3.v1.jpg").write_bytes(data)
    convert(source, out, samples_per_shard=4, workers=1)
    assert (out / "train-000001.tar").stat().st_ino == first
    assert len(get_val_dataset(out, split_part="train", batch_size=None)) == 2 * N


def test_what_is_refused(tmp_path):
    source = described(tmp_path / "photos", ".csv")
    full = files(tmp_path / "full", ["a.txt"])
    begun = tmp_path / "begun"
    convert(source, begun, samples_per_shard=5, workers=1, tasks=2, task=0)
    done = tmp_path / "done"
    convert(source, done, workers=1)
    rows = [
        {
            "image": {"bytes": JPEG, "path": None},
            "other/one": {"bytes": JPEG, "path": None},
        }
    ]
    odd = table(tmp_path / "odd.parquet", rows)
    of = partial(convert, source, workers=1)
    lines = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    prepare_jsonl(lines)
    refused = {
        "not empty": (partial(of, full), PrepareError, "is not empty: it has a.txt"),
        "begun": (partial(of, begun, samples_per_shard=4), PrepareError, "conversion resumes only"),
        "done": (partial(of, done), PrepareError, "done is prepared already. Pass a new"),
        "inside": (partial(of, source / "out"), ConfigError, "is inside the source"),
        "size": (partial(of, tmp_path / "x", samples_per_shard=0), ConfigError, "samples_per_sh"),
        "gone": (partial(convert, tmp_path / "no", tmp_path / "x"), DatasetNotFoundError, "not ex"),
        "prepared": (partial(convert, done, tmp_path / "x"), ConfigError, "prepared already. Pass loose"),
        "index": (partial(convert, lines, tmp_path / "x"), ConfigError, "l is prepared already"),
        "name": (partial(convert, odd, tmp_path / "x", workers=1), PrepareError,
            "sample '000000': no tar can hold its 'other/one.jpg'; ren"),
        "a file": (partial(of, full / "a.txt"), PrepareError, "a.txt"),
    }  # fmt: skip
    if os.geteuid():
        closed = tmp_path / "closed"
        closed.mkdir(0o500)
        refused["closed"] = (
            partial(of, closed / "out"),
            PrepareError,
            "closed",
            "Permission",
        )
    check_refusals(refused)


@pytest.mark.jobs
def test_the_command_goes_on_after_it_was_killed(tmp_path):
    source = files(tmp_path / "photos", [f"{i:03d}.jpg" for i in range(100)])
    command = [sys.executable, "-m", "energize", "convert", str(source)]
    options = ["--samples-per-shard", "2", "--num-workers", "1"]
    told = run("convert", source, tmp_path / "alone", *options)
    assert "Converted 100 samples to 50 shards" in told
    out = tmp_path / "out"
    killed = subprocess.Popen([*command, str(out), *options])
    while not list(out.glob("*00005.tar")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    there = {each: each.stat().st_ino for each in sorted(out.glob("*.tar"))}
    with pytest.raises(NotPreparedError, match="was interrupted"):
        get_train_dataset(out, batch_size=1)
    run("convert", source, out, *options)
    assert all(each.stat().st_ino == was for each, was in [*there.items()][:-1])
    assert contents(out) == contents(tmp_path / "alone")


@pytest.mark.jobs
def test_source_and_shards_may_be_in_a_store(tmp_path, monkeypatch):
    source = described(tmp_path / "photos", ".csv")
    with s3_server("bucket") as url:
        for name, value in (
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        size = {"samples_per_shard": 5, "workers": 1}
        convert(source, "s3://bucket/photos", **size)
        with pytest.raises(
            PrepareError, match=r"s3://bucket/photos is prepared already"
        ):
            convert(source, "s3://bucket/photos", **size)
        store = s3fs.S3FileSystem(
            key="key",
            secret=SECRET,
            client_kwargs={"endpoint_url": url},
            skip_instance_cache=True,
        )
        store.put(str(source), "bucket/loose/photos", recursive=True)
        store.put(str(tars(tmp_path / "tars")), "bucket/tars", recursive=True)
        found = [
            get_val_dataset(each, split_part="train", batch_size=None)
            for each in (source, "s3://bucket/loose/photos", "s3://bucket/photos")
        ]
        assert found[0].describe() == found[1].describe() == found[2].describe()
        assert len({tuple(each.__key__ for each in dataset) for dataset in found}) == 1
        with pytest.raises(NotPreparedError, match=r"prepare s3://bucket/tars"):
            get_train_dataset("s3://bucket/tars", batch_size=1)


def test_names_that_are_no_utf_8_make_no_column(tmp_path):
    source = described(tmp_path / "photos", ".jsonl")
    for name in (b"\xff.jpg", b"new\nline.jpg"):
        (source / os.fsdecode(name)).write_bytes(JPEG)
    for name in ("metadata.jsonl", "more/metadata.jsonl"):
        (source / name).unlink()
    convert(source, tmp_path / "out", workers=1)
    get = partial(get_val_dataset, split_part="train", batch_size=None)
    assert [each.__key__ for each in get(source)] == [
        each.__key__ for each in get(tmp_path / "out")
    ]


def test_a_folder_is_known_as_its_origin_while_it_has_its_samples(tmp_path):
    source, out = described(tmp_path / "photos", ".csv"), tmp_path / "out"
    convert(source, out, samples_per_shard=5, workers=1)
    get = partial(get_val_dataset, split_part="train", batch_size=None)
    loose = get(source).describe()
    prepare_checksums(out, workers=1)
    prepare(out, tar_index_only=True, workers=1)
    assert get(out).describe() == loose
    split = out / ".nv-meta/split.yaml"
    split.write_text(
        split.read_text().replace(
            "exclude: []", "exclude: [train-000001.tar/more/1_v1]"
        )
    )
    assert len(get(out)) == 2 * N - 1
    assert get(out).sources[0].name == "out"
