"""The arguments of a loader, validated and grouped."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    StrictBool,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from energize.core.checks import whole_number
from energize.core.dataset import Dataset
from energize.core.description import Role
from energize.core.failures import FailurePolicy, OnError
from energize.core.lanes import WorkerConfig, checked_config
from energize.core.os_errors import is_url
from energize.core.validation import fault_report, faults
from energize.errors import ConfigError
from energize.loader.position import MOST_LANES
from energize.report import Ledger

T = TypeVar("T")

DEFAULT_BYTES = 2**29
"""Bytes that the workers of a rank read ahead: 40 photographs of 2000 x 2000 pixels."""

DEFAULT_TIMEOUT = 300.0
"""Seconds; less than the timeout of NCCL's collectives, 600."""

WARN_SECONDS = 60.0
"""Seconds without an item after which stacks of workers are logged."""

ListPath = str | os.PathLike[str]


def _whole(value: object) -> object:
    number = whole_number(value)
    return value if number is None else number  # also those of numpy


def _on_disk(path: Any) -> Any:
    if is_url(path):
        raise ValueError("must be a local file: a remote store cannot append lines")
    return path


def _lists_on_disk(policy: FailurePolicy) -> FailurePolicy:
    if is_url(policy.quarantine):
        raise ValueError(
            "quarantine: must be a local file: a remote store cannot append lines"
        )
    return policy


def _closes(value: Any) -> Any:
    if value is not None and not callable(getattr(value, "close", None)):
        raise ValueError("must be a CachePool or None")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(_whole), Field(strict=True, ge=1)]
Seconds: TypeAlias = Annotated[float, Field(strict=True, gt=0)]
Path: TypeAlias = str | InstanceOf[os.PathLike[str]]


@dataclass(frozen=True)
class DeliverySettings:
    """Arguments of `get_loader` about steps and loops.

    Attributes:
        call_config: The config that functions see while they are called. Its ranks
            count `current_batch_index` separately.
        continues_loops: Whether a loop ends where the previous loop, left early, would
            have ended.
        standalone: Whether the loader reads for another loader and shares nothing with
            other ranks. Its state is valid for itself only.
    """

    uneven: Literal["pad", "drop", "repeat", "allow"] = "pad"
    lanes: Annotated[Count, Field(le=MOST_LANES)] | None = None
    global_batch_size: Count | None = None
    micro_batch_size: Count | None = None
    role: Role | None = None
    call_config: InstanceOf[WorkerConfig] | None = None
    continues_loops: StrictBool = False
    standalone: bool = False


@dataclass(frozen=True)
class WorkerSettings:
    """Arguments of `get_loader` about worker processes and waiting."""

    prefetch_factor: Count | None = None
    prefetch_bytes: Count = DEFAULT_BYTES
    pin_memory: bool | None = None
    encoder_threads: Count = 1
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    timeout: Seconds | None = DEFAULT_TIMEOUT
    warn_after: Seconds | None = WARN_SECONDS

    @property
    def start_method(self) -> str:
        """How workers start."""
        default = "fork" if sys.platform == "linux" else "spawn"
        return self.multiprocessing_context or default


@dataclass(frozen=True)
class LoaderSettings:
    """The arguments of `get_loader`, in groups; made by `checked_settings`."""

    delivery: DeliverySettings = DeliverySettings()
    workers: WorkerSettings = WorkerSettings()
    failures: Annotated[InstanceOf[FailurePolicy], AfterValidator(_lists_on_disk)] = (
        FailurePolicy()
    )
    cache_pool: Annotated[Any, AfterValidator(_closes)] = None
    losses: Annotated[Path | None, AfterValidator(_on_disk)] = None
    ledger: InstanceOf[Ledger] | StrictBool = True


_SETTINGS = TypeAdapter(LoaderSettings)

_GROUPS = {"delivery": DeliverySettings, "workers": WorkerSettings}

_GROUP_OF = {
    field.name: group for group, cls in _GROUPS.items() for field in fields(cls)
}
"""The group of each argument that belongs to one."""

OPTIONS = frozenset(
    {*_GROUP_OF, *(field.name for field in fields(LoaderSettings))} - {*_GROUPS}
)
"""The names of all arguments of `checked_settings`."""


def checked_settings(**arguments: Any) -> LoaderSettings:
    """Check the arguments of `get_loader`, and group them.

    Args:
        **arguments: The arguments, by the names in `OPTIONS`.

    Raises:
        ConfigError: Naming all arguments that cannot be used.

    Example:
        >>> checked_settings(uneven="padd")
        Traceback (most recent call last):
            ...
        energize.errors.ConfigError: get_loader (uneven): ... got 'padd'; ...
    """
    groups: dict[str, Any] = {group: {} for group in _GROUPS}
    for name, value in arguments.items():
        group = _GROUP_OF.get(name)
        (groups if group is None else groups[group])[name] = value
    try:
        return _SETTINGS.validate_python(groups)
    except ValidationError as error:
        located = [
            fault._replace(
                path=fault.path[1:] if fault.path[0] in _GROUPS else fault.path
            )
            for fault in faults(error, _SETTINGS, groups)
        ]
        raise ConfigError(fault_report(located, "get_loader", {})) from None


def checked_failures(
    failures: FailurePolicy | None,
    on_error: str | OnError | None,
) -> FailurePolicy:
    """Return the failure policy of a loader.

    Args:
        failures: The argument of `get_loader`. None for the default policy.
        on_error: The short form for a policy that differs in `on_error` alone.

    Raises:
        ConfigError: If both arguments are given, and for a value that cannot be used.
    """
    if failures is not None:
        if on_error is not None:
            raise ConfigError(
                "get_loader takes on_error= or failures=, not both. Pass "
                "failures=FailurePolicy(on_error=...)"
            )
        return failures
    return FailurePolicy() if on_error is None else FailurePolicy(on_error=on_error)


def configured(
    dataset: Dataset[T], worker_config: WorkerConfig | None
) -> tuple[Dataset[T], WorkerConfig]:
    """Return the dataset and the config that it is read with; see `get_loader`."""
    carried = dataset.worker_config
    config = (
        (carried or WorkerConfig())
        if worker_config is None
        else checked_config(worker_config)
    )
    if carried is None:
        return dataset.reseeded(
            config.seed_offset
        ) if config.seed_offset else dataset, config
    if carried.seed_offset != config.seed_offset:
        raise ConfigError(
            f"the loader's worker config has seed_offset {config.seed_offset}, the "
            f"dataset was built with seed_offset {carried.seed_offset}. Build the "
            "dataset with the loader's worker config, or use one seed_offset for both"
        )
    return dataset, config
