"""The entries of a blend: datasets with their weights, as they are given, opened up and merged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

import numpy as np

from energize.core.dataset import Dataset
from energize.errors import ConfigError, WeightError, nearest
from energize.order.schedule import Schedule, WeightScheduler, names_apart
from energize.order.weights import (
    Compound,
    Weight,
    as_fraction,
    checked_temperature,
    ever_positive,
    exact_weight,
    lean,
    limited,
    tempered,
)

_log = logging.getLogger("energize")

PerDataset = Any
"""A value for all datasets, one each in a list, or one each by name."""


class Entry(NamedTuple):
    """A dataset of a blend, its weight, how many epochs of it are read at most, what it was called,
    and what it weighs in the loss, if that is something else.
    """

    dataset: Dataset[Any]
    weight: Weight
    max_epochs: int | None = None
    name: str | None = None
    target: Weight | None = None

    @property
    def loss_weight(self) -> Weight:
        """What it weighs in the loss."""
        return self.weight if self.target is None else self.target


def checked_entries(
    given: Sequence[Any], weights: object, max_epochs: PerDataset, target_weights: PerDataset
) -> tuple[list[Entry], list[str] | None]:
    """Return the entries, and their names if they have any.

    They are given as pairs (dataset, weight), as one iterable of pairs, or as datasets by name with
    `weights` by name.
    """
    names = None
    if len(given) == 1 and isinstance(given[0], Mapping):
        names = [str(name) for name in given[0]]
        given = list(zip(given[0].values(), _weights_by_name(names, weights), strict=True))
    elif weights is not None:
        raise WeightError(
            "weights by name need datasets by name, {name: dataset}; or give pairs (dataset, "
            "weight)"
        )
    pairs = _pairs(given, names)
    if not any(ever_positive(weight) for _, weight in pairs):
        raise WeightError(f"all {len(pairs)} weights are 0, so nothing could ever be drawn")
    epochs = one_per_dataset(max_epochs, names, len(pairs), "max_epochs")
    called: Sequence[str | None] = names or [None] * len(pairs)
    rows = zip(pairs, epochs, called, strict=True)
    entries = [Entry(*pair, most, name) for pair, most, name in rows]
    if target_weights is not None:
        entries = _targeted(entries, names, target_weights)
    return entries, names


def one_per_dataset(value: PerDataset, names: list[str] | None, count: int, what: str) -> list[Any]:
    """Return a value for each dataset: the same for all, those of a list, or those of a dict by
    name, with None for the names left out.
    """
    if isinstance(value, Mapping):
        if names is None:
            raise ConfigError(f"{what} is given by name, but the datasets have no names")
        unknown = [f"{name!r}{nearest(str(name), names)}" for name in value if name not in names]
        if unknown:
            raise ConfigError(
                f"{what}: the datasets are {', '.join(names)}; unknown {', '.join(unknown)}"
            )
        return [value.get(name) for name in names]
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        if len(value) != count:
            raise ConfigError(f"{what}: {len(value)} values are given for {count} datasets")
        return list(value)
    return [value] * count


def _weights_by_name(names: list[str], weights: object) -> list[object]:
    by_name = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    if not isinstance(by_name, Mapping):
        raise WeightError(
            "datasets given by name need weights={name: weight}, or a WeightScheduler; got "
            f"{weights!r}"
        )
    difference = names_apart(names, by_name)
    if difference:
        raise WeightError(f"the weights do not name the datasets: {difference}")
    return [by_name[name] for name in names]


def _pairs(given: Sequence[Any], names: list[str] | None) -> list[tuple[Dataset[Any], Weight]]:
    if len(given) == 1 and isinstance(given[0], Iterable) and not _is_one(given[0]):
        given = list(given[0])
    if not given:
        raise ConfigError("there are no datasets to mix")
    pairs: list[tuple[Dataset[Any], Weight]] = []
    for number, pair in enumerate(given):
        where = f"dataset {number if names is None else repr(names[number])}"
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Dataset)):
            raise WeightError(f"{where} {_fault(pair)}")
        dataset, weight = pair
        if isinstance(weight, Dataset):
            raise WeightError(f"{where} is {str(pair)[:80]!r}; give pairs (dataset, weight)")
        pairs.append((dataset, _checked_weight(weight, where)))
    return pairs


def _is_one(value: object) -> bool:
    """Whether something is a dataset, or a pair, right or wrong, and no list of pairs."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    return isinstance(value, Dataset) or (
        pair and not isinstance(value[1], Dataset | tuple | list)  # type: ignore[index]
    )


def _fault(pair: object) -> str:
    """What is wrong with something that is no pair (dataset, weight)."""
    if isinstance(pair, Dataset):
        return "has no weight; give pairs (dataset, weight)"
    first, *rest = pair if isinstance(pair, tuple | list) and pair else (pair,)
    if len(rest) != 1 or isinstance(first, Dataset):
        return f"is {str(pair)[:80]!r}; give pairs (dataset, weight)"
    if isinstance(rest[0], Dataset):
        return "stands after its weight; give pairs (dataset, weight)"
    return (
        f"is {str(first)[:80]!r}, which is no dataset; a list becomes one in ListSource, a "
        "prepared folder by get_train_dataset"
    )


def _checked_weight(weight: Any, where: str) -> Weight:
    if isinstance(weight, WeightScheduler):
        raise WeightError(
            f"{where} has a WeightScheduler, which holds the weights of all; give datasets by name "
            "and weights=it, or a Schedule to each dataset"
        )
    if isinstance(weight, Schedule | Compound):
        return weight
    return exact_weight(weight, where)


def _targeted(
    entries: Sequence[Entry], names: list[str] | None, target_weights: PerDataset
) -> list[Entry]:
    """The entries with their target weights: one for each, in their order or by name."""
    if not isinstance(target_weights, list | tuple | dict | np.ndarray):
        raise WeightError(
            f"target_weights has one for each dataset, in a list or by name; got {target_weights!r}"
        )
    given = one_per_dataset(target_weights, names, len(entries), "target_weights")
    found = []
    for number, (entry, target) in enumerate(zip(entries, given, strict=True)):
        where = f"dataset {number if names is None else repr(names[number])}"
        if target is None:
            raise WeightError(
                f"{where} has no target weight, and others have; give every dataset one, equal to "
                "its weight where nothing should be made up for"
            )
        checked = _checked_weight(target, f"the target weight of {where}")
        if ever_positive(checked) and not ever_positive(entry.weight):
            raise WeightError(
                f"{where} has a target weight and the weight 0: it is never drawn, and no weight "
                "in the loss makes up for that; give it a weight above 0"
            )
        found.append(entry._replace(target=checked))
    if not any(ever_positive(entry.loss_weight) for entry in found):
        raise WeightError("all target weights are 0, so nothing would count in the loss")
    return found


def limited_entries(
    entries: Sequence[Entry],
    names: list[str] | None,
    temperature: object,
    min_share: PerDataset,
    max_share: PerDataset,
) -> list[Entry]:
    """Return the entries with weights after temperature, then floors and caps."""
    exponent = checked_temperature(temperature)
    weights: Sequence[Weight] = [entry.weight for entry in entries]
    numbers = numbers_only(weights)
    if numbers is None and (min_share is not None or max_share is not None):
        raise ConfigError(
            "min_share and max_share need weights that are numbers; keep a schedule within limits "
            "at its points"
        )
    if exponent != 1:
        if numbers is not None:
            weights = tempered(numbers, exponent)
        else:
            given = tuple(weights)
            weights = [Compound("share", given, number, exponent) for number in range(len(given))]
    if numbers is not None and (min_share is not None or max_share is not None):
        least, most = (
            one_per_dataset(value, names, len(entries), name)
            if isinstance(value, Mapping | np.ndarray)
            else value
            for name, value in (("min_share", min_share), ("max_share", max_share))
        )
        weights = limited(cast("Sequence[float]", weights), least, most)
    rows = zip(entries, weights, strict=True)
    return [entry._replace(weight=weight) for entry, weight in rows]


def opened_up(
    entry: Entry,
    weights: Sequence[Weight],
    inner: Sequence[tuple[Dataset[Any], str]],
    targets: Sequence[Weight] | None = None,
) -> list[Entry]:
    """Return the entries of an entry that blends `inner`, named datasets, by `weights`.

    Weights multiply, and so do target weights, which are weights where none are given.
    """
    opened = []
    for number, (dataset, name) in enumerate(inner):
        target = None
        if entry.target is not None or targets is not None:
            within = weights if targets is None else targets
            target = _within(entry.loss_weight, within, number)
        full = name if entry.name is None else f"{entry.name}/{name}"
        weight = _within(entry.weight, weights, number)
        opened.append(Entry(dataset, weight, name=full, target=target))
    return opened


def _within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """The weight of the entry that one of several `weights` makes of a weight."""
    numbers = numbers_only(weights)
    if numbers is None:
        return Compound("product", (weight, Compound("share", tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Compound("product", (weight, share))


def merged(entries: Sequence[Entry], owner: str) -> list[Entry]:
    """Return equal datasets as one, with the sum of their weights."""
    kept: list[Entry] = []
    by_key: dict[int, list[int]] = {}
    for entry in entries:
        alike = by_key.setdefault(entry.dataset.key, [])
        same = next((i for i in alike if _alike(kept[i], entry)), None)
        if same is None:
            alike.append(len(kept))
            kept.append(entry)
            continue
        other = kept[same]
        total = _sum(other.weight, entry.weight)
        names = ", ".join(source.name for source in entry.dataset.sources)
        _log.info("%s: %s is listed twice; it is read as one, weight %s", owner, names, total)
        target = None
        if other.target is not None or entry.target is not None:
            target = _sum(other.loss_weight, entry.loss_weight)
        kept[same] = other._replace(weight=total, target=target)
    return kept


def _alike(one: Entry, other: Entry) -> bool:
    return one.dataset == other.dataset and one.max_epochs == other.max_epochs


def _sum(one: Weight, other: Weight) -> Weight:
    if isinstance(one, float | Fraction) and isinstance(other, float | Fraction):
        return lean(as_fraction(one) + as_fraction(other))
    return Compound("sum", (one, other))


def told_apart(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Return datasets that share a source, wherever below them it is, each in its own order."""
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(dataset._distinguished(before) if before else dataset)
    return apart


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """Return the weights in their exact values, if none of them changes."""
    numbers = [as_fraction(each) for each in weights if isinstance(each, float | Fraction)]
    return numbers if len(numbers) == len(weights) else None
