"""Jobs and workers killed and stopped at random moments: what they deliver stays the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import attack_program, kill_program

pytestmark = pytest.mark.jobs


def lines_of(program, *options: str, seconds: float) -> list[str]:
    """What a program says that ends well."""
    command = [sys.executable, "-m", program.__name__, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            output, _ = running.communicate(timeout=seconds)
        except BaseException:
            running.terminate()  # it ends the job that runs
            raise
    lines = output.splitlines()
    assert running.returncode == 0, lines[-1]
    return lines


def test_workers_killed_and_stopped_at_random():
    *_, end = lines_of(
        attack_program, "--kills", "34", "--stops", "6", "--pauses", "0", seconds=110
    )
    assert (json.loads(end)["SIGKILL"], json.loads(end)["SIGSTOP"]) == (34, 6)


def test_trainers_that_are_stopped_for_a_while_blame_nobody():
    first, second, *_ = lines_of(
        attack_program, "--kills", "0", "--stops", "0", "--pauses", "2", seconds=110
    )
    for each in map(json.loads, (first, second)):
        assert (each["pause"], each["replaced"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_workers_killed_and_stopped_two_thousand_times():
    *_, end = lines_of(attack_program, "--kills", "1000", "--stops", "1000", seconds=3500)
    assert (json.loads(end)["SIGKILL"], json.loads(end)["SIGSTOP"]) == (1000, 1000)


def killed_jobs(*options: str, seconds: float) -> list[dict]:
    return [json.loads(line) for line in lines_of(kill_program, *options, seconds=seconds)]


def test_a_job_killed_at_random_is_trained_on_what_one_process_is():
    options = ["--kills", "4", "--kinds", "endless_stream,indexed_epochs", "--torchrun-every", "4"]
    *runs, whole = killed_jobs(*options, seconds=100)
    assert [run["kills"] for run in runs] == [2, 2]
    assert whole["kills"] == 4
    assert sum(run["seen"].get("torchrun", 0) for run in runs) == 1
    assert all(run["compared"] >= run["batches"] >= 40 for run in runs)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_jobs_killed_two_hundred_times():
    *runs, whole = killed_jobs("--kills", "200", "--seconds", "3000", seconds=3500)
    assert whole["kills"] == 200
    assert len(runs) == len(kill_program.DATASETS)
