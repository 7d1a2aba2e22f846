"""The example's fine-tune by the Trainer on ranks, as a whole and again from its first
checkpoint on; or alone by Lightning, as a whole and in two parts.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from torch import distributed

from energize import WorkerConfig
from examples.finetune_vlm import trained, with_lightning


def by_trainer(out: Path) -> None:
    losses = trained(out)
    distributed.barrier()
    if distributed.get_rank() == 0:
        shutil.rmtree(out / "run" / "checkpoint-20")
    distributed.barrier()
    again = trained(out)
    if distributed.get_rank() == 0:
        (out / "Trainer.json").write_text(json.dumps([losses, again]))


def by_lightning(out: Path) -> None:
    parts = (("one", 20), ("two", 7), ("two", 20))
    losses = [trained(out / name, steps, train=with_lightning) for name, steps in parts]
    (out / "Lightning.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    alone = WorkerConfig().world_size == 1
    (by_lightning if alone else by_trainer)(Path(sys.argv[1]))
