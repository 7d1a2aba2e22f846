"""Mixes are one node over a scheme."""

from functools import cached_property
from itertools import islice

import numpy as np
import pytest

from energize import (
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    ListSource,
    Quota,
    QuotaDataset,
    get_loader,
)
from energize.datasets.mix import MixDataset, MixOrder
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.order.scheme import RepeatedScheme, SuccessionScheme

A = ListSource([f"a{i}" for i in range(7)], name="a")
B = ListSource([f"b{i}" for i in range(4)], name="b")

MIXES = {
    "blend": BlendDataset((A, 2), (B, 1)),
    "blend that ends": BlendDataset((A, 2), (B, 1), stop="all_exhausted"),
    "quotas": QuotaDataset((A, Quota(repeat=2)), (B, Quota()), shuffle=True),
    "quotas in turn": QuotaDataset((A, Quota(repeat=0.5)), (B, Quota())),
    "composition": ComposedDataset(A, B, batch_size=2, shuffle=True).samples,
    "stages": StagedDataset(
        StagePlan(
            [
                Stage("first", 0, 3, dataset=A),
                Stage("second", 3, 5, dataset=B),
                Stage("third", 5, 20, dataset=A),
            ]
        )
    ),
    "concatenation": ConcatDataset(A, B),
}


class EveryThird(MixDataset):
    """Two items of the first dataset, then one of the second, in epochs of 6."""

    order_name = "EveryThird"

    def __init__(self, first, second):
        self.freeze([first, second])

    @cached_property
    def mix_order(self):
        scheme = RepeatedScheme(SuccessionScheme(np.array([0, 2])), np.array([2, 1]))
        return MixOrder(scheme, 6)


@pytest.mark.parametrize("name", MIXES)
def test_every_mix_routes_positions_by_its_scheme(name):
    mix = MIXES[name]
    assert isinstance(mix, MixDataset)
    positions = np.arange(50)
    source, item = mix.mix_order.scheme.locate(positions)
    routes = mix.route(positions)
    assert routes.child.tolist() == source.tolist()
    assert routes.position.tolist() == item.tolist()


@pytest.mark.parametrize("name", MIXES)
def test_a_scheme_counts_what_it_locates(name):
    scheme = MIXES[name].mix_order.scheme
    source, _ = scheme.locate(np.arange(60))
    for n in (0, 1, 5, 11, 23, 60):
        counts = np.bincount(source[:n], minlength=len(scheme.counts(0)))
        assert scheme.counts(n).tolist() == counts.tolist(), n


def test_a_mix_needs_nothing_but_its_order():
    mix = EveryThird(A, B)
    assert list(mix) == ["a0", "a1", "b0", "a2", "a3", "b1"]
    assert mix.consumed(9).tolist() == [6, 3]
    assert mix.taken(4) == [3, 1]
    loader = get_loader(mix, num_workers=0)
    first = list(islice(loader, 4))
    other = get_loader(mix, num_workers=0)
    other.load_state_dict(loader.state_dict())
    assert first + list(other) == list(mix)


def test_sources_in_succession_begin_at_their_first_items():
    scheme = SuccessionScheme(np.array([0, 3]), np.array([10, 20]))
    source, item = scheme.locate(np.array([0, 2, 3, 4]))
    assert source.tolist() == [0, 0, 1, 1]
    assert item.tolist() == [10, 12, 20, 21]
    assert scheme.counts(5).tolist() == [3, 2]


def test_epochs_of_a_scheme_without_items_have_no_counts():
    empty = RepeatedScheme(SuccessionScheme(np.array([0, 0])), np.array([0, 0]))
    assert empty.counts(0).tolist() == [0, 0]
