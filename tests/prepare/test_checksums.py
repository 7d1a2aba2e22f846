"""Checksums and records of shards: written, kept, lost, and checked by lint."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import pytest

from energize import (
    JsonlSource,
    WebdatasetSource,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    prepare_checksums,
    write_shards,
)
from energize.data.records import read_records
from energize.energon.factories import WebdatasetPreparator
from energize.errors import NotPreparedError, PrepareError
from energize.preparation.checking_shards import check_lines, check_shards
from energize.preparation.jsonl import prepare_jsonl
from tests.cli.commands import run
from tests.support.shards import prepared
from tests.support.tars import contents, unprepared

OPTIONS = {"split_ratios": {"train": 1}, "sample_type": "CrudeWebdataset"}


def silent(done, total):
    pass


def checksums_of(folder):
    """What the files say, computed anew with offsets of the index."""
    expected = {}
    for index in sorted(folder.rglob("*.tar.idx")):
        data = index.with_suffix("").read_bytes()
        offsets = struct.unpack(f"<{index.stat().st_size // 8}Q", index.read_bytes())
        crcs = [zlib.crc32(data[a:b]) for a, b in pairwise((0, *offsets[1:]))]
        expected[index.name] = struct.pack(f"<{len(crcs)}I", *crcs)
    return expected


@pytest.mark.parametrize("workers", [1, 3])
def test_one_of_each_sample_is_written_beside_the_index(tmp_path, workers):
    folder = unprepared(tmp_path / "web")
    prepare(folder, workers=workers, checksums=True, **OPTIONS)
    found = {f"{each.stem}.idx": each.read_bytes() for each in folder.rglob("*.tar.crc")}
    assert found == checksums_of(folder)
    assert sum(map(len, found.values())) == 4 * 9
    assert all(each.checksums_crc is not None for each in read_records(folder).values())


def test_they_are_all_that_is_added_to_a_prepared_folder(tmp_path):
    folder = unprepared(tmp_path / "web")
    prepare(folder, workers=1, **OPTIONS)
    before = contents(folder)
    report = prepare_checksums(folder, workers=1)
    after = contents(folder)
    assert report.samples == 9
    assert report.bytes == sum(map(len, (v for k, v in after.items() if k.endswith(".tar"))))
    changed = {name for name, data in after.items() if before.get(name) != data}
    assert changed == {f"parts/d{i}.tar.crc" for i in range(3)} | {".nv-meta/shards.json"}
    prepare_checksums(folder, workers=1)
    assert contents(folder) == after


def test_a_folder_that_energon_prepared_gets_a_record_with_them(tmp_path):
    folder = prepared(tmp_path / "web")
    assert read_records(folder) is None
    assert WebdatasetSource(folder).record is None
    prepare_checksums(folder, workers=1)
    assert len(list(WebdatasetSource(folder, checksums=True))) == 10


def test_write_shards_writes_them_and_prepare_takes_them_over(tmp_path):
    samples = [{"__key__": f"{i}", "txt": f"text {i}"} for i in range(25)]
    write_shards(samples, tmp_path / "web", samples_per_shard=10, checksums=True)
    written = {each.name: each.read_bytes() for each in tmp_path.rglob("*.crc")}
    prepare(tmp_path / "web", workers=1, **OPTIONS)
    assert len(list(WebdatasetSource(tmp_path / "web", checksums=True))) == 25
    prepare_checksums(tmp_path / "web", workers=1)
    assert written == {each.name: each.read_bytes() for each in tmp_path.rglob("*.crc")}


def test_prepared_again_they_stay_with_the_shards_that_are_as_they_were(tmp_path):
    folder = unprepared(tmp_path / "web", (3, 4, 4))
    prepare(folder, workers=1, checksums=True, **OPTIONS)
    for options in ({"tar_index_only": True}, {"overwrite": True, **OPTIONS}):
        assert prepare(folder, workers=1, **options).notes == ()
        assert len(list(WebdatasetSource(folder, checksums=True))) == 11
    (folder / "parts" / "d1.tar").write_bytes((folder / "parts" / "d2.tar").read_bytes())
    (folder / "parts" / "d2.tar").unlink()
    report = prepare(folder, workers=1, overwrite=True, **OPTIONS)
    assert "the checksums of 1 of 2 shards are gone, of parts/d1.tar" in report.notes[-1]
    with pytest.raises(NotPreparedError, match=r"no checksums of 1 of its 2 shards, parts/d1\.tar"):
        WebdatasetSource(folder, checksums=True)
    # What was lost does not come back by itself.
    assert prepare(folder, workers=1, overwrite=True, **OPTIONS).notes == ()
    with pytest.raises(NotPreparedError, match="no checksums of 1 of its 2 shards"):
        WebdatasetSource(folder, checksums=True)


def test_none_are_written_of_shards_that_are_not_those_that_were_prepared(tmp_path):
    folder = unprepared(tmp_path / "web")
    prepare(folder, workers=1, **OPTIONS)
    shard, index = folder / "parts" / "d1.tar", folder / "parts" / "d1.tar.idx"
    sound = shard.read_bytes(), index.read_bytes()
    before = contents(folder)
    for data, offsets, message in (
        (sound[0][:-512], sound[1], "is not the shard that was prepared"),
        ((folder / "parts" / "d2.tar").read_bytes(), sound[1], "has 4 samples, and .info.json"),
        (sound[0], sound[1][:-8] + bytes(8), r"d1\.tar\.idx is not the index of"),
        (sound[0][:700], sound[1], r"d1\.tar"),
    ):
        shard.write_bytes(data)
        index.write_bytes(offsets)
        with pytest.raises(PrepareError, match=message):
            prepare_checksums(folder, workers=1)
        shard.write_bytes(sound[0])
        index.write_bytes(sound[1])
        assert contents(folder) == before


def test_training_goes_on_with_a_substitute_and_counts_the_damage(tmp_path):
    samples = [{"__key__": f"{i:02d}", "txt": f"text {i}"} for i in range(40)]
    write_shards(samples, tmp_path / "web", samples_per_shard=20)
    options = {"split_ratios": {"train": 1, "val": 1}, "sample_type": "TextSample"}
    prepare(tmp_path / "web", workers=1, checksums=True, **options)
    for shard in (tmp_path / "web").glob("*.tar"):
        data = shard.read_bytes()
        shard.write_bytes(data.replace(b"text 7", b"word 7").replace(b"text 27", b"word 27"))
    texts = {}
    for checksums in (False, True):
        dataset = get_train_dataset(tmp_path / "web", batch_size=5, checksums=checksums)
        with get_loader(dataset) as loader:
            read = iter(loader)
            texts[checksums] = [text for _ in range(4) for text in next(read).text]
            counted = loader.failures.count
    assert "word 7" in texts[False]
    assert len(texts[True]) == 20
    assert not {"word 7", "word 27"} & set(texts[True])
    assert len(set(texts[True]) & set(texts[False])) == 19
    validated = get_val_dataset(tmp_path / "web", batch_size=20, checksums=True)
    assert not {"word 27"} & {text for batch in [validated[0]] for text in batch.text}
    assert counted > 0


def test_they_have_to_be_there_for_training(tmp_path):
    folder = unprepared(tmp_path / "web")
    prepare(folder, workers=1, **OPTIONS)
    with pytest.raises(NotPreparedError, match=f"energize prepare --checksums {folder}"):
        get_train_dataset(folder, batch_size=2, checksums=True)


def test_in_the_words_of_energon(tmp_path):
    folder = unprepared(tmp_path / "web")
    names = [f"parts/d{i}.tar" for i in range(3)]
    options = {"split_parts_ratio": [("train", 1)], "workers": 1, "checksums": True}
    assert WebdatasetPreparator.prepare_dataset(folder, names, **options) == {"jpg", "txt"}
    assert len(list(WebdatasetSource(folder, checksums=True))) == 9


def lines_at(path, count=12):
    path.write_text("\n" + "".join(f'{{"text": "{i}"}}\n\n' for i in range(count)))
    prepare_jsonl(path, checksums=True)
    return path


def test_of_json_lines(tmp_path):
    path = lines_at(tmp_path / "lines.jsonl")
    assert [each["json"] for each in JsonlSource(path, checksums=True)] == [
        each["json"] for each in JsonlSource(path)
    ]
    assert check_lines(path) == ()
    path.write_bytes(path.read_bytes().replace(b'"7"', b'"8"'))
    with get_loader(get_train_dataset(path, batch_size=4, checksums=True)) as loader:
        read = iter(loader)
        texts = [text for _ in range(3) for text in next(read)["json"]["text"]]
        assert loader.failures.count
    assert len(texts) == 12
    assert "7" not in texts
    assert "the checksums of 1 of 12 samples are others: that of sample 7" in check_lines(path)[0]


def test_json_lines_with_an_index_of_fewer(tmp_path):
    """Two lines are no sample."""
    path = lines_at(tmp_path / "lines.jsonl")
    index = tmp_path / "lines.jsonl.idx"
    data = index.read_bytes()
    index.write_bytes(data[:40] + data[48:])
    with pytest.raises(Exception, match="several lines are where sample 4 is said to be"):
        JsonlSource(path)[4]
    with pytest.raises(NotPreparedError, match="the checksums of 11 samples have 44"):
        JsonlSource(path, checksums=True)


def test_the_command(tmp_path):
    folder = unprepared(tmp_path / "web")
    prepare(folder, workers=1, **OPTIONS)
    shown = run("prepare", folder, "--checksums", "--no-progress")
    assert "Wrote checksums of 9 samples" in shown
    assert len(list(WebdatasetSource(folder, checksums=True))) == 9
    shown = run("prepare", folder, "--checksums", "--split-ratio", "1,1", code=2)
    assert "as --checksums adds checksums" in shown
    path = lines_at(tmp_path / "lines.jsonl")
    (tmp_path / "lines.jsonl.crc").unlink()
    run("prepare", path, "--checksums")
    assert (tmp_path / "lines.jsonl.crc").stat().st_size == 48


def test_lint_tells_what_changed_and_which_entries_are_off(tmp_path):
    folder = unprepared(tmp_path / "web", parts=("txt", "md"))
    prepare(folder, workers=1, checksums=True, **OPTIONS)
    assert run("lint", folder).splitlines()[-1] == "No faults in 9 samples"
    shard = folder / "parts" / "d2.tar"
    shard.write_bytes(shard.read_bytes().replace(b"txt 2 3", b"txt 2 4"))
    shown = run("lint", folder, code=1)
    assert "d2.tar: the checksums of 1 of 4 samples are others: that of sample 3 is" in shown
    assert "d2.tar is not the shard that was prepared: the CRC-32 of its ends is" in shown
    index = folder / "parts" / "d0.tar.idx"
    offsets = list(struct.unpack("<4Q", index.read_bytes()))
    offsets[1] += 1024
    index.write_bytes(struct.pack("<4Q", *offsets))
    shown = run("lint", folder, code=1)
    assert f"d0.tar.idx: 1 of 4 entries are wrong: entry 1 is {offsets[1]}, and" in shown
    assert "and sample '00000001' is at byte" in shown


def test_lint_notes_folders_without_a_record(tmp_path):
    folder = unprepared(tmp_path / "web", parts=("txt", "md"))
    prepare(folder, workers=1, **OPTIONS)
    (folder / ".nv-meta" / "shards.json").unlink()
    assert "3 of 3 shards have no record of what was prepared" in run("lint", folder)
    assert check_shards(folder, 1, silent).unrecorded == 3
    prepare(folder, tar_index_only=True, workers=1)
    assert "no record" not in run("lint", folder)
