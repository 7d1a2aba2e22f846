"""The formats of loose data.

A contributor adds a function here: it is given the scene of a split part, and returns
what the files may be, each with its argument, the files that it accounts for, and how
it is read.
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
