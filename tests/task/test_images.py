"""Images from bytes: orientation, and what decoding leaves out."""

from __future__ import annotations

import io
import logging
import struct
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from energize import ConfigError, SampleDecoder
from energize.task.images import IMAGE_SPECS, decode_image
from tests.support.images import encoded, picture

ORIENTATION = 274
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "TIFF", "AVIF", "JPEG2000")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())


def lying(orientation: object, image_format: str = "JPEG", mode: str = "RGB") -> bytes:
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(picture(50, 34, mode), image_format, exif=exif)


def by_pillow(data: bytes, mode: str, *, orient: bool) -> np.ndarray:
    with PIL.Image.open(io.BytesIO(data)) as image:
        image.load()
        turned = PIL.ImageOps.exif_transpose(image) if orient else image
        return np.array(turned if mode == "stored" else turned.convert(mode))


ORIENTATIONS = [
    pytest.param(number, marks=[] if number in {0, 1, 6} else pytest.mark.jobs)
    for number in range(10)
]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_all_orientations_are_those_of_pillow(orientation):
    """Bit for bit, by simplejpeg and by Pillow; 0 and 9 are no orientations."""
    for image_format in FORMATS:
        for mode in ("RGB", "L"):
            data = lying(orientation, image_format, mode)
            for name, spec in IMAGE_SPECS.items():
                for orient in (None, False, True):
                    found = decode_image(data, spec, orient=orient)
                    pixels = (
                        found.numpy()
                        if spec.container == "torch"
                        else np.asarray(found)
                    )
                    if spec.container == "torch" and pixels.ndim == 3:
                        pixels = pixels.transpose(1, 2, 0)
                    if spec.floating:
                        pixels = np.rint(pixels * 255)
                    expected = by_pillow(data, spec.mode, orient=bool(orient))
                    assert np.array_equal(pixels, expected), (
                        image_format,
                        mode,
                        name,
                        orient,
                    )


def test_a_turned_pil_image_is_not_turned_again():
    turned = decode_image(lying(6), IMAGE_SPECS["pil"], orient=True)
    assert turned.size == (34, 50)
    assert PIL.ImageOps.exif_transpose(turned).size == (34, 50)


def test_the_orientation_may_be_in_xmp_after_other_segments():
    rdf = b'<rdf:Description tiff:Orientation="6"/>'
    data = encoded(picture(50, 34), "JPEG", xmp=rdf, comment=b"a" * 300)
    assert SampleDecoder(orient=True).decode("jpg", data).shape == (3, 50, 34)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\xff\xff"]
)
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_data_do_not_damage_an_image(exif, image_format):
    data = encoded(picture(50, 34), image_format, exif=exif)
    for name in ("rgb8", "pil"):
        decoded = SampleDecoder(image_decode=name, orient=True).decode("x.jpg", data)
        assert np.asarray(decoded).shape == (34, 50, 3)


def animated(image_format: str) -> bytes:
    frames = [picture(8, 6), picture(8, 6).rotate(180)]
    return encoded(frames[0], image_format, save_all=True, append_images=frames[1:])


def clear(image_format: str, opacity: int = 0) -> bytes:
    image = picture(8, 6).convert("RGBA")
    image.putalpha(opacity)
    return encoded(image, image_format)


def deep(image_format: str) -> bytes:
    """An image of 16 bits a channel of colours, which Pillow cannot write itself."""
    values = (np.arange(8 * 6 * 3, dtype=np.uint16) * 257).reshape(6, 8, 3)
    if image_format == "PPM":
        return b"P6\n8 6\n65535\n" + values.astype(">u2").tobytes()
    if image_format == "JPEG2000":
        data = bytearray(encoded(picture(8, 6), "JPEG2000"))
        first = data.find(b"\xff\x51") + 40
        data[first : first + 9 : 3] = b"\x0f" * 3
        return bytes(data)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(name + body)
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 8, 6, 16, 2, 0, 0, 0)
    parts = (
        chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + parts


GREY = PIL.Image.fromarray(np.full((6, 8), 300, np.uint16))
TRANSPARENT = encoded(picture(8, 6).quantize(16), "PNG", transparency=0)
LOSSES = {
    "turned": (lying(6), {"orient": True}, "(orientation 6)", "orient=False"),
    "stored": (lying(8, "PNG"), {}, "(orientation 8)", "orient: true"),
    "stored on request": (
        lying(3),
        {"orient": False},
        "(orientation 3)",
        "orient: true",
    ),
    "frames of GIF": (animated("GIF"), {}, "several frames", "the first one"),
    "frames of PNG": (animated("PNG"), {}, "several frames", "the first one"),
    "frames of WEBP": (animated("WEBP"), {}, "several frames", "the first one"),
    "frames of TIFF": (animated("TIFF"), {}, "several frames", "the first one"),
    "frames of AVIF": (animated("AVIF"), {}, "several frames", "the first one"),
    "frames of MPO": (animated("MPO"), {}, "several frames", "the first one"),
    "alpha of PNG": (clear("PNG"), {}, "Transparency", "torchrgba"),
    "alpha of WEBP": (clear("WEBP"), {}, "Transparency", "torchrgba"),
    "alpha of TIFF": (clear("TIFF"), {}, "Transparency", "torchrgba"),
    "alpha of a palette": (TRANSPARENT, {}, "Transparency", "torchrgba"),
    "alpha in greys": (
        clear("PNG"),
        {"image_decode": "l8"},
        "Transparency",
        "torchrgba",
    ),
    "16 bits of grey": (encoded(GREY, "PNG"), {}, "mode I;16", "torchstored"),
    "floats": (encoded(GREY.convert("F"), "TIFF"), {}, "mode F", "torchstored"),
    "16 bits of PNG": (deep("PNG"), {}, "16 bits", "8 bits"),
    "16 bits of JPEG 2000": (deep("JPEG2000"), {}, "16 bits", "8 bits"),
    "16 bits of PPM": (deep("PPM"), {}, "16 bits", "8 bits"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_decoding_leaves_out_is_logged_once(name, caplog):
    caplog.set_level(logging.INFO, "energize")
    data, options, what, remedy = LOSSES[name]
    for _ in range(3):
        SampleDecoder(**options).decode("0.image.png", data)
    [record] = caplog.records
    assert what in record.getMessage()
    assert remedy in record.getMessage()
    assert "'0.image.png'" in record.getMessage()
    assert record.levelno == (logging.INFO if "orient" in options else logging.WARNING)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "TIFF", "GIF"])
def test_nothing_is_logged_of_images_that_lose_nothing(image_format, caplog):
    caplog.set_level(logging.INFO, "energize")
    for name in IMAGE_SPECS:
        decoder = SampleDecoder(image_decode=name, orient=True)
        decoder.decode("png", encoded(picture(8, 6), image_format))
    if image_format != "JPEG":
        SampleDecoder().decode("png", clear("PNG", opacity=255))
        SampleDecoder(image_decode="torchrgba").decode("png", clear("PNG"))
        SampleDecoder(image_decode="torchstored").decode("png", encoded(GREY, "PNG"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("min_side", "size"), [(4, (7, 5)), (8, (13, 9)), (17, (25, 17)), (18, (50, 34))]
)
def test_a_reduced_jpeg_has_the_same_pixels_by_both_decoders(min_side, size):
    data = lying(6)
    with PIL.Image.open(io.BytesIO(data)) as image:
        image.draft(None, (50 * min_side // 34, min_side))
        expected = np.asarray(image.convert("RGB"))
    assert expected.shape[1::-1] == size
    for name in ("rgb8", "pil", "stored", "pilstored"):
        decoder = SampleDecoder(image_decode=name, orient=False, min_side=min_side)
        assert np.array_equal(np.asarray(decoder.decode("jpg", data)), expected), name
    upright = SampleDecoder(orient=True, min_side=min_side).decode("jpg", data)
    assert upright.shape == (3, *size)


@pytest.mark.parametrize("name", sorted(IMAGE_SPECS))
def test_an_image_keeps_its_pixels_when_others_are_decoded(name):
    decoder = SampleDecoder(image_decode=name)
    images = [encoded(picture(side, 34), "JPEG") for side in (50, 8, 50)]
    first = decoder.decode("jpg", images[0])
    before = np.asarray(first).copy()
    for data in images[1:] * 2:
        decoder.decode("jpg", encoded(PIL.Image.new("RGB", (50, 34)), "JPEG"))
        decoder.decode("jpg", data)
    assert np.array_equal(np.asarray(first), before)
    if hasattr(first, "is_contiguous"):
        assert first.is_contiguous()


def test_only_a_jpeg_is_reduced():
    decoder = SampleDecoder(image_decode="rgb8", min_side=1)
    for image_format in ("PNG", "WEBP", "TIFF", "JPEG2000"):
        decoded = decoder.decode("x.png", encoded(picture(50, 34), image_format))
        assert decoded.shape == (34, 50, 3)


def test_min_side_is_at_least_one():
    with pytest.raises(ConfigError, match="min_side must be a whole number >= 1"):
        SampleDecoder(min_side=0)
