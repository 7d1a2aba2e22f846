"""States of small datasets, as they come out of a file."""

from __future__ import annotations

import json
from typing import Any

from energize import BlendDataset, FilterDataset, ListSource, ShuffleDataset
from energize.loader.state import sealed
from tests.support.datasets import is_even, shuffled
from tests.support.loading import loader_of, take

STEPS = 7
"""Steps before a state is saved; no loop of the datasets that are changed ends then."""


def saved(dataset: Any, steps: int = STEPS, **options: Any) -> dict[str, Any]:
    """A state after some steps, as it comes out of a file."""
    loader = loader_of(dataset, **options)
    take(loader, steps)
    return json.loads(json.dumps(loader.state_dict()))


def resealed(state: dict[str, Any], **changes: str) -> dict[str, Any]:
    """A state with other texts, and the check value of these: so that they are looked
    at."""
    return sealed({**state, **changes})


def evens(count: int = 40, start: int = 0) -> FilterDataset[int]:
    return FilterDataset(shuffled(count, start), is_even)


def mixed(*parts: Any, **options: Any) -> BlendDataset[int]:
    return BlendDataset([*parts], **options)


def of(name: str, count: int = 30, **options: Any) -> ShuffleDataset[int]:
    return ShuffleDataset(ListSource(range(count), name=name), **options)
