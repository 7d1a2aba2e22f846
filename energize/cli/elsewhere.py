"""Commands of Megatron-Energon for which there is something else here."""

from __future__ import annotations

from typing import Annotated

import typer

from energize.errors import ConfigError

_LOOSE = {"ignore_unknown_options": True, "allow_extra_args": True}

Given = Annotated[list[str] | None, typer.Argument(hidden=True)]


def analyze_debug(given: Given = None) -> None:
    """Differs on purpose: `plan` and `simulate` tell what is read, without a log of it."""
    raise ConfigError(
        "analyze-debug reads what workers wrote to worker_debug_path, to see how random an order "
        "was. Here no such log is written, for the order is known before anything is read: "
        "`energize plan MIX --at STEP` shows the samples of any batch, `energize simulate MIX "
        "--steps N` what a run takes of each source and when it repeats; LogSampleDataset logs "
        "what was read"
    )


def mount(given: Given = None) -> None:
    """Differs on purpose: `preview`, and stores, give the files of a folder without mounting it."""
    raise ConfigError(
        "mount shows the samples of a folder as files, through FUSE, which is no part of energize. "
        "`energize preview PATH` shows samples, WebdatasetFileStore(PATH)['KEY.jpg'] gives a "
        "file of one to a program, and `tar -xf SHARD` writes the files of a shard; a folder "
        "prepared with --sqlite is Megatron-Energon's too, so its own `energon mount` mounts it"
    )


def add_to(app: typer.Typer) -> None:
    """Add the commands; whatever they are given, they say what to use."""
    for name, command in (("analyze-debug", analyze_debug), ("mount", mount)):
        app.command(name, context_settings=_LOOSE)(command)
