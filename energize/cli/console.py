"""Where commands print."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import rich.console
import typer
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from energize.errors import visible

__all__ = ["Console", "print_json"]


class Console(rich.console.Console):
    """A console of rich, on which names and texts of folders cannot steer the terminal: of what is
    printed, only what rich itself makes of styles is not written out.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is to be printed, piece by piece."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


def print_json(tree: Any, indent: int | None = 2) -> None:
    """Print a tree for programs, in letters that steer no terminal either."""
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    typer.echo(text if visible(text) == text else json.dumps(tree, indent=indent))
