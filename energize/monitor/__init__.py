"""What watches a run: reports of saved states, and where the ledger of a loader is written to."""

from energize.monitor.lightning import lightning_ledger
from energize.monitor.logs import LedgerLog, TensorBoardLedger, WandbLedger
from energize.monitor.of_state import report_of_state
from energize.monitor.prometheus import MetricsServer, serve_metrics

__all__ = [
    "LedgerLog",
    "MetricsServer",
    "TensorBoardLedger",
    "WandbLedger",
    "lightning_ledger",
    "report_of_state",
    "serve_metrics",
]
