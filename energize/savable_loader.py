"""The names of loaders and their states in Megatron-Energon."""

from __future__ import annotations

from energize.loader.opening import BasicDataLoader, SavableDataLoader

__all__ = ["BasicDataLoader", "SavableDataLoader", "SavableDataLoaderState"]

SavableDataLoaderState = dict
"""A state is plain data: `torch.load(path)` reads it, and JSON can keep it."""
