"""Tar shards at web addresses, read as streams without an index."""

from __future__ import annotations

import http.client
import io
import logging
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any
from urllib.parse import urlsplit

from braceexpand import braceexpand

from energize.core.dataset import Dataset
from energize.data.memory import ListSource
from energize.data.tar import split_name
from energize.datasets.order import ShuffleDataset
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError, ShardError

_TRIES = 5
"""Connections to a shard that may break before it is an error."""

_SECONDS = 60.0
"""Seconds without a byte after which a connection counts as broken."""

_BROKEN = (OSError, EOFError, tarfile.TarError, http.client.HTTPException)

_log = logging.getLogger("energize")


def web_shards(
    urls: str | Iterable[str], *, shuffle: bool = True, name: str = "web", seed: int = 0
) -> Dataset[dict[str, Any]]:
    """Read tar shards at web addresses as a stream of raw samples.

    Each shard is one request, read from front to back, so nothing is indexed or
    stored. The order of shards is keyed; the samples of a shard keep their order, which
    a `ShuffleBufferDataset` loosens. A broken connection is opened again. After a
    resume, the current shard is read again up to the position. To read samples at
    random, copy the shards and run `energize prepare`.

    Args:
        urls: Addresses (http or https), with braces as in webdataset:
            "https://host/{000000..000099}.tar".
        shuffle: Whether the order of shards is random.
        name: Name of the source in reports, which also keys the order.
        seed: Seed of the order.

    Returns:
        A stream of dicts: `__key__`, `__dataset__`, `__shard__`, `__index__`, and the
        parts as bytes by name.

    Raises:
        ConfigError: For an address of another scheme, or none. Reading raises an
            `EncoderError`, caused by a `ShardError`, if a shard cannot be read.

    Example:
        >>> shards = web_shards("https://example.org/{00..03}.tar")
        >>> shards.indexed, shards.inputs[0].size
        (False, 4)
    """
    listed = [urls] if isinstance(urls, str) else urls
    addresses = [address for text in listed for address in braceexpand(text)]
    if not addresses:
        raise ConfigError("web_shards: urls must have at least one address")
    for address in addresses:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ConfigError(
                f"web_shards: addresses must begin with http:// or https://, got "
                f"{address!r}. Read other shards with get_train_dataset(path)"
            )
    source: Any = ListSource(addresses, name=name, seed=seed)
    ordered = ShuffleDataset(source) if shuffle else source
    return MapDataset(ordered, ShardReader(name))


@dataclass(frozen=True)
class ShardReader:
    """Yields the samples of the shard at an address.

    Args:
        dataset: The name in `__dataset__`.
    """

    dataset: str

    def __call__(self, address: str) -> Iterator[dict[str, Any]]:
        count = 0
        for attempt in range(_TRIES):
            try:
                for sample in islice(self._samples(address), count, None):
                    count += 1
                    yield sample
                return
            except _BROKEN as error:
                if attempt + 1 == _TRIES or _is_refused(error):
                    raise ShardError(
                        f"{address} cannot be read beyond its sample {count}: "
                        f"{type(error).__name__}: {error}. Check the address and the "
                        "network; a damaged shard has to be copied to the server again"
                    ) from error
                _log.warning("%s broke off at sample %d: %s", address, count, error)
                time.sleep(2.0**attempt / 10)

    def _samples(self, address: str) -> Iterator[dict[str, Any]]:
        name = urlsplit(address).path.rpartition("/")[2]
        with (
            urllib.request.urlopen(address, timeout=_SECONDS) as response,  # noqa: S310
            tarfile.open(fileobj=_WholeBody(response), mode="r|") as shard,
        ):
            for number, (key, parts) in enumerate(groupby(_files(shard), _key_of)):
                yield {
                    "__key__": key,
                    "__dataset__": self.dataset,
                    "__shard__": name,
                    "__index__": number,
                } | {part: data for _, part, data in parts}


class _WholeBody(io.RawIOBase):
    """The body of a response; raises `EOFError` where it is cut off.

    `HTTPResponse.read(size)` returns less instead, which `tarfile` takes for the end.
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        self._left: int | None = response.length

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes."""
        data: bytes = self._response.read(size)
        if self._left is not None:
            self._left -= len(data)
            if len(data) < size and self._left > 0:
                raise EOFError(f"{self._left} bytes of the shard are missing")
        return data


def _files(shard: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    """Yield key, part name and bytes of the files of samples."""
    for member in shard:
        split = split_name(member.name) if member.isreg() else None
        file = None if split is None else shard.extractfile(member)
        if split is None or file is None:
            continue
        yield *split, file.read()


def _key_of(file: tuple[str, str, bytes]) -> str:
    return file[0]


def _is_refused(error: BaseException) -> bool:
    """Return whether the server answers that the address is wrong."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500
