"""Questions about whole trees, answered from what single nodes state."""

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    EpochizeDataset,
    FilterDataset,
    IterMapDataset,
    ListSource,
    MapDataset,
    RepeatDataset,
)
from energize.core import tree
from energize.core.node import LoopTraits, NodeTraits
from energize.errors import NotIndexedError
from energize.experimental import Stage, StagedDataset, StagePlan


def source(count=6, name="a"):
    return ListSource(range(count), name=name)


def identity(item):
    return item


def pass_on(items):
    yield from items


def composed():
    return ComposedDataset(source(5), source(4, "b"), batch_size=2, global_batch_size=8)


def test_unwrap_passes_maps_and_cuts_but_not_batches():
    batches = BatchDataset(MapDataset(source(), identity), 2, list)
    outer = MapDataset(EpochizeDataset(batches, 2), identity)
    assert tree.unwrap(outer) is batches
    assert tree.unwrap(outer, tree.CONTENT_ONLY) is outer.inputs[0]
    assert tree.unwrap(outer, tree.KEEPS_POSITIONS) is batches
    passes = EpochizeDataset(source(), num_epochs=1)
    assert tree.unwrap(passes, tree.KEEPS_POSITIONS) is passes


def test_steps_of_a_loop_are_known_below_maps_only():
    cut = EpochizeDataset(source(), 4)
    assert tree.steps_per_loop(MapDataset(cut, identity)) == 4
    assert tree.steps_per_loop(BatchDataset(cut, 2, list)) is None
    assert tree.steps_per_loop(EpochizeDataset(source(), num_epochs=2)) is None


def test_a_dataset_never_ends_if_loops_cut_it_or_its_epoch_is_endless():
    assert tree.never_ends(EpochizeDataset(source(), 4))
    assert tree.never_ends(RepeatDataset(source()))
    assert not tree.never_ends(source())


def test_the_length_of_a_pass_of_an_endless_mix_counts_each_read_input_once():
    mix = BlendDataset((source(5), 1), (source(4, "b"), 2), (source(9, "c"), 0))
    assert tree.pass_length(mix) == 9
    assert tree.pass_length(BatchDataset(mix, 2, list)) == 5


def test_the_length_of_a_pass_of_a_stream_is_unknown_unless_it_is_given():
    with pytest.raises(NotIndexedError, match="FilterDataset"):
        tree.pass_length(FilterDataset(source(), bool))
    halved = IterMapDataset(source(), pass_on, len_map_fn=lambda length: length // 2)
    assert tree.pass_length(halved) == 3


def test_batches_are_worth_reading_in_proportion_to_their_size():
    whole = tree.read_ahead(source())
    assert tree.read_ahead(BatchDataset(source(), 8, list)) == whole // 8
    assert tree.read_ahead(BatchDataset(source(), 10**6, list)) == 1


def test_sources_are_numbered_by_input():
    mix = BlendDataset((source(), 1), (source(4, "b"), 1))
    outer = BlendDataset((FilterDataset(mix, bool), 1), (source(3, "c"), 1))
    assert outer.source_numbers == [0, 2]
    assert tree.of_sources(outer, [["a", "b"], ["c"]]) == ["a", "b", "c"]
    datasets = [part.dataset for part in outer.read_parts]
    numbers = [part.source_numbers.tolist() for part in outer.read_parts]
    assert [type(each).__name__ for each in datasets] == ["BlendDataset", "ListSource"]
    assert numbers == [[0, 1], [2]]


def test_a_source_of_several_stages_has_one_number():
    plan = StagePlan(
        [
            Stage("first", 0, 2, dataset=source()),
            Stage(
                "second", 2, 4, dataset=BlendDataset((source(), 1), (source(4, "b"), 1))
            ),
        ]
    )
    staged = StagedDataset(plan)
    assert [each.name for each in staged.sources] == ["a", "b"]
    assert [numbers.tolist() for numbers in staged.source_numbers] == [[0], [0, 1]]
    assert tree.of_sources(staged, [["x"], ["x", "y"]]) == ["x", "y"]


def test_a_dataset_that_occurs_twice_gets_an_order_of_its_own():
    batches = BatchDataset(source(), 2, list)
    other = tree.distinguished(batches, 1)
    assert other.sources[0].occurrence != batches.sources[0].occurrence
    assert other.key != batches.key


def test_items_that_are_no_padding_are_counted_one_by_one_and_by_epochs_alike():
    batches = composed()
    assert tree.has_padding(batches)
    for n in range(3 * batches.size):
        padded = tree.padding(batches, np.arange(n, dtype=np.int64))
        assert tree.full_items(batches, n) == n - padded.sum()
    assert tree.has_padding(MapDataset(batches, identity))
    assert not tree.has_padding(BatchDataset(batches, 2, list))


def test_states_name_the_phase_only_of_datasets_that_have_phases():
    staged = StagedDataset(StagePlan([Stage("only", 0, 4, dataset=source())]))
    assert tree.state_at(source(), 3) == {"position": 3}
    assert tree.state_at(staged, 3).keys() > {"position"}


def test_traits_that_keep_the_order_of_the_input():
    assert NodeTraits(content_only=True).keeps_order
    assert NodeTraits(loop=LoopTraits(cuts=True)).keeps_order
    assert not NodeTraits().keeps_order
    assert NodeTraits(members=None).gathers
    assert not NodeTraits().gathers
