"""Task encoders: the hooks that turn samples into batches of a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from energize.core import tree
from energize.core.costs import ItemCost, LevelCost
from energize.core.dataset import Dataset
from energize.core.description import as_input, function_name, generates
from energize.core.ignored import accepted, log_once
from energize.core.lanes import WorkerConfig
from energize.core.loss_weights import WEIGHT, WEIGHTS
from energize.core.records import build, fields_of, is_record, is_record_type
from energize.core.samples import CrudeSample
from energize.core.stores import CachePool, DecodeFileStore, FileStore, active_pool
from energize.datasets.align import AlignDataset, AlignedBudgetDataset, Alignment
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.group import GroupBatchDataset
from energize.datasets.level import LevelBufferDataset, LevelDataset
from energize.datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
)
from energize.datasets.packing import PackingDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError
from energize.order.quota import Quota
from energize.packing.concat import concat_pack
from energize.packing.packer import Packer
from energize.task.decode import SampleDecoder
from energize.task.hooks import (
    BUILDERS,
    HOOKS,
    Cook,
    Cooker,
    Hook,
    Training,
    active_hooks,
    batch_as,
    cooker_for,
    default,
    generic_batch,
    hook_index,
    needs_of,
    overrides,
)
from energize.task.planning import BatchBudget, PackPlan

_log = logging.getLogger("energize")

_OF_CLASS: Any = SampleDecoder()

_PACKING = ("select_samples_to_pack", "pack_selected_samples")

T = TypeVar("T")
T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The hooks of a task; override those that the task needs.

    A sample, decoded by `decoder` (None leaves the bytes of its parts), passes these
    hooks in this order, if they are overridden:

    | hook | argument | result |
    |---|---|---|
    | `cook_crude_sample` | a `CrudeSample` and its cooker | a typed sample |
    | `preencode_sample` or `encode_sample` | a sample | the sample, encoded |
    | `select_samples_to_pack` | samples of the packing buffer | lists of samples |
    | `postencode_sample` | a sample | the sample, completely encoded |
    | `pack_selected_samples` | the samples of such a list | one sample |
    | `batch_group_criterion` | a sample | `(group, batch size)` |
    | `batch` | encoded samples | a raw batch |
    | `encode_batch` | the raw batch | the batch |

    The pack hooks are called if `packing_buffer_size` is set. Hooks with `yield` return
    any number of samples or batches, except hooks that select or group, and
    `postencode_sample` with packing. A hook may raise `SkipSample` to leave its
    argument out, and `DataError` for bad data. For every call, the global random
    generators are seeded by the position of the sample or batch, or a generator is
    passed as parameter `rng`. So random values are the same with any number of workers
    and after a resume. Hooks run in worker processes: changes of `self` reach no other
    process.

    If the name of a method resembles that of a hook, creating a dataset warns.

    Example:
        >>> class Upper(TaskEncoder):
        ...     def encode_sample(self, sample):
        ...         return sample | {"text": sample["text"].upper()}
        >>> Upper().encode_sample({"text": "a"})
        {'text': 'A'}
    """

    decoder: SampleDecoder | None = SampleDecoder()
    cookers: Sequence[Cooker] = ()
    default_hooks: frozenset[str] = frozenset()
    """The hooks that do something though they are not overridden."""
    training = Training()
    """Whether the hook that is running makes samples to train on, of
    `get_train_dataset`, rather than to validate on, of `get_val_dataset`: whether to
    augment. True outside of hooks."""

    @default
    def cook_crude_sample(
        self, sample: CrudeSample, cooker: Cooker, aux: Mapping[str, FileStore[Any]]
    ) -> T_sample:
        """Return the typed sample that a cooker makes of a crude sample.

        Args:
            sample: The crude sample.
            cooker: The cooker of its dataset.
            aux: The auxiliary stores of its dataset, by name.
        """
        needs = needs_of(cooker.cook)
        arguments: dict[str, Any] = {
            name: store for name, store in aux.items() if name != "primary"
        }
        if "primary" in needs:
            arguments["primary"] = aux["primary"]
        if "cache" in needs:
            arguments["cache"] = active_pool()
        return cast("T_sample", cooker.cook(sample, **arguments))

    @default
    def preencode_sample(
        self, sample: T_sample
    ) -> T_encoded_sample | Iterator[T_encoded_sample]:
        """Return a sample for the packing buffer; leave expensive work for later."""
        return cast("T_encoded_sample", sample)

    @default
    def encode_sample(
        self, sample: T_sample
    ) -> T_encoded_sample | Iterator[T_encoded_sample]:
        """Return one encoded sample; by default the sample itself."""
        return cast("T_encoded_sample", sample)

    @default
    def select_samples_to_pack(
        self, samples: list[T_encoded_sample]
    ) -> Sequence[Sequence[T_encoded_sample]]:
        """Return lists of samples of the packing buffer; each list becomes a pack.

        Samples in no list are dropped, with one warning.
        """
        raise NotImplementedError("packing needs select_samples_to_pack")

    @default
    def postencode_sample(self, sample: T_encoded_sample) -> T_encoded_sample:
        """Return a sample of a pack, completely encoded; any sample without packing."""
        return sample

    @default
    def pack_selected_samples(
        self, samples: list[T_encoded_sample]
    ) -> T_encoded_sample | Iterator[T_encoded_sample]:
        """Return the samples of a pack as one sample."""
        raise NotImplementedError("packing needs pack_selected_samples")

    @default
    def batch(
        self, samples: list[T_encoded_sample]
    ) -> T_raw_batch | Iterator[T_raw_batch]:
        """Return encoded samples as one batch; by default `generic_batch` of them."""
        return cast("T_raw_batch", generic_batch(samples))

    @default
    def batch_group_criterion(
        self, sample: T_encoded_sample
    ) -> tuple[Hashable, int | None]:
        """Return the group of a sample and its batch size; None: `batch_size`."""
        raise NotImplementedError("only overridden")

    @default
    def encode_batch(self, batch: T_raw_batch) -> T_batch | Iterator[T_batch]:
        """Return the batch of the model; by default the raw batch itself."""
        return cast("T_batch", batch)

    @property
    def current_sample_index(self) -> int:
        """Number of the sample, in a hook of one sample.

        It is unique in the run, and the same on any number of ranks and workers; for a
        stream, with any number of lanes.

        Raises:
            ConfigError: Outside such a hook.
        """
        return hook_index("sample", "current_sample_index")

    @property
    def current_batch_index(self) -> int:
        """Number of the batch, in `batch` and `encode_batch`, counted over all ranks.

        With the `WorkerConfig` of `energize.energon`, batches of this rank are counted.
        In hooks of a sample, it is the number of the batch of the sample, if batches
        have consecutive samples.

        Raises:
            ConfigError: Outside hooks.
        """
        return hook_index("batch", "current_batch_index")

    @property
    def cache(self) -> CachePool:
        """The cache pool of the loader, in a hook; or a pool that stores nothing."""
        return active_pool()

    def build_cook_crude_sample(
        self,
        dataset: Dataset[Any],
        *,
        worker_config: WorkerConfig | None = None,
        subflavors: Mapping[str, Any],
        get_primary_aux: Callable[[], FileStore[Any]] | None = None,
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> Dataset[Any]:
        """Return the cooked samples of one crude dataset; may be overridden.

        Args:
            dataset: The crude samples.
            worker_config: The ranks and the seed.
            subflavors: Labels of the dataset, which select the cooker.
            get_primary_aux: Returns the store of the files of the dataset.
            aux: Auxiliary stores by name.
        """
        chosen = cooker_for(self.cookers, subflavors, dataset.sources[0].name)
        aux = aux or {}
        primary = None
        if "primary" in needs_of(chosen.cook) and "primary" not in aux:
            if get_primary_aux is None:
                raise ConfigError(
                    f"{function_name(chosen.cook)} needs the files of its own dataset. "
                    "Pass get_primary_aux, a function that returns their store"
                )
            primary = self._decoding(get_primary_aux())
        stores = {name: self._decoding(store) for name, store in aux.items()}
        return MapDataset(
            dataset, Cook(self, "cook_crude_sample", chosen, stores, primary)
        )

    def _decoding(self, store: FileStore[Any]) -> FileStore[Any]:
        return (
            store
            if self.decoder is None
            else DecodeFileStore(store, decoder=self.decoder)
        )

    def build_encode_sample(
        self, dataset: Dataset[Any], *, worker_config: WorkerConfig | None = None
    ) -> Dataset[Any]:
        """Return samples after the hooks up to `encode_sample`; may be overridden."""
        active = active_hooks(self)  # one that does nothing costs nothing
        dataset = as_input(dataset)
        for name in ("preencode_sample", "encode_sample"):
            if name in active:
                return MapDataset(dataset, Hook(self, name))
        return dataset

    def build_batch(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int | BatchBudget | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | PackPlan | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> Dataset[Any]:
        """Return encoded samples as packed batches; may be overridden.

        Args:
            dataset: The encoded samples.
            batch_size: Samples in a batch, or a budget; None leaves them single.
            batch_drop_last: Whether an incomplete last batch is dropped.
            packing_buffer_size: Samples in the packing buffer, or a plan of packs; None
                packs nothing.
            worker_config: The ranks and the seed.
        """
        active = active_hooks(self)
        dataset = as_input(dataset)
        batch = Hook(self, "batch")
        if packing_buffer_size is not None:
            dataset = self._packed(dataset, packing_buffer_size, active)
        else:
            if active.issuperset(_PACKING):
                _log.warning(
                    "%s has packing hooks, but packing_buffer_size is missing: nothing "
                    "is packed. Set packing_buffer_size",
                    type(self).__name__,
                )
            if "postencode_sample" in active:
                dataset = MapDataset(dataset, Hook(self, "postencode_sample"))
        if isinstance(batch_size, BatchBudget):
            dataset = self._of_budget(dataset, batch_size, active)
        elif "batch_group_criterion" in active:
            group = Hook(self, "batch_group_criterion")
            dataset = GroupBatchDataset(
                dataset, batch_size, group, batch, drop_last=batch_drop_last
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = BatchDataset(
                dataset, batch_size, batch, drop_last=batch_drop_last
            )
        return apply_encode_batch(self, dataset)

    def _of_budget(
        self, samples: Dataset[Any], budget: BatchBudget, active: frozenset[str]
    ) -> Dataset[Any]:
        if "batch_group_criterion" in active:
            raise ConfigError(
                f"{type(self).__name__} overrides batch_group_criterion, which sets "
                "the samples of a batch, and so does batch_budget. Remove one of them"
            )
        return budget.batches(samples, Hook(self, "batch"))

    def _packed(
        self, samples: Dataset[Any], packing: int | PackPlan, active: frozenset[str]
    ) -> Dataset[Any]:
        planned = isinstance(packing, PackPlan)
        needed = _PACKING[1:] if planned else _PACKING
        missing = [name for name in needed if name not in active]
        if missing:
            argument = "packing" if planned else f"packing_buffer_size={packing}"
            raise ConfigError(
                f"{argument} needs packing hooks, but {type(self).__name__} has no "
                f"{' and no '.join(missing)}. Define {' and '.join(needed)}"
            )
        post = (
            Hook(self, "postencode_sample") if "postencode_sample" in active else None
        )
        if post is not None and generates(post):
            raise ConfigError(
                f"{function_name(post)} is a generator function, and under packing it "
                "must return the sample of a pack. Only preencode_sample and "
                "pack_selected_samples can yield"
            )
        select, pack = (Hook(self, name) for name in _PACKING)
        if isinstance(packing, PackPlan):
            if overrides(self, _PACKING[0]) and not isinstance(self, PackingEncoder):
                log_once(
                    type(self).__name__,
                    _PACKING[0],
                    f"{_PACKING[0]} is not called, because packs are planned",
                )
            if post is not None:
                samples = MapDataset(samples, post)
            return packing.packs(samples, pack)
        return PackingDataset(samples, packing, select, pack, sample_encoder=post)

    @default
    def build_train_datasets(  # noqa: PLR0913
        self,
        *,
        datasets: Sequence[Any],
        worker_config: WorkerConfig | None = None,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: Any = None,
        repeat: bool = True,
    ) -> Dataset[Any]:
        """Return the whole training dataset of a metadataset; may be overridden.

        An override replaces the work of `get_train_dataset`.

        Args:
            datasets: `LoadedDataset`s; `dataset.build()` returns their shuffled
                samples.
            worker_config: The ranks and the seed.
            batch_size: Samples in a batch; None leaves them single.
            batch_drop_last: Whether an incomplete last batch is dropped.
            packing_buffer_size: Samples in the packing buffer; None packs nothing.
            virtual_epoch_length: Batches of an epoch; 0 keeps the natural epochs.
            shuffle_buffer_size: Has no use; the samples are already shuffled.
            blend_mode: A `DatasetBlendMode`: which number of the datasets is set.
            repeat: Whether the samples are repeated without end.
        """
        samples = [self._load_dataset(loaded, 0, worker_config) for loaded in datasets]
        mixed = _mix_loaded(samples, datasets)
        is_endless = len(samples) > 1 and isinstance(mixed, BlendDataset)
        if repeat and not is_endless:
            mixed = RepeatDataset(mixed)
        batches = self._through(
            mixed, batch_size, batch_drop_last, packing_buffer_size, worker_config
        )
        if virtual_epoch_length:
            batches = EpochizeDataset(batches, virtual_epoch_length)
        return batches.with_worker_config(worker_config)

    @default
    def build_val_datasets(
        self,
        *,
        datasets: Sequence[Any],
        worker_config: WorkerConfig | None = None,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        limit: int | None = None,
    ) -> Dataset[Any]:
        """Return the whole validation dataset of a metadataset; may be overridden.

        An override replaces the work of `get_val_dataset`.

        Args:
            datasets: `LoadedDataset`s; `dataset.build()` returns their samples.
            worker_config: The ranks and the seed.
            batch_size: Samples in a batch; None leaves them single.
            batch_drop_last: Whether an incomplete last batch is dropped.
            packing_buffer_size: Samples in the packing buffer; None packs nothing.
            limit: Batches of a pass; None for all.
        """
        samples = ConcatDataset(
            *(self._load_dataset(loaded, 0, worker_config) for loaded in datasets)
        )
        batches = self._through(
            samples, batch_size, batch_drop_last, packing_buffer_size, worker_config
        )
        batches = batches.with_worker_config(worker_config)
        return batches if limit is None else LimitDataset(batches, limit)

    def _through(
        self,
        samples: Dataset[Any],
        size: int | None,
        drop: bool,
        pack: int | None,
        config: WorkerConfig | None,
    ) -> Dataset[Any]:
        """Return samples through all hooks."""
        return self.build_batch(
            self.build_encode_sample(samples, worker_config=config),
            batch_size=size,
            batch_drop_last=drop,
            packing_buffer_size=pack,
            worker_config=config,
        )

    def _load_dataset(
        self, dataset: Any, worker_rotation_offset: int = 0, worker_config: Any = None
    ) -> Dataset[Any]:
        """Return the samples of a `LoadedDataset`; crude ones cooked by its cookers."""
        factory = dataset.dataset
        samples: Dataset[Any] = factory.build()
        if factory.__sample_type__ is not CrudeSample or not self.cookers:
            return samples
        return self.build_cook_crude_sample(
            samples,
            worker_config=worker_config,
            subflavors=factory.subflavors,
            get_primary_aux=factory.as_file_store,
            aux=dataset.aux,
        )


def _mix_loaded(samples: Sequence[Dataset[Any]], loaded: Sequence[Any]) -> Dataset[Any]:
    """Return the samples of datasets mixed by their repetitions or weights."""
    if len(samples) == 1:
        return samples[0]
    if all(dataset.repetitions is not None for dataset in loaded):
        quotas = [Quota(repeat=dataset.repetitions) for dataset in loaded]
        return QuotaDataset(list(zip(samples, quotas, strict=True)), shuffle=True)
    weights = [1 if dataset.weight is None else dataset.weight for dataset in loaded]
    return BlendDataset(list(zip(samples, weights, strict=True)))


def apply_encode_batch(
    encoder: TaskEncoder[Any, Any, Any, Any], batches: Dataset[Any]
) -> Dataset[Any]:
    """Return raw batches after the last hook."""
    active = "encode_batch" in active_hooks(encoder)
    return MapDataset(batches, Hook(encoder, "encode_batch")) if active else batches


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that converts samples and batches to given types, by field name.

    Fields that a type does not have are dropped, and not batched.

    Args:
        encoded_sample_type: Result of `encode_sample`: a dataclass, named tuple or
            dict; None leaves samples unchanged.
        raw_batch_type: Result of `batch`; by default `batch_type`, which is then also
            the argument type of an overridden `encode_batch`.
        batch_type: Result of `encode_batch`.
        decoder: A decoder instead of that of the class.

    Raises:
        ConfigError: For a type without fields. Hooks raise it for required fields that
            samples lack.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Texts:
        ...     text: list[str]
        >>> encoder = DefaultTaskEncoder(batch_type=Texts)
        >>> encoder.batch([{"text": "a", "n": 1}, {"text": "b", "n": 2}])
        Texts(text=['a', 'b'])
    """

    _encoded_sample_type: type[T_encoded_sample] | None = None
    _raw_batch_type: type[T_raw_batch] | None = None
    _batch_type: type[T_batch] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | type[T_raw_batch] | None = None,
        decoder: SampleDecoder | None = _OF_CLASS,
    ) -> None:
        if decoder is not _OF_CLASS:
            self.decoder = decoder
        types = {
            "encoded_sample_type": encoded_sample_type,
            "raw_batch_type": raw_batch_type,
        }
        for name, record_type in cast(
            "Any", types | {"batch_type": batch_type}
        ).items():
            if record_type is not None and not (
                isinstance(record_type, type) and is_record_type(record_type)
            ):
                raise ConfigError(
                    f"{name} must be a dataclass, a NamedTuple or dict, got "
                    f"{record_type!r}"
                )
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type or cast(
            "type[T_raw_batch] | None", batch_type
        )
        self._batch_type = cast("type[T_batch] | None", batch_type)
        filling = {"encode_sample": encoded_sample_type, "encode_batch": batch_type}
        self.default_hooks = frozenset(
            name for name, record_type in filling.items() if record_type is not None
        )

    @default
    def encode_sample(self, sample: T_sample) -> T_encoded_sample:
        """Return the sample as an `encoded_sample_type`, or itself."""
        return _converted(sample, self._encoded_sample_type)

    @default
    def batch(self, samples: list[T_encoded_sample]) -> T_raw_batch:
        """Return a batch of `raw_batch_type`, or of the type of the samples."""
        if self._raw_batch_type is None:
            return cast("T_raw_batch", generic_batch(samples))
        return batch_as(samples, self._raw_batch_type)

    @default
    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """Return the batch as a `batch_type`, or itself."""
        return _converted(batch, self._batch_type)


def _converted(value: Any, record_type: type[T] | None) -> T:
    """Return a value as a record type, filled by name; None leaves it unchanged."""
    if record_type is None or isinstance(value, record_type):
        return cast("T", value)
    if not is_record(value):
        raise ConfigError(
            f"a {record_type.__name__} must be filled from a record, by name, got a "
            f"{type(value).__name__}"
        )
    fields = fields_of(value)
    for name in (WEIGHT, WEIGHTS):
        if fields.get(name, value) is None:
            del fields[name]
    return build(record_type, fields, f"a {type(value).__name__}")


# Task encoders that add to others.

_STEPS = (
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
    "_load_dataset",
)


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that adds hooks to another encoder.

    Hooks that are not overridden, the decoder and the cookers are those of the other
    encoder. In an overridden hook, `super()` calls the other encoder.

    Args:
        task_encoder: The other encoder.

    Raises:
        ConfigError: If it is not a task encoder, or builds datasets itself.

    Example:
        >>> class Shout(TaskEncoder):
        ...     def encode_sample(self, sample):
        ...         return sample + "!"
        >>> class Louder(AugmentTaskEncoder):
        ...     def encode_sample(self, sample):
        ...         return super().encode_sample(sample).upper()
        >>> Louder(Shout()).encode_sample("a")
        'A!'
    """

    def __init__(
        self,
        task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch],
    ) -> None:
        if not isinstance(task_encoder, TaskEncoder):
            raise ConfigError(
                f"{type(self).__name__} must wrap a TaskEncoder, got {task_encoder!r}"
            )
        for name in (*BUILDERS, *_STEPS):
            method = getattr(type(task_encoder), name)
            if method not in (
                getattr(TaskEncoder, name),
                getattr(AugmentTaskEncoder, name),
            ):
                raise ConfigError(
                    f"{type(task_encoder).__name__} overrides {name}. It would call "
                    "its own hooks, not those of "
                    f"{type(self).__name__}. Override it there instead"
                )
        self.wrapped_encoder = task_encoder
        for name in (*HOOKS, *BUILDERS, "decoder", "cookers", "default_hooks"):
            if getattr(type(self), name) is getattr(AugmentTaskEncoder, name):
                setattr(self, name, getattr(task_encoder, name))


def _of_wrapped(name: str) -> Callable[..., Any]:
    """Return a method that calls the wrapped encoder, for `super()`."""

    def hook(
        self: AugmentTaskEncoder[Any, Any, Any, Any], *positional: Any, **named: Any
    ) -> Any:
        return getattr(self.wrapped_encoder, name)(*positional, **named)

    hook.__name__ = name
    hook.__qualname__ = f"AugmentTaskEncoder.{name}"
    hook.__doc__ = getattr(TaskEncoder, name).__doc__
    return default(hook)


for _name in (*HOOKS, *BUILDERS):
    setattr(AugmentTaskEncoder, _name, _of_wrapped(_name))


_OPTIONS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


def _without(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def decoding_as(owner: str, encoder: Any, older: Mapping[str, Any]) -> Any:
    """Return encoders with the decoder of older arguments.

    Args:
        owner: Name of the function, for messages.
        encoder: A task encoder, a dict of encoders by sample type, or None.
        older: `auto_decode`, where False leaves bytes, and parameters of
            `SampleDecoder`. Other arguments of Energon are logged and ignored.

    Raises:
        ConfigError: If the encoder also has a decoder, and for unknown arguments.
    """
    if not older:
        return encoder
    options = {name: older[name] for name in _OPTIONS if name in older}
    auto = older.get("auto_decode", True) is not False
    accepted(owner, **_without(older, (*_OPTIONS, "auto_decode")))
    if auto and not options:
        return encoder
    if isinstance(encoder, Mapping):
        return {
            sample_type: decoding_as(owner, inner, older)
            for sample_type, inner in encoder.items()
        }
    _check_decoder_is_free(owner, encoder, options)
    augmented = AugmentTaskEncoder(DefaultTaskEncoder() if encoder is None else encoder)
    augmented.decoder = SampleDecoder(**options) if auto else None
    return augmented


def _check_decoder_is_free(
    owner: str, encoder: Any, options: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` if an encoder has a decoder besides older options."""
    if not isinstance(encoder, TaskEncoder):
        return
    if encoder.decoder is not TaskEncoder.decoder:
        raise ConfigError(
            f"{owner}: {', '.join(options) or 'auto_decode'} sets how samples are "
            "decoded, and so does the decoder of "
            f"{type(encoder).__name__}. Remove one of them"
        )


def _are_plannable(
    samples: Dataset[Any], packer: Packer, plan: PackPlan | None
) -> bool:
    """Return whether packs are planned from columns; log once why they are not."""
    lengths = packer.length if isinstance(packer.length, tuple) else (packer.length,)
    names = [name for name in lengths if isinstance(name, str)]
    if len(names) < len(lengths):
        return False
    lacking = next(
        (
            f"{source.name!r} has no column {name!r} with numbers. Add it with "
            f"`energize prepare --length {name}=...`"
            for source in samples.sources
            for name in names
            if name not in source.column_names or source.column(name).is_text
        ),
        None,
    )
    if lacking is None and not samples.indexed:
        lacking = f"{tree.first_stream(samples)} is a stream. Filter by a column"
    reason = lacking or "method, buffer_size or too_long='skip' is set. Remove it"
    if lacking is None and plan is not None:
        return True
    log_once(
        "packing",
        "columns",
        f"packs are made of a buffer and not planned from {', '.join(names)}, because "
        f"{reason} for packs that have positions and need no buffer",
    )
    return False


class PackingEncoder(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder that packs samples by a packer instead of its own hooks.

    A pack is made by `pack_selected_samples` of the encoder, or by `concat_pack`.

    Args:
        task_encoder: The encoder.
        packer: Selects the samples of each pack; None for packs of a plan.
        fields: Fields that `concat_pack` joins.
        flatten: Fields whose lists `concat_pack` joins.
        plan: The plan of packs, if all sources have its columns.

    Raises:
        ConfigError: For an encoder that selects samples itself.
    """

    def __init__(
        self,
        task_encoder: TaskEncoder[Any, Any, Any, Any],
        packer: Packer | None,
        fields: Sequence[str],
        flatten: Sequence[str],
        plan: PackPlan | None = None,
    ) -> None:
        super().__init__(task_encoder)
        if overrides(task_encoder, "select_samples_to_pack"):
            raise ConfigError(
                "packing sets the samples of a pack, and so does "
                "select_samples_to_pack of "
                f"{type(task_encoder).__name__}. Remove one of them"
            )
        self.packer = packer
        self.fields = fields
        self.flatten = flatten
        self.plan = plan

    def _packed(
        self, samples: Dataset[Any], packing: int | PackPlan, active: frozenset[str]
    ) -> Dataset[Any]:
        packer = None if isinstance(packing, PackPlan) else self.packer
        if packer is not None and _are_plannable(samples, packer, self.plan):
            packing = cast("PackPlan", self.plan)
        return super()._packed(samples, packing, active)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return the samples of each pack, as the packer selects them."""
        if self.packer is None:
            raise ConfigError("the packs are planned, so no samples are selected")
        return self.packer(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return a pack, made by the encoder or joined."""
        if overrides(self.wrapped_encoder, "pack_selected_samples"):
            return self.wrapped_encoder.pack_selected_samples(samples)
        return concat_pack(samples, self.fields, flatten=self.flatten)


BATCHES = 64
"""Number of batches that are levelled together by default."""


@dataclass(frozen=True)
class Level:
    """How samples are distributed over micro batches: by cost, by modality, or both.

    Args:
        cost: The cost of samples, or several costs: of columns, see `LevelDataset`; or
            an `ItemCost` of encoded and packed items, see `LevelBufferDataset`. None
            with `align` alone.
        global_batch_size: Samples that are distributed over micro batches, for columns;
            None for batches of a budget, which are aligned.
        buffer_size: Items that are levelled together, for an `ItemCost`.
        align: The modalities that all ranks have together, see `AlignDataset`.

    Raises:
        ConfigError: For sizes that do not fit the cost.
    """

    cost: LevelCost | ItemCost | None
    global_batch_size: int | None = None
    buffer_size: int | None = None
    align: Alignment | None = None

    def __post_init__(self) -> None:
        if self.align is not None:
            self._check_aligned(self.align)
        read = isinstance(self.cost, ItemCost)
        wrong = self.global_batch_size if read else self.buffer_size
        if wrong is not None:
            name = "global_batch_size" if read else "buffer_size"
            raise ConfigError(
                f"level: {name}={wrong} does not apply to this cost. An ItemCost, a "
                "cost of encoded items, levels a buffer of them. A column levels whole "
                "global batches"
            )

    def _check_aligned(self, align: Alignment) -> None:
        if isinstance(self.cost, ItemCost):
            raise ConfigError(
                "align needs random access, and an ItemCost levels a stream. Level by "
                "columns, or remove align"
            )
        whole = align.global_batch_size
        if align.ranks is None and self.global_batch_size is None:
            raise _size_missing(align)
        if whole not in (None, self.global_batch_size):
            raise ConfigError(
                f"align has global batches of {whole} samples, but global_batch_size "
                f"is {self.global_batch_size}. Use the same number"
            )

    def check_size(self) -> None:
        """Raise `ConfigError` if nothing sets which samples are levelled together."""
        is_column = self.cost is not None and not isinstance(self.cost, ItemCost)
        if is_column and self.global_batch_size is None and self.align is None:
            raise ConfigError(
                "level sets the cost of samples, but global_batch_size is missing. "
                "Pass the size of the global batch whose samples are distributed over "
                "its micro batches; with batch_budget, set only align: ranks"
            )

    @property
    def keys(self) -> str:
        """The names of the arguments that are set, for messages."""
        set_keys = [] if self.cost is None else ["level"]
        return " and ".join(set_keys if self.align is None else [*set_keys, "align"])

    @classmethod
    def aligned(cls, level: Level | None, align: Alignment) -> Level:
        """Return a level with an alignment.

        Raises:
            ConfigError: If their global batches differ.
        """
        if level is None:
            return cls(None, align.global_batch_size, align=align)
        return replace(level, align=align)

    @classmethod
    def from_arguments(
        cls,
        level: LevelCost | ItemCost | None,
        global_batch_size: int | None,
        level_buffer_size: int | None,
        align: Any = None,
    ) -> Level | None:
        """Return the level of arguments of a dataset; None if it is not set."""
        if align is not None:
            alignment = Alignment.parsed(align)
            if global_batch_size is None:
                global_batch_size = alignment.global_batch_size
            return cls(level, global_batch_size, level_buffer_size, alignment)
        if level is not None:
            levelled = cls(level, global_batch_size, level_buffer_size)
            levelled.check_size()
            return levelled
        if global_batch_size is None and level_buffer_size is None:
            return None
        name = "level_buffer_size" if global_batch_size is None else "global_batch_size"
        raise ConfigError(
            f"{name} is set, but level, the cost of samples, is missing. For gradient "
            "accumulation alone, pass global_batch_size to get_loader"
        )

    def batches(
        self,
        encoder: TaskEncoder[Any, Any, Any, Any],
        samples: Dataset[Any],
        *,
        batch_size: int | BatchBudget | None,
        batch_drop_last: bool,
        packing_buffer_size: int | PackPlan | None,
    ) -> Dataset[Any]:
        """Return encoded samples after the other hooks, as batches."""
        if batch_size is None:
            raise ConfigError(f"{self.keys} needs batches, but batch_size is None")
        if isinstance(batch_size, BatchBudget) and self.align is None:
            raise ConfigError(
                "level distributes the samples of a step of ranks over batches of a "
                "budget, and align sets the ranks. Set align with ranks, or remove "
                "level or batch_budget"
            )
        is_overridden = type(encoder).build_batch is not TaskEncoder.build_batch
        if is_overridden or "batch_group_criterion" in active_hooks(encoder):
            raise ConfigError(
                f"{type(encoder).__name__} overrides batch_group_criterion or "
                "build_batch, which set the samples of a batch, and so does "
                f"{self.keys}. Remove one of the two"
            )
        items = encoder.build_batch(
            samples, batch_size=None, packing_buffer_size=packing_buffer_size
        )
        options: dict[str, Any] = {"drop_last": batch_drop_last}
        if isinstance(batch_size, BatchBudget):
            batches = self._budget_batches(items, batch_size, Hook(encoder, "batch"))
            return apply_encode_batch(encoder, batches)
        if isinstance(self.cost, ItemCost):
            size = (
                BATCHES * batch_size if self.buffer_size is None else self.buffer_size
            )
            items = LevelBufferDataset(items, size, batch_size, self.cost)
        elif self.align is not None:
            batches = self._aligned_batches(
                items, batch_size, Hook(encoder, "batch"), batch_drop_last
            )
            return apply_encode_batch(encoder, batches)
        else:
            options |= {"level": self.cost, "global_batch_size": self.global_batch_size}
        batches = BatchDataset(items, batch_size, Hook(encoder, "batch"), **options)
        return apply_encode_batch(encoder, batches)

    def _aligned_batches(
        self, items: Dataset[Any], batch_size: int, batcher: Hook, drop_last: bool
    ) -> Dataset[Any]:
        align = cast("Alignment", self.align)
        whole = self.global_batch_size
        if whole is None:
            raise _size_missing(align)
        if self.cost is not None:
            cost = cast("LevelCost", self.cost)
            items = LevelDataset(items, batch_size, global_batch_size=whole, cost=cost)
        return AlignDataset(
            items,
            batch_size,
            batcher,
            global_batch_size=whole,
            columns=align,
            drop_last=drop_last,
        )

    def _budget_batches(
        self, items: Dataset[Any], budget: BatchBudget, batcher: Hook
    ) -> Dataset[Any]:
        align = cast("Alignment", self.align)
        if budget.keep_order:
            raise ConfigError(
                "batches are consecutive samples with keep_order, and align chooses "
                "them by modality. Remove one of the two"
            )
        return AlignedBudgetDataset(
            items,
            (budget.length, budget.size),
            batcher,
            columns=replace(align, global_batch_size=self.global_batch_size),
            window=budget.window,
            level=cast("LevelCost | None", self.cost),
        )


def _size_missing(align: Alignment) -> ConfigError:
    return ConfigError(
        f"align sets the columns {list(align.columns)}, but global_batch_size is "
        "missing. Set the size of the global batch whose samples are distributed over "
        "its micro batches; with batch_budget, set only align: ranks"
    )
