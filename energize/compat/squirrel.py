"""Multiplexing strategies, and which sources they draw from."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch.utils.data
from pydantic import InstanceOf, SkipValidation, StrictBool

from energize.compat.checks import Count, Whole, checked, checked_seed, expected
from energize.core.lanes import Lane, WorkerConfig
from energize.core.rng import derive
from energize.core.stream import Cursor, State, state_field
from energize.data.memory import as_dataset
from energize.datasets.multiplexed import End, MultiplexedDataset, SchemeSlots, Slots, TurnSlots
from energize.errors import ConfigError, StateError, WeightError
from energize.loader.state import packed_state, unpacked_state
from energize.order import make_scheme
from energize.order.schedule import checked_weight, names_apart

__all__ = ["Multiplexer", "MultiplexingStrategy"]


_log = logging.getLogger("energize")


class MultiplexingStrategy(Enum):
    """How a `Multiplexer` chooses the source of the next sample."""

    ROUND_ROBIN = "RoundRobin"
    """One source after another; an exhausted one is left out; each sample comes exactly once."""

    SAMPLING = "sampling"
    """Random order by the sampling probabilities."""

    UNIFORM_WITH_REPLACEMENT = "uniform_with_replacement"
    """Random order, every source equally likely."""


def survivors(
    names: tuple[str, ...], strategy: MultiplexingStrategy, probas: object, threshold: float
) -> dict[str, float]:
    """The sources that are drawn from, with their probabilities: those above `threshold`. Those
    left out are logged by name.

    Round robin takes every source; uniform draws take those that would be drawn at all. Raises
    `WeightError` for probabilities that are missing, not one per source, negative, not finite, or
    all too small.
    """
    everyone = dict.fromkeys(names, 1.0)
    if strategy is MultiplexingStrategy.ROUND_ROBIN:
        if probas is not None:
            _log.warning("Multiplexer: round robin takes every source; sampling_probas are ignored")
        return everyone
    if probas is None:
        if strategy is MultiplexingStrategy.SAMPLING:
            raise WeightError(
                f"Multiplexer: SAMPLING needs sampling_probas, one for each of {', '.join(names)}"
            )
        return everyone
    given = {
        name: checked_weight(value, f"Multiplexer: sampling_probas of {name!r}")
        for name, value in _by_name(names, probas).items()
    }
    kept = {name: value for name, value in given.items() if value > threshold}
    if not kept:
        raise WeightError(
            f"Multiplexer: no sampling probability is above proba_threshold {threshold}: {given}; "
            "nothing could ever be drawn"
        )
    left_out = [f"{name!r} ({given[name]:g})" for name in names if name not in kept]
    if left_out:
        _log.warning(
            "Multiplexer: left out, as proba_threshold is %g: %s", threshold, ", ".join(left_out)
        )
    return kept


def _by_name(names: tuple[str, ...], probas: Any) -> dict[str, Any]:
    owner = "Multiplexer: sampling_probas"
    if not isinstance(probas, Iterable) or isinstance(probas, str):
        raise WeightError(
            f"{owner} is a list of numbers, or numbers by name in a dict; got {probas!r}"
        )
    if not isinstance(probas, Mapping):
        listed = list(probas)
        if len(listed) != len(names):
            raise WeightError(
                f"{owner} has {len(listed)} entries for {len(names)} sources "
                f"({', '.join(names)}); give one for each"
            )
        return dict(zip(names, listed, strict=True))
    difference = names_apart(names, probas)
    if difference:
        raise WeightError(f"{owner} and sources do not match: {difference}")
    return {name: probas[name] for name in names}


# The exact draws of squirrel-core 0.20, for runs that have to repeat one of its.

_AT_ONCE = 256
_WORDS = 624


@dataclass(frozen=True)
class LegacyDraws:
    """Independent draws from numpy's legacy generator over a Mersenne twister.

    A draw that meets the end of a source is lost: the next one decides, which favours long sources.
    `probas` need not sum to 1; without them all `sources` are equally likely.
    """

    sources: int
    probas: tuple[float, ...] | None
    seed: int

    def begin(self, state: State | None, left_out: frozenset[int]) -> _DrawCursor:
        return _DrawCursor(self, state)

    def describe(self) -> dict[str, Any]:
        probas = None if self.probas is None else list(self.probas)
        return {"order": "squirrel", "draws": probas, "seed": self.seed}


class _DrawCursor:
    """Draws many at once; its state is the generator's before them, and how many are used."""

    def __init__(self, draws: LegacyDraws, state: State | None) -> None:
        self._sources = draws.sources
        self._bits = np.random.MT19937(draws.seed)
        self._generator = np.random.RandomState(self._bits)
        self._used = 0
        total = sum(draws.probas or ())
        self._shares = draws.probas and [each / total for each in draws.probas]
        if state is not None:
            self._used, place = (state_field(state, name, int) for name in ("used", "place"))
            words = np.array(state_field(state, "key", list))
            inside = 0 <= place <= _WORDS and 0 <= self._used <= _AT_ONCE
            if words.shape != (_WORDS,) or words.dtype.kind != "i" or not inside:
                raise StateError(f"the saved state is not a place in {_WORDS} words of a twister")
            twister: Any = {"key": words.astype(np.uint32), "pos": place}
            self._bits.state = {"bit_generator": "MT19937", "state": twister}
        self._draw()

    def current(self) -> int:
        if self._used == _AT_ONCE:
            self._draw()
            self._used = 0
        return self._drawn[self._used]

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        self._used += 1

    def exhausted(self, *, left_out: bool) -> None:
        self._used += 1

    def check_given(self, given: Sequence[int], *, anew: bool) -> None:
        """Draws say nothing of how many came."""

    def state(self) -> State:
        return {**self._before, "used": self._used}

    def _draw(self) -> None:
        twister: Any = self._bits.state["state"]
        self._before = {"key": twister["key"].tolist(), "place": twister["pos"]}
        drawn = self._generator.choice(self._sources, _AT_ONCE, p=self._shares)
        self._drawn: list[int] = drawn.tolist()


# The multiplexer.

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
        sources = _multiplexer_by_name(composables, names)
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
        with closing(self.dataset.open(lane, resume)):
            pass  # what is wrong with it shows here
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


def _multiplexer_by_name(
    sources: Sequence[Any] | Mapping[str, Any], names: Sequence[str] | None
) -> Any:
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
