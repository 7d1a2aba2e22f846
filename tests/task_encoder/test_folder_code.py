"""Functions in place of field maps: given by the program, or of folders that it trusts by name."""

import json
import multiprocessing
import pickle
import sys

import pytest

from energize import get_loader, get_train_dataset, get_val_dataset
from energize.core.lanes import WorkerConfig
from energize.core.samples import CrudeSample, TextSample
from energize.errors import (
    ConfigError,
    DatasetError,
    EncoderError,
    UntrustedCodeError,
)
from energize.preparation import prepare
from energize.task.load import FolderFunction, LoadingCode, SampleLoader
from tests.support.tars import write_tar

CODE = """
from dataclasses import dataclass
from pathlib import Path

(Path(__file__).parent / "ran").touch()

@dataclass
class Parsed:
    text: str

def sample_loader(raw):
    return {"text": Parsed(raw["txt"]).text + ":" + ",".join(sorted(k for k in raw if k[0] != "_"))}

def part_filter(part):
    return part != "jpg"

def other(raw):
    return {"__key__": raw["__key__"] + "!", "text": raw["txt"]}
"""


def folder(path, count=4, *, code=CODE, **named):
    write_tar(
        path / "0.tar",
        [
            (f"{i:03d}.{part}", data)
            for i in range(count)
            for part, data in (("jpg", b"no image"), ("txt", b"text %d" % i), ("json", b"{}"))
        ],
    )
    prepare(path, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    config = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}, **named}
    (path / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    (path / ".nv-meta" / "sample_loader.py").write_text(code)
    return path


NAMED = {"sample_loader": "sample_loader.py", "part_filter": "sample_loader.py:part_filter"}


def texts(path, **options):
    dataset = get_val_dataset(path, split_part="train", batch_size=None, **options)
    return [sample.text for sample in dataset]


def test_nothing_of_a_folder_is_run_unless_it_is_trusted(tmp_path):
    path = folder(tmp_path / "ds", **NAMED)
    for options in ({}, {"trust_code": []}, {"trust_code": [tmp_path / "other"]}):
        with pytest.raises(UntrustedCodeError) as caught:
            texts(path, **options)
        assert not (path / ".nv-meta" / "ran").exists()
    for way in ("sample_loader=...", f"trust_code=[{str(path)!r}]", "field_map", "CrudeWebdataset"):
        assert way in str(caught.value)
    with pytest.raises(UntrustedCodeError, match="part_filter"):
        texts(folder(tmp_path / "filtered", part_filter="sample_loader.py:part_filter"))


@pytest.mark.parametrize("trusted", ["{0}", "{0}/..", "{0}/.nv-meta/.."])
def test_a_trusted_folder_runs_its_functions(tmp_path, trusted):
    path = folder(tmp_path / "ds", **NAMED)
    found = texts(path, trust_code=[trusted.format(path)])
    assert found == [f"text {i}:json,txt" for i in range(4)]
    assert (path / ".nv-meta" / "ran").exists()


def test_another_function_of_the_file(tmp_path):
    path = folder(tmp_path / "ds", sample_loader="sample_loader.py:other", part_filter=["txt"])
    dataset = get_val_dataset(path, split_part="train", batch_size=None, trust_code=[path])
    assert [sample.__key__ for sample in dataset][:2] == ["000!", "001!"]
    assert dataset[1].__sources__[0].file_names == ("001.txt",)


def test_the_program_gives_functions(tmp_path):
    def load(raw):
        assert raw["__sources__"][0].file_names
        return {"text": raw["txt"].upper()}

    path = folder(tmp_path / "ds", **NAMED)
    given = {"sample_loader": load, "part_filter": ["txt"]}
    assert texts(path, **given) == [f"TEXT {i}" for i in range(4)]
    assert not (path / ".nv-meta" / "ran").exists()
    by_folder = {name: {str(path): value} for name, value in given.items()}
    assert texts(path, **by_folder) == texts(path, **given)
    plain = folder(tmp_path / "plain", field_map={"text": "txt"})
    assert texts(plain, **by_folder) == [f"text {i}" for i in range(4)]
    assert texts(plain, **given) == [f"TEXT {i}" for i in range(4)]
    with pytest.raises(UntrustedCodeError, match="part_filter"):
        texts(path, sample_loader=load)


def test_a_mix_of_both(tmp_path):
    folder(tmp_path / "a", **NAMED)
    folder(tmp_path / "b", field_map={"text": "txt"})
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: energize\n__class__: MetadatasetV2\n"
        "splits: {train: {blend: [{path: a}, {path: b}]}}\n"
    )
    with pytest.raises(UntrustedCodeError):
        get_train_dataset(mix, batch_size=None)
    found = texts(mix, trust_code=[tmp_path / "a"])
    assert sorted(found) == sorted(
        [f"text {i}" for i in range(4)] + [f"text {i}:json,txt" for i in range(4)]
    )


def test_workers_run_them_too(tmp_path):
    path = folder(tmp_path / "ds", **NAMED)
    dataset = get_train_dataset(
        path,
        batch_size=2,
        repeat=False,
        trust_code=[path],
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
    )
    found = sorted(text for batch in get_loader(dataset) for text in batch.text)
    assert found == [f"text {i}:json,txt" for i in range(4)]


def run(function, sender):
    sender.send(function({"txt": "a"}))


def test_functions_of_folders_travel_to_new_processes(tmp_path):
    path = folder(tmp_path / "ds", **NAMED)
    function, parts = LoadingCode(trust_code=[path]).of(path, NAMED)
    assert pickle.loads(pickle.dumps(function)) == function
    assert parts("jpg") is False
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(function, sender))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == {"text": "a:txt"}
    process.join(30)


def test_the_order_and_the_state_do_not_depend_on_where_a_folder_is(tmp_path):
    described = []
    for place in ("a", "b"):
        path = folder(tmp_path / place / "ds", **NAMED)
        loader, parts = LoadingCode(trust_code=[path]).of(path, NAMED)
        load = SampleLoader(sample_type=TextSample, sample_loader=loader, part_filter=parts)
        described.append(load.describe())
    assert described[0] == described[1]
    assert described[0]["sample_loader"] == "sample_loader.py:sample_loader"
    assert "sample_loader" not in SampleLoader(sample_type=TextSample).describe()


WRONG = {
    "../../outside.py": (UntrustedCodeError, "leads out of the folder"),
    "/etc/hostname:x": (UntrustedCodeError, "leads out of the folder"),
    "none.py": (DatasetError, "there is no file"),
    "sample_loader.py:none": (DatasetError, "has no function 'none'"),
    "broken.py": (DatasetError, "cannot be run: ZeroDivisionError"),
    "text.txt": (DatasetError, "is no Python file"),
    "linked.py": (UntrustedCodeError, "leads out of the folder"),
}


@pytest.mark.parametrize("named", WRONG)
def test_files_that_are_none(tmp_path, named):
    path = folder(tmp_path / "ds", sample_loader=named)
    (tmp_path / "outside.py").write_text("raise SystemExit")
    meta = path / ".nv-meta"
    (meta / "broken.py").write_text("1 / 0")
    (meta / "text.txt").write_text("")
    (meta / "linked.py").symlink_to(tmp_path / "outside.py")
    error, match = WRONG[named]
    modules = set(sys.modules)
    with pytest.raises(error, match=match):
        texts(path, trust_code=[path])
    assert not [each for each in set(sys.modules) - modules if each.endswith("broken")]


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({"sample_loader": 3}, "sample_loader: expected a file and its function"),
        ({"part_filter": {"a": 1}}, "part_filter: expected a list of parts"),
        ({"part_filter": [1]}, "part_filter: expected a list of parts"),
        ({**NAMED, "field_map": {"text": "txt"}}, "without a field_map"),
        (
            {"__module__": "megatron.energon", "__class__": "CrudeWebdataset", **NAMED}
            | {"sample_type": {"__module__": "megatron.energon", "__class__": "CrudeSample"}},
            "crude samples have none",
        ),
    ],
)
def test_dataset_files_that_say_something_else(tmp_path, named, match):
    path = folder(tmp_path / "ds", **named)
    with pytest.raises(DatasetError, match=match):
        texts(path, trust_code=[path])


def test_parts_that_are_left_out(tmp_path):
    typed = folder(tmp_path / "typed", field_map={"text": "txt,json"}, part_filter=["json"])
    with pytest.raises(EncoderError, match=r"declared as str, .* from txt,json"):
        texts(typed)
    crude = tmp_path / "crude"
    folder(crude)
    (crude / ".nv-meta" / "dataset.yaml").write_text(
        "{__module__: megatron.energon, __class__: CrudeWebdataset, part_filter: [txt]}"
    )
    samples = list(get_val_dataset(crude, split_part="train", batch_size=None))
    assert {name for name in samples[0] if not name.startswith("__")} == {"txt"}


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        ({"text": "a", "n": 1}, "returned the field 'n', which TextSample does not have"),
        ({}, "returned no text, which TextSample needs"),
        ("text", "returned a str, and no dict of fields"),
        (
            {"text": ["a"]},
            r"its value is list \['a'\], from what sample_loader returned",
        ),
    ],
)
def test_what_functions_must_return(tmp_path, returned, match):
    path = folder(tmp_path / "ds", field_map={"text": "txt"})
    with pytest.raises(EncoderError, match=match) as caught:
        texts(path, sample_loader=lambda raw: returned, part_filter=["txt"])
    assert "'000'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"trust_code": "/data"}, r"a list of folders, \['/data'\] for one"),
        ({"sample_loader": "file.py"}, "sample_loader is a function"),
        ({"sample_loader": {"a": 1}}, "sample_loader is a function"),
        ({"part_filter": "jpg"}, r"a list of parts, \['jpg'\]"),
    ],
)
def test_wrong_arguments(tmp_path, options, match):
    with pytest.raises(ConfigError, match=match):
        get_train_dataset(tmp_path, batch_size=1, **options)


def test_wrong_arguments_of_the_loader():
    for options, match in (
        ({"sample_loader": len, "field_map": {"text": "txt"}}, "give no field_map too"),
        ({"part_filter": "txt"}, "or a list of names"),
        ({"part_filter": [1]}, "or a list of names"),
    ):
        with pytest.raises(ConfigError, match=match):
            SampleLoader(sample_type=TextSample, **options)
    with pytest.raises(ConfigError, match="it has none"):
        SampleLoader(sample_type=CrudeSample, sample_loader=len)


def test_a_missing_function_is_found_in_the_file(tmp_path):
    (tmp_path / "code.py").write_text("value = 3")
    with pytest.raises(DatasetError, match="has no function 'value'"):
        FolderFunction(tmp_path / "code.py", "value")({})
