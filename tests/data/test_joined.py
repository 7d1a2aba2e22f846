"""Sources that read samples of several folders together."""

from __future__ import annotations

import os
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from energize import ConfigError, DatasetError
from energize.core.failures import Failed
from energize.core.trace import ReadContext
from energize.data.join import remove_matches, write_matches
from energize.data.webdataset import WebdatasetSource
from energize.energon.index import SqliteIndexReader
from energize.errors import ShardError
from energize.sources import JoinedSource
from tests.support.joining import keys, texts
from tests.support.refusals import check_refusals


@pytest.fixture
def folder(tmp_path):
    texts(tmp_path / "a", [keys(*range(5)), keys(*range(5, 12))], prefix="a ")
    texts(tmp_path / "b", [keys(*range(20, 2, -1))], prefix="b ")
    texts(tmp_path / "c", [keys(*range(0, 12, 2))], prefix="c ")
    return tmp_path


def sources(folder):
    return [WebdatasetSource(folder / name) for name in "abc"]


def read(source):
    return [
        tuple(None if each is None else each["txt"].decode() for each in row)
        for row in source
    ]


def test_samples_of_other_keys_are_never_joined(folder):
    """Whatever an index says: one whose keys were exchanged, here."""
    with sqlite3.connect(folder / "b" / ".nv-meta" / "index.sqlite") as database:
        for old, new in (("0004", "x"), ("0005", "0004"), ("x", "0005")):
            change = "UPDATE samples SET sample_key = ? WHERE sample_key = ?"
            database.execute(change, (new, old))
    joined = JoinedSource(*sources(folder)[:2], nonmatch=["skip"])
    assert read(joined.part(0, 1)) == [("a 0003", "b 0003")]
    with pytest.raises(
        ShardError, match=r"'0004' of s0\.tar would be joined with '0005' of .*/b"
    ):
        joined.at([1])


@pytest.mark.parametrize(("change", "told"), [
    ("sample_index = NULL WHERE sample_index = 4", "cannot be read: the location of a sample must be"),
    ("sample_index = 4.5 WHERE sample_index = 4", "cannot be read: the location of a sample must be"),
    ("sample_key = '0004'", "the key '0004' is not unique"),
    ("sample_key = CAST(x'ff' AS TEXT)", "cannot be read: Could not decode to UTF-8"),
])  # fmt: skip
def test_an_index_without_numbers_or_with_one_key_for_all_is_an_error(
    folder, change, told
):
    file = folder / "b" / ".nv-meta" / "index.sqlite"
    with sqlite3.connect(file) as database:
        database.executescript(
            "CREATE TABLE t AS SELECT * FROM samples; DROP TABLE samples; ALTER TABLE t RENAME TO "
            f"samples; UPDATE samples SET {change}"
        )
    a, b, _ = sources(folder)
    with pytest.raises(DatasetError, match=told):
        JoinedSource(*((a, b) if "unique" in told else (b, a)), nonmatch=["skip"])
    if "UTF-8" in told:
        with pytest.raises(DatasetError, match=told):
            list(SqliteIndexReader(file).list_all_samples())


def test_a_key_that_is_damaged_in_an_index_is_no_missing_partner(folder):
    """It stands there twice, in the table and in its index."""
    file = folder / "b" / ".nv-meta" / "index.sqlite"
    data = file.read_bytes()
    at = [match.start() for match in re.finditer(b"0004", data)]
    assert len(at) == 2
    for place in at:
        file.write_bytes(data[:place] + b"x" + data[place + 1 :])
        with pytest.raises(
            DatasetError, match=r"b/\.nv-meta/index\.sqlite cannot be read"
        ):
            JoinedSource(*sources(folder)[:2], nonmatch=["none"])


def test_a_damaged_partner_fails_the_row_and_another_row_takes_its_place(folder):
    shard = folder / "b" / "s0.tar"
    data = bytearray(shard.read_bytes())
    at = data.index(b"0007.txt")
    data[at : at + 4] = b"x\x007."
    shard.write_bytes(data)
    joined = JoinedSource(*sources(folder)[:2], nonmatch=("skip",))
    failed = joined.fetch(np.array([4]), ReadContext())
    assert isinstance(failed[0], Failed)
    assert "b/s0.tar" in failed[0].where
    assert read(joined.part(0, 4)) == [
        (f"a {key}", f"b {key}") for key in keys(3, 4, 5, 6)
    ]
    (substitute,) = joined.at([4], ReadContext.reporting(lambda _: None))
    assert substitute[0]["__key__"] == substitute[1]["__key__"] != "0007"


def test_several_may_write_at_once(folder):
    joined = JoinedSource(
        *sources(folder), nonmatch=("skip", "none"), cache=folder / "cache"
    )
    with ThreadPoolExecutor(8) as threads:
        files = list(threads.map(write_matches, [joined] * 8))
    assert len(set(files)) == 1
    assert list((folder / "cache").iterdir()) == [files[0]]
    again = JoinedSource(
        *sources(folder), nonmatch=("skip", "none"), cache=folder / "cache"
    )
    assert "all_matches" not in again.__getstate__()
    os.truncate(files[0], 0)  # what is read stays, whatever becomes of the file
    assert read(again) == read(joined)
    assert again.identity == joined.identity


def test_what_killed_writing_left_is_removed_later(folder):
    cache = folder / "cache"
    joined = JoinedSource(*sources(folder), nonmatch=("skip", "none"), cache=cache)
    file = write_matches(joined)
    left, fresh = (cache / f"join_x.npy.{name}.tmp" for name in ("left", "fresh"))
    for each in (left, fresh, cache / "join_old.npy", cache / "mine.npy"):
        each.touch()
    os.utime(left, (0, 0))
    remove_matches(cache, [file])
    assert sorted(each.name for each in cache.iterdir()) == sorted(
        [file.name, fresh.name, "mine.npy"]
    )


def test_what_is_refused(folder):
    (folder / "cache").write_text("a file")
    a, b, c = sources(folder)
    few = partial(JoinedSource, a, b, nonmatch=("skip",))
    told = "must have at least two sources"
    check_refusals(ConfigError, {
        "one": (partial(JoinedSource, a), told),
        "few rules": (partial(JoinedSource, a, b, c, nonmatch=("skip",)), told),
        "wrong rule": (partial(JoinedSource, a, b, c, nonmatch=("skip", "drop")), told),
        "many rules": (partial(JoinedSource, a, b, c, nonmatch=("error",) * 3), told),
        "no cache": (lambda: write_matches(few()), "Pass `cache`"),
        "a file": (lambda: write_matches(few(cache=folder / "cache")), DatasetError, "be written"),
    })  # fmt: skip
