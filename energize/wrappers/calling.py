"""Calling users' functions: keyed randomness, skipping, and errors that say where.

A function that has a parameter `rng` is given a random generator of its own for each call, keyed by
the dataset and the position. For others the global generators of random, numpy and torch are seeded
before each call, and put back afterwards. Either way an augmentation is the same on any number of
workers and after a resume.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from energize.errors import DataError, EncoderError, SkipSample
from energize.late import torch
from energize.reading import Failed, Reading
from energize.rng import generator

T = TypeVar("T")

Call = Callable[[Any, int, Callable[[], str]], Any]
"""Calls a function of the user with an argument and a 64-bit word that keys its randomness. The
third argument says where the sample is; it is only called when something went wrong."""

_WORD = 2**32 - 1


class Seeding(Enum):
    """Where a function draws its random numbers from."""

    OWN = "a generator that it asks for"
    GLOBAL = "the generators of random, numpy and torch"
    NONE = "it draws none"


def seeding_of(fn: Callable[..., Any], *, seeded: bool = True) -> Seeding:
    """A generator of its own where it has a parameter `rng`, else the global ones, if `seeded`."""
    try:
        parameter = inspect.signature(fn).parameters.get("rng")
    except (TypeError, ValueError):  # builtins that do not say
        parameter = None
    if parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
        return Seeding.OWN
    return Seeding.GLOBAL if seeded else Seeding.NONE


@contextmanager
def keyed_calls(fn: Callable[..., T], reading: Reading, seeding: Seeding) -> Iterator[Call]:
    """Yields a `Call` of `fn`, which returns what `fn` returns, or `Failed` when it skips the
    sample or finds its bytes bad.

    Another exception becomes an `EncoderError` with the place of the sample, from the original, and
    `reading.on_error` decides about it.
    """
    if seeding is Seeding.OWN:
        yield lambda argument, word, where: _called(
            lambda: fn(argument, rng=generator(word)), fn, where, reading
        )
        return
    if seeding is Seeding.NONE:
        yield lambda argument, _, where: _called(lambda: fn(argument), fn, where, reading)
        return
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def call(argument: Any, word: int, where: Callable[[], str]) -> Any:
        random.seed(word)
        np.random.seed(word & _WORD)
        torch.default_generator.manual_seed(word >> 1)
        return _called(lambda: fn(argument), fn, where, reading)

    try:
        yield call
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)


def _called(
    call: Callable[[], T], fn: Callable[..., Any], where: Callable[[], str], reading: Reading
) -> T | Failed:
    try:
        return call()
    except (SkipSample, DataError) as reason:
        return Failed(reason, where())
    except Exception as error:
        place = where()
        wrapped = EncoderError(
            f"{function_name(fn)} raised {type(error).__name__}: {error}\n"
            f"  at {place}\n"
            "  (raise SkipSample to leave a sample out, DataError to count it as damaged; or have "
            "all exceptions counted with get_loader(on_error='skip'))"
        )
        wrapped.__cause__ = error
        try:
            reading.on_error(wrapped)
        except (SkipSample, DataError) as decided:
            return Failed(decided, place)
        return Failed(wrapped, place)


def function_name(fn: Callable[..., Any]) -> str:
    """What to call a user's function in messages."""
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def sample_keys_of(taken: Any) -> str:
    """The sample keys of an item or a few, for messages about streams, which have no refs."""
    items = taken[:3] if isinstance(taken, list) else [taken]
    keys = [
        item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
        for item in items
    ]
    known = [str(key) for key in keys if key is not None]
    return ", ".join(known) if known else "a sample without a __key__"
