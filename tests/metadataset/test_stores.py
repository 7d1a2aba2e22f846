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
    get_train_dataset,
    traverse_metadataset,
)
from energize.data.stores import open_store
from energize.extras.paths import EPath
from energize.metadataset import resolve
from energize.preparation.jsonl import prepare_jsonl
from tests.support.joining import keys, texts
from tests.support.metadatasets import written


@pytest.fixture
def folder(tmp_path):
    texts(tmp_path / "crude", [keys(*range(4))], sample_type="CrudeWebdataset")
    texts(tmp_path / "typed", [keys(*range(4))])
    texts(tmp_path / "notes", [keys(*range(4))], prefix="note ")
    (tmp_path / "files" / "inner").mkdir(parents=True)
    (tmp_path / "files" / "inner" / "a.txt").write_text("a file")
    (tmp_path / "lines.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    prepare_jsonl(tmp_path / "lines.jsonl")
    return tmp_path


def mix(folder, aux, path="crude", **more):
    return written(folder / "mix.yaml", {"path": path, "aux": aux, **more})


def test_all_kinds_are_resolved_from_the_folder_of_the_file(folder, monkeypatch):
    monkeypatch.chdir("/")
    file = mix(folder, {
        "notes": "notes",
        "files": "filesystem://files/inner",
        "absolute": f"filesystem://{folder}/files",
        "lines": "./lines.jsonl",
    })  # fmt: skip
    leaf = resolve(file, "train")
    assert leaf.aux == {
        "notes": f"{folder}/notes",
        "files": f"filesystem://{folder}/files/inner",
        "absolute": f"filesystem://{folder}/files",
        "lines": f"{folder}/lines.jsonl",
    }
    stores = {name: open_store(ref) for name, ref in leaf.aux.items()}
    assert stores["notes"].get("0002.txt") == b"note 0002"
    assert stores["files"].get("a.txt") == b"a file"
    assert stores["absolute"].get("inner/a.txt") == b"a file"
    assert b'{"x": 2}' in stores["lines"].get("1")
    (reference,) = traverse_metadataset(file, split_part="train")
    assert reference.aux["files"] == EPath(folder / "files" / "inner")
    assert reference.path == EPath(folder / "crude")


def test_cookers_read_from_them(folder):
    def cook(sample, notes, files):
        note = notes.get(f"{sample['__key__']}.txt", sample).decode()
        text = f"{sample['txt']}, {note}, {files.get('inner/a.txt', sample).decode()}"
        return TextSample(**basic_sample_keys(sample), text=text)

    class Encoder(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(lambda sample, **aux: cook({**sample, "txt": "x"}, **aux)),)

    file = mix(folder, {"notes": "notes", "files": "filesystem://files"})
    dataset = get_train_dataset(file, batch_size=None, task_encoder=Encoder(), repeat=False)
    assert sorted(sample.text for sample in dataset) == [
        f"x, note {key}, a file" for key in keys(*range(4))
    ]


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ("filesystem://../files", "leaves the folder of this file"),
        ("filesystem://files/../../x", "leaves the folder of this file"),
        ("filesystem://a\0b", "it has a zero byte"),
        ("filesystem://out", "leaves the folder of this file"),
        ("s3://bucket/x", "is remote or of an unknown kind"),
        ("filesystem+msc://bucket/x", "is remote or of an unknown kind"),
        ("mix.yaml", "is a file; a store is a prepared folder"),
        ("filesystem://lines.jsonl", "is a file, and filesystem:// names a folder"),
    ],
)
def test_what_is_refused(folder, tmp_path_factory, ref, told):
    (folder / "out").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(MetadatasetError) as caught:
        resolve(mix(folder, {"x": ref}), "train")
    assert told in str(caught.value)
    assert f"{folder}/mix.yaml:7 (splits.train.aux.x)" in str(caught.value)


@pytest.mark.parametrize("ref", ["nothing", "x" * 5000, "filesystem://" + "x" * 5000])
def test_what_is_not_there(folder, ref):
    with pytest.raises(DatasetNotFoundError, match=r"mix\.yaml:8 \(splits\.train\.aux\.y\)"):
        resolve(mix(folder, {"x": "notes", "y": ref}), "train")


def test_links_inside_a_plain_folder_do_not_lead_out_of_it(folder):
    (folder / "files" / "link").symlink_to(folder / "lines.jsonl")
    store = open_store(resolve(mix(folder, {"x": "filesystem://files"}), "train").aux["x"])
    for key in ("link", "../lines.jsonl", str(folder / "lines.jsonl")):
        with pytest.raises(DataError, match=r"lead|leave|out"):
            store.get(key)


def test_only_crude_samples_have_cookers(folder):
    file = mix(folder, {"x": "notes"}, path="typed")
    with pytest.raises(ConfigError, match=r"(?s)aux.*asked for at .*mix\.yaml:5"):
        get_train_dataset(file, batch_size=None)


def test_a_metadataset_has_none(folder):
    written(folder / "inner.yaml", {"path": "crude"})
    with pytest.raises(MetadatasetError, match=r"aux is for prepared folders, and"):
        resolve(mix(folder, {"x": "notes"}, path="inner.yaml"), "train")


@pytest.mark.parametrize("aux", [{"1x": "notes"}, {"a b": "notes"}, {"x": 3}, {"x": ""}, "notes"])
def test_names_are_arguments_and_values_are_texts(folder, aux):
    with pytest.raises(MetadatasetError, match=r"aux\): expected a mapping of names"):
        resolve(mix(folder, aux), "train")
