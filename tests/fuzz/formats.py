"""What is fuzzed: folders that real writers made, the files in them to damage, and how
they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.extras.av import AVDecoder
from energize.testing import fingerprint

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Seen:
    """What reading a folder gave: items by position, the failures that were told of,
    and the description of what was read.
    """

    items: tuple[str, ...]
    reported: tuple[str, ...] = ()
    described: str = ""


@dataclass(frozen=True)
class Corpus:
    """A folder: what writes it, and how its users read it.

    Of a `fresh` one each mutant is a copy, as reading writes into it.
    """

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Seen]
    fresh: bool = False


@dataclass(frozen=True)
class Format:
    """Files of a corpus that are damaged in one way.

    `kind` is "bytes", "text", "json", "yaml" or "toml". Where other samples come
    without a word, it is the content of the `unchecked` bytes of the file (of the old
    one, given both), those that no checksum covers; or what `describes` data,
    well-formed and of another meaning; else it is silently wrong. `named`: what every
    error has one of, beside the name of the file or of its folder.
    """

    name: str
    corpus: Corpus
    files: str
    kind: str = "bytes"
    unchecked: Callable[[bytes, bytes], Ranges] | None = None
    describes: bool = False
    named: Sequence[str] = ()
    cost: float = 1.0
    """How long a mutant takes, beside that of a folder of shards: dear ones are
    fewer."""


def everything(old: bytes, _: bytes) -> Ranges:
    """All bytes of a file."""
    return [(0, len(old) + 1)]


def told(value: Any) -> str:
    """A text that is the same for the same content: of arrays, images and videos
    too."""
    content = _clips(value) if isinstance(value, AVDecoder) else value
    return f"{type(value).__name__} {fingerprint(content)}"


def _clips(decoder: AVDecoder) -> list[Any]:
    """What a user takes of a video or sound."""
    found: list[Any] = [decoder.get_metadata()]
    if decoder.has_video_stream():
        found.append(decoder.get_clips(video_clip_ranges=[(0, 5)], video_unit="frames"))
    if decoder.has_audio_stream():
        found.append(
            decoder.get_clips(audio_clip_ranges=[(0, 900)], audio_unit="samples")
        )
    return found
