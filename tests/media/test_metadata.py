"""Metadata of media: which files are media, what is stored, and that it is what Energon stores."""

import io

import pytest
from PIL import Image

from energize.data.media import (
    AVMetadata,
    ImageMetadata,
    MediaFilterConfig,
    MediaFilterStrategy,
    MediaMetadataType,
    deserialize_media_metadata,
    serialize_media_metadata,
)
from energize.errors import ConfigError, DatasetError, DecodeError

EXTENSION = MediaFilterConfig(MediaFilterStrategy.EXTENSION)
HEADER = MediaFilterConfig(MediaFilterStrategy.HEADER)


def image(kind="PNG", size=(8, 4), mode="RGB", **options):
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def test_what_is_stored():
    metadata = ImageMetadata(width=8, height=4, format="PNG", mode="RGB")
    stored = serialize_media_metadata(metadata)
    assert stored == (
        MediaMetadataType.IMAGE,
        '{"width":8,"height":4,"format":"PNG","mode":"RGB"}',
    )
    assert deserialize_media_metadata(*stored) == metadata
    sound = AVMetadata(audio_duration=1.5, audio_channels=2)
    assert serialize_media_metadata(sound) == ("av", '{"audio_duration":1.5,"audio_channels":2}')
    assert deserialize_media_metadata("av", '{"audio_channels": 2}') == AVMetadata(audio_channels=2)


@pytest.mark.parametrize(
    ("kind", "text", "match"),
    [
        ("image", '{"width": 1}', r"is not ImageMetadata\(width, height"),
        ("av", '{"length": 1}', "is not AVMetadata"),
        ("av", "[]", "is a JSON object"),
        ("av", "{", "is not JSON"),
        ("imag", "{}", "unknown kind 'imag'; did you mean 'image'"),
    ],
)
def test_what_cannot_be_read(kind, text, match):
    with pytest.raises(DatasetError, match=match):
        deserialize_media_metadata(kind, text)


KINDS = [
    ("JPEG", "jpg", "RGB"),
    ("PNG", "png", "RGBA"),
    ("GIF", "gif", "P"),
    ("BMP", "bmp", "RGB"),
    ("TIFF", "tif", "L"),
    ("WEBP", "webp", "RGB"),
    ("ICO", "ico", "RGBA"),
    ("JPEG2000", "jp2", "RGB"),
]


@pytest.mark.parametrize(("kind", "extension", "mode"), KINDS)
def test_images_by_name_and_by_their_first_bytes(kind, extension, mode):
    size = (32, 16) if kind != "ICO" else (16, 16)
    data = image(kind, size, mode)
    named = EXTENSION.extract_metadata(data, f"a/b.{extension.upper()}")
    assert (named.width, named.height, named.format) == (*size, kind)
    assert HEADER.extract_metadata(data, "nameless") == named
    assert HEADER.extract_metadata(io.BytesIO(data), "wrong.mp4") == named
    assert EXTENSION.extract_metadata(data, "a.bin") is None
    glob = MediaFilterConfig.parse(glob=f"*.{extension},x-*")
    assert glob.extract_metadata(data, f"sub/a.{extension}") == named
    assert glob.extract_metadata(data, "x-1") == named
    assert glob.extract_metadata(data, "y-1") is None


@pytest.mark.parametrize("data", [b"", b"text", b'{"a": 1}', b"BM is no bitmap here", b"\0" * 99])
def test_what_is_no_media_by_its_first_bytes(data):
    assert HEADER.extract_metadata(data, "some.bin") is None


def test_a_match_of_a_pattern_is_media_or_a_fault():
    with pytest.raises(DecodeError, match="neither its name nor its first bytes"):
        MediaFilterConfig.parse(glob="*.bin").extract_metadata(b"text", "a.bin")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damaged_images_are_found(kind):
    data = image(kind, (64, 64))
    for damaged in (data[: len(data) // 2], b"text", b""):
        with pytest.raises(DecodeError, match=r"'k\.png' is damaged"):
            EXTENSION.extract_metadata(damaged, "k.png")


def test_too_large_an_image_is_no_crash(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DecodeError, match="DecompressionBombError"):
        EXTENSION.extract_metadata(image(size=(64, 64)), "a.png")


def test_paths_and_open_files(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(image())
    expected = ImageMetadata(width=8, height=4, format="PNG", mode="RGB")
    assert EXTENSION.extract_metadata(path) == expected
    with path.open("rb") as file:
        assert EXTENSION.extract_metadata(file, "a.png") == expected
        with pytest.raises(ConfigError, match="need a filename"):
            EXTENSION.extract_metadata(file)


@pytest.mark.parametrize(
    "options",
    [{}, {"glob": "*.jpg", "header": True}, {"header": True, "extension": True}, {"glob": ""}],
)
def test_exactly_one_strategy(options):
    with pytest.raises(ConfigError, match="exactly one of"):
        MediaFilterConfig.parse(**options)


def test_patterns_belong_to_globs():
    for strategy, patterns in (("GLOB", []), ("HEADER", ["*.jpg"]), ("GLOB", [""])):
        with pytest.raises(ConfigError, match="patterns are given with GLOB, and only with it"):
            MediaFilterConfig(MediaFilterStrategy(strategy), patterns)
    assert MediaFilterConfig.parse(header=True).should_consider_all()
    assert not EXTENSION.should_consider_all()
