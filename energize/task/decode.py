"""The parts of samples, decoded: JPEG by libjpeg-turbo, other images by Pillow, texts and numbers.

Pixels are those of webdataset's image handlers of the same names; like there, an EXIF orientation
is not applied, and of an animation the first frame is taken.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import PIL.Image
import simplejpeg

from energize.core import limits
from energize.core.checks import checked_choice
from energize.core.lazy import av, torch
from energize.core.limits import load_json
from energize.data.media import (
    AV_EXTENSIONS,
    HEAD,
    AVDecoderType,
    MediaMetadataType,
    kind_by_start,
)
from energize.errors import ConfigError, DecodeError

UInt8Array = npt.NDArray[np.uint8]

IMAGE_EXTENSIONS = frozenset(
    {"jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib", "ico"}
    | {"tif", "tiff", "tga", "pbm", "pgm", "ppm", "pnm"}
    | {"jp2", "j2k", "jpc", "jpf", "jpx", "j2c"}
)
"""The parts that are decoded as images."""

# Formats are recognised by content, whatever the part is called, and reading some of them runs
# another program (EPS: Ghostscript) or needs a plug-in. Only these are ever tried.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "TGA", "ICO")

_JPEG_START = b"\xff\xd8\xff"
_JPEG_COLORS = ("YCbCr", "RGB", "Gray")


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """What an image becomes: the container, its channels, and whether values are float 0 to 1."""

    container: Literal["numpy", "torch", "pil"]
    mode: Literal["L", "RGB", "RGBA"]
    floating: bool = False


_MODES: tuple[Literal["L", "RGB", "RGBA"], ...] = ("L", "RGB", "RGBA")
IMAGE_SPECS: Mapping[str, ImageSpec] = MappingProxyType(
    {f"{mode.lower()}8": ImageSpec("numpy", mode) for mode in _MODES}
    | {mode.lower(): ImageSpec("numpy", mode, floating=True) for mode in _MODES}
    | {f"torch{mode.lower()}8": ImageSpec("torch", mode) for mode in _MODES}
    | {f"torch{mode.lower()}": ImageSpec("torch", mode, floating=True) for mode in _MODES}
    | {"torch": ImageSpec("torch", "RGB", floating=True)}
    | {f"pil{mode.lower()}": ImageSpec("pil", mode) for mode in _MODES}
    | {"pil": ImageSpec("pil", "RGB")}
)
"""The names that `SampleDecoder(image_decode=...)` takes."""


def decode_image(data: bytes, spec: ImageSpec) -> Any:
    """Return the image as `spec` asks for it, in memory of its own.

    numpy: (H, W) or (H, W, C); torch: (H, W) or (C, H, W), contiguous; uint8, or float32 from 0 to
    1. Raises what the codec raises for bytes it cannot decode.
    """
    if spec.container == "pil":
        return _by_pillow(data, spec.mode)
    pixels = _pixels(data, spec.mode)
    if spec.container == "numpy":
        return np.divide(pixels, 255, dtype=np.float32) if spec.floating else pixels
    tensor = torch.from_numpy(pixels)
    if tensor.ndim == 3:
        tensor = tensor.permute(2, 0, 1)
    if not spec.floating:
        return tensor.contiguous()
    return tensor.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def _pixels(data: bytes, mode: str) -> UInt8Array:
    if data.startswith(_JPEG_START):
        # The strict decoder refuses rare but readable files; Pillow has the last word on those.
        with suppress(ValueError):
            return _by_turbo(data, mode)
    return np.array(_by_pillow(data, mode))


def _by_turbo(data: bytes, mode: str) -> UInt8Array:
    height, width, color, _ = simplejpeg.decode_jpeg_header(data)
    if color not in _JPEG_COLORS:
        raise ValueError("left to Pillow, which converts CMYK")
    check_pixels(height * width)
    if mode == "L":
        # The luma stored in a coloured file differs from its pixels' where colours were clipped.
        if color != "Gray":
            raise ValueError("left to Pillow, which takes the luma of the pixels")
        return simplejpeg.decode_jpeg(data, "GRAY")[..., 0]  # type: ignore[no-any-return]
    return simplejpeg.decode_jpeg(data, mode)  # type: ignore[no-any-return]


def _by_pillow(data: bytes, mode: str) -> PIL.Image.Image:
    with io.BytesIO(data) as stream, PIL.Image.open(stream, formats=_FORMATS) as image:
        check_pixels(image.width * image.height)
        return image.convert(mode)


def check_pixels(count: int) -> None:
    """Raise `DecompressionBombError` for an image with more pixels than are decoded."""
    if count > limits.PIXELS:
        raise PIL.Image.DecompressionBombError(limits.over("PIXELS", count))


# Parts that are not images, from bytes.


def unpacked_gzip(data: bytes) -> bytes:
    """Return what gzip packed; raise ValueError where that is more than a part may have."""
    most = limits.PART_BYTES
    size = int.from_bytes(data[-4:], "little")  # what gzip itself wrote, of its last 4 GiB
    if size <= most:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(most + 1)
        if len(found) <= most:
            return found
        size = len(found)
    raise ValueError(limits.over("PART_BYTES", size))


_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _array(data: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"format version {version} of .npy files is not known")
    shape, _, dtype = _NPY_HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are pickled; nothing is ever unpickled")
    # The array is made before its bytes are read, so what the header says is compared with them.
    promised, there = math.prod(shape) * dtype.itemsize, len(data) - stream.tell()
    if promised != there:
        raise ValueError(f"the header says {promised} bytes of values, and there are {there}")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        files = packed.infolist()
        size = sum(each.file_size for each in files)
        if size > limits.PART_BYTES:
            raise ValueError(limits.over("PART_BYTES", size))
        if len(files) > limits.PARTS:
            raise ValueError(f"{len(files)} arrays: {limits.over('PARTS')}")
        return {each.filename.removesuffix(".npy"): _array(_file(packed, each)) for each in files}


def _file(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A file of an archive; no more is unpacked than it says that it has."""
    with packed.open(info) as file:
        return file.read(info.file_size)


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "txt text transcript": bytes.decode,
    "json jsn": load_json,
    "cls cls2 class index inx id count": int,
    "npy": _array,
    "npz": _arrays,
}
PART_DECODERS: Mapping[str, Callable[[bytes], Any]] = MappingProxyType(
    {part: decode for parts, decode in _DECODERS.items() for part in parts.split()}
)
"""How each part is decoded. What is not here, pickles first of all, stays bytes."""


# Decoding the parts of raw samples.


@dataclass(frozen=True, kw_only=True)
class SampleDecoder:
    """Decodes the parts of a sample by their extensions; a plain value, equal when set equally.

    Images (jpg, png, webp, ...) become what `image_decode` names, with webdataset's names and
    results: numpy `l8 rgb8 rgba8` (uint8) and `l rgb rgba` (float32 from 0 to 1), shape (H, W) or
    (H, W, C); the same as torch tensors, shape (H, W) or (C, H, W), with the prefix `torch`; PIL
    images `pill`, `pil` (= `pilrgb`), `pilrgba`. EXIF orientation is not applied.

    Videos and sounds (mp4, avi, mov, webm, mkv, flv, flac, mp3, wav) become what `av_decode` names:
    an `AVDecoder`, which decodes clips when it is asked for them; with "torch" an `AVData` of all
    frames, or of all sound where there is no video, and with `video_decode_audio` of both; with
    "pyav" an open container of PyAV. Only "AVDecoder" can be made without PyAV (`energize[av]`).

    With `guess_content`, images, videos and sounds are told by how their bytes begin, whatever the
    part is called.

    txt, text, transcript become str; json, jsn their value; cls, cls2, class, index, inx, id, count
    int; npy a numpy array, npz a dict of them. A part that ends in .gz is unpacked first. All
    others stay bytes, and so do pickles (pkl, pickle, pyd, pt, pth): nothing is ever unpickled.

    Raises `ConfigError` for an unknown `image_decode` or `av_decode`.

    >>> SampleDecoder().decode("meta.json", b'{"width": 640}')
    {'width': 640}
    """

    image_decode: str = "torchrgb"
    av_decode: AVDecoderType = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False

    def __post_init__(self) -> None:
        checked_choice(self.image_decode, "image_decode", IMAGE_SPECS)
        checked_choice(self.av_decode, "av_decode", get_args(AVDecoderType))

    def decode(self, name: str, data: bytes) -> Any:
        """Return the content of the part, or file, called `name`.

        Raises `DecodeError` naming it when its bytes are bad.
        """
        extension = name.rpartition(".")[2].lower()
        if extension == "gz":
            return self.decode(name[:-3], decoded_by(unpacked_gzip, name, data))
        kind = kind_by_start(data[:HEAD]) if self.guess_content else None
        if kind == MediaMetadataType.IMAGE or (not kind and extension in IMAGE_EXTENSIONS):
            as_asked = partial(decode_image, spec=IMAGE_SPECS[self.image_decode])
            return decoded_by(as_asked, name, data)
        if kind == MediaMetadataType.AV or (not kind and extension in AV_EXTENSIONS):
            return av.AVWebdatasetDecoder(self.video_decode_audio, self.av_decode).decoded(
                name, data
            )
        if extension in PART_DECODERS:
            return decoded_by(PART_DECODERS[extension], name, data)
        return data

    def config(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return asdict(self)

    def describe(self) -> dict[str, Any]:
        """Return `image_decode`, and what else is not as by default."""
        usual = asdict(SampleDecoder(image_decode=self.image_decode))
        told = {"image_decode": self.image_decode}
        return told | {name: value for name, value in self.config().items() if value != usual[name]}

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode all parts of a raw sample; what is not bytes, and names with __, stay."""
        return {
            name: self.decode(name, value)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }


def decoded_by(decode: Callable[[bytes], Any], name: str, data: bytes) -> Any:
    """Return `decode(data)`; raise `DecodeError` naming the part and the reason for bad bytes.

    Short memory, an alarm of the user's (`TimeoutError`) and wrong settings are not bad bytes.
    """
    try:
        return decode(data)
    except (MemoryError, TimeoutError, ConfigError):
        raise
    except Exception as error:
        raise DecodeError(
            f"part {name!r} of {len(data)} bytes cannot be decoded: {type(error).__name__}: "
            f"{error}; it begins with {data[:16]!r}"
        ) from error
