"""Joins: which samples belong together, in which order, and what is told when some do
not."""

from __future__ import annotations

import io
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    DatasetError,
    EnergizeError,
    MetadatasetError,
    NotPreparedError,
    UntrustedCodeError,
    get_val_dataset,
)
from energize.energon import prepare_metadataset
from energize.metadataset import resolve
from tests.support.joining import Pair, keys, pair, texts
from tests.support.metadatasets import written
from tests.support.tables import row

CLASS = {"__module__": "tests.support.joining", "__class__": "Pair"}
FUNCTION = {"__module__": "tests.support.joining", "__function__": "pair"}
TRAIN = keys(*range(10), 40, 41, 42, 43)
VAL = keys(*range(20, 24))
NOTES = keys(*range(29, 6, -1), *range(7), 42)


@pytest.fixture
def folder(tmp_path):
    """Texts in two splits, and notes in other shards, other splits and another
    order."""
    shards = [TRAIN[:10], TRAIN[10:], VAL]
    texts(tmp_path / "a", shards, splits={"train": [0, 1], "val": [2]}, prefix="a ")
    texts(tmp_path / "b", [NOTES[:23], NOTES[23:]], prefix="b ")
    return tmp_path


def joined(folder, nonmatch="none", joiner=CLASS, name="mix.yaml", **more):
    """A metadataset whose splits train and val join a and the notes."""
    entries = [
        {"path": "a"},
        {"path": "b", "split_part": "train", "nonmatch": nonmatch},
    ]
    node = {"join": entries, "joiner": joiner, **more}
    file = written(folder / name, node, "megatron.energon")
    document = file.read_text()
    file.write_text(
        document + document[document.index("  train:") :].replace("train:", "val:", 1)
    )
    return file


def rows(file, split="train"):
    samples = get_val_dataset(file, split_part=split, batch_size=None)
    return [(each.__key__, each.text, each.note) for each in samples]


def expected(of, nonmatch="none"):
    found = [(key, f"a {key}", f"b {key}" if key in NOTES else None) for key in of]
    return [each for each in found if nonmatch != "skip" or each[2]]


def fault(kind, file, place="mix.yaml:5 (splits.train.join)"):
    with pytest.raises(kind) as caught:
        list(get_val_dataset(file, split_part="train", batch_size=None))
    assert place in str(caught.value)
    return str(caught.value)


def test_rows_are_those_of_the_first_dataset_in_its_order(folder):
    for nonmatch in ("skip", "none"):
        for joiner in (CLASS, FUNCTION):
            file = joined(folder, nonmatch, joiner)
            assert rows(file) == expected(TRAIN, nonmatch)
            assert rows(file, "val") == expected(VAL, nonmatch)
    entries = {"text": {"path": "a"}, "note": {"path": "b", "nonmatch": "none"}}
    for joiner in (CLASS, FUNCTION):
        file = written(folder / "named.yaml", {"join": entries, "joiner": joiner})
        assert rows(file) == expected(TRAIN)
    told = fault(DatasetError, joined(folder, "error"))
    for words in (
        "3 of 14 samples of",
        "have no partner in",
        "the first of them '0040'",
    ):
        assert words in told
    assert "nonmatch: skip" in told


def test_excludes_and_subsets_are_applied_before_and_after(folder):
    for name, excluded in (("a", "s0.tar/0003"), ("b", "s1.tar/0005")):
        file = folder / name / ".nv-meta" / "split.yaml"
        file.write_text(
            file.read_text().replace("exclude: []", f"exclude: [{excluded}]")
        )
    found = [each for each in expected(TRAIN) if each[0] != "0003"]
    whole = [(key, text, None if key == "0005" else note) for key, text, note in found]
    assert rows(joined(folder)) == whole
    assert rows(joined(folder, subset={"range": [2, 7]})) == whole[2:7]
    assert rows(joined(folder, subset={"range": ["50%", "end"]})) == whole[6:]
    kept = [each for each in whole if each[2]]
    assert (
        rows(joined(folder, "skip", subset={"range": ["0%", "50%"]}))
        == kept[: len(kept) // 2]
    )
    first = {"path": "a", "subset": {"range": [0, 8]}}
    other = {"path": "b", "nonmatch": "skip", "subset": {"range": ["50%", "end"]}}
    file = written(folder / "parts.yaml", {"join": [first, other], "joiner": CLASS})
    there = NOTES[15:]
    wanted = [key for key in TRAIN[:8] if key in there and key not in ("0003", "0005")]
    assert [each[0] for each in rows(file)] == wanted


# What is prepared ahead


def as_file(save, *arrays, **options):
    file = io.BytesIO()
    save(file, *arrays, **options)
    return file.getvalue()


def test_a_damaged_cache_is_an_error(folder):
    file = joined(folder)
    prepare_metadataset(file)
    caches = list((folder / "mix.yaml.cache").glob("*.npy"))
    bit = bytearray(caches[0].read_bytes())
    bit[-40] ^= 1
    for name, content, words in [
        ("empty", b"", "is not a file of matches"),
        ("cut", b"\x93NUMPY\x01\x00", "is not a file of matches"),
        ("text", b"x" * 100, "is not a file of matches"),
        (
            "archive",
            as_file(np.savez, m=np.zeros((3, 2), int)),
            "is not a file of matches",
        ),
        ("objects", as_file(np.save, np.array([{"a": 1}], dtype=object)), "Delete it"),
        ("others", as_file(np.save, np.full((3, 2), 99)), "Delete it"),
        ("floats", as_file(np.save, np.zeros((2, 3))), "Delete it"),
        ("one bit", bytes(bit), "its name does not match its content"),
    ]:
        for each in caches:
            each.write_bytes(content)
        with row(name):
            assert words in fault(DatasetError, file, "join_")


# Faults


def test_a_joiner_is_code_that_the_program_imported(folder):
    ours = "tests.support.joining"
    for kind, module, name, words in [
        (
            UntrustedCodeError,
            "not_imported_here",
            "__class__: X",
            "which this program has not",
        ),
        (MetadatasetError, "os", "__class__: system", "the joiner is 'system'"),
        (MetadatasetError, "os", "__function__: sistem", "did you mean 'system'"),
        (
            DatasetError,
            "megatron.energon",
            "__class__: TextSampel",
            "did you mean 'TextSample'?",
        ),
        (MetadatasetError, "pathlib", "__class__: Path", "is not a sample type"),
        (
            EnergizeError,
            ours,
            "__function__: no_sample",
            "must return a sample, but returned a str",
        ),
    ]:
        key, value = name.split(": ")
        file = joined(folder, joiner={"__module__": module, key: value})
        with row(name):
            assert words in fault(
                kind, file, "0000" if module == ours else "mix.yaml:5 (splits.t"
            )
    leaf = resolve(joined(folder), "train")
    assert leaf.sample_class is Pair
    assert (
        pair.__name__
        == resolve(joined(folder, joiner=FUNCTION), "train").joiner.function
    )


TABLE = "DROP TABLE samples; "
ENDLESS = "CREATE VIEW samples AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i FROM n) "
STATEMENTS = {
    "DELETE FROM samples WHERE sample_key = '0003'": "index.sqlite lists",
    "UPDATE samples SET tar_file_id = 7 WHERE sample_key = '0003'": "index.sqlite lists",
    "UPDATE samples SET sample_index = 'x' WHERE sample_key = '0003'": "index.sqlite lists",
    "UPDATE samples SET sample_index = 99 WHERE sample_key = '0003'": "index.sqlite lists",
    TABLE: "samples",
    TABLE
    + ENDLESS
    + "SELECT i AS tar_file_id, 'k' AS sample_key, i AS sample_index FROM n": (
        "samples"
    ),
    "CREATE TABLE t AS SELECT * FROM samples; UPDATE t SET sample_key = '0001' WHERE sample_key = "
    f"'0002'; {TABLE}ALTER TABLE t RENAME TO samples": "the key '0001' is not unique",
}


def test_an_index_that_cannot_be_used(folder):
    index = folder / "b" / ".nv-meta" / "index.sqlite"
    whole = index.read_bytes()
    for statement, words in STATEMENTS.items():
        index.write_bytes(whole)
        with sqlite3.connect(index) as connection:
            connection.executescript(statement)
        connection.close()
        with row(statement):
            assert words in fault(DatasetError, joined(folder))
    index.write_bytes(b"no database" * 1000)
    assert "cannot be read" in fault(DatasetError, joined(folder))
    index.unlink()
    told = fault(NotPreparedError, joined(folder))
    assert "has no .nv-meta/index.sqlite" in told
    assert "energize prepare --tar-index-only --sqlite" in told
    index.write_bytes(whole)
    split = folder / "b" / ".nv-meta" / "split.yaml"
    split.write_text("split_parts: {train: [s0.tar, s0.tar]}\nexclude: []\n")
    told = fault(DatasetError, joined(folder), "mix.yaml:7 (splits.train.join[1].path)")
    assert "shard 's0.tar' is listed twice" in told


def test_what_is_joined_are_folders_that_exist(folder):
    written(folder / "other.yaml", {"blend": [{"path": "a"}]})
    for other, words in [
        ("other.yaml", "a join needs prepared folders, and 'other.yaml' is not"),
        ("nowhere", "join.note.path): 'nowhere' does not exist"),
    ]:
        node = {
            "join": {"text": {"path": "a"}, "note": {"path": other}},
            "joiner": CLASS,
        }
        with pytest.raises((MetadatasetError, DatasetError)) as caught:
            resolve(written(folder / "mix.yaml", node), "train")
        assert words in str(caught.value)


KEYS = st.lists(st.integers(0, 25), unique=True, min_size=1, max_size=20)


@settings(max_examples=10, deadline=None)
@given(
    first=KEYS,
    other=KEYS,
    cut=st.integers(1, 19),
    nonmatch=st.sampled_from(["skip", "none"]),
)
def test_any_two_folders(tmp_path_factory, first, other, cut, nonmatch):
    folder = tmp_path_factory.mktemp("any")
    cuts = [each for each in (keys(*first[:cut]), keys(*first[cut:])) if each]
    texts(folder / "a", cuts, prefix="a ")
    texts(folder / "b", [keys(*other)], prefix="b ")
    file, known = joined(folder, nonmatch), set(keys(*other))
    wanted = [(k, f"a {k}", f"b {k}" if k in known else None) for k in keys(*first)]
    wanted = [each for each in wanted if nonmatch == "none" or each[2]]
    if wanted:
        assert rows(file) == wanted
    else:
        assert "has no samples" in fault(DatasetError, file)
