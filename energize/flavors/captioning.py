"""Images with captions."""

from energize.flavors.typed import CaptioningWebdataset
from energize.samples.image import CaptioningSample

__all__ = ["CaptioningSample", "CaptioningWebdataset"]
