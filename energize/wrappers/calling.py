"""Calling users' functions: keyed randomness, skipping, and errors that say where.

A user's function may use the global generators of random, numpy and torch. They are seeded before
each call with a word keyed by the dataset and the position, so that an augmentation is the same on
any number of workers and after a resume, and put back afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from energize.errors import DataError, EncoderError, SkipSample
from energize.fetching import Failed
from energize.late import torch

__all__ = ["call", "function_name", "keyed_generators"]

T = TypeVar("T")

_WORD = 2**32 - 1


@contextmanager
def keyed_generators(enabled: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds the global generators with a 64-bit word; restores them after."""
    if not enabled:
        yield _leave_alone
        return
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield _seed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)


def _seed(word: int) -> None:
    random.seed(word)
    np.random.seed(word & _WORD)
    torch.default_generator.manual_seed(word >> 1)


def _leave_alone(_: int) -> None:
    return


def call(fn: Callable[..., T], argument: Any, where: Callable[[], str]) -> T | Failed:
    """`fn(argument)`; `Failed` when it skips the sample or finds its bytes bad.

    Anything else it raises becomes an `EncoderError` with the place of the sample, from the
    original. `where` is only called when something went wrong.
    """
    try:
        return fn(argument)
    except (SkipSample, DataError) as reason:
        return Failed(reason, where())
    except Exception as error:
        raise EncoderError(
            f"{function_name(fn)} raised {type(error).__name__}: {error}\n"
            f"  at {where()}\n"
            "  (raise SkipSample to leave a sample out, DataError to count it as damaged)"
        ) from error


def function_name(fn: Callable[..., Any]) -> str:
    """What to call a user's function in messages."""
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def keys_of(taken: Any) -> str:
    """The sample keys of an item or a few, for messages about streams, which have no refs."""
    items = taken[:3] if isinstance(taken, list) else [taken]
    keys = [
        item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
        for item in items
    ]
    known = [str(key) for key in keys if key is not None]
    return ", ".join(known) if known else "a sample without a __key__"
