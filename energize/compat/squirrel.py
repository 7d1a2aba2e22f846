"""squirrel's words for mixing streams whose lengths nobody knows."""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import Any, Self, TypeVar

import torch.utils.data

from energize.core.checks import checked_whole
from energize.core.lanes import Lane, WorkerConfig
from energize.core.rng import derive
from energize.core.stream import Cursor, State
from energize.core.validation import short
from energize.data.memory import as_dataset
from energize.datasets.multiplexed import End, MultiplexedDataset
from energize.errors import ConfigError, WeightError
from energize.loader.state import packed_state, unpacked_state
from energize.order import Scheme, make_scheme
from energize.order.weights import checked_weight, names_apart

__all__ = ["Multiplexer", "MultiplexingStrategy"]

T = TypeVar("T")

_log = logging.getLogger("energize")


class MultiplexingStrategy(Enum):
    """How a `Multiplexer` chooses the source of the next sample."""

    ROUND_ROBIN = "RoundRobin"
    """One source after another; an exhausted one is left out; each sample comes exactly once."""

    SAMPLING = "sampling"
    """Random order by the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Random order, every source equally likely."""


class Multiplexer(torch.utils.data.IterableDataset[T]):
    """One stream of samples of several sources, whose lengths need not be known.

    `composables`: a list of sources, or a mapping of names to them. A source is anything that can
    be iterated over again and again, a function that makes an iterable, or an energize dataset.
    `sampling_probas`: a list, or a mapping by name; they need not sum to 1. Sources with one of at
    most `proba_threshold` are left out, and named in the log and in `dropped`.

    ROUND_ROBIN, the default, takes the sources in turn, leaves out exhausted ones, and yields each
    sample once. The others mix them in random order; an exhausted one starts again and fills the
    slot, so shares do not depend on lengths. They end when every source was exhausted at least
    once, or when one was `max_reinits` times: that shows when it is drawn once more.

    `seed` decides the order; None draws one, which the log tells.

    Iterating starts an epoch; when one has ended the next iteration is the next epoch, in another
    order. `state_dict()` is exact after any sample. In torch workers and on several ranks each
    process reads all sources and yields its part of the samples, all parts together being the whole
    epoch. Workers that are started anew for every epoch know no earlier epochs and repeat the
    first: use `persistent_workers=True`, or `energize.get_loader(mux.dataset)`.

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
    ) -> None:
        if not isinstance(composables, Mapping):
            composables = {str(number): each for number, each in enumerate(composables)}
        if not composables or not isinstance(mux_strategy, MultiplexingStrategy):
            raise ConfigError(
                "Multiplexer: give a list of sources, or a mapping of names to them, and a "
                f"MultiplexingStrategy; got {short(composables)} and {short(mux_strategy)}"
            )
        if max_reinits is not None:
            max_reinits = checked_whole(max_reinits, "Multiplexer: max_reinits", 1)
        self.names = tuple(composables)
        self.mux_strategy = mux_strategy
        self._in_turn = mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        threshold = checked_weight(proba_threshold, "Multiplexer", "proba_threshold")
        kept = self._drawn_from(sampling_probas, threshold)
        self._kept = tuple(kept)
        self.dataset: MultiplexedDataset[T] = MultiplexedDataset(
            [as_dataset(composables[name], name) for name in kept],
            self._kept,
            self._slots(kept, seed),
            End(
                "leave_out" if self._in_turn else "all_seen",
                (1 if self._in_turn else max_reinits,) * len(kept),
                slots_anew=self._in_turn,
            ),
        )
        self._among_ranks = self._among_workers = True
        self._start: State | None = None  # of this epoch, or what was loaded
        self._cursor: Cursor[T] | None = None

    def _drawn_from(self, probas: Any, threshold: float) -> dict[str, float]:
        """Return the sources that are drawn from, with their probabilities: those above
        `threshold`.

        Round robin takes every source; uniform draws take those that would be drawn at all.
        """
        uniform = self.mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        if self._in_turn and probas is not None:
            _log.warning("Multiplexer: round robin takes every source; sampling_probas are ignored")
        if self._in_turn or (uniform and probas is None):
            return dict.fromkeys(self.names, 1.0)
        if not isinstance(probas, Mapping):
            probas = dict(zip_longest(self.names, [] if probas is None else probas, fillvalue=""))
        difference = names_apart(self.names, probas)
        if difference:
            raise WeightError(f"Multiplexer: sampling_probas and sources: {difference}")
        given = {
            name: checked_weight(probas[name], f"Multiplexer: sampling_probas of {name!r}")
            for name in self.names
        }
        kept = {name: value for name, value in given.items() if value > threshold}
        if not kept:
            raise WeightError(
                f"Multiplexer: no sampling probability is above proba_threshold {threshold}: "
                f"{given}; nothing could ever be drawn"
            )
        if len(kept) < len(given):
            told = ", ".join(f"{each!r} ({given[each]:g})" for each in given if each not in kept)
            _log.warning("Multiplexer: left out, as proba_threshold is %g: %s", threshold, told)
        return kept

    def _slots(self, probas: Mapping[str, float], seed: int | None) -> Scheme:
        if self._in_turn:
            return make_scheme("round_robin", probas)
        uniform = self.mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        key = derive("multiplexer", checked_seed(seed, "Multiplexer"), *probas)
        return make_scheme("uniform" if uniform else "random", probas, key=key)

    def __iter__(self) -> Iterator[T]:
        self._cursor = self._opened()
        return self._given(self._cursor)

    def _opened(self) -> Cursor[T]:
        return self.dataset.open(self._lane(), self._start)

    def _given(self, cursor: Cursor[T]) -> Iterator[T]:
        yield from cursor
        self._start = cursor.state()

    def _lane(self) -> Lane:
        """Return the part of the samples that this process yields."""
        ranks = WorkerConfig().ranks()
        rank, world_size = (ranks.rank, ranks.world_size) if self._among_ranks else (0, 1)
        worker = torch.utils.data.get_worker_info() if self._among_workers else None
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Lane(rank + world_size * number, world_size * workers)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The sources left out because their probability is at most `proba_threshold`."""
        return tuple(name for name in self.names if name not in self._kept)

    @property
    def num_samples(self) -> list[int]:
        """Samples of each source that is drawn from, in the latest iteration in this process."""
        return self._counted("given")

    @property
    def num_samples_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for sources that are left out."""
        return self._by_name(self.num_samples)

    @property
    def reinit_counts(self) -> list[int]:
        """How often each source that is drawn from was exhausted, in the latest iteration in
        this process. Empty for round robin, which starts no source again.
        """
        return [] if self._in_turn else self._counted("passes")

    @property
    def reinit_counts_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for all others."""
        return self._by_name(self.reinit_counts)

    def _counted(self, what: str) -> list[int]:
        stream = getattr(self._cursor, "stream", None)
        return list(getattr(getattr(stream, "whole", stream), what, [0] * len(self._kept)))

    def _by_name(self, counts: list[int]) -> dict[str, int]:
        return dict.fromkeys(self.names, 0) | dict(zip(self._kept, counts, strict=False))

    def state_dict(self) -> State:
        """Return the state after the last sample: JSON-able, of constant size."""
        return packed_state(self.dataset, (self._cursor or self._opened()).state())

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from a state in the next iteration.

        Raise `StateMismatchError` naming what differs when it is of another multiplexer, and
        `StateError` when it cannot be used.
        """
        resume = unpacked_state(self.dataset, state_dict)
        self._cursor = self.dataset.open(self._lane(), resume)  # what is wrong shows here
        self._start = resume

    def to_torch_iterable(
        self, enforce_rank_check: bool = True, enforce_worker_check: bool = True
    ) -> Self:
        """Return the same multiplexer, which is an iterable torch dataset as it is.

        False says that the sources give every rank, or every worker, a part of their own already,
        so that the multiplexer does not divide among these again.
        """
        other = copy.copy(self)
        other._among_ranks = self._among_ranks and enforce_rank_check
        other._among_workers = self._among_workers and enforce_worker_check
        return other


def checked_seed(seed: int | None, owner: str) -> int:
    """Return `seed`, or for None one that is drawn and logged.

    Raise `ConfigError` for what is no whole number from 0, and for None where there are several
    ranks: each would draw another seed, and they would read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: seed", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an order of its "
            "own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
