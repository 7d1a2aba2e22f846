"""webdataset's own pipeline, measured: shards in random order and a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import webdataset

from benchmarks.common.measuring import SHARES, Case, main


def _open_items(case: Case) -> Iterator[Any]:
    pipelines = [_pipeline(case, folder) for folder in case.folders]
    pipeline: Any = pipelines[0]
    if len(pipelines) > 1:
        pipeline = webdataset.DataPipeline(webdataset.RandomMix(pipelines, SHARES))
    if case.batch_size is None:
        return iter(pipeline)
    batches = pipeline.compose(
        webdataset.batched(case.batch_size, collation_fn=_batched, partial=False)
    )
    return iter(
        webdataset.WebLoader(batches, batch_size=None, num_workers=case.workers)
    )


def _pipeline(case: Case, folder: str) -> Any:
    shards = sorted(map(str, Path(folder).glob("*.tar")))
    pipeline = webdataset.WebDataset(shards, shardshuffle=len(shards))
    pipeline = pipeline.shuffle(case.shuffle_buffer_size or 1000)
    if case.image_decode is not None:
        pipeline = pipeline.decode(case.image_decode)
    return pipeline.to_tuple("jpg", "txt").repeat()


def _batched(samples: list[Any]) -> tuple[Any, Any]:
    images, captions = zip(*samples, strict=True)
    raw = isinstance(images[0], bytes)
    return list(images) if raw else torch.stack(images), list(captions)


def _parts_of(item: Any) -> tuple[Any, Any]:
    return item[0], item[1]


if __name__ == "__main__":
    main(_open_items, _parts_of, ("webdataset", "torch", "numpy", "pillow"))
