"""Decode images by simplejpeg or Pillow, with the same pixels."""

from __future__ import annotations

import io
import logging
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import PIL.ExifTags
import PIL.Image
import PIL.ImageFile
import PIL.ImageOps
import simplejpeg

from energize.core import limits
from energize.core.arrays import empty
from energize.core.ignored import log_once, was_logged
from energize.core.lazy import torch
from energize.data.media import open_image

_JPEG_START = b"\xff\xd8\xff"
_JPEG_COLORS = ("YCbCr", "RGB", "Gray")
_JPEG_SEGMENT = struct.Struct(">HH")
_JPEG_SEQUENTIAL = (0xFFC0, 0xFFC1)
"""Starts of a frame that is not progressive."""
_JPEG_SEGMENTS = {*range(0xFFC0, 0xFFD0), *range(0xFFDA, 0xFFFF)}
"""Markers with a length behind them."""
_JPEG_APPLICATION = 0xFFE0
_JPEG_SCAN = 0xFFDA
_FACTORS = (8, 4, 2, 1)
"""Factors by which both decoders reduce a JPEG, largest first."""
_JPEG_METADATA = (b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/", b"MPF\0")
"""Starts of JPEG segments with an orientation, or offsets of further images."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The form of a decoded image: container, channels, and float values or not."""

    container: Literal["numpy", "torch", "pil"]
    mode: Literal["L", "RGB", "RGBA", "stored"]
    floating: bool = False
    pixel: int = field(init=False)
    """Bytes that a pixel takes while it is decoded."""

    def __post_init__(self) -> None:
        channels = len(self.mode)
        is_tensor = self.container == "torch" and self.mode in ("RGB", "RGBA")
        decoded = 4 if is_tensor else channels
        of_results = channels * (5 if self.floating else 1)
        object.__setattr__(self, "pixel", decoded + of_results)


_MODES: tuple[Literal["L", "RGB", "RGBA"], ...] = ("L", "RGB", "RGBA")
IMAGE_SPECS: Mapping[str, ImageSpec] = MappingProxyType(
    {f"{mode.lower()}8": ImageSpec("numpy", mode) for mode in _MODES}
    | {mode.lower(): ImageSpec("numpy", mode, floating=True) for mode in _MODES}
    | {f"torch{mode.lower()}8": ImageSpec("torch", mode) for mode in _MODES}
    | {
        f"torch{mode.lower()}": ImageSpec("torch", mode, floating=True)
        for mode in _MODES
    }
    | {"torch": ImageSpec("torch", "RGB", floating=True)}
    | {f"pil{mode.lower()}": ImageSpec("pil", mode) for mode in _MODES}
    | {"pil": ImageSpec("pil", "RGB")}
    | {
        "stored": ImageSpec("numpy", "stored"),
        "torchstored": ImageSpec("torch", "stored"),
    }
    | {"pilstored": ImageSpec("pil", "stored")}
)
"""The names that `SampleDecoder(image_decode=...)` takes."""


def decode_image(
    data: bytes,
    spec: ImageSpec,
    *,
    orient: bool | None = None,
    min_side: int | None = None,
    name: str = "image",
) -> Any:
    """Decode an image.

    Lost or changed content (orientation, alpha, frames, 16 bits) is logged once.

    Args:
        data: The bytes of the file.
        spec: The form of the result.
        orient: Whether the image is turned by its EXIF orientation. None does not turn
            it, and logs a warning.
        min_side: Least shorter side in pixels to which a JPEG is reduced. None decodes
            all pixels.
        name: Name of the image, for messages.

    Returns:
        An array of shape (H, W) or (H, W, C), a tensor of shape (H, W) or (C, H, W), or
        a PIL image, in new memory: uint8, or float32 from 0 to 1; with the mode
        "stored", the values of the file.
    """
    decoded = _by_strict_decoder(data, spec, min_side, name)
    if decoded is None:
        image, orientation = _by_pillow(data, spec, min_side, name)
        if spec.container == "pil":
            turned = _is_turned(orientation, orient, name)
            return PIL.ImageOps.exif_transpose(image) if turned else image
        pixels = np.array(image)
    else:
        pixels, orientation = decoded
    if _is_turned(orientation, orient, name):
        pixels = _upright(pixels, orientation)
    if spec.container == "torch":
        pixels = _channels_first(pixels)
    if spec.floating:
        values = empty(pixels.shape, np.float32)
        pixels = np.divide(pixels, 255, dtype=np.float32, out=values)
    if spec.container == "numpy":
        return pixels
    # numpy transposes bytes faster than torch.
    return torch.from_numpy(np.ascontiguousarray(pixels))


def image_size(data: bytes, *, orient: bool = False) -> tuple[int, int]:
    """Return the width and height of an image, from its header.

    Args:
        data: The bytes of the file.
        orient: Whether the image is turned by its EXIF orientation.
    """
    with io.BytesIO(data) as stream, open_image(stream) as image:
        width, height = image.size
        # Without such a chunk, Pillow decodes a PNG to look for one at its end.
        may_be_turned = orient and (image.format != "PNG" or b"eXIf" in data)
        if may_be_turned and _orientation_of(image) in _SWAPPED:
            return height, width
    return width, height


def _factor(width: int, height: int, min_side: int | None) -> int:
    """Return the factor by which a JPEG of this size is reduced."""
    if min_side is None:
        return 1
    most = min(width, height) // min_side
    return next(factor for factor in _FACTORS if factor <= max(most, 1))


def _by_strict_decoder(
    data: bytes, spec: ImageSpec, min_side: int | None, name: str
) -> tuple[npt.NDArray[Any], int] | None:
    """Return the pixels and orientation of a JPEG file, None if Pillow has to read it.

    The strict decoder refuses rare but readable files, which Pillow reads.
    """
    is_jpeg = data.startswith(_JPEG_START)
    if not is_jpeg or spec.container == "pil" or spec.mode == "stored":
        return None
    try:
        has_one_scan, may_be_turned = _read_header(data)
        pixels = _by_turbo(data, spec, min_side, has_one_scan)
        return pixels, _orientation_of_jpeg(data, name) if may_be_turned else _UPRIGHT
    except ValueError:
        return None


def _upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Return pixels turned as the orientation of EXIF data requires."""
    sides = pixels.swapaxes(0, 1) if orientation in _SWAPPED else pixels
    rows = -1 if orientation in _UPSIDE_DOWN else 1
    columns = -1 if orientation in _MIRRORED else 1
    return np.ascontiguousarray(sides[::rows, ::columns])


def _channels_first(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a view of pixels in the shape of tensors, with integers that they have."""
    if pixels.dtype.kind == "u" and pixels.itemsize > 1:
        # torch cannot add up other integers of 16 bits.
        pixels = pixels.astype(np.int32)
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


def _by_turbo(
    data: bytes, spec: ImageSpec, min_side: int | None, has_one_scan: bool
) -> npt.NDArray[np.uint8]:
    height, width, color, _ = simplejpeg.decode_jpeg_header(data)
    # The luma stored in a coloured file differs from its pixels' where colours were
    # clipped.
    if color not in (("Gray",) if spec.mode == "L" else _JPEG_COLORS):
        raise ValueError(
            "left to Pillow, which takes the luma of the pixels, and converts CMYK"
        )
    if has_one_scan:
        limits.decoding.spend(height * width * spec.pixel)
    else:
        limits.spend_pixels(height * width, spec.pixel, data)
    factor = _factor(width, height, min_side)
    height = -(-height // factor)
    width = -(-width // factor)
    if spec.container == "torch" and spec.mode != "L":
        return _over_planes(data, spec, height, width)
    is_gray = spec.mode == "L"
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data,
        "GRAY" if is_gray else spec.mode,
        min_height=height,
        min_width=width,
        buffer=_scratch(height * width * len(spec.mode)) if spec.floating else None,
    )
    return pixels[..., 0] if is_gray else pixels


def _over_planes(
    data: bytes, spec: ImageSpec, height: int, width: int
) -> npt.NDArray[np.uint8]:
    """Return pixels of shape (H, W, C), a view of planes.

    A cast of integers of 4 bytes that start at the bytes of a channel takes a third of
    the time of a transposition.
    """
    size = height * width
    end = 4 * size + 3  # of the integers of the last channel, behind the pixels
    planes_size = size * len(spec.mode)
    scratch = _scratch(end + planes_size if spec.floating else end)
    simplejpeg.decode_jpeg(
        data, "RGBA", min_height=height, min_width=width, buffer=scratch[: 4 * size]
    )
    flat = scratch[end:] if spec.floating else empty((planes_size,), np.uint8)
    planes = flat.reshape(-1, height, width)
    for channel, plane in enumerate(planes):
        integers = scratch[channel : channel + 4 * size].view("<u4")
        np.copyto(plane, integers.reshape(height, width), casting="unsafe")
    return planes.transpose(1, 2, 0)


_scratches = threading.local()
_MOST_SCRATCH = 2**25
"""Bytes of pixels in memory that a thread keeps for its next image."""


def _scratch(size: int) -> npt.NDArray[np.uint8]:
    """Return memory for pixels that are copied before the next image is decoded."""
    memory: npt.NDArray[np.uint8] | None = getattr(_scratches, "memory", None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, dtype=np.uint8)
        if size <= _MOST_SCRATCH:
            _scratches.memory = memory
    return memory[:size]


def _by_pillow(
    data: bytes, spec: ImageSpec, min_side: int | None, name: str
) -> tuple[PIL.Image.Image, int]:
    """Return the image in the mode of `spec` and its EXIF orientation."""
    with io.BytesIO(data) as stream, open_image(stream, spec.pixel) as image:
        several = getattr(image, "is_animated", False)
        deep = _is_deep(image, data)
        if (factor := _factor(*image.size, min_side)) > 1:
            width, height = image.size
            image.draft(image.mode, (width // factor, height // factor))  # JPEG only
        image.load()  # a TIFF is upright then
        converted = spec.mode != "stored"
        wide = image.mode.startswith(("I", "F"))
        losses = {
            _FRAMES: several,
            _CLIPPED: wide and converted,
            _ROUNDED: deep and not wide,
            _OPAQUE: converted and spec.mode != "RGBA" and _is_transparent(image),
        }
        for text, lost in losses.items():
            if lost:
                _note(text, name, f"mode {image.mode}")
        converted_image = image.convert(spec.mode) if converted else image.copy()
        return converted_image, _orientation_of(image)


# Orientation, by its numbers in EXIF data.

_UPRIGHT = 1
_UPSIDE_DOWN = (3, 4, 7, 8)
_MIRRORED = (2, 3, 6, 7)
_SWAPPED = (5, 6, 7, 8)

_NO_EXIF = (
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    OSError,
    struct.error,
    OverflowError,
)
"""Errors of Pillow for damaged EXIF data, which do not damage an image."""


def _orientation_of(image: PIL.Image.Image) -> int:
    with suppress(*_NO_EXIF):
        orientation = image.getexif().get(PIL.ExifTags.Base.Orientation)
        return (
            orientation
            if orientation in (*_MIRRORED, *_SWAPPED, *_UPSIDE_DOWN)
            else _UPRIGHT
        )
    return _UPRIGHT


def _orientation_of_jpeg(data: bytes, name: str) -> int:
    with (
        suppress(*_NO_EXIF),
        PIL.Image.open(io.BytesIO(data), formats=["JPEG"]) as image,
    ):
        if getattr(image, "is_animated", False):
            _note(_FRAMES, name, "MPO")
        return _orientation_of(image)
    return _UPRIGHT


def _read_header(data: bytes) -> tuple[bool, bool]:
    """Return whether a JPEG has one scan, and whether it may have an orientation.

    A decoder refuses a second scan behind a sequential one of all components. Headers
    that decoders may read in another way have neither property proven.
    """
    components = 0
    may_be_turned = False
    at = len(_JPEG_START) - 1
    with suppress(struct.error, IndexError):
        marker, size = _JPEG_SEGMENT.unpack_from(data, at)
        while marker in _JPEG_SEGMENTS:
            if marker == _JPEG_SCAN:
                return data[at + 4] == components, may_be_turned
            if marker in _JPEG_SEQUENTIAL:
                components = data[at + 9]
            elif marker >= _JPEG_APPLICATION:
                may_be_turned |= data.startswith(_JPEG_METADATA, at + 4)
            at += 2 + size
            marker, size = _JPEG_SEGMENT.unpack_from(data, at)
    return False, True


def _is_turned(orientation: int, orient: bool | None, name: str) -> bool:
    """Return whether an image is turned, and log the first rotated one."""
    if orientation != _UPRIGHT:
        level = logging.INFO if orient is not None else logging.WARNING
        _note(_TURNED if orient else _LYING, name, f"orientation {orientation}", level)
    return orientation != _UPRIGHT and bool(orient)


# What is logged of the first image that decoding changes or that loses something.

sample_in_use: ContextVar[Mapping[str, Any] | None] = ContextVar("sample", default=None)
"""The raw sample that is being decoded."""

_is_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def without_notes() -> Iterator[None]:
    """Log nothing in the block, for images that are only checked."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


_TURNED = (
    "Images are turned upright by their EXIF orientation: {}. To keep them as stored, "
    "use SampleDecoder(orient=False)"
)
_LYING = (
    "Images are not turned by their EXIF orientation: {}. To turn them, write orient: "
    "true in dataset.yaml, or use SampleDecoder(orient=True)"
)
_FRAMES = "Of images with several frames the first one is read: {}"
_CLIPPED = (
    "Values above 255 are cut off: {}. To keep them, use image_decode='torchstored', "
    "for one field by SampleDecoder(fields=...)"
)
_ROUNDED = "Colours of 16 bits are reduced to 8 bits, which is what Pillow reads: {}"
_OPAQUE = (
    "Transparency is left out: {}. To keep it, use "
    "SampleDecoder(image_decode='torchrgba') or 'pilrgba'"
)


def _note(text: str, name: str, value: str, level: int = logging.WARNING) -> None:
    if _is_quiet.get():
        return
    raw = sample_in_use.get()
    location = (
        "" if raw is None else f"{raw['__dataset__']}, sample {raw['__key__']!r}, "
    )
    log_once("images", text, text.format(f"{location}part {name!r} ({value})"), level)


def _is_deep(image: PIL.ImageFile.ImageFile, data: bytes) -> bool:
    """Return whether an unloaded image has more than 8 bits per channel."""
    if image.format == "JPEG2000":
        precision = data.find(_SIZES_OF_JPEG2000) + _PRECISION_AT
        return data[precision : precision + 1] > b"\x07"
    return any(marker in str(image.tile) for marker in _DEEP_TILES)


_SIZES_OF_JPEG2000 = b"\xff\x51"
_PRECISION_AT = 40  # bytes from there
_DEEP_TILES = (";16", "'RGB', 65535")


def _is_transparent(image: PIL.Image.Image) -> bool:
    """Return whether a pixel is not opaque; False once that was logged."""
    if was_logged("images", _OPAQUE) or not image.has_transparency_data:
        return False
    return image.convert("RGBA").getchannel("A").getextrema() != (255, 255)
