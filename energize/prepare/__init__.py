"""Index and metadata of a folder of shards; and the shards themselves."""

from energize.prepare.new_shards import write_shards
from energize.prepare.preparing import prepare
from energize.prepare.report import PrepareReport

__all__ = ["PrepareReport", "prepare", "write_shards"]
