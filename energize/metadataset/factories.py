"""Leaves of a mix as factories of typed samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from energize.core.lanes import WorkerConfig
from energize.core.samples import CrudeSample
from energize.data.source import Subset
from energize.data.stores import open_store
from energize.errors import ConfigError, EnergizeError
from energize.inference.verify import inferred_texts
from energize.metadataset.leaves import Share, shares_below
from energize.metadataset.located import noted, place_noted
from energize.metadataset.models import EPOCHIZED
from energize.metadataset.nodes import (
    AT_TOP,
    Folder,
    Join,
    Leaf,
    Mix,
    MixNode,
    user_factory,
)
from energize.metadataset.resolver import combined_multiplier
from energize.order import Schedule
from energize.task.decode import SampleDecoder
from energize.task.load import NO_CODE, JoinLoader, LoadingCode, SampleLoader
from energize.task.pipeline import (
    STORED,
    DatasetBlendMode,
    LoadedDataset,
    LoadedDatasetList,
    SampleOrder,
    SourceFactory,
    select_subset,
)

_NOT_SINGLE = (
    "get_datasets returns weights or repetitions of single datasets, but this mix "
    "also has {}. Use get_train_dataset"
)


def factory_of(
    leaf: Leaf,
    order: SampleOrder = STORED,
    *,
    decoder: SampleDecoder | None,
    code: LoadingCode = NO_CODE,
    seed: int = 0,
    checksums: bool = False,
    subset: Subset | None = None,
    factory: type[SourceFactory[Any]] = SourceFactory,
    **options: Any,
) -> SourceFactory[Any]:
    """Return the factory of the samples of a leaf.

    Args:
        leaf: A leaf of a resolved mix.
        order: The order, which is combined with what files and dataset.yaml set.
        decoder: How parts of samples are decoded; None leaves them as bytes.
        code: Code that may run although a folder names it.
        seed: Seed of the order.
        checksums: Whether each sample is compared with its checksum.
        subset: The samples that are read; by default all.
        factory: The class of the factory.
        options: Other options of `SourceFactory`.

    Returns:
        The factory, of the type of samples that dataset.yaml or the joiner names.
    """
    try:
        sample_class = leaf.sample_class
        order = _order_of(leaf, order)
        load, paths = _loader_of(leaf, decoder, code, seed)
        return factory(
            select_subset(leaf.source(seed, checksums=checksums), subset),
            load,
            sample_class,
            paths,
            leaf.labels,
            **{
                "order": order,
                "sample_weight": leaf.sample_weight,
                **options,
            },
        )
    except EnergizeError as error:
        raise noted(error, leaf.location) from error


def _order_of(leaf: Leaf, order: SampleOrder) -> SampleOrder:
    """Return an order combined with those of files and of dataset.yaml."""
    options = leaf.config.options
    over_epochs = order.over_epochs
    for multiplier in (
        leaf.shuffle_over_epochs_multiplier,
        options.get("shuffle_over_epochs", 1),
    ):
        if multiplier != 1:
            over_epochs = combined_multiplier(over_epochs, multiplier)
    order = replace(order, over_epochs=over_epochs)
    name = "max_samples_per_sequence"
    if order.max_samples_per_sequence is None and name in options:
        order = replace(order, max_samples_per_sequence=options[name])
    return order


def _loader_of(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode, seed: int
) -> tuple[Callable[[Any], Any], list[Path]]:
    """Return the function that makes samples of raw ones, and the paths of these."""
    if isinstance(leaf, Join):
        parts = leaf.parts
        names = tuple(part.entry_name for part in parts if part.entry_name is not None)
        loaders = tuple(_sample_loader(part, decoder, code) for part in parts)
        load = JoinLoader(loaders, names or None, leaf.join_function)
        return load, [part.path for part in parts]
    if leaf.config.factory is not None:
        return _user_loader(leaf, decoder, code, seed), [leaf.path]
    return _sample_loader(leaf, decoder, code), [leaf.path]


def _user_loader(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode, seed: int
) -> Callable[[Any], Any]:
    """Return the `load` of the user's factory that a dataset.yaml names."""
    config = leaf.config
    factory_class = user_factory(config)
    decoder = None if decoder is None else decoder.with_options(config.options)
    loader, part_filter, decoder = code.of(leaf.path, config.code, decoder)
    options = {
        **(config.factory or {}),
        "sample_loader": loader,
        "part_filter": part_filter,
    }
    if "sample_type" in options:
        options["sample_type"] = leaf.sample_class
    options = {name: value for name, value in options.items() if value is not None}
    if hasattr(factory_class, "decoder"):
        options["decoder"] = decoder
    factory = factory_class(
        leaf.path,
        split_part=leaf.split_part,
        split_config=leaf.split_file if isinstance(leaf, Folder) else None,
        training=False,
        worker_config=WorkerConfig(0, 1, seed_offset=seed),
        **options,
    )
    factory.subflavors = leaf.labels
    load: Callable[[Any], Any] = factory.load
    return load


def _sample_loader(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode
) -> SampleLoader[Any]:
    """Return the function that makes typed samples of the raw ones of a folder."""
    config = leaf.config
    crude = leaf.sample_class is CrudeSample
    decoder = None if decoder is None else decoder.with_options(config.options)
    sample_loader, part_filter, decoder = code.of(
        leaf.path, config.code, decoder, crude=crude
    )
    checked: Any = ()
    if isinstance(leaf, Folder) and leaf.loose is not None and decoder is not None:
        checked = inferred_texts(leaf.loose, leaf.data_options)
    return SampleLoader(
        sample_type=leaf.sample_class,
        field_map=None if crude or sample_loader is not None else config.field_map,
        decoder=decoder,
        subflavors=leaf.labels,
        sample_loader=sample_loader,
        part_filter=part_filter,
        checked=checked,
    )


# Datasets with their weights


def loaded_datasets(
    node: MixNode, order: SampleOrder, **options: Any
) -> LoadedDatasetList:
    """Return the leaves of a tree as factories, with their weights or repetitions.

    Weights are normalised in each blend and multiplied on the way down.

    Args:
        node: A resolved mix.
        order: The order of each leaf.
        options: Options of `factory_of`.

    Raises:
        ConfigError: If a number for each dataset does not describe the mix.
    """
    mode = DatasetBlendMode.NONE
    entries = list[tuple[Any, dict[str, Any]]]()
    with place_noted(node.location):
        _check_single_numbers(node)
        if isinstance(node, Mix) and node.list_key == EPOCHIZED:
            mode = DatasetBlendMode.SAMPLE_REPETITIONS
            for child, quota in zip(node.children, node.quotas, strict=True):
                passes = 1 if quota.repeat is None else quota.repeat
                passes = int(passes) if passes % 1 == 0 else passes
                entries.append((child, {"repetitions": passes}))
        elif isinstance(node, Mix):
            mode = DatasetBlendMode.DATASET_WEIGHT
            for part in shares_below(Share(node), lambda _: True):
                entries.append((part.node, {"weight": float(part.share)}))
        else:
            entries = [(node, {})]
    datasets = [
        replace(loaded_dataset(leaf, order, **options), **number)
        for leaf, number in entries
    ]
    return LoadedDatasetList(datasets=datasets, blend_mode=mode)


def loaded_dataset(leaf: Leaf, order: SampleOrder, **options: Any) -> LoadedDataset:
    """Return a leaf as a factory, with the stores of its cookers.

    Args:
        leaf: A leaf of a resolved mix.
        order: Its order.
        options: Options of `factory_of`.
    """
    aux = {name: open_store(ref) for name, ref in leaf.aux.items()}
    return LoadedDataset(dataset=factory_of(leaf, order, **options), aux=aux or None)


def _check_single_numbers(node: MixNode, outer: str = "") -> None:
    """Raise `ConfigError` if a number for each dataset does not describe the mix."""
    keys = [key for key in AT_TOP if getattr(node, key) is not None]
    if isinstance(node, Mix):
        keys += _other_keys(node, outer)
        for child in node.children:
            _check_single_numbers(child, node.list_key)
    if keys or (outer == EPOCHIZED and isinstance(node, Mix)):
        raise ConfigError(_NOT_SINGLE.format(", ".join(keys) or f"a blend in {outer}"))


def _other_keys(node: Mix, outer: str) -> list[str]:
    """Return what a mix sets beside weights or repetitions."""
    options = node.options
    keys = [*(options.keys() & {"max_epochs", "unit"})]
    if options.get("stop", "restart") != "restart":
        keys.append("stop")
    if any(isinstance(child.weight, Schedule) for child in node.children):
        keys.append("schedules")
    if node.by_quotas and (outer or node.list_key != EPOCHIZED):
        keys.append(f"the quotas of {node.list_key}")
    return keys
