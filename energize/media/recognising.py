"""Which files are images, videos or sounds: by their names, or by how they start."""

from __future__ import annotations

from pathlib import PurePosixPath

from energize.media.metadata import MediaMetadataType

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
