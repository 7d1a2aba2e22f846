"""Run on ranks: programs that train under DDP, saved in the middle or resumed there,
one after the other; what each rank was given is written down as JSON.

`torchrun -m tests.jobs.harness FOLDER OUT STEPS SAVE_AT PROGRAM...`: a state is saved
after SAVE_AT steps to FOLDER/PROGRAM.pt, or where SAVE_AT is "resume", loaded from
there.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def batches(loader: Any) -> Iterator[Any]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def trained(name: str, folder: Path, steps: int, save_at: str) -> list[Any]:
    """What this rank was given in so many steps."""
    program = import_module(f"tests.jobs.programs.{name}")
    loader = program.loader(folder / name)
    save = getattr(program, "save", lambda loader: loader.state_dict())
    restore = getattr(
        program, "restore", lambda loader, state: loader.load_state_dict(state)
    )
    state_file = folder / f"{name}.pt"
    if save_at == "resume":
        loader = restore(loader, torch.load(state_file)) or loader
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []
    for step, batch in enumerate(batches(loader), 1):
        model(torch.full((1, 1), float(step))).sum().backward()
        optimizer.step()
        seen.append(program.ids(batch))
        if str(step) == save_at:
            state = save(loader)
            if distributed.get_rank() == 0:
                torch.save(state, state_file)
        if step == steps:
            return seen
    raise AssertionError


def main() -> None:
    folder, out, steps, save_at, *programs = sys.argv[1:]
    distributed.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name in programs:
        try:
            found[name] = trained(name, Path(folder), int(steps), save_at)
        except Exception:
            found[name] = traceback.format_exc()
        distributed.barrier()
    Path(out, f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
