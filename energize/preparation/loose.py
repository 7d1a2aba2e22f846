"""Looking at folders and files that nobody prepared: what is a sample, and of which type it is."""

from __future__ import annotations

import csv
import io
import logging
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from energize.core.ignored import said_once
from energize.core.samples import METADATA, SAMPLE_TYPES, required_fields, type_fields
from energize.core.trace import Failed
from energize.core.validation import load_json
from energize.data.files import exists, own_errors, read_file
from energize.data.jsonl import jsonl_index_path
from energize.data.loose import (
    KEY,
    LooseSource,
    Media,
    MemoryRows,
    is_media,
    key_of,
    names_in,
)
from energize.data.mds import INDEX, MdsSource
from energize.data.media import AV_EXTENSIONS, kind_by_name, kind_by_start
from energize.data.nv_meta import CRUDE, META_FOLDER, DatasetConfig, is_prepared
from energize.data.remote import path_of, tidied
from energize.data.rows import ArrowSource, JsonSource, ParquetSource, Row
from energize.data.source import ShardedSource
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    SplitError,
    nearest,
    some,
)
from energize.preparation.fields import propose_field_map, propose_sample_type
from energize.preparation.scan import files_below
from energize.task.load import USUAL_IMAGES, check_field_map, parse_field

FILES = (".jsonl", ".json", ".parquet", ".arrow")
"""Files of rows, by their suffixes."""

_SPLITS = (("train", "training"), ("val", "validation", "valid", "dev"), ("test", "testing"))
_SPLIT_FILE = re.compile(rf"({'|'.join(sum(_SPLITS, ()))})(?![a-z0-9])", re.I)
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_FILE_COLUMN = re.compile(r"(?:(.*?)_)?file_names?")
_BESIDE = (".txt", ".json")
_TURNS = {"conversations", "messages"}
_LOOKED_AT = 20
_READ = (
    "images or videos (with metadata.csv, .jsonl or .parquet, with .txt or .json beside them, or "
    "in a folder for each class), .jsonl, .json, Parquet, Arrow, MDS or tar"
)


@dataclass(frozen=True)
class Told:
    """What an entry says of samples: their type, where their fields come from, in which folder the
    files are that rows name, and whether what does not belong together is an error.
    """

    sample_type: type[Any] | tuple[str, str] | None = None
    field_map: Mapping[str, str] | None = field(default=None, hash=False)
    image_folder: str | None = None
    strict: bool | None = False

    def config(self, config: DatasetConfig) -> DatasetConfig:
        """Return what a dataset.yaml says, with what was told in its place."""
        kind, given = self.sample_type, dict[str, Any]()
        if kind is not None:
            module, name = (kind.__module__, kind.__name__) if isinstance(kind, type) else kind
            given = {"sample_module": module, "sample_class": name, "field_map": None}
            given |= {"factory": None, "code": {}}
        if self.field_map is not None:
            given["field_map"] = dict(self.field_map)
        return replace(config, **given)


NOTHING_TOLD = Told()


class Found(NamedTuple):
    """The raw samples at a path, and what they are made."""

    source: LooseSource
    config: DatasetConfig


class _Rows(NamedTuple):
    """Rows, their columns of files, the parts that each column is read from, and what they are."""

    rows: ShardedSource[Row]
    media: Media
    parts: Mapping[str, str]
    what: str


def is_loose(path: Path) -> bool:
    """Return whether something is at a path that nobody prepared."""
    if path.suffix in FILES and path.is_file():
        return path.suffix != ".jsonl" or not exists(jsonl_index_path(str(path)))
    above = (path.parent, path.parent.parent)
    return path.is_dir() and not exists(path / META_FOLDER) and not any(map(is_prepared, above))


@own_errors
def look_at(path: Path, split_part: str, told: Told) -> Found:
    """Return the samples of a split part of a folder, or of a file, that nobody prepared.

    What was guessed, and what was left out, is logged once. Raises `NotPreparedError` for what
    holds nothing that is read, `SplitError`, `DatasetError` for what does not belong together and,
    if `told.strict`, for what is left out too, and `ConfigError` for a type or a field map that
    does not fit.
    """
    notes: list[str] = []
    folder, listed = _of_split(path, split_part)
    found = _rows_of(path, folder, listed, told, notes)
    base = folder if folder.is_dir() else folder.parent
    if told.image_folder is not None:
        base = tidied(path_of(told.image_folder))
    source = LooseSource(path, found.rows, found.media, base=base, split_part=split_part)
    if notes and told.strict:
        raise DatasetError(f"{path}: {'; '.join(notes)} (strict)")
    for note in notes:
        said_once(str(path), note, note, logging.WARNING)
    _check_there(source, told)
    return Found(source, _config(source, found, told))


# Which files.


def _of_split(path: Path, split_part: str) -> tuple[Path, list[Path]]:
    """Return the folder, or file, that has a split part, and the files of rows in it, if only some
    are of this part.
    """
    names = next((names for names in _SPLITS if split_part in names), (split_part,))
    inner: list[Path] = []
    if path.is_dir():
        inner = [each for each in path.iterdir() if not each.name.startswith(".")]
    folders = [each for each in inner if each.name.lower() in sum(_SPLITS, ())]
    folders = [each for each in folders if each.is_dir()]
    files = [each for each in inner if each.suffix in FILES and _SPLIT_FILE.match(each.name)]
    if not folders and not files and (path / "data").is_dir():  # as on the hub
        inner = [each for each in (path / "data").iterdir() if each.suffix in FILES]
        files = [each for each in inner if _SPLIT_FILE.match(each.name)]
    own = [each for each in folders if each.name.lower() in names]
    if own:
        return own[0], []
    listed = [each for each in files if _SPLIT_FILE.match(each.name)[1].lower() in names]  # type: ignore[index]
    if listed:
        return path, sorted(listed)
    there = sorted({each.name for each in (*folders, *files)})
    if not there and "train" in names:
        return path, []
    told = f"it has {some(there)}" if there else "all its samples are the split part 'train'"
    raise SplitError(
        f"{path} has no split part {split_part!r}: {told}; put files into a folder "
        f"{path / split_part}, or read a part of another one: split_part='train', "
        "subset={'range': ['90%', '100%']}"
    )


def _rows_of(path: Path, folder: Path, listed: list[Path], told: Told, notes: list[str]) -> _Rows:
    if folder.is_dir() and not listed:
        if exists(folder / "state.json") and exists(folder / "dataset_info.json"):
            return _table(ArrowSource(sorted(folder.glob("*.arrow"))), told, "saved dataset")
        if exists(folder / INDEX):
            return _table(MdsSource(folder, decode_images=False), told, "MDS")
        wrong: dict[str, str] = {}
        names = sorted(files_below(folder, [], wrong))
        if wrong:
            raise DatasetError(f"below {folder} cannot be read: {_some_of(wrong)}; let this user")
        media = [name for name in names if kind_by_name(name) is not None]
        if media:
            return _media_files(folder, names, media, notes)
        listed = [folder / name for name in names if name.endswith((".parquet", ".arrow"))]
        listed = listed or [folder / name for name in names if name.endswith(FILES)]
        if not listed:
            found = Counter(posixpath.splitext(name)[1] for name in names)
            there = ", ".join(f"{n} {kind or 'others'}" for kind, n in found.most_common(5))
            raise NotPreparedError(
                f"{path} is not a prepared dataset: it has no {META_FOLDER}/.info.json; and it has "
                f"no {_READ}: its files are {there or 'none'}. A folder of shards is prepared "
                f"with: energize prepare {path}"
            )
    files = listed or [folder]
    suffix = files[0].suffix
    if suffix == ".json":
        return _table(_of_arrays(files), told, "JSON")
    kinds: Mapping[str, Callable[[Any], ShardedSource[Row]]] = {
        ".jsonl": JsonSource,
        ".parquet": ParquetSource,
        ".arrow": ArrowSource,
    }
    files = [each for each in files if each.suffix == suffix]
    return _table(kinds[suffix](files), told, suffix[1:].upper())


def _of_arrays(files: Sequence[Path]) -> ShardedSource[Row]:
    """Return the rows of files that are an array each, or lines."""
    source = JsonSource(files)
    parsed = {file.name: rows for file, rows in zip(files, source._lines, strict=True)}
    if not all(isinstance(rows, list) for rows in parsed.values()):
        return source
    odd = [name for name, rows in parsed.items() if not all(isinstance(r, dict) for r in rows)]
    if odd:
        raise DatasetError(f"{odd[0]}: expected a list of objects")
    return MemoryRows((name, 0, row) for name, rows in parsed.items() for row in rows)


# Folders of images, videos and sounds.


def _media_files(root: Path, names: list[str], media: list[str], notes: list[str]) -> _Rows:
    tables = [name for name in names if posixpath.basename(name) in _METADATA]
    beside: dict[str, list[str]] = {}
    for name in names:
        stem, suffix = posixpath.splitext(name)
        if suffix in _BESIDE:
            beside.setdefault(stem, []).append(name)
    parents = [posixpath.dirname(name) for name in media]
    labels = sorted({posixpath.basename(each) for each in parents})
    flat = len({each.count("/") for each in parents}) == 1 and "" not in parents
    keys = _Keys()
    if tables:
        return _described(root, tables, media, notes)
    if any(posixpath.splitext(name)[0] in beside for name in media):
        rows, what = list(_captioned(root, media, beside, keys, notes)), "files beside them"
    elif flat and len(labels) > 1:
        what = f"{len(labels)} folders of classes"
        numbers = {label: number for number, label in enumerate(labels)}
        named = zip(media, (posixpath.basename(each) for each in parents), strict=True)
        rows = [{"file_name": m, "label": numbers[n], "label_name": n} for m, n in named]
    else:
        rows, what = [{"file_name": name} for name in media], "no captions"
    columns = dict.fromkeys(("file_name", "txt", "json"), ("", False))
    lines = (("", 0, {KEY: keys.of(row["file_name"]), **row}) for row in rows)
    parts = {"file_name": _extensions("", media)}
    return _Rows(_memory(lines, root, notes), columns, parts, f"{_kinds(media)} with {what}")


class _Keys:
    """Keys of samples, each once."""

    def __init__(self) -> None:
        self._given = Counter[str]()

    def of(self, name: str) -> str:
        """Return a key for a file of this name; a second one is told from the first."""
        key = key_of(name)
        self._given[key] += 1
        while self._given[key] > 1:
            key = f"{key}~{self._given[key]}"
            self._given[key] += 1
        return key


def _captioned(
    root: Path, media: list[str], beside: dict[str, list[str]], keys: _Keys, notes: list[str]
) -> Iterator[Row]:
    """Yield a row for each image that has a text, or else a `.json`, beside it."""
    wanted = next(
        s for s in _BESIDE for each in beside.values() if any(n.endswith(s) for n in each)
    )
    stems: dict[str, str] = {}
    without = []
    for name in media:
        stem = posixpath.splitext(name)[0]
        own = {posixpath.splitext(each)[1][1:]: each for each in beside.get(stem, ())}
        if own and stem in stems:
            raise DatasetError(
                f"{root}: {stems[stem]} and {name} are two images under one name, and nobody knows "
                f"which of them {next(iter(own.values()))} is of; rename one, with its text"
            )
        stems[stem] = name
        if wanted[1:] in own:
            yield {"file_name": name, **own}
        else:
            without.append(name)
    lost = [each for stem, found in beside.items() if stem not in stems for each in found]
    _note(notes, without, f"left out, images without {wanted} beside them")
    _note(notes, lost, "left out, captions without an image beside them")


def _described(root: Path, tables: list[str], media: list[str], notes: list[str]) -> _Rows:
    """Return the rows of metadata files, with names of files from `root` on."""
    folders = Counter(map(posixpath.dirname, tables))
    twice = [folder for folder, count in folders.items() if count > 1]
    if twice:
        both = [each for each in tables if posixpath.dirname(each) == twice[0]]
        raise DatasetError(f"{root}: {' and '.join(both)} describe one folder; remove one")
    there, used, keys = set(media), set[str](), _Keys()
    absent: list[str] = []
    repeated: list[str] = []
    columns: dict[str, None] = {}

    def rows() -> Iterator[tuple[str, int, Row]]:
        for table in tables:
            found = _rows_in(root / table)
            named = _file_columns(root / table, [row for _, row in found])
            columns.update(dict.fromkeys(named))
            for line, row in found:
                place, missing = f"{table}, line {line}", ""
                for column in named:
                    value = row.get(column)
                    given = value if isinstance(value, list) else [value]
                    paths = [_below(table, each) for each in given if each]
                    missing = missing or next((each for each in paths if each not in there), "")
                    used.update(paths)
                    row[column] = paths if isinstance(value, list) else "".join(paths[:1])
                first = row[named[0]]
                name = first[0] if isinstance(first, list) and first else first
                if missing or not name:
                    absent.append(f"{missing or 'no file'} ({place})")
                    continue
                key = keys.of(name)
                if key != key_of(name):
                    repeated.append(f"{name} ({place})")
                yield table, line, {KEY: key, **row}

    found = _memory(rows(), root, notes, absent)
    _note(notes, absent, "left out, rows whose file is not there")
    _note(notes, repeated, "each row is a sample, also of those that name a file again")
    _note(notes, sorted(there - used), "left out, images without a row")
    listed, parts = _media_of(columns, found, media)
    return _Rows(found, listed, parts, f"{_kinds(media)} with {some(tables)}")


def _media_of(
    columns: Iterable[str], rows: ShardedSource[Row], media: list[str]
) -> tuple[dict[str, tuple[str, bool]], dict[str, str]]:
    """Return how the parts of columns of files are called, and where these are read from."""
    first = [row for row in rows.read(np.arange(min(_LOOKED_AT, rows.count))) if row]
    several = {c for c in columns if any(isinstance(row.get(c), list) for row in first)}  # type: ignore[union-attr]
    alone = len(list(columns)) == 1 and not several
    listed, parts = {}, {}
    for column in columns:
        named = _FILE_COLUMN.fullmatch(column)
        called = (named[1] or ("images" if column in several else "")) if named else column
        prefix = "" if alone or not called else f"{called}."
        listed[column] = prefix, column in several
        parts[column] = f"{prefix}*" if column in several else _extensions(prefix, media)
    return listed, parts


def _below(table: str, name: Any) -> str:
    """Return the name, from the root on, of a file that a table names from its own folder on."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(table), str(name)))


def _file_columns(path: Path, rows: list[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows[:_LOOKED_AT] for name in row))
    found = [name for name in names if _FILE_COLUMN.fullmatch(name)] or _looking_like(rows, names)
    if not found:
        raise DatasetError(
            f"{path} has no column file_name, and none of names of images"
            f"{nearest('file_name', names)}; it has {some(names) or 'no columns'}. A column "
            "file_name, or *_file_name, names the file of each row, from the folder of this one on"
        )
    return sorted(found, key=lambda name: name != "file_name")


def _looking_like(rows: Iterable[Row], names: Iterable[str]) -> list[str]:
    """Return the columns all of whose values are, or name, images, videos or sounds."""
    found = []
    for name in names:
        values = [row[name] for row in rows if row.get(name)]
        if values and all(map(is_media, values)):
            found.append(name)
    return found


def _rows_in(path: Path) -> list[tuple[int, Row]]:
    """Return the rows of a metadata file, each with its line."""
    if path.suffix == ".parquet":
        rows = ParquetSource([path])
        return [(number + 1, row) for number, row in enumerate(rows.read(np.arange(rows.count)))]  # type: ignore[misc]
    if path.suffix == ".jsonl":
        source = JsonSource([path])
        found = source.read(np.arange(source.count))
        bad = next((row for row in found if isinstance(row, Failed)), None)
        if bad is not None:
            raise DatasetError(f"{bad.where}: {bad.reason}")
        lines = source._lines[0]
        numbers = lines[:, 2].tolist() if isinstance(lines, np.ndarray) else range(len(lines))
        return list(zip(numbers, found, strict=True))  # type: ignore[arg-type]
    return _csv_rows(path)


def _csv_rows(path: Path) -> list[tuple[int, Row]]:
    try:
        text = read_file(path).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows: list[tuple[int, Row]] = [(reader.line_num, row) for row in reader]
    except (csv.Error, UnicodeDecodeError) as reason:
        raise DatasetError(f"{path} is no CSV file in UTF-8: {reason}") from reason
    for line, row in rows:
        if None in row or None in row.values():
            names = ", ".join(reader.fieldnames or ())
            raise DatasetError(
                f"{path}, line {line}: a row has a value for each of {names}; put quotes around "
                "one that has a comma in it"
            )
    for name in reader.fieldnames or ():
        values = [row[name] for _, row in rows]
        for kind in (int, float):
            try:
                numbers = [None if value == "" else kind(value) for value in values]
            except ValueError:
                continue
            pairs = zip(values, numbers, strict=True)
            if kind is int and not all(value in ("", str(number)) for value, number in pairs):
                break  # what has zeros before it is a name
            for (_, row), number in zip(rows, numbers, strict=True):
                row[name] = number
            break
    return rows


def _memory(
    rows: Iterable[tuple[str, int, Row]], root: Path, notes: list[str], absent: Sequence[str] = ()
) -> MemoryRows:
    made = MemoryRows(rows)
    if not made.count:
        raise DatasetError(f"{root}: no sample is left: {'; '.join(notes) or _some_of(absent)}")
    return made


def _note(notes: list[str], names: Sequence[str], what: str) -> None:
    if names:
        notes.append(f"{what} ({len(names):,}): {_some_of(names)}")


def _some_of(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")


def _kinds(media: list[str]) -> str:
    found = sorted({str(kind_by_name(name)) for name in media[:: max(1, len(media) // 1000)]})
    return " and ".join("videos or sounds" if each == "av" else "images" for each in found)


def _extensions(prefix: str, names: Iterable[str]) -> str:
    found = {posixpath.splitext(name)[1][1:].lower() for name in names}
    return ",".join(f"{prefix}{each}" for each in sorted(found))


# Rows of files, of which few are looked at.


def _table(rows: ShardedSource[Row], told: Told, what: str) -> _Rows:
    """Return rows whose columns of files are those that the first rows show."""
    if not rows.count:
        raise DatasetError(f"{rows.location}: there is no row to read")
    looked = rows.read(np.arange(min(_LOOKED_AT, rows.count)))
    first = [row for row in looked if not isinstance(row, Failed)]
    names = list(dict.fromkeys(name for row in first for name in row))
    columns = _looking_like(first, names)
    moving = [name for name in columns if any(map(_moves, names_in(first, [name])))]
    if _TURNS & set(names) or _type_name(told) == "ConversationSample":
        listed = dict.fromkeys(("image", "images"), ("images.", True))
        listed |= dict.fromkeys(("video", "videos"), ("videos.", True))
        listed |= dict.fromkeys(columns, ("images.", True))
        listed |= dict.fromkeys(moving, ("videos.", True))
        parts = {name: f"{listed[name][0]}*" for name in columns}
        return _Rows(rows, listed, parts, what)
    usual = [f".{each}" for each in (AV_EXTENSIONS if moving else USUAL_IMAGES)]
    return _Rows(rows, *_media_of(columns, rows, usual), what)


def _moves(value: Any) -> bool:
    """Return whether a value is, or names, a video or a sound."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    kind = kind_by_start(value[:64]) if isinstance(value, bytes) else None
    return (kind_by_name(value) if isinstance(value, str) else kind) == "av"


def _check_there(source: LooseSource, told: Told) -> None:
    """Raise `DatasetNotFoundError` unless one of the files of the first rows is there."""
    if isinstance(source.rows, MemoryRows) and source.media.keys() == {"file_name", "txt", "json"}:
        return
    rows = source.rows.read(np.arange(min(_LOOKED_AT, source.rows.count)))
    named = [each for each in names_in(rows, source.media) if isinstance(each, str) and each]
    if named and not any(exists(source._path(name)) for name in named):
        raise DatasetNotFoundError(
            f"{source.path} names {named[0]!r}, and there is no {source._path(named[0])}, nor any "
            "other file of its first rows: say in which folder they are, image_folder=..."
        )


# Of which type samples are.


@dataclass
class _Looked:
    parts: tuple[str, ...]
    json_keys: tuple[str, ...]


def _type_name(told: Told) -> str | None:
    kind = told.sample_type
    return kind.__name__ if isinstance(kind, type) else None if kind is None else kind[1]


def _config(source: LooseSource, found: _Rows, told: Told) -> DatasetConfig:
    """Return type and field map: as told, and else as the first samples look."""
    raw = next((each for each in source.read(np.arange(1)) if not isinstance(each, Failed)), {})
    content = load_json(raw["json"]) if "json" in raw else {}
    keys = tuple(content) if isinstance(content, dict) else ()
    keys += tuple(name for name in source.column_names if name not in (*keys, *found.media))
    listed = [each for text in found.parts.values() for each in text.split(",")]
    listed += [f"{prefix}*" for prefix, counted in found.media.values() if counted]
    parts = tuple(dict.fromkeys([*listed, *(each for each in raw if not each.startswith("__"))]))
    columns = {name: f"json[{name}]" for name in keys} | dict(found.parts)
    columns = {name: text for name, text in columns.items() if name in keys or name in found.parts}
    look, name = _Looked(parts, keys), _type_name(told)
    given = {f: _translated(source, t, columns, parts) for f, t in (told.field_map or {}).items()}
    chosen = name or _fitting(given, look)
    module = told.sample_type[0] if isinstance(told.sample_type, tuple) else "energize"
    if isinstance(told.sample_type, type):
        module = told.sample_type.__module__
    kind = told.sample_type if isinstance(told.sample_type, type) else SAMPLE_TYPES.get(chosen)
    if kind is None or chosen in (CRUDE, "CrudeSample"):
        if kind is not None and given:
            raise ConfigError(f"{source.path}: samples without a type have no field_map")
        field_map: dict[str, str] | None = given or None
    else:
        usual = propose_field_map(chosen, look) if chosen in SAMPLE_TYPES else {}
        field_map = {**usual, **given}
        lacking = [each for each in required_fields(kind) if each not in (*field_map, *METADATA)]
        if lacking:
            raise ConfigError(
                f"{source.path}: nothing says what the {lacking[0]!r} of a {chosen} is; it has the "
                f"columns {some(columns)}: field_map={{{lacking[0]!r}: ...}}, or another "
                "sample_type"
            )
        check_field_map(kind, field_map)
    shown = {text: column for column, text in columns.items()}
    fields = {name: shown.get(text, text) for name, text in (field_map or {}).items()}
    listing = ", ".join(f"{name}={text}" for name, text in fields.items())
    text = f"{source.count:,} samples of {found.what} as {chosen}({listing})"
    if name is None:
        text += f"; columns: {some(columns)}. To change it: sample_type={chosen!r}"
        text += f", field_map={fields!r}" if fields else ""
    level = logging.WARNING if name is None else logging.INFO
    said_once(str(source.path), text, text, level)
    return DatasetConfig(module, CRUDE if chosen == "CrudeSample" else chosen, field_map)


def _fitting(given: Mapping[str, str], look: _Looked) -> str:
    """Return the usual type that has the fields that are given."""
    guess = propose_sample_type(look)
    names = [guess, *(name for name in SAMPLE_TYPES if name != guess)]
    for name in names if given else ():
        kind = SAMPLE_TYPES[name]
        if name in (CRUDE, "CrudeSample") or not given.keys() <= set(type_fields(kind)):
            continue
        if set(required_fields(kind)) - METADATA <= {*given, *propose_field_map(name, look)}:
            return name
    return guess


def _translated(
    source: LooseSource, text: str, columns: Mapping[str, str], parts: Sequence[str]
) -> str:
    """Return a description in which columns are the parts that they are in."""
    options = []
    for access in parse_field(text):
        keys = "".join(f"[{key}]" for key in access.keys)
        options.append(f"{columns[access.part]}{keys}" if access.part in columns else str(access))
        if access.part in columns or access.among([*parts, "json"]):
            continue
        raise ConfigError(
            f"{source.path} has no column {access.part!r}{nearest(access.part, list(columns))}; it "
            f"has {some(columns)}"
        )
    return ",".join(options)
