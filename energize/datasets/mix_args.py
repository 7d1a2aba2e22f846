"""Arguments of mixes: datasets with weights, and values for all or for single ones."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from energize.core import tree
from energize.core.checks import checked_choice
from energize.core.dataset import Dataset
from energize.core.loss_weights import checked_factor
from energize.core.node import INFINITE
from energize.errors import ConfigError, NotIndexedError, WeightError
from energize.order.quota import Quota
from energize.order.weights import (
    SIZE_RULES,
    Compound,
    Weight,
    WeightScheduler,
    as_fraction,
    describe_differences,
    ever_positive,
    lean,
    limited,
    numbers_only,
    parse_weight,
    raised,
    size_weight,
)

T_co = TypeVar("T_co", covariant=True)

PairOf = tuple[Dataset[T_co], Weight]

QuotaPair = Dataset[Any] | tuple[Dataset[Any], Quota | None]

PerDataset: TypeAlias = Any
"""One value for all datasets, a list with a value for each, or values by name."""

_log = logging.getLogger("energize")


class MixEntry(NamedTuple):
    """A dataset of a mix, and what the arguments of the mix set for it."""

    dataset: Dataset[Any]
    weight: Weight
    max_epochs: int | None = None
    name: str | None = None
    target: Weight | None = None
    """The weight in the loss; None if it is `weight`."""

    @property
    def loss_weight(self) -> Weight:
        """The weight in the loss."""
        return self.weight if self.target is None else self.target


def checked_entries(
    datasets: Sequence[Any],
    weights: object,
    max_epochs: PerDataset,
    target_weights: PerDataset,
) -> tuple[list[MixEntry], list[str] | None]:
    """Check the datasets and weights of a mix.

    Args:
        datasets: Pairs (dataset, weight), one iterable of pairs, or one mapping of
            names to datasets.
        weights: Weights by name, for a mapping; a rule of `SIZE_RULES` for datasets
            alone; else None.
        max_epochs: How many epochs of each dataset are read at most.
        target_weights: The weight of each dataset in the loss; None if it is `weights`.

    Returns:
        The entries, and the names of the datasets; None if they have none.

    Raises:
        WeightError: For weights that are missing, not valid, or all 0.
        ConfigError: If there are no datasets, or values for other datasets.

    Example:
        >>> from energize import ListSource
        >>> parts = {"web": ListSource("ab"), "code": ListSource("c")}
        >>> entries, _ = checked_entries([parts], {"web": 3, "code": 1}, 2, None)
        >>> [(entry.name, entry.weight, entry.max_epochs) for entry in entries]
        [('web', 3.0, 2), ('code', 1.0, 2)]
    """
    rows, names = _listed(datasets, weights)
    if not rows:
        raise ConfigError("the mix has no datasets. Pass at least one")
    epochs = one_per_dataset(max_epochs, names, len(rows), "max_epochs")
    targets = one_per_dataset(target_weights, names, len(rows), "target_weights")
    entries = []
    for number, row in enumerate(rows):
        name = None if names is None else names[number]
        location = f"dataset {number if name is None else repr(name)}"
        entry = _checked_entry(row, name, location)
        if target_weights is not None:
            target = _checked_target(targets[number], entry, location)
            entry = entry._replace(target=target)
        entries.append(entry._replace(max_epochs=epochs[number]))
    if not any(ever_positive(entry.weight) for entry in entries):
        raise WeightError(f"all {len(entries)} weights are 0. Set at least one above 0")
    if not any(ever_positive(entry.loss_weight) for entry in entries):
        raise WeightError("all target weights are 0. Set at least one above 0")
    return entries, names


def _listed(
    datasets: Sequence[Any], weights: object
) -> tuple[Sequence[Any], list[str] | None]:
    """Return the pairs of a mix, and the names of its datasets."""
    only = datasets[0] if len(datasets) == 1 else None
    if isinstance(weights, str):
        checked_choice(weights, "weights", SIZE_RULES)
        alone = isinstance(only, Iterable) and not isinstance(only, Dataset)
        parts: Any = only if alone else datasets
        named = dict(parts if isinstance(parts, Mapping) else enumerate(parts))
        rows = [_weighed_by_size(weights, *row) for row in named.items()]
        return rows, list(map(str, named)) if isinstance(parts, Mapping) else None
    if isinstance(only, Mapping):
        names = [str(name) for name in only]
        return list(zip(only.values(), by_name(weights, names), strict=True)), names
    if weights is not None:
        raise WeightError(
            "weights by name need datasets by name. Pass {name: dataset}, or pairs "
            "(dataset, weight)"
        )
    if not isinstance(only, Iterable) or isinstance(only, Dataset):
        return datasets, None
    is_pair = isinstance(only, Sequence) and only and isinstance(only[0], Dataset)
    return (datasets if is_pair else list(only)), None


def _weighed_by_size(rule: str, name: Any, dataset: Any) -> PairOf[Any]:
    """Return a dataset with a weight by the items of one pass over it."""
    if not isinstance(dataset, Dataset):
        raise WeightError(
            f"weights={rule!r} sets all weights, but dataset {name!r} is "
            f"{str(dataset)[:80]!r}. Pass datasets without weights"
        )
    try:
        size = tree.pass_length(dataset)
    except NotIndexedError:
        size = INFINITE
    if size == INFINITE:
        raise WeightError(
            f"weights={rule!r} needs the size of dataset {name!r}, but the length of "
            f"this {type(dataset).__name__} is only known by reading it. Pass a number "
            "as the weight of every dataset"
        )
    return dataset, size_weight(rule, size)


def _checked_entry(row: Any, name: str | None, location: str) -> MixEntry:
    pair: Any = row
    if isinstance(row, MixEntry):
        pair = row[:2]
        name = row.name
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], Dataset):
        raise WeightError(
            f"{location} is {str(pair)[:80]!r}, not a pair (dataset, weight). Pass "
            "ListSource(list) for a list, and get_train_dataset(path) for a prepared "
            "folder"
        )
    return MixEntry(pair[0], parse_weight(pair[1], location), name=name)


def _checked_target(target: Any, entry: MixEntry, location: str) -> Weight:
    weight = parse_weight(target, f"the target weight of {location}")
    if ever_positive(weight) and not ever_positive(entry.weight):
        raise WeightError(
            f"{location} has a target weight, but its weight is 0. Set its weight "
            "above 0"
        )
    return weight


def one_per_dataset(
    value: PerDataset, names: Sequence[str] | None, count: int, argument: str
) -> list[Any]:
    """Return a value for each dataset.

    Args:
        value: One value for all, a list of values, or a mapping by name; a name that
            the mapping lacks gets None.
        names: The names of the datasets; None if they have none.
        count: How many datasets there are.
        argument: The name of the argument, for messages.

    Raises:
        ConfigError: For an unknown name, or another number of values.

    Example:
        >>> one_per_dataset({"code": 0.5}, ["web", "code"], 2, "max_share")
        [None, 0.5]
    """
    if isinstance(value, Mapping):
        for name in value:
            checked_choice(name, f"{argument} of dataset", names or ())
        return [value.get(name) for name in names or ()]
    if isinstance(value, list | tuple | np.ndarray):
        if len(value) != count:
            raise ConfigError(
                f"{argument}: {len(value)} values were passed for {count} datasets"
            )
        return list(value)
    return [value] * count


def by_name(weights: object, names: Sequence[str]) -> list[Any]:
    """Return the weights of named datasets, in the order of the names."""
    named = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    if not isinstance(named, Mapping):
        raise WeightError(
            "datasets by name need weights={name: weight} or a WeightScheduler, got "
            f"{weights!r}"
        )
    if difference := describe_differences(names, named):
        raise WeightError(
            f"the names of the weights differ from the datasets: {difference}"
        )
    return [named[name] for name in names]


def limited_entries(
    entries: Sequence[MixEntry],
    names: list[str] | None,
    exponent: float,
    min_share: PerDataset,
    max_share: PerDataset,
) -> list[MixEntry]:
    """Return entries with weights changed by an exponent, floors and caps."""
    weights = tuple(entry.weight for entry in entries)
    bounded = min_share is not None or max_share is not None
    if bounded and numbers_only(weights) is None:
        raise ConfigError(
            "min_share and max_share need weights that are numbers. Limit the points "
            "of a schedule instead"
        )
    changed = _raised(weights, exponent)
    if bounded:
        least = _limits(min_share, names, len(entries), "min_share")
        most = _limits(max_share, names, len(entries), "max_share")
        changed = limited(changed, least, most)
    rows = zip(entries, changed, strict=True)
    return [entry._replace(weight=weight) for entry, weight in rows]


def _raised(weights: tuple[Weight, ...], exponent: float) -> Sequence[Any]:
    if exponent == 1:
        return weights
    numbers = numbers_only(weights)
    if numbers is not None:
        return raised(numbers, exponent)
    shares = range(len(weights))
    return [Compound("share", weights, number, exponent) for number in shares]


def _limits(
    value: PerDataset, names: Sequence[str] | None, count: int, argument: str
) -> Any:
    if isinstance(value, Mapping | np.ndarray):
        return one_per_dataset(value, names, count, argument)
    return value


def checked_targets(
    entries: Sequence[MixEntry], max_correction: float | None
) -> tuple[Weight, ...] | None:
    """Return the weights of entries in the loss; None if no entry has a target.

    Raises:
        WeightError: For a `max_correction` that is not a factor of 1 or more.
        ConfigError: For a `max_correction` without targets.
    """
    if (
        max_correction is not None
        and checked_factor(max_correction, "max_correction") < 1
    ):
        raise WeightError(f"max_correction must be a number >= 1, got {max_correction}")
    if any(entry.target is not None for entry in entries):
        return tuple(entry.loss_weight for entry in entries)
    if max_correction is not None:
        raise ConfigError("max_correction needs target_weights. Set both or neither")
    return None


def check_scheme_object(scheme: Any, names: Sequence[str | None]) -> None:
    """Check that an object can be the scheme of some datasets.

    Args:
        scheme: The object.
        names: The names of the datasets; None for a dataset without a name.

    Raises:
        ConfigError: For an object that is not a scheme, or has other sources.
        WeightError: For a scheme over sources with other names.
    """
    methods = (getattr(scheme, name, None) for name in ("counts", "locate"))
    if isinstance(scheme, type) or not all(map(callable, methods)):
        raise ConfigError(
            f"scheme must be a name or an object with counts and locate, got {scheme!r}"
        )
    sources = len(scheme.counts(0))
    if sources != len(names):
        raise ConfigError(
            f"the scheme has {sources} sources, but the mix has {len(names)} datasets"
        )
    # A scheme numbers its sources: by name, these are the datasets in their order.
    scheme_names = getattr(scheme, "names", None)
    if scheme_names and all(names) and scheme_names != names:
        raise WeightError(
            f"the scheme has the sources {', '.join(scheme_names)}, but the datasets "
            f"are {', '.join(map(str, names))}. Use the same names in the same order"
        )


# Weights of entries that become one, or several.


def merged_entries(entries: Sequence[MixEntry], owner: str) -> list[MixEntry]:
    """Merge entries with equal datasets, and add their weights.

    Args:
        entries: The entries of a mix.
        owner: The name of the mix, for the log.
    """
    distinct: dict[tuple[Dataset[Any], int | None], MixEntry] = {}
    for entry in entries:
        key = entry.dataset, entry.max_epochs
        first = distinct.setdefault(key, entry)
        if first is entry:
            continue
        total = _sum(first.weight, entry.weight)
        target = None
        if first.target is not None or entry.target is not None:
            target = _sum(first.loss_weight, entry.loss_weight)
        distinct[key] = first._replace(weight=total, target=target)
        names = ", ".join(source.name for source in entry.dataset.sources)
        _log.info(
            "%s: %s is listed twice and is read once, with weight %s",
            owner,
            names,
            total,
        )
    return list(distinct.values())


def _sum(first: Weight, second: Weight) -> Weight:
    if isinstance(first, float | Fraction) and isinstance(second, float | Fraction):
        return lean(as_fraction(first) + as_fraction(second))
    return Compound("sum", (first, second))


def weight_within(weight: Weight, weights: Sequence[Weight], number: int) -> Weight:
    """Return the weight of an inner dataset in an outer mix.

    Args:
        weight: The weight of the inner mix in the outer one.
        weights: The weights of the inner mix.
        number: The number of the dataset in the inner mix.
    """
    numbers = numbers_only(weights)
    if numbers is None:
        return Compound("product", (weight, Compound("share", tuple(weights), number)))
    share = lean(numbers[number] / sum(numbers))
    if isinstance(weight, float | Fraction):
        return lean(as_fraction(weight) * as_fraction(share))
    return Compound("product", (weight, share))


def numbered(names: Iterable[str]) -> list[str]:
    """Return names that are distinct: repetitions of a name get a number.

    Example:
        >>> numbered(["web", "web", "code"])
        ['web', 'web (2)', 'code']
    """
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return distinct


def with_distinct_orders(datasets: Iterable[Dataset[Any]]) -> list[Dataset[Any]]:
    """Return datasets with different orders if they share a source."""
    seen: Counter[int] = Counter()
    distinct: list[Dataset[Any]] = []
    for dataset in datasets:
        keys = {source.key for source in dataset.sources}
        repeated = max((seen[key] for key in keys), default=0)
        seen.update(keys)
        distinct.append(tree.distinguished(dataset, repeated) if repeated else dataset)
    return distinct


# Datasets with quotas.


def checked_streams(streams: Sequence[Any]) -> list[tuple[Dataset[Any], Quota]]:
    """Check the datasets and quotas of a mix.

    Args:
        streams: Datasets, and pairs (dataset, quota), or one iterable of them.

    Raises:
        ConfigError: If there are no datasets, or other values.
        NotIndexedError: For a dataset that never ends, or is a stream.
    """
    rows = list(streams)
    only = rows[0] if len(rows) == 1 else None
    # A dict would lose the quotas that are its values.
    is_stream = isinstance(only, Dataset | Mapping) or _has_quota(only)
    if isinstance(only, Iterable) and not is_stream:
        rows = list(only)
    if not rows:
        raise ConfigError("the mix has no streams. Pass at least one")
    return [_checked_stream(row, f"stream {number}") for number, row in enumerate(rows)]


def _checked_stream(row: Any, location: str) -> tuple[Dataset[Any], Quota]:
    dataset, quota = row if _has_quota(row) else (row, None)
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"{location} must be a dataset or a pair (dataset, Quota(...)), got "
            f"{str(row)[:80]!r}"
        )
    is_endless = dataset.sized and dataset.size == INFINITE
    if is_endless or not dataset.indexed:
        reason = "never ends" if is_endless else "can only be read as a stream"
        raise NotIndexedError(
            f"{location} ({type(dataset).__name__}) {reason}, so it cannot have a "
            "quota. Blend it by weight, or limit an endless dataset with "
            "EpochizeDataset"
        )
    return dataset, quota or Quota()


def _has_quota(row: object) -> bool:
    return isinstance(row, tuple) and len(row) == 2 and isinstance(row[1], Quota | None)
