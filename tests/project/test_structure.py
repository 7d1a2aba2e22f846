"""The layers, and the size of files and functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "energize"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = [
    {
        "arrays",
        "columns",
        "edataclass",
        "errors",
        "ignored",
        "late",
        "limits",
        "numbers",
        "optional",
        "rng",
        "sample_utils",
        "savable",
        "state",
    },
    {
        "refs",
        "ranks",
        "topology",
        "worker",
        "reading",
        "padding",
        "describing",
        "pooling",
        "sample_weights",
        "storage",
    },
    {"cursor", "description"},
    {"streaming", "parts", "outline", "past"},
    {"blends", "costs", "dataset", "ledger", "moved", "passing", "quarantine", "restoring"},
    {"av", "epathlib", "media", "mixing", "order", "samples", "transforms"},
    {"cache", "packing", "prepare", "sources"},
    {"wrappers", "task_encoder"},
    {"dataset_config", "flavors", "metadataset", "source_info"},
    {"compat", "cli", "monitor", "plots", "preview", "savable_loader", "testing"},
]
"""Lowest first: a part may import parts of its own layer and of those above it in this list."""

ANYWHERE = {"testing"}
HANDING_ON = {"media/filesystem_prepare.py", "task_encoder/loader.py"}
"""At paths of Megatron-Energon's, below what they hand on; nothing imports them but users."""
BESIDE = {"loader": 4}
"""The loader knows the protocol only: layers up to this one."""


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next((i for i, layer in enumerate(LAYERS) if name in layer), len(LAYERS))


def imported_parts(path: Path) -> set[str]:
    """Parts of energize that a file imports when it runs, not only for the type checker."""
    parts: set[str] = set()

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("energize"):
                names = (node.module or "").split(".")[1:2]
                parts.update(names or [alias.name for alias in node.names])
            if isinstance(node, ast.Import):
                parts.update(
                    alias.name.split(".")[1]
                    for alias in node.names
                    if alias.name.startswith("energize.")
                )
            visit(ast.iter_child_nodes(node))

    visit(ast.iter_child_nodes(ast.parse(path.read_text())))
    return parts


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = part(path)
    if own == "__init__" or str(path.relative_to(PACKAGE)) in HANDING_ON:
        return
    for name in imported_parts(path) - {own}:
        if own in BESIDE:
            assert level(name) <= BESIDE[own], f"{own} imports {name}"
        elif name in BESIDE:
            assert level(own) >= level("metadataset"), f"{own} imports {name}"
        else:
            assert level(name) <= level(own), f"{own} imports {name}, which is above it"


@pytest.mark.parametrize("name", sorted(HANDING_ON))
def test_what_hands_names_on_does_nothing_else(name):
    doc, *imports, names = ast.parse((PACKAGE / name).read_text()).body
    assert isinstance(doc, ast.Expr)
    assert isinstance(names, ast.Assign)
    assert all(isinstance(each, ast.ImportFrom) for each in imports)
    module = "energize." + name.removesuffix(".py").replace("/", ".")
    users = [path for path in FILES if f"from {module} import" in path.read_text()]
    assert users in ([], [PACKAGE / name.split("/")[0] / "__init__.py"])  # there for types only


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = node.body[0].lineno, node.body[0].end_lineno + 1
            documented = said[1] - said[0] if ast.get_docstring(node) else 0
            lines = node.end_lineno - node.lineno - documented
            assert lines < 60, f"{node.name} is too long"


def test_order_knows_no_torch_and_no_files():
    for path in (PACKAGE / "order").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & {
                    "torch",
                    "os",
                    "pathlib",
                }
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in {"torch", "os", "pathlib"}
                assert node.module != "energize.late"


def test_every_import_is_at_the_top():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                inner = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
                assert not inner, f"{path.relative_to(PACKAGE)}: {node.name} imports"


def test_no_assert_guards_user_input():
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Assert)], path
