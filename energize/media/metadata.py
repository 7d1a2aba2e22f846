"""What is known of a picture, a video or a sound without decoding it again.

Stored as JSON in the `media_metadata` table of a folder's `index.sqlite`, as Energon does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from energize.errors import DatasetError, nearest


class MediaMetadataType(StrEnum):
    """The kinds of metadata, by the names they are stored under."""

    IMAGE = "image"
    AV = "av"

    @classmethod
    def from_string(cls, value: str) -> MediaMetadataType:
        """The kind stored as `value`; `DatasetError` when there is none.

        >>> MediaMetadataType.from_string("av") is MediaMetadataType.AV
        True
        """
        try:
            return cls(value)
        except ValueError:
            known = [each.value for each in cls]
            raise DatasetError(
                f"media metadata of the kind {value!r} is not known{nearest(value, known)}; known "
                f"are {', '.join(known)}: it may have been written by a newer version"
            ) from None


@dataclass(slots=True, kw_only=True)
class MediaMetadataBase:
    """Base of the kinds of metadata: plain values, None where a thing is not known."""

    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, by name.

        >>> AVMetadata(audio_channels=2).to_dict()
        {'audio_channels': 2}
        """
        known = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in known if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """The metadata with these fields; `DatasetError` for missing or unknown ones."""
        try:
            return cls(**payload)
        except TypeError as reason:
            names = ", ".join(each.name for each in fields(cls))
            raise DatasetError(
                f"media metadata {dict(payload)!r} is no {cls.__name__}, whose fields are {names}: "
                f"{reason}"
            ) from reason


@dataclass(slots=True, kw_only=True)
class ImageMetadata(MediaMetadataBase):
    """Of an image: pixels as stored (EXIF orientation is not applied), Pillow's format and mode.

    >>> ImageMetadata(width=8, height=4, format="PNG", mode="RGB").to_dict()
    {'width': 8, 'height': 4, 'format': 'PNG', 'mode': 'RGB'}
    """

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.IMAGE

    width: int
    height: int
    format: str
    mode: str


@dataclass(slots=True, kw_only=True)
class AVMetadata(MediaMetadataBase):
    """Of a video or sound: durations in seconds, frame sizes in pixels, rates per second."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.AV

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None

    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


_CLASSES: Mapping[MediaMetadataType, type[MediaMetadataBase]] = {
    kind.metadata_type: kind for kind in (ImageMetadata, AVMetadata)
}


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """The kind of the metadata, and its fields as compact JSON.

    >>> serialize_media_metadata(AVMetadata(video_fps=25.0))[1]
    '{"video_fps":25.0}'
    """
    return metadata.metadata_type, json.dumps(metadata.to_dict(), separators=(",", ":"))


def deserialize_media_metadata(
    metadata_type: str | MediaMetadataType, metadata_json: str
) -> MediaMetadataBase:
    """The metadata that `serialize_media_metadata` made the two arguments of.

    Raises `DatasetError` for an unknown kind and for JSON that does not hold its fields.

    >>> deserialize_media_metadata("av", '{"audio_channels": 1}').audio_channels
    1
    """
    kind = MediaMetadataType.from_string(metadata_type)
    try:
        payload = json.loads(metadata_json)
    except ValueError as reason:
        raise DatasetError(
            f"media metadata is not JSON: {reason}: {metadata_json[:80]!r}"
        ) from reason
    if not isinstance(payload, dict):
        raise DatasetError(f"media metadata is a JSON object, found {metadata_json[:80]!r}")
    return _CLASSES[kind].from_dict(payload)
