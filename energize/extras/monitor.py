"""A loader's ledger, written to TensorBoard, Weights & Biases, Lightning and
Prometheus.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from energize.core.checks import checked_whole
from energize.core.lazy import optional_module
from energize.errors import ConfigError
from energize.loader import Loader
from energize.report import Report

__all__ = [
    "LedgerLog",
    "PrometheusLedger",
    "TensorBoardLedger",
    "WandbLedger",
    "lightning_ledger",
]

_EXTRA = "energize[monitor]"


class LedgerLog(ABC):
    """Writes the report of a loader at fixed step intervals; call it with every step.

    A subclass implements `write`. With `all_ranks`, all ranks must call it at the same
    steps; counts are summed and the first rank writes. Otherwise every rank with a
    target writes its own counts. `prefix` is prepended to all names.

    Raises:
        ConfigError: For anything but a loader.
    """

    def __init__(
        self,
        loader: Loader[Any],
        *,
        every: int = 100,
        all_ranks: bool = False,
        prefix: str = "mix",
    ) -> None:
        owner = type(self).__name__
        if not isinstance(loader, Loader):
            raise ConfigError(
                f"{owner} needs a Loader of get_loader, got {loader!r:.80}"
            )
        self._loader = loader
        self._all_ranks = all_ranks
        self._prefix = prefix
        self._every = checked_whole(every, f"{owner}: every", 1)

    def __call__(self, step: int) -> Report | None:
        """Write the report if it is its turn, and return it."""
        return None if step % self._every else self.log(step)

    def log(self, step: int) -> Report:
        """Write the report now, and return it."""
        report = self._loader.report(all_ranks=self._all_ranks)
        if not self._all_ranks or not self._loader.worker_config.ranks().rank:
            self.write(report.to_dict(self._prefix), step)
        return report

    @abstractmethod
    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Hand the numbers of a step to a logger."""


class TensorBoardLedger(LedgerLog):
    """Writes scalars for TensorBoard to a `SummaryWriter`, which the program closes.

    Raise what `LedgerLog` raises.
    """

    def __init__(self, loader: Loader[Any], writer: Any, **options: Any) -> None:
        super().__init__(loader, **options)
        if not callable(getattr(writer, "add_scalar", None)):
            raise ConfigError(
                "TensorBoardLedger needs a torch.utils.tensorboard.SummaryWriter, got "
                f"{writer!r}"
            )
        self.writer = writer

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)


class WandbLedger(LedgerLog):
    """Logs to a run of Weights & Biases: the one that is given, or that `wandb.init`
    has begun.

    The numbers of a step are sent with what the trainer logs of it; with `commit=True`
    at once.

    Raise what `LedgerLog` raises, and `ConfigError` if no run has begun, or without
    `energize[monitor]`.
    """

    def __init__(
        self,
        loader: Loader[Any],
        run: Any = None,
        *,
        commit: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(loader, **options)
        self.run = (
            optional_module("wandb", _EXTRA, "WandbLedger").run if run is None else run
        )
        self._commit = commit
        if not callable(getattr(self.run, "log", None)):
            raise ConfigError(
                f"WandbLedger needs a started run, got {self.run!r}. Call wandb.init() "
                "first, or pass the run that it returns"
            )

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self.run.log(dict(numbers), step=step, commit=self._commit)


class PrometheusLedger(LedgerLog):
    """Sets gauges of prometheus_client; use one ledger per registry.

    Gauges are the numbers of `Report.to_dict`, such as `energize_samples` and
    `energize_asked_share`, with the labels `part` (for example "texts/web"; empty for
    the whole mix) and `rank`. The default registry is the one of
    `start_http_server(port)`.

    Raises:
        ConfigError: Without `energize[monitor]`, and as `LedgerLog`.
    """

    def __init__(
        self, loader: Loader[Any], registry: Any = None, **options: Any
    ) -> None:
        super().__init__(loader, **options)
        client = optional_module("prometheus_client", _EXTRA, "PrometheusLedger")
        registry = client.REGISTRY if registry is None else registry
        self._gauge = partial(
            client.Gauge, labelnames=("part", "rank"), registry=registry
        )
        self._gauges: dict[str, Any] = {}

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        rank = self._loader.worker_config.ranks().rank
        for key, value in numbers.items():
            part, _, name = key.removeprefix(self._prefix).rpartition("/")
            if name not in self._gauges:
                full = re.sub(r"\W", "_", f"energize_{name}")
                self._gauges[name] = self._gauge(full, f"{name} of a part")
            self._gauges[name].labels(part.lstrip("/"), rank).set(value)


class _ToLoggers(LedgerLog):
    """Writes to the loggers of a Lightning trainer."""

    loggers: Iterable[Any] = ()

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for logger in self.loggers:
            logger.log_metrics(dict(numbers), step=step)


def lightning_ledger(
    loader: Loader[Any] | None = None,
    *,
    every: int = 100,
    all_ranks: bool = False,
    prefix: str = "mix",
) -> Any:
    """Return a Lightning `Callback` that logs the report of a loader every so many
    steps.

    `loader` is by default the one that the trainer reads training batches from. The
    numbers go to all loggers of the trainer, under its global step. `all_ranks` and
    `prefix` are those of `LedgerLog`; the callback is called on all ranks anyway.

    It is a callback of the Lightning that the program has imported, `lightning` or
    `pytorch_lightning`. Raise `ConfigError` without one; fitting raises it for wrong
    arguments, and if no loader is found.
    """
    imported = sys.modules.get("lightning.pytorch") or optional_module(
        "pytorch_lightning", "energize[clients]", "lightning_ledger"
    )

    class LedgerCallback(imported.Callback):  # type: ignore[misc, name-defined]
        """Logs after training batches."""

        def __init__(self) -> None:
            self._log: _ToLoggers | None = None
            self._step = -1

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Find the loader."""
            read = (
                [loader] if loader is not None else _loaders(trainer.train_dataloader)
            )
            if len(read) != 1:
                raise ConfigError(
                    f"lightning_ledger: the trainer reads from {len(read)} loaders of "
                    "energize. Pass one: lightning_ledger(loader)"
                )
            self._log = _ToLoggers(
                read[0], every=every, all_ranks=all_ranks, prefix=prefix
            )

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Log if a step of the optimizer was made, and it is its turn."""
            step = int(trainer.global_step)
            if self._log is not None and step != self._step:
                self._step = step
                self._log.loggers = trainer.loggers
                self._log(step)

    return LedgerCallback()


def _loaders(value: Any) -> list[Loader[Any]]:
    """Return the loaders in nested lists and dicts."""
    if isinstance(value, Mapping | list | tuple):
        inner = value.values() if isinstance(value, Mapping) else value
        return [loader for child in inner for loader in _loaders(child)]
    return [value] if isinstance(value, Loader) else []
