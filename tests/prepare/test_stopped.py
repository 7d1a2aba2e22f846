"""Preparing that is ended in the middle, at any moment."""

import ast
import signal
import subprocess
import sys

import pytest


@pytest.mark.jobs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_moment_leaves_a_folder_that_only_looks_prepared(tmp_path, number):
    command = [sys.executable, "-m", "tests.support.prepare_kills", str(tmp_path), str(int(number))]
    ran = subprocess.run([*command, "10", "7"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ast.literal_eval(ran.stdout)["died"] > 0
