"""webdataset's own pipeline, measured: shards in random order and a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset

from benchmarks.common.measuring import Case, main


def _open_items(case: Case) -> Iterator[Any]:
    shards = sorted(map(str, Path(case.folder).glob("*.tar")))
    pipeline = webdataset.WebDataset(shards, shardshuffle=len(shards))
    pipeline = pipeline.shuffle(case.shuffle_buffer_size or 1000)
    if case.image_decode is not None:
        pipeline = pipeline.decode(case.image_decode)
    pipeline = pipeline.to_tuple("jpg", "txt").repeat()
    if case.batch_size is None:
        return iter(pipeline)
    batches = pipeline.batched(case.batch_size, partial=False)
    return iter(
        webdataset.WebLoader(batches, batch_size=None, num_workers=case.workers)
    )


def _parts_of(item: Any) -> tuple[Any, Any]:
    return item[0], item[1]


if __name__ == "__main__":
    main(_open_items, _parts_of, ("webdataset", "torch", "numpy", "pillow"))
