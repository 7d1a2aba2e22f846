"""The language of the package: names, docstrings and messages in plain English.

Counts may only fall. Lower a limit when a count has fallen.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "energize").rglob("*.py"))

FUNCTION_WORDS = frozenset(
    [
        "each",
        "found",
        "told",
        "tell",
        "said",
        "say",
        "known",
        "give",
        "given",
        "made",
        "own",
        "others",
        "asked",
        "ask",
        "kept",
        "now",
        "there",
        "here",
        "what",
        "who",
        "whom",
        "which",
        "whose",
        "where",
        "anew",
        "apart",
        "alike",
        "beside",
        "stand",
        "standing",
        "lies",
        "lent",
        "led",
        "meant",
        "taken",
        "such",
        "nobody",
    ]
)
"""Words that do not say what a value is."""

SUBJECT = re.compile(
    r"(?:^|[.:;] |\n\s*\n\s*)(?:Who|What|Which|Whoever|Whatever)\b(?! ?\w*\?)"
)
SPEAKING = re.compile(
    r"\b(?:says?|said|tells?|told|asks?|asked|speaks?|nobody|somebody|whose|whom)\b"
)

MOST_NAMES = 75
MOST_SUBJECTS = 1
MOST_SPEAKING = 8
MOST_SPEAKING_MESSAGES = 80
MOST_WORDS = 40_000


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in MODULES}


def bound_names(tree: ast.Module) -> list[str]:
    """Return the names that a module binds, a name as often as it is bound."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
    return names


def words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


@cache
def docstrings() -> list[str]:
    return [
        node.value.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


@pytest.fixture(scope="module")
def message_list():
    path = ROOT / "docs" / "message_list.py"
    spec = importlib.util.spec_from_file_location("message_list", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["message_list"] = module
    spec.loader.exec_module(module)
    return module


def test_names_contain_no_function_words():
    banned = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees().items()
        for name in bound_names(tree)
        if words(name) & FUNCTION_WORDS
    ]
    assert len(banned) <= MOST_NAMES, "\n".join(banned[:50])


@pytest.mark.parametrize(
    ("pattern", "most"), [(SUBJECT, MOST_SUBJECTS), (SPEAKING, MOST_SPEAKING)]
)
def test_docstrings_have_plain_subjects(pattern, most):
    matches = [text for text in docstrings() if pattern.search(text)]
    assert len(matches) <= most, "\n\n".join(matches[:20])


def test_no_line_is_longer_than_88_characters():
    longer = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in MODULES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 88
    ]
    assert not longer


def test_the_pages_stay_short():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/README.md"),
        *ROOT.glob("benchmarks/README.md"),
    ]
    left_out = {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    counted = [page for page in pages if page.name not in left_out]
    assert sum(len(page.read_text().split()) for page in counted) <= MOST_WORDS


def test_every_message_is_listed_and_plain(message_list):
    """The page of the site lists all errors, warnings and log lines."""
    messages = message_list.messages()
    page = message_list.page()
    assert len(messages) > 800
    for message in messages:
        assert " ".join(message.text.split()).replace("`", "'") in page
    speaking = [message for message in messages if SPEAKING.search(message.text)]
    assert len(speaking) <= MOST_SPEAKING_MESSAGES, speaking[:20]


def test_spelling():
    program = Path(sys.executable).with_name("codespell")
    if not program.exists():
        pytest.skip("codespell is not installed, see the extra dev")
    done = subprocess.run(
        [program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
