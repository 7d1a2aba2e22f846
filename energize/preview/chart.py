"""Shares over time, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energize.errors import ConfigError, nearest
from energize.optional import optional_module
from energize.preview.simulating import Simulation

_KINDS = (".png", ".svg", ".pdf")
_SHOWN = 9
"""Sources with a line of their own; the colours of matplotlib tell ten lines apart."""


def check_chart(path: Path) -> None:
    """Raise `ConfigError` when a chart cannot be drawn to `path`, before there is one."""
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(
            f"{path}: a chart is drawn to {', '.join(_KINDS)}; got "
            f"{repr(path.suffix) if path.suffix else 'no suffix'}{nearest(path.suffix, _KINDS)}"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.absolute().parent}; make it first")
    _figure_module()


def draw_shares(
    simulation: Simulation, path: Path, asked: Sequence[float | None] | None = None
) -> None:
    """Draw the share of each source over the steps to `path`: a PNG, SVG or PDF.

    The nine sources with the most samples have a line each, dotted at the share that was `asked`;
    the others are drawn as one. Raises what `check_chart` raises, and `ConfigError` when the file
    cannot be written.
    """
    check_chart(path)
    figure = _figure_module().Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    _draw_lines(axes, simulation, asked)
    axes.set_xlabel("step")
    axes.set_ylabel("share of the samples, %")
    axes.set_xlim(0, simulation.steps)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.set_title(f"Shares over {simulation.steps:,} steps, {simulation.samples:,} samples")
    figure.legend(loc="outside right upper", frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(
            f"{path}: the chart cannot be written ({error.strerror}); choose another place"
        ) from error


def _draw_lines(axes: Any, simulation: Simulation, asked: Sequence[float | None] | None) -> None:
    shares = 100 * simulation.shares()
    order = np.argsort([-each.drawn for each in simulation.sources], kind="stable").tolist()
    shown = order[:_SHOWN] if len(order) > _SHOWN + 1 else order
    for number in shown:
        name = simulation.sources[number].name
        line = axes.stairs(shares[:, number], simulation.points, baseline=None, label=name)
        share = None if asked is None else asked[number]
        if share is not None:
            axes.axhline(100 * share, ls=":", lw=1, color=line.get_edgecolor())
    rest = order[len(shown) :]
    if rest:
        others = shares[:, rest].sum(axis=1)
        label = f"{len(rest)} others"
        axes.stairs(others, simulation.points, baseline=None, label=label, color="0.5")


def _figure_module() -> Any:
    return optional_module("matplotlib.figure", "energize[plot]", "drawing shares over time")
