"""Folders of MDS shards: the index, and in which files and where in them the samples lie.

A folder has an `index.json` that lists its shards, which may lie in subfolders where indices were
merged. An MDS shard is one file; a JSON, CSV, TSV or XSV shard is a file of data and one of
offsets. The one that has the offsets begins, in little-endian 32-bit numbers, with the count of its
samples n and n + 1 offsets; a copy of the shard's part of the index follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ShardError,
)
from energize.storage.bounded import load_json, read_json
from energize.storage.mds_layouts import JsonRows, Layout, MdsColumns, SeparatedRows

INDEX = "index.json"

_MOST_BYTES = 2**32
"""Offsets have 32 bits, so no file of a shard is larger."""

_SEPARATORS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True, slots=True)
class MdsFile:
    """A file as the index has it: its path in the folder, its size and its hashes by algorithm."""

    name: str
    size: int
    hashes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MdsPart:
    """A file of a shard, and the compressed one that may lie there besides or instead."""

    raw: MdsFile
    packed: MdsFile | None
    compression: str | None


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard as the index has it. `offsets` are in a file of their own, or at the beginning of
    `data`.
    """

    samples: int
    layout: Layout
    data: MdsPart
    offsets: MdsPart | None

    @property
    def name(self) -> str:
        return self.data.raw.name

    @property
    def size(self) -> int:
        return self.data.raw.size

    @property
    def begin(self) -> int:
        """Where in the data samples may begin."""
        return offset_range(self.samples)[0] if self.offsets is None else 0

    @property
    def parts(self) -> Iterator[MdsPart]:
        """The part that has the offsets, and, if that is another one, the data."""
        if self.offsets is not None:
            yield self.offsets
        yield self.data


def offset_range(number: int) -> tuple[int, int]:
    """Where in its file the two offsets of a sample lie: those of its start and its end."""
    return 4 * (number + 1), 4 * (number + 3)


def header_range(shard: MdsShard, first: int) -> tuple[int, int]:
    """Where in the file that has the offsets the copy of the shard's entry lies, of which the
    samples begin at the offset `first`.
    """
    start = 4 * (shard.samples + 2)
    return start, first if shard.offsets is None else shard.offsets.raw.size


def check_header(shard: MdsShard, header: bytes, where: str) -> None:
    """Compare the columns of a shard's own header with those that the index says.

    Raises `ShardError` where they differ, or the header is damaged.
    """
    try:
        found = _layout(load_json(header))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ShardError(
            f"{where}: its header is damaged ({type(error).__name__}: {error}); copy the folder "
            "again"
        ) from error
    if found != shard.layout:
        raise ShardError(
            f"{where}: by its header it has {_columns_of(found)}, and by {INDEX} "
            f"{_columns_of(shard.layout)}: one of the files is damaged, or of another folder; copy "
            "the folder again"
        )


def _columns_of(layout: Layout) -> str:
    columns = dict(zip(layout.names, layout.encodings, strict=False))
    return f"the columns {str(columns)[:300]}"


def read_mds_index(folder: Path) -> tuple[MdsShard, ...]:
    """The shards of a folder, in their order.

    Raises `DatasetNotFoundError` when there is no index, `DatasetError` when it is not one of
    shards of version 2 or lists a file twice, `EmptyDatasetError` when the shards hold no sample.
    """
    path = folder / INDEX
    try:
        index = read_json(path, "INDEX_VALUES")
    except FileNotFoundError as error:
        raise DatasetNotFoundError(
            f"{folder} is not a folder of MDS shards: it has no {INDEX}{_hint(folder)}"
        ) from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise DatasetError(
            f"{path} is not JSON that can be read: {error}; copy the folder again"
        ) from error
    listed = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(listed, list) or index.get("version") != 2:
        raise DatasetError(
            f"{path} is not an index of MDS shards of version 2; write the folder with MDSWriter"
        )
    shards = tuple(_shard(each, f"{path}, shard {i}") for i, each in enumerate(listed))
    _check_listed_once(shards, path)
    if not any(shard.samples for shard in shards):
        raise EmptyDatasetError(f"{path}: the {len(shards)} shards hold no sample")
    return shards


def _hint(folder: Path) -> str:
    """What to do about subfolders that have an index."""
    inner = sorted(each.parent.name for each in folder.glob(f"*/{INDEX}"))
    if not inner:
        return ""
    shown = f"{', '.join(inner[:3])}{', ...' if len(inner) > 3 else ''}"
    return (
        f", but {len(inner)} of its subfolders do ({shown}): name one as split, or make one index "
        "of them with merge_index of MosaicML Streaming"
    )


def _check_listed_once(shards: tuple[MdsShard, ...], path: Path) -> None:
    known: dict[str, int] = {}
    for number, shard in enumerate(shards):
        for part in shard.parts:
            first = known.setdefault(part.raw.name, number)
            if first != number:
                raise DatasetError(
                    f"{path}: {part.raw.name} is listed twice, as shards {first} and {number}, so "
                    "its samples would come twice; merge the indices of the subfolders anew"
                )


def _shard(entry: Any, where: str) -> MdsShard:
    kinds = ("mds", "json", "csv", "tsv", "xsv")
    if not isinstance(entry, dict) or entry.get("format") not in kinds or entry.get("version") != 2:
        raise DatasetError(
            f"{where}: an MDS, JSON, CSV, TSV or XSV shard of version 2 is expected; the entry "
            f"begins with {str(entry)[:80]!r}"
        )
    try:
        joint = entry["format"] == "mds"
        shard = MdsShard(
            samples=_whole(entry, "samples"),
            layout=_layout(entry),
            data=_part(entry, "data", where),
            offsets=None if joint else _part(entry, "meta", where),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DatasetError(
            f"{where}: the entry is damaged ({type(error).__name__}: {error}); copy the folder "
            "again"
        ) from error
    layout = shard.layout
    sizes = layout.sizes if isinstance(layout, MdsColumns) else layout.names
    if not len(layout.names) == len(layout.encodings) == len(sizes):
        raise DatasetError(f"{where}: names, encodings and sizes of columns differ in number")
    with_offsets = next(iter(shard.parts)).raw
    if shard.samples < 0 or offset_range(shard.samples)[0] + 4 > with_offsets.size:
        raise DatasetError(
            f"{where}: {with_offsets.name} of {with_offsets.size} bytes has no room for the "
            f"offsets of {shard.samples} samples; copy the folder again"
        )
    return shard


def _layout(entry: dict[str, Any]) -> Layout:
    kind = entry["format"]
    if kind == "json":
        columns = entry["columns"]
        return JsonRows(tuple(columns), tuple(map(str, columns.values())), _text(entry, "newline"))
    names, encodings = (_texts(entry, f"column_{each}") for each in ("names", "encodings"))
    if kind == "mds":
        sizes = tuple(int(size) if size else None for size in entry["column_sizes"])
        if any(size is not None and size < 0 for size in sizes):
            raise ValueError(f"columns have the sizes {sizes}")
        return MdsColumns(names, encodings, sizes)
    separator = _SEPARATORS.get(kind) or _text(entry, "separator")
    return SeparatedRows(names, encodings, separator, _text(entry, "newline"))


def _texts(entry: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = entry[key]
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{key} is a list of texts, not {str(texts)[:80]!r}")
    return tuple(texts)


def _whole(entry: dict[str, Any], key: str) -> int:
    number = entry[key]
    if type(number) is not int:
        raise ValueError(f"{key} is a whole number, not {str(number)[:80]!r}")
    return number


def _text(entry: dict[str, Any], key: str) -> str:
    text = entry[key]
    if not isinstance(text, str) or not text:
        raise ValueError(f"{key} is a text, not {text!r}")
    return text


def _part(entry: dict[str, Any], kind: str, where: str) -> MdsPart:
    packed = entry.get(f"zip_{kind}")
    return MdsPart(
        raw=_file(entry[f"raw_{kind}"], where),
        packed=_file(packed, where) if packed else None,
        compression=entry.get("compression"),
    )


def _file(entry: dict[str, Any], where: str) -> MdsFile:
    size = _whole(entry, "bytes")
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"a file of a shard has 0 to 2**32 bytes, not {size}")
    hashes = entry.get("hashes") or {}
    return MdsFile(
        _file_name(entry["basename"], where),
        size,
        tuple((str(name), str(value)) for name, value in hashes.items()),
    )


def _file_name(name: str, where: str) -> str:
    """A file in the folder or a subfolder: an index may not lead out of it."""
    path = PurePosixPath(name)
    plain = str(path) == name and "\\" not in name and "\0" not in name
    if not plain or name == "." or path.is_absolute() or ".." in path.parts:
        raise DatasetError(f"{where}: {name!r} is not the name of a file in the folder")
    return name
