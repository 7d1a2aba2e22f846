"""Which samples the batches of any steps are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.core.arrays import Int64Array, rows_by_value
from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.trace import Refs
from energize.data.join import JoinedSource
from energize.data.naming import source_labels
from energize.data.selection import PropertySource
from energize.data.source import Source
from energize.data.webdataset import WebdatasetSource
from energize.preview.arguments import checked_steps, indexed

_SAMPLES_AT_ONCE = 2**14


@dataclass(frozen=True, slots=True)
class PlannedSample:
    """A sample that will be read.

    `source`: the name of its source, see `source_labels`. `index`: its number in `shard`, or in the
    source where that has no shards. `epoch`: how many times the source has been passed through
    before. `key`: None when it was not asked for, or cannot be read.
    """

    source: str
    shard: str | None
    index: int
    epoch: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The samples of the batch of a step, in their order; none where the batch is padding.

    `rank` is None for an unknown number of ranks.
    """

    step: int
    rank: int | None
    samples: tuple[PlannedSample, ...]


def plan(
    dataset: Dataset[Any],
    at: int,
    steps: int,
    *,
    world_size: int | None = None,
    keys: bool = False,
) -> Iterator[PlannedBatch]:
    """Batches `at` to `at + steps` of a dataset of batches, as they will be read.

    Steps count the batches of all ranks together, as the position of a saved state does; ranks take
    turns, beginning anew with each epoch of the dataset. The plan is what is read as long as no
    sample is skipped or damaged: substitutes of such samples are not foreseen. No shard is opened,
    unless `keys` are asked for.

    Raises `ConfigError` for numbers that cannot be used, and `NotIndexedError` for a stream, at
    once; `ShardError` for a shard whose keys cannot be read.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource("ab", name="a"), 1), (ListSource("xyz", name="x"), 1))
    >>> for batch in plan(BatchDataset(blend, 2, list), at=10**9, steps=2, world_size=2):
    ...     print(batch.step, batch.rank, len(batch.samples))
    1000000000 0 2
    1000000001 1 2
    """
    positions = indexed(dataset, "plan")
    at, steps = checked_steps(positions, at, steps)
    if world_size is not None:
        world_size = checked_whole(world_size, "plan: world_size", 1)
    return _batches(positions, at, at + steps, world_size, keys=keys)


def _batches(
    dataset: IndexedDataset[Any], start: int, stop: int, world_size: int | None, *, keys: bool
) -> Iterator[PlannedBatch]:
    labels = source_labels(dataset.sources)
    at_once = max(1, _SAMPLES_AT_ONCE // max(1, int(dataset.consumed(1).sum())))
    for first in range(start, stop, at_once):
        steps = np.arange(first, min(first + at_once, stop), dtype=np.int64)
        refs = dataset.refs(steps)
        samples = _samples(dataset.sources, labels, refs, keys=keys)
        ends = np.searchsorted(refs.item, np.arange(len(steps)), side="right").tolist()
        begin = 0
        for step, end in zip(steps.tolist(), ends, strict=True):
            rank = None if world_size is None else step % dataset.size % world_size
            yield PlannedBatch(step, rank, tuple(samples[begin:end]))
            begin = end


def _samples(
    sources: tuple[Source[Any], ...], labels: list[str], refs: Refs, *, keys: bool
) -> list[PlannedSample]:
    samples: dict[int, PlannedSample] = {}
    for number, rows in rows_by_value(refs.source):
        located = _located(sources[number], refs.index[rows], keys=keys)
        epochs = refs.epoch[rows].tolist()
        for row, epoch, (shard, at, key) in zip(rows.tolist(), epochs, located, strict=True):
            samples[row] = PlannedSample(labels[number], shard, at, epoch, key)
    return [samples[row] for row in range(len(refs))]


def _located(
    source: Source[Any], index: Int64Array, *, keys: bool
) -> Iterator[tuple[str | None, int, str | None]]:
    """The shard of each sample, its number there, and its key; of a joined one, those of its first
    part.
    """
    if isinstance(source, PropertySource):
        return _located(source.source, source.rows[index], keys=keys)
    if isinstance(source, JoinedSource):
        return _located(source.parts[0], source.matches[index, 0], keys=keys)
    if not isinstance(source, WebdatasetSource):
        return ((None, number, None) for number in index.tolist())
    shards, numbers = source.locate(index)
    names = (source.shards[shard] for shard in shards.tolist())
    found: Sequence[str | None] = source.keys(index) if keys else [None] * len(index)
    return zip(names, numbers.tolist(), found, strict=True)
