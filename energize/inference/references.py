"""Lookup of the files that values of tables name: by path, name, stem or number."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

_NUMBER = re.compile(r"(\d+)$")

EXACT, STEM, NUMBER = range(3)
"""How a value names a file: by its name, by its stem, or by the number at its end."""


def normal(name: str) -> str:
    """Return the normal form of a file name: composed characters, without a leading
    `./`.
    """
    return unicodedata.normalize(
        "NFC", posixpath.normpath(name.replace("\\", "/")).lstrip("/")
    )


class MediaIndex:
    """The media of a folder, by the names that rows may use."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)

    @cached_property
    def paths(self) -> dict[str, str]:
        """The files by their normal paths."""
        return {normal(name): name for name in self.names}

    @cached_property
    def _by(
        self,
    ) -> tuple[dict[str, list[str]], dict[str, list[str]], dict[str, list[str]]]:
        indexes: tuple[dict[str, list[str]], ...] = ({}, {}, {})
        for path in self.paths:
            base = posixpath.basename(path)
            stem = posixpath.splitext(base)[0]
            indexes[EXACT].setdefault(base, []).append(path)
            indexes[STEM].setdefault(stem, []).append(path)
            if number := _NUMBER.search(stem):
                indexes[NUMBER].setdefault(str(int(number[1])), []).append(path)
        return indexes  # type: ignore[return-value]

    def find(self, value: Any, below: str = "") -> tuple[int, list[str]]:
        """Return how a value names files, and the files that it may name.

        Files in folders that agree with the value, or in the folder `below`, are
        preferred.
        """
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return EXACT, []
        text = normal(str(value))
        near = f"{below}/{value}" if below else value
        for path in (near, posixpath.normpath(posixpath.join(below, text)), text):
            if path in self.paths:
                return EXACT, [self.paths[path]]
        *folders, base = text.split("/")
        for how, key in _keys_of(base):
            paths = self._by[how].get(key)
            if paths:
                return how, self._best(paths, folders, below)
        return EXACT, []

    def _best(
        self, paths: Sequence[str], folders: Sequence[str], below: str
    ) -> list[str]:
        """Return the files that agree most with the folders of a value."""
        agreements = [_agreement(path, folders, below) for path in paths]
        best = max(agreements)
        return [
            self.paths[path]
            for path, agreement in zip(paths, agreements, strict=True)
            if agreement == best
        ]


def _keys_of(base: str) -> list[tuple[int, str]]:
    """Return the keys of a file name, by how they name files."""
    keys = [(EXACT, base), (STEM, base)]
    if base.isdigit() and base.isascii():
        keys.append((NUMBER, str(int(base))))
    return keys


def _agreement(path: str, folders: Sequence[str], below: str) -> tuple[int, bool]:
    """Return the number of last folders shared with a value, and whether the path is
    below.
    """
    count = 0
    pairs = zip(path.split("/")[-2::-1], reversed(folders), strict=False)
    for folder, expected in pairs:
        if folder != expected:
            break
        count += 1
    return count, below != "" and path.startswith(f"{below}/")


def template_of(value: Any, path: str) -> str | None:
    """Return the template that makes the path of a file from a value.

    The templates are those of `energize.data.loose.fill`.

    Example:
        >>> (
        ...     template_of("images/7.jpg", "coco/images/7.jpg"),
        ...     template_of(7, "COCO_000007.jpg"),
        ... )
        ('coco/{}', 'COCO_{:06d}.jpg')
    """
    text = str(value)
    normalised = normal(text)
    at = normal(path).rfind(normalised)
    if "{" in path:
        return None
    if at >= 0 and (
        not normalised.isdigit() or _is_whole_number(path, at, len(normalised))
    ):
        return f"{path[:at]}{{}}{path[at + len(normalised) :]}"
    stem, extension = posixpath.splitext(path)
    number = _NUMBER.search(stem)
    if text.isdigit() and number and int(number[1]) == int(text):
        return f"{stem[: number.start()]}{{:0{len(number[1])}d}}{extension}"
    return None


def _is_whole_number(path: str, at: int, length: int) -> bool:
    """Return whether digits in a path are not part of a longer number."""
    return (
        not path[at - 1 : at].isdigit()
        and not path[at + length : at + length + 1].isdigit()
    )
