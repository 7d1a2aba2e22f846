"""Who delivers what."""

from energize.topology import WorkerConfig

__all__ = ["WorkerConfig"]
