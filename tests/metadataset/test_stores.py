"""Stores beside a dataset: what `aux` may name, and what it leads to."""

from __future__ import annotations

import pytest

from energize import (
    ConfigError,
    Cooker,
    DataError,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    MetadatasetError,
    TextSample,
    basic_sample_keys,
    traverse_metadataset,
)
from energize.data.stores import open_store
from energize.extras.paths import EPath
from energize.metadataset import resolve
from tests.metadataset.conftest import train
from tests.support.joining import keys
from tests.support.tables import row


def test_all_kinds_begin_at_the_folder_of_the_file(mix, tmp_path, monkeypatch):
    aux = {"notes": "notes", "files": "filesystem://files/inner", "lines": "./lines.jsonl"}
    file = mix({"path": "crude", "aux": {**aux, "absolute": f"filesystem://{tmp_path}/files"}})
    monkeypatch.chdir("/")
    leaf = resolve(file, "train")
    assert leaf.aux == {
        "notes": f"{tmp_path}/notes",
        "files": f"filesystem://{tmp_path}/files/inner",
        "lines": f"{tmp_path}/lines.jsonl",
        "absolute": f"filesystem://{tmp_path}/files",
    }
    stores = {name: open_store(ref) for name, ref in leaf.aux.items()}
    assert stores["notes"].get("0002.txt") == b"note 0002"
    assert stores["files"].get("a.txt") == stores["absolute"].get("inner/a.txt") == b"a file"
    assert b'{"text": "2"}' in stores["lines"].get("2")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "link").symlink_to(tmp_path / "lines.jsonl")
    store = open_store(f"filesystem://{tmp_path}/plain")
    for key in ("link", "../lines.jsonl", str(tmp_path / "lines.jsonl")):
        with pytest.raises(DataError, match=r"lead|leave|out"):
            store.get(key)
    (reference,) = traverse_metadataset(file, split_part="train")
    assert (reference.path, reference.aux["files"]) == (
        EPath(tmp_path / "crude"),
        EPath(tmp_path / "files" / "inner"),
    )


def test_cookers_read_from_them(mix):
    def cook(sample, notes, files):
        note = notes.get(f"{sample['__key__']}.txt", sample).decode()
        text = f"{note}, {files.get('inner/a.txt', sample).decode()}"
        return TextSample(**basic_sample_keys(sample), text=text)

    class Encoder(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(cook),)

    file = mix("{path: crude, aux: {notes: notes, files: 'filesystem://files'}}")
    samples = train(file, task_encoder=Encoder(), repeat=False)
    wanted = [f"note {key}, a file" for key in keys(*range(4))]
    assert sorted(sample.text for sample in samples) == wanted
    with pytest.raises(ConfigError, match=r"(?s)aux.*asked for at .*mix\.yaml:5"):
        train(mix("{path: a, aux: {x: notes}}"))


REFUSED = {
    "filesystem://../files": "leaves the folder of this file",
    "filesystem://files/../../x": "leaves the folder of this file",
    "filesystem://a\0b": "of an unknown kind",
    "filesystem://out": "leaves the folder of this file",
    "s3://bucket/x": "is remote or of an unknown kind",
    "filesystem+msc://bucket/x": "is remote or of an unknown kind",
    "mix.yaml": "is a file; a store is a prepared folder",
    "filesystem://lines.jsonl": "name it by its whole path",
}


def test_what_is_no_store(mix, tmp_path, tmp_path_factory):
    (tmp_path / "out").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    for ref, words in REFUSED.items():
        with row(ref), pytest.raises(MetadatasetError) as caught:
            resolve(mix({"path": "crude", "aux": {"x": ref}}), "train")
        assert words in str(caught.value)
        assert f"{tmp_path}/mix.yaml:7 (splits.train.aux.x)" in str(caught.value)
    for ref in ("nothing", "x" * 5000, "filesystem://" + "x" * 5000):
        file = mix({"path": "crude", "aux": {"x": "notes", "y": ref}})
        with pytest.raises(DatasetNotFoundError, match=r"mix\.yaml:8 \(splits\.train\.aux\.y\)"):
            resolve(file, "train")
    mix("path: crude", "inner.yaml")
    with pytest.raises(MetadatasetError, match=r"aux is for prepared folders, and"):
        resolve(mix("{path: inner.yaml, aux: {x: notes}}"), "train")
