"""The benchmark of what checks of bytes cost, run for real on a few samples."""

from __future__ import annotations

import json

import pytest

from benchmarks.integrity import WAYS, main


@pytest.mark.slow
def test_every_way_is_measured(tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["--samples", "512", "--runs", "1", "--json", str(report)])
    found = json.loads(report.read_text())
    assert len(found) == 5
    assert all(list(ways) == list(WAYS) and min(ways.values()) > 0 for ways in found.values())
    assert "photographs, decoded" in capsys.readouterr().out
