"""What a ledger says, to the loggers of Lightning."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from energize.errors import ConfigError
from energize.loader import Loader
from energize.monitor.logs import LedgerLog
from energize.numbers import checked_whole
from energize.optional import optional_module

CLIENTS = "energize[clients]"


def lightning_ledger(
    loader: Loader[Any] | None = None,
    *,
    every: int = 100,
    all_ranks: bool = False,
    prefix: str = "mix",
) -> Any:
    """A Lightning `Callback` that logs the report of a loader every so many steps of the trainer.

    `loader` is by default the one that the trainer reads training batches from. The numbers go to
    all loggers of the trainer, as `LightningModule.log` sends them, under the trainer's global
    step. `all_ranks` and `prefix` are those of `LedgerLog`; it is called on all ranks anyway.

    It is a callback of the Lightning that the program has imported, `lightning` or
    `pytorch_lightning`. Raises `ConfigError` where there is none, and for arguments; fitting raises
    it where no loader is found.
    """
    if loader is not None and not isinstance(loader, Loader):
        raise ConfigError(
            f"lightning_ledger reports of a Loader, or of the trainer's (None); got "
            f"{type(loader).__name__}"
        )
    checked_whole(every, "lightning_ledger: every", 1)
    base = _lightning().Callback

    class LedgerCallback(base):  # type: ignore[misc, valid-type]  # known when it is imported
        """Logs after training batches."""

        def __init__(self) -> None:
            self._log: _ToLoggers | None = None
            self._step = -1

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Find the loader."""
            read = _loader_of(trainer) if loader is None else loader
            self._log = _ToLoggers(read, every=every, all_ranks=all_ranks, prefix=prefix)

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Log when a step of the optimizer was made, and it is its turn."""
            step = int(trainer.global_step)
            if self._log is not None and step != self._step:
                self._step = step
                self._log.loggers = trainer.loggers
                self._log(step)

    return LedgerCallback()


class _ToLoggers(LedgerLog):
    """Writes to loggers of Lightning."""

    loggers: Any = ()

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(dict(numbers), step=step)


def _lightning() -> Any:
    """The Lightning that is imported, or the one that is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if name in sys.modules:
            return sys.modules[name]
    return optional_module("pytorch_lightning", CLIENTS, "lightning_ledger")


def _loader_of(trainer: Any) -> Loader[Any]:
    """The loader that a trainer reads training batches from."""
    found = list(_loaders(trainer.train_dataloader))
    if len(found) != 1:
        raise ConfigError(
            f"lightning_ledger: the trainer reads from {len(found)} loaders of energize; say which "
            "is meant: lightning_ledger(loader)"
        )
    return found[0]


def _loaders(value: Any) -> Iterator[Loader[Any]]:
    if isinstance(value, Loader):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _loaders(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _loaders(each)
