"""Ranks that read a recipe with two workers each, and save or resume a state.

`torchrun -m tests.support.recipe_program OUT RECIPE OPTIONS STEPS STATE MODE`: OPTIONS is
the JSON of recipe options, and MODE "save" or "resume". Each rank writes the answers of
its batches, with the sizes of their images, to OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from energize import DefaultTaskEncoder, get_loader, get_train_dataset


class Described(DefaultTaskEncoder):
    """Batches are answers with the shapes of decoded images."""

    def batch(self, samples: list[Any]) -> list[str]:
        return [
            f"{sample.turns[-1].text} {[tuple(image.shape) for image in sample.images]}"
            for sample in samples
        ]


def dataset(recipe: str, options: dict[str, Any]) -> Any:
    return get_train_dataset(
        recipe, batch_size=2, task_encoder=Described(), recipe=options
    )


def main() -> None:
    out, recipe, options, steps, state, mode = sys.argv[1:]
    distributed.init_process_group("gloo")
    loader = get_loader(dataset(recipe, json.loads(options)), num_workers=2)
    if mode == "resume":
        loader.load_state_dict(torch.load(state))
    batches = iter(loader)
    read = [next(batches) for _ in range(int(steps))]
    saved = loader.state_dict()
    if mode == "save" and distributed.get_rank() == 0:
        torch.save(saved, state)
    Path(out, f"{distributed.get_rank()}.json").write_text(json.dumps(read))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
