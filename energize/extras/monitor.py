"""What a ledger says, to the loggers that trainers use."""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset
from energize.core.lazy import optional_module
from energize.core.stream import State
from energize.errors import ConfigError
from energize.ledger import Book, Ledger, LedgerRow, Report, Stand
from energize.loader import Loader
from energize.loader.edits import Edits
from energize.loader.outlined import cursor_of, tree_of
from energize.loader.reporting import items_of
from energize.loader.sealing import checked_state
from energize.loader.state import resumed
from energize.loader.streams import StreamState

__all__ = [
    "LedgerLog",
    "MetricsServer",
    "TensorBoardLedger",
    "WandbLedger",
    "lightning_ledger",
    "report_of_state",
    "serve_metrics",
]


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


# What a ledger says, to the loggers of Lightning.

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


# What a ledger says, as Prometheus text over HTTP.

_COUNTERS = {
    "samples": "Samples that were delivered.",
    "batches": "Items that were delivered, by their parts.",
    "weight": "Sum of the loss weights of what was delivered.",
    "skipped": "Samples that were skipped.",
    "failed": "Samples that failed.",
}
_GAUGES = {
    "asked": "Share of its level that the weights ask for, 0 to 1.",
    "planned": "Share of its level that the order gives, 0 to 1.",
    "delivered": "Share of its level that was delivered, 0 to 1.",
    "epochs": "How often the source was passed through.",
    "repeats": "Part of the samples that were drawn in a second pass or later, 0 to 1.",
    "effective": "Kish's effective sample size of the loss weights.",
    "chance": "How likely chance differs from the asked shares of its parts as much.",
}


class MetricsServer:
    """Serves the metrics of a loader until it is closed; made by `serve_metrics`."""

    def __init__(self, server: Any, thread: Any, host: str) -> None:
        self._server, self._thread = server, thread
        self.port: int = server.server_port
        """The port that it listens on."""
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        """Where the text is."""

    def close(self) -> None:
        """Stop listening; it may be called more than once."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()


def serve_metrics(loader: Loader[Any], port: int = 0, *, host: str = "127.0.0.1") -> MetricsServer:
    """Serve what this rank's loader has delivered as Prometheus text, at `.url` of the result.

    `port` 0 takes a free one. It listens on loopback; another `host`, such as "0.0.0.0", shows the
    names of the sources to whoever can reach it. Nothing listens unless this is called, and it ends
    with the loader: with its `close()`, or when nobody has the loader any more. Each rank serves
    its own counts, with its number as the label `rank`; Prometheus sums them.

    Metrics: `energize_samples_total`, `energize_asked_share` and so on, one for each part of the
    mix, by its names, such as `part="texts/web"`; and of the rank `energize_items_total`,
    `energize_padding_total`, `energize_waiting_seconds_total`.

    Raises `ConfigError` without the extra `energize[monitor]`, for a port that cannot be had, and
    for a loader that keeps no ledger.
    """
    if not isinstance(loader, Loader):
        raise ConfigError(f"serve_metrics serves a Loader; got {type(loader).__name__}")
    number = checked_whole(port, "serve_metrics: port", 0)
    client = optional_module("prometheus_client", EXTRA, "serve_metrics")
    core = optional_module("prometheus_client.core", EXTRA, "serve_metrics")
    loader.report(show=False)  # whatever is wrong shows here
    registry = client.CollectorRegistry()
    registry.register(_Collector(weakref.ref(loader), core))
    try:
        server, thread = client.start_http_server(number, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"serve_metrics cannot listen on {host} port {number}: {error}. Port 0 takes a free one"
        ) from error
    served = MetricsServer(server, thread, host)
    loader.call_at_close(served.close)
    weakref.finalize(loader, served.close)
    return served


class _Collector:
    """Asks the loader for a report whenever somebody reads the metrics."""

    def __init__(self, loader: weakref.ref[Loader[Any]], core: Any) -> None:
        self._loader, self._core = loader, core

    def describe(self) -> list[Any]:
        """Nothing that has to be known before it is asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics."""
        loader = self._loader()
        if loader is None:
            return
        report = loader.report(show=False)
        rank = str(report.ranks[0].rank)
        yield from self._of_parts(report, rank)
        yield from self._of_rank(report, rank)

    def _of_parts(self, report: Report, rank: str) -> Iterator[Any]:
        counters, gauges = dict(_COUNTERS), dict(_GAUGES)
        if report.cost_name is not None:
            counters["cost"] = f"Cost of what was delivered ({report.cost_name})."
        for name, text in {**counters, **gauges}.items():
            counts = name in counters
            kind = self._core.CounterMetricFamily if counts else self._core.GaugeMetricFamily
            shares = ("asked", "planned", "delivered", "repeats")
            full = f"energize_{name}_share" if name in shares else f"energize_{name}"
            family = kind(full, text, labels=["part", "rank"])
            for row in report.rows:
                value = _value(row, name)
                if value is not None:
                    family.add_metric(["/".join(row.path), rank], value)
            yield family

    def _of_rank(self, report: Report, rank: str) -> Iterator[Any]:
        totals = report.ranks[0]
        for name, text, value in (
            ("items", "Items that were delivered.", totals.items),
            ("padding", "Items of padding that were delivered beside them.", totals.padding),
            ("waiting_seconds", "Seconds that items were waited for.", totals.waited),
            ("seconds", "Seconds that passed in loops over the loader.", totals.seconds),
            ("warnings", "Differences that chance does not explain.", len(report.warnings)),
        ):
            counts = name != "warnings"
            kind = self._core.CounterMetricFamily if counts else self._core.GaugeMetricFamily
            family = kind(f"energize_{name}", text, labels=["rank"])
            family.add_metric([rank], float(value))
            yield family


def _value(row: LedgerRow, name: str) -> float | None:
    value = getattr(row, name)
    return None if value is None else float(value)


# What a saved state says of the run that saved it.


def report_of_state(dataset: Dataset[Any] | None, state: State, *, strict: bool = True) -> Report:
    """What a run had been given when it saved this state: a `Report` over all ranks.

    With the `dataset` of the run it has the samples, shares and epochs of each source, as its order
    gives them, with what was changed while the run went on; of a stream, whose state says where its
    lanes stand and not what they gave, what was asked for. Without the dataset (None) it has the
    names of the sources and how far the run has come, which is all that a state says alone.

    Raises what `Loader.load_state_dict` raises; with `strict=False` a state of another dataset is a
    warning.

    >>> from energize import BlendDataset, ListSource, get_loader
    >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
    >>> mix = BlendDataset(parts, weights={"web": 3, "code": 1})
    >>> loader = get_loader(mix)
    >>> for step, sample in zip(range(40), loader): pass
    >>> report = report_of_state(mix, loader.state_dict())
    >>> report["code"].samples, round(report["code"].epochs, 2)
    (10, 1.11)
    """
    if dataset is None:
        return _alone(state)
    cursor, _ = resumed(dataset, state, strict=strict)
    edited = Edits.loaded(cursor).applied(dataset)
    place = StreamState.loaded(cursor) if "lanes" in cursor else cursor
    items = items_of(edited, place)
    book = Book(edited, Ledger())
    book.begin(edited, items)
    title = f"After {_position(cursor)}"
    return book.report(Stand(items, 0, 1), title=title)


def _alone(state: State) -> Report:
    """What a state says without its dataset."""
    held = checked_state(state)
    cursor, tree = cursor_of(held), tree_of(held)
    sources = [_named(name) for name in _sources(tree)]
    note = "a state alone says which sources there are; give the mix too, to see what they gave"
    rows = (_row((), is_source=False), *sources)
    return Report(f"After {_position(cursor)}", rows, (), 1, notes=(note,))


def _position(cursor: State) -> str:
    position = cursor.get("position", 0)
    text = f"{position:,} items" if isinstance(position, int) else "an unknown number of items"
    if "lanes" in cursor:
        return f"{text} of epoch {cursor.get('epoch')}, in {cursor['lanes']} lanes"
    return f"{text} to all ranks"


def _sources(tree: Any) -> Iterator[str]:
    """The names of the sources in an outline; of a wide mix as many as it keeps."""
    inputs = tree.get("inputs")
    if isinstance(inputs, dict):
        yield from inputs.get("names") or [f"{inputs.get('count')} datasets"]
    elif inputs:
        for each in inputs:
            yield from _sources(each)
    else:
        yield str(tree.get("name", tree.get("kind")))


def _named(name: str) -> LedgerRow:
    return _row((name,), is_source=True)


def _row(path: tuple[str, ...], *, is_source: bool) -> LedgerRow:
    return LedgerRow(
        path=path,
        is_source=is_source,
        unit="samples",
        asked=None,
        planned=None,
        delivered=None,
        samples=0,
        samples_share=0.0,
        batches=0.0,
        batches_share=0.0,
        cost=None,
        cost_share=None,
        weight=0.0,
        weight_share=0.0,
        effective=0.0,
        epochs=None,
        repeats=0.0,
        skipped=0,
        failed=0,
        chance=None,
    )
