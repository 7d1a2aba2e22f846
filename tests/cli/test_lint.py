"""`energize lint` on folders with known faults: all of them are found, and nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from energize import prepare
from energize.cli.lint import Fault, FaultList
from tests.cli.commands import program, run
from tests.support.prepared import captions, classes, image_bytes
from tests.support.shards import packed
from tests.support.terminal import Terminal

BAD_IMAGES, BAD_TEXTS = range(3, 40, 10), range(5, 40, 20)


@pytest.fixture
def damaged(tmp_path):
    """Two shards of 40 samples with images and texts that cannot be decoded."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for shard in range(2):
        files = []
        for i in range(40):
            image = b"no image %d" % i if i in BAD_IMAGES else image_bytes(i)
            files.append((f"{shard}-{i:03d}.jpg", image))
            files.append((f"{shard}-{i:03d}.txt", b"\xff\xfe" if i in BAD_TEXTS else b"text"))
        (folder / f"s{shard}.tar").write_bytes(packed(files))
    options = {"sample_type": "CaptioningSample", "field_map": {"image": "jpg", "caption": "txt"}}
    prepare(folder, split_ratios={"train": 1, "val": 1}, workers=1, **options)
    return folder


def faulty(output):
    """Shard and key of each fault that --all tells of."""
    found = set()
    for line in output.splitlines():
        place, told, _ = line.partition(" (index ")
        if told:
            shard, _, key = place.rpartition("/")[2].partition(", sample ")
            found.add((shard, key.strip("'")))
    return found


def expected(shards=(0, 1)):
    return {(f"s{n}.tar", f"{n}-{i:03d}") for n in shards for i in {*BAD_IMAGES, *BAD_TEXTS}}


def test_a_sound_folder(tmp_path):
    folder = captions(tmp_path / "web", 80)
    shown = run("lint", folder)
    assert shown.splitlines() == [
        f"{folder} [train]: 60 samples, no faults",
        f"{folder} [val]: 20 samples, no faults",
        "No faults in 80 samples",
    ]


@pytest.mark.parametrize("parallel", [1, 3])
def test_every_fault_with_shard_and_key(damaged, parallel):
    shown = run("lint", damaged, "--all", "--parallel", parallel, code=1)
    assert faulty(shown) == expected()
    assert shown.splitlines()[-1] == "12 faults in 80 samples"


def test_faults_that_are_alike_are_told_once(damaged):
    shown = run("lint", damaged, code=1)
    kinds = [line for line in shown.splitlines() if ": DecodeError: " in line]
    assert [line.partition(":")[0] for line in kinds] == ["8 samples", "4 samples"]
    assert "'jpg'" in kinds[0]
    assert "'txt'" in kinds[1]
    assert "and 5 more" in shown
    assert f"{damaged}/s0.tar, sample '0-003' (index 3)" in shown


def test_splits_can_be_chosen(damaged):
    shown = run("lint", damaged, "--split-parts", "val", "--all", code=1)
    assert faulty(shown) == expected([1])
    assert "no split part 'vla'; did you mean 'val'" in run(
        "lint", damaged, "--split-parts", "vla", code=1
    )
    assert "names of splits" in run("lint", damaged, "--split-parts", ",", code=2)
    assert "does not exist" in run("lint", damaged / "none", code=2)


def test_a_folder_where_everything_is_damaged_fails(tmp_path):
    """Where Megatron-Energon ends with 0."""
    (tmp_path / "0.tar").write_bytes(packed([(f"{i}.jpg", b"damaged") for i in range(6)]))
    prepare(tmp_path, split_ratios={"train": 1}, sample_type="ImageSample", workers=1)
    shown = run("lint", tmp_path, code=1)
    assert "6 samples: DecodeError" in shown


def test_damaged_shards_and_indexes(tmp_path):
    folder = captions(tmp_path / "web", 40)
    shard = folder / "shard-001.tar"
    shard.write_bytes(shard.read_bytes()[:4000])
    (folder / "shard-002.tar").unlink()
    shown = run("lint", folder, "--all", code=1)
    assert f"{folder} [train]: 30 samples, 20 faults" in shown
    assert f"{folder} [val]: 10 samples, no faults" in shown
    grouped = run("lint", folder, code=1)
    assert grouped.count("10 samples: ShardError") == 2
    assert "cut off" in grouped
    assert "shard-002.tar: cannot be read (No such file or directory)" in grouped


def test_more_samples_than_a_shard_has_room_for_are_one_fault(tmp_path):
    folder = captions(tmp_path / "web", 40)
    info = folder / ".nv-meta/.info.json"
    counts = json.loads(info.read_text())
    counts["shard_counts"]["shard-001.tar"] = 2**31
    info.write_text(json.dumps(counts))
    shown = run("lint", folder, code=1)
    assert f"{folder}/shard-001.tar: .info.json counts 2147483648 samples, and neither" in shown


def test_repeated_keys_of_a_shard_that_was_copied(tmp_path):
    folder = captions(tmp_path / "web", 40)
    shutil.copy(folder / "shard-000.tar", folder / "shard-001.tar")
    shown = run("lint", folder, code=1)
    assert "shard-001.tar is not the shard that was prepared" in shown
    (folder / ".nv-meta/shards.json").unlink()  # as of a folder that Energon prepared
    shown = run("lint", folder, code=1)
    assert "Fault:" in shown
    assert "10 samples with the key of another one" in shown
    assert (
        f"{folder}/shard-000.tar, sample '000000' (index 0) and "
        f"{folder}/shard-001.tar, sample '000000' (index 0)" in shown
    )


def test_shards_of_several_splits_or_of_none_are_noted(tmp_path):
    folder = captions(tmp_path / "web", 40)
    (folder / ".nv-meta/other.yaml").write_text(
        "split_parts: {train: ['shard-00{0..1}.tar'], val: [shard-001.tar]}\nexclude: []\n"
    )
    shown = run("lint", folder, "--split-config", "other.yaml")
    assert "1 shard in several splits of other.yaml, shard-001.tar for example" in shown
    assert "2 shards in no split of other.yaml, shard-002.tar for example" in shown
    assert "No faults in 30 samples" in shown


def test_a_field_that_no_sample_has(tmp_path):
    folder = captions(tmp_path / "web", 20)
    (folder / ".nv-meta/wrong.yaml").write_text(
        "sample_type: {__module__: energize, __class__: CaptioningSample}\n"
        'field_map: {image: jpg, caption: "json[title]"}\n'
    )
    shown = run("lint", folder, "--dataset-config", "wrong.yaml", code=1)
    assert "20 samples: DataError: field 'caption' is read from json[title]" in shown
    (folder / ".nv-meta/wrong.yaml").write_text(
        "sample_type: {__module__: energize, __class__: CaptioningSample}\n"
        "field_map: {image: jpg, captoin: txt}\n"
    )
    shown = run("lint", folder, "--dataset-config", "wrong.yaml", code=1)
    assert "captoin" in shown
    assert "1 fault in 0 samples" in shown


def test_crude_folders_need_no_cookers(tmp_path):
    files = [("a.json", b'{"x": 1}'), ("b.json", b"{"), ("c.json", b"[]")]
    (tmp_path / "0.tar").write_bytes(packed(files))
    prepare(tmp_path, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    shown = run("lint", tmp_path, "--all", code=1)
    assert "0.tar, sample 'b' (index 1): DecodeError" in shown
    assert "1 fault in 3 samples" in shown


def test_json_lines(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"n": i}) + "\n" for i in range(50)))
    told = run("prepare", file)
    assert told.splitlines()[-1] == "Done. Found 50 samples."
    assert "No faults in 50 samples" in run("lint", file)
    file.write_text(file.read_text().replace('{"n": 17}', '{"n": 17,'))
    shown = run("lint", file, code=1)
    assert "1 fault in 50 samples" in shown
    assert "texts.jsonl" in shown
    assert "17" in shown
    bare = tmp_path / "bare.jsonl"
    bare.write_text("{}\n")
    assert f"energize prepare {bare}" in run("lint", bare, code=1)


def test_metadatasets(damaged, tmp_path):
    captions(tmp_path / "web", 40)
    classes(tmp_path / "classes", 20)
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: web, weight: 1}\n      - {path: classes, weight: 1}\n"
        "      - {path: damaged, weight: 1}\n      - {path: damaged, weight: 3}\n"
        "  val: {path: damaged, split_part: train}\n"
    )
    shown = run("lint", mix, "--all", code=1)
    assert faulty(shown) == expected([0])
    lines = shown.splitlines()
    assert f"{tmp_path}/web [train]: 30 samples, no faults" in lines
    assert f"{tmp_path}/classes [train]: 15 samples, no faults" in lines
    assert f"{damaged} [train]: 40 samples, 6 faults" in lines
    assert lines[-1] == "6 faults in 85 samples"
    assert "name their own" in run("lint", mix, "--split-config", "other.yaml", code=2)
    mix.write_text(mix.read_text().replace("path: web", "path: wbe"))
    shown = run("lint", mix, "--split-parts", "train", code=1)
    assert "mix.yaml:6" in shown
    assert "did you mean 'web'" in shown


@pytest.mark.jobs
def test_on_a_terminal_it_shows_how_far_it_is(damaged):
    terminal = Terminal("lint", damaged)
    assert terminal.answer([]) == 1
    assert "Reading samples" in terminal.shown
    assert "80/80" in terminal.shown


def test_faults_are_grouped_by_their_words():
    faults = FaultList()
    faults.add(
        Fault(f"s{i}.tar, sample 'k{i}' (index {i})", "DecodeError", f"sample 'k{i}': {text} {i}")
        for i in range(100)
        for text in ("bad", *(["worse"] if i % 10 == 0 else []))
    )
    lines = faults.lines()
    assert lines[0] == "100 samples: DecodeError: bad 0"
    assert lines[4] == "  and 97 more"
    assert lines[5] == "10 samples: DecodeError: worse 0"
    assert faults.count == 110


def test_values_of_other_types_than_their_fields_declare(tmp_path):
    texts = [b"yes" if i % 5 else b'["yes", "no"]' for i in range(100)]
    files = []
    for i, text in enumerate(texts):
        content = b'{"q": "why?", "a": %s}' % (text if i % 5 == 0 else b'"yes"')
        files += [(f"{i:03d}.jpg", image_bytes(i)), (f"{i:03d}.json", content)]
    (tmp_path / "0.tar").write_bytes(packed(files))
    fields = {"image": "jpg", "context": "json[q]", "answers": "json[a]"}
    prepare(
        tmp_path, split_ratios={"train": 1}, sample_type="VQASample", field_map=fields, workers=1
    )
    for parallel in (1, 2):
        shown = run("lint", tmp_path, "--parallel", parallel, code=1)
        assert (
            "80 samples: wrong type: the field 'answers' of VQASample is declared as "
            "list[str] | None, and its value is str 'yes'" in shown
        )
        assert shown.splitlines()[-1] == "80 faults in 100 samples"


@pytest.mark.jobs
def test_a_process_that_dies_is_an_error_that_names_its_samples(tmp_path):
    folder = captions(tmp_path / "web", 400)
    (tmp_path / "dies.py").write_text(
        "import os, signal\nfrom dataclasses import dataclass\nfrom energize import Sample\n\n\n"
        "@dataclass\nclass Deadly(Sample):\n    caption: str\n\n"
        "    def __post_init__(self):\n        if self.caption == 'caption 170':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (folder / ".nv-meta/deadly.yaml").write_text(
        "sample_type: {__module__: dies, __class__: Deadly}\nfield_map: {caption: txt}\n"
    )
    _, errors = program(
        "--import", "dies", "lint", folder, "--dataset-config", "deadly.yaml", "--parallel", 2,
        code=1, cwd=tmp_path,
    )  # fmt: skip
    assert f"samples 160 to 191 of {folder} [train] was killed" in errors


@pytest.mark.jobs
def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    folder = captions(tmp_path / "web", 40)
    command = [sys.executable, "-m", "energize.cli", "preview", str(folder), "-n", "20"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    running.stdout.readline()
    running.stdout.close()
    assert b"Traceback" not in running.stderr.read()
    running.stderr.close()
    running.wait(60)
