"""Run on ranks: FOLDER STEPS reads the recipes of a folder with two workers a rank.

`recipes.json` in the folder has the options of each recipe by its name. States are
written there, or continued if they exist; answers to `NAME.RANK.json`.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from energize import get_loader, get_train_dataset
from tests.recipes.files import Answers


def read(folder: Path, name: str, options: dict[str, Any], steps: int) -> None:
    dataset = get_train_dataset(
        folder / name, batch_size=1, task_encoder=Answers(), recipe=options
    )
    loader = get_loader(dataset, num_workers=2)
    state = folder / f"{name}.pt"
    resumed = state.exists()
    if resumed:
        loader.load_state_dict(torch.load(state))
    got = [answer for batch in islice(loader, steps) for answer in batch]
    saved = loader.state_dict()
    distributed.barrier()
    rank = distributed.get_rank()
    if rank == 0 and not resumed:
        torch.save(saved, state)
    (folder / f"{name}.{rank}.json").write_text(json.dumps(got))


def main() -> None:
    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo")
    recipes = json.loads((folder / "recipes.json").read_text())
    for name, options in recipes.items():
        read(folder, name, options, int(sys.argv[2]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
