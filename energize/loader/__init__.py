"""Delivery: ranks, workers, state."""

from energize.loader.following import Follower, WeightsFile
from energize.loader.loader import Loader, get_loader, get_savable_loader
from energize.loader.remap import RemapReport

__all__ = [
    "Follower",
    "Loader",
    "RemapReport",
    "WeightsFile",
    "get_loader",
    "get_savable_loader",
]
