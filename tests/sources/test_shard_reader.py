"""Shards and indices that are not what was prepared: each is an error, before a sample is given."""

from __future__ import annotations

import json
import pickle
import struct
import tarfile

import numpy as np
import pytest

from energize import WebdatasetSource, prepare, prepare_checksums, write_shards
from energize.core.reading import Failed
from energize.data.files import LocalFiles
from energize.data.integrity import read_records
from energize.data.webdataset import ShardReader
from energize.errors import DataError, DatasetError, NotPreparedError, ShardError
from tests.support.shards import packed, prepared

SAMPLES, PARTS = 200, ("jpg", "json", "txt")
LONG = "a-name-that-is-longer-than-a-header-has-room-for/" * 4


def folder_of(path, count=SAMPLES, prefix="", **options):
    files = [(f"{prefix}{i:04d}.{part}", f"{part} {i}".encode()) for i in range(count)
             for part in PARTS]  # fmt: skip
    path.mkdir(parents=True)
    (path / "0.tar").write_bytes(packed(files, **options))
    prepare(path, split_ratios={"train": 1}, sample_type="CrudeWebdataset", workers=1)
    return path


def reader(folder, *, record, count=SAMPLES, checksums=False):
    known = read_records(folder)["0.tar"] if record else None
    return ShardReader(LocalFiles(), str(folder), "0.tar", count, known, checksums=checksums)


def member_starts(folder):
    """Where each member begins, with the headers that lead it; and where the last one ends."""
    with tarfile.open(folder / "0.tar") as tar:
        return [*(member.offset for member in tar), tar.offset]


def shifted(index, starts, entry, members):
    """An index with one entry that points so many members further."""
    offsets = list(struct.unpack(f"<{SAMPLES + 1}Q", index))
    offsets[entry] = starts[starts.index(offsets[entry]) + members]
    return struct.pack(f"<{SAMPLES + 1}Q", *offsets)


@pytest.mark.parametrize("prefix", ["", LONG])
def test_an_index_entry_one_member_off_is_seen(tmp_path, prefix):
    """With a record at the first touch; without one when both samples beside it are read, and of
    one that points too early whichever of them is.
    """
    folder = folder_of(tmp_path / "web", prefix=prefix, format=tarfile.GNU_FORMAT)
    index, sound = folder / "0.tar.idx", (folder / "0.tar.idx").read_bytes()
    starts = member_starts(folder)
    seen = dict.fromkeys(("record", "before", "after early"), 0)
    for members in (-1, 1):
        for entry in range(1, SAMPLES):
            index.write_bytes(shifted(sound, starts, entry, members))
            with pytest.raises(ShardError, match=r"0\.tar and its index .*0\.tar\.idx are not"):
                reader(folder, record=True)
            seen["record"] += 1
            alone = reader(folder, record=False)
            with pytest.raises(ShardError, match="do not belong together"):
                alone.read([entry - 1])
            seen["before"] += 1
            if members < 0:
                with pytest.raises(ShardError, match="do not belong together"):
                    alone.read([entry])
                seen["after early"] += 1
    assert seen == {"record": 398, "before": 398, "after early": 199}


def test_without_a_record_sound_samples_are_given(tmp_path):
    for number, options in enumerate(
        [{}, {"prefix": LONG, "format": tarfile.GNU_FORMAT}, {"prefix": LONG, "format": 2}]
    ):
        folder = folder_of(tmp_path / str(number), count=20, **options)
        found = reader(folder, record=False, count=20).read(range(20))
        assert found == reader(folder, record=True, count=20).read(range(20))
        assert [sample["txt"] for sample in found] == [b"txt %d" % i for i in range(20)]


def test_a_shard_of_another_size_is_named_with_its_index(tmp_path):
    folder = folder_of(tmp_path / "web")
    shard = folder / "0.tar"
    shard.write_bytes(shard.read_bytes() + bytes(512))
    with pytest.raises(
        ShardError, match=r"0\.tar and its index .*the shard has \d+ bytes, and had"
    ):
        WebdatasetSource(folder)[0]


def test_keys_are_not_read_of_another_shard_either(tmp_path):
    folder = folder_of(tmp_path / "web")
    source = WebdatasetSource(folder)
    (folder / "0.tar").write_bytes((folder / "0.tar").read_bytes() + bytes(512))
    with pytest.raises(ShardError, match="are not what was prepared"):
        source.keys(np.arange(3))


def test_a_shard_replaced_while_a_run_reads_is_seen_by_a_process_that_starts_later(tmp_path):
    """Though it was prepared again: what the run was started with counts."""
    folder = folder_of(tmp_path / "web", count=20)
    source = WebdatasetSource(folder)
    assert source[3]["txt"] == b"txt 3"
    sent = pickle.dumps(source)
    for each in folder.rglob("*"):
        if each.is_file():
            each.unlink()
    (folder / ".nv-meta").rmdir()
    folder.rmdir()
    folder_of(folder, count=20, prefix="other/" * 20)
    with pytest.raises(ShardError, match="are not what was prepared"):
        pickle.loads(sent)[3]
    assert WebdatasetSource(folder)[3]["txt"] == b"txt 3"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('{"version": 2}', "expected 1; got 2"),
        ('{"version": 1}', "'shards' is missing"),
        ('{"version": 1, "shards": {}}', "only .info.json knows '0.tar'"),
        ('{"version": 1, "shards": {"0.tar": {"bytes": 1}}}', r"shards\['0.tar'\]"),
        (
            '{"version": 1, "shards": {"0.tar": {"bytes": 1, "index_crc32": 1, '
            '"headers_crc32": 4294967296}}}',
            r"shards\['0.tar'\]",
        ),
        ('{"version": 1, "shards": {', "is not valid JSON"),
        ("[" * 100_000, "shards.json"),
    ],
)
def test_a_wrong_record_is_an_error_with_its_path(tmp_path, wrong, message):
    folder = folder_of(tmp_path / "web", count=3)
    (folder / ".nv-meta" / "shards.json").write_text(wrong)
    with pytest.raises(DatasetError, match=message) as error:
        WebdatasetSource(folder)
    assert "shards.json" in str(error.value)


def test_a_shard_without_samples_whose_index_has_some(tmp_path):
    folder = prepared(tmp_path / "web", (3, 2))
    info = folder / ".nv-meta" / ".info.json"
    counts = json.loads(info.read_text())
    counts["shard_counts"]["parts/d1.tar"] = 0
    info.write_text(json.dumps(counts))
    with pytest.raises(ShardError, match=r"d1\.tar has no samples, .* has 24 bytes, and not 8"):
        WebdatasetSource(folder)


def flipped(folder, text):
    """The shard with one bit of a payload changed."""
    shard = folder / "0.tar"
    data = bytearray(shard.read_bytes())
    data[data.index(text)] ^= 1
    shard.write_bytes(data)


def test_checksums_find_a_changed_bit(tmp_path):
    folder = folder_of(tmp_path / "web", count=20)
    prepare_checksums(folder, workers=1)
    assert WebdatasetSource(folder, checksums=True)[7] == WebdatasetSource(folder)[7]
    flipped(folder, b"txt 7")
    assert WebdatasetSource(folder)[7]["txt"] == b"uxt 7"
    found = WebdatasetSource(folder, checksums=True).read(np.arange(20))
    failed = [each for each in found if isinstance(each, Failed)]
    assert len(failed) == 1
    assert isinstance(failed[0].reason, DataError)
    assert "0.tar, sample '0007' (index 7): its checksum is" in str(failed[0].reason)


def test_what_is_damaged_between_the_parts_is_found_too(tmp_path):
    """The first sample begins where the shard does; padding belongs to the sample before it."""
    folder = folder_of(tmp_path / "web", count=3)
    prepare_checksums(folder, workers=1)
    data = bytearray((folder / "0.tar").read_bytes())
    data[1023] ^= 1
    (folder / "0.tar").write_bytes(data)
    found = WebdatasetSource(folder, checksums=True).read(np.arange(3))
    assert [isinstance(each, Failed) for each in found] == [True, False, False]


def test_bytes_that_changed_under_the_same_headers_are_told_of_in_the_log(tmp_path, caplog):
    """One damaged sample is no other shard, so the run goes on."""
    folder = folder_of(tmp_path / "web", count=20)
    assert WebdatasetSource(folder)[0]
    assert not caplog.text
    flipped(folder, b"txt 0")
    assert WebdatasetSource(folder)[0]["txt"] == b"uxt 0"
    assert "0.tar has changed since it was prepared: the files in it have the same" in caplog.text


def test_a_damaged_header_costs_its_sample(tmp_path, caplog):
    folder = folder_of(tmp_path / "web", count=20)
    flipped(folder, b"0003.txt")
    found = WebdatasetSource(folder).read(np.arange(20))
    assert [n for n, each in enumerate(found) if isinstance(each, Failed)] == [3]
    assert "has changed since it was prepared" in caplog.text


def test_checksums_have_to_be_there_and_be_those_that_were_written(tmp_path):
    folder = folder_of(tmp_path / "web", count=20)
    with pytest.raises(NotPreparedError, match=f"energize prepare --checksums {folder}"):
        WebdatasetSource(folder, checksums=True)
    prepare_checksums(folder, workers=1)
    source, file = WebdatasetSource(folder, checksums=True), folder / "0.tar.crc"
    sound = file.read_bytes()
    for wrong, message in (
        (sound[:-4], "has 76 bytes, and the checksums of 20 samples have 80"),
        (bytes(80), "is not what was written: its CRC-32"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(ShardError, match=message):
            pickle.loads(pickle.dumps(source))[0]
    file.unlink()
    with pytest.raises(ShardError, match=r"0\.tar\.crc: cannot be read .* --checksums"):
        pickle.loads(pickle.dumps(source))[0]


def test_checksums_change_no_order_and_no_identity(tmp_path):
    folder = folder_of(tmp_path / "web", count=20)
    plain = WebdatasetSource(folder)
    prepare_checksums(folder, workers=1)
    checked = WebdatasetSource(folder, checksums=True)
    assert (checked.key, checked.settings()) == (plain.key, plain.settings())
    assert checked.record == plain.record


def test_a_record_of_a_part_is_that_of_its_shards(tmp_path):
    samples = [{"__key__": f"{i}", "txt": f"text {i}"} for i in range(30)]
    write_shards(samples, tmp_path / "web", samples_per_shard=10)
    prepare(tmp_path / "web", split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    source = WebdatasetSource(tmp_path / "web")
    part = source.part(12, 18)
    assert part.records == source.records[1:2]
    assert part[0]["txt"] == b"text 12"
    assert len({source.record, part.record, source.part(0, 5).record}) == 3
