"""What a loader says of what it delivered: its ledger."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rich.console import Console

from energize.core.dataset import Dataset
from energize.core.lanes import Ranks, WorkerConfig
from energize.core.stream import INFINITE
from energize.errors import ConfigError
from energize.ledger import Book, Ledger, Report, Stand
from energize.loader.agreement import Agreement
from energize.loader.failures import FailureLog
from energize.loader.feeds import Feed, Place
from energize.loader.streams import StreamState

_log = logging.getLogger("energize")


class Deliveries:
    """Notes what a loader delivers, unless its ledger is switched off."""

    def __init__(self, dataset: Dataset[Any], settings: Ledger | bool) -> None:
        given = Ledger() if settings is True else settings
        self._settings = given
        self.book = None if given is False else Book(dataset, given)
        self._given_at: float | None = None
        self._warned: set[str] = set()
        self._at_close: list[Callable[[], None]] = []

    def begin(self, dataset: Dataset[Any], place: Place) -> None:
        """Reading begins, or goes on, at a place."""
        if self.book is not None:
            self.book.begin(dataset, items_of(dataset, place))

    def begin_loop(self) -> None:
        """What the program did between two loops is no time of theirs."""
        self._given_at = None

    def note(self, feed: Feed[Any], item: Any, asked_at: float) -> None:
        """An item was delivered that was asked for at a time."""
        if self.book is None:
            return
        now = time.perf_counter()
        counter = self.book.counter
        counter.wait(now - asked_at, now - (self._given_at or asked_at))
        counter.note(feed.made, item, padding=feed.padding)
        self._given_at = now

    def take_back(self) -> None:
        """The last item will be delivered again."""
        if self.book is not None:
            self.book.counter.take_back()

    def forget(self) -> None:
        """Begin anew where reading next begins: another place was chosen."""
        if self.book is not None:
            self.book.forget()

    def call_at_close(self, close: Callable[[], None]) -> None:
        """Have it called when the loader is closed."""
        self._at_close.append(close)

    def close(self) -> None:
        """End what was to end with the loader."""
        while self._at_close:
            self._at_close.pop()()

    def opened(self) -> Book:
        """The book; `ConfigError` where there is none."""
        if self.book is None:
            raise ConfigError("this loader keeps no ledger: it was made with ledger=False")
        return self.book

    def tell_new(self, report: Report) -> None:
        """Log warnings that were not logged before."""
        for warning in report.warnings:
            what = warning.partition(" has ")[0]
            if what not in self._warned:
                self._warned.add(what)
                _log.warning("ledger: %s", warning)


class Reporting(ABC):
    """The part of a loader that reports."""

    dataset: Dataset[Any]
    worker_config: WorkerConfig
    _deliveries: Deliveries
    _failures: FailureLog
    _feed: Feed[Any] | None
    _ranks: Ranks | None

    @abstractmethod
    def _place(self) -> Place: ...

    @abstractmethod
    def _agreement(self, ranks: Ranks) -> Agreement | None: ...

    def report(self, *, all_ranks: bool = False, show: bool = True) -> Report:
        """What was asked for, planned and delivered of each part of the mix, by name.

        It is printed, unless `show` is False; `report(show=False).to_dict()` is for a log. Counted
        is what this rank was given; with `all_ranks`, which all of them have to call at the same
        step, what all were given together, and the first of them prints it. A resumed run over an
        indexed dataset reports all of it: what came before is known by its order; a stream what
        was delivered since. `load_state_dict` and `rewind` begin anew.

        A difference that chance does not explain is a warning in the report, with its cause, and
        logged once. Raises `ConfigError` for a loader that was made with `ledger=False`, and for
        ranks that have no process group to sum over; `LoaderError` when not all ranks call it
        within the `timeout` of the loader.

        >>> from energize import BlendDataset, ListSource, get_loader
        >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
        >>> loader = get_loader(BlendDataset(parts, weights={"web": 3, "code": 1}))
        >>> for step, sample in zip(range(40), loader): pass
        >>> report = loader.report(show=False)
        >>> report["web"].asked, report["web"].delivered, round(report["code"].epochs, 2)
        (0.75, 0.75, 1.11)
        """
        book = self._deliveries.opened()
        ranks = self._ranks or self.worker_config.ranks()
        place = self._place() if self._feed is None else self._feed.reached
        if not book.begun:
            self._deliveries.begin(self.dataset, place)
        stand = Stand(items_of(self.dataset, place), ranks.rank, ranks.world_size)
        summed = None
        if all_ranks and ranks.world_size > 1:
            agreement = self._agreement(ranks)
            if agreement is None:
                raise ConfigError(
                    f"report(all_ranks=True): the {ranks.world_size} ranks have no process group "
                    "to sum over. Initialise torch.distributed, or ask each rank for its report"
                )
            numbers = book.numbers(stand, self._failures.left_out)
            summed = agreement.summed(numbers, "the report of a ledger")
        failed, left_out = self._failures.summary(), self._failures.left_out
        reasons = {**failed.kinds, **{f"skipped: {r}": n for r, n in left_out.reasons.items()}}
        report = book.report(stand, summed=summed, left_out=left_out, reasons=reasons)
        self._deliveries.tell_new(report)
        if show and (not all_ranks or not ranks.rank):
            Console().print(report)
        return report

    def call_at_close(self, close: Callable[[], None]) -> None:
        """Have a function called once when the loader is closed."""
        self._deliveries.call_at_close(close)

    @property
    def last_sources(self) -> list[str]:
        """The names of the sources of the samples of the last delivered item, one for each sample
        in their order; none of padding, and before the first item.

        Names are those of the report: what the blends above call a part, such as "web/news".
        """
        return self._deliveries.opened().last()


def items_of(dataset: Dataset[Any], place: Place) -> int | None:
    """How many items all ranks were given up to a place; None of a stream whose epochs have ended
    somewhere.
    """
    if not isinstance(place, StreamState):
        position: int = place["position"]
        return position
    if not place.epoch:
        return place.position
    if dataset.sized and dataset.size != INFINITE:
        return place.epoch * dataset.size + place.position
    return None
