"""A short run of the fuzzer over all formats; `make fuzz` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzing import FORMATS, Tally, fuzzed, shared_out, table
from tests.fuzz.judging import Outcome

MUTANTS = 800


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_no_damaged_file_is_read_without_a_word(tmp_path):
    tallies: dict[str, Tally] = {}
    failed = []
    for form, count in zip(FORMATS, shared_out(MUTANTS, FORMATS), strict=True):
        tallies[form.name], bad = fuzzed(form, count, tmp_path)
        failed += bad
    told = "\n".join(f"{each.form}:{each.number} {each.outcome}: {each.text}" for each in failed)
    assert not failed, f"{told}\n{table(tallies)}"
    assert Outcome.PAYLOAD not in tallies["tar with checksums"].outcomes
    assert Outcome.PAYLOAD not in tallies["MDS hashed"].outcomes
