"""Indexed files of JSON lines: the index, what is read by it, and what is wrong with
either."""

from __future__ import annotations

import json
import struct
from functools import partial

import numpy as np
import pytest

from energize.core.samples import CrudeSample
from energize.data.jsonl import JsonlSource
from energize.errors import (
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    NotPreparedError,
    PrepareError,
    ShardError,
)
from energize.preparation.index import prepare_jsonl
from energize.task.load import SampleLoader
from tests.support.peers import run_energon
from tests.support.refusals import check_refusals


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


MALFORMED = {
    '{"a": 1}\n[1]\n{"b": 2}\n': (
        "1 of 3 lines",
        "line 2: DataError: a row must be a JSON object",
    ),
    '{"a": 1}\n\n{"a": \n3\n': (
        "2 of 3 lines",
        "line 3: DataError: not JSON",
        "line 4: DataErr",
    ),
    b"\x1f\x8b\x08\0garbage": ("line 1: ",),
    b'{"a": "\xff"}\n': ("line 1: DataError: not JSON: 'utf-8' codec",),
    '{"a": ' + "[" * 100_000 + "\n": ("line 1: ", "nested too deeply"),
    "1\n" * 50 + ROWS: ("50 of 53 lines", "and 40 more"),
    "\n \n": ("every line is blank",),
}


def test_what_cannot_be_indexed(tmp_path):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    before = offsets(path)
    check_refusals(None, {
        f"{text[:40]!r}": (lambda text=text: prepare_jsonl(written(path, text)), PrepareError,
                           str(path), *told)
        for text, told in MALFORMED.items()
    } | {
        "none": (lambda: prepare_jsonl(tmp_path / "none.jsonl"), DatasetNotFoundError, "none"),
        "suffix": (lambda: prepare_jsonl(written(tmp_path / "a.json", ROWS)), PrepareError,
                   "is not a .jsonl file"),
        "folder": (lambda: prepare_jsonl(tmp_path), PrepareError, "is not a .jsonl file"),
    })  # fmt: skip
    assert offsets(path) == before
    assert len(list(tmp_path.iterdir())) == 3


def test_files_that_are_not_prepared_or_changed(tmp_path):
    path = indexed(tmp_path / "a.jsonl", ROWS)
    sound = (tmp_path / "a.jsonl.idx").read_bytes()

    def read(text=ROWS, index=sound, number=0, **options):
        written(path, text)
        (tmp_path / "a.jsonl.idx").unlink(missing_ok=True)
        if index is not None:
            written(tmp_path / "a.jsonl.idx", index)
        return JsonlSource(path, **options)[number]

    other, remedy = '{"m": 10}\n{"n":1}\n{"n": 2}\n', f"energize prepare {path}"
    check_refusals(None, {
        "none": (lambda: JsonlSource(tmp_path / "b.jsonl"), DatasetNotFoundError, "b.jsonl"),
        "no index": (partial(read, index=None), NotPreparedError, remedy),
        "empty": (partial(read, "", struct.pack("<Q", 0)), EmptyDatasetError, "no samples"),
        "no checksums": (partial(read, checksums=True), NotPreparedError,
                         f"energize prepare --checksums {path}"),
    } | {
        name: (call, ShardError, remedy, told) for name, call, told in [
            ("shorter", partial(read, ROWS[:-5]), "covers bytes 0 to 27 of a file, but this one has 22"),
            ("7 bytes", partial(read, index=b"1234567"), "7 bytes are not a multiple"),
            ("start", partial(read, index=struct.pack("<2Q", 9, 27)), "covers bytes 9 to 27"),
            ("line", partial(read, other, number=1), "no line starts where sample 1 does"),
            ("order", partial(read, index=struct.pack("<4Q", 0, 18, 9, 27), number=1),
             "has the offsets 18 to 9"),
            ("two", partial(read, index=struct.pack("<3Q", 0, 18, 27)), "several lines are at the"),
        ]
    })  # fmt: skip


def test_a_line_that_is_no_json_or_changed_names_its_sample(tmp_path):
    path = written(tmp_path / "a.jsonl", ROWS)
    prepare_jsonl(path, checksums=True)
    path.write_text(ROWS.replace('{"n": 1}', '{"n": !}'))
    with pytest.raises(
        DecodeError, match="sample '1': part 'json' of 8 bytes cannot be decoded"
    ):
        SampleLoader(sample_type=CrudeSample)(JsonlSource(path)[1])
    first, changed, last = JsonlSource(path, checksums=True).read(np.arange(3))
    assert (first["json"], last["json"]) == (b'{"n": 0}', b'{"n": 2}')
    assert f"{path}, sample 1: its bytes have changed" in str(changed.reason)


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
    ours = {
        name: written(tmp_path / f"{name}.jsonl", text) for name, text in SHAPES.items()
    }
    theirs = {
        n: written(tmp_path / "theirs" / f"{n}.jsonl", t) for n, t in SHAPES.items()
    }
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
