"""Leaving samples out."""

from energize.errors import SkipSample

__all__ = ["SkipSample"]
