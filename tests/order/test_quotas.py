"""Quotas: what each stream gives to an epoch, and which of its samples."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import ListSource, RepeatDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.transform import FilterDataset
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError, WeightError
from energize.order.quota import EpochDraws, Quota, epoch_counts, epoch_size_in_samples
from energize.testing import check_exactly_once, check_laws, check_topology
from tests.support.datasets import is_even, numbers
from tests.support.mosaicml_cases import COUNTS, NONE, chosen, proportions, repeats


@pytest.mark.parametrize("row", COUNTS)
def test_counts_per_epoch(row):
    sizes, quotas, epoch_size, expected = COUNTS[row]
    assert epoch_counts(sizes, quotas, epoch_size).tolist() == expected


@pytest.mark.parametrize("row", [row for row in COUNTS if "huge" not in row])
def test_an_epoch_has_the_counts(row):
    sizes, quotas, epoch_size, expected = COUNTS[row]
    streams = [numbers(size, 1000 * i) for i, size in enumerate(sizes)]
    for shuffle in (False, True):
        dataset = QuotaDataset(
            zip(streams, quotas, strict=True), epoch_size=epoch_size, shuffle=shuffle
        )
        assert dataset.counts() == expected
        assert len(dataset) == sum(expected)
        for epoch in (0, 3):
            drawn = dataset.refs(np.arange(epoch * len(dataset), (epoch + 1) * len(dataset)))
            assert np.bincount(drawn.source, minlength=len(sizes)).tolist() == expected


FAULTS = {
    "choose 2.7": (lambda: chosen(2.7, 1), None, "whole number, 0 or more; got 2.7"),
    "choose with epoch_size": (lambda: chosen(2, 1), 10, "epoch_size=10 and choose of stream"),
    "repeat with epoch_size": (lambda: [NONE, Quota(repeat=1)], 10, "repeat of stream 1"),
    "kinds mixed": (
        lambda: [Quota(proportion=1), Quota(choose=1)],
        None,
        "stream 0 has a proportion, but stream 1 has choose",
    ),
    "a kind and none": (lambda: [NONE, Quota(proportion=1)], None, "stream 0 has no quota"),
    "two kinds in one": (
        lambda: [Quota(proportion=1, choose=2), NONE],
        None,
        "one quota, proportion or repeat or choose; got proportion=1, choose=2",
    ),
    "all zero": (lambda: proportions(0, 0), None, "all 2 weights are 0"),
    "NaN": (lambda: proportions(float("nan"), 1), None, "proportion is finite"),
    "infinite": (lambda: proportions(float("inf"), 1), None, "got inf"),
    "repeat 0": (lambda: repeats(0, 0), None, "no sample of any of the 2 streams"),
    "negative": (lambda: repeats(-1, 1), None, "not negative, got -1"),
    "text": (lambda: chosen("some", 1), None, "whole number, 0 or more; got 'some'"),
    "part of a sample": (lambda: chosen("1.2345k", 1), None, "0 or more; got '1.2345k'"),
    "text for a part": (lambda: repeats("2", 1), None, "repeat is a number, got '2'"),
    "too much": (lambda: chosen(2**62, 1), None, "is too long"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_quotas_that_cannot_be_used(fault):
    make, epoch_size, message = FAULTS[fault]
    with pytest.raises(ConfigError, match=message):
        epoch_counts([100, 200], make(), epoch_size)


@pytest.mark.parametrize(
    ("value", "samples"),
    [
        (1, 1),
        ("10k", 10_000),
        ("64M", 64_000_000),
        ("77b", 77 * 10**9),
        ("1.5k", 1500),
        ("2t", 2 * 10**12),
    ],
)
def test_epoch_sizes(value, samples):
    assert epoch_size_in_samples(value) == samples


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "", "k", "1.0001k", "10q", "0", "1/0", 2**62])
def test_epoch_sizes_that_are_none(value):
    with pytest.raises(ConfigError, match="epoch_size counts samples"):
        epoch_size_in_samples(value)


def test_empty_streams():
    with pytest.raises(EmptyDatasetError, match="stream 1 has no samples"):
        epoch_counts([3, 0], [NONE, NONE])
    assert epoch_counts([3, 0], [NONE, Quota(repeat=0)]).tolist() == [3, 0]


quota_lists = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=60).filter(any)


@given(quota_lists, st.integers(1, 10**9))
def test_proportions_are_kept_within_one_sample(weights, epoch_size):
    sizes = [1] * len(weights)
    counts = epoch_counts(sizes, proportions(*weights), epoch_size).tolist()
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
        visited = np.bincount(located % size, minlength=size)
        assert visited.min() >= count // size
        assert visited.max() <= -(-count // size)
        if not shuffle:
            assert (np.diff(located) > 0).all()
        visits.append(visited)
    if fixed:
        assert (visits[0] == visits[1]).all()
    elif size > 100 and 0.1 < (count % size) / size < 0.9:
        assert (visits[0] != visits[1]).any()


def test_balanced_draws_are_even_after_any_number_of_epochs():
    size, count = 2500, 700
    draws = EpochDraws(size, count, 7)
    visited = np.zeros(size, dtype=np.int64)
    for epoch in range(40):
        drawn = draws.locate(np.full(count, epoch), np.arange(count)) % size
        visited += np.bincount(drawn, minlength=size)
        assert np.abs(visited - (epoch + 1) * count / size).max() < 1


def test_a_part_is_random_within_its_blocks():
    """Every tenth sample of data with a rhythm of ten is not always the same kind of sample."""
    draws = EpochDraws(20_000, 2_000, 7)
    kinds = Counter((draws.locate(np.zeros(2000, dtype=np.int64), np.arange(2000)) % 10).tolist())
    assert min(kinds.values()) > 120


def test_draws_from_a_huge_stream():
    draws = EpochDraws(10**12, 3 * 10**11, 7, shuffle=True)
    far = draws.locate(np.array([10**6, 10**6]), np.array([0, 3 * 10**11 - 1]))
    assert (far // 10**12 == 10**6).all()


def test_stored_order_without_shuffle():
    streams = zip(
        [numbers(2, 2 * i) for i in range(4)], COUNTS["sixths and nothing, match"][1], strict=True
    )
    assert list(QuotaDataset(streams, epoch_size=12)) == [2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7]
    assert list(QuotaDataset(*(numbers(2, 2 * i) for i in range(4)))) == list(range(8))


def test_choose_250_of_100():
    dataset = QuotaDataset((numbers(100), Quota(choose=250)), shuffle=True)
    assert Counter(Counter(dataset).values()) == {2: 50, 3: 50}
    assert len(set(list(dataset)[:100])) == 100, "a sample came again before its pass had ended"


@pytest.mark.parametrize("shuffle", [False, True])
def test_sampling_methods(shuffle):
    def epochs(method):
        data = QuotaDataset(
            (numbers(100), Quota(choose=40)), sampling_method=method, shuffle=shuffle
        )
        return [set(data.at(np.arange(e * 40, e * 40 + 40))) for e in range(5)]

    fixed = epochs("fixed")
    assert all(epoch == fixed[0] for epoch in fixed)
    balanced = epochs("balanced")
    assert Counter(number for epoch in balanced for number in epoch) == dict.fromkeys(range(100), 2)


def test_which_samples_come_does_not_depend_on_shuffle():
    def epoch(shuffle):
        return QuotaDataset((numbers(3000), Quota(choose=700)), shuffle=shuffle)

    assert sorted(epoch(True)) == list(epoch(False)) != list(epoch(True))


LAWFUL = {
    "proportions": ([(7, Quota(proportion=0.7)), (5, Quota(proportion=0.3))], "30"),
    "repeats": ([(7, Quota(repeat=1.5)), (5, Quota(repeat=0.5))], None),
    "chosen": ([(7, Quota(choose=3)), (5, Quota(choose=12)), (2, Quota())], None),
    "a zero": ([(7, Quota(repeat=0)), (5, Quota())], None),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("method", ["balanced", "fixed"])
@pytest.mark.parametrize("name", LAWFUL)
def test_laws(name, method, shuffle):
    streams, epoch_size = LAWFUL[name]
    dataset = QuotaDataset(
        [(numbers(size, 100 * i), quota) for i, (size, quota) in enumerate(streams)],
        epoch_size=epoch_size,
        sampling_method=method,
        shuffle=shuffle,
    )
    check_laws(dataset, epochs=2)
    check_topology(dataset, epochs=2)

    def promised(source, _):
        whole, part = divmod(dataset.counts()[source], dataset.inputs[source].size)
        return whole, whole + (part > 0)

    for epoch in (0, 1, 1000):
        check_exactly_once(dataset, promised, epoch=epoch)
    for n in (0, 1, 5, len(dataset), 2 * len(dataset) + 3):
        drawn = np.bincount(dataset.refs(np.arange(n)).source, minlength=len(streams))
        assert dataset.consumed(n).tolist() == drawn.tolist()


def test_shuffled_streams_are_mixed_evenly():
    dataset = QuotaDataset((numbers(9000), Quota()), (numbers(1000, 10**6), Quota()), shuffle=True)
    drawn = dataset.refs(np.arange(4096)).source
    assert abs(drawn.sum() - 409.6) <= 1
    assert drawn[:2048].sum() != 205 or drawn[:1024].sum() != 102, "not random inside"


def test_inputs_that_cannot_have_a_quota():
    with pytest.raises(NotIndexedError, match=r"stream 1 \(FilterDataset\) can only be read as"):
        QuotaDataset(numbers(3), FilterDataset(numbers(9), is_even))
    with pytest.raises(NotIndexedError, match="never ends"):
        QuotaDataset(RepeatDataset(numbers(3)))
    with pytest.raises(ConfigError, match="did you mean 'balanced'"):
        QuotaDataset(numbers(3), sampling_method="balance")
    with pytest.raises(ConfigError, match="stream 0 is a dataset"):
        QuotaDataset("folder")
    with pytest.raises(ConfigError, match="no streams"):
        QuotaDataset([])
    with pytest.raises(WeightError):
        QuotaDataset((ListSource("ab"), Quota(repeat=0)))


def test_a_quota_that_comes_to_nothing_is_logged(caplog):
    QuotaDataset((numbers(1000), Quota()), (numbers(3, 5000), Quota(repeat=0.1)))
    assert "repeat=0.1" in caplog.text
    assert "of stream 1 (numbers5000) comes to no sample" in caplog.text


def test_errors_about_streams_name_them():
    with pytest.raises(EmptyDatasetError, match=r"stream 1 \(none0\) has no samples"):
        QuotaDataset((numbers(3), Quota()), (numbers(0, name="none"), Quota()))
    named = r"stream 0 \(list #1\) has a proportion, but stream 1 \(list #2\) has"
    with pytest.raises(WeightError, match=named):
        QuotaDataset((ListSource("ab"), Quota(proportion=1)), (ListSource("abc"), Quota()))


def test_descriptions_tell_quotas_apart():
    data = numbers(10)
    one = QuotaDataset((data, Quota(choose=3)))
    assert one == QuotaDataset((data, Quota(choose=3)))
    assert one != QuotaDataset((data, Quota(choose=4)))
    assert one.describe()["quotas"] == [{"proportion": None, "repeat": None, "choose": 3}]
