"""A resolved mix: files are followed, and settings combined.

A node has the keys of its type, the keys of the entry or split that names it, and its
location. Paths are absolute, and included files are replaced by their content.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

from pydantic import Field

from energize.core.samples import (
    CrudeSample,
    Sample,
    is_package_module,
    sample_type_named,
)
from energize.core.validation import short
from energize.data.files import real_path
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.loose import LooseSource
from energize.data.nv_meta import CRUDE, SampleConfig, read_dataset_yaml
from energize.data.selection import PropertySource, RowsSource, Selection, subset_of
from energize.data.source import Subset
from energize.data.webdataset import WebdatasetSource
from energize.datasets.stage_plan import StagePlan
from energize.errors import (
    DatasetError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
    nearest,
)
from energize.inference.engine import InferredPart, is_loose, open_loose
from energize.inference.options import OF_SAMPLES, DataOptions
from energize.inference.verify import verify
from energize.metadataset.located import noted, place_noted
from energize.metadataset.models import (
    BLEND_DEFAULTS,
    EPOCHIZED,
    BlendSettings,
    FolderKeys,
    JoinerName,
    JoinKeys,
    Keys,
    ListKeys,
    OuterBlendSettings,
    Packing,
    ReadKeys,
)
from energize.order import Schedule
from energize.order.quota import Quota
from energize.task.encoder import Level

LeafSource: TypeAlias = (
    WebdatasetSource | JsonlSource | LooseSource | JoinedSource | RowsSource[Any]
)
"""The raw samples of a leaf."""

JSONL = ".jsonl"

_ENTRY_OPTIONS = ("min_share", "max_share", "max_epochs")
_QUOTA_OPTIONS = ("epoch_size", "sampling_method")


AT_TOP = ("packing", "batch_budget", "level")
"""Keys of splits and stages about all samples of a mix."""


class MixNode(Keys):
    """A node of a resolved mix.

    Args:
        location: Where it is written, as `file:line (path)`, for messages.
        entry_name: Its name in the list around it; None if its sources name it.
        weight: Its weight in a blend by weights.
        quota: Its part of an epoch of a blend by quotas; None in other lists.
        target_weight: Its weight in the loss, in a blend with target weights.
        min_share: The least share of the blend.
        max_share: The greatest share of the blend.
        max_epochs: The number of epochs after which it is left out of the blend.
        packing: How its samples are packed, if it is the outermost node.
        batch_budget: A column and the maximum padded size of its batches, if it is the
            outermost node.
        level: How its batches are levelled, if it is the outermost node.
    """

    location: str = ""
    entry_name: str | None = None
    weight: Any = 1
    quota: Quota | None = None
    target_weight: Any = None
    min_share: float | None = None
    max_share: float | None = None
    max_epochs: int | None = None
    packing: Packing | None = None
    batch_budget: dict[str, int] | None = None
    level: Level | None = None


# Leaves


class Leaf(MixNode, ReadKeys):
    """Samples of one split part of a folder or file, or of joined folders.

    Args:
        path: The folder or file, absolute; of a join the first one.
        chosen: The samples with one value of a property; None for all.
        sample_weight: Weight of the samples in the loss; None if no file sets one.
        aux: Stores for cookers by name: absolute paths of prepared folders and
            `.jsonl` files, or `filesystem://` and an absolute path.
        name: The name in reports and weights, unique in the mix.
        default_name: The name it would have if no entry had one.
    """

    path: Path = Path()
    split_part: str = "train"
    subflavors: dict[str, Any] = Field(default_factory=dict)
    subset: Subset | None = None  # type: ignore[assignment]  # a range in files
    chosen: Selection | None = None
    sample_weight: float | None = None
    aux: dict[str, str] = Field(default_factory=dict)
    name: str | None = None
    default_name: str | None = None

    @cached_property
    def config(self) -> SampleConfig:
        """The sample type, field map and options of the folder."""
        raise NotImplementedError

    @cached_property
    def sample_class(self) -> type[Any]:
        """The type of the samples."""
        raise NotImplementedError

    @property
    def place_names(self) -> tuple[str, ...]:
        """The folders above the path, and its own name last."""
        return self.path.parts

    @property
    def data_key(self) -> tuple[Hashable, ...]:
        """Key of the data of a leaf."""
        raise NotImplementedError

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Key of the data and settings of a leaf, without the chosen samples."""
        return (
            *self.data_key,
            hashable(self.subflavors) if self.subflavors else None,
            hashable(self.aux) if self.aux else None,
            self.shuffle_over_epochs_multiplier,
            self.subset,
            self.sample_weight,
        )

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Key of the samples and settings of a leaf; links are resolved."""
        return (self.key, self.chosen)

    @cached_property
    def labels(self) -> dict[str, Any]:
        """The subflavors of its samples, with those of dataset.yaml."""
        return {**self.config.subflavors, **self.subflavors}

    def verify(self) -> None:
        """Compare samples of loose data with the inferred sample type.

        Raises:
            DatasetError: If they differ.
        """

    def source(self, seed: int = 0, *, checksums: bool = False) -> LeafSource:
        """Open the raw samples in stored order; tuples of samples for a join.

        Args:
            seed: Seed of the order.
            checksums: Whether each sample is compared with its checksum.
        """
        try:
            source = self.whole_source(seed, checksums=checksums)
            source = subset_of(source, self.subset)
            if self.chosen is not None:
                source = PropertySource(source, self.chosen)
            return source.labelled(self.name, self.default_name)
        except EnergizeError as error:
            raise noted(error, self.location) from error

    def whole_source(self, seed: int, *, checksums: bool) -> LeafSource:
        """Open the raw samples of the split part, whichever are chosen."""
        raise NotImplementedError


class Folder(Leaf, FolderKeys):
    """A folder or a file of samples.

    Properties of the data are looked up when they are first needed. Copies keep them,
    so a copy may not have another path, split part or sample type.

    Args:
        nonmatch: The treatment of samples without a partner in it, if it is joined.
        inferred_parts: Inferred samples of loose data, shared by the folders of a mix.
    """

    path: Path  # type: ignore[assignment]  # text in files
    aux: dict[str, str] = Field(default_factory=dict)
    nonmatch: str = "error"
    inferred_parts: dict[Any, InferredPart] = Field(default_factory=dict, repr=False)

    @cached_property
    def is_jsonl(self) -> bool:
        """Whether this is a prepared `.jsonl` file, without dataset.yaml and splits."""
        return self.path.suffix == JSONL and not (
            self.path.is_dir() or is_loose(self.path)
        )

    @cached_property
    def data_options(self) -> DataOptions:
        """The properties of samples that are stated, and win over those of the data."""
        keys = {name: getattr(self, name) for name in OF_SAMPLES}
        return DataOptions.of_entry(**keys)

    @cached_property
    def loose(self) -> InferredPart | None:
        """The inferred samples of loose data; None if they are prepared."""
        if self.dataset_config or self.split_config or not is_loose(self.path):
            return None
        key = (self.path, self.split_part, self.data_options)
        if key not in self.inferred_parts:
            self.inferred_parts[key] = open_loose(*key)
        return self.inferred_parts[key]

    @cached_property
    def config(self) -> SampleConfig:
        try:
            return self._sample_config()
        except EnergizeError as error:
            raise noted(error, self.location) from error

    def _sample_config(self) -> SampleConfig:
        config = SampleConfig("energize", CRUDE)
        try:
            if not self.is_jsonl:
                name = self.dataset_config or "dataset.yaml"
                config = read_dataset_yaml(self.path, name, code=True)
        except DatasetError:
            if self.loose is None:
                raise
        else:  # a folder with a dataset.yaml is prepared
            vars(self).setdefault("loose", None)
        if self.loose is not None:
            return self.loose.config
        options = self.data_options
        if options.sample_type is None and options.field_map is None:
            return config
        return options.config(config, options.field_map)

    @property
    def split_file(self) -> str | None:
        """The file with the split parts; None for the usual one."""
        name: str | None = self.split_config or self.config.options.get("split_config")
        return name

    @cached_property
    def sample_class(self) -> type[Any]:
        config = self.config
        try:
            if self.data_options.sample_type is not None:
                return cast("type[Any]", self.data_options.kind)
            if config.sample_class == CRUDE:
                return CrudeSample
            if config.factory is not None:
                return factory_sample_class(config)
            return sample_type_named(config.sample_module, config.sample_class)
        except EnergizeError as error:
            raise noted(error, self.location) from error

    @property
    def data_key(self) -> tuple[Hashable, ...]:
        return (
            self.path,
            self.split_part,
            self.dataset_config,
            self.split_config,
            self.data_options,
        )

    @property
    def identity(self) -> tuple[Hashable, ...]:
        return (real_path(self.path), *self.key[1:], self.chosen)

    def verify(self) -> None:
        _ = self.config
        if self.loose is not None:
            with place_noted(self.location):
                verify(self.loose, self.data_options)

    def whole_source(self, seed: int, *, checksums: bool) -> LeafSource:
        if self.loose is not None and not checksums:
            return self.loose.source.reseeded(seed)
        if self.is_jsonl:
            return JsonlSource(self.path, checksums=checksums, seed=seed)
        return WebdatasetSource(
            self.path,
            split_part=self.split_part,
            split_config=self.split_file,
            checksums=checksums,
            seed=seed,
        )


class Join(Leaf, JoinKeys):
    """Samples of the first of several folders, each with those of the other folders
    that have its key.

    Args:
        join: The folders; `entry_name` is the argument of the joiner, None in lists.
        cache: The folder where `prepare_metadataset` may have written the matches.
    """

    join: Any
    cache: Path | None = None

    @property
    def parts(self) -> list[Folder]:
        """The folders."""
        return cast("list[Folder]", self.join)

    @cached_property
    def config(self) -> SampleConfig:
        return self.parts[0].config

    @cached_property
    def sample_class(self) -> type[Any]:
        """The type of the samples that the joiner makes; `Sample` if it has no
        annotation.
        """
        joiner = self.joiner_object
        result: Any = joiner
        if not isinstance(joiner, type):
            result = getattr(joiner, "__annotations__", {}).get("return")
            if isinstance(result, str):  # annotations of a module that postpones them
                result = getattr(joiner, "__globals__", {}).get(result)
        is_sample = isinstance(result, type) and issubclass(result, Sample)
        return cast("type[Any]", result) if is_sample else Sample

    @property
    def place_names(self) -> tuple[str, ...]:
        """The folders above the first part, and the names of all parts as one."""
        names = [part.path.name for part in self.parts]
        return (*self.path.parts[:-1], "+".join(names))

    @property
    def data_key(self) -> tuple[Hashable, ...]:
        parts = [(part.key, part.nonmatch, part.entry_name) for part in self.parts]
        return (*parts, self.joiner)

    @property
    def join_function(self) -> Callable[..., Any]:
        """The function that joins samples; of a type of samples its `from_joined`.

        Nothing is imported because a file names it: the module has to be imported by
        the program. Modules of energize and Megatron-Energon name the types of
        energize.

        Raises:
            UntrustedCodeError: If the program has not imported the module.
            MetadatasetError: If the name is missing or is not a joiner.
        """
        joiner = self.joiner_object
        if not isinstance(joiner, type):
            return joiner
        if not issubclass(joiner, Sample):
            raise MetadatasetError(
                f"{self.location}: the joiner {joiner.__name__} is not a sample "
                "type. Pass a subclass of energize.Sample, or a function"
            )
        return joiner.from_joined

    @property
    def joiner_object(self) -> Callable[..., Any]:
        """The type or function that `joiner` names."""
        joiner = self.joiner
        if not isinstance(joiner, JoinerName):
            return joiner
        if joiner.class_ and is_package_module(joiner.module):
            with place_noted(self.location):
                return sample_type_named(joiner.module, joiner.class_)
        name = joiner.class_ or joiner.function or ""
        subject = f"{self.location}: the joiner is"
        value = imported_object(subject, joiner.module, name)
        if isinstance(value, type) if joiner.class_ else callable(value):
            return cast("Callable[..., Any]", value)
        noun = "class" if joiner.class_ else "function"
        hint = ""
        if value is None:
            hint = nearest(name, list(vars(sys.modules[joiner.module])))
        raise MetadatasetError(
            f"{subject} {short(name)} of the module {short(joiner.module)}, which has "
            f"no {noun} of that name{hint}"
        )

    def whole_source(self, seed: int, *, checksums: bool) -> JoinedSource:
        parts = [
            cast("WebdatasetSource", part.source(checksums=checksums))
            for part in self.parts
        ]
        nonmatch = [part.nonmatch for part in self.parts[1:]]
        return JoinedSource(*parts, nonmatch=nonmatch, cache=self.cache, seed=seed)


def hashable(value: Any) -> Hashable:
    """Return a value that is equal for equal settings, and can be hashed.

    >>> hashable({"a": [1, 2]}) == hashable({"a": [1, 2]})
    True
    """
    if isinstance(value, Mapping):
        return frozenset((name, hashable(entry)) for name, entry in value.items())
    if isinstance(value, list):
        return tuple([hashable(entry) for entry in value])
    return cast("Hashable", value)


# Lists


class Mix(MixNode, ListKeys):
    """Several nodes in one dataset.

    Args:
        children: The nodes.
    """

    children: list[Any]

    @property
    def quotas(self) -> list[Quota]:
        """The quotas of the nodes, in a mix by quotas."""
        return [child.quota or Quota() for child in self.children]

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options of `BlendDataset`, or of `QuotaDataset`."""
        return {}

    @property
    def targets(self) -> list[Any] | None:
        """The target weights of the nodes; None if they have none."""
        targets = [*map(attrgetter("target_weight"), self.children)]
        return None if None in targets else targets

    @cached_property
    def plain(self) -> bool:
        """Whether this is a blend by fixed weights without options; its weights
        multiply with those around it.
        """
        return False

    @property
    def repeated(self) -> bool:
        """Whether the program decides if it repeats for ever."""
        return True

    def with_children(self, children: Sequence[MixNode]) -> Self:
        """Return the mix of other nodes, which has the same options."""
        return self.model_copy(update={"children": children})


class Blend(Mix, BlendSettings, OuterBlendSettings):
    """Nodes that are mixed by weights or quotas; with `by`, the samples of the values
    of a property.

    Args:
        by: The property; None without one.
        weights: A rule of `SIZE_RULES` in place of the weights of the nodes; None, or
            the weights of the values of the property.
    """

    list_key = "blend"
    by: str | None = None
    weights: Any = None

    @cached_property
    def by_quotas(self) -> bool:  # type: ignore[override]  # constant in other lists
        return None not in map(attrgetter("quota"), self.children)

    @cached_property
    def options(self) -> dict[str, Any]:
        names = [*BLEND_DEFAULTS]
        if self.by_quotas:
            names = [*_QUOTA_OPTIONS]
        options: dict[str, Any] = {}
        for name in names:
            value = getattr(self, name)
            if value is not None and value != BLEND_DEFAULTS.get(name):
                options[name] = value
        for name in () if self.by_quotas else _ENTRY_OPTIONS:
            values = [*map(attrgetter(name), self.children)]
            if values.count(None) < len(values):
                options[name] = values
        return options

    @cached_property
    def plain(self) -> bool:
        if self.by_quotas or self.options:
            return False
        weights = map(attrgetter("weight"), self.children)
        return Schedule not in map(type, weights)

    @property
    def repeated(self) -> bool:
        return self.plain


class Passes(Mix):
    """Nodes that are read a number of times in each epoch."""

    list_key = EPOCHIZED


class Concat(Mix):
    """Nodes that follow one another in each epoch."""

    list_key = "concat"


class Stages(Keys):
    """Stages of a run, each with the node it reads; always the outermost node.

    Args:
        plan: The stages.
        location: Where they are written, as `file:line (path)`.
    """

    plan: StagePlan[Any]
    location: str = ""


# Trees


def every_leaf(node: MixNode | Stages) -> list[Leaf]:
    """Return the leaves below a node, in the order of the file."""
    if isinstance(node, Leaf):
        return [node]
    leaves: list[Leaf] = []
    if isinstance(node, Stages):
        for stage in node.plan.stages:
            leaves += every_leaf(stage.dataset)
    elif isinstance(node, Mix):
        for child in node.children:
            leaves += every_leaf(child)
    return leaves


def with_leaves(node: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """Return a tree with the results of `change` as its leaves."""
    if isinstance(node, Leaf):
        return change(node)
    if isinstance(node, Stages):
        plan = node.plan.with_datasets(lambda stage: with_leaves(stage.dataset, change))
        return node.model_copy(update={"plan": plan})
    return node.with_children([with_leaves(child, change) for child in node.children])


def leaves_of(node: MixNode) -> list[Leaf]:
    """Return the leaves below a node, whatever their weights; of equal leaves the
    first.
    """
    leaves: dict[Hashable, Leaf] = {}
    for leaf in every_leaf(node):
        leaves.setdefault(leaf.identity, leaf)
    return list(leaves.values())


# Code that files name


def user_factory(config: SampleConfig) -> type[Any]:
    """Return the factory class that a dataset.yaml names.

    Nothing is imported because a file names it.

    Args:
        config: The content of the dataset.yaml.

    Raises:
        UntrustedCodeError: If the program has not imported the module.
        DatasetError: If the name is not a factory.
    """
    subject = "dataset.yaml names the factory"
    remedy = f", or trust_code=[{config.sample_module!r}]"
    factory = imported_object(
        subject, config.sample_module, config.sample_class, remedy
    )
    if isinstance(factory, type) and hasattr(factory, "load_sample"):
        return factory
    raise DatasetError(
        f"{subject} {short(config.sample_class)} of the module "
        f"{short(config.sample_module)}, which "
        f"{'has no such name' if factory is None else 'is not a factory there'}. A "
        "factory must be a subclass of DefaultDecoderWebdatasetFactory or "
        "BaseWebdatasetFactory. Set a sample type in sample_type"
    )


def factory_sample_class(config: SampleConfig) -> type[Any]:
    """Return the type of the samples of the factory that a dataset.yaml names.

    Args:
        config: The content of the dataset.yaml.

    Raises:
        DatasetError: If the factory has no type.
    """
    named = (config.factory or {}).get("sample_type")
    if named is not None:
        return sample_type_named(*named)
    factory = user_factory(config)
    sample_type = getattr(factory, "__sample_type__", None)
    if isinstance(sample_type, type):
        return sample_type
    raise DatasetError(
        f"the factory {factory.__name__} has no __sample_type__. Set it to the "
        "sample type that the factory returns"
    )


def imported_object(subject: str, module: str, name: str, remedy: str = "") -> Any:
    """Return an object of a module that the program has imported; None if missing.

    Args:
        subject: The file that names the object, for messages.
        module: The name of the module, which is not imported.
        name: The name in the module.
        remedy: Another remedy, for messages.

    Raises:
        UntrustedCodeError: If the program has not imported the module.
    """
    if module in sys.modules:
        return vars(sys.modules[module]).get(name)
    raise UntrustedCodeError(
        f"{subject} {short(name)} of the module {short(module)}, which this program "
        "has not imported. A file never imports modules. If you trust the module, "
        f"write `import {module}` in your program before this{remedy}"
    )
