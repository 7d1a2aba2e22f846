"""What a run reads: asked for, planned and delivered, by source and level of its mix."""

from energize.report.counting import Ledger
from energize.report.forecast import (
    PlannedBatch,
    PlannedSample,
    Simulation,
    SourceForecast,
    StageSpan,
    plan,
    simulate,
)
from energize.report.ledger import Book, Stand
from energize.report.table import LedgerRow, RankTotals, Report

__all__ = [
    "Book",
    "Ledger",
    "LedgerRow",
    "PlannedBatch",
    "PlannedSample",
    "RankTotals",
    "Report",
    "Simulation",
    "SourceForecast",
    "StageSpan",
    "Stand",
    "plan",
    "simulate",
]
