"""What is known of training frameworks: what they ask of what they iterate, and do to
it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from energize.core.ignored import said_once
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import counted
from energize.errors import ConfigError, EnergizeError, LoaderError, StateError

_TRAINERS = ("accelerate", "composer", "lightning", "pytorch_lightning", "transformers")
"""Packages that iterate what they are given as a loader."""

_DIVIDE = ("IterableDatasetShard", "DataLoaderDispatcher")
"""Classes of theirs that read on each rank, or on one, and give every rank a part of
that."""

NO_DATASET = (
    "a Loader is no dataset for a DataLoader. Iterate it as it is: the Trainer of "
    "transformers "
    "takes it from get_train_dataloader and get_eval_dataloader, which you override to "
    "return it"
)

_UNKNOWN = (
    "gather_for_metrics cannot leave out padding of streams of unknown length and of "
    "global "
    "batches: evaluate on a dataset of known length, without global_batch_size; or use "
    "gather, "
    "and leave out what is_padding tells"
)

_FAILED = (
    "a sample of this evaluation failed, and its row is padding, which "
    "gather_for_metrics counts: "
    "leave out what energize.padding_rows(batch) lists before, or give get_loader "
    "failures=FailurePolicy(budget=0) to have a damaged sample end the evaluation"
)

_ON_TOP = (
    "torch.distributed.checkpoint knows a loader at the top of its dict, "
    '{"loader": loader}; deeper in, the only one of an indexed dataset'
)


def _frames(packages: Sequence[str] = ()) -> Iterator[tuple[str, FrameType]]:
    """Yield who called whom, innermost first, with the names of their modules: all, or
    those in some packages. Workers that were forked know who started them.
    """
    named = (
        (str(f.f_globals.get("__name__")), f) for f, _ in walk_stack(sys._getframe(2))
    )
    return (
        each for each in named if not packages or each[0].partition(".")[0] in packages
    )


def _local(frame: FrameType, name: str = "self") -> Any:
    """Return a local variable of one of their functions. What reading it makes a copy
    of, all variables, is let go of: it would keep loaders and batches alive.
    """
    copied = frame.f_locals
    value = copied.get(name)
    if isinstance(copied, dict) and copied is not frame.f_globals:
        copied.clear()
    return value


def check_iterated(dataset: Any) -> None:
    """Raise `ConfigError` where a trainer iterates a dataset itself."""
    module, _ = next(islice(_frames(), 1, None), ("", None))
    if module == "torch.utils.data._utils.fetch" and dataset.indexed:
        # Beside Energon's names it is an iterable for torch.
        check_collated(dataset, map(dataset.__getitem__, [0]))
    if module.partition(".")[0] in _TRAINERS:
        raise ConfigError(
            f"{module} iterates a {type(dataset).__name__}: each rank would read all "
            "of it, and no "
            "checkpoint would know how far. Give it energize.get_loader(dataset)"
        )


def check_collated(dataset: Any, items: Iterable[Any]) -> None:
    """Raise `ConfigError` where torch's own function would make a batch of batches, or
    of samples of a type, of which it makes none.
    """
    _, frame = next(_frames(("torch",)), ("", None))
    collate = getattr(
        getattr(frame and _local(frame), "collate_fn", None), "__name__", ""
    )
    first = next(iter(items), None) if collate == "default_collate" else None
    if is_dataclass(first):
        kind = type(first).__name__
        many = hasattr(dataset, "batch_size")
        told = "give it batch_size=None" if many else "make batches with BatchDataset"
        raise ConfigError(
            f"a DataLoader cannot batch what a {type(dataset).__name__} gives, {kind}: "
            f"{told}, or "
            "better, for states and ranks, iterate get_loader(dataset)"
        )


def check_undivided(config: WorkerConfig) -> None:
    """Raise `ConfigError` where the part of a rank is about to be divided among ranks
    again.
    """
    for _, frame in _frames(_TRAINERS):
        kind = type(_local(frame)).__name__
        if kind in _DIVIDE and config.ranks().world_size > 1:
            raise ConfigError(
                f"{kind} divides again what as_torch_dataset has divided among the "
                "ranks: most of "
                "the data would never be read. Iterate get_loader(dataset), with the "
                "Trainer from "
                "get_train_dataloader; or have that class alone divide, "
                "as_torch_dataset(dataset, "
                "worker_config=WorkerConfig(rank=0, world_size=1))"
            )


# What a new loop means to who begins it.


class Caller(NamedTuple):
    """What the loop around an iterator does with it.

    `begins_anew`: it wants the first items each time, as evaluation does. `fetcher`:
    what takes items for the loop; without a length it takes each before the loop is
    done with the one before.
    """

    begins_anew: bool = False
    fetcher: Any = None

    @property
    def takes_ahead(self) -> bool:
        """Whether the last item that was taken has not come to the loop yet."""
        fetcher = None if self.fetcher is None else self.fetcher()
        return fetcher is not None and fetcher.length is None


_COMPOSER = (
    "Composer goes on with a run, and leaves out what was trained on by reading it "
    "again, or not "
    "at all: other batches would come. Keep the loader's state in the checkpoint, by a "
    "Callback "
    "whose state_dict() returns loader.state_dict() and whose load_state_dict(state) "
    "loads it, and "
    "give Trainer(spin_dataloaders=False)"
)


def caller(*, loaded: bool, begun: bool) -> Caller:
    """Return who is calling `iter(loader)`: the innermost loop of a framework that is
    known.

    Raises `LoaderError` where a run that goes on would get other items, from a loader
    that a state was loaded into, or that has begun to read.
    """
    fetcher = None
    for module, frame in _frames(_TRAINERS):
        owner = _local(frame)
        function = frame.f_code.co_name
        kind = type(owner).__name__
        if kind == "_PrefetchDataFetcher":
            fetcher = ref(owner)
        elif kind == "_FitLoop":
            return Caller(owner.trainer.overfit_batches > 0, fetcher)
        elif module == "composer.trainer.trainer" and function in _COMPOSER_TRAINS:
            time = owner.state.timestamp
            skips = owner.spin_dataloaders and int(time.batch_in_epoch) > 0
            fits = function == "_train_loop" and (
                not loaded if skips else loaded or begun
            )
            if int(time.batch) and not fits:
                raise LoaderError(_COMPOSER)
            return Caller()
        elif kind in _EVALUATING or function in _EVALUATING:
            return Caller(begins_anew=True, fetcher=fetcher)
    return Caller(fetcher=fetcher)


_EVALUATING = ("_EvaluationLoop", "_PredictionLoop", "evaluation_loop", "_eval_loop")
"""Lightning's classes, and functions of transformers and Composer, that evaluate over a
loader."""

_COMPOSER_TRAINS = ("_train_loop", "_spin_dataloaders_to_cur_epoch")


# Accelerate, and with it the Trainer of transformers.


class Standing:
    """A loader that is iterated, as Accelerate knows its own: at the last step of a
    loop it says how many samples that has on all ranks. So `gather_for_metrics` leaves
    out padding, which comes after them, and no gradients are accumulated over the end
    of a loop.
    """

    def __init__(self, accelerate: Any) -> None:
        self._first = True
        self._of_ranks = [0]
        self._error: EnergizeError | None = None
        self._accelerate = accelerate
        accelerate._add_dataloader(self)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was not used, or was reset
            self._accelerate._remove_dataloader(self)

    def give(self, item: Any, feed: Any, agreement: Callable[[], Any]) -> None:
        """Note the item of a step; raise `ConfigError` where the Trainer would weigh it
        wrongly.
        """
        self._item = item
        self._padding = feed.is_copy
        self._last = feed.loop_ended
        if feed.marks.slots:
            said_once("gather_for_metrics", "failed", _FAILED, logging.WARNING)
        self._agreement = agreement
        self._of_ranks = []
        frames = _frames() if self._first and not self._last else ()
        self._first = False
        for _, frame in frames:
            evaluates = frame.f_code.co_name == "evaluation_loop"
            if evaluates and _local(frame, "batch_size") not in (None, counted(item)):
                raise ConfigError(
                    "the Trainer weighs the loss of each batch by "
                    "per_device_eval_batch_size, and "
                    f"this one has {counted(item)} samples: set it to that"
                )

    def check(self) -> None:
        """Raise what was raised when Accelerate asked, which it keeps to itself."""
        if self._error is not None:
            raise self._error

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the step is the last of a loop, where that is known before it is
        over.
        """
        counting = sys._getframe(2).f_code.co_name == "gather_for_metrics"
        return bool(not counting or self.remainder) and self._last

    @property
    def remainder(self) -> int:
        """How many samples the last step has, of all ranks."""
        try:
            if not self._of_ranks:
                real = counted(self._item) if self._last else 1
                mine = [0 if self._padding else real]
                ranks = self._agreement()
                told = ranks.numbers(mine, "the samples of a step") if ranks else [mine]
                self._of_ranks = [number for (number,) in told]
            if not any(self._of_ranks) or (0 in self._of_ranks and not self._last):
                raise LoaderError(_UNKNOWN)
        except EnergizeError as error:
            self._error = error
            raise
        return sum(self._of_ranks)


def standing(world_size: int) -> Standing | None:
    """Return what tells Accelerate of a loop, where that has begun to work on as many
    ranks.
    """
    known: Any = sys.modules.get("accelerate.state")
    started = (
        known and known.GradientState._shared_state and known.PartialState._shared_state
    )
    if not started or known.PartialState().num_processes != world_size:
        return None
    return Standing(known.GradientState())


# torch.distributed.checkpoint, which pickles what it finds deeper in a dict.

LOADERS: WeakSet[Any] = WeakSet()
"""Those of `get_loader`: a checkpoint forgets which one lies where before it loads."""


class Kept:
    """What a checkpoint holds of a loader deeper in a dict: its state. Loaded, it is
    the loader of that dataset, which goes on from there.
    """

    def __new__(cls, state: Any) -> Any:
        if LOADERS and any(
            frame.f_code.co_name == "load_bytes" for _, frame in _frames()
        ):
            mark = state["fingerprint"]
            same = [
                each
                for each in LOADERS
                if each.dataset.order_config.fingerprint == mark
            ]
            found = same or list(LOADERS)
            if len(found) != 1:
                raise StateError(_ON_TOP)
            found[0].load_state_dict(state)
            return found[0]
        made: Any = super().__new__(cls)
        made.state = state
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (vars(self)["state"],)


def kept(loader: Any) -> tuple[Any, ...] | None:
    """Return how a checkpoint pickles a loader; None where it is not one that does."""
    if not any(
        module.startswith("torch.distributed.checkpoint") for module, _ in _frames()
    ):
        return None
    if not loader.dataset.indexed:
        raise StateError(_ON_TOP)
    return Kept, (loader.state_dict(),)
