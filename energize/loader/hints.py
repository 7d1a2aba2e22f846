"""One log line for a loader that a training framework reads without its adapter.

This is the only module that looks at the call stack. It reads the stack as text, and
the text chooses the words of a log line only: no data, state or return value depends
on it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_log = logging.getLogger("energize")

_FRAMEWORKS = ("accelerate", "composer", "lightning", "pytorch_lightning")
"""Packages that iterate over loaders. transformers imports accelerate."""

_ADAPTED = "energize/integrations/"


def _trains(loader: Any) -> bool:
    return bool(loader.role == "train")


def _is_fetched_ahead(loader: Any) -> bool:
    try:
        return len(loader) < 0
    except TypeError:
        return not loader.requires_confirmation


def _always(loader: Any) -> bool:
    return True


class _Loop(NamedTuple):
    """A loop of a framework, by the end of its line in a stack."""

    file: str
    function: str
    needs_advice: Callable[[Any], bool]
    advice: str

    def is_in(self, stack: str) -> bool:
        """Return whether this loop is one of the callers."""
        lines = stack.splitlines()
        return any(self.file in line and self.function in line for line in lines)


_ROLE = (
    "evaluates over a loader of the role 'train', so each loop resumes after the last. "
    "Write get_loader(dataset, role='eval')"
)

_GATHERED = (
    "gather_for_metrics of Accelerate counts padding of this loader as samples. Use "
    "gather_real or AccelerateLoader of energize.integrations.accelerate"
)

_LOOPS = (
    _Loop(
        "pytorch/loops/fit_loop.py",
        "",
        _is_fetched_ahead,
        "Lightning fetches one batch ahead of a loader without a length, so a resumed "
        "run would skip it. Add the callback LightningLoaderState(loader) of "
        "energize.integrations.lightning",
    ),
    _Loop("pytorch/loops/evaluation_loop.py", "", _trains, f"Lightning {_ROLE}"),
    _Loop("pytorch/loops/prediction_loop.py", "", _trains, f"Lightning {_ROLE}"),
    _Loop(
        "transformers/trainer.py",
        "in evaluation_loop",
        _always,
        "the Trainer of transformers counts padding of a loader as samples. Use "
        "energize.integrations.transformers.LoaderTrainer",
    ),
    _Loop("composer/trainer/trainer.py", "in _eval_loop", _trains, f"Composer {_ROLE}"),
    _Loop(
        "composer/trainer/trainer.py",
        "in _spin_dataloaders_to_cur_epoch",
        _always,
        "Composer reads batches to skip them, so a resumed run would have other "
        "batches. Add the callback ComposerLoaderState(loader) of "
        "energize.integrations.composer",
    ),
)


def log_missing_adapter(loader: Any, world_size: int) -> None:
    """Log which adapter is missing, if a training framework begins this loop.

    Args:
        loader: The loader; its first loop begins.
        world_size: The number of ranks.

    Example:
        >>> from energize import ListSource, get_loader
        >>> log_missing_adapter(get_loader(ListSource("abc")), 1)
    """
    if loader.is_standalone or sys.modules.keys().isdisjoint(_FRAMEWORKS):
        return
    stack = _call_stack()
    if _ADAPTED in stack:
        return
    advice = _advice_for(loader, stack)
    if advice is not None:
        _log.warning("%r: %s", loader, advice)
    elif world_size > 1 and loader.role == "eval" and _uses_accelerate():
        _log.info("%r: %s", loader, _GATHERED)


def _call_stack() -> str:
    *_, stack = _log.findCaller(stack_info=True)
    paths = (stack or "").replace("\\", "/")
    return paths.replace("pytorch_lightning/", "pytorch/")


def _advice_for(loader: Any, stack: str) -> str | None:
    for loop in _LOOPS:
        if loop.is_in(stack) and loop.needs_advice(loader):
            return loop.advice
    return None


def _uses_accelerate() -> bool:
    accelerate: Any = sys.modules.get("accelerate.state")
    return accelerate is not None and bool(accelerate.is_initialized())
