"""Calling users' functions: keyed randomness, skipping, and errors that say where.

A function that has a parameter `rng` is given a random generator of its own for each call, keyed by
the dataset and the position. For others the global generators of random, numpy and torch are seeded
before each call, and put back afterwards. Either way an augmentation is the same on any number of
workers and after a resume.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import GeneratorType
from typing import Any, TypeVar, cast

import numpy as np

from energize.core.lazy import torch
from energize.core.loss_weights import Keep, LostWeightError
from energize.core.quarantine import place_of
from energize.core.reading import Failed, Reading
from energize.core.rng import generator
from energize.errors import DataError, EncoderError, ReturnError, SampleError, SkipSample

T = TypeVar("T")

Call = Callable[[Any, int, Callable[[], str]], Any]
"""Calls a function of the user with an argument and a 64-bit word that keys its randomness. The
third argument says where the sample is; it is only called when something went wrong."""

index_of_call: ContextVar[int] = ContextVar("index_of_call")
"""The number of what a function is called for: of an item, in the order in which they come, on all
ranks together."""

_WORD = 2**32 - 1

_END = object()


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


def generates(fn: object) -> bool:
    """Whether a function is written with `yield`, and so makes any number of items of one."""
    if not callable(fn):
        return False
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not (inspect.isroutine(fn) or inspect.isclass(fn)):
        fn = type(fn).__call__ if not hasattr(type(fn), "__wrapped__") else fn
    return inspect.isgeneratorfunction(inspect.unwrap(fn))


@contextmanager
def keyed_calls(
    fn: Callable[..., T], reading: Reading, seeding: Seeding, keep: Keep | None = None
) -> Iterator[Call]:
    """Yields a `Call` of `fn`, which returns what `fn` returns, or `Failed` when it skips the
    sample or finds its bytes bad. `keep` gives what is returned the weights of its samples.

    Another exception becomes an `EncoderError` with the place of the sample, from the original, and
    `reading.on_error` decides about it.
    """
    if seeding is Seeding.OWN:
        yield lambda argument, word, where: _called(
            lambda: fn(argument, rng=generator(word)), fn, argument, where, reading, keep=keep
        )
        return
    if seeding is Seeding.NONE:
        yield lambda argument, _, where: _called(
            lambda: fn(argument), fn, argument, where, reading, keep=keep
        )
        return
    outside = _Drawing()

    def call(argument: Any, word: int, where: Callable[[], str]) -> Any:
        _seed(word)
        return _called(lambda: fn(argument), fn, argument, where, reading, keep=keep)

    try:
        yield call
    finally:
        outside.go_on()


def keyed_items(
    fn: Callable[..., Iterator[T]],
    argument: Any,
    word: int,
    where: Callable[[], str],
    reading: Reading,
    *,
    index: int,
    seeded: bool = True,
    keep: Keep | None = None,
) -> Iterator[T]:
    """What a generator function yields of an argument, one after another.

    Its draws go on from item to item, whatever is drawn in between. Where it skips, or fails and
    that is no error, it ends there; what it has given stays. `keep` is as in `keyed_calls`.
    """
    seeding = seeding_of(fn, seeded=seeded)
    drawing = _Drawing.seeded(word) if seeding is Seeding.GLOBAL else None
    own = {"rng": generator(word)} if seeding is Seeding.OWN else {}

    def run() -> Iterator[T]:  # also the part of a function before it gives an iterator
        yield from fn(argument, **own)

    items = run()
    while True:
        outside = None if drawing is None else _Drawing()
        try:
            if drawing is not None:
                drawing.go_on()
            index_of_call.set(index)
            item = _called(lambda: next(items, _END), fn, argument, where, reading, keep=keep)
            if drawing is not None:
                drawing = _Drawing()
        finally:
            if outside is not None:
                outside.go_on()
        if item is _END:
            return
        if isinstance(item, Failed):
            reading.leave_out(item, None, None)
            return
        yield item  # type: ignore[misc]  # neither the end nor a failure


class _Drawing:
    """Where the global generators of random, numpy and torch stand."""

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = torch.get_rng_state()

    @classmethod
    def seeded(cls, word: int) -> _Drawing:
        """Where they stand when they have been seeded; they themselves stay where they are."""
        outside = cls()
        _seed(word)
        seeded = cls()
        outside.go_on()
        return seeded

    def go_on(self) -> None:
        """Draw from here on."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)


def _seed(word: int) -> None:
    random.seed(word)
    np.random.seed(word & _WORD)
    torch.default_generator.manual_seed(word >> 1)


def _called(
    call: Callable[[], T],
    fn: Callable[..., Any],
    argument: Any,
    where: Callable[[], str],
    reading: Reading,
    *,
    keep: Keep | None,
) -> T | Failed:
    listed = reading.listed
    if listed is not None and listed.holds(function_name(fn), argument):
        return listed.failed(where())
    try:
        made = call()
        if type(made) is GeneratorType:
            raise ReturnError(
                f"{function_name(fn)} returned a generator, which is no item. To make several "
                "items of one, write it as a generator function itself, with `yield` or `yield "
                "from`, where one may stand; else return a list"
            )
        return made if keep is None or made is _END else cast("T", keep(argument, made))
    except (SkipSample, DataError) as reason:
        return _failed(reason, fn, argument, where(), reading)
    except Exception as error:
        place = where()
        if isinstance(error, ReturnError):
            lost = f"{function_name(fn)} " if isinstance(error, LostWeightError) else ""
            text = f"{lost}{error}\n  at {place}"
        else:
            text = (
                f"{function_name(fn)} raised {type(error).__name__}: {error}\n"
                f"  at {place}\n"
                "  (raise SkipSample to leave a sample out, DataError to count it as damaged; or "
                "have all exceptions counted with get_loader(on_error='skip'))"
            )
        wrapped = EncoderError(text)
        wrapped.__cause__, wrapped.sample = error, argument
        try:
            reading.on_error(wrapped)
        except (SkipSample, DataError) as decided:
            return _failed(decided, fn, argument, place, reading)
        return _failed(wrapped, fn, argument, place, reading)


def _failed(
    reason: SampleError | SkipSample,
    fn: Callable[..., Any],
    argument: Any,
    where: str,
    reading: Reading,
) -> Failed:
    place = place_of(argument, function_name(fn)) if reading.locate else None
    if not isinstance(reason, EncoderError):
        _forget_frames(reason)
    return Failed(reason, where, place)


def _forget_frames(reason: BaseException | None) -> None:
    """Frames hold the sample, and the list that this failure comes into: a circle, which keeps
    every bad sample in memory until the collector comes by.
    """
    while reason is not None:
        reason.__traceback__ = None
        reason = reason.__cause__ or reason.__context__


def function_name(fn: Callable[..., Any]) -> str:
    """What to call a user's function in messages."""
    called: Any = inspect.unwrap(fn)
    return str(getattr(called, "__qualname__", None) or type(called).__qualname__)


def sample_keys_of(taken: Any) -> str:
    """The sample keys of an item or a few, for messages about streams, which have no refs."""
    items = taken[:3] if isinstance(taken, list) else [taken]
    keys = [
        item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
        for item in items
    ]
    known = [str(key) for key in keys if key is not None]
    return ", ".join(known) if known else "a sample without a __key__"
