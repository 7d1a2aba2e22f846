"""Split parts of a folder: by names at every level, lists of names, and metadata."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from energize.core.progress import counted
from energize.core.validation import load_yaml, parse_json
from energize.data.files import read_file
from energize.errors import ConfigError, DatasetError, SplitError, nearest, some
from energize.inference.inventory import Inventory
from energize.inference.references import MediaIndex
from energize.inference.words import (
    SAME_PARTS,
    canonical_part,
    is_part_word,
    misspelled_part,
    nearly_part,
    parts_in,
    why_no_class,
    words_of,
)

_HUB_SHARD = re.compile(r"(?P<base>.+?)[-_.]\d{5,}-of-\d{5,}(?:-[0-9a-f]+)?")
_LINES = 50
_CLASS_FOLDERS = 3
_OF_SEVERAL = frozenset(
    ["partition", "partitions"]
)  # list_eval_partition.csv is of all parts


@dataclass(frozen=True)
class SplitAssignment:
    """The files of each split part, and `shared` files of no part.

    `lists` are the files that define the parts. `folders` are the names of folders that
    are split parts. `doubt` is an error that lists the possible meanings of names,
    empty if they are clear. `notes` are decisions for the summary.
    """

    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    folders: frozenset[str] = frozenset()
    doubt: str = ""
    notes: tuple[str, ...] = ()

    def find_part(self, part_name: str) -> str | None:
        """Return the part that a name or a synonym refers to, None if there is none."""
        name = canonical_part(part_name)
        candidates = [part_name, name, *SAME_PARTS.get(name, ())]
        if name == part_name:
            candidates = [part_name, *SAME_PARTS.get(name, ())]
        return next((part for part in candidates if part in self.parts), None)

    def part_named(self, part_name: str, path: object) -> str | None:
        """Return the part that a name refers to, None for all files if there are no
        parts.

        Raises:
            SplitError: If the part does not exist, or names are ambiguous.
        """
        if self.doubt:
            raise SplitError(f"{path}: {self.doubt}")
        matching_part = self.find_part(part_name)
        name = canonical_part(part_name)
        if matching_part is not None:
            return matching_part
        if not self.parts and name == "train":
            return None
        names = [*self.parts]
        similar = [
            part for part in names if name in (*parts_in(part), nearly_part(part))
        ]
        if name == "train" and not similar and all(map(_is_held_out, names)):
            raise SplitError(
                f"{path} has only held-out data: {some(names)}, and no split part "
                f"{part_name!r}. To train on it, write split_part={names[0]!r}"
            )
        choice = f"split_part={similar[0]!r}" if similar else ""
        if not names or (
            name in ("val", "dev", "eval") and "train" in names and not similar
        ):
            choice = "split_part='train', subset={'range': ['90%', '100%']}"
        names = names or ["train"]
        raise SplitError(
            f"{path} has no split part {part_name!r}{nearest(part_name, names) or '.'} "
            f"Its split parts are {some(names)}. Write "
            f"{choice or f'split_part={names[0]!r}'}, or name the files of this part: "
            "files: ['PATTERN', ...]"
        )


def _is_held_out(part: str) -> bool:
    """Return whether the name of a split part is one for held-out data."""
    near = (*parts_in(part), nearly_part(part))[0]
    return near is not None and near != "train"


def find_splits(inventory: Inventory) -> SplitAssignment:
    """Return the split part of each file.

    Metadata (`README.md`, `dataset_dict.json`) override names of folders, and these
    override names of files. Lists of names are read if folders leave media without a
    part.

    Raises:
        ConfigError: If `README.md` names several configurations.
    """
    stated = _by_readme(inventory) or _by_dict(inventory)
    if stated is not None:
        return stated
    marks, doubt = _folder_marks(inventory)
    doubt = _configurations(inventory, {*map(posixpath.basename, marks)}) or doubt
    parts: dict[str, list[str]] = {}
    shared = []
    places = dict.fromkeys(map(posixpath.dirname, inventory.kinds))
    of_folder = {folder: _part_of(folder, marks) for folder in places}
    for name in inventory.kinds:
        part = of_folder[posixpath.dirname(name)] or _part_of_stem(name, inventory)
        if part is None:
            shared.append(name)
        else:
            parts.setdefault(part, []).append(name)
    files = {part: tuple(names) for part, names in parts.items()}
    folders = frozenset(map(posixpath.basename, marks))
    notes = _misspelled(shared, inventory) if files else ()
    splits = SplitAssignment(
        files, tuple(shared), folders=folders, doubt=doubt, notes=notes
    )
    if not {*shared}.isdisjoint(inventory.media):
        return _by_lists(inventory, splits) or splits
    return splits


# What writers say.


def _by_dict(inventory: Inventory) -> SplitAssignment | None:
    """Return the parts that a saved DatasetDict lists."""
    if "dataset_dict.json" not in inventory.kinds:
        return None
    with suppress(ValueError, LookupError, TypeError):
        text = read_file(inventory.root / "dataset_dict.json", "JSON_BYTES")
        listed = parse_json(text)["splits"]
        return _patterns(inventory, {str(name): [f"{name}/*"] for name in listed})
    return None


def _by_readme(inventory: Inventory) -> SplitAssignment | None:
    """Return the parts that the configurations in `README.md` name."""
    if "README.md" not in inventory.kinds:
        return None
    configurations, default = _configurations_of_readme(inventory)
    assignments = {
        name: _patterns(inventory, parts) for name, parts in configurations.items()
    }
    matching = {name: splits for name, splits in assignments.items() if splits.parts}
    if not matching:
        return None
    chosen = [name for name in matching if name in (default or ["default"])]
    if len(matching) > 1 and len(chosen) != 1:
        lines = "\n".join(
            f"  {name}: files: {_first_patterns(configurations[name])}"
            for name in matching
        )
        raise ConfigError(
            f"{inventory.root}/README.md has {len(matching)} configurations: "
            f"{some(matching)}. Write one of these:\n{lines}"
        )
    name = chosen[0] if chosen else next(iter(matching))
    notes = _unmatched(inventory, configurations[name])
    rest = [other for other in matching if other != name]
    if rest:
        lines = ", ".join(
            f"files: {_first_patterns(configurations[other])}" for other in rest
        )
        notes.append(
            f"README.md has the configurations {some(matching)}, and {name!r} is its "
            f"default. To read another one, write {lines}"
        )
    doubt = _doubt_of_patterns(inventory, configurations[name], matching[name])
    return replace(matching[name], notes=tuple(notes), doubt=doubt)


def _first_patterns(parts: Mapping[str, Sequence[str]]) -> str:
    return json.dumps(next(iter(parts.values())))


def _configurations_of_readme(
    inventory: Inventory,
) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Return the patterns of each configuration by split part, and the defaults.

    A README is written for people: invalid contents are ignored.
    """
    data = read_file(inventory.root / "README.md", "YAML_BYTES")
    text = data.decode("utf-8", "replace")
    has_head = text.startswith("---\n") and text.count("---\n") > 1
    head = text.split("---\n", 2)[1] if has_head else ""
    try:
        entries = (load_yaml(head) or {}).get("configs") or []
        patterns = {
            str(entry.get("config_name", "default")): _data_files(entry)
            for entry in entries
        }
        default = [
            str(entry["config_name"])
            for entry in entries
            if entry.get("default") is True
        ]
    except Exception:
        return {}, []
    return {name: parts for name, parts in patterns.items() if parts}, default


def _unmatched(
    inventory: Inventory, patterns: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return a note for each pattern that no file matches."""
    return [
        f"the split part {part!r} of README.md names {pattern!r}, but no file matches "
        "it. Correct the pattern, or add the files"
        for part, wanted in patterns.items()
        for pattern in wanted
        if not any(matches(name, [pattern]) for name in inventory.kinds)
    ]


def _doubt_of_patterns(
    inventory: Inventory, patterns: Mapping[str, Sequence[str]], splits: SplitAssignment
) -> str:
    """Return the error for training files with held-out names."""
    for part, wanted in patterns.items():
        if canonical_part(part) != "train":
            continue
        stated = {
            stated_part for pattern in wanted for stated_part in parts_in(pattern)
        }
        names = splits.parts.get("train", ())
        other = [name for name in names if _held_out_by_name(name, inventory) - stated]
        if other:
            training = json.dumps([name for name in names if name not in other])
            return (
                f"README.md lists {some(wanted)} as the split part {part!r}, but some "
                f"of these are named as held out: {some(other)}. Write "
                f"files: {training} to train without them, files: "
                f"{json.dumps([*wanted])} to train on all, or correct README.md"
            )
    return ""


def _held_out_by_name(name: str, inventory: Inventory) -> set[str]:
    """Return the held-out parts in the names of a file and its folders."""
    words = {_part_of_stem(name, inventory) or ""}
    for folder in posixpath.dirname(name).split("/"):
        words |= {*parts_in(folder)} if is_part_word(folder) else set()
    parts = {part_of_word for word in words for part_of_word in parts_in(word)}
    return parts - {"train"}


def _data_files(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the patterns of each split part of a configuration."""
    files = config.get("data_files")
    if isinstance(files, str | list) and files and not isinstance(files[0], dict):
        files = {"train": files}
    if isinstance(files, list):
        files = {str(entry["split"]): entry["path"] for entry in files}
    base = f"{config['data_dir']}/" if config.get("data_dir") else ""
    patterns = {}
    for part, paths in (files or {}).items():
        listed = [paths] if isinstance(paths, str) else paths
        patterns[part] = [f"{base}{path}" for path in listed]
    return patterns


def _patterns(
    inventory: Inventory, patterns: Mapping[str, Sequence[str]]
) -> SplitAssignment:
    parts: dict[str, tuple[str, ...]] = {}
    for part, wanted in patterns.items():
        names = tuple(name for name in inventory.kinds if matches(name, wanted))
        if names:
            parts[canonical_part(part)] = names
    used = {name for names in parts.values() for name in names}
    return SplitAssignment(
        parts, tuple(name for name in inventory.kinds if name not in used)
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches a pattern; `**/` may match no folder."""
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(name, pattern.replace("**/", ""))
        for pattern in patterns
    )


# Names of folders and files.


def _folder_marks(inventory: Inventory) -> tuple[dict[str, tuple[str, bool]], str]:
    """Return the part of each folder named after one, if exactly, and the doubt."""
    marks: dict[str, tuple[str, bool]] = {}
    doubts = []
    for folders in _children_of_folders(inventory):
        words = {folder: parts_in(posixpath.basename(folder)) for folder in folders}
        marked = {
            folder: parts[0] for folder, parts in words.items() if len(parts) == 1
        }
        siblings = [
            folder
            for folder, has_media in folders.items()
            if has_media and folder not in marked
        ]
        is_certain = len({*marked.values()}) > 1 or not siblings
        for folder, part in marked.items():
            is_exact = is_part_word(posixpath.basename(folder))
            if is_exact or is_certain:
                marks[folder] = part, is_exact
            if is_certain:
                continue
            if is_exact or len(siblings) < _CLASS_FOLDERS:
                doubts.append(_doubt(folder, part, siblings))
    return marks, doubts[0] if doubts else ""


def _children_of_folders(inventory: Inventory) -> Iterable[dict[str, bool]]:
    """Return the folders in each folder, and whether they have media."""
    children: dict[str, dict[str, bool]] = {}
    with_media = {posixpath.dirname(name) for name in inventory.media}
    for start in dict.fromkeys(map(posixpath.dirname, inventory.kinds)):
        folder = start
        while folder:
            siblings = children.setdefault(posixpath.dirname(folder), {})
            siblings[folder] = siblings.get(folder, False) or start in with_media
            folder = posixpath.dirname(folder)
    return children.values()


def _configurations(inventory: Inventory, part_folders: Iterable[str]) -> str:
    """Return the error for folders that have the same files of rows or shards each."""
    files = _files_by_configuration(inventory, frozenset([*part_folders, "data"]))
    counts = Counter(chain.from_iterable(files.values()))
    repeated = [
        folder
        for folder, names in files.items()
        if any(counts[name] > 1 for name in names)
    ]
    are_parts = all(why_no_class(posixpath.basename(folder)) for folder in repeated)
    if len(repeated) < 2 or are_parts:
        return ""
    lines = "\n".join(f"  path: {inventory.root / folder}" for folder in repeated[:20])
    return (
        f"{len(repeated)} folders have the same files, like configurations of one "
        f"dataset: {some(repeated)}. Write one of these, or blend several:\n{lines}"
    )


def _files_by_configuration(
    inventory: Inventory, ignored: frozenset[str]
) -> dict[str, set[str]]:
    """Return the names of the files of rows or shards in each folder without media.

    Folders are named without the `ignored` levels, files without their numbers.
    """
    with_media = {posixpath.dirname(name) for name in inventory.media}
    files: dict[str, set[str]] = {}
    for name in inventory.of_kind("table", "tar", "shard"):
        folder, file = posixpath.split(name)
        if folder in with_media:
            continue
        pieces = [piece for piece in folder.split("/") if piece not in ignored]
        if any(pieces):
            files.setdefault("/".join(pieces), set()).add(_NUMBERS.sub("", file))
    return files


_NUMBERS = re.compile(r"\d[\w-]*")


def _doubt(folder: str, part: str, folders: Sequence[str]) -> str:
    siblings = some(posixpath.basename(sibling) for sibling in folders)
    return (
        f"the folder {folder!r} may be the split part {part!r}, or hold data like "
        f"{siblings} beside it. Write files: ['{folder}/**'] to read it alone, files: "
        f"['**'] to read all folders as one part, or files: ['{folders[0]}/**', ...] "
        "to read the others"
    )


def _part_of(folder: str, marks: Mapping[str, tuple[str, bool]]) -> str | None:
    """Return the part of a folder: of its outermost exact parent, or else marked
    parent.
    """
    folders: list[str] = []
    while folder:
        folders.insert(0, folder)
        folder = posixpath.dirname(folder)
    marked = [marks[folder] for folder in folders if folder in marks]
    exact = (part for part, only in marked if only)
    return next(exact, marked[0][0] if marked else None)


def _part_of_stem(name: str, inventory: Inventory) -> str | None:
    """Return the part in the name of a file of rows, shards or names."""
    kind = inventory.kinds[name]
    may_list = kind == "text" and inventory.is_one_of_few(name)
    if kind not in ("table", "tar") and not may_list:
        return None
    path = posixpath.splitext(name)[0]
    if path in inventory.stems:
        return None
    shard = _HUB_SHARD.fullmatch(posixpath.basename(path))
    base = posixpath.basename(path) if shard is None else shard["base"]
    first = words_of(base)[:1]
    if shard and first and parts_in(first[0]) and not is_part_word(base):
        return base
    parts = parts_in(base) if _OF_SEVERAL.isdisjoint(words_of(base)) else []
    return parts[0] if len(parts) == 1 else None


def _misspelled(names: Sequence[str], inventory: Inventory) -> tuple[str, ...]:
    """Return a note for each name outside of the parts that nearly names one."""
    near: dict[str, tuple[str, int]] = {}
    for name in names:
        kind = inventory.kinds[name]
        *folders, file = name.split("/")
        if kind in ("table", "tar"):
            folders.append(posixpath.splitext(file)[0])
        for piece in folders:
            part = misspelled_part(piece)
            if part is not None and kind in ("image", "av", "table", "tar"):
                near[piece] = part, near.get(piece, (part, 0))[1] + 1
    return tuple(
        f"{piece!r} is not a split part but is similar to {part!r}: "
        f"{counted(count, 'file')}. Rename it if it is one"
        for piece, (part, count) in near.items()
    )


# Lists of names.


def _by_lists(inventory: Inventory, splits: SplitAssignment) -> SplitAssignment | None:
    """Return the parts that text files list, such as `meta/train.txt`."""
    index = MediaIndex(inventory.media)
    parts: dict[str, tuple[str, ...]] = {}
    lists = []
    for part, name in _texts_of_parts(inventory, splits):
        media = listed_media(inventory, name, index)
        if media:
            parts[part] = (*parts.get(part, ()), *media)
            lists.append(name)
    if not parts:
        return None
    used = {*lists, *chain.from_iterable(parts.values())}
    files = {part: [*parts.get(part, ())] for part in {**splits.parts, **parts}}
    for part, names in splits.parts.items():
        files[part] += [name for name in names if name not in used]
    return SplitAssignment(
        {part: tuple(names) for part, names in files.items() if names},
        tuple(name for name in splits.shared if name not in used),
        tuple(lists),
        splits.folders,
        notes=splits.notes,
    )


def _texts_of_parts(
    inventory: Inventory, splits: SplitAssignment
) -> Iterator[tuple[str, str]]:
    """Yield the part and the name of each text file of a split part."""
    for part, names in splits.parts.items():
        for name in names:
            if inventory.kinds[name] == "text":
                yield part, name


def listed_media(inventory: Inventory, name: str, index: MediaIndex) -> list[str]:
    """Return the media that a text file lists by line; empty if it is not a list."""
    if not inventory.is_one_of_few(name):
        return []
    try:
        data = read_file(inventory.root / name, "JSON_BYTES")
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, DatasetError):
        return []
    lines = [*filter(None, map(str.strip, text.splitlines()))]
    matches = [index.find(line)[1] for line in lines[:_LINES]]
    if not matches or any(len(paths) != 1 for paths in matches):
        return []
    return [path for line in lines for path in index.find(line)[1]]
