"""Faults that Megatron-Energon has in training, with what is right here: real folders, loaders and
workers. Those of its metadatasets are in `tests/metadataset`.
"""

from __future__ import annotations

import pickle
import signal
import time
from itertools import islice

import pytest

from energize import (
    DatasetNotFoundError,
    EmptyDatasetError,
    EncoderError,
    FatalSampleError,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    log_exception,
    prepare,
    stateless,
)
from energize.errors import PrepareError, SubstitutionError
from tests.support.joining import keys, texts
from tests.support.tars import write_tar

COUNT = 24
SAMPLE = r"[\s\S]*sample '\d+'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts"
    return texts(path, [keys(*range(12)), keys(*range(12, COUNT))])


def config(workers=0, **options):
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": workers} | options)


def train(folder, encoder=None, workers=0, batch_size=None, **options):
    given = {"worker_config": config(workers), "task_encoder": encoder or Encoder()}
    return get_train_dataset(folder, batch_size=batch_size, **given | options)


class Encoder(TaskEncoder):
    """Samples and batches are keys."""

    decoder = None

    def encode_sample(self, sample):
        return sample.__key__

    def batch(self, samples):
        return samples


@pytest.mark.jobs
def test_runs_that_are_shorter_than_there_are_workers_lose_nothing(folder):
    whole = list(islice(get_loader(train(folder)), 19))
    seen, state = [], None
    for steps in (5, 1, 0, 2, 1, 4, 1, 1, 4):
        with get_savable_loader(train(folder, workers=3), gc_collect_every_n_steps=10) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            seen += islice(loader, steps)
            state = pickle.loads(pickle.dumps(loader.save_state_rank()))
    assert seen == whole


# Packs and groups


class Packing(Encoder):
    """Packs of up to five samples of one buffer, each given in three pieces."""

    def select_samples_to_pack(self, samples):
        return [samples[start : start + 5] for start in range(0, len(samples), 5)]

    @stateless
    def pack_selected_samples(self, samples):
        for start in range(0, len(samples), 2):
            yield samples[start : start + 2]


# Nothing for ever


def skips(base, *names):
    """An encoder whose hooks of these names leave everything out."""

    def hook(name):
        def skip(self, *_):
            raise SkipSample

        skip.__qualname__ = f"Skips.{name}"
        return skip

    return type("Skips", (base,), {name: hook(name) for name in names})


class YieldsNothing(Encoder):
    def encode_sample(self, sample):
        yield from ()


class PacksNothing(Packing):
    def select_samples_to_pack(self, samples):
        return []


class Groups(Encoder):
    def batch_group_criterion(self, sample):
        return 0, 2


PACKED = {"packing_buffer_size": 4}
NOTHING = [
    (skips(Encoder, "encode_sample"), {}, "were all skipped or failed"),
    (YieldsNothing, {}, "YieldsNothing.encode_sample"),
    (PacksNothing, PACKED, "PacksNothing.select_samples_to_pack"),
    (skips(Packing, "pack_selected_samples"), PACKED, "pack_selected_samples"),
    (skips(Packing, "postencode_sample"), PACKED, "postencode_sample"),
    (skips(Encoder, "batch_group_criterion"), {}, "batch_group_criterion"),
    (skips(Groups, "batch"), {}, ".batch"),
    (skips(Encoder, "encode_batch"), {"batch_size": 2}, "were all skipped or failed"),
    (skips(Packing, "encode_batch"), PACKED | {"batch_size": 2}, "encode_batch left out"),
]


@pytest.mark.jobs
def test_an_encoder_that_leaves_everything_out_is_an_error(folder):
    for encoder, options, told in NOTHING:
        with pytest.raises((EmptyDatasetError, SubstitutionError)) as caught:
            next(iter(get_loader(train(folder, encoder(), **options))))
        assert told in str(caught.value), (encoder, options)


# Draws and failures


class TakesTooLong(Encoder):
    """As a library that gives up by a signal."""

    def encode_sample(self, sample):
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(30)
        raise AssertionError("nobody woke it")


def too_late(*_):
    raise TimeoutError("took too long")


def test_an_exception_of_a_signal_is_not_swallowed(folder):
    before = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(EncoderError, match=f"TimeoutError: took too long{SAMPLE}"):
            next(iter(get_loader(train(folder, TakesTooLong()))))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class ForgetsBatches(TaskEncoder):
    def encode_batch(self, batch):
        raise ValueError(f"{len(batch.__key__)} samples")


def test_a_batch_that_fails_is_told_of_with_where_its_samples_are_from(folder, caplog):
    given = []

    def handler(error, batch, sources):
        log_exception(error, batch, sources)
        given.append(sources)
        raise FatalSampleError("enough") from error

    dataset = train(folder, ForgetsBatches(), batch_size=3)
    loader = get_loader(dataset, worker_config=config(global_error_handler=handler))
    with pytest.raises(FatalSampleError, match="enough"):
        next(iter(loader))
    assert len(given[0]) == 3
    assert caplog.text.count(f"from {folder}, s") == 3


# Folders


def test_folders_that_cannot_be_prepared(tmp_path):
    files = {
        "twice": [[("a.txt", b"a"), ("0.txt", b"b")], [("a.txt", b"a"), ("1.txt", b"b")]],
        **{name: [[("good.txt", b"a"), (name, b"b")]] for name in ("/etc/a.txt", "x/../../a.txt")},
    }
    for number, (name, shards) in enumerate(files.items()):
        for k, members in enumerate(shards):
            write_tar(tmp_path / f"{number}" / f"s{k}.tar", members)
        with pytest.raises(PrepareError) as caught:
            prepare(tmp_path / f"{number}", split_ratios={"train": 1}, sample_type="TextSample")
        said = [f"s0.tar: the member {name!r}"]
        for part in ["s0.tar", "s1.tar", "  a: in "] if name == "twice" else said:
            assert part in str(caught.value), name
    for path in ("msc://bucket/coco", "s3://bucket/mix.yaml"):
        with pytest.raises(DatasetNotFoundError, match=r"is remote; .* mount it or copy it"):
            train(path)
