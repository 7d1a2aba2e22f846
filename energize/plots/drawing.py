"""From a simulated run to a file with its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from energize.dataset import IndexedDataset
from energize.errors import ConfigError, nearest
from energize.plots.page import page_of
from energize.plots.picture import KINDS, check_matplotlib, picture_of
from energize.preview.simulating import Simulation
from energize.preview.units import BATCHES, weighed_in
from energize.storage.new_files import write_new

_PAGE = ".html"
_KINDS = (*KINDS, _PAGE)


_MOST, _FEWEST, _EACH = 400, 12, 64
"""Intervals of a picture, and what each should hold: of fewer items it shows how they round."""


def intervals_for(dataset: IndexedDataset[Any], steps: int) -> int:
    """Into how many intervals a run is cut for its picture.

    >>> from energize import BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
    >>> intervals_for(blend, 100), intervals_for(blend, 6400), intervals_for(blend, 10**9)
    (12, 100, 400)
    """
    items = steps if weighed_in(dataset) == BATCHES else int(dataset.consumed(steps).sum())
    return max(_FEWEST, min(_MOST, items // _EACH))


def check_plot(path: Path) -> None:
    """Raise `ConfigError` when a picture cannot be drawn to `path`, before there is one.

    PNG, SVG and PDF are drawn by matplotlib, the extra `plot`; an HTML page needs nothing.
    """
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(
            f"{path}: a picture is drawn to {', '.join(_KINDS)}; got "
            f"{repr(path.suffix) if path.suffix else 'no suffix'}{nearest(path.suffix, _KINDS)}"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.absolute().parent}; make it first")
    if path.is_dir():
        raise ConfigError(f"{path}: the picture cannot be written, this is a folder")
    if path.suffix.lower() != _PAGE:
        check_matplotlib()


def draw(run: Simulation, path: Path, *, title: str = "", done: str = "planned") -> None:
    """Draw what a run takes of its sources to `path`: a PNG, SVG or PDF, or an HTML page.

    It shows the share of each source over the steps, stacked, with dashed lines at the shares that
    were asked for and the stages by name; the shares over all steps beside those asked for; and how
    often the sources are read that are read most. Eight sources have a colour, the others are one.
    `done` is the word for what is shown: planned, or delivered. `intervals_for` says how
    many points a run needs.

    The page is one file without scripts that fetches nothing, for light and dark screens.

    Raises what `check_plot` raises, and `ConfigError` when the file cannot be written.

    >>> import tempfile
    >>> from energize import BlendDataset, ListSource
    >>> from energize.preview import simulate
    >>> blend = BlendDataset((ListSource("ab", name="web"), 3), (ListSource("c", name="code"), 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "mix.html"
    ...     draw(simulate(blend, 1000, intervals=200), file, title="mix")
    ...     file.read_text().startswith("<!doctype html>")
    True
    """
    check_plot(path)
    kind = path.suffix.lower()
    if kind == _PAGE:
        content = page_of(run, title, done).encode()
    else:
        content = picture_of(run, title, done, kind.removeprefix("."))
    write_new(path, content, ConfigError)
