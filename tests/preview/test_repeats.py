"""When samples come again, against what is seen by reading all refs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    Quota,
    QuotaDataset,
    RepeatDataset,
    SequenceSource,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
)
from energize.cursor import INFINITE
from energize.order.epochs.sampling import EpochDraws
from energize.order.epochs.shuffle import ShuffleOrder
from energize.preview import simulate
from energize.preview.finding import first_above
from energize.preview.repeats import first_repeats, samples_before_repeat
from tests.support.datasets import INDEXED, noisy, numbers, shuffled
from tests.support.stages import two_mixes

TWO = (shuffled(20), 2), (shuffled(14, 100), 1)


def local(count, start=0):
    return shuffled(count, start, max_samples_per_sequence=4, shuffle_buffer_size=6)


def staged(*datasets, steps=9, **options):
    stages = [
        Stage(f"s{i}", steps * i, steps * (i + 1), dataset=each) for i, each in enumerate(datasets)
    ]
    return StagedDataset(StagePlan(stages), **options)


def composed(method, quotas, **options):
    streams = [(numbers(24 + 5 * i, 100 * i), quota) for i, quota in enumerate(quotas)]
    return ComposedDataset(*streams, batching_method=method, **options)


OTHERS = {
    "limit of few": LimitDataset(shuffled(50), 3),
    "limit of many": LimitDataset(shuffled(50), 47),
    "limit unshuffled": LimitDataset(numbers(50), 7),
    "limit of all": LimitDataset(shuffled(9), 30),
    "limit local": LimitDataset(local(50), 20),
    "limit of a mix": LimitDataset(BlendDataset(*TWO), 8),
    "limit of an ending mix": LimitDataset(BlendDataset(*TWO, stop="all_exhausted"), 25),
    "limit of a limit": LimitDataset(LimitDataset(shuffled(60), 20), 7),
    "limit of batches": LimitDataset(BatchDataset(shuffled(50), 4, list), 5),
    "repeat 1.5 of a mix": RepeatDataset(BlendDataset(*TWO, stop="first_exhausted"), 1.5),
    "repeat a third": RepeatDataset(local(45), 1 / 3),
    "drop last of a mix": BatchDataset(
        BlendDataset(*TWO, stop="all_exhausted"), 5, list, drop_last=True
    ),
    "mix of limits": BatchDataset(
        BlendDataset((LimitDataset(shuffled(40), 15), 2), (LimitDataset(numbers(9, 100), 5), 1)),
        4,
        list,
    ),
    "shuffled concat": ShuffleDataset(ConcatDataset(numbers(7), numbers(12, 100))),
    "shuffled shuffle": ShuffleDataset(MapDataset(shuffled(9), noisy)),
    "shuffled batches": ShuffleDataset(BatchDataset(numbers(11), 3, list)),
    "shuffled limit": ShuffleDataset(LimitDataset(shuffled(20), 11)),
    "shuffled epochs": ShuffleDataset(EpochizeDataset(numbers(9), 4)),
    "quota of epochs": QuotaDataset((EpochizeDataset(numbers(9), 4), Quota(repeat=0.5))),
    "shuffled in pairs": ShuffleDataset(numbers(40), over_epochs=2),
    "replacement": RepeatDataset(ShuffleDataset(numbers(900), over_epochs=-1)),
    "limit of replacement": LimitDataset(ShuffleDataset(numbers(900), over_epochs=-1), 20),
    "epochized limit": EpochizeDataset(LimitDataset(shuffled(31), 8), 13),
    "quota half": QuotaDataset((numbers(30), Quota(repeat=0.4)), shuffle=True),
    "quota fixed part": QuotaDataset((numbers(30), Quota(repeat=0.4)), sampling_method="fixed"),
    "quota of a shuffle": QuotaDataset((shuffled(30), Quota(repeat=0.4)), shuffle=True),
    "quota of a mix": QuotaDataset((ConcatDataset(numbers(9), numbers(5, 100)), Quota(repeat=2))),
    "quota nothing": QuotaDataset((numbers(30), Quota(choose=0)), (numbers(5, 100), Quota())),
    "staged anew": staged(BlendDataset(*TWO), BlendDataset(*TWO), carry_over=False),
    "staged, other order": staged(shuffled(50), local(50), numbers(50), shuffled(50)),
    "staged, other seed": staged(shuffled(20), shuffled(20).reseeded(3), steps=30),
    "staged, one twice": staged(ConcatDataset(shuffled(9), shuffled(9)), shuffled(9), steps=6),
    "staged limits": staged(LimitDataset(shuffled(40), 6), LimitDataset(shuffled(40), 9)),
    "staged quotas": staged(QuotaDataset((numbers(30), Quota(repeat=0.4))), numbers(30), steps=14),
    "staged mixes": two_mixes(),
}
for method in ("random", "in_turn", "stratified", "per_stream", "device_per_stream"):
    for kind, quotas in {
        "parts": (Quota(repeat=0.4), Quota(repeat=0.7)),
        "passes": (Quota(repeat=1.8), Quota(repeat=1)),
        "halves": (Quota(repeat=0.5), Quota(repeat=2)),
    }.items():
        for size in (3, 6):
            OTHERS[f"composed {method} {kind} {size}"] = composed(
                method, quotas, batch_size=3, global_batch_size=size, shuffle=size == 6
            )

COUNTED = {
    "shuffled limit": "a shuffle of a part of a source",
    "shuffled epochs": "a shuffle of a part of a source",
    "limit of replacement": "parts of a shuffle of several epochs",
    "quota of a shuffle": "a quota of less than a pass over what is not a source",
    "quota of epochs": "a quota of less than a pass over what is not a source",
    "staged, one twice": "a source that a stage reads in two places",
    "staged quotas": "a quota of a stage, and the source in another",
}
"""Where repeats are known as far as refs are read only, and what makes it so."""

EVERY = INDEXED | OTHERS


def seen(dataset, items):
    """By reading: samples before the first that came already, and its item, for each source."""
    before = [INFINITE] * len(dataset.sources)
    item = [items] * len(dataset.sources)
    came = [set() for _ in dataset.sources]
    drawn = [0] * len(dataset.sources)
    refs = dataset.refs(np.arange(items))
    columns = (refs.item, refs.source, refs.index)
    for at, number, index in zip(*(column.tolist() for column in columns), strict=True):
        if index in came[number] and before[number] == INFINITE:
            before[number], item[number] = drawn[number], at
        came[number].add(index)
        drawn[number] += 1
    return before, item, drawn


@pytest.mark.parametrize("items", [1, 9, 40, 300])
@pytest.mark.parametrize("name", EVERY)
def test_the_first_repeat_of_every_dataset(name, items):
    dataset = EVERY[name]
    before, item, drawn = seen(dataset, items)
    assert dataset.consumed(items).tolist() == drawn
    assert first_repeats(dataset, items) == item
    for known, actual, read in zip(
        samples_before_repeat(dataset, items), before, drawn, strict=True
    ):
        assert known is None or known == actual or (known >= read and actual == INFINITE)


def test_only_what_is_listed_is_not_worked_out():
    unknown = {name for name, each in EVERY.items() if None in samples_before_repeat(each, 300)}
    assert unknown == set(COUNTED)


nodes = st.recursive(
    st.builds(
        lambda count, start, kind: (numbers, shuffled, local)[kind](count, 1000 * start),
        st.integers(2, 40),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    lambda inner: st.one_of(
        st.builds(LimitDataset, inner, st.integers(1, 50)),
        st.builds(EpochizeDataset, inner, st.integers(1, 50)),
        st.builds(RepeatDataset, inner, st.sampled_from([1.0, 1.5, 2.0])),
        st.builds(lambda d, n: BatchDataset(d, n, list), inner, st.integers(1, 4)),
        st.builds(ConcatDataset, inner, inner),
        st.builds(lambda a, b, w: BlendDataset((a, w), (b, 1), stop="all_exhausted"), inner, inner,
                  st.integers(1, 3)),
        st.builds(ShuffleDataset, inner),
        st.builds(lambda a, b, r: QuotaDataset((a, Quota(repeat=r)), (b, Quota()), shuffle=True),
                  inner, inner, st.sampled_from([1.0, 0.7, 1.5])),
        st.builds(lambda a, b, c: staged(a, b, carry_over=c), inner, inner, st.booleans()),
    ),
    max_leaves=4,
)  # fmt: skip


@given(dataset=nodes, items=st.integers(1, 150))
def test_the_first_repeat_of_any_dataset(dataset, items):
    before, item, drawn = seen(dataset, items)
    assert dataset.consumed(items).tolist() == drawn
    assert first_repeats(dataset, items) == item
    for known, actual, read in zip(
        samples_before_repeat(dataset, items), before, drawn, strict=True
    ):
        assert known is None or known == actual or (known >= read and actual == INFINITE)


@given(
    size=st.integers(1, 2500), count=st.integers(1, 3000), fixed=st.booleans(), mix=st.booleans()
)
def test_the_first_repeated_draw_of_a_quota(size, count, fixed, mix):
    draws = EpochDraws(size, count, key=7, shuffle=mix, fixed=fixed)
    epoch, nth = np.divmod(np.arange(max(2 * size, size + 2 * count)), count)
    sample = draws.locate(epoch, nth) % size
    _, first = np.unique(sample, return_index=True)
    assert draws.before_repeat == np.setdiff1d(np.arange(len(sample)), first).min()


@given(
    size=st.integers(1, 1500),
    run=st.none() | st.integers(1, 700),
    window=st.none() | st.integers(1, 700),
    epoch=st.integers(0, 5),
)
def test_places_of_a_shuffle(size, run, window, epoch):
    order = ShuffleOrder(size, 3, run, window)
    samples = order.locate(np.arange(size) + epoch * size)
    assert order.places(samples, np.full(size, epoch)).tolist() == list(range(size))


@given(
    rates=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=6),
    end=st.integers(1, 5000),
)
def test_brackets_of_all_columns(rates, end):
    def counts(n):
        return [n * n * a // (b * end) if b % 2 else n * a // b for a, b in rates]

    wanted = [
        (column, nth) for column, n in enumerate(counts(end)) for nth in {0, n // 2, n - 1} if n
    ]
    if wanted:
        found = first_above(counts, [c for c, _ in wanted], [nth for _, nth in wanted], end)
        for (column, nth), n in zip(wanted, found, strict=True):
            assert counts(n)[column] <= nth < counts(n + 1)[column]


def huge(count, number=0, **options):
    return ShuffleDataset(SequenceSource(range(count), name=f"huge{number}"), **options)


def test_far_repeats_are_found_at_once():
    """The step found is the first: the sample there came before, and none of those around it."""
    count = 10**9
    cases = [
        (LimitDataset(huge(count), 4 * 10**8), 4 * 10**8),
        (LimitDataset(huge(count), 5 * 10**4), 5 * 10**4),
        (BatchDataset(huge(count + 1), 64, list, drop_last=True), count // 64),
        (QuotaDataset((huge(count).inputs[0], Quota(repeat=0.4)), shuffle=True), 8 * 10**8),
        (staged(huge(count), huge(count, shuffle_buffer_size=10**6), steps=10**8), 10**8),
    ]
    for dataset, least in cases:
        (at,) = first_repeats(dataset, 10**10)
        assert least <= at < least * 1.01 + 10**5
    mix = BlendDataset([(huge(10**6 + i, i), 1 + i % 7) for i in range(300)], scheme="exact")
    run = simulate(BatchDataset(mix, 256, list), 10**12)
    for each in run.sources:
        assert each.repeats_at == pytest.approx(each.count / each.share / 256, abs=10)


def test_what_cannot_be_told_far_away():
    parts = [(huge(10**8, i), Quota(proportion=1)) for i in range(2)]
    quotas = QuotaDataset(parts, epoch_size="100m", shuffle=True)
    run = simulate(BatchDataset(quotas, 10**4, list), 10)
    assert [each.repeats_known for each in run.sources] == [True, True]
    run = simulate(BatchDataset(quotas, 10**4, list), 10**6)
    assert [each.repeats_known for each in run.sources] == [False, False]
    assert [each.repeats_at for each in run.sources] == [None, None]
