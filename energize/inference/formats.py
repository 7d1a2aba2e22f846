"""Formats of loose data: how the files of a folder may be samples.

A contributor adds a function to `FORMATS`. It is given the scene of a split part, and returns what
the files may be, each with its argument, the files that it accounts for, and how it is read.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from energize.core.progress import counting
from energize.core.trace import Failed
from energize.data.files import joined, read_file
from energize.data.loose import AS_TEXT, Media, fill, key_of
from energize.data.mds import INDEX, MdsFiles
from energize.data.media import MediaMetadataType, kind_by_name, media_name
from energize.data.rows import Row
from energize.data.source import ShardedSource
from energize.data.tables import AT, DELIMITED, KEY, MemoryRows, decoded_text
from energize.errors import DatasetError, DatasetNotFoundError, EnergizeError, NotPreparedError
from energize.inference.columns import Column, Named, columns_of, names_of, on_the_web
from energize.inference.inventory import MEDIA
from energize.inference.kinds import choose
from energize.inference.references import normal
from energize.inference.scene import FIRST, Look, Scene, listed, sample_of
from energize.inference.words import PAIRED, parts_in, qualifiers, why_no_class
from energize.task.load import parse_field

TOLD, CERTAIN, KEYED, CLASSES, ALONE = 9, 6, 5, 4, 1
"""How much speaks for a format: the user, names of files or contents, names that only agree, names
of folders, nothing but that there are images."""

FILE = "file_name"
"""The column of rows that are made for files."""


@dataclass(frozen=True)
class Reading:
    """The rows of a split part, with their columns as the first rows show them.

    `files` are columns that are files but no media, with the prefix of their parts; `parts` say
    where columns are read from that are not in the rows themselves.
    """

    rows: ShardedSource[Row]
    first: Sequence[Row]
    columns: Mapping[str, Column]
    files: Media = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Candidate:
    """What the files of a split part may be.

    `claims` say of each file that is used what it is used as; `problem` is why it cannot be read,
    without the path.
    """

    format: str
    strength: int
    argument: str
    claims: Mapping[str, str]
    read: Callable[[], Reading]
    problem: DatasetError | None = None
    override: str = ""
    """The line of an entry that chooses it."""

    @property
    def line(self) -> str:
        """What an entry says to have it read."""
        return self.override or f"format: {self.format}"


# Tables: files of rows, which may name media.


def tables(scene: Scene) -> list[Candidate]:
    """Files of rows, of which each row is a sample."""
    beside = {each.name for each in sidecars_of(scene)} if scene.is_folder else set()
    files = [name for name in scene.names("table") if name not in beside]
    media = {*scene.names(*MEDIA)}
    looks = [scene.look(group) for group in _groups(files)]
    looks += _text_tables(scene, [name for name in scene.names("text") if name not in beside])
    readable = [look for look in looks if isinstance(look, Look) and look.first]
    if not scene.is_folder and not readable:
        raise next((look for look in looks if isinstance(look, EnergizeError)), _no_rows(scene))
    merged = _merged(scene, readable)
    merged = _joined(scene, merged)
    return [_table_candidate(scene, look, media) for look in merged]


def _no_rows(scene: Scene) -> DatasetError:
    return DatasetError(f"{scene.path} has no row to read: it is empty")


def _groups(files: Iterable[str]) -> list[list[str]]:
    """Return files of rows that are parts of one table, by folder, extension and words."""
    groups: dict[Any, list[str]] = {}
    for name in files:
        folder, file = posixpath.split(name)
        stem, suffix = posixpath.splitext(file)
        groups.setdefault((folder, suffix.lower(), qualifiers(stem)), []).append(name)
    return [*groups.values()]


def _text_tables(scene: Scene, texts: Iterable[str]) -> list[Look]:
    """Return text files that are tables whose rows name media."""
    found = []
    for name in texts:
        if scene.inventory.is_one_of_few(name) and scene.index.names:
            look = scene.look([name])
            if isinstance(look, Look) and len(look.columns) > 1 and look.media:
                found.append(look)
    return found


def _merged(scene: Scene, looks: Sequence[Look]) -> list[Look]:
    """Return looks of which those are one that are alike and lie in several folders or files."""
    merged: list[Look] = []
    for look in looks:
        same = next((n for n, other in enumerate(merged) if _are_one(scene, look, other)), None)
        if same is None:
            merged.append(look)
            continue
        both = scene.look([*merged[same].files, *look.files])
        if isinstance(both, EnergizeError):
            raise both
        merged[same] = both
    return merged


def _are_one(scene: Scene, one: Look, other: Look) -> bool:
    """Return whether two tables are parts of one: of the same columns and of other media."""
    suffixes = {posixpath.splitext(name)[1].lower() for name in (*one.files, *other.files)}
    if len(suffixes) > 1 or not _alike(scene, one, other):
        return False
    folders = [posixpath.dirname(look.files[0]) for look in (one, other)]
    named = [{*_named_in(look)} for look in (one, other)]
    if named[0] or named[1]:
        return not named[0] & named[1]
    if folders[0] == folders[1]:
        return not any(parts_in(posixpath.basename(look.files[0])) for look in (one, other))
    return all(why_no_class(posixpath.basename(folder)) for folder in folders)


def _alike(scene: Scene, one: Look, other: Look) -> bool:
    """Return whether two tables have the same columns, or those of a field map that is told."""
    told = scene.told.field_map
    if not told or one.names == other.names:
        return one.names == other.names
    options = [[access.part for access in parse_field(text)] for text in told.values()]
    return all(
        any(each in look.names for each in some) for some in options for look in (one, other)
    )


def _named_in(look: Look) -> Iterator[str]:
    """Yield the paths of media that the first rows of a table name."""
    for column in look.media:
        for value in chain.from_iterable(v if isinstance(v, list) else [v] for v in column.values):
            name = media_name(value)
            if name is not None and column.paths:
                yield fill(column.paths[0], name)
            elif isinstance(value, int) and column.paths:
                yield fill(column.paths[0], str(value))


def _joined(scene: Scene, looks: Sequence[Look]) -> list[Look]:
    """Return tables of which two are one that share a key and are no samples alone."""
    if len(looks) != 2 or any(_is_whole(look) for look in looks):
        return [*looks]
    one, other = sorted(looks, key=lambda look: not look.media)
    for name in one.columns.keys() & other.columns.keys():
        values = [look.columns[name].values for look in (one, other)]
        if len({*map(str, values[0])}) == len(values[0]) and {*map(str, values[0])} == {
            *map(str, values[1])
        }:
            rows = _all_rows(other)
            by_key = {row.get(name): row for row in rows}
            both = [{**by_key.get(row.get(name), {}), **row} for row in _all_rows(one)]
            keyed = ({**row, KEY: f"{number:06d}"} for number, row in enumerate(both))
            look = scene.look_at(MemoryRows(keyed), one.files)
            if _is_whole(look):
                return [Look((*one.files, *other.files), look.rows, look.first, look.columns)]
    return [*looks]


def _is_whole(look: Look) -> bool:
    """Return whether rows make samples of a type that is more than an image."""
    choice = choose(look.columns, look.first)
    return not choice.is_crude and choice.sample_type != "ImageSample"


def _all_rows(look: Look) -> list[Row]:
    rows: list[Row] = []
    for number, row in enumerate(look.rows):
        if isinstance(row, Failed):
            raise DatasetError(f"{row.where}: {row.reason}")
        rows.append(row if AT in row else {**row, AT: look.rows.where(number)})
    return rows


def _table_candidate(scene: Scene, look: Look, media: set[str]) -> Candidate:
    """Return a table as a format: of media that it names, that it holds, or of texts."""
    named = [column for column in look.media if column.paths]
    web = on_the_web(look.columns)
    title = ", ".join(look.files[:3])
    claims = dict.fromkeys(look.files, "table")
    problem: DatasetError | None = None
    if named:
        by_key = not all(_is_file_column(column) for column in named)
        strength = KEYED if by_key else CERTAIN
        argument = f"rows of {title} name media in {', '.join(c.name for c in named)}"
        claims |= dict.fromkeys(media, f"named by {named[0].name}") if scene.is_folder else {}
    elif look.media:
        strength = CERTAIN
        argument = f"rows of {title} hold media in {', '.join(c.name for c in look.media)}"
    else:
        few = 10 * len(media) <= look.rows.count
        single = look.rows.count == 1 and look.files[0].endswith(".json")
        strength = 2 if single or (not few and scene.is_folder) else KEYED
        argument = f"rows of {title} have no media"
        if web is not None and scene.told.kind is None:
            problem = DatasetError(
                f"the images or videos are on the web: column {web.name!r} has "
                f"{web.values[0]!r:.80}. Download them first, with img2dataset for example, or "
                "read the texts alone: sample_type: TextSample, field_map: {text: COLUMN}"
            )
        problem = _nothing_at(scene, look) or problem
    override = f"files: {json.dumps([*look.files[:3], *_patterns_of(media if named else ())])}"

    def read() -> Reading:
        if named and _is_in_memory(scene, look):
            return _described(scene, look, named, media)
        return Reading(look.rows, look.first, look.columns)

    return Candidate("tables", strength, argument, claims, read, problem, override)


def _nothing_at(scene: Scene, look: Look) -> DatasetError | None:
    """Return the error for a table without media whose rows name files that are not there."""
    for column in look.columns.values():
        names = names_of(column.values) if column.form in ("text", "texts") else []
        if names and all(kind_by_name(name) is not None for name in names):
            return DatasetNotFoundError(
                f"column {column.name!r} of {look.files[0]} names {names[0]!r}, and there is no "
                f"{joined(scene.base, names[0])}, nor any other of its files. Write in which "
                "folder they are: image_folder: FOLDER"
            )
    return None


def _patterns_of(names: Iterable[str]) -> list[str]:
    """Return patterns of the folders that some files are in."""
    folders = dict.fromkeys(posixpath.dirname(name) for name in names)
    return [f"{folder}/*" if folder else "*" for folder in [*folders][:3]]


def _is_file_column(column: Column) -> bool:
    """Return whether values of a column are paths with extensions."""
    return all(path.endswith("{}") for path in column.paths)


def _is_in_memory(scene: Scene, look: Look) -> bool:
    """Return whether all rows are read at once: of delimited values and of metadata, of a table
    above split parts, and of tables in several folders, each of which names files of its own.
    """
    if not scene.is_folder or scene.base != scene.root:
        return False
    if len({posixpath.dirname(name) for name in look.files}) > 1:
        return True
    above = len(scene.splits.parts) > 1 and {*look.files} & {*scene.splits.shared}
    return bool(above) or any(
        posixpath.splitext(name)[1].lower() in DELIMITED
        or posixpath.basename(name).startswith("metadata.")
        for name in look.files
    )


def _described(scene: Scene, look: Look, named: Sequence[Column], media: set[str]) -> Reading:
    """Return the rows of tables whose files are in the folder, with names from the root on."""
    found: list[Row] = []
    absent: list[str] = []
    used: set[str] = set()
    elsewhere = 0
    for row in _all_rows(look):
        row = {**row, AT: str(row[AT]).removeprefix(f"{scene.root}/")}  # noqa: PLW2901
        below = posixpath.dirname(row[AT].partition(",")[0])
        files: list[str] = []
        for column in named:
            values = row.get(column.name)
            paths = [
                _path_of(scene, column, each, below)
                for each in (values if isinstance(values, list) else [values])
                if each not in (None, "")
            ]
            name = column.name if _is_file_column(column) else FILE
            row[name] = paths if isinstance(values, list) else (paths or [None])[0]
            files += [each or f"{values}" for each in paths]
        if files and all(each in media for each in files):
            found.append(row)
            used.update(files)
        elif files and all(each in scene.inventory.kinds for each in files):
            elsewhere += 1
        else:
            gone = next((each for each in files if each not in media), "no name")
            absent.append(f"{gone} ({row[AT]})")
    columns = [column.name if _is_file_column(column) else FILE for column in named]
    if not found and elsewhere and media:
        lacking = [name for name in look.columns if not look.columns[name].is_nested]
        found = [{**dict.fromkeys(lacking), columns[0]: name} for name in sorted(media)]
        used = {*media}
    notes: list[str] = []
    note(notes, absent, "left out, rows whose file is not in this folder")
    note(notes, sorted(media - used), "left out, images without a row")
    made = MemoryRows(
        counting(keyed(found, columns[0], notes), f"{scene.root}: samples", len(found))
    )
    if not made.count:
        raise DatasetError(f"{scene.path}: no sample is left: {'; '.join(notes)}")
    first = sample_of(made)
    return Reading(made, first, columns_of(first, scene.names_below("")), notes=notes)


def _path_of(scene: Scene, column: Column, value: Any, below: str) -> str | None:
    """Return the file in the folder that a value names, None if there is none."""
    name = media_name(value) or str(value)
    if scene.told.media_path is not None:
        return scene.index.paths.get(normal(fill(column.paths[0], name)))
    _, paths = scene.index.find(name, below)
    return paths[0] if len(paths) == 1 else None


def note(notes: list[str], names: Sequence[str], what: str) -> None:
    """Add a note on some names, if there are any."""
    if names:
        notes.append(f"{what} ({len(names):,}): {listed(names)}")


def keyed(rows: Iterable[Row], column: str, notes: list[str]) -> Iterator[Row]:
    """Yield rows with keys, each once: a second one of a name is told from the first."""
    given: Counter[str] = Counter()
    repeated = []
    for row in rows:
        name = row[column] if isinstance(row[column], str) else row[column][0]
        key = key_of(name)
        given[key] += 1
        if given[key] > 1:
            repeated.append(f"{name} ({row[AT]})" if AT in row else name)
            key = f"{key}~{given[key]}"
        yield {**row, KEY: key}
    note(notes, repeated, "each is a sample, though several are of one name")


# Images and other media, alone or with files of their own.


def media_of(scene: Scene) -> list[str]:
    """Return the media of a split part, in the order of their names."""
    return sorted(scene.names(*MEDIA))


@dataclass(frozen=True)
class Sidecar:
    """A file that belongs to media: the column that it is, and which media these may be."""

    name: str
    column: str
    owners: tuple[str, ...]


def sidecars_of(scene: Scene) -> list[Sidecar]:
    """Return the files that belong to one of the media each.

    A file belongs to an image of its name in its folder, with or without the extension of the
    image, or in a tree of folders beside that of the images.
    """
    kinds = scene.inventory.kinds
    media = media_of(scene)
    names = scene.names(*MEDIA, *_BESIDE)
    shared = _shared_folders(scene, names)
    by_stem: dict[str, list[str]] = {}
    by_rest: dict[str, list[str]] = {}
    for name in media:
        for stem in {posixpath.splitext(name)[0], name}:
            by_stem.setdefault(stem, []).append(name)
        by_rest.setdefault(_in_tree(scene, name, shared)[1], []).append(name)
    groups: dict[tuple[str, str], list[Sidecar]] = {}
    for name in names:
        stem, suffix = posixpath.splitext(name)
        if kinds[name] not in _BESIDE or (kinds[name] == "table" and suffix.lower() != ".json"):
            continue
        extension = suffix[1:].lower() or "bin"
        tree, rest = _in_tree(scene, name, shared)
        beside = by_stem.get(stem, [])
        owners = beside or (by_rest.get(rest, []) if tree else [])
        column = extension if beside or not owners else tree
        group = ("", extension) if beside or not owners else (tree, extension)
        groups.setdefault(group, []).append(Sidecar(name, column, tuple(owners)))
    found: list[Sidecar] = []
    for files in groups.values():
        if 2 * sum(bool(each.owners) for each in files) >= len(files):
            found += files
    return found


_BESIDE = ("text", "table", "annotation", "other")


def _shared_folders(scene: Scene, names: Sequence[str]) -> int:
    """Return how many first folders all files have in common, split parts left out."""
    folders = [_folders(scene, name) for name in names]
    count = 0
    while folders and all(len(each) > count for each in folders):
        if len({each[count] for each in folders}) > 1:
            break
        count += 1
    return count


def _folders(scene: Scene, name: str) -> list[str]:
    """Return the folders of a file that are no split parts."""
    folders = posixpath.dirname(name).split("/")
    return [each for each in folders if each and each not in scene.part_folders]


def _in_tree(scene: Scene, name: str, shared: int) -> tuple[str, str]:
    """Return the first folder of a file below those that all share, and its path below that."""
    folders = _folders(scene, name)[shared:]
    stem = posixpath.splitext(posixpath.basename(name))[0]
    return (folders[0] if folders else ""), "/".join([*folders[1:], stem])


def sidecars(scene: Scene) -> list[Candidate]:
    """Media with files of their own: captions, labels, annotations."""
    beside = sidecars_of(scene)
    media = media_of(scene)
    if not beside or not media:
        return []
    columns = [*dict.fromkeys(each.column for each in beside)]
    claims = {**dict.fromkeys(media, "image"), **{e.name: f"column {e.column}" for e in beside}}
    several = next((each for each in beside if len(each.owners) > 1), None)
    problem = None
    if several is not None:
        problem = DatasetError(
            f"{' and '.join(several.owners[:2])} are two images under one name, and "
            f"{several.name} is of one of them: rename the other"
        )
    argument = f"files {', '.join(columns)} have the names of images"

    def read() -> Reading:
        return _with_sidecars(scene, media, beside)

    return [Candidate("sidecars", CERTAIN, argument, claims, read, problem)]


def _with_sidecars(scene: Scene, media: Sequence[str], beside: Sequence[Sidecar]) -> Reading:
    own: dict[str, dict[str, str]] = {}
    extensions: dict[str, str] = {}
    for each in beside:
        extensions[each.column] = posixpath.splitext(each.name)[1][1:].lower() or "bin"
        for owner in each.owners:
            own.setdefault(owner, {})[each.column] = each.name
    columns = [*extensions]
    rows: list[Row] = [{FILE: name, **own.get(name, {})} for name in media]
    wanted = next((each for each in ("txt", "caption", "json", *columns) if each in columns), "")
    notes: list[str] = []
    first = [_with_contents(scene, row, columns) for row in rows if wanted in row][:FIRST]
    seen = columns_of(first, _media_alone)
    files = {name: (f"{name}." if name != end else "", False) for name, end in extensions.items()}
    parts = {
        name: f"{name}.{_as_text(end)}" if name != end else _as_text(end)
        for name, end in extensions.items()
    }
    if _is_caption(seen, wanted):
        without = [row[FILE] for row in rows if wanted not in row]
        note(notes, without, f"left out, images without .{wanted} beside them")
        rows = [row for row in rows if wanted in row]
    lost = sorted(each.name for each in beside if not each.owners)
    note(notes, lost, "left out, captions without an image beside them")
    if not rows:
        raise DatasetError(f"{scene.path}: no sample is left: {'; '.join(notes)}")
    if wanted not in parts.values() and _are_lines(seen[wanted]):
        rows = [
            {**row, wanted: line}
            for row in rows
            for line in _with_contents(scene, row, [wanted])[wanted].splitlines()
            if line.strip()
        ]
        files.pop(wanted)
        parts.pop(wanted)
        notes.append(f"each line of a file in {wanted}/ is a sample of its own")
    made = MemoryRows(counting(keyed(rows, FILE, []), f"{scene.root}: samples", len(rows)))
    return Reading(made, first, seen, files, parts, notes)


def _are_lines(column: Column) -> bool:
    """Return whether texts are several sentences, one a line."""
    lines = [str(value).splitlines() for value in column.values]
    return column.is_prose and all(len(each) > 1 for each in lines)


def _as_text(extension: str) -> str:
    return AS_TEXT.get(extension, extension)


def _is_caption(columns: Mapping[str, Column], wanted: str) -> bool:
    """Return whether a file beside images is text that every sample has to have."""
    column = columns.get(wanted)
    return column is not None and column.form in ("text", "object")


def _with_contents(scene: Scene, row: Row, columns: Iterable[str]) -> Row:
    """Return a row with the contents of its files in place of their names."""
    found: Row = {FILE: row[FILE]}
    for column in columns:
        if column in row:
            data = read_file(scene.root / row[column])
            try:
                text = decoded_text(data).strip()
                found[column] = json.loads(text) if column == "json" else text
            except ValueError:
                found[column] = data
    return found


def _media_alone(column: str, values: Sequence[Any]) -> Named | None:
    kind = kind_by_name(str(values[0])) if column == FILE else None
    return Named(str((kind or MediaMetadataType.IMAGE).value), ("{}",)) if column == FILE else None


def classes(scene: Scene) -> list[Candidate]:
    """Media in a folder for each class."""
    numbered = sorted({*_labels(scene, scene.everywhere).values()})
    labels = _labels(scene, media_of(scene))
    media = media_of(scene)
    stray = [name for name in media if name not in labels]
    if len(numbered) < 2 or not {*labels.values()} <= {*numbered} or 2 * len(stray) >= len(media):
        return []
    numbers = {label: number for number, label in enumerate(numbered)}
    problem = None
    for label in numbers:
        if reason := why_no_class(label) or _why_paired(label, labels):
            problem = DatasetError(
                f"the folders {listed(sorted(numbers))} may be classes or not: of {label!r}, {reason}. "
                "Write format: classes if they are, or format: images to read the images alone"
            )
    claims = {name: "image of a class" for name in media if name in labels}

    def read() -> Reading:
        notes: list[str] = []
        note(notes, stray, "left out, images beside the folders of classes")
        rows = (
            {FILE: name, "label": numbers[labels[name]], "label_name": labels[name]}
            for name in media
            if name in labels
        )
        return _of_rows(scene, keyed(rows, FILE, notes), len(media), notes)

    strength = TOLD if scene.told.format == "classes" else CLASSES
    problem = None if strength == TOLD else problem
    argument = f"images are in {len(numbers)} folders"
    return [Candidate("classes", strength, argument, claims, read, problem)]


def _why_paired(label: str, labels: Mapping[str, str]) -> str:
    """Return why a folder may have one image of each pair, an empty text if it may not."""
    stems: dict[str, set[str]] = {}
    for name, own in labels.items():
        stems.setdefault(own, set()).add(posixpath.splitext(posixpath.basename(name))[0])
    alike = len(stems) < 4 and all(each == stems.get(label) for each in stems.values())
    return (
        "its images have the names of those in the others"
        if alike and label.lower() in PAIRED
        else ""
    )


def _labels(scene: Scene, media: Iterable[str]) -> dict[str, str]:
    """Return the class of each file: its folders without split parts and those that all share."""
    folders = {name: _folders(scene, name) for name in media}
    folders = {name: found for name, found in folders.items() if found}
    depths = {len(found) for found in folders.values()}
    if len(depths) != 1:
        return {}
    differing = [
        n for n in range(depths.pop()) if len({found[n] for found in folders.values()}) > 1
    ]
    last = {name: found[differing[-1]] for name, found in folders.items()} if differing else {}
    whole = {name: "/".join(found[n] for n in differing) for name, found in folders.items()}
    return last if len({*last.values()}) == len({*whole.values()}) else whole


def class_folders(scene: Scene) -> list[str]:
    """Return names of folders that may be classes, or say something of the images in them."""
    names = {*_labels(scene, media_of(scene)).values()}
    return (
        sorted(name for name in names if not _SHARD_LIKE.fullmatch(name)) if len(names) > 1 else []
    )


_SHARD_LIKE = re.compile(r"\W*(part|shard|chunk|batch)?\W*\d+")


def images(scene: Scene) -> list[Candidate]:
    """Media alone."""
    media = media_of(scene)
    if not media:
        return []
    others = scene.names("text", "table", "annotation")
    problem = None
    if others and scene.told.format != "images":
        problem = DatasetError(
            f"{listed(others)} may describe the images, and how is not known. Write format: images "
            "to read the images alone"
        )

    def read() -> Reading:
        notes: list[str] = []
        rows = keyed(({FILE: name} for name in media), FILE, notes)
        return _of_rows(scene, rows, len(media), notes)

    strength = TOLD if scene.told.format == "images" else ALONE
    claims = dict.fromkeys(media, "image")
    return [Candidate("images", strength, f"{len(media)} images", claims, read, problem)]


def _of_rows(scene: Scene, rows: Iterable[Row], count: int, notes: list[str]) -> Reading:
    made = MemoryRows(counting(rows, f"{scene.root}: samples", count))
    first = sample_of(made)
    return Reading(made, first, columns_of(first, _media_alone), notes=notes)


# MDS.


def mds(scene: Scene) -> list[Candidate]:
    """A folder of MDS shards and their index."""
    names = scene.names("shard", "table", "archive", "other")
    folders = [posixpath.dirname(name) for name in names if _is_mds_index(scene, name)]
    if not folders:
        return []
    claims = {name: "MDS" for name in names if posixpath.dirname(name) in folders}
    problem = DatasetError(_several(scene, folders)) if len(folders) > 1 else None

    def read() -> Reading:
        rows = MdsFiles(scene.root / folders[0])
        look = scene.look_at(rows, [f"{folders[0]}/{INDEX}" if folders[0] else INDEX])
        return Reading(rows, look.first, look.columns)

    return [Candidate("mds", CERTAIN, f"{INDEX} is the index of MDS", claims, read, problem)]


def _is_mds_index(scene: Scene, name: str) -> bool:
    """Return whether a file is the index of MDS shards."""
    if posixpath.basename(name) != INDEX:
        return False
    with suppress(DatasetError, OSError, ValueError):
        return b'"shards"' in read_file(scene.root / name)[:100_000_000]
    return False


def _several(scene: Scene, folders: Sequence[str]) -> str:
    """Return the error for several datasets in folders beside one another."""
    lines = "\n".join(f"  path: {scene.path / folder}" for folder in folders[:20])
    return (
        f"{len(folders)} folders have data of their own, such as configurations: "
        f"{listed(folders, 20)}. Write which one is read, or blend several, by one of these:\n{lines}"
    )


FORMATS: Sequence[Callable[[Scene], list[Candidate]]] = (
    mds,
    tables,
    sidecars,
    classes,
    images,
)
"""All formats but tars, which are indexed first."""


def nothing_to_read(scene: Scene) -> NotPreparedError:
    """Return the error for a path without samples."""
    counts = Counter(
        posixpath.splitext(name)[1].lower() or "others" for name in scene.inventory.kinds
    )
    there = ", ".join(f"{count} {suffix}" for suffix, count in counts.items())
    archives = scene.inventory.of_kind("archive")
    packed = f" Unpack {listed(archives)} first." if archives else ""
    return NotPreparedError(
        f"{scene.path} is not a prepared dataset: it has no .nv-meta/.info.json; and it has no "
        f"images or videos, tables, MDS or tars: its files are {there or 'none'}.{packed} A folder "
        f"of shards is prepared with: energize prepare {scene.path}"
    )
