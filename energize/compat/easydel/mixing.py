"""One mix of named datasets of examples, by EasyDeL's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import InstanceOf, StrictBool

from energize.compat.checks import ByName, Count, Weights, Whole, checked_fields
from energize.compat.easydel.order import EasydelScheme
from energize.compat.seeds import checked_seed
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError
from energize.order import WeightScheduler
from energize.sources.adapting import as_dataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.checks import raised_as
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset

Example = dict[str, Any]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]

_RUNS_PER_WINDOW = 4
"""Row groups that are shuffled together: few enough to stay in a cache."""


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


def mixed(owner: str, source_field: str | None, *rules: Any, **more: Any) -> Dataset[Example]:
    """The dataset of a `Mix` with these rules; errors name `owner`, who was given them."""
    with raised_as(owner, "Mix", "BlendDataset"):
        return Mix(*rules, **more).dataset(owner, source_field)


@checked_fields
@dataclass(frozen=True)
class Mix:
    """Named sources, and how they are mixed.

    `order="energize"`: exact shares with carry from block to block, the same whatever the order of
    the names; sources with random access are shuffled, anew in every pass, unless `shuffle` is
    False. `order="easydel"`: its order exactly, sources in their stored order.
    """

    sources: ByName[Any]
    weights: Weights | None
    block_size: Count
    seed: Whole | None
    stop_strategy: Stop
    weight_scheduler: InstanceOf[WeightScheduler] | None = None
    order: Literal["energize", "easydel"] = "energize"
    shuffle: StrictBool | None = None
    scheme: str = "block"

    def dataset(self, owner: str, source_field: str | None = None) -> Dataset[Example]:
        """Examples by weight, each a new dict with its source in `source_field`.

        Indexed where all sources are; then any position is one look away and a state is a number.
        """
        theirs = self.order == "easydel"
        shuffle = not theirs if self.shuffle is None else self.shuffle
        seed = checked_seed(self.seed, owner)
        parts: dict[str, Dataset[Example]] = {}
        for name in self.sources if theirs else sorted(self.sources):
            dataset = as_dataset(self.sources[name], name).reseeded(seed)
            visited = _shuffled(dataset) if shuffle else dataset
            parts[name] = MapDataset(visited, Named(name, source_field), seeded=False)
        equal = dict.fromkeys(parts, 1.0)
        given = self.weight_scheduler or (equal if self.weights is None else self.weights)
        options: dict[str, Any] = {"block_size": self.block_size} if self.scheme == "block" else {}
        if not theirs:
            stop = self.stop_strategy
            return BlendDataset(parts, weights=given, scheme=self.scheme, stop=stop, **options)
        if self.stop_strategy == "all_exhausted":
            raise ConfigError(
                "under all_exhausted EasyDeL ends too early or never, so there is no order to "
                "repeat; use order='energize'"
            )
        scheme = EasydelScheme(BlendDataset(parts, weights=given).weights, seed=seed, **options)
        pairs = zip(parts.values(), scheme.highest, strict=True)
        return BlendDataset(pairs, scheme=scheme, stop=self.stop_strategy)


def _shuffled(dataset: Dataset[Any]) -> Dataset[Any]:
    """The dataset in random order where that costs no buffer."""
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        return dataset
    if dataset.size in (0, INFINITE):
        return dataset
    runs = [each.run_length for each in dataset.sources if each.run_length is not None]
    window = _RUNS_PER_WINDOW * max(runs) if runs else None
    return ShuffleDataset(dataset, shuffle_buffer_size=window)
