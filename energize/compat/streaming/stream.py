"""Streams: folders of samples with a quota, and the kinds of them by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SkipValidation

from energize.compat.checks import checked_fields
from energize.dataset import IndexedDataset
from energize.errors import ConfigError, DatasetNotFoundError, nearest
from energize.order.epochs.quotas import Quota
from energize.sources.mds import MdsSource
from energize.sources.webdataset import WebdatasetSource
from energize.storage.mds_format import INDEX
from energize.task_encoder.decoding import SampleDecoder
from energize.wrappers.checks import raised_as
from energize.wrappers.map import MapDataset

_META = ".nv-meta"
_DEFAULT_SPLIT = "train"

_log = logging.getLogger("energize")


@checked_fields
@dataclass(kw_only=True, eq=False, repr=False)
class Stream:
    """A folder of samples and how much of it an epoch takes.

    The folder is `local` when there are data, else `remote`, which is a path or a file:// URL:
    nothing is downloaded. It holds MDS shards (in the subfolder `split`), or is a folder prepared
    by `energize prepare` (of which `split` names the part, by default "train"). Samples are dicts
    of decoded columns or parts; images are Pillow images.

    `proportion`, `repeat` and `choose` are those of `Quota`. To change what a stream reads,
    override `samples` in a subclass.

    Raises `ConfigError` when neither path is given, `WeightError` for quotas that cannot be used.
    """

    remote: SkipValidation[str | None] = None
    local: SkipValidation[str | None] = None
    split: str | None = None
    proportion: SkipValidation[float | None] = None
    repeat: SkipValidation[float | None] = None
    choose: SkipValidation[int | None] = None

    def __post_init__(self) -> None:
        if not self.remote and not self.local:
            raise ConfigError("Stream: give local, the folder of the data, or remote")
        self.split = self.split or ""
        _ = self.quota  # which is checked when it is made

    @property
    def quota(self) -> Quota:
        """How much of it an epoch takes."""
        with raised_as(f"Stream {str(self.local or self.remote)!r}", "a quota"):
            return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)

    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        shown = [f"{name}={value!r}" for name, value in given.items() if value not in {None, ""}]
        return f"{type(self).__name__}({', '.join(shown)})"

    def samples(self, *, split: str = "", seed: int = 0) -> IndexedDataset[Any]:
        """The samples, in the order in which they are stored.

        `split` is the one to take when the stream names none. Raises `DatasetNotFoundError` when
        there are no data at the paths, and what the sources of the folders raise.
        """
        split = self.split or split
        folder = self._folder(split)
        if (folder / split / INDEX).exists():
            return MdsSource(folder, split=split, seed=seed)
        source = WebdatasetSource(folder, split_part=split or _DEFAULT_SPLIT, seed=seed)
        return MapDataset(source, SampleDecoder(image_decode="pil"), seeded=False)

    def _folder(self, split: str) -> Path:
        """The first of the two folders that has data."""
        places = [Path(self.local)] if self.local else []
        distant = _is_distant(self.remote)
        if self.remote and not distant:
            places.append(_path_of(self.remote))
        for place in places:
            if (place / split / INDEX).exists() or (place / _META).exists():
                if distant:
                    _log.info("%s is read from %s; nothing is downloaded", self.remote, place)
                return place
        if distant:
            raise DatasetNotFoundError(
                f"{self.remote} is remote storage, which energize.compat.streaming does not read "
                f"yet, and local={self.local!r} has no data: copy the folder there"
            )
        raise DatasetNotFoundError(
            f"no data at {' or '.join(map(str, places))}"
            f"{f', split {split!r}' if split else ''}: a folder of MDS shards has an {INDEX}, one "
            f"of tar shards a {_META}, which `energize prepare` makes"
        )


def _is_distant(remote: str | None) -> bool:
    return bool(remote) and "://" in str(remote) and urlsplit(str(remote)).scheme != "file"


def _path_of(remote: str) -> Path:
    return Path(unquote(urlsplit(remote).path) if remote.startswith("file://") else remote)


class StreamsRegistry(dict[str, Callable[..., Stream]]):
    """Kinds of streams, or functions that make one, by name.

    >>> kinds = StreamsRegistry({"stream": Stream})
    >>> @kinds.register("mine")
    ... class MyStream(Stream): ...
    >>> kinds.get("mine").__name__
    'MyStream'
    """

    def register(self, name: str, *, func: Callable[..., Stream] | None = None) -> Any:
        """Know `func` by `name`; without it, a decorator that does."""
        if func is None:
            return lambda given: self.register(name, func=given)
        if not callable(func):
            raise ConfigError(
                f"stream {name!r} is a subclass of Stream or a function; got {func!r}"
            )
        self[name] = func
        return func

    def get(self, name: str) -> Callable[..., Stream]:  # type: ignore[override]  # no default
        """What is known by `name`; `ConfigError` when nothing is."""
        if name not in self:
            raise ConfigError(
                f"no stream is registered as {name!r}{nearest(name, list(self)) or '.'} "
                f"Known: {', '.join(self)}"
            )
        return self[name]

    def get_all(self) -> dict[str, Callable[..., Stream]]:
        """All that are known, by their names."""
        return dict(self)


# Programs register their streams in it, once, by the name that configurations use for them.
streams_registry = StreamsRegistry({"stream": Stream})
