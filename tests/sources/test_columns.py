"""Columns of every kind of source: one value for each sample, in the order of the samples."""

import numpy as np
import pytest
import yaml

from energize import (
    HuggingFaceSource,
    JoinedSource,
    JsonlSource,
    JsonSource,
    MdsSource,
    ParquetSource,
    WebdatasetSource,
    prepare,
    prepare_columns,
)
from energize.core.costs import ColumnCost
from energize.errors import ColumnError, DatasetError
from energize.preparation.jsonl import prepare_jsonl
from tests.support.joining import keys
from tests.support.joining import texts as texts_folder
from tests.support.mds import numbered_mds
from tests.support.rows import write_lines, write_parquet
from tests.support.shards import packed

ROWS = [{"text": "x" * i, "tokens": i + 1, "lang": ["en", "fr"][i % 3 == 0]} for i in range(10)]


def shards(folder, *counts, exclude=()):
    """Sample i of the folder has i + 1 bytes; train is the last shard and then the first."""
    folder.mkdir()
    number = 0
    for shard, count in enumerate(counts):
        files = [(f"{number + i:03d}.txt", b"x" * (number + i + 1)) for i in range(count)]
        (folder / f"s{shard}.tar").write_bytes(packed(files))
        number += count
    prepare(folder, split_ratios={"train": 1}, workers=1)
    names = [f"s{shard}.tar" for shard in range(len(counts))]
    parts = {"train": names, "turned": names[::-1], "middle": names[1:3], "ends": names[::3]}
    split = {"split_parts": parts, "exclude": list(exclude)}
    (folder / ".nv-meta" / "split.yaml").write_text(yaml.safe_dump(split))
    prepare_columns(folder, {"tokens": "size:txt"}, workers=1)
    return folder


@pytest.mark.parametrize("split", ["train", "turned", "middle", "ends"])
@pytest.mark.parametrize("exclude", [(), ("s1.tar/005", "s3.tar/012"), ("s1.tar", "s2.tar/009")])
def test_splits_parts_and_excluded_samples(tmp_path, split, exclude):
    folder = shards(tmp_path / "f", 4, 3, 4, 2, exclude=exclude)
    source = WebdatasetSource(folder, split_part=split)
    end = source.stored_count
    parts = [source, source.part(1, end), source.part(1, end).part(0, end - 2)]
    for each in parts:
        stored = [len(sample["txt"]) for sample in each]
        assert each.column("tokens").values.tolist() == stored
        assert ColumnCost("tokens").of(each, np.arange(each.count)).tolist() == stored


def test_neighbouring_shards_are_not_copied(tmp_path):
    folder = shards(tmp_path / "f", 4, 3, 4, 2)
    for split in ("train", "middle"):
        values = WebdatasetSource(folder, split_part=split).column("tokens").values
        assert isinstance(values, np.memmap)


def test_a_folder_that_is_prepared_while_it_is_read_is_told(tmp_path):
    folder = shards(tmp_path / "f", 4, 3, 4, 2)
    source = WebdatasetSource(folder)
    (folder / "s1.tar").unlink()
    prepare(folder, split_ratios={"train": 1}, workers=1, overwrite=True)
    prepare_columns(folder, {"tokens": "size:txt"}, workers=1)
    with pytest.raises(DatasetError, match="prepared again, with other shards, while it was in"):
        source.column("tokens")


def row_sources(folder):
    jsonl = write_lines(folder / "rows.jsonl", ROWS)
    prepare_jsonl(jsonl)
    datasets = pytest.importorskip("datasets")
    half = [write_lines(folder / f"{i}.json", ROWS[i : i + 5]) for i in (0, 5)]
    tables = [write_parquet(folder / f"{i}.parquet", ROWS[i : i + 5], 2) for i in (0, 5)]
    hugging_face = datasets.Dataset.from_list(ROWS)
    return {
        "jsonl": JsonlSource(jsonl),
        "json": JsonSource(half),
        "parquet": ParquetSource(tables),
        "parquet, others read": ParquetSource(tables, columns=["text"]),
        "hugging face": HuggingFaceSource(hugging_face),
        "hugging face, formatted": HuggingFaceSource(hugging_face.with_format("numpy")),
    }


def test_fields_of_rows_are_columns(tmp_path):
    for name, source in row_sources(tmp_path).items():
        assert source.column_names == ("text", "tokens", "lang"), name
        assert source.column("tokens").values.tolist() == list(range(1, 11)), name
        lang = source.column("lang")
        assert [lang.categories[v] for v in lang.values] == [row["lang"] for row in ROWS], name
        assert source.column("lang") is lang
        with pytest.raises(ColumnError, match="no column 'token'; did you mean 'tokens'"):
            source.column("token")


def test_a_part_of_a_jsonl_file_has_those_of_its_lines(tmp_path):
    source = row_sources(tmp_path)["jsonl"].part(3, 7)
    assert source.column("tokens").values.tolist() == [4, 5, 6, 7]


def test_fields_that_are_no_columns_are_told(tmp_path):
    rows = [{"a": 1, "b": "x"}, {"a": "one", "b": "y"}, {"b": ["z"]}]
    source = JsonSource(write_lines(tmp_path / "rows.json", rows))
    with pytest.raises(ColumnError, match="rows: column 'a' has numbers, or words, for all"):
        source.column("a")
    with pytest.raises(ColumnError, match="rows: column 'b'"):
        source.column("b")
    broken = write_lines(tmp_path / "broken.json", rows)
    broken.write_text(broken.read_text() + "{,}\n")
    with pytest.raises(ColumnError, match=r"broken\.json, row 3: not JSON"):
        JsonSource(broken).column("b")


def test_a_join_has_the_columns_of_all_its_parts(tmp_path):
    texts_folder(tmp_path / "a", [keys(*range(8))], prefix="a ")
    texts_folder(tmp_path / "b", [keys(*range(2, 12))], prefix="longer ")
    prepare_columns(tmp_path / "a", {"one": "size:txt"}, workers=1)
    prepare_columns(tmp_path / "b", {"two": "len:txt", "word": "text:txt"}, workers=1)
    first, other = WebdatasetSource(tmp_path / "a"), WebdatasetSource(tmp_path / "b")
    joined = JoinedSource(first, other, nonmatch=["skip"])
    assert joined.column_names == ("one", "two", "word")
    for number, name in ((0, "one"), (1, "two")):
        lengths = [len(row[number]["txt"]) for row in joined]
        assert joined.column(name).values.tolist() == lengths
    part = joined.part(1, 4)
    assert part.column("two").values.tolist() == joined.column("two").values.tolist()[1:4]
    alone = JoinedSource(first, other, nonmatch=["none"])
    assert alone.column("word").values.tolist()[:2] == [-1, -1]
    with pytest.raises(ColumnError, match="2 of 8 samples have no partner"):
        alone.column("two")
    with pytest.raises(ColumnError, match=r"a\+b has no column 'tokens'"):
        alone.column("tokens")


def test_mds_says_what_to_do(tmp_path):
    numbered_mds(tmp_path / "mds", 4)
    with pytest.raises(ColumnError, match=r"no column 'n'.*each sample would be read for them"):
        MdsSource(tmp_path / "mds").column("n")
