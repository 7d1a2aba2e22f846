"""The questions of `energize prepare`, for what was not given as an option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table

from energize.cli.options import parse_ratios
from energize.errors import ConfigError, EnergizeError, nearest
from energize.prepare.fields import (
    SAMPLE_TYPE_NAMES,
    propose_field_map,
    propose_sample_type,
    sample_fields,
)
from energize.prepare.first_look import FirstLook
from energize.prepare.splitting import split
from energize.samples.field_map import parse_field
from energize.storage.nv_meta import CRUDE

T = TypeVar("T")

_NONE = "-"


def ask_ratios(console: Console, names: Sequence[str]) -> dict[str, float]:
    """How the shards are shared out; the proposal leaves a shard for each split if it can."""
    shards = len(names)
    if shards >= 10:
        proposal = "8,1,1"
    else:
        proposal = {1: "1,0,0", 2: "1,1,0"}.get(shards, f"{shards - 2},1,1")

    def parse(text: str) -> dict[str, float]:
        ratios = parse_ratios(text)
        split(names, ratios, None)
        return ratios

    return _asked(console, f"Ratio of train, val, test over {shards} shards", proposal, parse)


def ask_sample_type(console: Console, look: FirstLook) -> str:
    """Which sample type it is, by number or name."""
    table = Table("", "sample type", "fields (optional ones in brackets)", box=None)
    for number, name in enumerate(SAMPLE_TYPE_NAMES, 1):
        fields = [f if needed else rf"\[{f}]" for f, needed in sample_fields(name).items()]
        table.add_row(str(number), name, ", ".join(fields) or "all parts as they are")
    console.print(table)

    def parse(text: str) -> str:
        if text.isdecimal() and 1 <= int(text) <= len(SAMPLE_TYPE_NAMES):
            return SAMPLE_TYPE_NAMES[int(text) - 1]
        if text not in SAMPLE_TYPE_NAMES:
            raise ConfigError(
                f"give a number from 1 to {len(SAMPLE_TYPE_NAMES)} or a name"
                f"{nearest(text, SAMPLE_TYPE_NAMES)}"
            )
        return text

    return _asked(console, "Sample type", propose_sample_type(look), parse)


def ask_field_map(console: Console, sample_type: str, look: FirstLook) -> dict[str, str] | None:
    """From which part each field comes; None for crude samples, which have no fields."""
    if sample_type == CRUDE:
        return None
    console.print(
        f"Where each field comes from. Parts: {', '.join(look.parts)}. A comma separates "
        "alternatives (jpg,png), brackets look into JSON (json[caption][en]).",
        markup=False,
    )
    proposed = propose_field_map(sample_type, look)
    field_map = {}
    for name, needed in sample_fields(sample_type).items():
        answer = _ask_field(console, name, look, proposed.get(name), needed=needed)
        if answer != _NONE:
            field_map[name] = answer
    return field_map


def _ask_field(
    console: Console, name: str, look: FirstLook, proposal: str | None, *, needed: bool
) -> str:
    def parse(text: str) -> str:
        if text == _NONE and not needed:
            return text
        for access in parse_field(text):
            if access.part not in look.parts:
                raise ConfigError(
                    f"there is no part {access.part!r}{nearest(access.part, look.parts)}"
                )
        return text

    question = name if needed else f"{name} (- for none)"
    return _asked(console, question, proposal or (None if needed else _NONE), parse)


def _asked(console: Console, question: str, proposal: str | None, parse: Callable[[str], T]) -> T:
    """The parsed answer; what is wrong with one is said, and the question asked again."""
    while True:
        if proposal is None:
            answer = Prompt.ask(question, console=console)
        else:
            answer = Prompt.ask(question, console=console, default=proposal)
        try:
            return parse((answer or "").strip())
        except EnergizeError as reason:
            console.print(str(reason), style="red", markup=False)
