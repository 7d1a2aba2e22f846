"""Datasets that are drawn by one distribution and count in the loss by another."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import INFINITE, State
from energize.dataset import IndexedDataset
from energize.errors import ConfigError, WeightError
from energize.order.schedule import Schedule
from energize.order.varying import Product, Share, Sum, Weight, ever_positive, shares_at
from energize.order.weights import exact_weight
from energize.passing import PassingStream
from energize.reading import Failed, Reading
from energize.sample_weights import checked_factor, weighed
from energize.streaming import Stream
from energize.topology import Lane
from energize.wrappers.blend_parts import Part, PerDataset, numbers_only, one_per_dataset
from energize.wrappers.sample_weight import gives_batches

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize")


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
        moving = isinstance(target, Schedule | Share | Product | Sum)
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
