"""Other weights while a run goes on: from which step, agreed on by all ranks, kept in the state."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from energize.core.blends import (
    FoundBlend,
    chosen_blend,
    numbers_by_name,
    same_shares,
    slot_after,
    ungrouped,
)
from energize.core.checks import whole_number
from energize.core.dataset import Dataset
from energize.core.description import digest
from energize.core.lanes import Ranks, WorkerConfig
from energize.errors import ConfigError, LoaderError
from energize.loader.agreement import Agreement
from energize.loader.deciding import Decisions
from energize.loader.edits import Change, Edits
from energize.loader.feeds import Feed, Opening, Place, ignore
from energize.loader.following import Follower, Policy
from energize.loader.probing import first_unread_slot
from energize.loader.settings import LoaderSettings
from energize.loader.streams import StreamState
from energize.loader.weights_file import WeightsFile

_log = logging.getLogger("energize")


class LiveWeights(ABC):
    """A loader whose weights may change while it is read."""

    worker_config: WorkerConfig
    dataset: Dataset[Any]
    _settings: LoaderSettings
    _opening: Opening[Any]
    _decisions: Decisions
    _feed: Feed[Any] | None
    _iterator: object
    _resume: Place | None
    _before: Place | None
    _ranks: Ranks | None
    _stale: bool
    _watched: WeightsFile | None

    @property
    @abstractmethod
    def last_sources(self) -> list[str]: ...

    @abstractmethod
    def _place(self) -> Place: ...

    @abstractmethod
    def _open(self, ranks: Ranks) -> Feed[Any]: ...

    @abstractmethod
    def _let_go(self) -> None: ...

    @abstractmethod
    def _agreement(self, ranks: Ranks) -> Agreement | None: ...

    @property
    def step(self) -> int:
        """The number of the next step, from 0 on: the items delivered to all ranks by the number of
        ranks there are now, rounded up. So it counts this run's steps where ranks stay as many, and
        padding does not count. Of a stream whose length only reading tells, the steps of the epoch.
        """
        return self._step_of(self._next_place())

    def set_weights(
        self, weights: Mapping[str, float], at_step: int | None = None, *, blend: str | None = None
    ) -> None:
        """Other weights of a blend from a step on; every step before has the items it had.

        `weights` are given for all that the blend is over, by its `names`; where these are paths,
        "texts/code" say, also for "texts" as a whole, in which shares stay. `at_step` counts as
        `step` does; None is the next step, whatever has been read ahead. Where the dataset has
        several blends, and the names are not those of just one, `blend` says which: by what the
        blends above it call it, "texts" or "texts/code"; the outermost is "".

        All ranks call it after the same number of steps and say the same. The change is logged,
        kept in the state by names, and made anew where that is loaded, on any ranks and workers. In
        an indexed dataset it acts with the first sample of the step. Below what finds its items by
        reading (packing, a filter), the step does not say which slot of the blend comes next: there
        it acts from the first slot on that no lane has come to, which the log tells. A second
        change at the same place takes the place of the first.

        Raises `WeightError` for weights that are none, or do not name what the blend is over;
        `ConfigError` for a blend that is not there or ends, and for a step that has been delivered;
        `LoaderError` naming the ranks that say something else, and where not all of them call it
        within the loader's `timeout`.

        >>> from energize import BlendDataset, ListSource, get_loader
        >>> web, code = ListSource("w", name="web"), ListSource("c", name="code")
        >>> loader = get_loader(BlendDataset((web, 1), (code, 1)))
        >>> items = []
        >>> for item in loader:
        ...     items.append(item)
        ...     if len(items) == 100:
        ...         loader.set_weights({"web": 3, "code": 1})
        ...     if len(items) == 200:
        ...         break
        >>> items[:100].count("w"), items[100:].count("w")
        (50, 75)
        """
        ranks = self._ranks_now()
        place = self._next_place()
        self._check_alike(ranks, weights, at_step, blend)
        numbers = numbers_by_name(weights)
        found = chosen_blend(self._opening.dataset, numbers, blend)
        if not getattr(found.blend, "_endless", True):
            raise ConfigError(
                f"{found.label} ends (stop={found.blend.stop!r}, or max_epochs), and where its "
                "epochs end goes by its weights: they can change only in one that never ends. Use "
                "stop='restart', and cut epochs with EpochizeDataset or virtual_epoch_length"
            )
        now = self._step_of(place)
        step = now if at_step is None else whole_number(at_step, 0)
        if step is None:
            raise ConfigError(f"at_step is a whole number, 0 or more, or None; got {at_step!r}")
        if step < now:
            raise ConfigError(
                f"step {step} has been delivered: {now} steps have been made, so a change can act "
                f"from step {now} on, which is the next one (at_step=None)"
            )
        items = self._opening.items_at(place) + (step - now) * ranks.world_size
        slot = slot_after(self._opening.dataset, found.way, items)
        if slot is None and step > now:
            change = Change(found.name, items, tuple(numbers.items()), waits=True)
            self._edit(self._opening.edits.with_change(change))
            self._tell(found, numbers, step, items)
            return
        slot = self._unread_slot(place, found, ranks) if slot is None else slot
        self._change(found, numbers, slot, step)

    def follow(self, policy: Policy, *, every: int = 100, blend: str | None = None) -> Follower:
        """Have the weights of a blend follow the loss: `Follower.observe` is told the losses of
        every step, and every `every` steps the `policy` is asked for weights, which act from the
        next step on. See `energize.mixing` for policies.

        `blend` says which blend, as in `set_weights`; by default the outermost one. Raises
        `ConfigError` for what is no policy, and where there is no such blend.

        >>> from energize import BlendDataset, ExcessLoss, ListSource, get_loader
        >>> web, code = ListSource("w", name="web"), ListSource("c", name="code")
        >>> loader = get_loader(BlendDataset((web, 1), (code, 1)))
        >>> policy = ExcessLoss({"web": 1.0, "code": 1.0}, temperature=0.5)
        >>> follower = loader.follow(policy, every=10)
        >>> for step, item in zip(range(10), loader):
        ...     loss = 2.0 if item == "w" else 1.5  # of this sample
        ...     weights = follower.observe([loss])
        >>> weights
        {'web': 0.73..., 'code': 0.26...}
        """
        return Follower(self, policy, every, blend)

    def watch_weights(self, file: str | os.PathLike[str] | WeightsFile, every: int = 50) -> None:
        """Take over the weights that an operator writes into a file, see `WeightsFile`; the first
        rank looks at it every `every` steps.

        Raises `ConfigError` with uneven='allow': ranks that make different numbers of steps cannot
        look at the same ones.
        """
        if self._settings.uneven == "allow":
            raise ConfigError(
                "a file of weights is told to all ranks at the same steps, and with uneven='allow' "
                "they make different numbers of them; use uneven='pad'"
            )
        self._watched = file if isinstance(file, WeightsFile) else WeightsFile(file, every)

    def has_set(self, weights: Mapping[str, float], at_step: int | None, blend: str | None) -> bool:
        """Whether a change has set these weights: the last one that acts, or where `at_step` is
        given any one.
        """
        changes = [each for each in self._opening.edits.changes if blend in (None, each.blend)]
        said = changes if at_step is not None else changes[-1:]
        return any(same_shares(each.by_name, weights) for each in said)

    def talking(self) -> Agreement | None:
        """How this rank talks with the others; None where it cannot, or is the only one."""
        return self._agreement(self._ranks_now())

    def _before_step(self) -> None:
        """What is due before the next step."""
        if self._watched is not None:
            self._watched.look(self)
        if not self._opening.edits.waiting:
            return
        place = self._next_place()
        for change in self._opening.edits.waiting:
            if change.at <= self._opening.items_at(place):
                dataset = self._opening.dataset
                found = chosen_blend(dataset, change.by_name, change.blend)
                slot = self._unread_slot(place, found, self._ranks_now())
                step, edits = self._step_of(place), self._opening.edits.without(change)
                self._change(found, change.by_name, slot, step, edits)

    def _change(
        self,
        found: FoundBlend,
        weights: Mapping[str, float],
        slot: int,
        step: int,
        edits: Edits | None = None,
    ) -> None:
        """Have a blend change at a slot, by what `edits` are to be kept, and say so."""
        asked = ungrouped(found.blend, weights, slot)
        kept = self._opening.edits if edits is None else edits
        self._edit(kept.with_change(Change(found.name, slot, tuple(asked.items()))))
        self._tell(found, asked, step, slot, known=True)

    def _edit(self, edits: Edits) -> None:
        """Go on with a dataset that has these edits; what was read ahead is read anew."""
        self._opening = self._opening.edited(edits)
        self.dataset = self._opening.dataset
        feed, token, before = self._feed, self._iterator, self._before
        if feed is None or feed.loop_ended:
            self._stale = feed is not None
            return
        self._let_go()
        self._feed = self._open(self._ranks_now())
        self._feed.padding = feed.padding
        self._iterator, self._before = token, before

    def _unread_slot(self, place: Place, found: FoundBlend, ranks: Ranks) -> int:
        """The first slot that no lane of any rank has come to."""
        lanes = cast("StreamState", place)  # of an indexed dataset the slot is known
        reading = self._decisions.reading(ignore)
        slot = first_unread_slot(self._opening.dataset, lanes, found, reading)
        agreement = self._agreement(ranks)
        if agreement is None:
            return slot
        return max(n for (n,) in agreement.numbers([slot], "a change of weights"))

    def _check_alike(self, ranks: Ranks, *said: Any) -> None:
        """Raises `LoaderError` on all ranks unless all say the same at the same step."""
        agreement = self._agreement(ranks)
        if agreement is None:
            return
        mine = [self.step, *said]
        number = int(digest(repr(mine))[:12], 16)
        found = [each for (each,) in agreement.numbers([number], "set_weights")]
        if len(set(found)) == 1:
            return
        told = agreement.trees([str(self.step), *(str(each)[:200] for each in said)], "set_weights")
        groups: dict[str, list[int]] = {}
        for rank, (step, weights, at, name) in enumerate(told):
            text = f"{weights}, at_step={at}, blend={name}, before step {step}"
            groups.setdefault(text, []).append(rank)
        shown = "\n".join(f"  ranks {who}: {text}" for text, who in groups.items())
        raise LoaderError(
            f"set_weights: all ranks call it after the same number of steps and say the same; "
            f"nothing was changed. They said\n{shown}"
        )

    def _tell(
        self,
        found: FoundBlend,
        asked: Mapping[str, float],
        step: int,
        slot: int,
        *,
        known: bool = False,
    ) -> None:
        if self._ranks_now().rank:
            return
        total, shares = sum(asked.values()), found.blend.by_name(found.blend.shares(slot))
        told = ", ".join(
            f"{name} {shares[name]:.4g} -> {weight / total:.4g}"
            if name in shares
            else f"{name} {weight / total:.4g}"
            for name, weight in asked.items()
        )
        where = f"slot {slot} of {found.label}" if known else "the slot is found then"
        text = "the weights of %s change from step %d on (%s): shares %s; weights %s"
        _log.info(text, found.label, step, where, told, json.dumps(dict(asked)))

    def _next_place(self) -> Place:
        """Where the next item comes from: after the last one given, whatever the state is."""
        return self._place() if self._feed is None else self._feed.state()

    def _step_of(self, place: Place) -> int:
        return -(-self._opening.items_at(place) // self._ranks_now().world_size)

    def _ranks_now(self) -> Ranks:
        running = self._ranks if self._feed is not None else None
        return running or self.worker_config.ranks()
