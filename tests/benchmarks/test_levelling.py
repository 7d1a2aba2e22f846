"""The benchmark of level batches, run for real on a few samples."""

from __future__ import annotations

import json

import pytest

from benchmarks.levelling import COSTS, main, slowest
from benchmarks.levelling_samples import stored
from benchmarks.levelling_training import trained

pytestmark = pytest.mark.jobs


@pytest.mark.parametrize("cost", COSTS)
def test_sixty_four_ranks_have_equal_work(cost):
    found = slowest(64, cost)
    assert found.level <= found.level_worst <= 1.05
    assert found.plain > 1.5


def test_every_table_is_measured(tmp_path, capsys):
    report = tmp_path / "report.json"
    few = ["--ranks", "2", "4", "--stored", "3", "--steps", "0", "--global-batches", "2"]
    main([*few, "--data", str(tmp_path), "--json", str(report)])
    found = json.loads(report.read_text())
    assert [(each["cost"], each["ranks"]) for each in found["slowest"]] == [
        (cost, ranks) for cost in COSTS for ranks in (2, 4)
    ]
    assert all(each["level"] <= each["plain"] for each in found["slowest"])
    assert [each["ranks"] for each in found["planned"]] == [2, 4]
    assert all(0 < each["planning"] < each["loading"] for each in found["planned"])
    assert found["trained"] == []
    assert "share" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_is_timed(tmp_path):
    steps = trained(stored(tmp_path, 6), 4)
    assert steps.ranks == 2
    assert min(steps.plain, steps.level) > 0
    assert steps.expected >= 1
