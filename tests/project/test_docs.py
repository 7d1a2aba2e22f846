"""The examples of the documentation run as they are printed."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "page",
    [
        "changing-weights.md",
        "columns.md",
        "compat.md",
        "data.md",
        "ledger.md",
        "level-ranks.md",
        "looking.md",
        "loss-weights.md",
        "media.md",
        "mixing.md",
        "packing.md",
        "preview.md",
        "running.md",
        "task-encoders.md",
    ],
)
def test_examples(page):
    results = doctest.testfile(
        str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert results.attempted > 5
    assert results.failed == 0
