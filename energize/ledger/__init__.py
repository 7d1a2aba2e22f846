"""The ledger: what a loader delivered, beside what was asked for and what was planned."""

from energize.ledger.book import Book
from energize.ledger.report import LedgerRow, RankTotals, Report
from energize.ledger.settings import Ledger
from energize.ledger.telling import Stand

__all__ = ["Book", "Ledger", "LedgerRow", "RankTotals", "Report", "Stand"]
