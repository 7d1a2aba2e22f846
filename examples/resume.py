"""Stops a run in the middle, and resumes it in a fresh process with other workers.

`python -m examples.resume --data demo-data`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console

from energize import Loader
from energize.testing import fingerprint
from examples.command_line import ROOT, Settings, parser, run, settings
from examples.model import Model, new_model
from examples.photographs import make_photographs
from examples.showing import table
from examples.train_blend import BlendBatch, blend_loader
from examples.training import training_step

COMPARED = 20
"""Batches after the stop that are compared."""

SHOWN = 8
"""Of them that many are shown, and all that differ."""

Step = tuple[str, str, float]
"""The type of a batch, its fingerprint, and its loss."""


def steps(
    model: Model,
    optimizer: torch.optim.Optimizer,
    loader: Loader[BlendBatch],
    count: int,
) -> list[Step]:
    """Train on the next batches; the fingerprint covers every bit of a batch."""
    return [
        (
            type(batch).__name__,
            fingerprint(batch),
            training_step(model, optimizer, batch),
        )
        for batch in islice(loader, count)
    ]


def save(
    path: Path,
    model: Model,
    optimizer: torch.optim.Optimizer,
    loader: Loader[BlendBatch],
) -> None:
    """A checkpoint. The loader's part is a small dict, exact after every batch."""
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    # A job that dies while it writes leaves the checkpoint before.
    being_written = path.with_name(f"{path.name}.tmp")
    torch.save(saved, being_written)
    being_written.replace(path)


def resumed_steps(told: Settings, checkpoint: Path) -> list[Step]:
    """The next batches, from a checkpoint alone."""
    saved = torch.load(checkpoint, weights_only=True)
    model, optimizer = new_model(seed=1)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    with blend_loader(told) as loader:
        loader.load_state_dict(saved["loader"])
        return steps(model, optimizer, loader, COMPARED)


def resumed_elsewhere(told: Settings, checkpoint: Path, workers: int) -> list[Step]:
    """The next batches, as a fresh process delivers them."""
    command = [
        sys.executable,
        "-m",
        "examples.resume",
        "--checkpoint",
        str(checkpoint.resolve()),
    ]
    command += [
        "--data",
        str(told.data.resolve()),
        "--batch-size",
        str(told.batch_size),
    ]
    command += ["--workers", str(workers)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return []
    return [(kind, print_, loss) for kind, print_, loss in json.loads(done.stdout)]


def stop_and_resume(told: Settings, stop: int, console: Console) -> bool:
    """Whether a run that was stopped goes on with the batches of one that was not."""
    model, optimizer = new_model()
    # One path for both processes: a batch says where its samples come from.
    told = replace(told, data=told.data.resolve())
    workers = told.workers + 1
    with tempfile.TemporaryDirectory() as folder, blend_loader(told) as loader:
        checkpoint = Path(folder) / "checkpoint.pt"
        steps(model, optimizer, loader, stop)
        save(checkpoint, model, optimizer, loader)
        size = len(json.dumps(loader.state_dict()))
        console.print(
            f"  A checkpoint after {stop} steps; the loader's part of it has {size} "
            "bytes.\n"
            f"  Reading processes: {told.workers} in the run that is not stopped, "
            f"{workers} in the resumed one."
        )
        kept = steps(model, optimizer, loader, COMPARED)
        resumed = resumed_elsewhere(told, checkpoint, workers)
    return compare(kept, resumed, stop, console)


def compare(
    kept: Sequence[Step], resumed: Sequence[Step], start: int, console: Console
) -> bool:
    """Show both runs beside each other; whether all batches are equal, and all
    losses.
    """
    shown = table(
        "step",
        "batch of",
        "not stopped",
        "resumed",
        "loss",
        "",
        title="The next batches",
    )
    for number, (one, other) in enumerate(zip(kept, resumed, strict=False)):
        if number < SHOWN or one != other:
            verdict = "equal" if one == other else "DIFFERS"
            shown.add_row(
                str(start + number),
                one[0],
                one[1][:8],
                other[1][:8],
                f"{one[2]:.6f}",
                verdict,
            )
    console.print(shown)
    equal = bool(kept) and list(kept) == list(resumed)
    found = sum(one == other for one, other in zip(kept, resumed, strict=False))
    style = "bold green" if equal else "bold red"
    console.print(
        f"  {found} of {len(kept)} batches and losses are equal.", style=style
    )
    return equal


def main() -> bool:
    """Stop and resume; with --checkpoint, be the process that resumes."""
    options = parser(
        "Stop in the middle, resume in a fresh process, and compare.", steps=40
    )
    options.add_argument(
        "--checkpoint", type=Path, help="print the batches that follow it as JSON"
    )
    given = options.parse_args()
    if given.checkpoint is not None:
        print(json.dumps(resumed_steps(settings(given), given.checkpoint)))
        return True
    console = Console()
    make_photographs(given.data, console)
    return stop_and_resume(settings(given), given.steps, console)


if __name__ == "__main__":
    run(main)
