"""Shards that are replaced between saving a state and loading it."""

from __future__ import annotations

import json
import shutil

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ListSource,
    ShuffleDataset,
    StateMismatchError,
    get_loader,
    get_train_dataset,
    prepare,
    prepare_checksums,
    write_shards,
)
from energize.core.description import digest
from tests.support.loading import loader_of, take

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
