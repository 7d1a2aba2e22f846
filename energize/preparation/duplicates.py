"""Sample keys must be unique in a dataset; here is found out whether they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from energize.core.arrays import UInt64Array
from energize.data.tar import scan
from energize.errors import PrepareError
from energize.preparation.indexing import IndexedShard, key_hashes

_SHOWN = 5


def check_unique(root: Path, shards: Sequence[IndexedShard]) -> None:
    """Raises `PrepareError` naming keys that occur more than once, and in which shards.

    Hashes are compared first, eight bytes per sample; only shards with equal ones are read again
    for the keys themselves.
    """
    hashes = np.sort(np.concatenate([shard.hashes for shard in shards]))
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(repeated):
        return
    where: dict[str, list[str]] = defaultdict(list)
    for shard in shards:
        if np.isin(shard.hashes, repeated).any():
            for key in _suspects(root / shard.name, repeated):
                where[key].append(shard.name)
    duplicates = {key: names for key, names in where.items() if len(names) > 1}
    if not duplicates:
        return
    lines = [f"  {key}: {_shown(names)}" for key, names in list(duplicates.items())[:_SHOWN]]
    if len(duplicates) > _SHOWN:
        lines.append(f"  and {len(duplicates) - _SHOWN} more")
    raise PrepareError(
        f"{root}: {len(duplicates)} sample keys occur more than once:\n"
        + "\n".join(lines)
        + "\nThe members of a sample must follow each other in the shard, and keys must be unique "
        "over all shards. fix_duplicates=True (--fix-duplicates) writes the shards anew, with the "
        "members of each in a folder of its own (shard-0.tar/000.jpg); or leave shards out with "
        "--exclude"
    )


def _suspects(shard: Path, repeated: UInt64Array) -> list[str]:
    keys = [sample.key for sample in scan(shard).samples]
    found = np.isin(key_hashes(keys), repeated)
    return [keys[i] for i in np.flatnonzero(found)]


def _shown(names: list[str]) -> str:
    if len(set(names)) == 1:
        return f"{len(names)} times in {names[0]}, not one after the other"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"in {', '.join(names[:_SHOWN])}{more}"
