"""Texts and images in turn, with their similarities."""

from energize.flavors.typed import SimilarityInterleavedWebdataset
from energize.samples.interleaved import SimilarityInterleavedSample

__all__ = ["SimilarityInterleavedSample", "SimilarityInterleavedWebdataset"]
