"""In which runs of its own order each source is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from energize.dataset import IndexedDataset
from energize.sources.base import Source
from energize.wrappers.quota import QuotaDataset
from energize.wrappers.routed import RoutedDataset, indexed_inputs
from energize.wrappers.shuffle import ShuffleDataset
from energize.wrappers.staged import StagedDataset

__all__ = ["Passage", "Run", "as_stored", "runs_of_sources"]

Stretch = tuple[int, int]

_MOST = 32
"""Stretches that are followed; behind so many, a source has come again or is too large to tell."""


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one source, read one after another: positions `start` to before `stop` of `order`,
    the source or a shuffle of it.
    """

    order: IndexedDataset[Any]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Passage:
    """How a source is read: `runs`, in their order, or what is known without.

    `before`: how many samples come before the first that came already. `complete`: whether the runs
    are all there are. With no runs and no `before`, nothing is known.
    """

    runs: tuple[Run, ...] = ()
    complete: bool = False
    before: int | None = None


def runs_of_sources(
    dataset: IndexedDataset[Any], stretches: Sequence[Stretch], *, complete: bool = True
) -> list[Passage]:
    """How the items of `stretches` read each of `dataset.sources`; `complete` says whether the
    stretches are all that are read.
    """
    if isinstance(dataset, Source) or _shuffles_one(dataset):
        return [Passage(tuple(Run(dataset, *each) for each in stretches), complete)]
    if isinstance(dataset, ShuffleDataset | QuotaDataset):
        if not stretches or stretches[0][0]:
            return [Passage()] * len(dataset.sources)
        known = _of_shuffle(dataset) if isinstance(dataset, ShuffleDataset) else _of_quota(dataset)
        read = dataset.consumed(stretches[0][1]).tolist()
        alone = complete and len(stretches) == 1
        return [
            Passage(before=before) if before is not None and (alone or before < n) else Passage()
            for before, n in zip(known, read, strict=True)
        ]
    inner = _below(dataset, stretches)
    if inner is None:
        return [Passage()] * len(dataset.sources)
    below, all_there = inner
    complete = complete and all_there
    inputs = dataset.routed_to if isinstance(dataset, RoutedDataset) else indexed_inputs(dataset)
    found = [
        runs_of_sources(each, part, complete=complete)
        for each, part in zip(inputs, below, strict=True)
    ]
    if isinstance(dataset, StagedDataset):
        return _merged(dataset, found, below)
    return [passage for passages in found for passage in passages]


def as_stored(dataset: IndexedDataset[Any]) -> bool:
    """Whether an epoch is one pass over the only source, item k being sample k."""
    if len(dataset.sources) > 1 or dataset.size != dataset.sources[0].count:
        return False
    while not isinstance(dataset, Source):
        if not (dataset.in_turn and dataset.one_each):
            return False
        dataset = indexed_inputs(dataset)[0]
    return True


def _shuffles_one(dataset: IndexedDataset[Any]) -> bool:
    return isinstance(dataset, ShuffleDataset) and as_stored(indexed_inputs(dataset)[0])


def _below(
    dataset: IndexedDataset[Any], stretches: Sequence[Stretch]
) -> tuple[list[list[Stretch]], bool] | None:
    """The stretches of each input, and whether these are all; None where there are none."""
    below: list[list[Stretch]] = [[] for _ in dataset.inputs]
    for start, stop in stretches:
        found = dataset.stretches(start, stop)
        if found is None:
            return None
        most = _MOST * len(below)
        for number, first, end in islice(found, most):
            part = below[number]
            if part and part[-1][1] == first:
                part[-1] = part[-1][0], end
            else:
                part.append((first, end))
        if next(found, None) is not None or max(map(len, below), default=0) > _MOST:
            return below, False
    return below, True


def _of_shuffle(dataset: ShuffleDataset[Any]) -> list[int | None]:
    """Of several sources shuffled together, or of items that are more than one sample: where an
    epoch has each sample once, the first one that comes again is the first of the second epoch.
    """
    counts = [source.count for source in dataset.sources]
    inner = indexed_inputs(dataset)[0]
    plain = dataset.over_epochs == 1 and _passes_once(inner)
    return [count if plain else None for count in counts]


def _passes_once(dataset: IndexedDataset[Any]) -> bool:
    """Whether every epoch is one pass over all sources."""
    if isinstance(dataset, Source):
        return True
    if dataset.consumed(dataset.size).tolist() != [each.count for each in dataset.sources]:
        return False
    shuffled = isinstance(dataset, ShuffleDataset) and dataset.over_epochs == 1
    return (dataset.in_turn or shuffled) and all(map(_passes_once, indexed_inputs(dataset)))


def _of_quota(dataset: QuotaDataset[Any]) -> list[int | None]:
    found: list[int | None] = []
    for number, each in enumerate(indexed_inputs(dataset)):
        if as_stored(each):
            found.append(dataset.draws_before_repeat(number))
        elif dataset.in_order and dataset.counts()[number] >= each.size and _passes_once(each):
            found += [source.count for source in each.sources]
        else:
            found += [None] * len(each.sources)
    return found


def _merged(
    dataset: StagedDataset[Any], found: Iterable[Sequence[Passage]], below: Iterable[Sequence[Any]]
) -> list[Passage]:
    """What the stages read of each source, one after another."""
    merged: list[list[Passage]] = [[] for _ in dataset.sources]
    for stage, (passages, part) in enumerate(zip(found, below, strict=True)):
        rows = dataset.numbers_of(stage).tolist()
        for row, passage in zip(rows, passages, strict=True):
            if part:
                merged[row].append(passage if rows.count(row) == 1 else Passage())
    return [_joined(each) for each in merged]


def _joined(passages: Sequence[Passage]) -> Passage:
    """Passages as one; it ends where it is not known how the source is read on."""
    if len(passages) == 1:
        return passages[0]
    runs: tuple[Run, ...] = ()
    for each in passages:
        runs += each.runs
        if not each.complete:
            return Passage(runs)
    return Passage(runs, complete=True)
