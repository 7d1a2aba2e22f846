"""Metadatasets as objects: read from files, or made of nodes by a program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from energize.data.join import remove_matches, write_matches
from energize.errors import ConfigError
from energize.metadataset.dataset_loader import LoadedNodes, joins_of, whole_join
from energize.metadataset.keys import Spec
from energize.metadataset.located import Located
from energize.metadataset.nodes import Node, Staged
from energize.metadataset.reading import MetadatasetFile
from energize.metadataset.resolving import resolve


@dataclass(frozen=True)
class DatasetReference(Spec):
    """A dataset, a blend or a join, as a metadataset writes it: fields are the keys.

    >>> DatasetReference(path="captions", split_part="train").split_part
    'train'
    """


class Metadataset(LoadedNodes):
    """Splits by their names, each a dataset or a blend of some.

    `path` is the file in which it is written, or would be: paths in it are relative to its folder.
    `splits` are `DatasetReference`s. Objects come from `load_dataset`, which reads the file.

    >>> split = DatasetReference(path="captions", split_part="train")
    >>> sorted(Metadataset("/data/mix.yaml", {"train": split, "val": split}).splits)
    ['train', 'val']
    """

    def __init__(self, path: str | os.PathLike[str], splits: Mapping[str, Spec]) -> None:
        for name, split in splits.items():
            if not isinstance(split, Spec):
                raise ConfigError(
                    f"{type(self).__name__}: the split {name!r} is a DatasetReference; got "
                    f"{split!r}. To read a mapping as one reads a file, use load_dataset"
                )
        self._read_from(MetadatasetFile(Path(path), splits, Located(Path(path), None, {})))

    def _read_from(self, file: MetadatasetFile) -> None:
        self.file = file
        self.path = file.file
        self.splits = file.splits

    @classmethod
    def of_file(cls, file: MetadatasetFile) -> Metadataset:
        """A metadataset that was read."""
        made = cls.__new__(cls)
        made._read_from(file)
        return made

    def node(self, split_part: str, asked: Spec, *, existing: bool = True) -> Node | Staged:
        return resolve(self.file, split_part, asked, existing=existing)

    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        """Write down which samples joins put together, for one split or for all of them.

        With all of them, what was written for folders or splits that are others by now is removed.
        """
        names = list(self.splits) if split_part is None else [split_part]
        joins = [join for name in names for join in joins_of(self.node(name, Spec(path="")))]
        files = list(dict.fromkeys(write_matches(whole_join(join)) for join in joins))
        if split_part is None:
            remove_matches(self.path.with_name(f"{self.path.name}.cache"), files)
        return files


class MetadatasetV2(Metadataset):
    """A metadataset in the newer grammar, with blends and joins in each other."""
