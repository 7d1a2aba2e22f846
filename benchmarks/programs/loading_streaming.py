"""MosaicML Streaming, measured in an environment of its own: streams of MDS shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.common.measuring import SHARES, Case, main
from benchmarks.programs.decoding import collate, endless
from benchmarks.programs.object_storage import module_of_streaming


def _open_items(case: Case) -> Iterator[Any]:
    reads = module_of_streaming("dataset")
    module_of_streaming("util").clean_stale_shared_memory()
    streams = [
        reads.Stream(local=f"{folder}.mds", proportion=share)
        for folder, share in zip(case.folders, SHARES, strict=True)
    ]
    dataset = reads.StreamingDataset(
        streams=streams, shuffle=True, batch_size=case.batch_size
    )
    loader: Any = DataLoader(
        dataset,
        batch_size=case.batch_size,
        num_workers=case.workers,
        collate_fn=collate(case.image_decode),
        persistent_workers=case.workers > 0,
    )
    return endless(loader)


if __name__ == "__main__":
    main(_open_items, tuple, ("mosaicml-streaming", "torch", "numpy", "pillow"))
