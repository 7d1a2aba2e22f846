"""Image, video and sound formats: detection by name or first bytes, and metadata.

Metadata is stored as JSON in the table `media_metadata` of a folder's `index.sqlite`,
as in Energon.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import (
    Annotated,
    Any,
    BinaryIO,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    cast,
)

import PIL.Image
import PIL.ImageFile
from pydantic import ConfigDict, Field, TypeAdapter

from energize.core import limits
from energize.core.validation import parse_json, validated
from energize.errors import (
    DatasetError,
    DecodeError,
    nearest,
)

AVDecoderType = Literal["torch", "AVDecoder", "pyav"]
"""Values of `av_decode`."""

HEAD = 64
"""Number of leading bytes that `kind_by_start` examines."""


class MediaMetadataType(StrEnum):
    """The kinds of media; values are the names that metadata is stored under."""

    IMAGE = "image"
    AV = "av"


class MediaFormat(NamedTuple):
    """A format of media files.

    Attributes:
        name: For images, Pillow's name of the format.
        kind: The kind of media.
        extensions: Extensions in lower case, the usual one first.
        start: Matches the first `HEAD` bytes of its files, and no text.
    """

    name: str
    kind: MediaMetadataType
    extensions: tuple[str, ...]
    start: bytes


HEIF = "HEIF"
"""The format that Pillow opens only with the plug-in of pillow-heif."""

# Pillow reads more formats. Some run another program (EPS, WMF) or need a plug-in
# (GRIB, HDF5); others cannot be recognised by their bytes (IM, SPIDER). TGA is last
# because Pillow accepts nearly anything as TGA.
_IMAGES = {
    "JPEG": ("jpg jpeg jpe jfif mpo", rb"\xff\xd8\xff"),
    "PNG": ("png apng", rb"\x89PNG\r\n\x1a\n"),
    "WEBP": ("webp", rb"RIFF.{4}WEBP"),
    "GIF": ("gif", rb"GIF8[79]a"),
    "BMP": ("bmp", rb"BM.{13}\0{3}"),
    "TIFF": ("tif tiff", rb"II[*+]\0|MM\0[*+]"),
    "PPM": ("ppm pgm pbm pnm pfm", rb"P[1-6f]\s+(?:#|\d+\s+\d+\s)"),
    "JPEG2000": (
        "jp2 j2k jpc jpf jpx j2c",
        rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    ),
    "AVIF": ("avif avifs", rb".{4}ftypavi[fs]"),
    HEIF: ("heic heif hif", rb".{4}ftyp(?:hei[cmsx]|hev[cmsx]|mif1|msf1)"),
    "ICO": ("ico", rb"\0\0\x01\0[^\0]\0.{3}\0"),
    "DIB": (
        "dib",
        rb"[\x28\x34\x38\x40\x6c\x7c]\0{3}.{8}\x01\0[\x01\x04\x08\x10\x18\x20]\0",
    ),
    "QOI": ("qoi", rb"qoif.{8}[\x03\x04][\0\x01]"),
    "PSD": ("psd", rb"8BPS\0\x01"),
    "PCX": ("pcx", rb"\n[\0\x02\x03\x05]\x01[\x01\x02\x04\x08]"),
    "SGI": ("sgi", rb"\x01\xda[\0\x01][\x01\x02]\0"),
    "SUN": ("ras", rb"\x59\xa6\x6a\x95"),
    "DDS": ("dds", rb"DDS \x7c\0{3}"),
    "TGA": (
        "tga",
        rb".(?:\0[\x02\x03\x0a\x0b]\0{5}|\x01[\x01\x09].{4}[\x10\x18\x20]).{4}"
        rb"(?!\0\0)..(?!\0\0)..[\x01\x08\x10\x18\x20][\0-\x3f]",
    ),
}
_VIDEOS_AND_SOUNDS = {
    "MP4": ("mp4 m4v m4a mov 3gp", rb".{4}ftyp"),
    "Matroska": ("mkv webm", rb"\x1a\x45\xdf\xa3"),
    "AVI": ("avi", rb"RIFF.{4}AVI "),
    "WAVE": ("wav", rb"RIFF.{4}WAVE"),
    "MP3": ("mp3", rb"ID3[\x02-\x04]|\xff[\xf2\xf3\xfa\xfb]"),
    "AAC": ("aac", rb"\xff[\xf1\xf9]"),
    "FLAC": ("flac", rb"fLaC[\0\x80]"),
    "Ogg": ("ogg oga ogv opus", rb"OggS\0"),
    "FLV": ("flv", rb"FLV\x01"),
    "MPEG": ("mpg mpeg", rb"\0\0\x01[\xb3\xba]"),
    "ASF": ("wmv wma asf", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    "AIFF": ("aif aiff", rb"FORM.{4}AIF[CF]"),
    "AMR": ("amr", rb"\#!AMR[-\n]"),
    "CAF": ("caf", rb"caff\0\x01"),
}

FORMATS: Sequence[MediaFormat] = tuple(
    MediaFormat(name, kind, tuple(extensions.split()), start)
    for kind, rows in (
        (MediaMetadataType.IMAGE, _IMAGES),
        (MediaMetadataType.AV, _VIDEOS_AND_SOUNDS),
    )
    for name, (extensions, start) in rows.items()
)
"""All media formats that are detected in folders, tars, tables and URLs.

To support another format, add a row. No other module lists extensions or first bytes of
media.
"""

BY_EXTENSION = {end: row.kind for row in FORMATS for end in row.extensions}
"""Kinds of media by file extension."""

EXTENSIONS = {
    kind: tuple(end for end, of in BY_EXTENSION.items() if of == kind)
    for kind in MediaMetadataType
}

_STARTS = re.compile(
    b"|".join(
        b"(?P<f%d>%b)" % (number, row.start) for number, row in enumerate(FORMATS)
    ),
    re.S,
)


def kind_by_name(name: str) -> MediaMetadataType | None:
    """Return the kind of media by the extension of a file name or URL; None if other.

    >>> kind_by_name("photos/1.meta.JPG").value, kind_by_name("1.json")
    ('image', None)
    """
    return BY_EXTENSION.get(_extension(name))


def _extension(name: str) -> str:
    path = name.partition("?")[0] if "://" in name else name
    return os.path.splitext(path)[1][1:].lower()


def format_by_start(head: bytes) -> MediaFormat | None:
    """Return the media format of a file by its first `HEAD` bytes; None if not media.

    >>> format_by_start(b"GIF89a....").extensions, format_by_start(b'{"a": 1}')
    (('gif',), None)
    """
    match = _STARTS.match(head)
    return None if match is None else FORMATS[int(str(match.lastgroup)[1:])]


def kind_by_start(head: bytes) -> MediaMetadataType | None:
    """Return the kind of media of a file by its first `HEAD` bytes; None if not media.

    >>> kind_by_start(b"GIF89a....").value, kind_by_start(b'{"a": 1}')
    ('image', None)
    """
    file_format = format_by_start(head)
    return None if file_format is None else file_format.kind


def media_kind(name: str, head: bytes = b"") -> MediaMetadataType | None:
    """Return the kind of media by the first `HEAD` bytes, or else by the extension.

    >>> (
    ...     media_kind("photo", b"GIF89a....").value,
    ...     media_kind("photo.JPG").value,
    ...     media_kind("a.txt"),
    ... )
    ('image', 'image', None)
    """
    return kind_by_start(head) or kind_by_name(name)


def extension_of(name: str, data: bytes) -> str:
    r"""Return the extension of a file by content, or by name if the kinds agree.

    Args:
        name: Name of the file; its extension may be missing or wrong.
        data: The bytes of the file.

    Returns:
        An extension in lower case without the dot; `bin` if neither identifies the
        file.

    Example:
        >>> extension_of("a.JPEG", b"\xff\xd8\xff"), extension_of("a.txt", b"GIF89a")
        ('jpeg', 'gif')
    """
    file_format = format_by_start(data[:HEAD])
    named = _extension(name)
    if file_format is None or file_format.kind == BY_EXTENSION.get(named):
        return named or "bin"
    return file_format.extensions[0]


# Media in values of tables, or names of media files.

_DATA_URL = re.compile(r"\s*data:[^,]*;base64,", re.I)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*")
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{32}")
_BASE64_LEAST = 64  # characters; the smallest image has more
_WEB = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

# Channels of raw pixels by the type that OpenCV numbers them with, and Pillow's mode
# for them.
_SPARK_MODES = {0: (1, "L"), 16: (3, "RGB"), 24: (4, "RGBA")}
_SPARK_KEYS = frozenset({"height", "width", "nChannels", "mode", "data"})


def media_name(value: Any) -> str | None:
    """Return the file name that a table value holds; None if it holds bytes.

    A value is a text, or a struct with null `bytes`. Names may be URLs.

    >>> (
    ...     media_name({"bytes": None, "path": "a.jpg"}),
    ...     media_name("a.jpg"),
    ...     media_name(b"GIF89a"),
    ... )
    ('a.jpg', 'a.jpg', None)
    """
    if isinstance(value, Mapping) and value.get("bytes") is None and "bytes" in value:
        value = value.get("path")
    if (
        not isinstance(value, str)
        or not value
        or kind_by_start(_encoded_head(value)) is not None
    ):
        return None
    return value.removeprefix("file://")


def media_value_kind(value: Any) -> MediaMetadataType | None:
    """Return the kind of media that a table value holds; None if it names a file."""
    if isinstance(value, PIL.Image.Image) or _is_spark(value):
        return MediaMetadataType.IMAGE
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes):
        return kind_by_start(value[:HEAD]) or kind_by_start(_encoded_head(value))
    return kind_by_start(_encoded_head(value)) if isinstance(value, str) else None


def decode_media_value(value: Any) -> tuple[str, bytes] | None:
    """Return the extension and the bytes of the media that a table value holds.

    Media are bytes, a struct with `bytes` and any other keys, a `data:` URL, base64, a
    PIL image (as PNG), or the image struct of Spark (as PNG).

    Args:
        value: The value, as read from the table.

    Returns:
        The extension and the bytes; None for a file name or other values.

    Raises:
        DecodeError: If raw pixels do not fit their own header, or base64 is damaged.

    Example:
        >>> decode_media_value({"bytes": b"GIF89a", "path": "a.gif", "width": 8})
        ('gif', b'GIF89a')
    """
    named = ""
    if _is_spark(value):
        value = _spark_image(value)
    elif isinstance(value, Mapping):
        named = str(value.get("path"))
        value = value.get("bytes")
    if isinstance(value, PIL.Image.Image):
        stream = io.BytesIO()
        value.save(stream, "PNG")
        value = stream.getvalue()
    if (
        isinstance(value, str | bytes)
        and kind_by_start(_encoded_head(value)) is not None
    ):
        value = _decoded(value)
    if not isinstance(value, bytes):
        return None
    return extension_of(named if kind_by_name(named) else "", value), value


def _is_spark(value: Any) -> bool:
    """Return whether a value is the image struct of Spark."""
    return (
        isinstance(value, Mapping)
        and value.keys() >= _SPARK_KEYS
        and isinstance(value["data"], bytes)
    )


def _encoded_head(text: str | bytes) -> bytes:
    """Decode the first bytes of a `data:` URL or base64; empty for anything else."""
    head = text[:_HEAD_OF_URL]
    if isinstance(head, bytes):
        head = head.decode("latin-1")
    url = _DATA_URL.match(head)
    if url is None and (len(text) < _BASE64_LEAST or not _BASE64_START.match(head)):
        return b""
    encoded = "".join(head[url.end() if url else 0 :].split())[: 2 * HEAD]
    valid = _BASE64.match(encoded).end()  # type: ignore[union-attr]
    return base64.b64decode(encoded[: valid // 4 * 4].translate(_URL_SAFE))


_HEAD_OF_URL = (
    5 * HEAD
)  # characters; its parameters, and the line breaks in base64, are short
_URL_SAFE = str.maketrans("-_", "+/")


def _decoded(text: str | bytes) -> bytes:
    """Decode a `data:` URL or base64."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    encoded = text.rpartition(",")[2].translate(_URL_SAFE)
    try:
        return base64.b64decode(f"{encoded}==")  # which may lack its padding
    except ValueError as error:
        raise DecodeError(
            f"base64 is damaged: {error} (it begins with {text[:40]!r})"
        ) from error


def _spark_image(struct: Mapping[str, Any]) -> PIL.Image.Image:
    """Decode Spark's image struct; its channels are blue, green, red."""
    height = struct["height"]
    width = struct["width"]
    data = struct["data"]
    channels, mode = _SPARK_MODES.get(struct["mode"], (0, ""))
    if not channels or len(data) != height * width * channels:
        raise DecodeError(
            f"an image of Spark with mode {struct['mode']}, {width} x {height} "
            f"pixels, has {len(data)} bytes. Supported modes: "
            f"{', '.join(map(str, _SPARK_MODES))}"
        )
    limits.decoding.spend(4 * height * width)
    if channels == 1:
        return PIL.Image.frombytes("L", (width, height), data)
    order = "BGR" if channels == 3 else "BGRA"
    return PIL.Image.frombytes(mode, (width, height), data, "raw", order)


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
Pixels: TypeAlias = Annotated[int, Field(strict=True, ge=1)]
Number: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


@dataclass(slots=True, kw_only=True)
class MediaMetadataBase:
    """Base class of media metadata: plain values, None if unknown."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, by name.

        >>> AVMetadata(audio_channels=2).to_dict()
        {'audio_channels': 2}
        """
        return {
            name: value for name, value in asdict(self).items() if value is not None
        }

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """Return the metadata with these fields.

        Args:
            payload: Fields by name.

        Returns:
            The metadata.

        Raises:
            DatasetError: If a field is unknown, or a number is out of range.
        """
        return cast(
            Self, validated(_schema(cls), payload, DatasetError, "media metadata")
        )


@dataclass(slots=True, kw_only=True)
class ImageMetadata(MediaMetadataBase):
    """Size in pixels as stored, ignoring EXIF orientation; Pillow's format and mode.

    >>> ImageMetadata(width=8, height=4, format="PNG", mode="RGB").to_dict()
    {'width': 8, 'height': 4, 'format': 'PNG', 'mode': 'RGB'}
    """

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.IMAGE

    width: Pixels
    height: Pixels
    format: str
    mode: str


@dataclass(slots=True, kw_only=True)
class AVMetadata(MediaMetadataBase):
    """Durations in seconds, sizes in pixels and rates per second of a video or sound.

    The fields are those of Energon's class, in its order.
    """

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.AV

    video_duration: Number | None = None
    video_num_frames: Whole | None = None
    video_fps: Number | None = None
    video_width: Whole | None = None
    video_height: Whole | None = None

    audio_duration: Number | None = None
    audio_channels: Whole | None = None
    audio_sample_rate: Whole | None = None
    audio_num_samples: Whole | None = None


_schema: Any = cache(TypeAdapter)


_CLASSES: Mapping[str, type[MediaMetadataBase]] = {
    "image": ImageMetadata,
    "av": AVMetadata,
}


def serialize_media_metadata(
    metadata: MediaMetadataBase,
) -> tuple[MediaMetadataType, str]:
    """Return the kind of the metadata, and its fields as compact JSON.

    >>> serialize_media_metadata(AVMetadata(video_fps=25.0))[1]
    '{"video_fps":25.0}'
    """
    return metadata.metadata_type, json.dumps(metadata.to_dict(), separators=(",", ":"))


def deserialize_media_metadata(
    metadata_type: str, metadata_json: str
) -> MediaMetadataBase:
    """Return the metadata that `serialize_media_metadata` stored.

    Args:
        metadata_type: The kind, `"image"` or `"av"`.
        metadata_json: The fields as JSON.

    Returns:
        The metadata.

    Raises:
        DatasetError: If the kind is unknown, or the JSON lacks its fields.

    Example:
        >>> deserialize_media_metadata("av", '{"audio_channels": 1}').audio_channels
        1
    """
    cls = _CLASSES.get(metadata_type)
    if cls is None:
        raise DatasetError(
            "media metadata has the unknown kind "
            f"{metadata_type!r}{nearest(str(metadata_type), list(_CLASSES)) or '.'} "
            f"Supported: {', '.join(_CLASSES)}. A newer version may have written it"
        )
    try:
        return cls.from_dict(parse_json(metadata_json))
    except (
        TypeError,
        ValueError,
    ) as reason:  # for NULL or a number in the database
        raise DatasetError(
            f"media metadata is not JSON: {reason}: {metadata_json!r:.80}"
        ) from reason


# Opening images.

_OPENED = tuple(row.name for row in FORMATS if row.kind == "image" and row.name != HEIF)


def open_image(stream: BinaryIO, pixel: int = 4) -> PIL.ImageFile.ImageFile:
    """Open an image of one of `FORMATS` without decoding it.

    Args:
        stream: The file. Its content decides the format, not its name.
        pixel: Memory per pixel after decoding, in bytes.

    Returns:
        The image, which is decoded when its pixels are used.

    Raises:
        DecodeError: If it takes more memory than `limits.DECODED_BYTES`.
        PIL.UnidentifiedImageError: If it is not an image of these formats.
    """
    formats = (*_OPENED, HEIF) if HEIF in PIL.Image.OPEN else _OPENED
    image = PIL.Image.open(stream, formats=formats)
    at = stream.tell()
    stream.seek(0)
    limits.spend_pixels(image.width * image.height, pixel, stream.read())
    stream.seek(at)
    return image
