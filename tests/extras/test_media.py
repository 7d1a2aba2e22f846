"""Metadata of media: which files are media, and what is known of them."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from energize.data.media import (
    AVMetadata,
    ImageMetadata,
    MediaMetadataType,
    deserialize_media_metadata,
    serialize_media_metadata,
)
from energize.data.media_filter import MediaFilterConfig, MediaFilterStrategy
from energize.errors import (
    ConfigError,
    DatasetError,
    DecodeError,
)
from tests.support.videos import video, wav

EXTENSION = MediaFilterConfig(MediaFilterStrategy.EXTENSION)
HEADER = MediaFilterConfig(MediaFilterStrategy.HEADER)
PNG = ImageMetadata(width=8, height=4, format="PNG", mode="RGB")


def image(kind="PNG", size=(8, 4), mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


def test_what_is_stored():
    stored = serialize_media_metadata(PNG)
    text = '{"width":8,"height":4,"format":"PNG","mode":"RGB"}'
    assert stored == (MediaMetadataType.IMAGE, text)
    assert deserialize_media_metadata(*stored) == PNG
    sound = AVMetadata(audio_duration=1.5, audio_channels=2)
    assert serialize_media_metadata(sound) == (
        "av",
        '{"audio_duration":1.5,"audio_channels":2}',
    )
    assert deserialize_media_metadata("av", '{"audio_channels": 2}') == AVMetadata(
        audio_channels=2
    )
    for kind, text, words in (
        ("image", '{"width": 1}', "metadata .height.: the key 'height' is missing"),
        (
            "image",
            stored[1].replace("8", "-8"),
            "width.: expected greater than .*, got -8",
        ),
        (
            "image",
            stored[1].replace("4", '"4"'),
            "height.: expected an integer, got '4'",
        ),
        ("av", '{"video_fps": NaN}', "video_fps.: expected a finite number, got nan"),
        ("av", '{"length": 1}', "length.: Unexpected keyword argument"),
        ("av", "{", "is not JSON"),
        ("av", "[" * 100_000, "is not JSON"),
        ("imag", "{}", "unknown kind 'imag'; did you mean 'image'"),
        ("image", None, "is not JSON: .*: None"),
        ("image", 5, "is not JSON"),
        ("image", "null", "expected a dictionary"),
        (None, None, "unknown kind None"),
    ):
        with pytest.raises(DatasetError, match=words):
            deserialize_media_metadata(kind, text)


def test_images_by_name_by_first_bytes_and_by_patterns():
    for kind, extension, mode in (
        ("JPEG", "jpg", "RGB"),
        ("PNG", "png", "RGBA"),
        ("GIF", "gif", "P"),
        ("BMP", "bmp", "RGB"),
        ("TIFF", "tif", "L"),
        ("WEBP", "webp", "RGB"),
        ("ICO", "ico", "RGBA"),
    ):
        size = (32, 16) if kind != "ICO" else (16, 16)
        data = image(kind, size, mode)
        named = EXTENSION.extract_metadata(data, f"a/b.{extension.upper()}")
        assert (named.width, named.height, named.format) == (*size, kind)
        assert HEADER.extract_metadata(data, "nameless") == named, kind
        assert HEADER.extract_metadata(io.BytesIO(data), "wrong.mp4") == named, kind
        assert EXTENSION.extract_metadata(data, "a.bin") is None
        glob = MediaFilterConfig.parse(glob=f"*.{extension},x-*")
        for name, expected in (
            (f"sub/A.{extension.upper()}", named),
            ("x-1", named),
            ("y-1", None),
        ):
            assert glob.extract_metadata(data, name) == expected, (kind, name)
    for data in (b"", b"text", b'{"a": 1}', b"BM is no bitmap here", b"\0" * 99):
        assert HEADER.extract_metadata(data, "some.bin") is None
    for data in (
        video(),
        video("mkv h264"),
        video("avi mpeg4"),
        video("flv h264"),
        wav(),
    ):
        assert isinstance(HEADER.extract_metadata(data, "nameless"), AVMetadata)
    with pytest.raises(DecodeError, match="by its name or first bytes"):
        MediaFilterConfig.parse(glob="*.bin").extract_metadata(b"text", "a.bin")


def test_damaged_images_are_found(monkeypatch):
    for kind in ("JPEG", "PNG"):
        data = image(kind, (64, 64))
        for damaged in (data[: len(data) // 2], b"text", b""):
            with pytest.raises(DecodeError, match=r"'k\.png' is damaged"):
                EXTENSION.extract_metadata(damaged, "k.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DecodeError, match="DecompressionBombError"):
        EXTENSION.extract_metadata(image(size=(64, 64)), "a.png")


def test_paths_and_open_files(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(image())
    assert EXTENSION.extract_metadata(path) == PNG
    with path.open("rb") as file:
        assert EXTENSION.extract_metadata(file, "a.png") == PNG
        with pytest.raises(ConfigError, match="filename is missing"):
            EXTENSION.extract_metadata(file)
