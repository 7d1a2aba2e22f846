"""Delivery: worker processes, topology and state of a running loader."""

from energize.loader.loader import Loader, get_loader, get_savable_loader

__all__ = ["Loader", "get_loader", "get_savable_loader"]
