"""Preparing folders: what is written, and that nothing is when something is wrong."""

import json
import struct
import tarfile
from functools import partial

import pytest

from energize import preparation
from energize.data.nv_meta import read_splits
from energize.data.webdataset import WebdatasetSource
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    PrepareError,
    SplitError,
)
from energize.preparation.index import prepare_jsonl, split
from tests.support.shards import offsets
from tests.support.tars import contents, samples, unprepared, write_tar

prepare = partial(preparation.prepare, workers=1)
RATIOS = {"train": 2, "val": 1}
ALL = {"train": 1}


@pytest.fixture
def folder(tmp_path):
    return unprepared(tmp_path / "ds")


def refused(folder, kind=PrepareError, **options):
    """The message of the error, after which the folder is as it was before."""
    before, names = contents(folder), sorted(folder.rglob("*"))
    with pytest.raises(kind) as error:
        prepare(folder, **({"split_ratios": RATIOS} | options))
    assert (contents(folder), sorted(folder.rglob("*"))) == (before, names), options
    return str(error.value)


def test_a_damaged_shard_is_named_and_nothing_is_written(folder):
    shard = folder / "parts" / "d1.tar"
    whole = shard.read_bytes()
    write_tar(shard, [("README", b"no dot, no sample")])
    without_samples = shard.read_bytes()
    write_tar(shard, [("a/../../up.txt", b"")])
    leading_out = shard.read_bytes()
    damages = {
        "cut inside a member": (whole[: 2048 + 100], "d1.tar"),
        "no samples": (without_samples, "has no samples"),
        "a member outside": (leading_out, "'..' in it"),
        "more behind the end": (whole + bytes(3 << 20) + b"x", "more data follows"),
    }
    for name, (data, told) in damages.items():
        shard.write_bytes(data)
        for workers in (1, 2):
            message = refused(folder, workers=workers, sqlite=True)
            assert told in message, name
            assert "parts/d1.tar" in message, name
            assert "parts/d0.tar" not in message, name
    (folder / "parts/d2.tar").write_bytes(b"garbage" * 1000)
    message = refused(folder)
    assert all(each in message for each in ("2 of 3 shards", "d1.tar", "d2.tar"))


def test_keys_must_be_unique_and_members_of_a_sample_neighbours(folder):
    write_tar(
        folder / "parts/d7.tar",
        [*samples(0, 2), ("x.a", b""), ("y.a", b""), ("x.b", b"")],
    )
    message = refused(folder, sqlite=True)
    assert "3 sample keys" in message
    assert "00000001: in parts/d0.tar, parts/d7.tar" in message
    assert "x: in parts/d7.tar, parts/d7.tar" in message
    assert "in which a key occurs twice again, sorted by name" in message
    assert "fix_duplicates=True" in message


def test_keys_that_repeat_in_one_shard_are_not_mended_by_fix_duplicates(tmp_path):
    files = [("a.jpg", b""), ("b.jpg", b""), ("a.txt", b"")]
    write_tar(tmp_path / "0.tar", files)
    for options in ({}, {"fix_duplicates": True}):
        with pytest.raises(PrepareError) as error:
            prepare(tmp_path, split_ratios=ALL, **options)
        assert "a: in 0.tar, 0.tar" in str(error.value)
        assert "the members of a sample must follow each other" in str(error.value)
        assert "fix_duplicates" not in str(error.value)


def test_shards_that_share_keys_are_written_anew(tmp_path):
    folder = unprepared(tmp_path / "ds")
    files = [*samples(0, 2), ("é.txt", b"of an extended header")]
    write_tar(folder / "parts" / "d2.tar", files, tarfile.PAX_FORMAT)
    report = prepare(folder, split_ratios=ALL, fix_duplicates=True, workers=2)
    assert "3 shards were written anew" in report.notes[0]
    source = WebdatasetSource(folder)
    keys = [source[k]["__key__"] for k in range(8)]
    expected = [f"parts/d{i}.tar/00{i % 2}0000{k}" for i in (1, 2) for k in (0, 1)]
    assert keys[3:] == [*expected, "parts/d2.tar/é"]
    assert [source[k]["txt"] for k in (5, 6)] == [b"txt 0 0", b"txt 0 1"]
    again = {"fix_duplicates": True, "overwrite": True, "sqlite": False}
    (folder / ".nv-meta/index.uuid").unlink()
    (folder / ".nv-meta/index.sqlite").unlink()
    before = contents(folder)
    assert prepare(folder, split_ratios=ALL, **again).notes == report.notes[1:]
    assert contents(folder) == before


def test_the_index_alone_is_written_again(folder):
    prepare(folder, split_ratios=RATIOS, sqlite=True)
    before = contents(folder)
    (folder / "parts/d1.tar.idx").write_bytes(b"")
    prepare(folder, tar_index_only=True)
    assert contents(folder) == before
    write_tar(folder / "parts/d1.tar", samples(1, 7))
    assert "has 7 samples" in refused(folder, tar_index_only=True)


def test_splits(folder):
    names = [f"{i}.tar" for i in range(10)]
    parts = split(
        names, {"train": 7, "val": 2, "test": 1}, None
    )  # which floats round to 7, 2, 0
    assert [len(part) for part in parts.values()] == [7, 2, 1]
    shuffled = split(names, ALL, None, 42)[
        "train"
    ]  # as random.Random(42).shuffle does, for ever
    assert shuffled == tuple(f"{i}.tar" for i in (7, 3, 2, 8, 5, 6, 9, 4, 0, 1))
    report = prepare(folder, split_ratios={"train": 1, "val": 0})
    assert list(report.splits) == list(read_splits(folder).split_parts) == ["train"]
    patterns = {"train": [r"parts/d\d\.tar"], "val": ["parts/d{1..2}.tar"]}
    report = prepare(folder, split_patterns=patterns, overwrite=True)
    assert report.splits["val"] == ("parts/d1.tar", "parts/d2.tar")
    assert len(report.splits["train"]) == 3
    assert "share samples" in report.notes[0]
    report = prepare(folder, split_patterns={"train": ["parts/d0"]}, overwrite=True)
    assert "2 shards in no split" in report.notes[0]
    report = prepare(
        folder, split_ratios=RATIOS, shuffle_shards=True, seed=1, overwrite=True
    )
    assert report.splits == split(tuple(report.shard_counts), RATIOS, None, 1)
    assert report.splits != split(tuple(report.shard_counts), RATIOS, None)
    patterns = {"train": [".*"], "val": ["d1"]}
    told = refused(folder, split_patterns=patterns, split_ratios=None, overwrite=True)
    assert "'val': no shard matches d1" in told
    assert "parts/d0.tar" in told


def test_patterns_that_look_like_globs_are_noted_with_the_regular_expression_for_them(
    tmp_path,
):
    for number in range(12):
        write_tar(tmp_path / f"shard-{number:03d}.tar", samples(number, 1))
    note = "shard-00* is read as a regular expression, which matches 12 shards; as a glob it "
    note += "would match 10: write shard-00.*"
    report = prepare(tmp_path, split_patterns={"train": ["shard-00*"]})
    assert report.notes == (f"split 'train': {note}",)
    again = {"overwrite": True, "split_ratios": ALL}
    report = prepare(tmp_path, exclude="shard-011*", **again)
    assert report.samples == 10
    assert (
        "--exclude: shard-011* is read as a regular expression, which"
        in report.notes[0]
    )
    for pattern in (
        "shard-00.*",
        "shard-0[0-9]+",
        "shard-.*",
        r"shard-\d*\.tar",
        "shard-*",
    ):
        report = prepare(tmp_path, split_patterns={"train": [pattern]}, overwrite=True)
        assert not any("glob" in note for note in report.notes), pattern


@pytest.mark.parametrize(
    ("shards", "sizes"),
    [
        ([1], [1]),
        ([2], [1, 1]),
        ([10], [8, 1, 1]),
        ([300], [294, 3, 3]),
        ([150, 150], [294, 3, 3]),
        ([4, 1, 1, 1], [5, 1, 1]),
        ([2] * 100, [196, 2, 2]),
    ],
)
def test_few_shards_are_cut_by_samples(tmp_path, shards, sizes):
    for i, count in enumerate(shards):
        write_tar(
            tmp_path / f"{i:03}.tar", [(f"{i}-{k}.txt", b"") for k in range(count)]
        )
    report = prepare(
        tmp_path, split_ratios={"train": 0.98, "val": 0.01, "test": 0.01}, workers=1
    )
    split_parts = list(read_splits(tmp_path).split_parts)
    sources = [WebdatasetSource(tmp_path, split_part=part) for part in split_parts]
    assert [source.count for source in sources] == sizes
    assert split_parts == ["train", "val", "test"][: len(sizes)]
    keys = [source[k]["__key__"] for source in sources for k in range(source.count)]
    assert keys == [f"{i}-{k}" for i, count in enumerate(shards) for k in range(count)]
    assert bool(report.windows) == any(
        "whole shards only" in note for note in report.notes
    )
    assert bool(report.windows) == (shards in ([2], [10], [300], [150, 150]))


def test_what_is_excluded_by_hand_moves_no_sample_into_another_split(tmp_path):
    for i in range(2):
        write_tar(tmp_path / f"{i}.tar", [(f"{i}-{k}.txt", b"") for k in range(4)])
    prepare(tmp_path, split_ratios={"train": 6, "val": 1, "test": 1}, workers=1)
    file = tmp_path / ".nv-meta/split.yaml"
    written = file.read_text()
    file.write_text(written.replace("[]", "[0.tar, 1.tar/1-1]"))
    sources = [
        WebdatasetSource(tmp_path, split_part=part) for part in ("train", "val", "test")
    ]
    assert [[each["__key__"] for each in source] for source in sources] == [
        ["1-0"],
        ["1-2"],
        ["1-3"],
    ]
    for wrong, kind in (("- 9", SplitError), ("- 0", DatasetError)):
        file.write_text(written.replace("- 6", wrong, 1))
        with pytest.raises(kind, match="samples"):
            WebdatasetSource(tmp_path)


def test_wrong_parameters(folder):
    typed = {"split_ratios": RATIOS, "sample_type": "CaptioningSample"}
    for options, word in (
        ({"split_ratios": None}, "split_ratios"),
        ({"split_ratios": {"train": -1}}, "-1"),
        ({"split_ratios": None, "split_patterns": {"train": ["("]}}, "'('"),
        ({"exclude": "["}, "'['"),
        ({"workers": 0}, "workers"),
        ({"shards": ["a{"]}, "a{"),
        ({"sample_type": "CaptionSample"}, "did you mean 'CaptioningSample'"),
        ({"field_map": {"image": "jpg"}}, "sample_type"),
        (
            typed | {"field_map": {"image": "jpg", "captoin": "txt"}},
            "did you mean 'caption'",
        ),
        (typed | {"field_map": {"image": "jpg"}}, "caption"),
        ({"sample_type": "TextSample", "field_map": {"text": "json["}}, "'json['"),
    ):
        assert word in refused(folder, ConfigError, **options), options


def test_wrong_folders(tmp_path):
    for path in (tmp_path / "nowhere", "a\0b"):
        with pytest.raises(DatasetNotFoundError, match="does not exist"):
            prepare(path, split_ratios=RATIOS)
    (tmp_path / "ds").mkdir()
    assert "no *.tar files" in refused(tmp_path / "ds")
    (tmp_path / "a.tar").touch()
    with pytest.raises(PrepareError, match="is a file"):
        prepare(tmp_path / "a.tar", split_ratios=RATIOS)
    folder = unprepared(tmp_path / "file in place of the folder")
    (folder / ".nv-meta").touch()
    assert ".nv-meta: cannot be written" in refused(folder)


def test_fields_come_from_parts_that_are_there(tmp_path, folder):
    field_map = {"image": "png,jpeg", "caption": "txt"}
    told = refused(folder, sample_type="CaptioningSample", field_map=field_map)
    assert "'png,jpeg' for 'image'" in told
    assert "'jpg', 'txt'" in told
    assert "'context' of a VQASample" in refused(folder, sample_type="VQASample")
    facts = {"question": "why?", "answers": ["so"], "x": 1}
    files = [
        ("0.png", b"image"),
        ("0.json", json.dumps(facts).encode()),
        ("1.png", b""),
    ]
    write_tar(tmp_path / "vqa" / "a.tar", files)
    report = prepare(tmp_path / "vqa", split_ratios=ALL, sample_type="VQASample")
    assert report.config.field_map == {
        "image": "png",
        "context": "json[question]",
        "answers": "json[answers]",
    }
    assert "1 of 2 samples have no part for the field 'context'" in report.notes[0]
    told = refused(
        tmp_path / "vqa",
        sample_type="VQASample",
        field_map={"image": "png", "context": "json[qestion]"},
        split_ratios=ALL,
        overwrite=True,
    )
    assert "keys 'question', 'answers', 'x'" in told


def test_names_of_parts_are_not_taken_for_parts(tmp_path):
    facts = {"sequence": ["1.png", "and", "2.png"], "images": ["1.png"], "texts": ["a"]}
    files = [
        ("0.1.png", b"1"),
        ("0.2.png", b"2"),
        ("0.json", json.dumps(facts).encode()),
    ]
    write_tar(tmp_path / "a.tar", files)
    told = refused(tmp_path, sample_type="InterleavedSample", split_ratios=ALL)
    assert "'sequence' would have the names of parts" in told
    assert "'1.png'" in told
    named = {"sequence": "json[sequence]"}
    report = prepare(
        tmp_path, sample_type="InterleavedSample", field_map=named, split_ratios=ALL
    )
    assert report.config.field_map == named


def test_ends_of_shards_are_noted(folder):
    shard = folder / "parts" / "d2.tar"
    whole = shard.read_bytes()
    for end, count in ((4096, 7), (8192 + 512, 9)):  # half of the mark is none
        shard.write_bytes(whole[:end])
        report = prepare(folder, split_ratios=ALL, overwrite=True)
        [note] = report.notes
        assert report.samples == count
        assert (
            f"1 of 3 shards end without an end mark, parts/d2.tar for example after {end:,}"
            in note
        )
    shard.write_bytes(whole + bytes(3 << 20))
    assert prepare(folder, split_ratios=ALL, overwrite=True).notes == ()


def damaged_names(tar, name):
    """Copies of a tar whose extension header of a file is damaged where no checksum
    covers it."""
    start = tar.index(name.encode())
    stop, block = start + len(name.encode()), start // 512 * 512
    dot = tar.index(b".", start, stop)
    yield "no dot", tar[:dot] + b"-" + tar[dot + 1 :]
    yield "another key", tar[:start] + b"X" + tar[start + 1 :]
    yield "zeros", tar[:block] + bytes(512) + tar[block + 512 :]
    yield "noise", tar[:start] + b"\xfe" * (stop - start) + tar[stop:]
    middle = (start + stop) // 2
    yield "a shorter name", tar[:middle] + b"\0" + tar[middle + 1 :]


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        (tarfile.GNU_FORMAT, "folder/" * 20),
        (tarfile.PAX_FORMAT, "folder/" * 20),
        (tarfile.PAX_FORMAT, "köln/"),
    ],
)
@pytest.mark.parametrize("part", ["jpg", "json", "txt"])
def test_no_part_is_lost_in_silence_by_a_damaged_extension_header(
    tmp_path, kind, prefix, part
):
    files = [
        (f"{prefix}{sample}.{name}", name.encode())
        for sample in range(3)
        for name in ("jpg", "json", "txt")
    ]
    path = write_tar(tmp_path / "0.tar", files, kind)
    assert prepare(tmp_path, split_ratios=ALL).notes == ()
    for damage, data in damaged_names(path.read_bytes(), f"{prefix}1.{part}"):
        path.write_bytes(data)
        try:
            report = prepare(tmp_path, split_ratios=ALL, overwrite=True)
        except PrepareError as error:
            told = str(error)
            assert "damaged" in told or "more than once" in told, damage
        else:
            told = "".join(report.notes)
            assert f"1 have no {part!r}" in told, damage
            if damage in ("no dot", "noise"):
                assert "1 files belong to no sample" in told, damage


def test_files_that_belong_to_no_sample_are_noted_also_by_tasks(tmp_path):
    for number in range(4):
        more = [(f"README-{number}", b"") for _ in range(number % 2)]
        write_tar(tmp_path / f"{number}.tar", [*samples(number, 1), *more])
    note = "2 files belong to no sample, as their names have no part after a dot: 'README-1' in "
    note += "1.tar for example"
    for options in ({}, {"tasks": 2}):
        assert prepare(tmp_path, split_ratios=ALL, overwrite=True, **options).notes == (
            note,
        )


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_nested_names(tmp_path, kind):
    files = [
        (f"{'long' * 40}/dir.with.dots/{i:03d}.{part}", f"{i}{part}".encode())
        for i in range(4)
        for part in ("jpg", "seg.txt")
    ]
    write_tar(tmp_path / "a.tar", [("__meta__/x.json", b"{}"), *files], kind)
    prepare(tmp_path, split_ratios=ALL)
    entries = offsets((tmp_path / "a.tar").read_bytes())
    assert (tmp_path / "a.tar.idx").read_bytes() == struct.pack("<5Q", *entries)
    source = WebdatasetSource(tmp_path)
    assert [source[k]["seg.txt"] for k in range(4)] == [
        f"{i}seg.txt".encode() for i in range(4)
    ]


def test_lines_that_come_while_they_are_indexed_are_an_error(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": "' + "x" * 5_000_000 + '"}\n{"a": 1}\n')
    size = path.stat().st_size

    def more(done, total):
        with path.open("a") as file:
            file.write('{"a": 2}\n')

    with pytest.raises(PrepareError, match="grew or shrank"):
        prepare_jsonl(path, on_progress=more)
    assert list(tmp_path.iterdir()) == [path]
    seen = []
    assert prepare_jsonl(path, on_progress=lambda *each: seen.append(each)) == 3
    assert seen == [(size - 9, size + 9), (size + 9, size + 9)]
