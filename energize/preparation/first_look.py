"""A look at the first samples of a shard: what a choice of sample type and fields is based on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from energize.data.tar import Part, ScannedSample, scan
from energize.errors import DataError, PrepareError
from energize.task.fields import PartAccess, parse_field

_PREVIEW = 120
_LARGEST_JSON = 1 << 20
_COMPARED = 100
"""Samples whose JSON is looked into for the keys of a field map."""
_REASONS, _KEYS = 2, 20
"""How many reasons, and how many keys, a message names."""
_TEXT = ("txt", "text", "json", "jsn", "cls", "cls2", "transcript")


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The first samples of a shard, the parts of all its samples, and what text parts start with.

    `previews` holds, per sample and part name, the start of each text. `json_keys` are the keys of
    the first sample's `json` part. `compared` are more of the first samples.
    """

    samples: tuple[ScannedSample, ...]
    parts: tuple[str, ...]
    previews: tuple[Mapping[str, str], ...]
    json_keys: tuple[str, ...]
    shard: Path
    compared: tuple[ScannedSample, ...]

    def check_keys(self, field: str, source: str) -> None:
        """Raises `PrepareError` when none of these samples has anything where the description
        `source` of a field looks into JSON; it names the keys that there are, the nearest first.
        """
        options = parse_field(source)
        reasons: dict[str, None] = {}
        for sample in self.compared:
            parts = {part.name: part for part in sample.parts}
            for access in options:
                if access.part not in parts:
                    continue
                reason = access.keys and self._missing(access, parts[access.part])
                if not reason:
                    return
                reasons[reason] = None
        if reasons:
            looked = (
                f"the first {len(self.compared)} samples" if self.compared[1:] else "the sample"
            )
            raise PrepareError(
                f"field map: {field!r} is to come from {source!r}, but in {looked} of {self.shard} "
                f"{'; '.join(list(reasons)[:_REASONS])}"
            )

    def _missing(self, access: PartAccess, part: Part) -> str:
        """Why the keys lead nowhere in this part; nothing when they do not."""
        if part.size > _LARGEST_JSON:
            return ""
        try:
            value = json.loads(_read(self.shard, part, part.size))
        except (ValueError, RecursionError) as reason:
            return f"{part.name} is not JSON: {reason}"
        for depth, key in enumerate(access.keys):
            here = PartAccess(access.part, access.keys[:depth])
            try:
                value = PartAccess(access.part, (key,)).within(value)
            except DataError as reason:
                if not isinstance(value, dict):
                    return f"{here} has no {key!r}: {str(reason).rpartition(': ')[2]}"
                near = sorted(value, key=lambda k: -SequenceMatcher(None, str(k), key).ratio())
                keys = ", ".join(repr(k) for k in near[:_KEYS]) + (", ..." * (len(near) > _KEYS))
                return f"{here} has no key {key!r}; it has {keys or 'none'}"
        return ""


def look_at(shard: Path, count: int = 3) -> FirstLook:
    """The first `count` samples of a shard; raises `ShardError` as `scan` does."""
    scanned = scan(shard).samples
    samples = tuple(scanned[:count])
    parts = tuple(dict.fromkeys(part.name for sample in scanned for part in sample.parts))
    previews = tuple(
        {part.name: _preview(shard, part) for part in sample.parts if _is_text(part.name)}
        for sample in samples
    )
    first = {part.name: part for sample in samples[:1] for part in sample.parts}
    keys = _keys(_read(shard, first["json"], _LARGEST_JSON)) if "json" in first else ()
    return FirstLook(samples, parts, previews, keys, shard, tuple(scanned[:_COMPARED]))


def _is_text(part: str) -> bool:
    return part.rsplit(".", 1)[-1] in _TEXT


def _preview(shard: Path, part: Part) -> str:
    text = _read(shard, part, 4 * _PREVIEW).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 3]}..."


def _keys(data: bytes) -> tuple[str, ...]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ()
    return tuple(content) if isinstance(content, dict) else ()


def _read(shard: Path, part: Part, limit: int) -> bytes:
    with shard.open("rb") as file:
        return os.pread(file.fileno(), min(part.size, limit), part.offset)
