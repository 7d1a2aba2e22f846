"""Weighted mixes of datasets."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

from energize.cursor import Cursor, State
from energize.dataset import INFINITE, Dataset, IndexedDataset, Int64Array, OnFailure
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.schemes import Scheme, make_scheme
from energize.order.weights import checked_weight
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.streams import RoutedCursor

__all__ = ["BlendDataset", "Pair", "checked_pairs"]

T_co = TypeVar("T_co", covariant=True)

Pair = tuple[Dataset[Any], float]

_log = logging.getLogger("energize")


class BlendDataset(RoutedDataset[T_co]):
    """Items of several datasets in the proportion of their weights, without end.

    Given as (dataset, weight) pairs, or as one iterable of pairs. Weights need not sum to 1. Over
    datasets of batches, each item is a whole batch of one of them. A dataset that is over starts
    again, in a new order when it is shuffled.

    `scheme` decides which dataset each slot belongs to: the name of one, or any object with
    `counts` and `locate` over as many sources as there are pairs. The default `block` keeps the
    shares exactly in every 1000 items, and shuffles inside.

    Blends nest: with the same scheme, the parts of an inner blend take part with the product of
    their weights. Equal datasets are merged into one with the summed weight, which is logged; the
    same folder with other settings gets an order of its own.

    Raises `WeightError` for weights that are missing, negative, not finite or all zero;
    `EmptyDatasetError` for a dataset with a weight and no items.

    >>> from energize import ListSource
    >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
    >>> blend.shares()
    [0.75, 0.25]
    >>> blend.at(range(1000)).count("a")
    750
    """

    weights: tuple[float, ...]
    scheme: str | Scheme

    def __init__(
        self,
        *pairs: tuple[Dataset[T_co], float] | Iterable[tuple[Dataset[T_co], float]],
        scheme: str | Scheme = "block",
        worker_config: WorkerConfig | None = None,
    ) -> None:
        owner = type(self).__name__
        parts = checked_pairs(pairs, owner)
        if isinstance(scheme, str):
            parts = _merged(_flattened(parts, scheme), owner)
        self._freeze(
            inputs=_told_apart([dataset for dataset, _ in parts]),
            worker_config=worker_config,
            weights=tuple(weight for _, weight in parts),
            scheme=scheme,
        )
        self._check_not_empty()
        _ = self._located_by  # weights and scheme are checked here, not at the first item

    def shares(self) -> list[float]:
        """The asked share of each of `inputs`: its weight divided by the sum."""
        total = sum(self.weights)
        return [weight / total for weight in self.weights]

    @cached_property
    def size(self) -> int:
        return INFINITE

    @cached_property
    def _located_by(self) -> Scheme:
        if isinstance(self.scheme, str):
            return make_scheme(self.scheme, self.weights, key=self.key)
        for method in ("counts", "locate"):
            if not callable(getattr(self.scheme, method, None)):
                raise ConfigError(
                    f"BlendDataset: a scheme is a name or an object with counts and locate; "
                    f"{self.scheme!r} has no {method}"
                )
        if len(self.scheme.counts(0)) != len(self.inputs):
            raise ConfigError(
                f"BlendDataset: the scheme is for {len(self.scheme.counts(0))} sources, but there "
                f"are {len(self.inputs)} datasets"
            )
        return self.scheme

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._located_by.locate(positions)

    def _check_not_empty(self) -> None:
        for number, (each, weight) in enumerate(zip(self.inputs, self.weights, strict=True)):
            if weight and each.indexed and cast("IndexedDataset[Any]", each).size == 0:
                raise EmptyDatasetError(
                    f"BlendDataset: dataset {number} has weight {weight} and no items; remove it, "
                    "or give it weight 0"
                )

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        return RoutedCursor(self.route, self.inputs, lane, state, on_failure)


def checked_pairs(given: Sequence[Any], owner: str) -> list[Pair]:
    """Pairs given as arguments, or as one iterable of pairs, with their weights checked."""
    if len(given) == 1 and not _is_pair(given[0]) and isinstance(given[0], Iterable):
        if isinstance(given[0], Dataset):
            raise WeightError(f"{owner}: dataset 0 has no weight; give pairs (dataset, weight)")
        given = list(given[0])
    if not given:
        raise ConfigError(f"{owner}: there are no datasets to mix")
    parts: list[Pair] = []
    for number, pair in enumerate(given):
        if not _is_pair(pair):
            what = "has no weight" if isinstance(pair, Dataset) else f"is {str(pair)[:80]!r}"
            raise WeightError(f"{owner}: dataset {number} {what}; give pairs (dataset, weight)")
        dataset, weight = pair
        parts.append((dataset, checked_weight(weight, f"{owner}: dataset {number}")))
    if not any(weight for _, weight in parts):
        raise WeightError(
            f"{owner}: all {len(parts)} weights are 0, so nothing could ever be drawn"
        )
    return parts


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and isinstance(value[0], Dataset)
        and not isinstance(value[1], Dataset | tuple | list)
    )


def _flattened(parts: list[Pair], scheme: str) -> list[Pair]:
    """Blends among the parts, of the same scheme, opened up: weights multiply."""
    flat: list[Pair] = []
    for dataset, weight in parts:
        if type(dataset) is BlendDataset and dataset.scheme == scheme:
            inner = zip(dataset.inputs, dataset.shares(), strict=True)
            flat.extend((each, weight * share) for each, share in inner)
        else:
            flat.append((dataset, weight))
    return flat


def _merged(parts: list[Pair], owner: str) -> list[Pair]:
    """Equal datasets as one, with the sum of their weights."""
    merged: list[Pair] = []
    by_key: dict[int, list[int]] = {}
    for dataset, weight in parts:
        alike = by_key.setdefault(dataset.key, [])
        same = next((i for i in alike if merged[i][0] == dataset), None)
        if same is None:
            alike.append(len(merged))
            merged.append((dataset, weight))
            continue
        total = merged[same][1] + weight
        names = ", ".join(source.name for source in dataset.sources)
        _log.info("%s: %s is listed twice; it is read as one, weight %g", owner, names, total)
        merged[same] = (dataset, total)
    return merged


def _told_apart(datasets: Sequence[Dataset[Any]]) -> list[Dataset[Any]]:
    """Datasets that share a source, wherever below them it is, each in an order of its own."""
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(dataset.distinguished(before) if before else dataset)
    return apart
