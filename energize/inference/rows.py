"""The format of tables: files of rows, with media inside or next to them."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from energize.core.failures import Failed
from energize.core.progress import counted
from energize.data.files import joined
from energize.data.loose import fill
from energize.data.media import kind_by_name, media_name
from energize.data.rows import Row
from energize.data.tables import (
    AT,
    DELIMITED,
    KEY,
    MemoryRows,
    read_delimited,
    values_in,
)
from energize.errors import DatasetError, DatasetNotFoundError, EnergizeError
from energize.inference.candidates import (
    CERTAIN,
    FILE,
    KEYED,
    WEAK,
    Candidate,
    Reading,
    ReadingAccount,
    reading_of,
)
from energize.inference.columns import ColumnProfile, names_of, on_the_web
from energize.inference.inventory import MEDIA
from energize.inference.kinds import choose
from energize.inference.previews import TablePreview
from energize.inference.references import normal
from energize.inference.scene import Scene
from energize.inference.words import parts_in, qualifiers, why_no_class
from energize.task.field_maps import parse_field

_COUNTED_BYTES = 64 * 1024 * 1024
"""Size of tables up to which all rows are read for the files that they name."""

_FEW_PLACES = 3
"""Number of folders with equal files up to which the message lists them."""

_KEY_FORMS = ("text", "number")
"""Forms of columns that may be keys of rows, in addition to names of media."""


def tables(scene: Scene) -> list[Candidate]:
    """Return a candidate for each table: files of rows, of which each is a sample."""
    sidecars = {sidecar.name for sidecar in scene.sidecars}
    looks = [scene.look(group) for group in _table_groups(scene, sidecars)]
    looks += _tables_in_texts(scene, sidecars)
    readable = [look for look in looks if isinstance(look, TablePreview) and look.first]
    if not scene.is_folder and not readable:
        raise _no_rows(scene, looks)
    return [
        _candidate(scene, look) for look in _joined(scene, _merged(scene, readable))
    ]


def _table_groups(scene: Scene, sidecars: Collection[str]) -> list[list[str]]:
    """Return the files of tables, those of one folder and one name together."""
    groups: dict[Any, list[str]] = {}
    for name in scene.names("table"):
        if name not in sidecars:
            stem, suffix = posixpath.splitext(posixpath.basename(name))
            key = posixpath.dirname(name), suffix.lower(), qualifiers(stem)
            groups.setdefault(key, []).append(name)
    return [*groups.values()]


def _tables_in_texts(scene: Scene, sidecars: Collection[str]) -> Iterator[TablePreview]:
    """Yield the tables in text files with rows that name media."""
    if not scene.index.names:
        return
    for name in scene.names("text"):
        if name in sidecars or not scene.inventory.is_one_of_few(name):
            continue
        look = scene.look([name])
        if isinstance(look, TablePreview) and len(look.columns) > 1 and look.media:
            yield look


def _no_rows(
    scene: Scene, looks: Iterable[TablePreview | EnergizeError]
) -> EnergizeError:
    """Return why a file has no rows."""
    for look in looks:
        if isinstance(look, EnergizeError):
            return look
        for row in look.rows.read(np.arange(min(1, look.rows.count))):
            if isinstance(row, Failed):
                return DatasetError(f"{row.where}: {row.reason}")
    return DatasetError(f"{scene.path} has no row to read: it is empty")


# Which files are one table.


def _merged(scene: Scene, looks: Sequence[TablePreview]) -> list[TablePreview]:
    """Return previews with parts of one table merged."""
    merged: list[TablePreview] = []
    for look in looks:
        same = next(
            (n for n, other in enumerate(merged) if _are_one(scene, look, other)), None
        )
        if same is None:
            merged.append(look)
            continue
        both = scene.look([*merged[same].files, *look.files])
        if isinstance(both, EnergizeError):
            raise both
        merged[same] = both
    return merged


def _are_one(scene: Scene, one: TablePreview, other: TablePreview) -> bool:
    """Return whether two tables are parts of one: equal columns and different media."""
    suffixes = {
        posixpath.splitext(name)[1].lower() for name in (*one.files, *other.files)
    }
    if len(suffixes) > 1 or not _have_same_columns(scene, one, other):
        return False
    first_paths = {*_named_in(one)}
    second_paths = {*_named_in(other)}
    if first_paths or second_paths:
        return first_paths.isdisjoint(second_paths)
    folders = {posixpath.dirname(look.files[0]) for look in (one, other)}
    if len(folders) == 1:
        return not any(
            parts_in(posixpath.basename(look.files[0])) for look in (one, other)
        )
    return all(why_no_class(posixpath.basename(folder)) for folder in folders)


def _have_same_columns(scene: Scene, first: TablePreview, second: TablePreview) -> bool:
    """Return whether two tables have equal columns, or all fields of the user's map."""
    if first.names == second.names:
        return True
    field_map = scene.options.field_map
    if not field_map:
        return False
    options = [
        [access.part for access in parse_field(text)] for text in field_map.values()
    ]
    return all(
        not look.names.isdisjoint(parts)
        for parts in options
        for look in (first, second)
    )


def _named_in(look: TablePreview) -> Iterator[str]:
    """Yield the paths of media that the first rows of a table name."""
    for column in look.media:
        for value in values_in({"": [*column.values]}, "") if column.paths else ():
            for entry in value if isinstance(value, list) else [value]:
                yield fill(column.paths[0], media_name(entry) or str(entry))


def _joined(scene: Scene, looks: Sequence[TablePreview]) -> list[TablePreview]:
    """Return tables with two incomplete ones joined if they share a key."""
    if len(looks) != 2 or any(_is_whole(look) for look in looks):
        return [*looks]
    main, other = sorted(looks, key=lambda look: not look.media)
    for name in sorted(main.names & other.names):
        if not _share_keys(main.columns[name], other.columns[name]):
            continue
        by_key = _rows_by_key(_all_rows(scene, other), name)
        if by_key is None:
            continue
        rows = [
            {**by_key.get(str(row.get(name)), {}), **row}
            for row in _all_rows(scene, main)
        ]
        keyed = ({**row, KEY: f"{number:06d}"} for number, row in enumerate(rows))
        look = scene.look_at(MemoryRows(keyed), (*main.files, *other.files))
        if _is_whole(look):
            return [look]
    return [*looks]


def _share_keys(main: ColumnProfile, other: ColumnProfile) -> bool:
    """Return whether two columns have the same keys, unique in the first column."""
    if not _may_be_key(main) or not _may_be_key(other):
        return False
    keys = [str(value) for value in main.values]
    return len({*keys}) == len(keys) and {*keys} == {*map(str, other.values)}


def _rows_by_key(rows: Sequence[Row], name: str) -> dict[str, Row] | None:
    """Return rows by their keys in a column, None if keys repeat."""
    by_key = {str(row.get(name)): row for row in rows}
    return by_key if len(by_key) == len(rows) else None


def _may_be_key(column: ColumnProfile) -> bool:
    """Return whether every row of a column has a text, a number or a file name."""
    return not column.nullable and (column.form in _KEY_FORMS or bool(column.paths))


def _is_whole(look: TablePreview) -> bool:
    """Return whether rows make samples of more than an image."""
    return choose(look.columns, look.first).sample_type not in (
        "CrudeSample",
        "ImageSample",
    )


def _all_rows(scene: Scene, look: TablePreview) -> list[Row]:
    files = [scene.root / name for name in look.files]
    if files[0].suffix.lower() in DELIMITED:
        return read_delimited(files)
    rows: list[Row] = []
    for number, row in enumerate(look.rows):
        if isinstance(row, Failed):
            raise DatasetError(f"{row.where}: {row.reason}")
        rows.append(row if AT in row else {**row, AT: look.rows.where(number)})
    return rows


# What speaks for a table.


def _candidate(scene: Scene, look: TablePreview) -> Candidate:
    """Return the candidate of a table that names media, holds media, or has texts."""
    naming = [column for column in look.media if column.paths]
    media = scene.names(*MEDIA) if scene.is_folder else []
    title = ", ".join(look.files[:3])
    claims = dict.fromkeys(look.files, "table")
    problem: DatasetError | None = None
    files = [*look.files[:3]]
    if naming:
        strength = _strength_of_names(look, naming)
        argument = f"rows of {title} name media in {_names(naming)}"
        claims |= dict.fromkeys(media, f"named by {naming[0].name}")
        folders = dict.fromkeys(posixpath.dirname(name) for name in media)
        files += [posixpath.join(folder, "*") for folder in [*folders][:3]]
    elif look.media:
        strength = CERTAIN
        argument = f"rows of {title} hold media in {_names(look.media)}"
    else:
        strength = _strength_of_texts(look, media)
        argument = f"rows of {title} have no media"
        problem = _why_no_media(scene, look)
    read = partial(_read, scene, look, naming, media)
    override = f"files: {json.dumps(files)}"
    return Candidate("tables", strength, argument, claims, read, problem, override)


def _names(columns: Iterable[ColumnProfile]) -> str:
    return ", ".join(column.name for column in columns)


def _strength_of_texts(look: TablePreview, media: Sequence[str]) -> int:
    """Return the strength of a table without media."""
    is_short = 10 * len(media) > look.rows.count
    is_single = look.rows.count == 1 and look.files[0].endswith(".json")
    return WEAK if is_single or is_short else KEYED


def _strength_of_names(look: TablePreview, naming: Sequence[ColumnProfile]) -> int:
    """Return the strength of a table that names media."""
    has_content = any(
        column.has_content and column.form != "number"
        for column in look.columns.values()
    )
    if not has_content and not _is_whole(look):
        return WEAK
    paths = (path for column in naming for path in column.paths)
    return CERTAIN if all(path.endswith("{}") for path in paths) else KEYED


def _read(
    scene: Scene,
    look: TablePreview,
    naming: Sequence[ColumnProfile],
    media: Sequence[str],
) -> Reading:
    """Return the rows of a table, and the media that no row names."""
    if naming and _is_in_memory(scene, look):
        return _described(scene, look, naming, {*media})
    files = _named_files(scene, look, naming) if naming and media else None
    if files is None:
        return Reading(look.rows, look.first, look.columns)
    unnamed = [name for name in media if name not in files]
    account = ReadingAccount(
        left_out={"no row names it": unnamed} if unnamed else {},
        claims=dict.fromkeys(files, f"named by {naming[0].name}"),
    )
    return Reading(look.rows, look.first, look.columns, account=account)


def _why_no_media(scene: Scene, look: TablePreview) -> DatasetError | None:
    """Return the error for rows that name missing media, None if they name none."""
    for column in look.columns.values():
        names = names_of(column.values) if column.form in ("text", "texts") else []
        if names and all(kind_by_name(name) is not None for name in names):
            return DatasetNotFoundError(
                f"column {column.name!r} of {look.files[0]} names {names[0]!r}, but "
                f"{joined(scene.base, names[0])} is missing. "
                f"{_location_hint(scene, column.name, names)}"
            )
    web = on_the_web(look.columns)
    if web is None or scene.options.kind is not None:
        return None
    return DatasetError(
        f"the images or videos are on the web: column {web.name!r} has "
        f"{web.values[0]!r:.80}. Download them first, with img2dataset for example, or "
        "read the texts alone: sample_type: TextSample, field_map: {text: COLUMN}"
    )


def _location_hint(scene: Scene, column: str, names: Sequence[str]) -> str:
    """Return the lines to write for files that are not where rows name them."""
    _, paths = scene.index.find(names[0])
    folders = dict.fromkeys(posixpath.dirname(path) for path in paths)
    bases = [posixpath.basename(name) for name in names]
    lines = [
        f"media_path: '{posixpath.join(folder, f'{{{column}:name}}')}'"
        for folder in folders
        if all(posixpath.join(folder, base) in scene.index.paths for base in bases)
    ]
    if 0 < len(lines) <= _FEW_PLACES:
        count = counted(len(lines), "folder")
        return (
            f"Files of these names are in {count}. Write the correct one: "
            f"{' or '.join(lines)}"
        )
    return (
        "Write their folder: image_folder: FOLDER, or media_path: "
        f"'FOLDER/{{{column}:name}}' if other folders are named"
    )


def _is_in_memory(scene: Scene, look: TablePreview) -> bool:
    """Return whether all rows are read at once.

    This holds for delimited values and metadata, for a table above split parts, and for
    tables in several folders.
    """
    if not scene.is_folder or scene.base != scene.root:
        return False
    above = len(scene.splits.parts) > 1 and not {*look.files}.isdisjoint(
        scene.splits.shared
    )
    return (
        above
        or len({*map(posixpath.dirname, look.files)}) > 1
        or any(
            posixpath.splitext(name)[1].lower() in DELIMITED
            or posixpath.basename(name).startswith("metadata.")
            for name in look.files
        )
    )


def _named_files(
    scene: Scene, look: TablePreview, named: Sequence[ColumnProfile]
) -> dict[str, str] | None:
    """Return the files that rows name with their values, None for large tables.

    Raises:
        DatasetError: If values with different folders name one file.
    """
    if scene.base != scene.root:
        return None
    sizes = [(scene.root / name).stat().st_size for name in look.files]
    if sum(sizes) > _COUNTED_BYTES:
        return None
    files: dict[str, str] = {}
    for column, path, name in _paths_in_rows(scene, look, named):
        if _are_two(files.setdefault(path, name), name):
            raise DatasetError(
                f"column {column.name!r} of {look.files[0]} names {files[path]!r} and "
                f"{name!r}, but only {path} matches both. Add the missing file, or "
                f"write the location of files: media_path: 'FOLDER/{{{column.name}}}'"
            )
    return files


def _paths_in_rows(
    scene: Scene, look: TablePreview, columns: Sequence[ColumnProfile]
) -> Iterator[tuple[ColumnProfile, str, str]]:
    """Yield column, file and normal name of each value that names a file."""
    below = posixpath.dirname(look.files[0])
    for row in look.rows:
        if isinstance(row, Failed):
            continue
        for column in columns:
            for value in values_in(row, column.name):
                path = _path_of(scene, column, value, below)
                if path is not None:
                    yield column, path, normal(media_name(value) or str(value))


def _are_two(first: str, second: str) -> bool:
    """Return whether two paths differ in folders and neither ends with the other."""
    longer, shorter = (
        f"/{path}" for path in sorted((first, second), key=len, reverse=True)
    )
    return "/" in first and "/" in second and not longer.endswith(shorter)


def _described(
    scene: Scene, look: TablePreview, named: Sequence[ColumnProfile], media: set[str]
) -> Reading:
    """Return the rows with files in the folder, with names relative to the root."""
    columns = {
        column.name: column.name
        if all(path.endswith("{}") for path in column.paths)
        else FILE
        for column in named
    }
    is_above = not {*look.files}.isdisjoint(scene.splits.shared)
    # A table of a part names any file.
    usable = media if is_above else {*scene.inventory.media}
    located: list[Row] = []
    absent: list[str] = []
    is_elsewhere = False
    for row in _all_rows(scene, look):
        location = str(row[AT]).removeprefix(f"{scene.root}/")
        below = posixpath.dirname(location.partition(",")[0])
        files = _files_of_row(scene, row, named, below)
        paths = [*chain.from_iterable(files.values())]
        if paths and usable.issuperset(paths):
            values = _paths_by_column(row, files, columns)
            located.append({**row, **values, AT: location})
        elif paths and scene.inventory.kinds.keys() >= {*paths}:
            is_elsewhere = True
        else:
            missing = next((path for path in paths if path not in media), "no name")
            absent.append(f"{missing} ({location})")
    first = next(iter(columns.values()))
    if not located and is_elsewhere:  # the table has no row of this split part
        no_values = dict.fromkeys(look.names)
        located = [{**no_values, first: name} for name in sorted(media)]
    left_out = {"no row names it": sorted(media - _values_of(located, columns))}
    notes = _absent_notes(absent)
    return reading_of(scene, located, first, scene.names_below(""), left_out, notes)


def _values_of(rows: Iterable[Row], columns: Mapping[str, str]) -> set[Any]:
    """Return all values in the columns that `columns` maps to."""
    names = columns.values()
    return {value for row in rows for name in names for value in values_in(row, name)}


def _files_of_row(
    scene: Scene, row: Row, columns: Sequence[ColumnProfile], below: str
) -> dict[str, list[str]]:
    """Return the files that a row names, by column; names without a file are kept."""
    return {
        column.name: [
            _path_of(scene, column, value, below) or f"{value}"
            for value in values_in(row, column.name)
        ]
        for column in columns
    }


def _absent_notes(absent: Sequence[str]) -> list[str]:
    """Return a note on rows with files outside of the folder."""
    if not absent:
        return []
    shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
    lost = counted(len(absent), "row")
    return [f"{lost} left out, whose file is not in this folder: {shown}"]


def _paths_by_column(
    row: Row, files: Mapping[str, list[str]], columns: Mapping[str, str]
) -> Row:
    """Return the paths of a row in its columns, as lists if the row has lists."""
    return {
        columns[name]: paths if isinstance(row.get(name), list) else paths[0]
        for name, paths in files.items()
        if paths
    }


def _path_of(scene: Scene, column: ColumnProfile, value: Any, below: str) -> str | None:
    """Return the file in the folder that a value names, None if there is none."""
    name = media_name(value) or str(value)
    if scene.options.media.path is not None:
        return scene.index.paths.get(normal(fill(column.paths[0], name)))
    _, paths = scene.index.find(name, below)
    return paths[0] if len(paths) == 1 else None
