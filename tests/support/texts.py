"""Texts of skewed length, of which a column says how many tokens they have."""

from __future__ import annotations

from typing import Any

import numpy as np

from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    ItemCost,
    ListSource,
    MapDataset,
    PackingDataset,
    ShuffleDataset,
)
from energize.packing import Packer

MEANS = {"books": 400, "captions": 40, "chats": 130}
COUNTS = {"books": 90, "captions": 400, "chats": 170}
SHARES = {"books": 0.5, "captions": 0.3, "chats": 0.2}
CAPACITY = 3000


def lengths(name: str) -> np.ndarray:
    drawn = np.random.default_rng(len(name)).lognormal(0, 0.6, COUNTS[name])
    return np.clip(np.rint(drawn * MEANS[name]), 1, CAPACITY).astype(np.int64)


def texts(name: str, **options: Any) -> ListSource[dict[str, Any]]:
    """Samples whose text is as long as the column says."""
    rows = [
        {"__key__": f"{name}/{number}", "tokens": int(length)}
        for number, length in enumerate(lengths(name))
    ]
    return ListSource(rows, name=name, columns={"tokens": lengths(name)}, **options)


def encoded(sample: dict[str, Any]) -> dict[str, Any]:
    """As an encoder makes them: what `tokens` names has entries."""
    return {
        "__key__": sample["__key__"],
        "tokens": np.zeros(sample["tokens"], dtype=np.int8),
    }


def shuffled_texts() -> dict[str, Dataset[dict[str, Any]]]:
    return {name: ShuffleDataset(texts(name)) for name in MEANS}


def by_column(**options: Any) -> BlendDataset[dict[str, Any]]:
    """Shares in the tokens that the index says."""
    return BlendDataset(
        shuffled_texts(),
        weights=options.pop("weights", SHARES),
        unit="tokens",
        **options,
    )


def by_item(**options: Any) -> BlendDataset[dict[str, Any]]:
    """Shares in the tokens that samples have when they have been encoded."""
    parts = {name: MapDataset(each, encoded) for name, each in shuffled_texts().items()}
    return BlendDataset(
        parts,
        weights=options.pop("weights", SHARES),
        unit=ItemCost("tokens"),
        **options,
    )


def pack_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "__key__": samples[0]["__key__"],
        "length": sum(len(each["tokens"]) for each in samples),
    }


def by_pack(buffer: int = 20) -> BlendDataset[dict[str, Any]]:
    """Packs of one source each, by the tokens that they hold."""
    packs = {
        name: PackingDataset(
            MapDataset(each, encoded),
            buffer,
            Packer(length="tokens", capacity=CAPACITY),
            pack_of,
        )
        for name, each in shuffled_texts().items()
    }
    return BlendDataset(packs, weights=SHARES, unit=ItemCost("length"))


def told(samples: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """A batch as keys and lengths."""
    return [(each["__key__"], tokens(each)) for each in samples]


def tokens(sample: dict[str, Any]) -> int:
    length = sample.get("length", sample.get("tokens"))
    return length if isinstance(length, int) else len(length)


def batches(
    dataset: Dataset[Any], size: int = 4
) -> BatchDataset[list[tuple[str, int]]]:
    return BatchDataset(dataset, size, told)


def spent(items: list[Any]) -> dict[str, int]:
    """Tokens by source, of samples or of batches of `told`."""
    found = dict.fromkeys(MEANS, 0)
    for item in items:
        rows = item if isinstance(item, list) else told([item])
        for key, length in rows:
            found[key.split("/")[0]] += length
    return found


def shares_of(items: list[Any]) -> dict[str, float]:
    """The shares of tokens of each source."""
    found = spent(items)
    return {name: each / max(sum(found.values()), 1) for name, each in found.items()}


def strays(items: list[Any], shares: dict[str, float]) -> float:
    """How far a source is from its share of the tokens, at the worst after any of the
    items."""
    running = dict.fromkeys(shares, 0)
    worst = 0.0
    for item in items:
        running[item["__key__"].split("/")[0]] += tokens(item)
        total = sum(running.values())
        worst = max(
            worst, *(abs(running[name] - shares[name] * total) for name in shares)
        )
    return worst
