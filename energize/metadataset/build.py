"""From a path to a dataset of typed batches: what training and validation scripts
call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from energize.core.checks import checked_whole, real_number
from energize.core.costs import Cost, ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig, checked_config
from energize.core.node import INFINITE
from energize.core.os_errors import is_url, own_errors
from energize.core.samples import CrudeSample
from energize.core.validation import faults
from energize.data.manifest import by_manifest
from energize.data.source import Subset
from energize.data.stores import open_store
from energize.datasets.blend import BlendDataset
from energize.datasets.mix_args import MixEntry
from energize.datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
)
from energize.datasets.quota import ComposedDataset, QuotaDataset
from energize.datasets.stage_plan import Stage, stage_label
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError, EnergizeError
from energize.inference.options import OF_SAMPLES
from energize.inference.verify import inferred_texts
from energize.metadataset.located import noted, place_noted
from energize.metadataset.models import EPOCHIZED, Composition, Folder
from energize.metadataset.tree import (
    Blend,
    JoinedLeaf,
    Leaf,
    Node,
    Share,
    Staged,
    combined_multiplier,
    every_leaf,
    leaves_of,
    not_staged,
    plain_shares,
    resolve,
    shares_below,
    user_factory,
)
from energize.order import Schedule
from energize.task.encoder import (
    DefaultTaskEncoder,
    Level,
    PackingEncoder,
    TaskEncoder,
    after_batch,
    decoding_as,
)
from energize.task.hooks import Hook, builds, check_encoder, validating
from energize.task.load import (
    NO_CODE,
    JoinLoader,
    LoadingCode,
    SampleDecoder,
    SampleLoader,
    loading_code,
)
from energize.task.pipeline import (
    STORED,
    DatasetBlendMode,
    LoadedDataset,
    LoadedDatasetList,
    SampleOrder,
    SourceFactory,
)

T_batch = TypeVar("T_batch")

_log = logging.getLogger("energize")

GivenMix = str | os.PathLike[str] | Mapping[str, Any] | Node | Staged
"""A prepared folder or a metadataset file, or a mapping with what such a file says; or
what was made of one already."""
Encoder = TaskEncoder[Any, Any, Any, T_batch]
Encoders = Encoder[T_batch] | Mapping[type[Any], Encoder[T_batch]]
"""One task encoder for all samples, or one for each sample type."""

_ENTRY = TypeAdapter(Folder)
_OF_FOLDERS = (
    "dataset_config",
    "split_config",
    "subflavors",
    "subset",
    "sample_weight",
)
_BY_QUOTA = (
    "says in which order a dataset is read, but here a quota does: each pass over it "
    "is in a "
    "random order of its own"
)
_ONCE = "validation reads every sample once"
_NOT_TOLD = (
    "get_datasets tells weights, or repetitions, of single datasets, and this mix has "
    "{} beside "
    "them; get_train_dataset reads it"
)


def _remembered(dataset: Dataset[Any], path: GivenMix, split_part: str) -> Dataset[Any]:
    """Return a dataset whose states say which mix they are of."""
    if not isinstance(path, str | os.PathLike):
        return dataset
    file = os.fspath(path) if is_url(path) else os.path.abspath(path)
    return dataset.with_mix_file(file, split_part)


@own_errors
@by_manifest
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
    verify: bool = True,
    **older: Any,
) -> Dataset[T_batch]:
    """Return batches for training of a prepared folder or a metadataset: shuffled,
    without end.

    Samples of the parts of a metadataset are drawn in the proportion of their weights,
    go through the hooks of `task_encoder`, and come as batches of exactly `batch_size`
    samples (None: as encoded samples). With `packing_buffer_size` the encoder's hooks
    make packs of so many samples at a time, and batches are of packs. Given a dict of
    sample types and encoders, each encoder makes batches of its own from the parts of
    its type, and whole batches are blended by weight; a blend with parameters of its
    own is mixed sample by sample if its parts have one encoder, else in whole batches
    of its entries. An encoder that overrides `build_train_datasets` puts the datasets
    together itself.

    `repeat=False` gives a folder once per epoch, the last batch short unless
    `batch_drop_last`. A metadataset whose outermost blend ends by its own parameters (a
    stop rule, quotas) comes in these epochs; `drop_last` in its `composition` wins over
    `batch_drop_last`. `virtual_epoch_length` says where a loop ends, after that many
    batches on each rank, as in Energon; the next loop goes on after them, and what is
    read does not depend on it. `len` of the result is then that number, else that of
    one pass by weight. Every epoch is in a new order; `max_samples_per_sequence` and
    `shuffle_buffer_size` keep reads local, see `ShuffleDataset`. With
    `shuffle_over_epochs_multiplier=None` samples come in stored order, and a
    `shuffle_buffer_size` shuffles them within windows of that size, as in Energon.

    A split with stages gives a `StagedDataset` of what this function makes of each
    stage; a `batch_size` in the stage's `batch` wins over that given here.
    `get_staged_train_dataset` does the same with settings for stages, such as another
    task encoder for each.

    With `level` and `global_batch_size`, the samples of each global batch are shared
    out to its batches so that these cost the same, by a column of the folders or a
    function of columns: see `LevelDataset`. With `level=ItemCost(...)`, of what has
    been encoded or packed, `level_buffer_size` samples or packs are levelled at a time,
    by default those of 64 batches: see `LevelBufferDataset`.

    `sample_loader` and `part_filter` are functions that make the fields of samples, in
    place of field maps, and `trust_code=[folder, ...]` lets those run that a folder
    brings along: see `LoadingCode`. Without it nothing of a folder is ever run.

    With `checksums` every sample is compared, as it is read, with the checksum that
    `energize prepare --checksums` wrote for it; one that differs is a damaged sample.
    All folders have to have them.

    What is inferred of loose data is verified first: at most 64 samples of each path
    are read and decoded, once for each version of the data. `verify=False` skips it.

    `dataset_config`, `split_config`, `subflavors`, `subset` and `sample_weight`, and of
    loose files `sample_type`, `field_map`, `image_folder` and `strict`, are those of an
    entry of a metadataset that names `path`. Older arguments of Energon say how samples
    are decoded (`auto_decode`, `image_decode`, `av_decode`, `video_decode_audio`, see
    `SampleDecoder`), or have no use here, of which a word in the log says why.

    `worker_config` is carried along for `get_loader`, and its `seed_offset` chooses the
    order; ranks and workers do not. Raises `MetadatasetError`, `DatasetError` and
    `ConfigError`, all before a sample is read.
    """
    asked = _asked(
        "get_train_dataset", path, split_part, task_encoder, older, verify=verify
    )
    node, where, code, encoder = asked
    own = builds(encoder, "build_train_datasets")
    asked_level = Level.asked(level, global_batch_size, level_buffer_size)
    if own and asked_level is not None:
        raise ConfigError(
            f"{type(encoder).__name__} builds its dataset itself, so level has no "
            "batches to make"
        )
    builder = Builder(
        _chooser(None if own else encoder),
        SampleOrder(
            shuffle_over_epochs_multiplier,
            max_samples_per_sequence,
            shuffle_buffer_size,
        ),
        code,
        checksums,
        worker_config,
        batch_size,
        batch_drop_last,
        packing_buffer_size,
        asked_level,
    )
    cuts: dict[str, Any] = {
        "repeat": repeat,
        "virtual_epoch_length": virtual_epoch_length,
    }
    if own:
        order = {"shuffle_buffer_size": shuffle_buffer_size}
        built = builder.built_by(encoder, node, where, training=True, **order, **cuts)
    else:
        built = builder.trained(node, where, **cuts)
    return _remembered(built.with_role("train"), path, split_part)


@own_errors
@by_manifest
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
    verify: bool = True,
    **older: Any,
) -> Dataset[T_batch]:
    """Batches for validation: every sample once, in stored order, the same in every
    epoch and run.

    The parts of a metadataset follow one another, whatever their weights. The last
    batch is short unless `batch_drop_last`. `limit` says what is read: the first
    `limit` batches, counted over all ranks, so that what is validated does not depend
    on their number.
    `checksums` are those of `get_train_dataset`.

    Raises what `get_train_dataset` raises.
    """
    asked = _asked(
        "get_val_dataset", path, split_part, task_encoder, older, verify=verify
    )
    node, where, code, encoder = asked
    own = builds(encoder, "build_val_datasets")
    encoder_of = _chooser(None if own else encoder)
    sizes = batch_size, batch_drop_last, packing_buffer_size
    builder = Builder(encoder_of, STORED, code, checksums, worker_config, *sizes)
    with validating():
        if own:
            built = builder.built_by(encoder, node, where, training=False, limit=limit)
            # Fingerprints of saved states include this node.
            dataset: Dataset[Any] = ConcatDataset(built, worker_config=worker_config)
        else:
            node = not_staged(node, where, _ONCE)
            dataset = builder.validated(leaves_of(node), node, limit)
    return _remembered(dataset.with_role("eval"), path, split_part)


@own_errors
@by_manifest
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
    verify: bool = True,
    **older: Any,
) -> list[tuple[Dataset[T_batch], Leaf]]:
    """Return one validation dataset for each folder of a metadataset, each with the
    leaf it was made from.

    `leaf.name` is the name of its entry in the metadataset, as reports have it.
    `leaf.path`, `leaf.split_part` and `leaf.subflavors` describe the folder. `limit`
    counts for each, `checksums` are those of `get_train_dataset`, whose errors it
    raises.
    """
    asked = _asked(
        "get_val_datasets", path, split_part, task_encoder, older, verify=verify
    )
    node, where, code, encoder = asked
    sizes = batch_size, batch_drop_last, packing_buffer_size
    builder = Builder(_chooser(encoder), STORED, code, checksums, worker_config, *sizes)
    node = not_staged(node, where, _ONCE)
    with validating():
        return [
            (builder.validated([leaf], node, limit).with_role("eval"), leaf)
            for leaf in leaves_of(node)
        ]


def _asked(
    owner: str,
    path: Any,
    split_part: str,
    task_encoder: Any,
    older: dict[str, Any],
    *,
    verify: bool,
) -> tuple[Node | Staged, object, LoadingCode, Any]:
    """Return what is read, where that was asked for, what may be run, and the encoder.

    Settings of an entry of a metadataset among the `older` arguments are those of one
    that names the path: they win over those of files. With `verify`, what was inferred
    of loose data is compared with samples.
    """
    if isinstance(path, Leaf | Blend | Staged):
        node = path
        where = path.place or owner
    else:
        where = path
        mix = _mix_of(path, split_part)
        if not isinstance(mix, str | os.PathLike | Mapping):
            raise ConfigError(
                "expected the path of a folder or a metadataset; got a "
                f"{type(mix).__name__}. Of a "
                "dataset, IterableSource(...) say, BatchDataset(dataset, 32, "
                "generic_batch) makes "
                "batches, or "
                "encoder.build_batch(encoder.build_encode_sample(dataset), "
                "batch_size=32)"
            )
        given = {
            name: older.pop(name)
            for name in (*_OF_FOLDERS, *OF_SAMPLES)
            if name in older
        }
        if isinstance(given.get("image_folder"), os.PathLike):
            given["image_folder"] = os.fspath(given["image_folder"])
        node = resolve(mix, split_part, entry_of(**given) if given else None)
    code = loading_code(older)
    encoder = decoding_as(owner, task_encoder, older)
    for leaf in every_leaf(node) if verify else ():
        leaf.verify()
    return node, where, code, encoder


def _mix_of(given: Any, split_part: str) -> Any:
    """Return the mix that several paths are, blended by weights, of which 1 is what
    none is; or the path of the split part, where they are named by these. What is none
    is returned as it is.

    >>> _mix_of({"photos/": 0.6, "texts/": 0.4}, "train") == _mix_of(
    ...     [("photos/", 0.6), {"path": "texts/", "weight": 0.4}], "train"
    ... )
    True
    """
    if isinstance(given, Mapping) and "path" not in given:
        values = list(given.values())
        if {"train", "val"} >= given.keys() and split_part in given:
            return given[split_part]
        parts = list(given.items()) if all(map(real_number, values)) else values
    elif isinstance(given, list | tuple):
        parts = list(given)
    else:
        return given
    entries = [_entry_of_mix(each) for each in parts]
    if not entries or not all(entries):
        return given
    named = {"__module__": "energize", "__class__": "MetadatasetV2"}
    return {**named, "splits": {split_part: {"blend": entries}}}


def _entry_of_mix(value: Any) -> Mapping[str, Any] | None:
    """Return an entry of a mix from a path, a path and its weight, or what an entry
    says.
    """
    path, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, 1)
    if isinstance(path, str | os.PathLike) and real_number(weight) is not None:
        return {"path": os.fspath(path), "weight": weight}
    return value if isinstance(value, Mapping) and "path" in value else None


def entry_of(**settings: Any) -> Folder:
    """Return settings of a program as an entry of a metadataset that names what they
    are for.

    Raises `ConfigError` for values that a file could not have.
    """
    kept = "shuffle_over_epochs_multiplier"  # whose None says something
    given = {
        name: value
        for name, value in settings.items()
        if value is not None or name == kept
    }
    subset = given.pop("subset") if isinstance(given.get("subset"), Subset) else None
    data = {"path": ".", **given}
    try:
        entry = _ENTRY.validate_python(data)
    except ValidationError as error:
        path, message = faults(error, _ENTRY, data)[0]
        raise ConfigError(f"{path[0]}: {message}") from None
    return entry if subset is None else entry.model_copy(update={"subset": subset})


def batch_size_of(stage: Stage[Any], otherwise: int | None) -> int | None:
    """Return the `batch_size` in the stage's `batch`, else the one for all stages.

    Raises `ConfigError` for one that is not a whole number above 0.

    >>> batch_size_of(Stage("long", dataset=None, batch={"batch_size": 2}), 8)
    2
    """
    if "batch_size" not in stage.batch:
        return otherwise
    where = f"{stage_label(stage)}: batch_size in its batch"
    return checked_whole(stage.batch["batch_size"], where, 1)


def check_one_epoch(
    where: object, *, repeat: bool = True, virtual_epoch_length: int = 0
) -> None:
    """Raise `ConfigError` for options that cut epochs: stages make one, the run."""
    cut = "" if repeat else "repeat=False reads once what is there"
    if virtual_epoch_length:
        cut = f"virtual_epoch_length={virtual_epoch_length} cuts epochs"
    if cut:
        raise ConfigError(
            f"{where}: {cut}, and stages are one epoch, the whole run; leave it out"
        )


def _chooser(given: Any) -> Callable[[Leaf], Encoder[Any]]:
    """Return the task encoder of a leaf: the only one, or the one for the type of its
    samples.
    """
    if not isinstance(given, Mapping):
        only = _checked(DefaultTaskEncoder() if given is None else given)
        return lambda _: only
    by_type = {kind: _checked(encoder) for kind, encoder in given.items()}

    def choose(leaf: Leaf) -> Encoder[Any]:
        kind = leaf.sample_type
        if kind not in by_type:
            raise ConfigError(
                f"{leaf.path} has samples of type {kind.__name__}, for which there is "
                "no task "
                "encoder; those given are for "
                f"{', '.join(each.__name__ for each in by_type)}"
            )
        return by_type[kind]

    return choose


def _checked(encoder: object) -> Encoder[Any]:
    if not isinstance(encoder, TaskEncoder):
        hint = "; did you forget to call it?" if isinstance(encoder, type) else ""
        kinds = "a TaskEncoder, or a dict of sample types and task encoders"
        raise ConfigError(f"task_encoder is {kinds}; got {encoder!r}{hint}")
    check_encoder(encoder)
    return encoder


# From nodes to datasets


def factory_of(
    leaf: Leaf,
    order: SampleOrder = STORED,
    *,
    decoder: SampleDecoder | None,
    code: LoadingCode = NO_CODE,
    seed: int = 0,
    checksums: bool = False,
    factory: type[SourceFactory[Any]] = SourceFactory,
    **options: Any,
) -> SourceFactory[Any]:
    """Return what makes the samples of a leaf, of the type that the folder's
    dataset.yaml names, or that a joiner makes. `code` is what the program allows of
    functions that it names.

    The `order` combines with what files say, and with what dataset.yaml says. The
    result is a `factory`, and `options` are those of `SourceFactory`.
    """
    kind = leaf.sample_type
    told = leaf.config.options
    over_epochs = order.over_epochs
    for each in (
        leaf.shuffle_over_epochs_multiplier,
        told.get("shuffle_over_epochs", 1),
    ):
        if each != 1:
            over_epochs = combined_multiplier(over_epochs, each)
    order = replace(order, over_epochs=over_epochs)
    if order.max_samples_per_sequence is None and "max_samples_per_sequence" in told:
        order = replace(
            order, max_samples_per_sequence=told["max_samples_per_sequence"]
        )
    try:
        if isinstance(leaf, JoinedLeaf):
            loaders = tuple(_loader_of(each.leaf, decoder, code) for each in leaf.parts)
            names = tuple(each.name for each in leaf.parts if each.name is not None)
            load: Any = JoinLoader(loaders, names or None, leaf.joined)
            paths = [each.leaf.path for each in leaf.parts]
        elif leaf.config.factory is not None:
            load = _load_of_user(leaf, decoder, code, seed)
            paths = [leaf.path]
        else:
            load = _loader_of(leaf, decoder, code)
            paths = [leaf.path]
        source = leaf.source(seed, checksums=checksums)
        options = {"order": order, "sample_weight": leaf.sample_weight, **options}
        return factory(source, load, kind, paths, leaf.labels, **options)
    except EnergizeError as error:
        raise noted(error, leaf.place) from error


def _load_of_user(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode, seed: int
) -> Callable[[Any], Any]:
    """Return what makes samples of the raw ones as the factory of a user does that a
    dataset.yaml names.
    """
    kind = user_factory(leaf.config)
    config = leaf.config
    decoder = None if decoder is None else decoder.with_options(config.options)
    loader, part_filter, decoder = code.of(leaf.path, config.code, decoder)
    given = {
        **(config.factory or {}),
        "sample_loader": loader,
        "part_filter": part_filter,
    }
    if "sample_type" in given:
        given["sample_type"] = leaf.sample_type
    if hasattr(kind, "decoder"):
        given["decoder"] = decoder
    made = kind(
        leaf.path,
        split_part=leaf.split_part,
        split_config=leaf.split_file,
        training=False,
        worker_config=WorkerConfig(0, 1, seed_offset=seed),
        **{
            name: value
            for name, value in given.items()
            if value is not None or name == "decoder"
        },
    )
    made.subflavors = leaf.labels
    load: Callable[[Any], Any] = made.load
    return load


def _loader_of(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode
) -> SampleLoader[Any]:
    """Return what makes typed samples of the raw ones of a leaf that is no join."""
    config = leaf.config
    crude = leaf.sample_type is CrudeSample
    decoder = None if decoder is None else decoder.with_options(config.options)
    sample_loader, part_filter, decoder = code.of(
        leaf.path, config.code, decoder, crude=crude
    )
    return SampleLoader(
        sample_type=leaf.sample_type,
        field_map=None if crude or sample_loader is not None else config.field_map,
        decoder=decoder,
        subflavors=leaf.labels,
        sample_loader=sample_loader,
        part_filter=part_filter,
        checked=()
        if leaf.loose is None or decoder is None
        else inferred_texts(leaf.loose, leaf.told),
    )


def loaded_datasets(
    node: Node, order: SampleOrder, **options: Any
) -> LoadedDatasetList:
    """Return the datasets of a tree with their weights or repetitions, as factories.

    Weights are normalised in each blend and multiplied on the way down, repetitions are
    multiplied; `options` are those of `factory_of`. Raises `ConfigError` for what such
    numbers cannot tell.
    """
    mode = DatasetBlendMode.NONE
    told = list[tuple[Any, dict[str, Any]]]()
    with place_noted(node.place):
        _check_told(node)
        if isinstance(node, Blend) and node.kind == EPOCHIZED:
            mode = DatasetBlendMode.SAMPLE_REPETITIONS
            for (child, _), quota in zip(node.children, node.quotas or (), strict=True):
                passes = 1 if quota.repeat is None else quota.repeat
                told.append(
                    (child, {"repetitions": int(passes) if passes % 1 == 0 else passes})
                )
        elif isinstance(node, Blend):
            mode = DatasetBlendMode.DATASET_WEIGHT
            parts = shares_below(Share(node), lambda _: True)
            told = [(part.node, {"weight": float(part.share)}) for part in parts]
        else:
            told = [(node, {})]
    datasets = [
        replace(_loaded(leaf, order, **options), **number) for leaf, number in told
    ]
    return LoadedDatasetList(datasets=datasets, blend_mode=mode)


def _loaded(leaf: Leaf, order: SampleOrder, **options: Any) -> LoadedDataset:
    aux = {name: open_store(ref) for name, ref in leaf.aux.items()}
    return LoadedDataset(dataset=factory_of(leaf, order, **options), aux=aux or None)


def _check_told(node: Node, outer: str = "") -> None:
    """Raise `ConfigError` for a mix that one number for each dataset cannot tell."""
    more = [key for key in ("packing", "level") if getattr(node, key) is not None]
    if isinstance(node, Blend):
        more += node.options.keys() & {"max_epochs", "unit"}
        more += ["stop"] if node.options.get("stop", "restart") != "restart" else []
        scheduled = any(isinstance(weight, Schedule) for _, weight in node.children)
        more += ["schedules"] if scheduled else []
        if node.quotas is not None and (outer or node.kind != EPOCHIZED):
            more.append(f"the quotas of {node.kind}")
        for child, _ in node.children:
            _check_told(child, node.kind)
    if more or (outer == EPOCHIZED and isinstance(node, Blend)):
        raise ConfigError(_NOT_TOLD.format(", ".join(more) or f"a blend in {outer}"))


@dataclass(frozen=True)
class Builder:
    """Makes batches of a tree.

    A node whose leaves share one task encoder is mixed sample by sample and batched
    once. In a node above such ones, whole batches of its entries are mixed; when it is
    plain, entries of one encoder count as one. What a folder's dataset.yaml says of the
    order holds where nothing else was asked; `over_epochs=None` is the stored order.
    """

    encoder_of: Callable[[Leaf], Encoder[Any]]
    order: SampleOrder
    code: LoadingCode
    checksums: bool
    worker_config: WorkerConfig | None
    batch_size: int | None
    drop_last: bool
    packing_buffer_size: int | None
    level: Level | None = None
    encoded: bool = False
    """Whether samples are encoded below the blends, as these count what encoded samples
    cost."""

    def __post_init__(self) -> None:
        if self.worker_config is not None:
            checked_config(self.worker_config)

    def built_by(
        self,
        encoder: Any,
        node: Node | Staged,
        where: object,
        *,
        training: bool,
        **options: Any,
    ) -> Dataset[Any]:
        """Return what an encoder makes that builds its dataset itself."""
        check_encoder(encoder)
        node = not_staged(node, where, "get_datasets makes datasets")
        options["worker_config"] = config = self.worker_config or WorkerConfig()
        decoder = encoder.decoder
        seed = config.seed_offset
        order = replace(self.order, shuffle_buffer_size=None)
        loaded = loaded_datasets(
            node, order, decoder=decoder, seed=seed, worker_config=config
        )
        build = encoder.build_val_datasets
        if training:
            build = encoder.build_train_datasets
            options["blend_mode"] = loaded.blend_mode
        built: Dataset[Any] = build(
            datasets=loaded.datasets, **self._batching, **options
        )
        return built

    def trained(
        self,
        node: Node | Staged,
        where: object,
        *,
        repeat: bool,
        virtual_epoch_length: int,
    ) -> Dataset[Any]:
        """Return the batches of a tree for training, asked for at `where`."""
        if isinstance(node, Staged):
            check_one_epoch(
                where, repeat=repeat, virtual_epoch_length=virtual_epoch_length
            )
            plan = node.plan.with_datasets(self._of_stage)
            streams = [stage.name for stage in plan.stages if not stage.dataset.indexed]
            if streams:
                text = (
                    "%s: stage %s is a stream, so every stage begins its sources anew"
                )
                _log.warning(text, where, streams[0])
            return StagedDataset(
                plan, carry_over=not streams, worker_config=self.worker_config
            )
        stream = self._endless(node) if repeat else self.batches(node, repeat=False)
        if not (repeat or _ends(stream)):
            raise ConfigError(
                f"{where}: repeat=False reads once what is there, and a blend of "
                f"{len(leaves_of(node))} weighted parts never ends; leave repeat out, "
                "or cut "
                "epochs with virtual_epoch_length"
            )
        if virtual_epoch_length:
            stream = EpochizeDataset(stream, virtual_epoch_length)
        return stream.with_worker_config(self.worker_config)

    def _of_stage(self, stage: Stage[Node]) -> Dataset[Any]:
        own = replace(self, batch_size=batch_size_of(stage, self.batch_size))
        with place_noted(stage.dataset.place):
            return own._endless(stage.dataset)

    def _endless(self, node: Node) -> Dataset[Any]:
        """Return the batches of a node, without end unless the node says where it
        ends.
        """
        return self.batches(node, repeat=isinstance(node, Leaf) or node.repeated)

    def validated(
        self, leaves: Sequence[Leaf], node: Node, limit: int | None
    ) -> Dataset[Any]:
        """Return batches of leaves, those of one encoder after the other, made as
        `node` says.
        """
        groups: dict[int, list[Leaf]] = {}
        for leaf in leaves:
            groups.setdefault(id(self.encoder_of(leaf)), []).append(leaf)
        builder = self._as_told(node)
        parts = []
        for group in groups.values():
            samples = [builder.samples(leaf) for leaf in group]
            batched = samples[0] if len(samples) == 1 else ConcatDataset(*samples)
            parts.append(builder._batched(batched, builder.encoder_of(group[0])))
        # Also around one part: fingerprints of saved states include it.
        batches: Dataset[Any] = ConcatDataset(*parts, worker_config=self.worker_config)
        return batches if limit is None else LimitDataset(batches, limit)

    def batches(self, node: Node, *, repeat: bool) -> Dataset[Any]:
        """Return the batches of a node; with `repeat`, one that ends begins anew for
        ever.
        """
        builder = self._as_told(node)
        encoders = builder._encoders(node)
        composed = None if isinstance(node, Leaf) else node.composition
        if builder.level is not None and (composed is not None or len(encoders) > 1):
            with place_noted(node.place):
                raise ConfigError(
                    "level chooses among all samples of a global batch, and so does "
                    "composition: "
                    "have one of them, and one task encoder for all samples"
                )
        if isinstance(node, Blend) and len(encoders) > 1:
            return builder._mixed_batches(node)
        if isinstance(node, Blend) and composed is not None:
            return builder._composed(node, composed, encoders[0])
        if _counts_encoded(node):
            builder = replace(builder, encoded=True)
        samples = builder.samples(node)
        if repeat and _ends(samples):
            samples = RepeatDataset(samples)
        with place_noted("" if builder.level is None else node.place):
            return builder._batched(samples, encoders[0])

    @property
    def _batching(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "batch_drop_last": self.drop_last,
            "packing_buffer_size": self.packing_buffer_size,
        }

    def _batched(self, samples: Dataset[Any], encoder: Encoder[Any]) -> Dataset[Any]:
        """Samples through the hooks of their encoder, to batches."""
        if not self.encoded:
            samples = encoder.build_encode_sample(
                samples, worker_config=self.worker_config
            )
        if self.level is not None:
            return self.level.batches(encoder, samples, **self._batching)
        return encoder.build_batch(
            samples, **self._batching, worker_config=self.worker_config
        )

    def _as_told(self, node: Node) -> Builder:
        """Return one that packs the samples of a node, and levels its batches, as it
        says.
        """
        if (node.packing or node.level) is None:
            return self
        builder = self
        with place_noted(node.place):
            if node.packing is not None:
                encoders = self._encoders(node)
                if self.packing_buffer_size is not None or len(encoders) > 1:
                    raise ConfigError(
                        "packing says how samples are packed, and so does "
                        "packing_buffer_size; or "
                        f"there are {len(encoders)} task encoders, and packing needs "
                        "one for all"
                    )
                encoder = PackingEncoder(
                    encoders[0], node.packing.packer, *node.packing.joined
                )
                size = node.packing.buffer_size
                builder = replace(
                    self, encoder_of=lambda _: encoder, packing_buffer_size=size
                )
            if node.level is not None and self.level is not None:
                raise ConfigError(
                    "level is said here and by the program; give one of the two"
                )
        return builder if node.level is None else replace(builder, level=node.level)

    def samples(self, node: Node, *, by_quota: bool = False) -> Dataset[Any]:
        """Return the samples of a node, which has one encoder; in stored order for a
        quota.
        """
        if isinstance(node, Leaf):
            return self._read(node, by_quota=by_quota)
        if node.composition is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "composition says what a global batch is made of, and this blend "
                    "is a part of "
                    "another; give it to the outermost one"
                )
        if node.plain:
            node = _flat(plain_shares(node), node)
        quotas = node.kind != "concat" and node.quotas is not None
        parts = [self.samples(child, by_quota=quotas) for child, _ in node.children]
        return self._mixed(parts, node)

    def _read(self, leaf: Leaf, *, by_quota: bool) -> Dataset[Any]:
        """Return the samples of a leaf: of its type, cooked if they are crude and the
        encoder does it.
        """
        encoder = self.encoder_of(leaf)
        try:
            if by_quota:
                self._check_order(leaf)
            if leaf.aux and (
                leaf.sample_type is not CrudeSample or not encoder.cookers
            ):
                raise ConfigError(
                    f"{leaf.path}: aux gives files to cookers of crude samples, and "
                    "these are "
                    f"{leaf.sample_type.__name__}s, or {type(encoder).__name__} has no "
                    "cookers"
                )
            loaded = _loaded(
                leaf,
                STORED if by_quota else self.order,
                decoder=encoder.decoder,
                code=self.code,
                seed=0
                if self.worker_config is None
                else self.worker_config.seed_offset,
                checksums=self.checksums,
            )
            samples = encoder._load_dataset(loaded, 0, self.worker_config)
        except EnergizeError as error:
            raise noted(error, leaf.place) from error
        if not self.encoded:
            return samples
        return encoder.build_encode_sample(samples, worker_config=self.worker_config)

    def _check_order(self, leaf: Leaf) -> None:
        """Raise `ConfigError` for an order that a file asks for where a quota decides
        it; what the program asks of orders is logged and left out.
        """
        for name in ("shuffle_buffer_size", "max_samples_per_sequence"):
            if getattr(self.order, name) is not None:
                _log.info(
                    "%s: %s=%s %s",
                    leaf.path,
                    name,
                    getattr(self.order, name),
                    _BY_QUOTA,
                )
        for each in (self.order.over_epochs, leaf.shuffle_over_epochs_multiplier):
            if each not in (None, 1):
                raise ConfigError(
                    f"shuffle_over_epochs_multiplier={each} {_BY_QUOTA}; leave it out"
                )

    def _mixed_batches(self, node: Blend) -> Dataset[Any]:
        """Return the batches of a blend whose leaves have several encoders."""
        if node.plain:
            groups: dict[int, list[Share]] = {}
            for number, part in enumerate(plain_shares(node)):
                encoders = self._encoders(part.node)
                key = id(encoders[0]) if len(encoders) == 1 else -1 - number
                groups.setdefault(key, []).append(part)
            node = _flat([*map(_together, groups.values())], node)
        if node.kind != "concat" and node.quotas is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "quotas and composition count samples, and the entries of this "
                    "blend go "
                    "through several task encoders; mix their batches by weight"
                )
        limits = node.options.get("max_epochs") or [None] * len(node.children)
        endless = (
            node.kind == "blend" and node.options.get("stop", "restart") == "restart"
        )
        batches = [
            self.batches(child, repeat=endless and most is None)
            for (child, _), most in zip(node.children, limits, strict=True)
        ]
        return self._mixed(batches, node)

    def _mixed(self, datasets: Sequence[Dataset[Any]], node: Blend) -> Dataset[Any]:
        """Datasets mixed as a node says; one alone by weight as it is."""
        if len(datasets) == 1 and node.plain:
            return datasets[0]
        with place_noted(node.place):
            if node.kind == "concat":
                return ConcatDataset(*datasets)
            if node.quotas is not None:
                shuffle = self.order.over_epochs is not None and _shuffled(node)
                pairs = list(zip(datasets, node.quotas, strict=True))
                return QuotaDataset(pairs, shuffle=shuffle, **node.options)
            for number, most in enumerate(node.options.get("max_epochs", ())):
                if most is not None and not _ends(datasets[number]):
                    raise ConfigError(
                        f"max_epochs of entry [{number}] is {most}, and that blend "
                        "never ends, so "
                        "it has no epochs; give max_epochs to the datasets in it, or "
                        "give it a stop"
                    )
            rows = zip(datasets, node.children, node.child_names, strict=True)
            return BlendDataset(
                [
                    cast("Any", MixEntry(each, share, name=name))
                    for each, (_, share), name in rows
                ],
                target_weights=node.targets,
                max_correction=node.max_correction,
                **node.options,
            )

    def _composed(
        self, node: Blend, composed: Composition, encoder: Encoder[Any]
    ) -> Dataset[Any]:
        config = self.worker_config
        samples = [self.samples(child, by_quota=True) for child, _ in node.children]
        streams = [
            encoder.build_encode_sample(each, worker_config=config) for each in samples
        ]
        with place_noted(node.place):
            if self.batch_size is None or self.packing_buffer_size is not None:
                raise ConfigError(
                    "composition says of which samples a batch is made, so there is a "
                    "batch_size, "
                    "and no packing_buffer_size, which leaves that to the packer"
                )
            batches: Dataset[Any] = ComposedDataset(
                list(zip(streams, node.quotas or (), strict=True)),
                batch_size=self.batch_size,
                global_batch_size=composed.global_batch_size,
                batching_method=composed.method,
                batcher=Hook(encoder, "batch"),
                shuffle=self.order.over_epochs is not None,
                drop_last=self.drop_last
                if composed.drop_last is None
                else composed.drop_last,
                **node.options,
            )
        return after_batch(encoder, batches)

    def _encoders(self, node: Node) -> list[Encoder[Any]]:
        """Return the encoders of the leaves, each once."""
        encoders = map(self.encoder_of, every_leaf(node))
        return list({id(encoder): encoder for encoder in encoders}.values())


def _ends(dataset: Dataset[Any]) -> bool:
    """Return whether it has an end, where the next epoch begins."""
    endless = isinstance(dataset, IndexedDataset) and dataset.indexed
    return not (endless and dataset.size == INFINITE)


def _counts_encoded(node: Node) -> bool:
    """Return whether a blend in a tree counts what encoded samples cost."""
    if isinstance(node, Leaf):
        return False
    own = isinstance(node.options.get("unit"), ItemCost)
    return own or any(_counts_encoded(child) for child, _ in node.children)


def _shuffled(node: Blend) -> bool:
    """Return whether a blend by quotas may be shuffled; `ConfigError` for some of its
    datasets only.
    """
    stored = {leaf.shuffle_over_epochs_multiplier is None for leaf in every_leaf(node)}
    if len(stored) > 1:
        raise ConfigError(
            "some datasets of this blend have shuffle_over_epochs_multiplier: null and "
            "others do "
            "not; a blend by quotas shuffles all of them or none"
        )
    return not stored.pop()


def _flat(parts: Sequence[Share], around: Blend) -> Blend:
    """Return parts of a plain blend as a blend of its own."""
    nodes, shares, targets, names = zip(*parts, strict=True)
    children = tuple(zip(nodes, shares, strict=True))
    targeted = targets if any(targets) else None  # of all parts, or of none
    return replace(around, children=children, targets=targeted, names=names)


def _together(parts: Sequence[Share]) -> Share:
    """Return several parts of a blend as one, which is a blend."""
    if len(parts) == 1:
        return parts[0]
    share = sum((part.share for part in parts), Fraction(0))
    targets = [part.target for part in parts if part.target is not None]
    return Share(
        _flat(parts, Blend(())), share, sum(targets, Fraction(0)) if targets else None
    )
