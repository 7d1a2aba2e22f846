"""Faults that Megatron-Energon has in training, with what is right here: real folders, loaders and
workers. Those of its metadatasets are in `tests/metadataset/test_energon_faults.py`.
"""

from __future__ import annotations

import logging
import pickle
import random
import signal
import time
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch

from energize import (
    DatasetNotFoundError,
    EmptyDatasetError,
    EncoderError,
    EpochizeDataset,
    FatalSampleError,
    FilterDataset,
    ListSource,
    Sample,
    SkipSample,
    SourceInfo,
    SplitError,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    log_exception,
    prepare,
    stateless,
)
from energize.core import ignored
from energize.errors import PrepareError, SubstitutionError
from energize.loader import Loader
from tests.support.joining import keys, texts
from tests.support.tars import write_tar

pytestmark = pytest.mark.jobs

COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts"
    return texts(path, [keys(*range(12)), keys(*range(12, COUNT))])


def config(workers=0, **options):
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": workers} | options)


def train(folder, encoder=None, workers=0, batch_size=None, **options):
    return get_train_dataset(
        folder,
        batch_size=batch_size,
        worker_config=config(workers),
        task_encoder=encoder or Encoder(),
        **options,
    )


class Encoder(TaskEncoder):
    """Samples and batches are keys."""

    decoder = None

    def encode_sample(self, sample):
        return sample.__key__

    def batch(self, samples):
        return samples


# Going on


def test_runs_that_are_shorter_than_there_are_workers_lose_nothing(folder):
    whole = list(islice(get_loader(train(folder)), 19))
    seen, state = [], None
    for steps in (5, 1, 0, 2, 1, 4, 1, 1, 4):
        with get_savable_loader(train(folder, workers=3)) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            seen += islice(loader, steps)
            state = pickle.loads(pickle.dumps(loader.save_state_rank()))
    assert seen == whole


def test_epochs_over_what_ends_begin_again(folder):
    for source in (ListSource(range(10)), FilterDataset(ListSource(range(20)), is_even)):
        for workers in (0, 2):
            epochs = EpochizeDataset(source, 6)
            with get_loader(epochs, worker_config=config(workers), lanes=2) as loader:
                assert [len(list(loader)) for _ in range(5)] == [6] * 5


def is_even(number):
    return number % 2 == 0


@pytest.mark.parametrize("batch_size", [None, 2])
def test_settings_that_decide_nothing_leave_states_usable(folder, batch_size):
    whole = list(islice(get_loader(train(folder, batch_size=batch_size)), 14))
    with get_savable_loader(
        train(folder, workers=2, batch_size=batch_size), gc_collect_every_n_steps=10
    ) as loader:
        assert list(islice(loader, 7)) == whole[:7]
        state = loader.save_state_rank()
    other = get_train_dataset(
        folder,
        batch_size=batch_size,
        task_encoder=Encoder(),
        worker_config=config(1, worker_log_level=2, worker_debug_path="d-{worker_id}"),
    )
    options = {"gc_collect_every_n_steps": 0, "watchdog_timeout_seconds": None}
    with get_savable_loader(other, n_checkpoints=3, **options) as loader:
        loader.restore_state_rank(state)
        assert list(islice(loader, 7)) == whole[7:]


# Packs and groups


class Packing(Encoder):
    """Packs of up to five samples of one buffer, each given in three pieces."""

    def select_samples_to_pack(self, samples):
        return [samples[start : start + 5] for start in range(0, len(samples), 5)]

    @stateless
    def pack_selected_samples(self, samples):
        for start in range(0, len(samples), 2):
            yield samples[start : start + 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pack_that_is_given_in_pieces_is_gone_on_with(folder, workers):
    options = {"packing_buffer_size": 7, "repeat": False}

    def loader_of() -> Loader:
        return get_loader(train(folder, Packing(), workers, **options), lanes=2)

    with loader_of() as loader:
        whole = list(loader)
    assert sorted(key for piece in whole for key in piece) == keys(*range(COUNT))
    for steps in range(1, len(whole)):
        with loader_of() as first, loader_of() as second:
            found = list(islice(first, steps))
            second.load_state_dict(first.state_dict())
            assert [*found, *second] == whole, f"after {steps}"


class Grouping(Encoder):
    def batch_group_criterion(self, key):
        if int(key) % 3 == 0:
            raise SkipSample
        return int(key) % 2, 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_its_criterion_skips_is_in_no_group(folder, workers):
    with get_loader(train(folder, Grouping(), workers, repeat=False), lanes=2) as loader:
        batches = list(loader)
    found = [key for batch in batches for key in batch]
    assert sorted(found) == keys(*(n for n in range(COUNT) if n % 3))
    assert all(len({int(key) % 2 for key in batch}) == 1 for batch in batches)


def test_a_criterion_that_fails_leaves_its_sample_out_too(folder):
    class Fails(Encoder):
        def batch_group_criterion(self, key):
            return int(key) % 2, 3 // (int(key) % 3 > 0)

    loader = get_loader(train(folder, Fails(), repeat=False), on_error="skip")
    batches = list(loader)
    assert sorted(key for batch in batches for key in batch) == keys(
        *(n for n in range(COUNT) if n % 3)
    )
    assert loader.failures.count == COUNT // 3
    with pytest.raises(EncoderError, match=r"batch_group_criterion raised ZeroDivisionError"):
        list(get_loader(train(folder, Fails(), repeat=False)))


@pytest.mark.parametrize("workers", [0, 2])
def test_grouped_batches_are_restored_by_their_keys(folder, workers):
    with get_loader(train(folder, Grouping(), workers), lanes=2) as loader:
        found = [(batch, loader.restore_key) for batch in islice(loader, 9)]
        assert loader.can_restore_sample()
        assert [loader.restore_sample(key) for _, key in found] == [batch for batch, _ in found]


# Nothing for ever


class SkipsAll(Encoder):
    def encode_sample(self, sample):
        raise SkipSample


class YieldsNothing(Encoder):
    def encode_sample(self, sample):
        yield from ()


class PacksNothing(Packing):
    def select_samples_to_pack(self, samples):
        return []


class SkipsPacks(Packing):
    def pack_selected_samples(self, samples):
        raise SkipSample


class SkipsPacked(Packing):
    def postencode_sample(self, sample):
        raise SkipSample


class SkipsGroups(Encoder):
    def batch_group_criterion(self, sample):
        raise SkipSample


class SkipsGroupedBatches(Encoder):
    def batch_group_criterion(self, sample):
        return 0, 2

    def batch(self, samples):
        raise SkipSample


class SkipsBatches(Encoder):
    def encode_batch(self, batch):
        raise SkipSample


class SkipsBatchesOfPacks(Packing, SkipsBatches):
    pass


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("encoder", "options", "told"),
    [
        (SkipsAll, {}, "were all skipped or failed"),
        (YieldsNothing, {}, "YieldsNothing.encode_sample"),
        (PacksNothing, {"packing_buffer_size": 4}, "PacksNothing.select_samples_to_pack"),
        (SkipsPacks, {"packing_buffer_size": 4}, "SkipsPacks.pack_selected_samples"),
        (SkipsPacked, {"packing_buffer_size": 4}, "SkipsPacked.postencode_sample"),
        (SkipsGroups, {}, "SkipsGroups.batch_group_criterion"),
        (SkipsGroupedBatches, {}, "SkipsGroupedBatches.batch"),
        (SkipsBatches, {"batch_size": 2}, "were all skipped or failed"),
        (
            SkipsBatchesOfPacks,
            {"batch_size": 2, "packing_buffer_size": 4},
            "SkipsBatches.encode_batch left out",
        ),
    ],
)
def test_an_encoder_that_leaves_everything_out_is_an_error(folder, encoder, options, told, workers):
    dataset = train(folder, encoder(), workers, **options)
    with (
        get_loader(dataset) as loader,
        pytest.raises((EmptyDatasetError, SubstitutionError)) as caught,
    ):
        next(iter(loader))
    assert told in str(caught.value)


# Draws and failures


class Draws(Encoder):
    @stateless(restore_seeds=True, failure_tolerance=3)
    def encode_sample(self, sample):
        return sample.__key__, random.random(), np.random.rand(), torch.rand(1).item()


def test_loaders_of_one_process_draw_by_their_own_seeds_and_ranks(folder):
    encoder = Draws()

    def drawn(count, **options):
        dataset = get_train_dataset(
            folder, batch_size=None, task_encoder=encoder, worker_config=config(**options)
        )
        return list(islice(get_loader(dataset), count))

    alone = drawn(12)
    other = drawn(12, seed_offset=3)
    assert not {number for each in alone for number in each[1:]} & {
        number for each in other for number in each[1:]
    }
    assert [drawn(6, rank=rank, world_size=2) for rank in range(2)] == [alone[::2], alone[1::2]]
    assert drawn(12, workers=2) == alone


def test_a_tolerance_that_is_not_kept_is_told_of(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "energize")
    monkeypatch.setattr(ignored, "_said", set())
    stateless(failure_tolerance=3)
    assert "stateless: failure_tolerance=3 has no effect" in caplog.text
    assert "failure_budget" in caplog.text


class TakesTooLong(Encoder):
    """As a library that gives up by a signal."""

    def encode_sample(self, sample):
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(30)
        raise AssertionError("nobody woke it")


def too_late(*_):
    raise TimeoutError("took too long")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_signal_is_not_swallowed(folder, workers):
    before = signal.getsignal(signal.SIGALRM)
    try:
        with (
            get_loader(train(folder, TakesTooLong(), workers)) as loader,
            pytest.raises(EncoderError, match=r"(?s)TimeoutError: took too long.*sample '\d+'"),
        ):
            next(iter(loader))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class FailsAlike(Encoder):
    def encode_sample(self, sample):
        if int(sample.__key__) % 2:
            raise KeyError(f"column {sample.__key__!r}")
        return sample.__key__


def test_samples_that_fail_alike_in_workers_are_told_of_once_with_their_number(folder, caplog):
    dataset = train(folder, FailsAlike(), 2, repeat=False)
    with get_loader(dataset, on_error="skip", failure_budget=None) as loader:
        assert not [key for key in loader if int(key) % 2]
        summary = loader.failures
    (count,) = summary.kinds.values()
    assert count == summary.count >= COUNT // 2
    warned = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len([each for each in warned if "FailsAlike.encode_sample" in each]) <= 3 < count
    assert f"{count} samples failed alike, the first" in caplog.text


class ForgetsBatches(TaskEncoder):
    def encode_batch(self, batch):
        raise ValueError(f"{len(batch.__key__)} samples")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_is_told_of_with_where_its_samples_are_from(folder, workers, caplog):
    sources: list[list[SourceInfo]] = []

    def handler(error, batch, given):
        log_exception(error, batch, given)
        sources.append(given)
        raise FatalSampleError("enough") from error

    with (
        get_loader(
            train(folder, ForgetsBatches(), batch_size=3),
            worker_config=config(workers, global_error_handler=handler),
        ) as loader,
        pytest.raises(FatalSampleError, match="enough"),
    ):
        next(iter(loader))
    if not workers:
        assert len(sources[0]) == 3
        assert caplog.text.count(f"from {folder}, s") == 3


class ReturnsNothing(Encoder):
    def encode_sample(self, sample):
        sample.text = sample.text.upper()


class ReturnsAGenerator(Encoder):
    def encode_sample(self, sample):
        return (sample for _ in range(2))


class Contradicts(TaskEncoder):
    decoder = None

    def encode_sample(self, sample):
        return Tokens.derive_from(sample, tokens="a text")


@dataclass
class Tokens(Sample):
    tokens: list[int]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("decided", ["raise", "skip", "log_exception"])
@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        (ReturnsNothing, r"ReturnsNothing\.encode_sample returned None"),
        (ReturnsAGenerator, "ReturnsAGenerator.encode_sample returned a generator"),
        (Contradicts, r"whose field 'tokens' is declared as list\[int\], and its value is str"),
    ],
)
def test_what_a_hook_may_not_return_is_an_error_at_the_first_sample_whoever_decides(
    folder, encoder, told, decided, workers
):
    handler = log_exception if decided == "log_exception" else None
    loader = get_loader(
        train(folder, encoder()),
        worker_config=config(workers, global_error_handler=handler),
        on_error="skip" if decided == "skip" else "raise",
    )
    with loader, pytest.raises(EncoderError, match=rf"(?s){told}.*sample '\d+'") as caught:
        next(iter(loader))
    assert loader.failures.count == 0
    assert "SkipSample to leave a sample out" not in str(caught.value)


# Folders


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("split_parts:\n  train:\n  - s0.tar\n  - s1.tar\n  - s0.tar\n", "5 (and line 3)"),
        ("split_parts: {train: [\n'x{0..1}.tar',\n  's{0..1}.tar', s0.tar]}\n", "3 (and line 3)"),
    ],
)
def test_a_shard_listed_twice_is_named_with_its_lines(tmp_path, text, where):
    texts(tmp_path, [keys(0), keys(1)])
    file = tmp_path / ".nv-meta" / "split.yaml"
    file.write_text(text.replace("'x{0..1}.tar',\n", "\n") + "exclude: []\n")
    with pytest.raises(SplitError) as caught:
        train(tmp_path)
    assert f"{file}:{where}, split part 'train': shard 's0.tar' is listed twice" in str(
        caught.value
    )


def test_keys_that_stand_twice_are_named_with_their_shards(tmp_path):
    for shard in range(2):
        write_tar(tmp_path / f"s{shard}.tar", [("a.txt", b"a"), (f"{shard}.txt", b"b")])
    with pytest.raises(PrepareError) as caught:
        prepare(tmp_path, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    for part in ("s0.tar", "s1.tar", "  a: in "):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/a.txt", "../a.txt", "x/../../a.txt"])
def test_members_that_lead_out_are_named_with_their_shard(tmp_path, name):
    write_tar(tmp_path / "s0.tar", [("good.txt", b"a"), (name, b"b")])
    with pytest.raises(PrepareError) as caught:
        prepare(tmp_path, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    assert f"s0.tar: the member {name!r}" in str(caught.value)


def test_compressed_shards_are_refused_when_they_are_prepared(tmp_path):
    texts(tmp_path, [keys(0)])
    (tmp_path / "s1.tgz").write_bytes((tmp_path / "s0.tar").read_bytes())
    with pytest.raises(PrepareError, match=r"s1\.tgz"):
        prepare(tmp_path, split_ratios={"train": 1}, sample_type="TextSample", overwrite=True)


@pytest.mark.parametrize("path", ["msc://bucket/coco", "s3://bucket/mix.yaml"])
def test_remote_paths_say_what_can_be_done(path):
    with pytest.raises(DatasetNotFoundError, match=r"is remote; .* mount it or copy it"):
        train(path)
