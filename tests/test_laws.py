"""The laws of the design over every dataset: one table of mixes, and every law over all
of it."""

from __future__ import annotations

import gc
import random
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    IterableSource,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    ShuffleDataset,
    SkipSample,
)
from energize.core.node import INFINITE, NodeTraits, StreamTraits
from energize.core.randomness import PROVEN, DrawingIterator
from energize.core.trace import refs_of
from energize.errors import NotRepeatableError
from energize.nodes import Lane
from energize.testing import (
    check_exactly_once,
    check_laws,
    check_purity,
    check_resume,
    check_topology,
)
from tests.support.datasets import (
    INDEXED,
    PLANNED,
    STREAMS,
    evens,
    noisy,
    numbers,
    shuffled,
    skip_thirds,
)


@pytest.mark.parametrize("name", INDEXED)
def test_an_indexed_dataset_is_the_same_stream_however_it_is_read(name):
    dataset = INDEXED[name]
    epochs = 2 if dataset.size < 12 else 1
    items = 10 if name in PLANNED else 20  # which plan all items before one
    check_resume(dataset, epochs=epochs, items=items)
    check_resume(dataset, epochs=epochs, items=6, lanes=(3,))
    check_topology(dataset, world_sizes=(2, 5), num_workers=(0, 3), items=items)
    check_purity(dataset, items=items)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_resumes_at_every_item_and_lanes_are_the_same_whoever_reads_them(name):
    check_resume(STREAMS[name], items=12, lanes=(1, 3))
    check_topology(STREAMS[name], epochs=2, items=40, lanes=(2, 3, 6))


def open_iterators():
    return sum(isinstance(each, DrawingIterator) for each in gc.get_objects())


@pytest.mark.parametrize("name", STREAMS)
def test_iterators_of_users_end_with_the_cursor_and_not_by_the_garbage_collector(name):
    gc.collect()
    before = open_iterators()
    gc.disable()
    try:
        cursor = STREAMS[name].open()
        list(islice(cursor, 3))
        del cursor
        assert open_iterators() <= before
    finally:
        gc.enable()


def refs_in(dataset, positions, before=0):
    refs = dataset.refs(np.array(positions, dtype=np.int64))
    rows = (refs.source + before, refs.index, refs.epoch)
    return zip(*(column.tolist() for column in rows), strict=True)


@pytest.mark.parametrize("name", INDEXED)
def test_counts_agree(name):
    """`consumed` says what refs say; `taken` is of a prefix of every input, with
    nothing left out before what is taken next.
    """
    dataset = INDEXED[name]
    sources = dataset.refs(np.arange(90))
    for n in (0, 1, 2, 3, 5, 11, 37, 64, 90):
        counted = np.bincount(
            sources.source[sources.item < n], minlength=len(dataset.sources)
        )
        assert dataset.consumed(n).tolist() == counted.tolist(), n
    if dataset.taken(0) is None:
        assert all(dataset.taken(n) is None for n in (1, 10))
        return
    for n in (1, 3, 10, 40):
        prefixes, before = Counter(), 0
        for each, k in zip(dataset.inputs, dataset.taken(n), strict=True):
            prefixes.update(refs_in(each, range(k), before))
            before += len(each.sources)
        assert Counter(refs_in(dataset, range(n))) == prefixes


ONCE = """
list; shuffle; shuffle in windows; shuffle of concat; map; batch; batch of batches; concat; log;
level; level batches; composed, padded; aligned; aligned budget; aligned budget, levelled; property; property, others; by ranges that end;
planned packs; planned packs of a list; budget, finite; budget, in order;
blend, even, all_exhausted;
blend, exact, all_exhausted; blend, random, all_exhausted; blend, round_robin, all_exhausted
"""
EXACT = dict.fromkeys(ONCE.replace("\n", " ").strip().split("; "), (1, 1)) | {
    "batch, drop last": (0, 1),
    "repeat 2.5": (2, 3),
    "repeat 0.5": (0, 1),
    "epochize, longer": (1, 4),
    "epochs counted": (3, 3),
    "limit": (0, 1),
    "level batches, drop last": (0, 1),
    "aligned, drop last": (0, 1),
}
"""How often an epoch visits each sample: at least, at most."""


@pytest.mark.parametrize("name", EXACT)
def test_a_finite_pass_visits_each_sample_the_promised_number_of_times(name):
    for epoch in (0, 1, 2, 1000):
        check_exactly_once(
            INDEXED[name], lambda source, index: EXACT[name], epoch=epoch
        )


def each(times=1):
    return lambda source, index: (times, times)


def even(times=1, least=None, whole=()):
    """Samples of an even number, of sources that are in `whole` all."""

    def promised(source, index):
        comes = times if index % 2 == 0 or source in whole else 0
        return (comes if least is None else min(least, comes)), comes

    return promised


def kept(condition):
    return lambda source, index: (int(condition(index)),) * 2


def left_by_skips(index):
    return index % 3 > 0 and index % 7 > 0


def passes(*times, filtered=()):
    """So many times those of each source; of those in `filtered` the even ones."""
    return lambda source, index: (
        (times[source] if source not in filtered or index % 2 == 0 else 0,) * 2
    )


EXACT_STREAMS = {
    **dict.fromkeys(
        ["iterable", "batch of iterable", "iterables that end", "packs"], each()
    ),
    **dict.fromkeys(["groups", "iter map", "item cost, uneven ends"], each()),
    **dict.fromkeys(
        ["filter", "map of filter", "batch of filter", "level buffer"], even()
    ),
    **dict.fromkeys(
        ["shuffle buffer", "groups of their sizes", "iter map with draws"], even()
    ),
    "filter of filter": kept(lambda index: index % 2 == 0 and index % 3 > 0),
    "skipping map of filter": kept(
        lambda index: index % 2 == 0 and left_by_skips(index)
    ),
    "map of iterable": kept(left_by_skips),
    "batch of filter, drop last": even(least=0),
    "limit of filter": even(2, least=0),
    "repeat of filter": even(3),
    "concat of streams": even(whole=[1]),
    "concat of filter": even(whole=[1]),
    "streams, first_exhausted": even(least=0, whole=[1]),
    "streams, all_exhausted": even(whole=[1]),
    "streams, maxima": passes(1, 3, 2, filtered=[0, 2]),
    "item cost, all_exhausted": even(whole=[1]),
    "multiplexed, leave out": passes(1, 2, filtered=[0]),
    "generator": lambda source, index: (index % 4, index % 4),
    "generator over a stream": lambda source, index: (
        (index % 4 if index % 2 == 0 else 0,) * 2
    ),
}


@pytest.mark.parametrize("name", EXACT_STREAMS)
def test_all_lanes_together_visit_each_sample_the_promised_number_of_times(name):
    for epoch, lanes in ((0, (1, 2, 6)), (2, (3,))):
        check_exactly_once(STREAMS[name], EXACT_STREAMS[name], epoch=epoch, lanes=lanes)


def thirds_left_out(items):
    yield from (item for item in items if item % 3)


def unless_third(item):
    yield from [item] if item % 3 else []


def skipping_thirds(item):
    if item % 3 == 0:
        raise SkipSample
    return item


BY_THREES = {
    "shuffle buffer": (ShuffleBufferDataset(numbers(240), 20), lambda below: below),
    "iter map": (
        IterMapDataset(numbers(240), lambda items: (yield from items)),
        lambda b: b,
    ),
    "chain": (ConcatDataset(numbers(240), evens(0)), lambda below: below),
    "mapped iterable": (
        MapDataset(IterableSource(range(240)), int),
        lambda below: below,
    ),
    "batches": (BatchDataset(IterableSource(range(240)), 1, sum), lambda below: below),
    "of its own": (numbers(240), lambda below: IterMapDataset(below, thirds_left_out)),
    "none of some": (numbers(240), lambda below: MapDataset(below, unless_third)),
    "skipped": (
        IterableSource(range(240)),
        lambda below: MapDataset(below, skipping_thirds),
    ),
}
"""What is below a condition on every third item, and what leaves it out."""


@pytest.mark.parametrize("name", BY_THREES)
def test_what_recurs_in_the_input_does_not_go_by_lanes(name):
    below, leaves_out = BY_THREES[name]
    dataset = leaves_out(below)
    if dataset is below:
        dataset = FilterDataset(below, lambda item: item % 3 > 0)
    lanes = [list(dataset.open(Lane(lane, 3))) for lane in range(3)]
    assert sorted(chain(*lanes)) == [item for item in range(240) if item % 3]
    assert all(40 < len(lane) < 70 for lane in lanes), list(map(len, lanes))


PART_OF_WHAT_IS_NAMED = (
    "mix that yields", "packs that yield", "packs of blended streams", "batches of packs",
    "blend of packs", "level batches of packs", "item cost of packs",
)  # fmt: skip
"""Whose items may be made of some of the samples that they name: what a function yields
of several samples names them all."""


def samples_of(item):
    """The numbers in an item: a sample, what a map made of one, or batches of those."""
    if isinstance(item, tuple):
        return samples_of(item[0])
    if isinstance(item, dict):
        return [item["item"]]
    return (
        [number for each in item for number in samples_of(each)]
        if isinstance(item, list)
        else [item]
    )


@pytest.mark.parametrize(
    "name",
    [each for each in STREAMS if not each.startswith(("packs, ", "packs of two"))],
)
def test_references_of_an_item_of_a_stream_lead_back_to_it(name):
    dataset = STREAMS[name]
    stored = [list(source) for source in dataset.sources]
    came = 0
    for lane in (Lane(0, 1), Lane(0, 3), Lane(1, 3), Lane(2, 3)):
        state = None
        for _ in range(2):
            cursor = dataset.open(lane, state)
            for item in islice(cursor, 30):
                refs = refs_of(dataset, cursor.origin)
                pairs = zip(refs.source.tolist(), refs.index.tolist(), strict=True)
                again = [stored[source][index] for source, index in pairs]
                if name in PART_OF_WHAT_IS_NAMED:
                    assert set(samples_of(item)) <= set(samples_of(again))
                else:
                    assert samples_of(again) == samples_of(item)
                came += 1
            state = cursor.state()
    assert came > 3


def test_references_name_a_substitute_and_not_what_was_left_out():
    dataset = MapDataset(
        BlendDataset((evens(40), 1), (shuffled(9, 100), 1)), skip_thirds
    )
    origins, cursor = [], dataset.open()
    for item in islice(cursor, 60):
        origins += cursor.origin
        refs = refs_of(dataset, cursor.origin)
        assert dataset.sources[refs.source[0]][refs.index[0]] == item
    assert any(origin.attempt for origin in origins)


class Forgetful(FilterDataset):
    """Goes back to the front whatever its state says."""

    def open_pass(self, opening):
        return super().open_pass(opening._replace(state=None))


class Greedy(IterableSource):
    """Gives each lane all that there is."""

    traits = NodeTraits(stream=StreamTraits(divisible=True))


def by_chance():
    """A condition that draws from a generator which nobody seeds for the sample."""
    chance = random.Random(4)
    return lambda _: chance.random() < 0.5


def by_chance_later():
    """As `by_chance`, after more calls than are compared."""
    chance, seen = random.Random(4), []

    def condition(number):
        seen.append(number)
        return len(seen) <= 4 * PROVEN or chance.random() < 0.5

    return condition


class TestLawsThatAreBroken:
    """A check that cannot fail checks nothing."""

    def test_a_state_that_is_not_gone_on_from(self):
        with pytest.raises((AssertionError, NotRepeatableError)):
            check_resume(Forgetful(shuffled(20), bool))

    def test_a_condition_that_draws_by_chance(self):
        """It is an error before any law is broken: its first calls are made twice."""
        dataset = FilterDataset(shuffled(40), by_chance())
        with pytest.raises(NotRepeatableError, match=r"by_chance.*another value"):
            check_resume(dataset)
        unchecked = FilterDataset(shuffled(400), by_chance_later())
        with pytest.raises(AssertionError, match="resumed after item"):
            check_resume(unchecked, items=60)
        with pytest.raises(AssertionError, match="lane 0 of 2, epoch 0, read alone"):
            check_topology(unchecked, items=60, lanes=(2,))

    def test_samples_that_all_lanes_give(self):
        check_exactly_once(Greedy(range(9)), each(), lanes=(1,))
        with pytest.raises(
            AssertionError, match="0 of 2 lanes visits range, sample 0, 2 times"
        ):
            check_exactly_once(Greedy(range(9)), each(), lanes=(2,))

    def test_samples_that_do_not_come(self):
        with pytest.raises(AssertionError, match="sample 1, 0 times, expected 1 to 1"):
            check_exactly_once(evens(), each(), lanes=(1,))

    def test_what_is_read_as_a_whole_is_given_in_turn(self):
        class Turned(IterableSource):
            def open(self, lane, state=None):
                turned = Lane((lane.index + 1) % lane.count, lane.count)
                return super().open(turned, state)

        with pytest.raises(
            AssertionError, match="2 lanes in turn, epoch 0: item 0 differs"
        ):
            check_topology(Turned(range(9)), lanes=(2,))


def test_refs_say_what_is_read():
    batches = BatchDataset(ConcatDataset(shuffled(5), shuffled(4, 100)), 2, list)
    refs = batches.refs([0, 1, 2, 3, 4])
    pairs = zip(refs.source.tolist(), refs.index.tolist(), strict=True)
    assert [batches.sources[source][index] for source, index in pairs] == [
        value for batch in batches for value in batch
    ]
    assert refs.item.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_epochs_and_datasets_of_equal_size_have_orders_of_their_own():
    one, other = shuffled(50), shuffled(50, 1000)
    orders = [tuple(one.at(range(e * 50, e * 50 + 50))) for e in range(4)]
    assert len({*orders, tuple(value - 1000 for value in other)}) == 5


# Random towers of wrappers: the laws hold for any composition.

finite = st.deferred(
    lambda: st.one_of(
        st.builds(shuffled, st.integers(1, 12), st.integers(0, 10**6)),
        st.builds(numbers, st.integers(1, 12), st.integers(0, 10**6)),
        st.builds(MapDataset, finite, st.just(noisy)),
        st.builds(BatchDataset, finite, st.integers(1, 5), st.just(list)),
        st.builds(RepeatDataset, finite, st.sampled_from([1, 1.5, 2.25, 3])),
        st.builds(LimitDataset, finite, st.integers(1, 9)),
        st.builds(EpochizeDataset, finite, st.integers(1, 9)),
        st.builds(
            lambda parts: ConcatDataset(*parts),
            st.lists(finite, min_size=1, max_size=3),
        ),
        st.builds(ShuffleDataset, finite),
    )
)
weights = st.one_of(st.integers(1, 9), st.floats(0.01, 9, allow_nan=False))
endless = st.one_of(
    st.builds(RepeatDataset, finite),
    st.builds(
        BlendDataset, st.lists(st.tuples(finite, weights), min_size=1, max_size=4)
    ),
)


@given(dataset=st.one_of(finite, endless))
def test_laws_hold_for_any_tower(dataset):
    if dataset.size != INFINITE and dataset.size > 60:
        dataset = LimitDataset(dataset, 60)
    check_laws(dataset, epochs=1, items=20)
