"""What a run will read, worked out without reading it."""

from energize.preview.planning import PlannedBatch, PlannedSample, plan
from energize.preview.simulating import Simulation, SourceForecast, StageSpan, simulate

__all__ = [
    "PlannedBatch",
    "PlannedSample",
    "Simulation",
    "SourceForecast",
    "StageSpan",
    "plan",
    "simulate",
]
