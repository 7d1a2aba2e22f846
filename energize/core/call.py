"""Users' functions as datasets call them: keyed randomness, skipping, and errors that say where.

A function that has a parameter `rng` is given a random generator of its own for each call, keyed by
the dataset and the position. For others the global generators of random, numpy and torch are seeded
before each call, and put back afterwards; unless their code calls nothing that could draw. Either
way an augmentation is the same on any number of workers and after a resume.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import CodeType, GeneratorType
from typing import Any, TypeVar

import numpy as np

from energize.core.checks import failed_allocation
from energize.core.description import function_name
from energize.core.lazy import torch
from energize.core.loss_weights import Keep, LostWeightError
from energize.core.quarantine import place_of
from energize.core.rng import generator, hash_positions
from energize.core.trace import Failed, Reading, Request
from energize.errors import (
    DataError,
    EncoderError,
    FatalSampleError,
    ReturnError,
    SampleError,
    SkipSample,
)

T = TypeVar("T")

Where = Callable[[int], str]
"""Says where the n-th argument comes from; asked only if something went wrong with it."""

index_of_call: ContextVar[tuple[int, Any]] = ContextVar("index_of_call")
"""The number of what a function is called for: of an item, in the order in which they come, on all
ranks together; and the worker config that it may ask for, if any."""

_WORD = 2**32 - 1

_END = object()

_MAY_DRAW = ("CALL", "IMPORT", "GET_ITER", "SEND", "YIELD", "BEFORE_WITH")
"""Beginnings of the names of instructions that may run other code, which may draw numbers."""


class Seeding(Enum):
    """Where a function draws its random numbers from."""

    OWN = "a generator that it asks for"
    GLOBAL = "the generators of random, numpy and torch"
    NONE = "it draws none"


def seeding_of(fn: Callable[..., Any], *, seeded: bool = True) -> Seeding:
    """Return `OWN` if `fn` has a parameter `rng`, else `GLOBAL` if it is `seeded` and may draw."""
    try:
        parameter = inspect.signature(fn).parameters.get("rng")
    except (TypeError, ValueError):  # builtins that do not say
        parameter = None
    if parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
        return Seeding.OWN
    return Seeding.GLOBAL if seeded and _may_draw(fn) else Seeding.NONE


def _may_draw(fn: Any) -> bool:
    """Return whether a function may draw random numbers: not if its code calls nothing."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if not isinstance(code, CodeType):
        return True
    return any(each.opname.startswith(_MAY_DRAW) for each in dis.get_instructions(code))


class Call:
    """Calls a function of the user, which may skip a sample, or find its bytes bad: it is `Failed`
    then. Another exception becomes an `EncoderError` with the place of the sample, and
    `reading.on_error` decides about it.

    Its random draws are keyed by `key` and the number of the call. `keep` gives what is returned
    the loss weights of what it was made of.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        key: int,
        keep: Keep | None = None,
        *,
        seeded: bool = True,
        tolerance: int | None = None,
    ) -> None:
        self.fn, self._key, self._keep = fn, key, keep
        self._tolerance: int | None = tolerance
        if tolerance is None:
            self._tolerance = getattr(getattr(fn, "method", fn), "failure_tolerance", None)
        self._in_a_row = 0
        self._is_pure = getattr(fn, "is_pure", False)
        self.seeding = seeding_of(fn, seeded=seeded)

    def each(
        self, arguments: Sequence[Any], request: Request, words: Sequence[int] | None = None
    ) -> list[Any]:
        """Return what the function makes of each argument; those that have failed stay.

        Its draws are keyed by the position of each, unless `words` are given.
        """
        numbers, reading, where = request
        seeding = self.seeding
        if words is None and seeding is not Seeding.NONE:
            words = hash_positions(self._key, numbers, reading.attempt).tolist()
        made: list[Any] = []
        with _around(reading, draws=seeding is Seeding.GLOBAL):
            for row, (argument, number) in enumerate(zip(arguments, numbers.tolist(), strict=True)):
                if type(argument) is Failed:
                    made.append(argument)
                    continue
                index_of_call.set((number, reading.config))
                word = 0 if words is None else words[row]
                made.append(self._called(argument, word, reading, row, where))
        return made

    def one(self, argument: Any, word: int, index: int, reading: Reading, where: Where) -> Any:
        """Return what the function makes of an argument, for item `index`, keyed by `word`."""
        index_of_call.set((index, reading.config))
        with _around(reading, draws=self.seeding is Seeding.GLOBAL):
            return self._called(argument, word, reading, 0, where)

    def _called(self, argument: Any, word: int, reading: Reading, row: int, where: Where) -> Any:
        fn, seeding = self.fn, self.seeding
        if reading.listed is not None and reading.listed.holds(function_name(fn), argument):
            return reading.listed.failed(where(row))
        try:
            if seeding is Seeding.NONE:
                made = fn(argument)
            elif seeding is Seeding.OWN:
                made = fn(argument, rng=generator(word))
            else:
                _seed(word)
                made = fn(argument)
            if self._in_a_row:
                self._in_a_row = 0
            if self._keep is None and type(made) is not GeneratorType:  # as for most samples
                return made
            return self._checked(argument, made)
        except Exception as error:
            return self._failed(error, argument, reading, where(row))

    def _checked(self, argument: Any, made: Any) -> Any:
        if type(made) is GeneratorType:
            raise ReturnError(
                f"{function_name(self.fn)} returned a generator, which is no item. To make several "
                "items of one, write it as a generator function itself, with `yield` or `yield "
                "from`, where one may stand; else return a list"
            )
        return made if self._keep is None else self._keep(argument, made)

    def items(
        self,
        argument: Any,
        word: int,
        index: int,
        reading: Reading,
        where: Where,
        *,
        made: tuple[Any, Sequence[Any]],
    ) -> Iterator[Any]:
        """Return what a generator function yields of an argument, one item after another. If it
        fails, what is `made` is left out: a dataset, and the origins of the argument.

        Its draws go on from item to item, whatever is drawn in between. Where it skips, or fails
        and that is no error, it ends there; what it has given stays.
        """
        fn, seeding = self.fn, self.seeding
        own = {"rng": generator(word)} if seeding is Seeding.OWN else {}
        drawing = _Drawing.seeded(word) if seeding is Seeding.GLOBAL else None

        def run() -> Iterator[Any]:  # also the part of a function before it gives an iterator
            yield from fn(argument, **own)

        running = run()
        while True:
            with _around(reading, draws=drawing is not None):
                if drawing is not None:
                    drawing.go_on()
                index_of_call.set((index, reading.config))
                item = self._next(running, argument, reading, where)
                if drawing is not None:
                    drawing = _Drawing()
            if item is _END:
                return
            if type(item) is Failed:
                reading.leave_out(item, *made)
                return
            yield item

    def _next(self, running: Iterator[Any], argument: Any, reading: Reading, where: Where) -> Any:
        listed = reading.listed
        if listed is not None and listed.holds(function_name(self.fn), argument):
            return listed.failed(where(0))
        try:
            made = next(running, _END)
            self._in_a_row = 0
            return made if made is _END else self._checked(argument, made)
        except Exception as error:
            return self._failed(error, argument, reading, where(0))

    def _failed(self, error: Exception, argument: Any, reading: Reading, place: str) -> Failed:
        """Return what becomes of an argument for which the function raised an exception."""
        name = function_name(self.fn)
        reason: SampleError | SkipSample
        if isinstance(error, SkipSample | DataError):
            reason = error
        else:
            if isinstance(error, ReturnError):
                lost = f"{name} " if isinstance(error, LostWeightError) else ""
                text = f"{lost}{error}\n  at {place}"
            elif (asked := failed_allocation(error)) is not None:
                batch = f" for a batch of {len(argument)}" if isinstance(argument, list) else ""
                text = (
                    f"{name} could not allocate {asked}{batch}: {type(error).__name__}: {error}\n"
                    f"  at {place}\n"
                    "  (use a smaller batch_size, smaller samples or fewer workers)"
                )
            else:
                text = (
                    f"{name} raised {type(error).__name__}: {error}\n"
                    f"  at {place}\n"
                    "  (raise SkipSample to leave a sample out, DataError to count it as damaged; "
                    "or have all exceptions counted with get_loader(on_error='skip'))"
                )
            wrapped = EncoderError(text)
            wrapped.__cause__, wrapped.sample = error, argument
            reason = wrapped
            try:
                reading.on_error(wrapped)
            except (SkipSample, DataError) as decided:
                reason = decided
            self._in_a_row += 1
            most = reading.tolerance if self._tolerance is None else self._tolerance
            if most and self._in_a_row >= most:
                raise FatalSampleError(
                    f"{name} failed {self._in_a_row} times in a row, which is as often as it may "
                    f"(failure_tolerance), the last time: {text}"
                ) from error
        _forget_frames(reason)
        stored = place_of(argument, name) if reading.locate else None
        return Failed(reason, place, stored, lasting=self._is_pure)


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
        inside = cls()
        outside.go_on()
        return inside

    def go_on(self) -> None:
        """Draw from here on."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)


@contextmanager
def _around(reading: Reading, *, draws: bool) -> Iterator[None]:
    """Have torch compute in as many threads as is asked for, which sums depend on, and the global
    generators put back if a function `draws` from them.
    """
    torch = sys.modules.get("torch")  # nobody computes with what was not imported
    threads = reading.threads if torch is None else torch.get_num_threads()
    if torch is not None and threads != reading.threads:
        torch.set_num_threads(reading.threads)
    outside = _Drawing() if draws else None
    try:
        yield
    finally:
        if outside is not None:
            outside.go_on()
        if torch is not None and threads != reading.threads:
            torch.set_num_threads(threads)


def _seed(word: int) -> None:
    random.seed(word)
    np.random.seed(word & _WORD)
    torch.default_generator.manual_seed(word >> 1)


def _forget_frames(reason: BaseException | None) -> None:
    """Frames hold the sample, and the list that this failure comes into: a circle, which keeps
    every bad sample in memory until the collector comes by.
    """
    if isinstance(reason, EncoderError):
        return
    while reason is not None:
        reason.__traceback__ = None
        reason = reason.__cause__ or reason.__context__
