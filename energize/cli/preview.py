"""`energize preview` and `energize replay`: samples field by field."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import PIL.Image
import typer
from rich.text import Text

from energize.cli.console import Console
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    MixPath,
    Run,
    SplitConfig,
    SplitParts,
    TrustCode,
    leaf_name,
    leaves_at,
    split_names,
    stored_samples,
    takes_run,
)
from energize.core.loss_weights import WEIGHTS
from energize.core.restoring import restore_sample
from energize.core.samples import (
    SourceInfo,
    fields_of,
    format_sample_compact,
    format_sample_detailed,
    is_record,
)
from energize.core.trace import Failed, Reading, Trace
from energize.errors import ConfigError
from energize.report import plan
from energize.task.load import SampleDecoder

_WITHOUT_QUESTIONS = 3
_UNSEEN = ("__restore_key__", "__sources__")
_MOST_PICTURES, _MOST_BYTES, _MOST_ROWS, _MOST_SOURCES = 4, 64, 24, 32


def preview(
    path: DataPath,
    *,
    split_parts: SplitParts = None,
    dataset_config: DatasetConfig = "dataset.yaml",
    split_config: SplitConfig = "split.yaml",
    trust_code: TrustCode = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Samples of each split, without questions."),
    ] = None,
) -> None:
    """Show samples as they are stored, field by field, images too."""
    console = Console()
    asks = count is None and sys.stdin.isatty()
    for split in split_names(path, split_parts, split_config):
        for leaf in leaves_at(path, split, dataset_config, split_config):
            part = stored_samples(leaf, SampleDecoder(), trust_code)
            for number in range(part.size if asks else min(part.size, count or _WITHOUT_QUESTIONS)):
                sample = Trace(part, np.array([number], dtype=np.int64)).read(Reading())[0]
                console.say(f"{leaf_name(leaf)}, sample {number:,} of {part.size:,}", "bold")
                show_item(console, sample)
                console.say()
                if asks and not typer.confirm("Continue?", default=True):
                    return


@takes_run
def replay(
    mix: MixPath,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="As loader.restore_key prints it, or in JSON.")
    ],
    run: Run,
) -> None:
    """Show one sample or batch of a run again: its fields, and the files it was made from.

    The options have to be those of the run. Without its encoder, samples are shown as they are
    before it, in batches of the default encoder.
    """
    parsed = parse_key(key)
    dataset = run.read(mix, samples=True)
    item = restore_sample(dataset, parsed)
    console = Console()
    console.say(f"{type(item).__name__} {parsed!r}", "bold")
    show_item(console, item)
    lines = list(_sources(fields_of(item).get("__sources__") if is_record(item) else None))
    if not lines and dataset.indexed and len(parsed) == 2:
        batch = next(plan(dataset, parsed[1], 1, keys=True))
        lines = [
            f"{each.source}: {each.shard or ''} sample {each.index} {each.key or ''}"
            for each in batch.samples
        ]
    console.say("Made from" if lines else "", "bold")
    for line in lines[:_MOST_SOURCES]:
        console.say(f"  {line}")
    if len(lines) > _MOST_SOURCES:
        console.say(f"  and {len(lines) - _MOST_SOURCES} more")


def parse_key(text: str) -> tuple[Any, ...]:
    """Return a restore key as it is printed: `('energize', 7)`, or `["energize", 7]` in JSON.

    Raise `ConfigError` for anything else; nothing is run.

    >>> parse_key("('energize', 7)"), parse_key('["Webdataset", "0.tar", 3]')
    (('energize', 7), ('Webdataset', '0.tar', 3))
    """
    for read in (json.loads, ast.literal_eval):
        try:
            key = read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        if isinstance(key, list | tuple):
            return tuple(key)
    raise ConfigError(
        "KEY: expected a restore key as loader.restore_key prints it, in quotes, such as "
        f"\"('energize', 7)\"; got {text[:200]!r}"
    )


def _sources(found: Any) -> Iterator[str]:
    """The files that an item says it was made from; nothing where it does not say."""
    if isinstance(found, SourceInfo):
        names = ", ".join(found.file_names)
        yield f"{found.dataset_path}/{found.shard_name}, sample {found.index}: {names}"
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _sources(each)


def show_item(console: Console, item: Any) -> None:
    """Print a sample or a batch, field by field; images also as pictures."""
    if isinstance(item, Failed):
        console.say(f"  cannot be used: {item}", "red")
        return
    fields = fields_of(item) if is_record(item) else {type(item).__name__: item}
    for name, value in fields.items():
        unset = name in _UNSEEN or (name == WEIGHTS and value is None)
        if not (unset or (str(name).startswith("__") and value in (None, {}, ()))):
            _show(console, str(name), value)


def _show(console: Console, name: str, value: Any) -> None:
    """Print a value by its name: its type, what it says of itself, and its picture if it is one."""
    pictures = pictures_of(value)
    if pictures:
        size = f"{pictures[0].width} x {pictures[0].height} pixels"
        console.say(f"  {name}: {format_sample_compact(value)}, {size}")
        for picture in pictures[:_MOST_PICTURES] if console.is_terminal else ():
            console.print(drawn(picture))
        return
    if isinstance(value, bytes) and len(value) > _MOST_BYTES:
        text = f"{value[:_MOST_BYTES]!r}... (and {len(value) - _MOST_BYTES:,} more bytes)"
    else:
        text = format_sample_detailed(value)
    lines = text.split("\n")
    console.say(f"  {name} ({type(value).__name__}):" + (f" {text}" if len(lines) == 1 else ""))
    for line in lines if len(lines) > 1 else ():
        console.say(f"    {line}")


def pictures_of(value: Any) -> list[PIL.Image.Image]:
    """Return the images that a value is: PIL's; and tensors and arrays of shape (3, H, W) or (H, W,
    3), after the batch if there is one, of uint8 or of numbers from 0 to 1.
    """
    if isinstance(value, list):
        return [picture for each in value for picture in pictures_of(each)]
    if isinstance(value, PIL.Image.Image):
        return [value]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = (value.float() if value.is_floating_point() else value).cpu().numpy()
    if not isinstance(value, np.ndarray) or not value.size or value.ndim not in (3, 4):
        return []
    if value.ndim == 4:
        return [picture for each in value for picture in pictures_of(each)]
    if value.dtype.kind == "f" and value.min() >= 0 and value.max() <= 1:
        value = np.rint(value * 255).astype(np.uint8)
    pixels = np.moveaxis(value, 0, -1) if value.shape[0] == 3 else value
    if pixels.dtype != np.uint8 or pixels.shape[-1] != 3:
        return []
    return [PIL.Image.fromarray(np.ascontiguousarray(pixels))]


def drawn(picture: PIL.Image.Image) -> Text:
    """Return the image as lines of text of at most 24 rows; a character is two pixels."""
    scaled = picture.convert("RGB")
    scaled.thumbnail((100, 2 * _MOST_ROWS))
    pixels = np.asarray(scaled)[: scaled.height // 2 * 2].tolist()
    text = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        text.append("  ")
        for above, below in zip(upper, lower, strict=True):
            colours = [f"rgb({red},{green},{blue})" for red, green, blue in (above, below)]
            text.append("▀", " on ".join(colours))
        text.append("\n")
    return text
