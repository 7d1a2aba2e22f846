"""energize, measured in a process that `benchmarks.loading` starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.measuring import Case, main
from energize import (
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)


def _open_items(case: Case) -> Iterator[Any]:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.decoder = (
        None
        if case.image_decode is None
        else SampleDecoder(image_decode=case.image_decode)
    )
    mix = Path(case.folder) / "mix.yaml"
    dataset = get_train_dataset(
        mix if mix.exists() else case.folder,
        worker_config=WorkerConfig(num_workers=case.workers),
        batch_size=case.batch_size,
        shuffle_buffer_size=case.shuffle_buffer_size,
        max_samples_per_sequence=case.max_samples_per_sequence,
        task_encoder=encoder,
    )
    return iter(get_loader(dataset))


def _parts_of(item: Any) -> tuple[Any, Any]:
    return item.image, item.caption


if __name__ == "__main__":
    main(_open_items, _parts_of, ("energize", "torch", "numpy", "simplejpeg"))
