"""The packing benchmark, run for real on a few captions."""

from __future__ import annotations

import json

import pytest

from benchmarks.packing import METHODS, captions, delivered, main, measured
from tests.support.peers import peer_python

FEW = ["--captions", "300", "--buffers", "100", "300"]


@pytest.mark.slow
def test_every_method_is_measured(tmp_path, capsys):
    report = tmp_path / "report.json"
    main([*FEW, "--json", str(report)])
    found = json.loads(report.read_text())
    assert [each["method"] for each in found["packed"]] == [*METHODS] * 2
    assert [(each["library"], each["method"]) for each in found["delivered"]] == [
        ("energize", method) for method in METHODS
    ] * 2
    for table in found.values():
        assert all(each["samples_per_second"] > 0 for each in table)
        assert all(0.5 < each["fill"] <= 1 for each in table)
    # What is delivered is what was selected, but for its order in the folder.
    assert "best_fit" in capsys.readouterr().out


def test_packs_are_fuller_than_those_of_the_greedy_example():
    """What is asked of 10,000 captions."""
    lengths = captions(10_000, 100, 0.7, 2048)
    found = {each.method: each for each in measured(lengths, 2048, 10_000)}
    assert found["energon greedy"].fill < 0.96
    for method in ("first_fit", "best_fit", "balanced"):
        assert found[method].fill >= 0.98
    assert found["balanced"].cheapest > 0.95
    assert found["balanced"].dearest < 1.05


@pytest.mark.slow
@pytest.mark.energon
def test_energon_delivers_the_same_captions():
    lengths = captions(300, 100, 0.7, 2048)
    found = delivered(lengths, 2048, 100, peer_python("energon"))
    assert [each.library for each in found] == ["energize"] * len(METHODS) + ["megatron.energon"]
    assert found[-1].method == "energon greedy"
    assert abs(found[-1].packs - found[0].packs) <= 3
