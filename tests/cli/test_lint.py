"""`energize lint` on folders with known faults: all of them are found, and nothing
else."""

import json
import shutil

import pytest

from energize import prepare
from tests.cli.commands import program, refused, run
from tests.support.columns import revalued
from tests.support.prepared import captions, classes, image_bytes
from tests.support.shards import packed

LINT = ("lint", "--parallel", 1)
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
            files.append(
                (f"{shard}-{i:03d}.txt", b"\xff\xfe" if i in BAD_TEXTS else b"text")
            )
        (folder / f"s{shard}.tar").write_bytes(packed(files))
    options = {
        "sample_type": "CaptioningSample",
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    prepare(folder, split_ratios={"train": 1, "val": 1}, workers=1, **options)
    return folder


def one_shard(folder, files, sample_type, **options):
    folder.mkdir(exist_ok=True)
    (folder / "0.tar").write_bytes(packed(files))
    prepare(
        folder, split_ratios={"train": 1}, sample_type=sample_type, workers=1, **options
    )
    return folder


@pytest.mark.parametrize("parallel", [1, 3])
def test_faults_with_shard_and_key_those_that_are_alike_once(damaged, parallel):
    shown = run("lint", damaged, "--parallel", parallel, code=1)
    kinds = [line for line in shown.splitlines() if ": DecodeError: " in line]
    assert [line.partition(":")[0] for line in kinds] == ["8 samples", "4 samples"]
    assert "'jpg'" in kinds[0]
    assert "'txt'" in kinds[1]
    for shard, key in ((0, "0-003"), (0, "0-013"), (0, "0-005"), (1, "1-005")):
        assert f"{damaged}/s{shard}.tar, sample '{key}' (index {int(key[2:])})" in shown
    assert "and 5 more" in shown
    assert f"{damaged} [train]: 40 samples, 6 faults" in shown
    assert shown.splitlines()[-1] == "12 faults in 80 samples"


def test_splits_can_be_chosen(damaged):
    shown = run(*LINT, damaged, "--split-parts", "val", code=1)
    assert "s1.tar" in shown
    assert "s0.tar" not in shown
    assert shown.splitlines()[-1] == "6 faults in 40 samples"
    refused(
        [
            (["--split-parts", "vla"], 1, "no split part 'vla'; did you mean 'val'"),
            (["--split-parts", ","], 2, "names of splits"),
        ],
        "lint", damaged,
    )  # fmt: skip
    refused([([damaged / "none"], 2, "does not exist")], "lint")


def test_damaged_shards_and_indexes(tmp_path):
    folder = captions(tmp_path / "web", 40)
    shard = folder / "shard-001.tar"
    shard.write_bytes(shard.read_bytes()[:4000])
    (folder / "shard-002.tar").unlink()
    shown = run(*LINT, folder, code=1)
    assert f"{folder} [train]: 30 samples, 20 faults" in shown
    assert f"{folder} [val]: 10 samples, no faults" in shown
    assert shown.count("10 samples: ShardError") == 2
    assert "cut off" in shown
    assert "shard-002.tar: cannot be read (No such file or directory)" in shown
    info = folder / ".nv-meta/.info.json"
    counts = json.loads(info.read_text())
    counts["shard_counts"]["shard-001.tar"] = 2**31
    info.write_text(json.dumps(counts))
    shown = run(*LINT, folder, code=1)
    assert (
        f"{folder}/shard-001.tar: .info.json counts 2147483648 samples, but the shard"
        in shown
    )


def test_repeated_keys_of_a_shard_that_was_copied(tmp_path):
    folder = captions(tmp_path / "web", 40)
    shutil.copy(folder / "shard-000.tar", folder / "shard-001.tar")
    assert "shard-001.tar is not the shard that was prepared" in run(
        *LINT, folder, code=1
    )
    (folder / ".nv-meta/shards.json").unlink()  # as of a folder that Energon prepared
    shown = run(*LINT, folder, code=1)
    assert "10 sample keys occur more than once" in shown
    assert "000000: in shard-000.tar, shard-001.tar" in shown
    assert "4 of 4 shards have no record of what was prepared" in shown


def test_fields(tmp_path):
    folder = captions(tmp_path / "web", 20)
    for fields, words in (
        (
            '{image: jpg, caption: "json[title]"}',
            "20 samples: DataError: field 'caption' is read from json[title]",
        ),
        ("{image: jpg, captoin: txt}", "1 fault in 0 samples"),
    ):
        (folder / ".nv-meta/wrong.yaml").write_text(
            "sample_type: {__module__: energize, __class__: CaptioningSample}\n"
            f"field_map: {fields}\n"
        )
        assert words in run(*LINT, folder, "--dataset-config", "wrong.yaml", code=1)


def test_samples_of_other_kinds(tmp_path):
    files = [("a.json", b'{"x": 1}'), ("b.json", b"{"), ("c.json", b"[]")]
    shown = run(*LINT, one_shard(tmp_path / "crude", files, "CrudeWebdataset"), code=1)
    assert "0.tar, sample 'b' (index 1)" in shown
    assert "1 fault in 3 samples" in shown
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"n": i}) + "\n" for i in range(50)))
    run("prepare", file)
    assert "No faults in 50 samples" in run(*LINT, file)
    file.write_text(file.read_text().replace('{"n": 17}', '{"n": 17,'))
    shown = run(*LINT, file, code=1)
    assert "1 fault in 50 samples" in shown
    assert "17" in shown
    (tmp_path / "bare.jsonl").write_text("{}\n")
    assert "No faults in 1 sample" in run(*LINT, tmp_path / "bare.jsonl")


def test_columns_are_compared_with_the_shards(tmp_path):
    folder = captions(tmp_path / "web", 40)
    (tmp_path / "mine.py").write_text(
        "def count(raw):\n    return len(raw['txt'].split())\n"
    )
    tokens = f"tokens={tmp_path / 'mine.py'}:count"
    run("prepare", folder, "--column", "size=size:txt", "--column", tokens)
    assert "No faults in 40 samples" in run("lint", folder, "--parallel", 1)
    revalued(folder, "size", {9: 3})
    shown = run("lint", folder, "--parallel", 1, code=1)
    assert "the column 'size' says something else of 1 of 40 samples" in shown


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
    lines = run(*LINT, mix, code=1).splitlines()
    assert f"{tmp_path}/web [train]: 30 samples, no faults" in lines
    assert f"{tmp_path}/classes [train]: 15 samples, no faults" in lines
    assert lines.count(f"{damaged} [train]: 40 samples, 6 faults") == 1
    assert lines[-1] == "6 faults in 85 samples"
    refused([(["--split-config", "other.yaml"], 2, "name their own")], "lint", mix)
    mix.write_text(mix.read_text().replace("path: web", "path: wbe"))
    shown = run(*LINT, mix, "--split-parts", "train", code=1)
    assert "mix.yaml:6" in shown
    assert "did you mean 'web'" in shown


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
    assert f"samples 160 to 191 of {folder} [train] was killed, and again" in errors


def test_loose_files_are_looked_at_as_they_are(tmp_path):
    root = tmp_path / "photos"
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            (root / part / label).mkdir(parents=True)
            (root / part / label / "0.jpg").write_bytes(image_bytes(0))
    assert "No faults in 4 samples" in run(*LINT, root)
    (root / "val" / "dog" / "0.jpg").write_bytes(b"no image")
    told = run(*LINT, root, code=1)
    assert "sample 'dog/0'" in told
    assert "1 fault in 4 samples" in told
    run("lint", root, "--tasks", 2, "--task", 0)
    assert sorted(each.name for each in root.iterdir()) == ["train", "val"]
