"""Factories of datasets, and what goes with them, in the words of Megatron-Energon."""

from __future__ import annotations

import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    cast,
)

from energize.core import samples
from energize.core.ignored import accepted
from energize.core.lanes import WorkerConfig
from energize.core.os_errors import convert_os_errors
from energize.core.progress import Progress
from energize.core.records import declared_fields, is_record, sources_of
from energize.core.samples import CrudeSample, Sample, SourceInfo, pin_memory
from energize.core.stores import add_source
from energize.data.files import path_of
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.media_filter import MediaFilterConfig
from energize.data.nv_meta import (
    INFO_NAMES,
    META_FOLDER,
    SQLITE_NAME,
    UUID_NAME,
    is_prepared,
    read_info,
    read_splits,
)
from energize.data.source import Subset
from energize.data.webdataset import WebdatasetSource, read_split
from energize.energon.edataclass import edataclass
from energize.energon.ranks import RankView
from energize.errors import ConfigError, DataError, UntrustedCodeError
from energize.metadataset.factories import factory_of
from energize.metadataset.nodes import Folder
from energize.preparation.index import prepare, prepare_jsonl
from energize.preparation.media import prepare_media
from energize.task.decode import SampleDecoder
from energize.task.field_maps import parse_field
from energize.task.images import IMAGE_SPECS
from energize.task.load import (
    JoinLoader,
    LoadFunction,
    PartFilter,
    SampleLoader,
    loading_code,
)
from energize.task.pipeline import (
    STORED,
    SampleOrder,
    SourceFactory,
    select_subset,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FlexState(dict[str, Any]):
    """A state by the names of what it is made of: a dict. States here are plain
    ones.
    """


def add_source_info(sample: T, *source_infos: SourceInfo) -> T:
    """Add sources to the `__sources__` of a sample or dict; what has no place for them
    is an error.

    >>> source = SourceInfo(
    ...     dataset_path="cats", index=0, shard_name="0.tar", file_names=("a.jpg",)
    ... )
    >>> add_source_info({"__key__": "a"}, source)["__sources__"][0].shard_name
    '0.tar'
    """
    for source in source_infos:
        add_source(sample, source)
    return sample


def get_source_info(sample: Any) -> list[SourceInfo] | None:
    """Return the sources of a sample, or of all samples of a list; None where nothing
    is known.
    """
    sources = sources_of(sample)
    return None if sources is None else list(sources)


class PinMemoryMixin:
    """Gives a dataclass a method `pin_memory`; `Sample` and `Batch` have theirs
    already.
    """

    __slots__ = ()

    def pin_memory(self) -> Self:
        """Return a copy with all tensors in page-locked memory; the object itself
        without a GPU.
        """
        return pin_memory(self) if is_record(self) else self


# Preparing a folder of shards, in the words of Megatron-Energon.

ProgressFn = Callable[[Iterator[Any], int], Iterator[Any]]
"""Given something to iterate over, and its length, iterates over it and shows how far
it is."""


class WebdatasetPreparator:
    """Functions of the factories for a folder that is not prepared yet."""

    @staticmethod
    def prepare_dataset(  # noqa: PLR0913
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
    ) -> set[str]:
        """Index the shards `paths` of the folder `parent_path`; return the parts they
        have.

        `energize.prepare` with Megatron-Energon's arguments: `paths` are relative to
        the folder, with braces; splits are pairs of a name and a ratio, or of a name
        and a pattern (a name may come several times); shards are shuffled before they
        are cut by ratios, unless `shuffle_seed` is None. A folder that is prepared
        already is prepared anew. No dataset.yaml is written. `media_filter` adds the
        metadata of images, videos and sounds to the index.

        Raises what `energize.prepare` raises.
        """
        accepted("prepare_dataset", index_sqlite_tmp_path=index_sqlite_tmp_path)
        patterns: dict[str, list[str]] = {}
        for part, pattern in split_parts_patterns or ():
            patterns.setdefault(part, []).append(pattern)
        report = prepare(
            path_of(parent_path),
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
        """Add the metadata of the files that `media_filter` chooses to the index of a
        prepared folder, which is built in the folder of the file
        `index_sqlite_tmp_path`; returns of how many.

        Raises what `energize.preparation.media.prepare_media` raises.
        """
        report = prepare_media(
            parent_path,
            media_filter,
            workers=workers,
            on_progress=shown_by(progress_fn),
            tmp_path=None
            if index_sqlite_tmp_path is None
            else path_of(index_sqlite_tmp_path).parent,
        )
        return report.count


def shown_by(progress_fn: ProgressFn | None) -> Progress | None:
    """Return a progress callback that advances `progress_fn` step by step."""
    if progress_fn is None:
        return None
    shown: Iterator[Any] = iter(())

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if not done:
            shown = iter(progress_fn(iter(range(total)), total))
        # One step more at the end, where a progress bar closes.
        for _ in range((done > 0) + (done == total)):
            next(shown, None)

    return tell


DEFAULT_DECODER = SampleDecoder()

# Factories of datasets over prepared folders of shards.


class RankFactory(SourceFactory[T_co]):
    """A `SourceFactory` that builds views of one rank."""

    def build(self, worker_rotation_offset: int = 0) -> RankView[T_co]:
        """Return the samples as a `RankView`.

        Args:
            worker_rotation_offset: Has no use.
        """
        return RankView(super().build(worker_rotation_offset))


class _Factory(RankFactory[T_co]):
    """A factory with the arguments that all factories of Megatron-Energon have."""

    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        load: Any,
        sample_type: type[Any],
        paths: Sequence[Path],
        *,
        training: bool,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs: int | None = 1,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        **unused: Any,
    ) -> None:
        accepted(type(self).__name__, **unused)
        shuffled = SampleOrder(shuffle_over_epochs, max_samples_per_sequence)
        super().__init__(
            select_subset(source, subset),
            load,
            sample_type,
            paths,
            subflavors or {},
            order=shuffled if training else STORED,
            worker_config=worker_config,
        )


class BaseWebdatasetFactory(_Factory[T_co], WebdatasetPreparator):
    """A split part of a prepared folder; `build()` makes the dataset.

    A subclass sets `__sample_type__` and converts a raw sample in `load_sample`.
    `part_filter` selects the parts that are read. `options` are `training`,
    `shuffle_over_epochs` and `max_samples_per_sequence`, which set the order, and
    `subset`.

    Raises:
        DatasetError: And its subclasses, as `WebdatasetSource`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str,
        worker_config: WorkerConfig,
        split_config: str | None = None,
        part_filter: PartFilter | None = None,
        **options: Any,
    ) -> None:
        self.path = path_of(path)
        self.split_part = split_part
        if not isinstance(getattr(self, "__sample_type__", None), type):
            raise ConfigError(
                f"{type(self).__name__} has no __sample_type__. Set it to the type of "
                "samples that load_sample makes"
            )
        seed = worker_config.seed_offset
        super().__init__(
            WebdatasetSource(
                path, split_part=split_part, split_config=split_config, seed=seed
            ),
            self._loading(part_filter),
            self.__sample_type__,
            [self.path],
            worker_config=worker_config,
            **options,
        )

    def _loading(
        self, part_filter: PartFilter | None
    ) -> Callable[[dict[str, Any]], T_co]:
        return RawLoading(self, part_filter)

    @abstractmethod
    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        """Return the sample of a raw one: a dict of `__key__`, `__restore_key__`,
        `__sources__`, and of the bytes of its parts by name.
        """


class RawLoading:
    """Loads a sample; samples are restored from their keys in the same way."""

    loads_stored = True
    """Samples are restored from their keys in the same way."""

    def __init__(
        self, factory: BaseWebdatasetFactory[Any], part_filter: PartFilter | None
    ) -> None:
        self._factory = factory
        self._crude = SampleLoader(
            sample_type=CrudeSample, decoder=None, part_filter=part_filter
        )

    def __call__(self, raw: dict[str, Any]) -> Any:
        crude: dict[str, Any] = self._crude(raw)
        identity = {
            "__dataset__": raw["__dataset__"],
            "__subflavors__": self._factory.subflavors,
        }
        return self._factory.load_sample({**crude, **identity})


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T_co]):
    """Makes samples of `__sample_type__` by a `field_map` or a `sample_loader`.

    Both are those of `SampleLoader`; without them, fields are read from the usual
    parts. `part_filter` (names, or a function of a name) selects the parts. Parts are
    bytes here, and decoded in `DefaultDecoderWebdatasetFactory`. A subclass may
    override `load_sample`.

    Raises:
        ConfigError: For both, and for a `sample_loader` without `part_filter`.
        UntrustedCodeError: For the name of a file in place of a function.
    """

    decoder: SampleDecoder | None = None

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
        if isinstance(sample_loader, str) or isinstance(part_filter, str):
            raise UntrustedCodeError(
                f"{owner}: sample_loader={sample_loader!r} or "
                f"part_filter={part_filter!r} names a file of the data folder, which "
                "is not trusted. Pass the function, or use "
                "get_dataset_from_config(..., trust_code=[folder])"
            )
        if sample_loader is not None and part_filter is None:
            raise ConfigError(
                f"{owner}: sample_loader needs part_filter: the parts to read"
            )
        self.decoder = kwargs.pop("decoder", self.decoder)
        self.field_map = field_map
        self._typed: SampleLoader[Any] = SampleLoader(
            sample_type=getattr(self, "__sample_type__", type(None)),
            field_map=field_map,
            decoder=self.decoder,
            subflavors=subflavors or {},
            sample_loader=sample_loader,
            part_filter=part_filter,
        )
        super().__init__(path, subflavors=subflavors, part_filter=part_filter, **kwargs)

    @property
    def _decoder(self) -> Any:
        """The decoder of parts.

        User classes may set it to a function of a raw sample that returns the sample
        with decoded parts, such as webdataset's `Decoder`.
        """
        return self.decoder

    @_decoder.setter
    def _decoder(self, decoder: Any) -> None:
        if decoder is None or isinstance(decoder, SampleDecoder):
            self.decoder = decoder
            self._typed = replace(self._typed, decoder=decoder)
        else:
            load_sample = partial(_decoded_by, decoder, self)
            self.load_sample = load_sample  # type: ignore[method-assign]
        filtered = None if self.field_map is not None else self._typed.part_filter
        self.load = self._loading(filtered)

    def _loading(
        self, part_filter: PartFilter | None
    ) -> Callable[[dict[str, Any]], T_co]:
        is_overridden = (
            type(self).load_sample is not DefaultGenericWebdatasetFactory.load_sample
        )
        if not is_overridden and "load_sample" not in vars(self):
            return self._typed
        return super()._loading(part_filter)

    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        return cast("T_co", self._typed(raw_data))


def _decoded_by(decoder: Any, factory: Any, raw_data: dict[str, Any]) -> Any:
    """Return the sample with fields taken from the parts of a user's decoder."""
    decoded = decoder(raw_data)
    sample_type = factory.__sample_type__
    field_map = factory.field_map
    if field_map is None:
        field_map = {name: name for name in declared_fields(sample_type)[0]}
    values = {
        name: _accessed(decoded, access, name) for name, access in field_map.items()
    }
    meta = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
    return sample_type(**{name: decoded.get(name) for name in meta}, **values)


def _accessed(decoded: Mapping[str, Any], access: str, field: str) -> Any:
    """Return what "jpg,png" or "json[caption][en]" stands for."""
    for access_path in parse_field(access):
        if access_path.part in decoded:
            return access_path.within(decoded[access_path.part])
    raise DataError(
        f"{decoded['__key__']}: the part {access!r} for the field {field!r} is missing"
    )


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T_co]):
    """As `DefaultGenericWebdatasetFactory`, with parts decoded by `decoder` (None: as
    bytes).

    `auto_decode`, `image_decode`, `av_decode` and `video_decode_audio` are older words
    for one.
    """

    decoder = DEFAULT_DECODER
    image_decode = "torchrgb"

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        older = ("image_decode", "av_decode", "video_decode_audio")
        options = {name: kwargs.pop(name) for name in older if name in kwargs}
        self.image_decode = options.get("image_decode", self.image_decode)
        if not kwargs.pop("auto_decode", True):
            kwargs["decoder"] = None
        elif options:
            kwargs["decoder"] = SampleDecoder(**options)
        super().__init__(path, **kwargs)


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T_co]):
    """Makes samples of `sample_type`, decoded: what a dataset.yaml with a `sample_type`
    stands for.

    Other arguments are those of `DefaultDecoderWebdatasetFactory` and
    `BaseWebdatasetFactory`.

    >>> import tempfile
    >>> from energize import TextSample, WorkerConfig, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> texts = StandardWebdatasetFactory(
    ...     folder,
    ...     sample_type=TextSample,
    ...     field_map={"text": "txt"},
    ...     split_part="train",
    ...     training=False,
    ...     worker_config=WorkerConfig(),
    ... )
    >>> len(texts), [sample.text for sample in texts.build()]
    (1, ['a cat'])
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sample_type: type[T_co], **kwargs: Any
    ) -> None:
        self.__sample_type__ = sample_type  # type: ignore[misc]  # of this object
        super().__init__(path, **kwargs)


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[CrudeSample]):
    """Crude samples of a prepared folder: dicts of decoded parts by name.

    It is the class of a dataset.yaml with `__class__: CrudeWebdataset`. `part_filter`
    (names, or a function of a name) selects the parts.
    """

    __sample_type__ = CrudeSample


class _Older(DefaultDecoderWebdatasetFactory[T_co]):
    """A factory as older folders name it, by the type of its samples."""

    def __init__(self, path: str | os.PathLike[str], **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self).__name__} is deprecated. Use StandardWebdatasetFactory(..., "
            f"sample_type={self.__sample_type__.__name__}). In dataset.yaml, replace "
            "__module__ and __class__",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(path, **kwargs)


def _typed(sample_type: type[Sample]) -> Any:
    doc = f"Deprecated: `StandardWebdatasetFactory` of `{sample_type.__name__}`."
    name = sample_type.__name__.removesuffix("Sample") + "Webdataset"
    return type(
        name,
        (_Older,),
        {"__sample_type__": sample_type, "__doc__": doc, "__module__": __name__},
    )


CaptioningWebdataset = _typed(samples.CaptioningSample)
ImageWebdataset = _typed(samples.ImageSample)
ImageClassificationWebdataset = _typed(samples.ImageClassificationSample)
InterleavedWebdataset = _typed(samples.InterleavedSample)
MultiChoiceVQAWebdataset = _typed(samples.MultiChoiceVQASample)
OCRWebdataset = _typed(samples.OCRSample)
SimilarityInterleavedWebdataset = _typed(samples.SimilarityInterleavedSample)
TextWebdataset = _typed(samples.TextSample)
VidQAWebdataset = _typed(samples.VidQASample)
VQAOCRWebdataset = _typed(samples.VQAOCRSample)
VQAWebdataset = _typed(samples.VQASample)


# Factories of datasets over JSON lines, over joins, and over what a path says.


class CrudeJsonlDatasetFactory(_Factory[CrudeSample]):
    """The lines of an indexed `.jsonl` file as crude samples: dicts with the parsed
    line as `json`.

    The arguments are those of `BaseWebdatasetFactory`; there are no splits.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> CrudeJsonlDatasetFactory.prepare_dataset(path)
    2
    >>> lines = CrudeJsonlDatasetFactory(
    ...     path, training=False, worker_config=WorkerConfig()
    ... )
    >>> [sample["json"]["text"] for sample in lines.build()]
    ['a', 'b']
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.path = path_of(path)
        super().__init__(
            JsonlSource(self.path, seed=worker_config.seed_offset),
            SampleLoader(sample_type=CrudeSample, subflavors=subflavors or {}),
            CrudeSample,
            [self.path],
            subflavors=subflavors,
            worker_config=worker_config,
            **options,
        )

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str]) -> int:
        """Write the index of a `.jsonl` file; return how many samples it has.

        Raises what `energize.preparation.index.prepare_jsonl` raises.
        """
        return prepare_jsonl(path_of(path))


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """Megatron-Energon's name for `CrudeJsonlDatasetFactory`."""


class JoinedWebdatasetFactory(_Factory[T_co]):
    """Samples of a first dataset, each joined with the samples of others by key.

    Samples are joined by the `index.sqlite` of the folders, see `JoinedSource`; a
    `join_index` written by Megatron-Energon is not needed.

    Args:
        inner_datasets: A list, passed to `joiner` by position, or a mapping, passed by
            name.
        joiner: A function, or a sample type with `from_joined`.
        nonmatch: For every dataset but the first, the treatment of samples without a
            partner: "error", "skip" or "none".

    Raises:
        DatasetError: And its subclasses, as `JoinedSource`.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]]
        | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        worker_config: WorkerConfig,
        joiner: Any,
        nonmatch: Sequence[str] = (),
        **options: Any,
    ) -> None:
        names = tuple(inner_datasets) if isinstance(inner_datasets, Mapping) else None
        inner = (
            inner_datasets.values()
            if isinstance(inner_datasets, Mapping)
            else inner_datasets
        )
        self.inner_datasets = list(inner)
        sources = [
            cast("WebdatasetSource", dataset.source) for dataset in self.inner_datasets
        ]
        seed = worker_config.seed_offset
        is_type = isinstance(joiner, type)
        loaders = tuple(dataset.load for dataset in self.inner_datasets)
        join = joiner.from_joined if is_type else joiner
        super().__init__(
            JoinedSource(*sources, nonmatch=tuple(nonmatch), seed=seed),
            JoinLoader(loaders, names, join),
            joiner if is_type else Sample,
            [dataset.path for dataset in self.inner_datasets],
            subflavors=self.inner_datasets[0].subflavors,
            worker_config=worker_config,
            **options,
        )


@convert_os_errors
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
) -> SourceFactory[Any]:
    """Return the factory of a prepared folder, or of an indexed `.jsonl` file;
    `.build()` makes the dataset.

    `dataset_config` and `split_config` are names of files in `.nv-meta`, by default
    dataset.yaml and split.yaml, or the split file that dataset.yaml names. `subflavors`
    win over those of dataset.yaml. `kwargs` are those of `BaseWebdatasetFactory` and
    `decoder`, and win over dataset.yaml too; `sample_loader`, `part_filter` and
    `trust_code` among them are those of `get_train_dataset`. With `sample_type`,
    samples have to be of that type.

    Raises `ConfigError` for samples of another type and for names of files with a
    `.jsonl` file; `DatasetError` and its kinds for what is wrong on disk.

    >>> import tempfile
    >>> from energize import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> [
    ...     sample.text
    ...     for sample in get_dataset_from_config(folder, training=False).build()
    ... ]
    ['a cat']
    """
    unused = kwargs.pop("parallel_shard_iters", None)
    accepted("get_dataset_from_config", parallel_shard_iters=unused)
    code = loading_code(kwargs)
    settings: dict[str, Any] = {
        "path": path_of(path),
        "subflavors": subflavors or {},
        "dataset_config": dataset_config,
        "split_config": split_config,
    }
    leaf = Folder.model_construct(**settings)
    if leaf.is_jsonl and (dataset_config or split_config):
        raise ConfigError(
            f"{path}: dataset_config={dataset_config!r} and "
            f"split_config={split_config!r} name files of a prepared folder, and this "
            "is a file of JSON lines. Leave them out"
        )
    if sample_type is not None and not issubclass(leaf.sample_class, sample_type):
        raise ConfigError(
            f"{path}: its samples are of type {leaf.sample_class.__name__}, not of "
            f"sample_type={sample_type.__name__}"
        )
    defaults = {"split_part": "train", "shuffle_over_epochs": 1, **leaf.config.options}
    names = ("shuffle_over_epochs", "max_samples_per_sequence")
    order = SampleOrder(*(kwargs.pop(name, defaults.get(name)) for name in names))
    config = worker_config or WorkerConfig()
    factory = factory_of(
        Folder.model_construct(
            **settings, split_part=split_part or defaults["split_part"]
        ),
        decoder=kwargs.pop("decoder", DEFAULT_DECODER),
        code=code,
        seed=config.seed_offset,
        worker_config=config,
        factory=RankFactory,
        **kwargs,
    )
    factory.order = order if training else STORED
    return factory


# The names of the files of a prepared folder, and of the members of a shard.

MAIN_FOLDER_NAME = META_FOLDER
INFO_JSON_FILENAME, INFO_YAML_FILENAME = INFO_NAMES
SPLIT_YAML_FILENAME = "split.yaml"
INDEX_SQLITE_FILENAME = SQLITE_NAME
INDEX_UUID_FILENAME = UUID_NAME

split_name_re = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Splits the name of a member into the key of its sample and the name of its part."""
skip_meta_re = re.compile(r"__[^/]*__($|/)")
"""Matches the names of members that belong to no sample."""


# What a prepared folder says of its shards.


class EnergonDatasetType(Enum):
    """The type of data at a path."""

    METADATASET = "metadataset"
    WEBDATASET = "webdataset"
    JSONL = "jsonl"
    FILESYSTEM = "filesystem"
    INVALID = "invalid"


_BY_NAME = dict.fromkeys([".yaml", ".yml"], EnergonDatasetType.METADATASET)
_BY_NAME[".jsonl"] = EnergonDatasetType.JSONL


def get_dataset_type(path: str | os.PathLike[str]) -> EnergonDatasetType:
    """Return what a path is, by its name and what lies there; no content is looked at.

    >>> get_dataset_type("/nowhere").value
    'invalid'
    """
    matches = path_of(path)
    if matches.is_file():
        return _BY_NAME.get(matches.suffix, EnergonDatasetType.INVALID)
    if is_prepared(matches):
        return EnergonDatasetType.WEBDATASET
    has_media = (matches / META_FOLDER / SQLITE_NAME).is_file()
    return EnergonDatasetType.FILESYSTEM if has_media else EnergonDatasetType.INVALID


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard: its name in the dataset, where it is, and how many samples it has."""

    name: str
    path: Path
    count: int


@edataclass
class WebdatasetInfo:
    """Contents of `.info.json`: samples per shard, and the version that counted."""

    energon_version: str | None = None
    shard_counts: dict[str, int]


@edataclass
class WebdatasetSplits:
    """Contents of `split.yaml`: shards of every part, excluded shards and samples."""

    split_parts: dict[str, list[str]]
    exclude: list[str] = field(default_factory=list)


class FilteredSample(TypedDict):
    """The fields of a raw sample other than its parts."""

    __key__: str
    __shard__: str
    __restore_key__: tuple[str, int]
    __sources__: tuple[SourceInfo, ...]


@edataclass
class DatasetSubset:
    """A run of neighbouring samples: the part `range` of those that `absolute_range`
    counts.
    """

    range: tuple[float, float] | None = None
    absolute_range: tuple[int, int | None] | None = None

    def compute_subset(self, total_samples: int) -> tuple[int, int]:
        """Return the range of samples in the subset, as (first, end).

        Args:
            total_samples: Number of samples in the dataset.

        Raises:
            ConfigError: If the subset exceeds the dataset.

        Example:
            >>> DatasetSubset(
            ...     absolute_range=(2, None), range=(0.0, 0.5)
            ... ).compute_subset(10)
            (2, 6)
        """
        return Subset(self.absolute_range, self.range or (0.0, 1.0)).bounds(
            total_samples
        )

    def config(self) -> dict[str, Any]:
        """Return both ranges by name."""
        return {"range": self.range, "absolute_range": self.absolute_range}


@edataclass
class WebdatasetMeta:
    """The shards of a split part of a prepared folder.

    `shards` are those that are read, `split_part_files` the names of all that the split
    part lists, `info_shard_files` of all that the folder has; `sample_excludes` the
    single samples, as `shard/key`, that are left out.
    """

    sample_excludes: set[str]
    shards: list[ShardInfo]
    split_part_files: list[str]
    info_shard_files: list[str]

    @staticmethod
    def from_config(
        path: str | os.PathLike[str],
        *,
        split_part: str,
        split_config: str | None = None,
    ) -> WebdatasetMeta:
        """Return the metadata of a prepared folder.

        Reads no shard unless single samples are excluded.

        Raises:
            SplitError: If the split part cannot be used.
            EmptyDatasetError: If it has no samples.
        """
        folder = path_of(path)
        read = read_split(folder, split_part, split_config)
        splits = read_splits(folder, split_config or "split.yaml")
        shards = list(read_info(folder).shard_counts)
        counts = zip(read.shards, read.counts, strict=True)
        return WebdatasetMeta(
            sample_excludes=set(splits.exclude).difference(shards),
            shards=[ShardInfo(name, folder / name, count) for name, count in counts],
            split_part_files=list(splits.split_parts[split_part]),
            info_shard_files=shards,
        )


def get_info_shard_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of all shards of the prepared folder `path`."""
    return list(read_info(path_of(path)).shard_counts)


if TYPE_CHECKING:
    ImageDecoderType = str
else:
    ImageDecoderType = Literal[*IMAGE_SPECS]
    """The values of `image_decode`."""
