"""Opening a video or sound with PyAV, and what damaged ones raise."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from energize.errors import DecodeError
from energize.optional import optional_module

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

# FFmpeg recognises formats by content, whatever a part is called. Playlists and the like are among
# them, which make it open other files and addresses. Only these are ever tried.
_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,asf,au,avi,caf,flac,flv,gif,m4a,m4v,matroska,mj2,mov,mp3,mp4,mpeg,"
    "mpegts,mpegvideo,ogg,w64,wav,webm"
)
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "data"}


def pyav() -> Any:
    """PyAV; `ConfigError` naming the extra where it is missing."""
    return optional_module("av", "energize[av]", "decoding video and audio")


def open_container(stream: BinaryIO) -> InputContainer:
    """The container in `stream`, read from its beginning.

    Decoding starts no threads: they do not survive the fork of a worker, and workers are what
    decodes in parallel. Raises what PyAV raises.
    """
    stream.seek(0)
    # Not as `options`, which are those of streams too: PyAV 17 writes beyond its memory where
    # streams are found after the header, as in FLV.
    container: InputContainer = pyav().open(stream, "r", container_options=_OPTIONS)
    try:
        for stream_ in container.streams:
            context = getattr(stream_, "codec_context", None)
            if context is not None and stream_.type in ("video", "audio"):
                context.thread_type = "NONE"
                context.thread_count = 1
    except BaseException:
        container.close()
        raise
    return container


@contextmanager
def opened(stream: BinaryIO, what: str) -> Iterator[InputContainer]:
    """The container in `stream`; errors of PyAV inside the block become `DecodeError`s of `what`.

    A TimeoutError of a signal handler is none of them.
    """
    av = pyav()
    try:
        with open_container(stream) as container:
            yield container
    except (av.FFmpegError, IndexError, struct.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DecodeError(
            f"{what} cannot be decoded: {type(error).__name__}: {reason}; is the file complete, "
            "and of a format that FFmpeg reads?"
        ) from error


def video_stream(container: InputContainer) -> VideoStream | None:
    """The first stream of moving pictures that can be decoded; the cover of a sound is none."""
    cover = pyav().stream.Disposition.attached_pic
    streams = (each for each in container.streams.video if each.codec_context is not None)
    return next((each for each in streams if not each.disposition & cover), None)


def audio_stream(container: InputContainer) -> AudioStream | None:
    """The first stream of sound that can be decoded."""
    return next((each for each in container.streams.audio if each.codec_context is not None), None)
