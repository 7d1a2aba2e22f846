"""Code of data folders: trusted once by a user, for as long as it stays as it was."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import energize as ez
from energize import energon
from energize.cli.main import app
from energize.data.trust import forget, trusted_file
from tests.support.prepared import captions

LOADER = """
def load(raw):
    return {"image": raw["jpg"], "caption": raw["txt"].upper()}

def parts(name):
    return name in ("jpg", "txt")
"""
CODED = """
sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
sample_loader: loader.py:load
part_filter: loader.py:parts
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ENERGIZE_TRUST_CODE", raising=False)


@pytest.fixture
def folder(tmp_path):
    root = captions(tmp_path / "captions", 6)
    (root / ".nv-meta" / "dataset.yaml").write_text(CODED)
    (root / ".nv-meta" / "loader.py").write_text(LOADER)
    return root


def read(folder, **options):
    dataset = ez.get_val_dataset(folder, split_part="train", batch_size=None, **options)
    return [each.caption for each in dataset]


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_trusted_folders_are_read_once_for_all_folders_of_a_mix(tmp_path, monkeypatch):
    folders = [captions(tmp_path / name, 4) for name in "abc"]
    assert run("trust", "--pickles", folders[1]).exit_code == 0
    reads = []
    read_bytes = Path.read_bytes

    def counted(path):
        reads.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    mix = ez.get_train_dataset(folders, batch_size=2)
    assert reads.count(trusted_file()) == 1
    loaders = [part.map_fn for part in mix.inputs[0].inputs]
    unpickles = [loader.decoder.unpickle for loader in loaders]
    assert unpickles == [False, True, False]
    forget(folders[1])
    mix = ez.get_train_dataset(folders, batch_size=2)
    assert not mix.inputs[0].inputs[1].map_fn.decoder.unpickle


def test_a_folder_is_trusted_until_its_code_changes(folder, monkeypatch, tmp_path):
    with pytest.raises(
        ez.UntrustedCodeError,
        match=r"this folder is not trusted.*energize trust .*captions",
    ):
        read(folder)
    done = run("trust", folder)
    assert (done.exit_code, done.output.split()) == (
        0,
        ["Trusted", str(folder / ".nv-meta" / "loader.py")],
    )
    assert read(folder)[:1] == ["CAPTION 0"]
    assert run("trust").output.strip() == str(folder)
    (folder / ".nv-meta" / "loader.py").write_text(LOADER + "\nraise SystemExit\n")
    with pytest.raises(
        ez.UntrustedCodeError, match="it has changed since it was trusted"
    ):
        read(folder)
    (folder / ".nv-meta" / "loader.py").write_text(LOADER)
    (folder / ".nv-meta" / "other.py").write_text("")  # which the first might import
    with pytest.raises(ez.UntrustedCodeError, match="it has changed"):
        read(folder)
    assert run("trust", folder).exit_code == 0
    assert run("trust", "--forget", folder).exit_code == 0
    with pytest.raises(ez.UntrustedCodeError, match="this folder is not trusted"):
        read(folder)
    assert run("trust", "--forget", folder).exit_code == 2
    assert read(folder, trust_code=[folder])[:1] == ["CAPTION 0"]
    monkeypatch.setenv("ENERGIZE_TRUST_CODE", f"/nowhere:{tmp_path}")
    assert read(folder)[:1] == ["CAPTION 0"]


def test_only_the_folder_itself_is_trusted(folder, tmp_path):
    run("trust", folder)
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(LOADER)
    text = CODED.replace("loader.py", f"../../{elsewhere.name}")
    (folder / ".nv-meta" / "dataset.yaml").write_text(text)
    with pytest.raises(ez.UntrustedCodeError, match="is outside the folder"):
        read(folder)


def test_a_user_without_a_home_trusts_nothing_and_is_told_where_that_would_be(
    folder, monkeypatch
):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(os.path, "expanduser", str)
    monkeypatch.chdir(folder)
    with pytest.raises(ez.UntrustedCodeError, match="this folder is not trusted"):
        read(folder)
    assert "Set XDG_CONFIG_HOME" in run("trust", folder).output.replace("\n", " ")
    assert not (folder / "~").exists()


def test_what_cannot_be_trusted(tmp_path):
    plain = captions(tmp_path / "plain", 4)
    done = run("trust", plain)
    assert done.exit_code == 1
    assert "has no code to trust" in done.output
    trusted_file().parent.mkdir(parents=True)
    trusted_file().write_text("[]")
    assert run("trust").exit_code == 2
    trusted_file().write_text("{")
    assert "cannot be read" in run("trust").output


# Factories that a dataset.yaml names.


class CaptionWebdataset(energon.DefaultDecoderWebdatasetFactory[ez.CaptioningSample]):
    """As Megatron-Bridge, Pai and FlagScale write theirs: a decoder of its own."""

    __sample_type__ = ez.CaptioningSample

    def __init__(
        self, path, *, auto_decode: bool = True, shout: bool = False, **kwargs
    ):
        super().__init__(path, auto_decode=auto_decode, **kwargs)
        assert self.image_decode == "torchrgb"
        if auto_decode:
            self._decoder = Shouting(shout)


class Shouting:
    def __init__(self, loud):
        self.loud = loud

    def __call__(self, sample):
        text = sample["txt"].decode()
        return {
            **sample,
            "txt": text.upper() if self.loud else text,
            "jpg": len(sample["jpg"]),
        }


class PlainFactory(energon.BaseWebdatasetFactory[ez.TextSample]):
    __sample_type__ = ez.TextSample

    def load_sample(self, raw_data):
        text = raw_data["txt"].decode()[::-1]
        return ez.TextSample.derive_from(ez.CrudeSample(raw_data), text=text)


class Unnamed(energon.BaseWebdatasetFactory):
    def load_sample(self, raw_data):
        return raw_data


def named(folder, name, module=__name__, **more):
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        json.dumps({"__module__": module, "__class__": name, **more})
    )


def test_a_factory_of_a_user_makes_the_samples(folder):
    named(
        folder,
        "CaptionWebdataset",
        field_map={"image": "jpg", "caption": "txt"},
        shout=True,
    )
    dataset = ez.get_val_dataset(folder, split_part="train", batch_size=None)
    found = list(dataset)
    assert [each.caption for each in found][:2] == ["CAPTION 0", "CAPTION 1"]
    assert isinstance(found[0].image, int)
    assert found[0].__sources__
    named(folder, "PlainFactory", subflavors={"a": 1})
    first = next(iter(ez.get_val_dataset(folder, split_part="train", batch_size=None)))
    assert (type(first), first.text, first.__subflavors__) == (
        ez.TextSample,
        "0 noitpac",
        {"a": 1},
    )
    batches = ez.get_loader(ez.get_train_dataset(folder, batch_size=2, repeat=False))
    assert sum(len(each.text) for each in batches) == len(list(dataset))


def test_a_factory_that_is_not_known_is_an_error(folder, monkeypatch):
    named(folder, "CaptionWebdataset", "some_module_of_theirs")
    with pytest.raises(
        ez.UntrustedCodeError, match=r"import some_module_of_theirs.*trust_code"
    ):
        read(folder)
    for name, told in (
        ("Nothing", "has no such name"),
        ("Shouting", "is not a factory"),
    ):
        named(folder, name)
        with pytest.raises(ez.DatasetError, match=told):
            read(folder)
    named(folder, "Unnamed")
    with pytest.raises(ez.DatasetError, match="no __sample_type__"):
        read(folder)
    with pytest.raises(ez.ConfigError, match="no __sample_type__"):
        Unnamed(
            folder, split_part="train", training=False, worker_config=ez.WorkerConfig()
        )
    named(folder, "CaptioningWebdataset", "megatron.energon", shout=True)
    with pytest.raises(ez.DatasetError, match="unknown key 'shout'"):
        read(folder)


def test_modules_are_imported_where_they_are_trusted_by_name(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "factories_of_theirs.py").write_text(
        "import energize.energon as en\n"
        "class Texts(en.BaseWebdatasetFactory):\n"
        "    __sample_type__ = en.TextSample\n"
        "    def load_sample(self, raw):\n"
        "        return en.TextSample.derive_from(raw, text='x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    named(folder, "Texts", "factories_of_theirs")
    options = {
        "split_part": "train",
        "batch_size": None,
        "trust_code": ["factories_of_theirs"],
    }
    assert {each.text for each in ez.get_val_dataset(folder, **options)} == {"x"}
    del sys.modules["factories_of_theirs"]
    with pytest.raises(
        ez.ConfigError, match="neither a folder nor a module that can be imported"
    ):
        read(folder, trust_code=["no_such_module"])
