"""The soak finds what grows, and nothing where nothing does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import soak_program
from tests.support.soak_measures import TOLERANCES, grown, growth


def test_growth_is_that_of_a_line():
    assert growth([5, 7, 9, 11]) == 6
    assert growth([4] * 30 + [900] + [4] * 30) == 0, "a peak tilts nothing"
    assert growth([40, 41, 40, 42, 41, 40, 41]) < 1
    assert growth([3]) == 0


@pytest.mark.parametrize("name", TOLERANCES)
def test_what_rises_slowly_is_found(name):
    still = dict.fromkeys(TOLERANCES, 100.0)
    rising = [still | {name: 100 + TOLERANCES[name] * at / 40} for at in range(50)]
    assert grown(rising).keys() == {name}
    assert not grown([still] * 50)


def soaked(*options: str) -> dict:
    command = [sys.executable, "-m", soak_program.__name__, "--every", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.jobs
def test_a_few_rounds_in_which_a_descriptor_is_lost_each_time():
    end = soaked("--rounds", "9", "--leak", "descriptors")
    assert end["grown"].keys() == {"descriptors"}
    assert end["attacks"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_that_is_lost_is_found():
    assert soaked("--rounds", "16", "--leak", "all")["grown"].keys() == TOLERANCES.keys()
