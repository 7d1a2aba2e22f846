"""Stopping and resuming a loader, and states of something else."""

from __future__ import annotations

import json
import shutil
import time

import pytest
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

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
    get_loader,
    get_train_dataset,
    prepare,
    prepare_checksums,
    write_shards,
)
from energize.core.description import digest
from energize.errors import StateError
from tests.support.datasets import INDEXED, STREAMING, is_even, numbers, shuffled
from tests.support.loading import epoch_in_turns, loader_of, plain, prints, square, take
from tests.support.prepared import captions
from tests.support.states import STEPS, evens, mixed, of, resealed, saved

alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def resumed(dataset, state, count, workers=0):
    with loader_of(dataset, workers) as loader:
        loader.load_state_dict(state)
        return prints(take(loader, count))


@pytest.mark.parametrize("name", [*INDEXED, *STREAMING])
def test_resume_after_every_item(name):
    dataset = {**INDEXED, **STREAMING}[name]
    whole = plain(dataset, 24)
    loader = loader_of(dataset)
    states = [loader.state_dict()]
    for _ in range(20):
        take(loader, 1)
        states.append(json.loads(json.dumps(loader.state_dict())))
    for taken, state in enumerate(states):
        assert resumed(dataset, state, 4) == whole[taken : taken + 4], f"after {taken}"


@pytest.mark.parametrize("name", ["tower", "list", "blend of blends"])
def test_resume_after_every_item_does_not_see_what_workers_read_ahead(name):
    dataset = INDEXED[name]
    whole = plain(dataset, 16)
    with loader_of(dataset, workers=2, prefetch_factor=3) as loader, loader_of(dataset, 1) as other:
        for taken in range(13):
            other.load_state_dict(loader.state_dict())
            assert prints(take(other, 3)) == whole[taken : taken + 3]
            take(loader, 1)


@pytest.mark.parametrize("name", ["filter", "blend of filter", "epochize of filter"])
def test_resume_of_a_stream_that_workers_read(name):
    dataset = STREAMING[name]
    whole = prints(take(loader_of(dataset, lanes=3), 16))
    with loader_of(dataset, workers=2, lanes=3) as loader, loader_of(dataset, workers=1) as other:
        for taken in range(13):
            other.load_state_dict(loader.state_dict())
            assert prints(take(other, 3)) == whole[taken : taken + 3]
            take(loader, 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("finish", [False, True])
def test_a_state_of_an_epochs_end_starts_the_next_epoch(workers, finish):
    with loader_of(shuffled(6), workers) as loader:
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        if finish:
            assert next(iterator, None) is None
        state = loader.state_dict()
        with loader_of(shuffled(6)) as other:
            other.load_state_dict(state)
            assert list(other) == list(loader)


@given(
    size=st.integers(1, 40),
    legs=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=5),
)
def test_any_chain_of_runs_on_any_numbers_of_ranks_is_one_stream(size, legs):
    dataset = RepeatDataset(shuffled(size))
    state, merged = loader_of(dataset).state_dict(), []
    for ranks, steps in legs:
        loaders = [loader_of(dataset, rank=rank, ranks=ranks) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        merged += epoch_in_turns(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[-1]))
    assert merged == plain(dataset, len(merged))
    assert len(merged) == sum(ranks * steps for ranks, steps in legs)


def test_loading_while_iterating_takes_effect_at_the_next_loop():
    loader = loader_of(numbers(100))
    take(loader, 7)
    state = loader.state_dict()
    take(loader, 5)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert next(iter(loader)) == 7


def test_state_is_small_and_resuming_costs_the_same_far_out():
    dataset = BatchDataset(MapDataset(RepeatDataset(shuffled(50)), square), 8, list)
    near, far = loader_of(dataset).state_dict(), loader_of(dataset).state_dict()
    near = resealed(near, cursor='{"position": 10}')
    far = resealed(far, cursor='{"position": 1000000000}')
    assert len(json.dumps(far)) < 2000
    seconds = {}
    for state in (near, far, near, far):
        started = time.perf_counter()
        resumed(dataset, state, 1)
        seconds[state["cursor"]] = time.perf_counter() - started
    assert seconds[far["cursor"]] < 10 * seconds[near["cursor"]] + 0.05
    assert resumed(dataset, far, 2) == prints(dataset.at([10**9, 10**9 + 1]))


@alone
@pytest.mark.parametrize("name", ["tower", "limit of filter", "blend of filter"])
def test_state_through_torch_distributed_checkpoint(name, tmp_path):
    dataset = {**INDEXED, **STREAMING}[name]
    loader, other = loader_of(dataset), loader_of(dataset)
    take(loader, 5)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": other}, checkpoint_id=tmp_path, no_dist=True)
    assert prints(take(other, 5)) == plain(dataset, 10)[5:]


@alone
def test_a_checkpoint_of_another_dataset_names_the_difference(tmp_path):
    dcp.save({"loader": loader_of(numbers(5))}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(Exception, match=r"'numbers0': count was 5, is 6"):
        dcp.load({"loader": loader_of(numbers(6))}, checkpoint_id=tmp_path, no_dist=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "'version' 1"),
        ({"version": None}, "'version'"),
        ({"version": True}, "'version'"),
        ({"config": None}, "'config'"),
        ({"fingerprint": None}, "'fingerprint'"),
        ({"fingerprint": "", "config": "{"}, "cut off"),
        ({"fingerprint": "", "config": "{}"}, "damaged"),
        ({"fingerprint": "", "config": "eJw="}, "cut off"),
        ({"fingerprint": "", "config": "[" * 100_000}, "cut off"),
        ({"cursor": '{"a":' * 100_000}, "cut off"),
        ({"cursor": "[]"}, "'cursor'"),
        ({"cursor": "not base64!"}, "cut off"),
        ({"cursor": "{}"}, "'position'"),
        ({"cursor": '{"position": -1}'}, "position -1"),
        ({"cursor": '{"position": 1e3}'}, "'position'"),
        ({"cursor": f'{{"position": {10**30}}}'}, f"position {10**30}"),
        ({"cursor": f'{{"position": {10**300}}}'}, "more than 256 bits"),
        ({"cursor": f'{{"position": {2**45}}}'}, "lies in"),
    ],
)
def test_a_damaged_state_is_refused_and_the_loader_stays_where_it_is(change, message):
    loader = loader_of(numbers(9))
    take(loader, 3)
    whole = loader.state_dict()
    state = {key: value for key, value in (whole | change).items() if value is not None}
    if change.keys() <= whole.keys() - {"version"} and None not in change.values():
        with pytest.raises(StateError, match="changed or damaged"):
            loader.load_state_dict(state)
        state = resealed(state)
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
    assert next(iter(loader)) == 3


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateError, match="state_dict"):
        loader_of(numbers(9)).load_state_dict(state)


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


OTHERS = "its shards are others than when the state was saved"


def prepared_texts(path, count=40, word="text", *, again=False):
    if path.exists() and not again:
        shutil.rmtree(path)
    if not again:
        samples = [{"__key__": f"{i:04d}", "txt": f"{word} {i}"} for i in range(count)]
        write_shards(samples, path, samples_per_shard=20)
    prepare(path, split_ratios={"train": 1}, sample_type="TextSample", workers=1, overwrite=again)
    return path


def mix_of(path, names):
    parts = [{"path": name, "weight": 1} for name in names]
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    mix = path / "mix.yaml"
    mix.write_text(json.dumps(content | {"splits": {"train": {"blend": parts}}}))
    return mix


def loader_at(path):
    return get_loader(get_train_dataset(path, batch_size=4))


def keys(batches):
    return [key for batch in batches for key in batch.__key__]


def saved_at(path, steps=3):
    with loader_at(path) as loader:
        take(loader, steps)
        return json.loads(json.dumps(loader.state_dict()))


@pytest.fixture
def mix(tmp_path):
    for name in ("web", "code"):
        prepared_texts(tmp_path / name)
    return mix_of(tmp_path, ["web", "code"])


def test_shards_of_the_same_names_and_counts_are_told_by_the_name_of_the_source(mix, tmp_path):
    state = saved_at(mix)
    prepared_texts(tmp_path / "web", word="a text that is quite another one " * 20)
    with loader_at(mix) as loader, pytest.raises(StateMismatchError, match=f"'web': {OTHERS}") as e:
        loader.load_state_dict(state)
    assert "'code'" not in str(e.value)


def test_remapped_a_replaced_source_starts_anew_and_the_others_go_on(mix, tmp_path):
    state = saved_at(mix)
    prepared_texts(tmp_path / "web", word="a text that is quite another one " * 20)
    with loader_at(mix) as loader:
        loader.load_state_dict(state, on_mismatch="remap")
        report = loader.remapped
    assert report.restarted == ("web",)
    assert report.kept == {"code": 6}
    assert not report.dropped
    assert not report.added


@pytest.mark.parametrize("change", ["prepared again", "checksums", "moved", "index alone"])
def test_what_leaves_the_shards_as_they_are_fits(mix, tmp_path, change):
    state = saved_at(mix)
    with loader_at(mix) as loader:
        take(loader, 3)
        expected = keys(take(loader, 4))
    web = tmp_path / "web"
    if change == "prepared again":
        prepared_texts(web, again=True)
    elif change == "checksums":
        prepare_checksums(web, workers=1)
    elif change == "moved":
        (tmp_path / "elsewhere").mkdir()
        shutil.move(web, tmp_path / "elsewhere")
        mix = mix_of(tmp_path, ["elsewhere/web", "code"])
    else:
        prepare(web, tar_index_only=True, workers=1)
    with loader_at(mix) as loader:
        loader.load_state_dict(state)
        assert keys(take(loader, 4)) == expected


def test_a_record_that_is_new_or_gone_fits(mix, tmp_path):
    """As of folders that Energon prepared."""
    record = tmp_path / "web" / ".nv-meta" / "shards.json"
    text = record.read_text()
    for before, after in ((None, text), (text, None)):
        for wanted in (before, after):
            record.unlink(missing_ok=True)
            if wanted is not None:
                record.write_text(wanted)
            if wanted is before:
                state = saved_at(mix)
        with loader_at(mix) as loader:
            loader.load_state_dict(state)
            assert len(take(loader, 1)) == 1


class Recorded(ListSource):
    """A source whose files are known, but of some."""

    replaced = frozenset()

    @property
    def record(self):
        return None if self.name.endswith("7") else digest([self.name, self.name in self.replaced])


def wide(count, kind=Recorded):
    parts = [ShuffleDataset(kind(range(9), name=f"folder {number}")) for number in range(count)]
    return BatchDataset(BlendDataset([(part, 1) for part in parts]), 4, list)


@pytest.mark.parametrize("count", [200, 1000])
def test_of_a_mix_of_many_one_is_named(monkeypatch, count):
    state = json.loads(json.dumps(loader_of(wide(count)).state_dict()))
    monkeypatch.setattr(Recorded, "replaced", {"folder 127"})  # of which nothing is known
    loader_of(wide(count)).load_state_dict(state)
    monkeypatch.setattr(Recorded, "replaced", {"folder 123"})
    with pytest.raises(StateMismatchError, match=f"'folder 123': {OTHERS}") as error:
        loader_of(wide(count)).load_state_dict(state)
    assert str(error.value).count(OTHERS) == 1
