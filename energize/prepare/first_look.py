"""A look at the first samples of a shard: what a choice of sample type and fields is based on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from energize.storage.tar import Part, ScannedSample, scan

_PREVIEW = 120
_LARGEST_JSON = 1 << 20
_TEXT = ("txt", "text", "json", "jsn", "cls", "cls2", "transcript")


@dataclass(frozen=True, slots=True)
class FirstLook:
    """The first samples of a shard, the parts of all its samples, and what text parts start with.

    `previews` holds, per sample and part name, the start of each text. `json_keys` are the keys of
    the first sample's `json` part.
    """

    samples: tuple[ScannedSample, ...]
    parts: tuple[str, ...]
    previews: tuple[Mapping[str, str], ...]
    json_keys: tuple[str, ...]


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
    return FirstLook(samples, parts, previews, keys)


def _is_text(part: str) -> bool:
    return part.rsplit(".", 1)[-1] in _TEXT


def _preview(shard: Path, part: Part) -> str:
    text = _read(shard, part, 4 * _PREVIEW).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 3]}..."


def _keys(data: bytes) -> tuple[str, ...]:
    try:
        content = json.loads(data)
    except ValueError:
        return ()
    return tuple(content) if isinstance(content, dict) else ()


def _read(shard: Path, part: Part, limit: int) -> bytes:
    with shard.open("rb") as file:
        return os.pread(file.fileno(), min(part.size, limit), part.offset)
