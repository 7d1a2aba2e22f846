"""Which shards and samples a split part of a prepared folder has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from energize.data.files import exists, files_at
from energize.data.integrity import ENTRY, ShardRecord, read_records
from energize.data.nv_meta import read_info, read_splits, where_listed
from energize.data.tar import index_path, scan
from energize.errors import EmptyDatasetError, ShardError, SplitError, nearest, some


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

    Only shards from which single samples are excluded are looked into. Raise `SplitError` for an
    unknown part and for shards or samples that are named but not there, `EmptyDatasetError` if
    nothing is left, and what reading `.nv-meta` raises.
    """
    known = read_info(path).shard_counts
    name = "split.yaml" if split_config is None else split_config
    splits = read_splits(path, name)
    if split_part not in splits.parts:
        parts = list(splits.parts)
        raise SplitError(
            f"{path} has no split part {split_part!r}{nearest(split_part, parts)}; "
            f"its {name} has {some(parts) or 'none'}"
        )
    listed = splits.parts[split_part]
    for shard, times in Counter(listed).items():
        if shard not in known or times > 1:
            fault = "is listed twice; list it once, and give the dataset a larger weight instead"
            if shard not in known:
                fault = f"is not in .info.json{nearest(shard, list(known))}; correct the name, or "
                fault += "run `energize prepare` again to index new shards"
            where = where_listed(path, name, split_part, shard)
            raise SplitError(f"{where}, split part {split_part!r}: shard {shard!r} {fault}")
    left_out = _excluded(splits.exclude, known, f"{path}, exclude in {name}")
    shards = tuple(shard for shard in listed if left_out.get(shard, set()) is not None)
    excluded: list[int] = []
    before = 0
    for shard in shards:
        keys, count = left_out.get(shard), known[shard]
        if keys:
            excluded += (before + number for number in _numbers(path / shard, count, keys))
        if not count:
            _check_empty(path / shard)
        before += count
    if before == len(excluded):
        raise EmptyDatasetError(
            f"{path}: split part {split_part!r} has no samples: {len(listed)} shards are listed in "
            f"{name}, {len(listed) - len(shards)} of them and {len(excluded)} single samples are "
            "excluded"
        )
    records = read_records(path, known)
    return SplitShards(
        shards,
        tuple(known[shard] for shard in shards),
        tuple(excluded),
        None if records is None else tuple(records[shard] for shard in shards),
    )


def _excluded(
    entries: Iterable[str], known: Mapping[str, int], where: str
) -> dict[str, set[str] | None]:
    """The excluded keys by shard, of entries `shard` and `shard/key`; None for a whole shard."""
    found: dict[str, set[str] | None] = {}
    deepest = max((shard.count("/") for shard in known), default=0) if entries else 0
    for entry in entries:
        cuts = (at for at, char in enumerate(f"{entry}/") if char == "/")
        cut = next((at for at in islice(cuts, deepest + 1) if entry[:at] in known), None)
        if cut is None:
            raise SplitError(
                f"{where}: {entry!r} is neither a shard of .info.json nor such a shard, '/' and "
                f"the key of a sample{nearest(entry, list(known))}; correct or remove it"
            )
        keys = found.setdefault(entry[:cut], set())
        if cut == len(entry):
            found[entry] = None
        elif keys is not None:
            keys.add(entry[cut + 1 :])
    return found


def _numbers(shard: Path, count: int, keys: set[str]) -> list[int]:
    """The numbers of the samples with these keys; all of them have to be there."""
    samples = scan(shard).samples
    if len(samples) != count:
        raise ShardError(
            f"{shard} has {len(samples)} samples, but .info.json says {count}: run `energize "
            "prepare` again"
        )
    missing = keys - {sample.key for sample in samples}
    if missing:
        raise SplitError(
            f"{shard} has no sample {min(missing)!r}, which is excluded; its keys look like "
            f"{samples[0].key if samples else None!r}; correct or remove the entry"
        )
    return [number for number, sample in enumerate(samples) if sample.key in keys]


def _check_empty(shard: Path) -> None:
    """A shard without samples is never opened; its index would tell of some."""
    index = index_path(str(shard))
    size = files_at(index).size(index) if exists(index) else ENTRY
    if size != ENTRY:
        raise ShardError(
            f"{shard} has no samples, as .info.json counts them, but its index {index} has {size} "
            f"bytes, and not {ENTRY}: run `energize prepare` again"
        )
