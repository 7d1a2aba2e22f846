"""What hostile folders, files and states can do and cannot, sentence by sentence of
SECURITY.md."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from energize import (
    Cooker,
    DatasetError,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    MetadatasetError,
    UntrustedCodeError,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.data.stores import open_store
from energize.data.trust import trust
from energize.errors import DecodeError, EncoderError
from energize.metadataset import read_metadataset
from energize.task.decode import SampleDecoder
from tests.support.metadatasets import written
from tests.support.prepared import captions

ROOT = Path(__file__).parents[2]


class Crude(DefaultTaskEncoder):
    """Leaves crude samples as they are."""

    cookers = (Cooker(dict),)


class Bomb:
    """What tells that it was unpickled."""

    def __reduce__(self):
        return exec, ("import sys; sys.energize_was_unpickled = True",)


@pytest.fixture
def folder(tmp_path):
    return captions(tmp_path / "folder", 8, shards=2)


def meta(folder, name, text):
    (folder / ".nv-meta" / name).write_text(text)


def first(folder, **options):
    return next(iter(get_train_dataset(folder, batch_size=2, **options)))


def test_every_sentence_names_a_test_that_there_is():
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) >= 12
    for file, function in named:
        assert f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"


def test_a_type_or_joiner_that_was_not_imported(folder, tmp_path):
    assert "antigravity" not in sys.modules
    meta(
        folder, "dataset.yaml", "sample_type: {__module__: antigravity, __class__: Fly}"
    )
    with pytest.raises(UntrustedCodeError, match="has not imported"):
        first(folder)
    meta(folder, "dataset.yaml", "sample_type: {__module__: os, __class__: system}")
    with pytest.raises(DatasetError, match="Use a dataclass"):
        first(folder)
    joiner = {"__module__": "antigravity", "__function__": "fly"}
    parts = [{"path": "folder"}, {"path": "folder", "split_part": "val"}]
    file = written(tmp_path / "mix.yaml", {"join": parts, "joiner": joiner})
    with pytest.raises((UntrustedCodeError, DatasetError)):
        get_train_dataset(file, batch_size=2)
    assert "antigravity" not in sys.modules


def test_tags_of_yaml(folder, tmp_path):
    tag = "!!python/object/apply:os.mkdir"
    made = tmp_path / "made"
    meta(folder, "dataset.yaml", f"subflavors: {tag} [{made}]")
    with pytest.raises(DatasetError, match="could not determine a constructor"):
        first(folder)
    file = tmp_path / "mix.yaml"
    file.write_text(f"splits:\n  train: {tag} [{made}]\n")
    with pytest.raises(MetadatasetError, match="the tag '!!python"):
        read_metadataset(file)
    assert not made.exists()


@pytest.mark.parametrize("kind", ["pkl", "pickle", "pyd", "pt", "pth", "npy", "npz"])
def test_pickles(kind):
    data = pickle.dumps(Bomb())
    if kind in ("npy", "npz"):
        buffer = io.BytesIO()
        save = np.save if kind == "npy" else np.savez
        save(buffer, np.array([Bomb()], dtype=object), allow_pickle=True)
        with pytest.raises(DecodeError, match="are never unpickled"):
            SampleDecoder().decode(f"a.{kind}", buffer.getvalue())
    elif kind == "pth":
        with pytest.raises(DecodeError):
            SampleDecoder().decode("a.pth", data)
    elif kind in ("pickle", "pyd"):
        with pytest.raises(UntrustedCodeError):
            SampleDecoder().decode(f"a.{kind}", data)
    else:
        assert SampleDecoder().decode(f"a.{kind}", data) == data
    assert not hasattr(sys, "energize_was_unpickled")


def test_pickles_of_a_trusted_folder(tmp_path, monkeypatch):
    """They are refused, with the command, until the user trusts them by name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    written = [
        {"__key__": "a", "pickle": pickle.dumps({"n": 1}), "pkl": pickle.dumps(2)}
    ]
    write_shards(written, folder)
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")
    options = {"split_part": "train", "batch_size": None, "task_encoder": Crude()}

    def read(**more):
        dataset = get_val_dataset(folder, **options, **more)
        (sample,) = get_loader(dataset, on_error="skip")
        return sample

    for more in ({}, {"trust_code": [folder / "other"]}):
        with pytest.raises(EncoderError, match=f"trust --pickles {folder}"):
            read(**more)
    sample = read(trust_code=[folder])
    assert (sample["pickle"], sample["pkl"]) == ({"n": 1}, written[0]["pkl"])
    with monkeypatch.context() as environment:
        environment.setenv("ENERGIZE_TRUST_CODE", str(folder))
        assert read()["pickle"] == {"n": 1}
    with pytest.raises(DatasetError, match="trust --pickles"):
        trust(folder)
    trust(folder, pickles=True)
    assert read()["pickle"] == {"n": 1}
    shutil.copy(next(folder.glob("*.tar")), folder / "later.tar")
    prepare(
        folder,
        split_ratios={"train": 1},
        sample_type="CrudeWebdataset",
        overwrite=True,
        fix_duplicates=True,
    )
    with pytest.raises(EncoderError, match="UntrustedCodeError"):
        read()


def test_a_database_with_a_view(folder):
    (folder / ".nv-meta" / "index.sqlite").unlink()
    with sqlite3.connect(folder / ".nv-meta" / "index.sqlite") as database:
        database.execute(
            "CREATE VIEW samples AS SELECT load_extension('x') AS sample_key"
        )
    with pytest.raises(DatasetError, match="has 'samples', which is not a table"):
        _ = open_store(folder)["k.txt"]


def test_code_of_a_folder_is_run_where_it_is_trusted(folder):
    (folder / ".nv-meta" / "code.py").write_text(
        "def load(sample):\n    raise RuntimeError('run')\n"
    )
    sample_type = "sample_type: {__module__: energize, __class__: CaptioningSample}\n"
    meta(folder, "dataset.yaml", sample_type + "sample_loader: code.py:load")
    with pytest.raises(UntrustedCodeError, match="code of the data folder"):
        first(folder)
    with pytest.raises(Exception, match="run"):
        first(folder, trust_code=[str(folder)])


@pytest.mark.parametrize(
    "name", ["../other/shard-000.tar", "{path}/shard-000.tar", "a\0b.tar"]
)
def test_names_do_not_lead_out(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path / "other")
    name = name.format(path=tmp_path / "other")
    meta(folder, ".info.json", json.dumps({"shard_counts": {name: 4}}))
    meta(
        folder,
        "split.yaml",
        json.dumps({"split_parts": {"train": [name]}, "exclude": []}),
    )
    with pytest.raises(
        DatasetError, match=r"\.info\.json:1 \(shard_counts\): expected names of files"
    ):
        first(folder)


def test_a_metadataset_reads_what_it_names(folder, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    assert first(written(inner / "mix.yaml", {"path": "../folder"})) is not None
    assert first(written(inner / "mix.yaml", {"path": str(folder)})) is not None


def test_a_metadataset_sees_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGIZE_SECRET", "hunter2")
    file = written(tmp_path / "mix.yaml", {"path": "${ENERGIZE_SECRET}"})
    with pytest.raises(DatasetNotFoundError, match="hunter2"):
        get_train_dataset(file, batch_size=2)


def test_links_of_a_folder_are_followed(folder, tmp_path):
    shard = folder / "shard-000.tar"
    shard.rename(tmp_path / "elsewhere.tar")
    shard.symlink_to(tmp_path / "elsewhere.tar")
    assert first(folder) is not None
