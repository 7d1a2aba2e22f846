"""The datasets of a blend with their weights: given, checked, opened up, merged, told apart."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from energize.dataset import Dataset
from energize.errors import ConfigError, WeightError, nearest
from energize.order.schedule import Schedule, WeightScheduler, names_apart
from energize.order.shares import checked_temperature, limited, tempered
from energize.order.varying import Product, Share, Sum, Weight, ever_positive
from energize.order.weights import as_fraction, exact_weight, lean

_log = logging.getLogger("energize")


class Part(NamedTuple):
    """A dataset of a blend, what it weighs, how many epochs of it are read at most, what it was
    called, and what it weighs in the loss, if that is something else.
    """

    dataset: Dataset[Any]
    weight: Weight
    max_epochs: int | None = None
    name: str | None = None
    target: Weight | None = None


PerDataset = Any
"""A value for all datasets, one each in a list, or one each by name."""


def checked_parts(
    given: Sequence[Any], weights: object, max_epochs: PerDataset
) -> tuple[list[Part], list[str] | None]:
    """The parts, and their names where they have any.

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
    parts = zip(pairs, epochs, called, strict=True)
    return [Part(*pair, most, name) for pair, most, name in parts], names


def one_per_dataset(value: PerDataset, names: list[str] | None, count: int, what: str) -> list[Any]:
    """A value for each dataset: the same for all, or those of a list, or those of a dict by name
    with None for the names left out.
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


def levelled(
    parts: Sequence[Part],
    names: list[str] | None,
    temperature: object,
    min_share: PerDataset,
    max_share: PerDataset,
) -> list[Part]:
    """The weights after temperature, then floors and caps."""
    exponent = checked_temperature(temperature)
    weights = [part.weight for part in parts]
    numbers = numbers_only(weights)
    if min_share is not None or max_share is not None:
        if numbers is None:
            raise ConfigError(
                "min_share and max_share need weights that are numbers; keep a schedule within "
                "limits at its points"
            )
        least, most = (
            one_per_dataset(value, names, len(parts), name)
            if isinstance(value, Mapping | np.ndarray)
            else value
            for name, value in (("min_share", min_share), ("max_share", max_share))
        )
        shares = tempered(numbers, exponent) if exponent != 1 else numbers
        return _reweighted(parts, limited(shares, least, most))
    if exponent == 1:
        return list(parts)
    if numbers is not None:
        return _reweighted(parts, tempered(numbers, exponent))
    return _reweighted(
        parts, [Share(tuple(weights), number, exponent) for number in range(len(parts))]
    )


def opened_up(
    part: Part,
    weights: Sequence[Weight],
    inner: Sequence[tuple[Dataset[Any], str]],
    targets: Sequence[Weight] | None = None,
) -> list[Part]:
    """The parts of a part that blends `inner`, named datasets, by `weights`: weights multiply, and
    so do target weights, which are weights where none are given.
    """
    parts = []
    targeted = part.target is not None or targets is not None
    for number, (dataset, name) in enumerate(inner):
        weight, target = _within(part.weight, weights, number), None
        if targeted:
            outer = part.weight if part.target is None else part.target
            target = _within(outer, weights if targets is None else targets, number)
        full = name if part.name is None else f"{part.name}/{name}"
        parts.append(Part(dataset, weight, name=full, target=target))
    return parts


def _within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """The weight of the part that one of several `weights` makes of a weight."""
    numbers = numbers_only(weights)
    if numbers is None:
        return Product((weight, Share(tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Product((weight, share))


def merged(parts: Sequence[Part], owner: str) -> list[Part]:
    """Equal datasets as one, with the sum of their weights."""
    kept: list[Part] = []
    by_key: dict[int, list[int]] = {}
    for part in parts:
        alike = by_key.setdefault(part.dataset.key, [])
        same = next((i for i in alike if _same(kept[i], part)), None)
        if same is None:
            alike.append(len(kept))
            kept.append(part)
            continue
        total = _sum(kept[same].weight, part.weight)
        names = ", ".join(source.name for source in part.dataset.sources)
        _log.info("%s: %s is listed twice; it is read as one, weight %s", owner, names, total)
        target = None
        if kept[same].target is not None or part.target is not None:
            one, other = (p.weight if p.target is None else p.target for p in (kept[same], part))
            target = _sum(one, other)
        kept[same] = part._replace(weight=total, target=target)
    return kept


def told_apart(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Datasets that share a source, wherever below them it is, each in an order of its own."""
    seen: Counter[int] = Counter()
    apart: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        before = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        apart.append(dataset.distinguished(before) if before else dataset)
    return apart


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """The weights in their exact values, if none of them changes."""
    numbers = [as_fraction(each) for each in weights if isinstance(each, float | Fraction)]
    return numbers if len(numbers) == len(weights) else None


def check_scheme_object(scheme: Any, weights: Sequence[Weight], *, drops_out: bool) -> None:
    """Raise `ConfigError` for what is no scheme over so many datasets, and where it cannot be used:
    with weights that change, or where datasets drop out.
    """
    wanted = "a scheme is a name or an object with counts and locate"
    if isinstance(scheme, type):
        raise ConfigError(f"{wanted}; {scheme.__name__} is a class, make an object of it")
    for method in ("counts", "locate"):
        if not callable(getattr(scheme, method, None)):
            raise ConfigError(f"{wanted}; {scheme!r} has no {method}")
    if len(scheme.counts(0)) != len(weights):
        raise ConfigError(
            f"the scheme is for {len(scheme.counts(0))} sources, but there are {len(weights)} "
            "datasets"
        )
    if numbers_only(weights) is None or drops_out:
        raise ConfigError(
            "schedules, all_exhausted and max_epochs need to make schemes of their own; give "
            "the scheme by name"
        )


def check_same_names(datasets: list[str] | None, sources: tuple[str, ...] | None) -> None:
    """A scheme numbers its sources: by name, these are the datasets in their order."""
    if datasets is not None and sources is not None and tuple(datasets) != sources:
        raise WeightError(
            f"the scheme is over the sources {', '.join(sources)}, and the datasets are "
            f"{', '.join(datasets)}; give both the same names in the same order"
        )


def _pairs(given: Sequence[Any], names: list[str] | None) -> list[tuple[Dataset[Any], Weight]]:
    if len(given) == 1 and not _like_a_pair(given[0]) and isinstance(given[0], Iterable):
        if isinstance(given[0], Dataset):
            raise WeightError("dataset 0 has no weight; give pairs (dataset, weight)")
        given = list(given[0])
    if not given:
        raise ConfigError("there are no datasets to mix")
    pairs: list[tuple[Dataset[Any], Weight]] = []
    for number, pair in enumerate(given):
        where = f"dataset {number if names is None else repr(names[number])}"
        if not _is_pair(pair):
            raise WeightError(f"{where} {_fault(pair)}")
        dataset, weight = pair
        if isinstance(weight, WeightScheduler):
            raise WeightError(
                f"{where} has a WeightScheduler, which holds the weights of all; give datasets by "
                "name and weights=it, or a Schedule to each dataset"
            )
        if not isinstance(weight, Schedule | Share | Product | Sum):
            weight = exact_weight(weight, where)
        pairs.append((dataset, weight))
    return pairs


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


def _is_pair(value: Any) -> bool:
    return _like_a_pair(value) and isinstance(value[0], Dataset)


def _like_a_pair(value: object) -> bool:
    """Whether something is more like a pair, right or wrong, than like a list of pairs."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and not isinstance(value[1], Dataset | tuple | list)
    )


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


def _reweighted(parts: Sequence[Part], weights: Sequence[Weight]) -> list[Part]:
    return [part._replace(weight=weight) for part, weight in zip(parts, weights, strict=True)]


def _same(one: Part, other: Part) -> bool:
    return one.dataset == other.dataset and one.max_epochs == other.max_epochs


def _sum(one: Weight, other: Weight) -> Weight:
    if isinstance(one, float | Fraction) and isinstance(other, float | Fraction):
        return lean(as_fraction(one) + as_fraction(other))
    return Sum((one, other))
