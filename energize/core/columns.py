"""Columns: what is known of every sample of a source without reading it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.errors import ColumnError


@dataclass(frozen=True, slots=True)
class Column:
    """One value for each sample of a source, in the order in which these are numbered.

    `values` has the shape (samples,): int64 or float64 numbers; or, where there are
    `categories`, int32 places among these, -1 for a sample without a value. The array
    is not to be written to.

    >>> Column.of(["high", "low", "high"], "quality").categories
    ('high', 'low')
    """

    values: npt.NDArray[Any]
    categories: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        """Whether its values are words, not numbers."""
        return self.categories is not None

    @classmethod
    def of(cls, values: Iterable[Any], name: str) -> Column:
        """Return a column of numbers, or of words with None for none; `ColumnError` for
        anything else.
        """
        given = list(values)
        kinds = {type(each) for each in given} - {type(None)}
        if kinds <= {str}:
            categories = sorted({each for each in given if each is not None})
            places = {each: i for i, each in enumerate(categories)} | {None: -1}
            codes = np.array([places[each] for each in given], dtype=np.int32)
            return cls(codes, tuple(categories))
        odd = next((i for i, each in enumerate(given) if not _number(each)), None)
        if odd is not None:
            raise ColumnError(
                f"column {name!r} has numbers, or words, for all samples; sample {odd} "
                "has "
                f"{str(given[odd])[:80]!r}"
            )
        kind = (
            np.float64
            if any(isinstance(each, float | np.floating) for each in given)
            else int
        )
        try:
            return cls(np.array(given, dtype=kind))
        except OverflowError:
            raise ColumnError(
                f"column {name!r} has whole numbers of more than 64 bits"
            ) from None

    def part(self, rows: Any) -> Column:
        """Those of some samples: a slice, or their numbers."""
        return Column(self.values[rows], self.categories)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)
