"""What a ledger says, to the loggers that trainers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energize.errors import ConfigError
from energize.ledger import Report
from energize.loader import Loader
from energize.numbers import checked_whole
from energize.optional import optional_module

EXTRA = "energize[monitor]"


class LedgerLog(ABC):
    """Writes the report of a loader every so many steps: call it with the number of each.

    `all_ranks`: whether the counts of all ranks are summed, for which all of them have to call it
    at the same steps; the first one writes. Otherwise each rank that has one writes its own.
    `prefix` is what the names begin with. A subclass says where they go, in `write`.

    Raises `ConfigError` for something else than a loader, and what `Loader.report` raises.
    """

    def __init__(
        self, loader: Loader[Any], *, every: int = 100, all_ranks: bool = False, prefix: str = "mix"
    ) -> None:
        if not isinstance(loader, Loader):
            raise ConfigError(
                f"{type(self).__name__} reports of a Loader, as get_loader makes it; got "
                f"{type(loader).__name__}"
            )
        self._loader, self._all_ranks, self._prefix = loader, bool(all_ranks), prefix
        self._every = checked_whole(every, f"{type(self).__name__}: every", 1)

    def __call__(self, step: int) -> Report | None:
        """Write the report if it is its turn, and return it."""
        return None if step % self._every else self.log(step)

    def log(self, step: int) -> Report:
        """Write the report now."""
        report = self._loader.report(all_ranks=self._all_ranks, show=False)
        if not self._all_ranks or not self._loader.worker_config.ranks().rank:
            self.write(report.to_dict(self._prefix), step)
        return report

    @abstractmethod
    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Hand the numbers of a step to a logger."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what was opened."""


class TensorBoardLedger(LedgerLog):
    """Writes scalars for TensorBoard: to a `SummaryWriter`, or to a folder, by one of its own.

    Raises what `LedgerLog` raises; without the extra `energize[monitor]`, `ConfigError` for a
    folder.
    """

    def __init__(self, loader: Loader[Any], writer: Any, **options: Any) -> None:
        super().__init__(loader, **options)
        self._owned = isinstance(writer, str | Path)
        if self._owned:
            purpose = "TensorBoardLedger with the path of a folder"
            optional_module("tensorboard", EXTRA, purpose)
            module = optional_module("torch.utils.tensorboard", EXTRA, purpose)
            writer = module.SummaryWriter(str(writer))
        elif not callable(getattr(writer, "add_scalar", None)):
            raise ConfigError(
                f"TensorBoardLedger writes to a SummaryWriter or a folder; got {writer!r}"
            )
        self.writer = writer

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the writer, if it was made here."""
        if self._owned:
            self.writer.close()


class WandbLedger(LedgerLog):
    """Logs to a run of Weights & Biases: the one that is given, or that `wandb.init` has begun.

    The numbers of a step go into one call of `run.log(..., commit=False)`, so they are sent with
    what the trainer logs of the step; with `commit=True` at once.

    Raises what `LedgerLog` raises, and `ConfigError` where no run has begun, or without the extra
    `energize[monitor]`.
    """

    def __init__(
        self, loader: Loader[Any], run: Any = None, *, commit: bool = False, **options: Any
    ) -> None:
        super().__init__(loader, **options)
        if run is None:
            run = optional_module("wandb", EXTRA, "WandbLedger").run
        if not callable(getattr(run, "log", None)):
            raise ConfigError(
                f"WandbLedger logs to a run, and none has begun (got {run!r}): call wandb.init() "
                "first, or give the run that it returns"
            )
        self.run, self._commit = run, bool(commit)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step, commit=self._commit)
