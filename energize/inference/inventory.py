"""The files below a folder with their kinds; system files are set aside."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from energize.core.progress import counting
from energize.data.files import LISTED, absolute, documents_in_use, files_at
from energize.data.media import HEAD, MediaMetadataType, kind_by_name, kind_by_start
from energize.data.tables import LANCE
from energize.errors import DatasetError
from energize.inference.words import (
    DOCUMENTS,
    KINDS,
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    words_of,
)
from energize.preparation.scan import files_below

MEDIA = ("image", "av")
"""Kinds of files that are media."""

_HEADS_READ = 8
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_OF_LANCE = re.compile(rf"(\{LANCE})/.*")
"""A file below a folder of Lance, which is one table."""
_FEW = 20  # text files in a folder; more are texts of samples


@dataclass(frozen=True)
class Inventory:
    """The files below `root`: the kind of each by its relative name.

    Kinds are `image`, `av`, `table`, `text`, `annotation`, `archive`, `tar`, `shard`
    (of MDS), `document` and `other`. `aside` lists files without data, by the reason.
    """

    root: Path
    kinds: dict[str, str]
    aside: dict[str, list[str]] = field(default_factory=dict)

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the names of all files of some kinds, in their order."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @cached_property
    def media(self) -> list[str]:
        """The names of all images, videos and sounds."""
        return self.of_kind(*MEDIA)

    @cached_property
    def stems(self) -> frozenset[str]:
        """The paths of all media without their extensions."""
        return frozenset(posixpath.splitext(name)[0] for name in self.media)

    def is_one_of_few(self, name: str) -> bool:
        """Return whether few texts are in the folder of a text, so it may be a list or
        table.
        """
        return self._texts[posixpath.dirname(name)] <= _FEW

    @cached_property
    def _texts(self) -> Counter[str]:
        return Counter(map(posixpath.dirname, self.of_kind("text")))

    def inside(self, folder: str) -> Inventory:
        """Return the inventory of a folder, with names relative to it."""
        start = f"{folder}/"
        inner = {
            n.removeprefix(start): k
            for n, k in self.kinds.items()
            if n.startswith(start)
        }
        return Inventory(self.root / folder, inner)

    def below(self, names: Iterable[str]) -> Inventory:
        """Return the inventory of some files only."""
        return Inventory(
            self.root, {name: self.kinds[name] for name in names}, self.aside
        )


def take_inventory(root: Path) -> Inventory:
    """List the files of a folder once; of ranks that share documents, one lists.

    Raises:
        DatasetError: If a folder below cannot be read.
    """
    kinds: dict[str, str] = {}
    aside: dict[str, list[str]] = {}
    names = _names_below(root)
    caches = {
        path.partition("snapshots/")[0] for path in names if "/snapshots/" in f"/{path}"
    }
    cached = tuple(
        f"{cache}{folder}/" for cache in caches for folder in ("blobs", "refs")
    )
    for name in names:
        inside = name.startswith(cached) if cached else False
        reason = "of the cache of huggingface_hub" if inside else _why_aside(name)
        if reason:
            aside.setdefault(reason, []).append(name)
        else:
            kinds[name] = kind_of(name)
    _look_into_unknown(root, kinds)
    if any(name.endswith((".arrow", ".arrows")) for name in kinds):
        for name in [*kinds]:
            if posixpath.basename(name) in ("state.json", "dataset_info.json"):
                aside.setdefault("written by Hugging Face's datasets", []).append(name)
                del kinds[name]
    return Inventory(root, kinds, aside)


def _names_below(root: Path) -> list[str]:
    documents = documents_in_use.get()
    key = f"{absolute(root)}{LISTED}"
    if documents is not None and documents.texts.get(key):
        return json.loads(documents.texts[key] or "")  # type: ignore[no-any-return]
    wrong: dict[str, str] = {}
    files = files_below(root, [], wrong, hidden=True)
    listed = sorted(counting(files, f"{root}: files"))
    names = [*dict.fromkeys(_OF_LANCE.sub(r"\1", name) for name in listed)]
    if wrong:
        folders = ", ".join(list(wrong)[:3])
        raise DatasetError(
            f"{root} has folders that cannot be read: {folders}. Grant read access to "
            "this user"
        )
    if documents is not None:
        documents.texts[key] = json.dumps(names)
    return names


def _why_aside(name: str) -> str:
    """Return why a file has no data, an empty text if it may have some."""
    *folders, file = name.lower().rstrip("/").split("/")
    for folder in folders:
        if folder in SYSTEM_FOLDERS:
            return SYSTEM_FOLDERS[folder]
    if file.startswith("._"):
        return "forks of macOS"
    if file.startswith("cache-") and file.endswith(".arrow"):
        return "written by Hugging Face's datasets"
    if file in SYSTEM_FILES:
        return SYSTEM_FILES[file]
    return "hidden" if any(piece.startswith(".") for piece in (*folders, file)) else ""


def kind_of(name: str) -> str:
    """Return the kind of a file by its name, an empty text if the name is unknown.

    Example:
        >>> (
        ...     kind_of("photos/0.JPG"),
        ...     kind_of("metadata.csv"),
        ...     kind_of("README.md"),
        ...     kind_of("blob"),
        ... )
        ('image', 'table', 'document', '')
    """
    file = posixpath.basename(name)
    stem, suffix = posixpath.splitext(file)
    media = kind_by_name(name)
    if media is not None:
        return str(media.value)
    if words_of(stem)[:1] and words_of(stem)[0] in DOCUMENTS:
        return "document"
    if file in ("dataset_dict.json", "dataset_infos.json"):
        return "document"
    return KINDS.get(suffix[1:].lower(), "")


def _look_into_unknown(root: Path, kinds: dict[str, str]) -> None:
    """Replace unknown kinds by those of the first bytes of files.

    A few files of one extension in a folder are read; all if these differ.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, kind in kinds.items():
        if not kind:
            folder, file = posixpath.split(name)
            groups.setdefault((folder, posixpath.splitext(file)[1].lower()), []).append(
                name
            )
    for names in groups.values():
        step = max(1, len(names) // _HEADS_READ)
        kinds_inside = {name: kind_inside(root, name) for name in names[::step]}
        is_uniform = len({*kinds_inside.values()}) == 1
        for name in names:
            kinds[name] = (
                next(iter(kinds_inside.values()))
                if is_uniform
                else kind_inside(root, name)
            )


def kind_inside(root: Path, name: str) -> str:
    """Return the kind of a file by its first bytes."""
    path = str(root / name)
    files = files_at(root)
    head = files.read(path, 0, min(HEAD, files.size(path)))
    kind = kind_by_start(head)
    if kind is None:
        return "text" if head and not _BINARY.search(head) else "other"
    return str(MediaMetadataType(kind).value)
