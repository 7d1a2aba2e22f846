"""Few file descriptors, and little memory: all is delivered, or an error says what to
do."""

from __future__ import annotations

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest

from energize import (
    BatchDataset,
    EpochizeDataset,
    ShuffleDataset,
    WebdatasetSource,
    WorkerConfig,
    get_loader,
    prepare,
    write_shards,
)
from energize.errors import DatasetError, EnergizeError, LoaderError


@contextmanager
def allowed(kind, most):
    """At most so much of a resource in this process, and those that it starts."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def with_free(free: int) -> int:
    """The limit on descriptors that leaves so many of them."""
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    return next(
        islice((number for number in count() if number not in used), free, None)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scarce") / "shards"
    samples = [{"__key__": f"{i:04d}", "txt": f"text {i}"} for i in range(80)]
    write_shards(samples, path, samples_per_shard=2)
    prepare(path, split_ratios={"train": 1}, workers=1)
    return path


def texts(folder, workers):
    dataset = BatchDataset(ShuffleDataset(WebdatasetSource(folder)), 2, list)
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    with get_loader(
        EpochizeDataset(dataset, 40), worker_config=config, timeout=30
    ) as loader:
        return [[each["txt"] for each in batch] for batch in loader]


def test_many_shards_are_read_with_few_descriptors(folder):
    all_of_them = texts(folder, 0)
    with allowed(resource.RLIMIT_NOFILE, with_free(4)):
        assert texts(folder, 0) == all_of_them
    with allowed(resource.RLIMIT_NOFILE, with_free(32)):
        assert texts(folder, 2) == all_of_them


def told_until_it_works(folder, workers):
    """How many descriptors are too few; with each of these numbers the error says what
    to do."""
    texts(folder, workers)  # what is imported at first is there
    for free in range(64):
        with allowed(resource.RLIMIT_NOFILE, with_free(free)):
            try:
                texts(folder, workers)
                return free
            except (DatasetError, LoaderError) as error:
                text = str(error)
        assert "ulimit -n" in text, text
    raise AssertionError(text)


def test_without_descriptors_it_says_so(folder):
    assert 0 < told_until_it_works(folder, 0) < 4


@pytest.mark.jobs
def test_workers_without_descriptors_say_so(folder):
    assert 2 < told_until_it_works(folder, 2) < 32


def read_with_little_memory(folder):
    source = WebdatasetSource(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with allowed(resource.RLIMIT_AS, used + 100_000_000):
        try:
            list(EpochizeDataset(source, 1).open())
        except EnergizeError as error:
            return str(error), type(error.__cause__).__name__


@pytest.mark.jobs
def test_memory_that_is_short_is_no_fault_of_a_sample(tmp_path):
    write_shards([{"__key__": "a", "bin": bytes(200_000_000)}], tmp_path / "large")
    prepare(tmp_path / "large", split_ratios={"train": 1}, workers=1)
    # A process of its own: this one may have as much that it has taken before and not
    # given back.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        told, cause = process.submit(
            read_with_little_memory, tmp_path / "large"
        ).result()
    assert "Cannot allocate memory" in told
    assert cause == "MemoryError"
