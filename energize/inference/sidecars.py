"""Files that belong to one image each: by its name beside it, or in a tree of folders beside it."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

KINDS = ("text", "table", "annotation", "other")
"""Kinds of files that may belong to an image; of tables only those in JSON."""


class Sidecar(NamedTuple):
    """A file that belongs to media: the column that it is, and which media these may be."""

    name: str
    column: str
    extension: str
    owners: tuple[str, ...]


def find_sidecars(
    media: Sequence[str], others: Mapping[str, str], part_folders: Collection[str]
) -> list[Sidecar]:
    """Return the files that belong to media.

    Args:
        media: The names of images, videos and sounds.
        others: The kinds of all other files by name.
        part_folders: Names of folders that are split parts, and no level of a tree.

    Returns:
        The files of those extensions, in one place, of which at least half belong to media;
        without owners are those whose image is missing.

    """
    candidates = [
        name for name, kind in others.items() if kind != "table" or name.lower().endswith(".json")
    ]
    if not candidates:
        return []
    folders = {name: _folders(name, part_folders) for name in (*media, *candidates)}
    shared = len(posixpath.commonprefix([*folders.values()])) if media else 0
    by_stem: dict[str, list[str]] = {}
    by_rest: dict[tuple[str, ...], list[str]] = {}
    for name in media:
        stem = posixpath.splitext(name)[0]
        for each in {stem, name}:
            by_stem.setdefault(each, []).append(name)
        by_rest.setdefault((*folders[name][shared + 1 :], posixpath.basename(stem)), []).append(
            name
        )
    groups: dict[tuple[str, str], list[Sidecar]] = {}
    for name in candidates:
        stem, suffix = posixpath.splitext(name)
        extension = suffix[1:].lower() or "bin"
        beside = by_stem.get(stem, [])
        tree = folders[name][shared : shared + 1]
        rest = (*folders[name][shared + 1 :], posixpath.basename(stem))
        owners = beside or (by_rest.get(rest, []) if tree else [])
        place = tree[0] if tree and owners and not beside else ""
        sidecar = Sidecar(name, place or extension, extension, tuple(owners))
        groups.setdefault((place, extension), []).append(sidecar)
    return [
        each
        for files in groups.values()
        if 2 * sum(bool(sidecar.owners) for sidecar in files) >= len(files)
        for each in files
    ]


def _folders(name: str, part_folders: Collection[str]) -> tuple[str, ...]:
    """Return the folders of a file that are no split parts."""
    folders = posixpath.dirname(name).split("/")
    return tuple(each for each in folders if each and each not in part_folders)
