"""What goes along with reading: keyed draws, samples left out, errors of users'
functions."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from energize import (
    BatchDataset,
    ConfigError,
    DataError,
    EncoderError,
    FailureBudgetError,
    FailurePolicy,
    FilterDataset,
    IterableSource,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    SkipSample,
    get_loader,
)
from energize.core.failures import Failed
from energize.core.trace import MAX_ATTEMPTS, ReadContext, Trace
from energize.errors import SubstitutionError
from energize.nodes import Lane
from tests.support.datasets import INDEXED, STREAMING, numbers, shuffled
from tests.support.loading import loader_of, prints

# Random numbers


def jitter(item, rng):
    return item, rng.random(), rng.integers(2**60)


def heads(item, rng):
    return rng.random() < 0.5


def everything(item):
    return True


def asks(stream):
    inner = FilterDataset(shuffled(40), everything) if stream else shuffled(40)
    return MapDataset(inner, jitter)


@pytest.mark.parametrize("stream", [False, True])
def test_samples_and_epochs_draw_apart(stream):
    loader = loader_of(asks(stream))
    epochs = [list(loader), list(loader), list(loader)]
    assert [sorted(item for item, *_ in epoch) for epoch in epochs] == [
        list(range(40))
    ] * 3
    assert len({draw for epoch in epochs for _, draw, _ in epoch}) == 120
    assert len({draw for epoch in epochs for _, _, draw in epoch}) == 120


def test_a_filter_draws_for_the_sample_whatever_the_lanes():
    dataset = FilterDataset(shuffled(400), heads)
    alone = list(dataset)
    assert 150 < len(alone) < 250
    for lanes in (2, 5):
        parts = [list(dataset.open(Lane(lane, lanes))) for lane in range(lanes)]
        assert sorted(item for part in parts for item in part) == sorted(alone)
    cursor = dataset.open()
    first, second = list(cursor), list(dataset.open(state=cursor.state()))
    assert first == alone
    assert set(first) != set(second)


# Samples left out


def one_in_four(item):
    if item % 4:
        raise SkipSample
    return item


def first_quarter(item):
    if item >= 400:
        raise SkipSample
    return item


@pytest.mark.parametrize("keep", [one_in_four, first_quarter])
def test_substitutes_are_drawn_from_all_samples_alike(keep):
    told: list[Failed] = []
    dataset = MapDataset(shuffled(1600), keep, seeded=False)
    came = Counter(dataset.at(range(1600), ReadContext.reporting(told.append)))
    kept = range(0, 1600, 4) if keep is one_in_four else range(400)
    assert sorted(came) == list(kept)
    assert sum(came.values()) == 1600
    assert not told  # what is left out on purpose is no failure
    # Each comes once itself, and 1200 times one of 400 takes another's place: Poisson,
    # mean 3.
    substitutes = np.array([came[item] - 1 for item in kept])
    assert substitutes.max() < 15
    assert 2.3 < substitutes.var() < 3.7
    assert 8 < (substitutes == 0).sum() < 35  # 400 / e**3 = 19.9
    assert abs(substitutes[:200].sum() - substitutes[200:].sum()) < 4 * 1200**0.5


def test_thousands_in_a_row():
    def late(item):
        if item < 5000:
            raise SkipSample
        return item

    stream = MapDataset(FilterDataset(numbers(5010), everything), late, seeded=False)
    assert list(stream) == list(range(5000, 5010))
    with pytest.raises(SubstitutionError, match="FilterDataset"):
        MapDataset(numbers(5001), late)[0]


# Errors of users' functions


def broken_tens(item):
    if item % 10 == 0:
        return 1 // 0
    return item


def broken_batches(items):
    if 0 in items:
        raise RuntimeError("nothing to batch")
    return items


def ends(item):
    raise StopIteration


BROKEN = {
    "map": MapDataset(numbers(100), broken_tens),
    "map of stream": MapDataset(FilterDataset(numbers(100), everything), broken_tens),
    "filter": FilterDataset(numbers(100), lambda item: broken_tens(item) > 0),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", BROKEN)
def test_skip_leaves_out_and_counts_and_else_it_is_an_error(name, workers, caplog):
    with loader_of(BROKEN[name], workers, on_error="skip") as loader:
        items = list(loader)
        summary = loader.failures
    assert not [item for item in items if item % 10 == 0]
    assert len(items) == (100 if name == "map" else 90)
    assert list(summary.kinds.values()) == [summary.count]
    told = [
        each.message for each in caplog.records if "ZeroDivisionError" in each.message
    ]
    assert len(told) == len(set(told)) <= 3, "samples that fail alike are told of once"
    assert f"{summary.count} samples failed alike" in told[-1]
    assert summary.count >= 10 if name == "map" else summary.count == 10
    assert "EncoderError" in summary.last[0]
    with loader_of(BROKEN[name], workers) as loader:
        with pytest.raises(
            EncoderError, match=r"(?s)ZeroDivisionError.*on_error='skip'"
        ):
            list(loader)
        assert loader.failures.count == 0


def forgives_division(error):
    if not isinstance(error.__cause__, ZeroDivisionError):
        raise error


@pytest.mark.parametrize("workers", [0, 1])
def test_a_handler_decides(workers):
    def other_fault(item):
        return broken_tens(item) if item < 50 else {}[item]

    with loader_of(
        MapDataset(numbers(100), broken_tens), workers, on_error=forgives_division
    ) as a:
        assert len(list(a)) == 100
        assert a.failures.count >= 10
    stream = MapDataset(FilterDataset(numbers(100), everything), other_fault)
    with loader_of(stream, workers, on_error=forgives_division, lanes=1) as b:
        got = []
        with pytest.raises(EncoderError, match="other_fault raised KeyError: 50"):
            got.extend(b)
        assert got == [item for item in range(50) if item % 10]
        assert b.failures.count == 5


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_skipped_goes_by_the_failure_budget(name):
    loader = get_loader(BROKEN[name], failures=FailurePolicy(on_error="skip", budget=3))
    with pytest.raises(
        FailureBudgetError, match="4 samples failed, and the failure budget is 3"
    ):
        list(loader)
    assert loader.failures.count == 4


def test_batches_that_fail_are_left_out_too():
    for dataset in (shuffled(40), FilterDataset(shuffled(40), everything)):
        loader = loader_of(BatchDataset(dataset, 4, broken_batches), on_error="skip")
        batches = list(loader)
        assert 0 not in [item for batch in batches for item in batch]
        assert loader.failures.count >= 1
        assert "nothing to batch" in loader.failures.last[0]


def test_a_function_that_raises_stop_iteration_ends_no_epoch():
    for dataset in (numbers(5), FilterDataset(numbers(5), everything)):
        with pytest.raises(EncoderError, match="ends raised StopIteration"):
            list(MapDataset(dataset, ends))


# The context itself


@pytest.mark.parametrize(("decision", "told"), [(SkipSample, 0), (DataError, 1)])
def test_a_handler_may_skip_the_sample_or_call_it_damaged(decision, told):
    def decide(error):
        raise decision("as decided")

    def bad(number):
        return 1 // number

    loader = get_loader(MapDataset(numbers(4), bad), on_error=decide)
    assert len(list(loader)) == 4
    assert loader.failures.count == told


def test_each_failed_attempt_is_reported_once_and_each_skip_never():
    def bad(item):
        if item % 2:
            raise DataError(f"{item} is bad")
        if item % 4:
            raise SkipSample
        return item

    told: list[Failed] = []
    items = MapDataset(numbers(200), bad).at(
        range(200), ReadContext.reporting(told.append)
    )
    assert not [item for item in items if item % 4]
    assert not [each for each in told if each.skipped]
    assert len(told) > 200  # a substitute may be bad as well
    assert all(
        "is bad" in str(each) and "numbers0, sample" in each.where for each in told
    )


@pytest.mark.parametrize("bad", [MAX_ATTEMPTS - 1, MAX_ATTEMPTS])
def test_as_many_failures_in_a_row_as_there_may_be_are_an_error(bad):
    attempts = []

    class Asked(ListSource):
        def fetch(self, positions, reading):
            attempts.append(reading.attempt)
            failed = Failed(SkipSample(), "here")
            return [failed if len(attempts) <= bad else int(each) for each in positions]

    outcome = nullcontext()
    if bad == MAX_ATTEMPTS:
        outcome = pytest.raises(SubstitutionError, match=f"its {bad - 1} substitutes")
    with outcome:
        assert Trace(Asked(range(9)), np.array([7])).items(
            ReadContext(attempt=100)
        ) == [7]
    assert attempts == list(range(100, 100 + MAX_ATTEMPTS))


# Indices

WRONG = [
    slice(0, 2), "1", b"1", 1.0, 1.5, True, None, np.bool_(True), np.float32(1), float("nan"),
    float("inf"), 1j, [1], (1, 2), {}, ..., object(), range(3), torch.tensor(1), np.array([1]),
]  # fmt: skip
OUTSIDE = [
    10**9 + 7,
    -(10**9),
    2**63 - 1,
    2**63,
    10**30,
    -(2**63),
    -(2**70),
    np.uint64(2**63),
]


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_is_one_whole_number(name):
    dataset = INDEXED[name]
    for index in WRONG:
        with pytest.raises(ConfigError, match="an index must be one whole number"):
            dataset[index]
    for index in OUTSIDE:
        if not 0 <= index < min(dataset.size, 2**62):
            with pytest.raises((IndexError, ConfigError), match="position"):
                dataset[index]
    assert prints([dataset[np.int64(0)], dataset[np.uint8(0)]]) == prints(
        [dataset[0]] * 2
    )
    if dataset.size < 10**9:
        assert prints([dataset[-1]]) == prints([dataset[dataset.size - 1]])
        with pytest.raises(IndexError, match=f"a dataset of {dataset.size} items"):
            dataset[dataset.size]


def test_positions_are_whole_numbers_in_one_row():
    rows = [
        3,
        [1.0],
        [True],
        ["1"],
        [None],
        [[0]],
        [-1],
        [2**62],
        [2**63],
        [10**30],
        slice(3),
    ]
    for dataset in (numbers(9), INDEXED["tower"], INDEXED["repeat for ever"]):
        for positions in (*rows, "12"):
            with pytest.raises(ConfigError, match="positions must be whole numbers"):
                dataset.at(positions)


def test_a_stream_has_no_index():
    rows = IterableSource(list("abc"), name="rows")
    for dataset in (*STREAMING.values(), rows, RepeatDataset(rows)):
        for index in (0, -1, slice(2), "1", 1.5):
            with pytest.raises(
                NotIndexedError, match="a stream, so it has no random access"
            ):
                dataset[index]


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_all_lanes_end_an_epoch_in_the_state_at_its_end(lanes):
    for index in range(lanes):
        cursor = numbers(7).open(Lane(index, lanes))
        assert list(cursor) == list(range(index, 7, lanes))
        assert cursor.state() == {"position": 7}
