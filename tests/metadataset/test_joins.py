"""Joins: which samples belong together, in which order, and what is told when some do not."""

from __future__ import annotations

import io
import pickle
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    ConfigError,
    DatasetError,
    EncoderError,
    MetadatasetError,
    NotPreparedError,
    ShardError,
    UntrustedCodeError,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    prepare_metadataset,
)
from energize.data.join import sealed
from energize.metadataset import JoinedLeaf, leaves_with_weights, resolve
from energize.preview.planning import plan
from energize.testing import check_laws
from tests.support.joining import Pair, keys, pair, texts
from tests.support.metadatasets import written

CLASS = {"__module__": "tests.support.joining", "__class__": "Pair"}
FUNCTION = {"__module__": "tests.support.joining", "__function__": "pair"}

TRAIN = keys(*range(10), 40, 41, 42, 43)
VAL = keys(*range(20, 24))


@pytest.fixture
def folder(tmp_path):
    """Texts in two splits, and notes in other shards, other splits and another order."""
    shards = [TRAIN[:10], TRAIN[10:], VAL]
    texts(tmp_path / "a", shards, splits={"train": [0, 1], "val": [2]}, prefix="a ")
    notes = [keys(*range(29, 6, -1)), keys(*range(7), 42)]
    texts(tmp_path / "b", notes, prefix="b ")
    return tmp_path


def joined(folder, nonmatch="none", joiner=CLASS, name="mix.yaml", **more):
    entries = [{"path": "a"}, {"path": "b", "split_part": "train", "nonmatch": nonmatch}]
    node = {"join": entries, "joiner": joiner, **more}
    file = written(folder / name, node, "megatron.energon")
    document = file.read_text()
    file.write_text(document + document[document.index("  train:") :].replace("train:", "val:", 1))
    return file


def rows(file, split="train"):
    samples = get_val_dataset(file, split_part=split, batch_size=None)
    return [(each.__key__, each.text, each.note) for each in samples]


def expected(of, nonmatch):
    notes = {*keys(*range(30)), "0042"}
    found = [(key, f"a {key}", f"b {key}" if key in notes else None) for key in of]
    return [row for row in found if nonmatch != "skip" or row[2]]


def fault(kind, file, split="train"):
    with pytest.raises(kind) as caught:
        list(get_val_dataset(file, split_part=split, batch_size=None))
    return str(caught.value)


@pytest.mark.parametrize("nonmatch", ["skip", "none"])
@pytest.mark.parametrize("joiner", [CLASS, FUNCTION])
def test_rows_are_those_of_the_first_dataset_in_its_order(folder, nonmatch, joiner):
    file = joined(folder, nonmatch, joiner)
    assert rows(file) == expected(TRAIN, nonmatch)
    assert rows(file, "val") == expected(VAL, nonmatch)


def test_by_name(folder):
    entries = {"text": {"path": "a"}, "note": {"path": "b", "nonmatch": "none"}}
    file = written(folder / "named.yaml", {"join": entries, "joiner": FUNCTION})
    assert rows(file) == expected(TRAIN, "none")
    file = written(folder / "named.yaml", {"join": entries, "joiner": CLASS})
    assert rows(file) == expected(TRAIN, "none")


def test_without_a_partner_is_an_error_that_says_what_can_be_done(folder):
    told = fault(DatasetError, joined(folder, "error"))
    assert "3 of 14 samples of" in told
    assert "have no partner in" in told
    assert "the first of them '0040'" in told
    assert "nonmatch: skip" in told
    assert "mix.yaml:5 (splits.train.join)" in told


def test_each_split_is_joined_by_itself_also_when_it_was_prepared(folder):
    file = joined(folder, "none")
    before = {split: rows(file, split) for split in ("train", "val")}
    prepare_metadataset(file)
    cache = folder / "mix.yaml.cache"
    assert len(list(cache.glob("join_*.npy"))) == 2
    assert {split: rows(file, split) for split in ("train", "val")} == before


def test_what_was_prepared_is_used_and_old_files_are_removed(folder):
    file = joined(folder, "none")
    prepare_metadataset(file)
    cache = folder / "mix.yaml.cache"
    (cache / "notes.txt").write_text("mine")
    old = set(cache.iterdir())
    (folder / "b" / ".nv-meta" / "index.sqlite").rename(folder / "gone")
    assert "has no .nv-meta/index.sqlite" in fault(NotPreparedError, file)
    (folder / "gone").rename(folder / "b" / ".nv-meta" / "index.sqlite")
    for each in cache.glob("*.npy"):  # another answer, which nobody would find by looking again
        matches = np.load(each)[:-1]
        matches[:, 1] = -1
        np.save(each, sealed(matches))
    assert {note for _, _, note in rows(file)} == {None}
    joined(folder, "skip")
    prepare_metadataset(file)
    assert len(list(cache.glob("*.npy"))) == 2
    assert old & set(cache.iterdir()) == {cache / "notes.txt"}
    assert rows(file) == expected(TRAIN, "skip")


def test_a_folder_that_is_prepared_again_is_looked_up_again(folder):
    file = joined(folder, "none")
    prepare_metadataset(file)
    texts(folder / "c", [keys(*range(40, 44))], prefix="c ")
    (folder / "b").rename(folder / "old")
    (folder / "c").rename(folder / "b")
    assert [note for _, _, note in rows(file)] == [None] * 10 + [f"c {k}" for k in TRAIN[10:]]


def archive():
    """What `np.load` takes for something else than an array."""
    file = io.BytesIO()
    np.savez(file, matches=np.zeros((3, 2), dtype=np.int64))
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY\x01\x00", b"x" * 100, archive()],
    ids=["empty", "cut", "other", "archive"],
)
def test_a_damaged_cache_is_an_error(folder, content):
    file = joined(folder, "none")
    prepare_metadataset(file)
    for each in (folder / "mix.yaml.cache").glob("*.npy"):
        each.write_bytes(content)
    assert "is no list of joined samples" in fault(DatasetError, file)


def test_a_cache_of_objects_or_of_samples_that_are_not_there_is_an_error(folder):
    file = joined(folder, "none")
    prepare_metadataset(file)
    for wrong in (np.array([{"a": 1}], dtype=object), np.full((3, 2), 99), np.zeros((2, 3))):
        for each in (folder / "mix.yaml.cache").glob("*.npy"):
            np.save(each, wrong)
        assert "delete it" in fault(DatasetError, file)


def test_one_bit_of_a_cache_is_an_error_and_no_other_partner(folder):
    file = joined(folder, "none")
    prepare_metadataset(file)
    for each in (folder / "mix.yaml.cache").glob("*.npy"):
        data = bytearray(each.read_bytes())
        data[-40] ^= 1
        each.write_bytes(data)
    assert "it was changed since it was written; delete it" in fault(DatasetError, file)


def test_excludes_and_subsets_are_applied_before_and_after(folder):
    exclude = folder / "a" / ".nv-meta" / "split.yaml"
    exclude.write_text(exclude.read_text().replace("exclude: []", "exclude: [s0.tar/0003]"))
    left_out = folder / "b" / ".nv-meta" / "split.yaml"
    left_out.write_text(left_out.read_text().replace("exclude: []", "exclude: [s1.tar/0005]"))
    whole = [row for row in expected(TRAIN, "none") if row[0] != "0003"]
    whole = [(key, text, None if key == "0005" else note) for key, text, note in whole]
    assert rows(joined(folder)) == whole
    assert rows(joined(folder, subset={"range": [2, 7]})) == whole[2:7]
    assert rows(joined(folder, subset={"range": ["50%", "end"]})) == whole[6:]
    kept = [row for row in whole if row[2]]
    assert rows(joined(folder, "skip", subset={"range": ["0%", "50%"]})) == kept[: len(kept) // 2]


def test_a_subset_of_a_part_leaves_the_others_without_a_partner(folder):
    entries = [
        {"path": "a", "subset": {"range": [0, 8]}},
        {"path": "b", "nonmatch": "skip", "subset": {"range": ["50%", "end"]}},
    ]
    file = written(folder / "parts.yaml", {"join": entries, "joiner": CLASS})
    there = set(keys(*range(29, 6, -1), *range(7), 42)[15:])
    assert [row[0] for row in rows(file)] == [key for key in TRAIN[:8] if key in there]


def test_in_a_blend_with_shuffling_and_state(folder):
    node = {"blend": [
        {"weight": 3, "join": [{"path": "a"}, {"path": "b", "nonmatch": "none"}], "joiner": CLASS},
        {"weight": 1, "path": "a"},
    ]}  # fmt: skip
    file = written(folder / "blend.yaml", node)
    (join, three), (plain, one) = leaves_with_weights(resolve(file, "train"))
    assert isinstance(join, JoinedLeaf)
    assert not isinstance(plain, JoinedLeaf)
    assert (three, one) == (3 * one, 1 - three)
    dataset = get_train_dataset(
        joined(folder),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    loader = get_savable_loader(dataset)
    iterator = iter(loader)
    first = [next(iterator).__key__ for _ in range(9)]
    assert sorted(key for batch in first[:7] for key in batch) == sorted(TRAIN * 2)
    state = loader.save_state_rank()
    rest = [next(iterator).__key__ for _ in range(5)]
    again = get_savable_loader(dataset)
    again.restore_state_rank(state)
    resumed = iter(again)
    assert [next(resumed).__key__ for _ in range(5)] == rest


def test_it_keeps_the_laws(folder):
    check_laws(get_val_dataset(joined(folder), batch_size=None))


def test_pickled_it_needs_no_index(folder):
    dataset = get_val_dataset(joined(folder), split_part="train", batch_size=None)
    sent = pickle.dumps(dataset)
    for each in "ab":
        (folder / each / ".nv-meta" / "index.sqlite").unlink()
    assert [sample.__key__ for sample in pickle.loads(sent)] == TRAIN
    again = pickle.loads(sent)
    assert len(list(get_loader(again))) == len(TRAIN)
    assert again.describe() == dataset.describe()


def test_validation_names_the_first_folder(folder):
    ((dataset, leaf),) = get_val_datasets(joined(folder), split_part="val", batch_size=None)
    assert (leaf.path.name, leaf.split_part, len(dataset)) == ("a", "val", 4)


def test_split_parts_and_subflavors_of_the_join(folder):
    entries = [{"path": "a", "subflavors": {"x": 1, "y": 1}}, {"path": "b", "nonmatch": "none",
               "split_part": "train"}]  # fmt: skip
    node = {"join": entries, "joiner": CLASS, "split_part": "val", "subflavors": {"y": 2}}
    file = written(folder / "mix.yaml", node)
    (sample, *_) = get_val_dataset(file, split_part="train", batch_size=None)
    assert sample.__key__ == VAL[0]
    assert sample.__subflavors__ == {"x": 1, "y": 2}


def test_split_files_of_the_join(folder):
    for name in "ab":
        file = folder / name / ".nv-meta" / "one.yaml"
        file.write_text("split_parts: {train: [s1.tar]}")
    entries = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    node = {"join": entries, "joiner": CLASS, "split_config": "one.yaml"}
    assert rows(written(folder / "mix.yaml", node)) == [
        (key, f"a {key}", "b 0042" if key == "0042" else None) for key in TRAIN[10:]
    ]
    entries[1]["split_config"] = "split.yaml"
    assert rows(written(folder / "mix.yaml", node)) == expected(TRAIN[10:], "none")


def test_a_plan_names_the_samples_of_the_first_dataset(folder):
    dataset = get_train_dataset(joined(folder), batch_size=14)
    (batch,) = plan(dataset, 0, 1, keys=True)
    assert sorted(sample.key for sample in batch.samples) == TRAIN
    assert {sample.shard for sample in batch.samples} == {"s0.tar", "s1.tar"}


def test_a_join_beside_stages_fills_their_gaps(folder):
    stages = [{"name": "late", "start_step": 3, "path": "a", "split_part": "val"}]
    entries = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    node = {"join": entries, "joiner": CLASS, "steps": 9, "stages": stages}
    plan = resolve(written(folder / "mix.yaml", node), "train").plan
    assert [(each.name, each.start_step, each.end_step) for each in plan.stages] == [
        ("default", 0, 3),
        ("late", 3, 9),
    ]
    assert isinstance(plan.stages[0].dataset, JoinedLeaf)


@pytest.mark.parametrize(
    ("joiner", "kind", "told"),
    [
        ({"__module__": "not_imported_here", "__class__": "X"}, UntrustedCodeError,
         "which this program has not imported"),
        ({"__module__": "os", "__class__": "system"}, MetadatasetError, "it has a built"),
        ({"__module__": "os", "__function__": "sistem"}, MetadatasetError, "there is none"),
        ({"__module__": "megatron.energon", "__class__": "TextSampel"}, DatasetError,
         "did you mean 'TextSample'?"),
        ({"__module__": "pathlib", "__class__": "Path"}, MetadatasetError, "is no type of samples"),
    ],
)  # fmt: skip
def test_a_joiner_is_of_a_module_that_the_program_imported(folder, joiner, kind, told):
    text = fault(kind, joined(folder, joiner=joiner))
    assert told in text
    assert "mix.yaml:5 (splits.train.join)" in text


def test_types_of_both_libraries_join(folder):
    """Fields of one name take the value of the last sample."""
    texts(folder / "c", [TRAIN], prefix="c ")
    for module in ("energize", "megatron.energon"):
        joiner = {"__module__": module, "__class__": "TextSample"}
        node = {"join": [{"path": "a"}, {"path": "c"}], "joiner": joiner}
        file = written(folder / "mix.yaml", node)
        (first, *_) = get_val_dataset(file, split_part="train", batch_size=None)
        assert (type(first).__name__, first.text) == ("TextSample", "c 0000")
        assert [Path(each.dataset_path).name for each in first.__sources__] == ["a", "c"]


def test_a_joiner_that_makes_no_sample(folder):
    joiner = {"__module__": "tests.support.joining", "__function__": "no_sample"}
    text = fault((EncoderError, ConfigError), joined(folder, joiner=joiner))
    assert "no_sample returns a sample, and returned a str" in text


def test_an_index_is_needed_and_the_error_says_how(folder):
    (folder / "b" / ".nv-meta" / "index.sqlite").unlink()
    text = fault(NotPreparedError, joined(folder))
    assert "energize prepare --tar-index-only --sqlite" in text
    assert "mix.yaml:5 (splits.train.join)" in text


def index_of(folder):
    return sqlite3.connect(folder / ".nv-meta" / "index.sqlite")


def test_a_key_that_stands_twice(folder):
    with index_of(folder / "b") as index:
        found = index.execute("SELECT * FROM samples").fetchall()
        index.execute("DROP TABLE samples")
        index.execute("CREATE TABLE samples (tar_file_id, sample_key, sample_index, o, s)")
        twice = [(t, "0001" if k == "0002" else k, i, o, s) for t, k, i, o, s in found]
        index.executemany("INSERT INTO samples VALUES (?,?,?,?,?)", twice)
    index.close()
    text = fault(DatasetError, joined(folder))
    assert "the key '0001' stands for several samples" in text
    assert "mix.yaml:5" in text


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM samples WHERE sample_key = '0003'", "the index is of other shards"),
        ("UPDATE samples SET tar_file_id = 7 WHERE sample_key = '0003'", "of other shards"),
        ("UPDATE samples SET sample_index = 'x' WHERE sample_key = '0003'", "of other shards"),
        ("UPDATE samples SET sample_index = 99 WHERE sample_key = '0003'", "of other shards"),
        ("DROP TABLE samples", "no such table"),
    ],
)
def test_an_index_of_other_shards(folder, statement, told):
    with index_of(folder / "b") as index:
        index.execute(statement)
    index.close()
    text = fault((ShardError, DatasetError), joined(folder))
    assert told in text
    assert "mix.yaml:5" in text


def test_an_index_that_would_compute_for_ever(folder):
    with index_of(folder / "b") as index:
        index.execute("DROP TABLE samples")
        index.execute(
            "CREATE VIEW samples AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i FROM n) "
            "SELECT i AS tar_file_id, 'k' AS sample_key, i AS sample_index FROM n"
        )
    index.close()
    assert "has 'samples', which is no table" in fault(DatasetError, joined(folder))


def test_an_index_that_is_no_database(folder):
    (folder / "b" / ".nv-meta" / "index.sqlite").write_bytes(b"no database" * 1000)
    assert "cannot be read" in fault(DatasetError, joined(folder))


def test_a_shard_listed_twice(folder):
    split = folder / "b" / ".nv-meta" / "split.yaml"
    split.write_text("split_parts: {train: [s0.tar, s0.tar]}\nexclude: []\n")
    text = fault(DatasetError, joined(folder))
    assert "shard 's0.tar' is listed twice" in text
    assert "mix.yaml:7 (splits.train.join[1].path)" in text


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"join": [{"path": "a"}], "joiner": CLASS}, "join): a join has two datasets or more"),
        ({"join": [{"path": "a"}, {"path": "b"}]}, "train): the key 'joiner' is missing"),
        ({"join": [{"path": "a", "nonmatch": "skip"}, {"path": "b"}], "joiner": CLASS},
         "nonmatch of the first dataset says nothing"),
        ({"join": [{"path": "a"}, {"path": "b", "nonmatch": "drop"}], "joiner": CLASS},
         "join[1].nonmatch): expected error, skip or none: what happens to"),
        ({"join": [{"path": "a"}, {"path": "b", "aux": {"x": "b"}}], "joiner": CLASS},
         "join[1].aux): the key 'aux' has no place here"),
        ({"join": [{"path": "a"}, {"blend": [{"path": "b"}]}], "joiner": CLASS},
         "[1].blend): the key 'blend' has no place here: what is joined are prepared"),
        ({"join": [{"path": "a"}, {"path": "other.yaml"}], "joiner": CLASS},
         "what is joined are prepared folders, and 'other.yaml' is none"),
        ({"join": [{"path": "a"}, {"path": "b"}], "joiner": {"__module__": "x"}},
         "joiner): expected a mapping with '__module__' and either"),
        ({"join": {"text": {"path": "a"}, "note": {"path": "nowhere"}}, "joiner": CLASS},
         "join.note.path): 'nowhere' does not exist"),
        ({"path": "a", "nonmatch": "skip"}, "the key 'nonmatch' has no place here; it is for an"),
        ({"path": "a", "joiner": CLASS}, "the key 'joiner' has no place here; it is for a 'join'"),
    ],
)  # fmt: skip
def test_what_a_wrong_join_gets(folder, node, told):
    written(folder / "other.yaml", {"blend": [{"path": "a"}]})
    with pytest.raises((MetadatasetError, DatasetError)) as caught:
        resolve(written(folder / "mix.yaml", node), "train")
    assert told in str(caught.value)
    assert f"{folder / 'mix.yaml'}:" in str(caught.value)


def test_a_joiner_that_is_nothing_is_told_with_its_place(folder):
    node = {"join": [{"path": "a"}, {"path": "b"}], "joiner": None}
    with pytest.raises(ConfigError, match=r"got null\n  asked for at .*mix\.yaml:5 \(splits"):
        resolve(written(folder / "mix.yaml", node), "train")


KEYS = st.lists(st.integers(0, 25), unique=True, min_size=1, max_size=20)


@settings(max_examples=15, deadline=None)
@given(first=KEYS, other=KEYS, cut=st.integers(1, 19), nonmatch=st.sampled_from(["skip", "none"]))
def test_any_two_folders(tmp_path_factory, first, other, cut, nonmatch):
    folder = tmp_path_factory.mktemp("any")
    cuts = [each for each in (keys(*first[:cut]), keys(*first[cut:])) if each]
    texts(folder / "a", cuts, prefix="a ")
    texts(folder / "b", [keys(*other)], prefix="b ")
    file = joined(folder, nonmatch)
    known = set(keys(*other))
    wanted = [(k, f"a {k}", f"b {k}" if k in known else None) for k in keys(*first)]
    wanted = [row for row in wanted if nonmatch == "none" or row[2]]
    if wanted:
        assert rows(file) == wanted
    else:
        assert "has no samples" in fault(DatasetError, file)


def test_a_joiner_that_a_program_gives(folder):
    leaf = resolve(joined(folder), "train")
    assert leaf.sample_type is Pair
    assert pair.__name__ == resolve(joined(folder, joiner=FUNCTION), "train").joiner.name
