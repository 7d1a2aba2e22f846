"""The mixing benchmark, run for real on a few sources."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.comparing import OWN
from benchmarks.mixing import main
from benchmarks.mixing_comparing import drawn_by

NEAR, FAR = 10_000, 10**12


def test_schemes_are_measured(tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["--sources", "3", "--slots", "1024", "--libraries", "webdataset", "--json", str(report)])
    found = json.loads(report.read_text())
    assert {(each["mixer"], each["weights"]) for each in found["slots"]} >= {
        ("block", "floats"),
        ("exact", "integers"),
        ("round_robin", "integers"),
    }
    assert all(each["mean"] > 0 for each in found["slots"])
    assert found["delivery"] == []  # no environment was given that has webdataset
    assert "round_robin" in capsys.readouterr().out


def test_a_library_that_replays_is_measured_as_far_as_it_gets():
    start, near, far = drawn_by(sys.executable, "webdataset", 3, [0, NEAR, FAR])
    assert start.replays
    assert start.each is not None
    assert near.each is not None
    assert near.first > NEAR / 10 * near.each / 1e6
    assert far.each is None
    assert far.first == pytest.approx(FAR * near.each / 1e6)


def test_energize_starts_anywhere():
    start, far = drawn_by(sys.executable, OWN, 3, [0, FAR])
    assert start.each is not None
    assert far.each is not None
    assert not far.replays
    assert far.first < 1


def test_a_failing_measurement_says_what_went_wrong():
    with pytest.raises(RuntimeError, match=r"mixing_peers nothing 3 0 failed:[^$]*KeyError"):
        drawn_by(sys.executable, "nothing", 3, [0])
