"""`import energize` stays cheap, and core imports no heavy library at the top.

import-linter checks which package imports which.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import energize

HEAVY = {"PIL", "rich", "torch", "typer", "yaml"}


def imported_at_the_top(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_core_and_order_import_no_heavy_library_at_the_top():
    package = Path(energize.__file__).parent
    for folder in ("core", "order"):
        for path in sorted((package / folder).glob("*.py")):
            assert not HEAVY & {*imported_at_the_top(path)}, path.name


def test_importing_energize_loads_little():
    program = "import sys, energize; print(sum(m.split('.')[0] == 'energize' for m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(loaded.stdout) <= 60
