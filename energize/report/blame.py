"""From a step to its samples: what a batch of all ranks was made of, and the losses it
had.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.node import INFINITE
from energize.core.os_errors import os_errors_as
from energize.core.reader import Made
from energize.datasets.transform import SampleWeightDataset
from energize.errors import ConfigError, NotIndexedError
from energize.report.levels import MixLevel, Places, levels_of


class Delivered(NamedTuple):
    """An item that was given to a rank at a step, and the losses that were recorded of
    its samples, in their order: a line of a file of losses.
    """

    step: int
    rank: int
    world_size: int
    made: Made
    losses: Sequence[Any] = ()
    time: float = 0.0

    @property
    def line(self) -> bytes:
        """As a file has it, now."""
        made = self.made if isinstance(self.made, int) else list(self.made)
        losses = [short_loss(each) for each in self.losses]
        told = {"made": made, "losses": losses, "time": round(time.time(), 3)}
        return f"{json.dumps(self._asdict() | told)}\n".encode()


def short_loss(loss: float | None) -> float | str | None:
    """Return a loss as JSON has it: NaN and infinity as texts."""
    if loss is None:
        return loss
    if isfinite(loss):
        return float(f"{loss:.6g}")
    return str(loss)


@dataclass(frozen=True, slots=True)
class BlamedSample:
    """A sample of the batch of a step.

    `rank`: whose it was; `number`: its place in the batch of that rank. `source`: the
    names on the way to it in the mix. `dataset`, `shard`, `index` and `key` say where
    it is stored; `epoch` how often its source had been passed through. `weight`: what
    its sources say of its weight in the loss, None where a function of the sample does.
    `loss`: what was recorded, if anything was. `row` and `sample` are its numbers in
    the mix.
    """

    rank: int
    number: int
    source: str
    dataset: str
    shard: str | None
    index: int
    key: str | None
    epoch: int
    weight: float | None
    loss: float | None
    row: int
    sample: int


def blame(
    dataset: Dataset[Any],
    step: int,
    *,
    world_size: int = 1,
    rank: int | None = None,
    losses: Sequence[Path] = (),
) -> list[BlamedSample]:
    """Return the samples of which the batches of a step were made, rank by rank, in
    their order.

    `step` counts from 0 on, as a run on `world_size` ranks makes them. Where the files
    in `losses`, which loaders wrote (`get_loader(losses=...)`), have that step, it is
    the one that the trainer recorded under this number last, on the ranks that there
    were then. Nothing is read but the keys of these samples. A sample that failed is
    named itself, not the one that took its place.

    Raises `NotIndexedError` for a stream whose step no file has, `ConfigError` for a
    rank that there is not, and for files that hold something else.

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
            f"there is no rank {rank}: step {step:,} was made by {ranks} ranks"
        )
    weights = weights_of(levels)
    places = Places(dataset, levels)
    found = []
    for line in (
        lines if rank is None else [each for each in lines if each.rank == rank]
    ):
        _, rows, samples, epochs = (each.tolist() for each in places.found([line.made]))
        of_line = line.losses if len(line.losses) == len(rows) else [None] * len(rows)
        of = zip(rows, samples, epochs, of_line, strict=True)
        for number, (row, sample, epoch, loss) in enumerate(of):
            leaf = levels.leaves[row]
            place = cast("Any", leaf.source).place(sample)
            stored = place.dataset, place.shard, place.index, place.key, epoch
            known = *stored, weights[row], loss, row, sample
            found.append(BlamedSample(line.rank, number, leaf.label, *known))
    return found


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
    """Yield the items at `positions`, one per rank, with the losses recorded of them;
    without the padding after the end of the dataset.
    """
    size = dataset.size
    losses = {cast("int", line.made): line.losses for line in recorded}
    for rank, position in enumerate(positions):
        if size == INFINITE or position // size == positions.start // size:
            of_item = losses.get(position, ())
            yield Delivered(step, rank, len(positions), position, of_item)


def _lines(
    dataset: Dataset[Any], step: int, world_size: int, files: Sequence[Path]
) -> Iterator[Delivered]:
    """What each rank was given: as it was recorded, else by the order."""
    recorded = _all_recorded(files, step)
    ranks = recorded[-1].world_size if recorded else world_size
    newest = {line.rank: line for line in recorded if line.world_size == ranks}
    if isinstance(dataset, IndexedDataset) and dataset.indexed:
        first = _first(dataset, step, world_size)
        if newest:
            lowest = newest[min(newest)]
            first = cast("int", lowest.made) - lowest.rank
        yield from _by_order(dataset, step, range(first, first + ranks), recorded)
    elif newest:
        yield from (newest[rank] for rank in sorted(newest))
    else:
        raise NotIndexedError(
            f"which samples step {step:,} of {type(dataset).__name__} was made of is "
            "known by reading only, or from the files that get_loader(losses=FILE) "
            "and loader.record_losses write: give these as --losses, or read up to it "
            "with `energize plan MIX --read --at STEP`"
        )


def _first(dataset: IndexedDataset[Any], step: int, world_size: int) -> int:
    """The first item of a step: in every epoch, ranks begin anew with its first one."""
    if dataset.size == INFINITE:
        return step * world_size
    epoch, of_epoch = divmod(step, -(-dataset.size // world_size))
    return epoch * dataset.size + of_epoch * world_size


def _recorded(file: Path, step: int) -> Iterator[Delivered]:
    """The lines of a file that are of a step; one that was cut off by a crash is passed
    over.
    """
    mark = f'{{"step": {step}, '
    with (
        os_errors_as(ConfigError, file),
        file.open(encoding="utf-8", errors="replace") as lines,
    ):
        for number, line in enumerate(lines):
            if not number and not line.startswith('{"step": '):
                raise ConfigError(
                    f"{file}: no file of losses, as get_loader(losses=...) writes it"
                )
            if not line.startswith(mark):
                continue
            try:
                held = json.loads(line)
                made = (
                    held["made"]
                    if isinstance(held["made"], int)
                    else array("q", held["made"])
                )
                losses = [
                    None if each is None else float(each) for each in held["losses"]
                ]
                yield Delivered(
                    step, held["rank"], held["world_size"], made, losses, held["time"]
                )
            except (ValueError, KeyError, TypeError, OverflowError):
                continue


def weights_of(level: MixLevel, so_far: float | None = 1.0) -> list[float | None]:
    """Return the weight in the loss that the sources of each row say; None for
    functions.
    """
    for node in level.above:
        if isinstance(node, SampleWeightDataset):
            known = so_far is not None and not callable(node.weight)
            so_far = (
                cast("float", so_far) * cast("float", node.weight) if known else None
            )
    if not level.parts:
        return [so_far]
    return [weight for part in level.parts for weight in weights_of(part, so_far)]
