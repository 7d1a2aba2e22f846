"""squirrel's multiplexer: shares of streams of unknown length, resumed after any
sample."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import islice, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import energize as ez
from energize.compat.squirrel import (
    Composable,
    IterableSource,
    Multiplexer,
    MultiplexingStrategy,
)
from energize.testing import check_resume
from tests.support.rows import Stream
from tests.support.rows import letter_streams as sources

ROUND_ROBIN = MultiplexingStrategy.ROUND_ROBIN
SAMPLING = MultiplexingStrategy.SAMPLING
UNIFORM = MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
THREE = {"sampling_probas": [0.35, 0.6, 0.05], "seed": 42}


def letters(samples):
    return "".join(sample[0] for sample in samples)


def test_round_robin(caplog):
    """Each sample once; where a source is over the next one follows."""
    for sizes, order in (
        ((2, 3, 5), "abcabcbccc"),
        ((3, 1, 2), "abcaca"),
        ((7,), "aaaaaaa"),
    ):
        mux = Multiplexer(sources(*sizes))
        assert letters(mux) == letters(mux) == order
        assert (mux.num_samples, mux.reinit_counts) == (list(sizes), [])
    mux = Multiplexer(sources(3, 4), ROUND_ROBIN, [0.9999, 0.0001], max_reinits=1)
    assert sorted(mux) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert "sampling_probas are ignored" in caplog.text
    assert list(Multiplexer([[1, 2], []])) == [1, 2]


def test_how_draws_end():
    """When each source was exhausted once, or one of them `max_reinits` times."""
    for seed in range(5):
        mux = Multiplexer(sources(10, 300), SAMPLING, [0.5, 0.5], seed=seed)
        seen = Counter(letters(mux))
        assert mux.num_samples == [seen["a"], 300]
        assert mux.reinit_counts[1] == 1
    mux = Multiplexer(
        sources(214, 115, 453), max_reinits=4, mux_strategy=SAMPLING, **THREE
    )
    assert Counter(letters(mux))["b"] == mux.num_samples[1] == 4 * 115
    assert max(mux.reinit_counts) == 4
    alone = Multiplexer(sources(7), SAMPLING, [1], max_reinits=3, seed=0)
    assert (len(list(alone)), alone.reinit_counts) == (7, [1])


def test_shares_do_not_depend_on_lengths():
    """squirrel loses a draw at each end of a source: 33% in place of 50% for a source
    of one."""
    mux = Multiplexer(sources(1, 5000), SAMPLING, [0.5, 0.5], seed=3)
    size = len(list(mux))
    assert mux.num_samples[0] / size == pytest.approx(0.5, abs=0.01)
    given = []
    for seed in range(15):
        mux = Multiplexer(sources(10, 100), SAMPLING, [0.5, 0.5], seed=seed)
        list(mux)
        given.append(mux.num_samples[0])
    # Slots before the 101st draw of b: a negative binomial with mean 101 and deviation
    # 14.
    assert np.mean(given) == pytest.approx(101, abs=4 * 14 / np.sqrt(15))
    endless = Multiplexer([range(10**6)] * 3, SAMPLING, [0.2, 0.3, 0.5], seed=5)
    list(islice(endless, 20_000))
    assert np.array(endless.num_samples) / 20_000 == pytest.approx(
        [0.2, 0.3, 0.5], abs=0.012
    )


def test_sources_that_are_too_unlikely_are_named(caplog):
    named = dict(zip(["tiny", "one", "two"], sources(5, 5, 5), strict=True))
    mux = Multiplexer(
        named, SAMPLING, {"two": 0.499, "tiny": 0.001, "one": 0.5}, seed=0
    )
    assert mux.dropped == ("tiny",)
    assert "'tiny' (0.001)" in caplog.text
    list(mux)
    counts = zip(["one", "two"], mux.num_samples, strict=True)
    assert mux.num_samples_by_name == {"tiny": 0} | dict(counts)
    assert mux.reinit_counts_by_name["tiny"] == 0
    assert sum(mux.reinit_counts_by_name.values()) == sum(mux.reinit_counts) >= 2
    assert Multiplexer(sources(5, 5), SAMPLING, [0.0011, 0.5], seed=0).dropped == ()


REFUSED = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text())[
    "squirrel"
]


def test_what_is_refused(monkeypatch):
    usual = {"composables": sources(2, 2), "sampling_probas": [0.5, 0.5], "seed": 0}
    for wrong, error, told in REFUSED:
        with pytest.raises(getattr(ez, error), match=told):
            Multiplexer(**{"mux_strategy": SAMPLING} | usual | wrong)
    with pytest.raises(ez.ConfigError, match="only once"):
        Multiplexer(**usual | {"composables": [iter([1]), [2]]})
    for empty in ([], Stream([])):
        mux = Multiplexer({"full": [1, 2], "empty": empty}, SAMPLING, [1, 1], seed=0)
        with pytest.raises(ez.EmptyDatasetError, match="'empty' has no items"):
            list(mux)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ez.ConfigError, match="same seed"):
        Multiplexer(sources(9, 4), UNIFORM)


def test_numbers_of_any_kind_will_do_and_samples_stay_as_they_are():
    expected = list(Multiplexer(sources(9, 9), SAMPLING, [0.25, 0.75], 2, 3))
    for probas, seed in (
        (np.array([1, 3]), np.int64(3)),
        (torch.tensor([0.25, 0.75]), 3),
    ):
        assert list(Multiplexer(sources(9, 9), SAMPLING, probas, 2, seed)) == expected
    ragged = [[1, 2], {"x": None}, "text", ()]
    assert list(Multiplexer([ragged])) == ragged


def test_every_strategy_resumes_after_any_sample():
    for strategy, sizes in product(MultiplexingStrategy, ((3, 1, 5), (4,))):
        options = {"mux_strategy": strategy, "max_reinits": 3, "seed": 9}
        options["sampling_probas"] = [0.5, 0.2, 0.3][: len(sizes)]
        check_resume(Multiplexer(sources(*sizes), **options).dataset, items=30)
        mux = Multiplexer(sources(*sizes), **options)
        whole = list(mux)
        for stop in (0, 1, 3, len(whole)):
            first, resumed = (Multiplexer(sources(*sizes), **options) for _ in range(2))
            seen = list(islice(iter(first), stop))
            resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert [*seen, *resumed] == whole
            assert resumed.num_samples == mux.num_samples


def test_epochs_and_states():
    mux = Multiplexer(sources(30, 30), UNIFORM, seed=4)
    begun = letters(islice(iter(mux), 60))
    first, second = letters(mux), letters(mux)
    assert first.startswith(begun)  # one that is left begins again
    assert first != second
    other = Multiplexer(sources(30, 30), UNIFORM, seed=5)
    assert letters(islice(iter(other), 60)) != begun
    drawn = [Multiplexer(sources(9, 9), UNIFORM).dataset for _ in range(2)]
    assert drawn[0] != drawn[1]
    with pytest.raises(ez.StateMismatchError, match=r"slots.weights"):
        Multiplexer(sources(30, 30), SAMPLING, [0.2, 0.8], seed=4).load_state_dict(
            mux.state_dict()
        )


def test_torch_workers_and_ranks_share_one_epoch(monkeypatch):
    def made():
        return Multiplexer([list(each) for each in sources(9, 4, 13)], UNIFORM, seed=2)

    reference = made()
    loader = DataLoader(made(), batch_size=None, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert sorted(loader) == sorted(reference)
    whole = list(made())
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert list(made()) == whole[rank::3]


class Countdown(IterableDataset):
    """A torch dataset that knows its length and cannot be indexed."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([3, 2, 1])


def test_datasets_of_other_kinds():
    inner = Multiplexer([[5], [6]])
    assert list(Multiplexer([Countdown(), inner])) == [3, 5, 2, 6, 1]
    mux = Multiplexer([ez.ShuffleDataset(ez.ListSource(range(20))), lambda: iter("ab")])
    loader = ez.get_loader(mux.dataset, worker_config=ez.WorkerConfig(0, 1))
    epochs = [list(map(str, loader)) for _ in range(2)]
    assert (
        sorted(epochs[0])
        == sorted(epochs[1])
        == sorted([*map(str, range(20)), "a", "b"])
    )
    assert epochs[0] != epochs[1]


def divided():
    """A source that divides itself among workers, which nobody can see."""
    info = get_worker_info()
    yield from range(12) if info is None else range(info.id, 12, info.num_workers)


@pytest.mark.jobs
def test_sources_that_may_be_divided_already(monkeypatch, caplog):
    """They are read as squirrel reads them, with a warning; a mix of both kinds is an
    error."""

    def loaded(stream, workers=3):
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        return sorted(int(each) for each in loader)

    unknown = Multiplexer([divided, divided])
    assert loaded(unknown) == sorted([*range(12), *range(12)])
    assert loaded(unknown.to_torch_iterable(False, False)) == sorted(
        [*range(12), *range(12)]
    )
    whole = Multiplexer([range(12), lambda: iter(range(12))])
    assert loaded(whole.split_by_rank_pytorch().split_by_worker_pytorch()) == loaded(
        whole, 0
    )
    own = [IterableSource(range(9)).split_by_worker_pytorch() for _ in range(2)]
    assert loaded(Multiplexer(own)) == sorted([*range(9), *range(9)])
    with pytest.raises(
        ez.ConfigError, match="'0' may yield a different part in each worker"
    ):
        loaded(Multiplexer([own[0], range(9)]))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(unknown)) == 24
    assert "unknown whether '0', '1' yield a different part in each rank" in caplog.text
    monkeypatch.setenv("RANK", "1")
    assert list(whole.split_by_rank_pytorch()) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


class PeerStream:
    """A chain of squirrel itself: what its own check looks at, `source`, and a split."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


class PeerSplit(PeerStream):
    def __iter__(self):
        info = get_worker_info()
        yield from islice(self.source, info.id, None, info.num_workers)


@pytest.mark.jobs
def test_sources_that_squirrel_has_split_are_recognised(monkeypatch, caplog):
    """Below `to_torch_iterable()` as it is, without a warning; a part of them split is
    an error."""
    base = ModuleType("squirrel.iterstream")
    base.Composable = PeerStream
    splits = ModuleType("squirrel.iterstream.torch_composables")
    splits.SplitByWorker = PeerSplit
    splits.SplitByRank = type("SplitByRank", (PeerStream,), {})
    for module in (base, splits):
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def loaded(*sources):
        mux = Multiplexer(list(sources)).to_torch_iterable()
        return sorted(DataLoader(mux, batch_size=None, num_workers=2))

    split = [PeerStream(PeerSplit(PeerStream(range(9)))) for _ in range(2)]
    assert Multiplexer(split).divided_among() == {"worker"}
    assert loaded(*split) == sorted([*range(9), *range(9)])
    nested = PeerStream([PeerSplit(range(3)), PeerSplit(range(3))])
    assert Multiplexer([nested]).divided_among() == {"worker"}
    assert "unknown" not in caplog.text
    with pytest.raises(ez.ConfigError, match="'0' may yield a different part"):
        loaded(split[0], range(9))


@pytest.mark.parametrize(("workers", "lanes"), [(0, 1), (0, 3), (2, 4)])
def test_what_a_loader_reads_is_counted_too(workers, lanes):
    options = {"seed": 1, "max_reinits": 3, "sampling_probas": [0.7, 0.3]}
    plain, mux = (
        Multiplexer([range(60), range(40)], SAMPLING, **options) for _ in range(2)
    )
    assert mux.num_samples == [0, 0]
    with ez.get_loader(mux.dataset, num_workers=workers, lanes=lanes) as loader:
        read = iter(loader)
        several = [next(read) for _ in range(9)]
        assert sum(mux.num_samples) == len(several)
        assert len(several) + len(list(read)) == len(list(plain))
        assert (mux.num_samples, mux.reinit_counts) == (
            plain.num_samples,
            plain.reinit_counts,
        )


def test_functions_are_chained_after_a_multiplexer():
    mux = Multiplexer([range(6), [10, 20]], seed=1)
    chained = mux.filter(lambda n: n != 1).map(lambda n, by: n * by, by=2).batched(3)
    assert chained.collect() == [[0, 20, 40], [4, 6, 8]]
    assert mux.num_samples == [6, 2]
    kept = mux.batched(3, collation_fn=sum, drop_last_if_not_full=False).collect()
    assert kept == [11, 25, 9]
    assert mux.take(3).collect() == mux.collect()[:3]
    assert sorted(mux.shuffle(4, seed=3)) == sorted(mux)
    assert list(mux.batched(2).flatten()) == list(mux)
    assert list(mux.take(2).loop(2)) == [0, 10, 0, 10]
    assert IterableSource([]).loop().take(2).collect() == []
    assert mux.async_map(str, buffer=3, max_workers=2).collect() == list(map(str, mux))

    class Twice(Composable):
        def __iter__(self):
            for each in self.source:
                yield from (each, each)

    assert list(mux.take(2).compose(Twice)) == [0, 0, 10, 10]
    workers = DataLoader(
        mux.map(str).to_torch_iterable(), batch_size=None, num_workers=2
    )
    assert sorted(workers) == sorted(map(str, mux))


class Driver:
    def __init__(self, numbers):
        self.numbers = numbers

    def get_iter(self):
        return IterableSource(self.numbers)


def test_drivers_units_and_further_keywords(caplog):
    assert list(Multiplexer([Driver([1, 2]), Driver([3])])) == [1, 3, 2]
    texts = [["ab"] * 5000, ["abcdef"] * 5000]
    mux = Multiplexer(texts, SAMPLING, [0.5, 0.5], seed=2, unit=len)
    taken = list(islice(mux, 1000))
    tokens = [sum(len(each) for each in taken if len(each) == size) for size in (2, 6)]
    assert tokens[0] / sum(tokens) == pytest.approx(0.5, abs=0.01)
    resumed = Multiplexer(texts, SAMPLING, [0.5, 0.5], seed=2, unit=len)
    begun = iter(mux)
    first = list(islice(begun, 77))
    resumed.load_state_dict(mux.state_dict())
    assert first + list(islice(resumed, 923)) == taken
    Multiplexer([[1]], some_option=3)
    assert "some_option=3 has no effect" in caplog.text


def test_the_draws_of_squirrel():
    """As squirrel-core 0.20.2 has them."""
    sizes = (214, 115, 453)
    mux = Multiplexer(
        sources(*sizes), SAMPLING, max_reinits=4, order="squirrel", **THREE
    )
    whole = list(mux)
    assert (mux.reinit_counts, mux.num_samples) == ([1, 4, 0], [268, 460, 40])
    again, resumed = (
        Multiplexer(sources(*sizes), SAMPLING, max_reinits=4, order="squirrel", **THREE)
        for _ in range(2)
    )
    seen = list(islice(iter(again), 500))
    resumed.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert [*seen, *resumed] == whole
    uniform = Multiplexer(sources(100, 26, 200), UNIFORM, seed=42, order="squirrel")
    assert (len(list(uniform)), uniform.reinit_counts) == (579, [1, 7, 1])
    with pytest.raises(ez.ConfigError, match=r"order='squirel'.*mean 'squirrel'"):
        Multiplexer([[1]], order="squirel")


def test_counts_are_those_of_workers_too():
    mux = Multiplexer([range(500), range(40)], SAMPLING, [0.7, 0.3], seed=5)
    list(mux)
    counted = mux.num_samples, mux.reinit_counts
    other = Multiplexer([range(500), range(40)], SAMPLING, [0.7, 0.3], seed=5)
    stream = other.split_by_rank_pytorch().split_by_worker_pytorch().to_torch_iterable()
    assert len(list(DataLoader(stream, batch_size=None, num_workers=3))) == sum(
        counted[0]
    )
    assert (other.num_samples, other.reinit_counts) == counted
