"""`energize prepare`: answers from a pipe, JSON keys, repeated keys, media, JSON lines."""

import io
import json
import struct
import tarfile

import pytest
import yaml
from PIL import Image

from energize.cli.prepare import numbered_types
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.stores import WebdatasetFileStore
from energize.data.webdataset import WebdatasetSource
from energize.preparation.fields import SAMPLE_TYPE_NAMES
from tests.cli.commands import program, run
from tests.support.peers import run_energon
from tests.support.prepared import image_bytes
from tests.support.shards import packed
from tests.support.tars import contents, unprepared, write_tar

SCRIPTED = "1,1,0\ny\n0\nY\njpg\ntxt\n"
"""What a script types into Megatron-Energon's prepare: ratios, yes, the first type, yes, parts."""


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds", counts=(3, 2))


@pytest.mark.jobs
def test_answers_from_a_pipe(folder):
    shown, _ = program("prepare", folder, stdin=SCRIPTED)
    assert shown.splitlines()[-1] == "Done"
    assert "Sample type (CaptioningSample): 0" in shown
    assert read_dataset_yaml(folder).field_map == {"image": "jpg", "caption": "txt"}
    assert read_splits(folder).parts["val"] == ("parts/d1.tar",)
    again = run("prepare", folder, stdin="y\n" + SCRIPTED.replace("1,1,0", "1,0,0"))
    assert again.splitlines()[-1] == "Done"
    assert len(read_splits(folder).parts["train"]) == 2


PEER = """
import inspect
import megatron.energon as energon
from megatron.energon.cli.main import main

types = inspect.getmembers(energon, lambda kind: isinstance(kind, type))
print("types", *[name for name, kind in types if issubclass(kind, energon.Sample)], flush=True)
main()
"""


@pytest.mark.energon
def test_answers_and_numbers_of_types_are_those_of_energon(folder, tmp_path):
    ours = unprepared(tmp_path / "ours", counts=(3, 2))
    run("prepare", ours, stdin=SCRIPTED)
    told = run_energon("prepare", folder, "--num-workers", "1", program=PEER, stdin=SCRIPTED)
    assert told.endswith("Done\n")
    for name in ("dataset.yaml", "split.yaml"):
        own, theirs = (yaml.safe_load((f / ".nv-meta" / name).read_text()) for f in (ours, folder))
        assert own == theirs
    assert read_info(ours) == read_info(folder)
    (names,) = [line.split()[1:] for line in told.splitlines() if line.startswith("types ")]
    numbered = numbered_types()
    types = [*names, "CrudeWebdataset"]
    assert {n: name for n, name in numbered.items() if n < len(types)} == {
        n: name for n, name in enumerate(types) if name != "Sample"
    }
    assert set(numbered.values()) == set(SAMPLE_TYPE_NAMES)


def test_an_answer_that_is_wrong_or_missing_writes_nothing(folder):
    before = contents(folder)
    shown, errors = program("prepare", folder, code=2)
    assert "Ratio of train, val, test" in shown
    assert errors.startswith("Error: ")
    for answers, words in (
        ("", "please give --split-ratio 8,1,1 or --split-parts"),
        ("1,1,0\n", "ended at the question 'Say in a dataset.yaml"),
        ("1,1,0\ny\n", "and --sample-type"),
        ("1,x\n", "the answer '1,x' to 'Ratio of train, val, test over 2 shards': split ratio"),
        ("1,1,0\nmaybe\n", "answer y or n"),
        ("1,1,0\ny\nCaptionSample\n", "did you mean 'CaptioningSample'"),
        ("1,1,0\ny\n6\n", "give one of the numbers"),
        ("1,1,0\ny\n0\ny\npng\n", "there is no part 'png'"),
    ):
        errors = run("prepare", folder, stdin=answers, code=2)
        assert errors.startswith("Error: ")
        assert words in errors
        assert contents(folder) == before


def test_no_dataset_yaml_is_an_answer_too(folder):
    shown = run("prepare", folder, stdin="1,0,0\nn\n")
    assert shown.splitlines()[-1] == "Done"
    assert not (folder / ".nv-meta/dataset.yaml").exists()


def test_a_json_key_that_is_not_there_is_told_before_shards_are_read(tmp_path):
    told = {"caption": {"en": "a", "de": "b"}, "url": "c", "width": 3}
    files = [(f"{i}.json", json.dumps(told).encode()) for i in range(5)]
    write_tar(tmp_path / "0.tar", files)
    write_tar(tmp_path / "1.tar", [(name, b"x" * 600) for name, _ in files])
    (tmp_path / "1.tar").write_bytes(b"damaged")
    options = ("prepare", tmp_path, "--split-ratio", "1", "--sample-type", "TextSample")
    before = contents(tmp_path)
    said = run(*options, "--field-map", '{"text": "json[captoin]"}', code=1)
    assert "json[captoin] leads nowhere: json is an object with the keys 'caption'" in said
    assert "the first 5 samples" in said
    said = run(*options, "--field-map", '{"text": "json[caption][ed]"}', code=1)
    assert "json[caption] is an object with the keys 'en', 'de'" in said
    said = run(*options, "--field-map", '{"text": "json[width][x]"}', code=1)
    assert "json[width] is a int" in said
    assert contents(tmp_path) == before
    # With the right key, or an alternative that is there, the shards are read, one is damaged.
    for right in ("json[caption][en]", "txt,json[captoin],json[url]"):
        said = run(*options, "--field-map", json.dumps({"text": right}), code=1)
        assert "1.tar" in said


def test_keys_that_only_later_samples_have(tmp_path):
    files = [(f"{i}.json", b"{}" if i < 5 else b'{"text": "a"}') for i in range(8)]
    write_tar(tmp_path / "0.tar", files)
    options = ("--sample-type", "TextSample", "--field-map", '{"text": "json[text]"}')
    run("prepare", tmp_path, "--split-ratio", "1", *options)
    assert "5 samples: DataError" in run("lint", tmp_path, code=1)


@pytest.mark.jobs
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_repeated_keys_are_made_unique(tmp_path, kind):
    names = ["a", "b", f"{'long' * 30}/c"] if kind != tarfile.USTAR_FORMAT else ["a", "b"]
    for shard in range(2):
        files = [(f"{name}.txt", f"{name} {shard}".encode()) for name in names]
        write_tar(tmp_path / "ds/parts" / f"{shard}.tar", files, kind)
    folder = tmp_path / "ds"
    options = ("prepare", folder, "--split-ratio", "1", "--sample-type", "TextSample")
    assert "--fix-duplicates" in run(*options, code=1)
    shown = run(*options, "--fix-duplicates", "--workers", "2")
    assert "2 shards were written anew" in shown
    found = {sample["__key__"]: sample["txt"].decode() for sample in WebdatasetSource(folder)}
    assert found == {
        f"parts/{shard}.tar/{name}": f"{name} {shard}" for shard in range(2) for name in names
    }
    before = contents(folder)
    assert "written anew" not in run(*options, "--fix-duplicates", "--force-overwrite")
    assert contents(folder) == before
    assert "No faults" in run("lint", folder)


@pytest.mark.energon
def test_energon_reads_what_was_made_unique(tmp_path):
    for shard in range(2):
        files = [(f"{name}.txt", f"{name} {shard}".encode()) for name in "abc"]
        write_tar(tmp_path / "parts" / f"{shard}.tar", files)
    run(
        "prepare", tmp_path, "--split-ratio", "1", "--sample-type", "TextSample",
        "--fix-duplicates",
    )  # fmt: skip
    read = run_energon(
        tmp_path,
        program="import sys\nfrom megatron.energon import *\n"
        "config = WorkerConfig(rank=0, world_size=1, num_workers=0)\n"
        "ds = get_val_dataset(sys.argv[1], split_part='train', worker_config=config, "
        "batch_size=None)\n"
        "print(*sorted(s.__key__ + '=' + s.text for s in get_loader(ds)), sep='\\n')",
    )
    assert read.split("\n")[:-1] == [f"parts/{n}.tar/{k}={k} {n}" for n in range(2) for k in "abc"]


def test_media_metadata(tmp_path):
    folder = tmp_path / "ds"
    image = io.BytesIO()
    Image.new("RGB", (31, 17)).save(image, "PNG")
    files = [("a.png", image.getvalue()), ("b.jpg", image_bytes(1)), ("c.txt", b"text")]
    write_tar(folder / "0.tar", files)
    options = ("--split-ratio", "1", "--skip-dataset-yaml")
    run("prepare", folder, *options, "--media-metadata-by-glob", "*.png")
    store = WebdatasetFileStore(folder)
    assert (store.get_media_metadata("a.png").width, store.get_media_metadata("a.png").height) == (
        31, 17,
    )  # fmt: skip
    shown = run("prepare-media", folder, "--media-metadata-by-extension")
    assert shown.splitlines()[-1] == "Done. Stored metadata for 2 files."
    assert WebdatasetFileStore(folder).get_media_metadata("b.jpg").width == 32
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "x.png").write_bytes(image.getvalue())
    (plain / "y.png").write_bytes(b"\x89PNG damaged")
    shown = run("prepare-media", plain, "--media-metadata-by-header", code=1)
    assert "1 damaged file, without metadata" in shown
    assert "y.png" in shown
    assert shown.splitlines()[-1] == "Done. Stored metadata for 1 files."


def test_wrong_options_for_media(tmp_path):
    (tmp_path / "x.jsonl").write_text("{}\n")
    both = ("--media-metadata-by-header", "--media-metadata-by-extension")
    assert "give one of" in run("prepare-media", tmp_path, *both, code=2)
    assert "give one of" in run("prepare", tmp_path, *both, code=2)
    assert "say which files are media" in run("prepare-media", tmp_path, code=2)
    assert "is a file" in run("prepare-media", tmp_path / "x.jsonl", both[0], code=2)
    assert "does not exist" in run("prepare-media", tmp_path / "none", both[0], code=2)
    assert "use prepare-media" in run("prepare", tmp_path, "--tar-index-only", both[0], code=2)
    assert "only folders have" in run("prepare", tmp_path / "x.jsonl", both[0], code=2)


def test_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    shown = run("prepare", file)
    assert shown.splitlines()[-1] == "Done. Found 2 samples."
    index = (tmp_path / "a.jsonl.idx").read_bytes()
    assert struct.unpack("<3Q", index) == (0, 10, 19)
    assert "2 samples, 19 B" in run("info", file)
    file.write_text('{"n": 1}\n{"n": \n')
    assert "line 2" in run("prepare", file, code=1)
    said = run("prepare", write_tar(tmp_path / "0.tar", []), code=2)
    assert "0.tar is a file" in said
    assert "of tar shards give the folder" in said


def test_a_shard_that_is_damaged_is_not_touched(tmp_path):
    write_tar(tmp_path / "0.tar", [("a.txt", b"1")])
    (tmp_path / "1.tar").write_bytes(packed([("a.txt", b"1")])[:700])
    before = contents(tmp_path)
    options = ("prepare", tmp_path, "--split-ratio", "1", "--skip-dataset-yaml")
    assert "1.tar" in run(*options, "--fix-duplicates", code=1)
    assert contents(tmp_path) == before
