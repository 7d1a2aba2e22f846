"""Files of rows: JSON lines with an index, plain JSON, Parquet, and MosaicML's
shards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from energize.preparation.index import prepare_jsonl
from energize.sources import JsonlSource, JsonSource, MdsSource, ParquetSource
from tests.fuzz.corpora.reading import fetched, validated
from tests.fuzz.formats import Corpus, Format, Ranges, Seen, everything
from tests.support.mds import COMPRESS, write_mds, write_rows
from tests.support.mds_samples import COLUMNS, sample
from tests.support.rows import write_lines

_ROWS = [
    {"id": n, "text": f"röw {n} " * (n % 4), "deep": {"a": [n, None, 0.5]}}
    for n in range(9)
]
_LINES = "rows.jsonl"


def jsonl(folder: Path) -> None:
    """Lines with the index that `energize prepare` writes."""
    prepare_jsonl(write_lines(folder / _LINES, _ROWS))


def _read_jsonl(folder: Path) -> Seen:
    by_source = fetched(JsonlSource(folder / _LINES))
    by_loader = validated(folder / _LINES)
    items = by_source.items + by_loader.items
    return Seen(items, by_source.reported + by_loader.reported)


def _array(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(_ROWS))


def parquet(folder: Path) -> None:
    """Row groups, nested columns, a dictionary and compressed pages with checksums."""
    rows = [
        each | {"kind": "ab"[n % 2], "data": bytes([n])}
        for n, each in enumerate(_ROWS * 3)
    ]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows),
        folder / "rows.parquet",
        row_group_size=10,
        write_page_checksum=True,
    )


def mds(folder: Path, **options: Any) -> None:
    """A column of every encoding."""
    write_mds(
        folder / "mds", [sample(n) for n in range(4)], COLUMNS, per_shard=2, **options
    )


def mds_rows(folder: Path, kind: str) -> None:
    """Shards of text with an index beside each."""
    rows = [{"number": n, "text": f"row {n}"} for n in range(9)]
    write_rows(
        folder / "mds", rows, {"number": "int", "text": "str"}, kind, per_shard=5
    )


def _read_mds(folder: Path, **options: Any) -> Seen:
    return fetched(MdsSource(folder / "mds", **options))


def _contents(old: bytes, _: bytes) -> Ranges:
    """What lies behind the offsets and the header of an MDS shard."""
    count = int(np.frombuffer(old, "<u4", 1)[0])
    return [(int(np.frombuffer(old, "<u4", 1, 4)[0]), len(old))] if count else []


def _mds(name: str, write: Callable[[Path], None], **options: Any) -> Corpus:
    return Corpus(name, write, partial(_read_mds, **options))


_HASHED = {"hashes": ["sha1", "md5"]}
MDS = _mds("mds", mds)
HASHED = _mds("mds hashed", partial(mds, **_HASHED), validate_hash="sha1")
PACKED: Mapping[str, Corpus] = {
    str(kind): _mds(f"mds {kind}", partial(mds, compression=kind)) for kind in COMPRESS
}
TEXTS = {
    kind: _mds(f"mds {kind}", partial(mds_rows, kind=kind))
    for kind in ("json", "csv", "xsv")
}
JSONL = Corpus("jsonl", jsonl, _read_jsonl)
JSON = Corpus("json", _array, lambda folder: fetched(JsonSource(folder / "rows.json")))
LINES = Corpus(
    "lines",
    lambda folder: write_lines(folder / _LINES, _ROWS),
    lambda folder: fetched(JsonSource(folder / _LINES)),
)
PARQUET = Corpus(
    "parquet", parquet, lambda folder: fetched(ParquetSource(folder / "rows.parquet"))
)

FORMATS = [
    Format("jsonl", JSONL, "*.jsonl", "text", unchecked=everything),
    Format("jsonl.idx", JSONL, "*.jsonl.idx"),
    Format("JSON rows", LINES, "*.jsonl", "text", unchecked=everything),
    Format("JSON array", JSON, "*.json", "json", unchecked=everything),
    Format("Parquet", PARQUET, "*.parquet", unchecked=everything),
    Format("MDS index", MDS, "mds/index.json", "json", cost=2),
    Format("MDS", MDS, "mds/*.mds", unchecked=_contents, cost=2),
    Format("MDS hashed", HASHED, "mds/*.mds", cost=2),
    *(
        Format(f"MDS {kind}", corpus, "mds/shard*", unchecked=everything, cost=3)
        for kind, corpus in PACKED.items()
    ),
    *(
        Format(f"MDS {kind}", corpus, "mds/shard*", unchecked=everything)
        for kind, corpus in TEXTS.items()
    ),
]
