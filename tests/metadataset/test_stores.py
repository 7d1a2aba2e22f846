"""Stores beside a dataset: what `aux` may name, and what it leads to."""

from __future__ import annotations

import pytest

from energize import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    MetadatasetError,
    NotPreparedError,
    TextSample,
    basic_sample_keys,
)
from energize.metadataset import resolve
from tests.metadataset.conftest import train
from tests.support.joining import keys
from tests.support.tables import row


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
    with pytest.raises(ConfigError, match=r"(?s)aux.*requested at .*mix\.yaml:5"):
        train(mix("{path: a, aux: {x: notes}}"))
    with pytest.raises(NotPreparedError, match=r"are a store as filesystem://.*/files"):
        train(
            mix("{path: crude, aux: {notes: notes, files: files}}"),
            task_encoder=Encoder(),
        )


REFUSED = {
    "filesystem://a\0b": "has an unknown kind",
    "filesystem+bucket/x": "has an unknown kind",
    "mix.yaml": "is a file. Pass a prepared folder",
    "filesystem://lines.jsonl": "is a file. Pass a prepared folder",
}


def test_plain_folders_above_the_file(mix, tmp_path):
    (tmp_path / "inner").mkdir()
    for ref in ("filesystem://../files", "filesystem://../inner/../files"):
        file = mix(
            {"path": str(tmp_path / "crude"), "aux": {"x": ref}}, "inner/mix.yaml"
        )
        found = resolve(file, "train")
        assert dict(found.aux)["x"] == f"filesystem://{tmp_path}/files", ref


def test_what_is_no_store(mix, tmp_path):
    for ref, words in REFUSED.items():
        with row(ref), pytest.raises(MetadatasetError) as caught:
            resolve(mix({"path": "crude", "aux": {"x": ref}}), "train")
        assert words in str(caught.value)
        assert f"{tmp_path}/mix.yaml:7 (splits.train.aux.x)" in str(caught.value)
    for ref in ("nothing", "x" * 5000, "filesystem://" + "x" * 5000):
        file = mix({"path": "crude", "aux": {"x": "notes", "y": ref}})
        with pytest.raises(
            DatasetNotFoundError, match=r"mix\.yaml:8 \(splits\.train\.aux\.y\)"
        ):
            resolve(file, "train")
    mix("path: crude", "inner.yaml")
    with pytest.raises(MetadatasetError, match=r"aux needs a prepared folder, and"):
        resolve(mix("{path: inner.yaml, aux: {x: notes}}"), "train")
