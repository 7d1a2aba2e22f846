"""`energize preview`: samples field by field."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import numpy as np
import PIL.Image
import typer
from rich.prompt import Confirm
from rich.text import Text

from energize.cli.console import Console
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    SplitConfig,
    SplitParts,
    TrustCode,
    at_least,
    leaf_name,
    leaves_at,
    split_names,
    stored_samples,
)
from energize.core.dataset import IndexedDataset
from energize.core.loss_weights import WEIGHTS
from energize.core.samples import (
    fields_of,
    format_sample_compact,
    format_sample_detailed,
    is_record,
)
from energize.core.trace import Failed, Reading, Trace
from energize.errors import DatasetNotFoundError
from energize.task.load import SampleDecoder, UInt8Array

_WITHOUT_QUESTIONS = 3
_UNSEEN = ("__restore_key__", "__sources__")
_MOST_ITEMS, _MOST_PICTURES, _MOST_BYTES = 16, 4, 64

Count = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        callback=at_least(1),
        help="How many samples of each split, without questions; by default 3 where nobody can be "
        "asked whether to go on.",
    ),
]


def preview(
    path: DataPath,
    *,
    split_parts: SplitParts = None,
    dataset_config: DatasetConfig = "dataset.yaml",
    split_config: SplitConfig = "split.yaml",
    trust_code: TrustCode = None,
    count: Count = None,
) -> None:
    """Show samples as they are stored, field by field, images too."""
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist")
    console = Console(soft_wrap=True)
    asks = count is None and sys.stdin.isatty()
    most = None if asks else count or _WITHOUT_QUESTIONS
    for split in split_names(path, split_parts, split_config):
        for leaf in leaves_at(path, split, dataset_config, split_config):
            samples = stored_samples(leaf, SampleDecoder(), trust_code)
            part = cast("IndexedDataset[Any]", samples)
            for number, sample in enumerate(_samples(part)):
                if number == most:
                    break
                title = f"{leaf_name(leaf)}, sample {number:,} of {part.size:,}"
                console.print(title, markup=False, style="bold")
                show_item(console, sample)
                console.print()
                if asks and not Confirm.ask("Continue?", console=console, default=True):
                    return


def _samples(part: IndexedDataset[Any]) -> Iterator[Any]:
    """The samples of a pass; a `Failed` for one that cannot be used."""
    for position in range(part.size):
        yield Trace(part, np.array([position], dtype=np.int64)).read(Reading())[0]


def show_item(console: Console, item: Any) -> None:
    """A sample or a batch, field by field; images also as pictures."""
    if isinstance(item, Failed):
        console.print(f"  cannot be used: {item}", markup=False, style="red")
        return
    if not is_record(item):
        _show(console, type(item).__name__, item)
        return
    for name, value in fields_of(item).items():
        if name in _UNSEEN or (name == WEIGHTS and value is None):
            continue
        if not (name.startswith("__") and value in (None, {}, ())):
            _show(console, str(name), value)


def _show(console: Console, name: str, value: Any, indent: int = 2) -> None:
    """A value by its name: its type, what it says of itself, and its picture if it is one."""
    space = " " * indent
    pictures = pictures_of(value)
    if pictures:
        sizes = f"{pictures[0].width} x {pictures[0].height} pixels"
        said = f"{format_sample_compact(value)}, {sizes}"
        console.print(f"{space}{name}: {said}", markup=False)
        for number, picture in enumerate(pictures[:_MOST_PICTURES]):
            console.print("\n" * (number > 0), end="")
            console.print(drawn(picture, console, indent))
        if len(pictures) > _MOST_PICTURES:
            console.print(f"{space}and {len(pictures) - _MOST_PICTURES} more")
        return
    if isinstance(value, list) and any(map(pictures_of, value)):
        console.print(f"{space}{name} (list of {len(value)}):", markup=False)
        for number, each in enumerate(value[:_MOST_ITEMS]):
            _show(console, str(number), each, indent + 2)
        if len(value) > _MOST_ITEMS:
            console.print(f"{space}  and {len(value) - _MOST_ITEMS} more")
        return
    if isinstance(value, bytes) and len(value) > _MOST_BYTES:
        text = f"{value[:_MOST_BYTES]!r}... (and {len(value) - _MOST_BYTES:,} more bytes)"
    else:
        text = format_sample_detailed(value)
    lines = text.split("\n")
    inline = [f" {lines.pop(0)}"] if not lines[1:] else [""]
    console.print(f"{space}{name} ({type(value).__name__}):{inline[0]}", markup=False)
    for line in lines:
        console.print(f"{space}  {line}", markup=False)


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
