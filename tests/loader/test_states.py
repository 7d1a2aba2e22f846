"""Stopping and resuming a loader, and states of something else."""

from __future__ import annotations

import json
import shutil
import zlib

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    RepeatDataset,
    ShuffleDataset,
    StateMismatchError,
    TaskEncoder,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.core.description import digest
from energize.errors import StateError
from tests.support.datasets import STREAMING, is_even, numbers
from tests.support.loading import loader_of, prints, take
from tests.support.prepared import captions
from tests.support.states import mixed, of, resealed, saved


@pytest.mark.parametrize("name", ["filter", "blend of filter", "epochize of filter"])
def test_resume_of_a_stream_that_workers_read(name):
    dataset = STREAMING[name]
    whole = prints(take(loader_of(dataset, lanes=3), 16))
    with (
        loader_of(dataset, workers=2, lanes=3) as loader,
        loader_of(dataset, workers=1) as other,
    ):
        for taken in range(13):
            other.load_state_dict(loader.state_dict())
            assert prints(take(other, 3)) == whole[taken : taken + 3]
            take(loader, 1)


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
        ({"cursor": f'{{"position": {10**300}}}'}, "expected 0 to 2"),
        ({"cursor": f'{{"position": {2**45}}}'}, "expected 0 to 2"),
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
            {
                "path": name,
                "weight": 1,
                "subflavors": {"loss_weight": labels, "of": name},
            }
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
        assert "no sample depends on" in caplog.text
        assert "folders are mounted elsewhere" in caplog.text
        assert "functions" not in caplog.text


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


# Stages


OTHERS = "its shards are others than when the state was saved"


def prepared_texts(path, count=40, word="text", *, again=False):
    if path.exists() and not again:
        shutil.rmtree(path)
    if not again:
        samples = [{"__key__": f"{i:04d}", "txt": f"{word} {i}"} for i in range(count)]
        write_shards(samples, path, samples_per_shard=20)
    prepare(
        path,
        split_ratios={"train": 1},
        sample_type="TextSample",
        workers=1,
        overwrite=again,
    )
    return path


def mix_of(path, names):
    parts = [{"path": name, "weight": 1} for name in names]
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    mix = path / "mix.yaml"
    mix.write_text(json.dumps(content | {"splits": {"train": {"blend": parts}}}))
    return mix


def loader_at(path):
    return get_loader(get_train_dataset(path, batch_size=4))


def saved_at(path, steps=3):
    with loader_at(path) as loader:
        take(loader, steps)
        return json.loads(json.dumps(loader.state_dict()))


@pytest.fixture
def mix(tmp_path):
    for name in ("web", "code"):
        prepared_texts(tmp_path / name)
    return mix_of(tmp_path, ["web", "code"])


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
        return (
            None
            if self.name.endswith("7")
            else digest([self.name, self.name in self.replaced])
        )


def wide(count, kind=Recorded):
    parts = [
        ShuffleDataset(kind(range(9), name=f"folder {number}"))
        for number in range(count)
    ]
    return BatchDataset(BlendDataset([(part, 1) for part in parts]), 4, list)


def test_of_a_mix_of_many_one_is_named(monkeypatch):
    count = 200
    state = json.loads(json.dumps(loader_of(wide(count)).state_dict()))
    monkeypatch.setattr(
        Recorded, "replaced", {"folder 127"}
    )  # of which nothing is known
    loader_of(wide(count)).load_state_dict(state)
    monkeypatch.setattr(Recorded, "replaced", {"folder 123"})
    with pytest.raises(StateMismatchError, match=f"'folder 123': {OTHERS}") as error:
        loader_of(wide(count)).load_state_dict(state)
    assert str(error.value).count(OTHERS) == 1


def test_a_state_of_a_longer_loop_goes_on_in_a_shorter_one():
    """The seventh step of ten is the second of a loop of five."""
    with loader_of(EpochizeDataset(RepeatDataset(numbers(40)), 10)) as loader:
        take(loader, 7)
        state = loader.state_dict()
    with loader_of(EpochizeDataset(RepeatDataset(numbers(40)), 5)) as shorter:
        shorter.load_state_dict(state)
        assert [list(shorter), list(shorter)] == [[7, 8, 9], [10, 11, 12, 13, 14]]


def test_sources_are_described_once_for_all_states_of_a_run(monkeypatch):
    described = []
    settings = ListSource.settings
    monkeypatch.setattr(
        ListSource,
        "settings",
        lambda source: described.append(source.name) or settings(source),
    )
    names = [f"source {number}" for number in range(100)]
    sources = [ListSource(range(5), name=name) for name in names]
    shuffled = [ShuffleDataset(source) for source in sources]
    loader = loader_of(BlendDataset(*((each, 1) for each in shuffled)))
    zipped = []
    compress = zlib.compress
    monkeypatch.setattr(
        zlib, "compress", lambda data, level: zipped.append(data) or compress(data)
    )
    batches = iter(loader)
    next(batches)
    assert sorted(described) == sorted(names)
    loader.state_dict()
    next(batches)
    described.clear()
    zipped.clear()
    loader.state_dict()
    assert not described
    assert [data.startswith(b'{"position":2') for data in zipped] == [True]
