"""What a ledger says, as Prometheus text over HTTP."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from energize.errors import ConfigError
from energize.ledger import LedgerRow, Report
from energize.loader import Loader
from energize.numbers import checked_whole
from energize.optional import optional_module

EXTRA = "energize[monitor]"

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
