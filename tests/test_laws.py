"""The laws of the design over every dataset."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
)
from energize.cursor import INFINITE
from energize.testing import (
    check_determinism,
    check_exactly_once,
    check_laws,
    check_purity,
    check_resume,
    check_topology,
)
from tests.support.datasets import INDEXED, STREAMING, noisy, numbers, shuffled


@pytest.mark.parametrize("name", INDEXED)
def test_resume_at_every_item(name):
    check_resume(INDEXED[name], epochs=2, items=40)


@pytest.mark.parametrize("name", INDEXED)
def test_same_stream_for_world_sizes_1_to_8_and_workers_0_to_3(name):
    check_topology(INDEXED[name], world_sizes=range(1, 9), num_workers=(0, 1, 2, 3), items=40)


@pytest.mark.parametrize("name", INDEXED)
def test_an_item_does_not_depend_on_what_was_read_before(name):
    check_purity(INDEXED[name], items=40)


@pytest.mark.parametrize("name", STREAMING)
def test_streams_resume_at_every_item(name):
    check_resume(STREAMING[name], items=30)


@pytest.mark.parametrize("factory", ["tower", "streaming_blend"])
def test_same_stream_in_another_process_with_another_hash_seed(factory):
    check_determinism(f"tests.support.datasets:{factory}")


EXACT = {
    "list": (1, 1),
    "shuffle": (1, 1),
    "shuffle runs": (1, 1),
    "shuffle window": (1, 1),
    "map": (1, 1),
    "batch": (1, 1),
    "batch drop last": (0, 1),
    "batch of batches": (1, 1),
    "repeat 2.5": (2, 3),
    "repeat 0.5": (0, 1),
    "epochize longer": (2, 3),
    "epochs counted": (3, 3),
    "concat": (1, 1),
    "limit": (0, 1),
    "log": (1, 1),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("epoch", [0, 1, 2, 1000])
def test_a_finite_pass_visits_each_sample_the_promised_number_of_times(name, epoch):
    check_exactly_once(INDEXED[name], lambda source, index: EXACT[name], epoch=epoch)


def test_refs_say_what_is_read():
    batches = BatchDataset(ConcatDataset(shuffled(5), shuffled(4, 100)), 2, list)
    refs = batches.refs([0, 1, 2, 3, 4])
    values = [
        batches.sources[source][index]
        for source, index in zip(refs.source.tolist(), refs.index.tolist(), strict=True)
    ]
    read = [value for batch in batches for value in batch]
    assert values == read
    assert refs.item.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_epochs_are_reshuffled():
    data = shuffled(50)
    orders = [tuple(data.at(range(e * 50, e * 50 + 50))) for e in range(4)]
    assert len(set(orders)) == 4


def test_datasets_of_equal_size_are_visited_in_different_orders():
    one, other = shuffled(100), shuffled(100, 1000)
    assert list(one) != [value - 1000 for value in other]


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
        st.builds(lambda parts: ConcatDataset(*parts), st.lists(finite, min_size=1, max_size=3)),
        st.builds(ShuffleDataset, finite),
    )
)
weights = st.one_of(st.integers(1, 9), st.floats(0.01, 9, allow_nan=False))
endless = st.one_of(
    st.builds(RepeatDataset, finite),
    st.builds(BlendDataset, st.lists(st.tuples(finite, weights), min_size=1, max_size=4)),
)


@given(dataset=st.one_of(finite, endless))
def test_laws_hold_for_any_tower(dataset):
    if dataset.size != INFINITE and dataset.size > 60:
        dataset = LimitDataset(dataset, 60)
    check_laws(dataset, epochs=1, items=20)


def test_a_blend_draws_what_its_scheme_promises():
    blend = BlendDataset((shuffled(5), 0.6), (shuffled(3, 100), 0.3), (shuffled(9, 200), 0.1))
    drawn = Counter(blend.refs(range(10_000)).source.tolist())
    assert drawn == {0: 6000, 1: 3000, 2: 1000}
