"""States of another dataset: what changed no sample, and what did."""

from __future__ import annotations

import json
import shutil

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    LogSampleDataset,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
    StateMismatchError,
    TaskEncoder,
    get_train_dataset,
)
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of, prints, take
from tests.support.prepared import captions
from tests.support.states import STEPS, evens, mixed, of, saved


def goes_on(before, now, caplog=None, *, steps=STEPS, more=20, **options):
    """Whether `now` goes on from a state of `before` with what `before` would have read."""
    whole = prints(take(loader_of(before, **options), steps + more))
    loader = loader_of(now, **options)
    if caplog is not None:
        caplog.clear()
    loader.load_state_dict(saved(before, steps, **options))
    return prints(take(loader, more)) == whole[steps:]


# What changes no sample


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Two prepared folders, mounted at two places."""
    home = tmp_path_factory.mktemp("mounts")
    for name in ("cats", "dogs"):
        captions(home / "here" / name, 16, shards=2, start=16 * (name == "dogs"))
    shutil.copytree(home / "here", home / "there")
    return home


class TestFolders:
    """A metadataset of two prepared folders."""

    def built(self, place, labels=1.0, encoder=TaskEncoder, **options):
        parts = [
            {"path": name, "weight": 1, "subflavors": {"loss_weight": labels, "of": name}}
            for name in ("cats", "dogs")
        ]
        mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
        file = place / f"mix-{labels}.yaml"
        file.write_text(json.dumps(mix | {"splits": {"train": {"blend": parts}}}))
        return get_train_dataset(file, batch_size=2, task_encoder=encoder(), **options)

    def goes_on(self, before, now):
        one, other = loader_of(before), loader_of(now)
        take(one, 3)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        keys = [[batch.__key__ for batch in take(each, 12)] for each in (one, other)]
        return keys[0] == keys[1]

    def test_mounted_elsewhere(self, places, caplog):
        here = self.built(places / "here")
        assert self.goes_on(here, self.built(places / "here"))
        assert not caplog.text
        moved = shutil.move(places / "there", places / "moved")
        assert self.goes_on(here, self.built(moved))
        assert "no sample depends on it" in caplog.text
        assert "folders are mounted elsewhere" in caplog.text
        assert "functions" not in caplog.text

    def test_another_encoder_or_one_that_moved(self, places, caplog):
        class Encoder(TaskEncoder):
            def encode_sample(self, sample):
                return sample

        class Renamed(Encoder):
            def encode_batch(self, batch):
                return batch

        before = self.built(places / "here", encoder=Encoder)
        assert self.goes_on(before, self.built(places / "here", encoder=Renamed))
        assert "Encoder.encode_sample" in caplog.text
        assert "Renamed.encode_batch" in caplog.text

    def test_another_virtual_epoch_length(self, places, caplog):
        lengths = [0, 5, 9]
        cut = [self.built(places / "here", virtual_epoch_length=each) for each in lengths]
        for before, one in zip(lengths, cut, strict=True):
            for now, other in zip(lengths, cut, strict=True):
                caplog.clear()
                assert self.goes_on(one, other), f"{before} -> {now}"
                assert ("a loop was" in caplog.text) == (before != now)


def endless(count=40):
    return RepeatDataset(evens(count))


def wide_mix(count=20):
    """Of so many datasets that it knows its survey from when it was made."""
    return BlendDataset([(shuffled(9, 100 * number), number + 1) for number in range(count)])


FORGIVEN = {
    "hook added to a wide mix": (wide_mix(), MapDataset(wide_mix(), int)),
    "hook taken away from a wide mix": (MapDataset(wide_mix(), int), wide_mix()),
    "hook in a wide mix of batches": (
        BatchDataset(wide_mix(), 2, list),
        BatchDataset(MapDataset(wide_mix(), int), 2, list),
    ),
    "loop added to a wide mix": (wide_mix(), EpochizeDataset(wide_mix(), 4)),
    "loop and hook of a wide mix": (EpochizeDataset(MapDataset(wide_mix(), int), 9), wide_mix()),
    "hook added": (shuffled(30), MapDataset(shuffled(30), int)),
    "hook taken away": (MapDataset(evens(), int), evens()),
    "another batcher": (BatchDataset(evens(), 2, list), BatchDataset(evens(), 2, list.copy)),
    "another condition": (
        FilterDataset(RepeatDataset(numbers(40)), is_even),
        FilterDataset(RepeatDataset(numbers(40)), lambda item: item % 2 == 0),
    ),
    "later rejected": (evens(), FilterDataset(shuffled(40), is_even, max_rejected_in_a_row=99)),
    "hook within": (
        mixed((evens(), 1), (MapDataset(evens(start=100), int), 1)),
        mixed((MapDataset(MapDataset(evens(), int), abs), 1), (evens(start=100), 1)),
    ),
    "logging": (endless(), LogSampleDataset(endless(), get_keys_fn=str)),
    "loop": (EpochizeDataset(endless(), 9), EpochizeDataset(endless(), 4)),
    "loop added": (endless(), EpochizeDataset(endless(), 4)),
    "loop taken away": (EpochizeDataset(mixed((evens(), 1)), 9), mixed((evens(), 1))),
    "loop of an epoch": (shuffled(40), EpochizeDataset(shuffled(40), 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGIVEN)
def test_what_changes_no_sample_is_no_obstacle(name, caplog):
    before, now = FORGIVEN[name]
    for lanes in (1, 2):
        assert goes_on(before, now, caplog, lanes=lanes)
    silent = name == "later rejected"
    assert ("no sample depends on it" in caplog.text) != silent


# What changes samples


CHANGED = {
    "weight": (
        mixed((of("cats"), 1), (of("dogs"), 2)),
        mixed((of("cats"), 1), (of("dogs"), 3)),
        "weights of ShuffleDataset of 'dogs' was 2.0, is 3.0",
    ),
    "weights of streams": (
        mixed((FilterDataset(of("cats"), is_even), 1), (of("dogs"), 2)),
        mixed((FilterDataset(of("cats"), is_even), 5), (of("dogs"), 2)),
        "weights of FilterDataset of 'cats' was 1.0, is 5.0",
    ),
    "seed": (of("cats"), of("cats").reseeded(3), "'cats': seed was 0, is 3"),
    "shuffle": (
        of("cats"),
        of("cats", shuffle_buffer_size=5),
        "ShuffleDataset of 'cats': shuffle_buffer_size was null, is 5",
    ),
    "not shuffled": (of("cats"), ListSource(range(30), name="cats"), "was a ShuffleDataset, is a"),
    "stop": (
        mixed((of("cats"), 1), (of("dogs"), 2)),
        mixed((of("cats"), 1), (of("dogs"), 2), stop="all_exhausted"),
        'stop was "restart", is "all_exhausted"',
    ),
    "max_epochs": (
        mixed((of("cats"), 1), (of("dogs"), 2), max_epochs=[1, 2]),
        mixed((of("cats"), 1), (of("dogs"), 2), max_epochs=[1, 3]),
        "max_epochs of ShuffleDataset of 'dogs' was 2, is 3",
    ),
    "scheme": (
        mixed((of("cats"), 1), (of("dogs"), 2)),
        mixed((of("cats"), 1), (of("dogs"), 2), scheme="exact"),
        'scheme was "even", is "exact"',
    ),
    "batch_size": (
        BatchDataset(FilterDataset(of("cats"), is_even), 2, list),
        BatchDataset(FilterDataset(of("cats"), is_even), 3, list),
        "BatchDataset of 'cats': batch_size was 2, is 3",
    ),
    "drop_last": (
        BatchDataset(of("cats"), 4, list),
        BatchDataset(of("cats"), 4, list, drop_last=True),
        "drop_last was false, is true",
    ),
    "limit": (
        LimitDataset(of("cats"), 20), LimitDataset(of("cats"), 21),
        "LimitDataset of 'cats': length was 20, is 21",
    ),
    "limit within": (
        mixed((LimitDataset(of("cats"), 20), 1), (of("dogs"), 1)),
        mixed((LimitDataset(of("cats"), 21), 1), (of("dogs"), 1)),
        "LimitDataset of 'cats': length was 20, is 21",
    ),
    "repeats": (
        RepeatDataset(of("cats"), 2), RepeatDataset(of("cats"), 2.5), "repeats was 2, is 2.5",
    ),
    "more samples": (of("cats"), of("cats", 31), "'cats': count was 30, is 31"),
    "another source": (
        mixed((of("cats"), 1), (of("dogs"), 2)),
        mixed((of("cats"), 1), (of("birds"), 2)),
        "of 'birds' is new",
    ),
    "one more source": (
        mixed((of("cats"), 1), (of("dogs"), 2)),
        mixed((of("cats"), 1), (of("dogs"), 2), (of("birds"), 2)),
        "of 'birds' is new",
    ),
    "order of sources": (
        ConcatDataset(of("cats"), of("dogs")),
        ConcatDataset(of("dogs"), of("cats")),
        "the order of its inputs was ShuffleDataset of 'cats', ShuffleDataset of 'dogs', is",
    ),
    "filter added": (of("cats"), FilterDataset(of("cats"), is_even), "was a ShuffleDataset, is a"),
    "loops over passes that end": (
        FilterDataset(of("cats"), is_even),
        EpochizeDataset(FilterDataset(of("cats"), is_even), 5),
        "a loop was an epoch, is 5 steps (EpochizeDataset, virtual_epoch_length)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_samples_is_refused_by_name(name, caplog):
    before, now, said = CHANGED[name]
    state = saved(before, lanes=2)
    loader = loader_of(now, lanes=2)
    take(loader, 3)
    expected = prints(take(loader_of(now, lanes=2), 6))[3:]
    with pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(state)
    assert said in str(caught.value)
    assert "load_state_dict(state, strict=False)" in str(caught.value)
    assert prints(take(loader, 3)) == expected  # it stays where it is


@pytest.mark.parametrize(
    "name", ["weight", "weights of streams", "seed", "shuffle", "scheme", "limit within"]
)
def test_not_strict_it_goes_on_with_a_warning(name, caplog):
    before, now, said = CHANGED[name]
    loader = loader_of(now, lanes=2)
    loader.load_state_dict(saved(before, lanes=2), strict=False)
    assert said in caplog.text
    assert "it goes on all the same: strict=False" in caplog.text
    assert len(take(loader, 50)) == 50
    if now.indexed:
        loader.load_state_dict(saved(before), strict=False)
        assert prints(take(loader, 9)) == prints(now.at(range(7, 16)))


# Stages


def stage(name, first, dataset, end=None):
    return Stage(name, first, end, dataset=dataset)


def staged(*stages, streams):
    plan = StagePlan(list(stages), 30)
    return StagedDataset(plan, carry_over=not streams)


def plans(streams):
    """A plan, others that differ from it after the second stage, and before."""

    def part(name, count=40):
        dataset = ShuffleDataset(ListSource(range(count), name=name))
        return FilterDataset(dataset, is_even) if streams else dataset

    one, two = stage("one", 0, part("a")), stage("two", 10, part("b"))
    three = stage("three", 20, part("c"))
    later = {
        "another dataset": [one, two, stage("three", 20, part("d"))],
        "another name": [one, two, stage("third", 20, part("c"))],
        "one more": [one, two, three, stage("four", 25, part("d"))],
        "one less": [one, two],
        "begins earlier": [one, two, stage("three", 14, part("c"))],
    }
    earlier = {
        "dataset": ([stage("one", 0, part("a", 50)), two, three], "'a': count was"),
        "name": ([stage("first", 0, part("a")), two, three], 'name was "one", is "first"'),
        "end": ([one, stage("two", 9, part("b")), three], "end_step was 10, is 9"),
        "inserted": (
            [stage("zero", 0, part("a")), stage("one", 5, part("a")), two, three], "plan.stages",
        ),
    }  # fmt: skip
    return [one, two, three], later, earlier


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("steps", [0, 4, 10, 12])
def test_later_stages_may_change(streams, steps):
    stages, later, _ = plans(streams)
    for lanes in (1, 3) if streams else (None,):
        state = saved(staged(*stages, streams=streams), steps, lanes=lanes)
        for name, others in later.items():
            other = staged(*others, streams=streams)
            loader = loader_of(other, lanes=lanes)
            loader.load_state_dict(state)
            whole = prints(take(loader_of(other, lanes=lanes), 30))
            assert prints(take(loader, 30 - steps)) == whole[steps:], name


@pytest.mark.parametrize("streams", [False, True])
def test_earlier_stages_may_not(streams):
    stages, _, earlier = plans(streams)
    state = saved(staged(*stages, streams=streams), 12, lanes=3)
    for others, said in earlier.values():
        loader = loader_of(staged(*others, streams=streams), lanes=3)
        with pytest.raises(StateMismatchError, match=said):
            loader.load_state_dict(state)
