"""Tests written against Megatron-Energon run with energize in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]

HELPER = "VALUE = 3\n"
TESTS = """
import unittest

import energize
import megatron.energon
import megatron.energon.flavors.webdataset.config as config
from click.testing import CliRunner
from megatron.energon import SkipSample, WorkerConfig, edataclass
from megatron.energon.edataclass import edataclass as from_its_module
from megatron.energon.task_encoder.base import TaskEncoder
from megatron.energon.tools.analyze_debug import command
from tests.helper import VALUE


class TestAlias(unittest.TestCase):
    def test_names_are_the_same_objects(self):
        assert WorkerConfig is energize.WorkerConfig
        assert TaskEncoder is energize.TaskEncoder
        assert edataclass is from_its_module is energize.edataclass
        assert megatron.energon.SkipSample is SkipSample
        assert config.MAIN_FOLDER_NAME == ".nv-meta"
        assert energize.__spec__.name == "energize"

    def test_helpers_and_commands(self):
        assert VALUE == 3
        assert CliRunner().invoke(command, ["--help"]).exit_code == 0

    def test_that_fails(self):
        assert VALUE == 4, "for a reason"
"""


def test_a_folder_of_tests(tmp_path):
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("from megatron.energon.nowhere import Thing\n")
    command = [sys.executable, "-m", "tests.support.energon_alias", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT
    )
    assert done.returncode != 0
    said = done.stdout
    assert "test_other.py: 0 passed, 1 others\n    not collected: E   ModuleNotFoundError" in said
    done = subprocess.run(
        [*command, "--ignore", str(tmp_path / "test_other.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )
    assert "test_some.py: 2 passed, 1 others\n    test_that_fails: AssertionError: for a" in (
        done.stdout
    )
    assert done.stdout.endswith("2 passed in all\n")
