"""Layouts of public data are read right, or refused clearly where that is allowed."""

from __future__ import annotations

import pytest

from energize import get_val_dataset
from energize.cli.init import metadataset_text
from energize.errors import EnergizeError
from energize.inference.engine import infer_parts
from energize.inference.options import DataOptions
from tests.layouts.base import LAYOUTS, instance
from tests.layouts.check import wrong_of
from tests.layouts.page import PAGE, text_of_page


def one_in(many, mark):
    """All layouts; most are read in longer runs."""
    return [
        pytest.param(name, marks=[mark] if number % many else [])
        for number, name in enumerate(LAYOUTS)
    ]


@pytest.mark.parametrize("name", one_in(6, pytest.mark.jobs))
def test_a_layout_is_read_right(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert wrong_of(name, tmp_path) == []


@pytest.mark.jobs
def test_the_page_of_layouts_is_current(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    written = "write it with: python -m tests.layouts.page"
    assert text_of_page(tmp_path) == PAGE.read_text(), written


@pytest.mark.jobs
@pytest.mark.parametrize("name", one_in(3, pytest.mark.slow))
def test_what_init_writes_of_a_layout_is_the_identical_dataset(
    name, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    root, mix = instance(name, tmp_path), tmp_path / "mix.yaml"
    read = {"batch_size": None, "verify": False}
    for opening in LAYOUTS[name].expected:
        try:
            text = metadataset_text([root / opening.path], tmp_path)
        except EnergizeError:
            continue  # refused
        mix.write_text(text)
        if opening.refuse or opening.may_refuse:
            continue
        for part in infer_parts(root / opening.path, DataOptions()).specs:
            written = get_val_dataset(mix, split_part=part, **read)
            plain = get_val_dataset(root / opening.path, split_part=part, **read)
            assert written.describe() == plain.describe()
            assert [*map(repr, written)] == [*map(repr, plain)]
