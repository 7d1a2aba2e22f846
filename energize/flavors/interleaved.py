"""Texts and images in turn."""

from energize.flavors.typed import InterleavedWebdataset
from energize.samples.interleaved import InterleavedSample

__all__ = ["InterleavedSample", "InterleavedWebdataset"]
