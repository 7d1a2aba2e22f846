"""Questions about images of text."""

from energize.flavors.typed import VQAOCRWebdataset
from energize.samples.ocr import VQAOCRSample

__all__ = ["VQAOCRSample", "VQAOCRWebdataset"]
