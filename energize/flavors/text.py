"""Texts."""

from energize.flavors.typed import TextWebdataset
from energize.samples.text import TextSample

__all__ = ["TextSample", "TextWebdataset"]
