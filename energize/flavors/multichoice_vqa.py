"""Questions about images, with choices."""

from energize.flavors.typed import MultiChoiceVQAWebdataset
from energize.samples.vqa import MultiChoiceVQASample

__all__ = ["MultiChoiceVQASample", "MultiChoiceVQAWebdataset"]
