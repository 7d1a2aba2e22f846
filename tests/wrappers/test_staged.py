"""Staged datasets: what comes in each step, and what carries over between stages."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    INFINITE,
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    EmptyDatasetError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    NotIndexedError,
    RepeatDataset,
    ShuffleDataset,
    Stage,
)
from energize.core.continued import ContinuedDataset
from energize.testing import check_determinism, check_laws, check_topology
from tests.support.datasets import INDEXED, is_even, noisy, numbers, shuffled
from tests.support.stages import maths, mix, staged, two_mixes, web

EXAMPLES = {
    "batches": two_mixes(),
    "restarting": two_mixes(carry_over=False),
    "one stage": staged(Stage("only", 0, 7, dataset=mix(0.5))),
    "without end": staged(Stage("a", 0, 9, dataset=web()), Stage("b", 9, dataset=mix(0.5))),
    "same twice": staged(
        Stage("a", 0, 9, dataset=mix(0.5)), Stage("b", 9, 21, dataset=mix(0.5), items_per_step=2)
    ),
    "seeds": staged(
        Stage("a", 0, 20, dataset=mix(0.5)), Stage("b", 20, 40, dataset=mix(0.5), seed=7)
    ),
    "augmented": staged(
        Stage("a", 0, 20, dataset=MapDataset(web(), noisy)),
        Stage("b", 20, 40, dataset=MapDataset(mix(0.5), noisy)),
    ),
    "mixed batches": staged(
        Stage("a", 0, 5, dataset=MixBatchDataset((web(), 1), (maths(), 2), batch_size=4)),
        Stage("b", 5, 9, dataset=MixBatchDataset((web(), 2), (maths(), 1), batch_size=2)),
    ),
}


def make_batches():
    return two_mixes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_laws(name):
    check_laws(EXAMPLES[name], items=60)


def test_the_same_in_another_process():
    check_determinism("tests.wrappers.test_staged:make_batches")


def test_any_number_of_ranks_and_workers():
    check_topology(two_mixes(), world_sizes=(1, 2, 3, 5, 8), num_workers=(0, 3))


def test_a_step_takes_its_items_from_its_stage():
    data = staged(
        Stage("letters", 0, 2, dataset=ListSource("abcdef"), items_per_step=3),
        Stage("digits", 2, 5, dataset=ListSource("0123")),
    )
    assert "".join(data) == "abcdef012"
    assert len(data) == 9
    assert data[7] == "1"


def test_after_the_end_of_the_plan_the_last_stage_goes_on():
    data = staged(
        Stage("a", 0, 2, dataset=ListSource("ab")), Stage("b", 2, 4, dataset=ListSource("0123"))
    )
    assert "".join(data.at(range(8))) == "ab012301"


# Counting what is consumed


def counted(dataset, n):
    counts = np.zeros(len(dataset.sources), dtype=np.int64)
    np.add.at(counts, dataset.refs(np.arange(n)).source, 1)
    return counts.tolist()


@pytest.mark.parametrize("name", [*INDEXED, *(f"staged {name}" for name in EXAMPLES)])
def test_consumed_counts_what_refs_say(name):
    dataset = EXAMPLES[name[7:]] if name.startswith("staged ") else INDEXED[name]
    for n in (0, 1, 2, 3, 5, 11, 37, 64, 90):
        assert dataset.consumed(n).tolist() == counted(dataset, n), n


@pytest.mark.parametrize("name", INDEXED)
def test_what_is_taken_is_a_prefix_of_every_input(name):
    """Where `taken` is known, nothing is left out before what is taken next."""
    dataset = INDEXED[name]
    if dataset.taken(0) is None:
        assert all(dataset.taken(n) is None for n in (1, 10))
        return
    for n in (1, 3, 10, 40):
        read = Counter(refs_of(dataset, range(n)))
        prefixes = Counter()
        before = 0
        for each, k in zip(dataset.inputs, dataset.taken(n), strict=True):
            prefixes.update(refs_of(each, range(k), before))
            before += len(each.sources)
        assert read == prefixes


def refs_of(dataset, positions, before=0):
    refs = dataset.refs(np.array(positions, dtype=np.int64))
    rows = (refs.source + before, refs.index, refs.epoch)
    return zip(*(column.tolist() for column in rows), strict=True)


def test_consumed_far_out_costs_no_counting():
    dataset = mix(0.75, 4)
    assert dataset.consumed(10**15).tolist() == [3 * 10**15, 10**15]


# Carrying over


def visits(dataset, items):
    """How often each (source, sample, pass) is visited in the first items."""
    return Counter(refs_of(dataset, range(items)))


def test_no_sample_comes_again_before_its_pass_is_over():
    data = two_mixes()
    assert len(data.sources) == 2
    seen = visits(data, data.size)
    assert set(seen.values()) == {1}
    consumed = data.consumed(data.size)
    assert consumed.sum() == 40 * 2 + 20 * 2 * 3
    for source, count in enumerate(consumed.tolist()):
        size = data.sources[source].count
        passes = Counter(epoch for number, _, epoch in seen if number == source)
        assert passes == {e: min(size, count - e * size) for e in range(-(-count // size))}


parts = st.tuples(st.integers(0, 2), st.integers(1, 9))
stages = st.tuples(
    st.lists(parts, min_size=1, max_size=3, unique_by=lambda part: part[0]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 3),
)


@given(drawn=st.lists(stages, min_size=1, max_size=5))
def test_carrying_over_visits_nothing_twice_for_any_plan(drawn):
    plan, start = [], 0
    for number, (shares, batch_size, steps, items) in enumerate(drawn):
        pairs = [(shuffled(17 + 5 * i, 1000 * i), weight) for i, weight in shares]
        batches = BatchDataset(MapDataset(BlendDataset(pairs), abs), batch_size, list)
        plan.append(Stage(f"s{number}", start, dataset=batches, items_per_step=items))
        start += steps
    data = staged(*plan, total=start)
    seen = visits(data, data.size)
    assert set(seen.values()) == {1}
    for number, count in enumerate(data.consumed(data.size).tolist()):
        places = [epoch * data.sources[number].count for n, _, epoch in seen if n == number]
        assert len(places) == count
        assert max(places, default=-1) < count  # no pass begins before the one before it has ended


def test_restarting_repeats_what_earlier_stages_read():
    data = two_mixes(carry_over=False)
    assert max(visits(data, data.size).values()) == 2


def test_a_source_carries_over_whatever_is_built_on_it():
    data = staged(
        Stage("a", 0, 10, dataset=web()),
        Stage("b", 10, 15, dataset=BatchDataset(MapDataset(web(), noisy), 4, list)),
        Stage("c", 15, 20, dataset=mix(0.5, 5)),
        Stage("d", 20, 30, dataset=EpochizeDataset(RepeatDataset(web()), 3)),
    )
    seen = [index for source, index, _ in refs_of(data, range(data.size)) if source == 0]
    assert len(seen) == data.consumed(data.size)[0] > 10 + 5 * 4 + 10
    assert len(set(seen)) == len(seen)


def test_a_source_skips_stages_that_do_not_read_it():
    data = staged(
        Stage("a", 0, 10, dataset=web()),
        Stage("b", 10, 30, dataset=maths()),
        Stage("c", 30, 40, dataset=web()),
    )
    assert list(data)[:10] + list(data)[30:] == web().at(range(20))


def test_batches_that_drop_samples_and_limits_go_on_as_they_would_alone():
    for part in (
        BatchDataset(shuffled(10), 4, list, drop_last=True),
        LimitDataset(shuffled(10), 6),
        RepeatDataset(shuffled(10), 1.5),
        LimitDataset(numbers(10), 6),
    ):
        data = staged(
            Stage("a", 0, 5, dataset=part), Stage("b", 5, 20, dataset=MapDataset(part, str))
        )
        alone = part.at(range(20))
        assert list(data) == alone[:5] + [str(each) for each in alone[5:]]


def test_cutting_a_stage_in_two_changes_nothing():
    whole = staged(Stage("a", 0, 60, dataset=mix(0.7, 3)))
    cut = staged(
        Stage("a", 0, 13, dataset=mix(0.7, 3)),
        Stage("b", 13, 14, dataset=mix(0.7, 3), seq_len=7),
        Stage("c", 14, 60, dataset=mix(0.7, 3)),
    )
    assert list(cut) == list(whole)


def test_a_seed_names_another_order_from_its_beginning():
    data = staged(
        Stage("a", 0, 20, dataset=web()),
        Stage("b", 20, 40, dataset=web(), seed=5),
        Stage("c", 40, 60, dataset=web()),
    )
    items = list(data)
    assert items[:20] + items[40:] == web().at(range(40))
    assert items[20:40] == web().reseeded(5).at(range(20))


def test_the_seed_of_a_stage_stays_when_the_run_is_reseeded():
    data = staged(Stage("a", 0, 20, dataset=web()), Stage("b", 20, 40, dataset=web(), seed=5))
    other = data.reseeded(99)
    assert list(other)[:20] == web().reseeded(99).at(range(20))
    assert list(other)[20:] == list(data)[20:]


def test_stages_of_one_mix_are_not_blended_in_the_same_order():
    data = staged(
        Stage("a", 0, 100, dataset=mix(0.5)), Stage("b", 100, 200, dataset=mix(0.5, None, abs))
    )
    sources = data.refs(np.arange(200)).source
    assert sources[:100].tolist() != sources[100:].tolist()


def test_concatenated_sources_carry_over():
    data = staged(
        Stage("a", 0, 70, dataset=ConcatDataset(numbers(50), numbers(60, 1000))),
        Stage("b", 70, 80, dataset=numbers(60, 1000)),
    )
    assert list(data)[70:] == list(range(1020, 1030))


def test_an_advanced_dataset_keeps_the_laws():
    data = ContinuedDataset(shuffled(13), 0, 30, afresh=True)
    check_laws(data)
    assert data.at(range(5)) == shuffled(13).at(range(30, 35))


def test_an_offset_far_out():
    data = staged(Stage("a", 0, 10**12, dataset=mix(0.75)), Stage("b", 10**12, dataset=web()))
    assert data.at([10**12])[0] == web().at([75 * 10**10])[0]
    assert data.size == INFINITE


# Streams, and what cannot be staged


def test_streams_are_staged_when_nothing_carries_over():
    data = staged(
        Stage("even", 0, 4, dataset=FilterDataset(numbers(20), is_even)),
        Stage("all", 4, 7, dataset=numbers(20)),
        carry_over=False,
    )
    assert list(data) == [0, 2, 4, 6, 0, 1, 2]
    check_laws(data)


def test_streams_do_not_carry_over():
    with pytest.raises(NotIndexedError, match=r"stage 'even' is a stream.*carry_over=False"):
        staged(Stage("even", 0, dataset=FilterDataset(numbers(20), is_even)))


def test_a_stage_that_reads_from_no_dataset():
    wrong = Stage("second", 5, dataset=[1, 2], place="run.toml:7")
    with pytest.raises(ConfigError, match=r"run\.toml:7: stage 'second' .*got list '\[1, 2\]'"):
        staged(Stage("first", 0, dataset=web()), wrong)


def test_a_stage_without_items():
    with pytest.raises(EmptyDatasetError, match="stage 'a' has no items"):
        staged(Stage("a", 0, dataset=ListSource([])))


def test_shuffled_differently_is_another_order():
    data = staged(
        Stage("a", 0, 10, dataset=ShuffleDataset(numbers(50))),
        Stage("b", 10, 20, dataset=ShuffleDataset(numbers(50), shuffle_buffer_size=5)),
    )
    alone = ShuffleDataset(numbers(50), shuffle_buffer_size=5)
    assert list(data)[10:] == alone.at(range(10))
