"""Split parts that a column of rows states, such as `split`, `Usage` or `is_train`."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from energize.core.failures import Failed
from energize.core.progress import counted
from energize.data.media import media_name
from energize.data.rows import ArrowSource, ParquetSource
from energize.data.tables import values_in
from energize.errors import ConfigError, EnergizeError, SplitError, nearest, some
from energize.inference.columns import ColumnProfile
from energize.inference.inventory import Inventory
from energize.inference.kinds import choose
from energize.inference.options import DataOptions
from energize.inference.previews import TablePreview
from energize.inference.references import MediaIndex
from energize.inference.splits import SplitAssignment
from energize.inference.words import (
    FLAG_COLUMNS,
    NUMBERED_SPLIT_COLUMNS,
    PARTS,
    SPLIT_COLUMNS,
    canonical_part,
    is_part_word,
    nearly_part,
    parts_in,
    plain_name,
    qualifiers,
    truth_of,
)

_MOST_VALUES = 12
"""Number of values up to which a column of numbers may state split parts."""

_SHOWN = 6
_MOST_TABLES = 20  # tables in a folder; more are files of samples


class TableScene(Protocol):
    """The members of `energize.inference.scene.Scene` for comparing tables."""

    @property
    def path(self) -> Path:
        """The path that is opened."""

    @property
    def options(self) -> DataOptions:
        """The options of the entry."""

    @property
    def root(self) -> Path:
        """The folder in which names of files begin."""

    @property
    def base(self) -> Path:
        """The folder in which names of files in rows begin."""

    @property
    def inventory(self) -> Inventory:
        """The files of the folder."""

    @property
    def index(self) -> MediaIndex:
        """The media that names in rows may mean."""

    def look(self, files: Sequence[str]) -> TablePreview | EnergizeError:
        """Return the preview of the table in some files, or why it cannot be read."""


@dataclass(frozen=True)
class RowParts:
    """The split part of every row, as a column states it.

    Attributes:
        column: Name of the column.
        of_row: Part of each row; an empty text for a row without a value.
        notes: Values that may be misspelled, and rows without a value.
    """

    column: str
    of_row: Sequence[str]
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows of each part."""
        return {part: count for part, count in Counter(self.of_row).items() if part}

    @property
    def splits(self) -> SplitAssignment:
        """The parts by name, without files."""
        return SplitAssignment(dict.fromkeys(self.counts, ()))


def state_parts(
    scene: TableScene, rows: Any, columns: Mapping[str, ColumnProfile]
) -> RowParts | None:
    """Return the split part of each row, None if no column states it.

    Args:
        scene: Scene of the table.
        rows: Its rows.
        columns: Its columns.

    Returns:
        The parts by row.

    Raises:
        SplitError: If a column is named like one of split parts, but its numbers or
            words are ambiguous.
        ConfigError: If `split_by` does not fit the column.
    """
    if scene.options.split_by is not None:
        return _parts_by_mapping(scene, rows, columns)
    unclear: dict[str, Counter[str]] = {}
    held_out: list[RowParts] = []
    for name, column in columns.items():
        if not _may_state(column):
            continue
        texts = [*map(_text_of, _column_values(rows, name))]
        counts = Counter(texts)
        meaning = _meaning(name, [value for value in counts if value])
        if meaning:
            parts = [meaning.get(text, "") for text in texts]
            stated = RowParts(name, parts, _notes(name, counts, meaning))
            if FLAG_COLUMNS.get(plain_name(name), ("train",))[0] == "train":
                return stated
            held_out.append(stated)
        if meaning is None and len(counts) > 1:
            unclear[name] = counts
    if held_out:
        return _merged_flags(held_out)
    for name, counts in unclear.items():
        raise SplitError(_unclear(scene, name, counts))
    return None


def _merged_flags(columns: Sequence[RowParts]) -> RowParts:
    """Return the held-out part that any column states for a row, or else "train"."""
    rows = zip(*(column.of_row for column in columns), strict=True)
    merged = [
        next((part for part in parts if part != "train"), "train") for parts in rows
    ]
    return replace(columns[0], of_row=merged)


def _parts_by_mapping(
    scene: TableScene, rows: Any, columns: Mapping[str, ColumnProfile]
) -> RowParts | None:
    """Return the part of each row by the stated mapping."""
    split_by = scene.options.split_by
    if not split_by:
        return None
    if len(split_by) > 1:
        raise ConfigError(
            f"{scene.path}: split_by must have one column, got {len(split_by)}"
        )
    name, part_of_value = next(iter(split_by.items()))
    if name not in columns:
        raise ConfigError(
            f"{scene.path}: split_by={name!r} is not a column of the rows"
            f"{nearest(name, [*columns]) or '.'} The columns are {some(columns)}"
        )
    meaning = {
        _text_of(value): canonical_part(part) for value, part in part_of_value.items()
    }
    texts = [*map(_text_of, _column_values(rows, name))]
    missing = Counter(text for text in texts if text not in meaning)
    if missing:
        raise ConfigError(
            f"{scene.path}: split_by has no split part for these values of {name!r}: "
            f"{_listed(missing)}. Write the part of each value"
        )
    return RowParts(name, [meaning[text] for text in texts])


def _column_values(rows: Any, name: str) -> list[Any]:
    """Return the value of each row; None for rows that cannot be read."""
    if isinstance(rows, ParquetSource | ArrowSource):
        return [*rows.column_values(name)]
    values: list[Any] = []
    for shard, count in enumerate(rows.counts):
        for row in rows.read_shard(shard, [*range(count)]):
            values.append(None if isinstance(row, Failed) else row.get(name))
    return values


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _may_state(column: ColumnProfile) -> bool:
    """Return whether a column has the name and the first values of split parts."""
    plain = plain_name(column.name)
    if column.is_nested or column.form not in ("text", "number", "flag", "mixed"):
        return False
    values = {_text_of(value) for value in column.values}
    if plain in FLAG_COLUMNS:
        return all(truth_of(value) is not None for value in values)
    if plain not in SPLIT_COLUMNS:
        return False
    few = plain in NUMBERED_SPLIT_COLUMNS and len(values) <= _MOST_VALUES
    return few or any(parts_in(value) for value in values)


def _meaning(name: str, values: Sequence[str]) -> dict[str, str] | None:
    """Return the part of each value.

    Empty if no value is held out, None if the values are unclear.
    """
    flag = FLAG_COLUMNS.get(plain_name(name))
    if flag is not None:
        return _meaning_of_flags(flag, values)
    by_part: dict[str, list[str]] = {}
    for value in values:
        parts = parts_in(value)
        if len(parts) == 1:
            by_part.setdefault(parts[0], []).append(value)
    if not by_part:
        return None if _is_unclear(name, values) else {}
    meaning = {value: value for value in values}
    for part, synonyms in by_part.items():
        exact = synonyms
        if len(synonyms) > 1:
            exact = [value for value in synonyms if is_part_word(value)]
        meaning |= dict.fromkeys(exact, part)
    return meaning if {*meaning.values()} != {"train"} else {}


def _meaning_of_flags(parts: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return the part of each truth value, nothing if a value is not one.

    Args:
        parts: The part of true values, and that of false values.
        values: All values of the column.
    """
    truths = {value: truth_of(value) for value in values}
    meaning = {value: parts[not truth] for value, truth in truths.items()}
    is_certain = None not in truths.values()
    return meaning if is_certain and {*meaning.values()} != {"train"} else {}


def _is_unclear(name: str, values: Sequence[str]) -> bool:
    """Return whether values may state split parts by numbers or unusual words."""
    plain = plain_name(name)
    if plain not in NUMBERED_SPLIT_COLUMNS or len(values) > _MOST_VALUES:
        return False
    are_numbers = all(value.lstrip("-").isdigit() for value in values)
    return are_numbers or plain not in ("set", "subset")


def _notes(
    name: str, counts: Counter[str], meaning: Mapping[str, str]
) -> tuple[str, ...]:
    """Return notes on values that nearly name a part, and on rows without a value."""
    near = {}
    for value, part in meaning.items():
        like = nearly_part(value)
        is_usual = part != value or part in PARTS
        is_held_out = like != "train" and parts_in(value) != []
        if like is not None and not is_usual and not is_held_out:
            near[value] = like
    notes = []
    if near:
        seen = ", ".join(
            f"{value!r} ({counted(counts[value], 'row')}, nearly {like!r})"
            for value, like in near.items()
        )
        notes.append(
            f"values in {name!r} that are read as split parts of their own: {seen}. "
            f"Write split_part: {next(iter(near))!r} to read one, or the correct part: "
            f"split_by: {json.dumps({name: {**meaning, **near}})}"
        )
    if counts[""]:
        rows = counted(counts[""], "row")
        notes.append(
            f"{rows} left out, which have no value in {name!r}. Write the part of each"
        )
    return tuple(notes)


def _unclear(scene: TableScene, name: str, counts: Counter[str]) -> str:
    values = sorted(
        (value for value in counts if value), key=lambda value: (len(value), value)
    )
    last = {3: ("train", "val", "test"), 2: ("train", "test")}
    parts = last.get(len(values), ("train",) * (len(values) - 1) + ("val",))
    example = json.dumps({name: dict(zip(values, parts, strict=True))})
    ordered = {value: counts[value] for value in values}
    return (
        f"{scene.path}: the column {name!r} may be the split part of each row, but the "
        f"parts of its values are unknown: {_listed(ordered)}. Write the part of each "
        f"value, for example split_by: {example}, or split_by: {{}} to read all rows "
        "as one part"
    )


def _listed(counts: Mapping[str, int]) -> str:
    shown = [f"{value} ({counted(count, 'row')})" for value, count in counts.items()]
    more = ", ..." if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


# Rows and folders.


def parts_by_rows(scene: TableScene, splits: SplitAssignment) -> SplitAssignment:
    """Return the split parts of media, by tables if these are more specific than
    folders.

    A column of split parts overrides names of folders. A table without one is divided
    by folders only if every row names media of one split part.

    Args:
        scene: The scene.
        splits: Split parts by names of folders and files.

    Returns:
        The split parts.

    Raises:
        SplitError: If `state_parts` raises it.
    """
    if not scene.inventory.media or scene.inventory.of_kind("tar"):
        return splits
    kinds = {
        scene.inventory.kinds[name] for names in splits.parts.values() for name in names
    }
    if kinds & {"table", "shard"}:
        return splits
    for look in _looks_above(scene, splits):
        stated = state_parts(scene, look.rows, look.columns)
        if stated is not None:
            return _by_column(scene, splits, look, stated)
        if splits.parts and scene.base == scene.root:
            splits = _undivided(scene, splits, look)
    return splits


def _looks_above(scene: TableScene, splits: SplitAssignment) -> list[TablePreview]:
    """Return the tables outside of all split parts with rows that name media."""
    groups: dict[Any, list[str]] = {}
    for name in splits.shared:
        stem, suffix = posixpath.splitext(name)
        if scene.inventory.kinds[name] != "table" or stem in scene.inventory.stems:
            continue
        words = qualifiers(posixpath.basename(stem))
        key = posixpath.dirname(name), suffix.lower(), words
        groups.setdefault(key, []).append(name)
    counts = Counter(folder for folder, *_ in groups)
    looks = [
        scene.look(names)
        for (folder, *_), names in groups.items()
        if counts[folder] <= _MOST_TABLES
    ]
    return [
        look for look in looks if not isinstance(look, Exception) and _names_media(look)
    ]


def _names_media(look: TablePreview) -> bool:
    return any(column.paths for column in look.media)


def _media_of_rows(
    scene: TableScene, look: TablePreview
) -> Iterable[tuple[bool, list[str]]]:
    """Yield for each row whether it names media, and the files that it names."""
    columns = [column.name for column in look.media if column.paths]
    below = posixpath.dirname(look.files[0])
    for row in look.rows:
        values: list[Any] = []
        if not isinstance(row, Failed):
            values = [value for name in columns for value in values_in(row, name)]
        names = (media_name(value) or str(value) for value in values)
        matches = (scene.index.find(name, below)[1] for name in names)
        yield bool(values), [paths[0] for paths in matches if len(paths) == 1]


def _by_column(
    scene: TableScene, splits: SplitAssignment, look: TablePreview, stated: RowParts
) -> SplitAssignment:
    """Return the parts that rows state: of rows, or of media if rows have no more
    content.
    """
    media_by_part, conflicts = _compared(scene, splits, look, stated)
    notes = tuple(
        f"{counted(count, 'row')} of {look.files[0]} have {part!r} in "
        f"{stated.column!r} and name media in folders of {folder!r}: the rows decide"
        for (part, folder), count in conflicts.items()
    )
    whole = SplitAssignment(
        shared=tuple(scene.inventory.kinds), folders=splits.folders, notes=notes
    )
    if _has_content(look, stated.column) or scene.base != scene.root:
        return whole
    parts = {
        part: tuple(dict.fromkeys(names))
        for part, names in media_by_part.items()
        if part
    }
    used = {*look.files, *chain.from_iterable(parts.values())}
    return replace(
        whole,
        parts=parts,
        shared=tuple(name for name in scene.inventory.kinds if name not in used),
        lists=look.files,
        notes=(*notes, *stated.notes),
    )


def _compared(
    scene: TableScene, splits: SplitAssignment, look: TablePreview, stated: RowParts
) -> tuple[dict[str, list[str]], Counter[tuple[str, str]]]:
    """Return the media of the rows of each part, and the conflicts with folders.

    A conflict is the part of a row and the part of the folder of its media.
    """
    part_of_file = {
        name: part for part, names in splits.parts.items() for name in names
    }
    media: dict[str, list[str]] = {}
    conflicts: Counter[tuple[str, str]] = Counter()
    rows = zip(stated.of_row, _media_of_rows(scene, look), strict=True)
    for part, (_, paths) in rows:
        media.setdefault(part, []).extend(paths)
        folders = (part_of_file[path] for path in paths if path in part_of_file)
        folder = next(folders, part)
        if part and folder != part:
            conflicts[part, folder] += 1
    return media, conflicts


def _has_content(look: TablePreview, column: str) -> bool:
    """Return whether a table has more than names of media and split parts."""
    if choose(look.columns, look.first).sample_type not in (
        "CrudeSample",
        "ImageSample",
    ):
        return True
    rest = (
        profile
        for profile in look.columns.values()
        if profile.name != column and not profile.is_media
    )
    return any(profile.has_content and profile.form != "number" for profile in rest)


def _undivided(
    scene: TableScene, splits: SplitAssignment, look: TablePreview
) -> SplitAssignment:
    """Return split parts that omit no row of a table."""
    part_of_file = {
        name: part for part, names in splits.parts.items() for name in names
    }
    rows, outside = _counts_of_rows(scene, look, part_of_file)
    if not outside or not rows:
        return splits
    title = look.files[0]
    count = counted(outside.total(), "row")
    outer = ", ".join([*outside][:3])
    if splits.lists:
        note = f"{count} of {title} left out, whose media are in no split part: {outer}"
        return replace(splits, notes=(*splits.notes, note))
    media = {*scene.inventory.media}
    in_parts = (name for name in part_of_file if name in media)
    folders = sorted({_part_folder(name, splits) for name in in_parts})
    is_held_out = bool(rows.keys() - {"train"})
    if is_held_out and _are_siblings(title, folders, outside):
        doubt = (
            f"rows of {title} name media in {', '.join(folders)}, which may be split "
            f"parts, and {count} in none of them: {outer}. Write files: ['**'] to read "
            "all rows as one part, or give the rows a column 'split' with the part of "
            "each"
        )
        return replace(splits, doubt=doubt)
    if splits.doubt and is_held_out:
        return splits
    note = (
        f"{title} names media in and outside of {', '.join(folders)}, so these folders "
        "are no split parts and all its rows are one part"
    )
    return SplitAssignment(
        shared=tuple(scene.inventory.kinds),
        folders=splits.folders,
        notes=(*splits.notes, note),
    )


def _counts_of_rows(
    scene: TableScene, look: TablePreview, part_of_file: Mapping[str, str]
) -> tuple[Counter[str], Counter[str]]:
    """Count the rows of each split part, and by folder the rows of no single part."""
    rows: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for has_names, paths in _media_of_rows(scene, look):
        parts = {part_of_file.get(path, "") for path in paths}
        if len(parts) == 1 and parts != {""}:
            rows[parts.pop()] += 1
        elif paths or not has_names:
            strays = (
                posixpath.dirname(path) for path in paths if path not in part_of_file
            )
            outside[next(strays, "several parts" if paths else "no file")] += 1
    return rows, outside


def _part_folder(name: str, splits: SplitAssignment) -> str:
    """Return the folder of a split part that a file is in."""
    pieces = posixpath.dirname(name).split("/")
    marked = (n for n, piece in enumerate(pieces, 1) if piece in splits.folders)
    return "/".join(pieces[: next(marked, len(pieces))])


def _are_siblings(table: str, folders: Sequence[str], outside: Iterable[str]) -> bool:
    """Return whether folders of parts are next to the table or to other folders."""
    around = {posixpath.dirname(folder) for folder in folders}
    if len(around) != 1:
        return False
    start = around.pop()
    return start == posixpath.dirname(table) or any(
        folder.startswith(f"{start}/") for folder in outside
    )
