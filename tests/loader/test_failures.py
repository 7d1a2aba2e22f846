"""Samples that fail: who decides, what is told, and lists of them."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import energize
from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    DataError,
    EncoderError,
    FailurePolicy,
    FilterDataset,
    ImageSample,
    IterMapDataset,
    ListSource,
    LoaderError,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    TextSample,
    WebdatasetSource,
    WorkerConfig,
    energon,
    get_train_dataset,
)
from energize.core.failures import Failed, SamplePlace
from energize.core.quarantine import Entry
from energize.data.jsonl import JsonlSource
from energize.data.quarantine import files_of, read_entries
from energize.energon.failures import HandlerPolicy
from energize.errors import FatalSampleError, log_exception, reraise_exception
from energize.loader import get_loader
from energize.loader.failures import ListWriter
from energize.preparation.index import prepare_jsonl
from energize.sources import JoinedSource
from energize.task.load import SampleLoader
from tests.support.datasets import numbers
from tests.support.joining import keys, texts
from tests.support.loading import eventually, prints
from tests.support.prepared import captions


def everything(item: Any) -> bool:
    return True


def no_tens(number: int) -> int:
    if number % 10 == 0:
        raise ValueError(f"{number} is a multiple of ten")
    return number


def read(dataset, workers: int = 0, **options):
    """All items, and the loader."""
    config = WorkerConfig(0, 1, workers)
    with get_loader(dataset, worker_config=config, lanes=1, **options) as loader:
        return list(loader), loader


DATASETS = {
    "indexed": MapDataset(numbers(40), no_tens),
    "stream": MapDataset(FilterDataset(numbers(40), everything), no_tens),
}


def test_a_handler_is_given_the_sample_and_its_sources(tmp_path):
    told: list[tuple[Exception, Any, Any]] = []

    class Encoder(energize.DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.caption.endswith("3"):
                raise KeyError("no threes")
            return sample

    config = energon.WorkerConfig(
        0, 1, 0, global_error_handler=lambda *each: told.append(each)
    )
    dataset = get_train_dataset(
        captions(tmp_path / "captions", 8), worker_config=config, batch_size=None,
        task_encoder=Encoder(), shuffle_buffer_size=None, max_samples_per_sequence=None,
    )  # fmt: skip
    loader = energon.get_loader(dataset)
    for _ in zip(range(20), loader, strict=False):
        pass
    error, sample, sources = told[0]
    assert (type(error), sample.caption) == (KeyError, "caption 3")
    assert sources == sample.__sources__
    assert sources[0].shard_name.endswith(".tar")
    assert loader.failures.count == 1
    assert len(told) > 1, "a sample counts once, and is tried again"


def test_a_handler_is_told_of_damaged_samples_too():
    told = []

    def damaged(number):
        if number == 3:
            raise DataError("bad bytes")
        return number

    handler = lambda *each: told.append(each)  # noqa: E731
    items, loader = read(
        MapDataset(numbers(5), damaged), failures=HandlerPolicy(handler=handler)
    )
    assert (len(items), loader.failures.count) == (5, len(told))
    assert (type(told[0][0]), told[0][1]) == (DataError, "numbers0, sample 3")
    policy = HandlerPolicy(handler=reraise_exception)
    with pytest.raises(DataError, match="bad bytes"):
        read(MapDataset(numbers(5), damaged), 1, failures=policy)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("handler", [log_exception, reraise_exception])
def test_faults_of_the_program_are_fatal(handler, workers):
    def encode(number):
        return undefined_name  # noqa: F821

    policy = HandlerPolicy(handler=handler)
    with pytest.raises(
        FatalSampleError, match=r"(?s)NameError: name 'undefined_name'.*numbers"
    ):
        read(MapDataset(numbers(5), encode), workers, failures=policy)


def ends_the_run(number):
    raise FatalSampleError("the token store is gone")


@pytest.mark.parametrize(
    "options",
    [{"on_error": "skip"}, {"failures": HandlerPolicy(handler=log_exception)}],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_passes_over_a_fatal_error(options, workers):
    with pytest.raises(FatalSampleError, match="the token store is gone"):
        read(MapDataset(numbers(5), ends_the_run), workers, **options)


def test_two_who_decide_are_refused():
    config = energon.WorkerConfig(0, 1, 0, global_error_handler=log_exception)
    with pytest.raises(ConfigError, match="Set one of the two"):
        energon.get_loader(DATASETS["indexed"], worker_config=config, on_error="skip")
    with pytest.raises(
        ConfigError, match=r"global_error_handler must be a function, got 'log'"
    ):
        energon.WorkerConfig(global_error_handler="log")


@pytest.mark.jobs
def test_a_spawned_worker_has_the_handler_too():
    config = energon.WorkerConfig(0, 1, 1, global_error_handler=log_exception)
    dataset = MapDataset(numbers(20), no_tens)
    with energon.get_loader(
        dataset, worker_config=config, multiprocessing_context="spawn"
    ) as loader:
        assert len(list(loader)) == 20
        assert loader.failures.count >= 2


# A sample that fails in every epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_one_damaged_photo_counts_once_however_many_epochs_there_are(
    workers, tmp_path, caplog
):
    folder = captions(tmp_path / "photos", 12)
    tar = next(iter(sorted(folder.glob("*.tar"))))
    tar.write_bytes(tar.read_bytes().replace(b"\xff\xd8\xff", b"\0\0\0", 1))
    path = tmp_path / "bad.jsonl"
    config = WorkerConfig(0, 1, workers)
    dataset = get_train_dataset(folder, worker_config=config, batch_size=3)
    with get_loader(
        dataset, failures=FailurePolicy(budget=1, quarantine=path)
    ) as loader:
        assert len(list(islice(loader, 60))) == 60
        report = loader.report()
        assert (loader.failures.count, len(loader.failures.last)) == (1, 1)
    assert (report.total.counts.failed, list(report.left_out.values())) == (1, [1])
    assert len(path.read_text().splitlines()) == 1
    assert sum("DecodeError" in each.message for each in caplog.records) == 1


class Stored(ListSource):
    """Numbers, of which some are damaged where they are stored; it notes which are
    read."""

    def __init__(self, samples, bad, notes, **options):
        super().__init__(samples, **options)
        object.__setattr__(self, "bad", bad)
        object.__setattr__(self, "notes", notes)

    def read_at(self, indices, positions, reading):
        with open(self.notes, "a") as file:
            file.writelines(f"{each}\n" for each in indices.tolist())
        return [
            Failed(DataError(f"{each} is damaged"), f"sample {each}")
            if each in self.bad
            else each
            for each in indices.tolist()
        ]


def stored(
    notes: Path, count: int = 30, bad: tuple[int, ...] = (3, 8, 21), **options
) -> Stored:
    return Stored(range(count), bad, notes, **options)


def by_chance(item: Any) -> Any:
    """Damaged in one epoch, and not in another, as the position decides."""
    if random.random() < 0.1:
        raise DataError(f"{item} has bad luck")
    return item


def draws(notes: Path):
    source = ShuffleDataset(stored(notes))
    return BatchDataset(RepeatDataset(MapDataset(source, by_chance)), 4, list)


def blend(notes: Path):
    return BlendDataset((stored(notes), 2), (stored(notes, 7, (2,), name="b"), 1))


@pytest.mark.parametrize("make", [draws, blend])
def test_what_is_not_read_again_changes_no_item_on_any_ranks_and_workers(
    make, tmp_path
):
    dataset = make(tmp_path / "notes")
    wanted, _ = run_with_states(dataset, count=120, retry=True)
    for ranks, workers in ((1, 0), (1, 2), (3, 0), (2, 1)):
        loaders = [
            get_loader(
                dataset,
                worker_config=WorkerConfig(r, ranks, workers),
                failures=FailurePolicy(budget=None),
            )
            for r in range(ranks)
        ]
        found = [prints(islice(loader, 120 // ranks)) for loader in loaders]
        assert [item for step in zip(*found, strict=True) for item in step] == wanted
        for loader in loaders:
            loader.close()


def test_a_run_that_is_resumed_reads_damaged_samples_once_more_and_goes_on(tmp_path):
    notes = tmp_path / "notes"
    dataset = draws(notes)
    wanted, _ = run_with_states(dataset, count=120)
    notes.unlink()
    first = get_loader(dataset, failures=FailurePolicy(budget=None))
    found = list(islice(first, 50))
    second = get_loader(dataset, failures=FailurePolicy(budget=None))
    second.load_state_dict(first.state_dict())
    found += islice(second, 70)
    assert prints(found) == wanted
    read = notes.read_text().split()
    assert max(read.count(each) for each in ("3", "8", "21")) <= 4, (
        "twice ahead, in each process"
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_sample_is_read_once_unless_it_is_to_be_tried_again(
    workers, tmp_path
):
    reads = {}
    for retry in (False, True):
        notes = tmp_path / f"notes {retry}"
        config = WorkerConfig(0, 1, workers)
        dataset = BatchDataset(RepeatDataset(ShuffleDataset(stored(notes))), 4, list)
        with get_loader(
            dataset, worker_config=config, failures=FailurePolicy(retry=retry)
        ) as loader:
            assert len(list(islice(loader, 150))) == 150
            assert loader.failures.count == 3
        reads[retry] = notes.read_text().split()
    assert [reads[False].count(each) for each in ("3", "8", "21")] == [1, 1, 1]
    assert min(reads[True].count(each) for each in ("3", "8", "21")) >= 19


def test_a_sample_that_one_decoder_cannot_read_is_read_by_another(tmp_path):
    folder = captions(tmp_path / "photos", 6, shards=1)
    tar = folder / "shard-000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"\xff\xd8\xff", b"\0\0\0", 1))
    source = WebdatasetSource(folder)
    images = SampleLoader(sample_type=ImageSample, field_map={"image": "jpg"})
    texts_only = SampleLoader(sample_type=TextSample, field_map={"text": "txt"})
    both = ConcatDataset(MapDataset(source, images), MapDataset(source, texts_only))
    for dataset in (both, BlendDataset(*[(each, 1) for each in both.inputs])):
        loader = get_loader(dataset)
        for _ in range(2):
            found = [
                item.text for item in islice(loader, 12) if isinstance(item, TextSample)
            ]
            assert sorted(found) == [f"caption {n}" for n in range(6)]
        assert loader.failures.count == 1


def test_functions_of_users_are_tried_again_and_their_samples_count_once():
    calls: list[int] = []

    def fails(number: int) -> int:
        calls.append(number)
        return no_tens(number)

    loader = get_loader(
        MapDataset(numbers(20), fails),
        failures=FailurePolicy(on_error="skip", budget=2),
    )
    for _ in range(5):
        assert len(list(loader)) == 20
    assert loader.failures.count == 2
    assert min(calls.count(0), calls.count(10)) >= 5


@pytest.mark.parametrize("name", ["batches", "flat", "segments", "packs"])
def test_what_is_made_of_several_samples_counts_by_the_first_of_them(name):
    def first_of(item):
        return item if isinstance(item, int) else next(iter(item), 1)

    def fails(item):
        if first_of(item) % 8 == 0:
            raise DataError("cannot be made")
        return item

    def yields(item):
        fails(item)
        yield item

    def segment(items):
        yield fails(next(items))

    dataset = {
        "batches": lambda: BatchDataset(numbers(40), 4, fails),
        "flat": lambda: MapDataset(numbers(40), yields),
        "segments": lambda: IterMapDataset(numbers(40), segment, segment_length=4),
        "packs": lambda: PackingDataset(numbers(40), 4, lambda rows: [rows], yields),
    }[name]()
    loader = get_loader(dataset, failures=FailurePolicy(budget=9), lanes=1)
    for _ in range(4):
        assert list(loader)
    assert loader.failures.count == 5


def test_loops_that_are_left_lose_no_failure(tmp_path):
    dataset = BatchDataset(RepeatDataset(stored(tmp_path / "notes")), 2, list)
    with get_loader(dataset, worker_config=WorkerConfig(0, 1, 2)) as loader:
        for _ in range(12):
            for _ in islice(loader, 3):
                pass
            loader.load_state_dict(
                loader.state_dict()
            )  # what was read ahead is dropped
        assert loader.failures.count == 3


def test_only_so_many_samples_are_remembered(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    wanted, _ = run_with_states(draws(notes))
    monkeypatch.setattr("energize.core.failures.MOST_REMEMBERED", 1)
    monkeypatch.setattr("energize.loader.failures._MOST_COUNTED", 1)
    dataset = RepeatDataset(stored(notes))
    assert run_with_states(draws(notes))[0] == wanted
    notes.unlink()
    loader = get_loader(dataset, failures=FailurePolicy(budget=None))
    assert len(list(islice(loader, 150))) == 150
    read = notes.read_text().split()
    assert [read.count("3"), read.count("8") >= 5, loader.failures.count >= 9] == [
        1,
        True,
        True,
    ]


# Memory that is full is no fault of a sample


def asks_numpy(rows: list[Any]) -> Any:
    return np.empty((len(rows), 10**13))


def asks_torch(rows: list[Any]) -> Any:
    return torch.empty(10**13)


def asks_python(rows: list[Any]) -> Any:
    return bytearray(10**15)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (asks_numpy, "320,000,000,000,000 bytes"),
        (asks_torch, "40,000,000,000,000 bytes"),
        (asks_python, "an unknown number of bytes"),
    ],
)
def test_an_allocation_that_fails_names_the_batch_size_and_the_bytes(
    batch, size, workers
):
    dataset = BatchDataset(numbers(8), 4, batch)
    told = rf"{batch.__name__} could not allocate {size} for a batch of 4: (?s:.*)begins with numb"
    for on_error in ("raise", "skip"):
        with pytest.raises(EncoderError, match=told):
            read(dataset, workers, on_error=on_error)
    with pytest.raises(FatalSampleError, match=told):
        read(dataset, workers, failures=HandlerPolicy(handler=log_exception))


# Worker configs


def test_configs_with_handlers_are_compared_and_copied():
    config = energon.WorkerConfig(0, 2, 3, global_error_handler=log_exception)
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert other == config
        assert hash(other) == hash(config)
        assert other.global_error_handler is log_exception
    assert config != WorkerConfig(0, 2, 3)
    assert WorkerConfig(0, 2, 3) != WorkerConfig(0, 2, 3, seed_offset=1)


# Failures that are alike


def test_samples_do_not_travel_with_errors():
    error = EncoderError("it raised")
    error.sample = lambda: None
    error.add_note("a note")
    other = pickle.loads(pickle.dumps(error))
    assert (str(other), other.sample, other.__notes__) == (
        "it raised",
        None,
        ["a note"],
    )


CALLED = "called.txt"


class Fails:
    """A function that fails for some stored samples, and notes which ones it was called
    with."""

    def __init__(self, notes: Path, bad: tuple[str, ...]) -> None:
        self.notes, self.bad = notes, bad

    def __call__(self, raw: dict[str, Any]) -> TextSample:
        with self.notes.open("a") as file:
            file.write(raw["__key__"] + "\n")
        if raw["__key__"] in self.bad:
            raise DataError(f"{raw['__key__']} is bad")
        return TextSample(__key__=raw["__key__"], text=raw["txt"].decode())


BAD = ("000001", "000004", "000007")


@pytest.fixture
def folder(tmp_path):
    return captions(tmp_path / "captions", 20, shards=2)


@pytest.fixture
def notes(tmp_path):
    return tmp_path / CALLED


def indexed(folder: Path, notes: Path):
    source = ShuffleDataset(WebdatasetSource(folder))
    return BatchDataset(
        RepeatDataset(MapDataset(source, Fails(notes, BAD)), 3), 4, list
    )


def stream(folder: Path, notes: Path):
    """The function is called with what a filter has let through."""
    source = FilterDataset(ShuffleDataset(WebdatasetSource(folder)), everything)
    return BatchDataset(
        RepeatDataset(MapDataset(source, Fails(notes, BAD)), 3), 4, list
    )


def run_with_states(
    dataset, workers: int = 0, count: int = 40, **options
) -> tuple[list[str], list[Any]]:
    """So many items of an endless run as fingerprints, and the states after some of
    them."""
    config = WorkerConfig(0, 1, workers)
    items, states = [], []
    policy = FailurePolicy(budget=None, **options)
    with get_loader(dataset, worker_config=config, lanes=2, failures=policy) as loader:
        while len(items) < count:
            for item in islice(iter(loader), count - len(items)):
                items.append(item)
                if len(items) % 7 == 0:
                    states.append(json.loads(json.dumps(loader.state_dict())))
    return prints(items), states


def test_another_folder_of_the_same_name_is_not_meant(folder, notes, tmp_path, caplog):
    path = tmp_path / "bad.jsonl"
    run_with_states(indexed(folder, notes), quarantine=path)
    other = captions(tmp_path / "other" / "captions", 30, shards=2, start=100)
    notes.unlink()
    run_with_states(indexed(other, notes), skip_listed=path)
    assert set(BAD) & set(notes.read_text().split())
    assert "3 entries are of samples that this run does not read" in caplog.text


def test_a_folder_mounted_elsewhere_is_known_by_its_samples(folder, notes, tmp_path):
    path = tmp_path / "bad.jsonl"
    whole, _ = run_with_states(indexed(folder, notes), quarantine=path)
    elsewhere = tmp_path / "mounted" / folder.name
    shutil.copytree(folder, elsewhere)
    notes.unlink()
    # Fingerprints of items tell their folder; orders and substitutes are the same.
    again, _ = run_with_states(indexed(elsewhere, notes), skip_listed=path)
    assert len(again) == len(whole)
    assert not set(BAD) & set(notes.read_text().split())


def test_batches_that_fail_are_not_listed_and_it_is_said_once(folder, tmp_path, caplog):
    def batch(items):
        raise DataError("cannot be batched")

    path = tmp_path / "bad.jsonl"
    dataset = BatchDataset(WebdatasetSource(folder), 4, batch)
    policy = FailurePolicy(quarantine=path, budget=None)
    with pytest.raises(Exception, match="substitutes"):
        list(get_loader(dataset, failures=policy))
    assert path.read_text() == ""
    assert sum("not listed in" in each.message for each in caplog.records) == 1


def test_lines_of_json_are_listed_too(tmp_path):
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(f'{{"number": {i}}}\n' for i in range(9)))
    prepare_jsonl(lines)

    def fails(raw):
        if raw["__index__"] in (4, 6):
            raise DataError("no text")
        return raw["__key__"]

    path = tmp_path / "bad.jsonl"
    for dataset in (
        MapDataset(ShuffleDataset(JsonlSource(lines)), fails),
        MapDataset(FilterDataset(JsonlSource(lines).part(1, 8), everything), fails),
    ):
        path.unlink(missing_ok=True)
        first = list(get_loader(dataset, failures=FailurePolicy(quarantine=path)))
        places = [Entry.parsed(line, "").place for line in path.open()]
        assert {(each.shard, each.index) for each in places} == {
            ("texts.jsonl", 4),
            ("texts.jsonl", 6),
        }
        strict = FailurePolicy(skip_listed=path, budget=0)
    assert list(get_loader(dataset, failures=strict)) == first


def test_rows_of_a_join_are_listed_by_their_first_sample(tmp_path):
    texts(tmp_path / "a", [keys(*range(5)), keys(*range(5, 9))])
    texts(tmp_path / "b", [keys(*range(9, 1, -1))])

    def fails(row):
        if row[0]["__key__"] == keys(6)[0]:
            raise DataError("no text")
        return row[0]["__key__"], row[1]["__key__"]

    parts = [WebdatasetSource(tmp_path / name) for name in "ab"]
    source = JoinedSource(*parts, nonmatch=["skip"])
    for index in range(len(source)):
        place = source.place(index)
        assert source.find(place.shard, place.index) == index
    assert source.find("s0.tar", 0) is None
    path = tmp_path / "bad.jsonl"
    dataset = MapDataset(source, fails)
    first = list(get_loader(dataset, failures=FailurePolicy(quarantine=path)))
    (entry,) = (Entry.parsed(line, "") for line in path.open())
    assert (entry.place.key, entry.place.shard, entry.place.index) == (
        keys(6)[0],
        "s1.tar",
        1,
    )
    strict = FailurePolicy(skip_listed=path, budget=0)
    assert list(get_loader(dataset, failures=strict)) == first


# Ranks


def test_each_rank_has_a_file_and_all_are_read_by_one_path(folder, notes, tmp_path):
    for name in ("bad.jsonl", "bad-{rank}-of-all.jsonl"):
        path = str(tmp_path / name)
        found = []
        for rank in range(2):
            config = WorkerConfig(rank, 2, 0)
            loader = get_loader(
                indexed(folder, notes),
                worker_config=config,
                failures=FailurePolicy(quarantine=path, budget=None),
            )
            found.append(prints(list(loader)))
            loader.close()
        files = files_of(path)
        assert len(files) == 2
        assert {
            Entry.parsed(line, "").place.key for f in files for line in f.open()
        } == set(BAD)
        for rank in range(2):
            loader = get_loader(
                indexed(folder, notes),
                worker_config=WorkerConfig(rank, 2, 0),
                failures=FailurePolicy(skip_listed=[path], budget=0),
            )
            assert prints(list(loader)) == found[rank]


# Writing


@pytest.mark.jobs
def test_no_line_is_lost_when_the_run_is_killed(tmp_path):
    path, go = tmp_path / "bad.jsonl", tmp_path / "go"
    program = f"""
import sys, time, pathlib
sys.path[:0] = {sys.path!r}
from energize import DataError, FailurePolicy, ListSource, MapDataset, WorkerConfig
from energize.loader import get_loader
from energize.loader.failures import ListWriter
def fails(item):
    if item % 2:
        raise DataError("odd")
    return item
loader = get_loader(MapDataset(ListSource(list(range(50))), fails), worker_config=WorkerConfig(0, 1, 1),
    failures=FailurePolicy(budget=None, quarantine={str(path)!r}), prefetch_factor=1)
for number, _ in enumerate(loader):
    pathlib.Path({str(go)!r}).write_text(str(loader.failures.count))
    time.sleep(0.02)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    assert eventually(lambda: go.exists() and int(go.read_text() or 0) > 8, 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) >= 8
    assert all(Entry.parsed(line, "").line == line for line in lines)


def odd(item: int) -> int:
    if item % 2:
        raise DataError("odd")
    return item


def test_a_full_disk_is_an_error_that_says_so():
    policy = FailurePolicy(quarantine="/dev/full")
    with pytest.raises(
        LoaderError,
        match=r"/dev/full: quarantine .* cannot be written \(No space left on device",
    ):
        list(get_loader(MapDataset(numbers(5), odd), failures=policy))


# Reading


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property"),
        ("[" * 10_000, "nested too deeply"),
        ("[]", "expected a mapping"),
        ('{"dataset": 3}', "(dataset): expected text, got 3"),
        (
            '{"dataset": "a", "shard": null, "index": true, "reason": ""}',
            "(index): expected an integer, got True",
        ),
        (
            '{"dataset": "a", "shard": null, "index": 1.5, "reason": ""}',
            "(index): expected an integer, got 1.5",
        ),
        (
            '{"dataset": "a", "shard": null, "index": 1}',
            "(reason): the key 'reason' is missing",
        ),
        (
            '{"dataset": "a", "shard": null, "index": 1, "reason": "", "x": 1}',
            "unknown key 'x'",
        ),
    ],
)
def test_a_malformed_line_is_named(line, message, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(Entry(SamplePlace("a", None, 0), "bad").line + "\n" + line + "\n")
    for options in ({"skip_listed": path}, {"quarantine": path}):
        with pytest.raises(
            ConfigError, match=rf"(?s)bad\.jsonl, line 3: .*{re.escape(message)}"
        ):
            list(get_loader(numbers(5), failures=FailurePolicy(**options)))


@pytest.mark.parametrize("letters", [1, 15, 60])
def test_half_a_line_of_a_machine_that_stopped_is_taken_back(letters, tmp_path, caplog):
    file = tmp_path / "bad.jsonl"
    whole = Entry(SamplePlace("d", "s.tar", 1, "k", None, None), "bad").line
    file.write_text(whole + whole.replace("s.tar", "t.tar")[:letters])
    assert [entry.line for entry in read_entries(file)[0]] == [whole]
    assert "line 2 is incomplete and skipped" in caplog.text
    ListWriter(file).close()
    assert file.read_text() == whole


def test_a_list_that_cannot_be_read(tmp_path):
    missing = FailurePolicy(skip_listed=tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"the list of failed samples .*none\.jsonl"):
        get_loader(numbers(5), failures=missing)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read: .*it is a directory"):
        get_loader(numbers(5), failures=FailurePolicy(skip_listed=tmp_path / "folder"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: UnicodeDecodeError"):
        get_loader(numbers(5), failures=FailurePolicy(skip_listed=tmp_path / "bytes"))
