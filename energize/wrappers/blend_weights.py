"""The weights of a blend over time: the shares they ask for, and changes from a slot on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from energize.description import Description
from energize.errors import ConfigError, WeightError
from energize.order.protocol import Scheme
from energize.order.schedule import WeightScheduler, names_apart
from energize.order.varying import Weight, shares_at
from energize.order.weighted import WeightedScheme
from energize.outline import Outline
from energize.wrappers.checks import raised_as


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
