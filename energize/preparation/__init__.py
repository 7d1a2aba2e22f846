"""Index and metadata of a folder of shards; and the shards themselves."""

from energize.preparation.checksums import ChecksumsReport, prepare_checksums
from energize.preparation.columns import ColumnsReport, prepare_columns
from energize.preparation.new_shards import write_shards
from energize.preparation.preparing import prepare
from energize.preparation.report import PrepareReport

__all__ = [
    "ChecksumsReport",
    "ColumnsReport",
    "PrepareReport",
    "prepare",
    "prepare_checksums",
    "prepare_columns",
    "write_shards",
]
