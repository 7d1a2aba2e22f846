"""The benchmark of shares in tokens, run for real on a few texts."""

from __future__ import annotations

import json

import pytest

from benchmarks.token_shares import ASKED, MEDIANS, UNITS, main, mixed, text_lengths
from tests.support.peers import peer_python

TEXTS = 2000


@pytest.mark.slow
def test_every_way_is_measured_and_tokens_have_their_shares(tmp_path, capsys):
    report = tmp_path / "report.json"
    main(["--texts", str(TEXTS), "--folder", "300", "--json", str(report)])
    found = json.loads(report.read_text())
    ways = [(each["unit"], each["packed"]) for each in found]
    assert ways == [(unit, packed) for packed in (False, True) for unit in UNITS]
    for each in found:
        assert each["texts"] >= TEXTS
        assert sum(each["shares"]) == pytest.approx(1)
        assert each["worst"] >= each["off"]
        if each["unit"] == "samples":
            assert each["off"] > 0.3, "long texts have nearly all the tokens"
        else:
            assert each["shares"] == pytest.approx(list(ASKED.values()), abs=0.01)
    assert "tokens, encoded" in capsys.readouterr().out


def test_lengths_are_skewed_tenfold_and_fit_into_packs():
    drawn = {letter: text_lengths(letter, 2000) for letter in MEDIANS}
    assert sum(drawn["a"]) > 8 * sum(drawn["b"])
    assert all(1 <= length < 4096 for lengths in drawn.values() for length in lengths)


@pytest.mark.slow
@pytest.mark.energon
def test_energon_has_shares_of_samples():
    found = list(mixed(TEXTS, 300, str(peer_python("energon"))))
    theirs = [each for each in found if each.library == "megatron.energon"]
    assert len(theirs) == 2
    assert all(each.off > 0.3 for each in theirs)
