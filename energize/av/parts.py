"""Decoding the parts of samples that are videos and sounds."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal, get_args

from energize.av.decoder import AVDecoder
from energize.av.opening import open_container, opened
from energize.errors import ConfigError, nearest

AVDecoderType = Literal["torch", "AVDecoder", "pyav"]

AV_EXTENSIONS = frozenset({"mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"})
"""The parts that are decoded as videos and sounds."""


@dataclass(frozen=True)
class AVWebdatasetDecoder:
    """Makes of the bytes of a video or sound what `av_decode` names.

    "AVDecoder" is an `AVDecoder`, which decodes when it is asked; "torch" an `AVData` of all
    frames, or all sound where there is no video, and with `video_decode_audio` of both; "pyav" an
    open container of PyAV, which cannot be sent to another process.

    Raises `ConfigError` for another name.
    """

    video_decode_audio: bool = False
    av_decode: AVDecoderType = "AVDecoder"

    def __post_init__(self) -> None:
        known = get_args(AVDecoderType)
        if self.av_decode not in known:
            raise ConfigError(
                f"av_decode={self.av_decode!r} is not one of {', '.join(known)}"
                f"{nearest(str(self.av_decode), known)}"
            )

    def __call__(self, key: str, data: bytes) -> Any:
        """What the part `key` holds; None for parts that are neither video nor sound.

        Raises `DecodeError` naming the part, unless an `AVDecoder` is asked for, whose methods do.
        """
        if key.rpartition(".")[2].lower() not in AV_EXTENSIONS:
            return None
        return self.decoded(key, data)

    def decoded(self, key: str, data: bytes) -> Any:
        """As `__call__`, for a part of any name that is a video or a sound."""
        decoder = AVDecoder(data, name=f"part {key!r}")
        if self.av_decode == "AVDecoder":
            return decoder
        if self.av_decode == "torch":
            return decoder.get_frames(video_decode_audio=self.video_decode_audio)
        stream = io.BytesIO(data)
        with opened(stream, f"part {key!r} of {len(data)} bytes"):
            pass  # damage is told of here, in words
        return open_container(stream)
