"""Which files are images, videos or sounds: by their names, or by how they start."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import BinaryIO

import PIL.Image

from energize.errors import ConfigError, DecodeError, EnergizeError
from energize.extras.av import (
    AVDecoder,
    AVMetadata,
    ImageMetadata,
    MediaMetadataBase,
    MediaMetadataType,
    deserialize_media_metadata,
    serialize_media_metadata,
)

__all__ = [
    "AVMetadata",
    "ImageMetadata",
    "MediaMetadataBase",
    "MediaMetadataType",
    "deserialize_media_metadata",
    "serialize_media_metadata",
]


HEAD = 64
"""How many bytes of the start of a file are looked at."""

_IMAGE_EXTENSIONS = frozenset(
    ["bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp"]
)
_AV_EXTENSIONS = frozenset(
    ["aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm"]
)

_IMAGE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\x01\0",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\xff\x4f\xff\x51",
)
_AV_STARTS = (
    b"\x1a\x45\xdf\xa3",  # Matroska, WebM
    b"OggS",
    b"fLaC",
    b"ID3",
    b"FLV\x01",
    b"#!AMR",
    b"caff",
    b"\0\0\x01\xb3",  # MPEG
    b"\0\0\x01\xba",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF
    # Frames of MPEG audio, with and without a checksum, and of AAC.
    *(bytes([0xFF, second]) for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xF1, 0xF9)),
)
_RIFF_KINDS = {
    b"WEBP": MediaMetadataType.IMAGE,
    b"AVI ": MediaMetadataType.AV,
    b"WAVE": MediaMetadataType.AV,
}
_IMAGE_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"})


def kind_by_name(name: str) -> MediaMetadataType | None:
    """What the extension of a file says.

    >>> kind_by_name("photos/1.meta.JPG").value, kind_by_name("1.json")
    ('image', None)
    """
    extension = PurePosixPath(name).suffix[1:].lower()
    if extension in _IMAGE_EXTENSIONS:
        return MediaMetadataType.IMAGE
    return MediaMetadataType.AV if extension in _AV_EXTENSIONS else None


def kind_by_start(head: bytes) -> MediaMetadataType | None:
    """What the first `HEAD` bytes of a file say.

    >>> kind_by_start(b"GIF89a....").value, kind_by_start(b'{"a": 1}')
    ('image', None)
    """
    if head.startswith(_IMAGE_STARTS):
        # Two letters are too little to tell a bitmap from a text: its header says its own size.
        short = head.startswith(b"BM") and (len(head) < 18 or head[15:18] != b"\0\0\0")
        return None if short else MediaMetadataType.IMAGE
    if head[:4] == b"RIFF":
        return _RIFF_KINDS.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return MediaMetadataType.AV
    if head[4:8] == b"ftyp":
        return MediaMetadataType.IMAGE if head[8:12] in _IMAGE_BRANDS else MediaMetadataType.AV
    return MediaMetadataType.AV if head.startswith(_AV_STARTS) else None


# From files to what is known of them: which are media, and their metadata.

SourceData = bytes | str | os.PathLike[str] | BinaryIO

# Formats are recognised by content, and reading some runs another program. Only these are tried.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "TGA", "ICO")


class MediaFilterStrategy(StrEnum):
    """By what a file is taken for an image, a video or a sound."""

    EXTENSION = "EXTENSION"
    """By the end of its name."""
    HEADER = "HEADER"
    """By its first bytes; by its name where these tell nothing."""
    GLOB = "GLOB"
    """By patterns that the whole name matches; what kind it is, by its name or first bytes."""


@dataclass(frozen=True)
class MediaFilterConfig:
    """Which files are media. `patterns` are those of the strategy GLOB, `*.jpg` say.

    In patterns `*` stands for any text, slashes too; upper and lower case are alike. Raises
    `ConfigError` for a strategy without the patterns it needs, or with some it has no use for.

    >>> MediaFilterConfig(MediaFilterStrategy.GLOB, ["*.jpg"]).should_consider_media("a/1.JPG")
    True
    """

    strategy: MediaFilterStrategy
    patterns: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = [each for each in self.patterns if each]
        if (self.strategy == MediaFilterStrategy.GLOB) != bool(given):
            raise ConfigError(
                f"media filter {self.strategy}: patterns are given with GLOB, and only with it; "
                f"got {self.patterns!r}"
            )

    @classmethod
    def parse(
        cls, glob: str | None = None, header: bool = False, extension: bool = False
    ) -> MediaFilterConfig:
        """The filter that one of three options asks for; `glob` may be patterns with commas.

        Raises `ConfigError` unless exactly one is given.

        >>> MediaFilterConfig.parse("*.jpg,*.png").patterns
        ['*.jpg', '*.png']
        """
        if sum(map(bool, (glob, header, extension))) != 1:
            raise ConfigError(
                "media are told by exactly one of: a glob pattern (several with commas), the "
                "header of files, or their extension"
            )
        if glob:
            return cls(MediaFilterStrategy.GLOB, [each.strip() for each in glob.split(",")])
        return cls(MediaFilterStrategy.HEADER if header else MediaFilterStrategy.EXTENSION)

    def should_consider_all(self) -> bool:
        """Whether names tell nothing, so that every file is looked into."""
        return self.strategy == MediaFilterStrategy.HEADER

    def should_consider_media(self, name: str) -> bool:
        """Whether the file may be media, by its name."""
        if self.strategy == MediaFilterStrategy.HEADER:
            return True
        if self.strategy == MediaFilterStrategy.EXTENSION:
            return kind_by_name(name) is not None
        lower = name.lower()
        return any(fnmatchcase(lower, pattern.lower()) for pattern in self.patterns)

    def extract_metadata(
        self, source: SourceData, filename: str | None = None
    ) -> MediaMetadataBase | None:
        """The metadata of a file: its bytes or an open file with its `filename`, or its path.

        None for what the filter does not take for media. Raises `DecodeError` for media that are
        damaged or that nothing here can read, `ConfigError` when PyAV is needed and missing.
        """
        if isinstance(source, str | os.PathLike):
            with open(source, "rb") as file:
                return self.extract_metadata(file, filename or os.fspath(source))
        if filename is None:
            raise ConfigError("extract_metadata: bytes and open files need a filename")
        if not self.should_consider_media(filename):
            return None
        stream = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
        kind = self._kind(filename, stream)
        if kind is None:
            if self.strategy == MediaFilterStrategy.GLOB:
                raise DecodeError(
                    f"{filename!r} matches the pattern, but neither its name nor its first bytes "
                    "are those of an image, a video or a sound"
                )
            return None
        if kind == MediaMetadataType.IMAGE:
            return image_metadata(stream, filename)
        return AVDecoder(stream, name=filename).get_metadata(get_audio_num_samples=True)

    def _kind(self, name: str, stream: BinaryIO) -> MediaMetadataType | None:
        if self.strategy == MediaFilterStrategy.EXTENSION:
            return kind_by_name(name)
        stream.seek(0)
        by_start = kind_by_start(stream.read(HEAD))
        stream.seek(0)
        if self.strategy == MediaFilterStrategy.GLOB:
            return kind_by_name(name) or by_start
        return by_start or kind_by_name(name)


def image_metadata(stream: BinaryIO, name: str) -> ImageMetadata:
    """Size, format and mode of an image, all of which is decoded, so that damage is found.

    Raises `DecodeError` naming the file.
    """
    with _decoding(name), PIL.Image.open(stream, formats=_FORMATS) as image:
        image.load()
        return ImageMetadata(
            width=image.width,
            height=image.height,
            format=image.format or "UNKNOWN",
            mode=image.mode,
        )


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    try:
        yield
    except (EnergizeError, MemoryError, TimeoutError):
        raise
    except PIL.UnidentifiedImageError:
        raise DecodeError(f"{name!r} is damaged: it is no image of a known format") from None
    except Exception as reason:
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # of the disk, and not of the image
        # Which exceptions bad bytes make, plug-ins of Pillow decide.
        raise DecodeError(f"{name!r} is damaged: {type(reason).__name__}: {reason}") from reason
