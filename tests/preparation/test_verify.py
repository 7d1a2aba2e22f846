"""Checksums and records of shards: written, kept, lost, and checked by lint."""

import struct
import zlib
from itertools import pairwise

import pytest

from energize import WebdatasetSource, prepare, write_shards
from energize.data.nv_meta import read_records
from energize.errors import NotPreparedError, PrepareError
from energize.preparation import prepare_checksums
from energize.preparation.index import prepare_jsonl
from energize.preparation.verify import check_folder, check_lines
from energize.sources import JsonlSource
from tests.cli.commands import run
from tests.support.shards import prepared
from tests.support.tars import contents, unprepared

OPTIONS = {"split_ratios": {"train": 1}, "sample_type": "CrudeWebdataset"}


@pytest.fixture
def folder(tmp_path):
    made = unprepared(tmp_path / "web", parts=("txt", "md"))
    prepare(made, workers=1, **OPTIONS)
    return made


def checksums_of(folder):
    """What the files say, computed anew with offsets of the index."""
    expected = {}
    for index in sorted(folder.rglob("*.tar.idx")):
        data = index.with_suffix("").read_bytes()
        offsets = struct.unpack(f"<{index.stat().st_size // 8}Q", index.read_bytes())
        crcs = [zlib.crc32(data[a:b]) for a, b in pairwise((0, *offsets[1:]))]
        expected[index.stem + ".crc"] = struct.pack(f"<{len(crcs)}I", *crcs)
    return expected


def written(folder):
    return {each.name: each.read_bytes() for each in folder.rglob("*.tar.crc")}


def test_of_folders_that_others_wrote(tmp_path):
    energons = prepared(tmp_path / "energon")
    assert read_records(energons) is None
    prepare_checksums(energons, workers=1)
    assert len(list(WebdatasetSource(energons, checksums=True))) == 10
    samples = [{"__key__": f"{i}", "txt": f"text {i}"} for i in range(25)]
    write_shards(samples, tmp_path / "web", samples_per_shard=10, checksums=True)
    before = written(tmp_path / "web")
    prepare(tmp_path / "web", workers=1, **OPTIONS)
    prepare_checksums(tmp_path / "web", workers=1)
    assert before == written(tmp_path / "web") == checksums_of(tmp_path / "web")


def test_prepared_again_they_stay_with_the_shards_that_are_as_they_were(tmp_path):
    folder = unprepared(tmp_path / "web", (3, 4, 4))
    prepare(folder, workers=1, checksums=True, **OPTIONS)
    for options in ({"tar_index_only": True}, {"overwrite": True, **OPTIONS}):
        assert prepare(folder, workers=1, **options).notes == ()
        assert len(list(WebdatasetSource(folder, checksums=True))) == 11
    (folder / "parts" / "d1.tar").write_bytes(
        (folder / "parts" / "d2.tar").read_bytes()
    )
    (folder / "parts" / "d2.tar").unlink()
    prepare(folder, workers=1, overwrite=True, **OPTIONS)
    for _ in range(2):  # what was lost does not come back by itself
        with pytest.raises(
            NotPreparedError, match=r"no checksums of 1 of its 2 shards, parts/d1"
        ):
            WebdatasetSource(folder, checksums=True)
        assert prepare(folder, workers=1, overwrite=True, **OPTIONS).notes == ()


def test_none_are_written_of_shards_that_are_not_those_that_were_prepared(folder):
    shard, index = folder / "parts" / "d1.tar", folder / "parts" / "d1.tar.idx"
    sound = shard.read_bytes(), index.read_bytes()
    before = contents(folder)
    for data, offsets, message in (
        (sound[0][:-512], sound[1], "is not the shard that was prepared"),
        (sound[0].replace(b"00100001", b"00101000"), sound[1], "headers_crc32"),
        (
            (folder / "parts" / "d2.tar").read_bytes(),
            sound[1],
            "has 4 samples, but .info.json",
        ),
        (sound[0], sound[1][:-8] + bytes(8), r"d1\.tar\.idx: 1 of 3 entries are wrong"),
        (sound[0][:700], sound[1], r"d1\.tar"),
    ):
        shard.write_bytes(data)
        index.write_bytes(offsets)
        with pytest.raises(PrepareError, match=message):
            prepare_checksums(folder, workers=1)
        shard.write_bytes(sound[0])
        index.write_bytes(sound[1])
        assert contents(folder) == before, message


def test_of_json_lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n" + "".join(f'{{"text": "{i}"}}\n\n' for i in range(12)))
    prepare_jsonl(path, checksums=True)
    plain = [each["json"] for each in JsonlSource(path)]
    assert [each["json"] for each in JsonlSource(path, checksums=True)] == plain
    assert check_lines(path) == ()
    path.write_bytes(path.read_bytes().replace(b'"7"', b'"8"'))
    assert (
        "the checksums of 1 of 12 samples are others: that of sample 7"
        in check_lines(path)[0]
    )
    index = tmp_path / "lines.jsonl.idx"
    index.write_bytes(index.read_bytes()[:-8])
    assert "has 11 samples" in check_lines(path)[0]


@pytest.mark.jobs
def test_lint_tells_what_changed(folder):
    prepare_checksums(folder)
    assert run("lint", folder).splitlines()[-1] == "No faults in 9 samples"
    names = {
        name: folder / "parts" / name for name in ("d2.tar", "d0.tar.idx", "d2.tar.crc")
    }
    shard = names["d2.tar"].read_bytes()
    crcs = names["d2.tar.crc"].read_bytes()
    offsets = list(struct.unpack("<4Q", names["d0.tar.idx"].read_bytes()))
    entries = struct.pack("<4Q", offsets[0], offsets[1] + 1024, *offsets[2:])
    changed = shard.replace(b"txt 2 3", b"txt 2 4")
    headers = shard.replace(b"00200003.txt", b"00200030.txt")
    other = "d2.tar is not the shard that was prepared: its "
    for name, data, told in (
        ("d2.tar", changed, f"{other}ends_crc32 is"),
        ("d2.tar", changed, "1 of 4 samples are others: that of sample 3"),
        (
            "d0.tar.idx",
            entries,
            f"1 of 4 entries are wrong: entry 1 is {offsets[1] + 1024}",
        ),
        ("d0.tar.idx", struct.pack("<4Q", 512, *offsets[1:]), "entry 0 is 512"),
        (
            "d0.tar.idx",
            entries,
            "d0.tar is not the shard that was prepared: its index_crc32 is",
        ),
        ("d2.tar.crc", crcs[:-1] + b"x", "d2.tar.crc is not what was written"),
    ):
        before = names[name].read_bytes()
        names[name].write_bytes(data)
        assert any(told in each for each in check_folder(folder).faults), told
        names[name].write_bytes(before)
    names["d2.tar"].write_bytes(headers)
    assert f"{other}headers_crc32 is" in run("lint", folder, code=1)
