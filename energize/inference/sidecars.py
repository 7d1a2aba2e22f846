"""Files that belong to one image each: beside it, in its folder, or in a tree of
folders.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

KINDS = ("text", "table", "annotation", "other")
"""Kinds of files that may belong to an image; of tables only those in JSON."""


class SidecarFile(NamedTuple):
    """A file that belongs to media: the column that it is, and which media these may
    be.
    """

    name: str
    column: str
    extension: str
    owners: tuple[str, ...]


def find_sidecars(
    media: Sequence[str], others: Mapping[str, str], part_folders: Collection[str]
) -> list[SidecarFile]:
    """Return the files that belong to media.

    Args:
        media: The names of images, videos and sounds.
        others: The kinds of all other files by name.
        part_folders: Names of folders that are split parts, and no level of a tree.

    Returns:
        The files of those extensions, in one place, of which at least half belong to
        media; without owners are those whose image is missing.

    """
    candidates = [
        name
        for name, kind in others.items()
        if kind != "table" or name.lower().endswith(".json")
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
        by_rest.setdefault(
            (*folders[name][shared + 1 :], posixpath.basename(stem)), []
        ).append(name)
    own = _in_own_folders(media, candidates)
    groups: dict[tuple[str, str], list[SidecarFile]] = {}
    for name in candidates:
        stem, suffix = posixpath.splitext(name)
        extension = suffix[1:].lower() or "bin"
        beside = by_stem.get(stem, own.get(name, []))
        tree = folders[name][shared : shared + 1]
        rest = (*folders[name][shared + 1 :], posixpath.basename(stem))
        owners = beside or (by_rest.get(rest, []) if tree else [])
        place = tree[0] if tree and owners and not beside else ""
        sidecar = SidecarFile(name, place or extension, extension, tuple(owners))
        groups.setdefault((place, extension), []).append(sidecar)
    return [
        each
        for files in groups.values()
        if 2 * sum(bool(sidecar.owners) for sidecar in files) >= len(files)
        for each in files
    ]


def _in_own_folders(
    media: Sequence[str], others: Sequence[str]
) -> dict[str, list[str]]:
    """Return the media of files that are alone with one in a folder, as in
    `17/image.png`.

    All folders have a file of the same name, and media of the same name.
    """
    by_folder: dict[str, list[str]] = {}
    for name in media:
        by_folder.setdefault(posixpath.dirname(name), []).append(name)
    if len(by_folder) < 2 or len({posixpath.basename(name) for name in media}) > 1:
        return {}
    by_name: dict[str, list[str]] = {}
    for name in others:
        if posixpath.dirname(name) in by_folder:
            by_name.setdefault(posixpath.basename(name), []).append(name)
    return {
        name: by_folder[posixpath.dirname(name)]
        for names in by_name.values()
        if len(names) == len(by_folder)
        for name in names
    }


def _folders(name: str, part_folders: Collection[str]) -> tuple[str, ...]:
    """Return the folders of a file that are no split parts."""
    folders = posixpath.dirname(name).split("/")
    return tuple(each for each in folders if each and each not in part_folders)
