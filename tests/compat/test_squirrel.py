"""squirrel's multiplexer: shares of streams of unknown length, resumed after any sample."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, IterableDataset

import energize as ez
from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
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
    for sizes, order in (((2, 3, 5), "abcabcbccc"), ((3, 1, 2), "abcaca"), ((7,), "aaaaaaa")):
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
    mux = Multiplexer(sources(214, 115, 453), max_reinits=4, mux_strategy=SAMPLING, **THREE)
    assert Counter(letters(mux))["b"] == mux.num_samples[1] == 4 * 115
    assert max(mux.reinit_counts) == 4
    alone = Multiplexer(sources(7), SAMPLING, [1], max_reinits=3, seed=0)
    assert (len(list(alone)), alone.reinit_counts) == (7, [1])


def test_shares_do_not_depend_on_lengths():
    """squirrel loses a draw at each end of a source: 33% in place of 50% for a source of one."""
    mux = Multiplexer(sources(1, 5000), SAMPLING, [0.5, 0.5], seed=3)
    size = len(list(mux))
    assert mux.num_samples[0] / size == pytest.approx(0.5, abs=0.01)
    given = []
    for seed in range(60):
        mux = Multiplexer(sources(10, 100), SAMPLING, [0.5, 0.5], seed=seed)
        list(mux)
        given.append(mux.num_samples[0])
    # Slots before the 101st draw of b: a negative binomial with mean 101 and deviation 14.
    assert np.mean(given) == pytest.approx(101, abs=4 * 14 / np.sqrt(60))
    endless = Multiplexer([range(10**6)] * 3, SAMPLING, [0.2, 0.3, 0.5], seed=5)
    list(islice(endless, 20_000))
    assert np.array(endless.num_samples) / 20_000 == pytest.approx([0.2, 0.3, 0.5], abs=0.012)


def test_sources_that_are_too_unlikely_are_named(caplog):
    named = dict(zip(["tiny", "one", "two"], sources(5, 5, 5), strict=True))
    mux = Multiplexer(named, SAMPLING, {"two": 0.499, "tiny": 0.001, "one": 0.5}, seed=0)
    assert mux.dropped == ("tiny",)
    assert "'tiny' (0.001)" in caplog.text
    list(mux)
    counts = zip(["one", "two"], mux.num_samples, strict=True)
    assert mux.num_samples_by_name == {"tiny": 0} | dict(counts)
    assert mux.reinit_counts_by_name["tiny"] == 0
    assert sum(mux.reinit_counts_by_name.values()) == sum(mux.reinit_counts) >= 2
    assert Multiplexer(sources(5, 5), SAMPLING, [0.0011, 0.5], seed=0).dropped == ()


REFUSED = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text())["squirrel"]


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
    for probas, seed in ((np.array([1, 3]), np.int64(3)), (torch.tensor([0.25, 0.75]), 3)):
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
        Multiplexer(sources(30, 30), SAMPLING, [0.2, 0.8], seed=4).load_state_dict(mux.state_dict())


def test_torch_workers_and_ranks_share_one_epoch(monkeypatch):
    def made():
        return Multiplexer(sources(9, 4, 13), UNIFORM, seed=2)

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
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted([*map(str, range(20)), "a", "b"])
    assert epochs[0] != epochs[1]
