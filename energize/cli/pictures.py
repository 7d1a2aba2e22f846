"""Images in a terminal: two pixels to a character, never larger than they are."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
import PIL.Image
from rich.text import Text

from energize.cli.console import Console
from energize.task.decode import UInt8Array

_MOST_ROWS = 24
_CHANNELS = (1, 3, 4)
_LEAST = 4
"""Rows and columns of what may be an image; smaller ones are tables of numbers."""
_SHADES = " ░▒▓█"
_UPPER_HALF = "▀"


def pictures_of(value: Any) -> list[PIL.Image.Image]:
    """The image that a value is, or those of a batch: PIL images, and tensors and arrays of their
    shape and numbers; nothing for any other value.

    Shapes are (H, W), (C, H, W) and (H, W, C) with 1, 3 or 4 channels, after the batch if there is
    one; uint8, or floating numbers from 0 to 1.
    """
    if isinstance(value, PIL.Image.Image):
        return [value]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    if not isinstance(value, np.ndarray) or not value.size or value.ndim not in (2, 3, 4):
        return []
    found = [_picture(each) for each in (value if value.ndim == 4 else [value])]
    return [each for each in found if each is not None]


def _picture(values: np.ndarray[Any, Any]) -> PIL.Image.Image | None:
    pixels = _in_bytes(values)
    if pixels is None:
        return None
    if pixels.ndim == 3:
        if pixels.shape[0] in _CHANNELS:
            pixels = np.moveaxis(pixels, 0, -1)
        if pixels.shape[-1] not in _CHANNELS:
            return None
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    if min(pixels.shape[:2]) < _LEAST:
        return None
    return PIL.Image.fromarray(np.ascontiguousarray(pixels))


def _in_bytes(values: np.ndarray[Any, Any]) -> UInt8Array | None:
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "f" and values.min() >= 0 and values.max() <= 1:
        return cast("UInt8Array", np.rint(values * 255).astype(np.uint8))
    return None


def drawn(picture: PIL.Image.Image, console: Console, indent: int = 0) -> Text:
    """The image as lines of text that fit the console, in its proportions.

    Where there are colours, a character is two pixels, one above the other; elsewhere a shade.
    """
    width, height = _size(picture, console.width - indent)
    coloured = console.color_system is not None
    if coloured:
        pixels = np.asarray(picture.convert("RGB").resize((width, height)))
        lines = [_half_blocks(pixels[y], pixels[y + 1]) for y in range(0, height, 2)]
    else:
        grey = np.asarray(picture.convert("L").resize((width, height // 2)), dtype=np.int64)
        shades = grey * len(_SHADES) // 256
        lines = [Text("".join(_SHADES[shade] for shade in row)) for row in shades]
    return Text("\n").join(Text(" " * indent) + line for line in lines)


def _size(picture: PIL.Image.Image, columns: int) -> tuple[int, int]:
    """Columns, and an even number of pixels for the rows."""
    scale = min(1, columns / picture.width, 2 * _MOST_ROWS / picture.height)
    width = max(1, min(columns, round(picture.width * scale)))
    return width, 2 * max(1, min(_MOST_ROWS, round(picture.height * scale / 2)))


def _half_blocks(upper: UInt8Array, lower: UInt8Array) -> Text:
    line = Text()
    for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
        colours = ("rgb({},{},{})".format(*each) for each in (above, below))
        line.append(_UPPER_HALF, " on ".join(colours))
    return line
