"""Decoding of parts, compared with webdataset's own handlers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import signal
import time
from contextlib import suppress

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from webdataset import autodecode

from energize.core.description import described
from energize.errors import ConfigError, DecodeError
from energize.extras.av import AVData, AVDecoder
from energize.task.decode import IMAGE_SPECS, SampleDecoder, decoded_by
from tests.support.images import encoded, picture
from tests.support.videos import CONTAINERS, sound, video, wav

NOT_UNPICKLED = ("pkl", "pickle", "pyd", "pt", "pth")


def sixteen_bit() -> bytes:
    values = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60) * 20
    return encoded(PIL.Image.fromarray(values), "PNG")


LOSSLESS = {
    "png": encoded(picture(), "PNG"),
    "png with alpha": encoded(picture(mode="RGBA"), "PNG"),
    "png grey": encoded(picture(mode="L"), "PNG"),
    "png palette": encoded(picture().quantize(16), "PNG"),
    "png palette transparent": encoded(picture().quantize(16), "PNG", transparency=0),
    "png one bit": encoded(picture(mode="1"), "PNG"),
    "png 16 bit": sixteen_bit(),
    "png one pixel": encoded(picture(1, 1), "PNG"),
    "webp": encoded(picture(), "WEBP", lossless=True),
    "webp lossy": encoded(picture(), "WEBP"),
    "gif": encoded(picture(), "GIF"),
    "bmp": encoded(picture(), "BMP"),
    "tiff": encoded(picture(), "TIFF"),
}
JPEG = {
    "jpg": encoded(picture(), "JPEG", quality=90),
    "jpg grey": encoded(picture(mode="L"), "JPEG"),
    "jpg cmyk": encoded(picture().convert("CMYK"), "JPEG"),
    "jpg progressive": encoded(picture(), "JPEG", progressive=True),
    "jpg 4:4:4": encoded(picture(), "JPEG", subsampling=0),
    "jpg odd size": encoded(picture(17, 5), "JPEG"),
    "jpg with a tail": encoded(picture(), "JPEG") + b"more bytes",
}


def by_webdataset(name: str, data: bytes):
    return autodecode.ImageHandler(name)(".png", data)


def assert_same_kind(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, PIL.Image.Image):
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
    else:
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("name", IMAGE_SPECS)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_images_are_webdatasets_bit_for_bit(name, kind):
    ours = SampleDecoder(image_decode=name).decode("png", LOSSLESS[kind])
    theirs = by_webdataset(name, LOSSLESS[kind])
    assert_same_kind(ours, theirs)
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("name", IMAGE_SPECS)
@pytest.mark.parametrize("kind", JPEG)
def test_jpegs_are_webdatasets_within_two_levels(name, kind):
    ours = SampleDecoder(image_decode=name).decode("jpg", JPEG[kind])
    theirs = by_webdataset(name, JPEG[kind])
    assert_same_kind(ours, theirs)
    scale = 255 if IMAGE_SPECS[name].floating else 1
    apart = np.abs(np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64))
    assert apart.max() * scale <= 2.001


def test_every_name_of_webdataset_is_known():
    assert set(IMAGE_SPECS) == set(autodecode.imagespecs)


@pytest.mark.parametrize("name", ["rgb8", "torchrgb8", "torchrgb", "l8", "torchl"])
@pytest.mark.parametrize("kind", ["png", "jpg", "jpg cmyk"])
def test_pixels_are_writable_contiguous_and_their_own(name, kind):
    data = (LOSSLESS | JPEG)[kind]
    first = SampleDecoder(image_decode=name).decode("jpg", data)
    again = SampleDecoder(image_decode=name).decode("jpg", data)
    if isinstance(first, torch.Tensor):
        assert first.is_contiguous()
    first[:] = 0
    assert np.asarray(again).any()


def test_an_exif_orientation_is_not_applied_and_pil_images_keep_it():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(60, 40), "JPEG", exif=exif)
    assert SampleDecoder().decode("jpg", data).shape == by_webdataset("torchrgb", data).shape
    assert SampleDecoder().decode("jpg", data).shape == (3, 40, 60)
    assert SampleDecoder(image_decode="pil").decode("jpg", data).getexif()[0x0112] == 6


def test_torchrgb_covers_zero_to_one():
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    pixels[0] = 255
    image = SampleDecoder().decode("png", encoded(PIL.Image.fromarray(pixels), "PNG"))
    assert image.dtype == torch.float32
    assert (image.min().item(), image.max().item()) == (0.0, 1.0)


@given(st.integers(1, 40), st.integers(1, 40), st.randoms(use_true_random=False))
def test_png_of_any_size_comes_back_exactly(height, width, random):
    pixels = np.frombuffer(random.randbytes(height * width * 3), dtype=np.uint8)
    pixels = pixels.reshape(height, width, 3)
    data = encoded(PIL.Image.fromarray(pixels), "PNG")
    assert np.array_equal(SampleDecoder(image_decode="rgb8").decode("png", data), pixels)
    expected = torch.tensor(pixels).permute(2, 0, 1)
    assert torch.equal(SampleDecoder(image_decode="torchrgb8").decode("png", data), expected)


@pytest.mark.parametrize("part", ["txt", "text", "transcript", "a.b.txt", "TXT"])
def test_text(part):
    assert SampleDecoder().decode(part, "gr\u00fc\u00df".encode()) == "gr\u00fc\u00df"


@pytest.mark.parametrize("part", ["cls", "cls2", "class", "index", "inx", "id", "count"])
def test_integers(part):
    assert SampleDecoder().decode(part, b" 42\n") == 42


@pytest.mark.parametrize("part", ["json", "jsn", "meta.json"])
def test_json(part):
    value = {"a": [1, None, "\u00fc"]}
    assert SampleDecoder().decode(part, json.dumps(value).encode()) == value


def test_arrays():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    single, several = io.BytesIO(), io.BytesIO()
    np.save(single, array)
    np.savez(several, x=array, y=array[0])
    decoded = SampleDecoder().decode("npy", single.getvalue())
    assert decoded.dtype == np.float16
    assert np.array_equal(decoded, array)
    assert np.array_equal(SampleDecoder().decode("npz", several.getvalue())["y"], array[0])


def test_a_gz_part_is_unpacked_first():
    assert SampleDecoder().decode("json.gz", gzip.compress(b"[1]")) == [1]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("part", NOT_UNPICKLED)
def test_pickles_stay_bytes(part, tmp_path):
    data = pickle.dumps(Trap(tmp_path / "mark"))
    assert SampleDecoder().decode(part, data) == data
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("part", ["npy", "npz"])
def test_arrays_of_pickled_objects_are_refused(part, tmp_path):
    stream = io.BytesIO()
    array = np.array([Trap(tmp_path / "mark")], dtype=object)
    if part == "npy":
        np.save(stream, array, allow_pickle=True)
    else:
        np.savez(stream, x=array)
    with pytest.raises(DecodeError, match=part):
        SampleDecoder().decode(part, stream.getvalue())
    assert not (tmp_path / "mark").exists()


def test_postscript_is_not_run_whatever_it_is_called():
    eps = encoded(picture(), "EPS")
    with pytest.raises(DecodeError, match="cannot identify"):
        SampleDecoder().decode("png", eps)
    assert SampleDecoder().decode("eps", eps) == eps


BAD = {
    "jpg": JPEG["jpg"][: len(JPEG["jpg"]) // 2],
    "jpeg": b"\xff\xd8\xff",
    "png": LOSSLESS["png"][:-200],
    "webp": LOSSLESS["webp"][:-20],
    "gif": b"not an image",
    "txt": b"\xff\xfe\xff",
    "json": b"{'a': 1}",
    "cls": b"one",
    "npy": b"\x93NUMPY\x01\x00",
    "npz": b"PK\x03\x04",
    "txt.gz": b"\x1f\x8b\x08",
}


@pytest.mark.parametrize("part", BAD)
def test_bad_bytes_name_the_part_and_the_reason(part):
    with pytest.raises(DecodeError) as error:
        SampleDecoder().decode(part, BAD[part])
    assert f"part {part!r} of {len(BAD[part])} bytes" in str(error.value)
    assert str(error.value.__cause__) in str(error.value)


def test_json_nested_too_deep_is_bad_data():
    with pytest.raises(DecodeError, match="nested too deeply"):
        SampleDecoder().decode("json", b"[" * 200_000)


STARTS = (b"", LOSSLESS["png"][:40], JPEG["jpg"][:300], b"BM", b"II*\x00", b"P6 ", b"PK\x03\x04")
PARTS = sorted({*BAD, "tiff", "bmp", "ppm", "tga", "jp2"})


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.sampled_from(STARTS), st.binary(max_size=200), st.sampled_from(PARTS))
def test_no_bytes_raise_anything_but_a_decode_error(start, data, part):
    with suppress(DecodeError):
        SampleDecoder().decode(part, start + data)


def test_a_timeout_of_the_user_is_not_bad_data():
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


def test_a_sample_is_decoded_into_a_new_dict():
    raw = {"__key__": "a", "txt": b"hello", "bin": b"\x00", "__index__": 3}
    assert SampleDecoder()(raw) == {"__key__": "a", "txt": "hello", "bin": b"\x00", "__index__": 3}
    assert raw["txt"] == b"hello"


def test_a_decoder_is_a_value():
    decoder = SampleDecoder(image_decode="pil")
    assert decoder == SampleDecoder(image_decode="pil") != SampleDecoder()
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert described(decoder) == {"image_decode": "pil"}
    assert hash(decoder) == hash(SampleDecoder(image_decode="pil"))
    with pytest.raises(AttributeError):
        decoder.image_decode = "rgb"


def test_an_unknown_image_decode_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'torchrgb'"):
        SampleDecoder(image_decode="torch_rgb")


class TestVideoAndSound:
    @pytest.mark.parametrize("part", ["mp4", "clip.MOV", "mkv", "webm", "avi", "flv"])
    def test_a_video_is_decoded_when_it_is_asked(self, part):
        decoded = SampleDecoder().decode(part, video())
        assert decoded == AVDecoder(video())
        assert decoded.get_video_clips([(0, 1)], "frames")[0][0].shape == (2, 3, 48, 64)

    @pytest.mark.parametrize("part", ["wav", "flac", "mp3"])
    def test_a_sound_too(self, part):
        assert SampleDecoder().decode(part, wav()).get_audio_samples_per_second() == 16000

    def test_all_of_it_as_tensors(self):
        silent = SampleDecoder(av_decode="torch").decode("mp4", video())
        assert isinstance(silent, AVData)
        assert (silent.video_clips[0].shape[0], silent.audio_clips) == (60, [])
        both = SampleDecoder(av_decode="torch", video_decode_audio=True).decode("mp4", video())
        assert len(both.audio_clips) == 1
        assert SampleDecoder(av_decode="torch").decode("wav", wav()).video_clips == []

    def test_an_open_container(self):
        with SampleDecoder(av_decode="pyav").decode("mp4", video()) as container:
            assert len(list(container.decode(video=0))) == 60

    def test_damage_is_told_when_it_is_decoded(self):
        lazy = SampleDecoder().decode("mp4", b"no video")
        with pytest.raises(DecodeError, match="part 'mp4' of 8 bytes"):
            lazy.get_frames()
        for name in ("torch", "pyav"):
            with pytest.raises(DecodeError, match="part 'mp4' of 8 bytes"):
                SampleDecoder(av_decode=name).decode("mp4", b"no video")

    def test_an_unknown_name(self):
        with pytest.raises(ConfigError, match=r"av_decode='pyaw'.*did you mean 'pyav'"):
            SampleDecoder(av_decode="pyaw")


class TestGuessing:
    def test_content_decides_whatever_the_part_is_called(self):
        guess = SampleDecoder(guess_content=True)
        assert guess.decode("data", encoded(picture(), "PNG")).shape == (3, 40, 60)
        assert guess.decode("txt", encoded(picture(), "JPEG")).shape == (3, 40, 60)
        assert guess.decode("bin", video("webm vp9")) == AVDecoder(video("webm vp9"))
        assert guess.decode("mp4", encoded(picture(), "WEBP")).shape == (3, 40, 60)
        assert guess.decode("txt", b"a text") == "a text"
        assert guess.decode("bin", b"bytes") == b"bytes"
        assert SampleDecoder().decode("bin", encoded(picture(), "PNG")).startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        "image_format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000"]
    )
    def test_images(self, image_format):
        data = encoded(picture(), image_format)
        assert SampleDecoder(guess_content=True).decode("data", data).shape == (3, 40, 60)

    @pytest.mark.parametrize("name", [name for name in CONTAINERS if "ts" not in name])
    def test_videos(self, name):
        decoded = SampleDecoder(guess_content=True).decode("data", video(name))
        assert decoded.has_video_stream()

    @pytest.mark.parametrize("container", ["flac", "mp3"])
    def test_sounds(self, container):
        data = sound(container, container)
        assert SampleDecoder(guess_content=True).decode("data", data).has_audio_stream()

    @pytest.mark.parametrize("data", [b"", b"\xff", b"BMW is a car", b"RIFF", b"{}", b"\x1f\x8b"])
    def test_others(self, data):
        assert SampleDecoder(guess_content=True).decode("data", data) == data


def test_what_is_as_by_default_is_not_described():
    assert described(SampleDecoder()) == {"image_decode": "torchrgb"}
    assert described(SampleDecoder(av_decode="torch")) == {
        "image_decode": "torchrgb",
        "av_decode": "torch",
    }
    assert SampleDecoder().config()["guess_content"] is False


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def told(name, data, options=None):
    with pytest.raises(DecodeError) as caught:
        SampleDecoder(**options or {}).decode(name, data)
    return str(caught.value)


def test_what_a_header_promises_is_there_before_memory_is_taken_for_it():
    small = npy(np.arange(10))
    wide = small.replace(b"(10,)", b"(99999999999999,)", 1)
    wide = wide.replace(b" " * 12, b"", 1)  # the header keeps its length
    assert "the header says 799999999999992 bytes of values, and there are 80" in told(
        "x.npy", wide
    )
    assert "and there are 79" in told("x.npy", small[:-1])
    assert "nothing is ever unpickled" in told("x.npy", npy(np.array([{}], dtype=object)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize("order", "CF")
def test_arrays_of_any_shape(shape, order):
    array = np.arange(np.prod(shape, dtype=int), dtype=">i2").reshape(shape, order=order)
    found = SampleDecoder().decode("x.npy", npy(array))
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


def test_what_is_small_and_becomes_large_is_bad_data(monkeypatch):
    monkeypatch.setenv("ENERGIZE_LIMIT_PART_BYTES", "100000")
    big = np.zeros(20_000)
    for name, data in (("x.npz", npz(a=big)), ("x.txt.gz", gzip.compress(bytes(100_001)))):
        assert len(data) < 1000
        assert "too large when it is unpacked" in told(name, data)
        assert "ENERGIZE_LIMIT_PART_BYTES" in told(name, data)
    assert len(SampleDecoder().decode("x.bin.gz", gzip.compress(bytes(100_000)))) == 100_000


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("image_decode", ["torchrgb", "pil", "l8"])
def test_images_of_too_many_pixels_are_bad_data(monkeypatch, kind, image_decode):
    data = encoded(picture(20, 10), kind)
    monkeypatch.setenv("ENERGIZE_LIMIT_PIXELS", "199")
    message = told("x.png", data, {"image_decode": image_decode})
    assert "the image has too many pixels, 200, more than 199" in message
    monkeypatch.setenv("ENERGIZE_LIMIT_PIXELS", "200")
    SampleDecoder(image_decode=image_decode).decode("x.png", data)
