"""The whole way, from photographs to a run that resumes exactly: `make demo`.

It runs the other examples one after another.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.syntax import Syntax

from examples.command_line import ROOT, parser, run, settings
from examples.model import new_model
from examples.photographs import make_photographs
from examples.resume import stop_and_resume
from examples.train_blend import METADATASET, train_blend
from examples.train_mixed import train_mixed
from examples.validate import validate

NEXT = ".venv/bin/energize simulate metadatasets/demo.yaml --steps 100000"

STOP = 40
"""Steps after which the last part stops a run."""


def main() -> bool:
    """Run all parts; True when validation and the resumed run gave equal numbers."""
    given = parser("Show what energize does.", steps=1000).parse_args()
    told = settings(given)
    console = Console()
    started = time.monotonic()

    console.rule("[bold]1  Photographs become prepared folders of shards", align="left")
    make_photographs(told.data, console)

    console.rule(
        "[bold]2  A blend: whole batches of two types, weighted by a file", align="left"
    )
    console.print(f"  {METADATASET.relative_to(ROOT)}:")
    console.print(
        Syntax(METADATASET.read_text().strip(), "yaml", background_color="default")
    )
    model, optimizer = new_model()
    train_blend(told, given.steps, model, optimizer, console)

    console.rule(
        "[bold]3  A mix: samples of both types within every batch", align="left"
    )
    train_mixed(told, max(1, given.steps // 4), *new_model(), console)

    console.rule(
        "[bold]4  Validation: every sample once, the same numbers twice", align="left"
    )
    same_numbers = validate(told, model, console)

    console.rule("[bold]5  Stop in the middle, resume in a fresh process", align="left")
    same_batches = stop_and_resume(told, STOP, console)

    console.rule(style="bold")
    good = same_numbers and same_batches
    verdict = "[bold green]all equal[/]" if good else "[bold red]something differs[/]"
    console.print(f"  {verdict}, {time.monotonic() - started:.0f} s")
    console.print(
        f"  Try next: {NEXT}, and read examples/README.md", soft_wrap=True, markup=False
    )
    return good


if __name__ == "__main__":
    run(main)
