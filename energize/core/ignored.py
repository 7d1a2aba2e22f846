"""Arguments that other libraries have and that have no use here: taken, with a word in
the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

_log = logging.getLogger("energize")

# docs/coming-from-energon.md lists the replacement of each.
IGNORED = {
    "batcher_config",
    "batcher_stateless",
    "checkpoint_every_min_n_samples",
    "checkpoint_every_sec",
    "every_n_iter",
    "fail_on_timeout",
    "filter_fn_config",
    "final_packer_stateless",
    "freeze",
    "gc_collect_every_n_steps",
    "gc_freeze_at_start",
    "handler",
    "index_sqlite_tmp_path",
    "initial_timeout_seconds",
    "iter_map_fn_config",
    "join_index",
    "len_map_fn",
    "map_fn_config",
    "n_checkpoints",
    "packer_config",
    "parallel_shard_iters",
    "part_filter",
    "reset_after_epoch",
    "restart",
    "sample_encoder_stateless",
    "sample_type",
    "stateless_iter_fn",
    "stateless_map_fn",
    "timeout_seconds",
    "worker_debug_path",
    "worker_log_level",
    "worker_rotation_offset",
}

TOLERANCES = tuple(
    f"{of}failure_tolerance"
    for of in ("", "pre_packer_", "final_packer_", "sample_encoder_")
)
"""Arguments of datasets for the number of failures in a row that ends a run."""

_logged: set[tuple[str, str]] = set()

Line = tuple[str, str, str, int]
"""The arguments of `log_once`."""


@dataclass
class _Outbox:
    """Lines of a worker process that its trainer is to log; None in other processes."""

    lines: list[Line] | None = None


_outbox = _Outbox()


def accepted(owner: str, **values: object) -> None:
    """Log once that arguments of Megatron-Energon have no effect, at INFO.

    Args:
        owner: The name of the class or function.
        **values: The arguments. None and False count as missing.

    Raises:
        TypeError: For an argument that Megatron-Energon does not have either.

    >>> accepted("get_savable_loader", checkpoint_every_sec=60, n_checkpoints=None)
    >>> accepted("get_savable_loader", chekpoint_every_sec=60)
    Traceback (most recent call last):
        ...
    TypeError: get_savable_loader() got an unexpected keyword argument \
'chekpoint_every_sec'
    """
    for name, value in values.items():
        if name not in IGNORED:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")
        if value is not None and value is not False:
            hint = "docs/coming-from-energon.md says what is in its place"
            log_once(owner, name, f"{name}={value!r} has no effect: {hint}")


def was_logged(owner: str, name: str) -> bool:
    """Return whether `log_once` has logged this."""
    return (owner, name) in _logged


def log_once(owner: str, name: str, text: str, level: int = logging.INFO) -> None:
    """Log a message on the logger `energize`, once for each owner and name.

    Args:
        owner: The class or function, or the path, that the message is about.
        name: The name of an argument, or another key.
        text: The message.
        level: The level of the message.
    """
    if (owner, name) in _logged:
        return
    _logged.add((owner, name))
    if _outbox.lines is None:
        _log.log(level, "%s: %s", owner, text)
    else:
        _outbox.lines.append((owner, name, text, level))


def drain_lines() -> list[Line]:
    """Return the lines since the last call. From the first call on, lines are kept, not
    logged.

    Worker processes send them to their trainer, which logs each line once for all
    workers.
    """
    lines = _outbox.lines or []
    _outbox.lines = []
    return lines
