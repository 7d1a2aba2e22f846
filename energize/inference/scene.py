"""The files of one path, their split parts, and previews of the tables among them."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.failures import Failed
from energize.core.os_errors import is_url
from energize.core.validation import load_json
from energize.data.files import absolute, joined, path_of, path_type
from energize.data.loose import unfolded
from energize.data.media import kind_by_name
from energize.data.rows import JsonSource, ParquetSource, Row
from energize.data.source import ShardedSource
from energize.data.tables import is_table, open_table
from energize.errors import ConfigError, DatasetError, EnergizeError
from energize.inference.columns import (
    AV,
    IMAGE,
    ColumnProfile,
    Named,
    NameLook,
    columns_of,
    names_of,
)
from energize.inference.inventory import MEDIA, Inventory, kind_inside, take_inventory
from energize.inference.options import DataOptions
from energize.inference.previews import TablePreview
from energize.inference.references import (
    EXACT,
    NUMBER,
    STEM,
    MediaIndex,
    normal,
    template_of,
)
from energize.inference.row_parts import parts_by_rows
from energize.inference.sidecars import KINDS as SIDECARS
from energize.inference.sidecars import SidecarFile, find_sidecars
from energize.inference.splits import SplitAssignment, find_splits, matches
from energize.inference.words import is_part_word, parts_in, words_of

_COMPETING_KINDS = {
    **{kind: {*MEDIA} for kind in MEDIA},
    **{kind: {kind} for kind in ("table", "tar", "shard")},
}

FIRST = 20
"""Number of first rows in a preview of a table."""

SPREAD = 44
"""Number of rows from the rest of the table in a preview."""

_NAMES_TRIED = 8
_SHARED = (
    "inventory",
    "splits",
    "index",
    "_looks",
)  # equal for all split parts of a folder
_LONGEST_NAME = 255
_MOST_TEMPLATES = 8
_IMAGE_WORDS = frozenset(
    [
        "image",
        "img",
        "photo",
        "picture",
        "pic",
        "file",
        "filename",
        "video",
        "page",
        "frame",
        "media",
    ]
)
_COLUMN = re.compile(r"\{([^{}:]+)(:[^{}]*)?\}")

_KEY_FORMS = frozenset(["text", "number", "texts", "numbers"])
"""Forms of columns that may have keys of media."""

_KEY_WORDS = _IMAGE_WORDS | {"id", "key", "name", "idx", "index"}


@dataclass(frozen=True)
class Scene:
    """The opened path, or the folder of one split part in it."""

    path: Path
    options: DataOptions
    around: Scene | None = None
    part: str | None = None
    prefix: str = ""

    @cached_property
    def is_folder(self) -> bool:
        """Whether the path is a folder of files."""
        return not is_table(self.path)

    @cached_property
    def root(self) -> Path:
        """The folder in which names of files begin."""
        return self.path / self.prefix if self.is_folder else self.path.parent

    @cached_property
    def base(self) -> Path:
        """The folder in which names of files in rows begin."""
        if self.options.media.folder is None:
            return self.root
        tried = self.image_folders
        return next(
            (folder for folder in tried if path_type(folder) == "folder"), tried[0]
        )

    @property
    def image_folders(self) -> list[Path]:
        """Possible locations of `image_folder`: in the working directory, and in the
        data.
        """
        folder = self.options.media.folder or "."
        whole = path_of(absolute(folder))
        if is_url(folder) or os.path.isabs(folder):
            return [whole]
        return [whole, (self.path if self.is_folder else self.path.parent) / folder]

    @cached_property
    def inventory(self) -> Inventory:
        """The files that may be read; only itself for a file."""
        if self.around is not None:
            return self.around.inventory.inside(self.prefix)
        if not self.is_folder:
            kind = "tar" if self.path.suffix == ".tar" else "table"
            return Inventory(self.root, {self.path.name: kind})
        inventory = take_inventory(self.root)
        if self.options.files is None:
            return inventory
        names = [name for name in inventory.kinds if matches(name, self.options.files)]
        if not names:
            raise DatasetError(
                f"{self.path}: no file matches {list(self.options.files)}. Correct the "
                "patterns"
            )
        return inventory.below(names)

    @cached_property
    def splits(self) -> SplitAssignment:
        """The split part of each file."""
        if (
            self.options.files is not None
            or not self.is_folder
            or self.around is not None
        ):
            return SplitAssignment(shared=tuple(self.inventory.kinds))
        splits = self.splits_by_files
        if self.options.split_by:
            return SplitAssignment(
                shared=tuple(self.inventory.kinds), folders=splits.folders
            )
        return parts_by_rows(self, splits)

    @cached_property
    def splits_by_files(self) -> SplitAssignment:
        """The split part of each file by names alone, without rows."""
        return find_splits(self.inventory)

    @cached_property
    def index(self) -> MediaIndex:
        """The media that names in rows may mean."""
        if self.is_folder and self.base == self.root:
            return MediaIndex(self.inventory.media)
        return MediaIndex(take_inventory(self.base).media)

    @property
    def part_folders(self) -> frozenset[str]:
        """The names of folders that are split parts."""
        return (self.around or self).splits.folders

    @cached_property
    def everywhere(self) -> list[str]:
        """The media of all split parts, or else all media."""
        if self.around is not None:
            return self.around.everywhere
        media = {*self.inventory.media}
        parted = [
            name
            for names in self.splits.parts.values()
            for name in names
            if name in media
        ]
        return parted or [*media]

    def of_part(self, part: str | None) -> Scene:
        """Return the scene of a split part: its folder, if it has its own."""
        names = self.splits.parts.get(part, ()) if part is not None else ()
        folder = _part_folder(names)
        kinds = {self.inventory.kinds[name] for name in names}
        above = {self.inventory.kinds[name] for name in self.splits.shared} & {
            "table",
            "text",
        }
        if folder and (not above or kinds & {"table", "tar", "shard"}):
            return replace(self, around=self, prefix=folder)
        if part is None:
            return self
        scene = replace(self, part=part)
        vars(scene).update(
            {name: vars(self)[name] for name in _SHARED if name in vars(self)}
        )
        return scene

    @cached_property
    def media(self) -> list[str]:
        """The media of the part, or all if neither the part nor a table has some.

        A part with tables of its own has no media outside of the part: its rows name
        them.
        """
        media = sorted(self.names(*MEDIA))
        names = {*self.splits.parts.get(self.part or "", ())}
        return media if not names or not names.isdisjoint(media) else []

    @cached_property
    def sidecars(self) -> list[SidecarFile]:
        """The files that belong to one of the media."""
        if not self.is_folder or not self.media:
            return []
        kinds = {name: self.inventory.kinds[name] for name in self.names(*SIDECARS)}
        return find_sidecars(self.media, kinds, self.part_folders)

    def names(self, *kinds: str) -> list[str]:
        """Return the files of some kinds in the split part, or outside of all parts.

        Texts and annotations outside of all parts are always included.
        """
        kind_of = self.inventory.kinds
        shared = [name for name in self.splits.shared if kind_of[name] in kinds]
        if self.around is not None or self.part is None:
            return shared
        in_part = self.splits.parts.get(self.part, ())
        names = [name for name in in_part if kind_of[name] in kinds]
        covered = {
            kind for name in names for kind in _COMPETING_KINDS.get(kind_of[name], ())
        }
        return names + [name for name in shared if kind_of[name] not in covered]

    # Tables.

    @cached_property
    def _looks(self) -> dict[tuple[str, ...], TablePreview | EnergizeError]:
        return {}

    def look(self, files: Sequence[str]) -> TablePreview | EnergizeError:
        """Return the preview of files of rows, or why they cannot be read as rows."""
        key = tuple(files)
        if key not in self._looks:
            try:
                self._looks[key] = self._opened(key)
            except DatasetError as reason:
                self._looks[key] = reason
        return self._looks[key]

    def _opened(self, files: tuple[str, ...]) -> TablePreview:
        """Return the preview of files of rows."""
        rows = open_table([self.root / name for name in files])
        if not rows.count:
            raise DatasetError(
                f"{self.root / files[0]} has no rows: it is empty. Add rows or remove "
                "it"
            )
        return self.look_at(rows, files)

    def why_unread(self, *names: str) -> EnergizeError | None:
        """Return why some files cannot be read as rows, None if unknown."""
        for files, look in self._looks.items():
            if {*names}.isdisjoint(files):
                continue
            if isinstance(look, EnergizeError):
                return look
            if not look.first and self.inventory.kinds[files[0]] == "table":
                return DatasetError(
                    f"{files[0]} has no row that can be read: is it empty?"
                )
        return None

    def look_at(self, rows: ShardedSource[Row], files: Sequence[str]) -> TablePreview:
        """Return the preview of a table."""
        first = sample_of(rows)
        below = posixpath.dirname(files[0]) if files else ""
        columns = columns_of(first, self.names_below(below))
        padded = next((name for name in columns if name != name.strip()), None)
        if padded is not None:
            raise DatasetError(
                f"{self.root / files[0]}: the column name {padded!r} has spaces around "
                f"it. Rename the column to {padded.strip()!r}"
            )
        if not _have_media(columns):
            columns = columns_of(first, self.names_below(below, moved=True))
        if not _have_media(columns):
            columns = self._with_keys(columns, below, rows.count)
        for name, labels in classes_of(rows).items():
            if name in columns:
                label_names = _label_names(columns[name], labels)
                columns[label_names.name] = label_names
        return TablePreview(tuple(files), rows, first, columns)

    def names_below(self, below: str, *, moved: bool = False) -> NameLook:
        """Return a function that locates the media that values of a column name.

        Args:
            below: The folder of the tables.
            moved: Whether to search other folders than the values name, by file name
                only.

        """
        return partial(self._named_media, below, moved)

    def _named_media(
        self, below: str, moved: bool, column: str, values: Sequence[Any]
    ) -> Named | None:
        """Return the media that values of a column name, None if they name none."""
        stated = self._stated_media(column)
        if stated is not None:
            return stated
        names = names_of(values)
        if not names or not all(map(_may_be_path, names)):
            return None
        by_name = all(kind_by_name(name) is not None for name in names)
        if moved:
            return self._moved(names, below) if by_name else None
        if not by_name and is_url(self.base):
            return None  # do not query a store for every text
        return self._named(names, below, by_name=by_name)

    def _stated_media(self, column: str) -> Named | None:
        """Return the media of the column that `media_path` names, None for others."""
        template = self.options.media.path
        if template is None:
            return None
        if not template.partition("{")[2].startswith((f"{column}}}", f"{column}:")):
            return None
        path = template.replace(f"{{{column}", "{")
        return Named(AV if kind_by_name(path) == AV else IMAGE, (path,))

    def _named(
        self, names: Sequence[str], below: str, *, by_name: bool
    ) -> Named | None:
        """Return the media that names refer to, None if there are none."""
        kinds: set[str] = set()
        templates: dict[str, int] = {}
        for name in names if by_name else names[:_NAMES_TRIED]:
            template, kind = self._placed(name, below, by_name=by_name)
            if kind is not None:
                kinds.add(kind)
                templates[template] = templates.get(template, 0) + 1
            elif not by_name:
                return None
        if len(kinds) != 1 or len(templates) > _MOST_TEMPLATES:
            return None
        return Named(
            kinds.pop(),
            tuple(sorted(templates, key=lambda template: -templates[template])),
        )

    def _moved(self, names: Sequence[str], below: str) -> Named | None:
        """Return the media that most names refer to by file name, in other folders.

        None if two names mean one file, or files are in the folder of another split
        part.
        """
        files: dict[str, str] = {}
        for name in names:
            how, paths = self.index.find(name, below)
            if how != EXACT or len(paths) != 1:
                continue
            is_first = files.setdefault(paths[0], normal(name)) == normal(name)
            if not is_first or _differ_in_part(name, paths[0]):
                return None
        folders = Counter(map(posixpath.dirname, files))
        kinds = {self._kind_at(path) for path in files}
        if len(kinds) != 1 or len(folders) > _MOST_TEMPLATES:
            return None
        if 2 * len(files) < len({*map(normal, names)}):
            return None
        by_count = [folder for folder, _ in folders.most_common()]
        templates = tuple(posixpath.join(folder, "{:name}") for folder in by_count)
        return Named(str(kinds.pop()), templates)

    def _placed(
        self, name: str, below: str, *, by_name: bool
    ) -> tuple[str, str | None]:
        """Return the template and the kind of the file at a path, None if it is
        missing.
        """
        for prefix in (f"{below}/", "") if below else ("",):
            kind = self._kind_at(f"{prefix}{name}")
            if kind is not None:
                return f"{prefix}{{}}", kind
        how, paths = self.index.find(name, below) if by_name else (EXACT, [])
        template = (
            template_of(name, paths[0]) if how == EXACT and len(paths) == 1 else None
        )
        return (template, self._kind_at(paths[0])) if template else ("", None)

    def _kind_at(self, name: str) -> str | None:
        """Return the kind of media of a file below the base, None if it is missing."""
        if self.is_folder and self.base == self.root:
            return self.inventory.kinds.get(self.index.paths.get(normal(name), ""))
        kind = kind_by_name(name)
        path = absolute(joined(self.base, name))
        if not path.startswith(f"{absolute(self.base)}/") or path_type(path) != "file":
            return None
        if kind is not None:
            return str(kind.value)
        inside = kind_inside(self.base, name)
        return inside if inside in (IMAGE, AV) else None

    def _located_by(self, most: int, values: Sequence[Any], below: str) -> Named | None:
        """Return the media of names or numbers; None unless each names one file."""
        templates: dict[str, int] = {}
        kinds = set()
        for value in values:
            how, paths = self.index.find(value, below)
            if how > most or len(paths) != 1:
                return None
            template = template_of(value, paths[0])
            if template is None:
                return None
            templates[template] = templates.get(template, 0) + 1
            kinds.add(str(kind_by_name(paths[0]) or IMAGE))
        if not templates or len(templates) > _MOST_TEMPLATES or len(kinds) > 1:
            return None
        by_count = sorted(templates, key=lambda template: -templates[template])
        return Named(kinds.pop(), tuple(by_count))

    def _with_keys(
        self, columns: dict[str, ColumnProfile], below: str, count: int
    ) -> dict[str, ColumnProfile]:
        """Return columns with the best column of stems or numbers of media marked."""
        best: tuple[int, int] | None = None
        chosen: ColumnProfile | None = None
        for column in columns.values():
            values = self._keys_in(column, count)
            is_other = {*words_of(column.name)}.isdisjoint(_IMAGE_WORDS)
            for how in (STEM, NUMBER) if values else ():
                named = self._located_by(how, values, below)
                rank = (is_other, how)
                if named is not None and (best is None or rank < best):
                    plural = "s" if column.form.endswith("s") else ""
                    best = rank
                    chosen = replace(
                        column, form=f"{named.form}{plural}", paths=named.paths
                    )
        return columns if chosen is None else {**columns, chosen.name: chosen}

    def _keys_in(self, column: ColumnProfile, count: int) -> list[Any]:
        """Return the values of a column that may be keys of media.

        Without a word for images in its name, a column must have unique values, in a
        table of about as many rows as there are media.
        """
        words = {*words_of(column.name)}
        if column.form not in _KEY_FORMS or words.isdisjoint(_KEY_WORDS):
            return []
        values = [
            entry
            for value in column.values
            for entry in (value if isinstance(value, list) else [value])
        ]
        if words & _IMAGE_WORDS:
            return values
        is_unique = len({*map(str, values)}) == len(values)
        is_key = is_unique and not column.is_nested
        return values if is_key and self._covers(count) else []

    def _covers(self, count: int) -> bool:
        """Return whether the folder or the split part has about as many media as
        rows.
        """
        names = self.splits_by_files.parts.get(self.part or "", ())
        in_part = sum(self.inventory.kinds[name] in MEDIA for name in names)
        counts = (len(self.index.names), in_part)
        return any(
            present and abs(present - count) <= max(present, count) // 2
            for present in counts
        )


def _part_folder(names: Sequence[str]) -> str:
    """Return the common folder of the files of a split part, if it is named like a
    part.
    """
    pieces = names[0].split("/")[:-1] if names else []
    depth = 2 if pieces[:1] == ["data"] else 1
    folder = "/".join(pieces[:depth])
    whole = len(pieces) >= depth and is_part_word(pieces[depth - 1])
    return (
        folder if whole and all(name.startswith(f"{folder}/") for name in names) else ""
    )


def by_file_name(template: str) -> bool:
    """Return whether a template uses only the file names of values."""
    return "{:name}" in template


def _may_be_path(name: str) -> bool:
    """Return whether a text may be the path of a file."""
    spaced = any(character in name for character in "\n\t\0") or (
        " " in name and not kind_by_name(name)
    )
    return 0 < len(name) <= _LONGEST_NAME and not spaced


def sample_of(rows: ShardedSource[Row]) -> list[Row]:
    """Return the first rows, and rows spread over the others, without failed ones."""
    count = rows.count
    numbers = [*range(min(FIRST, count))]
    if count > FIRST:
        numbers += np.unique(np.linspace(FIRST, count - 1, SPREAD).astype(int)).tolist()
    read = rows.read(np.array(numbers, dtype=np.int64)) if numbers else []
    return [unfolded(row) for row in read if not isinstance(row, Failed)]


def classes_of(rows: Any) -> dict[str, list[str]]:
    """Return the class names in the metadata of Hugging Face datasets, by column."""
    try:
        features = load_json(rows.schemas[0].metadata[b"huggingface"])["info"][
            "features"
        ]
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # rows without a schema too
        return {}
    labels = {
        name: feature
        for name, feature in features.items()
        if feature.get("_type") == "ClassLabel"
    }
    return {name: [*map(str, feature["names"])] for name, feature in labels.items()}


def files_without(rows: Any, column: str) -> list[str]:
    """Return the files of rows that lack a column that other files have.

    Of JSON files, only the first rows are read.
    """
    names = _names_by_file(rows)
    lacking = [
        rows.shards[number]
        for number, columns in enumerate(names)
        if columns and column not in columns
    ]
    return lacking if len(lacking) < len(names) else []


def _names_by_file(rows: Any) -> list[Collection[str]]:
    """Return the columns of each file; of JSON, in the first rows."""
    if isinstance(rows, ParquetSource):
        return [schema.names for schema in rows.schemas]
    if not isinstance(rows, JsonSource):
        return []
    names: list[Collection[str]] = []
    for shard, count in enumerate(rows.counts):
        first = rows.read_shard(shard, [*range(min(FIRST, count))])
        read = [unfolded(row) for row in first if not isinstance(row, Failed)]
        names.append({name for row in read for name in row})
    return names


def _have_media(columns: Mapping[str, ColumnProfile]) -> bool:
    return any(column.is_media for column in columns.values())


def _label_names(column: ColumnProfile, labels: Sequence[str]) -> ColumnProfile:
    """Return the column of the labels of a column of class numbers."""
    names = [
        labels[number]
        for number in column.values
        if isinstance(number, int) and number in range(len(labels))
    ]
    return ColumnProfile(f"{column.name}_name", "text", tuple(names), column.rows)


def _differ_in_part(name: str, path: str) -> bool:
    """Return whether the folders of two paths mean different split parts."""
    first = parts_in(posixpath.dirname(name))
    second = parts_in(posixpath.dirname(path))
    return bool(first and second) and first != second


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first of some names and how many more there are, for messages."""
    shown = [*islice(names, most + 1)]
    more = ", ..." if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def check_folder(scene: Scene) -> None:
    """Raise `ConfigError` for an invalid image folder or path of media."""
    options = scene.options
    if options.media.folder is not None and path_type(scene.base) != "folder":
        tried = ", ".join(map(str, scene.image_folders))
        raise ConfigError(
            f"{scene.path}: image_folder={options.media.folder!r} is not a folder "
            f"(tried {tried}). Correct it"
        )
    if options.media.path is not None and not _COLUMN.search(options.media.path):
        raise ConfigError(
            f"{scene.path}: media_path={options.media.path!r} names no column. Write "
            "the column of the file names: 'images/{COLUMN}.jpg'"
        )
