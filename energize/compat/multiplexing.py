"""The mix behind squirrel's multiplexer: epochs of streams of unknown lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import Int64Array
from energize.core.costs import ItemCost
from energize.core.dataset import Dataset
from energize.core.node import MixTraits, NodeTraits, StreamTraits
from energize.core.stream import LaneReader, LaneStream, Opening
from energize.datasets.mixed_streams import (
    BeginSlots,
    EpochStart,
    MixedStream,
    OwedSlots,
    PassLimits,
    SchemeSlots,
)
from energize.datasets.transform import with_equal_weighing
from energize.order import Scheme
from energize.order.timeline import WeightedScheme

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end of an epoch, and the beginning of the next one.

    Attributes:
        rule: "leave_out": a source is left out after its last pass, and the epoch ends
            without sources. "all_seen": the epoch ends when each source was exhausted
            once, or one of them `passes` times.
        passes: The passes over each source; None for any number.
        slots_anew: Whether the next epoch begins with the first slot, in sources that
            continue. Else slots continue, over the first items of the sources.
    """

    rule: str
    passes: tuple[int | None, ...]
    slots_anew: bool = True


class MultiplexedDataset(Dataset[T_co]):
    """Items of several datasets in the order of a scheme, streams included.

    A dataset is exhausted when it has no item for its slot. Every lane reads all items.

    Args:
        datasets: The datasets.
        names: Their names, for messages and counts.
        slots: The scheme.
        end: The end of an epoch.
        unit: Cost of an item; shares are then shares of cost.

    Raises:
        EmptyDatasetError: While reading, if a dataset without items has to restart.
    """

    order_name = "MultiplexedDataset"

    names: tuple[str, ...]
    slots: Scheme
    end: EpochEnd
    unit: ItemCost | None = None

    def __init__(
        self,
        datasets: Sequence[Dataset[T_co]],
        names: Sequence[str],
        slots: Scheme,
        end: EpochEnd,
        unit: ItemCost | None = None,
    ) -> None:
        costs: dict[str, Any] = {} if unit is None else {"unit": unit}
        self.freeze(
            with_equal_weighing(datasets),
            names=tuple(names),
            slots=slots,
            end=end,
            **costs,
        )

    indexed = False
    sized = False

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            stream=StreamTraits(divisible=False), mix=MixTraits(unit=self.unit)
        )

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        begin: BeginSlots = partial(SchemeSlots, self.slots)
        if self.unit is not None:
            scheme = cast("WeightedScheme", self.slots)
            begin = partial(OwedSlots, scheme, self.unit, opening, key=self.key)
        elif isinstance(self.slots, LegacyDraws):
            begin = partial(LegacySlots, self.slots)
        limits = PassLimits(self.end.passes, self.end.rule == "leave_out")
        return MultiplexedStream(self, begin, limits, opening)


class MultiplexedStream(MixedStream[T]):
    """One epoch of a `MultiplexedDataset`."""

    may_be_empty = True

    def ends_after(self, source: int) -> bool:
        """Return whether the epoch ends after a pass over a source."""
        all_seen = not self.limits.leaves_out and all(self.passes)
        return all_seen or super().ends_after(source)

    def next_epoch(self) -> EpochStart:
        """Return what the next epoch begins with."""
        start = super().next_epoch()
        if self.mix.end.slots_anew:
            return start
        first = self.opening._replace(state=None)
        rows = zip(self.mix.inputs, start.inputs, start.seen, strict=True)
        inputs = [
            LaneReader(dataset, first) if has_begun else reader
            for dataset, reader, has_begun in rows
        ]
        return EpochStart(self.slots, inputs, [0] * len(inputs))


@dataclass(frozen=True)
class LegacyDraws:
    """The draws of squirrel-core 0.20, for runs that have to repeat one.

    They are independent draws of numpy's legacy generator over a Mersenne twister.
    Resuming at slot n draws n numbers again, some nanoseconds each.
    """

    probas: tuple[float, ...]
    uniform: bool
    seed: int

    def counts(self, n: int) -> Int64Array:
        """Return how many of the first `n` draws are of each source."""
        return np.bincount(self.locate(np.arange(n))[0], minlength=len(self.probas))

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and zeros in place of its items."""
        drawn = _legacy_draws(self, int(slots.max(initial=0)).bit_length())
        return drawn[slots].astype(np.int64), np.zeros_like(slots)


class LegacySlots(SchemeSlots):
    """Slots of `LegacyDraws`. A draw that meets the end of a source is lost, which
    favours long sources.
    """

    def exhausted(self, *, left_out: bool) -> None:
        """Move to the next slot, unless the source is left out."""
        if left_out:
            super().exhausted(left_out=left_out)
        else:
            self.advance(None, str)


@lru_cache(maxsize=4)
def _legacy_draws(draws: LegacyDraws, bits: int) -> npt.NDArray[np.int32]:
    """Return the first `2**bits` draws."""
    generator = np.random.RandomState(np.random.MT19937(draws.seed))
    shares = None if draws.uniform else np.array(draws.probas) / sum(draws.probas)
    drawn = generator.choice(len(draws.probas), 2**bits, p=shares)
    return cast("npt.NDArray[np.int32]", drawn.astype(np.int32))
