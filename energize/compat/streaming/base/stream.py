"""Streams: folders of samples with a quota."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import unquote, urlsplit

from energize.core.checks import checked_choice, raised_as
from energize.core.dataset import IndexedDataset
from energize.core.ignored import log_once
from energize.core.os_errors import os_errors_as
from energize.data.files import path_of
from energize.data.mds import INDEX, MdsSource
from energize.data.nv_meta import META_FOLDER
from energize.data.webdataset import WebdatasetSource
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, DatasetError, DatasetNotFoundError
from energize.order.quota import Quota
from energize.task.decode import SampleDecoder

__all__ = ["Stream", "StreamsRegistry", "streams_registry"]

_DEFAULT_SPLIT = "train"

_ENTRY_POINTS = "streaming_streams_registry"

_DOWNLOAD_ARGUMENTS = ("download_retry", "download_timeout", "keep_zip")

_STREAM_HOOKS = (
    "get_shards",
    "prepare_shard",
    "set_up_local",
    "get_index_size",
    "_download_file",
    "_decompress_shard_part",
)
"""Methods that a subclass may override in MosaicML Streaming; never called here."""

_ABSENT = (
    "_decompress_shard_part _download_file apply_weights cache_usage "
    "evict_coldest_shard evict_shard get_index_size get_shards "
    "max_shard_size_across_all_streams on_exception safe_keep_zip "
    "set_up_local validate_weights"
)
"""Members of MosaicML Streaming that have no meaning here."""


@dataclass(kw_only=True, eq=False)
class Stream:
    """A folder of samples and its quota per epoch.

    The folder is `local` if it holds data, else `remote`; nothing is downloaded. It
    holds MDS shards, or is a folder prepared by `energize prepare`. Samples are dicts
    of decoded columns or parts; images are Pillow images. To change what a stream
    reads, override `samples` in a subclass.

    Args:
        remote: Path or file:// URL of the folder.
        local: Path of the folder; preferred over `remote` if it holds data.
        split: Subfolder of MDS shards, or split part of a prepared folder ("train" if
            empty). None takes the split of the dataset.
        proportion: As in `Quota`, like `repeat` and `choose`. A `StreamingDataset`
            sets all three to their values in an epoch.
        repeat: See `Quota`.
        choose: See `Quota`.
        download_retry: Has no effect, like `download_timeout` and `keep_zip`.
        download_timeout: Has no effect.
        validate_hash: As in `MdsSource`.
        keep_zip: Has no effect.

    Raises:
        ConfigError: If neither path is set.
        WeightError: For a quota that cannot be used.
    """

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None
    requested: Quota | None = field(default=None, init=False, repr=False)
    """The quota before a dataset replaced it by the values of an epoch."""
    allow_unsafe_types = False
    """Whether columns of pickles are read; set by `StreamingDataset`."""

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError(
                "Stream: neither local nor remote is set. Set one to the data folder"
            )
        _ = self.quota  # raises for an invalid quota
        self.split = self.split or ""
        for name in _DOWNLOAD_ARGUMENTS:
            note_unused("Stream", name, getattr(self, name))
        warn_of_hooks(self, Stream, _STREAM_HOOKS)

    def __getattr__(self, name: str) -> Any:
        raise absent(self, name)

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Set the split, the hash and the arguments of downloads that are unset.

        Args:
            default: Values by the names of the arguments.
        """
        for name in ("split", "validate_hash", *_DOWNLOAD_ARGUMENTS):
            if getattr(self, name) in (None, ""):
                setattr(self, name, default[name])

    @property
    def quota(self) -> Quota:
        """The requested quota of an epoch."""
        if self.requested is not None:
            return self.requested
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(
                proportion=self.proportion, repeat=self.repeat, choose=self.choose
            )

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """Return the samples in stored order.

        Args:
            split: The split if the stream has none.
            seed: Seed of the order.

        Raises:
            DatasetNotFoundError: If neither path holds data.
        """
        split = self.split or split
        folders = self._folders()
        for folder in folders:
            with os_errors_as(DatasetError, folder):
                samples = self._samples_in(folder, split, seed)
            if samples is not None:
                return samples
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, folders)) or 'local'}, split {split!r}: "
            f"expected an {INDEX} (MDS shards) or a {META_FOLDER} (tar shards). Run "
            "`energize prepare` for tar shards"
        )

    def _folders(self) -> list[Any]:
        url = urlsplit(self.remote or "")
        remote = unquote(url.path) if url.scheme == "file" else self.remote
        return [path_of(path) for path in (self.local, remote) if path]

    def _samples_in(
        self, folder: Any, split: str, seed: int
    ) -> IndexedDataset[Any] | None:
        """Return the samples of a folder; None if it holds no data."""
        if (folder / split / INDEX).exists():
            return MdsSource(
                folder,
                split=split,
                validate_hash=self.validate_hash,
                allow_pickles=self.allow_unsafe_types,
                seed=seed,
            )
        if (folder / META_FOLDER).exists():
            source = WebdatasetSource(
                folder, split_part=split or _DEFAULT_SPLIT, seed=seed
            )
            return MapDataset(source, SampleDecoder(image_decode="pil"))
        return None


def absent(owner: object, name: str) -> AttributeError:
    """Return the error for a missing attribute, with the reason if it is known."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in _ABSENT.split():
        text += ": shards are read where they are, in an order that is computed"
    return AttributeError(text)


def note_unused(owner: str, name: str, value: object) -> None:
    if value is not None:
        text = f"{name}={value!r} has no effect; see docs/coming-from-streaming.md"
        log_once(owner, name, text)


def warn_of_hooks(instance: object, base: type, hooks: Sequence[str]) -> None:
    """Warn about overridden methods that are never called."""
    bases = type(instance).__mro__
    for subclass in bases[: bases.index(base)]:
        for name in hooks:
            if name in vars(subclass):
                text = (
                    f"{subclass.__name__}.{name} is never called; "
                    "docs/coming-from-streaming.md lists the methods to override"
                )
                log_once(subclass.__name__, name, text, level=logging.WARNING)


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Stream classes or factories by name.

    Holds registered streams and those of installed packages with an entry point in the
    group "streaming_streams_registry".

    Example:
        >>> registry = StreamsRegistry()
        >>> @registry.register("mine")
        ... class Mine(Stream):
        ...     pass
        >>> registry["mine"].__name__
        'Mine'
    """

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Register `func`, or the decorated class, under `name`."""
        if func is None:
            return lambda decorated: self.register(name, func=decorated)
        self[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:  # type: ignore[override]
        """Return the stream registered as `name`; raise `ConfigError` if missing."""
        return self[name]

    def __missing__(self, name: str) -> Callable[..., Stream]:
        packages = entry_points(group=_ENTRY_POINTS)
        checked_choice(name, "stream_name", [*self, *packages.names])
        self[name] = packages[name].load()
        return self[name]


# Programs register their streams here, by the name that configurations use.
streams_registry = StreamsRegistry(stream=Stream)
