"""The formats of loose data.

To add a format, add a function to `FORMATS`. It takes the scene of a split part, and
returns its candidates with their evidence, the files that they claim, and their
readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energize.inference.candidates import Candidate
from energize.inference.folders import classes, images, mds, sidecars
from energize.inference.rows import tables
from energize.inference.scene import Scene

FORMATS: Sequence[Callable[[Scene], list[Candidate]]] = (
    mds,
    tables,
    sidecars,
    classes,
    images,
)
"""All formats but tars, which are indexed first."""
