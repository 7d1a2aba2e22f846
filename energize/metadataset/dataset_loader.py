"""Datasets and metadatasets as what can be asked for its datasets."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from energize.core.lanes import WorkerConfig
from energize.core.lazy import paths
from energize.data.join import JoinedSource, write_matches
from energize.data.source import Subset
from energize.data.stores import open_store
from energize.energon.factories import (
    BaseCoreDatasetFactory,
    JoinedWebdatasetFactory,
    get_dataset_from_config,
)
from energize.errors import ConfigError
from energize.metadataset.inheriting import combined_multiplier
from energize.metadataset.joiners import joining_function
from energize.metadataset.keys import Spec
from energize.metadataset.leaves import source_of
from energize.metadataset.loader_interface import (
    DatasetBlendMode,
    DatasetLoaderInterface,
    LoadedDataset,
    LoadedDatasetList,
    TraversedDatasetReference,
)
from energize.metadataset.nodes import JoinedLeaf, Leaf, Node, Staged
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import not_staged, resolve
from energize.metadataset.shares import asked_shares
from energize.metadataset.stores import FILESYSTEM
from energize.order import Schedule

_NOT_TOLD = (
    "get_datasets tells weights, or repetitions, of single datasets, and this mix needs more: {}; "
    "get_train_dataset reads it"
)


class LoadedNodes(DatasetLoaderInterface):
    """Answers from what `node` says of a split."""

    @abstractmethod
    def node(self, split_part: str, asked: Spec, *, existing: bool = True) -> Node | Staged:
        """What a split reads, with the settings `asked` around it; see `resolve`."""

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: Subset | None = None,
        **kwargs: Any,
    ) -> LoadedDatasetList:
        asked = Spec(
            path="",
            subflavors=None if subflavors is None else dict(subflavors),
            shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
            subset=subset,
        )
        node = not_staged(self.node(split_part, asked), split_part, "get_datasets makes datasets")
        if node.packing is not None:
            with place_noted(node.place):
                raise ConfigError(_NOT_TOLD.format("its samples are packed"))
        if node.level is not None:
            with place_noted(node.place):
                raise ConfigError(_NOT_TOLD.format("its batches are levelled"))
        options = {"training": training, "worker_config": worker_config, **kwargs}
        mode, numbered = _numbered(node)
        datasets = []
        for leaf, number in numbered:
            with place_noted(leaf.place):
                loaded = LoadedDataset(dataset=_factory(leaf, options))
                loaded.dataset.sample_weight = leaf.sample_weight
                if leaf.aux:
                    loaded.aux = {name: open_store(ref) for name, ref in leaf.aux.items()}
            if mode is DatasetBlendMode.DATASET_WEIGHT:
                loaded.weight = float(number)
            elif mode is DatasetBlendMode.SAMPLE_REPETITIONS:
                loaded.repetitions = int(number) if number.denominator == 1 else float(number)
            datasets.append(loaded)
        return LoadedDatasetList(datasets=datasets, blend_mode=mode)

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        node = self.node(split_part, Spec(path=""), existing=False)
        return [
            TraversedDatasetReference(
                path=paths.EPath(leaf.path),
                split_part=leaf.split_part,
                aux={
                    name: paths.EPath(ref.removeprefix(FILESYSTEM))
                    for name, ref in leaf.aux.items()
                },
                subflavors=dict(leaf.subflavors),
                shuffle_over_epochs_multiplier=leaf.shuffle_over_epochs_multiplier,
            )
            for leaf in each_dataset(node)
        ]

    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        if split_part is None:
            raise ConfigError("a single dataset has no splits to go through; give a split_part")
        node = self.node(split_part, Spec(path=""))
        return [write_matches(whole_join(leaf)) for leaf in joins_of(node)]


class DatasetLoader(LoadedNodes):
    """A prepared folder or a `.jsonl` file, with settings that win over its own.

    The settings are those of an entry of a metadataset. A `split_part` given here wins over that
    asked for.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str | None = None,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        dataset_config: str | None = None,
        split_config: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.split_part = split_part
        self.subflavors = dict(subflavors or {})
        self.shuffle_over_epochs_multiplier = shuffle_over_epochs_multiplier
        self.dataset_config = dataset_config
        self.split_config = split_config

    def node(self, split_part: str, asked: Spec, *, existing: bool = True) -> Node | Staged:
        multiplier = combined_multiplier(
            asked.shuffle_over_epochs_multiplier, self.shuffle_over_epochs_multiplier
        )
        spec = replace(
            asked,
            split_part=self.split_part,
            subflavors={**self.subflavors, **(asked.subflavors or {})},
            shuffle_over_epochs_multiplier=multiplier,
            dataset_config=self.dataset_config,
            split_config=self.split_config,
        )
        return resolve(self.path, split_part, spec, existing=existing)

    def get_dataset(
        self, *, training: bool, split_part: str, worker_config: WorkerConfig, **kwargs: Any
    ) -> BaseCoreDatasetFactory[Any]:
        """The factory of the dataset; arguments as `get_datasets`."""
        loaded = self.get_datasets(
            training=training, split_part=split_part, worker_config=worker_config, **kwargs
        )
        return loaded.datasets[0].dataset


def each_dataset(node: Node | Staged) -> Iterator[Leaf]:
    """All datasets below a node, in the order of the files; those of a join one by one."""
    for leaf in _leaves(node):
        if isinstance(leaf, JoinedLeaf):
            yield from (each.leaf for each in leaf.parts)
        else:
            yield leaf


def joins_of(node: Node | Staged) -> Iterator[JoinedLeaf]:
    """All joins below a node."""
    yield from (leaf for leaf in _leaves(node) if isinstance(leaf, JoinedLeaf))


def whole_join(leaf: JoinedLeaf) -> JoinedSource:
    """What a join reads, without the subset that is taken of it."""
    return cast("JoinedSource", source_of(replace(leaf, subset=None, chosen=None)))


def _leaves(node: Node | Staged) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    elif isinstance(node, Staged):
        for stage in node.plan.stages:
            yield from _leaves(stage.dataset)
    else:
        for child, _ in node.children:
            yield from _leaves(child)


def _numbered(node: Node) -> tuple[DatasetBlendMode, list[tuple[Leaf, Fraction]]]:
    """The leaves below a node with their weights or repetitions."""
    if isinstance(node, Leaf):
        return DatasetBlendMode.NONE, [(node, Fraction(1))]
    with place_noted(node.place):
        if node.kind == "blend_epochized" and node.quotas is not None:
            mode = DatasetBlendMode.SAMPLE_REPETITIONS
            numbers = [Fraction(str(q.repeat if q.repeat is not None else 1)) for q in node.quotas]
        elif node.quotas is None:
            mode = DatasetBlendMode.DATASET_WEIGHT
            if any(isinstance(weight, Schedule) for _, weight in node.children):
                raise ConfigError(_NOT_TOLD.format("its weights change with the step"))
            if "unit" in node.options:
                raise ConfigError(_NOT_TOLD.format("its weights count what samples cost"))
            if "max_epochs" in node.options or node.options.get("stop", "restart") != "restart":
                raise ConfigError(_NOT_TOLD.format("it says where it ends"))
            numbers = asked_shares(node)
        else:
            raise ConfigError(_NOT_TOLD.format(f"it is made by {node.kind} with quotas"))
        found = []
        for (child, _), number in zip(node.children, numbers, strict=True):
            inner, leaves = _numbered(child)
            if inner not in (DatasetBlendMode.NONE, mode):
                raise ConfigError(_NOT_TOLD.format("it has weights and repetitions in each other"))
            found += [(leaf, each * number) for leaf, each in leaves]
    return mode, found


def _factory(leaf: Leaf, options: Mapping[str, Any]) -> BaseCoreDatasetFactory[Any]:
    order: dict[str, Any] = {
        "shuffle_over_epochs": leaf.shuffle_over_epochs_multiplier,
        "subset": leaf.subset,
    }
    if not isinstance(leaf, JoinedLeaf):
        return _of_folder(leaf, {**options, **order})
    parts = [_of_folder(each.leaf, {**options, "subset": each.leaf.subset}) for each in leaf.parts]
    names = [each.name for each in leaf.parts]
    own = {name: value for name, value in options.items() if name != "decoder"}
    return JoinedWebdatasetFactory(
        cast("Any", parts if None in names else dict(zip(names, parts, strict=True))),
        joiner=joining_function(leaf.joiner, leaf.place),
        nonmatch=[each.nonmatch for each in leaf.parts[1:]],
        cache=leaf.cache,
        **own,
        **order,
    )


def _of_folder(leaf: Leaf, options: Mapping[str, Any]) -> BaseCoreDatasetFactory[Any]:
    return get_dataset_from_config(
        leaf.path,
        dataset_config=leaf.dataset_config,
        split_config=leaf.split_config,
        split_part=leaf.split_part,
        subflavors=leaf.subflavors,
        **options,
    )
