"""Formats of folders of media: with sidecar files, folders of classes, media alone,
MDS.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from energize.data.files import read_file
from energize.data.loose import AS_TEXT
from energize.data.mds import INDEX, MdsFiles
from energize.data.media import MediaMetadataType, kind_by_name
from energize.data.rows import Row
from energize.data.tables import decoded_text
from energize.errors import DatasetError
from energize.inference.candidates import (
    ALONE,
    CERTAIN,
    CLASSES,
    FILE,
    STATED,
    Candidate,
    Reading,
    reading_of,
)
from energize.inference.columns import ColumnProfile, Named, columns_of
from energize.inference.previews import TablePreview
from energize.inference.scene import FIRST, Scene, listed
from energize.inference.sidecars import SidecarFile
from energize.inference.words import PAIRED, why_no_class


def file_names(column: str, values: Sequence[Any]) -> Named | None:
    """Return the media that the column of file names refers to, None for others."""
    if column != FILE:
        return None
    kind = kind_by_name(str(values[0])) or MediaMetadataType.IMAGE
    return Named(str(kind.value), ("{}",))


# Media with files of their own.


def sidecars(scene: Scene) -> list[Candidate]:
    """Return the candidate of media with sidecar files, such as captions, if any."""
    files = scene.sidecars
    if not files:
        return []
    columns = [*dict.fromkeys(sidecar.column for sidecar in files)]
    claims = dict.fromkeys(scene.media, "image") | {
        e.name: f"column {e.column}" for e in files
    }
    several = next((sidecar for sidecar in files if len(sidecar.owners) > 1), None)
    problem = None
    if several is not None:
        problem = DatasetError(
            f"{' and '.join(several.owners[:2])} are two images under one name, and "
            f"{several.name} belongs to one of them. Rename the other"
        )
    argument = f"files {', '.join(columns)} have the names of images"
    return [
        Candidate(
            "sidecars",
            CERTAIN,
            argument,
            claims,
            lambda: _rows_with_sidecars(scene),
            problem,
        )
    ]


def _rows_with_sidecars(scene: Scene) -> Reading:
    """Return a row for each image, with the names of its files."""
    columns = {sidecar.column: sidecar for sidecar in scene.sidecars}
    rows = _rows_of_media(scene.media, scene.sidecars)
    main = next(
        name for name in ("txt", "caption", "json", *columns) if name in columns
    )
    complete = [row for row in rows if main in row]
    first = [_with_contents(scene, row, columns) for row in complete[:FIRST]]
    profiles = columns_of(first, file_names)
    text = profiles.get(main)
    unowned = sorted(sidecar.name for sidecar in scene.sidecars if not sidecar.owners)
    left_out = {"captions without an image beside them": unowned}
    if text is not None and text.form in ("text", "object"):
        without = [row[FILE] for row in rows if main not in row]
        left_out[f"images without .{columns[main].extension} beside them"] = without
        rows = complete
    notes = []
    parts = {name: _part_of(sidecar) for name, sidecar in columns.items()}
    if text is not None and "." in parts[main] and _are_lines(text):
        rows = _rows_of_lines(scene, rows, columns, main)
        del parts[main]
        notes.append(f"each line of a file in {main}/ is a sample of its own")
    files = {
        name: (f"{name}." if "." in part else "", False) for name, part in parts.items()
    }
    reading = reading_of(scene, rows, FILE, file_names, left_out, notes)
    return replace(reading, first=first, columns=profiles, files=files, parts=parts)


def _rows_of_media(media: Sequence[str], sidecars: Sequence[SidecarFile]) -> list[Row]:
    """Return a row for each of the media, with the names of its files by column."""
    files_of: dict[str, Row] = {}
    for sidecar in sidecars:
        for owner in sidecar.owners:
            files_of.setdefault(owner, {})[sidecar.column] = sidecar.name
    return [{FILE: name, **files_of.get(name, {})} for name in media]


def _rows_of_lines(
    scene: Scene, rows: Sequence[Row], columns: Mapping[str, SidecarFile], name: str
) -> list[Row]:
    """Return a row for each line of the files in a column."""
    return [
        {**row, name: line}
        for row in rows
        for line in _with_contents(scene, row, columns)[name].splitlines()
        if line.strip()
    ]


def _part_of(sidecar: SidecarFile) -> str:
    """Return the name of the part of a file: its extension, with its tree if it has
    one.
    """
    extension = AS_TEXT.get(sidecar.extension, sidecar.extension)
    in_tree = sidecar.column != sidecar.extension
    return f"{sidecar.column}.{extension}" if in_tree else extension


def _are_lines(column: ColumnProfile) -> bool:
    """Return whether texts are several sentences, one a line."""
    return column.is_prose and all(
        len(str(text).splitlines()) > 1 for text in column.values
    )


def _with_contents(scene: Scene, row: Row, columns: Iterable[str]) -> Row:
    """Return a row with the contents of its files instead of their names."""
    contents: Row = {FILE: row[FILE]}
    for column in columns:
        if column in row:
            data = read_file(scene.root / row[column])
            contents[column] = data
            with suppress(ValueError):
                text = decoded_text(data).strip()
                contents[column] = json.loads(text) if column == "json" else text
    return contents


# Folders of classes.

_MOST_PAIRED = 3
"""Number of folders up to which images may belong together by their names."""

_SIGNS = 2
"""Number of signs from which folders are not taken as classes."""

_FEW_FOLDERS = 3
"""Number of folders up to which one image in each is not a sign, as in examples."""

_ONE_IMAGE = 1.5
"""Mean number of images in a folder up to which it may be one sample."""

_TABLES = 10
"""Number of tables that are searched for names of folders."""

_NAMING = (
    "To read rows that describe them, write the path of its image into each row, for "
    'example {"image": "FOLDER/FILE"}'
)

_SHARD_LIKE = re.compile(r"\W*(?:(?:part|shard|chunk|batch)\W*)?\d+")


def classes(scene: Scene) -> list[Candidate]:
    """Return the candidate that reads folders of media as classes, if any."""
    names = class_names(scene)
    labels = _labels(scene, scene.media)
    stray = [name for name in scene.media if name not in labels]
    is_complete = {*labels.values()} <= {*names}
    if len(names) < 2 or not is_complete or 2 * len(stray) >= len(scene.media):
        return []
    numbers = {label: number for number, label in enumerate(names)}

    def read() -> Reading:
        rows: list[Row] = [
            {FILE: name, "label": numbers[labels[name]], "label_name": labels[name]}
            for name in scene.media
            if name in labels
        ]
        left_out = {"images beside the folders of classes": stray}
        return reading_of(scene, rows, FILE, file_names, left_out)

    is_chosen = scene.options.format == "classes"
    problem = None if is_chosen else _why_no_classes(scene, names, labels)
    claims = dict.fromkeys(labels, "image of a class")
    argument = f"images are in {len(numbers)} folders"
    strength = STATED if is_chosen else CLASSES
    return [Candidate("classes", strength, argument, claims, read, problem)]


def _why_no_classes(
    scene: Scene, names: Sequence[str], labels: Mapping[str, str]
) -> DatasetError | None:
    """Return why folders are probably not classes, None if they are."""
    signs = _signs_of_keys(scene, labels)
    if len(signs) >= _SIGNS:
        return DatasetError(
            f"the folders {listed(names)} are probably not classes: "
            f"{'; '.join(signs)}. Write format: classes if they are, or format: images "
            f"to read the images alone. {_NAMING}"
        )
    reasons = {label: why_no_class(label) for label in names}
    if _are_paired(labels):
        paired = [name for name in names if name.lower() in PAIRED]
        reasons |= dict.fromkeys(paired, "its images have the names of others")
    doubtful = next((label for label, reason in reasons.items() if reason), None)
    if doubtful is None:
        return None
    return DatasetError(
        f"the folders {listed(names)} may be classes or not: of {doubtful!r}, "
        f"{reasons[doubtful]}. Write format: classes if they are, or format: images to "
        "read the images alone"
    )


def class_names(scene: Scene) -> list[str]:
    """Return the classes of all split parts, in the order of their numbers."""
    return sorted({*_labels(scene, scene.everywhere).values()})


def _labels(scene: Scene, media: Iterable[str]) -> dict[str, str]:
    """Return the class of each file: its folders without parts and common ones."""
    files: dict[str, list[str]] = {}
    for name in media:
        files.setdefault(posixpath.dirname(name), []).append(name)
    pieces = {folder: _pieces(folder, scene.part_folders) for folder in files}
    pieces = {folder: names for folder, names in pieces.items() if names}
    if len({len(names) for names in pieces.values()}) != 1:
        return {}
    levels = [*zip(*pieces.values(), strict=True)]
    varying = [number for number, names in enumerate(levels) if len({*names}) > 1]
    whole = {
        folder: "/".join(names[number] for number in varying)
        for folder, names in pieces.items()
    }
    last = {folder: label.rpartition("/")[2] for folder, label in whole.items()}
    is_unique = len({*last.values()}) == len({*whole.values()})
    labels = last if is_unique else whole
    return {name: label for folder, label in labels.items() for name in files[folder]}


def _pieces(folder: str, part_folders: frozenset[str]) -> list[str]:
    """Return the names of a path of folders that are not split parts."""
    return [name for name in folder.split("/") if name and name not in part_folders]


def _signs_of_keys(scene: Scene, labels: Mapping[str, str]) -> list[str]:
    """Return the signs that each folder is named by the key of one sample, not a class.

    Public data keep the files of a sample in a folder of its own, `train/17/image.png`.
    Its signs are these, and two of them are more than chance:

    - A folder has about one image, in more than three folders.
    - The images of all folders have one name, which is no number, in more than three
      folders.
    - Split parts have no folder in common.
    - The names of folders are unique values in a column of a table beside them that has
      about one row for each folder.
    - Folders have data files of their own that belong to no image by name.

    One sign alone is none: there are classes of one image, with one file name, and with
    split parts that share no class.
    """
    whole = scene.around or scene
    everywhere = _labels(scene, scene.everywhere)
    signs = _signs_of_files(everywhere)
    if _parts_differ(whole, everywhere):
        signs.append("split parts have no folder in common")
    column = _column_of_keys(whole, everywhere)
    if column:
        signs.append(f"{column} has their names")
    data = _data_in_folders(scene, labels)
    if data:
        signs.append(f"they have data of their own, such as {data[0]}")
    return signs


def _signs_of_files(labels: Mapping[str, str]) -> list[str]:
    """Return the signs of keys in the number and the names of images."""
    folders = {*labels.values()}
    if len(folders) <= _FEW_FOLDERS:
        return []
    signs = []
    if len(labels) <= _ONE_IMAGE * len(folders):
        signs.append(f"{len(folders)} folders have {len(labels)} images")
    files = {posixpath.basename(name) for name in labels}
    if len(files) == 1 and not posixpath.splitext(*files)[0].isdigit():
        signs.append(f"each has the file {next(iter(files))!r}")
    return signs


def _parts_differ(scene: Scene, labels: Mapping[str, str]) -> bool:
    """Return whether no folder is in all split parts."""
    parts = [
        {labels[name] for name in names if name in labels}
        for names in scene.splits.parts.values()
    ]
    several = [part for part in parts if part]
    return len(several) > 1 and not {*several[0]}.intersection(*several[1:])


def _column_of_keys(scene: Scene, labels: Mapping[str, str]) -> str:
    """Return the column of a table with the names of folders as keys, and its file."""
    folders = {*labels.values()}
    inside = {posixpath.dirname(name) for name in labels}
    tables = (
        name
        for name in scene.inventory.of_kind("table")
        if posixpath.dirname(name) not in inside
    )
    for name in islice(tables, _TABLES):
        look = scene.look([name])
        if not isinstance(look, TablePreview):
            continue
        if not len(folders) <= 2 * look.rows.count <= 4 * len(folders):
            continue
        for column in look.columns.values():
            if _has_keys(column, folders):
                return f"{column.name!r} of {name}"
    return ""


def _has_keys(column: ColumnProfile, keys: Collection[str]) -> bool:
    """Return whether the values of a column are unique, and most of them are keys."""
    if column.form not in ("text", "number", "image") or column.is_nested:
        return False
    values = [str(value) for value in column.values]
    is_unique = len({*values}) == len(values)
    return is_unique and 2 * sum(value in keys for value in values) > len(values)


def _data_in_folders(scene: Scene, labels: Mapping[str, str]) -> list[str]:
    """Return the files of data in at least half of the folders of images."""
    folders = {posixpath.dirname(name) for name in labels}
    data = {
        posixpath.dirname(name): name
        for name in scene.names("table", "text")
        if posixpath.dirname(name) in folders
    }
    return [*data.values()] if 2 * len(data) >= len(folders) else []


def _are_paired(labels: Mapping[str, str]) -> bool:
    """Return whether two or three folders have images of the same names."""
    stems: dict[str, set[str]] = {label: set() for label in labels.values()}
    if len(stems) > _MOST_PAIRED:
        return False
    for name, label in labels.items():
        stems[label].add(posixpath.splitext(posixpath.basename(name))[0])
    return len({*map(frozenset, stems.values())}) == 1


def class_folders(scene: Scene) -> list[str]:
    """Return names of folders of media that may mean something."""
    names = {*_labels(scene, scene.media).values()}
    telling = sorted(name for name in names if not _SHARD_LIKE.fullmatch(name))
    return telling if len(names) > 1 else []


# Media alone.


def images(scene: Scene) -> list[Candidate]:
    """Return the candidate of media alone, if any."""
    media = scene.media
    if not media:
        return []
    rest = scene.names("text", "table", "annotation")
    unread = scene.why_unread(*rest)
    is_chosen = scene.options.format == "images"
    problem = ""
    if len({scene.inventory.kinds[name] for name in media}) > 1:
        problem = (
            "images are beside videos or sounds. Write files: ['*.jpg'] to read one "
            "kind"
        )
    elif unread and not is_chosen:
        problem = f"{unread}. Or write format: images to read the images alone"
    elif rest and not is_chosen:
        problem = (
            f"{listed(rest)} may describe the images, but their format is unknown. "
            "Write format: images to read the images alone"
        )

    def read() -> Reading:
        return reading_of(scene, [{FILE: name} for name in media], FILE, file_names, {})

    claims = dict.fromkeys(media, "image")
    refusal = DatasetError(problem) if problem else None
    strength = STATED if is_chosen else ALONE
    return [
        Candidate("images", strength, f"{len(media)} images", claims, read, refusal)
    ]


# MDS.


def mds(scene: Scene) -> list[Candidate]:
    """Return the candidate of MDS shards, if any."""
    names = scene.names("shard", "table", "archive", "other")
    folders = [posixpath.dirname(name) for name in names if _is_mds_index(scene, name)]
    if not folders:
        return []

    def read() -> Reading:
        rows = MdsFiles(scene.root / folders[0])
        look = scene.look_at(rows, [posixpath.join(folders[0], INDEX)])
        return Reading(rows, look.first, look.columns)

    claims = {name: "MDS" for name in names if posixpath.dirname(name) in folders}
    problem = None
    if len(folders) > 1:
        problem = DatasetError(
            f"{len(folders)} folders have data of their own: {listed(folders)}. Write "
            "path: FOLDER for one of them"
        )
    return [
        Candidate("mds", CERTAIN, f"{INDEX} is the index of MDS", claims, read, problem)
    ]


def _is_mds_index(scene: Scene, name: str) -> bool:
    """Return whether a file is the index of MDS shards."""
    if posixpath.basename(name) != INDEX:
        return False
    with suppress(DatasetError, OSError):
        return b'"shards"' in read_file(scene.root / name)
    return False
