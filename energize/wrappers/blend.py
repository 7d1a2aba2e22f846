"""Weighted mixes of datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

from energize.arrays import Int64Array
from energize.cursor import State
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.arrangement import WEIGHTLESS, default_scheme, option_names
from energize.order.ends import slot_limits, stopped_scheme
from energize.order.making import MixingScheme, make_scheme
from energize.order.protocol import Scheme
from energize.order.schedule import WeightScheduler, names_apart
from energize.order.varying import Weight, ever_positive, shares_at
from energize.outline import Outline
from energize.reading import Reading
from energize.streaming import EndlessStream, Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.blend_parts import (
    Part,
    checked_parts,
    levelled,
    merged,
    numbers_only,
    opened_up,
    told_apart,
)
from energize.wrappers.checks import check_names, raised_as
from energize.wrappers.multiplexed import End, MultiplexedStream
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.slots import SchemeSlots

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PairOf = tuple[Dataset[T_co], Weight]

_MANY = 16
"""Datasets from which on what a state tells of a blend is computed when it is made."""


class BlendDataset(RoutedDataset[T_co]):
    """Items of several datasets in the proportion of their weights.

    Given as (dataset, weight) pairs, as one iterable of pairs, or as `{name: dataset}` with
    `weights` by name: a dict or a `WeightScheduler`. A weight is a number or a `Schedule`; weights
    need not sum to 1. Over datasets of batches, each item is a whole batch of one of them.

    `scheme` decides which dataset each slot belongs to: the name of one, with its options as
    further keywords (`block_size=`), or any object with `counts` and `locate` over as many sources
    as there are datasets. The default is `block` where a `block_size` is given, else `even`: it
    keeps the shares in every prefix, in 20 items as in 20 million, and draws the order as far as
    that allows. So whole batches of few steps have the asked shares, and no rank of many meets a
    rhythm that gives it batches of one dataset only.

    `stop` decides what happens when a dataset is exhausted. `restart`: it starts again, in a new
    order when it is shuffled, and the blend never ends. `first_exhausted`: the blend ends before
    the first item that an exhausted dataset would have to give. `all_exhausted`: the others take
    over its slots, by weight, until all are exhausted, each item read once. `max_epochs` (for all,
    or one each) is how many epochs of a dataset count: without limit under `restart`, else 1; with
    it a blend ends under `restart` too, when all have reached it. In the epochs of a blend that
    ends, slots and schedules begin anew, while every dataset goes on where the last epoch left it.
    With a stream of unknown length among its datasets, a blend that ends is read as a whole in
    every lane: where it ends, one lane alone could not know.

    `temperature` t makes each weight weight ** t: 1 keeps the weights, 0 makes them equal.
    `min_share` and `max_share` (for all, or one each) then bound the shares of the datasets with a
    weight.

    Endless blends nest: with the same scheme, the parts of an inner blend are weighed by the
    product of their shares, slot by slot when they are schedules; temperature and limits are those
    of each level. Equal datasets are merged into one with the summed weight, which is logged; the
    same folder with other settings gets an order of its own.

    Raises `WeightError` for weights that are missing, negative, not finite or all zero;
    `EmptyDatasetError` for a dataset with a weight and no items; `ConfigError` for the rest.

    >>> from energize import ListSource
    >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
    >>> blend.shares()
    [0.75, 0.25]
    >>> blend.at(range(1000)).count("a")
    750
    >>> sorted(BlendDataset((ListSource("ab"), 3), (ListSource("c"), 1), stop="all_exhausted"))
    ['a', 'b', 'c']
    """

    weights: tuple[Weight, ...]
    scheme: str | Scheme
    options: dict[str, Any]
    stop: str
    max_epochs: tuple[int | None, ...]
    given_names: tuple[str | None, ...]
    changes: tuple[tuple[int, tuple[Weight, ...]], ...]

    changes_no_sample = ("given_names",)

    def __init__(
        self,
        *pairs: PairOf[T_co] | Iterable[PairOf[T_co]] | Mapping[str, Dataset[T_co]],
        weights: Mapping[str, Weight] | WeightScheduler | None = None,
        scheme: str | Scheme | None = None,
        stop: str = "restart",
        max_epochs: int | Sequence[int | None] | Mapping[str, int] | None = None,
        temperature: float = 1.0,
        min_share: float | Sequence[float | None] | Mapping[str, float] | None = None,
        max_share: float | Sequence[float | None] | Mapping[str, float] | None = None,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        with raised_as(type(self).__name__):
            if scheme is None:
                check_names(options, option_names("block"), BlendDataset)
                scheme = default_scheme(options)
            elif isinstance(scheme, str):
                check_names(options, option_names(scheme), BlendDataset)
            parts, names = checked_parts(pairs, weights, max_epochs)
            _check_same_names(names, getattr(scheme, "names", None))
            slot_limits([1] * len(parts), stop, [part.max_epochs for part in parts])
            parts = levelled(parts, names, temperature, min_share, max_share)
            if isinstance(scheme, str):
                if stop == "restart" and max_epochs is None:
                    parts = _flattened(parts, scheme, options)
                parts = merged(parts, type(self).__name__)
            self._freeze(
                inputs=told_apart(part.dataset for part in parts),
                worker_config=worker_config,
                weights=tuple(part.weight for part in parts),
                scheme=scheme,
                options=dict(options),
                stop=stop,
                max_epochs=tuple(part.max_epochs for part in parts),
                given_names=tuple(part.name for part in parts),
                changes=(),
            )
            self._check()

    def shares(self, slot: int = 0) -> list[float]:
        """The asked share of each of `inputs` at a slot: its weight divided by the sum."""
        if isinstance(self._scheme, MixingScheme):
            return self._scheme.shares(slot)
        shares: list[float] = shares_at(self.weights, [slot])[0].tolist()
        return shares

    def with_weights_from(
        self, slot: int, weights: Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
    ) -> Self:
        """The same blend with other weights from a slot on: all items before it stay as they are.

        Weights are those of `inputs` in their order, or by their `names`; steps of schedules count
        from the start of the blend. A state that was saved before the slot goes on in the changed
        blend. In the epochs of a blend that ends, weights change at the same slot of each.

        Raises `ConfigError` for a slot that an earlier change lies after, and for a blend whose
        `scheme` is an object; `WeightError` for weights.

        >>> from energize import ListSource
        >>> blend = BlendDataset({"a": ListSource("a"), "b": ListSource("b")},
        ...                      weights={"a": 1, "b": 1})
        >>> changed = blend.with_weights_from(100, {"a": 9, "b": 1})
        >>> changed.at(range(100)) == blend.at(range(100)), changed.taken(200)
        (True, [140, 60])
        """
        if not isinstance(self._scheme, MixingScheme):
            raise ConfigError(
                "weights can change from a slot on where the scheme is given by name; make a "
                "scheme with other weights"
            )
        with raised_as(type(self).__name__):
            by_name = weights.schedules() if isinstance(weights, WeightScheduler) else weights
            if isinstance(by_name, Mapping):
                difference = names_apart(self.names, by_name)
                if difference:
                    raise WeightError(f"the weights do not name the datasets: {difference}")
                by_name = [by_name[name] for name in self.names]
            changed = self._scheme.with_weights_from(slot, by_name)
        other = self._replace(changes=changed.changes)
        other._check()
        return other

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each of `inputs` is called: as it was given, or by the sources that it reads; the
        second of a name has a number, "web (2)".
        """
        named: list[str] = []
        seen: Counter[str] = Counter()
        for given, each in zip(self.given_names, self.inputs, strict=True):
            name = given or ", ".join(source.name for source in each.sources)
            seen[name] += 1
            named.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
        return tuple(named)

    def by_name(self, values: Sequence[T]) -> dict[str, T]:
        """Shares, or what was `taken`, by the `names` of the datasets: for a log.

        >>> from energize import ListSource
        >>> web, code = ListSource("a", name="web"), ListSource("b", name="code")
        >>> blend = BlendDataset((web, 3), (code, 1))
        >>> blend.by_name(blend.shares()), blend.by_name(blend.taken(8))
        ({'web': 0.75, 'code': 0.25}, {'web': 6, 'code': 2})
        """
        return dict(zip(self.names, values, strict=True))

    def settings_until(
        self, items: int, saved: Outline, later: list[str]
    ) -> tuple[Outline, list[str]]:
        """Weights may be others from slots on that come after the first `items`."""
        mixed = {**saved, **{name: self.settings()[name] for name in ("weights", "changes")}}
        now = self._scheme
        if not self.endless or mixed == saved or not isinstance(now, MixingScheme):
            return saved, []
        try:
            before = now.as_described(saved["weights"], saved["changes"])
        except (KeyError, TypeError, ValueError):  # it is damaged, and told to be different
            return saved, []
        at = before.timeline().first_difference(now.timeline(), items)
        if at is None:
            later.append("the weights of a blend are others there")
            return mixed, []
        return saved, [
            f"BlendDataset: slots from {at} on are shared out by other weights, and {items} slots "
            f"have been delivered; weights may change from slot {items} on"
        ]

    @property
    def endless(self) -> bool:
        """Whether it never ends, whatever it reads from."""
        return self.stop == "restart" and not any(self.max_epochs)

    @cached_property
    def sized(self) -> bool:
        return self.endless or all(each.sized for each in self.inputs)

    @cached_property
    def size(self) -> int:
        return self._mix[1]

    @cached_property
    def pass_length(self) -> int:
        """Items of an epoch; of one that never ends, a pass over each dataset with a weight."""
        if self.sized and self.size != INFINITE:
            return self.size
        pairs = zip(self.inputs, self.weights, strict=True)
        return sum(each.pass_length for each, weight in pairs if ever_positive(weight))

    @property
    def divisible(self) -> bool:
        """Whether lanes can know where it ends without reading each other's part."""
        return self.sized

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._mix[0].locate(positions)

    def taken(self, n: int) -> Sequence[int]:
        counts: list[int] = self._mix[0].counts(n).tolist()
        return counts

    @cached_property
    def _mix(self) -> tuple[Scheme, int]:
        """Which dataset each slot belongs to, and the size of an epoch."""
        if self.endless:
            return self._scheme, INFINITE
        sizes = [each.size for each in self.inputs]
        limits = slot_limits(sizes, self.stop, self.max_epochs)
        return stopped_scheme(self._scheme, limits, self.stop)

    @cached_property
    def _scheme(self) -> Scheme:
        if not isinstance(self.scheme, str):
            return self.scheme
        scheme = make_scheme(self.scheme, self.weights, key=self.key, **self.options)
        for slot, weights in self.changes:
            scheme = scheme.with_weights_from(slot, weights)
        return scheme

    def _check(self) -> None:
        """Whatever is wrong shows here, not at the first item."""
        if not isinstance(self.scheme, str):
            self._check_scheme_object(self.scheme)
        self._check_not_empty()
        if self.sized:
            _ = self._mix
        if len(self.inputs) > _MANY:
            _ = self.survey  # every run that saves a state needs it, and a resumed one at once

    def _check_not_empty(self) -> None:
        for number, (each, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            filled = not each.sized or each.size
            if filled or not ever_positive(weight) or self.stop == "all_exhausted":
                continue
            read = ", ".join(repr(source.name) for source in each.sources)
            raise EmptyDatasetError(
                f"dataset {number} has weight {weight} and no items (it reads {read}); remove it, "
                "or give it weight 0"
            )
        if not any(not each.sized or each.size for each in self.inputs):
            raise EmptyDatasetError("none of the datasets has items")

    def _check_scheme_object(self, scheme: Scheme) -> None:
        wanted = "a scheme is a name or an object with counts and locate"
        if isinstance(scheme, type):
            raise ConfigError(f"{wanted}; {scheme.__name__} is a class, make an object of it")
        for method in ("counts", "locate"):
            if not callable(getattr(scheme, method, None)):
                raise ConfigError(f"{wanted}; {scheme!r} has no {method}")
        if len(scheme.counts(0)) != len(self.inputs):
            raise ConfigError(
                f"the scheme is for {len(scheme.counts(0))} sources, but there are "
                f"{len(self.inputs)} datasets"
            )
        if self.options:
            raise ConfigError(
                f"{sorted(self.options)} cannot be set for a scheme that is an object; set them "
                "where it is made"
            )
        drops_out = self.stop == "all_exhausted" or any(self.max_epochs)
        if numbers_only(self.weights) is None or (drops_out and self.stop != "first_exhausted"):
            raise ConfigError(
                "schedules, all_exhausted and max_epochs need to make schemes of their own; give "
                "the scheme by name"
            )

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return super()._stream(lane, state, reading, endless)

        def open_epoch(at: State | None) -> Stream[T_co]:
            names = [repr(each) for each in range(len(self.inputs))]
            slots = SchemeSlots(self._scheme)
            return MultiplexedStream(self.inputs, names, at, reading, slots=slots, end=self._end)

        if not endless:
            return open_epoch(state)
        return EndlessStream(open_epoch, state, lane, type(self).__name__)

    @cached_property
    def _end(self) -> End:
        """How often each dataset may be passed through; those of weight 0 are not read at all."""
        default = None if self.stop == "restart" else 1
        passes = [default if most is None else most for most in self.max_epochs]
        drawn = [ever_positive(weight) for weight in self.weights]
        rule = "first" if self.stop == "first_exhausted" else "leave_out"
        return End(rule, tuple(p if d else 0 for p, d in zip(passes, drawn, strict=True)))


def _check_same_names(datasets: list[str] | None, sources: tuple[str, ...] | None) -> None:
    """A scheme numbers its sources: by name, these are the datasets in their order."""
    if datasets is not None and sources is not None and tuple(datasets) != sources:
        raise WeightError(
            f"the scheme is over the sources {', '.join(sources)}, and the datasets are "
            f"{', '.join(datasets)}; give both the same names in the same order"
        )


def _flattened(parts: Sequence[Part], scheme: str, options: dict[str, Any]) -> list[Part]:
    """Endless blends among the parts, of the same scheme, opened up."""
    flat: list[Part] = []
    for part in parts:
        inner = part.dataset
        if (
            type(inner) is BlendDataset
            and inner.endless
            and not inner.changes
            and _opens_up(inner, scheme, options)
        ):
            named = list(zip(inner.inputs, inner.names, strict=True))
            flat.extend(opened_up(part, inner.weights, named))
        else:
            flat.append(part)
    return flat


def _opens_up(inner: BlendDataset[Any], scheme: str, options: dict[str, Any]) -> bool:
    """Whether opening up `inner` keeps what it means; where all sources are alike it does not."""
    return (
        inner.endless
        and not inner.changes
        and scheme not in WEIGHTLESS
        and isinstance(inner.scheme, str)
        and (inner.scheme, inner.options) == (scheme, options)
    )
