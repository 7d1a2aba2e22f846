"""Columns: what is known of every sample of a source without reading it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.errors import ColumnError


@dataclass(frozen=True, slots=True)
class Column:
    """One value for each sample of a source, in the order of the samples.

    Attributes:
        values: Shape (samples,), read-only: int64 or float64 numbers; with
            `categories`, int32 indices of these, -1 for a sample without a value.
        categories: The distinct words of a column of words, else None.

    Example:
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
        """Create a column of numbers, or of words and None.

        Args:
            values: One value for each sample.
            name: The name of the column, for errors.

        Raises:
            ColumnError: If values are mixed, of another type, or beyond 64 bits.
        """
        rows = list(values)
        types = {type(value) for value in rows} - {type(None)}
        if types <= {str}:
            return cls._of_words(rows)
        odd = next((i for i, value in enumerate(rows) if not _number(value)), None)
        if odd is not None:
            raise ColumnError(
                f"column {name!r} must have only numbers or only words, but sample "
                f"{odd}, counted from 0, has {str(rows[odd])[:80]!r}. Correct the "
                "rows, or measure another column with `energize prepare --column`"
            )
        is_real = any(isinstance(value, float | np.floating) for value in rows)
        try:
            return cls(np.array(rows, dtype=np.float64 if is_real else int))
        except OverflowError:
            large = next(i for i, value in enumerate(rows) if not _fits(value))
            raise ColumnError(
                f"column {name!r} must have whole numbers of at most 64 bits, but "
                f"sample {large}, counted from 0, has {str(rows[large])[:80]}. Correct "
                "the row, or use floats"
            ) from None

    @classmethod
    def _of_words(cls, rows: Sequence[str | None]) -> Column:
        categories = sorted({word for word in rows if word is not None})
        numbers = {word: i for i, word in enumerate(categories)} | {None: -1}
        codes = np.array([numbers[word] for word in rows], dtype=np.int32)
        return cls(codes, tuple(categories))

    def part(self, rows: Any) -> Column:
        """Those of some samples: a slice, or their numbers."""
        return Column(self.values[rows], self.categories)


def _fits(value: int) -> bool:
    """Return whether a whole number has at most 64 bits."""
    return -(2**63) <= value < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)
