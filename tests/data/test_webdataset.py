"""Raw samples of prepared folders, read at random; shards and indices that are not what
was prepared are errors before a sample is given.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
import tarfile
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import WebdatasetSource, prepare
from energize.core.failures import Failed
from energize.data.nv_meta import read_records
from energize.data.tar import scan
from energize.data.writing import write_new
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    NotPreparedError,
    PrepareError,
    ShardError,
    SplitError,
)
from energize.preparation import prepare_checksums
from energize.preparation.index import prepare_jsonl
from energize.sources import JsonlSource
from tests.support.refusals import check_refusals
from tests.support.shards import (
    offsets,
    packed,
    payload,
    prepared,
    write_meta,
    write_shard,
)

LONG = "a-name-that-is-longer-than-a-header-has-room-for/" * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("sets") / "cats", counts=(3, 5, 0, 2, 40))


def numbers(samples) -> list[int]:
    return [int(sample["__key__"]) for sample in samples]


@given(st.lists(st.integers(0, 49), max_size=80))
def test_samples_come_in_the_asked_order(folder, wanted):
    samples = WebdatasetSource(folder).read(np.array(wanted, dtype=np.int64))
    assert numbers(samples) == wanted
    for number, sample in zip(wanted, samples, strict=True):
        assert (sample["jpg"], sample["txt"]) == (
            payload(number, "jpg"),
            payload(number, "txt"),
        )
    assert len({id(sample) for sample in samples}) == len(samples)


def test_what_cannot_be_made_is_refused(tmp_path):
    count = write_shard(
        tmp_path / "a.tar", packed([(f"{i}.txt", b"") for i in range(3)])
    )

    def made(exclude, splits, **options):
        write_meta(tmp_path, {"a.tar": count}, splits, exclude)
        return WebdatasetSource(tmp_path, split_part="val", **options)

    good, here = {"val": ["a.tar"]}, str(tmp_path)
    rows = {
        "empty part": ([], {"train": ["a.tar"], "val": []}, EmptyDatasetError, "'val' has no samp"),
        "shard excluded": (["a.tar"], good, EmptyDatasetError, "1 shards are listed", "1 of them"),
        "all excluded": (["a.tar/{0,1,2}"], good, EmptyDatasetError, "3 single samples"),
        "no such part": ([], {"train": ["a.tar"]}, SplitError, "no split part 'val'", "has 'tr"),
        "no such shard": ([], {"val": ["b.tar"]}, SplitError, "split part 'val' in split.yaml",
                          "'b.tar' is not in .info.json; did you mean 'a.tar'"),
        "twice": ([], {"val": ["a.tar", "a.tar"]}, SplitError, "is listed twice"),
        "exclude of a shard": (["b.tar/1"], good, SplitError, "'b.tar/1' must be"),
        "exclude a key": (["a.tar/9"], good, SplitError, "no sample '9'", "keys look like '0'"),
    }  # fmt: skip
    check_refusals(None, {
        name: (partial(made, exclude, splits), kind, here, *words)
        for name, (exclude, splits, kind, *words) in rows.items()
    } | {
        "checksums": (partial(made, [], good, checksums=True), NotPreparedError,
                      f"energize prepare --checksums {here}"),
        "nowhere": (lambda: WebdatasetSource(tmp_path / "no"), DatasetNotFoundError, "no"),
        "unprepared": (lambda: WebdatasetSource(tmp_path.parent), NotPreparedError, "energize pre"),
        "part": (lambda: made([], good).part(0, 4), ConfigError, "the part from 0 to 4 is missing"),
        "no part": (lambda: made([], good).part(1, 1), EmptyDatasetError, "has no samples"),
        "excluded part": (lambda: made(["a.tar/1"], good).part(1, 2), EmptyDatasetError, "exclude"),
    })  # fmt: skip


def test_the_last_of_a_billion_samples_takes_little_memory(tmp_path):
    count, last = 10**9, packed([("999.jpg", b"picture"), ("999.txt", b"words")])[:2048]
    end = 512 * count
    for name, size, at, data in (
        ("a.tar", end + 1024, end - 2048, last),
        (
            "a.tar.idx",
            8 * (count + 1),
            8 * (count - 1),
            struct.pack("<2Q", end - 2048, end),
        ),
    ):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
            file.seek(at)
            file.write(data)
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    tracemalloc.start()
    sample = WebdatasetSource(tmp_path)[999_999_999]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (sample["__key__"], sample["jpg"], sample["txt"]) == (
        "999",
        b"picture",
        b"words",
    )
    assert peak < 2_000_000


def rewrite(file: Path, change) -> None:
    file.write_bytes(change(file.read_bytes()))


def test_parts_that_come_twice_or_have_our_names_and_too_many(tmp_path, monkeypatch):
    files = [("0.txt", b""), ("1.txt", b"one"), ("1.txt", b"two"), ("2.__key__", b"")]
    files += [(f"3.{n}", b"") for n in range(60)]
    count = write_shard(tmp_path / "a.tar", packed(files))
    write_meta(tmp_path, {"a.tar": count}, {"train": ["a.tar"]})
    monkeypatch.setattr("energize.core.limits.PARTS", 59)
    whole, twice, reserved, many = WebdatasetSource(tmp_path).read(np.arange(4))
    assert whole["txt"] == b""
    assert "one part twice" in str(twice)
    assert "'1' (index 1)" in str(twice)
    assert "['__key__']" in str(reserved)
    assert "too many parts, 60, more than 59" in str(many)
    write_shard(tmp_path / "b.tar", packed(files[4:]))
    with pytest.raises(
        ShardError, match=r"b\.tar: sample '3': .* many parts, 60, more than"
    ):
        scan(tmp_path / "b.tar")
    monkeypatch.setattr("energize.core.limits.PARTS", 60)
    assert len(WebdatasetSource(tmp_path)[3]) == 64


def other_shard(data: bytes) -> bytes:
    """As long as the old one, with members in other places."""
    end = offsets(data)[-1]
    return packed([(f"{i}.jpg", b"?" * 1024) for i in range(end)])[:end] + bytes(1024)


def test_shards_and_indices_that_disagree_are_fatal(tmp_path):
    """Without a record of how they were prepared."""
    whole = prepared(tmp_path / "cats", (8, 4))

    def broken(name, change):
        folder = shutil.copytree(whole, tmp_path / "broken" / f"{change}")
        file = folder / "parts" / name
        if change is None:
            file.unlink()
        else:
            rewrite(file, change)
        source = WebdatasetSource(folder)
        assert numbers(source.read(np.arange(8, 12))) == [8, 9, 10, 11]
        assert "d0.tar, sample " in source.where(3)
        try:
            source.read(np.arange(7, -1, -1))
        finally:
            shutil.rmtree(folder)

    def entries(change):
        return lambda data: (
            change(np.frombuffer(data, "<u8").copy()).astype("<u8").tobytes()
        )

    def merge_two(index):  # samples 0 and 1 as one, and sample 2 as two
        return np.concatenate([index[[0, 2]], index[2:3] + 1024, index[3:]])

    tars = {
        "missing": (None, "d0.tar: cannot be read (No such file"),
        "cut": (lambda d: d[:2000], "was truncated or replaced"),
        "compressed": (lambda d: b"\x1f\x8b" + d[2:], "compressed with gzip"),
        "other": (other_shard, "at most places no sample starts"),
    }
    indices = {
        "index missing": (None, "d0.tar.idx: cannot be read"),
        "order": (
            entries(lambda e: e[[0, 2, 1, *range(3, 9)]]),
            "sample 1 spans bytes",
        ),
        "merged": (entries(merge_two), "has the keys"),
        "beyond": (entries(lambda e: e * 2), "was truncated or replaced"),
        "too early": (entries(lambda e: e - e // e.max() * 512), "but more follow"),
    }
    rows = {name: ("d0.tar", *row) for name, row in tars.items()}
    rows |= {name: ("d0.tar.idx", *row) for name, row in indices.items()}
    check_refusals(None, {
        name: (partial(broken, file, change), ShardError, "d0.tar", *words)
        for name, (file, change, *words) in rows.items()
    })  # fmt: skip


# With a record of how the shards were prepared, and with checksums.

SAMPLES, PARTS = 60, ("jpg", "json", "txt")


def recorded(path, count=SAMPLES, prefix="", **options):
    files = [(f"{prefix}{i:04d}.{part}", f"{part} {i}".encode()) for i in range(count)
             for part in PARTS]  # fmt: skip
    path.mkdir(parents=True)
    (path / "0.tar").write_bytes(packed(files, **options))
    prepare(path, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    return path


@pytest.mark.parametrize("prefix", ["", LONG])
def test_an_index_entry_one_member_off_is_seen(tmp_path, prefix):
    """With a record at the first touch; without one when both samples beside it are
    read, and of one that points too early whichever of them is.
    """
    folder = recorded(tmp_path / "web", prefix=prefix, format=tarfile.GNU_FORMAT)
    index, record = folder / "0.tar.idx", read_records(folder)["0.tar"]
    opened = WebdatasetSource(folder)
    sound = np.fromfile(index, "<u8")
    with tarfile.open(folder / "0.tar") as tar:
        starts = [*(member.offset for member in tar), tar.offset]

    def read(number, record=None):
        source = opened.replace(records=None if record is None else (record,))
        return source.read(np.array([number]))

    assert read(7, record) == read(7)
    for members in (-1, 1):
        for entry in range(1, SAMPLES):
            wrong = sound.copy()
            wrong[entry] = starts[starts.index(wrong[entry]) + members]
            wrong.tofile(index)
            with pytest.raises(
                ShardError, match=r"0\.tar and its index .*0\.tar\.idx have changed"
            ):
                read(0, record)
            for number in (entry - 1, entry) if members < 0 else (entry - 1,):
                with pytest.raises(ShardError, match="do not match"):
                    read(number)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_bit_of_a_long_name_renames_no_part_and_drops_none(tmp_path, form):
    """Which no checksum of a header covers, and in the middle of a shard no other
    one."""
    files = [
        (f"{LONG}{n:04d}.{part}", bytes(9000))
        for n in range(9)
        for part in ("jpg", "txt")
    ]
    (tmp_path / "0.tar").write_bytes(data := packed(files, form))
    prepare(
        tmp_path, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1
    )
    end = data.index(b"0004.jpg") + 8
    for at in (*range(end - len(LONG) - 17, end - len(LONG)), *range(end - 8, end)):
        (tmp_path / "0.tar").write_bytes(
            data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        )
        try:
            [found] = WebdatasetSource(tmp_path).read(np.array([4]))
        except ShardError as error:
            assert "by the index sample 4 has the keys" in str(error)  # noqa: PT017
        else:
            assert isinstance(found, Failed)
    told = r"its parts \['jpf', 'txt'\] .*: a name in the tar is damaged"
    assert re.search(told, str(found.reason))


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_is_no_part(tmp_path, kind):
    """As GNU tar writes a file that has two names; samples would lack what it stands
    for."""
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, target in (("a.txt", ""), ("b.cls", ""), ("b.txt", "a.txt")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (
                (kind, target) if target else (tarfile.REGTYPE, "")
            )
            tar.addfile(member)
    told = "0.tar.*'b.txt' is a link to 'a.txt'.*Pack the tar again with --dereference"
    with pytest.raises(PrepareError, match=told):
        prepare(tmp_path, split_ratios={"train": 1}, workers=1)
    write_shard(
        tmp_path / "0.tar", (tmp_path / "0.tar").read_bytes()
    )  # as Energon prepares it
    write_meta(tmp_path, {"0.tar": 2}, {"train": ["0.tar"]})
    first, failed = WebdatasetSource(tmp_path).read(np.arange(2))
    assert first["txt"] == b""
    assert re.search(told, str(failed.reason))


def test_a_shard_replaced_while_a_run_reads_is_seen_by_a_process_that_starts_later(
    tmp_path,
):
    """Though it was prepared again: what the run was started with counts."""
    folder = recorded(tmp_path / "web", count=20)
    source = WebdatasetSource(folder)
    assert source[3]["txt"] == b"txt 3"
    sent = pickle.dumps(source)
    shutil.rmtree(folder)
    recorded(folder, count=20, prefix="other/" * 20)
    with pytest.raises(ShardError, match="have changed since they were prepared"):
        pickle.loads(sent)[3]
    assert WebdatasetSource(folder)[3]["txt"] == b"txt 3"
    rewrite(folder / "0.tar", lambda data: data + bytes(512))
    for read in (lambda source: source[0], lambda source: source.keys(np.arange(3))):
        with pytest.raises(
            ShardError, match=r"0\.tar and its index .* has \d+ bytes instead of"
        ):
            read(WebdatasetSource(folder))


def test_an_index_that_is_written_again_with_the_same_bytes_ends_nothing(tmp_path):
    """As `touch` and copies do; with other bytes it is another one."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n" * 3)
    prepare_jsonl(lines)
    web = recorded(tmp_path / "web", count=20)
    energon = prepared(tmp_path / "energon", (3,)) / "parts/d0.tar.idx"
    for source, index in (
        (WebdatasetSource(web), web / "0.tar.idx"),
        (WebdatasetSource(tmp_path / "energon"), energon),
        (JsonlSource(lines), lines.with_name("lines.jsonl.idx")),
    ):
        read = [repr(source[number]) for number in range(3)]
        for again in (
            index.write_bytes,
            lambda data, to=index: write_new(to, data, DataError),
        ):
            again(index.read_bytes())
            os.utime(index, (1, 1))
            assert [repr(source[number]) for number in range(3)] == read
            source._files._open.clear()
        index.write_bytes(index.read_bytes()[::-1])
        with pytest.raises(ShardError, match="idx has changed since it was first read"):
            source[0]


def test_a_large_index_that_no_record_knows_may_be_written_again(tmp_path):
    """More than 64 KiB, which are not kept in memory."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n" * 9000)
    prepare_jsonl(lines)
    count = write_shard(
        tmp_path / "d0.tar", packed((f"{i:04d}.txt", b"") for i in range(9000))
    )
    write_meta(tmp_path, {"d0.tar": count}, {"train": ["d0.tar"]})
    for source, index in (
        (WebdatasetSource(tmp_path), tmp_path / "d0.tar.idx"),
        (JsonlSource(lines), lines.with_name("lines.jsonl.idx")),
    ):
        read, data = repr(source[8000]), index.read_bytes()
        for _ in range(2):
            source._files._open.clear()
            index.write_bytes(data)
            os.utime(index, (1, 1))
            assert repr(source[8000]) == read
        source._files._open.clear()
        index.write_bytes(
            data[:8] + data[:-8]
        )  # each sample is said to be the one before
        with pytest.raises(ShardError, match="idx has changed since it was first read"):
            source[8999]


def test_a_wrong_record_is_an_error_with_its_place(tmp_path):
    folder = recorded(tmp_path / "web", count=3)

    def read(text):
        (folder / ".nv-meta" / "shards.json").write_text(text)
        return WebdatasetSource(folder)

    short = {"bytes": 1, "index_crc32": 1, "headers_crc32": 2**32}
    rows = {
        '{"version": 2}': "shards.json:1 (version): expected 1, got 2",
        '{"version": 1, "shards": {}}': "only .info.json has '0.tar'",
        json.dumps(
            {"version": 1, "shards": {"0.tar": short}}
        ): "(shards['0.tar'].headers_crc32): ",
        "[" * 100_000: "shards.json",
    }
    check_refusals(None, {
        text[:40]: (partial(read, text), DatasetError, "shards.json", told)
        for text, told in rows.items()
    })  # fmt: skip


def test_a_shard_without_samples_whose_index_has_some(tmp_path):
    folder = prepared(tmp_path / "web", (3, 2))
    info = folder / ".nv-meta" / ".info.json"
    info.write_text(info.read_text().replace('"parts/d1.tar": 2', '"parts/d1.tar": 0'))
    with pytest.raises(
        ShardError, match=r"d1\.tar has no samples in .* has 24 bytes instead of 8"
    ):
        WebdatasetSource(folder)


def flipped(folder, text, at=0):
    """The shard with one bit changed."""

    def change(data):
        data = bytearray(data)
        data[data.index(text) + at] ^= 1
        return data

    rewrite(folder / "0.tar", change)


def test_checksums_have_to_be_those_that_were_written(tmp_path):
    folder = recorded(tmp_path / "web", count=20)
    prepare_checksums(folder, workers=1)
    source, file = WebdatasetSource(folder, checksums=True), folder / "0.tar.crc"

    def read(data):
        file.unlink(missing_ok=True)
        if data is not None:
            file.write_bytes(data)
        return pickle.loads(pickle.dumps(source))[0]

    sound = file.read_bytes()
    check_refusals(None, {
        "short": (partial(read, sound[:-4]), ShardError, "got 76", "must have 80 bytes"),
        "other": (partial(read, bytes(80)), ShardError, "has changed: its CRC-32"),
        "gone": (partial(read, None), ShardError, "0.tar.crc: cannot be read"),
    })  # fmt: skip
    assert read(sound)["txt"] == b"txt 0"


def test_checksums_find_a_changed_bit(tmp_path):
    folder = recorded(tmp_path / "web", count=20)
    plain = WebdatasetSource(folder)
    prepare_checksums(folder, workers=1)
    checked = WebdatasetSource(folder, checksums=True)
    assert (checked.key, checked.settings(), checked.record) == (
        plain.key, plain.settings(), plain.record,
    )  # fmt: skip
    assert checked[7] == plain[7]
    flipped(folder, b"txt 7")
    flipped(
        folder, b"0003.jpg", at=-1
    )  # the padding before, which belongs to the sample before
    assert WebdatasetSource(folder)[7]["txt"] == b"uxt 7"
    found = WebdatasetSource(folder, checksums=True).read(np.arange(20))
    assert [n for n, each in enumerate(found) if isinstance(each, Failed)] == [2, 7]
    assert isinstance(found[7].reason, DataError)
    assert "0.tar, sample '0007' (index 7): its bytes have changed" in str(
        found[7].reason
    )
