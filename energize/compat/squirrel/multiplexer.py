"""The multiplexer."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch.utils.data

from energize.compat.seeds import checked_seed
from energize.compat.squirrel.legacy_order import LegacyDraws
from energize.compat.squirrel.strategy import (
    MultiplexingStrategy,
    Survivors,
    checked_strategy,
    survivors,
)
from energize.cursor import Cursor, State
from energize.errors import ConfigError
from energize.loader.state import packed_state, unpacked_state
from energize.order.numeric import real_number
from energize.rng import derive
from energize.sources.adapting import as_dataset
from energize.topology import Lane, WorkerConfig
from energize.wrappers.checks import checked_count
from energize.wrappers.multiplexed import End, MultiplexedDataset, Slots
from energize.wrappers.slots import SchemeSlots, Turns

__all__ = ["Multiplexer"]

T = TypeVar("T")


class Multiplexer(torch.utils.data.IterableDataset[T]):
    """One stream of samples of several sources, whose lengths need not be known.

    `composables`: a list of sources, or a mapping of names to them. A source is anything that can
    be iterated over again and again, a function that makes an iterable, or an energize dataset.
    `sampling_probas`: a list, or a mapping by name; they need not sum to 1. Sources with one of at
    most `proba_threshold` are left out, and named in the log and in `dropped`.

    ROUND_ROBIN, the default, takes the sources in turn, leaves out those that are over, and gives
    each sample once. The others draw a source for each slot; one that is over starts again and
    fills the slot, so shares do not depend on lengths. They end when every source was over at least
    once, or when one was over `max_reinits` times: a source is seen to be over when it is drawn
    once more.

    `seed` decides the order; None draws one, which the log tells. `order="squirrel"` repeats the
    order of squirrel-core 0.20 draw by draw, with its bias towards long sources.

    Iterating starts an epoch; when one has ended the next iteration is the next epoch, in another
    order. `state_dict()` is exact after any sample. In torch workers and on several ranks each
    process reads all sources and gives its part of the samples, all parts together being the whole
    epoch; `already_split` says that the sources divide themselves. Workers that are started anew
    for every epoch know no earlier epochs and repeat the first: use `persistent_workers=True`, or
    `energize.get_loader(mux.dataset)`.

    Raises `ConfigError` or `WeightError` for what cannot be used, `EmptyDatasetError` naming a
    source that is to start again and has no samples.

    >>> from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
    >>> mux = Multiplexer({"a": [1, 2], "b": [-1, -2, -3]}, MultiplexingStrategy.ROUND_ROBIN)
    >>> list(mux), mux.num_samples_by_name
    ([1, -1, 2, -2, -3], {'a': 2, 'b': 3})
    """

    def __init__(  # noqa: PLR0917 - squirrel's order of arguments
        self,
        composables: Sequence[Any] | Mapping[str, Any],
        mux_strategy: MultiplexingStrategy = MultiplexingStrategy.ROUND_ROBIN,
        sampling_probas: Sequence[float] | Mapping[str, float] | None = None,
        max_reinits: int | None = None,
        seed: int | None = None,
        proba_threshold: float = 1e-3,
        *,
        names: Sequence[str] | None = None,
        order: str = "energize",
        already_split: bool = False,
    ) -> None:
        self.names = _checked_names(composables, names)
        self.mux_strategy = checked_strategy(mux_strategy)
        self._divides = (not already_split, not already_split)
        threshold = real_number(proba_threshold)
        if threshold is None or not 0 <= float(threshold) < math.inf:
            raise ConfigError(
                f"Multiplexer: proba_threshold is a number, 0 or more; got {proba_threshold!r}"
            )
        if max_reinits is not None:
            checked_count(max_reinits, "max_reinits", "Multiplexer")
        kept = survivors(self.names, self.mux_strategy, sampling_probas, float(threshold))
        sources = composables.values() if isinstance(composables, Mapping) else composables
        datasets = [as_dataset(each, name) for each, name in zip(sources, self.names, strict=True)]
        in_turn = self.mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        self._kept = tuple(self.names[i] for i in kept.numbers)
        self.dataset: MultiplexedDataset[T] = MultiplexedDataset(
            [datasets[i] for i in kept.numbers],
            self._kept,
            self._slots(order, kept, seed),
            End(
                "leave_out" if in_turn else "all_seen",
                (1 if in_turn else max_reinits,) * len(kept.numbers),
                slots_anew=False,
            ),
        )
        self._epoch_start: State | None = None
        self._resume: State | None = None
        self._cursor: Cursor[T] | None = None

    def _slots(self, order: str, kept: Survivors, seed: int | None) -> Slots:
        if order not in ("energize", "squirrel"):
            raise ConfigError(
                "Multiplexer: order is 'energize', or 'squirrel' to repeat a run of squirrel; got "
                f"{order!r}"
            )
        count = len(kept.numbers)
        if self.mux_strategy is MultiplexingStrategy.ROUND_ROBIN:
            return Turns(count, from_first=order == "squirrel")
        seed = checked_seed(seed, "Multiplexer")
        uniform = self.mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        if order == "squirrel":
            return LegacyDraws(count, None if uniform else kept.probas, seed)
        key = derive("multiplexer", seed, *self._kept)
        return SchemeSlots("random", (1.0,) * count if uniform else kept.probas, key)

    def __iter__(self) -> Iterator[T]:
        self._cursor = self.dataset.open(self._lane(), self._resume or self._epoch_start)
        self._resume = None
        return self._given(self._cursor)

    def _given(self, cursor: Cursor[T]) -> Iterator[T]:
        yield from cursor
        self._epoch_start = cursor.state()

    def _lane(self) -> Lane:
        """The part of the samples that this process gives."""
        among_ranks, among_workers = self._divides
        ranks = WorkerConfig().ranks()
        rank, world_size = (ranks.rank, ranks.world_size) if among_ranks else (0, 1)
        worker = torch.utils.data.get_worker_info() if among_workers else None
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Lane(rank + world_size * number, world_size * workers)

    def __repr__(self) -> str:
        return f"Multiplexer({', '.join(self.names)}; {self.mux_strategy})"

    @property
    def dropped(self) -> tuple[str, ...]:
        """The sources left out because their probability is at most `proba_threshold`."""
        return tuple(name for name in self.names if name not in self._kept)

    @property
    def num_samples(self) -> list[int]:
        """Samples given by each source that takes part, in the latest iteration in this process."""
        return self._counted("given")

    def _counted(self, what: str) -> list[int]:
        stream = getattr(self._cursor, "stream", None)
        counted = getattr(getattr(stream, "whole", stream), what, [0] * len(self._kept))
        return list(counted)

    @property
    def num_samples_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for sources that are left out."""
        return dict.fromkeys(self.names, 0) | dict(zip(self._kept, self.num_samples, strict=True))

    @property
    def reinit_counts(self) -> list[int]:
        """How often each source that takes part was over in the latest iteration in this process.

        Empty for round robin, which starts no source again.
        """
        if self.mux_strategy is MultiplexingStrategy.ROUND_ROBIN:
            return []
        return self._counted("passes")

    @property
    def reinit_counts_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for all others."""
        counts = self.reinit_counts or [0] * len(self._kept)
        return dict.fromkeys(self.names, 0) | dict(zip(self._kept, counts, strict=True))

    def state_dict(self) -> State:
        """The state after the last sample: JSON-able, of constant size."""
        cursor = self._cursor
        if cursor is None or self._resume is not None:
            cursor = self.dataset.open(self._lane(), self._resume or self._epoch_start)
        return packed_state(self.dataset, cursor.state())

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from a state in the next iteration.

        Raises `StateMismatchError` naming what differs when it is of another multiplexer.
        """
        self._resume = unpacked_state(self.dataset, state_dict)

    def to_torch_iterable(
        self, enforce_rank_check: bool = True, enforce_worker_check: bool = True
    ) -> Self:
        """The same multiplexer, which is an iterable torch dataset as it is.

        False says that the sources give every rank, or every worker, a part of their own already,
        so that the multiplexer does not divide among these again.
        """
        other = copy.copy(self)
        among_ranks, among_workers = self._divides
        other._divides = (
            among_ranks and enforce_rank_check,
            among_workers and enforce_worker_check,
        )
        return other


def _checked_names(
    composables: Sequence[Any] | Mapping[str, Any], names: Sequence[str] | None
) -> tuple[str, ...]:
    if not isinstance(composables, Mapping | Sequence) or isinstance(composables, str):
        raise ConfigError(
            f"Multiplexer: composables is a list of sources or a mapping of names to them; got "
            f"{type(composables).__name__}"
        )
    if not composables:
        raise ConfigError("Multiplexer: there are no sources to mix")
    if names is None:
        numbered = [str(number) for number in range(len(composables))]
        return tuple(composables if isinstance(composables, Mapping) else numbered)
    if isinstance(composables, Mapping) or len(set(names)) != len(composables):
        raise ConfigError(
            f"Multiplexer: names are for a list of sources, one each and all different; got "
            f"{list(names)} for {len(composables)} sources"
        )
    return tuple(names)
