"""Loaders: this rank's items of a dataset, read in this process or by workers."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, replace
from functools import cached_property
from importlib import import_module
from multiprocessing.context import get_spawning_popen
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from energize.core.dataset import Dataset
from energize.core.description import Role, label_of
from energize.core.failures import FailurePolicy, OnError
from energize.core.ignored import accepted
from energize.core.lanes import Ranks, WorkerConfig
from energize.core.lazy import torch
from energize.core.padding import UNMARKED, Marks
from energize.core.quarantine import path_for_rank
from energize.core.reader import ItemOrigin
from energize.core.restoring import has_place, restore_sample, with_key
from energize.core.stores import activate
from energize.core.stream import State
from energize.core.trace import ReadContext
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    LoaderError,
    StateError,
)
from energize.loader.agreement import Agreement
from energize.loader.failures import (
    FailureLog,
    FailureSummary,
    LineWriter,
    ListWriter,
    listed_samples,
)
from energize.loader.feed import Feed, RankContext, open_feed
from energize.loader.following import Follower, WeightsFile
from energize.loader.hints import log_missing_adapter
from energize.loader.live import LiveRun
from energize.loader.pool import WorkerPool
from energize.loader.position import RunPosition, StreamPosition, items_of
from energize.loader.readers import ReadAhead
from energize.loader.remap import RemapReport
from energize.loader.run import (
    Run,
)
from energize.loader.settings import (
    OPTIONS,
    ListPath,
    LoaderSettings,
    WorkerSettings,
    checked_failures,
    checked_settings,
    configured,
)
from energize.loader.state import packed_state, resumed
from energize.loader.waiting import Waiting
from energize.loader.watchdog import Watchdog, ctrl_c_later
from energize.loader.worker import Task
from energize.report import Book, Ledger, Outlier, Report, ReportPosition
from energize.report.blame import Delivered
from energize.report.levels import source_names
from energize.report.statement import ReportBuilder

if TYPE_CHECKING:
    from energize.mixing import MixingPolicy

T = TypeVar("T")

_log = logging.getLogger("energize")

_OF_DATALOADERS = ("sampler", "batch_sampler", "collate_fn")

_PINNING = "torch.utils.data._utils.pin_memory"
"""The module of torch that pins nested data; it has no public name."""

_NOT_A_DATASET = (
    "a Loader is not a dataset, so a DataLoader cannot read it. Iterate over the "
    "loader. For the Trainer of transformers use LoaderTrainer of "
    "energize.integrations.transformers"
)

_PICKLED = (
    "a loader that has started cannot be pickled: the copy would not follow this "
    "loader. Save loader.state_dict(). In torch.distributed.checkpoint put the loader "
    "at the top of the dict, or CheckpointedLoaders of "
    "energize.integrations.checkpoint"
)

_MOST_UNCONFIRMED = 16
"""Items that may be delivered before the first of them is confirmed."""

_UNCONFIRMED = (
    f"none of the last {_MOST_UNCONFIRMED} items was confirmed, and this loader "
    "requires it (require_confirmation). Call confirm() after each step"
)

open_loaders: weakref.WeakSet[Any] = weakref.WeakSet()
"""The loaders of this process that `get_loader` returned."""

_NOT_COPIED = (
    *("_feed", "_iterator", "_ranks", "_keyed", "_pool", "_list", "_watch"),
    "_loss_file",
)
"""Attributes that a copy of a loader in another process begins without."""


class Loader(Generic[T]):
    """Delivers this rank's items of a dataset, epoch after epoch.

    `get_loader` creates loaders. Rank r of W delivers the items r, r + W, r + 2W, ...
    of the dataset's stream. Neither W nor the number of workers changes the stream: the
    items of the ranks, taken in turn, are those of `for item in dataset`. Those of a
    stream are taken from its lanes in turn.

    **Steps.** Every rank makes the same number of steps in every epoch. If the ranks do
    not divide the items of an epoch, `uneven` controls the last step:

    - "pad" fills it with copies, which are marked as padding (`is_padding`,
      `Loader.padding`).
    - "drop" leaves it out.
    - "repeat" fills it with items that are read a second time.
    - "allow" gives the first ranks one step more.

    With global batches, the last one is filled or left out. If `EpochizeDataset` is the
    outermost dataset, or with `virtual_epoch_length`, a loop has a fixed number of
    steps on each rank, and the next loop continues after them.

    **Position.** The position is after the last delivered item. It moves forward only:

    - Each `for item in loader` reads the next epoch.
    - After a `break`, the next loop starts after the last delivered item and has full
      length. Directly after `load_state_dict` it ends where the saved loop would have
      ended.
    - With the role "eval" (`get_loader(role="eval")`, or a dataset of
      `get_val_dataset`), each loop starts at the first item of the first epoch. No
      sample is substituted for a failed one: its row is padding (`padding_rows`).
    - `rewind()` returns to the first item once.
    - A loader has one iterator. A new iterator, `load_state_dict`, `rewind` and `close`
      end the previous one, which then raises `LoaderError`.

    **Ranks and workers.** Ranks are read from `worker_config` when an iteration begins,
    so a loader can be created and pickled before the process group exists. Workers run
    from the first `iter()` until `close()`, the end of a `with` block, or the last
    reference to the loader.

    Args:
        dataset: The dataset to read.
        worker_config: Rank, world size and number of workers.
        settings: The other arguments of `get_loader`.

    Example:
        >>> from energize import ListSource, get_loader
        >>> with get_loader(ListSource("abc"), num_workers=1) as loader:
        ...     list(loader), loader.step
        (['a', 'b', 'c'], 3)
    """

    order_name = "Loader"

    def __init__(
        self, dataset: Dataset[T], worker_config: WorkerConfig, settings: LoaderSettings
    ) -> None:
        self.dataset = dataset
        self.worker_config = worker_config
        self.remapped: RemapReport | None = None
        self._marks = UNMARKED
        self._settings = settings
        self._failures = FailureLog(settings.failures.budget)
        self._context = ReadContext(
            failures=settings.failures,
            listed=listed_samples(dataset, settings.failures),
            substitute=(settings.delivery.role or dataset.role) != "eval",
            config=settings.delivery.call_config,
            threads=settings.workers.encoder_threads,
        )
        self._run = Run(dataset, settings, self._context, worker_config.num_workers)
        self._resume: RunPosition | None = None
        self._loaded = self._stale = False
        self._ranks: Ranks | None = None
        self._feed: Feed[T] | None = None
        self._iterator: Any = None  # a lock, which is held while it gives an item
        self._watched: WeightsFile | None = None
        self._owner = os.getpid()
        self._copies: dict[tuple[int, int], Any] = {}
        self._unconfirmed: deque[RunPosition] | None = None
        self._loop_left = False
        self._hinted = False
        self._key: tuple[Any, ...] | None = None
        self._keyed: Feed[T] | None = None
        self._pool: WorkerPool | None = None
        self._list: ListWriter | None = None
        self._watch: Watchdog | None = None
        self._replaced = 0
        self._delivered_at: float | None = None
        self._waiting = Waiting()
        self._made: deque[tuple[ItemOrigin, Marks]] = deque(maxlen=1)
        self._loss_file: LineWriter | None = None
        self._warned: set[str] = set()

    def __iter__(self) -> Iterator[T]:
        self._enter_process()
        ranks = self.worker_config.ranks()
        if not self._hinted:
            self._hinted = True
            log_missing_adapter(self, ranks.world_size)
        rewinds = self._move_to_loop(ranks)
        agreement = self._agreement(ranks)
        if agreement is not None:
            feed = self._feed
            position = self.position if feed is None else feed.steps.reached
            self._run.check_same_loop(position, ranks, agreement, loaded=self._loaded)
        if self._feed is None:
            self._ranks = ranks
            self._feed = self._open(ranks)
            # States contain it: computed now, the first checkpoint takes no longer.
            _ = self._run.original.order_config
        self._iterator = token = RLock()
        self._delivered_at = (
            None  # what the program did between two loops is no time of theirs
        )
        return _Delivery(self._deliver(token, rewinds), token)

    def _enter_process(self) -> None:
        """Become a loader of this process, if it was forked or unpickled."""
        if self._owner != os.getpid():
            self.__dict__.update(self.__getstate__(), _owner=os.getpid())
        with ctrl_c_later("forkserver"):  # an import that is interrupted ends in C
            _ = torch.Tensor

    def _move_to_loop(self, ranks: Ranks) -> bool:
        """Move to the start of a new loop; return whether that is the first item."""
        if self._loop_left:
            self.discard_unconfirmed()
        rewinds = self._rewinds
        if rewinds:
            self._rewind_unless_loaded()
        restarts = not (self._loaded or self._settings.delivery.continues_loops)
        is_reusable = ranks == self._ranks and not self._stale
        feed = self._feed if is_reusable else None
        if feed is None or not feed.steps.begin_loop(restarts=restarts):
            self._let_go()
            if restarts and self._resume is not None:
                self._resume = self._run.beginning_loop(self._resume)
        return rewinds

    @property
    def _rewinds(self) -> bool:
        """Whether each loop starts at the first item."""
        settings = self._settings
        role = (
            settings.delivery.role if settings.delivery.continues_loops else self.role
        )
        return role == "eval"

    def _rewind_unless_loaded(self) -> None:
        """Move to the first item, unless a state inside a loop was loaded."""
        if not (self._loaded and self._run.within_loop(self.position)):
            self._move_to(None)

    def __next__(self) -> T:
        raise LoaderError(
            "a loader is not an iterator. Use `for batch in loader`, or batches = "
            "iter(loader) once and next(batches) for each step"
        )

    def __len__(self) -> int:
        """Return the number of steps of a loop on this rank.

        For an endless dataset this is one pass over its sources, for progress bars.

        Raises:
            NotIndexedError: If only reading finds the end (a `TypeError`).
        """
        return self._run.steps(self.worker_config.ranks())

    def __getitem__(self, position: Any) -> T:
        raise LoaderError(_NOT_A_DATASET)

    @property
    def role(self) -> Role:
        """The role passed to `get_loader`, else that of the dataset, else "train"."""
        return self._settings.delivery.role or self._run.original.role or "train"

    @property
    def has_started(self) -> bool:
        """Whether it was iterated over, or a state was loaded."""
        return self._feed is not None or self._resume is not None

    @property
    def requires_confirmation(self) -> bool:
        """Whether the state counts confirmed items; see `require_confirmation`."""
        return self._unconfirmed is not None

    @property
    def is_standalone(self) -> bool:
        """Whether it reads for another loader, such as a worker of a DataLoader."""
        return self._settings.delivery.standalone

    @property
    def at_loop_end(self) -> bool:
        """Whether the last delivered item is known to be the last of its loop.

        False for a stream of unknown length: its end is known after the last item.
        """
        return self._feed is not None and self._feed.loop_ended

    @property
    def accumulation_steps(self) -> int:
        """Number of steps in a global batch; 1 without global batches.

        Raises:
            ConfigError: If the world size does not divide the global batch.
        """
        return self._run.accumulation_steps(self.worker_config.ranks())

    @property
    def restore_key(self) -> tuple[Any, ...] | None:
        """The key with which `restore_sample` reads the last item again.

        It is plain data, for logs for example, and valid for any ranks and workers.
        Samples, batches and dicts with a field `__restore_key__` contain it. None
        before the first item.
        """
        return self._key if self._keyed is None else self._keyed.restore_key

    def restore_sample(
        self, restore_key: tuple[Any, ...], *, failures: FailurePolicy | None = None
    ) -> T:
        """Read a delivered item again, by its key.

        The item may have been delivered by another loader of the same dataset. It is
        read in this process, and the position of the loader does not change.

        Args:
            restore_key: The key, see `energize.restore_sample`.
            failures: The policy for samples that fail. By default the policy of the
                loader: a sample that failed when the item was made has to fail again.

        Returns:
            An item that is equal to the delivered one.

        Raises:
            RestoreKeyError: If the key is of no item of this dataset.

        Example:
            >>> from energize import ListSource, get_loader
            >>> loader = get_loader(ListSource("abc"))
            >>> for item in loader:
            ...     key = loader.restore_key
            >>> loader.restore_sample(key)
            'c'
        """
        context = self._context
        if failures is not None:
            context = replace(context, failures=failures)
        with activate(self._settings.cache_pool):
            return restore_sample(self.dataset, restore_key, reading=context)

    @property
    def padding(self) -> bool:
        """Whether the last item is padding as a whole: ignore it in losses and metrics.

        Such an item is a copy, or an evaluation item without a valid sample.
        `is_padding` returns the same for an item.
        """
        return self._marks.is_padding

    @property
    def padding_rows(self) -> list[int]:
        """The rows of the last item that are padding.

        They replace failed samples in an evaluation, or are fillers of an
        `AlignDataset`. Empty for a copy, which is `padding` as a whole. `padding_rows`
        returns the same for a batch.
        """
        return list(self._marks.rows)

    @property
    def failures(self) -> FailureSummary:
        """The samples of this rank that failed so far, each once."""
        return self._failures.summary()

    @property
    def workers_replaced(self) -> int:
        """Number of workers that died or hung, and were replaced."""
        return self._replaced + (0 if self._pool is None else self._pool.replaced)

    def state_dict(self) -> State:
        """Return the state after the last delivered item, whatever was read ahead.

        After `require_confirmation`, return the state after the last confirmed item.
        The state is equal on all ranks after equally many steps, so one rank saves it,
        and any number of ranks and workers resumes from it. Its size does not grow with
        the position. For a stream on several ranks, all ranks have to call this at the
        same step: they exchange the states of their lanes.

        Returns:
            The state: small, plain data.
        """
        ranks = self._ranks or self.worker_config.ranks()
        cursor = self._run.saved(self._place(), self._agreement(ranks))
        return packed_state(self._run.original, cursor, ranks.world_size)

    def load_state_dict(
        self, state_dict: State, strict: bool = True, *, on_mismatch: str = "error"
    ) -> None:
        """Resume from a state at the next `iter()`.

        A state of the end of an epoch starts the next epoch. Differences that change no
        sample (mounted folders, renamed functions, the length of loops) are logged as
        warnings.

        Args:
            state_dict: The state.
            strict: Whether to raise an error if the dataset differs from the saved one.
                If False, differences are logged as warnings.
            on_mismatch: "error", or "remap" to resume in an edited mix: each source
                that is still in the mix keeps its position, new sources begin, and the
                weights are those of the mix. Steps and schedules continue. `remapped`
                is then a report of the changes. Batches and mixes may differ, but
                datasets below packing, a filter or stages, and reordered sources,
                cannot be remapped.

        Raises:
            StateMismatchError: If the state was saved with another dataset. The message
                names the differences, and the loader is unchanged.
            StateError: If the state cannot be used. Ranks that load different states
                raise it when they begin to read.
        """
        original = self._run.original
        cursor, report = resumed(
            original, state_dict, strict=strict, on_mismatch=on_mismatch
        )
        run, position = self._run.resumed(cursor)
        self._move_to(position)
        self._forget_unconfirmed()
        self._run = run
        self.dataset = run.dataset
        self._loaded = True
        self.remapped = report
        self._copies = {}

    @property
    def step(self) -> int:
        """The number of the next step, from 0.

        This is the number of items delivered to all ranks, divided by the current
        number of ranks and rounded up. It counts the steps of the run if the number of
        ranks is constant. Padding does not count. For a stream of unknown length, it
        counts the steps of the epoch.
        """
        return self._step_after(self.position)

    def set_weights(
        self,
        weights: Mapping[str, float],
        at_step: int | None = None,
        *,
        blend: str | None = None,
    ) -> int:
        """Change the weights of a blend from a step on.

        All ranks call this after the same number of steps, with the same arguments.
        Earlier steps are unchanged, whatever was read ahead. The change is logged,
        saved in the state by names, and applied again when the state is loaded. In an
        indexed dataset it takes effect with the first sample of the step. Below packing
        or a filter the slot of the blend is unknown: the change takes effect at the
        first slot that no lane has needed, which is logged. A second change at the same
        position replaces the first.

        Args:
            weights: The weight of each input of the blend, by its `names`. If these are
                paths, such as "texts/code", a weight of "texts" applies to all of them
                and keeps the shares between them.
            at_step: The first step with the new weights, counted as `step`. None is the
                next step.
            blend: The name of the blend in the blends above it, such as "texts" or
                "texts/code"; "" is the outermost one. By default the only blend with
                these names.

        Returns:
            The step at which the weights act. It is later than `at_step` if the items
            until then were composed together: planned packs and batches change with
            the next window, level batches with the next global batch.

        Raises:
            WeightError: If weights are invalid, or do not name the inputs of the blend.
            ConfigError: If there is no such blend, if the blend ends, if the step was
                delivered or is too large, or if there are too many changes for a state.
            LoaderError: If ranks request different changes, or a rank does not call
                this within the `timeout` of the loader.

        Example:
            >>> from energize import BlendDataset, ListSource, get_loader
            >>> web, code = ListSource("w", name="web"), ListSource("c", name="code")
            >>> loader = get_loader(BlendDataset((web, 1), (code, 1)))
            >>> items = []
            >>> for item in loader:
            ...     items.append(item)
            ...     if len(items) == 100:
            ...         step = loader.set_weights({"web": 3, "code": 1})
            ...     if len(items) == 200:
            ...         break
            >>> step, items[:100].count("w"), items[100:].count("w")
            (100, 50, 75)
        """
        return self._change_weights(weights, at_step, blend)

    def _change_weights(
        self,
        weights: Mapping[str, float],
        at_step: Any,
        blend: str | None,
        *,
        of_file: bool = False,
    ) -> int:
        live, step = self._live().with_weights(weights, at_step, blend, of_file=of_file)
        self._take_over(live.run)
        return step

    def follow(
        self, policy: MixingPolicy, *, every: int = 100, blend: str | None = None
    ) -> Follower:
        """Create a follower, which adapts the weights of a blend to the loss.

        Call `Follower.observe` with the losses of every step. Every `every` steps the
        policy returns weights, which take effect at the next step.

        Args:
            policy: The policy, see `energize.mixing`.
            every: Number of steps between two calls of the policy.
            blend: The name of the blend, as in `set_weights`. By default the outermost
                one.

        Raises:
            ConfigError: If the policy is invalid, or there is no such blend.

        Example:
            >>> from energize import BlendDataset, ListSource, get_loader
            >>> from energize.mixing import ExcessLoss
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
        return Follower(
            self,
            policy,
            every,
            blend,
            ranks=self._current_ranks,
            agreement=self._agreement,
        )

    def watch_weights(
        self, file: str | os.PathLike[str] | WeightsFile, every: int = 50
    ) -> None:
        """Apply weights that an operator writes to a file during the run.

        Args:
            file: The path, or a `WeightsFile`.
            every: Number of steps between two reads, by the first rank.

        Raises:
            ConfigError: With uneven="allow", where ranks make different numbers of
                steps.
        """
        if self._settings.delivery.uneven == "allow":
            raise ConfigError(
                "a file of weights needs the same number of steps on all ranks, and "
                "uneven='allow' gives them different numbers. Use uneven='pad'"
            )
        self._watched = (
            file if isinstance(file, WeightsFile) else WeightsFile(file, every)
        )

    @property
    def last_sources(self) -> list[str]:
        """The names of the sources of the last item, one for each sample in order.

        They are the names in the report, such as "web/news". Empty for padding, and
        before the first item.
        """
        return self._opened_book().last()

    def record_losses(self, losses: Any, step: int | None = None) -> None:
        """Record the losses of the last delivered item.

        `report` then shows the mean loss of each source, and outliers. With
        `get_loader(losses=FILE)` each step is also appended to the file, for `energize
        blame`. Losses that are NaN or infinite are counted separately, and the first
        ones are logged with their samples. Nothing is recorded for padding. A tensor on
        a GPU is synchronised.

        Args:
            losses: One loss for each sample of the item, fillers included, in order: a
                tensor of shape (samples,), an array or a list. Or a dict by the names
                of `last_sources`; a loss applies to each sample of its source.
            step: The number of the step. By default the step of the loader, from 0.

        Raises:
            ConfigError: If the number of losses differs from the number of samples, or
                a name is not a source.
            LoaderError: Before the first item, or if the file cannot be written.

        Example:
            >>> from energize import BatchDataset, ListSource, get_loader
            >>> loader = get_loader(
            ...     BatchDataset(ListSource(range(4), name="web"), 2, list)
            ... )
            >>> for batch in loader:
            ...     loader.record_losses([0.5 * number for number in batch])
            >>> loader.report()["web"].losses.mean
            0.75
        """
        book = self._opened_book()
        ranks = self._current_ranks()
        # The loop works on the first unconfirmed item.
        unconfirmed = [*(self._unconfirmed or ())]
        if not self._made or len(self._made) < len(unconfirmed):
            raise LoaderError("record_losses: no item has been delivered yet")
        origin, marks = self._made[-max(len(unconfirmed), 1)]
        if marks.is_padding:
            return
        if step is None:
            if len(unconfirmed) > 1:
                position = unconfirmed[1]
            elif self._feed is None:
                position = self._place()
            else:
                position = self._feed.steps.reached
            step = self._step_after(position) - 1
        values = book.record(origin, step, ranks.rank, losses, marks)
        path = self._settings.losses
        if path is not None:
            if self._loss_file is None:
                file = path_for_rank(os.fspath(path), ranks.rank, ranks.world_size)
                self._loss_file = LineWriter(file, "losses")
            item = Delivered(step, ranks.rank, ranks.world_size, origin, values)
            self._loss_file.append(item.line)

    def __repr__(self) -> str:
        ranks = self._ranks
        workers = self.worker_config.num_workers
        of = "" if ranks is None else f", rank {ranks.rank} of {ranks.world_size}"
        return f"{type(self).__name__}({self.dataset!r}{of}, num_workers={workers})"

    def _repr_html_(self) -> str:
        from energize.core.html import dataset_html

        heading = f"{type(self).__name__} of "
        return dataset_html(self.dataset, heading, source_names(self.dataset))

    def report(self, *, all_ranks: bool = False) -> Report:
        """Return the requested, planned and delivered share of each part of the mix.

        `print(loader.report())` prints a table, notebooks show it, and
        `report().to_dict()` is plain data. After a resume, the report of an indexed
        dataset covers the whole run, which is reconstructed from its order; the report
        of a stream covers the time since then. `load_state_dict` and `rewind` reset it.

        If shares differ from the requested ones by more than the order allows, the
        report has a warning with the reason. Each reason is logged once. The first rank
        also checks without a report, whenever the number of delivered items has
        doubled.

        Args:
            all_ranks: Whether to sum over all ranks. All ranks then have to call this
                at the same step. By default only this rank is counted.

        Raises:
            ConfigError: If the loader was created with `ledger=False`, or the ranks
                have no process group.
            LoaderError: If a rank does not call this within the `timeout` of the
                loader.

        Example:
            >>> from energize import BlendDataset, ListSource, get_loader
            >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
            >>> loader = get_loader(BlendDataset(parts, weights={"web": 3, "code": 1}))
            >>> for step, sample in zip(range(40), loader):
            ...     pass
            >>> report = loader.report()
            >>> report["web"].shares.requested, report["web"].shares.delivered
            (0.75, 0.75)
        """
        report = self._report(all_ranks=all_ranks)
        ranks = self._ranks or self.worker_config.ranks()
        items = items_of(self.dataset, self._reached)
        efficiency = self._opened_book().efficiency(
            ranks.world_size, self._run.accumulation_steps(ranks), items
        )
        return replace(report, efficiency=efficiency)

    @property
    def _reached(self) -> RunPosition:
        return self._place() if self._feed is None else self._feed.steps.reached

    def _report(self, *, all_ranks: bool) -> Report:
        """Return the report without the efficiency."""
        book = self._opened_book()
        ranks = self._ranks or self.worker_config.ranks()
        position = self._reached
        items = items_of(self.dataset, position)
        book.begin(self.dataset, items)
        lanes = position.lanes if isinstance(position, StreamPosition) else 1
        report_position = ReportPosition(items, ranks.rank, ranks.world_size, lanes)
        left_out = self._failures.left_out
        numbers = book.numbers(ranks.rank, ranks.world_size, left_out)
        outliers = book.outliers(ranks.rank)
        if all_ranks and ranks.world_size > 1:
            agreement = self._report_agreement(ranks)
            numbers = agreement.summed(numbers, "the report of a ledger")
            outliers = _gather_outliers(agreement, outliers)
        skipped = {f"skipped: {reason}": n for reason, n in left_out.reasons.items()}
        reasons = {**self._failures.summary().kinds, **skipped}
        whole = all_ranks or ranks.world_size == 1
        report = ReportBuilder(book, report_position, numbers, all_ranks=whole).report(
            reasons
        )
        outliers = sorted(outliers, key=lambda outlier: -outlier.far)
        report = replace(report, outliers=tuple(outliers))
        self._log_warnings(report)
        return report

    def _report_agreement(self, ranks: Ranks) -> Agreement:
        agreement = self._agreement(ranks)
        if agreement is None:
            raise ConfigError(
                f"report(all_ranks=True): the {ranks.world_size} ranks have no process "
                "group to sum over. Initialise torch.distributed, or call report() on "
                "each rank"
            )
        return agreement

    def _log_warnings(self, report: Report) -> None:
        """Log the warnings of a report, each reason once."""
        for warning in report.warnings:
            reason = warning.partition(" %: ")[2]
            if reason not in self._warned:
                self._warned.add(reason)
                _log.warning("ledger: %s", warning)

    def rewind(self) -> None:
        """Return to the first item of the first epoch at the next `iter()`."""
        self._move_to(None)
        self._forget_unconfirmed()

    def require_confirmation(self) -> None:
        """Count an item in the state when it is confirmed, not when it is delivered.

        For loops that fetch items ahead of the step that uses them. A loop that was
        left delivers unconfirmed items again.

        Example:
            >>> from energize import ListSource, get_loader
            >>> loader = get_loader(ListSource("abc"))
            >>> loader.require_confirmation()
            >>> items = iter(loader)
            >>> next(items), next(items), loader.confirm()
            ('a', 'b', None)
            >>> list(loader)
            ['b', 'c', 'a']
        """
        if self._unconfirmed is None:
            self._unconfirmed = deque()
            self._made = deque(self._made, maxlen=_MOST_UNCONFIRMED)

    def confirm(self) -> None:
        """Count the oldest item that is not confirmed; without one, do nothing.

        Raises:
            LoaderError: If the loader does not require confirmation.
        """
        if self._unconfirmed is None:
            raise LoaderError(
                "confirm: this loader counts items when it delivers them. Call "
                "require_confirmation() first"
            )
        if self._unconfirmed:
            self._unconfirmed.popleft()
            self._loaded = False

    def discard_unconfirmed(self) -> None:
        """Return to the first unconfirmed item, which the next `iter()` delivers."""
        self._loop_left = False
        if not self._unconfirmed:
            return
        first = self._unconfirmed[0]
        count = len(self._unconfirmed)
        self._let_go()
        self._resume = first
        self._unconfirmed.clear()
        for _ in range(min(count, len(self._made))):
            _, marks = self._made.pop()
            if self._book is not None:
                self._book.take_back(is_padding=marks.is_padding)

    def _forget_unconfirmed(self) -> None:
        if self._unconfirmed is not None:
            self._unconfirmed.clear()

    def close(self) -> None:
        """End the worker processes. The position stays, and a later `iter()` starts new
        workers.

        Another thread that waits for an item gets a `LoaderError`.
        """
        if self._pool is not None:
            self._pool.close()
        self._let_go()
        self._failures.conclude()
        self._end_pool()
        for resource in (
            self._watch,
            self._list,
            self._loss_file,
            self._settings.cache_pool,
        ):
            if resource is not None:
                resource.close()
        self._watch = self._list = self._loss_file = self._failures.keep = None

    def __getattr__(self, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in _OF_DATALOADERS:
            text += (
                ": a loader cannot be skipped, sampled or batched again: it is "
                "divided among the ranks, and resumes where load_state_dict(state) "
                "puts it. Load the state in place of skip_first_batches; in the "
                "Hugging Face Trainer with TrainingArguments(ignore_data_skip=True)"
            )
        raise AttributeError(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy in another process, at the same position."""
        budget = self._settings.failures.budget
        state = {
            **self.__dict__,
            **dict.fromkeys(_NOT_COPIED),
            "_resume": self._place() if self.has_started else None,
            "_unconfirmed": None if self._unconfirmed is None else deque(),
            "_key": self.restore_key,
            "_copies": {},
            "_marks": UNMARKED,
            "_failures": self._failures if self._list is None else FailureLog(budget),
        }
        state.pop("_book", None)
        return state

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.has_started and get_spawning_popen() is None:
            raise StateError(_PICKLED)
        return super().__reduce_ex__(protocol)

    def _place(self) -> RunPosition:
        """Return the position that states of this rank have."""
        return self._unconfirmed[0] if self._unconfirmed else self.position

    @property
    def position(self) -> RunPosition:
        """The position of the next item on this rank, whether or not items are
        confirmed.

        For a stream it has the states of the lanes that this rank reads.
        """
        if self._feed is not None:
            return self._feed.state()
        return self._run.start() if self._resume is None else self._resume

    def _current_ranks(self) -> Ranks:
        running = self._ranks if self._feed is not None else None
        return running or self.worker_config.ranks()

    def _agreement(self, ranks: Ranks | None = None) -> Agreement | None:
        """Return the agreement with other ranks; None if they cannot communicate."""
        ranks = ranks or self._current_ranks()
        if (
            ranks.group is None
            or ranks.world_size == 1
            or self._settings.delivery.standalone
        ):
            return None
        return Agreement(ranks, self._settings.workers.timeout)

    def _open(self, ranks: Ranks) -> Feed[T]:
        """Open a feed at the position of this rank."""
        settings = self._settings
        agreement = self._agreement(ranks)
        position = self.position
        path = settings.failures.quarantine
        workers = self.worker_config.num_workers
        if path is not None and self._list is None:
            self._list = ListWriter(
                path_for_rank(os.fspath(path), ranks.rank, ranks.world_size)
            )
            self._failures.keep = self._list.add
        if self._watch is None and not workers:
            text = "no item came, which is read in this process (num_workers=0),"
            self._watch = Watchdog(text, settings.workers.warn_after)
            weakref.finalize(self, self._watch.close).atexit = False
        if self._book is not None:
            self._book.begin(self.dataset, items_of(self.dataset, position))
        pool = self._workers if workers else None
        ledgers = (self._failures, self._warned, self._copies)
        return open_feed(
            self._run, position, RankContext(ranks, agreement, pool, *ledgers)
        )

    def _workers(self) -> tuple[WorkerPool, ReadAhead]:
        """Return the workers, started if needed, and how far they read ahead."""
        settings = self._settings
        many = self.worker_config.num_workers
        if self._pool is None or self._pool.closed:
            self._end_pool()
            task = Task(self._run.base, self._context, settings.cache_pool)
            self._pool = WorkerPool(
                task,
                many,
                settings.workers.start_method,
                settings.workers.timeout,
                settings.workers.warn_after,
            )
        return self._pool, ReadAhead(
            many, settings.workers.prefetch_factor, settings.workers.prefetch_bytes
        )

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._replaced += self._pool.replaced
            self._pool.close()
            self._pool = None

    def _deliver(self, token: object, rewinds: bool) -> Iterator[T]:
        pin = _pin_function(self._settings.workers.pin_memory)
        delivered = False
        empty_epochs = 0
        while True:
            feed = self._current(token)
            position = self._confirmable_position(feed)
            requested_at = time.perf_counter()
            try:
                item = self._read(feed, requested_at)
            except StopIteration:
                self._failures.conclude()
                if self._is_over(feed, delivered):
                    self._loop_left = False
                    return
                empty_epochs += not feed.steps.continues
                if empty_epochs > 1:
                    raise EmptyDatasetError(
                        f"{label_of(self.dataset)} gave no item in a whole epoch, to "
                        "any rank. Check the conditions of its filters, or use "
                        "drop_last=False"
                    ) from None
                self._reopen(first=rewinds and not feed.steps.continues)
            except BaseException:
                self._let_go()
                raise
            else:
                delivered = True
                self._note_delivered(feed, position)
                self._count(feed, item, requested_at)
                if has_place(item):
                    item = with_key(item, feed.restore_key)
                yield item if pin is None else pin(item)

    def _note_delivered(self, feed: Feed[T], position: RunPosition | None) -> None:
        """Record the delivery of an item.

        Args:
            feed: The feed of the item.
            position: The position before the item, if it has to be confirmed.
        """
        if self._unconfirmed is None or position is None:
            self._loaded = False
        else:
            self._unconfirmed.append(position)
            self._loop_left = True
        self._keyed = feed
        self._marks = feed.marks
        self._made.append((feed.made, feed.marks))

    def _confirmable_position(self, feed: Feed[T]) -> RunPosition | None:
        """Return the position before the next item; None without confirmation."""
        if self._unconfirmed is None:
            return None
        if len(self._unconfirmed) >= _MOST_UNCONFIRMED:
            raise LoaderError(_UNCONFIRMED)
        return feed.state()

    def _is_over(self, feed: Feed[T], delivered: bool) -> bool:
        """Return whether a loop ends, once its feed has no item.

        A stream learns by reading on that the item before a resume, or before this
        loop, was the last of its epoch. A loader that is apart does not read on.
        """
        if feed.steps.continues:
            return False
        return (
            delivered
            or self._settings.delivery.standalone
            or not feed.steps.may_be_over
        )

    def _current(self, token: object) -> Feed[T]:
        """Return the feed of the next item, after changes that are due before it."""
        if token is self._iterator:
            if self._watched is not None:
                self._watched.look(
                    self._agreement(), self._run.edits.changes, self._change_weights
                )
            if self._run.edits.waiting:
                self._take_over(self._live().settled().run)
            if self._stale and self._feed and not self._feed.loop_ended:
                self._reopen()
        feed = self._feed
        if token is not self._iterator or feed is None:
            raise LoaderError(
                "this iterator has ended: the loader was iterated again, loaded a "
                "state, was rewound or closed. A loader has one position and one "
                "iterator at a time"
            )
        return feed

    def _count(self, feed: Feed[T], item: T, requested_at: float) -> None:
        """Record an item in the ledger, and the time that it was waited for."""
        delivered_at = time.perf_counter()
        previous_at = self._delivered_at
        waited = delivered_at - requested_at
        self._delivered_at = delivered_at
        if previous_at is not None:
            text = self._waiting.add(
                waited, delivered_at - previous_at, self.worker_config.num_workers
            )
            if text is not None:
                _log.warning("rank %d %s", self._current_ranks().rank, text)
        if self._book is not None:
            self._book.wait(waited, delivered_at - (previous_at or requested_at))
            worth_a_look = self._book.note(feed.made, item, feed.marks)
            if worth_a_look and not self._current_ranks().rank:
                self._report(all_ranks=False)

    def _read(self, feed: Feed[T], requested_at: float) -> T:
        """Read the next item, watched if it is read in this process."""
        watch = self._watch
        pool = self._settings.cache_pool
        if watch is None:
            return next(feed)
        watch.start(requested_at)
        try:
            with nullcontext() if pool is None else activate(pool):
                return next(feed)
        finally:
            watch.end()

    def _let_go(self) -> None:
        """End the running iteration, and keep its position."""
        with self._iterator or nullcontext():
            keyed = self._keyed
            self._keyed = None
            if keyed is not None:
                self._key = keyed.restore_key
            if self._feed is not None:
                self._resume = self.position
                self._feed.close()
            self._feed = self._iterator = None
            self._stale = False
            self._marks = UNMARKED

    def _step_after(self, position: RunPosition) -> int:
        """Return the number of the step after a position."""
        return -(-self._run.items_at(position) // self._current_ranks().world_size)

    def _live(self) -> LiveRun:
        """Return the run at the position of the next item."""
        return LiveRun(
            self._run, self.position, self._current_ranks(), self._agreement()
        )

    def _take_over(self, run: Run[T]) -> None:
        """Use an edited run from the next item on.

        If its dataset differs, items that were read ahead are read again.
        """
        previous = self.dataset
        self._run = run
        self.dataset = run.dataset
        self._stale = self._stale or (
            self.dataset is not previous and self._feed is not None
        )

    def _reopen(self, *, first: bool = False) -> None:
        """Reopen the feed after the last item, or at the first item."""
        token = self._iterator
        self._let_go()
        if first:
            self._move_to(None)
        self._feed = self._open(self._ranks or self.worker_config.ranks())
        self._iterator = token

    def _move_to(self, position: RunPosition | None) -> None:
        """Move to a position, None for the first, and reset the ledger."""
        self._let_go()
        self._resume = position
        self._made.clear()
        self.__dict__.pop("_book", None)

    @cached_property
    def _book(self) -> Book | None:
        """The ledger of the items since the last move; None if turned off."""
        ledger = self._settings.ledger
        return (
            None
            if ledger is False
            else Book(self.dataset, Ledger() if ledger is True else ledger)
        )

    def _opened_book(self) -> Book:
        if self._book is None:
            raise ConfigError("this loader has no ledger (ledger=False)")
        return self._book


def _gather_outliers(
    agreement: Agreement, outliers: Sequence[Outlier]
) -> list[Outlier]:
    fields_of_outliers = [astuple(outlier) for outlier in outliers]
    ranks = agreement.trees(fields_of_outliers, "the report of a ledger")
    return [Outlier(*values) for rank in ranks for values in rank]


def _pin_function(pin_memory: bool | None) -> Callable[[Any], Any] | None:
    """Return a function that copies items to page-locked memory, or None."""
    if pin_memory is False or not torch.cuda.is_available():
        return None
    function: Callable[[Any], Any] = import_module(_PINNING).pin_memory
    return function


class _Delivery(Iterator[T]):
    """Delivers items to any number of threads, one at a time."""

    def __init__(self, items: Iterator[T], lock: Any) -> None:
        self._items = items
        self._lock = lock
        self._failed = ""

    def __next__(self) -> T:
        with self._lock:
            if self._failed:
                raise LoaderError(
                    f"this iterator has ended, by the {self._failed} that it raised. "
                    "Start a new loop to continue after the last delivered item"
                )
            try:
                return next(self._items)
            except BaseException as error:
                self._failed = (
                    "" if isinstance(error, StopIteration) else type(error).__name__
                )
                raise


class SavableDataLoader(Loader[T]):
    """The loader that `get_loader` creates, with the name and methods of
    Megatron-Energon.

    Args:
        dataset: The dataset to read.
        worker_config: As for `get_loader`.
        num_workers: As for `get_loader`.
        on_error: As for `get_loader`.
        failures: As for `get_loader`.
        **options: The other arguments of `get_loader`.

    Example:
        >>> from energize.data.memory import ListSource
        >>> list(SavableDataLoader(ListSource("abc"), uneven="drop"))
        ['a', 'b', 'c']
    """

    order_name = "SavableDataLoader"

    def __init__(
        self,
        dataset: Dataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        num_workers: int | None = None,
        on_error: str | OnError | None = None,
        failures: FailurePolicy | None = None,
        **options: Any,
    ) -> None:
        arguments = {n: options.pop(n) for n in list(options) if n in _OPTIONS}
        accepted("get_loader", **options)
        if not isinstance(dataset, Dataset):
            remedy = (
                "What has __len__ and __getitem__ becomes one by SequenceSource(...)"
            )
            if hasattr(dataset, "dataset"):
                remedy = (
                    "It reads a dataset already. Iterate it, or pass its `dataset` to "
                    "get_loader"
                )
            raise ConfigError(
                f"get_loader needs an energize Dataset, got {type(dataset).__name__}. "
                f"{remedy}"
            )
        dataset, config = configured(dataset, worker_config)
        if num_workers is not None:
            config = config.with_workers(num_workers)
        policy = checked_failures(failures, on_error)
        super().__init__(
            dataset, config, checked_settings(failures=policy, **arguments)
        )
        open_loaders.add(self)

    def can_restore_sample(self) -> bool:
        """Return True: items of any dataset can be restored."""
        return True

    def config(self) -> dict[str, Any]:
        """Return the description of the dataset, `dataset.describe()`."""
        return self.dataset.describe()

    save_state_rank = Loader.state_dict
    restore_state_rank = Loader.load_state_dict

    def save_state_global(self, global_dst_rank: int) -> State | None:
        """Return the state on one rank, and None on all others.

        All ranks call this at the same step. The state is valid for any number of
        ranks.

        Args:
            global_dst_rank: The global rank in torch.distributed.
        """
        state = self.state_dict()
        number = self._number_in_world(self.worker_config.ranks())
        return state if number == global_dst_rank else None

    def restore_state_global(
        self,
        state: State | None,
        *,
        src_rank: int | None = None,
        on_mismatch: str = "error",
    ) -> None:
        """Resume all ranks from a global state at the next `iter()`.

        Args:
            state: The state. With `src_rank`, it is used on that rank only.
            src_rank: The global rank in torch.distributed that sends the state to the
                others. By default each rank has the state.
            on_mismatch: As for `load_state_dict`.

        Raises:
            StateError: On all ranks, if there is no state, or as `load_state_dict`
                raises.
            ConfigError: If `src_rank` cannot communicate with this rank.
        """
        if src_rank is not None:
            ranks = self.worker_config.ranks()
            mine = self._number_in_world(ranks) == src_rank
            if ranks.group is not None and ranks.world_size > 1:
                agreement = Agreement(ranks, self._settings.workers.timeout)
                sent = state if mine else None
                state = agreement.broadcast(src_rank, sent, "restore_state_global")
            elif not mine:
                raise ConfigError(
                    f"restore_state_global: rank {src_rank} has the state, and rank "
                    f"{ranks.rank} of {ranks.world_size} (this process) cannot get it: "
                    "torch.distributed is not initialised. Load the state on each "
                    "rank, without src_rank"
                )
        if state is None:
            raise StateError(
                "restore_state_global: the state is missing. Pass it on all ranks, or "
                "on one rank with its number as src_rank"
            )
        self.load_state_dict(state, on_mismatch=on_mismatch)

    @staticmethod
    def _number_in_world(ranks: Ranks) -> int:
        return ranks.rank if ranks.group is None else int(torch.distributed.get_rank())


BasicDataLoader = SavableDataLoader
"""A loader for loops that save no state."""

SavableDataLoaderState = dict
"""States are plain data: `torch.load(path)` reads them, and JSON can store them."""

_OPTIONS = OPTIONS - {"standalone", "failures"}


def get_loader(  # noqa: PLR0913
    dataset: Dataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    num_workers: int | None = None,
    uneven: str = "pad",
    lanes: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    prefetch_factor: int | None = None,
    prefetch_bytes: int = WorkerSettings.prefetch_bytes,
    pin_memory: bool | None = None,
    on_error: str | OnError | None = None,
    failures: FailurePolicy | None = None,
    encoder_threads: int = 1,
    multiprocessing_context: str | None = None,
    timeout: float | None = WorkerSettings.timeout,
    role: Role | None = None,
    cache_pool: Any = None,
    losses: ListPath | None = None,
    warn_after: float | None = WorkerSettings.warn_after,
    ledger: Ledger | bool = True,
    **ignored: Any,
) -> SavableDataLoader[T]:
    """Create a loader that delivers this rank's items of a dataset.

    The stream of items depends on the dataset and its seed alone: the items of all
    ranks, taken in turn, are equal for any number of ranks and workers. A saved state
    resumes on any number of both. See `Loader` for steps, positions and loops.

    Args:
        dataset: The dataset to read. The loader delivers its items unchanged, so batch
            it with `BatchDataset`.
        worker_config: Rank, world size and number of workers. By default the config of
            the dataset; without one, the ranks of torch.distributed or of the launcher,
            and no workers. A `seed_offset` reseeds a dataset that has no config.
        num_workers: Number of worker processes of this rank. 0 reads in this process.
            By default the number in `worker_config`.
        uneven: How the last step of an epoch is made if the ranks do not divide the
            items: "pad" fills it with marked copies (see `Loader.padding`), "drop"
            leaves it out, "repeat" fills it with items that are read a second time,
            and "allow" gives the first ranks one step more.
        lanes: Number of parts in which a stream, such as a `FilterDataset`, is read in
            parallel. By default a power of two up to 64: at least 1,000 samples and
            ten of the largest buffers or batches for each lane, and at most 16,384
            buffered samples in all lanes. The number is fixed for a run and saved in
            its state. Reading is fastest if world_size * num_workers divides it.
            Indexed datasets ignore it.
        global_batch_size: Samples of an optimizer step over all ranks. The loader then
            makes equal global batches on each world size that divides them, and
            `Loader.accumulation_steps` is the number of steps in one. `uneven` applies
            to the last global batch. None for no global batches.
        micro_batch_size: Samples of an item. By default the `batch_size` of the
            dataset.
        prefetch_factor: Maximum number of items that each worker reads ahead. By
            default 32.
        prefetch_bytes: Maximum bytes that this rank's workers read ahead together,
            estimated from earlier items. By default 512 MiB. Each worker reads at
            least one item ahead.
        pin_memory: Whether to copy tensors to page-locked memory. By default True if
            there is a CUDA device. Without one it has no effect.
        on_error: Short for `failures=FailurePolicy(on_error=...)`: "raise", "skip", or
            a function that is called with the `EncoderError`.
        failures: The policy for samples and functions that fail. By default
            `FailurePolicy()`.
        encoder_threads: Number of threads that torch uses in your functions, in
            workers and without. The rounding of sums depends on it. The threads of the
            training are not changed. With more than one, forked workers may hang: use
            `multiprocessing_context="spawn"`.
        multiprocessing_context: How workers start: "fork", "spawn" or "forkserver". By
            default "fork" on Linux, which supports lambdas, and "spawn" elsewhere,
            which needs a dataset that can be pickled.
        timeout: Seconds to wait for a worker or rank that does not answer. A worker is
            then replaced; a rank raises a `LoaderError`. None waits forever.
        role: "train" or "eval". By default the role of the dataset, else "train". With
            "eval", each loop starts at the first item, and a failed sample becomes
            padding instead of a substitute (see `Loader.padding_rows`).
        cache_pool: The pool that `energize.cache.active_pool()` and
            `TaskEncoder.cache` return in your functions. Each worker has a pool of its
            own. The loader closes it.
        losses: File to which `Loader.record_losses` appends a line of JSON for each
            item, for `energize blame`. With several ranks, one file for each rank.
            None for no file.
        warn_after: Seconds to wait for an item before the log shows the Python stacks
            of the workers; again after twice as long, and so on. None for no warning.
        ledger: Counts of `Loader.report` in addition to samples. True counts the
            fields of `Ledger()`, False turns the report off.
        **ignored: Arguments of other libraries that have no effect here:
            `checkpoint_every_sec`, `checkpoint_every_min_n_samples`, `n_checkpoints`,
            `gc_collect_every_n_steps` and `gc_freeze_at_start`.

    Returns:
        The loader. Iterating over it reads one epoch, or one loop of
        `EpochizeDataset`.

    Raises:
        ConfigError: If an argument cannot be used, or if the dataset was built with
            another `seed_offset` than that of `worker_config`.

    Example:
        >>> from energize import BatchDataset, ListSource, get_loader
        >>> dataset = BatchDataset(ListSource("abcde"), 2, list)
        >>> loader = get_loader(dataset)
        >>> for batch in loader:
        ...     print(batch)
        ['a', 'b']
        ['c', 'd']
        ['e']
        >>> state = loader.state_dict()
        >>> resumed = get_loader(dataset, num_workers=2)
        >>> resumed.load_state_dict(state)
        >>> len(resumed)
        3
    """
    arguments = dict(locals())
    return SavableDataLoader(**arguments.pop("ignored"), **arguments)


get_savable_loader = get_loader  # every loader can be saved; users know both names
