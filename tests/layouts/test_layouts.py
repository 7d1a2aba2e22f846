"""Layouts of public data are read right, or refused clearly where that is allowed."""

from __future__ import annotations

import pytest

from tests.layouts.base import LAYOUTS
from tests.layouts.check import wrong_of
from tests.layouts.page import PAGE, text_of_page


@pytest.mark.jobs
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_right(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert wrong_of(name, tmp_path) == []


@pytest.mark.jobs
def test_the_page_of_layouts_is_current(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    written = "write it with: python -m tests.layouts.page"
    assert text_of_page(tmp_path) == PAGE.read_text(), written


@pytest.mark.parametrize("name", [*LAYOUTS][::6])
def test_some_layouts_are_read_right_at_every_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert wrong_of(name, tmp_path) == []
