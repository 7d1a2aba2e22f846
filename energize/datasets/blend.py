"""Weighted mixes of datasets, streams among them."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import FloatArray, Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.call import Call
from energize.core.checks import check_names, checked_choice, raised_as
from energize.core.costs import ColumnCost, Cost, ItemCost, named
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest, label_of
from energize.core.failures import Failed
from energize.core.lanes import Lane, WorkerConfig
from energize.core.loss_weights import checked_factor, weighed
from energize.core.node import INFINITE, NodeTraits
from energize.core.padded import with_marks
from energize.core.rng import derive, hash_positions
from energize.core.stream import (
    ContentStream,
    LaneReader,
    Opening,
    State,
    Stream,
    counter_field,
    numbers_field,
    parts_before,
    shifted,
    state_field,
)
from energize.core.trace import MAX_ATTEMPTS, Request, Routes, refs_of
from energize.data.selection import input_labels
from energize.data.source import Source
from energize.datasets.transform import counted_alike, gives_batches, without_weights
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    SkipSample,
    StateError,
    SubstitutionError,
    WeightError,
)
from energize.order.cost import (
    CostLine,
    CostScheme,
    Cycle,
    Line,
    OffsetLine,
    cost_scheme,
)
from energize.order.scheme import Scheme
from energize.order.stopping import slot_limits, stopped_scheme
from energize.order.timeline import (
    WEIGHTLESS,
    MixingScheme,
    WeightedScheme,
    make_scheme,
    option_names,
)
from energize.order.weights import (
    Compound,
    Era,
    Weight,
    WeightScheduler,
    as_fraction,
    asked,
    checked_temperature,
    ever_positive,
    given_weight,
    lean,
    limited,
    names_apart,
    shares_at,
    tempered,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PairOf = tuple[Dataset[T_co], Weight]

PerDataset: TypeAlias = Any
"""A value for all datasets, one each in a list, or one each by name."""

_log = logging.getLogger("energize")


class BlendDataset(IndexedDataset[T_co]):
    """Items of several datasets in the proportion of their weights.

    Given as (dataset, weight) pairs, as one iterable of pairs, or as `{name: dataset}`
    with `weights` by name: a dict or a `WeightScheduler`. A weight is a number or a
    `Schedule`; weights need not sum to 1. Over datasets of batches, each item is a
    whole batch of one of them.

    `scheme` decides which dataset each slot belongs to: the name of one, with its
    options as further keywords (`block_size=`), or any object with `counts` and
    `locate` over as many sources as there are datasets. The default is `block` where a
    `block_size` is given, else `even`: it keeps the shares in every prefix, in 20 items
    as in 20 million, and draws the order as far as that allows. So whole batches of few
    steps have the asked shares, and no rank of many meets a rhythm that gives it
    batches of one dataset only.

    `stop` decides what happens when a dataset is exhausted. `restart`: it starts again,
    in a new order when it is shuffled, and the blend never ends. `first_exhausted`: the
    blend ends before the first item that an exhausted dataset would have to give.
    `all_exhausted`: the others take over its slots, by weight, until all are exhausted,
    each item read once; a dataset is never drawn where its weight is 0, so the blend
    ends where no dataset with a weight is left. A stream that gives no item in a whole
    pass is an error in all of them. `max_epochs` (for all, or one each) is how many
    epochs of a dataset count: without limit under `restart`, else 1; with it a blend
    ends under `restart` too, when all have reached it. In the epochs of a blend that
    ends, slots and schedules begin anew, while every dataset goes on where the last
    epoch left it. With a stream of unknown length among its datasets, a blend that ends
    is read as a whole in every lane: where it ends, one lane alone could not know.

    `unit` is what shares count: "samples", or what these cost. A column of the sources,
    such as "tokens", or a function of columns (`lambda width, height: width * height /
    196`) is known from the index: the blend stays indexed, and at every slot each
    dataset has its share of all costs within a few costliest items (`CostScheme`). What
    is known only of encoded samples or packs is an `ItemCost`, of a field or a function
    of the item: the blend is then a stream, each lane of which takes its next item from
    the dataset that is owed most (`OwedSlots`). In both the unit decides the order, so
    no `scheme` is given; a blend by a column never ends.

    `target_weights`, one for each dataset in a list or by name, say what datasets weigh
    in the loss, where weights say how often they are drawn: items get the weight target
    share / drawn share, at most `max_correction`, see `WeighedByTargets`. The order is
    the same without.

    `temperature` t makes each weight weight ** t: 1 keeps the weights, 0 makes them
    equal. `min_share` and `max_share` (for all, or one each) then bound the shares of
    the datasets with a weight.

    Endless blends nest: with the same scheme, the parts of an inner blend are weighed
    by the product of their shares, slot by slot when they are schedules; temperature
    and limits are those of each level. Equal datasets are merged into one with the
    summed weight, which is logged; the same folder with other settings gets an order of
    its own.

    Raises `WeightError` for weights that are missing, negative, not finite or all zero;
    `EmptyDatasetError` for a dataset with a weight and no items; `ColumnError` for a
    column that is not indexed and for costs that are not above 0; `ConfigError` for the
    rest.

    >>> from energize import ListSource
    >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
    >>> blend.shares()
    [0.75, 0.25]
    >>> blend.at(range(1000)).count("a")
    750
    >>> sorted(
    ...     BlendDataset(
    ...         (ListSource("ab"), 3), (ListSource("c"), 1), stop="all_exhausted"
    ...     )
    ... )
    ['a', 'b', 'c']
    """

    order_name = "BlendDataset"

    weights: tuple[Weight, ...]
    scheme: str | Scheme
    options: dict[str, Any]
    stop: str
    max_epochs: tuple[int | None, ...]
    given_names: tuple[str | None, ...]
    changes: tuple[tuple[int, tuple[Weight, ...]], ...]
    unit: Unit | None
    targets: tuple[Weight, ...] | None
    max_correction: float | None

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
        unit: GivenUnit | None = None,
        target_weights: Sequence[Weight] | Mapping[str, Weight] | None = None,
        max_correction: float | None = None,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        with raised_as(type(self).__name__):
            others = {
                "scheme": scheme,
                "stop": stop,
                "max_epochs": max_epochs,
                **options,
            }
            counted = None if unit is None else checked_unit(unit, others)
            if counted is not None:
                scheme = COSTS
            elif scheme is None or isinstance(scheme, str):
                check_names(options, option_names(scheme or "block"), BlendDataset)
                if scheme is None:
                    scheme = "block" if "block_size" in options else "even"
            entries, names = checked_entries(pairs, weights, max_epochs, target_weights)
            slot_limits(
                [1] * len(entries), stop, [entry.max_epochs for entry in entries]
            )
            entries = limited_entries(entries, names, temperature, min_share, max_share)
            if isinstance(scheme, str):
                if stop == "restart" and max_epochs is None:
                    entries = _flattened(entries, scheme, options, counted)
                entries = merged(entries, type(self).__name__)
            self.freeze(
                told_apart(counted_alike(entry.dataset for entry in entries)),
                worker_config,
                weights=tuple(entry.weight for entry in entries),
                scheme=scheme,
                options=dict(options),
                stop=stop,
                max_epochs=tuple(entry.max_epochs for entry in entries),
                given_names=tuple(entry.name for entry in entries),
                changes=(),
                unit=counted,
                targets=_targets(entries, max_correction),
                max_correction=max_correction,
            )
            self._check()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each of `inputs`: as it was given, else by the sources that it
        reads, see `source_labels`.
        """
        pairs = zip(self.given_names, input_labels(self), strict=True)
        return tuple(numbered(given or ", ".join(labels) for given, labels in pairs))

    @cached_property
    def unnamed(self) -> tuple[str, ...]:
        """The `names` that there would be if no entry of a metadataset had one."""
        labels = [[s.unnamed_label for s in each.sources] for each in self.inputs]
        pairs = zip(labels, self.names, strict=True)
        return tuple(
            name if None in each else ", ".join(map(str, each)) for each, name in pairs
        )

    def by_name(self, values: Sequence[T]) -> dict[str, T]:
        """Shares, or what was `taken`, by the `names` of the datasets: for a log.

        >>> from energize import ListSource
        >>> web, code = ListSource("a", name="web"), ListSource("b", name="code")
        >>> blend = BlendDataset((web, 3), (code, 1))
        >>> blend.by_name(blend.shares()), blend.by_name(blend.taken(8))
        ({'web': 0.75, 'code': 0.25}, {'web': 6, 'code': 2})
        """
        return dict(zip(self.names, values, strict=True))

    @property
    def _endless(self) -> bool:
        """Whether it never ends, whatever it reads from."""
        return self.stop == "restart" and not any(self.max_epochs)

    @cached_property
    def indexed(self) -> bool:
        return not isinstance(self.unit, ItemCost) and super().indexed

    @cached_property
    def has_loss_weights(self) -> bool:
        return self.targets is not None or super().has_loss_weights

    @cached_property
    def sized(self) -> bool:
        if self._endless:
            return True
        return super().sized and not isinstance(self.unit, ItemCost)

    @cached_property
    def size(self) -> int:
        return self._mix[1]

    @cached_property
    def traits(self) -> NodeTraits:
        weights = enumerate(self.weights)
        unread = [number for number, weight in weights if not ever_positive(weight)]
        return NodeTraits(
            makes=self.targets is not None,
            # Lanes of a blend of unknown length find its end by reading all of it.
            divisible=self.sized,
            unread_inputs=tuple(unread),
            neutral=("given_names", "targets", "max_correction"),
        )

    def route(self, positions: Int64Array) -> Routes:
        if isinstance(self.unit, ItemCost):
            raise tree.not_indexed(self, "positions that are known before it is read")
        child, nth = self._mix[0].locate(positions)
        return Routes(nth, child)

    def taken(self, n: int) -> list[int] | None:
        if isinstance(self.unit, ItemCost):
            return None
        return cast("list[int]", self._mix[0].counts(n).tolist())

    @cached_property
    def _mix(self) -> tuple[Scheme, int]:
        """Which dataset each slot belongs to, and the size of an epoch."""
        if self._endless:
            return self._scheme, INFINITE
        sizes = [each.size for each in self.inputs]
        limits = slot_limits(sizes, self.stop, self.max_epochs)
        return stopped_scheme(self._scheme, limits, self.stop)

    @cached_property
    def _scheme(self) -> Scheme:
        if not isinstance(self.scheme, str):
            return self.scheme
        scheme: WeightedScheme
        if self._measured is not None:
            scheme = cost_scheme(self.weights, self._measured.lines())
        else:
            name = (
                "exact" if self.unit is not None else self.scheme
            )  # for its shares only
            scheme = make_scheme(name, self.weights, key=self.key, **self.options)
        for slot, weights in self.changes:
            scheme = scheme.with_weights_from(slot, weights)
        return scheme

    @cached_property
    def _measured(self) -> MeasuredInputs | None:
        return (
            MeasuredInputs(self.unit, self.inputs)
            if isinstance(self.unit, ColumnCost)
            else None
        )

    def settings(self) -> dict[str, Any]:
        """Return the parameters as JSON, and digests of what samples cost, as measuring
        them anew changes the order.
        """
        told = super().settings()
        if self.unit is None:
            del told["unit"]
        return (
            told
            if self._measured is None
            else told | {"costs": self._measured.digests()}
        )

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights may be others from slots on that come after the first `n` items."""
        scheme = self._scheme
        if not self._endless or not isinstance(scheme, WeightedScheme):
            return saved, now
        try:
            before = scheme.as_described(saved["weights"], saved["changes"])
            if before.first_difference(scheme, n) is not None:
                return saved, now
        except (
            KeyError,
            TypeError,
            ValueError,
        ):  # it is damaged, and told to be different
            return saved, now
        return {**saved, "weights": now["weights"], "changes": now["changes"]}, now

    def _check(self) -> None:
        """Whatever is wrong shows here, not at the first item."""
        if not isinstance(self.scheme, str):
            self._check_scheme_object(self.scheme)
        self._check_not_empty()
        if self.sized:
            _ = self._mix
        if self.targets is not None:
            self._check_targets()

    def _check_scheme_object(self, scheme: Any) -> None:
        methods = (getattr(scheme, name, None) for name in ("counts", "locate"))
        if isinstance(scheme, type) or not all(map(callable, methods)):
            raise ConfigError(
                "a scheme is a name or an object with counts and locate; got "
                f"{scheme!r}"
            )
        sources = len(scheme.counts(0))
        names = getattr(scheme, "names", None)
        if sources != len(self.weights):
            raise ConfigError(
                f"the scheme is for {sources} sources, but there are "
                f"{len(self.weights)} datasets"
            )
        # A scheme numbers its sources: by name, these are the datasets in their order.
        if names and all(self.given_names) and names != self.given_names:
            raise WeightError(
                f"the scheme is over the sources {', '.join(names)}, and the datasets "
                "are "
                f"{', '.join(map(str, self.given_names))}; give both the same names in "
                "one order"
            )
        drops_out = self.stop == "all_exhausted" or any(self.max_epochs)
        if numbers_only(self.weights) is None or (
            drops_out and self.stop != "first_exhausted"
        ):
            raise ConfigError(
                "schedules, all_exhausted and max_epochs need to make schemes of their "
                "own; give "
                "the scheme by name"
            )
        if self.options:
            raise ConfigError(
                f"{sorted(self.options)} cannot be set for a scheme that is an object; "
                "set "
                "them where it is made"
            )

    def _check_not_empty(self) -> None:
        filled = [not each.sized or each.size > 0 for each in self.inputs]
        for number, (each, weight) in enumerate(
            zip(self.inputs, self.weights, strict=True)
        ):
            if (
                filled[number]
                or not ever_positive(weight)
                or self.stop == "all_exhausted"
            ):
                continue
            read = ", ".join(repr(source.name) for source in each.sources)
            raise EmptyDatasetError(
                f"dataset {number} has weight {weight} and no items (it reads {read}); "
                "remove it, "
                "or give it weight 0"
            )
        if not any(filled):
            raise EmptyDatasetError("none of the datasets has items")

    def spent(self, n: int) -> list[float]:
        """Return what the first `n` items cost that each of `inputs` gives, in the
        unit.

        Raises `NotIndexedError` where that is known only when they have been read.

        >>> from energize import ListSource
        >>> short = ListSource(["a", "b"], columns={"tokens": [10, 10]})
        >>> long = ListSource(["c", "d"], columns={"tokens": [40, 40]})
        >>> blend = BlendDataset((short, 1), (long, 1), unit="tokens")
        >>> blend.taken(1000), blend.spent(1000)
        ([800, 200], [8000.0, 8000.0])
        """
        scheme = self._scheme
        if isinstance(scheme, CostScheme):
            return scheme.costs(n)
        taken = self.taken(n)
        if taken is None:
            raise tree.not_indexed(self, "costs that are known before it is read")
        return [float(count) for count in taken]

    def shares(self, slot: int = 0) -> list[float]:
        """Return the asked share of each of `inputs` at a slot, in the unit: its weight
        divided by the sum.
        """
        if isinstance(self._scheme, WeightedScheme):
            return self._scheme.shares(slot)
        return cast("list[float]", shares_at(self.weights, [slot])[0].tolist())

    def _asked(self, items: int | None) -> FloatArray | None:
        """Return how many of the first `items` the weights ask for of each of `inputs`:
        float64, sums to `items`, or to what they cost where weights of costs changed;
        for None their shares, or None where these change.

        Of a blend that ends, slots and schedules begin anew in each epoch. What stop
        rules do to the shares is not looked at: it is a difference between asked and
        delivered.
        """
        named = isinstance(self.scheme, str)
        eras = cast("Any", self._scheme).eras if named else [Era(0, self.weights)]
        if self.unit is not None:
            return self._asked_in_cost(eras, items)
        if items is None:
            return _constant(eras[0]) if not self.changes else None
        if not self.sized or self.size == INFINITE:
            return asked(eras, items)
        epochs, rest = divmod(items, max(self.size, 1))
        found = asked(eras, rest)
        return found + epochs * asked(eras, self.size) if epochs else found

    def _asked_in_cost(
        self, eras: Sequence[Era], items: int | None
    ) -> FloatArray | None:
        """Return the same of what items cost. A slot says nothing of its cost, so while
        weights change gradually nobody asks for anything that could be told; and after
        changes, for parts of what the slots since then cost, if that is known unread.
        """
        shares = [_constant(era) for era in eras]
        if any(each is None for each in shares):
            return None
        if len(eras) == 1:
            return shares[0] if items is None else cast("FloatArray", shares[0]) * items
        if items is None or not (self.indexed and self.sized):
            return None
        ends = [*(era.start for era in eras[1:]), items]
        costs = np.diff([sum(self.spent(min(end, items))) for end in ends], prepend=0.0)
        return np.asarray(costs @ np.array(shares, dtype=np.float64))

    def with_weights_from(
        self,
        slot: int,
        weights: Sequence[Weight] | Mapping[str, Weight] | WeightScheduler,
    ) -> Self:
        """Return the same blend with other weights from a slot on: all items before it
        stay as they are.

        Weights are those of `inputs` in their order, or by their `names`; steps of
        schedules count from the start of the blend. A state that was saved before the
        slot goes on in the changed blend. In the epochs of a blend that ends, weights
        change at the same slot of each.

        Raises `ConfigError` for a slot that an earlier change lies after, and for a
        blend whose `scheme` is an object; `WeightError` for weights.

        >>> from energize import BlendDataset, ListSource
        >>> blend = BlendDataset(
        ...     {"a": ListSource("a"), "b": ListSource("b")}, weights={"a": 1, "b": 1}
        ... )
        >>> changed = blend.with_weights_from(100, {"a": 9, "b": 1})
        >>> changed.at(range(100)) == blend.at(range(100)), changed.taken(200)
        (True, [140, 60])
        """
        if not isinstance(self._scheme, WeightedScheme):
            raise ConfigError(
                "weights can change from a slot on where the scheme is given by name; "
                "make a "
                "scheme with other weights"
            )
        with raised_as(type(self).__name__):
            if isinstance(weights, Mapping | WeightScheduler):
                weights = _by_name(weights, self.names)
            changed = self._scheme.with_weights_from(slot, weights)
        other = self.replace(changes=changed.changes, _scheme=changed)
        other._check()
        return other

    def corrections(self, slot: int = 0) -> list[float]:
        """By how much items of each of `inputs` count at a slot; 1 without target
        weights.

        >>> from energize import BlendDataset, ListSource
        >>> web, code = ListSource(["a"], name="web"), ListSource(["b"], name="code")
        >>> BlendDataset((web, 3), (code, 1), target_weights=[1, 1]).corrections()
        [0.6666666666666666, 2.0]
        """
        if self.targets is None:
            return [1.0] * len(self.inputs)
        most = np.inf if self.max_correction is None else self.max_correction
        asked = shares_at(self.targets, [slot])[0].tolist()
        factors = []
        for target, share in zip(asked, self.shares(slot), strict=True):
            factors.append(float(min(target / share, most)) if share else 1.0)
        return factors

    def _check_targets(self) -> None:
        """Raise `ConfigError` where the shares at a slot are not known; log what
        targets do: with them, the effective sample size is what part of the samples.
        """
        ends = self.stop == "all_exhausted" or any(self.max_epochs) or not self.sized
        if ends or isinstance(self.unit, ItemCost):
            raise ConfigError(
                "target_weights make up for the shares that slots are given by, and "
                "these are not "
                "known before where they change when a dataset is exhausted "
                "(stop='all_exhausted', "
                "max_epochs, ends of streams), nor with a unit that is known of items "
                "only; give "
                "sample_weight to the datasets"
            )
        factors = np.array(self.corrections())
        drawn = np.array(self.shares())
        squares = float(drawn @ factors**2)
        shown = [f"{each:.4g}" for each in factors[:8]] + ["..."] * (len(factors) > 8)
        size = 100 * float(drawn @ factors) ** 2 / squares if squares else 0.0
        text = (
            "%s: items count by target weights, by the factors %s; the effective "
            "sample size is "
        )
        text += "%.1f%% of the samples"
        _log.info(text, type(self).__name__, ", ".join(shown), size)

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        """With target weights, items count by the factor target share / drawn share at
        their slot, at most `max_correction`: the weights of importance sampling (Kahn
        and Marshall, 1953), cut off as by Ionides (Truncated importance sampling,
        2008).
        """
        positions = request.positions
        slots = positions if self.size == INFINITE else positions % self.size
        child, _ = self._mix[0].locate(positions)
        made = []
        for item, slot, number in zip(
            items, slots.tolist(), child.tolist(), strict=True
        ):
            factors = self._fixed or self.corrections(slot)
            failed = isinstance(item, Failed)
            batched = self._of_batches
            made.append(
                item if failed else weighed(item, factors[number], batched=batched)
            )
        return made

    @cached_property
    def _of_batches(self) -> bool:
        return all(gives_batches(each) for each in self.inputs)

    @cached_property
    def _fixed(self) -> list[float] | None:
        """The factors, where they are the same at all slots."""
        moving = (
            numbers_only(self.weights) is None
            or numbers_only(self.targets or ()) is None
        )
        return None if moving or self.changes else self.corrections()

    def open_stream(self, opening: Opening) -> Stream[T_co]:
        if self.targets is None:
            return super().open_stream(opening)
        return ContentStream(self, super().open_stream, opening, draws=False)

    def open_pass(self, opening: Opening) -> Stream[T_co]:
        if self.sized and not isinstance(self.unit, ItemCost):
            return super().open_pass(opening)
        default = None if self.stop == "restart" else 1
        rule = "first" if self.stop == "first_exhausted" else "leave_out"
        weights = zip(
            self.weights, *(changed for _, changed in self.changes), strict=True
        )
        passes = []
        for most, over_time in zip(self.max_epochs, weights, strict=True):
            # Those of weight 0 are not read at all.
            drawn = any(map(ever_positive, over_time))
            passes.append((default if most is None else most) if drawn else 0)
        unit = cast("ItemCost | None", self.unit)  # by columns it would be sized
        end = End(rule, tuple(passes))
        return MultiplexedStream(
            self, self._scheme, unit, end, opening, may_be_empty=False
        )


def _targets(
    entries: Sequence[Entry], max_correction: float | None
) -> tuple[Weight, ...] | None:
    """Return what entries weigh in the loss; None where all count as they are drawn."""
    if (
        max_correction is not None
        and checked_factor(max_correction, "max_correction") < 1
    ):
        raise WeightError(f"max_correction is a factor from 1 up; got {max_correction}")
    if any(entry.target is not None for entry in entries):
        return tuple(entry.loss_weight for entry in entries)
    if max_correction is not None:
        raise ConfigError(
            "max_correction limits what target_weights do, and there are none"
        )
    return None


def _constant(era: Era) -> FloatArray | None:
    """Return the shares of an era; None where they change."""
    return None if era.points else cast("FloatArray", shares_at(era.weights, [0])[0])


# What a blend is given.


class Entry(NamedTuple):
    """A dataset of a blend, its weight, how many epochs of it are read at most, what it
    was called, and what it weighs in the loss, if that is something else.
    """

    dataset: Dataset[Any]
    weight: Weight
    max_epochs: int | None = None
    name: str | None = None
    target: Weight | None = None

    @property
    def loss_weight(self) -> Weight:
        """What it weighs in the loss."""
        return self.weight if self.target is None else self.target


def checked_entries(
    given: Sequence[Any],
    weights: object,
    max_epochs: PerDataset,
    target_weights: PerDataset,
) -> tuple[list[Entry], list[str] | None]:
    """Return the entries, and their names if they have any.

    They are given as pairs (dataset, weight), as one iterable of pairs, or as datasets
    by name with `weights` by name.
    """
    names = None
    first = given[0] if len(given) == 1 else None
    if isinstance(first, Mapping):
        names = [str(name) for name in first]
        given = list(zip(first.values(), _by_name(weights, names), strict=True))
    elif weights is not None:
        raise WeightError(
            "weights by name need datasets by name, {name: dataset}; or give pairs "
            "(dataset, "
            "weight)"
        )
    elif isinstance(first, Iterable) and not isinstance(first, Dataset):
        pair = isinstance(first, Sequence) and first and isinstance(first[0], Dataset)
        given = given if pair else list(first)
    if not given:
        raise ConfigError("there are no datasets to mix")
    epochs = one_per_dataset(max_epochs, names, len(given), "max_epochs")
    targets = one_per_dataset(target_weights, names, len(given), "target_weights")
    entries = []
    for number, (row, most, target) in enumerate(
        zip(given, epochs, targets, strict=True)
    ):
        where = f"dataset {number if names is None else repr(names[number])}"
        name = None if names is None else names[number]
        pair, name = (row[:2], row.name) if isinstance(row, Entry) else (row, name)
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and isinstance(pair[0], Dataset)
        ):
            raise WeightError(
                f"{where} is {str(pair)[:80]!r}; give pairs (dataset, weight), in "
                "which a list is "
                "ListSource(list), and a prepared folder get_train_dataset(path)"
            )
        weight = given_weight(pair[1], where)
        loss = None
        if target_weights is not None:
            loss = given_weight(target, f"the target weight of {where}")
            if ever_positive(loss) and not ever_positive(weight):
                raise WeightError(
                    f"{where} has a target weight and the weight 0: it is never drawn, "
                    "and no "
                    "weight in the loss makes up for that; give it a weight above 0"
                )
        entries.append(Entry(pair[0], weight, most, name, loss))
    if not any(ever_positive(entry.weight) for entry in entries):
        raise WeightError(
            f"all {len(entries)} weights are 0, so nothing could ever be drawn"
        )
    if not any(ever_positive(entry.loss_weight) for entry in entries):
        raise WeightError(
            "all target weights are 0, so nothing would count in the loss"
        )
    return entries, names


def one_per_dataset(
    value: PerDataset, names: Sequence[str] | None, count: int, what: str
) -> list[Any]:
    """Return a value for each dataset: the same for all, those of a list, or those of a
    dict by name, with None for the names left out.
    """
    if isinstance(value, Mapping):
        for name in value:
            checked_choice(name, f"{what} of dataset", names or ())
        return [value.get(name) for name in names or ()]
    if isinstance(value, list | tuple | np.ndarray):
        if len(value) != count:
            raise ConfigError(
                f"{what}: {len(value)} values are given for {count} datasets"
            )
        return list(value)
    return [value] * count


def _by_name(weights: object, names: Sequence[str]) -> list[Any]:
    """Return the weights of datasets by their names."""
    by_name = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    if not isinstance(by_name, Mapping):
        raise WeightError(
            "datasets given by name need weights={name: weight}, or a WeightScheduler; "
            "got "
            f"{weights!r}"
        )
    if difference := names_apart(names, by_name):
        raise WeightError(f"the weights do not name the datasets: {difference}")
    return [by_name[name] for name in names]


def limited_entries(
    entries: Sequence[Entry],
    names: list[str] | None,
    temperature: object,
    min_share: PerDataset,
    max_share: PerDataset,
) -> list[Entry]:
    """Return the entries with weights after temperature, then floors and caps."""
    exponent = checked_temperature(temperature)
    weights: Sequence[Weight] = [entry.weight for entry in entries]
    numbers = numbers_only(weights)
    bounded = min_share is not None or max_share is not None
    if numbers is None and bounded:
        raise ConfigError(
            "min_share and max_share need weights that are numbers; keep a schedule "
            "within limits "
            "at its points"
        )
    if numbers is None and exponent != 1:
        given = tuple(weights)
        weights = [
            Compound("share", given, number, exponent) for number in range(len(given))
        ]
    elif numbers is not None:
        weights = tempered(numbers, exponent) if exponent != 1 else weights
        limits = [
            one_per_dataset(value, names, len(entries), name)
            if isinstance(value, Mapping | np.ndarray)
            else value
            for name, value in (("min_share", min_share), ("max_share", max_share))
        ]
        weights = (
            limited(cast("Sequence[float]", weights), *limits) if bounded else weights
        )
    rows = zip(entries, weights, strict=True)
    return [entry._replace(weight=weight) for entry, weight in rows]


def _flattened(
    entries: Sequence[Entry], scheme: str, options: dict[str, Any], unit: Unit | None
) -> list[Entry]:
    """Endless blends among the parts, of the same scheme and unit, opened up: that
    keeps what they mean, but where all sources are alike. Weights multiply, and so do
    target weights, which are weights where none are given.
    """
    flat: list[Entry] = []
    for entry in entries:
        inner, weighed = without_weights(entry.dataset)
        if not (
            type(inner) is BlendDataset
            and inner._endless
            and not inner.changes
            and inner.max_correction is None
            and scheme not in WEIGHTLESS
            and isinstance(inner.scheme, str)
            and (inner.scheme, inner.options, inner.unit) == (scheme, options, unit)
        ):
            flat.append(entry)
            continue
        for number, (each, given) in enumerate(
            zip(inner.inputs, inner.given_names, strict=True)
        ):
            target = None
            if entry.target is not None or inner.targets is not None:
                target = _within(
                    entry.loss_weight, inner.targets or inner.weights, number
                )
            full = (
                given if entry.name is None else f"{entry.name}/{inner.names[number]}"
            )
            weight = _within(entry.weight, inner.weights, number)
            flat.append(Entry(weighed(each), weight, None, full, target))
    return flat


def _within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """Return the weight of the entry that one of several `weights` makes of a
    weight.
    """
    numbers = numbers_only(weights)
    if numbers is None:
        return Compound("product", (weight, Compound("share", tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Compound("product", (weight, share))


def merged(entries: Sequence[Entry], owner: str) -> list[Entry]:
    """Return equal datasets as one, with the sum of their weights."""
    kept: dict[tuple[Dataset[Any], int | None], Entry] = {}
    for entry in entries:
        same = entry.dataset, entry.max_epochs
        other = kept.setdefault(same, entry)
        if other is not entry:
            total = _sum(other.weight, entry.weight)
            target = None
            names = ", ".join(source.name for source in entry.dataset.sources)
            _log.info(
                "%s: %s is listed twice; it is read as one, weight %s",
                owner,
                names,
                total,
            )
            if other.target is not None or entry.target is not None:
                target = _sum(other.loss_weight, entry.loss_weight)
            kept[same] = other._replace(weight=total, target=target)
    return list(kept.values())


def _sum(one: Weight, other: Weight) -> Weight:
    if isinstance(one, float | Fraction) and isinstance(other, float | Fraction):
        return lean(as_fraction(one) + as_fraction(other))
    return Compound("sum", (one, other))


def numbered(names: Iterable[str]) -> list[str]:
    """Return names of which the second of one name has a number.

    >>> numbered(["web", "web", "code"])
    ['web', 'web (2)', 'code']
    """
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return found


def told_apart(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Return datasets that share a source, wherever below them it is, each in its own
    order.
    """
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(tree.distinguished(dataset, before) if before else dataset)
    return apart


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """Return the weights in their exact values, if none of them changes."""
    numbers = [
        as_fraction(each) for each in weights if isinstance(each, float | Fraction)
    ]
    return numbers if len(numbers) == len(weights) else None


# Mixing streams whose lengths are not known: what to do when one is exhausted.


@dataclass(frozen=True, slots=True)
class End:
    """What happens when a source is exhausted, and what the next epoch begins with.

    `rule`: "leave_out": a source that has been passed through `passes` times (None: any
    number) has no more slots, and the mix ends when no source is left; "first": the mix
    ends instead; "all_seen": it ends when each source has been exhausted once, or one
    of them `passes` times. A source that stays starts its next pass.

    `slots_anew`: whether the next epoch begins with the first slot, in sources that go
    on where they are, or goes on with other slots, over the first items of the sources.
    """

    rule: str
    passes: tuple[int | None, ...]
    slots_anew: bool = True


class MultiplexedDataset(Dataset[T_co]):
    """Items of several datasets in the order of the scheme `slots`, streams among them.

    A dataset is known to be exhausted when it is asked for one more item; `end` says
    what happens then. With `unit`, shares are those of the scheme in what items cost.
    It is read as a whole in every lane.

    Raises `EmptyDatasetError` naming a dataset that is to start again and has no items.
    """

    order_name = "MultiplexedDataset"

    names: tuple[str, ...]
    slots: Scheme
    end: End
    unit: ItemCost | None = None

    def __init__(
        self,
        datasets: Sequence[Dataset[T_co]],
        names: Sequence[str],
        slots: Scheme,
        end: End,
        unit: ItemCost | None = None,
    ) -> None:
        costs: dict[str, Any] = {} if unit is None else {"unit": unit}
        self.freeze(
            counted_alike(datasets), names=tuple(names), slots=slots, end=end, **costs
        )

    traits = NodeTraits(divisible=False)
    indexed = sized = False  # whatever its inputs are

    def open_pass(self, opening: Opening) -> Stream[T_co]:
        return MultiplexedStream(
            self, self.slots, self.unit, self.end, opening, may_be_empty=True
        )


class MultiplexedStream(Stream[T]):
    """One epoch of a mix, by a scheme. `given` and `passes` count, for each source, its
    items and passes in it; a state after its end has those of the epoch as `ended`.
    `seen`: whether its pass has given an item.

    It is read in a single lane, or, where no source is left out and so it never ends,
    in any: each lane then has its own part of every source.
    """

    def __init__(
        self,
        mix: BlendDataset[T] | MultiplexedDataset[T],
        scheme: Scheme,
        unit: ItemCost | None,
        end: End,
        opening: Opening,
        *,
        may_be_empty: bool,
    ) -> None:
        # Alone a lane sees the ends of the sources; among others none do.
        self._opening = opening._replace(endless=opening.lane.count > 1)
        self._datasets = mix.inputs
        self._names = mix.names
        self._end = end
        self._may_be_empty = may_be_empty
        self._begin: Callable[..., SchemeSlots | OwedSlots] = partial(
            SchemeSlots, scheme
        )
        if unit is not None:
            owing = cast("WeightedScheme", scheme)
            self._begin = partial(OwedSlots, owing, unit, opening, key=mix.key)
        inputs = mix.inputs
        state = opening.state
        self.given = numbers_field(state, "given", len(inputs))
        self.passes = numbers_field(state, "passes", len(inputs))
        at = None if state is None else state_field(state, "slots", dict)
        self._slots = self._begin(at, self._left_out())
        openings = self._opening.each(len(inputs))
        self._inputs: list[LaneReader[Any]] = list(map(LaneReader, inputs, openings))
        self._seen = numbers_field(state, "seen", len(inputs))
        self._parts_before = parts_before(inputs)
        self._over = len(self._left_out()) == len(inputs)
        self._in_vain = 0

    def at(self, position: int, attempt: int = 0) -> T:
        while not self._over:
            source = self._slots.current()
            if source is None:
                self._over = True
                break
            reader = self._inputs[source]
            try:
                item: T = reader.read()
            except StopIteration:
                self._exhausted(source)
            else:
                self._seen[source] = 1
                if not self._kept(item, source):
                    continue
                self.given[source] += 1
                self.origin = shifted(reader.origin, self._parts_before[source])
                return item
        raise StopIteration

    def _kept(self, item: T, source: int) -> bool:
        """Return whether an item has the slot at hand, or is left out."""
        try:
            self._slots.advance(item, partial(self._where, source))
        except SkipSample as reason:
            self._in_vain += 1
            if self._in_vain >= MAX_ATTEMPTS:
                raise SubstitutionError(
                    f"{label_of(self._datasets[source])}: {self._in_vain} items in a "
                    "row were left "
                    f"out, the last one as {reason}"
                ) from None
            return False
        self._in_vain = 0
        return True

    def _where(self, source: int) -> str:
        """Return where the last item of a source comes from."""
        refs = refs_of(self._datasets[source], self._inputs[source].origin)
        if not len(refs):
            return f"an item of {self._names[source]}"
        return (
            self._datasets[source]
            .sources[int(refs.source[0])]
            .where(int(refs.index[0]))
        )

    def _exhausted(self, source: int) -> None:
        self.passes[source] += 1
        rule = self._end.rule
        most = self._end.passes[source]
        enough = most is not None and self.passes[source] >= most
        left_out = rule == "leave_out" and enough
        dataset = self._datasets[source]
        tolerated = left_out and (self._may_be_empty or dataset.sized)
        if not (self._seen[source] or tolerated):
            raise EmptyDatasetError(
                f"{self._names[source]!r} has no items: {label_of(dataset)} gave none "
                "in a whole "
                "pass. Remove it from the mix, or give it weight 0"
            )
        if rule == "first":
            self._over = enough
        if rule == "all_seen":
            self._over = enough or all(self.passes)
        self._slots.exhausted(left_out=left_out)
        self._over = self._over or len(self._left_out()) == len(self._datasets)
        self._seen[source] = 0

    def _left_out(self) -> frozenset[int]:
        if self._end.rule != "leave_out":
            return frozenset()
        pairs = enumerate(zip(self.passes, self._end.passes, strict=True))
        return frozenset(
            i for i, (passes, most) in pairs if most is not None and passes >= most
        )

    def state(self) -> State:
        inputs = self._inputs
        slots = self._slots
        given = self.given
        passes = self.passes
        seen = list(self._seen)
        ended: State = {}
        if self._over:
            ended = {"ended": {"given": list(given), "passes": list(passes)}}
            given = passes = [0] * len(given)
            begun = self._opening._replace(state=None)
            if self._end.slots_anew:
                never = frozenset(
                    i for i, most in enumerate(self._end.passes) if most == 0
                )
                slots = self._begin(None, never)
            else:
                rows = zip(inputs, seen, self._datasets, strict=True)
                inputs = [
                    LaneReader(of, begun) if begins else each
                    for each, begins, of in rows
                ]
                seen = [0] * len(seen)
        return {
            "slots": slots.state(),
            "given": list(given),
            "passes": list(passes),
            "inputs": [each.state() for each in inputs],
            "seen": seen,
            **ended,
        }


# Orders of sources that are followed slot after slot.

_AT_ONCE = 256
_STAYS = -1


class SchemeSlots:
    """The slots of a `scheme`, some of which are looked up ahead. From the slot on at
    which a source is left out (`gone`), its slots go to the others by weight; all slots
    before stay where they are. Of a scheme object that was not made by `make_scheme` no
    source can be left out.
    """

    def __init__(
        self, scheme: Scheme, state: State | None, left_out: frozenset[int]
    ) -> None:
        self._scheme = self._left = scheme
        self._position, sources = (
            counter_field(state, "position"),
            len(scheme.counts(0)),
        )
        self._gone = [_STAYS] * sources
        self._ahead: list[int] = []
        gone = [0 if each in left_out else _STAYS for each in range(sources)]
        if state is not None:
            gone = numbers_field(state, "left_out_at", sources, least=_STAYS)
        if max(gone) > self._position:
            raise StateError(
                f"the saved state's 'left_out_at' names slots to come: {gone[:20]}"
            )
        for slot, source in sorted((slot, source) for source, slot in enumerate(gone)):
            if slot != _STAYS:
                self._leave_out(slot, source)

    def _leave_out(self, slot: int, source: int) -> None:
        self._gone[source] = slot
        self._ahead = []
        if isinstance(self._left, MixingScheme) and _STAYS in self._gone:
            self._left = self._left.without(source, slot)

    def current(self) -> int | None:
        """Return the source of the slot at hand; None if no source with a weight is
        left.
        """
        if not self._ahead:
            end = self._position + _AT_ONCE
            if isinstance(self._left, MixingScheme):
                end = self._left.reach(end)
            slots = np.arange(self._position, end)
            self._ahead = self._left.locate(slots)[0].tolist()[::-1]
        return self._ahead[-1] if self._ahead else None

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        """Go on to the next slot; the one at hand has got `item`, and `where` says
        where that comes from. `SkipSample` leaves the item out, and the slot is still
        at hand.
        """
        self._ahead.pop()
        self._position += 1

    def exhausted(self, *, left_out: bool) -> None:
        """The source of the slot at hand had no item; if it is left out it is not asked
        again.
        """
        if left_out:
            self._leave_out(self._position, self._ahead[-1])
        elif getattr(self._scheme, "loses_draws", False):
            self.advance(None, str)

    def state(self) -> State:
        """Return what others go on from; of constant shape. When all sources are left
        out, the next epoch goes on with all.
        """
        gone = self._gone if _STAYS in self._gone else [_STAYS] * len(self._gone)
        return {"position": self._position, "left_out_at": list(gone)}


Unit: TypeAlias = ColumnCost | ItemCost
"""What items cost, known from the index or when they have been read."""

GivenUnit: TypeAlias = Cost | ColumnCost | ItemCost
"""The same as it may be given: a column's name, or a function of columns, is a
`ColumnCost`."""

SAMPLES = "samples"
"""The unit of a blend that has no other: each item counts 1."""

COSTS = "cost"
"""What the scheme of a blend in another unit is called."""

_LOOKED_UP = 2**20


def checked_unit(given: GivenUnit | None, others: Mapping[str, Any]) -> Unit | None:
    """Return the unit that was given; None for samples. Raise `ConfigError` for those
    of the `others` that contradict it: options of schemes, and ends, of which a blend
    by a column has none.
    """
    if given is None or given == SAMPLES:
        return None
    unit: Unit
    if isinstance(given, ColumnCost | ItemCost):
        unit = given
    elif isinstance(given, str) or (callable(given) and not isinstance(given, type)):
        unit = ColumnCost(given)
    else:
        raise ConfigError(
            "unit is 'samples', the name of a column of the sources, a function of "
            "columns, or an "
            f"ItemCost of items as they are read; got {str(given)[:80]!r}"
        )
    plain = {"stop": "restart", "max_epochs": None, "scheme": None}
    for name, value in others.items():
        if name in plain and value == plain[name]:
            continue
        if name not in {"stop", "max_epochs"}:
            raise ConfigError(
                f"{name} says whose slot comes when slots are counted, and "
                f"unit={_called(unit)} "
                "decides it by what items cost; leave either out"
            )
        if isinstance(unit, ColumnCost):
            raise ConfigError(
                f"{name}={value!r} ends a blend, and with unit={_called(unit)} none "
                "does, as each "
                "epoch would have another number of items; say how many steps to read, "
                "or give an "
                "ItemCost as the unit, with which a blend ends as it is read"
            )
    return unit


class MeasuredInputs:
    """The inputs of a blend by what their samples cost; every column is looked at once.

    Raises `NotIndexedError` for an input that is a stream, and what `ColumnCost`
    raises.
    """

    def __init__(self, unit: ColumnCost, inputs: Sequence[Dataset[Any]]) -> None:
        self._unit = unit
        for number, each in enumerate(inputs):
            if not each.indexed:
                raise NotIndexedError(
                    f"unit={_called(unit)} is what the index says of samples, and "
                    f"dataset {number} "
                    f"({type(each).__name__}) is read as a stream; give "
                    "unit=ItemCost(...)"
                )
        self._inputs = cast("Sequence[IndexedDataset[Any]]", inputs)
        self._found = {
            s.key: _measured(s, unit) for each in inputs for s in each.sources
        }

    def digests(self) -> list[str]:
        """For each input what its samples cost together, and a digest of what each
        costs.
        """
        found = [[self._found[s.key] for s in each.sources] for each in self._inputs]
        return [
            (
                f"{sum(cost for cost, _ in each):.15g} together, "
                f"{digest([d for _, d in each])[:12]}"
            )
            for each in found
        ]

    def lines(self) -> list[Line]:
        """Return what the items of each input cost in the order in which they are
        read.
        """
        return [self._line(each) for each in self._inputs]

    def _line(self, dataset: IndexedDataset[Any]) -> Line:
        later: Any = tree.unwrap(dataset, tree.CONTENT_ONLY)
        continued = isinstance(later, ContinuedDataset)
        whole = later.inputs[0] if continued else dataset
        key = derive(dataset.key, "cost")
        line = CostLine(
            partial(self._unit.of, whole),
            self._cycle(whole),
            key,
            among=len(self._inputs),
        )
        if not continued:
            return line
        return OffsetLine(line, later.since, later.read, afresh=later.afresh)

    def _cycle(self, dataset: IndexedDataset[Any]) -> Cycle | None:
        """After how many items, from the first one on, all samples have had their turn
        equally often, again and again, and what these cost; None where that is not
        known.
        """
        if isinstance(dataset, Source):
            return (
                Cycle(dataset.count, self._found[dataset.key][0])
                if dataset.count
                else None
            )
        below = [self._cycle(each) for each in dataset.children]
        if dataset.size == INFINITE:
            [first], taken = below if len(below) == 1 else [None], dataset.taken(1)
            if first is None or taken is None:
                return None
            together = math.lcm(first.items, taken[0])
            return Cycle(together // taken[0], together // first.items * first.cost)
        spans, covered = dataset.spans(dataset.size)
        cost = 0.0
        for child, start, stop, times in spans:
            cycle = below[child]
            if cycle is None or start % cycle.items or stop % cycle.items:
                return None
            cost += (stop - start) // cycle.items * cycle.cost * times
        return Cycle(dataset.size, cost) if covered == dataset.size else None


def _measured(source: Source[Any], unit: ColumnCost) -> tuple[float, str]:
    """Return what the samples of a source cost together, and a digest of what each
    costs.
    """
    total = 0.0
    seen = hashlib.blake2b(digest_size=16)
    for start in range(0, source.count, _LOOKED_UP):
        index = np.arange(start, min(start + _LOOKED_UP, source.count), dtype=np.int64)
        costs = np.ascontiguousarray(unit.of_samples(source, index))
        total += float(costs.sum())
        seen.update(costs.data)
    return total, seen.hexdigest()


def _called(unit: Unit) -> str:
    shown = repr(unit.cost) if isinstance(unit.cost, str) else "a function"
    return f"ItemCost({shown})" if isinstance(unit, ItemCost) else shown


# Shares in what items cost, where that is known when they have been read.

_STARTS = 2**20


class OwedSlots:
    """The next item comes from the source that is owed most; of several the first. It
    is asked and told the same as `SchemeSlots`.

    Sources are due their shares of what all items of the lane have cost, and owed what
    they are due and have not had; all that is owed sums to 0. With items of a cost up
    to c, no source ever has had c more than it was due: it was owed something or
    nothing when it was chosen. And none of n is ever owed more than c (1 + 1/2 + ... +
    1/(n - 1)): the k that are owed most are owed on average no more than before if one
    of them was chosen, and else c / k more than the k + 1 that were owed most before,
    as the one that was chosen was among these. Shares are those that `scheme` asks for
    at the item's place among those of all lanes.

    Lanes begin as if they stood at different places of one long mix, or their n-th
    items would all be of the same source: what each source would be owed there, in
    items of the mean cost, it is owed from the start (`offsets`).
    """

    def __init__(
        self,
        scheme: WeightedScheme,
        unit: ItemCost,
        opening: Opening,
        state: State | None,
        left_out: frozenset[int],
        *,
        key: int,
    ) -> None:
        self._scheme = scheme
        self._lane = opening.lane
        self._reading = opening.reading
        self._offsets = _offsets(scheme, opening.lane, key)
        self._call = Call(unit.of, 0)
        self._key = key
        sources = len(self._offsets)
        self._items = counter_field(state, "items")
        numbers = partial(numbers_field, state, count=sources, kind=float)
        self._owed = np.array(numbers("owed", least=-math.inf), dtype=np.float64)
        self._costs = np.array(numbers("costs"), dtype=np.float64)
        self._left = np.array([each not in left_out for each in range(sources)])
        self._shares = self._asked()
        self._current: int | None = None

    def current(self) -> int | None:
        if self._current is None and self._shares.any():
            mean = float(self._costs.sum()) / self._items if self._items else 1.0
            owed = np.where(
                self._shares > 0, self._owed + self._offsets * mean, -math.inf
            )
            self._current = int(owed.argmax())
        return self._current

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        source = cast("int", self._current)
        cost = self._cost(item, where)
        self._owed += self._shares * cost
        self._owed[source] -= cost
        self._costs[source] += cost
        self._items += 1
        self._current = None
        if self._scheme.varies:
            self._shares = self._asked()

    def _cost(self, item: Any, where: Callable[[], str]) -> float:
        """Return what an item costs; `SkipSample` for one that is left out."""
        reading = self._reading
        item, _ = with_marks(item)
        number = self._lane.index + self._items * self._lane.count
        word = partial(_word_of_cost, self._key, number)
        cost = self._call.one(
            item, word, number, reading, lambda _: named(item, where())
        )
        if isinstance(cost, Failed):
            reading.leave_out(cost, None, None)
            raise SkipSample(str(cost))
        return float(cost)

    def exhausted(self, *, left_out: bool) -> None:
        """The others are owed what a source was that is left out."""
        source = cast("int", self._current)
        self._current = None
        if left_out:
            self._left[source] = False
            self._shares = self._asked()
            self._owed += self._shares * self._owed[source]
            self._owed[source] = 0.0

    def state(self) -> State:
        return {
            "items": self._items,
            "owed": self._owed.tolist(),
            "costs": self._costs.tolist(),
        }

    def _asked(self) -> FloatArray:
        """Return the shares of those that are left, at the next item's place; 0 where
        none of them has a weight.
        """
        place = self._lane.index + self._items * self._lane.count
        asked = np.where(self._left, np.array(self._scheme.shares(place)), 0.0)
        return np.asarray(asked / max(asked.sum(), 1e-300))


def _word_of_cost(key: int, number: int) -> int:
    return derive("cost", key, number) % 2**64


def _offsets(scheme: WeightedScheme, lane: Lane, key: int) -> FloatArray:
    """Return what each source is owed in a lane from the start, in items; sums to 0."""
    shares = np.array(scheme.shares())
    if lane.count == 1:
        return np.zeros(len(shares))
    word = hash_positions(derive(key, "lane"), np.array([lane.index]))
    start = int(word[0] % np.uint64(_STARTS))
    counts = make_scheme("exact", shares.tolist()).counts(start)
    return np.asarray(shares * start - counts, dtype=np.float64)
