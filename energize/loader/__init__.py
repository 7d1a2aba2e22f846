"""Delivery: ranks, workers, state."""

from energize.loader.following import Follower
from energize.loader.loader import Loader
from energize.loader.opening import get_loader, get_savable_loader
from energize.loader.remapping import RemapReport
from energize.loader.weights_file import WeightsFile

__all__ = [
    "Follower",
    "Loader",
    "RemapReport",
    "WeightsFile",
    "get_loader",
    "get_savable_loader",
]
