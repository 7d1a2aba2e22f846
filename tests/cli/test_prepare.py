"""`energize prepare`: options, questions, columns, media, JSON lines."""

import io
import json
import os
import signal
import struct
import subprocess
import sys

import pytest
import yaml
from PIL import Image

from energize import WebdatasetSource
from energize.cli.prepare import numbered_types
from energize.data.columns import read_columns
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.stores import WebdatasetFileStore
from energize.preparation.fields import SAMPLE_TYPE_NAMES
from tests.cli.commands import program, refused, run
from tests.support.peers import run_energon
from tests.support.prepared import image_bytes
from tests.support.tars import contents, samples, unprepared, write_tar
from tests.support.terminal import Terminal

SCRIPTED = "1,1,0\ny\n0\nY\njpg\ntxt\n"
"""What a script types into Megatron-Energon's prepare: ratios, yes, the first type,
yes, parts."""

RATIO, TEXT = ("--split-ratio", "1"), ("--sample-type", "TextSample")


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds", counts=(3, 2))


def test_options(tmp_path):
    folder = unprepared(tmp_path / "ds", counts=(3, 2, 4, 1))
    shown = run(
        "prepare", folder, "--non-interactive", "--split-ratio", "2,1,1", "--sample-type",
        "CaptioningSample", "--field-map", '{"image": "png,jpg", "caption": "txt"}',
        "--num-workers", "2", "--exclude", "d0",
    )  # fmt: skip
    assert "Indexed 7 samples in 3 shards" in shown
    assert list(read_info(folder).shard_counts) == [
        f"parts/d{i}.tar" for i in (1, 2, 3)
    ]
    assert read_dataset_yaml(folder).field_map == {"image": "png,jpg", "caption": "txt"}
    shown = run(
        "prepare", folder, "--split-parts", "train:parts/d[01]", "--split-parts",
        "train:parts/d2", "--sample-type", "CrudeWebdataset", "--force-overwrite",
        "--dataset-yaml-name", "crude.yaml", "--sqlite", "--workers", "1", "--no-progress",
    )  # fmt: skip
    assert "Note: 1 shard in no split" in shown
    assert read_splits(folder).split_parts["train"] == tuple(
        f"parts/d{i}.tar" for i in range(3)
    )
    assert read_dataset_yaml(folder, "crude.yaml").sample_class == "CrudeWebdataset"
    assert (folder / ".nv-meta/index.sqlite").exists()


def test_a_prepared_folder(folder):
    options = ("prepare", folder, *RATIO, "--skip-dataset-yaml")
    run(*options)
    refused(
        [(["--non-interactive"], 1, "--force-overwrite"), ([], 1, "--force-overwrite")],
        *options,
    )
    before = contents(folder)
    (folder / "parts/d1.tar.idx").unlink()
    run("prepare", folder, "--tar-index-only")
    assert contents(folder) == before
    run(*options, "--force-overwrite", "--shuffle-tars")


def test_errors_are_one_message_and_write_nothing(folder):
    before = contents(folder)
    refused(
        [
            ([], 2, "--split-ratio", "--split-parts", "--sample-type", "--skip-dataset-yaml"),
            (RATIO, 2, "--sample-type"),
            (TEXT, 2, "--split-ratio"),
            (["--split-ratio", "a,b"], 2, "split ratio", "'a,b'"),
            (["--split-ratio", "1,1,1,1"], 2, "split ratio"),
            (["--split-parts", "train"], 2, "--split-parts", "'train'"),
            (["--sample-type", "TextSampel"], 2, "did you mean 'TextSample'"),
            ([*TEXT, "--field-map", "{"], 2, "--field-map", "JSON"),
            ([*TEXT, "--field-map", '{"text": 1}'], 2, "--field-map"),
            (["--tar-index-only"], 1, "is not a prepared dataset"),
        ],
        "prepare", folder, "--non-interactive",
    )  # fmt: skip
    assert contents(folder) == before
    write_tar(folder / "parts/d0.tar", [("a.txt", b"1")])
    (folder / "parts/d1.tar").write_bytes(b"garbage" * 500)
    before = contents(folder)
    options = ("prepare", folder, *RATIO, "--skip-dataset-yaml", "--fix-duplicates")
    assert "parts/d1.tar" in run(*options, code=1)
    assert contents(folder) == before


def test_answers_from_a_pipe(folder):
    assert run("prepare", folder, stdin=SCRIPTED).splitlines()[-1] == "Done"
    assert read_dataset_yaml(folder).field_map == {"image": "jpg", "caption": "txt"}
    assert read_splits(folder).split_parts["val"] == ("parts/d1.tar",)
    run("prepare", folder, stdin="y\n1,0,0\nn\n")
    assert len(read_splits(folder).split_parts["train"]) == 2


def test_an_answer_that_is_wrong_or_missing_writes_nothing(folder):
    before = contents(folder)
    for answers, code, words in (
        ("", 2, "please give --split-ratio 8,1,1 or --split-parts"),
        ("1,1,0\n", 2, "the input ended before the last answer"),
        ("1,x\n", 2, "got '1,x'"),
        ("1,1,0\nmaybe\n", 2, "the input ended"),
        ("1,1,0\ny\nCaptionSample\n", 2, "did you mean 'CaptioningSample'"),
        ("1,1,0\ny\n99\n", 2, "must be one of the numbers"),
        ("1,1,0\ny\n0\ny\npng\ntxt\n", 1, "no sample has 'png' for 'image'"),
    ):
        assert words in run("prepare", folder, stdin=answers, code=code), answers
        assert contents(folder) == before


@pytest.mark.jobs
def test_a_person_is_asked_again(tmp_path):
    files = [
        ("0.jpg", b"image"),
        ("0.json", json.dumps({"question": "[why]?"}).encode()),
    ]
    write_tar(tmp_path / "ds/[a].tar", files)
    terminal = Terminal("prepare", tmp_path / "ds")
    dialogue = [
        ("Ratio", "9,9,9,9"),
        ("three numbers", ""),
        ("dataset.yaml", "maybe"),
        ("invalid input", "y"),
        ("Sample type [ImageSample]", "VQASampl"),
        ("did you mean 'VQASample'", "VQASample"),
        ("Say for each field", "y"),
        ("image [jpg]", "jpg"),
        ("context [json[question]]", ""),
        ("answers (- for none)", ""),
        ("answer_weights (- for none)", "-"),
    ]
    assert terminal.answer(dialogue) == 0, terminal.shown
    assert "[why]?" in terminal.shown
    assert "Indexed 1 sample" in terminal.shown
    fields = {"image": "jpg", "context": "json[question]"}
    assert read_dataset_yaml(tmp_path / "ds").field_map == fields
    before = contents(tmp_path / "ds")
    terminal = Terminal("prepare", tmp_path / "ds", *RATIO)
    assert terminal.answer([("Prepare it again?", "n")]) == 1
    assert contents(tmp_path / "ds") == before


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
    told = run_energon(
        "prepare", folder, "--num-workers", "1", program=PEER, stdin=SCRIPTED
    )
    assert told.endswith("Done\n")
    for name in ("dataset.yaml", "split.yaml"):
        own, theirs = (
            yaml.safe_load((f / ".nv-meta" / name).read_text()) for f in (ours, folder)
        )
        if name == "split.yaml":  # of which it writes parts without shards, too
            theirs["split_parts"] = {
                part: of for part, of in theirs["split_parts"].items() if of
            }
        assert own == theirs
    assert read_info(ours) == read_info(folder)
    (names,) = [
        line.split()[1:] for line in told.splitlines() if line.startswith("types ")
    ]
    numbered = numbered_types()
    types = [*names, "CrudeWebdataset"]
    assert {n: name for n, name in numbered.items() if n < len(types)} == {
        n: name for n, name in enumerate(types) if name != "Sample"
    }
    assert set(numbered.values()) == set(SAMPLE_TYPE_NAMES)


def test_media_metadata(tmp_path):
    folder, plain = tmp_path / "ds", tmp_path / "plain"
    image = io.BytesIO()
    Image.new("RGB", (31, 17)).save(image, "PNG")
    write_tar(
        folder / "0.tar", [("a.png", image.getvalue()), ("b.jpg", image_bytes(1))]
    )
    run(
        "prepare",
        folder,
        *RATIO,
        "--skip-dataset-yaml",
        "--media-metadata-by-glob",
        "*.png",
    )
    media = WebdatasetFileStore(folder).get_media_metadata("a.png")
    assert (media.width, media.height) == (31, 17)
    plain.mkdir()
    (plain / "x.png").write_bytes(image.getvalue())
    (plain / "y.png").write_bytes(b"\x89PNG damaged")
    shown = run("prepare-media", plain, "--media-metadata-by-header", code=1)
    assert "1 damaged file, without metadata" in shown
    assert "y.png" in shown
    file, header = tmp_path / "x.jsonl", "--media-metadata-by-header"
    file.write_text("{}\n")
    refused(
        [
            ([tmp_path, header, "--media-metadata-by-extension"], 2, "exactly one of"),
            ([tmp_path], 2, "exactly one of"),
            ([file, header], 2, "is a file"),
            ([tmp_path / "none", header], 2, "does not exist"),
        ],
        "prepare-media",
    )
    refused([([file], 2, "only folders"), ([tmp_path, "--tar-index-only"], 2, "prepare-media")],
            "prepare", header)  # fmt: skip


def test_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    assert run("prepare", file).splitlines()[-1] == "Done. Found 2 samples."
    assert struct.unpack("<3Q", (tmp_path / "a.jsonl.idx").read_bytes()) == (0, 10, 19)
    assert "2 samples, 19 bytes" in run("info", file)
    file.write_text('{"n": 1}\n{"n": \n')
    refused([([file], 1, "line 2")], "prepare")
    refused([([file, "--column", "n=size:json"], 1, "do not match")], "prepare")
    refused(
        [([write_tar(tmp_path / "0.tar", [])], 2, "0.tar is neither", "folder")],
        "prepare",
    )


@pytest.mark.jobs
def test_an_interrupt_writes_nothing(tmp_path):
    folder = tmp_path / "ds"
    for shard in range(8):
        write_tar(folder / f"{shard}.tar", samples(shard, 2500))
    before = contents(folder)
    command = [sys.executable, "-m", "energize", "prepare", str(folder), *RATIO]
    process = subprocess.Popen(
        [*command, "--skip-dataset-yaml", "--workers", "2"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    while not list(folder.glob("*.tmp")):
        assert process.poll() is None, process.stderr.read()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert contents(folder) == before


# Columns


def worded(folder, count=20):
    """Samples whose texts have 1 to 4 words, and a quality, which sample 005 lacks."""
    files = []
    for i in range(count):
        files.append((f"{i:03d}.txt", b"word " * (i % 4 + 1)))
        known = {} if i == 5 else {"quality": ["high", "low"][i % 3 == 0]}
        files.append((f"{i:03d}.json", json.dumps(known).encode()))
    write_tar(folder / "0.tar", files)
    return folder


CRUDE = ("--sample-type", "CrudeWebdataset", "--non-interactive")


def test_columns(tmp_path):
    folder = worded(tmp_path / "f")
    (tmp_path / "mine.py").write_text(
        "def count(raw):\n    return len(raw['txt'].split())\n"
    )
    columns = [f"tokens={tmp_path / 'mine.py'}:count", "quality=json[quality]"]
    options = [part for each in columns for part in ("--column", each)]
    out = run("prepare", folder, *RATIO, *CRUDE, *options)
    assert "Columns of 20 samples:" in out
    assert "1 to 4, mean 2.5" in out
    assert "high: 12, low: 7, no value: 1" in out
    assert (
        "Note: column 'quality': 1 of 20 samples have no value and are without a word"
        in out
    )
    assert WebdatasetSource(folder).column("tokens").values.tolist() == [
        i % 4 + 1 for i in range(20)
    ]
    index = (folder / "0.tar.idx").stat().st_mtime_ns
    given = [
        "--column",
        "q=json[quality]",
        "--column-default",
        "q=unknown",
        "--workers",
        2,
    ]
    assert "were given 'unknown'" in run("prepare", folder, *given)
    assert (folder / "0.tar.idx").stat().st_mtime_ns == index
    shown = run("info", folder)
    assert "unknown: 1" in shown
    assert "json[quality]" in shown
    assert "Wrote checksums of 20 samples" in run("prepare", folder, "--checksums")
    before = read_columns(folder)
    refused(
        [
            (["size"], 2, "expected NAME=VALUE", "'size'"),
            (["a=size:txt", "--column", "a=len:txt"], 2, "'a' is given twice"),
            (["n=siz:txt"], 2, "'siz' cannot be imported", "did you mean 'size'"),
            (["n=image:widht"], 2, "did you mean 'width'"),
            (["n=json:loads_"], 2, "json has no 'loads_'; did you mean 'loads'"),
            (["n=size:txt", "--column-default", "m=3"], 2, "m"),
            (["n=size:txt", *RATIO], 2, "prepared already"),
        ],
        "prepare", folder, "--column",
    )  # fmt: skip
    assert read_columns(folder) == before
    run(
        "prepare",
        folder,
        *RATIO,
        *CRUDE,
        "--force-overwrite",
        "--column",
        "size=len:txt",
    )
    assert read_columns(folder).measured == {"size": "len:txt"}


@pytest.mark.jobs
def test_debug_shows_the_traceback(tmp_path):
    _, errors = program("--debug", "info", tmp_path, code=1)
    assert "NotPreparedError" in errors
