"""Images, videos and sounds: telling them by name or first bytes, and their metadata.

It is stored as JSON in the table `media_metadata` of a folder's `index.sqlite`, as Energon does.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, Self, TypeAlias, cast

import PIL.Image
from pydantic import ConfigDict, Field, TypeAdapter

from energize.core import limits
from energize.core.lazy import av
from energize.core.validation import parse_json, validated
from energize.data.files import FileStream, files_at
from energize.errors import ConfigError, DatasetError, DecodeError, EnergizeError, nearest

AVDecoderType = Literal["torch", "AVDecoder", "pyav"]
"""What `av_decode` of a decoder may be."""

AV_EXTENSIONS = frozenset({"mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"})
"""The parts of samples that are decoded as videos and sounds."""

HEAD = 64
"""How many first bytes of a file `kind_by_start` looks at."""


class MediaMetadataType(StrEnum):
    """The kinds of media, by the names their metadata is stored under."""

    IMAGE = "image"
    AV = "av"


BY_EXTENSION = {
    extension: kind
    for kind, extensions in (
        (MediaMetadataType.IMAGE, "jpg jpeg png webp bmp gif tif tiff apng avif dib ico jfif jpe"),
        (MediaMetadataType.IMAGE, "j2c j2k jp2 jpc jpf jpx pbm pgm pnm ppm tga"),
        (MediaMetadataType.AV, "aac avi flac m4a m4v mkv mov mp3 mp4 ogg wav webm"),
    )
    for extension in extensions.split()
}
"""The kinds of media by the extensions of their files."""
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
_CHUNKED = {  # the first four bytes, and those after a length
    b"RIFFWEBP": MediaMetadataType.IMAGE,
    **dict.fromkeys((b"RIFFAVI ", b"RIFFWAVE", b"FORMAIFF", b"FORMAIFC"), MediaMetadataType.AV),
}
_IMAGE_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"})


def kind_by_name(name: str) -> MediaMetadataType | None:
    """Return the kind of media that the extension of a file name stands for.

    >>> kind_by_name("photos/1.meta.JPG").value, kind_by_name("1.json")
    ('image', None)
    """
    return BY_EXTENSION.get(os.path.splitext(name)[1][1:].lower())


def kind_by_start(head: bytes) -> MediaMetadataType | None:
    """Return the kind of media that a file with these first `HEAD` bytes is.

    >>> kind_by_start(b"GIF89a....").value, kind_by_start(b'{"a": 1}')
    ('image', None)
    """
    if head.startswith(_IMAGE_STARTS):
        # Two letters are too little to tell a bitmap from a text: its header gives its own size.
        short = head.startswith(b"BM") and (len(head) < 18 or head[15:18] != b"\0\0\0")
        return None if short else MediaMetadataType.IMAGE
    if head[4:8] == b"ftyp":
        return MediaMetadataType.IMAGE if head[8:12] in _IMAGE_BRANDS else MediaMetadataType.AV
    if head.startswith(_AV_STARTS):
        return MediaMetadataType.AV
    return _CHUNKED.get(head[:4] + head[8:12])


def media_kind(name: str, head: bytes = b"") -> MediaMetadataType | None:
    """Return the kind of media of a file: by its first `HEAD` bytes, else by its extension.

    >>> media_kind("photo", b"GIF89a....").value, media_kind("photo.JPG").value, media_kind("a.txt")
    ('image', 'image', None)
    """
    return kind_by_start(head) or kind_by_name(name)


# Values of tables that hold media, or name files that do.

_DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]+)*;base64,", re.I)
_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{32}")
_BASE64_LEAST = 64  # characters; the smallest image has more
_WEB = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")

# Channels of raw pixels by the type that OpenCV numbers them with, and Pillow's mode for them.
_SPARK_MODES = {0: (1, "L"), 16: (3, "RGB"), 24: (4, "RGBA")}
_SPARK_KEYS = frozenset({"height", "width", "nChannels", "mode", "data"})

_IMAGE_EXTENSIONS = {
    b"\x89P": "png",
    b"GI": "gif",
    b"BM": "bmp",
    b"RI": "webp",
    b"II": "tif",
    b"MM": "tif",
}


def media_extension(data: bytes) -> str:
    """Return the extension of a file with these bytes; `bin` if they are not media.

    >>> media_extension(b"GIF89a"), media_extension(b"{}")
    ('gif', 'bin')
    """
    kind = kind_by_start(data[:HEAD])
    if kind is None:
        return "bin"
    return _IMAGE_EXTENSIONS.get(data[:2], "jpg") if kind == MediaMetadataType.IMAGE else "mp4"


def media_name(value: Any) -> str | None:
    """Return the name of the file that a value of a table stands for; None if it holds the bytes.

    A value is a text, or a struct whose `bytes` are null. Names may be URLs.

    >>> media_name({"bytes": None, "path": "a.jpg"}), media_name("a.jpg"), media_name(b"GIF89a")
    ('a.jpg', 'a.jpg', None)
    """
    if isinstance(value, Mapping) and value.get("bytes") is None and "bytes" in value:
        value = value.get("path")
    if not isinstance(value, str) or not value or _encoded_text(value) is not None:
        return None
    return value.removeprefix("file://")


def media_value_kind(value: Any) -> MediaMetadataType | None:
    """Return the kind of media that a value of a table holds; None if it only names a file."""
    if isinstance(value, PIL.Image.Image):
        return MediaMetadataType.IMAGE
    if isinstance(value, Mapping):
        if value.keys() >= _SPARK_KEYS and isinstance(value["data"], bytes):
            return MediaMetadataType.IMAGE
        value = value.get("bytes")
    if isinstance(value, str):
        return kind_by_start(_encoded_head(value))
    return kind_by_start(value[:HEAD]) if isinstance(value, bytes) else None


def decode_media_value(value: Any) -> tuple[str, bytes] | None:
    """Return the extension and the bytes of the media that a value of a table holds.

    Media are bytes, a struct with `bytes` and any other keys, a `data:` URL, base64, a PIL image
    (as PNG), or the image struct of Spark (as PNG).

    Args:
        value: The value as a table gives it.

    Returns:
        The extension and the bytes, or None for a value that names a file or is not media.

    Raises:
        DecodeError: If raw pixels do not fit their own header, or base64 is damaged.

    Example:
        >>> decode_media_value({"bytes": b"GIF89a", "path": "a.gif", "width": 8})
        ('gif', b'GIF89a')

    """
    named = None
    if isinstance(value, Mapping):
        if value.keys() >= _SPARK_KEYS and isinstance(value["data"], bytes):
            value = _spark_image(value)
        else:
            named = value.get("path")
            value = value.get("bytes")
    if isinstance(value, PIL.Image.Image):
        stream = io.BytesIO()
        value.save(stream, "PNG")
        value = stream.getvalue()
    if isinstance(value, str):
        value = _encoded_text(value)
    if not isinstance(value, bytes):
        return None
    if isinstance(named, str) and kind_by_name(named) is not None:
        return os.path.splitext(named)[1][1:].lower(), value
    return media_extension(value), value


def _encoded_head(text: str) -> bytes:
    """Return the first bytes that a `data:` URL or base64 stands for; none for any other text."""
    at = 0
    if text[:5].lower() == "data:":
        matched = _DATA_URL.match(text[:200])
        at = matched.end() if matched else len(text)
    elif len(text) < _BASE64_LEAST or not _BASE64_START.match(text):
        return b""
    head = text[at : at + 4 * HEAD // 3 // 4 * 4]
    try:
        return base64.b64decode(head.translate(_URL_SAFE))
    except (binascii.Error, ValueError):
        return b""


_URL_SAFE = str.maketrans("-_", "+/")


def _encoded_text(text: str) -> bytes | None:
    """Return the media that a text holds as a `data:` URL or as base64; None if it holds none."""
    if kind_by_start(_encoded_head(text)) is None:
        return None
    encoded = text.partition(",")[2] if text[:5].lower() == "data:" else text
    try:
        return base64.b64decode(encoded.translate(_URL_SAFE))
    except (binascii.Error, ValueError) as error:
        raise DecodeError(f"base64 is damaged: {error}; it begins with {text[:40]!r}") from error


def _spark_image(struct: Mapping[str, Any]) -> PIL.Image.Image:
    """Return the image of Spark's struct, whose channels are in the order blue, green, red."""
    height, width, data = struct["height"], struct["width"], struct["data"]
    channels, mode = _SPARK_MODES.get(struct["mode"], (0, ""))
    if not channels or len(data) != height * width * channels:
        raise DecodeError(
            f"an image of Spark with mode {struct['mode']}, {width} x {height} pixels, has "
            f"{len(data)} bytes; modes {', '.join(map(str, _SPARK_MODES))} are read"
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
    """Base of the kinds of metadata: plain values, None where a value is not known."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """Return the known fields by name.

        >>> AVMetadata(audio_channels=2).to_dict()
        {'audio_channels': 2}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """Return the metadata with these fields; raise `DatasetError` if they are not its own, or
        a number is none that a file could have.
        """
        return cast(Self, validated(_schema(cls), payload, DatasetError, "media metadata"))


@dataclass(slots=True, kw_only=True)
class ImageMetadata(MediaMetadataBase):
    """Size in pixels as stored (EXIF orientation is not applied), Pillow's format and mode.

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
    """Durations in seconds, frame sizes in pixels, rates per second, of a video or sound."""

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


_CLASSES: Mapping[str, type[MediaMetadataBase]] = {"image": ImageMetadata, "av": AVMetadata}


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """Return the kind of the metadata, and its fields as compact JSON.

    >>> serialize_media_metadata(AVMetadata(video_fps=25.0))[1]
    '{"video_fps":25.0}'
    """
    return metadata.metadata_type, json.dumps(metadata.to_dict(), separators=(",", ":"))


def deserialize_media_metadata(metadata_type: str, metadata_json: str) -> MediaMetadataBase:
    """Return the metadata that `serialize_media_metadata` made these two values of.

    Raise `DatasetError` for an unknown kind, and for JSON that does not have its fields.

    >>> deserialize_media_metadata("av", '{"audio_channels": 1}').audio_channels
    1
    """
    kind = _CLASSES.get(metadata_type)
    if kind is None:
        raise DatasetError(
            f"media metadata is of the unknown kind {metadata_type!r}"
            f"{nearest(str(metadata_type), list(_CLASSES))}; known are {', '.join(_CLASSES)}: it "
            "may have been written by a newer version"
        )
    try:
        return kind.from_dict(parse_json(metadata_json))
    except (TypeError, ValueError) as reason:  # a NULL or a number of a database is no text
        raise DatasetError(
            f"media metadata is not JSON: {reason}: {metadata_json!r:.80}"
        ) from reason


# Opening images.

# Formats are recognised by content, whatever a file is called, and reading some of them runs
# another program (EPS: Ghostscript) or needs a plug-in. Only these are ever tried.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "TGA", "ICO")


def open_image(stream: BinaryIO, pixel: int = 4) -> PIL.Image.Image:
    """Return an image that is not decoded yet; `pixel` is the bytes that each one will take."""
    image = PIL.Image.open(stream, formats=_FORMATS)
    at = stream.tell()
    stream.seek(0)
    limits.spend_pixels(image.width * image.height, pixel, stream.read())
    stream.seek(at)
    return image


# Extracting metadata from files.


class MediaFilterStrategy(StrEnum):
    """How files that are images, videos or sounds are told from others."""

    EXTENSION = "EXTENSION"
    """By the end of the name."""
    HEADER = "HEADER"
    """By the first bytes; by the name if these tell nothing."""
    GLOB = "GLOB"
    """By patterns that the whole name matches; the kind, by the name or the first bytes."""


@dataclass(frozen=True)
class MediaFilterConfig:
    """Which files are media. `patterns` are those of the strategy GLOB, such as `*.jpg`.

    In patterns `*` stands for any text, slashes too; upper and lower case are alike. Raise
    `ConfigError` for GLOB without patterns, and for patterns without GLOB.

    >>> MediaFilterConfig(MediaFilterStrategy.GLOB, ["*.jpg"]).should_consider_media("a/1.JPG")
    True
    """

    strategy: MediaFilterStrategy
    patterns: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if (self.strategy == MediaFilterStrategy.GLOB) != any(self.patterns):
            raise ConfigError(
                f"media filter {self.strategy}: patterns are given with GLOB, and only with it; "
                f"got {self.patterns!r}"
            )

    @classmethod
    def parse(
        cls, glob: str | None = None, header: bool = False, extension: bool = False
    ) -> MediaFilterConfig:
        """Return the filter for one of three options; `glob` may be patterns with commas.

        Raise `ConfigError` unless exactly one is given.

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
        """Return whether names tell nothing, so that every file is looked into."""
        return self.strategy == MediaFilterStrategy.HEADER

    def should_consider_media(self, name: str) -> bool:
        """Return whether a file of this name may be media."""
        if self.strategy == MediaFilterStrategy.GLOB:
            return any(fnmatchcase(name.lower(), each.lower()) for each in self.patterns)
        return self.should_consider_all() or kind_by_name(name) is not None

    def extract_metadata(
        self, source: bytes | str | os.PathLike[str] | BinaryIO, filename: str | None = None
    ) -> MediaMetadataBase | None:
        """Return the metadata of a file: its path, or its bytes or an open file and a `filename`.

        None for files that the filter leaves out. Raise `DecodeError` for media that are damaged or
        of an unknown format, `ConfigError` if PyAV is needed and missing.
        """
        if isinstance(source, str | os.PathLike):
            place = os.fspath(source)
            with io.BufferedReader(FileStream(files_at(place), place)) as file:
                return self.extract_metadata(file, filename or place)
        if filename is None:
            raise ConfigError("extract_metadata: bytes and open files need a filename")
        if not self.should_consider_media(filename):
            return None
        stream = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
        kind = self._kind(filename, stream)
        if kind == MediaMetadataType.IMAGE:
            return image_metadata(stream, filename)
        if kind == MediaMetadataType.AV:
            return av.AVDecoder(stream, name=filename).get_metadata(get_audio_num_samples=True)
        if self.strategy == MediaFilterStrategy.GLOB:
            raise DecodeError(
                f"{filename!r} matches the pattern, but neither its name nor its first bytes are "
                "those of an image, a video or a sound"
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
    """Return size, format and mode of an image, after decoding all of it to find damage.

    Raise `DecodeError` naming the file.
    """
    try:
        with open_image(stream) as image:
            image.load()
            kind = image.format or "UNKNOWN"
            return ImageMetadata(
                width=image.width, height=image.height, format=kind, mode=image.mode
            )
    except (EnergizeError, MemoryError, TimeoutError):
        raise
    except Exception as reason:  # Pillow's plug-ins decide which ones bad bytes make
        if isinstance(reason, OSError) and reason.errno is not None:
            raise  # of the disk, and not of the image
        raise DecodeError(f"{name!r} is damaged: {type(reason).__name__}: {reason}") from reason
