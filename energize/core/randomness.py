"""Random draws of users' functions: a function of what is called, never of what ran
before.

Everything is read in a `ReadWindow`, opened by `read_in_window`. The first calls of a
function are seeded; if it draws nothing, further calls are not. At the end of a window,
the global generators are compared with twins that nothing else can reach. If a
generator moved, a function drew after all: the window is read again to find it, and all
its calls are seeded from then on.
"""

from __future__ import annotations

import ctypes
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from energize.core.digests import content_digest
from energize.core.lazy import torch

T = TypeVar("T")

States = tuple[Any, Any, Any]
"""States of the global generators of random, numpy and torch."""

PROVEN = 16
"""Points after which a function counts as repeatable, see `FunctionRecord`."""

_WORD = 2**32 - 1
"""Bits of a seed that numpy takes."""

_MOST_DISTURBANCES = 3
"""Disturbances by other threads after which every call is seeded, instead of read
again."""

_MersenneTwister = ctypes.c_char * (624 * 4 + 4)
"""The memory of numpy.random.MT19937: 624 words, and the position among them."""

_REFERENCE = 0x5EED
"""Seed of the generators while unseeded functions run. No result depends on it."""


class NumpyGenerator:
    """The global generator of numpy, saved and restored in 3 us where numpy itself
    takes 75.

    Its state is the memory of the Mersenne Twister and, after an odd number of normal
    draws, the second value of the last pair. Only `numpy.random.get_state` returns that
    value. So it is called unless the memory is as it was when there was none.
    """

    def __init__(self) -> None:
        self._without_value: bytes | None = None

    def state(self) -> Any:
        """Return what `restore` takes."""
        memory = self._memory()
        if memory is None:
            return np.random.get_state(legacy=False)
        content = memory.raw
        if content != self._without_value:
            state = np.random.get_state(legacy=False)
            if state["has_gauss"]:
                return state
            self._without_value = content
        return content

    def restore(self, state: Any) -> None:
        """Set the generator to a state that `state` returned."""
        memory = self._memory()
        if isinstance(state, dict) or memory is None:
            np.random.set_state(state)
            return
        np.random.seed(0)  # there may be the second value of a pair
        memory.raw = state
        self._without_value = state

    def _memory(self) -> Any:
        """Return the memory of the generator; None if it is no Mersenne Twister."""
        bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if type(bits) is not np.random.MT19937:
            return None
        return _MersenneTwister.from_address(bits.ctypes.state_address)


class GlobalGenerators:
    """The global generators of random, numpy and torch, and twins that show whether
    they moved.

    Attributes:
        owned: Whether nothing but reading uses the generators of this process, so that
            they need not be restored. A worker process sets it.

    """

    def __init__(self) -> None:
        self.owned = False
        self.synchronized = False
        self.disturbances = 0
        self._python_twin = random.Random()  # noqa: S311 - compared with the global one
        self._numpy_twin = np.random.RandomState()
        self._numpy = NumpyGenerator()
        self._torch_state: bytes | None = None

    def seed(self, word: int) -> None:
        """Seed the generators for a call, with a word of 64 bits."""
        random.seed(word)
        np.random.seed(word & _WORD)
        torch.default_generator.manual_seed(word >> 1)
        self.synchronized = False

    def synchronize(self, word: int = _REFERENCE) -> None:
        """Seed the generators and their twins alike."""
        self.seed(word)
        self._python_twin.seed(word)
        self._numpy_twin.seed(word & _WORD)
        self._torch_state = _torch_state()
        self.synchronized = True

    def moved(self) -> bool:
        """Return whether anything was drawn since `synchronize`, or since the last call
        of this.
        """
        python_moved = random.getrandbits(64) != self._python_twin.getrandbits(64)
        numpy_moved = np.random.random_sample() != self._numpy_twin.random_sample()
        torch_moved = _torch_state() != self._torch_state
        moved = python_moved or numpy_moved or torch_moved
        if moved:
            self.synchronized = False
        return moved

    def states(self) -> States:
        """Return the states of the generators."""
        return (
            random.getstate(),
            self._numpy.state(),
            torch.default_generator.get_state(),
        )

    def restore(self, states: States) -> None:
        """Set the generators to saved states."""
        python_state, numpy_state, torch_state = states
        random.setstate(python_state)
        self._numpy.restore(numpy_state)
        torch.default_generator.set_state(torch_state)
        self.synchronized = False


def _torch_state() -> bytes:
    state: bytes = torch.default_generator.get_state().numpy().tobytes()
    return state


generators = GlobalGenerators()
"""The global generators of this process."""


@dataclass(slots=True)
class FunctionRecord:
    """Observations about the calls of one function.

    Attributes:
        draws: Whether it drew from a global generator. All its calls are then seeded.
        points: Points for calls that were made twice with equal results, up to
            `PROVEN`. A call has 1 point if its result is True, False or None, which may
            be equal by chance, and `PROVEN` otherwise.
    """

    draws: bool = False
    points: int = 0

    @property
    def proven(self) -> bool:
        """Whether enough calls were made twice."""
        return self.points >= PROVEN


_records: dict[tuple[int, int], tuple[weakref.ref[Any], FunctionRecord]] = {}
"""By the identities of an object and of its method, or of a function; none outlives the
object."""


def record_of(function: Callable[..., Any]) -> FunctionRecord:
    """Return the record of a function, which everything that calls it in this process
    shares.
    """
    owner = getattr(function, "__self__", None)
    owner = function if owner is None else owner
    key = (id(owner), id(getattr(function, "__func__", function)))
    entry = _records.get(key)
    if entry is not None and entry[0]() is owner:
        return entry[1]
    record = FunctionRecord()
    try:
        reference = weakref.ref(owner, partial(_forget, key))
    except (
        TypeError
    ):  # an object that cannot be referenced weakly, such as a method of a tuple
        return record
    _records[key] = (reference, record)
    return record


def _forget(key: tuple[int, int], reference: weakref.ref[Any]) -> None:
    if _records.get(key, (None,))[0] is reference:
        del _records[key]


class ReadWindow:
    """One read, repeated until every draw in it was seeded.

    Attributes:
        effects: Effects to run once, when the read is settled: see `defer`.
        observing: Whether every call is seeded and checked for draws.
        restarting: Whether a stream is read up to the start of the window.
    """

    def __init__(self, *, nested: bool) -> None:
        self.effects: list[Callable[[], object]] = []
        self.observing = generators.disturbances > _MOST_DISTURBANCES
        self.restarting = False
        self._keeps_states = nested or not generators.owned
        self._states: States | None = None
        self._threads = 0
        self._unseeded_calls = False
        self._drawn_unseeded = False
        self._found_drawing = False

    def enter(self, threads: int | None = None) -> None:
        """Get ready for calls of users' functions, in which torch computes in `threads`
        threads.
        """
        if self._keeps_states and self._states is None:
            self._states = generators.states()
            generators.synchronized = False
        loaded = sys.modules.get("torch")
        if threads is None or self._threads or loaded is None:
            return
        if loaded.get_num_threads() != threads:
            self._threads = loaded.get_num_threads()
            loaded.set_num_threads(threads)

    def leave(self) -> None:
        """Restore what the program outside of the window sees."""
        if self._states is not None:
            generators.restore(self._states)
        if self._threads:
            torch.set_num_threads(self._threads)

    def read_for_call(self, read: Callable[[], T]) -> T:
        """Read while a function is being called, and leave its own draws as they
        were.
        """
        unseeded = self._unseeded_calls
        states = None if unseeded else generators.states()
        try:
            return read()
        finally:
            if states is None:
                self.begin_seeded()
                self.begin_unseeded()
            else:
                generators.restore(states)

    def begin_seeded(self) -> None:
        """Get ready for calls that `call_seeded` or a `DrawingIterator` makes."""
        if self._unseeded_calls:
            self._unseeded_calls = False
            self._drawn_unseeded = generators.moved() or self._drawn_unseeded

    def begin_unseeded(self) -> None:
        """Prepare for calls with draws that are detected at the end of the window."""
        if not generators.synchronized:
            generators.synchronize()
        self._unseeded_calls = True

    def begin_unchecked(self) -> None:
        """Get ready for calls that may draw as they like."""
        self.begin_seeded()
        generators.synchronized = False

    def call_seeded(
        self, record: FunctionRecord, word: int, function: Callable[[], T]
    ) -> T:
        """Call a function with seeded generators; note whether it draws."""
        if record.draws:
            generators.seed(word)
            return function()
        generators.synchronize(word)
        try:
            return function()
        finally:
            if generators.moved():
                self.note_draws(record)

    def note_draws(self, record: FunctionRecord) -> None:
        """Have all further calls of a function seeded."""
        record.draws = True
        self._found_drawing = True

    def must_repeat(self) -> bool:
        """Return whether it has to be read again, now observing every call."""
        self.begin_seeded()
        if self.observing and not self._found_drawing:
            generators.disturbances += 1  # another thread of the program draws
        repeats = self._drawn_unseeded
        self.observing = self.observing or repeats
        self._drawn_unseeded = False
        self._found_drawing = False
        return repeats


_window: ContextVar[ReadWindow | None] = ContextVar("read window", default=None)


def current_window() -> ReadWindow | None:
    """Return the current window, or None."""
    return _window.get()


def defer(effect: Callable[[], object]) -> None:
    """Call `effect` once the current window is settled; at once outside of a window."""
    window = _window.get()
    if window is None:
        effect()
    else:
        window.effects.append(effect)


def read_in_window(
    read: Callable[[], T], restart: Callable[[], object] | None = None
) -> T:
    """Return the result of `read()` with every draw in it seeded.

    Args:
        read: Reads something. It may be called several times, so effects must be
            deferred with `defer`.
        restart: Reverts a call of `read` before the next one.

    Raises:
        Exception: If the last call of `read` raises.
    """
    window = ReadWindow(nested=_window.get() is not None)
    token = _window.set(window)
    raised: Exception | None = None
    try:
        while True:
            raised = None
            try:
                result = read()
            except Exception as error:  # it may be the result of an unseeded draw
                raised = error
            if not window.must_repeat():
                break
            if restart is not None:
                window.restarting = True
                restart()
                window.restarting = False
            window.effects.clear()
    finally:
        window.leave()
        _window.reset(token)
    for effect in window.effects:
        defer(effect)
    if raised is None:
        return result
    try:
        raise raised
    finally:
        del raised


class DrawingIterator(Generic[T]):
    """An iterator of a user with random draws that continue from item to item.

    Draws of other functions in between have no effect on it.

    Args:
        record: Record of the function that makes the iterator.
        iterator: The iterator, before its first item.
        word: Returns the seed of its draws.
    """

    def __init__(
        self, record: FunctionRecord, iterator: Iterator[T], word: Callable[[], int]
    ) -> None:
        self._record = record
        self._iterator = iterator
        self._word = word
        self._states: States | None = None

    def next(self, window: ReadWindow, *, seeded: bool) -> T:
        """Return the next item; raise `StopIteration` at the end."""
        if not seeded:
            window.begin_unseeded()
            return next(self._iterator)
        window.begin_seeded()
        if self._states is None:
            generators.seed(self._word())
            self._states = generators.states()
        else:
            generators.restore(self._states)
        previous = self._states
        try:
            return next(self._iterator)
        finally:
            self._states = generators.states()
            if not (self._record.draws or _equal(previous, self._states)):
                window.note_draws(self._record)


def _equal(states: States, expected: States) -> bool:
    python_state, numpy_state, torch_state = states
    other_python, other_numpy, other_torch = expected
    if python_state != other_python or not torch.equal(torch_state, other_torch):
        return False
    if isinstance(numpy_state, bytes):
        return bool(numpy_state == other_numpy)
    return content_digest(numpy_state) == content_digest(other_numpy)
