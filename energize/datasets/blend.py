"""Weighted mixes of datasets and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Never, Self, TypeVar, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import FloatArray
from energize.core.checks import check_names, raised_as
from energize.core.costs import ColumnCost, ItemCost
from energize.core.dataset import Dataset
from energize.core.failures import Failed
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import weighed
from energize.core.node import INFINITE, MixTraits, NodeTraits, StreamTraits
from energize.core.stream import ContentStream, LaneStream, Opening
from energize.core.trace import Request
from energize.data.selection import input_labels
from energize.datasets.mix import MixDataset, MixOrder
from energize.datasets.mix_args import (
    MixEntry,
    PairOf,
    by_name,
    check_scheme_object,
    checked_entries,
    checked_targets,
    limited_entries,
    merged_entries,
    numbered,
    weight_within,
    with_distinct_orders,
)
from energize.datasets.mix_costs import (
    COST_SCHEME,
    MeasuredInputs,
    Unit,
    UnitArgument,
    checked_unit,
)
from energize.datasets.mixed_streams import (
    BeginSlots,
    MixedStream,
    OwedSlots,
    PassLimits,
    SchemeSlots,
)
from energize.datasets.transform import (
    gives_batches,
    with_equal_weighing,
    without_weights,
)
from energize.errors import ConfigError, EmptyDatasetError
from energize.order.cost import CostScheme, cost_scheme
from energize.order.scheme import Scheme
from energize.order.stopping import slot_limits, stopped_scheme
from energize.order.timeline import (
    WEIGHTLESS,
    WeightedScheme,
    make_scheme,
    option_names,
)
from energize.order.weights import (
    Era,
    Weight,
    WeightScheduler,
    ever_positive,
    integrated_shares,
    numbers_only,
    shares_at,
    weight_exponent,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize")


class BlendDataset(MixDataset[T_co]):
    """Mix datasets in the proportion of their weights.

    Every slot of the mix belongs to one dataset, which delivers its next item there.
    The order is computed, not drawn while reading: shares hold in every prefix, any
    position costs the same, and a run resumes anywhere. If the datasets contain
    batches, whole batches are mixed.

    By default the blend never ends: an exhausted dataset starts again, shuffled anew.
    `stop` and `max_epochs` give it epochs. In each epoch, slots and schedules start
    from 0, while the datasets continue where the last epoch left them. A stream without
    items in a whole pass is an error. A blend that ends and reads a stream of unknown
    length is read completely by every lane.

    Endless blends with the same scheme and unit nest without a change of shares: the
    inputs of the inner blend replace it, with the products of the weights. Equal
    datasets are merged, and their weights are added; datasets of the same folder with
    other settings get different orders.

    Args:
        *pairs: Pairs (dataset, weight), one iterable of pairs, or a mapping
            `{name: dataset}`. A weight is a number or a `Schedule`; weights need not
            sum to 1. Datasets with weight 0 are never drawn.
        weights: Weights by name, or a `WeightScheduler`, only for datasets by name; or
            "size" or "sqrt_size" for datasets without weights: their items in one pass,
            or the root of that number.
        scheme: How slots are assigned: a name, or an object with `counts` and `locate`.
            None is "block" if `block_size` is set, else "even", which keeps the shares
            in every prefix and randomizes the order within that bound.
        stop: The rule for exhausted datasets. "restart": the dataset starts again.
            "first_exhausted": the blend ends before its next slot. "all_exhausted": the
            other datasets take its slots, by weight, until all are exhausted.
        max_epochs: The number of epochs of a dataset that are read: one number, a list,
            or numbers by name. None for no limit with "restart", else 1. With a limit,
            "restart" ends when all datasets have reached it.
        temperature: T, above 0, replaces each weight w by w ** (1 / T): 1 keeps the
            weights, and higher values give more even shares.
        exponent: Replaces each weight w by w ** exponent, as the reciprocal of
            `temperature`: 0 makes all weights equal. Set one of the two.
        min_share: The lowest share of a dataset with a weight: one number, a list, or
            numbers by name. Applied after `temperature` and `exponent`.
        max_share: The highest share of a dataset, as `min_share`.
        unit: The unit of shares: "samples", the name of a column such as "tokens", or a
            function of columns, which keep the blend indexed (see `CostScheme`); or an
            `ItemCost` of encoded items, which makes it a stream, in which the dataset
            with the largest debt is next (see `OwedSlots`). Another unit than
            "samples" excludes `scheme`, and a column also excludes an end.
        target_weights: The weights of the datasets in the loss, as a list or by name.
            Items get the loss weight target share / drawn share. None leaves loss
            weights unchanged. The order does not depend on it.
        max_correction: The highest loss weight that `target_weights` sets. None for no
            limit.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **options: Options of the scheme, such as `block_size`.

    Raises:
        WeightError: If weights are missing, negative, not finite or all 0, or if they
            are sizes and a size is unknown.
        EmptyDatasetError: If a dataset with a weight has no items.
        ColumnError: If a column is not indexed, or a cost is not above 0.
        ConfigError: For other invalid arguments.

    Example:
        >>> from energize import ListSource
        >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
        >>> blend.shares()
        [0.75, 0.25]
        >>> blend.at(range(1000)).count("a")
        750
        >>> epoch = BlendDataset(
        ...     (ListSource("ab"), 3), (ListSource("c"), 1), stop="all_exhausted"
        ... )
        >>> sorted(epoch)
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

    def __init__(  # noqa: PLR0913
        self,
        *pairs: Dataset[T_co]
        | PairOf[T_co]
        | Iterable[PairOf[T_co]]
        | Mapping[str, Dataset[T_co]],
        weights: Mapping[str, Weight] | WeightScheduler | str | None = None,
        scheme: str | Scheme | None = None,
        stop: str = "restart",
        max_epochs: int | Sequence[int | None] | Mapping[str, int] | None = None,
        temperature: float = 1.0,
        exponent: float = 1.0,
        min_share: float | Sequence[float | None] | Mapping[str, float] | None = None,
        max_share: float | Sequence[float | None] | Mapping[str, float] | None = None,
        unit: UnitArgument | None = None,
        target_weights: Sequence[Weight] | Mapping[str, Weight] | None = None,
        max_correction: float | None = None,
        worker_config: WorkerConfig | None = None,
        **options: Any,
    ) -> None:
        with raised_as(type(self).__name__):
            ends = {"stop": stop, "max_epochs": max_epochs}
            checked = checked_unit(unit, {"scheme": scheme, **ends, **options})
            scheme = _named_scheme(scheme, options) if checked is None else COST_SCHEME
            entries, names = checked_entries(pairs, weights, max_epochs, target_weights)
            slot_limits(
                [1] * len(entries), stop, [entry.max_epochs for entry in entries]
            )
            power = weight_exponent(temperature, exponent)
            entries = limited_entries(entries, names, power, min_share, max_share)
            if isinstance(scheme, str):
                if stop == "restart" and max_epochs is None:
                    entries = _flattened(entries, scheme, options, checked)
                entries = merged_entries(entries, type(self).__name__)
            self.freeze(
                with_distinct_orders(
                    with_equal_weighing(entry.dataset for entry in entries)
                ),
                worker_config,
                weights=tuple(entry.weight for entry in entries),
                scheme=scheme,
                options=dict(options),
                stop=stop,
                max_epochs=tuple(entry.max_epochs for entry in entries),
                given_names=tuple(entry.name for entry in entries),
                changes=(),
                unit=checked,
                targets=checked_targets(entries, max_correction),
                max_correction=max_correction,
            )
            self.check()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each input.

        Names of a mapping or a metadataset; for other inputs the sources that they
        read, see `source_labels`.
        """
        pairs = zip(self.given_names, input_labels(self), strict=True)
        return tuple(numbered(name or ", ".join(labels) for name, labels in pairs))

    @cached_property
    def unnamed(self) -> tuple[str, ...]:
        """The `names` without the names that a metadataset sets."""
        unnamed = []
        for dataset, name in zip(self.inputs, self.names, strict=True):
            labels = [source.unnamed_label for source in dataset.sources]
            unnamed.append(name if None in labels else ", ".join(map(str, labels)))
        return tuple(unnamed)

    def by_name(self, values: Sequence[T]) -> dict[str, T]:
        """Return values of the inputs by their names, for logs.

        Args:
            values: A value for each input, such as `shares()` or `taken(n)`.

        Returns:
            The values by name, in the order of `inputs`.

        Example:
            >>> from energize import ListSource
            >>> web = ListSource("a", name="web")
            >>> code = ListSource("b", name="code")
            >>> blend = BlendDataset((web, 3), (code, 1))
            >>> blend.by_name(blend.shares()), blend.by_name(blend.taken(8))
            ({'web': 0.75, 'code': 0.25}, {'web': 6, 'code': 2})
        """
        return dict(zip(self.names, values, strict=True))

    @property
    def is_endless(self) -> bool:
        """Whether the blend has no end, for inputs of any length."""
        return self.stop == "restart" and not any(self.max_epochs)

    @cached_property
    def indexed(self) -> bool:
        return not isinstance(self.unit, ItemCost) and super().indexed

    @cached_property
    def has_loss_weights(self) -> bool:
        return self.targets is not None or super().has_loss_weights

    @cached_property
    def sized(self) -> bool:
        if self.is_endless:
            return True
        return super().sized and not isinstance(self.unit, ItemCost)

    @cached_property
    def traits(self) -> NodeTraits:
        weights = enumerate(self.weights)
        unread = [number for number, weight in weights if not ever_positive(weight)]
        return NodeTraits(
            makes=self.targets is not None,
            # Lanes of a blend of unknown length find its end by reading all of it.
            stream=StreamTraits(divisible=self.sized),
            mix=MixTraits(
                unit=self.unit,
                ends_by_weights=not self.is_endless,
                unread_inputs=tuple(unread),
                neutral=("given_names", "targets", "max_correction"),
            ),
        )

    @cached_property
    def mix_order(self) -> MixOrder:
        size = INFINITE
        scheme: Scheme = self._scheme
        if isinstance(self.unit, ItemCost):
            return MixOrder(_OrderWhenRead(self), size, in_sequence=False)
        if not self.is_endless:
            sizes = [dataset.size for dataset in self.inputs]
            limits = slot_limits(sizes, self.stop, self.max_epochs)
            scheme, size = stopped_scheme(scheme, limits, self.stop)
        return MixOrder(scheme, size)

    @cached_property
    def _scheme(self) -> Scheme:
        if not isinstance(self.scheme, str):
            return self.scheme
        scheme: WeightedScheme
        if self._measured is not None:
            scheme = cost_scheme(self.weights, self._measured.lines())
        else:
            # Of a unit that is known when items are read, only the shares are used.
            name = self.scheme if self.unit is None else "exact"
            scheme = make_scheme(name, self.weights, key=self.key, **self.options)
        for slot, weights in self.changes:
            scheme = scheme.with_weights_from(slot, weights)
        return scheme

    @cached_property
    def _measured(self) -> MeasuredInputs | None:
        if isinstance(self.unit, ColumnCost):
            return MeasuredInputs(self.unit, self.inputs)
        return None

    def settings(self) -> dict[str, Any]:
        """Return the parameters as JSON.

        Includes digests of the costs of samples, as new costs change the order.
        """
        settings = super().settings()
        if self.unit is None:
            del settings["unit"]
        if self._measured is not None:
            settings["costs"] = self._measured.digests()
        return settings

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Remove changes of weights at slots after the first `n` items."""
        scheme = self._scheme
        if not self.is_endless or not isinstance(scheme, WeightedScheme):
            return saved, now
        try:
            earlier = scheme.as_described(saved["weights"], saved["changes"])
            differs = earlier.first_difference(scheme, n) is not None
        except (KeyError, TypeError, ValueError):  # damaged: reported as different
            return saved, now
        if differs:
            return saved, now
        return {**saved, "weights": now["weights"], "changes": now["changes"]}, now

    def check(self) -> None:
        """Check the parameters, so that faults are raised before the first item."""
        if not isinstance(self.scheme, str):
            self._check_scheme_object(self.scheme)
        self._check_not_empty()
        if self.sized:
            _ = self.size
        if self.targets is not None:
            self._check_targets()

    def _check_scheme_object(self, scheme: Any) -> None:
        check_scheme_object(scheme, self.given_names)
        drops_out = self.stop == "all_exhausted" or any(self.max_epochs)
        if numbers_only(self.weights) is None or (
            drops_out and self.stop != "first_exhausted"
        ):
            raise ConfigError(
                "schedules, all_exhausted and max_epochs need the name of a scheme, "
                "not an object. Pass scheme='even', for example"
            )
        if self.options:
            raise ConfigError(
                f"{sorted(self.options)} cannot be set for a scheme object. Set them "
                "in the scheme object"
            )

    def _check_not_empty(self) -> None:
        filled = [not dataset.sized or dataset.size > 0 for dataset in self.inputs]
        for number, weight in enumerate(self.weights):
            if (
                filled[number]
                or not ever_positive(weight)
                or self.stop == "all_exhausted"
            ):
                continue
            sources = self.inputs[number].sources
            names = ", ".join(repr(source.name) for source in sources)
            raise EmptyDatasetError(
                f"dataset {number} has weight {weight} and no items (it reads "
                f"{names}). Remove it, or set its weight to 0"
            )
        if not any(filled):
            raise EmptyDatasetError("all datasets are empty")

    def spent(self, n: int) -> list[float]:
        """Return the cost of the first `n` items of the blend, by input.

        Args:
            n: Number of items.

        Returns:
            A cost for each of `inputs`, in the unit of the blend.

        Raises:
            NotIndexedError: If costs are unknown until items are read.

        Example:
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
        counts = self.taken(n)
        if counts is None:
            raise tree.not_indexed(self, "costs that are known before it is read")
        return [float(count) for count in counts]

    def shares(self, slot: int = 0) -> list[float]:
        """Return the requested share of each input at a slot.

        Args:
            slot: Slot of the blend; only relevant if weights change.

        Returns:
            Weights divided by their sum, in the order of `inputs`, in the unit of the
            blend.
        """
        if isinstance(self._scheme, WeightedScheme):
            return self._scheme.shares(slot)
        return cast("list[float]", shares_at(self.weights, [slot])[0].tolist())

    def due(self, items: int | None) -> FloatArray | None:
        """Return the requested number of items of each input among the first items.

        Stop rules are not included: their effect is a difference between requested and
        delivered shares.

        Args:
            items: Number of items. None for the shares.

        Returns:
            Items of each input, float64, shape (num_inputs,); costs if the unit is a
            cost and shares change. None if unknown.
        """
        named = isinstance(self.scheme, str)
        eras = cast("Any", self._scheme).eras if named else [Era(0, self.weights)]
        if self.unit is not None:
            return self._due_in_cost(eras, items)
        if items is None:
            return _constant_shares(eras[0]) if not self.changes else None
        if not self.sized or self.size == INFINITE:
            return integrated_shares(eras, items)
        epochs, rest = divmod(items, max(self.size, 1))
        due = integrated_shares(eras, rest)
        return due + epochs * integrated_shares(eras, self.size) if epochs else due

    def _due_in_cost(self, eras: Sequence[Era], items: int | None) -> FloatArray | None:
        """Return requested costs; None while weights change gradually."""
        shares = [_constant_shares(era) for era in eras]
        if any(row is None for row in shares):
            return None
        if len(eras) == 1:
            return shares[0] if items is None else cast("FloatArray", shares[0]) * items
        if items is None or not (self.indexed and self.sized):
            return None
        costs = self._costs_of(eras, items)
        return np.asarray(costs @ np.array(shares, dtype=np.float64))

    def _costs_of(self, eras: Sequence[Era], items: int) -> FloatArray:
        """Return the cost of the first `items` items in each era."""
        ends = [*(era.start for era in eras[1:]), items]
        spent = [sum(self.spent(min(end, items))) for end in ends]
        return np.diff(spent, prepend=0.0)

    def with_weights_from(
        self,
        slot: int,
        weights: Sequence[Weight] | Mapping[str, Weight] | WeightScheduler,
    ) -> Self:
        """Return the same blend with other weights from a slot on.

        Items before the slot stay the same, and a state that was saved before the slot
        can be loaded into the new blend. If the blend ends, weights change at the same
        slot of each epoch.

        Args:
            slot: The first slot with the new weights.
            weights: Weights in the order of `inputs`, or by `names`. Steps of schedules
                count from the start of the blend.

        Raises:
            ConfigError: If an earlier change is at a later slot, or `scheme` is an
                object.
            WeightError: For invalid weights.

        Example:
            >>> from energize import BlendDataset, ListSource
            >>> blend = BlendDataset(
            ...     {"a": ListSource("a"), "b": ListSource("b")},
            ...     weights={"a": 1, "b": 1},
            ... )
            >>> changed = blend.with_weights_from(100, {"a": 9, "b": 1})
            >>> changed.at(range(100)) == blend.at(range(100)), changed.taken(200)
            (True, [140, 60])
        """
        if not isinstance(self._scheme, WeightedScheme):
            raise ConfigError(
                "the weights of a scheme object cannot change at a slot. Pass the "
                "scheme by name, or a scheme with other weights"
            )
        with raised_as(type(self).__name__):
            if isinstance(weights, Mapping | WeightScheduler):
                weights = by_name(weights, self.names)
            changed = self._scheme.with_weights_from(slot, weights)
        other = self.replace(changes=changed.changes, _scheme=changed)
        other.check()
        return other

    def corrections(self, slot: int = 0) -> list[float]:
        """Return the loss weight of the items of each input at a slot.

        Args:
            slot: Slot of the blend; only relevant if weights change.

        Returns:
            target share / drawn share of each input, at most `max_correction`; 1.0
            without target weights.

        Example:
            >>> from energize import BlendDataset, ListSource
            >>> web = ListSource(["a"], name="web")
            >>> code = ListSource(["b"], name="code")
            >>> BlendDataset((web, 3), (code, 1), target_weights=[1, 1]).corrections()
            [0.6666666666666666, 2.0]
        """
        if self.targets is None:
            return [1.0] * len(self.inputs)
        most = np.inf if self.max_correction is None else self.max_correction
        targets = shares_at(self.targets, [slot])[0].tolist()
        factors = []
        for target, share in zip(targets, self.shares(slot), strict=True):
            factors.append(float(min(target / share, most)) if share else 1.0)
        return factors

    def _check_targets(self) -> None:
        """Check that shares are known at every slot, and log the effect of targets.

        The effective sample size is (sum of loss weights)**2 / (sum of their squares).
        """
        ends = self.stop == "all_exhausted" or any(self.max_epochs) or not self.sized
        if ends or isinstance(self.unit, ItemCost):
            raise ConfigError(
                "target_weights need shares that are known in advance. They are not "
                "known if a dataset can be exhausted (stop='all_exhausted', "
                "max_epochs, ends of streams), or with a unit that is measured from "
                "items. Set sample_weight of the datasets instead"
            )
        factors = np.array(self.corrections())
        drawn = np.array(self.shares())
        squares = float(drawn @ factors**2)
        shown = [f"{factor:.4g}" for factor in factors[:8]]
        shown += ["..."] * (len(factors) > 8)
        size = 100 * float(drawn @ factors) ** 2 / squares if squares else 0.0
        text = (
            "%s: target weights multiply items by the factors %s. The effective "
            "sample size is "
        )
        text += "%.1f%% of the samples"
        _log.info(text, type(self).__name__, ", ".join(shown), size)

    def make(self, items: list[Any], request: Request) -> list[T_co | Failed]:
        """Weigh items by target share / drawn share at their slot.

        These are the weights of importance sampling (Kahn and Marshall, 1953),
        truncated at `max_correction` (Ionides, 2008).
        """
        positions = request.positions
        slots = positions if self.size == INFINITE else positions % self.size
        inputs, _ = self.mix_order.scheme.locate(positions)
        weighted: list[T_co | Failed] = []
        for item, slot, number in zip(
            items, slots.tolist(), inputs.tolist(), strict=True
        ):
            if isinstance(item, Failed):
                weighted.append(item)
                continue
            factors = self._fixed_corrections or self.corrections(slot)
            weighted.append(weighed(item, factors[number], batched=self._of_batches))
        return weighted

    @cached_property
    def _of_batches(self) -> bool:
        return all(map(gives_batches, self.inputs))

    @cached_property
    def _fixed_corrections(self) -> list[float] | None:
        """The factors, if they are the same at all slots."""
        if self.changes or numbers_only(self.weights) is None:
            return None
        if numbers_only(self.targets or ()) is None:
            return None
        return self.corrections()

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        if self.targets is None:
            return self._open_mix(opening)
        return ContentStream(self, self._open_mix, opening, draws=False)

    def _open_mix(self, opening: Opening) -> LaneStream[T_co]:
        if self.sized and not isinstance(self.unit, ItemCost):
            return super().open_pass(opening)
        begin: BeginSlots = partial(SchemeSlots, self._scheme)
        if isinstance(self.unit, ItemCost):
            scheme = cast("WeightedScheme", self._scheme)
            begin = partial(OwedSlots, scheme, self.unit, opening, key=self.key)
        return MixedStream(self, begin, self._pass_limits(), opening)

    def _pass_limits(self) -> PassLimits:
        default = None if self.stop == "restart" else 1
        weights = zip(
            self.weights, *(changed for _, changed in self.changes), strict=True
        )
        passes: list[int | None] = []
        for limit, over_time in zip(self.max_epochs, weights, strict=True):
            if any(map(ever_positive, over_time)):
                passes.append(default if limit is None else limit)
            else:
                passes.append(0)
        leaves_out = self.stop != "first_exhausted"
        return PassLimits(tuple(passes), leaves_out)


class _OrderWhenRead:
    """The scheme of a blend without an order before items are read."""

    def __init__(self, blend: BlendDataset[Any]) -> None:
        self._blend = blend

    def counts(self, n: object) -> Never:
        wanted = "positions that are known before it is read"
        raise tree.not_indexed(self._blend, wanted)

    locate = counts


def _named_scheme(scheme: str | Scheme | None, options: Mapping[str, Any]) -> Any:
    """Return a scheme object, or the name of a scheme that has the options."""
    if scheme is None or isinstance(scheme, str):
        check_names(options, option_names(scheme or "block"), BlendDataset)
    if scheme is None:
        return "block" if "block_size" in options else "even"
    return scheme


def _constant_shares(era: Era) -> FloatArray | None:
    """Return the shares of an era; None if they change."""
    return None if era.points else cast("FloatArray", shares_at(era.weights, [0])[0])


def _flattened(
    entries: Sequence[MixEntry],
    scheme: str,
    options: dict[str, Any],
    unit: Unit | None,
) -> list[MixEntry]:
    """Return entries in which nested blends are replaced by their inputs.

    Only blends with the same scheme and unit are replaced. Weights are multiplied, and
    so are target weights, which default to the weights.
    """
    flat: list[MixEntry] = []
    for entry in entries:
        inner, weighted = without_weights(entry.dataset)
        if not _is_open(inner, scheme, options, unit):
            flat.append(entry)
            continue
        has_target = entry.target is not None or inner.targets is not None
        for number, dataset in enumerate(inner.inputs):
            name = inner.given_names[number]
            if entry.name is not None:
                name = f"{entry.name}/{inner.names[number]}"
            weight = weight_within(entry.weight, inner.weights, number)
            target = None
            if has_target:
                targets = inner.targets or inner.weights
                target = weight_within(entry.loss_weight, targets, number)
            flat.append(MixEntry(weighted(dataset), weight, None, name, target))
    return flat


def _is_open(
    dataset: Any, scheme: str, options: dict[str, Any], unit: Unit | None
) -> bool:
    """Return whether an outer blend can replace a dataset by its inputs.

    True for endless blends. With schemes without weights, shares would change.
    """
    return (
        type(dataset) is BlendDataset
        and dataset.is_endless
        and not dataset.changes
        and dataset.max_correction is None
        and scheme not in WEIGHTLESS
        and isinstance(dataset.scheme, str)
        and (dataset.scheme, dataset.options, dataset.unit) == (scheme, options, unit)
    )
