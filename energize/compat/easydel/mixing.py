"""One mix of named datasets of examples, by EasyDeL's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from energize.compat.easydel.order import EasydelScheme
from energize.compat.seeds import checked_seed
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError, EmptyDatasetError, WeightError, nearest
from energize.order.schedules.schedule import Schedule, WeightScheduler, names_apart
from energize.order.schedules.varying import ever_positive
from energize.order.weights import checked_weight
from energize.wrappers.blend import BlendDataset
from energize.wrappers.checks import checked_count
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset

__all__ = ["ORDERS", "STOP_STRATEGIES", "Example", "Mixing", "mixed"]

Example = dict[str, Any]
Amount = float | Schedule

STOP_STRATEGIES = ("restart", "first_exhausted", "all_exhausted")
ORDERS = ("energize", "easydel")

_RUNS_PER_WINDOW = 4
"""Row groups that are shuffled together: few enough to stay in a cache."""


@dataclass(frozen=True)
class Mixing:
    """How a mix is made; checked where it is made.

    `order="energize"`: exact shares with carry from block to block, the same whatever the order of
    the names; sources with random access are shuffled, anew in every pass, unless `shuffle` is
    False. `order="easydel"`: its order exactly, sources in their stored order.
    """

    owner: str
    block_size: int = 1000
    seed: int | None = None
    stop: str = "restart"
    order: str = "energize"
    shuffle: bool | None = None
    scheme: str = "block"

    def __post_init__(self) -> None:
        checked_count(self.block_size, "block_size", self.owner)
        object.__setattr__(self, "seed", checked_seed(self.seed, self.owner))
        for name, value, known in (
            ("stop strategy", self.stop, STOP_STRATEGIES),
            ("order", self.order, ORDERS),
        ):
            if value not in known:
                raise ConfigError(
                    f"{self.owner}: unknown {name} {value!r}{nearest(str(value), known) or '.'} "
                    f"Known: {', '.join(known)}"
                )
        if self.order == "easydel" and self.stop == "all_exhausted":
            raise ConfigError(
                f"{self.owner}: under all_exhausted EasyDeL ends too early or never, so there is "
                "no order to repeat; use order='energize'"
            )

    def options(self) -> dict[str, Any]:
        """The options of the scheme."""
        return {"block_size": self.block_size} if self.scheme == "block" else {}


@dataclass(frozen=True)
class Named:
    """Copies an example, and writes into the copy which source it is from."""

    source: str
    field: str | None

    def __call__(self, example: Mapping[str, Any]) -> Example:
        if not isinstance(example, Mapping):
            raise ConfigError(
                f"source {self.source!r}: an example is a dict, got {type(example).__name__} "
                f"{str(example)[:80]!r}"
            )
        return {**example} if self.field is None else {**example, self.field: self.source}


def mixed(
    sources: Mapping[str, Dataset[Any]],
    weights: Mapping[str, float] | None,
    scheduler: WeightScheduler | None,
    mixing: Mixing,
    *,
    source_field: str | None,
) -> Dataset[Example]:
    """Examples of the named sources by weight, each a new dict with its source in `source_field`.

    Indexed where all sources are; then any position is one look away and a state is a number.
    """
    weigh = _weights(mixing.owner, list(sources), weights, scheduler)
    names = list(sources) if mixing.order == "easydel" else sorted(sources)
    seed = cast("int", mixing.seed)
    parts = [
        MapDataset(
            _visited(sources[name].reseeded(seed), mixing), Named(name, source_field), seeded=False
        )
        for name in names
    ]
    by_name = [weigh[name] for name in names]
    if mixing.stop != "all_exhausted":
        _check_not_empty(mixing.owner, names, parts, by_name)
    return _blend(parts, by_name, mixing)


def _blend(
    parts: list[MapDataset[Example]], weights: list[Amount], mixing: Mixing
) -> Dataset[Example]:
    if mixing.order == "easydel":
        drawn = [float(ever_positive(weight)) for weight in weights]
        scheme = _easydel(weights, mixing)
        return BlendDataset(zip(parts, drawn, strict=True), scheme=scheme, stop=mixing.stop)
    pairs = zip(parts, weights, strict=True)
    return BlendDataset(pairs, scheme=mixing.scheme, stop=mixing.stop, **mixing.options())


def _easydel(weights: list[Amount], mixing: Mixing) -> EasydelScheme:
    return EasydelScheme(weights, block_size=mixing.block_size, seed=cast("int", mixing.seed))


def _visited(dataset: Dataset[Any], mixing: Mixing) -> Dataset[Any]:
    """The dataset in the order in which it is visited: shuffled where that costs no buffer."""
    shuffle = mixing.order == "energize" if mixing.shuffle is None else mixing.shuffle
    if not shuffle or not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        return dataset
    if dataset.size in (0, INFINITE):
        return dataset
    runs = [each.run_length for each in dataset.sources if each.run_length is not None]
    window = _RUNS_PER_WINDOW * max(runs) if runs else None
    return ShuffleDataset(dataset, shuffle_buffer_size=window)


def _check_not_empty(
    owner: str, names: list[str], parts: Sequence[IndexedDataset[Any]], weights: list[Amount]
) -> None:
    for name, part, weight in zip(names, parts, weights, strict=True):
        if part.indexed and part.size == 0 and ever_positive(weight):
            raise EmptyDatasetError(
                f"{owner}: {name!r} has no examples; remove it, or give it weight 0"
            )


def _weights(
    owner: str,
    names: list[str],
    weights: Mapping[str, float] | None,
    scheduler: WeightScheduler | None,
) -> dict[str, Amount]:
    """A weight or a schedule by name, equal weights when nothing is given."""
    if not names:
        raise ConfigError(f"{owner}: there are no datasets to mix")
    if weights is not None and not isinstance(weights, Mapping):
        raise WeightError(
            f"{owner}: weights map names to numbers, got {type(weights).__name__}; give "
            f"{{{', '.join(f'{name!r}: ...' for name in names)}}}"
        )
    if scheduler is not None:
        if not isinstance(scheduler, WeightScheduler):
            raise ConfigError(
                f"{owner}: weight_scheduler is a WeightScheduler(points, interpolation); got "
                f"{scheduler!r}"
            )
        _check_names(owner, "the weights of the schedule", names, scheduler.dataset_names)
    if weights is not None:
        _check_names(owner, "weights", names, list(weights))
    if scheduler is not None:
        return dict(scheduler.schedules())
    if weights is None:
        return dict.fromkeys(names, 1.0)
    checked = {
        name: checked_weight(weights[name], f"{owner}: weight of {name!r}") for name in names
    }
    if not any(checked.values()):
        raise WeightError(f"{owner}: all {len(checked)} weights are 0: nothing could ever be drawn")
    return dict(checked)


def _check_names(owner: str, what: str, names: list[str], found: list[str]) -> None:
    difference = names_apart(names, found)
    if difference:
        raise WeightError(f"{owner}: {what} do not match the datasets: {difference}")
