"""Datasets for training and validation: the functions that scripts call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from energize.core.costs import ItemCost, LevelCost
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.os_errors import convert_os_errors, is_url
from energize.core.validation import faults
from energize.data.manifest import by_manifest
from energize.data.source import Subset
from energize.datasets.align import Columns
from energize.datasets.order import ConcatDataset
from energize.errors import ConfigError
from energize.inference.options import OF_SAMPLES
from energize.metadataset.build import (
    MISSING,
    Batching,
    Builder,
    Encoders,
    encoder_chooser,
)
from energize.metadataset.models import FolderKeys
from energize.metadataset.nodes import Leaf, MixNode, Stages, every_leaf, leaves_of
from energize.metadataset.resolver import MixPath, not_staged, resolve
from energize.task.encoder import Level, decoding_as
from energize.task.hooks import builds, validating
from energize.task.load import LoadingCode, loading_code
from energize.task.pipeline import STORED, SampleOrder
from energize.task.planning import BatchBudget, PackPlan

T_batch = TypeVar("T_batch")

_FOLDER_KEYS = TypeAdapter(FolderKeys)
_OF_FOLDERS = (
    "dataset_config",
    "split_config",
    "subflavors",
    "subset",
    "sample_weight",
    "recipe",
)
_ONCE = "validation reads every sample once"


@convert_os_errors
@by_manifest
def get_train_dataset(  # noqa: PLR0913
    path: MixPath | MixNode | Stages,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = MISSING,
    batch_budget: BatchBudget | Mapping[str, int] | None = None,
    batch_drop_last: bool = False,
    packing: PackPlan | Mapping[str, Any] | None = None,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: Encoders[T_batch] | None = None,
    repeat: bool = True,
    level: LevelCost | ItemCost | None = None,
    global_batch_size: int | None = None,
    level_buffer_size: int | None = None,
    align: Columns | Mapping[str, Any] | None = None,
    checksums: bool = False,
    verify: bool = True,
    **older: Any,
) -> Dataset[T_batch]:
    """Return the batches of a folder or a metadataset for training.

    The batches are shuffled and without end. Samples of the parts of a metadataset are
    drawn in the proportion of their weights, processed by the hooks of `task_encoder`,
    and delivered as batches of exactly `batch_size` samples. If the outermost blend
    sets an end (a stop rule, quotas), the batches are delivered in epochs.

    A split with stages gives a `StagedDataset` of the batches of each stage; a
    `batch_size` in the stage's `batch` wins over the argument.
    `get_staged_train_dataset` does the same with arguments for each stage, such as a
    task encoder.

    Inferred sample types of loose data are verified first: at most 64 samples of each
    path are read and decoded, once for each version of the data.

    Args:
        path: A prepared folder, loose data, or a metadataset file; a mapping with the
            content of such a file; a list of paths, a dict of paths and weights, or a
            dict of split parts and paths; or what `resolve` returned.
        split_part: The split part of a folder, or the split of a metadataset.
        worker_config: Is carried along for `get_loader`; `seed_offset` chooses the
            order, ranks and workers do not.
        batch_size: Samples of a batch; with packing, packs. None for encoded samples.
        batch_budget: In place of `batch_size`, a column and the maximum padded size
            of a batch: {"tokens": 32768}. See `BudgetBatchDataset`.
        batch_drop_last: Whether a short last batch is left out; `drop_last` in the
            `composition` of a metadataset wins.
        packing: Plans packs from columns of the folders, see `PackPlan`: {"length":
            "tokens", "capacity": 8192}. The encoder's `pack_selected_samples` makes
            a pack.
        packing_buffer_size: How many samples at a time the encoder's hooks pack.
        shuffle_buffer_size: Keeps reads local, see `ShuffleDataset`; in stored order,
            the size of the windows within which samples are shuffled.
        max_samples_per_sequence: Keeps reads local, see `ShuffleDataset`.
        virtual_epoch_length: After how many batches of a rank a loop ends, which is
            then the `len` of the dataset; the next loop resumes after them. 0 for one
            pass by weight.
        shuffle_over_epochs_multiplier: How many epochs are shuffled together; -1 draws
            with replacement, None leaves samples in stored order.
        task_encoder: The task encoder; or a dict of sample types and encoders, each of
            which makes batches of its own, which are blended by weight. A blend with
            options of its own is mixed sample by sample if its parts have one encoder,
            else in whole batches. An encoder that overrides `build_train_datasets`
            builds the dataset itself.
        repeat: False reads a folder once in an epoch.
        level: Distributes the samples of each global batch so that its batches cost
            the same: a column of the folders or a function of columns, or several, see
            `LevelDataset`; an `ItemCost` levels encoded or packed samples, see
            `LevelBufferDataset`.
        global_batch_size: Samples of a global batch, with `align`, or `level` by a
            column.
        level_buffer_size: Samples or packs that are levelled at a time, with an
            `ItemCost`; None for those of 64 batches.
        align: Gives all ranks a sample with a modality at the same steps, or none, see
            `AlignDataset`: a column such as "images", a list of columns, or a dict of
            columns and "together" or "always". A dict with the key "columns" has
            options: `{"columns": "images", "ranks": 64}`.
        checksums: Whether each sample is compared with the checksum that
            `energize prepare --checksums` wrote; a difference is a damaged sample.
        verify: Whether inferred sample types are verified.
        older: Keys of an entry of a metadataset that names `path`: `dataset_config`,
            `split_config`, `subflavors`, `subset`, `sample_weight`; of loose data also
            `sample_type`, `field_map`, `image_folder`, `strict` and others.
            `sample_loader` and `part_filter`, functions that make the fields of samples
            in place of field maps, and `trust_code=[folder, ...]`, which lets code of
            folders run, see `LoadingCode`. Arguments of Megatron-Energon set how
            samples are decoded (see `SampleDecoder`), or are logged and ignored.

    Returns:
        A frozen dataset, for `get_loader`.

    Raises:
        MetadatasetError: For faults of files, with all of them.
        DatasetError: For faults of folders.
        ConfigError: For arguments that do not fit. All before a sample is read.
    """
    request = _request("get_train_dataset", path, split_part, task_encoder, older)
    if verify:
        request.verify()
    builds_itself = builds(request.encoder, "build_train_datasets")
    levelled = Level.from_arguments(level, global_batch_size, level_buffer_size, align)
    if builds_itself and levelled is not None:
        raise ConfigError(
            f"{type(request.encoder).__name__} builds its dataset itself, so "
            f"{levelled.keys} has no effect. Remove {levelled.keys}"
        )
    builder = Builder(
        encoder_chooser(None if builds_itself else request.encoder),
        SampleOrder(
            shuffle_over_epochs_multiplier,
            max_samples_per_sequence,
            shuffle_buffer_size,
        ),
        request.code,
        checksums,
        worker_config,
        Batching.of_arguments(
            batch_size, batch_drop_last, packing_buffer_size, packing, batch_budget
        ),
        levelled,
    )
    loop: dict[str, Any] = {
        "repeat": repeat,
        "virtual_epoch_length": virtual_epoch_length,
    }
    if builds_itself:
        dataset = builder.built_by(
            request.encoder,
            request.node,
            request.location,
            training=True,
            shuffle_buffer_size=shuffle_buffer_size,
            **loop,
        )
    else:
        dataset = builder.trained(request.node, request.location, **loop)
    return _remembered(dataset.with_role("train"), path, split_part)


@convert_os_errors
@by_manifest
def get_val_dataset(  # noqa: PLR0913
    path: MixPath | MixNode | Stages,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = MISSING,
    batch_budget: BatchBudget | Mapping[str, int] | None = None,
    batch_drop_last: bool = False,
    packing: PackPlan | Mapping[str, Any] | None = None,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
    checksums: bool = False,
    verify: bool = True,
    **older: Any,
) -> Dataset[T_batch]:
    """Return the batches of a folder or a metadataset for validation.

    Every sample is read once, in stored order, the same in every epoch and run. The
    parts of a metadataset follow one another, whatever their weights.

    Args:
        path: As in `get_train_dataset`.
        split_part: The split part of a folder, or the split of a metadataset.
        worker_config: Is carried along for `get_loader`.
        batch_size: Samples of a batch; None for encoded samples.
        batch_budget: In place of `batch_size`, a column and the maximum padded size
            of a batch: {"tokens": 32768}. See `BudgetBatchDataset`.
        batch_drop_last: Whether a short last batch is left out.
        packing: Plans packs from columns of the folders, see `PackPlan`: {"length":
            "tokens", "capacity": 8192}. The encoder's `pack_selected_samples` makes
            a pack.
        packing_buffer_size: How many samples at a time the encoder's hooks pack.
        limit: The number of batches that are read, over all ranks. None for all.
        task_encoder: As in `get_train_dataset`.
        checksums: As in `get_train_dataset`.
        verify: As in `get_train_dataset`.
        older: As in `get_train_dataset`.

    Returns:
        A frozen dataset, for `get_loader`.

    Raises:
        MetadatasetError: For faults of files, with all of them.
        DatasetError: For faults of folders.
        ConfigError: For arguments that do not fit.
    """
    request = _request("get_val_dataset", path, split_part, task_encoder, older)
    if verify:
        request.verify()
    builds_itself = builds(request.encoder, "build_val_datasets")
    builder = Builder(
        encoder_chooser(None if builds_itself else request.encoder),
        STORED,
        request.code,
        checksums,
        worker_config,
        Batching.of_arguments(
            batch_size, batch_drop_last, packing_buffer_size, packing, batch_budget
        ),
    )
    with validating():
        if builds_itself:
            built = builder.built_by(
                request.encoder,
                request.node,
                request.location,
                training=False,
                limit=limit,
            )
            # Fingerprints of saved states include this node.
            dataset: Dataset[Any] = ConcatDataset(built, worker_config=worker_config)
        else:
            node = not_staged(request.node, request.location, _ONCE)
            dataset = builder.validated(leaves_of(node), node, limit)
    return _remembered(dataset.with_role("eval"), path, split_part)


@convert_os_errors
@by_manifest
def get_val_datasets(  # noqa: PLR0913
    path: MixPath | MixNode | Stages,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = MISSING,
    batch_budget: BatchBudget | Mapping[str, int] | None = None,
    batch_drop_last: bool = False,
    packing: PackPlan | Mapping[str, Any] | None = None,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
    checksums: bool = False,
    verify: bool = True,
    **older: Any,
) -> list[tuple[Dataset[T_batch], Leaf]]:
    """Return one validation dataset for each folder of a metadataset, with its leaf.

    Args:
        path: As in `get_train_dataset`.
        split_part: The split part of a folder, or the split of a metadataset.
        worker_config: Is carried along for `get_loader`.
        batch_size: Samples of a batch; None for encoded samples.
        batch_budget: In place of `batch_size`, a column and the maximum padded size
            of a batch: {"tokens": 32768}. See `BudgetBatchDataset`.
        batch_drop_last: Whether a short last batch is left out.
        packing: Plans packs from columns of the folders, see `PackPlan`: {"length":
            "tokens", "capacity": 8192}. The encoder's `pack_selected_samples` makes
            a pack.
        packing_buffer_size: How many samples at a time the encoder's hooks pack.
        limit: The number of batches of each dataset, as in `get_val_dataset`.
        task_encoder: As in `get_train_dataset`.
        checksums: As in `get_train_dataset`.
        verify: As in `get_train_dataset`.
        older: As in `get_train_dataset`.

    Returns:
        Pairs of a dataset and the leaf that it reads. `leaf.name` is the name of its
        entry in the metadataset, as reports have it; `leaf.path`, `leaf.split_part` and
        `leaf.subflavors` describe the folder.

    Raises:
        MetadatasetError: For faults of files, with all of them.
        DatasetError: For faults of folders.
        ConfigError: For arguments that do not fit.
    """
    request = _request("get_val_datasets", path, split_part, task_encoder, older)
    if verify:
        request.verify()
    builder = Builder(
        encoder_chooser(request.encoder),
        STORED,
        request.code,
        checksums,
        worker_config,
        Batching.of_arguments(
            batch_size, batch_drop_last, packing_buffer_size, packing, batch_budget
        ),
    )
    node = not_staged(request.node, request.location, _ONCE)
    with validating():
        return [
            (builder.validated([leaf], node, limit).with_role("eval"), leaf)
            for leaf in leaves_of(node)
        ]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request of a program: the mix, its location, code that may run, and the
    encoder.
    """

    node: MixNode | Stages
    location: object
    code: LoadingCode
    encoder: Any

    def verify(self) -> None:
        """Compare samples of loose data with what is inferred of them."""
        for leaf in every_leaf(self.node):
            leaf.verify()


def _request(
    owner: str,
    path: MixPath | MixNode | Stages,
    split_part: str,
    task_encoder: Any,
    older: dict[str, Any],
) -> _Request:
    """Return the request of a program.

    Keys of an entry of a metadataset among the `older` arguments win over those of
    files.
    """
    if isinstance(path, MixNode | Stages):
        node: MixNode | Stages = path
        location: object = path.location or owner
    else:
        location = path
        node = resolve(path, split_part, _settings(older))
    code = loading_code(older)
    encoder = decoding_as(owner, task_encoder, older)
    return _Request(node, location, code, encoder)


def _settings(older: dict[str, Any]) -> FolderKeys | None:
    """Take the keys of an entry of a metadataset out of arguments."""
    names = (*_OF_FOLDERS, *OF_SAMPLES)
    settings = {name: older.pop(name) for name in names if name in older}
    if not settings:
        return None
    if isinstance(settings.get("image_folder"), os.PathLike):
        settings["image_folder"] = os.fspath(settings["image_folder"])
    return entry_of(**settings)


def entry_of(**settings: Any) -> FolderKeys:
    """Return settings of a program as an entry of a metadataset.

    Args:
        settings: Keys of the entry, except `path`; None stands for no value.

    Raises:
        ConfigError: For values that a file could not have.
    """
    meaningful = "shuffle_over_epochs_multiplier"  # whose None is a value
    keys = {
        name: value
        for name, value in settings.items()
        if value is not None or name == meaningful
    }
    subset = keys.pop("subset") if isinstance(keys.get("subset"), Subset) else None
    data = {"path": ".", **keys}
    try:
        entry = _FOLDER_KEYS.validate_python(data)
    except ValidationError as error:
        path, message = faults(error, _FOLDER_KEYS, data)[0]
        raise ConfigError(f"{path[0]}: {message}") from None
    return entry if subset is None else entry.model_copy(update={"subset": subset})


def _remembered(dataset: Dataset[Any], path: Any, split_part: str) -> Dataset[Any]:
    """Return a dataset with its mix in saved states."""
    if not isinstance(path, str | os.PathLike):
        return dataset
    file = os.fspath(path) if is_url(path) else os.path.abspath(path)
    return dataset.with_mix_file(file, split_part)
