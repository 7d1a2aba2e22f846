"""The error for a dataset without samples."""

from energize.errors import EmptyDatasetError

__all__ = ["EmptyDatasetError"]
