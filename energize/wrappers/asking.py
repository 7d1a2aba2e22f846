"""What weights ask of a blend, for those who compare it with what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from energize.arrays import FloatArray
from energize.dataset import INFINITE
from energize.order.arrangement import WEIGHTLESS
from energize.order.asked import Era, asked_shares, asked_until
from energize.order.varying import Weight, ever_positive


class AskedByWeights:
    """The part of a blend that says what its weights ask for."""

    weights: tuple[Weight, ...]
    changes: tuple[tuple[int, tuple[Weight, ...]], ...]
    scheme: Any
    unit: Any

    if TYPE_CHECKING:

        @property
        def sized(self) -> bool: ...

        @property
        def size(self) -> int: ...

        @property
        def indexed(self) -> bool: ...

        def spent(self, n: int) -> list[float]: ...

    def asked(self, items: int | None) -> FloatArray | None:
        """How many of the first `items` the weights ask for of each of `inputs`: float64, sums to
        `items`, or to what they cost where weights of costs changed; for None their shares, or
        None where these change.

        Of a blend that ends, slots and schedules begin anew in each epoch. What stop rules do to
        the shares is not looked at: it is a difference between asked and delivered.
        """
        eras = [(0, self._asking(self.weights))]
        eras += [(slot, self._asking(weights)) for slot, weights in self.changes]
        if self.unit is not None:
            return self._asked_in_cost(eras, items)
        if items is None:
            return asked_shares(eras[0][1]) if not self.changes else None
        if not self.sized or self.size == INFINITE:
            return asked_until(eras, items)
        epochs, rest = divmod(items, max(self.size, 1))
        found = asked_until(eras, rest)
        return found + epochs * asked_until(eras, self.size) if epochs else found

    def _asked_in_cost(self, eras: Sequence[Era], items: int | None) -> FloatArray | None:
        """The same of what items cost. A slot says nothing of its cost, so while weights change
        gradually nobody asks for anything that could be told; and after changes, for parts of what
        the slots since then cost, if that is known unread.
        """
        shares = [asked_shares(weights) for _, weights in eras]
        if any(each is None for each in shares):
            return None
        if len(eras) == 1:
            return shares[0] if items is None else cast("FloatArray", shares[0]) * items
        if items is None or not (self.indexed and self.sized):
            return None
        ends = [*(start for start, _ in eras[1:]), items]
        costs = np.diff([sum(self.spent(min(end, items))) for end in ends], prepend=0.0)
        return np.asarray(costs @ np.array(shares, dtype=np.float64))

    def _asking(self, weights: Sequence[Weight]) -> Sequence[Weight]:
        if isinstance(self.scheme, str) and self.scheme in WEIGHTLESS:
            return [float(ever_positive(each)) for each in weights]
        return weights
