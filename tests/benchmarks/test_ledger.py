"""The benchmark of the ledger runs, and says what it says it does."""

from __future__ import annotations

import json

from benchmarks import ledger


def test_it_measures_with_and_without(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ledger, "_ITEMS", dict.fromkeys(ledger.CASES, 20))
    out = tmp_path / "found.json"
    cases = ["--cases", "packs", "numbers", "--workers", "0"]
    ledger.main(["--runs", "2", *cases, "--json", str(out)])
    found = json.loads(out.read_text())
    assert [(each["case"], each["workers"]) for each in found] == [("packs", 0), ("numbers", 0)]
    assert all(each["noted_us"] > 0 and each["ratio"] > 0 for each in found)
    assert capsys.readouterr().out.count("\n") == 4
