"""Training programs written for other libraries: each on 2 ranks x 2 workers under DDP,
saved in the middle, resumed on as many ranks and on others.
"""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

from tests.jobs import programs
from tests.support.launching import launched

# One fixture runs all programs.
pytestmark = [pytest.mark.jobs, pytest.mark.timeout(300)]

NAMES = sorted(each.name for each in pkgutil.iter_modules(programs.__path__))
STEPS, SAVED_AT, RANKS = 20, 8, 2


def run(
    folder: Path, ranks: int, steps: int, save_at: object, names: list[str]
) -> list[dict]:
    """What each rank wrote down."""
    out = folder / f"{save_at}-{ranks}"
    out.mkdir()
    given = (folder, out, steps, save_at, *names)
    launched(
        "tests.jobs.harness", *given, ranks=ranks, imports=["datasets"], timeout=300
    )
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The ranks of each run: `whole`, `again` on as many ranks, `alone` on one."""
    folder = tmp_path_factory.mktemp("programs")
    for name in NAMES:
        import_module(f"tests.jobs.programs.{name}").prepare(folder / name)
    rest = STEPS - SAVED_AT
    anywhere = [
        name
        for name in NAMES
        if not getattr(
            import_module(f"tests.jobs.programs.{name}"), "SAME_RANKS", False
        )
    ]
    return {
        "whole": run(folder, RANKS, STEPS, SAVED_AT, NAMES),
        "again": run(folder, RANKS, rest, "resume", NAMES),
        "alone": run(folder, 1, RANKS * rest, "resume", anywhere),
    }


def of_ranks(runs, kind: str, name: str) -> list:
    found = [rank[name] for rank in runs[kind]]
    for each in found:
        assert not isinstance(each, str), each
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_program_trains_and_resumes(runs, name):
    program = import_module(f"tests.jobs.programs.{name}")
    whole = of_ranks(runs, "whole", name)
    assert [len(each) for each in whole] == [STEPS] * RANKS
    assert all(batch for rank in whole for batch in rank)
    assert whole[0] != whole[1]
    program.check(whole)
    assert of_ranks(runs, "again", name) == [each[SAVED_AT:] for each in whole]
    if not getattr(program, "SAME_RANKS", False):
        (alone,) = of_ranks(runs, "alone", name)
        rest = zip(*(each[SAVED_AT:] for each in whole), strict=True)
        expected = [sample for step in rest for batch in step for sample in batch]
        assert [sample for batch in alone for sample in batch][
            : len(expected)
        ] == expected
