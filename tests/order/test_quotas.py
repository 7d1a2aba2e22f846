"""Quotas: what each stream gives to an epoch, and which of its samples."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energize import ListSource, RepeatDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.transform import FilterDataset
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError, WeightError
from energize.order.quota import EpochDraws, Quota, epoch_counts, epoch_size_in_samples
from tests.support.datasets import is_even, numbers
from tests.support.mosaicml_cases import COUNTS, NONE, chosen, proportions, repeats
from tests.support.tables import check_faults, row


def test_counts_per_epoch():
    for name, (sizes, quotas, epoch_size, expected) in COUNTS.items():
        with row(name):
            assert epoch_counts(sizes, quotas, epoch_size).tolist() == expected
            if "huge" in name:
                continue
            streams = [(numbers(size, 1000 * i), quotas[i]) for i, size in enumerate(sizes)]
            for shuffle in (False, True):
                dataset = QuotaDataset(streams, epoch_size=epoch_size, shuffle=shuffle)
                assert (dataset.counts(), len(dataset)) == (expected, sum(expected))
                for epoch in (0, 3):
                    slots = np.arange(epoch * len(dataset), (epoch + 1) * len(dataset))
                    drawn = dataset.refs(slots).source
                    assert np.bincount(drawn, minlength=len(sizes)).tolist() == expected
    assert epoch_counts([3, 0], [NONE, Quota(repeat=0)]).tolist() == [3, 0]
    sizes = {
        1: 1,
        "10k": 10_000,
        "64M": 64 * 10**6,
        "77b": 77 * 10**9,
        "1.5k": 1500,
        "2t": 2 * 10**12,
    }
    assert {value: epoch_size_in_samples(value) for value in sizes} == sizes
    assert Quota(choose="10k") == Quota(choose=10_000.0)


def test_quotas_that_cannot_be_used():
    def counting(quotas, epoch_size=None):
        return lambda: epoch_counts([100, 200], quotas(), epoch_size)

    nan, inf = float("nan"), float("inf")
    kinds = [Quota(proportion=1), Quota(choose=1)]
    whole = "whole number, 0 or more; got "
    faults = {
        "choose 2.7": (counting(lambda: chosen(2.7, 1)), f"{whole}2.7"),
        "a text": (counting(lambda: chosen("some", 1)), f"{whole}'some'"),
        "a part": (counting(lambda: chosen("1.2345k", 1)), f"{whole}'1.2345k'"),
        "mixed": (counting(lambda: kinds), "stream 0 has a proportion, but stream 1 has choose"),
        "and none": (counting(lambda: [NONE, kinds[0]]), "but stream 0 has no quota"),
        "two": (lambda: Quota(proportion=1, choose=2), "one quota...got proportion=1, choose=2"),
        "all zero": (counting(lambda: proportions(0, 0)), "all 2 weights are 0"),
        "NaN": (counting(lambda: proportions(nan, 1)), "proportion is finite"),
        "infinite": (counting(lambda: proportions(inf, 1)), "got inf"),
        "repeat 0": (counting(lambda: repeats(0, 0)), "no sample of any of the 2 streams"),
        "negative": (counting(lambda: repeats(-1, 1)), "not negative, got -1"),
        "repeat '2'": (counting(lambda: repeats("2", 1)), "repeat is a number, got '2'"),
    }
    check_faults(WeightError, faults)
    faults = {
        "choose": (counting(lambda: chosen(2, 1), 10), "epoch_size=10 and choose of stream 0"),
        "repeat": (counting(lambda: [NONE, Quota(repeat=1)], 10), "repeat of stream 1"),
        "too much": (counting(lambda: chosen(2**62, 1)), "is too long"),
    }
    for size in (
        0,
        -1,
        1.5,
        True,
        "",
        "k",
        "1.0001k",
        "10q",
        "0",
        "1/0",
        2**62,
        "1e999999999",
        "nan",
    ):
        faults[f"{size!r}"] = lambda s=size: epoch_size_in_samples(s), "epoch_size counts samples"
    check_faults(ConfigError, faults)
    empty = {"empty": (lambda: epoch_counts([3, 0], [NONE, NONE]), "stream 1 has no samples")}
    check_faults(EmptyDatasetError, empty)


@given(
    st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=60).filter(any),
    st.integers(1, 10**9),
)
def test_proportions_are_kept_within_one_sample(weights, epoch_size):
    counts = epoch_counts([1] * len(weights), proportions(*weights), epoch_size).tolist()
    assert sum(counts) == epoch_size
    exact = [Fraction(repr(float(weight))) for weight in weights]
    for weight, count in zip(exact, counts, strict=True):
        assert abs(count - epoch_size * weight / sum(exact)) < 1
        assert weight > 0 or count == 0


@given(
    size=st.integers(1, 3000),
    quota=st.floats(0.001, 3),
    shuffle=st.booleans(),
    fixed=st.booleans(),
    first=st.integers(0, 10**12),
)
def test_draws_visit_every_sample_floor_or_ceil_times(size, quota, shuffle, fixed, first):
    count = max(1, int(size * quota))
    draws = EpochDraws(size, count, 7, shuffle=shuffle, fixed=fixed)
    visits = []
    for epoch in range(first, first + 3):
        located = draws.locate(np.full(count, epoch), np.arange(count))
        assert len(np.unique(located)) == count
        visits.append(np.bincount(located % size, minlength=size))
        assert visits[-1].min() >= count // size
        assert visits[-1].max() <= -(-count // size)
        assert shuffle or (np.diff(located) > 0).all()
    if fixed:
        assert (visits[0] == visits[1]).all()
    elif size > 100 and 0.1 < (count % size) / size < 0.9:
        assert (visits[0] != visits[1]).any()


def test_balanced_draws_are_even_and_random_within_their_blocks():
    size, count = 2500, 700
    draws = EpochDraws(size, count, 7)
    visited = np.zeros(size, dtype=np.int64)
    for epoch in range(40):
        drawn = draws.locate(np.full(count, epoch), np.arange(count)) % size
        visited += np.bincount(drawn, minlength=size)
        assert np.abs(visited - (epoch + 1) * count / size).max() < 1
    draws = EpochDraws(20_000, 2_000, 7)  # of data with a rhythm of ten, not always one kind
    kinds = draws.locate(np.zeros(2000, dtype=np.int64), np.arange(2000)) % 10
    assert np.bincount(kinds).min() > 120
    draws = EpochDraws(10**12, 3 * 10**11, 7, shuffle=True)
    far = draws.locate(np.array([10**6, 10**6]), np.array([0, 3 * 10**11 - 1]))
    assert (far // 10**12 == 10**6).all()


def test_orders_of_an_epoch():
    assert list(QuotaDataset(*(numbers(2, 2 * i) for i in range(4)))) == list(range(8))
    dataset = QuotaDataset((numbers(100), Quota(choose=250)), shuffle=True)
    assert Counter(Counter(dataset).values()) == {2: 50, 3: 50}
    assert len(set(list(dataset)[:100])) == 100, "a sample came again before its pass had ended"
    for method, shuffle in [("fixed", True), ("fixed", False), ("balanced", True)]:
        part = (numbers(100), Quota(choose=40))
        data = QuotaDataset(part, sampling_method=method, shuffle=shuffle)
        epochs = [set(data.at(np.arange(e * 40, e * 40 + 40))) for e in range(5)]
        drawn = Counter(number for epoch in epochs for number in epoch)
        assert set(drawn.values()) == ({5} if method == "fixed" else {2})
    mixed = QuotaDataset((numbers(9000), Quota()), (numbers(1000, 10**6), Quota()), shuffle=True)
    drawn = mixed.refs(np.arange(4096)).source
    assert abs(drawn.sum() - 409.6) <= 1
    assert drawn[:2048].sum() != 205 or drawn[:1024].sum() != 102, "not random inside"
    for n in (0, 1, 5, 10_000, 20_003):
        expected = np.bincount(mixed.refs(np.arange(n)).source, minlength=2)
        assert mixed.consumed(n).tolist() == expected.tolist()


def test_what_datasets_say_of_their_quotas(caplog):
    QuotaDataset((numbers(1000), Quota()), (numbers(3, 5000), Quota(repeat=0.1)))
    assert "repeat=0.1" in caplog.text
    assert "of stream 1 (numbers5000) comes to no sample" in caplog.text
    data = numbers(10)
    one, same, other = (QuotaDataset((data, Quota(choose=n))) for n in (3, 3, 4))
    assert one == same != other
    assert one.describe()["quotas"] == [{"proportion": None, "repeat": None, "choose": 3}]
    streams = (ListSource("ab"), Quota(proportion=1)), (ListSource("abc"), Quota())
    said = "stream 0 (list #1) has a proportion, but stream 1 (list #2) has"
    check_faults(WeightError, {"names": (lambda: QuotaDataset(*streams), said)})
    faults = {
        "stream": (
            lambda: QuotaDataset(numbers(3), FilterDataset(numbers(9), is_even)),
            "stream 1 (FilterDataset) can only be read as",
        ),
        "endless": (lambda: QuotaDataset(RepeatDataset(numbers(3))), "never ends"),
    }
    check_faults(NotIndexedError, faults)
