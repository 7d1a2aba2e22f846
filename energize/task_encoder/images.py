"""Images from bytes: JPEG by libjpeg-turbo, everything else by Pillow.

Pixels are those of webdataset's image handlers of the same names; like there, an EXIF orientation
is not applied, and of an animation the first frame is taken.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import PIL.Image
import simplejpeg

from energize.late import torch
from energize.limits import limit, over_limit

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
    """The image as `spec` asks for it, in memory of its own.

    numpy: (H, W) or (H, W, C); torch: (H, W) or (C, H, W), contiguous; uint8, or float32 from 0 to
    1. Raises what the codec raises for bytes it cannot decode.
    """
    if spec.container == "pil":
        return _by_pillow(data, spec.mode)
    pixels = _pixels(data, spec.mode)
    if spec.container == "torch":
        return _as_tensor(pixels, spec.floating)
    return np.divide(pixels, 255, dtype=np.float32) if spec.floating else pixels


def _as_tensor(pixels: UInt8Array, floating: bool) -> torch.Tensor:
    tensor = torch.from_numpy(pixels)
    if tensor.ndim == 3:
        tensor = tensor.permute(2, 0, 1)
    if not floating:
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
    if count > limit("PIXELS"):
        raise PIL.Image.DecompressionBombError(over_limit("PIXELS", count))
