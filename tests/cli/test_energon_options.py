"""Every command and option of Megatron-Energon's command line is one here."""

import re

import pytest

from energize.cli.main import COMMANDS as OUR_COMMANDS
from energize.cli.main import load_command
from tests.support.peers import run_energon

pytestmark = [pytest.mark.energon, pytest.mark.slow]

COMMANDS = (
    "prepare", "prepare-media", "info", "lint", "preview", "checkpoint info",
)  # fmt: skip
ELSEWHERE = ("mount", "analyze-debug")
"""Those that energize has not."""


def ours(command):
    """The options that a command takes."""
    first, *inner = command.split()
    found = load_command(first)
    for name in inner:
        found = found.commands[name]
    return {
        option for each in found.params for option in (*each.opts, *each.secondary_opts)
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command):
    told = run_energon(*command.split(), "--help")
    theirs = set(re.findall(r"^  .*?(--[a-z-]+)", told, re.MULTILINE))
    theirs |= set(re.findall(r"/ (--[a-z-]+)", told))
    assert theirs - {"--help"} <= ours(command)
    assert len(theirs) > 1 or command == "checkpoint info"


def test_commands():
    told = run_energon("--help").partition("Commands:")[2]
    theirs = set(re.findall(r"^  ([a-z-]+)", told, re.MULTILINE))
    assert theirs == {*(command.split()[0] for command in COMMANDS), *ELSEWHERE}
    assert theirs - {*ELSEWHERE} <= set(OUR_COMMANDS)
