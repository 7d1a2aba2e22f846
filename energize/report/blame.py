"""Samples of the batch of one step on all ranks, with their recorded losses."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import SamplePlace
from energize.core.node import INFINITE
from energize.core.os_errors import os_errors_as
from energize.core.reader import ItemOrigin
from energize.datasets.transform import SampleWeightDataset
from energize.errors import ConfigError, NotIndexedError
from energize.report.levels import MixLevel, Places, levels_of


class Delivered(NamedTuple):
    """An item of one rank at one step, with the recorded losses of its samples in
    order.

    It is one line of a file of losses.
    """

    step: int
    rank: int
    world_size: int
    origin: ItemOrigin
    losses: Sequence[Any] = ()
    time: float = 0.0

    @property
    def line(self) -> bytes:
        """The line in a file of losses, with the current time."""
        origin = self.origin if isinstance(self.origin, int) else list(self.origin)
        values = {
            "step": self.step,
            "rank": self.rank,
            "world_size": self.world_size,
            "made": origin,
            "losses": [short_loss(loss) for loss in self.losses],
            "time": round(time.time(), 3),
        }
        return f"{json.dumps(values)}\n".encode()


def short_loss(loss: float | None) -> float | str | None:
    """Return a loss as a JSON value; NaN and infinity become text."""
    if loss is None:
        return loss
    if isfinite(loss):
        return float(f"{loss:.6g}")
    return str(loss)


class SampleOrigin(NamedTuple):
    """The position of a sample in the order of a mix.

    Args:
        row: Row of its source in the levels of the mix.
        sample: Number of the sample in its source.
        epoch: Earlier passes through the source.
    """

    row: int
    sample: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BlamedSample:
    """A sample of the batch of a step.

    Args:
        rank: Rank that received the sample.
        number: Position in the batch of that rank.
        source: Names of the levels down to its source, joined by "/".
        location: Where the sample is stored.
        origin: Where the sample comes from in the order.
        weight: Loss weight set by its sources. None if a function of the sample sets
            it.
        loss: Recorded loss. None if none was recorded.
    """

    rank: int
    number: int
    source: str
    location: SamplePlace
    origin: SampleOrigin
    weight: float | None
    loss: float | None

    @property
    def shard(self) -> str | None:
        """The shard of the sample."""
        return self.location.shard

    @property
    def index(self) -> int:
        """The number of the sample in its shard, or in a source without shards."""
        return self.location.index

    @property
    def key(self) -> str | None:
        """The key of the sample."""
        return self.location.key

    @property
    def epoch(self) -> int:
        """Earlier passes through the source."""
        return self.origin.epoch

    def as_json(self) -> dict[str, Any]:
        """Return all fields in one flat dict."""
        return {
            "rank": self.rank,
            "number": self.number,
            "source": self.source,
            "dataset": self.location.dataset,
            "shard": self.shard,
            "index": self.index,
            "key": self.key,
            "epoch": self.epoch,
            "weight": self.weight,
            "loss": short_loss(self.loss),
            "row": self.origin.row,
            "sample": self.origin.sample,
        }


def blame(
    dataset: Dataset[Any],
    step: int,
    *,
    world_size: int = 1,
    rank: int | None = None,
    losses: Sequence[Path] = (),
) -> list[BlamedSample]:
    """Return the samples of the batches of a step, by rank and in batch order.

    If the files of `losses` contain the step, the batches are those that the trainer
    recorded under this number last, on the ranks of that time. Otherwise, the order of
    the dataset decides. Only keys are read. A failed sample is listed itself, not its
    substitute.

    Args:
        dataset: Dataset of batches.
        step: Step of the run, counted from 0.
        world_size: Number of ranks of the run; ignored for recorded steps.
        rank: The only rank to list. None for all ranks.
        losses: Files that `get_loader(losses=...)` wrote.

    Returns:
        The samples of all requested ranks.

    Raises:
        NotIndexedError: If the dataset is a stream and no file contains the step.
        ConfigError: If `rank` does not exist, or if a file is not a file of losses.

    Example:
        >>> from energize import BatchDataset, BlendDataset, ListSource
        >>> blend = BlendDataset(
        ...     (ListSource("ab", name="a"), 1), (ListSource("xyz", name="x"), 1)
        ... )
        >>> found = blame(BatchDataset(blend, 2, list), step=10**9, world_size=2)
        >>> [(each.rank, each.source) for each in found]
        [(0, 'x'), (0, 'a'), (1, 'a'), (1, 'x')]
    """
    levels = levels_of(dataset)
    lines = list(_lines(dataset, step, world_size, losses))
    ranks = lines[0].world_size
    if rank is not None and rank >= ranks:
        raise ConfigError(
            f"rank {rank} is missing: step {step:,} was made by {ranks} ranks"
        )
    weights = weights_of(levels)
    places = Places(dataset, levels)
    blamed: list[BlamedSample] = []
    for line in lines:
        if rank is not None and line.rank != rank:
            continue
        _, *columns = (column.tolist() for column in places.locate([line.origin]))
        origins = [*starmap(SampleOrigin, zip(*columns, strict=True))]
        losses_of_line: Sequence[Any] = line.losses
        if len(losses_of_line) != len(origins):
            losses_of_line = [None] * len(origins)
        for number, origin in enumerate(origins):
            leaf = levels.leaves[origin.row]
            blamed.append(
                BlamedSample(
                    rank=line.rank,
                    number=number,
                    source=leaf.label,
                    location=cast("Any", leaf.source).place(origin.sample),
                    origin=origin,
                    weight=weights[origin.row],
                    loss=losses_of_line[number],
                )
            )
    return blamed


def _all_recorded(files: Sequence[Path], step: int) -> list[Delivered]:
    """Return the recorded lines of a step from all files, the oldest first."""
    lines = (line for file in files for line in _recorded(file, step))
    return sorted(lines, key=lambda line: line.time)


def _by_order(
    dataset: IndexedDataset[Any],
    step: int,
    positions: range,
    recorded: Sequence[Delivered],
) -> Iterator[Delivered]:
    """Yield the items at `positions`, one per rank, with their recorded losses.

    Padding after the end of the dataset is omitted.
    """
    size = dataset.size
    losses = {cast("int", line.origin): line.losses for line in recorded}
    for rank, position in enumerate(positions):
        if size == INFINITE or position // size == positions.start // size:
            of_item = losses.get(position, ())
            yield Delivered(step, rank, len(positions), position, of_item)


def _lines(
    dataset: Dataset[Any], step: int, world_size: int, files: Sequence[Path]
) -> Iterator[Delivered]:
    """Yield the item of each rank: the recorded one, or else the one in the order."""
    recorded = _all_recorded(files, step)
    ranks = recorded[-1].world_size if recorded else world_size
    newest = {line.rank: line for line in recorded if line.world_size == ranks}
    if isinstance(dataset, IndexedDataset) and dataset.indexed:
        first = _first(dataset, step, world_size)
        if newest:
            lowest = newest[min(newest)]
            first = cast("int", lowest.origin) - lowest.rank
        yield from _by_order(dataset, step, range(first, first + ranks), recorded)
    elif newest:
        yield from (newest[rank] for rank in sorted(newest))
    else:
        raise NotIndexedError(
            f"step {step:,} of {type(dataset).__name__}: the samples of a stream are "
            "known only by reading. Pass the files that get_loader(losses=FILE) writes "
            "as --losses, or read up to the step with `energize plan MIX --read --at "
            "STEP`"
        )


def _first(dataset: IndexedDataset[Any], step: int, world_size: int) -> int:
    """Return the first item of a step; all ranks start each epoch at its first item."""
    if dataset.size == INFINITE:
        return step * world_size
    epoch, of_epoch = divmod(step, -(-dataset.size // world_size))
    return epoch * dataset.size + of_epoch * world_size


def _recorded(file: Path, step: int) -> Iterator[Delivered]:
    """Yield the lines of a step in a file; skip a line that a crash has cut off."""
    mark = f'{{"step": {step}, '
    with (
        os_errors_as(ConfigError, file),
        file.open(encoding="utf-8", errors="replace") as lines,
    ):
        for number, line in enumerate(lines):
            if not number and not line.startswith('{"step": '):
                raise ConfigError(
                    f"{file} is not a file of losses of get_loader(losses=...)"
                )
            if not line.startswith(mark):
                continue
            try:
                yield _parsed(line, step)
            except (ValueError, KeyError, TypeError, OverflowError):
                continue


def _parsed(line: str, step: int) -> Delivered:
    """Parse a line of a file of losses."""
    record = json.loads(line)
    origin = record["made"]
    if not isinstance(origin, int):
        origin = array("q", origin)
    losses = [None if loss is None else float(loss) for loss in record["losses"]]
    rank = record["rank"]
    return Delivered(step, rank, record["world_size"], origin, losses, record["time"])


def weights_of(level: MixLevel, so_far: float | None = 1.0) -> list[float | None]:
    """Return the loss weight of each row that its sources set; None for functions."""
    for node in level.above:
        if isinstance(node, SampleWeightDataset):
            is_constant = so_far is not None and not callable(node.weight)
            so_far = (
                cast("float", so_far) * cast("float", node.weight)
                if is_constant
                else None
            )
    if not level.parts:
        return [so_far]
    return [weight for part in level.parts for weight in weights_of(part, so_far)]
