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
from energize.preview import simulate
from energize.preview.repeats import first_repeats
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


PASSES = composed("random", [Quota(), Quota(repeat=2)], batch_size=3)
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
    "repeat 2.5 of a mix": RepeatDataset(BlendDataset(*TWO, stop="first_exhausted"), 2.5),
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
    "shuffled longer epochs": ShuffleDataset(EpochizeDataset(numbers(9), 13)),
    "quota of longer epochs": QuotaDataset(EpochizeDataset(numbers(9), 13), shuffle=True),
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
    "staged batches": staged(PASSES, MapDataset(PASSES, noisy)),
    "staged mixes": two_mixes(),
}
METHODS = ("random", "in_turn", "stratified", "per_stream", "device_per_stream")
for method in METHODS:
    for kind, quotas in {
        "parts": (Quota(repeat=0.4), Quota(repeat=0.7)),
        "passes": (Quota(repeat=1.8), Quota(repeat=1)),
        "halves": (Quota(repeat=0.5), Quota(repeat=2)),
    }.items():
        for size in (3, 6):
            OTHERS[f"composed {method} {kind} {size}"] = composed(
                method, quotas, batch_size=3, global_batch_size=size, shuffle=size == 6
            )

AT_THE_LATEST = {
    "a part of a pass in every epoch": {
        "batch drop last", "drop last of a mix", "repeat 0.5", "repeat a third", "limit", "tower",
        "limit of few", "limit of many", "limit local", "limit of an ending mix",
        "limit of a limit", "limit of batches", "mix of limits", "epochized limit",
        "shuffled limit", "shuffled epochs", "staged limits", "quota", "quota half",
        "quota of a shuffle", "quota of epochs", "staged quotas",
        "blend by a column, of parts of passes",
    },
    "not in passes": {
        "shuffled in pairs", "replacement", "limit of replacement", "shuffled longer epochs",
        "quota of longer epochs",
    },
    "levelled": {"level, endless", "level batches of a blend", "level batches, drop last"},
    "stages with orders of their own": {"staged anew", "staged, other order", "staged, one twice"},
    "a part of a pass in every epoch, composed": {
        "composed random", "composed random, padded", "composed in_turn, padded",
        *(f"composed {method} parts {size}" for method in METHODS for size in (3, 6)),
        *(f"composed per_stream passes {size}" for size in (3, 6)),
    },
    "shares kept in global batches": {
        "composed stratified", "composed device_per_stream", "composed stratified, padded",
        *(
            f"composed {method} {kind} {size}"
            for method in ("stratified", "device_per_stream")
            for kind in ("passes", "halves")
            for size in (3, 6)
        ),
    },
}  # fmt: skip
"""Where only a step is known by which a sample has come before, and what makes it so."""

EVERY = INDEXED | OTHERS


def seen(dataset, items):
    """By reading: the first item of each source with a sample that came before; samples drawn."""
    item = [None] * len(dataset.sources)
    came = [set() for _ in dataset.sources]
    refs = dataset.refs(np.arange(items))
    columns = (refs.item, refs.source, refs.index)
    for at, number, index in zip(*(column.tolist() for column in columns), strict=True):
        if index in came[number] and item[number] is None:
            item[number] = at
        came[number].add(index)
    return item, np.bincount(refs.source, minlength=len(came)).tolist()


def check_repeats(dataset, items):
    """What is exact is what is seen; what is not, is not too early."""
    actual, drawn = seen(dataset, items)
    assert dataset.consumed(items).tolist() == drawn
    for (step, exact), first, n, source in zip(
        first_repeats(dataset, items), actual, drawn, dataset.sources, strict=True
    ):
        if exact:
            assert step == first
        elif step is None:
            assert n <= source.count
        else:
            assert first <= step


@pytest.mark.parametrize("items", [1, 9, 40, 300])
@pytest.mark.parametrize("name", EVERY)
def test_the_first_repeat_of_every_dataset(name, items):
    check_repeats(EVERY[name], items)


def test_all_are_exact_but_those_listed():
    inexact = {
        name
        for name, each in EVERY.items()
        if not all(exact for n in (9, 40, 300) for _, exact in first_repeats(each, n))
    }
    assert inexact & set(OTHERS) == set.union(*AT_THE_LATEST.values()) & set(OTHERS)


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
    check_repeats(dataset, items)


def huge(count, number=0, **options):
    return ShuffleDataset(SequenceSource(range(count), name=f"huge{number}"), **options)


def test_far_repeats_are_found_at_once():
    count = 10**9
    cases = [
        (ConcatDataset(huge(count), huge(7)), (count + 7, True)),
        (LimitDataset(huge(count), 4 * 10**8), (count, False)),
        (LimitDataset(RepeatDataset(huge(count)), 4 * 10**8), (4 * 10**8, True)),
        (BatchDataset(huge(count + 1), 64, list, drop_last=True), (count // 64, False)),
        (QuotaDataset((huge(count).inputs[0], Quota(repeat=0.4)), shuffle=True), (count, False)),
        (QuotaDataset((huge(count).inputs[0], Quota(repeat=2.5)), shuffle=True), (count, True)),
        (staged(huge(count), huge(count), steps=10**8), (count, True)),
    ]
    for dataset, expected in cases:
        assert first_repeats(dataset, 10**10)[0] == expected
    mix = BlendDataset([(huge(10**6 + i, i), 1 + i % 7) for i in range(300)], scheme="exact")
    run = simulate(BatchDataset(mix, 256, list), 10**12)
    for each in run.sources:
        assert each.repeats_at == pytest.approx(each.count / each.share / 256, abs=10)
        assert each.repeats_exact


def test_a_part_of_a_pass_is_told_as_far_as_it_is_known():
    parts = [(huge(10**8, i).inputs[0], Quota(proportion=1)) for i in range(2)]
    quotas = QuotaDataset(parts, epoch_size="60m", shuffle=True)  # three epochs are new to the end
    batches = BatchDataset(quotas, 10**4, list)

    def told(steps):
        return {(each.repeats_at, each.repeats_exact) for each in simulate(batches, steps).sources}

    assert told(3 * 6000) == {(None, True)}
    assert told(3 * 6000 + 500) == {(None, False)}
    for step, exact in told(10**6):
        assert step == pytest.approx(20_000, abs=1)
        assert not exact
