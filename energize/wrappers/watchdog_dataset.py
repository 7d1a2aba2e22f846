"""Watching over a dataset: what the loader does here."""

from __future__ import annotations

from typing import Any, TypeVar

from energize.dataset import Dataset
from energize.ignored import accepted
from energize.topology import WorkerConfig
from energize.wrappers.map import MapDataset

T = TypeVar("T")


class WatchdogDataset(MapDataset[T]):
    """Passes items through. It is the loader that watches here: `watchdog_timeout_seconds` and
    `fail_on_timeout` of `get_loader`; the arguments of those names have no effect.

    >>> from energize import ListSource
    >>> list(WatchdogDataset(ListSource("ab")))
    ['a', 'b']
    """

    def __init__(
        self,
        dataset: Dataset[T],
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = None,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool | None = None,
    ) -> None:
        accepted(
            "WatchdogDataset",
            timeout_seconds=timeout_seconds,
            initial_timeout_seconds=initial_timeout_seconds,
            fail_on_timeout=fail_on_timeout,
        )
        super().__init__(dataset, _itself, seeded=False, worker_config=worker_config)


def _itself(item: Any) -> Any:
    return item
