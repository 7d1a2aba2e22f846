"""Mixing by what samples are: a weight for each value of a property, in one dataset or
several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from energize.core.dataset import Dataset
from energize.data.selection import (
    OTHERS,
    PropertySource,
    PropertyValue,
    Selection,
    selections,
)
from energize.data.source import Source
from energize.datasets.blend import BlendDataset
from energize.datasets.order import ConcatDataset, ShuffleDataset
from energize.datasets.transform import FilterDataset, LogSampleDataset, MapDataset
from energize.errors import ConfigError, EmptyDatasetError
from energize.order.timeline import WEIGHTLESS
from energize.order.weights import Weight

T = TypeVar("T")

_ONE_BY_ONE: tuple[type[Any], ...] = (
    ConcatDataset,
    FilterDataset,
    LogSampleDataset,
    MapDataset,
    ShuffleDataset,
)
"""Nodes that treat each sample independently of other samples."""

_OF_THE_WHOLE = (
    "unit",
    "stop",
    "max_epochs",
    "temperature",
    "exponent",
    "min_share",
    "max_share",
)


def by_property(
    dataset: Dataset[T] | Iterable[Dataset[T]],
    by: str,
    weights: Mapping[PropertyValue, Weight],
    *,
    other: Weight | None = None,
    **options: Any,
) -> BlendDataset[T]:
    """Blend the samples of datasets by the values of a column.

    Returns a `BlendDataset` with one part for each value, which contains the samples
    with this value, shuffled and mapped as in `dataset`. Samples of several datasets
    with the same value are mixed in proportion to their numbers.

    Args:
        dataset: A dataset, or several.
        by: The name of a column of the sources.
        weights: The weight of each value: a number or a `Schedule`. Values are strings,
            numbers, or ranges of numbers: "0..0.5" includes 0 and excludes 0.5, "0.5.."
            has no end.
        other: The weight of all samples with another value, or none. 0 drops them. None
            if every sample has one of the values.
        **options: Further arguments of `BlendDataset`.

    Returns:
        The blend. Its `names` are the values.

    Raises:
        ColumnError: If the column is unknown, a value has no samples, values overlap,
            or samples have no weight.
        ConfigError: If a dataset makes items of several samples. Split the dataset
            below it instead.
        WeightError: For invalid weights.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(
        ...     "abcd", name="texts", columns={"quality": ["low", "high", "low", "low"]}
        ... )
        >>> mix = by_property(texts, "quality", {"high": 3, "low": 1})
        >>> mix.names, mix.shares(), mix.at(range(1000)).count("b")
        (('high', 'low'), [0.75, 0.25], 750)
    """
    datasets = [dataset] if isinstance(dataset, Dataset) else list(dataset)
    if not datasets:
        raise ConfigError(
            "by_property: the list of datasets is empty. Pass at least one"
        )
    for part in datasets:
        _check_one_by_one(part)
    sources = [source for part in datasets for source in part.sources]
    named = selections(sources, by, list(weights), other=other is not None)
    inner = _inside(options)
    parts: dict[str, Dataset[T]] = {
        selection.name: _together(_selected(datasets, selection), inner)
        for selection in named
    }
    part_weights: dict[str, Any] = {
        Selection(by, value).name: weight for value, weight in weights.items()
    }
    if len(named) > len(part_weights):
        part_weights[OTHERS] = other
    return BlendDataset(parts, weights=part_weights, **options)


def _check_one_by_one(dataset: Dataset[Any]) -> None:
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"by_property: {str(dataset)[:80]!r} is not a dataset. Wrap a list in "
            "ListSource"
        )
    if isinstance(dataset, Source):
        return
    if not isinstance(dataset, _ONE_BY_ONE):
        kinds = ", ".join(node_type.__name__ for node_type in _ONE_BY_ONE)
        raise ConfigError(
            f"by_property: the samples of a {type(dataset).__name__} cannot be read "
            "one by one, so it cannot be split by a property. Split its inputs "
            f"(sources, and {kinds} over them), and pass the mix to "
            f"{type(dataset).__name__}"
        )
    for child in dataset.inputs:
        _check_one_by_one(child)


def _selected(
    datasets: Sequence[Dataset[Any]], selection: Selection
) -> list[tuple[str, Dataset[Any]]]:
    """Return the datasets, with their names, that have samples of a selection."""
    restricted = [(_name(part), _restricted(part, selection)) for part in datasets]
    return [(name, part) for name, part in restricted if part is not None]


def _restricted(dataset: Dataset[T], selection: Selection) -> Dataset[T] | None:
    """Return the same dataset over the samples that are selected; None where there are
    none.
    """
    if isinstance(dataset, Source):
        try:
            return cast("Dataset[T]", PropertySource(dataset, selection))
        except EmptyDatasetError:
            return None
    parts = [
        part
        for child in dataset.inputs
        if (part := _restricted(child, selection)) is not None
    ]
    return dataset.with_inputs(parts) if parts else None


def _name(dataset: Dataset[Any]) -> str:
    return ", ".join(source.name for source in dataset.sources)


def _together(
    named: Sequence[tuple[str, Dataset[T]]], options: Mapping[str, Any]
) -> Dataset[T]:
    """Named datasets in proportion to how many samples they have; one alone as it
    is.
    """
    parts = [part for _, part in named]
    if len(parts) == 1:
        return parts[0]
    counts = [sum(source.count for source in part.sources) for part in parts]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        return BlendDataset(list(zip(parts, counts, strict=True)), **options)
    return BlendDataset(
        dict(named), weights=dict(zip(names, counts, strict=True)), **options
    )


def _inside(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a mix of the samples of one value: those of the whole mix.
    Where that ends, or counts something else than samples, it has epochs, in which it
    reads each sample once.
    """
    inside = {
        name: value for name, value in options.items() if name not in _OF_THE_WHOLE
    }
    if (
        not isinstance(inside.get("scheme", ""), str)
        or inside.get("scheme") in WEIGHTLESS
    ):
        inside.pop("scheme")
    ends = (
        options.get("stop", "restart") != "restart"
        or options.get("max_epochs") is not None
    )
    if ends or options.get("unit") is not None:
        inside["stop"] = "all_exhausted"
    return inside
