"""Images."""

from energize.flavors.typed import ImageWebdataset
from energize.samples.image import ImageSample

__all__ = ["ImageSample", "ImageWebdataset"]
