"""What the examples have in common on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console

from energize import EnergizeError

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the repository."""

DEFAULT_DATA = Path("demo-data")


@dataclass(frozen=True, slots=True)
class Settings:
    """What every example can be told.

    `data`: where the prepared folders are. `workers`: processes that read ahead; any
    number gives the same batches.
    """

    data: Path
    batch_size: int = 16
    workers: int = 2


class ExampleError(Exception):
    """An example cannot go on; the message says why, and what to do."""


def data_parser(description: str) -> argparse.ArgumentParser:
    """The option that says where the data are."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, default=DEFAULT_DATA, help="made when missing"
    )
    return options


def parser(description: str, steps: int | None = None) -> argparse.ArgumentParser:
    """The options of `Settings`; with `steps`, also how many batches to train on."""
    options = data_parser(description)
    if steps is not None:
        options.add_argument(
            "--steps", type=_at_least(1), default=steps, help="batches of training"
        )
    options.add_argument(
        "--batch-size", type=_at_least(1), default=16, help="samples per batch"
    )
    options.add_argument(
        "--workers", type=_at_least(0), default=2, help="reading processes"
    )
    return options


def settings(options: argparse.Namespace) -> Settings:
    """The settings among parsed options."""
    return Settings(options.data, options.batch_size, options.workers)


def run(main: Callable[[], bool]) -> NoReturn:
    """Ends the program with `main`: 0 when it returns True, 1 for False and for known
    errors.
    """
    # The models are tiny: more threads would only take cores from the processes that
    # read.
    torch.set_num_threads(1)
    try:
        sys.exit(0 if main() else 1)
    except (EnergizeError, ExampleError, OSError) as error:
        Console(stderr=True).print(
            f"error: {error}", style="red", markup=False, highlight=False
        )
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("\nstopped")
        sys.exit(130)


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    whole.__name__ = "whole number"  # what argparse calls it in messages
    return whole
