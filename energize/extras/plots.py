"""Round numbers along an axis, and how they are written."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.lazy import optional_module
from energize.data.writing import write_new
from energize.errors import ConfigError, nearest
from energize.preview.simulating import Simulation, SourceForecast, StageSpan
from energize.preview.units import BATCHES, weighed_in

__all__ = ["check_plot", "draw", "intervals_for"]


def ticks(last: float, about: int = 6) -> list[float]:
    """Round numbers from 0 to `last`, about so many.

    >>> ticks(1_500_000)
    [0.0, 250000.0, 500000.0, 750000.0, 1000000.0, 1250000.0, 1500000.0]
    >>> ticks(0.03, 3)
    [0.0, 0.01, 0.02, 0.03]
    """
    if last <= 0:
        return [0.0]
    rough = last / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((f * size for f in (1, 2, 2.5, 5, 10)), key=lambda each: abs(each - rough))
    return [round(i * step, 12) for i in range(int(last / step + 1e-9) + 1)]


def number_text(number: float) -> str:
    """A number as short as can be.

    >>> [number_text(each) for each in (0, 0.25, 800, 2500, 1_250_000, 3e12)]
    ['0', '0.25', '800', '2,500', '1.25M', '3T']
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:,.4g}" if number < 1000 else f"{number:,.0f}"


def share_text(share: float | None) -> str:
    """A share in per cent, a dash where there is none.

    >>> share_text(0.125), share_text(None)
    ('12.50 %', '-')
    """
    return "-" if share is None else f"{100 * share:.2f} %"


# What the pictures say.

STEP = "step (a batch of any rank)"


def subtitle(run: Simulation) -> str:
    """How long the run is, and what weights count in it, where there are any."""
    steps = f"{run.steps:,} step" if run.steps == 1 else f"{number_text(run.steps)} steps"
    weighed = any(each.asked is not None for each in run.sources)
    weights = f"; weights count {run.unit}" if weighed else ""
    return f"{steps}, {number_text(run.samples)} samples{weights}"


def shares_title(run: Simulation, done: str, *, asked: bool) -> str:
    """The title of the stacked shares."""
    dashes = "; dashed: asked" if asked else ""
    return f"Share of the {_counted(run)} over the steps, {done}{dashes}"


def asked_title(run: Simulation, done: str, *, asked: bool) -> str:
    """The title of the shares over all steps."""
    return f"Of all {_counted(run)}, {done}{' (bar) and asked (line)' if asked else ''}"


def _counted(run: Simulation) -> str:
    return "samples" if run.spent is None else run.unit


def epochs_title(more: str) -> str:
    """The title of the epochs of sources."""
    return f"Epochs{f' ({more})' if more else ''}"


# What a picture of a run shows: its sources as bands of a stack, those too thin to see as one.

MOST_BANDS = 8
"""As many colours as can be told apart, by people who see few of them too."""

_TINY = 0.004
"""A share that is thinner than a line in a stack."""

_ROWS = 12
_LONGEST = 30


@dataclass(frozen=True, slots=True)
class Band:
    """A source, or the others together, in a stack.

    `colour`: its number among the colours; None, grey, for the others. `shares` and `asked`: from
    point to point, 0 to 1; NaN where nothing is asked. `share` and `asked_share`: over all steps.
    """

    name: str
    colour: int | None
    shares: FloatArray
    asked: FloatArray
    share: float
    asked_share: float | None


def bands_of(run: Simulation) -> list[Band]:
    """The sources with the largest shares, each a band, and at the end one of all others:
    those that are too many, and those that are nowhere wide enough to be seen. Sources that are
    never read, nor asked for, are left out.

    >>> from energize import BlendDataset, ListSource
    >>> from energize.preview import simulate
    >>> sources = [(ListSource("ab", name=f"s{i}"), 1) for i in range(20)]
    >>> bands = bands_of(simulate(BlendDataset(sources), 1000))
    >>> len(bands), bands[-1].name, round(bands[-1].share, 3)
    (9, '12 others', 0.6)
    """
    shares = run.shares()
    widest = np.fmax(shares, run.asked).max(axis=0)
    order = sorted(range(len(run.sources)), key=lambda number: -run.sources[number].share)
    read = [number for number in order if widest[number] > 0]
    shown = [number for number in read if widest[number] >= _TINY][:MOST_BANDS]
    rest = [number for number in read if number not in shown]
    bands = [
        Band(
            run.sources[number].name,
            colour,
            shares[:, number],
            run.asked[:, number],
            run.sources[number].share,
            run.sources[number].asked,
        )
        for colour, number in enumerate(shown)
    ]
    return [*bands, _others(run, shares, rest)] if rest else bands


def _others(run: Simulation, shares: FloatArray, rest: list[int]) -> Band:
    sources = [run.sources[number] for number in rest]
    asked = [each.asked for each in sources if each.asked is not None]
    return Band(
        sources[0].name if len(rest) == 1 else f"{len(rest):,} others",
        None,
        shares[:, rest].sum(axis=1),
        run.asked[:, rest].sum(axis=1),
        sum(each.share for each in sources),
        sum(asked) if len(asked) == len(sources) else None,
    )


def edges_of(bands: list[Band]) -> tuple[FloatArray, FloatArray | None]:
    """The upper edges of the stacked bands (rows) from point to point (columns), and those that are
    asked for; None where the shares of some are not.
    """
    asked = np.cumsum([each.asked for each in bands], axis=0)
    return np.cumsum([each.shares for each in bands], axis=0), (
        None if np.isnan(asked).any() else asked
    )


def most_repeated(run: Simulation) -> tuple[list[SourceForecast], str]:
    """The sources that are read most often, and a word on the others."""
    order = sorted(run.sources, key=lambda each: -each.epochs)
    if len(order) <= _ROWS + 1:
        return order, ""
    rest = order[_ROWS:]
    most = f"{rest[0].epochs:,.2f}"
    return order[:_ROWS], f"and {len(rest):,} more, each read {most} times or less"


def short(name: str, longest: int = _LONGEST) -> str:
    """A name that fits, cut in its middle: ends tell folders apart.

    >>> short("a_folder/with/a/long/name/captions", 20)
    'a_folde…ame/captions'
    """
    if len(name) <= longest:
        return name
    head = (longest - 1) * 2 // 5
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def placed(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places near those `wanted`, which go up, at least a `gap` apart and if they fit within
    bounds: where labels go.

    >>> placed([0.0, 1.0, 50.0], 10, 0, 50)
    [0.0, 10.0, 50.0]
    """
    places: list[float] = []
    for each in wanted:
        places.append(max(each, low, places[-1] + gap if places else low))
    limit = high
    for number in reversed(range(len(places))):
        places[number] = min(places[number], limit)
        limit = places[number] - gap
    return places


# The stack and the bars of a run as SVG, to stand in a page: colours are those of its style.

# In units of the drawing, which are pixels where there is room for all of it.
_WIDTH, _LEFT, _TOP, _PLOT, _TALL, _BELOW = 960, 46, 24, 650, 300, 44
_LETTER = 7.2
"""The width of a letter of a stage's name, on average."""
_ROW, _NAMES, _BARS, _VALUES = 26, 172, 120, 172


def stack_of(run: Simulation, bands: list[Band], title: str) -> str:
    """The shares of the bands over the steps, one upon the other."""
    edges, asked = edges_of(bands)
    parts = [*_grid(run.steps)]
    for number, band in enumerate(bands):
        low = edges[number - 1] if number else 0 * edges[0]
        name = f"{band.name}, {share_text(band.share)}"
        parts.append(
            f'<path class="band {_colour(band)}" d="{_area(run.points, low, edges[number])}">'
            f"<title>{escape(name)}</title></path>"
        )
    for each in [] if asked is None else asked[:-1]:
        parts.append(f'<path class="asked" d="{_line(run.points, each)}"/>')
    parts += _stages(run)
    parts += _names(bands, edges)
    return _drawing(_WIDTH, _TOP + _TALL + _BELOW, title, parts)


def asked_bars(bands: list[Band], title: str) -> str:
    """The share of each band as a bar, with a line at the one that is asked for."""
    longest = max((max(each.share, each.asked_share or 0) for each in bands), default=0)
    parts: list[str] = []
    for row, band in enumerate(bands):
        told = share_text(band.share)
        if band.asked_share is not None:
            told += f", asked {share_text(band.asked_share)}"
        reach = _length(max(band.share, band.asked_share or 0), longest)
        parts += _row(row, band.name, _colour(band), _length(band.share, longest))
        parts.append(_value(row, reach, told))
        if band.asked_share is not None:
            x, y = _NAMES + _length(band.asked_share, longest), row * _ROW
            parts.append(f'<path class="mark" d="M{x:.1f} {y + 2}V{y + _ROW - 2}"/>')
    return _rows(len(bands), title, parts)


def epoch_bars(sources: Sequence[SourceForecast], bands: list[Band], title: str) -> str:
    """How often each source is passed through, as bars."""
    colours = {band.name: _colour(band) for band in bands}
    longest = max((each.epochs for each in sources), default=0)
    parts: list[str] = []
    for row, each in enumerate(sources):
        length = _length(each.epochs, longest)
        colour = colours.get(each.name, "others")
        parts += _row(row, each.name, colour, length)
        parts.append(_value(row, length, f"{each.epochs:,.2f}"))
    return _rows(len(sources), title, parts)


def _grid(steps: int) -> Iterator[str]:
    for share in (0, 25, 50, 75, 100):
        y = _y(share / 100)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}h{_PLOT}"/>'
        yield f'<text class="soft end" x="{_LEFT - 6}" y="{y + 4:.1f}">{share} %</text>'
    for step in ticks(steps):
        x, y = _x(step, steps), _TOP + _TALL + 17
        yield f'<text class="soft middle" x="{x:.1f}" y="{y}">{number_text(step)}</text>'
    x, y = _LEFT + _PLOT / 2, _TOP + _TALL + 36
    yield f'<text class="soft middle" x="{x}" y="{y}">{STEP}</text>'


def _area(points: Int64Array, low: FloatArray, high: FloatArray) -> str:
    back = _corners(points, low)[::-1]
    return f"{_path(_corners(points, high))}L{_path(back)[1:]}Z"


def _line(points: Int64Array, shares: FloatArray) -> str:
    return _path(_corners(points, shares))


def _corners(points: Int64Array, shares: FloatArray) -> list[tuple[float, float]]:
    """The corners of stairs, without those that lie on a level."""
    steps = int(points[-1])
    corners: list[tuple[float, float]] = []
    for start, stop, share in zip(points[:-1], points[1:], shares.tolist(), strict=True):
        y = round(_y(share), 1)
        if len(corners) > 1 and corners[-1][1] == y:
            corners.pop()
        else:
            corners.append((_x(int(start), steps), y))
        corners.append((_x(int(stop), steps), y))
    return corners


def _path(corners: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)


def _stages(run: Simulation) -> Iterator[str]:
    for stage in run.stages:
        x = _x(stage.start, run.steps)
        if stage.start:
            yield f'<path class="border" d="M{x:.1f} {_TOP - 18}V{_TOP + _TALL}"/>'
        room = int((_x(stage.stop, run.steps) - x) / _LETTER)
        if room > 2:
            told = f"{stage.name}: steps {stage.start:,} to {stage.stop:,}"
            yield _name("stage", x + 5, _TOP - 7, short(stage.name, room), told)


def _names(bands: list[Band], edges: FloatArray) -> Iterator[str]:
    """The names of the bands at their right ends, in the order in which these lie."""
    ends = [0.0, *edges[:, -1].tolist()]
    middles = [(low + high) / 2 * _TALL for low, high in pairwise(ends)]
    for band, at in zip(bands, placed(middles, 20, 8, _TALL - 8), strict=True):
        x, y = _LEFT + _PLOT + 12, _TOP + _TALL - at
        yield f'<rect class="{_colour(band)}" x="{x}" y="{y - 6:.1f}" width="12" height="12"/>'
        told = f"{short(band.name, 24)} {share_text(band.share)}"
        yield _name("", x + 18, y + 4, told, band.name)


def _name(kind: str, x: float, y: float, text: str, whole: str) -> str:
    """A text, and the whole of it for who points at it."""
    at = f'class="{kind}" x="{x:.1f}" y="{y:.1f}"'
    return f"<text {at}>{escape(text)}<title>{escape(whole)}</title></text>"


def _row(row: int, name: str, colour: str, length: float) -> Iterator[str]:
    """A name and its bar."""
    y = row * _ROW
    yield _name("end", _NAMES - 8, y + 17, short(name, 22), name)
    size = f'width="{length:.1f}" height="{_ROW - 8}"'
    yield f'<rect class="{colour}" x="{_NAMES}" y="{y + 4}" {size}/>'


def _value(row: int, reach: float, told: str) -> str:
    x, y = _NAMES + reach + 8, row * _ROW + 17
    return f'<text class="soft" x="{x:.1f}" y="{y}">{told}</text>'


def _rows(count: int, title: str, parts: Iterable[str]) -> str:
    return _drawing(_NAMES + _BARS + _VALUES, max(count, 1) * _ROW, title, parts)


def _drawing(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(title)}">\n' + "\n".join(parts) + "\n</svg>"
    )


def _length(value: float, longest: float) -> float:
    return value / longest * _BARS if longest else 0.0


def _x(step: float, steps: int) -> float:
    return _LEFT + step / steps * _PLOT


def _y(share: float) -> float:
    return _TOP + (1 - share) * _TALL


def _colour(band: Band) -> str:
    """The class that gives its colour."""
    return "others" if band.colour is None else f"c{band.colour}"


# A run as one HTML page: without scripts, fetching nothing, for light and dark screens.

LIGHT = (
    "#3b7dd8", "#e8962e", "#23967f", "#c95b94", "#7a5cc4", "#a3b02c", "#5bb8e0", "#b5533c",
)  # fmt: skip
"""Told apart by people who see fewer colours, as neighbours differ in lightness, too."""

_DARK = (
    "#5a9bee", "#d98c2f", "#2fa98f", "#d873a8", "#977de0", "#a9b53a", "#63bde2", "#cb6a52",
)  # fmt: skip

_STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1f1f1d; --soft: #5c5b56;
  --line: #dcdbd6; --others: #a8a8a3; %s }
@media (prefers-color-scheme: dark) { :root { --paper: #191918; --ink: #f0efeb;
  --soft: #b3b2ab; --line: #3c3b38; --others: #7d7c77; %s } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .2rem 0; }
.wide { overflow-x: auto; }
.beside { display: flex; flex-wrap: wrap; gap: 0 2.5rem; align-items: flex-start; }
svg { display: block; max-width: 100%%; height: auto; font-size: 13px; fill: var(--ink); }
.beside div { max-width: 29rem; }
.wide svg { min-width: 50rem; }
.band { stroke: var(--paper); stroke-width: 1; }
.asked, .mark, .border, .grid { fill: none; stroke: var(--ink); }
.asked { stroke-dasharray: 5 4; stroke-width: 1.2; }
.mark { stroke-width: 2.5; }
.grid { stroke: var(--line); }
.soft { fill: var(--soft); }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.stage { font-weight: 600; }
.others { fill: var(--others); background: var(--others); }
%s
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; min-width: 9rem;
  white-space: normal; overflow-wrap: anywhere; }
i { display: inline-block; width: .7em; height: .7em; margin-right: .5em; }"""

_MOST_ROWS = 1000


def page_of(run: Simulation, title: str, done: str) -> str:
    """The page, whole: its pictures, and a table of all sources for who cannot see them."""
    bands = bands_of(run)
    repeated, more = most_repeated(run)
    over_steps = shares_title(run, done, asked=not _unasked(bands))
    over_all = asked_title(run, done, asked=any(each.asked_share is not None for each in bands))
    heading = escape(title or "What a run takes")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
<style>
{_style()}
</style>
</head>
<body>
<h1>{heading}</h1>
<p>{escape(subtitle(run))}</p>
<h2>{over_steps}</h2>
<div class="wide">{stack_of(run, bands, over_steps)}</div>
<div class="beside">
<div><h2>{over_all}</h2>
{asked_bars(bands, over_all)}</div>
<div><h2>{epochs_title(more)}</h2>
{epoch_bars(repeated, bands, epochs_title(more))}</div>
</div>
{_stages(run)}<h2>All sources</h2>
<div class="wide">{_table(run, bands, done)}</div>
</body>
</html>
"""


def _unasked(bands: list[Band]) -> bool:
    return any(each.asked_share is None for each in bands)


def _style() -> str:
    named = [
        " ".join(f"--c{number}: {colour};" for number, colour in enumerate(colours))
        for colours in (LIGHT, _DARK)
    ]
    used = "\n".join(
        f".c{number} {{ fill: var(--c{number}); background: var(--c{number}); }}"
        for number in range(len(LIGHT))
    )
    return _STYLE % (*named, used)


def _page_stages(run: Simulation) -> str:
    if not run.stages:
        return ""
    rows = [
        f"<tr><td>{escape(each.name)}</td><td>{each.start:,}</td><td>{each.stop:,}</td></tr>"
        for each in run.stages
    ]
    head = "<tr><th>stage</th><th>from step</th><th>to before step</th></tr>"
    return f'<h2>Stages</h2>\n<div class="wide"><table>{head}\n{_joined(rows)}</table></div>\n'


def _table(run: Simulation, bands: list[Band], done: str) -> str:
    colours = {each.name: each.colour for each in bands}
    rows = []
    for each in run.sources[:_MOST_ROWS]:
        colour = colours.get(each.name)
        cells = (
            share_text(each.asked), share_text(each.share), f"{each.drawn:,}", f"{each.count:,}",
            f"{each.epochs:,.2f}", _repeats(each.repeats_at, exact=each.repeats_exact),
        )  # fmt: skip
        chip = f'<i class="{"others" if colour is None else f"c{colour}"}"></i>'
        numbers = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f"<tr><td>{chip}{escape(each.name)}</td>{numbers}</tr>")
    names = ("source", "asked", done, "drawn", "of", "epochs", "repeats at step")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    left = len(run.sources) - _MOST_ROWS
    more = f"\n<p>and {left:,} more</p>" if left > 0 else ""
    return f"<table><tr>{head}</tr>\n{_joined(rows)}</table>{more}"


def _repeats(step: int | None, *, exact: bool) -> str:
    if step is None:
        return "-" if exact else "unknown"
    return f"{step:,}" if exact else f"&le; {step:,}"


def _joined(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


# Pictures of a run by matplotlib: PNG, SVG and PDF.

KINDS = (".png", ".svg", ".pdf")

_OTHERS, _INK, _SOFT, _LINES = "#a8a8a3", "#1f1f1d", "#62615c", "#dcdbd6"

_DPI = 110

# In inches: the page, its margin, what stands above and below the stack, and rows of bars.
_PICTURE_WIDTH, _MARGIN, _HEAD, _STAGES, _STACK = 11.0, 0.4, 1.15, 0.2, 3.3
_BETWEEN, _PICTURE_ROW = 1.0, 0.27
_SCALE, _PICTURE_NAMES, _PANEL, _PICTURE_BARS = 0.4, 2.6, 5.0, 1.7


def check_matplotlib() -> None:
    """Raise `ConfigError` naming the extra where matplotlib is missing."""
    _figure_module()


def picture_of(run: Simulation, title: str, done: str, kind: str) -> bytes:
    """A picture of a run, as the bytes of a file of `kind`: "png", "svg" or "pdf"."""
    bands = bands_of(run)
    repeated, more = most_repeated(run)
    head = _HEAD + (_STAGES if run.stages else 0)
    below = head + _STACK + _BETWEEN
    height = below + _PICTURE_ROW * max(len(bands), len(repeated)) + _MARGIN
    figure = _figure_module().Figure(figsize=(_PICTURE_WIDTH, height))

    def axes_at(left: float, top: float, width: float, tall: float) -> Any:
        place = (
            left / _PICTURE_WIDTH,
            1 - (top + tall) / height,
            width / _PICTURE_WIDTH,
            tall / height,
        )
        return figure.add_axes(place)

    left = _MARGIN / _PICTURE_WIDTH
    _text(figure, left, 1 - 0.3 / height, title, size=14, weight="bold", va="top")
    _text(figure, left, 1 - 0.6 / height, subtitle(run), size=9.5, color=_SOFT, va="top")
    width = _PICTURE_WIDTH - 2 * _MARGIN - _SCALE - _PICTURE_NAMES
    _draw_stack(axes_at(_MARGIN + _SCALE, head, width, _STACK), run, bands, done)
    asked = _picture_rows(axes_at, _MARGIN, below, [each.name for each in bands])
    _draw_asked(asked, run, bands, done)
    epochs = _picture_rows(axes_at, _MARGIN + _PANEL + 0.4, below, [each.name for each in repeated])
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
            100 * high, run.points, baseline=100 * low, fill=True, color=_picture_colour(band), lw=0
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
            1.012, at, "■", color=_picture_colour(band), size=11, va="center",
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
    axes.barh(
        rows, [100 * each.share for each in bands], 0.66, color=list(map(_picture_colour, bands))
    )
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
    colours = {each.name: _picture_colour(each) for each in bands}
    rows = range(len(sources))
    lengths = [each.epochs for each in sources]
    axes.barh(rows, lengths, 0.66, color=[colours.get(each.name, _OTHERS) for each in sources])
    for row, each in zip(rows, sources, strict=True):
        _text(axes, each.epochs, row, f"  {each.epochs:,.2f}", size=8)
    _title(axes, epochs_title(more))


def _picture_rows(axes_at: Callable[..., Any], left: float, top: float, names: list[str]) -> Any:
    """Axes for horizontal bars, with names on their left."""
    axes = axes_at(
        left + _PANEL - 1.5 - _PICTURE_BARS, top, _PICTURE_BARS, _PICTURE_ROW * len(names)
    )
    _plain(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set(ylim=(len(names) - 0.5, -0.5), xticks=[], yticks=[])
    for row, name in enumerate(names):
        _text(axes, -0.04, row, short(name, 26), ha="right", transform=axes.get_yaxis_transform())
    return axes


def _title(axes: Any, title: str) -> None:
    """A title where the names of the rows begin, and bars that fill their room."""
    axes.set_title(
        title, loc="left", size=10, color=_INK, x=-(_PANEL - 1.5 - _PICTURE_BARS) / _PICTURE_BARS
    )
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


def _picture_colour(band: Band) -> str:
    return _OTHERS if band.colour is None else LIGHT[band.colour]


def _figure_module() -> Any:
    return optional_module("matplotlib.figure", "energize[plot]", "drawing a picture")


# From a simulated run to a file with its picture.

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
