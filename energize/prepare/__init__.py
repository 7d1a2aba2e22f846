"""Index and metadata of a folder of shards; and the shards themselves."""

from energize.prepare.checksums import ChecksumsReport, prepare_checksums
from energize.prepare.columns import ColumnsReport, prepare_columns
from energize.prepare.new_shards import write_shards
from energize.prepare.preparing import prepare
from energize.prepare.report import PrepareReport

__all__ = [
    "ChecksumsReport",
    "ColumnsReport",
    "PrepareReport",
    "prepare",
    "prepare_checksums",
    "prepare_columns",
    "write_shards",
]
