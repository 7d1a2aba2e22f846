"""`energize preview`: samples field by field."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.prompt import Confirm

import energize.cli.contents as opt
from energize.cli.console import Console
from energize.cli.contents import leaf_name, leaves_at, split_names, stored_samples
from energize.cli.mix_options import at_least
from energize.cli.pictures import drawn, pictures_of
from energize.core.dataset import IndexedDataset
from energize.core.loss_weights import WEIGHTS
from energize.core.samples import fields_of, is_record
from energize.core.show import format_sample_compact, format_sample_detailed
from energize.core.trace import Failed, Reading, Trace
from energize.errors import DatasetNotFoundError
from energize.task.decode import SampleDecoder

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
    path: opt.DataPath,
    *,
    split_parts: opt.SplitParts = None,
    dataset_config: opt.DatasetConfig = "dataset.yaml",
    split_config: opt.SplitConfig = "split.yaml",
    trust_code: opt.TrustCode = None,
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
