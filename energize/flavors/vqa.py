"""Questions about images."""

from energize.flavors.typed import VQAWebdataset
from energize.samples.vqa import VQASample

__all__ = ["VQASample", "VQAWebdataset"]
