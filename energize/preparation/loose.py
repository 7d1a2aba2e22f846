"""Folders and files that nobody prepared: what is a sample there, of which type it is, and reading
it: of rows that name files, or hold what these would.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import json
import logging
import os
import posixpath
import re
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import PIL.Image

from energize.core import limits
from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.ignored import said_once
from energize.core.lanes import speaks
from energize.core.lazy import optional_module
from energize.core.progress import counting
from energize.core.samples import (
    SAMPLE_TYPES,
    CrudeSample,
    TextSample,
    required_fields,
    sample_type_named,
)
from energize.core.trace import Failed
from energize.core.validation import load_json, parse_json
from energize.data.files import (
    LISTED,
    PASSING,
    Files,
    Ranges,
    absolute,
    documents_in_use,
    exists,
    files_at,
    is_url,
    joined,
    own_errors,
    path_of,
    read_file,
)
from energize.data.files import (
    told as refusal,
)
from energize.data.jsonl import jsonl_index_path
from energize.data.mds import INDEX, MdsFiles
from energize.data.media import (
    BY_EXTENSION,
    HEAD,
    MediaMetadataType,
    kind_by_name,
    kind_by_start,
)
from energize.data.nv_meta import CRUDE, META_FOLDER, DatasetConfig, Origin, is_prepared
from energize.data.rows import ArrowSource, FieldSource, JsonSource, ParquetSource, Row
from energize.data.source import ShardedSource
from energize.data.stores import NO_REGULAR_FILE, NO_SUCH_FILE
from energize.data.tar import split_name
from energize.data.webdataset import WebdatasetSource
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    PrepareError,
    SplitError,
    nearest,
    some,
)
from energize.preparation import fields
from energize.preparation.index import prepare
from energize.preparation.scan import files_below
from energize.task.load import check_field_map, check_sample_type, parse_field

_KINDS: Mapping[str, Callable[[Any], ShardedSource[Row]]] = {
    ".parquet": ParquetSource,
    ".arrow": ArrowSource,
    ".jsonl": JsonSource,
    ".json": JsonSource,
}
FILES = (*_KINDS, ".tar")
"""Files of samples, by their suffixes."""

_log = logging.getLogger("energize")
_TAR = ".tar"
_SPLITS = (("train", "training"), ("val", "validation", "valid", "dev"), ("test", "testing"))
_SPLIT = re.compile(rf"({'|'.join(chain(*_SPLITS))})(?![a-z0-9])", re.I)
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_FILE_COLUMN = re.compile(r"(?:(.*?)_)?file_names?")
_BESIDE = (".txt", ".json")
_TURNS = {"conversations", "messages"}
_LOOKED_AT = 20
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk refuses only when it is written to."""


@dataclass(frozen=True)
class Told:
    """What an entry says of samples: their type, where their fields come from, in which folder the
    files are that rows name, and whether what does not belong together is an error.
    """

    sample_type: type[Any] | tuple[str, str] | None = None
    field_map: Mapping[str, str] | None = field(default=None, hash=False)
    image_folder: str | None = None
    strict: bool | None = False

    @property
    def kind(self) -> type[Any] | None:
        """The type of samples; raise what `sample_type_named` raises."""
        asked = self.sample_type
        kind = sample_type_named(*asked) if isinstance(asked, tuple) else asked
        if kind is not None:
            check_sample_type(kind)
        return kind

    def config(self, config: DatasetConfig, field_map: Mapping[str, str] | None) -> DatasetConfig:
        """Return what a dataset.yaml says, with what was told in its place."""
        if (kind := self.kind) is not None:
            name = CRUDE if kind is CrudeSample else kind.__name__
            config = replace(DatasetConfig(kind.__module__, name), subflavors=config.subflavors)
        return config if field_map is None else replace(config, field_map=dict(field_map))


OF_SAMPLES = ("sample_type", "field_map", "image_folder", "strict")
"""What an entry says of samples beside what their folder says."""


class Found(NamedTuple):
    """The raw samples at a path, and what they are made."""

    source: LooseSource | WebdatasetSource
    config: DatasetConfig


class _Rows(NamedTuple):
    """Rows, their columns of files, the parts that each of these is read from, and what to call
    them.
    """

    rows: ShardedSource[Row]
    media: Media
    parts: Mapping[str, str]
    what: str


def is_loose(path: Path) -> bool:
    """Return whether something is at a path that nobody prepared."""
    above = (path.parent, path.parent.parent)
    if path.suffix in FILES and path.is_file():
        if path.suffix == _TAR:
            return not any(map(is_prepared, above))
        return path.suffix != ".jsonl" or not exists(jsonl_index_path(str(path)))
    if is_prepared(path):  # asked first: a plain web server cannot say what else is there
        return False
    return path.is_dir() and not exists(path / META_FOLDER) and not any(map(is_prepared, above))


@own_errors
def split_parts(path: Path) -> list[str]:
    """Return the split parts of a folder, or of a file, that nobody prepared."""
    below, found = _names_below(path) if path.is_dir() else [], list[str]()
    for part, *_ in _SPLITS:
        with suppress(SplitError):
            _of_split(path, below, part, [])
            found.append(part)
    return found


@own_errors
def look_at(path: Path, split_part: str, told: Told) -> Found:
    """Return the samples of a split part of a folder, or of a file, that nobody prepared.

    What was guessed, and what was left out, is logged once. Raises `NotPreparedError` for what
    holds nothing that is read, `SplitError`, `DatasetError` for what does not belong together and,
    if `told.strict`, for what is left out too, and `ConfigError` for a type or a field map that
    does not fit.
    """
    notes, inside, is_folder = list[str](), dict[str, list[str]](), path.is_dir()
    below = _names_below(path) if is_folder else []
    own = _of_split(path, below, split_part, notes)
    names = [each.removeprefix(f"{own[0]}/") for each in below if each.startswith(f"{own[0]}/")]
    names = names if own[0] else below
    root = path / own[0] if names and own[0] else path if is_folder else path.parent
    files = names or [*filter(None, own)] if is_folder else [path.name]
    for file in files:
        if not posixpath.basename(file).startswith("cache-"):  # `datasets` leaves them there
            inside.setdefault(posixpath.splitext(file)[1], []).append(file)
    media = [name for name in names if kind_by_name(name) is not None]
    base = root if told.image_folder is None else path_of(absolute(told.image_folder))
    suffix = next((each for each in _KINDS if each in inside), "")
    if media:
        if absolute(base) != absolute(root):
            raise ConfigError(
                f"{path}: image_folder={told.image_folder!r} is for rows that name files; here "
                "images lie in the folder itself, so leave it out"
            )
        found = _of_media(root, names, media, notes, _names_in_parts(below))
    elif INDEX in names:
        found = _of_rows(MdsFiles(root), base, told, "MDS")
    elif _TAR in inside:
        return _of_tars(path, root, [root / each for each in inside[_TAR]], told)
    elif suffix:
        rows = _KINDS[suffix]([root / each for each in inside[suffix]])
        found = _of_rows(rows, base, told, suffix[1:])
    else:
        there = ", ".join(f"{len(files)} {each or 'others'}" for each, files in inside.items())
        there = there if names else ""
        if tables := _tables_in(names):
            raise DatasetError(f"{root}: {_some_of(tables)} is there, and no image or video")
        raise NotPreparedError(
            f"{path} is not a prepared dataset: it has no {META_FOLDER}/.info.json; and it has no "
            f"images or videos, MDS or {', '.join(FILES)}: its files are {there or 'none'}. "
            f"A folder of shards is prepared with: energize prepare {path}"
        )
    labels = _labels(found.rows)
    source = LooseSource(path, found.rows, found.media, base, split_part, labels)
    if notes and told.strict:
        raise DatasetError(f"{path}: {'; '.join(notes)} (strict)")
    for note in notes:
        _said(path, note, logging.WARNING)
    return Found(source, _config(source, found, told))


def _names_below(root: Path) -> list[str]:
    """Return the names of all files; of many ranks that share what they read, one looks."""
    documents, key, wrong = documents_in_use.get(), f"{absolute(root)}{LISTED}", dict[str, str]()
    if documents is not None and documents.texts.get(key):
        return json.loads(documents.texts[key] or "")  # type: ignore[no-any-return]
    names = sorted(counting(files_below(root, [], wrong), f"{root}: files"))
    if wrong:
        raise DatasetError(f"below {root} cannot be read: {_some_of(wrong)}; let this user")
    if documents is not None:
        documents.texts[key] = json.dumps(names)
    return names


def _parts_of(below: list[str]) -> dict[str, list[str]]:
    """Return the folders and files that names say are of a split part, by its name."""
    parts: dict[str, list[str]] = {}
    near = dict[str, bool]()  # which of them are folders
    for pieces in (name.split("/") for name in below):
        for depth in (1, 2)[: 1 + (pieces[0] == "data" and len(pieces) > 1)]:  # as on the hub
            near["/".join(pieces[:depth])] = len(pieces) > depth
    for each, is_folder in sorted(near.items()):
        called, suffix = posixpath.basename(each), posixpath.splitext(each)[1]
        word = _SPLIT.match(called)
        whole = word is not None and word[0] == called and is_folder
        if word is not None and (whole or suffix in FILES):
            parts.setdefault(word[0].lower(), []).append(each)
    return parts


def _of_split(path: Path, below: list[str], split_part: str, notes: list[str]) -> list[str]:
    """Return the folder of a split part, or its files, where names say which are: else all, ""."""
    names = next((names for names in _SPLITS if split_part in names), (split_part,))
    parts = _parts_of(below)
    own = [each for name in names for each in parts.get(name, ())]
    if own:
        every = {*chain(*parts.values())}
        tops = (each.split("/", 2) for each in below)
        beside = [
            name
            for name, top in zip(below, tops, strict=True)
            if (kind_by_name(name) is not None or posixpath.splitext(name)[1] in FILES)
            and every.isdisjoint((top[0], "/".join(top[:2])))
            and name != "dataset_dict.json"  # which `datasets` writes
        ]
        _note(notes, beside, f"left out, beside what is named as a split part, {some(parts)}")
    if own or (not parts and "train" in names):
        return own or [""]
    raise SplitError(
        f"{path} has no split part {split_part!r}, but {some(parts) or 'all in train'}: make it "
        f"a folder {split_part}, or give split_part='train', subset={{'range': ['90%', '100%']}}"
    )


# Folders of images, videos and sounds.


def _names_in_parts(below: list[str]) -> list[str]:
    """Return the names of files, each from the folder of its split part on."""
    tops = tuple(f"{each}/" for each in chain(*_parts_of(below).values()))
    return [
        each.removeprefix(next(top for top in tops if each.startswith(top))) if tops else each
        for each in below
        if not tops or each.startswith(tops)
    ]


def _of_media(
    root: Path, names: list[str], media: list[str], notes: list[str], everywhere: list[str]
) -> _Rows:
    tables = _tables_in(names)
    beside: dict[str, list[str]] = {}
    for name in names:
        stem, suffix = posixpath.splitext(name)
        if suffix.lower() in _BESIDE:
            beside.setdefault(stem, []).append(name)
    parents = [posixpath.dirname(name) for name in media]
    folders = {posixpath.dirname(each) for each in everywhere if kind_by_name(each) is not None}
    folders.discard("")
    labels = sorted({posixpath.basename(each) for each in folders})  # the same in all split parts
    seen = any(kind_by_name(name) == MediaMetadataType.IMAGE for name in media)
    columns, what = ["file_name"], f"{'images' if seen else 'videos or sounds'} without captions"
    rows: Iterable[Row] = ({"file_name": name} for name in media)
    if tables:
        what = f"images of {some(tables)}"
        rows, columns = _described(root, tables, set(media), notes)
    elif any(posixpath.splitext(name)[0] in beside for name in media):
        what, columns = "images with files beside them", ["file_name", "txt", "json"]
        rows = _captioned(root, media, beside, notes)
    elif len(labels) > 1 and len({each.count("/") for each in folders}) == 1:
        stray = [name for name, folder in zip(media, parents, strict=True) if not folder]
        if 2 * len(stray) < len(media):
            numbers = {label: number for number, label in enumerate(labels)}
            what = f"images in {len(labels)} folders of classes"
            named = zip(rows, map(posixpath.basename, parents), strict=True)
            rows = (
                {**row, "label": numbers[each], "label_name": each} for row, each in named if each
            )
            _note(notes, stray, "left out, images beside the folders of classes")
    used = {*tables, *chain(*(beside if "txt" in columns else {}).values())}
    unread = [n for n in names if posixpath.splitext(n)[1] in (".csv", *FILES) and n not in used]
    text = "left out, for beside images a table is metadata.csv, .jsonl or .parquet"
    _note(notes, unread, text)
    made = MemoryRows(counting(_keyed(rows, columns[0], notes), f"{root}: samples", len(media)))
    if not made.count:
        raise DatasetError(f"{root}: no sample is left: {'; '.join(notes)}")
    first = _first_of(made)
    media_of, parts = _media_of(_looking_like(first, columns), first)
    return _Rows(made, {**dict.fromkeys(columns[1:], ("", False)), **media_of}, parts, what)


def _tables_in(names: Iterable[str]) -> list[str]:
    return [name for name in names if posixpath.basename(name) in _METADATA]


def _keyed(rows: Iterable[Row], column: str, notes: list[str]) -> Iterator[Row]:
    """Yield rows with keys, each once: a second one of a name is told from the first."""
    given, repeated = Counter[str](), []
    for row in rows:
        name = row[column] if isinstance(row[column], str) else row[column][0]
        key = key_of(name)
        given[key] += 1
        if given[key] > 1:
            repeated.append(f"{name} ({row[AT]})" if AT in row else name)
            key = f"{key}~{given[key]}"
        yield {KEY: key, **row}
    _note(notes, repeated, "each is a sample, though several are of one name")


def _captioned(
    root: Path, media: list[str], beside: dict[str, list[str]], notes: list[str]
) -> Iterator[Row]:
    """Yield a row for each image that has a text, or else a `.json`, beside it."""
    suffixes = {posixpath.splitext(each)[1].lower() for each in chain(*beside.values())}
    wanted = next(suffix for suffix in _BESIDE if suffix in suffixes)
    stems: dict[str, str] = {}
    without = []
    for name in media:
        stem = posixpath.splitext(name)[0]
        own = {posixpath.splitext(each)[1][1:].lower(): each for each in beside.get(stem, ())}
        if own and stem in stems:
            raise DatasetError(
                f"{root}: {stems[stem]} and {name} are two images under one name, and "
                f"{next(iter(own.values()))} is of one of them: rename the other"
            )
        stems[stem] = name
        if wanted[1:] in own:
            yield {"file_name": name, **own}
        else:
            without.append(name)
    _note(notes, without, f"left out, images without {wanted} beside them")
    lost = [each for stem, found in beside.items() if stem not in stems for each in found]
    _note(notes, lost, "left out, captions without an image beside them")


def _described(
    root: Path, tables: list[str], there: set[str], notes: list[str]
) -> tuple[list[Row], list[str]]:
    """Return the rows of metadata files, with the names of their files from `root` on, and the
    columns that have these.
    """
    folder, count = Counter(map(posixpath.dirname, tables)).most_common(1)[0]
    if count > 1:
        both = [each for each in tables if posixpath.dirname(each) == folder]
        raise DatasetError(f"{root}: {' and '.join(both)} describe one folder; remove one")
    kept, used, absent, columns = list[Row](), set[str](), list[str](), dict[str, None]()
    for table in tables:
        rows = _rows_in(root / table)
        named = _file_columns(root / table, rows)
        columns.update(dict.fromkeys(named))
        for row in rows:
            row[AT] = at = row[AT].removeprefix(f"{root}/")
            for name in named:
                found = [
                    posixpath.normpath(posixpath.join(posixpath.dirname(table), str(each)))
                    for each in names_in([row], [name])
                    if each
                ]
                row[name] = found if isinstance(row.get(name), list) else "".join(found)
            files = [each for each in names_in([row], named) if each]
            missing = next((each for each in files if each not in there), None)
            if missing is None and row[named[0]]:
                kept.append(row)
                used.update(files)
            else:
                absent.append(f"{missing or 'no name'} ({at})")
    _note(notes, absent, "left out, rows whose file is not in this folder")
    _note(notes, sorted(there - used), "left out, images without a row")
    words = all(table.endswith(".csv") for table in tables)
    return _with_numbers(kept) if words else kept, list(columns)


def _file_columns(path: Path, rows: list[Row]) -> list[str]:
    names = [name for name in _names_of(rows) if name != AT]
    found = [name for name in names if _FILE_COLUMN.fullmatch(name)]
    found = found or list(_looking_like(rows, names))
    if not found:
        raise DatasetError(
            f"{path} has no column file_name, which names the image of each row, from this folder "
            f"on{nearest('file_name', names)}; it has {some(names) or 'no columns'}"
        )
    return sorted(found, key=lambda name: name != "file_name")


def _rows_in(path: Path) -> list[Row]:
    """Return the rows of a metadata file, each with where it is."""
    if path.suffix == ".csv":
        return _csv_rows(path)
    source: Any = _KINDS[path.suffix]([path])
    rows = source.read(np.arange(source.count))
    for index, row in enumerate(rows):
        if isinstance(row, Failed):
            raise DatasetError(f"{row.where}: {row.reason}")
        row[AT] = source.where(index)
    return rows  # type: ignore[no-any-return]


def _csv_rows(path: Path) -> list[Row]:
    try:
        csv.field_size_limit(limits.JSON_BYTES)
        text = read_file(path).decode("utf-8-sig")
        head = text.partition("\n")[0]
        parted = next((each for each in ",;\t" if each in head), ",")
        reader = csv.DictReader(io.StringIO(text), strict=True, delimiter=parted)
        rows: list[Row] = [{**row, AT: f"{path}, line {reader.line_num}"} for row in reader]
    except (csv.Error, UnicodeDecodeError) as reason:
        raise DatasetError(f"{path} is no CSV file in UTF-8: {reason}") from reason
    for row in rows:
        if None in row or None in row.values():
            names = some(reader.fieldnames or ())
            raise DatasetError(f"{row[AT]}: a row has a value, in quotes, for each of {names}")
    return rows


def _with_numbers(rows: list[Row]) -> list[Row]:
    """Return rows of words in which columns of numbers are numbers; 007 is none."""
    for name in _names_of(rows):
        with suppress(TypeError, ValueError):
            numbers = [json.loads(row[name]) if row.get(name) else None for row in rows]
            if {*map(type, numbers)} <= {int, float, type(None)}:
                for row, number in zip(rows, numbers, strict=True):
                    row[name] = number
    return rows


def _note(notes: list[str], names: Sequence[str], what: str) -> None:
    if names:
        notes.append(f"{what} ({len(names):,}): {_some_of(names)}")


def _some_of(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")


# Rows of files, of which few are looked at.


def _of_rows(rows: ShardedSource[Row], base: Path, told: Told, what: str) -> _Rows:
    """Return rows whose columns of files are those that the first rows show."""
    first = _first_of(rows)
    if not first:
        bad: Any = next(iter(rows.read(np.arange(min(1, rows.count)))), None)
        raise DatasetError(f"{bad.where}: {bad.reason}" if bad else f"{base} has no row to read")
    names = _names_of(first)
    talk = told.kind is SAMPLE_TYPES["ConversationSample"] or not _TURNS.isdisjoint(names)
    media, parts = _media_of(_looking_like(first, names), first, talk=talk)
    named = [each for each in names_in(first, media) if isinstance(each, str) and each]
    if named and not any(exists(joined(base, each)) for each in named):
        raise DatasetNotFoundError(
            f"{rows.shards[0]}: the first rows name {named[0]!r}, and there is no "
            f"{joined(base, named[0])}, nor any other of their files: say in which folder they "
            "are, image_folder=..."
        )
    if talk:  # in rows that come later too
        for name in ("image", "images", "video", "videos"):
            media.setdefault(name, (f"{name[:5]}s.", True))
    return _Rows(rows, media, parts, what)


def _labels(rows: Any) -> dict[str, list[str]]:
    """Return the names of classes that Hugging Face's datasets wrote into their files."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # rows without a schema too
        features = load_json(rows._schemas[0].metadata[b"huggingface"])["info"]["features"]
        known = {name: each for name, each in features.items() if each.get("_type") == "ClassLabel"}
        return {name: [*map(str, each["names"])] for name, each in known.items()}
    return {}


def _first_of(rows: ShardedSource[Row]) -> list[Row]:
    """Return the first rows that are none that failed."""
    first = rows.read(np.arange(min(_LOOKED_AT, rows.count)))
    return [unfolded(row) for row in first if not isinstance(row, Failed)]


def _names_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(chain(*rows)))


def _looking_like(rows: Sequence[Any], names: Iterable[str]) -> dict[str, MediaMetadataType]:
    """Return the columns all of whose values are, or name, images, videos or sounds."""
    kinds = {name: {kind_of(each) for each in names_in(rows, [name]) if each} for name in names}
    known = {name: [*filter(None, found)] for name, found in kinds.items() if None not in found}
    return {name: max(found) for name, found in known.items() if found}


def _media_of(
    kinds: Mapping[str, MediaMetadataType], rows: Sequence[Any], *, talk: bool = False
) -> tuple[dict[str, tuple[str, bool]], dict[str, str]]:
    """Return what the parts of columns of files are called, and where columns are read from."""
    media, parts = dict[str, tuple[str, bool]](), dict[str, str]()
    if MediaMetadataType.AV in kinds.values():
        optional_module("av", "energize[av]", "reading videos and sounds")
    lists = [n for n in kinds if talk or any(isinstance(row.get(n), list) for row in rows)]
    for name, kind in kinds.items():
        named = _FILE_COLUMN.fullmatch(name)
        called = (named[1] or ("images" if name in lists else "")) if named else name
        called = called if lists or len(kinds) > 1 else ""
        if talk:
            called = "images" if kind == MediaMetadataType.IMAGE else "videos"
        prefix = f"{called}." if called else ""
        media[name] = prefix, name in lists
        usual = (f"{prefix}{each}" for each, of in BY_EXTENSION.items() if of == kind)
        parts[name] = f"{prefix}*" if name in lists else ",".join(usual)
    return media, parts


# Tars.


def _of_tars(path: Path, root: Path, tars: list[Path], told: Told) -> Found:
    """Return the samples of tars, whose index is kept in a folder of links to them."""
    if is_url(path):
        here = root if path.suffix == _TAR else path
        raise NotPreparedError(f"{path}: tars in a store are prepared: energize prepare {here}")
    stats = [[str(tar.absolute()), tar.stat().st_size, tar.stat().st_mtime_ns] for tar in tars]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = path.absolute().name  # a tar alone and its folder have indexes of their own
    folder = Path(cache, "energize", "tars", digest([name, *stats]), name)
    try:
        if not is_prepared(folder):
            _log.warning("%s: %d tars are indexed, in %s", path, len(tars), folder)
            _index_tars(root, tars, folder)
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise DatasetError(
            f"{path}: the index of tars that are not prepared cannot be written to the cache "
            f"folder: {error.filename or folder} ({error.strerror}). Set XDG_CACHE_HOME to a "
            f"folder that can be written, or run: energize prepare {root}"
        ) from error
    whole = WebdatasetSource(folder)
    source = whole._replace(origin=Origin.of(whole))
    look = fields.FirstLook(folder / source.shards[0])
    kind = told.kind or fields.propose_sample_type(look, told.field_map or ())
    if told.kind and told.field_map:
        check_field_map(told.kind, told.field_map)
    chosen = cast("DatasetConfig", fields.choose_config(kind, told.field_map, look, look.parts))
    config = told.config(chosen, chosen.field_map)
    _say(path, f"{source.count:,} samples, tars", told, config.sample_class, config.field_map or {})
    return Found(source, config)


def _index_tars(root: Path, tars: Sequence[Path], folder: Path) -> None:
    """Write the index of tars into a folder of links to them; raise OSError where it cannot be."""
    if not folder.is_absolute():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))  # there is no home
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as new:
        links = Path(new, "tars", folder.name)
        for tar in tars:
            link = links / tar.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(tar.absolute())
        try:
            report = prepare(links, split_ratios={"train": 1})
        except PrepareError as reason:
            cause = reason.__cause__
            if isinstance(cause, OSError) and cause.errno in _NOT_WRITTEN:
                raise cause from None
            raise DatasetError(str(reason).replace(f"{links}", f"{root}")) from None
        for note in report.notes:
            _log.warning("%s: %s", root, note)
        with suppress(OSError):  # another process was sooner
            Path(new, "tars").rename(folder.parent)


# Of which type samples are.


def _config(source: LooseSource, found: _Rows, told: Told) -> DatasetConfig:
    """Return type and field map: as told, and else as the first samples look."""
    raw = next((each for each in source.read(np.arange(1)) if not isinstance(each, Failed)), {})
    content = load_json(raw["json"]) if "json" in found.media and "json" in raw else {}
    names = _names_of([*_first_of(found.rows), content])
    names += [f"{name}_name" for name in source.labels]
    keys = tuple(name for name in names if name not in (KEY, AT, *found.media))
    columns = {name: f"json[{name}]" for name in keys} | dict(found.parts)
    parts = [*chain(*(text.split(",") for text in found.parts.values())), *raw]
    parts += [f"{prefix}*" for prefix, counted in found.media.values() if counted]
    look = SimpleNamespace(parts=parts, json_keys=keys)
    asked = (told.field_map or {}).items()
    given = {name: _translated(source, text, columns, parts) for name, text in asked}
    kind = told.kind or SAMPLE_TYPES[fields.propose_sample_type(look, given)]
    if kind is CrudeSample and given and told.kind is None:
        known = [*chain(*map(fields.sample_fields, fields.SAMPLE_TYPE_NAMES))]
        raise ConfigError(
            f"{source.path}: no usual type of samples has the fields {some(given)}"
            f"{nearest(min(given), known)}: correct them, or give sample_type"
        )
    if kind is TextSample and found.media and not (told.kind or given):
        kind = CrudeSample  # which keeps lists of images beside a text
    field_map: dict[str, str] | None = None
    if kind is not CrudeSample or given:
        field_map = {**fields.propose_field_map(kind, look), **given}
        try:
            check_field_map(kind, field_map)
        except ConfigError as reason:
            raise ConfigError(
                f"{source.path}: {reason}. Its columns are {some(columns)}: say in field_map which "
                "of them is what, or give another sample_type"
            ) from reason
    shown = {name: _shown(text, columns) for name, text in (field_map or {}).items()}
    for name in shown.keys() - given.keys():
        lacking = _files_without(column := shown[name], found.rows)
        if lacking and name in required_fields(kind):
            raise DatasetError(
                f"{source.path}: {name!r} would be read from the column {column!r}, which is not "
                f"in {_some_of(lacking)}: say all that it is read from, "
                f"field_map={{{name!r}: '{column},...'}}"
            )
    what = f"{source.count:,} samples, {found.what} with {some(columns)}"
    there = {name: each for name, each in shown.items() if not each.endswith(".*")}
    _say(source.path, what, told, kind.__name__, there)
    return Told(kind).config(DatasetConfig("", ""), field_map)


def _say(path: Path, what: str, told: Told, name: str, field_map: Mapping[str, str]) -> None:
    """Log what samples are made, where nobody saw it before so that it is seen."""
    text = f"{what}, as {name}({', '.join(f'{n}={each}' for n, each in field_map.items())})"
    if told.kind is None:
        told_of = dict(field_map)
        text += f"; to change it: sample_type={name!r}, field_map={told_of!r}"
        text += f" (in YAML, sample_type: {name}, field_map: {told_of!r})"
    _said(path, text, logging.INFO if told.kind else logging.WARNING)


def _said(path: Path, text: str, level: int) -> None:
    """Log it once, on the first rank."""
    if speaks():
        said_once(str(path), text, text, level)


def _files_without(column: str, rows: ShardedSource[Row]) -> list[str]:
    """Return the files of rows that lack a column that others have; of JSON, in the first rows."""
    names = [each.names for each in rows._schemas] if isinstance(rows, ParquetSource) else [[]]
    if isinstance(rows, JsonSource):
        firsts = (rows._read_shard(n, [0] if count else []) for n, count in enumerate(rows.counts))
        whole = ([row for row in first if not isinstance(row, Failed)] for first in firsts)
        names = [_names_of(map(unfolded, rows)) for rows in whole]
    lacking = [rows.shards[n] for n, own in enumerate(names) if own and column not in own]
    return lacking if len(lacking) < len(names) else []


def _shown(text: str, columns: Mapping[str, str]) -> str:
    """Return the column whose parts, or some of them, a description names; else itself."""
    named = set(text.split(","))
    return next((name for name, each in columns.items() if named <= set(each.split(","))), text)


def _translated(
    source: LooseSource, text: str, columns: Mapping[str, str], parts: Sequence[str]
) -> str:
    """Return a description in which columns are the parts that they are in."""
    options = []
    for access in parse_field(text):
        if access.part not in columns and not access.among([*parts, "json"]):
            raise ConfigError(
                f"{source.path} has no column {access.part!r}"
                f"{nearest(access.part, list(columns))}; it has {some(columns)}"
            )
        keys = "".join(f"[{key}]" for key in access.keys)
        options.append(f"{columns.get(access.part, access.part)}{keys}")
    return ",".join(options)


# Samples of rows that name files, or hold what these would.

KEY, AT = "__key__", "__at__"

_STARTS = {b"\x89P": "png", b"GI": "gif", b"BM": "bmp", b"RI": "webp", b"II": "tif", b"MM": "tif"}
_UNNAMED = re.compile(r"[^\w/ +=@~,()-]")
"""What no key may have in it: dots, which end it, and what does not show."""

Media = Mapping[str, tuple[str, bool]]
"""Columns of files: what stands before the extension in the names of the parts, and whether these
are counted: `{"images": ("images.", True)}` makes `images.0.jpg`."""


def key_of(name: str) -> str:
    """Return the key of the sample of a file: one that may stand in a tar.

    >>> key_of("cats/Tom v1.2.jpg")
    'cats/Tom v1_2'
    """
    key = _UNNAMED.sub("_", os.path.splitext(name)[0])
    return key if split_name(f"{key}.jpg") == (key, "jpg") else f"_{key}"


def kind_of(value: Any) -> MediaMetadataType | None:
    """Return the kind of media that a value of a row is, or names."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = value["bytes"] or value["path"]
    if isinstance(value, bytes):
        return kind_by_start(value[:HEAD])
    if isinstance(value, str):
        return None if "://" in value else kind_by_name(value)
    return MediaMetadataType.IMAGE if isinstance(value, PIL.Image.Image) else None


def names_in(rows: Iterable[Any], columns: Iterable[str]) -> Iterator[Any]:
    """Yield what rows have in some columns, one by one."""
    for row in rows:
        for value in map(row.get, columns):
            yield from value if isinstance(value, list) else [value]


def unfolded(row: Row) -> Row:
    """Return a row with the files that pieces of its turns name as `images` and `videos`, where it
    names none itself.

    >>> told = [{"type": "image", "image": "a.jpg"}, {"type": "text", "text": "What?"}]
    >>> unfolded({"messages": [{"role": "user", "content": told}]})["images"]
    ['a.jpg']
    """
    found: dict[str, list[Any]] = {}
    lists = (row[name] for name in _TURNS & row.keys() if isinstance(row[name], list))
    said = (turn.get("content") for turn in chain(*lists) if isinstance(turn, dict))
    for piece in chain(*(content for content in said if isinstance(content, list))):
        kind = piece.get("type") if isinstance(piece, dict) else None
        if kind in ("image", "image_url", "video", "video_url"):
            named = next((piece[name] for name in (kind, "url", "path") if piece.get(name)), None)
            named = named["url"] if isinstance(named, dict) and "url" in named else named
            if isinstance(named, str) and named.startswith("data:"):
                with suppress(ValueError):
                    named = base64.b64decode(named.partition(",")[2])
            if named:
                named = named.removeprefix("file://") if isinstance(named, str) else named
                found.setdefault(f"{kind[:5]}s", []).append(named)
    own = {name for name in found if row.get(name) or row.get(name[:-1])}
    return row | {name: named for name, named in found.items() if name not in own}


class MemoryRows(ShardedSource[Row], FieldSource[Row]):
    """Rows that are kept as lines of JSON, with their keys as `__key__`, and with where they were
    read from as `__at__`, if that is not said by their files.

    Memory is that of the lines, and 8 bytes for each. The identity is that of the keys.
    """

    order_name = "MemoryRows"

    text: bytes
    ends: Int64Array
    name = location = identity = ""
    shards = ("",)

    def __init__(self, rows: Iterable[Row]) -> None:
        text, ends, keys = bytearray(), array("q", [0]), hashlib.blake2b(digest_size=16)
        dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode
        for row in rows:
            keys.update(f"{row[KEY]}\0".encode())
            text += dumped(row).encode("utf-8", "surrogatepass")
            ends.append(len(text))
        own = {"text": bytes(text), "ends": np.array(ends), "counts": (len(ends) - 1,)}
        named = {"identity": keys.hexdigest(), "seed": 0, "occurrence": 0}
        self._freeze(**cast("dict[str, Any]", own | named))

    def _compared(self) -> tuple[Any, ...]:
        return (self.text,)

    def _where(self, shard: int, number: int) -> str:
        return str(self._read_shard(shard, [number])[0].get(AT, ""))

    def _read_shard(self, shard: int, numbers: list[int]) -> list[Row]:
        bounds = (self.ends[number : number + 2].tolist() for number in numbers)
        return [parse_json(self.text[start:stop]) for start, stop in bounds]


class LooseSource(ShardedSource[dict[str, Any]], FieldSource[dict[str, Any]]):
    """The raw samples of rows whose columns `media` are images, videos or sounds: as structs of
    bytes, or as names of files below the folder `base`.

    A sample is a new dict, as `WebdatasetSource` gives it: `__key__`, `__dataset__`, `__shard__`
    (the file of the row), `__index__` (its number there), the bytes of its files by extension, and
    as `json` the other fields of its row. Its key is the `__key__` of its row, else its number.

    Files are read when a sample is: one that is not there, or may not be read, makes a `Failed`
    with a `DataError` that names it. The identity, and with it every order, depends on the name of
    `path`, the split part, keys and counts, not on where `path` is mounted.
    """

    order_name = "LooseSource"

    path: Path
    split_part: str
    rows: ShardedSource[Row]
    media: Media
    base: Path
    labels: Mapping[str, Sequence[str]]
    """What classes are called, by the columns of their numbers; beside `label` comes `label_name`.
    """
    opened: float
    """When it was looked at, in seconds since 1970."""

    def __init__(  # noqa: PLR0917
        self,
        path: Path,
        rows: ShardedSource[Row],
        media: Media,
        base: Path,
        split_part: str,
        labels: Mapping[str, Sequence[str]],
    ) -> None:
        own = {"path": path, "rows": rows, "media": media, "base": base, "split_part": split_part}
        own |= {"labels": labels, "opened": time.time()}
        more = {"counts": tuple(rows.counts), "window": None, "seed": 0, "occurrence": 0}
        self._freeze(**cast("dict[str, Any]", own | more))

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        inside, above = f"{self.location}/", f"{os.path.dirname(self.location)}/"
        names = self.rows.shards
        return tuple(each.removeprefix(inside).removeprefix(above) for each in names)

    @cached_property
    def identity(self) -> str:
        whole = digest([self.name, self.split_part, self.rows.identity, self.counts])
        return whole if self.window is None else digest([whole, self.window])

    @property
    def origin(self) -> Origin:
        """As what its samples are known, wherever they will lie."""
        return Origin.of(self)

    def called(self, name: str) -> Self:
        return super().called(name)._replace(rows=self.rows.called(name))

    @cached_property
    def name(self) -> str:
        return self.earlier_name or self.path.absolute().name

    @property
    def location(self) -> str:
        return str(self.path.absolute())

    @cached_property
    def _files(self) -> Files:
        return files_at(self.base)

    def expect(self, indices: Int64Array) -> int:
        return self.rows.expect(self._stored(indices))

    def _ranges_of(self, shard: int, numbers: Sequence[int]) -> Sequence[Ranges]:
        return self.rows._ranges_of(shard, numbers)

    @property
    def column_names(self) -> tuple[str, ...]:
        names = (name for name in self.rows.column_names if name not in (KEY, AT))
        return *names, *(f"{name}_name" for name in self.labels)

    def _compared(self) -> tuple[Any, ...]:
        return tuple(each for each in super()._compared() if each != ("opened", self.opened))

    def _column(self, name: str) -> Column:
        label = name.removesuffix("_name")
        if label != name and label in self.labels:
            whole = Column.of(
                (self._called(label, each) for each in self.rows._values(label)), name
            )
        else:
            whole = self.rows.column(name)
        return whole if self.window is None else whole.part(slice(*self.window))

    def _key(self, shard: int, number: int) -> str | None:
        [row] = self.rows._read_shard(shard, [number])
        return None if isinstance(row, Failed) else self._key_of(shard, number, row)

    def _key_of(self, shard: int, number: int, row: Row) -> str:
        several = f"{os.path.splitext(self.shards[shard])[0]}/" if len(self.shards) > 1 else ""
        return row.get(KEY) or key_of(f"{several}{number:06d}.json")

    def _where(self, shard: int, number: int) -> str:
        where = self.rows._where(shard, number).removeprefix(f"{self.location}/")
        where = where if where.startswith(self.location) else f"{self.location}/{where}".rstrip("/")
        return f"{where}, sample {self._key(shard, number)!r}"

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any] | Failed]:
        rows = zip(numbers, self.rows._read_shard(shard, numbers), strict=True)
        return [self._sample(shard, number, row) for number, row in rows]

    def _sample(self, shard: int, number: int, row: Row | Failed) -> dict[str, Any] | Failed:
        if isinstance(row, Failed):
            return row
        new: dict[str, Any] = {KEY: self._key_of(shard, number, row)}
        new |= {"__dataset__": str(self.path), "__shard__": self.shards[shard], "__index__": number}
        try:
            return new | self._made_of(row)
        except DataError as reason:
            # A file that is missing may be there the next time.
            lasting = not isinstance(reason.__cause__, OSError)
            return Failed(reason, self._where(shard, number), lasting=lasting)

    def _made_of(self, row: Row) -> dict[str, bytes]:
        """Return the parts of a sample by name."""
        parts, rest = dict[str, bytes](), dict[str, Any]()
        for name, value in unfolded(row).items():
            if name in self.media and value:
                prefix, counted = self.media[name]
                given = value if isinstance(value, list) else [value]
                counted |= isinstance(value, list)
                names = [each for each in given if isinstance(each, str)]
                if len({*map(posixpath.normpath, names)}) < len(names):
                    raise DataError(f"{name!r} has two files under one name: {names}"[:300])
                for each in given:
                    number = sum(part.startswith(prefix) for part in parts)
                    extension, data = self._file(each)
                    parts[f"{prefix}{f'{number}.' if counted else ''}{extension}"] = data
                if names:
                    rest[name] = value
            elif isinstance(value, bytes):
                parts[f"{_UNNAMED.sub('_', name)}.{_kind(value)}"] = value
            elif name not in (KEY, AT):
                rest[name] = value
        rest |= {f"{name}_name": self._called(name, row.get(name)) for name in self.labels}
        for name in _TURNS & rest.keys():
            turns, told = rest[name], rest.get("system")
            if isinstance(told, str) and told and isinstance(turns, list):
                rest[name] = [{"from": "system", "value": told}, *turns]
        if rest.keys() - self.media.keys() and "json" not in parts:
            parts["json"] = json.dumps(rest, default=_plain).encode()
        return parts

    def _called(self, label: str, number: Any) -> str | None:
        names = self.labels[label]
        return names[number] if isinstance(number, int) and 0 <= number < len(names) else None

    def _file(self, value: Any) -> tuple[str, bytes]:
        """Return the extension and the bytes of a file."""
        path = value
        if isinstance(value, dict):
            path, value = value.get("path"), value.get("bytes")
        if isinstance(value, PIL.Image.Image):
            value.save(stream := io.BytesIO(), "PNG")
            value = stream.getvalue()
        if isinstance(value, bytes):
            named = isinstance(path, str) and kind_by_name(path) is not None
            return _extension(path) if named else _kind(value), value
        if not isinstance(path, str):
            raise DataError(f"an image is named by its path, or is bytes; got {value!r:.80}")
        return _extension(path), self._read(path)

    def _read(self, name: str) -> bytes:
        path = path_of(absolute(joined(self.base, name)))
        if not path.is_relative_to(self.base):
            raise DataError(
                f"{name!r:.200} leads out of {self.base}; image_folder may be one above it, and "
                "what is on the web is downloaded first"
            )
        file = str(path)
        try:
            data = read_file(file, "SAMPLE_BYTES")
            if not is_url(file) and os.stat(file).st_mtime > self.opened:
                told_of = f"{file} was written after it was opened, and is read as it is now"
                said_once(self.location, "written", told_of, logging.WARNING)
            return data
        except OSError as error:
            if error.errno not in (*NO_SUCH_FILE, *NO_REGULAR_FILE, errno.EFBIG):
                raise
            raise DataError(refusal(error, file)) from error


def _extension(name: str) -> str:
    return os.path.splitext(name)[1][1:].lower()


def _kind(data: bytes) -> str:
    """Return the extension of a file with these bytes."""
    kind = kind_by_start(data[:HEAD])
    if kind is None:
        return "bin"
    return _STARTS.get(data[:2], "jpg") if kind == MediaMetadataType.IMAGE else "mp4"


def _plain(value: Any) -> Any:
    """Return what JSON can hold in place of a value: numbers of numpy are numbers, dates texts."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
