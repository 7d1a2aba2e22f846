"""Index and metadata of a folder of shards."""

from energize.prepare.preparing import prepare
from energize.prepare.report import PrepareReport

__all__ = ["PrepareReport", "prepare"]
