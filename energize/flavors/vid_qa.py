"""Questions about videos."""

from energize.flavors.typed import VidQAWebdataset
from energize.samples.video import VidQASample

__all__ = ["VidQASample", "VidQAWebdataset"]
