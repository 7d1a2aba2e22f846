"""The command line: options, questions on a real terminal, errors as one message."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from energize.cli.main import app
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from tests.support.tars import contents, samples, unprepared, write_tar
from tests.support.terminal import Terminal


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds", counts=(3, 2, 4, 1))


def run(*arguments, code=0):
    """What is printed, outputs and errors apart."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stdout if code == 0 else done.stderr


def test_version_and_help():
    assert run("--version").startswith("energize 0.")
    assert "prepare" in run("--help")
    assert "--split-ratio" in run("prepare", "--help")


def test_prepare_with_options(folder):
    shown = run(
        "prepare", folder, "--non-interactive", "--split-ratio", "2,1,1", "--sample-type",
        "CaptioningSample", "--field-map", '{"image": "png,jpg", "caption": "txt"}',
        "--num-workers", "2", "--exclude", "d0",
    )  # fmt: skip
    assert "Indexed 7 samples in 3 shards" in shown
    assert list(read_info(folder).shard_counts) == [f"parts/d{i}.tar" for i in (1, 2, 3)]
    assert read_dataset_yaml(folder).field_map == {"image": "png,jpg", "caption": "txt"}


def test_prepare_with_patterns_and_other_options(folder):
    shown = run(
        "prepare", folder, "--split-parts", "train:parts/d[01]", "--split-parts",
        "train:parts/d2", "--split-parts", "val:parts/d3", "--sample-type", "CrudeWebdataset",
        "--dataset-yaml-name", "crude.yaml", "--sqlite", "--workers", "1", "--no-progress",
    )  # fmt: skip
    assert "crude" in shown
    assert read_splits(folder).parts["train"] == tuple(f"parts/d{i}.tar" for i in range(3))
    assert read_dataset_yaml(folder, "crude.yaml").sample_class == "CrudeWebdataset"
    assert (folder / ".nv-meta/index.sqlite").exists()


def test_prepare_again(folder):
    options = ("prepare", folder, "--split-ratio", "1", "--skip-dataset-yaml")
    run(*options)
    assert "--force-overwrite" in run(*options, "--non-interactive", code=1)
    assert "please give --force-overwrite" in run(*options, code=2)
    run(*options, "--force-overwrite", "--shuffle-tars")
    before = contents(folder)
    (folder / "parts/d1.tar.idx").unlink()
    run("prepare", folder, "--tar-index-only")
    assert contents(folder) == before


def test_notes_are_shown(folder):
    shown = run("prepare", folder, "--split-parts", "train:parts/d0", "--sample-type", "TextSample")
    assert "Note: 3 shards in no split" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["--split-ratio", "--split-parts", "--sample-type", "--skip-dataset-yaml"]),
        (["--split-ratio", "1"], ["--sample-type"]),
        (["--sample-type", "TextSample"], ["--split-ratio"]),
        (["--split-ratio", "a,b"], ["split ratio", "'a,b'"]),
        (["--split-ratio", "1,1,1,1"], ["split ratio"]),
        (["--split-parts", "train"], ["--split-parts", "SPLIT:PATTERN", "'train'"]),
        (["--sample-type", "TextSampel"], ["did you mean 'TextSample'"]),
        (["--sample-type", "TextSample", "--field-map", "{"], ["--field-map", "JSON"]),
        (["--sample-type", "TextSample", "--field-map", '{"text": 1}'], ["--field-map"]),
        (
            ["--split-ratio", "8,1,1", "--skip-dataset-yaml"],
            ["4 shards", "none is left for val"],
        ),
        (["--split-ratio", "1", "--skip-dataset-yaml", "--workers", "0"], ["workers", "got 0"]),
        (["--tar-index-only"], ["is not a prepared dataset"]),
    ],
)
def test_errors_are_one_message_and_write_nothing(folder, options, words):
    before = contents(folder)
    wrong_data = {"--tar-index-only", "8,1,1"}.intersection(options)
    told = run("prepare", folder, "--non-interactive", *options, code=1 if wrong_data else 2)
    assert told.startswith("Error: ")
    for word in words:
        assert word in told
    assert contents(folder) == before


def test_a_damaged_shard_is_named(folder):
    (folder / "parts/d2.tar").write_bytes(b"garbage" * 500)
    told = run("prepare", folder, "--split-ratio", "1", "--skip-dataset-yaml", code=1)
    assert "parts/d2.tar" in told


def test_debug_shows_the_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "energize.cli", "--debug", "info", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "NotPreparedError" in done.stderr


def test_info(folder):
    told = run("info", folder, code=1)
    assert f"energize prepare {folder}" in told
    run("prepare", folder, "--split-ratio", "2,1,1", "--sample-type", "CaptioningSample")
    shown = run("info", folder)
    assert "10 samples in 4 shards" in shown
    assert [line.split()[1:8:2] for line in shown.splitlines() if " val " in line] == [
        ["val", "1", "4", "40.0"]
    ]
    assert "caption from txt" in shown
    (folder / ".nv-meta/dataset.yaml").unlink()
    assert "no type yet" in run("info", folder)
    (folder / "parts/d1.tar").unlink()
    assert "parts/d1.tar is missing" in run("info", folder, code=1)


def test_questions_with_the_proposed_answers(folder):
    terminal = Terminal("prepare", folder)
    dialogue = [
        ("Ratio", ""),
        ("dataset.yaml", ""),
        ("Sample type", ""),
        ("Proposed: image from jpg, caption from txt", ""),
        ("image", ""),
        ("caption", ""),
    ]
    assert terminal.answer(dialogue) == 0, terminal.shown
    assert "00000000" in terminal.shown
    assert "txt 0 0" in terminal.shown
    assert "Indexing shards" in terminal.shown
    assert {part: len(s) for part, s in read_splits(folder).parts.items()} == {
        "train": 2,
        "val": 1,
        "test": 1,
    }
    config = read_dataset_yaml(folder)
    assert config.sample_class == "CaptioningSample"
    assert config.field_map == {"image": "jpg", "caption": "txt"}


def test_questions_with_wrong_answers_are_asked_again(tmp_path):
    files = [("0.jpg", b"image"), ("0.json", json.dumps({"question": "[why]?"}).encode())]
    write_tar(tmp_path / "ds/[a].tar", files)
    terminal = Terminal("prepare", tmp_path / "ds", "--split-ratio", "1")
    dialogue = [
        ("dataset.yaml", "maybe"),
        ("answer y or n", "y"),
        ("Sample type (ImageSample)", "VQASampl"),
        ("did you mean 'VQASample'", "6"),
        ("one of the numbers", "VQASample"),
        ("Say for each field", "y"),
        ("image (jpg)", "png"),
        ("no part 'png'", "jpg"),
        ("context (json[question])", "json["),
        ("keys in brackets", "json[qestion]"),
        ("an object with the keys 'question'", "json[question]"),
        ("answers (- for none)", ""),
        ("answer_weights (- for none)", "-"),
    ]
    assert terminal.answer(dialogue) == 0, terminal.shown
    assert "[why]?" in terminal.shown
    assert read_dataset_yaml(tmp_path / "ds").field_map == {
        "image": "jpg",
        "context": "json[question]",
    }


def test_only_what_was_not_given_is_asked(folder):
    options = ("--sample-type", "CrudeWebdataset")
    run("prepare", folder, "--split-ratio", "1", *options)
    before = contents(folder)
    terminal = Terminal("prepare", folder, *options)
    assert terminal.answer([("Prepare it again?", "n")]) == 1
    assert contents(folder) == before
    terminal = Terminal("prepare", folder, *options)
    dialogue = [
        ("Prepare it again?", "y"),
        ("Ratio", "9,9,9,9"),
        ("three numbers", "8,1,1"),
        ("none is left for val", "1,1,0"),
    ]
    assert terminal.answer(dialogue) == 0
    assert "Sample type" not in terminal.shown
    assert len(read_splits(folder).parts["val"]) == 2


@pytest.mark.jobs
def test_an_interrupt_writes_nothing(tmp_path):
    folder = tmp_path / "ds"
    for shard in range(8):
        write_tar(folder / f"{shard}.tar", samples(shard, 2500))
    before = contents(folder)
    command = [sys.executable, "-m", "energize.cli", "prepare", str(folder), "--split-ratio", "1"]
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
