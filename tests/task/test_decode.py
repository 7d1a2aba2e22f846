"""Decoding of parts, compared with webdataset's own handlers."""

from __future__ import annotations

import gzip
import io
import pickle
import signal
import time
from contextlib import suppress
from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from webdataset import autodecode

from energize import CrudeSample
from energize.core import limits
from energize.core.description import described
from energize.errors import ConfigError, DecodeError, UntrustedCodeError
from energize.task.decode import SampleDecoder, decoded_by
from energize.task.images import IMAGE_SPECS
from energize.task.load import SampleLoader
from tests.support.images import encoded, picture
from tests.support.refusals import check_refusals

DEEP = PIL.Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60) * 20)
IMAGES = {
    "png": encoded(picture(), "PNG"),
    "png with alpha": encoded(picture(mode="RGBA"), "PNG"),
    "png grey": encoded(picture(mode="L"), "PNG"),
    "png palette": encoded(picture().quantize(16), "PNG", transparency=0),
    "png one bit": encoded(picture(mode="1"), "PNG"),
    "png 16 bit": encoded(DEEP, "PNG"),
    "png one pixel": encoded(picture(1, 1), "PNG"),
    "webp": encoded(picture(), "WEBP"),
    "gif": encoded(picture(), "GIF"),
    "bmp": encoded(picture(), "BMP"),
    "tiff": encoded(picture(), "TIFF"),
    "jpg": encoded(picture(), "JPEG", quality=90),
    "jpg grey": encoded(picture(mode="L"), "JPEG"),
    "jpg cmyk": encoded(picture().convert("CMYK"), "JPEG"),
    "jpg progressive": encoded(picture(), "JPEG", progressive=True),
    "jpg 4:4:4": encoded(picture(), "JPEG", subsampling=0),
    "jpg odd size": encoded(picture(17, 5), "JPEG"),
    "jpg with a tail": encoded(picture(), "JPEG") + b"more bytes",
}


def decoded(name: str, data: bytes, **options):
    return SampleDecoder(**options).decode(name, data)


@pytest.mark.parametrize("name", [name for name in IMAGE_SPECS if "stored" not in name])
def test_images_are_webdatasets(name):
    """Bit for bit, but for JPEG: within two levels of 255."""
    floating = IMAGE_SPECS[name].floating
    for kind, data in IMAGES.items():
        ours = decoded(kind.split()[0], data, image_decode=name)
        theirs = autodecode.ImageHandler(name)(".png", data)
        assert type(ours) is type(theirs), kind
        if isinstance(ours, PIL.Image.Image):
            assert (ours.mode, ours.size) == (theirs.mode, theirs.size), kind
        else:
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), kind
        apart = np.abs(
            np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
        )
        most = (2.001 / 255 if floating else 2) if kind.startswith("jpg") else 0
        assert apart.max() <= most, kind


def test_every_name_of_webdataset_is_known():
    own = {"stored", "torchstored", "pilstored"}
    assert set(IMAGE_SPECS) - own == set(autodecode.imagespecs)


def test_extensions_may_be_in_upper_case():
    png = IMAGES["png"]
    assert (decoded("a.TXT", b"hi"), decoded("a.CLS", b"3")) == ("hi", 3)
    assert decoded("b.PNG", png).equal(decoded("b.png", png))


def npy(array, save=np.save) -> bytes:
    stream = io.BytesIO()
    save(stream, array)
    return stream.getvalue()


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def test_what_torch_saved():
    stream = io.BytesIO()
    torch.save({"features": torch.arange(6).view(2, 3), "name": "a"}, stream)
    found = decoded("pth", stream.getvalue())
    assert found["features"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["name"] == "a"
    check_refusals(
        DecodeError, cut=(lambda: decoded("pth", stream.getvalue()[:-9]), "pth")
    )


def test_nothing_is_unpickled(tmp_path):
    data = pickle.dumps(Trap(tmp_path / "mark"))
    for part in ("pkl", "pt"):
        assert decoded(part, data) == data
    for part in ("pickle", "pyd"):
        with pytest.raises(UntrustedCodeError, match=r"SampleDecoder\(unpickle=True\)"):
            decoded(part, data)
    objects = np.array([Trap(tmp_path / "mark")], dtype=object)
    check_refusals(
        DecodeError,
        pth=(lambda: decoded("pth", data), "pth"),
        npy=(lambda: decoded("npy", npy(objects)), "are never unpickled"),
        npz=(lambda: decoded("npz", npy(objects, np.savez)), "unpickled"),
    )
    assert not (tmp_path / "mark").exists()
    plain = pickle.dumps({"a": 1})
    decoder = SampleDecoder(unpickle=True)
    assert decoder.decode("x.pickle", plain) == decoder.decode("pyd", plain) == {"a": 1}
    assert decoder.decode("pkl", plain) == plain
    check_refusals(
        DecodeError, cut=(lambda: decoder.decode("pickle", plain[:-3]), "pickle")
    )


BAD = {
    "jpg": IMAGES["jpg"][: len(IMAGES["jpg"]) // 2],
    "jpeg": b"\xff\xd8\xff",
    "png": IMAGES["png"][:-200],
    "webp": IMAGES["webp"][:-20],
    "gif": b"not an image",
    "tif": encoded(picture(), "EPS"),  # no PostScript is run, whatever it is called
    "txt": b"\xff\xfe\xff",
    "json": b"{'a': 1}",
    "jsn": b"[" * 200_000,
    "cls": b"one",
    "npy": b"\x93NUMPY\x01\x00",
    "npz": b"PK\x03\x04",
    "txt.gz": b"\x1f\x8b\x08",
}


def test_bad_bytes_name_the_part_and_the_reason():
    for part, data in BAD.items():
        with pytest.raises(DecodeError) as error:
            decoded(part, data)
        assert f"part {part!r} of {len(data)} bytes" in str(error.value)
        assert str(error.value.__cause__) in str(error.value), part


STARTS = (
    b"",
    IMAGES["png"][:40],
    IMAGES["jpg"][:300],
    b"BM",
    b"II*\x00",
    b"P6 ",
    b"PK\x03\x04",
)
PARTS = sorted({*BAD, "tiff", "bmp", "ppm", "tga", "jp2"})


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.sampled_from(STARTS), st.binary(max_size=200), st.sampled_from(PARTS))
def test_no_bytes_raise_anything_but_a_decode_error(start, data, part):
    with suppress(DecodeError):
        decoded(part, start + data)


def test_an_alarm_and_short_memory_are_not_bad_data():
    def ring(*_):
        raise TimeoutError("too slow")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError, match="too slow"):
            decoded_by(lambda _: time.sleep(5), "jpg", b"")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(MemoryError):
        decoded_by(lambda _: bytearray(2**62), "jpg", b"")


def test_memory_is_not_taken_for_what_bytes_only_promise(monkeypatch):
    small = npy(np.arange(10))
    wide = small.replace(b"(10,)", b"(99999999999999,)", 1)
    wide = wide.replace(b" " * 12, b"", 1)  # the header keeps its length
    zeros = npy(np.zeros(20_000), np.savez_compressed)
    monkeypatch.setattr(limits, "DECODED_BYTES", 100_000)
    over = "too large when it is decoded, in bytes, "
    levels = gzip.compress(gzip.compress(bytes(60_000)) + bytes(60_000))
    passes = encoded(picture(100, 100, "L"), "JPEG", progressive=True)
    scan = passes[passes.rindex(b"\xff\xda") : -2]
    rows = {
        "header": (
            lambda: decoded("x.npy", wide),
            "says 799999999999992 bytes of values",
            "80",
        ),
        "short": (lambda: decoded("x.npy", small[:-1]), "there are 79"),
        "npz": (lambda: decoded("x.npz", zeros), over),
        "gz": (
            lambda: decoded("x.bin.gz", gzip.compress(bytes(100_001))),
            f"{over}100001, more",
        ),
        "levels": (lambda: decoded("x.txt.gz.gz", levels), over),
        "members": (lambda: decoded("x.bin.gz", gzip.compress(b"x") * 4), over),
        "JSON": (lambda: decoded("x.json", b"[" + b"[]," * 500 + b"0]"), over),
        "scans": (
            lambda: decoded("x.jpg", passes[:-2] + scan * 20 + passes[-2:]),
            over,
        ),
        "scans behind a fill byte": (
            lambda: decoded(
                "x.jpg", passes[:-2].replace(b"\xff\xc2", b"\xff\xff\xc2") + scan * 20
            ),
            over,
        ),
    }
    for kind in ("PNG", "JPEG"):
        for name, pixel in {"torchrgb": 19, "pil": 6, "l8": 2}.items():
            data, size = encoded(picture(20, 10), kind), 200 * pixel
            call = partial(decoded, "x.png", data, image_decode=name)
            rows[f"{kind} {name}"] = (
                partial(_within, size - 1, call),
                f"{over}{size}, more",
            )
            _within(size, call)
    check_refusals(
        {name: (call, DecodeError, *words) for name, (call, *words) in rows.items()}
    )
    two = gzip.compress(bytes(9)) + bytes(limits._MIB) + gzip.compress(b"x")
    assert decoded("x.bin.gz", two) == bytes(9) + b"x"
    assert decoded("x.bin" + ".gz" * 3000, b"") == b""


def _within(size, call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "DECODED_BYTES", size)
        return call()


def test_parts_of_a_sample_are_counted_together():
    raw = {"__key__": "k", "__dataset__": "d", "__shard__": "s", "__index__": 0}
    images = {f"{number}.png": encoded(picture(20, 10), "PNG") for number in range(4)}
    load = partial(SampleLoader(sample_type=CrudeSample), raw | images)
    for _ in range(2):
        assert len(_within(4 * 3800, load)) == 11
        with pytest.raises(
            DecodeError, match=r"part '3\.png' .* 15200, more than 15199"
        ):
            _within(4 * 3800 - 1, load)


def test_a_decoder_is_a_value():
    decoder = SampleDecoder(image_decode="pil")
    assert decoder == SampleDecoder(image_decode="pil") != SampleDecoder()
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert hash(decoder) == hash(SampleDecoder(image_decode="pil"))
    assert described(decoder) == {"image_decode": "pil"}
    usual = {"image_decode": "torchrgb"}
    assert described(SampleDecoder(av_decode="torch")) == usual | {"av_decode": "torch"}
    assert SampleDecoder().config()["guess_content"] is False
    with pytest.raises(AttributeError):
        decoder.image_decode = "rgb"
    near = "did you mean"
    check_refusals(
        ConfigError,
        images=(lambda: SampleDecoder(image_decode="torch_rgb"), near, "rgb'"),
        av=(lambda: SampleDecoder(av_decode="pyaw"), near, "'pyav'"),
    )
