"""`energize preview` and `energize info`: what is there, in a terminal and on a pipe."""

import io
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from energize import prepare
from energize.cli.preview import drawn, pictures_of
from tests.cli.commands import program, run
from tests.support.prepared import captions, classes
from tests.support.shards import packed
from tests.support.terminal import Terminal


def mixed(folder):
    captions(folder / "web", 40)
    classes(folder / "classes", 20)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"n": i}) + "\n" for i in range(7)))
    run("prepare", folder / "texts.jsonl")
    mix = folder / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: web, weight: 1}\n      - {path: classes, weight: 3}\n"
        "  val: {path: web}\n  lines: {path: texts.jsonl}\n"
    )
    return mix


def test_a_preview_on_a_pipe(tmp_path):
    folder = captions(tmp_path / "web", 40)
    shown = run("preview", folder, "-n", "2", "--split-parts", "val")
    lines = shown.splitlines()
    assert lines[0] == f"{folder} [val], sample 0 of 10"
    assert lines[1] == "  __key__ (str): '000030'"
    assert "shape=torch.Size([3, 24, 32])" in lines[2]
    assert lines[2].endswith(", 32 x 24 pixels")
    assert all(len(line) <= 34 and set(line) <= set(" ░▒▓█") for line in lines[3:15])
    assert lines[15] == "  caption (str): 'caption 30'"
    assert shown.count(" of 10\n") == 2
    assert "\x1b" not in shown


def test_without_a_count_a_pipe_gets_a_few_of_each_split(tmp_path):
    shown = run("preview", captions(tmp_path / "web", 40), stdin="n\n")
    assert [shown.count(f"[{split}], sample 2 of") for split in ("train", "val")] == [1, 1]
    assert "sample 3 of" not in shown


@pytest.mark.jobs
def test_a_person_is_asked_whether_to_go_on(tmp_path):
    folder = captions(tmp_path / "web", 40)
    terminal = Terminal("preview", folder)
    dialogue = [("'caption 0'", ""), ("'caption 1'", "y"), ("Continue? [y/n] (y):", "n")]
    assert terminal.answer(dialogue) == 0
    assert "sample 2 of" in terminal.shown
    assert "sample 3 of" not in terminal.shown
    assert "▀" * 32 in terminal.shown
    assert "░" not in terminal.shown


def test_all_kinds_of_data(tmp_path):
    mix = mixed(tmp_path)
    shown = run("preview", mix, "-n", 1)
    assert shown.count(", sample 0 of ") == 4
    assert f"{tmp_path}/texts.jsonl, sample 0 of 7" in shown
    assert "json (dict): {'n': 0}" in shown
    assert "label (int): 0" in shown
    crude = tmp_path / "crude"
    crude.mkdir()
    (crude / "0.tar").write_bytes(packed([("a.json", b'{"x": [1, 2]}'), ("a.bin", b"x" * 300)]))
    prepare(crude, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    shown = run("preview", crude)
    assert "'x':" in shown
    assert "(and 236 more bytes)" in shown


def test_a_sample_that_cannot_be_used_is_shown_as_that(tmp_path):
    (tmp_path / "0.tar").write_bytes(packed([("a.txt", b"\xff"), ("b.txt", b"good")]))
    prepare(tmp_path, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    shown = run("preview", tmp_path)
    assert "cannot be used" in shown
    assert "0.tar, sample 'a' (index 0)" in shown
    assert "text (str): 'good'" in shown


def test_pictures_keep_their_proportions_and_are_never_enlarged():
    for height, width in ((24, 32), (400, 100), (100, 4000), (5, 5)):
        console = Console(width=80, file=io.StringIO(), color_system=None)
        lines = drawn(Image.new("RGB", (width, height), "white"), console).plain.split("\n")
        assert {len(line) for line in lines} == {len(lines[0])}
        assert len(lines) <= 24
        assert len(lines[0]) <= min(80, width)
        assert abs(2 * len(lines) / len(lines[0]) / (height / width) - 1) < 0.5 or len(lines) == 1
        assert set("".join(lines)) == {"█"}


def test_pictures_in_colour_have_two_pixels_to_a_character():
    console = Console(width=80, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    picture = Image.new("RGB", (4, 4))
    picture.paste((255, 0, 0), (0, 0, 4, 1))
    picture.paste((0, 0, 255), (0, 1, 4, 2))
    console.print(drawn(picture, console))
    first = console.file.getvalue().splitlines()[0]
    assert first.count("▀") == 4
    assert "38;2;255;0;0;48;2;0;0;255" in first


def test_what_is_a_picture():
    grey = np.zeros((8, 9), dtype=np.uint8)
    assert [each.size for each in pictures_of(grey)] == [(9, 8)]
    assert [each.size for each in pictures_of(torch.rand(3, 8, 9))] == [(9, 8)]
    assert [each.size for each in pictures_of(np.zeros((8, 9, 4), dtype=np.uint8))] == [(9, 8)]
    assert len(pictures_of(torch.zeros(5, 1, 8, 9, dtype=torch.uint8))) == 5
    assert pictures_of(torch.rand(3, 8, 9).bfloat16())[0].size == (9, 8)
    for other in (
        torch.zeros(8, 9, dtype=torch.int64),
        torch.full((3, 8, 9), 2.5),
        torch.full((3, 8, 9), float("nan")),
        torch.zeros(2, 3, 4, 5, 6),
        torch.zeros(0, 3, 8, 9),
        torch.rand(3, 1, 2),
        torch.rand(12),
        "text",
        None,
    ):
        assert pictures_of(other) == []


def test_info_of_a_metadataset(tmp_path):
    mix = mixed(tmp_path)
    shown = run("info", mix)
    rows = {
        (words[0], words[1]): words[2:]
        for words in (line.split() for line in shown.splitlines())
        if len(words) == 5 and words[0] != "folder"
    }
    assert rows == {
        ("web", "train"): ["30", "25.000", "CaptioningSample"],
        ("classes", "train"): ["15", "75.000", "ImageClassificationSample"],
        ("web", "val"): ["10", "100.000", "CaptioningSample"],
        ("texts.jsonl", "lines"): ["7", "100.000", "CrudeSample"],
    }
    assert "does not exist" in run("info", tmp_path / "none.yaml", code=2)


def test_info_of_crude_samples_and_json_lines(tmp_path):
    mixed(tmp_path)
    shown = run("info", tmp_path / "texts.jsonl")
    assert "7 samples, 63 B" in shown
    (tmp_path / "web/.nv-meta/crude.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )
    shown = run("info", tmp_path / "web", "--dataset-config", "crude.yaml")
    assert "40 samples in 4 shards" in shown
    assert "Format: Megatron-Energon 7.4.1" in shown
    assert "Samples: crude" in shown


def test_commands_of_energon_that_differ_on_purpose(tmp_path):
    errors = run("analyze-debug", tmp_path, "--heatmap-path", "x.png", code=2)
    assert "energize plan MIX" in errors
    errors = run("mount", tmp_path, tmp_path / "m", "-d", code=2)
    assert "energize preview PATH" in errors


@pytest.mark.jobs
def test_types_of_the_program_are_imported_by_name(tmp_path, monkeypatch):
    folder = captions(tmp_path / "web", 20)
    (tmp_path / "worded.py").write_text(
        "from dataclasses import dataclass\nfrom energize import Sample\n\n\n"
        "@dataclass\nclass Worded(Sample):\n    caption: str\n"
    )
    (folder / ".nv-meta/ours.yaml").write_text(
        "sample_type: {__module__: worded, __class__: Worded}\nfield_map: {caption: txt}\n"
    )
    options = ("lint", folder, "--dataset-config", "ours.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert "has not imported" in run(*options, code=1)
    told, _ = program("--import", "worded", *options, cwd=tmp_path)
    assert "No faults in 20 samples" in told
    errors = run("--import", "theirs", *options, code=2)
    assert "--import: 'theirs' cannot be imported: ModuleNotFoundError" in errors


def joined(folder):
    """A join, with the type that its joiner makes in `ours.py` beside it."""
    captions(folder / "web", 20)
    classes(folder / "classes", 20)
    for name in ("web", "classes"):
        run("prepare", folder / name, "--tar-index-only", "--sqlite")
    (folder / "ours.py").write_text(
        "from dataclasses import dataclass\nfrom energize import ImageClassificationSample\n\n\n"
        "@dataclass\nclass Both(ImageClassificationSample):\n    caption: str = ''\n"
    )
    mix = folder / "joined.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "      - {path: web}\n      - {path: classes}\n"
        "    joiner: {__module__: ours, __class__: Both}\n"
    )
    return mix


def test_joins(tmp_path):
    mix = joined(tmp_path)
    assert run("prepare", mix).splitlines()[-1] == "Done"
    assert list((tmp_path / "joined.yaml.cache").iterdir())
    errors = run("info", mix, code=1)
    assert "the module 'ours', which this program has not imported" in errors
    assert "Here: energize --import MODULE COMMAND" in errors

    def with_import(*arguments):
        return run("--import", tmp_path / "ours.py", *arguments)

    assert "web joined with classes" in with_import("info", mix)
    assert "No faults in 15 samples" in with_import("lint", mix)
    shown = with_import("preview", mix, "-n", 1)
    assert "__key__ (str): '000000'" in shown
    assert "caption (str): 'caption 0'" in shown
    assert "label (int): 0" in shown
    shown = with_import("replay", mix, "('energize', 0)")
    assert shown.count("/shard-0") == 2
    assert with_import("simulate", mix, "--steps", 10)
    assert with_import("plan", mix, "--keys")


def test_what_only_cookers_read_is_not_needed_to_look(tmp_path):
    folder = tmp_path / "crude"
    folder.mkdir()
    files = [(f"{i}.json", b'{"x": 1}') for i in range(10)]
    (folder / "0.tar").write_bytes(packed(files))
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        "    path: crude\n    aux: {files: 'filesystem://.'}\n    subset: {range: ['0%', '50%']}\n"
    )
    assert "No faults in 5 samples" in run("lint", mix)
    assert "'x': 1" in run("preview", mix, "-n", 1)
    assert " 5 " in run("info", mix)
    assert " 5 " in run("simulate", mix, "--steps", 3)
    assert "0.tar[" in run("plan", mix)


def test_code_of_a_folder_is_run_where_the_folder_is_trusted(tmp_path):
    folder = captions(tmp_path / "web", 20)
    (folder / ".nv-meta/dataset.yaml").write_text(
        "sample_type: {__module__: energize, __class__: TextSample}\n"
        "sample_loader: sample_loader.py:sample_loader\n"
        "part_filter: sample_loader.py:part_filter\n"
    )
    (folder / ".nv-meta/sample_loader.py").write_text(
        "def sample_loader(parts):\n    return {'text': parts['txt'].upper()}\n\n\n"
        "def part_filter(part):\n    return part == 'txt'\n"
    )
    for command in ("lint", "preview"):
        said = run(command, folder, code=1)
        assert "code of the data folder" in said
    assert "No faults in 20 samples" in run("lint", folder, "--trust-code", folder)
    assert "text (str): 'CAPTION 0'" in run("preview", folder, "--trust-code", tmp_path)
    shown = run("replay", folder, "('energize', 0)", "--trust-code", folder)
    assert "CAPTION" in shown
    assert "COMMAND --trust-code FOLDER" in run("replay", folder, "('energize', 0)", code=1)
    # What is read can be told without running anything.
    assert "shard-00" in run("plan", folder, "--keys")
    assert "web" in run("simulate", folder, "--steps", 5)
    assert "sample_loader: sample_loader.py:sample_loader, code of" in run("info", folder)
