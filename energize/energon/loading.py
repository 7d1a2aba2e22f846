"""Loading of datasets and metadatasets with the interface of Megatron-Energon."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from energize.core.lanes import WorkerConfig
from energize.core.os_errors import convert_os_errors
from energize.core.stores import FileStore
from energize.data.files import absent, path_of
from energize.data.join import JoinedSource, remove_matches, write_matches
from energize.data.source import Subset
from energize.data.stores import SystemFileStore, open_store
from energize.energon.factories import (
    EnergonDatasetType,
    RankFactory,
    get_dataset_type,
)
from energize.errors import ConfigError, DatasetNotFoundError, NotPreparedError
from energize.metadataset.api import entry_of
from energize.metadataset.documents import (
    MetadatasetFile,
    document,
    read_metadataset,
)
from energize.metadataset.factories import loaded_datasets
from energize.metadataset.located import Problem, as_error, plain_values
from energize.metadataset.models import ENERGIZE, FolderKeys
from energize.metadataset.nodes import Join, Leaf, MixNode, Stages, every_leaf
from energize.metadataset.paths import FILESYSTEM
from energize.metadataset.resolver import not_staged, resolve
from energize.task.decode import SampleDecoder
from energize.task.pipeline import (
    STORED,
    BaseCoreDatasetFactory,
    LoadedDatasetList,
    SampleOrder,
)

if TYPE_CHECKING:
    from energize.extras.paths import EPath


@dataclass
class TraversedDatasetReference:
    """A dataset that a metadataset leads to: which split part of which folder is read,
    with which subflavors and over how many epochs shuffled, and the paths of the stores
    that its cookers may read from.
    """

    path: EPath
    split_part: str
    aux: dict[str, EPath] = field(default_factory=dict)
    subflavors: dict[str, Any] = field(default_factory=dict)
    shuffle_over_epochs_multiplier: int | None = 1


class DatasetLoaderInterface(ABC):
    """A loaded metadataset or single dataset, ready to build datasets."""

    path: Path
    splits: Mapping[str, Any] = {}

    @abstractmethod
    def node(
        self, split_part: str, settings: FolderKeys, *, existing: bool = True
    ) -> MixNode | Stages:
        """Return the resolved split with the outer `settings`; see `resolve`."""

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
        """Return the datasets of a split with their weights or repetitions.

        Weights are normalised in every blend and multiplied from the root to the
        leaves; repetitions are multiplied. Arguments override the files and combine
        with them like the settings of an enclosing entry. Call `build()` on a result to
        make its dataset.

        Raises:
            ConfigError: For mixes that such numbers cannot express.
            MetadatasetError: As in `resolve`.
        """
        settings = entry_of(
            subflavors=None if subflavors is None else dict(subflavors),
            shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
            subset=subset,
        )
        node = not_staged(
            self.node(split_part, settings), split_part, "get_datasets makes datasets"
        )
        order = (
            SampleOrder(1, kwargs.pop("max_samples_per_sequence", None))
            if training
            else STORED
        )
        options = {
            "decoder": SampleDecoder(),
            "seed": worker_config.seed_offset,
            "factory": RankFactory,
            **kwargs,
        }
        return loaded_datasets(node, order, worker_config=worker_config, **options)

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return all datasets of a split in the order of the file, those of joins
        included; neither they nor their stores need to exist.
        """
        from energize.extras.paths import EPath  # which imports fsspec

        node = self.node(split_part, entry_of(), existing=False)
        leaves = list[Leaf]()
        for leaf in every_leaf(node):  # of a join one by one
            leaves += leaf.parts if isinstance(leaf, Join) else [leaf]
        return [
            TraversedDatasetReference(
                EPath(leaf.path),
                leaf.split_part,
                {
                    name: EPath(ref.removeprefix(FILESYSTEM))
                    for name, ref in leaf.aux.items()
                },
                dict(leaf.subflavors),
                leaf.shuffle_over_epochs_multiplier,
            )
            for leaf in leaves
        ]

    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        """Write down which samples joins put together, for one split or for all; see
        `prepare_metadataset`. Return the files.

        With all of them, what was written for folders or splits that are others by now
        is removed.
        """
        names = list(self.splits) if split_part is None else [split_part]
        if not names:
            raise ConfigError("a single dataset needs a split_part. Pass split_part")
        leaves = [
            leaf for name in names for leaf in every_leaf(self.node(name, entry_of()))
        ]
        joins = [
            cast(
                "JoinedSource",
                leaf.model_copy(update={"subset": None, "chosen": None}).source(),
            )
            for leaf in leaves
            if isinstance(leaf, Join)
        ]
        files = list(dict.fromkeys(map(write_matches, joins)))
        if split_part is None:
            remove_matches(self.path.with_name(f"{self.path.name}.cache"), files)
        return files


class DatasetLoader(DatasetLoaderInterface):
    """A prepared folder or a `.jsonl` file, with settings that override its files.

    The settings are those of an entry of a metadataset, such as `split_part`,
    `subflavors`, `shuffle_over_epochs_multiplier`, `dataset_config` and `split_config`.
    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self.path = path_of(path)
        kept = "shuffle_over_epochs_multiplier"  # None is a value of it
        self.settings = {
            k: name for k, name in settings.items() if name is not None or k == kept
        }

    def node(
        self, split_part: str, settings: FolderKeys, *, existing: bool = True
    ) -> MixNode | Stages:
        entry = {
            "split_part": split_part,
            **self.settings,
            "path": os.path.abspath(self.path),
        }
        return resolve(
            _written({split_part: entry}), split_part, settings, existing=existing
        )

    def get_dataset(self, **settings: Any) -> BaseCoreDatasetFactory[Any]:
        """Return the factory of the dataset; arguments as `get_datasets`."""
        return self.get_datasets(**settings).datasets[0].dataset


def _written(splits: Mapping[str, Any]) -> dict[str, Any]:
    return {"__module__": ENERGIZE, "__class__": "MetadatasetV2", "splits": splits}


class DatasetReference(dict[str, Any]):
    """A dataset, a blend or a join, as a metadataset writes it: a mapping of its keys.

    >>> DatasetReference(path="captions", split_part="train").split_part
    'train'
    """

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class AuxDatasetReference(DatasetReference):
    """A prepared folder or `.jsonl` file at `path`, as an entry of `aux`."""

    def get_file_store(self) -> FileStore[Any]:
        """Return the store over it."""
        return open_store(self["path"])


class AuxFilesystemReference(DatasetReference):
    """The plain folder at `fs_path`, as an entry of `aux`."""

    def get_file_store(self) -> FileStore[Any]:
        """Return the store over it."""
        return SystemFileStore(self["fs_path"])


class Metadataset(DatasetLoaderInterface):
    """Splits by their names, each a dataset or a blend of some.

    `path` is the file in which it is written, or would be: paths in it are relative to
    its folder. `splits` are mappings of the same keys as there, or `DatasetReference`s.
    Objects come from `load_dataset`, which reads the file.

    >>> splits = {"train": {"path": "captions"}, "val": {"path": "captions"}}
    >>> sorted(Metadataset("/data/mix.yaml", splits).splits)
    ['train', 'val']
    """

    def __init__(
        self, path: str | os.PathLike[str], splits: Mapping[str, Any] | MetadatasetFile
    ) -> None:
        problems = list[Problem]()
        if isinstance(splits, MetadatasetFile):
            file: MetadatasetFile | None = splits
        else:
            written = plain_values(_written(splits), path_of(path), problems)
            file = document(written, problems, weighs_all=False)
        if file is None:
            raise as_error(path_of(path), problems)
        self.path = file.file
        self.file = file
        self.splits = file.splits

    def node(
        self, split_part: str, settings: FolderKeys, *, existing: bool = True
    ) -> MixNode | Stages:
        return resolve(self.file, split_part, settings, existing=existing)


class MetadatasetV2(Metadataset):
    """A metadataset in the newer grammar, with blends and joins in each other."""


@convert_os_errors
def load_dataset(
    path: str | os.PathLike[str] | Mapping[str, Any], **kwargs: Any
) -> DatasetLoaderInterface:
    """Load a metadataset file, a prepared folder or a `.jsonl` file.

    Args:
        path: The file or folder, or a mapping with the content of a metadataset.
            Relative
            paths in a mapping start at the current folder; its joiners may be functions
            or types.
        **kwargs: Settings of a single dataset; see `DatasetLoader`.

    Raises:
        MetadatasetError: For an invalid file, with all its faults.
        DatasetNotFoundError: If the path is missing.
        NotPreparedError: If the folder is not prepared.
        ConfigError: For settings with a metadataset.

    Example:
        >>> import tempfile
        >>> from energize import WorkerConfig, prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
        >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
        >>> blend = [{"path": folder, "weight": 2}, {"path": folder}]
        >>> mix = {
        ...     "__module__": "megatron.energon",
        ...     "__class__": "MetadatasetV2",
        ...     "splits": {"train": {"blend": blend}},
        ... }
        >>> loaded = load_dataset(mix).get_datasets(
        ...     training=False, split_part="train", worker_config=WorkerConfig()
        ... )
        >>> [round(dataset.weight, 3) for dataset in loaded.datasets]
        [0.667, 0.333]
    """
    kind = (
        EnergonDatasetType.METADATASET
        if isinstance(path, Mapping)
        else get_dataset_type(path)
    )
    if kind is EnergonDatasetType.METADATASET:
        file = read_metadataset(path)
        if kwargs:
            raise ConfigError(
                f"{file.file}: {', '.join(kwargs)} are settings of single datasets. "
                "Set them in the entries of the metadataset"
            )
        return (Metadataset if file.older else MetadatasetV2)(file.file, file)
    folder = os.fspath(cast("str", path))
    if kind in (EnergonDatasetType.WEBDATASET, EnergonDatasetType.JSONL):
        return DatasetLoader(folder, **kwargs)
    if not path_of(folder).exists():
        raise DatasetNotFoundError(f"{folder} {absent(folder)}")
    raise NotPreparedError(
        f"{folder} is not a metadataset .yaml, a .jsonl file or a prepared folder. "
        f"Prepare it with: energize prepare {folder}"
    )


def traverse_metadataset(
    path: str | os.PathLike[str], *, split_part: str
) -> list[TraversedDatasetReference]:
    """Return all datasets that a split of a metadataset leads to, in the order of the
    files.

    Nested files are followed, and the datasets of joins are listed one by one. No
    dataset is opened or has to exist. Raises what `load_dataset` and `resolve` raise.
    """
    return load_dataset(path).traverse(split_part=split_part)


@convert_os_errors
def prepare_metadataset(path: str | os.PathLike[str]) -> None:
    """Write down which samples the joins of a metadataset put together, for all its
    splits.

    Nobody has to: without it that is looked up whenever a dataset is made, which takes
    some microseconds for each sample. The files are `join_*.npy` in a folder beside the
    metadataset, `mix.yaml.cache` for `mix.yaml`; they are used as long as the folders,
    splits, excluded samples and rules are those they were written for, and old ones are
    removed. Joins in nested files are written beside these.

    Raises what `resolve` and `JoinedSource` raise, `DatasetError` when files cannot be
    written, and `ConfigError` for a single dataset.
    """
    load_dataset(path).prepare()
