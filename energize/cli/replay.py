"""`energize replay`: a sample or batch of a run again, by its restore key."""

from __future__ import annotations

import ast
import json
from typing import Annotated, Any

import typer

from energize.cli.console import Console
from energize.cli.mixes import MixPath, Run, takes_run
from energize.cli.preview import show_item
from energize.core.restoring import restore_sample
from energize.core.samples import SourceInfo, fields_of, is_record
from energize.errors import ConfigError
from energize.report.forecast import plan as planned

_SOURCES_SHOWN = 32

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="As loader.restore_key prints it, a tuple of Python or a list of JSON."
    ),
]


@takes_run
def replay(mix: MixPath, key: Key, run: Run) -> None:
    """Show one sample or batch of a run again: its fields, and the files it was made from.

    The options have to be those of the run. Without its encoder, samples are shown as they are
    before it, in batches of the default encoder.
    """
    parsed = parse_key(key)
    dataset = run.read(mix, samples=True).dataset
    item = restore_sample(dataset, parsed)
    console = Console(soft_wrap=True)
    console.print(f"{type(item).__name__} {parsed!r}", markup=False, style="bold")
    show_item(console, item)
    lines = _sources(item) or _planned(dataset, parsed)
    if lines:
        console.print("Made from", style="bold")
    for line in lines[:_SOURCES_SHOWN]:
        console.print(f"  {line}", markup=False)
    if len(lines) > _SOURCES_SHOWN:
        console.print(f"  and {len(lines) - _SOURCES_SHOWN} more")


def parse_key(text: str) -> tuple[Any, ...]:
    """A restore key as it is printed: `('energize', 7)`, or `["energize", 7]` in JSON.

    Raises `ConfigError` for anything else; nothing is run.

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


def _sources(item: Any) -> list[str]:
    """The files that an item says it was made from; nothing where it does not say."""
    found = fields_of(item).get("__sources__") if is_record(item) else None
    return [
        f"{each.dataset_path}/{each.shard_name}, sample {each.index}: {', '.join(each.file_names)}"
        for each in _flat(found)
    ]


def _flat(value: Any) -> list[SourceInfo]:
    if isinstance(value, SourceInfo):
        return [value]
    if isinstance(value, list | tuple):
        return [each for inner in value for each in _flat(inner)]
    return []


def _planned(dataset: Any, key: tuple[Any, ...]) -> list[str]:
    """The samples of an item of an indexed dataset, by its position."""
    if not dataset.indexed or len(key) != 2:
        return []
    batch = next(planned(dataset, key[1], 1, keys=True))
    return [
        f"{each.source}: {'' if each.shard is None else f'{each.shard}, '}sample {each.index}"
        + ("" if each.key is None else f" {each.key!r}")
        for each in batch.samples
    ]
