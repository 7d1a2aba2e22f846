"""Fence the examples of docstrings for the site, as an extension of griffe."""

import re
import sys
from pathlib import Path

import griffe

sys.path.append(str(Path(__file__).parent))
from build import fenced


class Fences(griffe.Extension):
    """Put examples of `>>>` in fences."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Fence the examples in the docstring of an object."""
        if obj.docstring:
            # The parser reads the title of a section in the plural only.
            text = re.sub("^Example:$", "Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = fenced(text)
