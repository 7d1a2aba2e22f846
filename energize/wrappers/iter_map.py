"""A function of the whole stream of items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

from energize.cursor import Origin
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.ignored import accepted
from energize.numbers import checked_whole
from energize.reading import Reading
from energize.sample_weights import Passed
from energize.topology import WorkerConfig
from energize.wrappers.calling import keyed_items
from energize.wrappers.rounds import Origins, RoundsDataset, Step, Taken, keyed_by

T_in = TypeVar("T_in")
T_out_co = TypeVar("T_out_co", covariant=True)


class IterMapDataset(RoundsDataset[T_out_co]):
    """What `iter_map_fn(items)` yields, a generator function of an iterator over items.

    So that a run can resume without reading all of it again, the function is called anew for each
    `segment_length` items of a lane, and at the start of each pass: its iterator ends there, and it
    has to yield what it still holds. A run resumes after any item that it yields; the segment is
    read again then, and what it has given is left out.

    A function that raises is given the rest of its segment in a new call, where the loader goes on
    after errors (`get_loader(on_error="skip")`) or it raised `SkipSample` or `DataError`; what it
    held is lost then, and reported.

    What it yields of samples that have weights in the loss has to say its own, as only the function
    knows which samples it made each item of: `__sample_weight__`, which `derive_from` takes over,
    or `sample_weights` of a batch.

    `len_map_fn` says of the length of the input what `len` is, for progress bars; without it there
    is none.

    Raises `ConfigError` for a segment length below 1.

    >>> from energize import ListSource
    >>> def pairs(items):
    ...     for item in items:
    ...         yield item + next(items, "")
    >>> list(IterMapDataset(ListSource("abcde"), pairs))
    ['ab', 'cd', 'e']
    """

    gives_batches: ClassVar[bool] = False

    iter_map_fn: Callable[[Iterator[Any]], Iterator[T_out_co]]
    len_map_fn: Callable[[int], int] | None
    segment_length: int

    def __init__(
        self,
        dataset: Dataset[T_in],
        iter_map_fn: Callable[[Iterator[T_in]], Iterator[T_out_co]],
        *,
        len_map_fn: Callable[[int], int] | None = None,
        segment_length: int = 1000,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("IterMapDataset", **ignored)
        if not callable(iter_map_fn):
            raise ConfigError(
                f"IterMapDataset: iter_map_fn is a function of an iterator; got {iter_map_fn!r}"
            )
        if len_map_fn is not None and not callable(len_map_fn):
            raise ConfigError(
                f"IterMapDataset: len_map_fn is a function of a length, or None; got {len_map_fn!r}"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            iter_map_fn=iter_map_fn,
            len_map_fn=len_map_fn,
            segment_length=checked_whole(segment_length, "IterMapDataset: segment_length", 1),
        )

    @cached_property
    def pass_length(self) -> int:
        """As `len_map_fn` says of the length of the input."""
        if self.len_map_fn is None:
            return super().pass_length
        return self.len_map_fn(self.inputs[0].pass_length)

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_out_co]]:
        yield partial(self._made, islice(items, self.segment_length), reading)

    def _made(
        self, segment: Iterator[Taken], reading: Reading
    ) -> Iterator[tuple[T_out_co, Origins]]:
        """What the function makes of a segment, each with what was read since the one before."""
        for first in segment:  # one call, and another one for what is left after a failure
            read: list[Origin] = list(first.origin)
            passed = Passed()
            word = keyed_by(self, "segment", *first.origin)

            def items(
                first: Taken = first, read: list[Origin] = read, passed: Passed = passed
            ) -> Iterator[Any]:
                passed.take(first.item)
                yield first.item
                for each in segment:
                    read.extend(each.origin)
                    passed.take(each.item)
                    yield each.item

            def where(read: list[Origin] = read) -> str:
                return f"a segment of {type(self).__name__}, after {len(read)} items"

            function, index = self.iter_map_fn, first.number
            for made in keyed_items(
                function, items(), word, where, reading, index=index, keep=passed.give
            ):
                yield made, tuple(read)
                read.clear()
