"""Which shards and samples a split part of a prepared folder has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from energize.errors import EmptyDatasetError, ShardError, SplitError, nearest, some
from energize.storage.nv_meta import read_info, read_splits, where_listed
from energize.storage.shard_records import ShardRecord, read_records
from energize.storage.tar import index_path, scan

_DEFAULT_CONFIG = "split.yaml"
_EMPTY_INDEX = 8
"""Bytes: where the last of no samples ends."""
_COMPARED = 1000
"""How many shards are looked at for a name like a wrong one."""


@dataclass(frozen=True, slots=True)
class SplitShards:
    """The shards of a split part in their order, with the number of samples in each.

    `excluded` are samples to leave out: their numbers among those of all the shards, ascending.
    `records` is what preparing saw of the shards, None where that is not known.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    excluded: tuple[int, ...]
    records: tuple[ShardRecord, ...] | None = None


def read_split(path: Path, split_part: str, split_config: str | None) -> SplitShards:
    """Look a split part of the prepared folder `path` up.

    Only shards from which single samples are excluded are looked into. Raises `SplitError` for an
    unknown part and for shards or samples that are named but not there, `EmptyDatasetError` when
    nothing is left, and what reading `.nv-meta` raises.
    """
    info = read_info(path)
    name = _DEFAULT_CONFIG if split_config is None else split_config
    splits = read_splits(path, name)
    if split_part not in splits.parts:
        known = list(splits.parts)
        raise SplitError(
            f"{path} has no split part {split_part!r}{nearest(split_part, known)}; "
            f"its {name} has {some(known) or 'none'}"
        )
    listed = splits.parts[split_part]
    _check_listed(
        listed,
        info.shard_counts,
        lambda shard: f"{where_listed(path, name, split_part, shard)}, split part {split_part!r}",
    )
    whole, single = _excludes(splits.exclude, info.shard_counts, f"{path}, exclude in {name}")
    shards = tuple(shard for shard in listed if shard not in whole)
    counts = tuple(info.shard_counts[shard] for shard in shards)
    excluded: list[int] = []
    before = 0
    for shard, count in zip(shards, counts, strict=True):
        if shard in single:
            numbers = _numbers_of(path / shard, count, single[shard])
            excluded.extend(before + number for number in numbers)
        before += count
    if before == len(excluded):
        raise EmptyDatasetError(
            f"{path}: split part {split_part!r} has no samples: {len(listed)} shards are listed in "
            f"{name}, {len(whole.intersection(listed))} of them and {len(excluded)} single samples "
            "are excluded"
        )
    seen = read_records(path, info.shard_counts)
    records = None if seen is None else tuple(seen[shard] for shard in shards)
    _check_empty([path / shard for shard, count in zip(shards, counts, strict=True) if not count])
    return SplitShards(shards, counts, tuple(excluded), records)


def _check_empty(shards: Iterable[Path]) -> None:
    """A shard without samples is never opened; its index would tell of some."""
    for shard in shards:
        index = Path(index_path(str(shard)))
        with suppress(FileNotFoundError):
            if index.stat().st_size != _EMPTY_INDEX:
                raise ShardError(
                    f"{shard} has no samples, as .info.json counts them, but its index {index} has "
                    f"{index.stat().st_size} bytes, and not {_EMPTY_INDEX}: run `energize prepare` "
                    "again"
                )


def _check_listed(
    listed: Iterable[str], known: Mapping[str, int], where: Callable[[str], str]
) -> None:
    seen: set[str] = set()
    for shard in listed:
        if shard not in known:
            raise SplitError(
                f"{where(shard)}: shard {shard!r} is not in .info.json{_similar(shard, known)}; "
                "correct the name, or run `energize prepare` again to index new shards"
            )
        if shard in seen:
            raise SplitError(
                f"{where(shard)}: shard {shard!r} is listed twice; list it once, and give the "
                "dataset a larger weight to see it more often"
            )
        seen.add(shard)


def _excludes(
    entries: Iterable[str], known: Mapping[str, int], where: str
) -> tuple[set[str], dict[str, set[str]]]:
    """Excluded shards, and excluded keys by shard, of entries `shard` and `shard/key`."""
    whole: set[str] = set()
    single: defaultdict[str, set[str]] = defaultdict(set)
    deepest = max((shard.count("/") for shard in known), default=0) if entries else 0
    for entry in entries:
        if entry in known:
            whole.add(entry)
            continue
        cuts = (at for at, char in enumerate(entry) if char == "/")
        cut = next((at for at in islice(cuts, deepest + 1) if entry[:at] in known), None)
        if cut is None:
            raise SplitError(
                f"{where}: {entry!r} is neither a shard of .info.json nor such a shard, '/' and "
                f"the key of a sample{_similar(entry, known)}; correct or remove it"
            )
        single[entry[:cut]].add(entry[cut + 1 :])
    return whole, single


def _similar(shard: str, known: Iterable[str]) -> str:
    return nearest(shard, list(islice(known, _COMPARED)))


def _numbers_of(shard: Path, count: int, keys: set[str]) -> list[int]:
    """The numbers of the samples with these keys; all of them have to be there."""
    samples = scan(shard).samples
    if len(samples) != count:
        raise ShardError(
            f"{shard} has {len(samples)} samples, but .info.json says {count}: run "
            "`energize prepare` again"
        )
    some = samples[0].key if samples else None
    missing = keys - {sample.key for sample in samples}
    if missing:
        raise SplitError(
            f"{shard} has no sample {min(missing)!r}, which is excluded; its keys look like "
            f"{some!r}; correct or remove the entry of the split file"
        )
    return [number for number, sample in enumerate(samples) if sample.key in keys]
