"""Index and metadata of a folder of shards; and the shards themselves."""

from energize.preparation.columns import ColumnsReport, prepare_columns
from energize.preparation.index import PrepareReport, prepare
from energize.preparation.tasks import JobPart
from energize.preparation.verify import ChecksumsReport, prepare_checksums
from energize.preparation.write import write_shards

__all__ = [
    "ChecksumsReport",
    "ColumnsReport",
    "JobPart",
    "PrepareReport",
    "prepare",
    "prepare_checksums",
    "prepare_columns",
    "write_shards",
]
