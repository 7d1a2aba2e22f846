"""From a path to a dataset of typed batches: what training and validation scripts call."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from energize.core.checks import checked_whole
from energize.core.costs import Cost
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.data.files import own_errors
from energize.datasets.item_cost import ItemCost
from energize.datasets.order import ConcatDataset, EpochizeDataset, LimitDataset
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError
from energize.metadataset.asked import asked_for
from energize.metadataset.blending import Mixer, ends
from energize.metadataset.built import trained_by, validated_by
from energize.metadataset.leaves import STORED, ReadingOrder
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import Blend, Leaf, Node, Staged, not_staged, resolve
from energize.metadataset.shares import leaves_of
from energize.order.stages import Stage, StagePlan, stage_label
from energize.task.build import Level, decoding_as
from energize.task.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task.hooks import builds, check_encoder
from energize.task.load import loading_code

T_batch = TypeVar("T_batch")

_log = logging.getLogger("energize")

PathLike = str | os.PathLike[str] | Mapping[str, Any]
"""A prepared folder or a metadataset file, or a mapping with what such a file says."""
GivenMix = PathLike | Node | Staged
"""The same, or what was made of it already."""
Encoder = TaskEncoder[Any, Any, Any, T_batch]
Encoders = Encoder[T_batch] | Mapping[type[Any], Encoder[T_batch]]
"""One task encoder for all samples, or one for each sample type."""


@own_errors
def get_train_dataset(
    path: GivenMix,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: Encoders[T_batch] | None = None,
    repeat: bool = True,
    level: Cost | ItemCost | None = None,
    global_batch_size: int | None = None,
    level_buffer_size: int | None = None,
    checksums: bool = False,
    **older: Any,
) -> Dataset[T_batch]:
    """Batches for training, from a prepared folder or a metadataset file: shuffled, without end.

    Samples of the parts of a metadataset are drawn in the proportion of their weights, go through
    the hooks of `task_encoder`, and come as batches of exactly `batch_size` samples (None: as
    encoded samples). With `packing_buffer_size` the encoder's hooks make packs of so many samples
    at a time, and batches are of packs. Given a dict of sample types and encoders, each encoder
    makes batches of its own from the parts of its type, and whole batches are blended by weight; a
    blend with parameters of its own is mixed sample by sample if its parts have one encoder, else
    in whole batches of its entries. An encoder that overrides `build_train_datasets` puts the
    datasets together itself.

    `repeat=False` gives a folder once per epoch, the last batch short unless `batch_drop_last`. A
    metadataset whose outermost blend ends by its own parameters (a stop rule, quotas) comes in
    these epochs; `drop_last` in its `composition` wins over `batch_drop_last`.
    `virtual_epoch_length` says where a loop ends, after that many batches on each rank, as in
    Energon; the next loop goes on after them, and what is read does not depend on it. `len` of the
    result is then that number, else that of one pass by weight. Every epoch is in a new order;
    `max_samples_per_sequence` and `shuffle_buffer_size` keep reads local, see `ShuffleDataset`.

    A split with stages gives a `StagedDataset` of what this function makes of each stage; a
    `batch_size` in the stage's `batch` wins over that given here. `get_staged_train_dataset` does
    the same with settings for stages, such as another task encoder for each.

    With `level` and `global_batch_size`, the samples of each global batch are shared out to its
    batches so that these cost the same, by a column of the folders or a function of columns: see
    `LevelDataset`. With `level=ItemCost(...)`, of what has been encoded or packed,
    `level_buffer_size` samples or packs are levelled at a time, by default those of 64 batches: see
    `LevelBufferDataset`.

    `sample_loader` and `part_filter` are functions that make the fields of samples, in place of
    field maps, and `trust_code=[folder, ...]` lets those run that a folder brings along: see
    `LoadingCode`. Without it nothing of a folder is ever run.

    With `checksums` every sample is compared, as it is read, with the checksum that `energize
    prepare --checksums` wrote for it; one that differs is a damaged sample. All folders have to
    have them.

    `dataset_config`, `split_config`, `subflavors`, `subset` and `sample_weight` are those of an
    entry of a metadataset that names `path`. Older arguments of Energon say how samples are decoded
    (`auto_decode`, `image_decode`, `av_decode`, `video_decode_audio`, see `SampleDecoder`), or have
    no use here, of which a word in the log says why.

    `worker_config` is carried along for `get_loader`, and its `seed_offset` chooses the order;
    ranks and workers do not. Raises `MetadatasetError`, `DatasetError` and `ConfigError`, all
    before a sample is read.
    """
    path = asked_for(path, split_part, older)
    code = loading_code(older)
    encoder = decoding_as("get_train_dataset", task_encoder, older)
    order = ReadingOrder(
        0 if worker_config is None else worker_config.seed_offset,
        shuffle_buffer_size,
        max_samples_per_sequence,
        shuffle_over_epochs_multiplier,
        checksums,
    )
    own = builds(encoder, "build_train_datasets")
    mixer = Mixer(
        order,
        _chooser(None if own else encoder),
        batch_size,
        batch_drop_last,
        packing_buffer_size,
        worker_config,
        code,
        level=Level.asked(level, global_batch_size, level_buffer_size),
    )
    cuts: dict[str, Any] = {"virtual_epoch_length": virtual_epoch_length, "repeat": repeat}
    if own and mixer.level is not None:
        raise ConfigError(
            f"{type(encoder).__name__} builds its dataset itself, so level has no batches to make; "
            "put a LevelDataset below the batches there"
        )
    if own:
        return trained_by(encoder, path, split_part, mixer, **cuts)
    return _trained(path, split_part, mixer, **cuts)


def _trained(
    path: GivenMix, split_part: str, mixer: Mixer, *, virtual_epoch_length: int, repeat: bool
) -> Dataset[Any]:
    node = path if isinstance(path, Leaf | Blend | Staged) else resolve(path, split_part)
    where = (node.place or "get_train_dataset") if node is path else path
    if isinstance(node, Staged):
        check_one_epoch(where, repeat=repeat, virtual_epoch_length=virtual_epoch_length)
        plan = node.plan.with_datasets(partial(_of_stage, mixer))
        return StagedDataset(
            plan, carry_over=_carries_over(where, plan), worker_config=mixer.worker_config
        )
    stream: Dataset[Any] = _batches(mixer, node, repeat=repeat)
    if not (repeat or ends(stream)):
        raise ConfigError(
            f"{where}: repeat=False reads once what is there, and a blend of "
            f"{len(leaves_of(node))} weighted parts never ends; leave repeat out, or cut epochs "
            "with virtual_epoch_length"
        )
    if virtual_epoch_length:
        stream = EpochizeDataset(stream, virtual_epoch_length)
    return stream._with_worker_config(mixer.worker_config)


@own_errors
def get_val_dataset(
    path: GivenMix,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
    checksums: bool = False,
    **older: Any,
) -> Dataset[T_batch]:
    """Batches for validation: every sample once, in stored order, the same in every epoch and run.

    The parts of a metadataset follow one another, whatever their weights. The last batch is short
    unless `batch_drop_last`. `limit` says what is read: the first `limit` batches, counted over all
    ranks, so that what is validated does not depend on their number (Energon counts them on each
    rank). `checksums` are those of `get_train_dataset`.

    Raises what `get_train_dataset` raises.
    """
    path = asked_for(path, split_part, older)
    code = loading_code(older)
    encoder = decoding_as("get_val_dataset", task_encoder, older)
    own = builds(encoder, "build_val_datasets")
    encoder_of = _chooser(None if own else encoder)
    order = replace(STORED, checksums=checksums)
    mixer = Mixer(
        order, encoder_of, batch_size, batch_drop_last, packing_buffer_size, worker_config, code
    )
    if own:
        return validated_by(encoder, path, split_part, mixer, limit=limit)
    groups: dict[int, list[Leaf]] = {}
    node = _validated(path, split_part)
    for leaf in leaves_of(node):
        groups.setdefault(id(encoder_of(leaf)), []).append(leaf)
    streams = [_stored(leaves, mixer.as_told(node)) for leaves in groups.values()]
    return _limited(_joined(streams), limit)._with_worker_config(worker_config)


@own_errors
def get_val_datasets(
    path: GivenMix,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
    checksums: bool = False,
    **older: Any,
) -> list[tuple[Dataset[T_batch], Leaf]]:
    """One validation dataset for each folder of a metadataset, each with the leaf it was made from.

    `leaf.path`, `leaf.split_part` and `leaf.subflavors` say which folder it is. `limit` counts for
    each, `checksums` are those of `get_train_dataset`, whose errors it raises.
    """
    path = asked_for(path, split_part, older)
    code = loading_code(older)
    encoder_of = _chooser(decoding_as("get_val_datasets", task_encoder, older))
    order = replace(STORED, checksums=checksums)
    mixer = Mixer(
        order, encoder_of, batch_size, batch_drop_last, packing_buffer_size, worker_config, code
    )
    datasets: list[tuple[Dataset[T_batch], Leaf]] = []
    node = _validated(path, split_part)
    for leaf in leaves_of(node):
        batches = _stored([leaf], mixer.as_told(node))
        datasets.append((_limited(batches, limit)._with_worker_config(worker_config), leaf))
    return datasets


def batch_size_of(stage: Stage[Any], otherwise: int | None) -> int | None:
    """The `batch_size` in the stage's `batch`, else the one for all stages.

    Raises `ConfigError` for one that is not a whole number above 0.

    >>> batch_size_of(Stage("long", dataset=None, batch={"batch_size": 2}), 8)
    2
    """
    if "batch_size" not in stage.batch:
        return otherwise
    return checked_whole(
        stage.batch["batch_size"], f"{stage_label(stage)}: batch_size in its batch", 1
    )


def check_one_epoch(where: object, *, repeat: bool = True, virtual_epoch_length: int = 0) -> None:
    """Raise `ConfigError` for options that cut epochs: stages make one, the run."""
    if not repeat:
        raise ConfigError(
            f"{where}: repeat=False reads once what is there, and stages say in which steps it is "
            "read; leave repeat out"
        )
    if virtual_epoch_length:
        raise ConfigError(
            f"{where}: virtual_epoch_length={virtual_epoch_length} cuts epochs, and stages are one "
            "epoch, the whole run; leave it out, and count batches in the training loop"
        )


def _validated(path: GivenMix, split_part: str) -> Node:
    node = path if isinstance(path, Leaf | Blend | Staged) else resolve(path, split_part)
    place = node.place if node is path else str(path)
    return not_staged(node, place, "validation reads every sample once")


def _carries_over(where: object, plan: StagePlan[Dataset[Any]]) -> bool:
    """Whether sources go on where earlier stages left them; packed ones and others that are streams
    cannot, of which the log tells.
    """
    streams = [stage.name for stage in plan.stages if not stage.dataset.indexed]
    if streams:
        _log.warning(
            "%s: stage %s is a stream, so every stage begins its sources anew, instead of after "
            "what earlier stages took",
            where,
            streams[0],
        )
    return not streams


def _of_stage(mixer: Mixer, stage: Stage[Node]) -> Dataset[Any]:
    own = replace(mixer, batch_size=batch_size_of(stage, mixer.batch_size))
    with place_noted(stage.dataset.place):
        return _batches(own, stage.dataset, repeat=True)


def _batches(mixer: Mixer, node: Node, *, repeat: bool) -> Dataset[Any]:
    """The batches of a node; with `repeat` without end, unless the node says where it ends."""
    by_folder = isinstance(node, Leaf) or node.repeated
    return mixer.batches(node, repeat=repeat and by_folder)


def _chooser(given: Encoders[T_batch] | None) -> Callable[[Leaf], Encoder[T_batch]]:
    """The task encoder of a leaf: the only one, or the one for the type of its samples."""
    if not isinstance(given, Mapping):
        only = _checked(DefaultTaskEncoder() if given is None else given)
        return lambda _: only
    by_type = {kind: _checked(encoder) for kind, encoder in given.items()}

    def choose(leaf: Leaf) -> Encoder[T_batch]:
        kind = leaf.sample_type
        if kind not in by_type:
            known = ", ".join(each.__name__ for each in by_type) or "none"
            raise ConfigError(
                f"{leaf.path} has samples of type {kind.__name__}, for which there is no task "
                f"encoder; those given are for {known}"
            )
        return by_type[kind]

    return choose


def _checked(encoder: object) -> Encoder[Any]:
    if not isinstance(encoder, TaskEncoder):
        hint = "; did you forget to call it?" if isinstance(encoder, type) else ""
        raise ConfigError(
            "task_encoder is a TaskEncoder, or a dict of sample types and task encoders; got "
            f"{encoder!r}{hint}"
        )
    check_encoder(encoder)
    return encoder


def _stored(leaves: Sequence[Leaf], mixer: Mixer) -> Dataset[Any]:
    """The batches of leaves of one encoder one after the other, in stored order."""
    samples = _joined([mixer.samples(leaf) for leaf in leaves])
    return mixer.batched(samples, mixer.encoder_of(leaves[0]))


def _joined(parts: list[Dataset[Any]]) -> Dataset[Any]:
    return parts[0] if len(parts) == 1 else ConcatDataset(*parts)


def _limited(batches: Dataset[T_batch], limit: int | None) -> Dataset[T_batch]:
    return batches if limit is None else LimitDataset(batches, limit)
