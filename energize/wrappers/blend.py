"""Weighted mixes of datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from energize.arrays import Int64Array
from energize.costs import ColumnCost
from energize.cursor import State
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError, EmptyDatasetError
from energize.order.arrangement import WEIGHTLESS, default_scheme, option_names
from energize.order.costs.scheme import CostScheme
from energize.order.ends import slot_limits, stopped_scheme
from energize.order.making import make_scheme
from energize.order.protocol import Scheme
from energize.order.schedule import WeightScheduler
from energize.order.varying import Weight, ever_positive
from energize.order.weighted import WeightedScheme
from energize.reading import Reading
from energize.streaming import EndlessStream, Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.asking import AskedByWeights
from energize.wrappers.blend_parts import (
    Part,
    check_same_names,
    check_scheme_object,
    checked_parts,
    levelled,
    merged,
    opened_up,
    told_apart,
)
from energize.wrappers.blend_weights import WeightsOverTime
from energize.wrappers.checks import check_names, raised_as
from energize.wrappers.importance import WeighedByTargets, targeted, targets_of
from energize.wrappers.item_cost import ItemCost
from energize.wrappers.multiplexed import End, MultiplexedStream, Slots
from energize.wrappers.owed import OwedSlots
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.sample_weight import without_weights
from energize.wrappers.slots import SchemeSlots
from energize.wrappers.units import (
    GivenUnit,
    MeasuredInputs,
    Unit,
    check_ends,
    checked_unit,
    scheme_in,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PairOf = tuple[Dataset[T_co], Weight]

_MANY = 16
"""Datasets from which on what a state tells of a blend is computed when it is made."""


class BlendDataset(WeighedByTargets[T_co], AskedByWeights, WeightsOverTime, RoutedDataset[T_co]):
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

    `unit` is what shares count: "samples", or what these cost. A column of the sources, such as
    "tokens", or a function of columns (`lambda width, height: width * height / 196`) is known from
    the index: the blend stays indexed, and at every slot each dataset has its share of all costs
    within about the costliest item (`CostScheme`). What is known only of encoded samples or packs
    is an `ItemCost`, of a field or a function of the item: the blend is then a stream, each lane of
    which takes its next item from the dataset that is owed most (`OwedSlots`). In both the unit
    decides the order, so no `scheme` is given; a blend by a column never ends.

    `target_weights`, one for each dataset in a list or by name, say what datasets weigh in the
    loss, where weights say how often they are drawn: items get the weight target share / drawn
    share, at most `max_correction`, see `WeighedByTargets`. The order is the same without.

    `temperature` t makes each weight weight ** t: 1 keeps the weights, 0 makes them equal.
    `min_share` and `max_share` (for all, or one each) then bound the shares of the datasets with a
    weight.

    Endless blends nest: with the same scheme, the parts of an inner blend are weighed by the
    product of their shares, slot by slot when they are schedules; temperature and limits are those
    of each level. Equal datasets are merged into one with the summed weight, which is logged; the
    same folder with other settings gets an order of its own.

    Raises `WeightError` for weights that are missing, negative, not finite or all zero;
    `EmptyDatasetError` for a dataset with a weight and no items; `ColumnError` for a column that is
    not indexed and for costs that are not above 0; `ConfigError` for the rest.

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
    unit: Unit | None = None

    changes_no_sample = ("given_names", "targets", "max_correction")

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
            counted = checked_unit(unit)
            if counted is not None:
                scheme = scheme_in(counted, scheme, options)
            elif scheme is None:
                check_names(options, option_names("block"), BlendDataset)
                scheme = default_scheme(options)
            elif isinstance(scheme, str):
                check_names(options, option_names(scheme), BlendDataset)
            parts, names = checked_parts(pairs, weights, max_epochs)
            check_same_names(names, getattr(scheme, "names", None))
            check_ends(counted, stop, max_epochs)
            slot_limits([1] * len(parts), stop, [part.max_epochs for part in parts])
            parts = levelled(parts, names, temperature, min_share, max_share)
            parts = targeted(parts, names, target_weights)
            if isinstance(scheme, str):
                if stop == "restart" and max_epochs is None:
                    parts = _flattened(parts, scheme, options, counted)
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
                **({} if counted is None else {"unit": counted}),
                **targets_of(parts, max_correction),
            )
            self._check()

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

    @property
    def endless(self) -> bool:
        """Whether it never ends, whatever it reads from."""
        return self.stop == "restart" and not any(self.max_epochs)

    @property
    def by_item_cost(self) -> bool:
        """Whether whose slot it is depends on what was read."""
        return isinstance(self.unit, ItemCost)

    @cached_property
    def indexed(self) -> bool:
        return not self.by_item_cost and super().indexed

    @cached_property
    def sized(self) -> bool:
        if self.by_item_cost:
            return self.endless
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
        if self.by_item_cost:
            raise self._not_indexed("positions that are known before it is read")
        return self._mix[0].locate(positions)

    def settings(self) -> dict[str, Any]:
        """The parameters as JSON, and digests of what samples cost, as measuring them anew changes
        the order.
        """
        known = {} if self._measured is None else {"costs": self._measured.digests()}
        return super().settings() | known

    def spent(self, n: int) -> list[float]:
        """What the first `n` items cost that each of `inputs` gives, in the unit.

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
            raise self._not_indexed("costs that are known before it is read")
        return [float(count) for count in taken]

    def taken(self, n: int) -> Sequence[int] | None:
        if self.by_item_cost:
            return None
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
        scheme: WeightedScheme
        if self._measured is not None:
            scheme = CostScheme(self.weights, self._measured.lines())
        else:
            name = "exact" if self.unit is not None else self.scheme  # for its shares only
            scheme = make_scheme(name, self.weights, key=self.key, **self.options)
        for slot, weights in self.changes:
            scheme = scheme.with_weights_from(slot, weights)
        return scheme

    @cached_property
    def _measured(self) -> MeasuredInputs | None:
        return MeasuredInputs(self.unit, self.inputs) if isinstance(self.unit, ColumnCost) else None

    def _check(self) -> None:
        """Whatever is wrong shows here, not at the first item."""
        if not isinstance(self.scheme, str):
            drops_out = self.stop == "all_exhausted" or any(self.max_epochs)
            drops_out = drops_out and self.stop != "first_exhausted"
            check_scheme_object(self.scheme, self.weights, drops_out=drops_out)
            if self.options:
                raise ConfigError(
                    f"{sorted(self.options)} cannot be set for a scheme that is an object; set "
                    "them where it is made"
                )
        self._check_not_empty()
        if self.sized:
            _ = self._mix
        self.check_targets()
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

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized and not self.by_item_cost:
            return super()._stream(lane, state, reading, endless)
        slots: Slots = SchemeSlots(self._scheme)
        if isinstance(self.unit, ItemCost) and isinstance(self._scheme, WeightedScheme):
            slots = OwedSlots(self._scheme, self.unit, lane, reading, self.key)

        def open_epoch(at: State | None) -> Stream[T_co]:
            return MultiplexedStream(
                self.inputs, self.names, at, reading, slots=slots, end=self._end, lane=lane
            )

        if not endless or self.endless:
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


def _flattened(
    parts: Sequence[Part], scheme: str, options: dict[str, Any], unit: Unit | None
) -> list[Part]:
    """Endless blends among the parts, of the same scheme and unit, opened up: that keeps what they
    mean, but where all sources are alike.
    """
    flat: list[Part] = []
    for part in parts:
        inner, weighed = without_weights(part.dataset)
        if (
            type(inner) is BlendDataset
            and inner.endless
            and not inner.changes
            and inner.max_correction is None
            and scheme not in WEIGHTLESS
            and isinstance(inner.scheme, str)
            and (inner.scheme, inner.options, inner.unit) == (scheme, options, unit)
        ):
            pairs = zip(inner.inputs, inner.names, strict=True)
            named = [(weighed(each), name) for each, name in pairs]
            flat.extend(opened_up(part, inner.weights, named, inner.targets))
        else:
            flat.append(part)
    return flat
