"""Images of text."""

from energize.flavors.typed import OCRWebdataset
from energize.samples.ocr import OCRSample

__all__ = ["OCRSample", "OCRWebdataset"]
