"""Calls of users' functions: keyed randomness, skipped samples, and located errors.

Every user's function is called by `Call`. A function with a parameter `rng` gets a
random generator for each call, keyed by the dataset and the position. For other
functions, the global generators of random, numpy and torch are seeded by the same key
if the function draws from them (`energize.core.randomness`). So an augmentation is the
same with any number of workers and after resuming.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar

from energize.core.arrays import Int64Array
from energize.core.call_context import call_context, context_of, leave_call
from energize.core.checks import failed_allocation
from energize.core.description import function_name
from energize.core.digests import content_digest
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.loss_weights import Keep, LostWeightError
from energize.core.quarantine import place_of
from energize.core.randomness import (
    PROVEN,
    DrawingIterator,
    ReadWindow,
    current_window,
    read_in_window,
    record_of,
)
from energize.core.rng import generator, hash_positions
from energize.core.trace import ReadContext, Request
from energize.errors import (
    ConfigError,
    DataError,
    EncoderError,
    FatalSampleError,
    LoaderError,
    NotRepeatableError,
    ReturnError,
    SampleError,
    SkipSample,
    keys_text,
)

T = TypeVar("T")

Locate = Callable[[int], str]
"""Return the location of the n-th argument; only called to describe a failure."""

Word = Callable[[], int]
"""Returns the 64-bit word that the draws of a call are keyed by; called only if they
may matter."""

_END = object()


def takes_generator(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `rng`."""
    try:
        parameter = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # builtins without a signature
        return False
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY


def call_without_draws(
    function: Callable[..., T], subject: str, /, **arguments: Any
) -> T:
    """Call a function that may depend on its arguments only.

    Raises:
        ConfigError: If it draws random numbers; `subject` begins the message.
    """
    window = current_window()
    if window is None:
        read: Callable[[], T] = partial(
            call_without_draws, function, subject, **arguments
        )
        return read_in_window(read)
    record = record_of(function)
    window.enter()
    window.begin_seeded()
    result = window.call_seeded(record, 0, partial(function, **arguments))
    if record.draws:
        raise ConfigError(
            f"{subject}: {function_name(function)} draws random numbers. Let it "
            "depend on its arguments alone"
        )
    return result


def _call_with_generator(function: Callable[..., Any], word: int, argument: Any) -> Any:
    return function(argument, rng=generator(word))


def _pickled(value: Any) -> bytes | None:
    """Return a value as it is now; None if it cannot be pickled."""
    try:
        return pickle.dumps(value)
    except Exception:  # whatever the classes of the user do
        return None


class Call:
    """Calls a user's function, and turns exceptions into `Failed`.

    `SkipSample` and `DataError` leave the sample out. Other exceptions become an
    `EncoderError` with the location of the sample; `reading.failures` decides about it.

    Args:
        fn: The function. It is called with one argument, and with `rng` if it has such
            a parameter.
        key: The key of its random draws, in addition to the number of the call.
        keep: Adds the loss weights of the argument to the result.
        seeded: Whether its draws are keyed. Otherwise nothing is seeded or checked.
        tolerance: Number of failures in a row that ends the run; by default the
            `failure_tolerance` of the function.
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
        self.fn = fn
        self._key = key
        self._keep = keep
        self._tolerance: int | None = tolerance
        if tolerance is None:
            self._tolerance = getattr(
                getattr(fn, "method", fn), "failure_tolerance", None
            )
        self._in_a_row = 0
        self._is_pure = getattr(fn, "is_pure", False)
        self._seeded = seeded
        self._record = record_of(fn)
        self._takes_generator = takes_generator(fn)
        self._hook = fn if getattr(fn, "reads_context", False) else None

    def map(
        self,
        arguments: Sequence[Any],
        request: Request,
        keyed: Callable[[], Sequence[int]] | None = None,
    ) -> list[Any]:
        """Return the result of the function for each argument; `Failed` items pass
        through.

        Args:
            arguments: The arguments, one for each position of the request.
            request: Positions, reading and locations.
            keyed: Returns the keys of the random draws; None for the positions.
        """
        window = current_window()
        if window is None:
            return read_in_window(partial(self.map, arguments, request, keyed))
        numbers, reading, locate = request
        seeds = self._begin(window, reading)
        words: Sequence[int] | None = None
        if seeds or self._takes_generator:
            words = keyed() if keyed else self._words(numbers, reading.attempt)
        results: list[Any] = []
        direct = words is None and reading.listed is None
        function = self.fn
        config = reading.config
        outer = call_context.get()
        gathering = outer.gathering
        batch = outer.batch
        try:
            for row, (argument, number) in enumerate(
                zip(arguments, numbers.tolist(), strict=True)
            ):
                if type(argument) is Failed:
                    results.append(argument)
                    continue
                if self._hook is not None or outer.config is not config:
                    values = number, config, self._hook, gathering, batch
                    call_context.set(context_of(values))
                if not direct:
                    word = 0 if words is None else words[row]
                    seeded_in = window if seeds else None
                    results.append(
                        self._called(argument, word, reading, row, locate, seeded_in)
                    )
                    continue
                try:  # as `_called`, without its call
                    results.append(self._settled(argument, function(argument)))
                except NotRepeatableError:
                    raise
                except Exception as error:
                    failed = self._failed(error, argument, reading, locate(row))
                    results.append(failed)
        finally:
            leave_call(outer, reading.config)
        return results

    def _words(self, numbers: Int64Array, attempt: int) -> list[int]:
        words: list[int] = hash_positions(self._key, numbers, attempt).tolist()
        return words

    def one(
        self,
        argument: Any,
        word: Word,
        index: int,
        reading: ReadContext,
        locate: Locate,
    ) -> Any:
        """Return what the function makes of an argument, for item `index`, keyed by
        `word()`.
        """
        window = current_window()
        if window is None:
            return read_in_window(
                partial(self.one, argument, word, index, reading, locate)
            )
        seeds = self._begin(window, reading)
        outer = call_context.get()
        call_context.set(outer.calling(index, reading.config, self._hook))
        try:
            keyed = word() if seeds or self._takes_generator else 0
            return self._called(
                argument, keyed, reading, 0, locate, window if seeds else None
            )
        finally:
            leave_call(outer, reading.config)

    def _begin(self, window: ReadWindow, reading: ReadContext) -> bool:
        """Get ready for calls in a window; return whether they are seeded."""
        window.enter(reading.threads)
        if not self._seeded:
            window.begin_unchecked()
            return False
        record = self._record
        seeds = record.draws or window.observing or not record.proven
        if seeds:
            window.begin_seeded()
        else:
            window.begin_unseeded()
        return seeds

    def _called(
        self,
        argument: Any,
        word: int,
        reading: ReadContext,
        row: int,
        locate: Locate,
        window: ReadWindow | None,
    ) -> Any:
        fn = self.fn
        if reading.listed is not None and reading.listed.holds(
            function_name(fn), argument
        ):
            return reading.listed.failed(locate(row))
        try:
            if window is not None:
                result = self._called_seeded(
                    argument, word, reading, row, locate, window
                )
            elif self._takes_generator:
                result = fn(argument, rng=generator(word))
            else:
                result = fn(argument)
            return self._settled(argument, result)
        except NotRepeatableError:
            raise
        except Exception as error:
            return self._failed(error, argument, reading, locate(row))

    def _settled(self, argument: Any, result: Any) -> Any:
        """Return the result of a call that did not fail, with the weights kept."""
        if self._in_a_row:
            self._in_a_row = 0
        if self._keep is None and type(result) is not GeneratorType:
            return result
        return self._checked(argument, result)

    def _called_seeded(
        self,
        argument: Any,
        word: int,
        reading: ReadContext,
        row: int,
        locate: Locate,
        window: ReadWindow,
    ) -> Any:
        """Call the function with seeded generators; the first times twice, to
        compare.
        """
        call = self.fn
        if self._takes_generator:
            call = partial(_call_with_generator, self.fn, word)
        record = self._record
        copied = self._copied(argument, reading)
        result = window.call_seeded(record, word, partial(call, argument))
        if copied is not None and type(result) is not GeneratorType:
            try:
                again = window.call_seeded(record, word, partial(call, copied))
            except Exception as error:
                again = error
            self._compare(result, again, reading, partial(locate, row))
        return result

    def _copied(self, argument: Any, reading: ReadContext) -> Any:
        """Return the argument for a second call; None to skip the second call."""
        if self._record.proven:
            return None
        is_off = reading.failures.check_functions == "off"
        pickled = None if is_off else _pickled(argument)
        if pickled is None:
            self._record.points = PROVEN  # nothing can be learned about it
            return None
        return pickle.loads(pickled)  # noqa: S301 - made three lines above

    def _compare(
        self, result: Any, again: Any, reading: ReadContext, locate: Callable[[], str]
    ) -> None:
        """Compare what two calls returned.

        Raises:
            NotRepeatableError: If they differ, unless
                `FailurePolicy.check_functions` is "warn".

        """
        pickled = _pickled(result)
        equal = pickled is not None and pickled == _pickled(
            again
        )  # the quick way to be sure
        if equal or content_digest(result) == content_digest(again):
            self._record.points += (
                1 if result is None or isinstance(result, bool) else PROVEN
            )
            return
        name = function_name(self.fn)
        text = (
            f"{name} returned another value when it was called a second time with the "
            f"same sample and the same seeds: {locate()} ({result!r:.60}, then "
            f"{again!r:.60}). It keeps state between calls, such as a counter or a "
            "generator of its own. Let it depend on its argument alone, and draw from "
            "its parameter `rng` or from the global generators"
        )
        if reading.failures.check_functions == "error":
            raise NotRepeatableError(
                f"{text}. If the difference has no effect, pass get_loader(failures="
                "FailurePolicy(check_functions='warn'))"
            )
        self._record.points = PROVEN
        log_once(name, "not repeatable", text, logging.WARNING)

    def _checked(self, argument: Any, result: Any) -> Any:
        if type(result) is GeneratorType:
            raise ReturnError(
                f"{function_name(self.fn)} returned a generator instead of an item. To "
                "make several items of one, write a generator function with `yield`, "
                "if it is allowed here, or return a list"
            )
        return result if self._keep is None else self._keep(argument, result)

    def items(
        self,
        argument: Any,
        word: Word,
        index: int,
        reading: ReadContext,
        locate: Locate,
        *,
        origin: tuple[Any, Sequence[Any]],
    ) -> Iterator[Any]:
        """Yield the items of a generator function, one after another.

        Random draws continue from item to item, whatever is drawn in between. If the
        function skips or fails without an error, it ends there; earlier items remain
        valid, and `origin` is left out: a dataset, and the origins of the argument.
        """
        fn = self.fn

        def run(
            value: Any,
        ) -> Iterator[Any]:  # with the part of a function before it iterates
            options = {"rng": generator(word())} if self._takes_generator else {}
            yield from fn(value, **options)

        copied = self._copied(argument, reading)
        shadow = (
            None if copied is None else DrawingIterator(self._record, run(copied), word)
        )
        running = DrawingIterator(self._record, run(argument), word)
        while True:
            item = self._next(running, shadow, argument, index, reading, locate)
            if item is _END:
                return
            if type(item) is Failed:
                reading.leave_out(item, *origin)
                return
            yield item

    def _next(
        self,
        running: DrawingIterator[Any],
        shadow: DrawingIterator[Any] | None,
        argument: Any,
        index: int,
        reading: ReadContext,
        locate: Locate,
    ) -> Any:
        listed = reading.listed
        if listed is not None and listed.holds(function_name(self.fn), argument):
            return listed.failed(locate(0))
        window = current_window()
        if window is None:
            raise LoaderError(
                f"{function_name(self.fn)} is read outside of a cursor. Open one"
            )
        seeds = self._begin(window, reading)
        outer = call_context.get()
        call_context.set(outer.calling(index, reading.config, self._hook))
        try:
            result = running.next(window, seeded=seeds)
            if shadow is not None:
                self._compare(
                    result,
                    shadow.next(window, seeded=True),
                    reading,
                    partial(locate, 0),
                )
        except StopIteration:
            return _END
        except NotRepeatableError:
            raise
        except Exception as error:
            return self._failed(error, argument, reading, locate(0))
        finally:
            leave_call(outer, reading.config)
        self._in_a_row = 0
        try:
            return self._checked(argument, result)
        except Exception as error:
            return self._failed(error, argument, reading, locate(0))

    def _failed(
        self, error: Exception, argument: Any, reading: ReadContext, location: str
    ) -> Failed:
        """Return the failure of a call that raised an exception."""
        name = function_name(self.fn)
        window = current_window()
        if window is not None and window.restarting:
            return Failed(SkipSample(name), location)  # logged at the first reading
        reason: SampleError | SkipSample
        if isinstance(error, SkipSample | DataError):
            reason = error
        else:
            reason = self._decided(error, argument, reading, location)
        _forget_frames(reason)
        stored = None
        if reading.failures.quarantine is not None:
            stored = place_of(argument, name)
        return Failed(reason, location, stored, lasting=self._is_pure)

    def _decided(
        self, error: Exception, argument: Any, reading: ReadContext, location: str
    ) -> SampleError | SkipSample:
        """Return the outcome that the failure policy has for an unexpected exception.

        Raises:
            FatalSampleError: If the function failed too often in a row.
        """
        name = function_name(self.fn)
        text = _error_text(name, error, argument, location)
        wrapped = EncoderError(text)
        wrapped.__cause__ = error
        wrapped.sample = argument
        reason: SampleError | SkipSample = wrapped
        try:
            reading.failures.decide(wrapped)
        except (SkipSample, DataError) as decided:
            reason = decided
        self._in_a_row += 1
        most = self._tolerance
        if most is None:
            most = reading.failures.tolerance
        if most and self._in_a_row >= most:
            raise FatalSampleError(
                f"{name} failed {self._in_a_row} times in a row, the most that "
                f"failure_tolerance allows. The last failure: {text}"
            ) from error
        return reason


def _forget_frames(reason: BaseException | None) -> None:
    """Clear frames of an exception.

    They hold the sample and the list of results, a reference cycle that would keep
    every bad sample in memory until the next garbage collection.
    """
    if isinstance(reason, EncoderError):
        return
    while reason is not None:
        reason.__traceback__ = None
        reason = reason.__cause__ or reason.__context__


def _error_text(name: str, error: Exception, argument: Any, location: str) -> str:
    if isinstance(error, ReturnError):
        subject = f"{name} " if isinstance(error, LostWeightError) else ""
        return f"{subject}{error}\n  at {location}"
    size = failed_allocation(error)
    keys = keys_text(argument) if isinstance(argument, list) else ""
    if keys:
        location = f"{location}\n  of the samples {keys}"
    if size is None:
        return (
            f"{name} raised {type(error).__name__}: {error}\n"
            f"  at {location}\n"
            "  (raise SkipSample to leave a sample out, DataError to count it "
            "as damaged; or have all exceptions counted with "
            "get_loader(on_error='skip'))"
        )
    batch = f" for a batch of {len(argument)}" if isinstance(argument, list) else ""
    return (
        f"{name} could not allocate {size}{batch}: "
        f"{type(error).__name__}: {error}\n"
        f"  at {location}\n"
        "  (use a smaller batch_size, smaller samples or fewer workers)"
    )
