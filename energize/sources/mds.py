"""Samples of a folder of MDS shards, read at random."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.describing import digest
from energize.errors import DatasetError, DecodeError, ShardError
from energize.numbers import checked_whole
from energize.reading import Failed, SamplePlace
from energize.sources.base import Source
from energize.sources.mds_shards import MdsShards
from energize.sources.mds_unpacking import new_hash
from energize.sources.sharded import read_by_file
from energize.storage.faults import own_errors
from energize.storage.mds_format import MdsShard, offset_range, read_mds_index
from energize.storage.mds_layouts import DecodeSample, sample_decoder

UNPACKED_BYTES = 2**29


class MdsSource(Source[dict[str, Any]]):
    """The samples of a folder that MosaicML Streaming's writers wrote: MDS, JSON, CSV, TSV or XSV
    shards, in subfolders too where `index.json` is a merged one.

    A sample is a new dict of its columns by name. Of MDS shards, columns of the encodings jpeg, png
    and pil become Pillow images, loaded, those of jpeg_array and list[...] lists of them; with
    `decode_images=False` all but pil stay bytes. ndarray columns become writable arrays, the others
    Python's or numpy's scalars, str, bytes and values of JSON. Pickles are refused.

    Opening reads `index.json` only. Shards are read where they lie. Of one that is there only
    compressed, with br, bz2, gz, snappy or zstd (which needs `energize[mds]`), the files are
    unpacked as a whole into memory, where those used last are kept, up to `unpacked_bytes` in each
    process. So compressed shards should be read nearly in order: unpack folders that are to be
    shuffled as a whole. A shard that is there in both forms is read uncompressed.

    With `validate_hash`, the name of an algorithm that the writer was given in `hashes`, each
    process compares every file with its hash before it reads a sample of it.

    Raises `DatasetNotFoundError`, `DatasetError` or `EmptyDatasetError` when it is made. Reading
    raises `ShardError` when a shard is missing or not as the index says, in its size, its samples
    and its columns, of which each shard has a list of its own; a single damaged sample is a
    `Failed` with a `DecodeError`.
    """

    path: Path
    split: str
    decode_images: bool
    unpacked_bytes: int
    validate_hash: str | None
    shards: tuple[MdsShard, ...]

    @own_errors
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str = "",
        decode_images: bool = True,
        unpacked_bytes: int = UNPACKED_BYTES,
        validate_hash: str | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        self._freeze(
            path=Path(path),
            split=split,
            decode_images=decode_images,
            unpacked_bytes=checked_whole(unpacked_bytes, "MdsSource: unpacked_bytes", 0),
            validate_hash=validate_hash,
            shards=read_mds_index(Path(path) / split),
            seed=seed,
            occurrence=occurrence,
        )
        _ = self._decoders  # unknown encodings are found now
        if validate_hash is not None:
            self._check_hashes_known(validate_hash)

    @cached_property
    def count(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @cached_property
    def identity(self) -> str:
        shards = [[shard.name, shard.samples, shard.size] for shard in self.shards]
        return digest([self.path.absolute().name, self.split, shards])

    @cached_property
    def name(self) -> str:
        return "/".join(filter(None, [self.path.absolute().name, self.split]))

    @property
    def run_length(self) -> int:
        return max(1, self.count // len(self.shards))

    def _how_to_index(self, name: str) -> str:
        return (
            "The fields of MDS shards lie among the bytes of the samples, so each sample would be "
            "read for them; write the samples into a folder (write_shards), prepare it and measure "
            "the column there: energize prepare FOLDER --column NAME=json[FIELD]"
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "shards": len(self.shards),
            "decode_images": self.decode_images,
            "identity": self.identity,
        }

    def where(self, position: int, attempt: int = 0) -> str:
        index = self._samples(np.array([position], dtype=np.int64), attempt)
        shard, number = (int(each[0]) for each in self._located(index))
        return self._place(shard, number)

    @property
    def location(self) -> str:
        return str((self.path / self.split).absolute())

    def place(self, index: int) -> SamplePlace:
        shard, number = (int(each[0]) for each in self._located(np.array([index], dtype=np.int64)))
        return SamplePlace(self.location, self.shards[shard].name, number, source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        for each, first in zip(self.shards, self._firsts.tolist(), strict=True):
            if each.name == shard:
                return first + index if 0 <= index < each.samples else None
        return None

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        return read_by_file(indices, self._located, self._read_shard)

    def _read_shard(self, number: int, samples: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """Samples of one shard, given in ascending order."""
        shard = self.shards[number]
        offsets, data = self._bytes.get(shard)
        wanted = zip(*map(offset_range, samples), strict=True)
        bounds = [
            np.frombuffer(found, "<u4", 2, at).tolist()
            for found, at in offsets.read_ranges(*wanted)
        ]
        for sample, (start, stop) in zip(samples, bounds, strict=True):
            if not shard.begin <= start <= stop <= shard.size:
                raise ShardError(
                    f"{self._place(number, sample)} would lie at bytes {start} to {stop} of "
                    f"{shard.size}: the shard is damaged; copy the folder again"
                )
        found = data.read_ranges([start for start, _ in bounds], [stop for _, stop in bounds])
        return [
            self._decoded(number, sample, held[at : at + stop - start])
            for sample, (start, stop), (held, at) in zip(samples, bounds, found, strict=True)
        ]

    def _decoded(self, shard: int, number: int, data: bytes) -> dict[str, Any] | Failed:
        where = self._place(shard, number)
        try:
            return self._decoders[shard](data, where)
        except DecodeError as reason:
            return Failed(reason, where)

    def _check_hashes_known(self, algorithm: str) -> None:
        new_hash(algorithm)
        for shard in self.shards:
            for file in (each for part in shard.parts for each in (part.raw, part.packed) if each):
                known = [name for name, _ in file.hashes]
                if algorithm not in known:
                    raise DatasetError(
                        f"{self._folder}: validate_hash={algorithm!r}, but the index has "
                        f"{', '.join(known) or 'no hashes'} of {file.name}; name one of those, or "
                        "write the folder with hashes=[...]"
                    )

    def _place(self, shard: int, number: int) -> str:
        return f"{self._folder}/{self.shards[shard].name}, sample {number}"

    def _located(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The shard of each sample and its number in it."""
        shards = np.searchsorted(self._firsts, indices, side="right") - 1
        return shards, indices - self._firsts[shards]

    @cached_property
    def _firsts(self) -> Int64Array:
        """The number of samples before each shard."""
        counts = np.array([shard.samples for shard in self.shards], dtype=np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def _decoders(self) -> list[DecodeSample]:
        """Those of each shard; shards of one folder may have different columns."""
        known = {
            layout: sample_decoder(layout, self._folder, decode_images=self.decode_images)
            for layout in {shard.layout for shard in self.shards}
        }
        return [known[shard.layout] for shard in self.shards]

    @cached_property
    def _folder(self) -> str:
        return str(self.path / self.split)

    @cached_property
    def _bytes(self) -> MdsShards:
        return MdsShards(self._folder, self.unpacked_bytes, self.validate_hash)
