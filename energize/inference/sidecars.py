"""Files that belong to one image: next to it, in its folder, or in a parallel tree."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

KINDS = ("text", "table", "annotation", "other")
"""Kinds of files that may belong to an image; of tables only those in JSON."""


class SidecarFile(NamedTuple):
    """A file that belongs to media: its column, and its possible media."""

    name: str
    column: str
    extension: str
    owners: tuple[str, ...]


def find_sidecars(
    media: Sequence[str], kinds: Mapping[str, str], part_folders: Collection[str]
) -> list[SidecarFile]:
    """Return the files that belong to media.

    Args:
        media: Names of images, videos and sounds.
        kinds: Kinds of all other files by name.
        part_folders: Names of folders that are split parts, not levels of a tree.

    Returns:
        The files of all extensions, per tree, of which at least half belong to media.
        Files without owners lack their image.
    """
    candidates = [
        name
        for name, kind in kinds.items()
        if kind != "table" or name.lower().endswith(".json")
    ]
    if not candidates:
        return []
    trees = _Trees(media, candidates, part_folders)
    by_stem: dict[str, list[str]] = {}
    for name in media:
        for key in {posixpath.splitext(name)[0], name}:
            by_stem.setdefault(key, []).append(name)
    in_folders = _in_folders_of_media(media, candidates)
    groups: dict[tuple[str, str], list[SidecarFile]] = {}
    for name in candidates:
        stem, suffix = posixpath.splitext(name)
        extension = suffix[1:].lower() or "bin"
        owners = by_stem.get(stem, in_folders.get(name, []))
        tree = ""
        if not owners:
            tree, owners = trees.owners(name)
        sidecar = SidecarFile(name, tree or extension, extension, tuple(owners))
        groups.setdefault((tree, extension), []).append(sidecar)
    owned = (files for files in groups.values() if _are_owned(files))
    return [*chain.from_iterable(owned)]


class _Trees:
    """Trees of equal folders, such as `images/a/1.jpg` and `texts/a/1.txt`."""

    def __init__(
        self,
        media: Sequence[str],
        candidates: Sequence[str],
        part_folders: Collection[str],
    ) -> None:
        self._folders = {
            name: _folders(name, part_folders) for name in (*media, *candidates)
        }
        prefix = posixpath.commonprefix([*self._folders.values()])
        self._depth = len(prefix) if media else 0
        self._media: dict[tuple[str, ...], list[str]] = {}
        for name in media:
            self._media.setdefault(self._below(name), []).append(name)

    def owners(self, name: str) -> tuple[str, list[str]]:
        """Return the tree of a file, and the media of equal names in another tree."""
        if len(self._folders[name]) <= self._depth:
            return "", []
        media = self._media.get(self._below(name), [])
        return (self._folders[name][self._depth] if media else ""), media

    def _below(self, name: str) -> tuple[str, ...]:
        """Return the folders of a file below its tree, and its stem."""
        stem = posixpath.splitext(name)[0]
        return (*self._folders[name][self._depth + 1 :], posixpath.basename(stem))


def _are_owned(files: Sequence[SidecarFile]) -> bool:
    """Return whether at least half of some files belong to media."""
    return 2 * sum(bool(file.owners) for file in files) >= len(files)


def _in_folders_of_media(
    media: Sequence[str], candidates: Sequence[str]
) -> dict[str, list[str]]:
    """Return the media of files that share a folder with one, as in `17/image.png`.

    All folders have files of equal names, and media of equal names.
    """
    by_folder: dict[str, list[str]] = {}
    for name in media:
        by_folder.setdefault(posixpath.dirname(name), []).append(name)
    if len(by_folder) < 2 or len({posixpath.basename(name) for name in media}) > 1:
        return {}
    by_name: dict[str, list[str]] = {}
    for name in candidates:
        if posixpath.dirname(name) in by_folder:
            by_name.setdefault(posixpath.basename(name), []).append(name)
    return {
        name: by_folder[posixpath.dirname(name)]
        for names in by_name.values()
        if len(names) == len(by_folder)
        for name in names
    }


def _folders(name: str, part_folders: Collection[str]) -> tuple[str, ...]:
    """Return the folders of a file that are not split parts."""
    folders = posixpath.dirname(name).split("/")
    return tuple(folder for folder in folders if folder and folder not in part_folders)
