"""Imports point one way, and stand where they may."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "energize"

LAYERS = (
    *("errors", "core", "order", "data", "packing", "datasets", "task", "preparation", "inference"),
    *("report", "loader", "metadataset", "mixing", "extras", "energon"),
    *("compat", "testing", "cli", "__main__"),
)
"""Lowest first: a package imports, when it is imported itself, packages before it in this list."""

WAITING = {("core", "data"), ("metadataset", "energon")}
"""Arrows that still run back up."""


def imports(path: Path):
    """The modules of energize that a file imports at its top, not only for the type checker."""
    waiting: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try):
            waiting += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("energize."):
            yield node.module.split(".")[1]


def test_imports_point_one_way():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in LAYERS, f"{own} has no place in LAYERS"
        wrong += [
            f"{path.relative_to(PACKAGE)} imports {name}"
            for name in imports(path)
            if LAYERS.index(name) > LAYERS.index(own) and (own, name) not in WAITING
        ]
    assert not wrong, "\n".join(wrong)


def test_order_knows_no_torch_and_no_files():
    for path in (PACKAGE / "order").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert not roots & {"torch", "os", "pathlib"}, f"{path.name} imports {roots}"


def test_importing_energize_loads_little():
    program = "import sys, energize; print(sum(m.split('.')[0] == 'energize' for m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(loaded.stdout) <= 60
