"""Datasets that decide order: each leads positions to positions of its inputs."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.node import (
    INFINITE,
    LoopTraits,
    NodeTraits,
    Routes,
    Span,
    StreamTraits,
)
from energize.core.rng import ShuffleOrder
from energize.core.stream import (
    ChainStream,
    LaneStream,
    LimitStream,
    Opening,
)
from energize.core.tree import has_single_samples
from energize.datasets.mix import MixDataset, MixOrder
from energize.datasets.transform import with_equal_weighing
from energize.errors import ConfigError, NotIndexedError
from energize.order.scheme import RepeatedScheme, SuccessionScheme

T_co = TypeVar("T_co", covariant=True)


def cut_epochs(
    dataset: IndexedDataset[object], n: int, size: int, stride: int
) -> tuple[Sequence[Span], int]:
    """Return the spans of the first `n` items of epochs cut from the only input.

    Args:
        dataset: The dataset with the cut epochs.
        n: Number of items.
        size: Items of an epoch.
        stride: Items of the input from the start of one epoch to the next. 0 if every
            epoch starts at the first item.
    """
    epochs, rest = divmod(n, max(size, 1))
    if not stride or has_single_samples(dataset.children[0]):  # any items are as many
        return [Span(0, 0, size, epochs), Span(0, 0, rest)], n
    starts = range(0, epochs * stride, stride)
    whole = [Span(0, start, start + size) for start in starts]
    return [*whole, Span(0, epochs * stride, epochs * stride + rest)], n


class ConcatDataset(MixDataset[T_co]):
    """Concatenate datasets: all items of the first, then all of the second, and so on.

    The order is the same in every run and on any number of ranks and workers. If a
    dataset is a stream of unknown length, each lane reads its part of the first
    dataset, then its part of the second. Only the last dataset can be endless.

    Args:
        *datasets: The datasets, in order.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: If there are no datasets, or a dataset before the last never ends.

    Example:
        >>> from energize import ListSource
        >>> list(ConcatDataset(ListSource("ab"), ListSource("c")))
        ['a', 'b', 'c']
    """

    order_name = "ConcatDataset"

    def __init__(
        self, *datasets: Dataset[T_co], worker_config: WorkerConfig | None = None
    ) -> None:
        if not datasets:
            raise ConfigError(
                "ConcatDataset: the list of datasets is empty. Pass at least one"
            )
        self.freeze(with_equal_weighing(datasets), worker_config)
        for number, (dataset, _) in enumerate(pairwise(self.inputs)):
            if dataset.sized and dataset.size == INFINITE:
                raise ConfigError(
                    f"ConcatDataset: dataset {number} ({type(dataset).__name__}) "
                    "never ends, so the datasets after it are never read. Pass "
                    "repeat=False, or limit it with LimitDataset"
                )

    @cached_property
    def mix_order(self) -> MixOrder:
        sizes = [dataset.size for dataset in self.inputs]
        ends = [min(end, INFINITE) for end in accumulate(sizes, initial=0)]
        starts = np.array(ends[:-1], dtype=np.int64)
        lengths = np.array(ends[1:], dtype=np.int64) - starts
        scheme = RepeatedScheme(SuccessionScheme(starts), lengths)
        return MixOrder(scheme, ends[-1])

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        if self.sized:
            return super().open_pass(opening)
        return ChainStream(self.inputs, opening)


class LimitDataset(IndexedDataset[T_co]):
    """Limit each epoch of a dataset to its first `length` items.

    The limit counts items over all ranks. Each epoch takes the first items of the
    corresponding epoch of the input; if the input is endless or a stream, every epoch
    takes the same first items. To continue after the limit instead, use
    `EpochizeDataset`.

    Args:
        dataset: The dataset to read.
        length: The maximum number of items of an epoch.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon without effect; they are logged.

    Raises:
        ConfigError: If `length` is below 1.

    Example:
        >>> from energize import ListSource
        >>> list(LimitDataset(ListSource("abc"), 2))
        ['a', 'b']
    """

    order_name = "LimitDataset"

    length: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: object,
    ) -> None:
        length = checked_whole(length, "LimitDataset: length", 1)
        self.freeze([dataset], worker_config, ignored, length=length)

    @cached_property
    def size(self) -> int:
        return min(self.length, self.inputs[0].size)

    @cached_property
    def traits(self) -> NodeTraits:
        # The end of an input of unknown length may come before the limit.
        return NodeTraits(stream=StreamTraits(divisible=self.sized))

    def route(self, positions: Int64Array) -> Routes:
        epoch, at = np.divmod(positions, self.size)
        whole = self.inputs[0].size
        return Routes(at if whole == INFINITE else epoch * whole + at)

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        whole = self.inputs[0].size
        return cut_epochs(self, n, self.size, 0 if whole == INFINITE else whole)

    def anchor_items(self, n: int) -> list[int]:
        epoch, at = divmod(n, self.size)
        whole = self.inputs[0].size
        return [at if whole == INFINITE else epoch * whole + at]

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        return LimitStream(
            self.inputs[0], self.size if self.sized else self.length, opening
        )


def _check_repeats(repeats: float) -> None:
    is_number = isinstance(repeats, int | float) and not isinstance(repeats, bool)
    if not (is_number and math.isfinite(repeats) and repeats > 0):
        raise ConfigError(
            "RepeatDataset: repeats must be a number > 0, or None for an endless "
            f"dataset, got {repeats!r}"
        )


class RepeatDataset(IndexedDataset[T_co]):
    """Read a dataset several times in each epoch, or endlessly.

    An epoch has `round(repeats * size)` items and contains each sample
    `floor(repeats)` or `ceil(repeats)` times. Every pass over a shuffled input has a
    new order, so a fractional pass contains different samples in every epoch.

    Args:
        dataset: The dataset to read.
        repeats: Passes in an epoch, such as 2 or 2.5; a whole number for a stream. None
            repeats the dataset without end.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.
        **ignored: Arguments of Megatron-Energon without effect; they are logged.

    Raises:
        ConfigError: If `repeats` is not a number above 0, or leaves no item.
        NotIndexedError: If `repeats` is a fraction and the dataset is a stream.

    Example:
        >>> from energize import ListSource
        >>> list(RepeatDataset(ListSource("abcd"), 1.5))
        ['a', 'b', 'c', 'd', 'a', 'b']
    """

    order_name = "RepeatDataset"

    repeats: float | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        repeats: float | None = None,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: object,
    ) -> None:
        if repeats is not None:
            _check_repeats(repeats)
        self.freeze([dataset], worker_config, ignored, repeats=repeats)
        if not dataset.indexed and repeats is not None and repeats != int(repeats):
            raise NotIndexedError(
                f"RepeatDataset: {repeats} passes over a stream end within a pass of "
                "unknown length. Pass a whole number of passes, or None for an "
                "endless dataset"
            )
        if dataset.indexed and self.size == 0:
            raise ConfigError(
                f"RepeatDataset: {repeats} passes over {dataset.size} items result "
                "in no items"
            )

    @cached_property
    def sized(self) -> bool:
        return self.repeats is None or self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        if self.repeats is None or self.inputs[0].size == INFINITE:
            return INFINITE
        inner = self.inputs[0].size
        return math.floor(Fraction(repr(self.repeats)) * inner + Fraction(1, 2))

    @cached_property
    def _stride(self) -> int:
        """Items of the input from the start of one epoch to the next."""
        inner = self.inputs[0].size
        return math.ceil(self.size / inner) * inner

    def route(self, positions: Int64Array) -> Routes:
        if self.size == INFINITE:
            return Routes(positions)
        epoch, at = np.divmod(positions, self.size)
        return Routes(epoch * self._stride + at)

    def taken(self, n: int) -> Sequence[int] | None:
        endless = self.size == INFINITE
        return [n] if endless or self._stride == self.size else None

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        if self.taken(n) is not None:
            return super().spans(n)
        return cut_epochs(self, n, self.size, self._stride)

    def open_pass(self, opening: Opening) -> LaneStream[T_co]:
        if self.sized:
            return super().open_pass(opening)
        return ChainStream(self.inputs, opening, passes=int(self.repeats or 1))


class ShuffleDataset(IndexedDataset[T_co]):
    """Shuffle a finite indexed dataset, in a new order in every epoch.

    Every epoch contains each item exactly once. Permutations are computed, not stored:
    there is no buffer, and any position costs the same. The order depends on the seed
    and the sources.

    By default an epoch is a full permutation. `shuffle_buffer_size` and
    `max_samples_per_sequence` keep reads local instead, as in loaders that read shards
    sequentially: runs of neighbours are put in random order, then items are shuffled
    within windows.

    Args:
        dataset: The dataset to shuffle.
        shuffle_buffer_size: Items of a window. None for no windows.
        max_samples_per_sequence: The maximum length of a run. None for a full
            permutation; if only `shuffle_buffer_size` is set, the length of shards.
        over_epochs: Epochs that are shuffled together. Each sample occurs that many
            times in them, and can occur twice in one epoch. -1 draws samples
            independently, with replacement.

    Raises:
        ConfigError: If a number is below 1, or the dataset never ends.
        NotIndexedError: If the dataset is a stream.

    Example:
        >>> from energize import ListSource
        >>> letters = ShuffleDataset(ListSource("abcd"))
        >>> sorted(letters)
        ['a', 'b', 'c', 'd']
    """

    order_name = "ShuffleDataset"

    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    over_epochs: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        *,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        over_epochs: int = 1,
    ) -> None:
        for name, value in (
            ("shuffle_buffer_size", shuffle_buffer_size),
            ("max_samples_per_sequence", max_samples_per_sequence),
        ):
            if value is not None:
                checked_whole(value, f"ShuffleDataset: {name}", 1)
        if type(over_epochs) is not int or over_epochs not in (1, -1):
            over_epochs = checked_whole(over_epochs, "ShuffleDataset: over_epochs", 1)
        self.freeze(
            [dataset],
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            over_epochs=over_epochs,
        )
        if not dataset.indexed:
            raise NotIndexedError(
                "ShuffleDataset needs random access to its input, and "
                f"{tree.first_stream(dataset)} can only be read as a stream. Shuffle "
                "its inputs instead"
            )
        if self.size == INFINITE:
            raise ConfigError(
                "ShuffleDataset: the input never ends, so it cannot be shuffled. "
                "Shuffle its finite parts before you repeat or blend them"
            )
        if self.size * max(over_epochs, 1) >= INFINITE // 2:
            raise ConfigError(
                f"ShuffleDataset: over_epochs={reprlib.repr(over_epochs)} of "
                f"{self.size} samples are more than the maximum. Shuffle fewer "
                "epochs together"
            )

    @cached_property
    def _order(self) -> ShuffleOrder:
        run = self.max_samples_per_sequence
        if run is None and self.shuffle_buffer_size is not None:
            lengths = [source.run_length or self.size for source in self.sources]
            run = max(1, min(lengths))
        return ShuffleOrder(
            self.size, self.key, run, self.shuffle_buffer_size, self.over_epochs
        )

    def route(self, positions: Int64Array) -> Routes:
        at = self._order.locate(positions)
        return Routes(positions - positions % self.size + at)

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        if self.over_epochs != 1:
            return (), 0
        whole = n - n % max(self.size, 1)
        return [Span(0, 0, whole)], whole


class EpochizeDataset(IndexedDataset[T_co]):
    """Divide a dataset into epochs of a chosen length.

    An epoch continues where the previous one stopped. A finite input is repeated, so
    every epoch is full and the dataset never ends. To read the same first items in
    every epoch, use `LimitDataset`.

    As the outermost dataset of a loader, `length` is the number of steps that every
    rank makes in a loop (see `Loader`).

    Args:
        dataset: The dataset to read.
        length: Items of an epoch.
        num_epochs: Passes over the dataset in an epoch, over all ranks; the alternative
            to `length`. For an endless dataset, `len` of it is one pass.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: Unless exactly one of `length` and `num_epochs` is set, and it is
            at least 1.
        NotIndexedError: If `num_epochs` is set for a stream of unknown length.

    Example:
        >>> from energize import ListSource
        >>> epochs = EpochizeDataset(ListSource("abc"), 2)
        >>> cursor = epochs.open()
        >>> list(cursor), list(epochs.open(state=cursor.state()))
        (['a', 'b'], ['c', 'a'])
    """

    order_name = "EpochizeDataset"

    sized = True

    length: int
    num_epochs: int | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int | None = None,
        *,
        num_epochs: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if (length is None) == (num_epochs is None):
            raise ConfigError(
                "EpochizeDataset needs either length (items per epoch) or num_epochs "
                f"(passes over the dataset), got length={length!r}, "
                f"num_epochs={num_epochs!r}"
            )
        if num_epochs is not None:
            length = tree.pass_length(dataset) * checked_whole(
                num_epochs, "EpochizeDataset: num_epochs", 1
            )
        self.freeze(
            [dataset],
            worker_config,
            length=checked_whole(length, "EpochizeDataset: length", 1),
            num_epochs=num_epochs,
        )

    @cached_property
    def key(self) -> int:
        """The key of the input, as the ends of epochs do not change the order."""
        return self.inputs[0].key

    @cached_property
    def size(self) -> int:
        return self.length

    @cached_property
    def traits(self) -> NodeTraits:
        steps = self.length if self.num_epochs is None else None
        return NodeTraits(loop=LoopTraits(cuts=True, steps=steps))

    def taken(self, n: int) -> Sequence[int]:
        return [n]
