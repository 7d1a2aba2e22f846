"""Run on ranks: all splits of the files of metadatasets/, with the task encoders of the
demo, by two workers for each rank; the keys of the first steps are written down as
JSON, rank by rank.

`torchrun -m tests.jobs.metadatasets FOLDER`
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from torch import distributed

from energize import (
    CaptioningSample,
    ImageClassificationSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.experimental import get_staged_train_dataset
from examples.encoders import CaptioningTask, ImageTask

STEPS = 3


def datasets(folder: Path) -> dict[str, Any]:
    """A dataset of each split, by file and split."""
    found = {}
    encoders = {
        ImageClassificationSample: ImageTask(),
        CaptioningSample: CaptioningTask(),
    }
    options: dict[str, Any] = {"batch_size": 4, "task_encoder": encoders}
    for file in sorted(folder.iterdir()):
        if file.stem == "stages":
            found[file.name] = get_staged_train_dataset(file, **options)
            continue
        for split in yaml.safe_load(file.read_text())["splits"]:
            make = get_val_dataset if split in ("val", "test") else get_train_dataset
            found[f"{file.name} {split}"] = make(file, split_part=split, **options)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo")
    keys: dict[str, Any] = {}
    for name, dataset in datasets(folder).items():
        with get_loader(dataset, num_workers=2) as loader:
            keys[name] = [keys_of(batch) for batch in islice(loader, STEPS)]
    (folder.parent / f"{distributed.get_rank()}.json").write_text(json.dumps(keys))
    distributed.destroy_process_group()


def keys_of(batch: Any) -> list[str]:
    return [f"{type(batch).__name__} {key}" for key in batch.__key__]


if __name__ == "__main__":
    main()
