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
from energize.core.ignored import log_once
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import carried, carried_one_by_one
from energize.core.node import NodeTraits, StreamTraits
from energize.core.rng import shuffled
from energize.core.stream import by_keys, sample_keys_of
from energize.core.trace import ReadContext, Request
from energize.datasets.rounds import (
    Origins,
    RoundItem,
    RoundsDataset,
    Step,
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
    """Pack samples: select lists of samples, and make a pack of each list.

    1. Read `buffer_size` samples (fewer at the end of a pass).
    2. `pre_packer(samples)` returns lists of the samples that are packed together.
    3. `sample_encoder(sample)` encodes each sample of a list, if it is set.
    4. `final_packer(samples)` makes a pack of the list.

    `energize.packing` has packers that are ready to use.

    This is a stream: in a loader, each lane packs its own part of the input, and a run
    resumes after any pack. The state has a constant size; on resume, the buffer is read
    again. Samples that `pre_packer` does not select are dropped, with one warning.

    All functions can draw random numbers as in `MapDataset`, and can raise
    `SkipSample`: in `pre_packer` it drops the buffer, in `sample_encoder` the sample,
    in `final_packer` the pack. If samples have loss weights, the pack gets them as
    `sample_weights`, float32 of shape (samples,), unless `final_packer` sets them.

    Args:
        dataset: The dataset to read.
        buffer_size: Samples that are passed to one call of `pre_packer`.
        pre_packer: Returns the samples of its argument as lists, one list for each
            pack.
        final_packer: Makes a pack of a list of samples. A generator function can yield
            several packs.
        sample_encoder: Encodes a selected sample. None leaves samples unchanged.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon. Failure tolerances apply to the
            functions that they name; others have no effect, and are logged.

    Raises:
        ConfigError: If `buffer_size` is below 1, or a function other than
            `final_packer` is a generator function.
        EncoderError: While reading, if `pre_packer` does not return lists of samples of
            its argument.

    Example:
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
                    f"PackingDataset: {name} {function_name(function)} must not be a "
                    "generator function, only final_packer may yield. Use a "
                    "MapDataset below to make several samples of one"
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
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_pack_co]]:
        buffer = list(islice(items, self.buffer_size))
        if not buffer:
            return
        samples = [entry.item for entry in buffer]
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

    def _checked(self, selected: Any, buffer: list[RoundItem]) -> list[list[RoundItem]]:
        """Return the lists that `pre_packer` selected, each sample with its origin."""
        buffered = {id(entry.item): entry for entry in buffer}
        if not _is_list_of_lists(selected):
            raise self._not_packs(f"a {type(selected).__name__}")
        used = {id(sample) for pack in selected for sample in pack}
        if not used <= buffered.keys():
            raise self._not_packs("samples that are not in its input")
        if len(used) < len(buffered):
            text = (
                f"left out {len(buffered) - len(used)} of {len(buffered)} samples: "
                "they are dropped (logged once)"
            )
            owner = function_name(self.pre_packer)
            log_once(owner, "left_out", text, logging.WARNING)
        return [[buffered[id(sample)] for sample in pack] for pack in selected if pack]

    def _not_packs(self, returned: str) -> EncoderError:
        return EncoderError(
            f"{function_name(self.pre_packer)} must return a list of lists of its "
            f"input samples, got {returned}. Change samples in the final packer or "
            "the sample encoder"
        )

    def _encoded(self, pack: list[RoundItem], reading: ReadContext) -> list[Any]:
        items = [entry.item for entry in pack]
        if self._encode is None:
            return items
        numbers = np.array([entry.number for entry in pack], dtype=np.int64)
        request = Request(numbers, reading, lambda row: sample_keys_of(items[row]))

        def words() -> list[int]:
            return [keyed_by(self, "encode", *entry.origin) for entry in pack]

        return self._encode.map(items, request, words)

    def _packed(
        self, pack: list[RoundItem], reading: ReadContext
    ) -> Iterator[tuple[T_pack_co, Origins]]:
        """Yield the packs of a list of samples; none if all samples are left out."""
        samples: list[Any] = []
        packed: list[RoundItem] = []
        for entry, item in zip(pack, self._encoded(pack, reading), strict=True):
            if isinstance(item, Failed):
                reading.leave_out(item, self, entry.origin)
            else:
                samples.append(item)
                packed.append(entry)
        if not samples:
            return
        origins = origins_of(packed)
        word = partial(keyed_by, self, "pack", *origins)
        index = pack[0].number
        if generates(self.final_packer):
            locate = by_keys(samples)
            of = (self, origins)
            for result in self._pack.items(
                samples, word, index, reading, locate, origin=of
            ):
                yield result, origins
            return
        result = self._pack.one(samples, word, index, reading, by_keys(samples))
        if isinstance(result, Failed):
            reading.leave_out(result, self, origins)
        else:
            yield result, origins


class ShuffleBufferDataset(RoundsDataset[T_co]):
    """Shuffle a stream within consecutive blocks of `size` items.

    In a loader, each lane shuffles its own part of the input. The state has a constant
    size; on resume, the buffer is read again. For a dataset with random access, use
    `ShuffleDataset`: it shuffles the whole epoch and needs no buffer.

    Args:
        dataset: The dataset to read.
        size: Items of a block.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon without effect; they are logged.

    Raises:
        ConfigError: If `size` is below 1.

    Example:
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
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        buffer = list(islice(items, self.buffer_size))
        if buffer:
            order = shuffled(
                keyed_by(self, "shuffle", *buffer[0].origin), 0, len(buffer)
            )
            for number in order.tolist():
                yield partial(alone, buffer[number])
