"""The stack and the bars of a run as SVG, to stand in a page: colours are those of its style."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise

from energize.arrays import FloatArray, Int64Array
from energize.plots.bands import Band, edges_of, placed, short
from energize.plots.scales import number_text, share_text, ticks
from energize.plots.words import STEP
from energize.preview.simulating import Simulation, SourceForecast

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
