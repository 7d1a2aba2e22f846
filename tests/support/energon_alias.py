"""Runs tests that were written against `megatron.energon` with energize in its place.

    python -m tests.support.energon_alias FOLDER [options of pytest]

`megatron.energon.NAME` is then `energize.NAME`, for every module; `megatron.energon.tools.NAME` has
the command NAME of the command line as `command`, and `tests.NAME` is looked for in FOLDER first.
At the end there is a line for each file: how many tests passed, and the reason of each other one.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import typer

PEER = "megatron.energon"


class AliasFinder(MetaPathFinder, Loader):
    """Finds modules of the peer as those of energize, and helpers of tests in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "megatron" or fullname == PEER or fullname.startswith(f"{PEER}."):
            return ModuleSpec(fullname, self, is_package=True)
        helper = self._helper(fullname)
        if helper is not None:
            return spec_from_file_location(fullname, helper)
        return None

    def _helper(self, fullname: str) -> Path | None:
        if self.folder is None or not fullname.startswith("tests."):
            return None
        at = self.folder.joinpath(*fullname.split(".")[1:])
        return next((p for p in (at.with_suffix(".py"), at / "__init__.py") if p.exists()), None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in ("megatron", f"{PEER}.tools"):
            return ModuleType(spec.name)
        if spec.name.startswith(f"{PEER}.tools."):
            return _command_module(spec.name)
        module = importlib.import_module("energize" + spec.name.removeprefix(PEER))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__.startswith("energize"):
            module.__spec__ = self._own  # importing has put ours in its place


def _command_module(name: str) -> ModuleType:
    """A module with the command of that name."""
    app = importlib.import_module("energize.cli.main").app
    command = name.rpartition(".")[2].replace("_", "-")
    commands = typer.main.get_command(app).commands
    if command not in commands:
        raise ImportError(f"there is no command {command!r}; there are {', '.join(commands)}")
    module = ModuleType(name)
    module.command = commands[command]
    return module


def install(folder: Path | None = None) -> AliasFinder:
    """Have `megatron.energon` mean energize in this process from now on."""
    finder = AliasFinder(folder)
    sys.meta_path.insert(0, finder)
    # Importing a module sets it on its parent, in place of a function of that name (`edataclass`):
    # those that are there already are not imported again.
    importlib.import_module("energize")
    known = {name: module for name, module in sys.modules.items() if name.startswith("energize.")}
    sys.modules.update({PEER + name.removeprefix("energize"): known[name] for name in known})
    return finder


class Outcomes:
    """Counts what became of the tests of each file, and keeps the reasons."""

    def __init__(self) -> None:
        self.passed: defaultdict[str, int] = defaultdict(int)
        self.others: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            reason = str(report.longrepr).strip().splitlines()[-1]
            self.others[Path(report.nodeid).name].append(f"not collected: {reason}")

    def pytest_runtest_logreport(self, report) -> None:
        file = Path(report.nodeid.split("::")[0]).name
        if report.when == "call" and report.passed:
            self.passed[file] += 1
        elif not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else str(report.longrepr)
            reason = " ".join(said.split())[:200]
            self.others[file].append(f"{report.nodeid.rpartition('::')[2]}: {reason}")

    def lines(self) -> list[str]:
        """The table, a line for each file and each test that did not pass."""
        lines = []
        for file in sorted({*self.passed, *self.others}):
            lines.append(f"{file}: {self.passed[file]} passed, {len(self.others[file])} others")
            lines += [f"    {each}" for each in self.others[file]]
        return [*lines, f"{sum(self.passed.values())} passed in all"]


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]).resolve()
    install(folder)
    outcomes = Outcomes()
    options = [
        "-q",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-c",
        "/dev/null",
    ]
    where = ["--rootdir", str(folder), "--import-mode=importlib", str(folder)]
    status = pytest.main([*options, *where, *arguments[1:]], plugins=[outcomes])
    print("\n".join(outcomes.lines()))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
