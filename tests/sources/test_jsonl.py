"""Indexed files of JSON lines: the index, what is read by it, and what is wrong with either."""

import json
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.core.samples import CrudeSample, TextSample
from energize.data.jsonl import JsonlSource
from energize.datasets.order import ShuffleDataset
from energize.errors import (
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    NotPreparedError,
    PrepareError,
    ShardError,
)
from energize.preparation.jsonl import prepare_jsonl
from energize.task.load import SampleLoader
from tests.support.energon import run_energon


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def indexed(path, text):
    prepare_jsonl(written(path, text))
    return path


def offsets(path):
    data = path.with_name(f"{path.name}.idx").read_bytes()
    return struct.unpack(f"<{len(data) // 8}Q", data)


ROWS = '{"n": 0}\n{"n": 1}\n{"n": 2}\n'


def test_the_index(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "number 0"}\n{"text": "number 1"}\n')
    assert prepare_jsonl(path) == 2
    assert offsets(path) == (0, 21, 42)
    blank = indexed(tmp_path / "b.jsonl", '\n{"a": 1}\n\n{"a": 2}\r\n  \n{"a": 3}')
    assert offsets(blank) == (0, 11, 24, 32)
    assert [each["json"] for each in JsonlSource(blank)] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']
    assert [each.name for each in tmp_path.iterdir() if "tmp" in each.name] == []


def test_samples(tmp_path):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    source = JsonlSource(path)
    assert (source.count, source.size, source.name) == (3, 3, "a.jsonl")
    assert source[1] == {
        "__key__": "1",
        "__dataset__": str(path),
        "__shard__": "a.jsonl",
        "__index__": 1,
        "json": b'{"n": 1}',
    }
    crude = SampleLoader(sample_type=CrudeSample)(source[2])
    assert (crude["json"], crude["__key__"]) == ({"n": 2}, "2")
    assert crude["__restore_key__"] == ("Webdataset", "a.jsonl", 2)
    assert crude["__sources__"][0].file_names == ("2.json",)
    assert crude["__sources__"][0].dataset_path == str(path)
    texts = indexed(tmp_path / "b.jsonl", '{"a": {"b": "x"}}\n{"a": {"b": "y"}}\n')
    typed = SampleLoader(sample_type=TextSample, field_map={"text": "json[a][b]"})
    assert [typed(raw).text for raw in JsonlSource(texts)] == ["x", "y"]
    assert source.where(4) == f"{path}, sample 1"


def test_the_order_does_not_depend_on_the_folder(tmp_path):
    (tmp_path / "other").mkdir()
    rows = "".join(f'{{"n": {i}}}\n' for i in range(50))
    first = indexed(tmp_path / "a.jsonl", rows)
    second = indexed(tmp_path / "other" / "a.jsonl", rows)
    third = indexed(tmp_path / "b.jsonl", rows)
    orders = [
        [s["__key__"] for s in ShuffleDataset(JsonlSource(p))] for p in (first, second, third)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0], key=int) == [str(i) for i in range(50)]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2),
            st.sampled_from(["\n", "\r\n", "\n\n", " \n", "\n \n\t\n"]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(["", "\n", " \n\n"]),
    st.booleans(),
    st.data(),
)
def test_every_line_is_read_alone_and_in_any_order(tmp_path_factory, rows, start, ended, data):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    text = start + "".join(json.dumps(value, ensure_ascii=False) + end for value, end in rows)
    indexed(path, text if ended else text.rstrip())
    source = JsonlSource(path)
    assert source.count == len(rows)
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
    found = source.read(np.array(asked, dtype=np.int64))
    assert [json.loads(each["json"]) for each in found] == [rows[i][0] for i in asked]


MALFORMED = {
    '{"a": 1}\n[1]\n{"b": 2}\n': r"1 of 3 lines.*\n  line 2: it is no object: '\[1\]'",
    '{"a": 1}\n\n{"a": \n3\n': r"2 of 3 lines.*\n  line 3: Expecting value.*\n  line 4: it is",
    '{"a": 1} {"b": 2}\n': "line 1: Extra data",
    "\ufeff" + ROWS: "line 1: it is compressed, or has a byte order mark",
    b"\x1f\x8b\x08\0garbage": "line 1: it is compressed",
    ROWS.encode("utf-16"): "line 1: it is compressed, or has a byte order mark",
    b'{"a": "\xff"}\n': "line 1: 'utf-8' codec",
    '{"a": ' + "[" * 100_000 + "\n": "line 1: ",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_lines_are_named(tmp_path, text):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    before = offsets(path)
    written(path, text)
    with pytest.raises(PrepareError, match=MALFORMED[text]) as caught:
        prepare_jsonl(path)
    assert str(path) in str(caught.value)
    assert offsets(path) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_many_malformed_lines_are_counted(tmp_path):
    path = written(tmp_path / "a.jsonl", "1\n" * 50 + ROWS)
    with pytest.raises(PrepareError, match=r"50 of 53 lines.*\n(.*\n){10}  and 40 more"):
        prepare_jsonl(path)


def test_what_is_no_file_of_lines(tmp_path):
    with pytest.raises(DatasetNotFoundError):
        prepare_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(PrepareError, match=r"is no \.jsonl file"):
        prepare_jsonl(written(tmp_path / "a.json", ROWS))
    with pytest.raises(PrepareError, match="every line is blank"):
        prepare_jsonl(written(tmp_path / "a.jsonl", "\n \n"))
    with pytest.raises(PrepareError, match=r"is no \.jsonl file"):
        prepare_jsonl(tmp_path)


def test_progress_is_told(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"a": 1}\n' * 10 + json.dumps({"a": "x" * 5_000_000}))
    seen = []
    prepare_jsonl(path, on_progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda p: p.write_text(ROWS + ROWS),
            "the index is of a file of 27 bytes, this one has 54",
        ),
        (lambda p: p.write_text(ROWS[:-5]), "the index is of a file of 27 bytes, this one has 22"),
        (lambda p: p.with_name("a.jsonl.idx").write_bytes(b"1234567"), "7 bytes are no whole"),
        (lambda p: p.with_name("a.jsonl.idx").write_bytes(b""), "0 bytes are no whole"),
        (lambda p: p.with_name("a.jsonl.idx").write_bytes(struct.pack("<2Q", 9, 27)), "at byte 9"),
    ],
)
def test_an_index_that_does_not_fit_is_found_at_once(tmp_path, change, match):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    change(path)
    with pytest.raises(ShardError, match=match) as caught:
        JsonlSource(path)
    assert f"energize prepare {path}" in str(caught.value)


def test_another_file_of_the_same_size_is_found_when_read(tmp_path):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    path.write_text('{"m": 10}\n{"n":1}\n{"n": 2}\n')
    with pytest.raises(ShardError, match="no line starts where sample 1 does"):
        JsonlSource(path)[1]
    index = path.with_name("a.jsonl.idx")
    index.write_bytes(struct.pack("<4Q", 0, 18, 9, 27))
    with pytest.raises(ShardError, match="is said to be bytes 18 to 9"):
        JsonlSource(path)[1]


def test_files_that_are_not_prepared(tmp_path):
    path = written(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(NotPreparedError, match=f"energize prepare {path}"):
        JsonlSource(path)
    with pytest.raises(DatasetNotFoundError):
        JsonlSource(tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl.idx").write_bytes(struct.pack("<Q", 0))
    written(path, "")
    with pytest.raises(EmptyDatasetError):
        JsonlSource(path)


def test_a_line_that_is_no_json_names_its_sample(tmp_path):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    path.write_text(ROWS.replace('{"n": 1}', '{"n": !}'))
    with pytest.raises(DecodeError, match="sample '1': part 'json' of 8 bytes cannot be decoded"):
        SampleLoader(sample_type=CrudeSample)(JsonlSource(path)[1])


def test_sources_travel(tmp_path):
    source = JsonlSource(indexed(tmp_path / "a.jsonl", ROWS))
    assert source[0]["json"] == b'{"n": 0}'
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert copy[2] == source[2]
    child = os.fork()
    if child == 0:
        os._exit(0 if source[1]["json"] == b'{"n": 1}' else 1)
    assert os.waitpid(child, 0)[1] == 0


PREPARE = """
import sys
from pathlib import Path
from megatron.energon.flavors import CrudeJsonlDatasetFactory
for path in sys.argv[1:]:
    print(CrudeJsonlDatasetFactory.prepare_dataset(Path(path)))
"""

READ = """
import json, sys
from megatron.energon import (
    Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless,
)

@stateless
def cook(sample):
    return sample

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

    def batch(self, samples):
        return samples

for path in sys.argv[1:]:
    dataset = get_val_dataset(
        path, split_part="train", batch_size=1, task_encoder=Encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    found = [[sample["__key__"], sample["json"]] for (sample,) in get_loader(dataset)]
    print("found", json.dumps(found))
"""

SHAPES = {
    "plain": ROWS,
    "open": ROWS[:-1],
    "blank": '{"n": 0}\n\n{"n": 1}\n \n\n{"n": 2}\n\n',
    "leading": '\n\n{"n": 0}\r\n{"n": 1}\r\n',
    "text": '{"text": "größer \\ud83d\\ude00"}\n{"a": {"b": [1, null, 2.5]}}\n',
}


@pytest.mark.energon
def test_energon_reads_and_writes_the_same_index(tmp_path):
    (tmp_path / "theirs").mkdir()
    ours = {name: written(tmp_path / f"{name}.jsonl", text) for name, text in SHAPES.items()}
    theirs = {n: written(tmp_path / "theirs" / f"{n}.jsonl", t) for n, t in SHAPES.items()}
    counts = [prepare_jsonl(path) for path in ours.values()]
    printed = run_energon(*theirs.values(), program=PREPARE).split()
    assert [int(each) for each in printed] == counts
    for name in SHAPES:
        assert offsets(ours[name]) == offsets(theirs[name]), name
    printed = run_energon(*ours.values(), program=READ).splitlines()
    found = [json.loads(line[6:]) for line in printed if line.startswith("found ")]
    for path, samples in zip(theirs.values(), found, strict=True):
        read = [json.loads(each["json"]) for each in JsonlSource(path)]
        assert samples == [[str(i), value] for i, value in enumerate(read)]
