"""Layouts of public data are read right, or refused clearly where that is allowed."""

from __future__ import annotations

import pytest

from tests.layouts.base import LAYOUTS
from tests.layouts.check import wrong_of


@pytest.mark.jobs
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_right(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert wrong_of(name, tmp_path) == []
