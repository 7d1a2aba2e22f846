"""Detecting media files, and reading their metadata."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import BinaryIO

from energize.data.av import AVDecoder
from energize.data.files import files_at
from energize.data.local import FileStream
from energize.data.media import (
    HEAD,
    ImageMetadata,
    MediaMetadataBase,
    MediaMetadataType,
    kind_by_name,
    kind_by_start,
    open_image,
)
from energize.errors import ConfigError, DecodeError, EnergizeError


class MediaFilterStrategy(StrEnum):
    """How to detect images, videos and sounds."""

    EXTENSION = "EXTENSION"
    """By extension."""
    HEADER = "HEADER"
    """By first bytes, or by extension if these are ambiguous."""
    GLOB = "GLOB"
    """By patterns on the whole name; the kind by extension or first bytes."""


@dataclass(frozen=True)
class MediaFilterConfig:
    """Selects media files by extension, first bytes or patterns.

    In patterns, `*` matches any text including slashes; case is ignored.

    Args:
        strategy: How to detect media.
        patterns: Patterns for the strategy GLOB, such as `*.jpg`.

    Raises:
        ConfigError: If patterns are missing for GLOB, or set for another strategy.

    Example:
        >>> MediaFilterConfig(
        ...     MediaFilterStrategy.GLOB, ["*.jpg"]
        ... ).should_consider_media("a/1.JPG")
        True
    """

    strategy: MediaFilterStrategy
    patterns: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.strategy == MediaFilterStrategy.GLOB) != any(self.patterns):
            raise ConfigError(
                f"media filter {self.strategy}: patterns must be set for GLOB and "
                f"empty for other strategies, got {self.patterns!r}"
            )

    @classmethod
    def parse(
        cls, glob: str | None = None, header: bool = False, extension: bool = False
    ) -> MediaFilterConfig:
        """Return the filter of exactly one of three options.

        Args:
            glob: Patterns, separated by commas.
            header: Whether to detect media by first bytes.
            extension: Whether to detect media by extension.

        Returns:
            The filter.

        Raises:
            ConfigError: Unless exactly one option is set.

        Example:
            >>> MediaFilterConfig.parse("*.jpg,*.png").patterns
            ['*.jpg', '*.png']
        """
        if sum(map(bool, (glob, header, extension))) != 1:
            raise ConfigError(
                "media filter: set exactly one of glob (patterns separated by commas), "
                "header and extension"
            )
        if glob:
            return cls(
                MediaFilterStrategy.GLOB,
                [pattern.strip() for pattern in glob.split(",")],
            )
        return cls(
            MediaFilterStrategy.HEADER if header else MediaFilterStrategy.EXTENSION
        )

    def should_consider_all(self) -> bool:
        """Return whether every file has to be opened, because names do not matter."""
        return self.strategy == MediaFilterStrategy.HEADER

    def should_consider_media(self, name: str) -> bool:
        """Return whether a file of this name may be media."""
        if self.strategy == MediaFilterStrategy.GLOB:
            return any(
                fnmatchcase(name.lower(), pattern.lower()) for pattern in self.patterns
            )
        return self.should_consider_all() or kind_by_name(name) is not None

    def extract_metadata(
        self,
        source: bytes | str | os.PathLike[str] | BinaryIO,
        filename: str | None = None,
    ) -> MediaMetadataBase | None:
        """Return the metadata of a file; None if the filter excludes it.

        Args:
            source: A path, or bytes or an open file.
            filename: Name of the file; required unless `source` is a path.

        Returns:
            The metadata.

        Raises:
            DecodeError: If the file is damaged or of an unknown format.
            ConfigError: If PyAV is needed and not installed.
        """
        if isinstance(source, str | os.PathLike):
            path = os.fspath(source)
            with io.BufferedReader(FileStream(files_at(path), path)) as file:
                return self.extract_metadata(file, filename or path)
        if filename is None:
            raise ConfigError(
                "extract_metadata: filename is missing. Pass one with bytes and open "
                "files"
            )
        if not self.should_consider_media(filename):
            return None
        stream = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
        media_type = self._kind(filename, stream)
        if media_type == MediaMetadataType.IMAGE:
            return image_metadata(stream, filename)
        if media_type == MediaMetadataType.AV:
            return AVDecoder(stream, name=filename).get_metadata(
                get_audio_num_samples=True
            )
        if self.strategy == MediaFilterStrategy.GLOB:
            raise DecodeError(
                f"{filename!r} matches the pattern, but is not an image, video or "
                "sound by its name or first bytes"
            )
        return None

    def _kind(self, name: str, stream: BinaryIO) -> MediaMetadataType | None:
        by_name = kind_by_name(name)
        if by_name and self.strategy != MediaFilterStrategy.HEADER:
            return by_name
        stream.seek(0)
        by_start = kind_by_start(stream.read(HEAD))
        stream.seek(0)
        return by_start or by_name


def image_metadata(stream: BinaryIO, name: str) -> ImageMetadata:
    """Decode an image completely, and return its size, format and mode.

    Raises:
        DecodeError: If the image is damaged.
    """
    try:
        with open_image(stream) as image:
            image.load()
            image_format = image.format or "UNKNOWN"
            return ImageMetadata(
                width=image.width,
                height=image.height,
                format=image_format,
                mode=image.mode,
            )
    except (EnergizeError, MemoryError, TimeoutError):
        raise
    except Exception as reason:  # plug-ins of Pillow raise various errors
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # an error of the disk
        raise DecodeError(
            f"{name!r} is damaged: {type(reason).__name__}: {reason}"
        ) from reason
