"""The loader: a dataset's items, this rank's part of them, read here or by worker processes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from energize.core.dataset import Dataset
from energize.core.lanes import Ranks, WorkerConfig
from energize.core.lazy import torch
from energize.core.reading import log_failure
from energize.core.restoring import has_place, restore_sample, with_key
from energize.core.stores import activate
from energize.core.stream import State
from energize.errors import EmptyDatasetError, LoaderError
from energize.loader.agreement import Agreement
from energize.loader.deciding import ByHandler
from energize.loader.failures import FailureLog, FailureSummary
from energize.loader.feeds import Feed, Opening, Place, ThisRank
from energize.loader.global_states import GlobalStates
from energize.loader.holding import Holding
from energize.loader.listing import decisions_for
from energize.loader.live import LiveWeights
from energize.loader.remapping import RemapReport
from energize.loader.reporting import Deliveries, Reporting
from energize.loader.settings import LoaderSettings
from energize.loader.state import packed_state, resumed
from energize.loader.streams import Before
from energize.loader.watching import HereWatch, Late
from energize.loader.weights_file import WeightsFile

T = TypeVar("T")

_NOT_COPIED = ("_feed", "_iterator", "_ranks", "_before", "_keyed")
"""What a copy of a loader in another process begins without."""


class Loader(GlobalStates, Reporting, LiveWeights, Generic[T]):
    """Delivers this rank's items of a dataset, epoch after epoch; made by `get_loader`.

    Rank r of W delivers the items r, r + W, r + 2W, ... of the dataset's stream. Neither W nor the
    number of workers changes the stream: the ranks' items, taken in turn, are those of
    `for item in dataset`; of a stream, those of its lanes in turn (see `get_loader`, `lanes`).

    **Steps.** Every rank makes the same number of steps in every epoch. Where the ranks do not
    divide the items of one, `uneven` says what becomes of the last step: `"pad"` fills it with
    copies that say that they are padding (`is_padding`, `Loader.padding`), `"drop"` leaves it out,
    `"repeat"` fills it with items that come a second time, and `"allow"` gives the first ranks one
    step more. With global batches the last of these is filled or left out. `EpochizeDataset` as the
    outermost dataset, or `virtual_epoch_length`, says where a loop ends: it counts the steps that
    each rank makes, and the next loop goes on after them.

    **Position.** A loader has one, that after the last delivered item, and never goes back by
    itself:

    - `for item in loader` delivers up to the end of the epoch, and the next loop the next epoch.
    - After a `break`, the next loop goes on after the last item delivered; `rewind()` goes back to
      the very first.
    - There is one iterator at a time. A new one, `load_state_dict`, `rewind` and `close` end the
      old one, which then raises `LoaderError` instead of giving its next item.

    **Ranks** are taken from `worker_config` when an iteration begins, so a loader may be made, and
    pickled, before the process group exists. Workers live from the first `iter()` to `close()`, the
    end of a `with` block, or the last reference to the loader.
    """

    def __init__(
        self, dataset: Dataset[T], worker_config: WorkerConfig, settings: LoaderSettings
    ) -> None:
        self.dataset = dataset
        self.worker_config = worker_config
        self._settings = settings
        self._failures = FailureLog(settings.failure_budget)
        self._decisions = decisions_for(dataset, worker_config, settings)
        self._resume: Place | None = None
        self._loaded = False
        self._ranks: Ranks | None = None
        self._feed: Feed[T] | None = None
        self._iterator: object = None
        self._stale = False
        self._watched: WeightsFile | None = None
        self.remapped: RemapReport | None = None
        self._owner = os.getpid()
        self._last: deque[tuple[T, Before]] = deque(maxlen=1)
        self._before: Place | None = None
        self._key: tuple[Any, ...] | None = None
        self._keyed: Feed[T] | None = None
        workers = worker_config.num_workers
        self._holding = Holding(settings, workers)
        self._deliveries = Deliveries(dataset, settings.ledger)
        self._opening = Opening(dataset, settings, self._decisions, workers)

    def __iter__(self) -> Iterator[T]:
        if self._owner != os.getpid():
            self._leave_to_parent()
        ranks = self.worker_config.ranks()
        if self._before is not None:  # what was asked for ahead, in a loop that was left
            place = self._before
            self._let_go()
            self._resume = place
            self._deliveries.take_back()
        if self._feed is None or self._stale or ranks != self._ranks or not self._feed.begin_loop():
            self._let_go()
            self._ranks = ranks
            self._feed = self._open(ranks)
        self._iterator = token = object()
        self._deliveries.begin_loop()
        return self._deliver(token)

    def __len__(self) -> int:
        """Steps of a loop on this rank; of an endless dataset, of one pass over what it reads, for
        progress bars. `NotIndexedError` (a TypeError) where only reading tells.
        """
        return self._opening.steps(self.worker_config.ranks())

    @property
    def accumulation_steps(self) -> int:
        """Steps that make one global batch: its size, by that of a micro batch times the ranks.

        1 for a loader without global batches. Raises `ConfigError` when the world size does not fit
        the global batch.
        """
        return self._opening.accumulation_steps(self.worker_config.ranks())

    @property
    def padding(self) -> bool:
        """Whether the last delivered item is padding: a copy that counts for nothing."""
        return self._feed is not None and self._feed.padding

    @property
    def restore_key(self) -> tuple[Any, ...] | None:
        """What `restore_sample` finds the last delivered item by; None before the first.

        It is plain data, to be logged say, and good on any ranks and workers. Samples, batches and
        dicts with an entry `__restore_key__` carry it there.
        """
        return self._key if self._keyed is None else self._keyed.restore_key

    def can_restore_sample(self) -> bool:
        """True: every delivered item can be restored, of any dataset."""
        return True

    def restore_sample(self, restore_key: tuple[Any, ...]) -> T:
        """The item that had this key when it was delivered, by this loader or another one of the
        same dataset: the very same one, read in this process. The loader stays where it is.

        See `energize.restore_sample`, which raises `RestoreKeyError` for what is no such key.
        """
        on_error = self.worker_config.restore_error_handler
        decisions = self._decisions
        if on_error is not None:
            decisions = replace(decisions, on_error=ByHandler(on_error))
        with activate(self._settings.cache_pool):
            reading = decisions.reading(log_failure)
            return cast("T", restore_sample(self.dataset, restore_key, reading=reading))

    def config(self) -> dict[str, Any]:
        """The dataset's description as a JSON-able tree, `dataset.describe()`."""
        return self.dataset.describe()

    @property
    def failures(self) -> FailureSummary:
        """How many samples of this rank failed since the loader was made, and the last of them."""
        return self._failures.summary()

    @property
    def workers_replaced(self) -> int:
        """How many workers died or hung since the loader was made, and others took their places."""
        return self._holding.workers_replaced

    def state_dict(self) -> State:
        """The state after the last delivered item, whatever has been read ahead: plain data, small.
        With `asked_ahead`, before that item, as long as the loop goes on.

        It is the same on all ranks that have made the same number of steps, so one rank saves it
        and any number of ranks and workers resumes from it. The size does not grow with the
        position, and resuming costs the same everywhere. Of a stream on several ranks, all of them
        have to call it at the same step: they tell each other where their lanes stand.
        """
        place, ranks = self._place(), self._ranks or self.worker_config.ranks()
        state = self._opening.saved(place, self._agreement(ranks))
        return packed_state(self._opening.given, state)

    def load_state_dict(
        self, state_dict: State, strict: bool = True, *, on_mismatch: str = "error"
    ) -> None:
        """Go on from a state at the next `iter()`; a state of an epoch's end starts the next one.

        Raises `StateMismatchError` naming what differs when it was saved over another dataset, and
        `StateError` when it cannot be used; the loader then stays where it is. What changes no
        sample (where folders are mounted, functions of other names, where loops end) is a warning;
        without `strict`, so is anything else. Ranks that load different states find out when they
        begin to read.

        With `on_mismatch="remap"` a mix that was edited goes on: every source that is still there
        keeps its place, what was added begins, the weights are those of the mix, and steps and
        schedules go on as they were. `remapped` is then a report of what was added, dropped and
        reweighted, which is logged too. Batches and mixes may be others; what is below packing, a
        filter or stages has no place to keep, nor have sources in another order.
        """
        cursor, report = resumed(
            self._opening.given, state_dict, strict=strict, on_mismatch=on_mismatch
        )
        opening = self._opening.as_saved(cursor)
        place = opening.loaded(cursor)
        self._let_go()
        self._opening, self.dataset = opening, opening.dataset
        self._resume, self._loaded, self.remapped = place, True, report
        self._deliveries.forget()

    save_state_rank = state_dict
    restore_state_rank = load_state_dict

    def rewind(self) -> None:
        """Start at the first item of the first epoch at the next `iter()`."""
        self._let_go()
        self._resume = None
        self._deliveries.forget()

    def close(self) -> None:
        """End the worker processes. The position stays; a later `iter()` starts new ones."""
        self._let_go()
        self._failures.conclude(for_good=True)
        self._holding.close(self._failures)
        self._deliveries.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process goes on from the same place, with workers of its own."""
        resume = self._resume if self._feed is None else self._place()
        failures = FailureLog(self._settings.failure_budget)
        return {
            **self.__dict__,
            **dict.fromkeys(_NOT_COPIED),
            "_resume": resume,
            "_key": self.restore_key,
            "_last": deque(maxlen=1),
            "_deliveries": Deliveries(self.dataset, self._settings.ledger),
            "_failures": failures if self._holding.lists else self._failures,
        }

    def _place(self) -> Place:
        """Where this rank stands."""
        if self._before is not None:
            return self._before
        if self._feed is not None:
            return self._feed.state()
        if self._resume is None:
            self._resume = self._opening.start(self.worker_config.ranks())
        return self._resume

    @property
    def _timeout(self) -> float | None:
        return self._settings.timeout

    def _agreement(self, ranks: Ranks) -> Agreement | None:
        """With the other ranks, where there are any and they can talk."""
        if ranks.group is None or ranks.world_size == 1 or self._settings.apart:
            return None
        return Agreement(ranks, self._settings.timeout)

    def _open(self, ranks: Ranks) -> Feed[T]:
        agreement, place = self._agreement(ranks), self._place()
        if self._loaded and agreement is not None:
            self._opening.check_alike(place, agreement)
        self._loaded = False
        self._holding.begin(ranks, self._failures)
        here = ThisRank(ranks, agreement, self._holding.pool_for, self._failures, self._last)
        self._deliveries.begin(self.dataset, place)
        return self._opening.feed(place, here)

    def _deliver(self, token: object) -> Iterator[T]:
        pin = self._settings.pin_memory is not False and torch.cuda.is_available()
        given, empty_epochs = False, 0
        while True:
            if token is self._iterator:
                self._before_step()
            feed = self._feed
            if token is not self._iterator or feed is None:
                raise LoaderError(
                    "this iterator has ended: the loader was iterated anew, given a state, rewound "
                    "or closed since. A loader has one position and one iterator at a time"
                )
            if self._settings.asked_ahead:
                self._before = feed.state()
            asked_at = time.perf_counter()
            try:
                item = self._next(feed, self._holding.watch)
            except StopIteration:
                self._before = None
                self._failures.conclude()
                # Only by reading on does a stream learn that the item before a resume, or before
                # this loop, was its epoch's last. One that is apart leaves it to who counts loops.
                if given or self._settings.apart or not feed.may_be_over:
                    return
                empty_epochs += 1
                self._check_not_empty(empty_epochs)
                self._let_go()
                self._feed = self._open(self._ranks or self.worker_config.ranks())
                self._iterator = token
            except BaseException:
                self._let_go()
                raise
            else:
                given, self._keyed = True, feed
                self._deliveries.note(feed, item, asked_at)
                if has_place(item):
                    item = with_key(item, feed.restore_key)
                yield _pinned(item) if pin else item

    def _next(self, feed: Feed[T], watch: HereWatch | None) -> T:
        """The next item; where it is read in this process, with somebody who says so if it does not
        come.
        """
        if watch is None:
            return next(feed)
        try:
            watch.begin()
            try:
                return next(feed) if self._settings.cache_pool is None else self._read(feed)
            finally:
                watch.end()
        except Late:
            raise watch.error from None

    def _read(self, feed: Feed[T]) -> T:
        """The next item, read in this process, with the cache pool for its hooks."""
        with activate(self._settings.cache_pool):
            return next(feed)

    def _check_not_empty(self, empty_epochs: int) -> None:
        if empty_epochs > 1:
            raise EmptyDatasetError(
                f"{type(self.dataset).__name__} gave no item in a whole epoch, to any rank; check "
                "the conditions of its filters, or use drop_last=False"
            )

    def _leave_to_parent(self) -> None:
        """In a process forked from the one that reads: go on from here, with workers of its own."""
        if self._feed is not None:
            self._resume = self._place()
            self._before = None
        self._feed = None
        self._holding.forked()
        self._owner = os.getpid()

    def _let_go(self) -> None:
        """Keep the position of the running iteration, if there is one, and end it."""
        self._before, self._stale = None, False
        if self._keyed is not None:
            self._key, self._keyed = self._keyed.restore_key, None
        if self._feed is not None:
            self._resume = self._feed.state()
            self._feed.close()
            self._feed = self._iterator = None


def _pinned(item: T) -> T:
    return cast("T", torch.utils.data._utils.pin_memory.pin_memory(item))  # type: ignore[no-untyped-call]
