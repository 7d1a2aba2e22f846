"""The samples of one tar shard, parsed; and what is wrong with those that cannot be."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from energize.errors import DataError, ShardError
from energize.limits import limit, over_limit
from energize.reading import Failed
from energize.storage.indexed_tar import IndexedTar
from energize.storage.tar import NAME_BYTES, first_key, has_key, members, split_name

_OWN_NAMES = 4
_MANY = 50
"""Parts, below any sensible limit: looking one up costs more than reading a part."""
_HEAD = 8192
"""Bytes of a sample in which its key is looked for."""


class ShardReader:
    """Reads raw samples of the shard `tar`, called `name` in the dataset `dataset`.

    What can be compared at little cost is compared when it is made. With `checksums` each sample
    has to have the one that was written for it. Where it is not known how the shard was prepared,
    what follows a sample is looked at too, for an index entry that points too early.

    Raises `ShardError` when shard and index cannot be read or do not belong together.
    """

    __slots__ = ("_checksums", "_dataset", "_looks_on", "_name", "_tar")

    def __init__(self, tar: IndexedTar, name: str, dataset: str, *, checksums: bool) -> None:
        tar.check()
        if checksums:
            tar.check_checksums()
        self._tar, self._name, self._dataset = tar, name, dataset
        self._checksums = checksums
        self._looks_on = tar.record is None

    def key(self, number: int) -> str | None:
        """The key of a sample; None where its head is damaged."""
        starts, stops = self._tar.ranges([number])
        head, _ = next(self._tar.read(starts, [min(stops[0], starts[0] + _HEAD)]))
        return first_key(head)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any] | Failed]:
        """These samples, numbers ascending; each a new dict, or why there is none."""
        tar = self._tar
        starts, stops = tar.ranges(numbers)
        found = tar.read(starts, self._looked_at(stops) if self._looks_on else stops)
        expected = tar.checksums(numbers) if self._checksums else None
        samples: list[dict[str, Any] | Failed] = []
        for row, (start, stop, (data, at)) in enumerate(zip(starts, stops, found, strict=True)):
            number, end = numbers[row], at + stop - start
            if expected is not None:
                crc = zlib.crc32(memoryview(data)[at:end])
                if crc != expected[row]:
                    samples.append(self._changed(number, data[at:end], crc, expected[row]))
                    continue
            sample = self._parsed(number, data, at, end)
            if sample is None:
                samples.append(self._damaged(number, data[at:end]))
                continue
            if self._looks_on and has_key(data, end, sample["__key__"]):
                raise tar.disagreement(
                    f"by the index sample {number} ends at byte {stop}, but a file of its key, "
                    f"{sample['__key__'][:80]!r}, follows"
                )
            if len(sample) > _MANY and len(sample) > limit("PARTS") + _OWN_NAMES:
                where = place_in(tar.path, number, sample["__key__"])
                text = f"{where}: {over_limit('PARTS', len(sample) - _OWN_NAMES)}"
                samples.append(Failed(DataError(text), where))
                continue
            samples.append(sample)
        return samples

    def _looked_at(self, stops: Sequence[int]) -> list[int]:
        """Where the bytes end that tell what follows each sample."""
        found, size = [stop + NAME_BYTES for stop in stops], self._tar.size
        return found if found[-1] <= size else [min(each, size) for each in found]

    def _parsed(self, number: int, data: bytes, start: int, stop: int) -> dict[str, Any] | None:
        """The sample whose files are `data[start:stop]`; None when they are not those of one."""
        sample: dict[str, Any] = {
            "__key__": None,
            "__dataset__": self._dataset,
            "__shard__": self._name,
            "__index__": number,
        }
        key, begin, length = None, None, 0
        try:
            found = members(data, self._name, start, stop)
        except ShardError:
            return None
        for name, offset, size, _ in found:
            if begin is not None and name.startswith(begin) and name.find("/", length) < 0:
                part = name[length:]  # what `split_name` says of it, sooner
            else:
                split = split_name(name)
                if split is None:
                    continue
                if key is None:
                    key = sample["__key__"] = split[0]
                    begin, length = f"{key}.", len(key) + 1
                if split[0] != key:
                    return None
                part = split[1]
            if part in sample:
                return None
            sample[part] = data[offset : offset + size]
        return None if key is None else sample

    def _damaged(self, number: int, data: bytes) -> Failed:
        """Why a sample could not be parsed; `ShardError` when the index is of another shard."""
        tar = self._tar
        tar.check_unchanged()
        where = place_in(tar.path, number, first_key(data))
        try:
            found = [split_name(each.name) for each in members(data, where)]
        except ShardError as damage:
            if not tar.agrees():
                raise tar.disagreement(f"at most places no sample starts ({damage})") from damage
            return Failed(DataError(str(damage)), where)
        names = [each for each in found if each is not None]
        keys = sorted({key for key, _ in names})
        if len(keys) != 1:
            raise tar.disagreement(f"by the index sample {number} has the keys {keys}")
        return Failed(
            DataError(
                f"{where}: the sample has one part twice, or one with a reserved name: "
                f"{[part for _, part in names]}; remove it and pack the shard again"
            ),
            where,
        )

    def _changed(self, number: int, data: bytes, found: int, expected: int) -> Failed:
        where = place_in(self._tar.path, number, first_key(data))
        return Failed(
            DataError(
                f"{where}: its checksum is {found:08x}, and was {expected:08x} when checksums were "
                "written: its bytes have changed since. Copy the shard again from its origin; or, "
                "if they are meant to be so, run `energize prepare --checksums` on the folder"
            ),
            where,
        )


def place_in(path: str, number: int, key: str | None) -> str:
    """A sample of a shard, for messages."""
    return f"{path}, sample {'' if key is None else f'{key!r} '}(index {number})"
