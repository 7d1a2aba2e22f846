"""`energize info`, `preview`, `replay` and `schema`; and what is printed of hostile
names."""

import inspect
import io
import json
import re
import tarfile
from itertools import islice
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from energize import (
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    prepare,
)
from energize.cli.look import drawn, pictures_of
from energize.cli.main import app
from energize.errors import MetadatasetError
from energize.metadataset import read_metadataset
from tests.cli.commands import refused, run
from tests.support.metadatasets import written
from tests.support.prepared import captions, classes
from tests.support.shards import packed
from tests.support.tars import unprepared
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[2]


def test_version_and_help():
    assert run("--version").startswith("energize 0.")
    assert "prepare" in run("--help")
    assert "--split-ratio" in run("prepare", "--help")


def test_columns_of_loose_data_are_shown_and_checked(tmp_path, monkeypatch):
    rows = [json.dumps({"text": "x" * n, "n": n}) for n in range(1, 10)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    run("prepare", tmp_path, "--column", "tokens=json[n]")
    monkeypatch.chdir(tmp_path)
    for path in (".", tmp_path):
        assert re.search(r"tokens +1 to 9, mean 5 +json\[n\]", run("info", path))
        assert "column 'tokens': 1 to 9, mean 5" in run("lint", path)
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:-1]))
    fault = "its column 'tokens' was measured of other rows"
    assert fault in run("info", tmp_path)
    assert fault in run("lint", tmp_path, code=1)


def test_info(tmp_path):
    folder = unprepared(tmp_path / "ds", counts=(3, 2, 4, 1))
    assert f"energize prepare {folder}" in run("info", folder, code=1)
    run(
        "prepare",
        folder,
        "--split-ratio",
        "2,1,1",
        "--sample-type",
        "CaptioningSample",
        stdin="",
    )
    shown = run("info", folder)
    assert "10 samples in 4 shards" in shown
    assert "Format: Megatron-Energon 7.4.1" in shown
    assert ["val", "1", "4", "40.0", "%"] in [
        line.split() for line in shown.splitlines()
    ]
    assert "caption from txt" in shown
    (folder / ".nv-meta/crude.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )
    assert "Samples: crude" in run("info", folder, "--dataset-config", "crude.yaml")
    (folder / ".nv-meta/dataset.yaml").unlink()
    assert "no type yet" in run("info", folder)
    (folder / "parts/d1.tar").unlink()
    assert "parts/d1.tar: cannot be used" in run("info", folder, code=1)
    refused([([tmp_path / "none.yaml"], 2, "does not exist")], "info")


def test_splits_inside_a_shard_are_shown_and_empty_ones_passed_over(tmp_path):
    folder = unprepared(tmp_path / "ds", counts=(10,))
    options = ["--sample-type", "CaptioningSample", "--split-ratio", "0.98,0.01,0.01"]
    shown = run("prepare", folder, *options, stdin="") + run("info", folder)
    assert [line.split() for line in shown.splitlines()].count(
        ["train", "1", "8", "80.0", "%"]
    ) == 2
    assert [
        line[-2:]
        for line in run("preview", folder).splitlines()
        if "sample 0 of" in line
    ] == [
        " 8",
        " 1",
        " 1",
    ]
    file = folder / ".nv-meta/split.yaml"  # as Energon writes it of one shard
    file.write_text("split_parts: {train: [parts/d0.tar], val: [], test: []}\n")
    for command in ("info", "preview"):
        assert "sample" in run(command, folder)


@pytest.fixture
def mix(tmp_path):
    captions(tmp_path / "web", 40)
    classes(tmp_path / "classes", 20)
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"n": i}) + "\n" for i in range(7))
    )
    run("prepare", tmp_path / "texts.jsonl")
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: web, weight: 1}\n      - {path: classes, weight: 3}\n"
        "  val: {path: web}\n  lines: {path: texts.jsonl}\n"
    )
    return mix


def test_a_metadataset(mix):
    rows = {
        (words[0], words[1]): words[2:]
        for words in (line.split() for line in run("info", mix).splitlines())
        if len(words) == 5 and words[0] != "folder"
    }
    assert rows == {
        ("web", "train"): ["30", "25.000", "CaptioningSample"],
        ("classes", "train"): ["15", "75.000", "ImageClassificationSample"],
        ("web", "val"): ["10", "100.000", "CaptioningSample"],
        ("texts.jsonl", "lines"): ["7", "100.000", "CrudeSample"],
    }
    shown = run("preview", mix, "-n", 1)
    assert shown.count(", sample 0 of ") == 4
    assert f"{mix.parent}/texts.jsonl, sample 0 of 7" in shown
    assert "json (dict): {'n': 0}" in shown
    assert "label (int): 0" in shown


def test_a_preview(tmp_path):
    folder = captions(tmp_path / "web", 40)
    lines = run("preview", folder, "-n", "2", "--split-parts", "val").splitlines()
    assert lines[:2] == [f"{folder} [val], sample 0 of 10", "  __key__ (str): '000030'"]
    assert "shape=torch.Size([3, 24, 32])" in lines[2]
    assert lines[2].endswith(", 32 x 24 pixels")
    assert lines[3] == "  caption (str): 'caption 30'"
    assert sum(line.endswith(" of 10") for line in lines) == 2
    shown = run("preview", folder, stdin="n\n")
    assert [shown.count(f"[{split}], sample 2 of") for split in ("train", "val")] == [
        1,
        1,
    ]
    assert "sample 3 of" not in shown
    (tmp_path / "0.tar").write_bytes(packed([("a.txt", b"\xff"), ("b.txt", b"good")]))
    prepare(
        tmp_path,
        exclude="web",
        split_ratios={"train": 1},
        sample_type="TextSample",
        workers=1,
    )
    shown = run("preview", tmp_path)
    assert "cannot be used" in shown
    assert "0.tar, sample 'a' (index 0)" in shown
    assert "text (str): 'good'" in shown


@pytest.mark.jobs
def test_a_person_sees_pictures_and_is_asked_whether_to_go_on(tmp_path):
    terminal = Terminal("preview", captions(tmp_path / "web", 40))
    dialogue = [("'caption 0'", ""), ("'caption 1'", "y"), ("Continue? [Y/n]:", "n")]
    assert terminal.answer(dialogue) == 0
    assert "sample 2 of" in terminal.shown
    assert "sample 3 of" not in terminal.shown
    assert "▀" * 32 in terminal.shown


def test_pictures():
    picture = Image.new("RGB", (4, 4))
    picture.paste((255, 0, 0), (0, 0, 4, 1))
    picture.paste((0, 0, 255), (0, 1, 4, 2))
    text = drawn(picture)
    assert [len(line) for line in text.plain.split("\n")] == [6, 6, 0]
    assert text.spans[0].style == "rgb(255,0,0) on rgb(0,0,255)"
    assert len(drawn(Image.new("RGB", (400, 900))).plain.split("\n")) <= 25
    for value, sizes in (
        (picture, [(4, 4)]),
        (torch.rand(3, 8, 9), [(9, 8)]),
        (torch.rand(3, 8, 9).bfloat16(), [(9, 8)]),
        (np.zeros((8, 9, 3), dtype=np.uint8), [(9, 8)]),
        (torch.zeros(5, 3, 8, 9, dtype=torch.uint8), [(9, 8)] * 5),
        (torch.zeros(3, 8, 9, dtype=torch.int64), []),
        (torch.full((3, 8, 9), 2.5), []),
        (torch.full((3, 8, 9), float("nan")), []),
        (torch.rand(12), []),
        ("text", []),
    ):
        assert [each.size for each in pictures_of(value)] == sizes, value


def test_joins_and_types_of_the_program(tmp_path):
    captions(tmp_path / "web", 20)
    classes(tmp_path / "classes", 20)
    for name in ("web", "classes"):
        run("prepare", tmp_path / name, "--tar-index-only", "--sqlite")
    (tmp_path / "ours.py").write_text(
        "from dataclasses import dataclass\nfrom energize import ImageClassificationSample\n\n\n"
        "@dataclass\nclass Both(ImageClassificationSample):\n    caption: str = ''\n"
    )
    mix = tmp_path / "joined.yaml"
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "      - {path: web}\n      - {path: classes}\n"
        "    joiner: {__module__: ours, __class__: Both}\n"
    )
    assert run("prepare", mix).splitlines()[-1] == "Done"
    assert list((tmp_path / "joined.yaml.cache").iterdir())
    refused(
        [([mix], 1, "the module 'ours', which", "energize --import MODULE COMMAND")],
        "info",
    )
    refused([(["info", mix], 2, "'theirs' cannot be imported")], "--import", "theirs")

    def with_import(*arguments):
        return run("--import", tmp_path / "ours.py", *arguments)

    assert "web joined with classes" in with_import("info", mix)
    assert "No faults in 15 samples" in with_import("lint", mix)
    shown = with_import("preview", mix, "-n", 1)
    for words in (
        "__key__ (str): '000000'",
        "caption (str): 'caption 0'",
        "label (int): 0",
    ):
        assert words in shown
    assert with_import("replay", mix, "('energize', 0)").count("/shard-0") == 2
    assert with_import("simulate", mix, "--steps", 10)
    assert with_import("plan", mix, "--keys")


def test_what_only_cookers_read_is_not_needed_to_look(tmp_path):
    folder = tmp_path / "crude"
    folder.mkdir()
    (folder / "0.tar").write_bytes(
        packed([(f"{i}.json", b'{"x": 1}') for i in range(10)])
    )
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    node = "path: crude\n    aux: {files: 'filesystem://.'}\n    subset: {range: ['0%', '50%']}"
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    {node}\n"
    )
    for command, words in (
        (["lint"], "No faults in 5 samples"),
        (["preview", "-n", 1], "'x': 1"),
        (["info"], " 5 "),
        (["simulate", "--steps", 3], " 5 "),
        (["plan"], "0.tar["),
    ):
        assert words in run(command[0], mix, *command[1:])


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
    key, trust = "('energize', 0)", ("--trust-code", folder)
    refused([([], 1, "code of the data folder")], "lint", folder)
    refused([([], 1, "code of the data folder")], "preview", folder)
    refused([([], 1, "COMMAND --trust-code FOLDER")], "replay", folder, key)
    assert "No faults in 20 samples" in run("lint", folder, *trust)
    assert "text (str): 'CAPTION 0'" in run("preview", folder, *trust)
    assert "CAPTION" in run("replay", folder, key, *trust)
    # What is read can be told without running anything.
    assert "shard-00" in run("plan", folder, "--keys")
    assert "web" in run("simulate", folder, "--steps", 5)
    assert "sample_loader: sample_loader.py:sample_loader, code of" in run(
        "info", folder
    )


# Replaying


class Upper(TaskEncoder):
    def encode_sample(self, sample):
        if int(sample.__key__) % 3 == 0:
            raise SkipSample
        sample.caption = sample.caption.upper()
        return sample


class Twice(TaskEncoder):
    def encode_sample(self, sample):
        yield sample.caption
        yield sample.caption + " again"


def broken():
    raise ValueError("no encoder today")


ENCODERS = "\n\n".join(
    [
        "from energize import SkipSample, TaskEncoder",
        *(inspect.getsource(each) for each in (Upper, Twice, broken)),
    ]
)
"""What is here for loaders, in a file for the command."""


def delivered(mix, count, **options):
    """Items, each with the key that the loader says it has."""
    config = WorkerConfig(rank=1, world_size=2, num_workers=0, seed_offset=5)
    loader = get_loader(get_train_dataset(mix, worker_config=config, **options))
    return [(item, loader.restore_key) for item in islice(loader, count)]


def flat(sources):
    parts = (
        [each] if type(each) not in (list, tuple) else flat(each) for each in sources
    )
    return [one for part in parts for one in part]


def test_what_a_run_delivered_is_shown_again(home, tmp_path):
    (tmp_path / "encoders.py").write_text(ENCODERS)
    file, web, mix = tmp_path / "encoders.py", home / "web/captions", home / "mix.yaml"
    for item, key in delivered(mix, 2, batch_size=4):
        options = ("--batch-size", 4, "--seed", 5)
        shown = run("replay", mix, repr(key), *options)
        assert shown == run("replay", mix, json.dumps(key), *options)
        first = shown.partition("__key__")[2].splitlines()[0]
        assert re.findall("'(0.*?)'", first) == item.__key__
        for sources in flat(item.__sources__):
            names = ", ".join(sources.file_names)
            place = f"{sources.dataset_path}/{sources.shard_name}"
            assert f"{place}: {names} (sample {sources.index})" in shown
    item, key = delivered(web, 4, batch_size=3, task_encoder=Upper())[-1]
    options = ("--batch-size", 3, "--seed", 5, "--encoder", f"{file}:Upper")
    shown = run("replay", web, key, *options)
    assert all(repr(caption) in shown and caption.isupper() for caption in item.caption)
    item, key = delivered(web, 5, batch_size=None, task_encoder=Twice())[-1]
    options = ("replay", web, json.dumps(key), "--seed", 5)
    assert item in run(*options, "--encoder", f"{file}:Twice", "--unbatched")
    refused([(["--encoder", f"{file}:Twice"], 1, "is of another dataset")], *options)
    shown = run("replay", web, "('Webdataset', 'shard-001.tar', 3)")
    assert "caption (str): 'caption 23'" in shown
    assert "shard-001.tar: 000023.jpg, 000023.txt (sample 23)" in shown
    refused(
        [
            (["nothing"], 2, "KEY must be a restore key"),
            (["__import__('os').getcwd()"], 2, "KEY must be a restore key"),
            (["('energize', -1)"], 1, "('energize', -1)"),
            (["('Webdataset', 'none.tar', 1)"], 1, "none.tar"),
        ],
        "replay", web,
    )  # fmt: skip
    refused(
        [
            (["Upper"], 2, "expected MODULE:NAME"),
            (["none:Upper"], 2, "cannot be imported: ModuleNotFoundError"),
            ([f"{file}:Uper"], 2, "did you mean 'Upper'"),
            ([f"{file}:broken"], 2, "ValueError: no encoder today"),
            ([f"{file}:SkipSample"], 2, "task_encoder must be a TaskEncoder"),
            ([f"{file.parent}/none.py:Upper"], 2, "No such file"),
        ],
        "replay", web, "('energize', 1)", "--encoder",
    )  # fmt: skip


# The schema


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(json.loads(run("schema")))


STAGE = {"name": "one", "start_step": 0, "path": "x"}
WRONG = [
    {"pth": "x"},
    {"blend": [{"path": "x", "wieght": 3}]},
    {"blend": [{"path": "x", "weight": -1}]},
    {"blend": [{"path": "x", "weight": {"points": {"0": 1}, "interpolate": "step"}}]},
    {"blend": [{"path": "x"}], "epoch_size": "10x"},
    {"blend": [{"path": "x"}], "scheme": "exakt"},
    {"stages": [{"name": "one", "path": "x"}]},
    {"stages": [STAGE | {"sead": 3}]},
    {"blend": [{"stages": [STAGE]}]},
]


def test_the_schema_accepts_what_is_read(validator, tmp_path):
    validator.check_schema(validator.schema)
    for file in (ROOT / "metadatasets").glob("*.yaml"):
        if not file.stem.startswith("stages"):
            validator.validate(read_metadataset(file).text.data)
    for size in (1, 7, "10k", " 1.5M ", "1e3k", "20 b", "+3t", "1_000"):
        node = {"epoch_size": size, "blend": [{"path": "x", "choose": size}]}
        validator.validate(
            read_metadataset(written(tmp_path / "mix.yaml", node)).text.data
        )
    for node in WRONG:
        with pytest.raises(MetadatasetError):
            read_metadataset(written(tmp_path / "mix.yaml", node))
        document = {
            "__module__": "energize",
            "__class__": "MetadatasetV2",
            "splits": {"train": node},
        }
        assert not validator.is_valid(document), node
    file = tmp_path / "metadataset.schema.json"
    run("schema", "--output", file)
    assert json.loads(file.read_text()) == validator.schema
    refused([([tmp_path / "no" / "file.json"], 2, "cannot be written")], "schema", "-o")


# Names and texts that steer terminals

STEERING = "\x1b[2J\x9b31m\u202e\x07"


def test_folders_cannot_steer_the_terminal(tmp_path):
    """The name of the folder steers, and is no UTF-8 either; so do its keys and
    texts."""
    folder = tmp_path / f"photos{STEERING}\udce9"
    folder.mkdir()
    with tarfile.open(folder / "shard.tar", "w") as tar:
        for number in range(4):
            for part, data in (
                ("txt", f"text {STEERING}"),
                ("json", f'"{STEERING[-2]}"'),
            ):
                member = tarfile.TarInfo(f"{number}{STEERING}.{part}")
                member.size = len(data.encode())
                tar.addfile(member, io.BytesIO(data.encode()))
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    force = [
        "--force-overwrite",
        "--sample-type",
        "TextSample",
        "--split-ratio",
        "1,0,0",
    ]
    for command, *options in (
        ["info"],
        ["lint"],
        ["plan", "--steps", "3", "--world-size", "1"],
        ["preview"],
        ["prepare", *force],
        ["simulate", "--steps", "3"],
        ["simulate", "--steps", "3", "--json"],
        ["plan", "--json"],
    ):
        done = CliRunner().invoke(app, [command, str(folder), *options])
        assert (done.exit_code, done.exception) == (0, None), done.output
        assert done.output
        assert all(
            letter.isprintable() or letter in "\n\t" for letter in done.output
        ), command


@pytest.mark.parametrize("charset", ["latin-1", "ascii"])
def test_names_that_the_terminal_has_no_letters_for(tmp_path, charset):
    captions(tmp_path / "猫", 4, shards=1)
    done = CliRunner(charset=charset).invoke(app, ["plan", str(tmp_path / "猫")])
    assert done.exit_code == 0
    assert rb"1 sample: \u732b 1" in done.stdout_bytes
