"""Pictures of what a run takes: shares over its steps, epochs, and what was asked for."""

from energize.plots.drawing import check_plot, draw, intervals_for

__all__ = ["check_plot", "draw", "intervals_for"]
