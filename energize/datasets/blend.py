"""The datasets of a blend with their weights: given, checked, opened up, merged, told apart."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.call import generates
from energize.core.checks import check_names, raised_as
from energize.core.config import Outline
from energize.core.costs import ColumnCost
from energize.core.dataset import Dataset, IndexedDataset, PassingStream, RoutedDataset
from energize.core.description import Description
from energize.core.lanes import Lane, WorkerConfig
from energize.core.loss_weights import Keep, checked_factor, joined, weighed
from energize.core.reading import Failed, Reading
from energize.core.stream import INFINITE, EndlessStream, State, Stream
from energize.datasets.batch import BatchDataset, FlatBatchDataset
from energize.datasets.item_cost import ItemCost
from energize.datasets.multiplexed import End, MultiplexedStream, SchemeSlots, Slots
from energize.datasets.transform import gives_batches, without_weights
from energize.datasets.units import (
    GivenUnit,
    MeasuredInputs,
    OwedSlots,
    Unit,
    check_ends,
    checked_unit,
    scheme_in,
)
from energize.errors import ConfigError, EmptyDatasetError, WeightError, nearest
from energize.order.cost import CostScheme, cost_scheme
from energize.order.schedule import Schedule, WeightScheduler, names_apart
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
    Weight,
    as_fraction,
    asked,
    checked_temperature,
    ever_positive,
    exact_weight,
    lean,
    limited,
    shares_at,
    tempered,
)

_log = logging.getLogger("energize")


class Part(NamedTuple):
    """A dataset of a blend, what it weighs, how many epochs of it are read at most, what it was
    called, and what it weighs in the loss, if that is something else.
    """

    dataset: Dataset[Any]
    weight: Weight
    max_epochs: int | None = None
    name: str | None = None
    target: Weight | None = None


PerDataset = Any
"""A value for all datasets, one each in a list, or one each by name."""


def checked_parts(
    given: Sequence[Any], weights: object, max_epochs: PerDataset
) -> tuple[list[Part], list[str] | None]:
    """The parts, and their names where they have any.

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
    parts = zip(pairs, epochs, called, strict=True)
    return [Part(*pair, most, name) for pair, most, name in parts], names


def one_per_dataset(value: PerDataset, names: list[str] | None, count: int, what: str) -> list[Any]:
    """A value for each dataset: the same for all, or those of a list, or those of a dict by name
    with None for the names left out.
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


def levelled(
    parts: Sequence[Part],
    names: list[str] | None,
    temperature: object,
    min_share: PerDataset,
    max_share: PerDataset,
) -> list[Part]:
    """The weights after temperature, then floors and caps."""
    exponent = checked_temperature(temperature)
    weights = [part.weight for part in parts]
    numbers = numbers_only(weights)
    if min_share is not None or max_share is not None:
        if numbers is None:
            raise ConfigError(
                "min_share and max_share need weights that are numbers; keep a schedule within "
                "limits at its points"
            )
        least, most = (
            one_per_dataset(value, names, len(parts), name)
            if isinstance(value, Mapping | np.ndarray)
            else value
            for name, value in (("min_share", min_share), ("max_share", max_share))
        )
        shares = tempered(numbers, exponent) if exponent != 1 else numbers
        return _reweighted(parts, limited(shares, least, most))
    if exponent == 1:
        return list(parts)
    if numbers is not None:
        return _reweighted(parts, tempered(numbers, exponent))
    return _reweighted(
        parts,
        [Compound("share", tuple(weights), number, exponent) for number in range(len(parts))],
    )


def opened_up(
    part: Part,
    weights: Sequence[Weight],
    inner: Sequence[tuple[Dataset[Any], str]],
    targets: Sequence[Weight] | None = None,
) -> list[Part]:
    """The parts of a part that blends `inner`, named datasets, by `weights`: weights multiply, and
    so do target weights, which are weights where none are given.
    """
    parts = []
    targeted = part.target is not None or targets is not None
    for number, (dataset, name) in enumerate(inner):
        weight, target = _within(part.weight, weights, number), None
        if targeted:
            outer = part.weight if part.target is None else part.target
            target = _within(outer, weights if targets is None else targets, number)
        full = name if part.name is None else f"{part.name}/{name}"
        parts.append(Part(dataset, weight, name=full, target=target))
    return parts


def _within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """The weight of the part that one of several `weights` makes of a weight."""
    numbers = numbers_only(weights)
    if numbers is None:
        return Compound("product", (weight, Compound("share", tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Compound("product", (weight, share))


def merged(parts: Sequence[Part], owner: str) -> list[Part]:
    """Equal datasets as one, with the sum of their weights."""
    kept: list[Part] = []
    by_key: dict[int, list[int]] = {}
    for part in parts:
        alike = by_key.setdefault(part.dataset.key, [])
        same = next((i for i in alike if _same(kept[i], part)), None)
        if same is None:
            alike.append(len(kept))
            kept.append(part)
            continue
        total = _sum(kept[same].weight, part.weight)
        names = ", ".join(source.name for source in part.dataset.sources)
        _log.info("%s: %s is listed twice; it is read as one, weight %s", owner, names, total)
        target = None
        if kept[same].target is not None or part.target is not None:
            one, other = (p.weight if p.target is None else p.target for p in (kept[same], part))
            target = _sum(one, other)
        kept[same] = part._replace(weight=total, target=target)
    return kept


def told_apart(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Datasets that share a source, wherever below them it is, each in an order of its own."""
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(dataset.distinguished(before) if before else dataset)
    return apart


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """The weights in their exact values, if none of them changes."""
    numbers = [as_fraction(each) for each in weights if isinstance(each, float | Fraction)]
    return numbers if len(numbers) == len(weights) else None


def check_scheme_object(scheme: Any, weights: Sequence[Weight], *, drops_out: bool) -> None:
    """Raise `ConfigError` for what is no scheme over so many datasets, and where it cannot be used:
    with weights that change, or where datasets drop out.
    """
    wanted = "a scheme is a name or an object with counts and locate"
    if isinstance(scheme, type):
        raise ConfigError(f"{wanted}; {scheme.__name__} is a class, make an object of it")
    for method in ("counts", "locate"):
        if not callable(getattr(scheme, method, None)):
            raise ConfigError(f"{wanted}; {scheme!r} has no {method}")
    if len(scheme.counts(0)) != len(weights):
        raise ConfigError(
            f"the scheme is for {len(scheme.counts(0))} sources, but there are {len(weights)} "
            "datasets"
        )
    if numbers_only(weights) is None or drops_out:
        raise ConfigError(
            "schedules, all_exhausted and max_epochs need to make schemes of their own; give "
            "the scheme by name"
        )


def check_same_names(datasets: list[str] | None, sources: tuple[str, ...] | None) -> None:
    """A scheme numbers its sources: by name, these are the datasets in their order."""
    if datasets is not None and sources is not None and tuple(datasets) != sources:
        raise WeightError(
            f"the scheme is over the sources {', '.join(sources)}, and the datasets are "
            f"{', '.join(datasets)}; give both the same names in the same order"
        )


def _pairs(given: Sequence[Any], names: list[str] | None) -> list[tuple[Dataset[Any], Weight]]:
    if len(given) == 1 and not _like_a_pair(given[0]) and isinstance(given[0], Iterable):
        if isinstance(given[0], Dataset):
            raise WeightError("dataset 0 has no weight; give pairs (dataset, weight)")
        given = list(given[0])
    if not given:
        raise ConfigError("there are no datasets to mix")
    pairs: list[tuple[Dataset[Any], Weight]] = []
    for number, pair in enumerate(given):
        where = f"dataset {number if names is None else repr(names[number])}"
        if not _is_pair(pair):
            raise WeightError(f"{where} {_fault(pair)}")
        dataset, weight = pair
        if isinstance(weight, WeightScheduler):
            raise WeightError(
                f"{where} has a WeightScheduler, which holds the weights of all; give datasets by "
                "name and weights=it, or a Schedule to each dataset"
            )
        if not isinstance(weight, Schedule | Compound):
            weight = exact_weight(weight, where)
        pairs.append((dataset, weight))
    return pairs


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


def _is_pair(value: Any) -> bool:
    return _like_a_pair(value) and isinstance(value[0], Dataset)


def _like_a_pair(value: object) -> bool:
    """Whether something is more like a pair, right or wrong, than like a list of pairs."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and not isinstance(value[1], Dataset | tuple | list)
    )


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


def _reweighted(parts: Sequence[Part], weights: Sequence[Weight]) -> list[Part]:
    return [part._replace(weight=weight) for part, weight in zip(parts, weights, strict=True)]


def _same(one: Part, other: Part) -> bool:
    return one.dataset == other.dataset and one.max_epochs == other.max_epochs


def _sum(one: Weight, other: Weight) -> Weight:
    if isinstance(one, float | Fraction) and isinstance(other, float | Fraction):
        return lean(as_fraction(one) + as_fraction(other))
    return Compound("sum", (one, other))


# What weights ask of a blend, for those who compare it with what came.


class AskedByWeights:
    """The part of a blend that says what its weights ask for."""

    weights: tuple[Weight, ...]
    changes: tuple[tuple[int, tuple[Weight, ...]], ...]
    scheme: Any
    unit: Any
    _scheme: Any

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
        named = isinstance(self.scheme, str)
        eras = self._scheme.eras if named else [Era(0, self.weights)]
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


def _constant(era: Era) -> FloatArray | None:
    """Return the shares of an era; None where they change."""
    return None if era.points else cast("FloatArray", shares_at(era.weights, [0])[0])


# Datasets that are drawn by one distribution and count in the loss by another.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def targeted(
    parts: Sequence[Part], names: list[str] | None, target_weights: PerDataset
) -> list[Part]:
    """The parts with their target weights: one for each, in their order or by name.

    Raises `WeightError` for those that are missing, negative, not finite or all 0, and for one
    above 0 of a dataset that is never drawn.
    """
    if target_weights is None:
        return list(parts)
    if not isinstance(target_weights, list | tuple | dict | np.ndarray):
        raise WeightError(
            f"target_weights has one for each dataset, in a list or by name; got {target_weights!r}"
        )
    given = one_per_dataset(target_weights, names, len(parts), "target_weights")
    targets: list[Weight] = []
    for number, (part, target) in enumerate(zip(parts, given, strict=True)):
        where = f"dataset {number if names is None else repr(names[number])}"
        if target is None:
            raise WeightError(
                f"{where} has no target weight, and others have; give every dataset one, equal to "
                "its weight where nothing should be made up for"
            )
        moving = isinstance(target, Schedule | Compound)
        checked = target if moving else exact_weight(target, f"the target weight of {where}")
        if ever_positive(checked) and not ever_positive(part.weight):
            raise WeightError(
                f"{where} has a target weight and the weight 0: it is never drawn, and no weight "
                "in the loss makes up for that; give it a weight above 0"
            )
        targets.append(checked)
    if not any(map(ever_positive, targets)):
        raise WeightError("all target weights are 0, so nothing would count in the loss")
    return [part._replace(target=each) for part, each in zip(parts, targets, strict=True)]


def targets_of(parts: Sequence[Part], max_correction: float | None) -> dict[str, Any]:
    """The parameters that a blend of these parts has beside others: none without targets.

    Where only parts of an inner blend have a target, the others count as they are drawn.
    """
    if max_correction is not None and checked_factor(max_correction, "max_correction") < 1:
        raise WeightError(f"max_correction is a factor from 1 up; got {max_correction}")
    if all(part.target is None for part in parts):
        if max_correction is not None:
            raise ConfigError("max_correction limits what target_weights do, and there are none")
        return {}
    targets = [part.weight if part.target is None else part.target for part in parts]
    return {"targets": tuple(targets), "max_correction": max_correction}


class WeighedByTargets(IndexedDataset[T_co]):
    """The part of a blend whose items count in the loss by target weights.

    An item of dataset i at slot k gets the factor target share / drawn share, both at slot k, at
    most `max_correction`: the weights of importance sampling (Kahn and Marshall, 1953), cut off as
    by Ionides (Truncated importance sampling, 2008). So weighted means over what is drawn are those
    over the target mix, also where weights change with the step or while running.
    """

    targets: tuple[Weight, ...] | None = None
    max_correction: float | None = None

    if TYPE_CHECKING:
        weights: tuple[Weight, ...]
        changes: tuple[Any, ...]
        stop: str
        max_epochs: tuple[int | None, ...]

        def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]: ...
        def shares(self, slot: int = 0) -> list[float]: ...

    def check_targets(self) -> None:
        """Raise `ConfigError` where the shares at a slot are not known; log what targets do."""
        if self.targets is None:
            return
        if self.stop == "all_exhausted" or any(self.max_epochs) or not self.sized:
            raise ConfigError(
                "target_weights make up for the shares that weights ask for, and with "
                "stop='all_exhausted', max_epochs, or an end among streams of unknown length "
                "shares change when a dataset is exhausted; give sample_weight to the datasets"
            )
        if self.by_item_cost:
            raise ConfigError(
                "target_weights make up for the shares that slots are given by, and with a unit "
                "that is known of items only these are not known before; give sample_weight to the "
                "datasets"
            )
        _log.info("%s", self.described_corrections())

    @property
    def by_item_cost(self) -> bool:
        """Whether whose slot it is depends on what was read."""
        return False

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

    def described_corrections(self) -> str:
        """What the target weights do at slot 0: the factors, and what part of the samples the
        effective sample size is.
        """
        factors = self.corrections()
        shown = ", ".join(f"{each:.4g}" for each in factors[:8])
        more = ", ..." if len(factors) > 8 else ""
        return (
            f"{type(self).__name__}: items count by target weights, by the factors {shown}{more}; "
            f"the effective sample size is {effective_part(self.shares(), factors):.1%} of the "
            "samples"
        )

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        items = super().fetch(positions, reading)  # type: ignore[safe-super]  # of a blend
        if self.targets is None:
            return items
        which, _ = self.route(positions)
        pairs = zip(items, positions.tolist(), which.tolist(), strict=True)
        return [
            item if isinstance(item, Failed) else self.corrected(item, position, source)
            for item, position, source in pairs
        ]

    def addressed(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]:
        stream = super().addressed(lane, state, reading, endless=endless)
        if self.targets is None or self.indexed:
            return stream
        return _CorrectedStream(self, stream)

    def corrected(self, item: Any, position: int, source: int) -> Any:
        """The item at a position, which is one of this source, with its weight."""
        slot = position if self.size == INFINITE else position % self.size
        fixed = self._fixed
        factors = self.corrections(slot) if fixed is None else fixed
        return weighed(item, factors[source], batched=self._of_batches)

    @cached_property
    def _of_batches(self) -> bool:
        return all(gives_batches(each) for each in self.inputs)

    @cached_property
    def _fixed(self) -> list[float] | None:
        """The factors, where they are the same at all slots."""
        moving = numbers_only(self.weights) is None or numbers_only(self.targets or ()) is None
        return None if moving or self.changes else self.corrections()


class _CorrectedStream(PassingStream[T]):
    def __init__(self, dataset: WeighedByTargets[T], stream: Stream[T]) -> None:
        super().__init__(stream)
        self._dataset = dataset

    def passed(self, item: T, position: int) -> T:
        which, _ = self._dataset.route(np.array([position], dtype=np.int64))
        found: T = self._dataset.corrected(item, position, int(which[0]))
        return found


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


# The weights of a blend over time: the shares they ask for, and changes from a slot on.


class WeightsOverTime(Description):
    """The part of a blend that knows what it asks for, and can ask for something else."""

    weights: tuple[Weight, ...]
    names: Any

    _scheme: Any
    """Whose slot each is: a `Scheme`."""

    @property
    @abstractmethod
    def endless(self) -> bool:
        """Whether it never ends, whatever it reads from."""

    @abstractmethod
    def _check(self) -> None: ...

    def shares(self, slot: int = 0) -> list[float]:
        """The asked share of each of `inputs` at a slot, in the unit: its weight divided by the
        sum.
        """
        scheme: Scheme = self._scheme
        if isinstance(scheme, WeightedScheme):
            return scheme.shares(slot)
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
        other = self._replace(changes=changed.changes)
        other._check()
        return other

    def settings_until(
        self, items: int, saved: Outline, later: list[str]
    ) -> tuple[Outline, list[str]]:
        """Weights may be others from slots on that come after the first `items`."""
        mixed = {**saved, **{name: self.settings()[name] for name in ("weights", "changes")}}
        now = self._scheme
        if not self.endless or mixed == saved or not isinstance(now, WeightedScheme):
            return saved, []
        try:
            before = now.as_described(saved["weights"], saved["changes"])
        except (KeyError, TypeError, ValueError):  # it is damaged, and told to be different
            return saved, []
        at = before.first_difference(now, items)
        if at is None:
            later.append("the weights of a blend are others there")
            return mixed, []
        return saved, [
            f"BlendDataset: slots from {at} on are shared out by other weights, and {items} slots "
            f"have been delivered; weights may change from slot {items} on"
        ]


# Weighted mixes of datasets.

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


# Batches mixed from several datasets.

T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class MixBatchDataset(BatchDataset[T_batch_co]):
    """Batches whose samples are drawn one by one from several datasets.

    Each batch is `batch_mix_fn` of a list of `batch_size` items, drawn from a `BlendDataset` of the
    pairs. Datasets usually give batches of one sample, which functions like
    `homogeneous_concat_mix` put together; inner batches of k samples give batches of `batch_size *
    k`. By default the list itself is the batch. Weights, `scheme`, `stop` and the other parameters
    of a blend are passed to it; in one that ends, the last batch may be short, unless `drop_last`.
    The `sample_weights` of inner batches are joined, with 1 for samples of those without.

    Raises what `BlendDataset` and `BatchDataset` raise, and `ConfigError` for unknown parameters.

    >>> from energize import ListSource
    >>> mix = MixBatchDataset(
    ...     (ListSource("a"), 6), (ListSource("b"), 4), batch_size=1000, batch_mix_fn="".join
    ... )
    >>> mix[0].count("a")
    600
    """

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """A stream where the function is a generator function."""
        if cls is MixBatchDataset and generates(options.get("batch_mix_fn")):
            return cast("Self", super().__new__(FlatMixBatchDataset))
        return super().__new__(cls)

    def __init__(
        self,
        *pairs: PairOf[T_in] | Iterable[PairOf[T_in]] | Mapping[str, Dataset[T_in]],
        batch_size: int,
        batch_mix_fn: Callable[[list[T_in]], T_batch_co | Iterator[T_batch_co]] | None = None,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **blend: Any,
    ) -> None:
        mix_fn: Callable[[list[T_in]], Any] = same if batch_mix_fn is None else batch_mix_fn
        with raised_as(type(self).__name__, "BlendDataset"):
            if not callable(mix_fn):
                raise ConfigError(f"batch_mix_fn is a function of a list; got {mix_fn!r}")
            scheme = blend.get("scheme") or "block"  # a block_size names it, too
            options = option_names(scheme) if isinstance(scheme, str) else list(blend)
            check_names(blend, options, MixBatchDataset, BlendDataset)
            mix = BlendDataset(*pairs, worker_config=worker_config, **blend)
            super().__init__(mix, batch_size, mix_fn, drop_last=drop_last)

    @property
    def keep(self) -> Keep:
        return joined


def same(items: list[T_in]) -> list[T_in]:
    """The items as they are."""
    return items


class FlatMixBatchDataset(FlatBatchDataset[T_batch_co], MixBatchDataset[T_batch_co]):
    """What a generator function yields of every `batch_size` items of a mix."""
