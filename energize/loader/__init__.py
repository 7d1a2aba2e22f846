"""Delivery: ranks, workers, state."""

from energize.loader.loader import Loader
from energize.loader.opening import get_loader, get_savable_loader

__all__ = ["Loader", "get_loader", "get_savable_loader"]
