"""Weighted mixes of datasets."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import check_names, raised_as
from energize.core.costs import ColumnCost, ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import checked_factor, weighed
from energize.core.stream import INFINITE, ContentStream, Opening, Stream
from energize.core.trace import Failed, Request, Routes
from energize.datasets.multiplexed import (
    End,
    GivenUnit,
    MeasuredInputs,
    MultiplexedStream,
    OwedSlots,
    SchemeSlots,
    Slots,
    Unit,
    check_ends,
    checked_unit,
    scheme_in,
)
from energize.datasets.transform import gives_batches, without_weights
from energize.errors import ConfigError, EmptyDatasetError, WeightError, nearest
from energize.order.cost import CostScheme, cost_scheme
from energize.order.timeline import (
    WEIGHTLESS,
    Scheme,
    WeightedScheme,
    default_scheme,
    make_scheme,
    option_names,
    slot_limits,
    stopped_scheme,
)
from energize.order.weights import (
    Compound,
    Era,
    Schedule,
    Weight,
    WeightScheduler,
    as_fraction,
    asked,
    checked_temperature,
    ever_positive,
    exact_weight,
    lean,
    limited,
    names_apart,
    shares_at,
    tempered,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PairOf = tuple[Dataset[T_co], Weight]

_log = logging.getLogger("energize")


class BlendDataset(IndexedDataset[T_co]):
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
    unit: Unit | None
    targets: tuple[Weight, ...] | None
    max_correction: float | None

    _changes_no_sample = ("given_names", "targets", "max_correction")

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
            counted = None if unit is None else checked_unit(unit)
            if counted is not None:
                scheme = scheme_in(counted, scheme, options)
            elif scheme is None or isinstance(scheme, str):
                check_names(options, option_names(scheme or "block"), BlendDataset)
                scheme = default_scheme(options) if scheme is None else scheme
            entries, names = checked_entries(pairs, weights, max_epochs, target_weights)
            _check_same_names(names, getattr(scheme, "names", None))
            if counted is not None:
                check_ends(counted, stop, max_epochs)
            slot_limits([1] * len(entries), stop, [entry.max_epochs for entry in entries])
            entries = limited_entries(entries, names, temperature, min_share, max_share)
            if isinstance(scheme, str):
                if stop == "restart" and max_epochs is None:
                    entries = _flattened(entries, scheme, options, counted)
                entries = merged(entries, type(self).__name__)
            datasets, drawn_by, most, called, _ = zip(*entries, strict=True)
            self._freeze(
                inputs=told_apart(datasets),
                worker_config=worker_config,
                weights=drawn_by,
                scheme=scheme,
                options=dict(options),
                stop=stop,
                max_epochs=most,
                given_names=called,
                changes=(),
                unit=counted,
                targets=_targets(entries, max_correction),
                max_correction=max_correction,
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
    def _endless(self) -> bool:
        """Whether it never ends, whatever it reads from."""
        return self.stop == "restart" and not any(self.max_epochs)

    @cached_property
    def indexed(self) -> bool:
        return not isinstance(self.unit, ItemCost) and super().indexed

    @cached_property
    def sized(self) -> bool:
        if self._endless:
            return True
        return super().sized and not isinstance(self.unit, ItemCost)

    @cached_property
    def size(self) -> int:
        return self._mix[1]

    @cached_property
    def _pass_length(self) -> int:
        """Items of an epoch; of one that never ends, a pass over each dataset with a weight."""
        if self.sized and self.size != INFINITE:
            return self.size
        pairs = zip(self.inputs, self.weights, strict=True)
        return sum(each._pass_length for each, weight in pairs if ever_positive(weight))

    @property
    def _divisible(self) -> bool:  # as far as it knows its end
        """Whether lanes can know where it ends without reading each other's share."""
        return self.sized

    def route(self, positions: Int64Array) -> Routes:
        if isinstance(self.unit, ItemCost):
            raise self._not_indexed("positions that are known before it is read")
        child, nth = self._mix[0].locate(positions)
        return Routes(nth, child)

    def taken(self, n: int) -> list[int] | None:
        if isinstance(self.unit, ItemCost):
            return None
        counts: list[int] = self._mix[0].counts(n).tolist()
        return counts

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
            name = "exact" if self.unit is not None else self.scheme  # for its shares only
            scheme = make_scheme(name, self.weights, key=self.key, **self.options)
        for slot, weights in self.changes:
            scheme = scheme.with_weights_from(slot, weights)
        return scheme

    @cached_property
    def _measured(self) -> MeasuredInputs | None:
        return MeasuredInputs(self.unit, self.inputs) if isinstance(self.unit, ColumnCost) else None

    def _settings(self) -> dict[str, Any]:
        """The parameters as JSON, and digests of what samples cost, as measuring them anew changes
        the order.
        """
        told = super()._settings()
        if self.unit is None:
            del told["unit"]
        return told if self._measured is None else told | {"costs": self._measured.digests()}

    def _until(
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
        except (KeyError, TypeError, ValueError):  # it is damaged, and told to be different
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
        wanted = "a scheme is a name or an object with counts and locate"
        if isinstance(scheme, type):
            raise ConfigError(f"{wanted}; {scheme.__name__} is a class, make an object of it")
        for method in ("counts", "locate"):
            if not callable(getattr(scheme, method, None)):
                raise ConfigError(f"{wanted}; {scheme!r} has no {method}")
        if len(scheme.counts(0)) != len(self.weights):
            raise ConfigError(
                f"the scheme is for {len(scheme.counts(0))} sources, but there are "
                f"{len(self.weights)} datasets"
            )
        drops_out = self.stop == "all_exhausted" or any(self.max_epochs)
        if numbers_only(self.weights) is None or (drops_out and self.stop != "first_exhausted"):
            raise ConfigError(
                "schedules, all_exhausted and max_epochs need to make schemes of their own; give "
                "the scheme by name"
            )
        if self.options:
            raise ConfigError(
                f"{sorted(self.options)} cannot be set for a scheme that is an object; set "
                "them where it is made"
            )

    def _check_not_empty(self) -> None:
        filled = [not each.sized or each.size > 0 for each in self.inputs]
        for number, (each, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            if filled[number] or not ever_positive(weight) or self.stop == "all_exhausted":
                continue
            read = ", ".join(repr(source.name) for source in each.sources)
            raise EmptyDatasetError(
                f"dataset {number} has weight {weight} and no items (it reads {read}); remove it, "
                "or give it weight 0"
            )
        if not any(filled):
            raise EmptyDatasetError("none of the datasets has items")

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

    def shares(self, slot: int = 0) -> list[float]:
        """Return the asked share of each of `inputs` at a slot, in the unit: its weight divided by
        the sum.
        """
        if isinstance(self._scheme, WeightedScheme):
            return self._scheme.shares(slot)
        shares: list[float] = shares_at(self.weights, [slot])[0].tolist()
        return shares

    def _asked(self, items: int | None) -> FloatArray | None:
        """How many of the first `items` the weights ask for of each of `inputs`: float64, sums to
        `items`, or to what they cost where weights of costs changed; for None their shares, or
        None where these change.

        Of a blend that ends, slots and schedules begin anew in each epoch. What stop rules do to
        the shares is not looked at: it is a difference between asked and delivered.
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

    def _asked_in_cost(self, eras: Sequence[Era], items: int | None) -> FloatArray | None:
        """The same of what items cost. A slot says nothing of its cost, so while weights change
        gradually nobody asks for anything that could be told; and after changes, for parts of what
        the slots since then cost, if that is known unread.
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
        self, slot: int, weights: Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
    ) -> Self:
        """The same blend with other weights from a slot on: all items before it stay as they are.

        Weights are those of `inputs` in their order, or by their `names`; steps of schedules count
        from the start of the blend. A state that was saved before the slot goes on in the changed
        blend. In the epochs of a blend that ends, weights change at the same slot of each.

        Raises `ConfigError` for a slot that an earlier change lies after, and for a blend whose
        `scheme` is an object; `WeightError` for weights.

        >>> from energize import BlendDataset, ListSource
        >>> blend = BlendDataset({"a": ListSource("a"), "b": ListSource("b")},
        ...                      weights={"a": 1, "b": 1})
        >>> changed = blend.with_weights_from(100, {"a": 9, "b": 1})
        >>> changed.at(range(100)) == blend.at(range(100)), changed.taken(200)
        (True, [140, 60])
        """
        if not isinstance(self._scheme, WeightedScheme):
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
        other = self._replace(changes=changed.changes, _scheme=changed)
        other._check()
        return other

    def corrections(self, slot: int = 0) -> list[float]:
        """By how much items of each of `inputs` count at a slot; 1 without target weights.

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
        """Raise `ConfigError` where the shares at a slot are not known; log what targets do."""
        if self.stop == "all_exhausted" or any(self.max_epochs) or not self.sized:
            raise ConfigError(
                "target_weights make up for the shares that weights ask for, and with "
                "stop='all_exhausted', max_epochs, or an end among streams of unknown length "
                "shares change when a dataset is exhausted; give sample_weight to the datasets"
            )
        if isinstance(self.unit, ItemCost):
            raise ConfigError(
                "target_weights make up for the shares that slots are given by, and with a unit "
                "that is known of items only these are not known before; give sample_weight to the "
                "datasets"
            )
        _log.info("%s", described_corrections(self))

    @cached_property
    def _makes(self) -> bool:  # type: ignore[override]  # of each blend, not of the class
        return self.targets is not None

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        """With target weights, items count by the factor target share / drawn share at their slot,
        at most `max_correction`: the weights of importance sampling (Kahn and Marshall, 1953), cut
        off as by Ionides (Truncated importance sampling, 2008).
        """
        positions = request.positions
        slots = positions if self.size == INFINITE else positions % self.size
        child, _ = self._mix[0].locate(positions)
        made = []
        for item, slot, number in zip(items, slots.tolist(), child.tolist(), strict=True):
            factors = self._fixed or self.corrections(slot)
            failed = isinstance(item, Failed)
            batched = self._of_batches
            made.append(item if failed else weighed(item, factors[number], batched=batched))
        return made

    @cached_property
    def _of_batches(self) -> bool:
        return all(gives_batches(each) for each in self.inputs)

    @cached_property
    def _fixed(self) -> list[float] | None:
        """The factors, where they are the same at all slots."""
        moving = numbers_only(self.weights) is None or numbers_only(self.targets or ()) is None
        return None if moving or self.changes else self.corrections()

    def _open_stream(self, opening: Opening) -> Stream[T_co]:
        if self.targets is None:
            return super()._open_stream(opening)
        return ContentStream(self, super()._open_stream, opening, draws=False)

    def _open_pass(self, opening: Opening) -> Stream[T_co]:
        if self.sized and not isinstance(self.unit, ItemCost):
            return super()._open_pass(opening)
        slots: Slots = SchemeSlots(self._scheme)
        if isinstance(self.unit, ItemCost) and isinstance(self._scheme, WeightedScheme):
            slots = OwedSlots(self._scheme, self.unit, opening.lane, opening.reading, self.key)
        default = None if self.stop == "restart" else 1
        passes = [default if most is None else most for most in self.max_epochs]
        drawn = [ever_positive(weight) for weight in self.weights]
        rule = "first" if self.stop == "first_exhausted" else "leave_out"
        # Those of weight 0 are not read at all.
        end = End(rule, tuple(p if d else 0 for p, d in zip(passes, drawn, strict=True)))
        return MultiplexedStream(self.inputs, self.names, opening, slots, end)


def _targets(entries: Sequence[Entry], max_correction: float | None) -> tuple[Weight, ...] | None:
    """What entries weigh in the loss; None where all count as they are drawn."""
    if max_correction is not None and checked_factor(max_correction, "max_correction") < 1:
        raise WeightError(f"max_correction is a factor from 1 up; got {max_correction}")
    if any(entry.target is not None for entry in entries):
        return tuple(entry.loss_weight for entry in entries)
    if max_correction is not None:
        raise ConfigError("max_correction limits what target_weights do, and there are none")
    return None


def _constant(era: Era) -> FloatArray | None:
    """The shares of an era; None where they change."""
    return None if era.points else cast("FloatArray", shares_at(era.weights, [0])[0])


def described_corrections(blend: BlendDataset[Any]) -> str:
    """Return what the target weights of a blend do at slot 0, in words: the factors, and what part
    of the samples the effective sample size is.
    """
    factors, drawn = blend.corrections(), blend.shares()
    shown = ", ".join(f"{each:.4g}" for each in factors[:8])
    more = ", ..." if len(factors) > 8 else ""
    return (
        f"{type(blend).__name__}: items count by target weights, by the factors {shown}{more}; the "
        f"effective sample size is {effective_part(drawn, factors):.1%} of the samples"
    )


def effective_part(drawn: Sequence[float], factors: Sequence[float]) -> float:
    """The effective sample size over the number of samples, where datasets are drawn by the shares
    `drawn` and count by `factors`: 1 where all count the same.

    >>> effective_part([0.5, 0.5], [1.0, 1.0]), effective_part([0.75, 0.25], [2 / 3, 2.0])
    (1.0, 0.75)
    """
    pairs = list(zip(drawn, factors, strict=True))
    mean = sum(share * factor for share, factor in pairs)
    squares = sum(share * factor**2 for share, factor in pairs)
    return mean**2 / squares if squares else 0.0


def _check_same_names(datasets: list[str] | None, sources: tuple[str, ...] | None) -> None:
    """A scheme numbers its sources: by name, these are the datasets in their order."""
    if datasets is not None and sources is not None and tuple(datasets) != sources:
        raise WeightError(
            f"the scheme is over the sources {', '.join(sources)}, and the datasets are "
            f"{', '.join(datasets)}; give both the same names in the same order"
        )


def _flattened(
    entries: Sequence[Entry], scheme: str, options: dict[str, Any], unit: Unit | None
) -> list[Entry]:
    """Endless blends among the parts, of the same scheme and unit, opened up: that keeps what they
    mean, but where all sources are alike.
    """
    flat: list[Entry] = []
    for entry in entries:
        inner, weighed = without_weights(entry.dataset)
        if (
            type(inner) is BlendDataset
            and inner._endless
            and not inner.changes
            and inner.max_correction is None
            and scheme not in WEIGHTLESS
            and isinstance(inner.scheme, str)
            and (inner.scheme, inner.options, inner.unit) == (scheme, options, unit)
        ):
            pairs = zip(inner.inputs, inner.names, strict=True)
            named = [(weighed(each), name) for each, name in pairs]
            flat.extend(opened_up(entry, inner.weights, named, inner.targets))
        else:
            flat.append(entry)
    return flat


PerDataset = Any
"""A value for all datasets, one each in a list, or one each by name."""


class Entry(NamedTuple):
    """A dataset of a blend, its weight, how many epochs of it are read at most, what it was called,
    and what it weighs in the loss, if that is something else.
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
    given: Sequence[Any], weights: object, max_epochs: PerDataset, target_weights: PerDataset
) -> tuple[list[Entry], list[str] | None]:
    """Return the entries, and their names if they have any.

    They are given as pairs (dataset, weight), as one iterable of pairs, or as datasets by name with
    `weights` by name.
    """
    names = None
    if len(given) == 1 and isinstance(given[0], Mapping):
        names = [str(name) for name in given[0]]
        given = list(zip(given[0].values(), _weights_by_name(names, weights), strict=True))
    elif weights is not None:
        raise WeightError(
            "weights by name need datasets by name, {name: dataset}; or give pairs (dataset, "
            "weight)"
        )
    pairs = _pairs(given, names)
    if not any(ever_positive(weight) for _, weight in pairs):
        raise WeightError(f"all {len(pairs)} weights are 0, so nothing could ever be drawn")
    epochs = one_per_dataset(max_epochs, names, len(pairs), "max_epochs")
    called: Sequence[str | None] = names or [None] * len(pairs)
    rows = zip(pairs, epochs, called, strict=True)
    entries = [Entry(*pair, most, name) for pair, most, name in rows]
    if target_weights is not None:
        entries = _targeted(entries, names, target_weights)
    return entries, names


def one_per_dataset(value: PerDataset, names: list[str] | None, count: int, what: str) -> list[Any]:
    """Return a value for each dataset: the same for all, those of a list, or those of a dict by
    name, with None for the names left out.
    """
    if isinstance(value, Mapping):
        if names is None:
            raise ConfigError(f"{what} is given by name, but the datasets have no names")
        unknown = [f"{name!r}{nearest(str(name), names)}" for name in value if name not in names]
        if unknown:
            raise ConfigError(
                f"{what}: the datasets are {', '.join(names)}; unknown {', '.join(unknown)}"
            )
        return [value.get(name) for name in names]
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        if len(value) != count:
            raise ConfigError(f"{what}: {len(value)} values are given for {count} datasets")
        return list(value)
    return [value] * count


def _weights_by_name(names: list[str], weights: object) -> list[object]:
    by_name = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    if not isinstance(by_name, Mapping):
        raise WeightError(
            "datasets given by name need weights={name: weight}, or a WeightScheduler; got "
            f"{weights!r}"
        )
    difference = names_apart(names, by_name)
    if difference:
        raise WeightError(f"the weights do not name the datasets: {difference}")
    return [by_name[name] for name in names]


def _pairs(given: Sequence[Any], names: list[str] | None) -> list[tuple[Dataset[Any], Weight]]:
    if len(given) == 1 and isinstance(given[0], Iterable) and not _is_one(given[0]):
        given = list(given[0])
    if not given:
        raise ConfigError("there are no datasets to mix")
    pairs: list[tuple[Dataset[Any], Weight]] = []
    for number, pair in enumerate(given):
        where = f"dataset {number if names is None else repr(names[number])}"
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Dataset)):
            raise WeightError(f"{where} {_fault(pair)}")
        dataset, weight = pair
        if isinstance(weight, Dataset):
            raise WeightError(f"{where} is {str(pair)[:80]!r}; give pairs (dataset, weight)")
        pairs.append((dataset, _checked_weight(weight, where)))
    return pairs


def _is_one(value: object) -> bool:
    """Whether something is a dataset, or a pair, right or wrong, and no list of pairs."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    return isinstance(value, Dataset) or (
        pair and not isinstance(value[1], Dataset | tuple | list)  # type: ignore[index]
    )


def _fault(pair: object) -> str:
    """What is wrong with something that is no pair (dataset, weight)."""
    if isinstance(pair, Dataset):
        return "has no weight; give pairs (dataset, weight)"
    first, *rest = pair if isinstance(pair, tuple | list) and pair else (pair,)
    if len(rest) != 1 or isinstance(first, Dataset):
        return f"is {str(pair)[:80]!r}; give pairs (dataset, weight)"
    if isinstance(rest[0], Dataset):
        return "stands after its weight; give pairs (dataset, weight)"
    return (
        f"is {str(first)[:80]!r}, which is no dataset; a list becomes one in ListSource, a "
        "prepared folder by get_train_dataset"
    )


def _checked_weight(weight: Any, where: str) -> Weight:
    if isinstance(weight, WeightScheduler):
        raise WeightError(
            f"{where} has a WeightScheduler, which holds the weights of all; give datasets by name "
            "and weights=it, or a Schedule to each dataset"
        )
    if isinstance(weight, Schedule | Compound):
        return weight
    return exact_weight(weight, where)


def _targeted(
    entries: Sequence[Entry], names: list[str] | None, target_weights: PerDataset
) -> list[Entry]:
    """The entries with their target weights: one for each, in their order or by name."""
    if not isinstance(target_weights, list | tuple | dict | np.ndarray):
        raise WeightError(
            f"target_weights has one for each dataset, in a list or by name; got {target_weights!r}"
        )
    given = one_per_dataset(target_weights, names, len(entries), "target_weights")
    found = []
    for number, (entry, target) in enumerate(zip(entries, given, strict=True)):
        where = f"dataset {number if names is None else repr(names[number])}"
        if target is None:
            raise WeightError(
                f"{where} has no target weight, and others have; give every dataset one, equal to "
                "its weight where nothing should be made up for"
            )
        checked = _checked_weight(target, f"the target weight of {where}")
        if ever_positive(checked) and not ever_positive(entry.weight):
            raise WeightError(
                f"{where} has a target weight and the weight 0: it is never drawn, and no weight "
                "in the loss makes up for that; give it a weight above 0"
            )
        found.append(entry._replace(target=checked))
    if not any(ever_positive(entry.loss_weight) for entry in found):
        raise WeightError("all target weights are 0, so nothing would count in the loss")
    return found


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
    if numbers is None and (min_share is not None or max_share is not None):
        raise ConfigError(
            "min_share and max_share need weights that are numbers; keep a schedule within limits "
            "at its points"
        )
    if exponent != 1:
        if numbers is not None:
            weights = tempered(numbers, exponent)
        else:
            given = tuple(weights)
            weights = [Compound("share", given, number, exponent) for number in range(len(given))]
    if numbers is not None and (min_share is not None or max_share is not None):
        least, most = (
            one_per_dataset(value, names, len(entries), name)
            if isinstance(value, Mapping | np.ndarray)
            else value
            for name, value in (("min_share", min_share), ("max_share", max_share))
        )
        weights = limited(cast("Sequence[float]", weights), least, most)
    rows = zip(entries, weights, strict=True)
    return [entry._replace(weight=weight) for entry, weight in rows]


def opened_up(
    entry: Entry,
    weights: Sequence[Weight],
    inner: Sequence[tuple[Dataset[Any], str]],
    targets: Sequence[Weight] | None = None,
) -> list[Entry]:
    """Return the entries of an entry that blends `inner`, named datasets, by `weights`.

    Weights multiply, and so do target weights, which are weights where none are given.
    """
    opened = []
    for number, (dataset, name) in enumerate(inner):
        target = None
        if entry.target is not None or targets is not None:
            within = weights if targets is None else targets
            target = _within(entry.loss_weight, within, number)
        full = name if entry.name is None else f"{entry.name}/{name}"
        weight = _within(entry.weight, weights, number)
        opened.append(Entry(dataset, weight, name=full, target=target))
    return opened


def _within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """The weight of the entry that one of several `weights` makes of a weight."""
    numbers = numbers_only(weights)
    if numbers is None:
        return Compound("product", (weight, Compound("share", tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Compound("product", (weight, share))


def merged(entries: Sequence[Entry], owner: str) -> list[Entry]:
    """Return equal datasets as one, with the sum of their weights."""
    kept: list[Entry] = []
    by_key: dict[int, list[int]] = {}
    for entry in entries:
        alike = by_key.setdefault(entry.dataset.key, [])
        same = next((i for i in alike if _alike(kept[i], entry)), None)
        if same is None:
            alike.append(len(kept))
            kept.append(entry)
            continue
        other = kept[same]
        total = _sum(other.weight, entry.weight)
        names = ", ".join(source.name for source in entry.dataset.sources)
        _log.info("%s: %s is listed twice; it is read as one, weight %s", owner, names, total)
        target = None
        if other.target is not None or entry.target is not None:
            target = _sum(other.loss_weight, entry.loss_weight)
        kept[same] = other._replace(weight=total, target=target)
    return kept


def _alike(one: Entry, other: Entry) -> bool:
    return one.dataset == other.dataset and one.max_epochs == other.max_epochs


def _sum(one: Weight, other: Weight) -> Weight:
    if isinstance(one, float | Fraction) and isinstance(other, float | Fraction):
        return lean(as_fraction(one) + as_fraction(other))
    return Compound("sum", (one, other))


def told_apart(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Return datasets that share a source, wherever below them it is, each in its own order."""
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(dataset._distinguished(before) if before else dataset)
    return apart


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """Return the weights in their exact values, if none of them changes."""
    numbers = [as_fraction(each) for each in weights if isinstance(each, float | Fraction)]
    return numbers if len(numbers) == len(weights) else None
