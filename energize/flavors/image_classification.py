"""Images with labels."""

from energize.flavors.typed import ImageClassificationWebdataset
from energize.samples.image import ImageClassificationSample

__all__ = ["ImageClassificationSample", "ImageClassificationWebdataset"]
