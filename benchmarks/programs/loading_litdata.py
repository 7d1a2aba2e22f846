"""litData, measured in an environment of its own: chunks of its own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import litdata

from benchmarks.common.measuring import SHARES, Case, main
from benchmarks.programs.decoding import collate, endless


def _open_items(case: Case) -> Iterator[Any]:
    datasets = [
        litdata.StreamingDataset(f"{folder}.litdata", shuffle=True)
        for folder in case.folders
    ]
    dataset = litdata.CombinedStreamingDataset(
        datasets, weights=list(SHARES), iterate_over_all=False
    )
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=case.batch_size,
        num_workers=case.workers,
        collate_fn=collate(case.image_decode),
    )
    return endless(loader)


if __name__ == "__main__":
    main(_open_items, tuple, ("litdata", "torch", "numpy", "pillow"))
