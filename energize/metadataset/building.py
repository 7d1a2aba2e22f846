"""From a path to a dataset of typed batches: what training and validation scripts call."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.metadataset.flattening import leaves_with_weights
from energize.metadataset.leaves import ordered_source, sample_type_of, typed_samples
from energize.metadataset.resolving import Blend, Leaf, Node, resolve
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder, active_hooks
from energize.topology import WorkerConfig
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.concat import ConcatDataset
from energize.wrappers.epochize import EpochizeDataset
from energize.wrappers.limit import LimitDataset
from energize.wrappers.map import MapDataset
from energize.wrappers.repeat import RepeatDataset

__all__ = ["get_train_dataset", "get_val_dataset", "get_val_datasets"]

T_batch = TypeVar("T_batch")

PathLike = str | os.PathLike[str]
Mix = PathLike | Node
"""A prepared folder or a metadataset file; or what was made of one already."""
Encoder = TaskEncoder[Any, Any, Any, T_batch]
Encoders = Encoder[T_batch] | Mapping[type[Any], Encoder[T_batch]]
"""One task encoder for all samples, or one for each sample type."""


def get_train_dataset(
    path: Mix,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: Encoders[T_batch] | None = None,
    repeat: bool = True,
) -> Dataset[T_batch]:
    """Batches for training, from a prepared folder or a metadataset file: shuffled, without end.

    Samples of the parts of a metadataset are drawn in the proportion of their weights, go through
    the hooks of `task_encoder`, and come as batches of exactly `batch_size` samples (None: as
    encoded samples). Given a dict of sample types and encoders, each encoder makes batches of its
    own from the parts of its type, and whole batches are blended by weight. `repeat=False` gives a
    folder once per epoch, the last batch short unless `batch_drop_last`. `virtual_epoch_length`
    cuts epochs of that many batches. Every epoch is in a new order; `max_samples_per_sequence` and
    `shuffle_buffer_size` keep reads local, see `ShuffleDataset`.

    `worker_config` is carried along for `get_loader`, and its `seed_offset` chooses the order;
    ranks and workers do not. Raises `MetadatasetError`, `DatasetError` and `ConfigError`, all
    before a sample is read.
    """
    node = path if isinstance(path, Leaf | Blend) else resolve(path, split_part)
    parts = leaves_with_weights(node)
    if len(parts) > 1 and not repeat:
        raise ConfigError(
            f"{path}: repeat=False reads once what is there, and a blend of {len(parts)} weighted "
            "parts never ends; leave repeat out, or cut epochs with virtual_epoch_length"
        )
    in_order = partial(
        ordered_source,
        seed=0 if worker_config is None else worker_config.seed_offset,
        shuffle=True,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
    )
    streams: list[tuple[Dataset[T_batch], Fraction]] = []
    for encoder, group in _by_encoder(parts, task_encoder):
        typed = [(typed_samples(in_order(leaf), leaf, encoder.decoder), w) for leaf, w in group]
        samples = _blended(typed) if repeat else typed[0][0]
        batches = _encoded(samples, encoder, batch_size, batch_drop_last)
        streams.append((batches, sum((share for _, share in group), Fraction(0))))
    stream = streams[0][0] if len(streams) == 1 else _blended(streams)
    if virtual_epoch_length:
        stream = EpochizeDataset(stream, virtual_epoch_length)
    return stream.with_worker_config(worker_config)


def get_val_dataset(
    path: PathLike,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
) -> Dataset[T_batch]:
    """Batches for validation: every sample once, in stored order, the same in every epoch and run.

    The parts of a metadataset follow one another, whatever their weights. The last batch is short
    unless `batch_drop_last`. `limit` keeps the first `limit` batches, counted over all ranks, so
    that what is validated does not depend on their number.

    Raises what `get_train_dataset` raises.
    """
    parts = leaves_with_weights(resolve(path, split_part))
    streams = [
        _encoded(
            _joined([_stored(leaf, encoder) for leaf, _ in group]),
            encoder,
            batch_size,
            batch_drop_last,
        )
        for encoder, group in _by_encoder(parts, task_encoder)
    ]
    return _limited(_joined(streams), limit).with_worker_config(worker_config)


def get_val_datasets(
    path: PathLike,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    limit: int | None = None,
    task_encoder: Encoders[T_batch] | None = None,
) -> list[tuple[Dataset[T_batch], Leaf]]:
    """One validation dataset for each folder of a metadataset, each with the leaf it was made from.

    `leaf.path`, `leaf.split_part` and `leaf.subflavors` say which folder it is. `limit` counts for
    each. Raises what `get_train_dataset` raises.
    """
    datasets: list[tuple[Dataset[T_batch], Leaf]] = []
    for part in leaves_with_weights(resolve(path, split_part)):
        (encoder, ((leaf, _), *_)), *_ = _by_encoder([part], task_encoder)
        batches = _encoded(_stored(leaf, encoder), encoder, batch_size, batch_drop_last)
        datasets.append((_limited(batches, limit).with_worker_config(worker_config), leaf))
    return datasets


def _by_encoder(
    parts: list[tuple[Leaf, Fraction]], given: Encoders[T_batch] | None
) -> list[tuple[Encoder[T_batch], list[tuple[Leaf, Fraction]]]]:
    """The parts that each task encoder serves."""
    choose = _chooser(given)
    groups: dict[int, tuple[Encoder[T_batch], list[tuple[Leaf, Fraction]]]] = {}
    for leaf, share in parts:
        encoder = choose(leaf)
        groups.setdefault(id(encoder), (encoder, []))[1].append((leaf, share))
    return list(groups.values())


def _chooser(given: Encoders[T_batch] | None) -> Callable[[Leaf], Encoder[T_batch]]:
    """The task encoder of a leaf: the only one, or the one for the type of its samples."""
    if not isinstance(given, Mapping):
        only = _checked(DefaultTaskEncoder() if given is None else given)
        return lambda _: only
    by_type = {kind: _checked(encoder) for kind, encoder in given.items()}

    def choose(leaf: Leaf) -> Encoder[T_batch]:
        kind = sample_type_of(leaf)
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
    return encoder


def _stored(leaf: Leaf, encoder: Encoder[Any]) -> Dataset[Any]:
    return typed_samples(ordered_source(leaf, seed=0, shuffle=False), leaf, encoder.decoder)


def _encoded(
    samples: Dataset[Any], encoder: Encoder[T_batch], batch_size: int | None, drop_last: bool
) -> Dataset[T_batch]:
    """Samples through the hooks of a task encoder; hooks that do nothing cost nothing."""
    hooks = active_hooks(encoder)
    if "encode_sample" in hooks:
        samples = MapDataset(samples, encoder.encode_sample)
    if batch_size is None:
        return samples
    batches: Dataset[Any] = BatchDataset(samples, batch_size, encoder.batch, drop_last=drop_last)
    if "encode_batch" in hooks:
        batches = MapDataset(batches, encoder.encode_batch)
    return batches


def _blended(parts: list[tuple[Dataset[Any], Fraction]]) -> Dataset[Any]:
    """Parts in the exact ratio of their shares, for ever."""
    if len(parts) == 1:
        return RepeatDataset(parts[0][0])
    common = math.lcm(*(share.denominator for _, share in parts))
    return BlendDataset([(dataset, int(share * common)) for dataset, share in parts])


def _joined(parts: list[Dataset[Any]]) -> Dataset[Any]:
    return parts[0] if len(parts) == 1 else ConcatDataset(*parts)


def _limited(batches: Dataset[T_batch], limit: int | None) -> Dataset[T_batch]:
    return batches if limit is None else LimitDataset(batches, limit)
