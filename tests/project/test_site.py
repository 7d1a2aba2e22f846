"""The site: pages that run as printed, messages that are those of the source, and what
is made of the pages.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.project.walk import walk

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.jobs
@pytest.mark.timeout(300)
def test_the_tutorial_in_an_empty_folder(tmp_path):
    """Loose files of three kinds, blended, on two workers; stopped, and resumed where
    it was."""
    printed = dict(walk(DOCS / "tutorial.md", tmp_path))
    stopped, resumed = (
        text for command, text in printed.items() if "train.py" in command
    )
    assert stopped.splitlines()[2] == resumed.splitlines()[0]


def texts_of(path: Path) -> list[str]:
    """The texts in a module, with a gap for each value that is put in."""
    return [
        "".join(
            each.value if isinstance(each, ast.Constant) else "\0"
            for each in node.values
        )
        if isinstance(node, ast.JoinedStr)
        else node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]


@pytest.mark.jobs
def test_each_message_of_the_page_is_one_of_the_source():
    texts = [
        text for path in (ROOT / "energize").rglob("*.py") for text in texts_of(path)
    ]
    quoted = re.findall(
        r"^\*\*`(.+)`\*\*$", (DOCS / "messages.md").read_text(), re.MULTILINE
    )
    assert len(quoted) > 20
    for message in quoted:
        parts = [re.escape(part) for part in re.split(r"\.\.\.", message) if part]
        pattern = re.compile(".*?".join(parts), re.DOTALL)
        assert any(map(pattern.search, texts)), message


def test_what_is_made_of_the_pages_is_current(site):
    for path, text in site.generated().items():
        assert path.read_text() == text, f"{path.name}: run python docs/build.py"


def test_each_page_has_its_place_on_the_site_and_each_name_one_in_the_reference(site):
    own = {path.name for path in DOCS.glob("*.md")}
    assert own == {*site.pages(), "skill.md"}
    assert all(page.count("::: ") for page in site.reference().values())
