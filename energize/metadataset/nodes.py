"""The tree of what a split of a metadataset reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.core.samples import CrudeSample, sample_type_named
from energize.data.nv_meta import CRUDE, DatasetConfig, read_dataset_yaml
from energize.data.selection import Selection
from energize.data.source import Subset
from energize.metadataset.joiners import Joiner, joined_type
from energize.metadataset.problems import place_noted
from energize.metadataset.tables import Composed, Levelled, Packed
from energize.order import Schedule
from energize.order.quota import Quota
from energize.order.stages import StagePlan

JSONL = ".jsonl"


@dataclass(frozen=True)
class Leaf:
    """One split part of one prepared folder, with the settings that all files on the way gave it;
    or a `.jsonl` file, which has no split parts.

    `shuffle_over_epochs_multiplier`: epochs shuffled together; None = no shuffle, -1 = drawn with
    replacement. `aux`: stores that cookers read from, by name: paths of prepared folders and of
    `.jsonl` files, or `filesystem://` and a path, all absolute. `subset`: which of its samples, and
    `chosen`: which of these, by a property.
    `sample_weight`: how much its samples count in the loss, None where no file says.
    `packing` and `level`: how its samples are packed and its batches levelled, where it is the
    outermost. `place`: where it was written, for messages.
    """

    path: Path
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dataset_config: str | None = None
    split_config: str | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    place: str = field(default="", compare=False)
    aux: Mapping[str, str] = field(default_factory=dict, hash=False)
    subset: Subset | None = None
    packing: Packed | None = None
    level: Levelled | None = None
    chosen: Selection | None = None
    sample_weight: float | None = None

    @cached_property
    def config(self) -> DatasetConfig:
        """What the folder's dataset.yaml says of its samples; read once."""
        if self.is_jsonl:
            return DatasetConfig("energize", CRUDE)
        with place_noted(self.place):
            return read_dataset_yaml(self.path, self.dataset_config or "dataset.yaml", code=True)

    @property
    def is_jsonl(self) -> bool:
        """Whether it is a file of JSON lines, which has no split parts and no dataset.yaml."""
        return self.path.suffix == JSONL and not self.path.is_dir()

    @property
    def split_file(self) -> str | None:
        """The split file: as asked for, else as dataset.yaml says, None for the usual one."""
        asked: str | None = self.split_config or self.config.options.get("split_config")
        return asked

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of samples that it names."""
        with place_noted(self.place):
            if self.config.sample_class == CRUDE:
                return CrudeSample
            return sample_type_named(self.config.sample_module, self.config.sample_class)


@dataclass(frozen=True)
class JoinedPart:
    """A dataset of a join. `nonmatch`: what happens to samples that have no partner in it; `name`:
    the argument of the joiner, None for joins that are written as lists.
    """

    leaf: Leaf
    nonmatch: str = "error"
    name: str | None = None


@dataclass(frozen=True)
class JoinedLeaf(Leaf):
    """Samples of the first of its `parts`, each with those of the others that have its key.

    Path, split part and subflavors are those of the first. `joiner` makes one sample of those
    found. `cache`: the folder in which `prepare_metadataset` may have written what it found.
    """

    parts: tuple[JoinedPart, ...] = ()
    joiner: Joiner = field(default=tuple, compare=True)
    cache: Path | None = field(default=None, compare=False)

    @cached_property
    def config(self) -> DatasetConfig:
        """What the dataset.yaml of the first part says."""
        return self.parts[0].leaf.config

    @cached_property
    def sample_type(self) -> type[Any]:
        """The type of the samples that the joiner makes; `Sample` where a function does not say."""
        return joined_type(self.joiner, self.place)


@dataclass(frozen=True, slots=True)
class Blend:
    """Nodes with their weights as given, not all of which are 0, and how they are mixed.

    `options` are those of `BlendDataset`; with `quotas`, one for each child, of `QuotaDataset`.
    `kind` is the key of the list: of `blend_epochized` and of `concat` quotas say what each child
    gives to an epoch, and in a `concat` the children follow one another. `packing` and `level`: how
    encoded samples are packed, and batches levelled, in the outermost one. `targets`: what each
    child weighs in the loss, at most `max_correction` times as much as it is drawn.
    """

    children: tuple[tuple[Node, float | Fraction | Schedule], ...]
    place: str = field(default="", compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quotas: tuple[Quota, ...] | None = None
    composition: Composed | None = None
    kind: str = "blend"
    packing: Packed | None = None
    level: Levelled | None = None

    targets: tuple[float, ...] | None = None
    max_correction: float | None = None

    @property
    def plain(self) -> bool:
        """Whether fixed weights say everything, so that its weights multiply with those around."""
        fixed = not any(isinstance(weight, Schedule) for _, weight in self.children)
        return fixed and not self.options and self.quotas is None

    @property
    def repeated(self) -> bool:
        """Whether it is for the program to say, not for the file, that it goes on for ever."""
        return self.plain or self.kind in ("blend_epochized", "concat")


Node = Leaf | Blend


@dataclass(frozen=True, slots=True)
class Staged:
    """Stages of a run, each with the node it reads; only ever the outermost of what is read."""

    plan: StagePlan[Node]
    place: str = field(default="", compare=False)
