"""Several samples as one: packs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from energize.core.call import Call
from energize.core.checks import checked_function, checked_whole
from energize.core.dataset import Dataset
from energize.core.description import function_name, generates
from energize.core.failures import Failed
from energize.core.ignored import said_once
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import carried, carried_one_by_one
from energize.core.node import NodeTraits, StreamTraits
from energize.core.rng import shuffled
from energize.core.stream import by_keys, sample_keys_of
from energize.core.trace import ReadContext, Request
from energize.datasets.rounds import (
    Origins,
    RoundsDataset,
    Step,
    Taken,
    alone,
    keyed_by,
    origins_of,
)
from energize.errors import ConfigError, EncoderError

T_in = TypeVar("T_in")
T_pack_co = TypeVar("T_pack_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(row, Sequence) and not isinstance(row, str) for row in value
    )


class PackingDataset(RoundsDataset[T_pack_co]):
    """Packs of samples: `final_packer(samples)` for each list of samples that
    `pre_packer` makes.

    `buffer_size` samples are read; `pre_packer(samples)` says which of them belong
    together, as a list of lists of these samples; each sample of a list goes through
    `sample_encoder`, if there is one, when its turn comes, and the list through
    `final_packer`, which may be a generator function and give several packs. Then the
    next `buffer_size` samples are read. At the end of a pass what is left is packed
    too. `energize.packing` has packers that are ready to use.

    This is a stream: in a loader each lane packs its own part of the input. It resumes
    after any pack, in the middle of those of a list too; a state holds where the buffer
    began and how many of its lists are done, whatever the size of the buffer, so the
    buffer is read again then. Samples that `pre_packer` leaves out are dropped, and the
    first time it does a warning says so. Where `sample_encoder` leaves out all samples
    of a list, there is no pack. Every function may draw random numbers, as in
    `MapDataset`, and raise `SkipSample`: of `pre_packer` this leaves out the buffer, of
    the others the sample, or the pack.

    A pack gets the weights of its samples in the loss as `sample_weights`, float32 of
    shape (samples,), where they have any and `final_packer` says none itself.

    Raises `ConfigError` for a buffer size below 1 and a generator where none may stand;
    `EncoderError` when `pre_packer` returns anything but lists of samples it was given.

    >>> from energize import ListSource
    >>> def halves(letters):
    ...     return [letters[::2], letters[1::2]]
    >>> list(PackingDataset(ListSource("abcde"), 4, halves, "".join))
    ['ac', 'bd', 'e']
    """

    order_name = "PackingDataset"

    buffer_size: int
    pre_packer: Callable[[list[Any]], Sequence[Sequence[Any]]]
    final_packer: Callable[[list[Any]], Any]
    sample_encoder: Callable[[Any], Any] | None

    def __init__(
        self,
        dataset: Dataset[T_in],
        buffer_size: int,
        pre_packer: Callable[[list[T_in]], Sequence[Sequence[T_in]]],
        final_packer: Callable[[list[Any]], T_pack_co | Iterator[T_pack_co]],
        *,
        sample_encoder: Callable[[T_in], Any] | None = None,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        functions: dict[str, Any] = {
            "pre_packer": pre_packer,
            "final_packer": final_packer,
        }
        if sample_encoder is not None:
            functions["sample_encoder"] = sample_encoder
        for name, function in functions.items():
            checked_function(function, f"PackingDataset: {name}")
            if name != "final_packer" and generates(function):
                raise ConfigError(
                    f"PackingDataset: {name} {function_name(function)} is a generator "
                    "function; only final_packer may yield. To make several samples "
                    "of one before they are packed, use a MapDataset below"
                )
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            buffer_size=checked_whole(buffer_size, "PackingDataset: buffer_size", 1),
            pre_packer=pre_packer,
            final_packer=final_packer,
            sample_encoder=sample_encoder,
        )

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            members=None,
            gives_batches=False,
            stream=StreamTraits(by_reading=True, buffered=self.buffer_size),
        )

    @cached_property
    def _select(self) -> Call:
        return Call(self.pre_packer, 0, tolerance=self.failure_tolerance("pre_packer_"))

    @cached_property
    def _encode(self) -> Call | None:
        if self.sample_encoder is None:
            return None
        return Call(
            self.sample_encoder,
            0,
            carried,
            tolerance=self.failure_tolerance("sample_encoder_"),
        )

    @cached_property
    def _pack(self) -> Call:
        keep = carried_one_by_one if generates(self.final_packer) else carried
        return Call(
            self.final_packer,
            0,
            keep,
            tolerance=self.failure_tolerance("final_packer_"),
        )

    def round(
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_pack_co]]:
        buffer = list(islice(items, self.buffer_size))
        if not buffer:
            return
        samples = [each.item for each in buffer]
        word = partial(keyed_by, self, "select", *buffer[0].origin)
        selected = self._select.one(
            samples, word, buffer[0].number, reading, by_keys(samples)
        )
        if isinstance(selected, Failed):
            reading.leave_out(selected, self, origins_of(buffer))
            return
        packs = self._checked(selected, buffer)
        buffer.clear()
        for pack in packs:
            yield partial(self._packed, pack, reading)

    def _checked(self, selected: Any, buffer: list[Taken]) -> list[list[Taken]]:
        """Return the lists of samples that `pre_packer` made, each sample with what it
        is made of.
        """
        buffered = {id(taken.item): taken for taken in buffer}
        if not _is_list_of_lists(selected):
            raise self._not_packs(f"a {type(selected).__name__}")
        used = {id(sample) for pack in selected for sample in pack}
        if not used <= buffered.keys():
            raise self._not_packs("samples that it was not given")
        if len(used) < len(buffered):
            text = (
                f"left out {len(buffered) - len(used)} of {len(buffered)} samples: "
                "they are dropped (logged once)"
            )
            owner = function_name(self.pre_packer)
            said_once(owner, "left_out", text, logging.WARNING)
        return [[buffered[id(sample)] for sample in pack] for pack in selected if pack]

    def _not_packs(self, returned: str) -> EncoderError:
        return EncoderError(
            f"{function_name(self.pre_packer)} returns a list of lists of the samples "
            f"that it was given, those that belong together; it returned {returned}. "
            "Change samples in the function that makes one of a list, or in the one "
            "for each of its samples"
        )

    def _encoded(self, pack: list[Taken], reading: ReadContext) -> list[Any]:
        items = [each.item for each in pack]
        if self._encode is None:
            return items
        numbers = np.array([each.number for each in pack], dtype=np.int64)
        request = Request(numbers, reading, lambda row: sample_keys_of(items[row]))

        def words() -> list[int]:
            return [keyed_by(self, "encode", *each.origin) for each in pack]

        return self._encode.each(items, request, words)

    def _packed(
        self, pack: list[Taken], reading: ReadContext
    ) -> Iterator[tuple[T_pack_co, Origins]]:
        """Yield what is made of the samples of a list, but of those that
        `sample_encoder` leaves out: a pack, or several, or none.
        """
        samples: list[Any] = []
        kept: list[Taken] = []
        for each, item in zip(pack, self._encoded(pack, reading), strict=True):
            if isinstance(item, Failed):
                reading.leave_out(item, self, each.origin)
            else:
                samples.append(item)
                kept.append(each)
        if not samples:
            return
        origins = origins_of(kept)
        word = partial(keyed_by, self, "pack", *origins)
        index = pack[0].number
        if generates(self.final_packer):
            where = by_keys(samples)
            of = (self, origins)
            for made in self._pack.items(samples, word, index, reading, where, made=of):
                yield made, origins
            return
        made = self._pack.one(samples, word, index, reading, by_keys(samples))
        if isinstance(made, Failed):
            reading.leave_out(made, self, origins)
        else:
            yield made, origins


class ShuffleBufferDataset(RoundsDataset[T_co]):
    """The items of each `size` in a row in a random order: for streams.

    In a loader each lane shuffles its own part of the input. A state holds where the
    buffer began and how many of it were given, not the items; they are read again. For
    a dataset with random access `ShuffleDataset` shuffles all of it, and holds no
    buffer.

    Raises `ConfigError` for a size below 1.

    >>> from energize import ListSource
    >>> sorted(ShuffleBufferDataset(ListSource("abcde"), 2))
    ['a', 'b', 'c', 'd', 'e']
    """

    order_name = "ShuffleBufferDataset"

    buffer_size: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        size: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        self.freeze(
            [dataset],
            worker_config,
            ignored,
            buffer_size=checked_whole(size, "ShuffleBufferDataset: size", 1),
        )

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            stream=StreamTraits(by_reading=True, buffered=self.buffer_size)
        )

    def round(
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        buffer = list(islice(items, self.buffer_size))
        if buffer:
            order = shuffled(
                keyed_by(self, "shuffle", *buffer[0].origin), 0, len(buffer)
            )
            for place in order.tolist():
                yield partial(alone, buffer[place])
