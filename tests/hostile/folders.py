"""Prepared folders whose files of `.nv-meta` are hostile."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from energize import get_train_dataset
from energize.data.stores import open_store

M = 1_000_000
SHARD = "shard-000.tar"
_TYPE = "sample_type: {__module__: energize, __class__: CaptioningSample}\n"
_FIELDS = _TYPE + "field_map: {image: jpg, caption: txt}\n"


def _info(counts: str) -> str:
    return f'{{"shard_counts": {{"{SHARD}": 4, "shard-001.tar": 4, {counts}}}}}'


def _named(name: str) -> dict[str, str]:
    quoted = json.dumps(name.replace("\\", "\\\\"))
    listed = f"split_parts:\n  train: [{quoted}]\nexclude: []\n"
    return {".info.json": json.dumps({"shard_counts": {name: 4}}), "split.yaml": listed}


def _parts(listed: str, exclude: str = "[]") -> str:
    return f"split_parts: {{{listed}}}\nexclude: {exclude}\n"


def _train(listed: str) -> str:
    return _parts(f"train: {listed}")


def _left_out(listed: str) -> str:
    return _parts(f"train: ['{SHARD}']", listed)


NAMED: dict[str, dict[str, str]] = {
    "a shard by its whole path": _named("/etc/passwd"),
    "a shard in another folder": _named("../other/0.tar"),
    "a shard with a zero byte": _named("a\0b.tar"),
    "a shard with an escape": _named("\x1b[31ma.tar"),
    "a shard with 300 letters": _named("x" * 300 + ".tar"),
    "a shard that is a named pipe": _named("pipe.tar"),
    "a shard that is an endless device": _named("zero.tar"),
    "a shard that is the folder": _named("."),
    "a shard that is a link to itself": _named("loop.tar"),
}
FILES: dict[str, dict[str, str]] = {
    ".info.json": {
        "a thousand levels": "[" * 1000 + "]" * 1000,
        "100 MB": '{"' + "x" * 100 * M + '": 1}',
        "15 million values": "[" + "1," * 15 * M + "1]",
        "a text of 30 MB": '{"shard_counts": "' + "x" * 30 * M + '"}',
        "a wide text": '{"' + "x" * 30 * M + '\U0001f600": 1}',
        "480,000 counts of -1": _info(
            ",".join(f'"{i:06d}":-1' for i in range(480_000))
        ),
        "5,000 digits": _info('"a.tar": ' + "9" * 5000),
        "10^30 samples": _info('"a.tar": 1' + "0" * 30),
        "NaN samples": _info('"a.tar": NaN'),
        "2^40 - 1 samples": _info("").replace("4, }", f"{2**40 - 1}}}"),
        "an unknown key with an escape": '{"\\u001b[31mx": 1}',
    },
    "split.yaml": {
        "10^12 names": _train("['{0..999999999999}.tar']"),
        "2^40 names": _train("['" + "{a,b}" * 40 + "']"),
        "50,000 patterns": _train("[" + "'{0..9}'," * 50_000 + "]"),
        "300,000 braces": _train("['" + "{a}" * 300_000 + "']"),
        "15,000 parts": _parts(",".join(f"p{i}: [a]" for i in range(15_000))),
        "leaving out a million folders": _left_out("['" + "/" * M + "']"),
        "leaving out many folders": _left_out("['" + f"{'a/' * 4900}'," * 100 + "x]"),
    },
    "dataset.yaml": {
        "a thousand levels": _TYPE + "subflavors: " + "[" * 1000,
        "a call": "!!python/object/apply:os.system ['echo hi']",
        "a type of the system": "sample_type: {__module__: os, __class__: system}",
        "code": _TYPE + "sample_loader: code.py:f",
        "a field of many spaces": _TYPE
        + f"field_map: {{image: '{' ' * 9000}[', caption: txt}}",
        "a number in sixties": _FIELDS + f"subflavors: {{a: 1{':1' * M}}}",
        "a date that is none": _FIELDS + "subflavors: {a: !!timestamp x}",
        "a split file above": _FIELDS + "split_config: ../../secret.yaml",
        "a split file by its path": _FIELDS + "split_config: /etc/secret.yaml",
        "10^30 epochs": _FIELDS + "shuffle_over_epochs: 1" + "0" * 30,
    },
}

_TABLES = (
    "CREATE TABLE samples(tar_file_id INTEGER, sample_key TEXT, sample_index INTEGER, "
    "byte_offset INTEGER, byte_size INTEGER); CREATE TABLE sample_parts(tar_file_id INTEGER, "
    "sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER, content_byte_size INTEGER);"
)


def _row(part: str, offset: str, size: str) -> str:
    return (
        f"{_TABLES} INSERT INTO samples VALUES(0, 'k', 0, 0, 1024);"
        f"INSERT INTO sample_parts VALUES(0, 0, {part}, {offset}, {size});"
    )


DATABASES = {
    "no tables": "CREATE TABLE x(a);",
    "a view that never ends": "CREATE VIEW samples AS WITH RECURSIVE r(tar_file_id, sample_key, "
    "sample_index) AS (SELECT 0, 'k', 0 UNION ALL SELECT 0, 'k', sample_index + 1 FROM r) SELECT * "
    "FROM r; CREATE VIEW sample_parts AS SELECT 0 tar_file_id, 0 sample_index, 'a' part_name, 0 "
    "content_byte_offset, 0 content_byte_size;",
    "10^18 bytes": _row("'txt'", "0", "1000000000000000000"),
    "bytes that are no number": _row("'txt'", "'x'", "'y'"),
    "a name of 500 MB": _row("zeroblob(500000000)", "0", "1"),
    "a billion pairs": f"{_TABLES} WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r "
    "WHERE i < 30000) INSERT INTO samples SELECT 0, 'k', 0, 0, 1 FROM r; INSERT INTO sample_parts "
    "SELECT 0, 0, 'other', 0, 1 FROM samples;",
    "200,000 files of one name": f"{_TABLES} WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT "
    "i + 1 FROM r WHERE i < 200000) INSERT INTO samples SELECT 0, 'k', i, 0, 1 FROM r; "
    "WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 200000) "
    "INSERT INTO sample_parts SELECT 0, i, 'txt', 0, 1 FROM r;",
}


def _few(place: Path) -> int:
    return sum(
        1 for _ in zip(range(3), get_train_dataset(place, batch_size=2), strict=False)
    )


def _with_files(files: dict[str, str], place: Path) -> Callable[[], Any]:
    for name, text in files.items():
        (place / "D" / ".nv-meta" / name).write_text(text)
    return partial(_few, place / "D")


def _with_database(script: str, place: Path) -> Callable[[], Any]:
    file = place / "D" / ".nv-meta" / "index.sqlite"
    file.unlink()
    database = sqlite3.connect(file)
    database.executescript(script)
    database.close()
    return lambda: open_store(place / "D")["k.txt"]


def _in_place(make: Callable[[Path], Any], name: str, place: Path) -> Callable[[], Any]:
    """Something else in place of a file of the folder."""
    file = place / "D" / name
    file.unlink()
    make(file)
    return partial(_few, place / "D")


_STRANGE: dict[str, Callable[[Path], Any]] = {
    "a named pipe": os.mkfifo,
    "an endless device": lambda file: file.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a link to nothing": lambda file: file.symlink_to("nowhere"),
}
_INDEX = f"{SHARD}.idx"
_META = [f".nv-meta/{name}" for name in (".info.json", "split.yaml", "dataset.yaml")]

CASES = (
    {name: partial(_with_files, files) for name, files in NAMED.items()}
    | {
        f"{file}, {name}": partial(_with_files, {file: text})
        for file, texts in FILES.items()
        for name, text in texts.items()
    }
    | {
        f"index.sqlite, {name}": partial(_with_database, s)
        for name, s in DATABASES.items()
    }
    | {
        f"{name} is {kind}": partial(_in_place, make, name)
        for name in (*_META, SHARD, _INDEX)
        for kind, make in _STRANGE.items()
    }
)
