"""What the pictures say."""

from __future__ import annotations

from energize.plots.scales import number_text
from energize.preview.simulating import Simulation

STEP = "step (a batch of any rank)"


def subtitle(run: Simulation) -> str:
    """How long the run is, and what weights count in it, where there are any."""
    steps = f"{run.steps:,} step" if run.steps == 1 else f"{number_text(run.steps)} steps"
    weighed = any(each.asked is not None for each in run.sources)
    weights = f"; weights count {run.unit}" if weighed else ""
    return f"{steps}, {number_text(run.samples)} samples{weights}"


def shares_title(run: Simulation, done: str, *, asked: bool) -> str:
    """The title of the stacked shares."""
    dashes = "; dashed: asked" if asked else ""
    return f"Share of the {_counted(run)} over the steps, {done}{dashes}"


def asked_title(run: Simulation, done: str, *, asked: bool) -> str:
    """The title of the shares over all steps."""
    return f"Of all {_counted(run)}, {done}{' (bar) and asked (line)' if asked else ''}"


def _counted(run: Simulation) -> str:
    return "samples" if run.spent is None else run.unit


def epochs_title(more: str) -> str:
    """The title of the epochs of sources."""
    return f"Epochs{f' ({more})' if more else ''}"
