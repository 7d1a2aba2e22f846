"""Utilities of `streaming.base.util` that training programs call."""

__all__ = ["clean_stale_shared_memory"]


def clean_stale_shared_memory() -> None:
    """Do nothing: no shared memory of a dataset outlives its processes."""
