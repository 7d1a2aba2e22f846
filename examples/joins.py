"""Captions joined by their keys with scores that lie in a folder of their own.

python -m examples.photographs                              # makes demo-data
python examples/joins.py
"""

import shutil
from dataclasses import dataclass
from itertools import islice
from typing import Any

from energize import (
    Dataset,
    Sample,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)

SCORES = "demo-data/scores"


@dataclass
class Scored(Sample):
    """A caption and its score."""

    caption: str
    score: float


def joined(caption: Any, score: Any) -> Scored:
    """One sample of two; the second is a dict, as its folder is crude."""
    return Scored.derive_from(
        caption, caption=caption.caption, score=score["json"]["score"]
    )


def main() -> None:
    """Write scores of every other caption, and read both as one sample; the rest is
    skipped.
    """
    shutil.rmtree(SCORES, ignore_errors=True)
    scores = (
        {"__key__": f"{i:06d}", "json": {"score": i / 640}} for i in range(0, 640, 2)
    )
    write_shards(scores, SCORES)
    prepare(SCORES, split_ratios={"train": 1}, sample_type="CrudeWebdataset")
    join = [
        {"path": "demo-data/captions_a"},
        {"path": SCORES, "nonmatch": "skip"},
    ]
    mix = {
        "__module__": "energize",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"join": join, "joiner": joined}},
    }
    dataset: Dataset[Any] = get_train_dataset(mix, batch_size=4)
    with get_loader(dataset) as loader:
        for batch in islice(loader, 3):
            print([f"{score:.2f}" for score in batch.score], batch.caption[0])


if __name__ == "__main__":
    main()
