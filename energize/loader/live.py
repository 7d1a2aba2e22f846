"""Weights that change while a run goes on.

A change is a slot of a blend and weights. A change of a later step waits for that step:
changes before it may move the step to another slot. Below a dataset that finds its
items by reading, the slot is unknown until then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from energize.core.blends import (
    Change,
    Edits,
    NamedBlend,
    checked_request,
    chosen_blend,
    slot_after,
    ungrouped,
)
from energize.core.lanes import Ranks
from energize.core.stream import MOST_COUNTED
from energize.errors import ConfigError, legible
from energize.loader.agreement import Agreement
from energize.loader.position import RunPosition
from energize.loader.run import Run, check_goes_on, check_same_change

_log = logging.getLogger("energize")


@dataclass(frozen=True)
class LiveRun:
    """A run at a position, between two steps.

    Attributes:
        run: The run.
        position: The position of the next item.
        ranks: This rank.
        agreement: The agreement with other ranks; None if there is none.
    """

    run: Run[Any]
    position: RunPosition
    ranks: Ranks
    agreement: Agreement | None

    @property
    def items(self) -> int:
        """Number of items of all ranks before the position."""
        return self.run.items_at(self.position)

    @property
    def step(self) -> int:
        """The number of the next step."""
        return -(-self.items // self.ranks.world_size)

    def settled(self) -> LiveRun:
        """Return the run after all changes that are due."""
        live = self
        for change in self.run.edits.waiting:
            if change.at <= live.items:
                live, _ = live.with_effect(change, live.run.edits.without(change))
        return live

    def with_weights(
        self,
        weights: Mapping[str, float],
        at_step: Any,
        blend: str | None,
        *,
        of_file: bool,
    ) -> tuple[LiveRun, int]:
        """Request new weights of a blend from a step on; see `Loader.set_weights`.

        Args:
            weights: The weights by name.
            at_step: The step; None is the next step.
            blend: The name of the blend; None to infer it from the names of the
                weights.
            of_file: Whether the weights are those of a `WeightsFile`.

        Returns:
            The run after the request and after all changes that are due, and the step
            at which the weights act.

        Raises:
            WeightError: If the weights are unusable.
            ConfigError: If the blend or the step is unusable.
            LoaderError: If the ranks request different changes.
        """
        numbers, step, name = self._agreed(weights, at_step, blend)
        named = chosen_blend(self.run.dataset, numbers, name)
        check_goes_on(self.run.dataset, named)
        step = self.step if step is None else step
        items = self._items_at_step(step)
        live = self.settled()
        change = Change(named.name, items, numbers, step > self.step, of_file)
        if step == self.step:
            return live.with_effect(change, live.run.edits)
        slot = slot_after(live.run.dataset, named.way, items)
        if slot is None:  # refuse now what would be refused when the step has come
            acting, _ = live.acting_change(change, live.run.edits)
            live.run.edited(live.run.edits.with_change(acting), live.items)
        changed = live.edited(live.run.edits.with_change(change))
        acts = changed.acting_step(named, items, slot)
        changed.log_change(named, numbers, acts, slot)
        return changed, acts

    def acting_step(self, named: NamedBlend, items: int, slot: int | None) -> int:
        """Return the step at which new weights of a blend act.

        That is the step of the first item that uses their slot. Planned packs, for
        example, use the slots of a whole window at once.

        Args:
            named: The blend.
            items: Number of items of all ranks after which the weights change.
            slot: The slot; None if it is unknown until then.
        """
        low = items
        high = items + 1
        if slot is not None:
            while self._uses(named, high) <= slot and high - items < MOST_COUNTED:
                low = high
                high += high - items
            while high - low > 1:
                middle = (low + high) // 2
                is_before = self._uses(named, middle) <= slot
                low, high = (middle, high) if is_before else (low, middle)
        if low - items >= MOST_COUNTED // 2:  # no item uses it
            low = items
        return self.step + (low - self.items) // self.ranks.world_size

    def _uses(self, named: NamedBlend, items: int) -> int:
        """Return how many slots of a blend the first items use."""
        return slot_after(self.run.dataset, named.way, items) or 0

    def _agreed(
        self, weights: Mapping[str, float], at_step: Any, blend: str | None
    ) -> tuple[dict[str, float], int | None, str | None]:
        """Return a request after all ranks have made the same one."""
        fault: ConfigError | None = None
        try:
            numbers, step, name = checked_request(weights, at_step, blend)
            text = f"{numbers}, at_step={step}, blend={name}"
        except ConfigError as error:
            fault = error  # raised when all ranks have compared their requests
            text = str(error)
        if self.agreement is not None:
            check_same_change(self.agreement, self.step, text)
        if fault is not None:
            raise fault
        return numbers, step, name

    def _items_at_step(self, step: int) -> int:
        """Return the number of items of all ranks before a step."""
        if step < self.step:
            raise ConfigError(
                f"step {step} has been delivered ({self.step} steps are done). Set "
                f"at_step to {self.step} or later, or None for the next step"
            )
        items = self.items + (step - self.step) * self.ranks.world_size
        if items >= MOST_COUNTED:
            raise ConfigError(
                f"at_step={step} of {self.ranks.world_size} ranks is item {items} of "
                f"the run, after the last possible one, {MOST_COUNTED - 1}. Pass an "
                "earlier step"
            )
        return items

    def with_effect(self, change: Change, edits: Edits) -> tuple[LiveRun, int]:
        """Return the run with a change that takes effect now, after other edits.

        Returns:
            The run, and the step at which the weights act.
        """
        acting, named = self.acting_change(change, edits)
        live = self.edited(edits.with_change(acting))
        acts = live.acting_step(named, self.items, acting.at)
        live.log_change(named, acting.weights, acts, acting.at)
        return live, acts

    def acting_change(self, change: Change, edits: Edits) -> tuple[Change, NamedBlend]:
        """Return a change at the slot where it takes effect now, and its blend."""
        run = self.run.edited(edits, self.items)
        named = chosen_blend(run.dataset, change.weights, change.blend)
        slot = slot_after(run.dataset, named.way, change.at)
        if slot is None:
            slot = run.first_unread_slot(self.position, named)
            if self.agreement is not None:
                rows = self.agreement.numbers([slot], "a change of weights")
                slot = max(number for (number,) in rows)
        weights = ungrouped(named.blend, change.weights, slot)
        return Change(named.name, slot, weights, of_file=change.of_file), named

    def edited(self, edits: Edits) -> LiveRun:
        """Return the run over its dataset with other edits."""
        return replace(self, run=self.run.edited(edits, self.items))

    def log_change(
        self,
        named: NamedBlend,
        weights: Mapping[str, float],
        step: int,
        slot: int | None,
    ) -> None:
        """Log a change of weights, on rank 0.

        Args:
            named: The blend.
            weights: Its weights by name from then on.
            step: The step at which they take effect.
            slot: The slot of the blend; None if it is unknown until then.
        """
        if self.ranks.rank or not _log.isEnabledFor(logging.INFO):
            return
        total = sum(weights.values())
        shares = named.blend.by_name(named.blend.shares(slot or 0))
        was = {name: f"{share:.4g} -> " for name, share in shares.items()}
        changes = ", ".join(
            f"{name} {was.get(name, '')}{weight / total:.4g}"
            for name, weight in weights.items()
        )
        location = (
            "the slot is unknown until then"
            if slot is None
            else f"slot {slot} of {named.label}"
        )
        text = "the weights of %s change from step %d on (%s): shares %s; weights %s"
        weights_text = json.dumps(dict(weights))
        _log.info(text, named.label, step, location, legible(changes), weights_text)
