"""squirrel's multiplexer in torch workers, on several ranks and in energize's loader."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from energize import ConfigError, ListSource, ShuffleDataset, get_loader
from energize.compat.easydel import HFDatasetShardedSource
from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
from energize.core.lanes import WorkerConfig
from tests.support.rows import letter_streams as sources

ROUND_ROBIN = MultiplexingStrategy.ROUND_ROBIN
UNIFORM = MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
ORDERS = ["energize", "squirrel"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("strategy", list(MultiplexingStrategy))
def test_torch_workers_share_one_epoch(strategy, order):
    def made():
        return Multiplexer(sources(9, 4, 13), strategy, [0.3, 0.3, 0.4], seed=2, order=order)

    whole = list(made())
    parts = list(DataLoader(made(), batch_size=None, num_workers=2))
    assert sorted(parts) == sorted(whole)
    assert sorted(DataLoader(made(), batch_size=None, num_workers=0)) == sorted(whole)


def test_persistent_workers_know_which_epoch_it_is():
    loader = DataLoader(
        Multiplexer(sources(20, 20), UNIFORM, seed=2),
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
    )
    reference = Multiplexer(sources(20, 20), UNIFORM, seed=2)
    for _ in range(2):
        assert sorted(loader) == sorted(reference)


def test_ranks_take_turns(monkeypatch):
    whole = list(Multiplexer(sources(9, 4), UNIFORM, seed=2))
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert list(Multiplexer(sources(9, 4), UNIFORM, seed=2)) == whole[rank::3]
    with pytest.raises(ConfigError, match="same seed"):
        Multiplexer(sources(9, 4), UNIFORM)


class SplitByWorker:
    """A source that gives every torch worker a part of its own."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        return islice(
            self.samples, worker.id if worker else 0, None, worker.num_workers if worker else 1
        )


class MessagepackDriver:
    """Stands in for the store of the document's example."""

    def __init__(self, url):
        self.url = url

    def get_iter(self, key_hooks):
        return key_hooks[0](range(self.url, self.url + 10))


def test_the_documents_example():
    text = (Path(__file__).parents[1] / "documents/squirrel/split_by_worker.py").read_text()
    names = {
        "MessagepackDriver": MessagepackDriver,
        "SplitByWorker": SplitByWorker,
        "Multiplexer": Multiplexer,
        "local_msgpack_url": 100,
    }
    exec(text, names)
    for workers in (0, 2):
        loader = DataLoader(names["mux"], batch_size=None, num_workers=workers)
        assert sorted(loader) == sorted(2 * list(range(100, 110)))


class Countdown(IterableDataset):
    """A torch dataset that knows its length and cannot be indexed."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([3, 2, 1])


def test_sources_may_be_iterable_torch_datasets():
    wrapped = HFDatasetShardedSource([{"x": 1}, {"x": 2}])
    inner = Multiplexer([[5], [6]], ROUND_ROBIN)
    mux = Multiplexer([Countdown(), wrapped, inner], ROUND_ROBIN)
    expected = [3, {"x": 1}, 5, 2, {"x": 2}, 6, 1]
    assert list(mux) == expected
    parts = list(DataLoader(Multiplexer([wrapped, inner]), batch_size=None, num_workers=2))
    assert sorted(map(str, parts)) == sorted(["{'x': 1}", "{'x': 2}", "5", "6"])


def test_it_is_an_energize_dataset_inside():
    shuffled = ShuffleDataset(ListSource(range(20)))
    mux = Multiplexer([shuffled, lambda: iter("ab")], ROUND_ROBIN)
    loader = get_loader(mux.dataset, worker_config=WorkerConfig(num_workers=1))
    with loader:
        epochs = [list(loader) for _ in range(2)]
    assert all(
        Counter(map(str, epoch)) == Counter([*map(str, range(20)), "a", "b"]) for epoch in epochs
    )
    assert epochs[0] != epochs[1]
