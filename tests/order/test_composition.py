"""What global batches and device batches are made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energize import ListSource, MapDataset
from energize.core.trace import Reading
from energize.datasets.quota import ComposedDataset
from energize.errors import ConfigError, EncoderError
from energize.order.composition import BATCHING_METHODS, Composition
from tests.support.composing import composed, epoch_of
from tests.support.datasets import numbers, skip_thirds
from tests.support.tables import check_faults


def test_batches_that_cannot_be_made():
    def composing(*arguments, **options):
        return lambda: composed(*arguments, **options)

    each = composing((7, 4, 7, 7, 7), "device_per_stream", 4, 4)
    faults = {
        "small": (composing((3, 3), "stratified", 8, 1), "6 samples of an epoch cannot fill one"),
        "dropped": (composing((3, 3), "random", 8, 1, drop_last=True), "cannot fill one global"),
        "global": (composing((1000, 6), "per_stream", 4, 2), "stream 1 gives 6...at most 6"),
        "device": (composing((8, 3), "device_per_stream", 4, 1), "stream 1 gives 3...at most 3"),
        "fewer": (composing((7, 9), "device_per_stream", 4, 4), "among 4 devices it gets none"),
        "none left": (each, "stream 1 fills 1 of 5 device batches"),
        "nothing": (composing((10, 0), "per_stream", 2, 1), "stream 1 gives 0 samples"),
        "unknown": (composing((10, 10), "stratfied", 2, 1), "did you mean 'stratified'"),
        "parts": (
            lambda: Composition(np.array([9, 9]), "random", 3, 8, key=1),
            "cannot be divided into device batches of 3",
        ),
    }
    check_faults(ConfigError, faults)


@given(
    method=st.sampled_from(BATCHING_METHODS),
    counts=st.lists(st.integers(60, 200), min_size=1, max_size=5),
    batch_size=st.integers(1, 4),
    ranks=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_every_rank_makes_the_same_number_of_steps(method, counts, batch_size, ranks, drop_last):
    mixed = composed(counts, method, batch_size, ranks, drop_last=drop_last)
    assert mixed.batches % ranks == 0
    first, end = mixed.bounds(np.arange(mixed.batches))
    assert first[0] == 0
    assert (first[1:] == end[:-1]).all()
    assert end[-1] == mixed.size == mixed.totals.sum() <= sum(counts)
    full = mixed.size // mixed.global_batch_size * ranks
    assert (end - first)[:full].tolist() == [batch_size] * full
    assert np.ptp((end - first)[full:]) <= 1 if full < mixed.batches else True
    assert (end == first)[:full].sum() == 0
    assert (end == first).sum() == mixed.idle
    for epoch in (0, 5):
        stream, nth = epoch_of(mixed, epoch)
        for each, total in enumerate(mixed.totals.tolist()):
            assert sorted(nth[stream == each].tolist()) == list(range(total))
            if mixed.early:
                assert (np.arange(total) - nth[stream == each]).max() < mixed.early
        unit = {"stratified": 1, "device_per_stream": batch_size}.get(method)
        for n in range(0, mixed.size, mixed.global_batch_size) if unit else ():
            drawn = np.bincount(stream[:n], minlength=len(counts))
            assert (np.abs(drawn - n * mixed.totals / mixed.size) <= 1.68 * unit).all()
        for n in (0, mixed.size // 3, mixed.size):
            drawn = np.bincount(stream[:n], minlength=len(counts))
            assert mixed.counts(epoch, n).tolist() == drawn.tolist()


def padding(number: int) -> str:
    return f"padding, a copy of {number}"


def padded(**options):
    settings = {"batch_size": 1, "global_batch_size": 4, "pad": padding, **options}
    return ComposedDataset(*(numbers(5, start) for start in (0, 10)), **settings)


def test_padding_is_a_copy_of_what_came_or_of_its_substitute():
    options = {"batch_size": 1, "global_batch_size": 4, "shuffle": True}
    thirds = MapDataset(numbers(21), skip_thirds)
    batches = ComposedDataset(thirds, batching_method="in_turn", pad=padding, **options)
    for epoch in range(9):
        last = batches.at(np.arange(24 * epoch + 20, 24 * epoch + 24))
        assert last[:3] == [[padding(last[3][0])]] * 3
    batches = ComposedDataset(numbers(21), pad=skip_thirds, **options)
    positions, failed = np.arange(24 * 30), []
    items = batches.at(positions, Reading(report=lambda each: failed.append(str(each))))
    made = {items[at][0] for at in np.flatnonzero(batches.padding(positions)).tolist()}
    assert len(made) > 5
    assert all(number % 3 and number % 7 for number in made)
    assert {each.startswith("padding, a copy of numbers0") for each in failed} == {True}


def test_errors_of_padding():
    def breaks(_):
        raise KeyError("loss_weight")

    for argument, place in (("pad", "padding, a copy of numbers"), ("batcher", "item 8, which is")):
        batches = padded(**{argument: breaks})
        number = int(np.flatnonzero(batches.padding(range(12)))[0])
        said = f"breaks raised KeyError...at ...{place}"
        check_faults(EncoderError, {argument: (lambda b=batches, n=number: b[n], said)})
    remedies = (
        "10 samples leaves 2 ... too few for 4 devices...drop_last=True...pad=...another size"
    )
    faults = {
        "none": (lambda: padded(pad=None), remedies),
        "a list": (lambda: padded(pad=[0]), "ComposedDataset: pad is a function; got [0]"),
        "size": (lambda: ComposedDataset(ListSource("a"), batch_size=0), "batch_size is a whole"),
    }
    check_faults(ConfigError, faults)
    assert list(map(len, padded(pad=None, drop_last=True))) == [1] * 8
    assert list(map(len, padded(pad=None, batch_size=2))) == [2] * 4 + [1] * 2
    joined = ComposedDataset(ListSource("aaab"), batch_size=3, batcher="".join)
    assert ["".join(sorted(batch)) for batch in joined] in (["aaa", "b"], ["aab", "a"])
