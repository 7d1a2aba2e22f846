"""What Megatron-Energon's datasets extend: names for annotations, and factories of datasets."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar, cast

from energize.core.dataset import Dataset
from energize.core.ignored import accepted
from energize.core.lanes import WorkerConfig
from energize.core.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    is_record,
    pin_memory,
    sample_type_named,
)
from energize.core.stores import FileStore
from energize.data.files import own_errors
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.media import MediaFilterConfig
from energize.data.nv_meta import (
    CRUDE,
    INFO_NAMES,
    META_FOLDER,
    SQLITE_NAME,
    UUID_NAME,
    is_prepared,
    read_dataset_yaml,
    read_info,
    read_splits,
)
from energize.data.source import Source, Subset
from energize.data.split import read_split
from energize.data.stores import JsonlFileStore, WebdatasetFileStore
from energize.data.webdataset import WebdatasetSource
from energize.datasets.order import ShuffleDataset
from energize.datasets.transform import MapDataset, SampleWeightDataset
from energize.energon.names import edataclass
from energize.errors import ConfigError, UntrustedCodeError
from energize.preparation.index import prepare
from energize.preparation.jsonl import prepare_jsonl
from energize.preparation.media import prepare_media
from energize.preparation.workers import Progress
from energize.task.decode import SampleDecoder
from energize.task.load import JoinLoader, LoadFunction, PartFilter, SampleLoader, loading_code

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    SavableDataset = Dataset
else:

    class _AnyDataset(ABCMeta):
        """Every dataset is an instance, and every class of datasets a subclass."""

        def __instancecheck__(cls, instance: object) -> bool:
            return Dataset in type(instance).__mro__  # isinstance would ask here again

        def __subclasscheck__(cls, subclass: type) -> bool:
            return Dataset in subclass.__mro__

    class SavableDataset(Dataset[T_co], metaclass=_AnyDataset):
        """The name of `Dataset` in Megatron-Energon, for annotations and `isinstance`.

        It cannot be extended: there a dataset moves and says itself what its state is, here a
        dataset is a description, and cursors over it move. Extending it is a `ConfigError`.

        >>> from energize import ListSource
        >>> isinstance(ListSource([1]), SavableDataset)
        True
        """

        def __init_subclass__(cls, **kwargs: Any) -> None:
            raise ConfigError(
                f"{cls.__name__} extends SavableDataset, whose state nothing here would ask for. "
                "Give items by number as a list or with SequenceSource, items that come one after "
                "another with IterableSource, and change a stream of items with MapDataset or "
                "IterMapDataset; all of them are saved and resumed"
            )


class PinMemoryMixin:
    """Gives a dataclass a method `pin_memory`; `Sample` and `Batch` have theirs already."""

    __slots__ = ()

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory; the object itself without a GPU."""
        return pin_memory(self) if is_record(self) else self


class BaseCoreDatasetFactory(ABC, Generic[T_co]):
    """A dataset as it is asked for, before it is made: `build()` makes it.

    `len` is the number of samples in one pass, on all ranks together.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[Any]
    subflavors: dict[str, Any]
    sample_weight: float | None = None
    """How much its samples count in the loss, as the metadataset says that it was loaded from."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        """The dataset: one pass over the samples, in a new order each time where `training`."""

    @abstractmethod
    def as_file_store(self) -> FileStore[Any]:
        """The files of the dataset, by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Samples in one pass."""


# What the factories of datasets over one source have in common.


class SourceFactory(BaseCoreDatasetFactory[T_co]):
    """A dataset read from one source: in the order asked for, each raw sample made a sample.

    What is read is shuffled where `training`, over `shuffle_over_epochs` passes at once (None: not
    at all, -1: drawn with replacement), in runs of at most `max_samples_per_sequence` samples; else
    it is as stored. `subset` says which samples. `unused` are arguments that have no use here.

    The source is looked at when the factory is made, not at the first sample: a subclass calls this
    `__init__` when it has all that `_stored` needs. Raises what that raises.
    """

    def __init__(
        self,
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None,
        max_samples_per_sequence: int | None,
        subset: Subset | None,
        **unused: Any,
    ) -> None:
        accepted(type(self).__name__, **unused)
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        _ = self.source

    @abstractmethod
    def _stored(self, seed: int) -> Source[Any]:
        """All that is there, as stored."""

    @abstractmethod
    def _loading(self) -> Callable[[Any], T_co]:
        """What makes a sample of a raw one."""

    @cached_property
    def source(self) -> Source[Any]:
        """What is read, as stored."""
        source = self._stored(self.worker_config.seed_offset)
        if self.subset is None:
            return source
        if not isinstance(self.subset, Subset):
            raise ConfigError(
                "subset is an energize.data.source.Subset, such as Subset(ratios=(0.0, 0.5)); "
                f"got {self.subset!r}"
            )
        stored: Any = source
        return cast("Source[Any]", stored.part(*self.subset.bounds(stored.stored_count)))

    def __len__(self) -> int:
        return self.source.count

    @cached_property
    def raw_samples(self) -> Dataset[Any]:
        """The raw samples, in the order in which they are read."""
        if not self.training or self.shuffle_over_epochs is None:
            return self.source
        return ShuffleDataset(
            self.source,
            max_samples_per_sequence=self.max_samples_per_sequence,
            over_epochs=self.shuffle_over_epochs,
        )

    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        accepted(type(self).__name__, worker_rotation_offset=worker_rotation_offset or None)
        samples: Dataset[T_co] = MapDataset(self.raw_samples, self._loading(), seeded=False)
        if self.sample_weight is not None:
            samples = SampleWeightDataset(samples, self.sample_weight)
        return samples._with_worker_config(self.worker_config)

    def config(self) -> dict[str, Any]:
        """What the dataset is made of, as a tree of plain values."""
        return self.build().describe()


# Preparing a folder of shards, in the words of Megatron-Energon.

ProgressFn = Callable[[Iterator[Any], int], Iterator[Any]]
"""Given something to iterate over, and its length, iterates over it and shows how far it is."""


class WebdatasetPreparator:
    """What the factories of prepared folders can do with a folder that is not prepared yet."""

    @staticmethod
    def prepare_dataset(
        parent_path: str | os.PathLike[str],
        paths: Sequence[str | os.PathLike[str]],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        split_config: str = "split.yaml",
        shuffle_seed: int | None = 42,
        progress_fn: ProgressFn | None = None,
        workers: int | None = None,
        tar_index_only: bool = False,
        media_filter: MediaFilterConfig | None = None,
        fix_duplicates: bool = False,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
        checksums: bool = False,
    ) -> set[str]:
        """Index the shards `paths` of the folder `parent_path`; returns the parts they have.

        `energize.prepare` with Megatron-Energon's arguments: `paths` are relative to the folder,
        with braces; splits are pairs of a name and a ratio, or of a name and a pattern (a name may
        come several times); shards are shuffled before they are cut by ratios, unless
        `shuffle_seed` is None. A folder that is prepared already is prepared anew. No dataset.yaml
        is written. `media_filter` adds the metadata of images, videos and sounds to the index,
        `checksums` writes one of each sample, as `energize.prepare_checksums` does.

        Raises what `energize.prepare` raises.
        """
        accepted("prepare_dataset", index_sqlite_tmp_path=index_sqlite_tmp_path)
        patterns: dict[str, list[str]] = {}
        for part, pattern in split_parts_patterns or ():
            patterns.setdefault(part, []).append(pattern)
        report = prepare(
            Path(parent_path),
            shards=[os.fspath(path) for path in paths],
            split_ratios=None if split_parts_ratio is None else dict(split_parts_ratio),
            split_patterns=None if split_parts_patterns is None else patterns,
            split_config=split_config,
            shuffle_shards=shuffle_seed is not None,
            seed=shuffle_seed or 0,
            workers=workers,
            sqlite=True,
            overwrite=True,
            tar_index_only=tar_index_only,
            fix_duplicates=fix_duplicates,
            checksums=checksums,
            on_progress=shown_by(progress_fn),
        )
        if media_filter is not None:
            WebdatasetPreparator.add_media_metadata(
                parent_path, media_filter=media_filter, workers=workers
            )
        return set(report.parts)

    @staticmethod
    def add_media_metadata(
        parent_path: str | os.PathLike[str],
        *,
        media_filter: MediaFilterConfig,
        workers: int | None = None,
        progress_fn: ProgressFn | None = None,
        index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Add the metadata of the files that `media_filter` chooses to the index of a prepared
        folder, which is built in the folder of the file `index_sqlite_tmp_path`; returns of how
        many.

        Raises what `energize.preparation.media.prepare_media` raises.
        """
        report = prepare_media(
            parent_path,
            media_filter,
            workers=workers,
            on_progress=shown_by(progress_fn),
            tmp_path=None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent,
        )
        return report.count


def shown_by(progress_fn: ProgressFn | None) -> Progress | None:
    """What is told how many of how many are done, and goes on with `progress_fn` as many steps."""
    if progress_fn is None:
        return None
    steps: Iterator[Any] = iter(())
    stepped = -1

    def tell(done: int, total: int) -> None:
        nonlocal steps, stepped
        if stepped < 0:
            steps, stepped = iter(progress_fn(iter(range(total)), total)), 0
        for _ in range(stepped, done):
            next(steps, None)
        stepped = max(stepped, done)
        if done >= total:
            next(steps, None)  # where a progress bar closes

    return tell


# Factories of datasets over prepared folders of shards.


class BaseWebdatasetFactory(SourceFactory[T_co], WebdatasetPreparator):
    """A split part of a prepared folder, as it is asked for; `build()` makes the dataset.

    A subclass sets `__sample_type__` and makes a sample of the raw one in `load_sample`. What is
    read is shuffled where `training`, over `shuffle_over_epochs` passes at once (None: not at all,
    -1: drawn with replacement), in runs of at most `max_samples_per_sequence` samples; else it is
    as stored. `part_filter` says which parts are read at all, `subset` which samples. With
    `checksums` every sample is compared with the one that `energize prepare --checksums` wrote.

    Raises `ConfigError` without `__sample_type__`, and what `WebdatasetSource` raises.
    """

    path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        split_config: str | None = None,
        part_filter: PartFilter | None = None,
        checksums: bool = False,
    ) -> None:
        if getattr(self, "__sample_type__", None) is None:
            raise ConfigError(f"{type(self).__name__}: set the class attribute __sample_type__")
        self.path = Path(path)
        self.paths = [self.path]
        self.subflavors = getattr(self, "subflavors", {})
        self.split_part = split_part
        self.split_config = split_config
        self.part_filter = part_filter
        self.checksums = checksums
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
        )

    def _stored(self, seed: int) -> WebdatasetSource:
        return WebdatasetSource(
            self.path,
            split_part=self.split_part,
            split_config=self.split_config,
            checksums=self.checksums,
            seed=seed,
        )

    def _loading(self) -> Callable[[dict[str, Any]], T_co]:
        return RawLoading(self.load_sample, self.part_filter)

    def as_file_store(self) -> WebdatasetFileStore:
        return WebdatasetFileStore(self.path)

    @abstractmethod
    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        """The sample of a raw one: a dict of `__key__`, `__restore_key__`, `__sources__`, and of
        the bytes of its parts by name.
        """

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class RawLoading:
    """Gives a raw sample to `load_sample` in Megatron-Energon's form."""

    loads_stored = True
    """What it returns for a stored sample is what the key of that sample restores."""

    def __init__(
        self, load_sample: Callable[[dict[str, Any]], Any], part_filter: PartFilter | None
    ) -> None:
        self.load_sample = load_sample
        self._crude = SampleLoader(sample_type=CrudeSample, decoder=None, part_filter=part_filter)

    def __call__(self, raw: dict[str, Any]) -> Any:
        crude: dict[str, Any] = self._crude(raw)
        return self.load_sample({**crude, "__dataset__": raw["__dataset__"]})


# Typed samples of a prepared folder, by a field map or a function.


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_co]):
    """Makes samples of `__sample_type__` by a `field_map`, or by a function `sample_loader`.

    Both are those of `SampleLoader`, which takes the usual parts where neither is given;
    `part_filter` (names, or a function of a name) says which parts there are. Parts are bytes here,
    decoded ones in `DefaultDecoderWebdatasetFactory`. A subclass may override `load_sample`.

    Raises `ConfigError` when both are given, and for a `sample_loader` without `part_filter`;
    `UntrustedCodeError` for a name of a file in place of a function.
    """

    _decoder: SampleDecoder | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: LoadFunction | None = None,
        part_filter: PartFilter | None = None,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        for name, given in (("sample_loader", sample_loader), ("part_filter", part_filter)):
            if isinstance(given, str):
                raise UntrustedCodeError(
                    f"{owner}: {name}={given!r} names a file of the data folder, which is not run "
                    "here; import the function in your program and give the function, or let "
                    "get_dataset_from_config(..., trust_code=[folder]) read it"
                )
        if sample_loader is not None and part_filter is None:
            raise ConfigError(
                f"{owner}: sample_loader needs part_filter, which says which parts to read: their "
                "names, or a function of a name"
            )
        self.subflavors = dict(subflavors or {})
        self.field_map = None if field_map is None else dict(field_map)
        self.sample_loader = sample_loader
        super().__init__(path, part_filter=part_filter, **kwargs)
        _ = self._typed  # what does not fit the type is an error now

    @cached_property
    def _typed(self) -> SampleLoader[Any]:
        """What makes samples."""
        return SampleLoader(
            sample_type=self.__sample_type__,
            field_map=self.field_map,
            decoder=self._decoder,
            subflavors=self.subflavors,
            sample_loader=self.sample_loader,
            part_filter=self.part_filter,
        )

    def _loading(self) -> Callable[[dict[str, Any]], T_co]:
        if type(self).load_sample is DefaultGenericWebdatasetFactory.load_sample:
            return self._typed
        return super()._loading()

    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        return cast("T_co", self._typed(raw_data))


# Typed samples of a prepared folder, decoded.

DEFAULT_DECODER = SampleDecoder()


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_co]):
    """As `DefaultGenericWebdatasetFactory`, with parts decoded by `decoder` (None: as bytes)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        decoder: SampleDecoder | None = DEFAULT_DECODER,
        **kwargs: Any,
    ) -> None:
        self._decoder = decoder
        super().__init__(path, **kwargs)


# Samples of a type that is given, of a prepared folder.


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_co]):
    """Makes samples of `sample_type`, decoded: what a dataset.yaml with a `sample_type` stands for.

    Other arguments are those of `DefaultDecoderWebdatasetFactory` and `BaseWebdatasetFactory`.

    >>> import tempfile
    >>> from energize import TextSample, WorkerConfig, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> texts = StandardWebdatasetFactory(
    ...     folder, sample_type=TextSample, field_map={"text": "txt"}, split_part="train",
    ...     training=False, worker_config=WorkerConfig(),
    ... )
    >>> len(texts), [sample.text for sample in texts.build()]
    (1, ['a cat'])
    """

    __sample_type__: type[Any]  # type: ignore[misc]  # of this object, not of its class

    def __init__(
        self, path: str | os.PathLike[str], *, sample_type: type[T_co], **kwargs: Any
    ) -> None:
        if not isinstance(sample_type, type) or not issubclass(sample_type, Sample | CrudeSample):
            raise ConfigError(
                f"{type(self).__name__}: sample_type is a class that extends energize.Sample; got "
                f"{sample_type!r}"
            )
        self.__sample_type__ = sample_type
        super().__init__(path, **kwargs)


# Factories of datasets over indexed files of JSON lines.


class CrudeJsonlDatasetFactory(SourceFactory[CrudeSample]):
    """The lines of an indexed `.jsonl` file as crude samples: dicts with the parsed line as `json`.

    The arguments are those of `BaseWebdatasetFactory`; there are no splits.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> CrudeJsonlDatasetFactory.prepare_dataset(path)
    2
    >>> lines = CrudeJsonlDatasetFactory(path, training=False, worker_config=WorkerConfig())
    >>> [sample["json"]["text"] for sample in lines.build()]
    ['a', 'b']
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        part_filter: Any = None,
        checksums: bool = False,
    ) -> None:
        self.path = Path(path)
        self.paths = [self.path]
        self.checksums = checksums
        self.subflavors = dict(subflavors or {})
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
            part_filter=part_filter,
        )

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str], *, checksums: bool = False) -> int:
        """Write the index of a `.jsonl` file, and its checksums if asked; returns how many samples
        it has.

        Raises what `energize.preparation.jsonl.prepare_jsonl` raises.
        """
        return prepare_jsonl(Path(path), checksums=checksums)

    def _stored(self, seed: int) -> JsonlSource:
        return JsonlSource(self.path, checksums=self.checksums, seed=seed)

    def _loading(self) -> SampleLoader[CrudeSample]:
        return SampleLoader(sample_type=CrudeSample, subflavors=self.subflavors)

    def as_file_store(self) -> JsonlFileStore:
        return JsonlFileStore(self.path)

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """What Megatron-Energon makes of a `.jsonl` file; the same as `CrudeJsonlDatasetFactory`."""


# Crude samples: dicts of their parts.


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """Crude samples of a prepared folder, each a dict of its parts, decoded, by their names.

    What a dataset.yaml with `__class__: CrudeWebdataset` stands for. `part_filter` (names, or a
    function of a name) says which parts are there.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        subflavors: Mapping[str, Any] | None = None,
        part_filter: PartFilter | None = None,
        **kwargs: Any,
    ) -> None:
        if "sample_loader" in kwargs or "field_map" in kwargs:
            raise ConfigError(
                "CrudeWebdataset: crude samples are the parts as they are; make others of them in "
                "a cooker, or use StandardWebdatasetFactory with sample_loader or field_map"
            )
        super().__init__(path, subflavors=subflavors, part_filter=part_filter, **kwargs)


# From a path to the factory of its dataset, as the files of the folder say.


@own_errors
def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    **kwargs: Any,
) -> BaseCoreDatasetFactory[Any]:
    """The factory of a prepared folder, or of an indexed `.jsonl` file; `.build()` makes it.

    `dataset_config` and `split_config` are names of files in `.nv-meta`, by default dataset.yaml
    and split.yaml, or the split file that dataset.yaml names. `subflavors` win over those of
    dataset.yaml. `kwargs` go to the factory (`decoder`, `max_samples_per_sequence`, ...) and win
    over dataset.yaml too; `sample_loader`, `part_filter` and `trust_code` among them are those of
    `get_train_dataset`. With `sample_type`, samples have to be of that type.

    Raises `ConfigError` for samples of another type and for names of files with a `.jsonl` file;
    `DatasetError` and its kinds for what is wrong on disk.

    >>> import tempfile
    >>> from energize import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> [sample.text for sample in get_dataset_from_config(folder, training=False).build()]
    ['a cat']
    """
    common = {"training": training, "worker_config": worker_config or WorkerConfig(), **kwargs}
    if Path(path).suffix == ".jsonl":
        _check_no_files(path, dataset_config=dataset_config, split_config=split_config)
        _check_type(path, CrudeSample, sample_type)
        common.pop("decoder", None)
        return CrudeJsonlDatasetFactory(path, subflavors=subflavors, **common)
    config = read_dataset_yaml(Path(path), dataset_config or "dataset.yaml", code=True)
    crude = config.sample_class == CRUDE
    sample_loader, part_filter = loading_code(common).of(Path(path), config.code, crude=crude)
    options = {**config.options, **common, "part_filter": part_filter}
    options["split_config"] = split_config or options.get("split_config")
    options["split_part"] = split_part or options.get("split_part", "train")
    options["subflavors"] = {**config.subflavors, **(subflavors or {})}
    if crude:
        _check_type(path, CrudeSample, sample_type)
        return CrudeWebdataset(path, **options)
    made = sample_type_named(config.sample_module, config.sample_class)
    _check_type(path, made, sample_type)
    if sample_loader is None:
        options["field_map"] = config.field_map
    elif part_filter is None:
        options["part_filter"] = _any_part
    return StandardWebdatasetFactory(path, sample_type=made, sample_loader=sample_loader, **options)


def _any_part(name: str) -> bool:
    return True


def _check_no_files(path: str | os.PathLike[str], **names: str | None) -> None:
    for name, given in names.items():
        if given is not None:
            raise ConfigError(
                f"{path}: {name}={given!r} names a file of a prepared folder, and this is a file "
                "of JSON lines, which has none; leave it out"
            )


def _check_type(path: object, made: type[Any], asked: type[Any] | None) -> None:
    if asked is not None and not issubclass(made, asked):
        raise ConfigError(
            f"{path}: its samples are of type {made.__name__}, and sample_type asks for "
            f"{asked.__name__}"
        )


# The names of the files of a prepared folder, and of the members of a shard.

MAIN_FOLDER_NAME = META_FOLDER
INFO_JSON_FILENAME, INFO_YAML_FILENAME = INFO_NAMES
SPLIT_YAML_FILENAME = "split.yaml"
INDEX_SQLITE_FILENAME = SQLITE_NAME
INDEX_UUID_FILENAME = UUID_NAME

split_name_re = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Splits the name of a member into the key of its sample and the name of its part."""
skip_meta_re = re.compile(r"__[^/]*__($|/)")
"""What the name of a member that belongs to no sample begins with."""


# What a prepared folder says of its shards.


class EnergonDatasetType(Enum):
    """What a path is: a metadataset, a prepared folder, a `.jsonl` file, a plain folder whose media
    metadata were collected, or nothing of these.
    """

    METADATASET = "metadataset"
    WEBDATASET = "webdataset"
    JSONL = "jsonl"
    FILESYSTEM = "filesystem"
    INVALID = "invalid"


def get_dataset_type(path: str | os.PathLike[str]) -> EnergonDatasetType:
    """What a path is, by its name and what lies there; no content is looked at.

    >>> get_dataset_type("/nowhere").value
    'invalid'
    """
    found = Path(path)
    by_suffix = {
        ".jsonl": EnergonDatasetType.JSONL,
        ".yaml": EnergonDatasetType.METADATASET,
        ".yml": EnergonDatasetType.METADATASET,
    }
    if found.is_file():
        return by_suffix.get(found.suffix, EnergonDatasetType.INVALID)
    if is_prepared(found):
        return EnergonDatasetType.WEBDATASET
    if (found / META_FOLDER / SQLITE_NAME).is_file():
        return EnergonDatasetType.FILESYSTEM
    return EnergonDatasetType.INVALID


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard: its name in the dataset, where it is, and how many samples it has."""

    name: str
    path: Path
    count: int


@edataclass
class WebdatasetMeta:
    """The shards of a split part of a prepared folder.

    `shards` are those that are read, `split_part_files` the names of all that the split part lists,
    `info_shard_files` of all that the folder has; `sample_excludes` the single samples, as
    `shard/key`, that are left out.
    """

    sample_excludes: set[str]
    shards: list[ShardInfo]
    split_part_files: list[str]
    info_shard_files: list[str]

    @staticmethod
    def from_config(
        path: str | os.PathLike[str], *, split_part: str, split_config: str | None = None
    ) -> WebdatasetMeta:
        """What the folder `path` says; no shard is read unless single samples are excluded.

        Raises `SplitError`, `EmptyDatasetError`, and what reading `.nv-meta` raises.
        """
        folder = Path(path)
        read = read_split(folder, split_part, split_config)
        splits = read_splits(folder, split_config or "split.yaml")
        known = list(read_info(folder).shard_counts)
        counts = zip(read.names, read.counts, strict=True)
        return WebdatasetMeta(
            sample_excludes=set(splits.exclude).difference(known),
            shards=[ShardInfo(name, folder / name, count) for name, count in counts],
            split_part_files=list(splits.parts[split_part]),
            info_shard_files=known,
        )


def get_info_shard_files(path: str | os.PathLike[str]) -> list[str]:
    """The names of all shards of the prepared folder `path`."""
    return list(read_info(Path(path)).shard_counts)


def check_dataset_info_present(path: str | os.PathLike[str]) -> bool:
    """Whether the folder `path` is prepared."""
    return is_prepared(Path(path))


# Decoding of the parts of samples.

ImageDecoderType = Literal[
    "l8",
    "rgb8",
    "rgba8",
    "l",
    "rgb",
    "rgba",
    "torchl8",
    "torchrgb8",
    "torchrgba8",
    "torchl",
    "torchrgb",
    "torch",
    "torchrgba",
    "pill",
    "pil",
    "pilrgb",
    "pilrgba",
]
"""The values of `image_decode`."""


# Factories of datasets that join several prepared folders by the keys of their samples.


class JoinedWebdatasetFactory(SourceFactory[T_co]):
    """Samples of a first dataset, each with those of others that have its key, made one.

    `inner_datasets` is a list, whose samples `joiner` is given by place, or a mapping, by name. A
    `joiner` that is a type of samples joins by its `from_joined`. `nonmatch` says for each dataset
    but the first what happens to samples without a partner there: "error", "skip" or "none". What
    belongs together comes from the `index.sqlite` of the folders, and from `cache`, see
    `JoinedSource`; a `join_index` that Megatron-Energon wrote is not needed.

    Raises `ConfigError` for a joiner that is none, and what `JoinedSource` raises.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]]
        | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        training: bool,
        worker_config: WorkerConfig,
        joiner: Callable[..., T_co],
        nonmatch: Sequence[str] = (),
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        join_index: str | os.PathLike[str] | None = None,
        cache: Path | None = None,
    ) -> None:
        self.inner_dataset_keys: list[str] | None = None
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys = list(inner_datasets)
            inner_datasets = list(inner_datasets.values())
        self.inner_datasets = list(inner_datasets)
        self.paths = [each.path for each in self.inner_datasets]
        self.subflavors = self.inner_datasets[0].subflavors if self.inner_datasets else {}
        self.joiner = _function(type(self).__name__, joiner)
        self.nonmatch = tuple(nonmatch)
        self.cache = cache
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
            join_index=join_index,
        )

    @property
    def split_part(self) -> str:
        """The split part of the first dataset."""
        return self.inner_datasets[0].split_part

    def _stored(self, seed: int) -> JoinedSource:
        parts = [cast("WebdatasetSource", each.source) for each in self.inner_datasets]
        return JoinedSource(*parts, nonmatch=self.nonmatch, cache=self.cache, seed=seed)

    def _loading(self) -> JoinLoader:
        names = None if self.inner_dataset_keys is None else tuple(self.inner_dataset_keys)
        loaders = tuple(each._loading() for each in self.inner_datasets)
        return JoinLoader(loaders, names, self.joiner)

    def as_file_store(self) -> NoReturn:
        """`ConfigError`: the files of a join are those of its datasets."""
        raise ConfigError("a join has no files of its own; take the stores of its datasets")

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={self.paths})"


def _function(owner: str, joiner: Any) -> Callable[..., Any]:
    if isinstance(joiner, type) and issubclass(joiner, Sample):
        return joiner.from_joined
    if isinstance(joiner, type) or not callable(joiner):
        raise ConfigError(
            f"{owner}: joiner is a type that extends energize.Sample, or a function; got {joiner!r}"
        )
    return cast("Callable[..., Any]", joiner)


# One factory for each sample type, as older folders name them; all of them deprecated.


class _TypedWebdataset(DefaultDecoderWebdatasetFactory[T_co]):
    """As `StandardWebdatasetFactory`, with the sample type that its name says: a `FutureWarning`.

    A dataset.yaml that names one of these as its `__class__` is read without a warning.
    """

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        own, kind = type(self).__name__, self.__sample_type__.__name__
        warnings.warn(
            f"{own} is deprecated: use StandardWebdatasetFactory(..., sample_type={kind}); in "
            f"dataset.yaml, put sample_type: {{__module__: megatron.energon, __class__: {kind}}} "
            "in place of __module__ and __class__",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(path, **kwargs)


class CaptioningWebdataset(_TypedWebdataset[CaptioningSample]):
    """Deprecated: `StandardWebdatasetFactory` of `CaptioningSample`."""

    __sample_type__ = CaptioningSample


class ImageWebdataset(_TypedWebdataset[ImageSample]):
    """Deprecated: `StandardWebdatasetFactory` of `ImageSample`."""

    __sample_type__ = ImageSample


class ImageClassificationWebdataset(_TypedWebdataset[ImageClassificationSample]):
    """Deprecated: `StandardWebdatasetFactory` of `ImageClassificationSample`."""

    __sample_type__ = ImageClassificationSample


class InterleavedWebdataset(_TypedWebdataset[InterleavedSample]):
    """Deprecated: `StandardWebdatasetFactory` of `InterleavedSample`."""

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(_TypedWebdataset[MultiChoiceVQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `MultiChoiceVQASample`."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(_TypedWebdataset[OCRSample]):
    """Deprecated: `StandardWebdatasetFactory` of `OCRSample`."""

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(_TypedWebdataset[SimilarityInterleavedSample]):
    """Deprecated: `StandardWebdatasetFactory` of `SimilarityInterleavedSample`."""

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(_TypedWebdataset[TextSample]):
    """Deprecated: `StandardWebdatasetFactory` of `TextSample`."""

    __sample_type__ = TextSample


class VidQAWebdataset(_TypedWebdataset[VidQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `VidQASample`."""

    __sample_type__ = VidQASample


class VQAOCRWebdataset(_TypedWebdataset[VQAOCRSample]):
    """Deprecated: `StandardWebdatasetFactory` of `VQAOCRSample`."""

    __sample_type__ = VQAOCRSample


class VQAWebdataset(_TypedWebdataset[VQASample]):
    """Deprecated: `StandardWebdatasetFactory` of `VQASample`."""

    __sample_type__ = VQASample
