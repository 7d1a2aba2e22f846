"""The weights of several items as those of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from energize.errors import WeightError
from energize.late import torch
from energize.sample_weights.places import (
    OWN,
    WEIGHTS,
    counted,
    described,
    field_of,
    listed_keys,
    tells,
)
from energize.sample_weights.samples import weight_of

Row: TypeAlias = "torch.Tensor | float | None"
"""The weight of an item, or those of what it is made of."""


def batch_weights(samples: Sequence[Any]) -> torch.Tensor | None:
    """What `sample_weights` of a batch of these is: float32 of shape (samples,).

    None where none of them has a weight, else those without count 1. Of packs it has the shape
    (packs, pieces), those with fewer pieces filled up with 0; of batches that list their keys, all
    their weights one after the other. A function that makes a batch need not ask: its batch gets
    them, unless it leaves samples out, sorts them, or makes several batches, and tells no keys.

    Raises `WeightError` naming the sample for a weight that is negative, not finite or no number.

    >>> batch_weights([{"sample_weight": 0.5}, {"__key__": "b"}])
    tensor([0.5000, 1.0000])
    """
    if not any(map(tells, samples)):  # mostly so, and cheap to see
        return None
    if not any(listed_keys(each) is not None for each in samples):
        for sample in samples:
            _check_single(sample)
    return _combined(samples, [_row(each) for each in samples])


def joined_weights(batches: Sequence[Any]) -> torch.Tensor | None:
    """The weights of batches one after the other, also of those that list no keys; of samples, as
    `batch_weights` has them.
    """
    if not any(map(tells, batches)):
        return None
    rows = [_row(each) for each in batches]
    if any(isinstance(row, torch.Tensor) for row in rows):
        return _end_to_end(batches, rows)
    return _combined(batches, rows)


def pieces_of(pack: Any) -> int:
    """How many samples a pack is made of, by its `cu_seqlens`; `WeightError` without these."""
    bounds = field_of(pack, "cu_seqlens")
    if bounds is None:
        raise WeightError(
            f"{described(pack)} has no {WEIGHTS!r} of its pieces, and others in its batch have; "
            f"give it one weight for each piece, or give every source a {OWN}"
        )
    return len(bounds) - 1


def _combined(items: Sequence[Any], rows: Sequence[Row]) -> torch.Tensor | None:
    if all(row is None for row in rows):
        return None
    if any(listed_keys(each) is not None for each in items):
        return _end_to_end(items, rows)
    if not any(isinstance(row, torch.Tensor) for row in rows):
        return torch.tensor([1.0 if row is None else row for row in rows], dtype=torch.float32)
    packs = [
        row if isinstance(row, torch.Tensor) else torch.full((pieces_of(each),), _number(row))
        for each, row in zip(items, rows, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(packs, batch_first=True)


def _row(item: Any) -> Row:
    weights = field_of(item, WEIGHTS)
    if weights is not None:
        return torch.as_tensor(weights).to(torch.float32)
    return weight_of(item)


def _check_single(sample: Any) -> None:
    """Refuse several weights where a sample has one."""
    own = field_of(sample, OWN)
    several = isinstance(own, list | tuple) or getattr(own, "ndim", 0) > 0
    if several and field_of(sample, WEIGHTS) is None:
        raise WeightError(
            f"{OWN} of {described(sample)} is one number, as a sample has one weight; got "
            f"{str(own)[:80]}. Weights of what it is made of are its {WEIGHTS!r}"
        )


def _end_to_end(items: Sequence[Any], rows: Sequence[Row]) -> torch.Tensor:
    """The weights of batches one after the other."""
    return torch.cat(
        [
            row if isinstance(row, torch.Tensor) else torch.full((counted(each),), _number(row))
            for each, row in zip(items, rows, strict=True)
        ]
    )


def _number(row: float | None) -> float:
    return 1.0 if row is None else row
