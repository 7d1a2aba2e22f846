"""The multiplexer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any, Literal, Self, TypeVar

import torch.utils.data
from pydantic import InstanceOf, SkipValidation, StrictBool

from energize.compat.checks import Count, Whole, checked, expected
from energize.compat.seeds import checked_seed
from energize.compat.squirrel.legacy_order import LegacyDraws
from energize.compat.squirrel.strategy import MultiplexingStrategy, survivors
from energize.cursor import Cursor, State
from energize.errors import ConfigError
from energize.loader.checking import check_lane
from energize.loader.state import packed_state, unpacked_state
from energize.order import make_scheme
from energize.order.weights import checked_weight
from energize.rng import derive
from energize.sources.adapting import as_dataset
from energize.topology import Lane, WorkerConfig
from energize.wrappers.multiplexed import End, MultiplexedDataset, Slots
from energize.wrappers.slots import SchemeSlots, TurnSlots

T = TypeVar("T")

_Sources = Annotated[
    Sequence[InstanceOf[object]] | Mapping[Any, Any],
    expected("is a list of sources, or a mapping of names to them"),
]


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

    `seed` decides the order; None draws one, which the log tells. `order="squirrel"` repeats the
    order of squirrel-core 0.20 draw by draw, with its bias towards long sources.

    Iterating starts an epoch; when one has ended the next iteration is the next epoch, in another
    order. `state_dict()` is exact after any sample. In torch workers and on several ranks each
    process reads all sources and yields its part of the samples, all parts together being the whole
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

    @checked
    def __init__(  # noqa: PLR0917 - squirrel's order of arguments
        self,
        composables: _Sources,
        mux_strategy: MultiplexingStrategy = MultiplexingStrategy.ROUND_ROBIN,
        sampling_probas: SkipValidation[Sequence[float] | Mapping[str, float] | None] = None,
        max_reinits: Count | None = None,
        seed: Whole | None = None,
        proba_threshold: SkipValidation[float] = 1e-3,
        *,
        names: Sequence[str] | None = None,
        order: Literal["energize", "squirrel"] = "energize",
        already_split: StrictBool = False,
    ) -> None:
        sources = _by_name(composables, names)
        self.names = tuple(sources)
        self.mux_strategy = mux_strategy
        self._divides = (not already_split, not already_split)
        threshold = checked_weight(proba_threshold, "Multiplexer", "proba_threshold")
        kept = survivors(self.names, mux_strategy, sampling_probas, threshold)
        self._kept = tuple(kept)
        in_turn = mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        self.dataset: MultiplexedDataset[T] = MultiplexedDataset(
            [as_dataset(sources[name], name) for name in kept],
            self._kept,
            self._slots(order, kept, seed),
            End(
                "leave_out" if in_turn else "all_seen",
                (1 if in_turn else max_reinits,) * len(kept),
                slots_anew=False,
            ),
        )
        self._epoch_start: State | None = None
        self._resume: State | None = None
        self._cursor: Cursor[T] | None = None

    def _slots(self, order: str, probas: Mapping[str, float], seed: int | None) -> Slots:
        if self.mux_strategy is MultiplexingStrategy.ROUND_ROBIN:
            return TurnSlots(len(probas), from_first=order == "squirrel")
        seed = checked_seed(seed, "Multiplexer")
        uniform = self.mux_strategy is MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT
        if order == "squirrel":
            return LegacyDraws(len(probas), None if uniform else tuple(probas.values()), seed)
        scheme = "uniform" if uniform else "random"
        key = derive("multiplexer", seed, *self._kept)
        return SchemeSlots(make_scheme(scheme, probas, key=key))

    def __iter__(self) -> Iterator[T]:
        self._cursor = self.dataset.open(self._lane(), self._resume or self._epoch_start)
        self._resume = None
        return self._given(self._cursor)

    def _given(self, cursor: Cursor[T]) -> Iterator[T]:
        yield from cursor
        self._epoch_start = cursor.state()

    def _lane(self) -> Lane:
        """The part of the samples that this process yields."""
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
        """Samples of each source that is drawn from, in the latest iteration in this process."""
        return self._counted("given")

    @property
    def num_samples_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for sources that are left out."""
        return self._with_all_names(self.num_samples)

    @property
    def reinit_counts(self) -> list[int]:
        """How often each source that is drawn from was exhausted, in the latest iteration in
        this process.

        Empty for round robin, which starts no source again.
        """
        in_turn = self.mux_strategy is MultiplexingStrategy.ROUND_ROBIN
        return [] if in_turn else self._counted("passes")

    @property
    def reinit_counts_by_name(self) -> dict[str, int]:
        """The same by name, with 0 for all others."""
        return self._with_all_names(self.reinit_counts)

    def _counted(self, what: str) -> list[int]:
        stream = getattr(self._cursor, "stream", None)
        return list(getattr(getattr(stream, "whole", stream), what, [0] * len(self._kept)))

    def _with_all_names(self, counts: list[int]) -> dict[str, int]:
        return dict.fromkeys(self.names, 0) | dict(zip(self._kept, counts, strict=False))

    def state_dict(self) -> State:
        """The state after the last sample: JSON-able, of constant size."""
        cursor = self._cursor
        if cursor is None or self._resume is not None:
            cursor = self.dataset.open(self._lane(), self._resume or self._epoch_start)
        return packed_state(self.dataset, cursor.state())

    def load_state_dict(self, state_dict: State) -> None:
        """Go on from a state in the next iteration.

        Raises `StateMismatchError` naming what differs when it is of another multiplexer, and
        `StateError` when it cannot be used.
        """
        resume, lane = unpacked_state(self.dataset, state_dict), self._lane()
        with closing(self.dataset.open(lane, resume)) as cursor:
            check_lane(lane.index, resume, cursor.state(), same_mix=True)
        self._resume = resume

    def to_torch_iterable(
        self, enforce_rank_check: bool = True, enforce_worker_check: bool = True
    ) -> Self:
        """The same multiplexer, which is an iterable torch dataset as it is.

        False says that the sources give every rank, or every worker, a part of their own already,
        so that the multiplexer does not divide among these again.
        """
        other = copy.copy(self)
        among_ranks, among_workers = self._divides
        other._divides = among_ranks and enforce_rank_check, among_workers and enforce_worker_check
        return other


def _by_name(sources: Sequence[Any] | Mapping[str, Any], names: Sequence[str] | None) -> Any:
    """The sources by their names, or by their numbers as text."""
    if not sources:
        raise ConfigError("Multiplexer: there are no sources to mix")
    by_name = isinstance(sources, Mapping)
    if names is not None and (by_name or len(set(names)) != len(sources)):
        raise ConfigError(
            f"Multiplexer: names are for a list of sources, one each and all different; got "
            f"{list(names)} for {len(sources)} sources"
        )
    if by_name:
        return sources
    return dict(zip(names or map(str, range(len(sources))), sources, strict=True))
