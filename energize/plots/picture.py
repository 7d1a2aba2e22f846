"""Pictures of a run by matplotlib: PNG, SVG and PDF."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from energize.optional import optional_module
from energize.plots.bands import Band, bands_of, edges_of, most_repeated, placed, short
from energize.plots.page import LIGHT
from energize.plots.scales import number_text, share_text, ticks
from energize.plots.words import STEP, asked_title, epochs_title, shares_title, subtitle
from energize.preview.simulating import Simulation, SourceForecast, StageSpan

KINDS = (".png", ".svg", ".pdf")

_OTHERS, _INK, _SOFT, _LINES = "#a8a8a3", "#1f1f1d", "#62615c", "#dcdbd6"

_DPI = 110

# In inches: the page, its margin, what stands above and below the stack, and rows of bars.
_WIDTH, _MARGIN, _HEAD, _STAGES, _STACK = 11.0, 0.4, 1.15, 0.2, 3.3
_BETWEEN, _ROW = 1.0, 0.27
_SCALE, _NAMES, _PANEL, _BARS = 0.4, 2.6, 5.0, 1.7


def check_matplotlib() -> None:
    """Raise `ConfigError` naming the extra where matplotlib is missing."""
    _figure_module()


def picture_of(run: Simulation, title: str, done: str, kind: str) -> bytes:
    """A picture of a run, as the bytes of a file of `kind`: "png", "svg" or "pdf"."""
    bands = bands_of(run)
    repeated, more = most_repeated(run)
    head = _HEAD + (_STAGES if run.stages else 0)
    below = head + _STACK + _BETWEEN
    height = below + _ROW * max(len(bands), len(repeated)) + _MARGIN
    figure = _figure_module().Figure(figsize=(_WIDTH, height))

    def axes_at(left: float, top: float, width: float, tall: float) -> Any:
        place = (left / _WIDTH, 1 - (top + tall) / height, width / _WIDTH, tall / height)
        return figure.add_axes(place)

    left = _MARGIN / _WIDTH
    _text(figure, left, 1 - 0.3 / height, title, size=14, weight="bold", va="top")
    _text(figure, left, 1 - 0.6 / height, subtitle(run), size=9.5, color=_SOFT, va="top")
    width = _WIDTH - 2 * _MARGIN - _SCALE - _NAMES
    _draw_stack(axes_at(_MARGIN + _SCALE, head, width, _STACK), run, bands, done)
    asked = _rows(axes_at, _MARGIN, below, [each.name for each in bands])
    _draw_asked(asked, run, bands, done)
    epochs = _rows(axes_at, _MARGIN + _PANEL + 0.4, below, [each.name for each in repeated])
    _draw_epochs(epochs, repeated, more, bands)
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):  # of letters that its font has not
        figure.savefig(file, format=kind, dpi=_DPI)
    return file.getvalue()


def _draw_stack(axes: Any, run: Simulation, bands: list[Band], done: str) -> None:
    edges, asked = edges_of(bands)
    low = np.zeros(edges.shape[1])
    for band, high in zip(bands, edges, strict=True):
        axes.stairs(
            100 * high, run.points, baseline=100 * low, fill=True, color=_colour(band), lw=0
        )
        axes.stairs(100 * high, run.points, baseline=None, color="white", lw=0.8)
        low = high
    for each in [] if asked is None else asked[:-1]:
        axes.stairs(100 * each, run.points, baseline=None, color=_INK, lw=1, ls=(0, (4, 3)))
    _plain(axes)
    axes.set(xlim=(0, run.steps), ylim=(0, 100))
    axes.set_xticks(steps := ticks(run.steps), [number_text(each) for each in steps])
    axes.set_yticks(range(0, 101, 25), [f"{each} %" for each in range(0, 101, 25)])
    axes.set_xlabel(STEP, color=_SOFT, size=9)
    heading = shares_title(run, done, asked=asked is not None)
    axes.set_title(heading, loc="left", size=10, color=_INK, pad=22 if run.stages else 8)
    _draw_names(axes, bands)
    for stage in run.stages:
        _draw_stage(axes, stage, run.steps)


def _draw_names(axes: Any, bands: list[Band]) -> None:
    """The names of the bands at their right ends, in their order from below."""
    edges, _ = edges_of(bands)
    ends = 100 * edges[:, -1]
    middles = ((ends + np.concatenate([[0], ends[:-1]])) / 2).tolist()
    for band, at in zip(bands, placed(middles, 6.5, 2, 98), strict=True):
        axes.text(
            1.012, at, "■", color=_colour(band), size=11, va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
        told = f"{short(band.name)}  {share_text(band.share)}"
        _text(axes, 1.034, at, told, transform=axes.get_yaxis_transform())


def _draw_stage(axes: Any, stage: StageSpan, steps: int) -> None:
    if stage.start:
        axes.axvline(stage.start, color=_INK, lw=1.2)
        axes.plot([stage.start] * 2, [100, 105], color=_INK, lw=1.2, clip_on=False)
    room = int((stage.stop - stage.start) / steps * 105)
    if room > 2:
        start = stage.start + steps * 0.004
        _text(axes, start, 103, short(stage.name, room), weight="bold")


def _draw_asked(axes: Any, run: Simulation, bands: list[Band], done: str) -> None:
    rows = range(len(bands))
    axes.barh(rows, [100 * each.share for each in bands], 0.66, color=list(map(_colour, bands)))
    for row, band in zip(rows, bands, strict=True):
        told = share_text(band.share)
        if band.asked_share is not None:
            at = [100 * band.asked_share] * 2
            axes.plot(
                at,
                [row - 0.45, row + 0.45],
                color=_INK,
                lw=1.8,
                clip_on=False,
                solid_capstyle="butt",
            )
            told += f", asked {share_text(band.asked_share)}"
        _text(axes, 100 * max(band.share, band.asked_share or 0), row, f"  {told}", size=8)
    _title(axes, asked_title(run, done, asked=any(each.asked_share is not None for each in bands)))


def _draw_epochs(axes: Any, sources: list[SourceForecast], more: str, bands: list[Band]) -> None:
    colours = {each.name: _colour(each) for each in bands}
    rows = range(len(sources))
    lengths = [each.epochs for each in sources]
    axes.barh(rows, lengths, 0.66, color=[colours.get(each.name, _OTHERS) for each in sources])
    for row, each in zip(rows, sources, strict=True):
        _text(axes, each.epochs, row, f"  {each.epochs:,.2f}", size=8)
    _title(axes, epochs_title(more))


def _rows(axes_at: Callable[..., Any], left: float, top: float, names: list[str]) -> Any:
    """Axes for horizontal bars, with names on their left."""
    axes = axes_at(left + _PANEL - 1.5 - _BARS, top, _BARS, _ROW * len(names))
    _plain(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xticks=[], yticks=[])
    for row, name in enumerate(names):
        _text(axes, -0.04, row, short(name, 26), ha="right", transform=axes.get_yaxis_transform())
    return axes


def _title(axes: Any, title: str) -> None:
    """A title where the names of the rows begin, and bars that fill their room."""
    axes.set_title(title, loc="left", size=10, color=_INK, x=-(_PANEL - 1.5 - _BARS) / _BARS)
    axes.set_xlim(0, max(axes.dataLim.x1, 1e-9))


def _plain(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_LINES)
    axes.tick_params(length=0, colors=_SOFT, labelsize=8.5)


def _text(on: Any, x: float, y: float, text: str, **options: Any) -> None:
    """Text as it is: a name may have dollars in it."""
    on.text(
        x, y, text, parse_math=False, **({"color": _INK, "size": 8.5, "va": "center"} | options)
    )


def _colour(band: Band) -> str:
    return _OTHERS if band.colour is None else LIGHT[band.colour]


def _figure_module() -> Any:
    return optional_module("matplotlib.figure", "energize[plot]", "drawing a picture")
