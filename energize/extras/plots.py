"""Pictures of a simulated run, drawn by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.dataset import IndexedDataset
from energize.core.lazy import optional_module
from energize.data.files import path_of
from energize.data.writing import write_new
from energize.errors import ConfigError, nearest
from energize.report.efficiency import Efficiency
from energize.report.forecast import BATCHES, Simulation, SourceForecast, weighed_in

__all__ = ["check_plot", "draw", "intervals_for"]

_KINDS = (".png", ".svg", ".pdf", ".html")
_MOST = 400
_FEWEST = 12
_ITEMS_PER_POINT = 64
"""Intervals of a picture, and what each should hold: of fewer items it shows how they
round."""

COLOURS = (
    "#3b7dd8", "#e8962e", "#23967f", "#c95b94",
    "#7a5cc4", "#a3b02c", "#5bb8e0", "#b5533c",
)  # fmt: skip
"""Told apart by people who see fewer colours, as neighbours differ in lightness,
too."""
_REST_COLOUR = "#a8a8a3"
_INK = "#1f1f1d"
_SOFT = "#62615c"
_TINY = 0.004
"""A share that is thinner than a line in a stack."""
_ROWS = 13

_STYLE = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "energize",
} | {
    "font.size": 8.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": _SOFT,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


def intervals_for(dataset: IndexedDataset[Any], steps: int) -> int:
    """Return into how many intervals a run is cut for its picture.

    >>> from energize import BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource("a"), 3), (ListSource("b"), 1))
    >>> (
    ...     intervals_for(blend, 100),
    ...     intervals_for(blend, 6400),
    ...     intervals_for(blend, 10**9),
    ... )
    (12, 100, 400)
    """
    whole = weighed_in(dataset) == BATCHES or not dataset.indexed
    items = steps if whole else int(dataset.consumed(steps).sum())
    return max(_FEWEST, min(_MOST, items // _ITEMS_PER_POINT))


def check_plot(path: Path | str) -> None:
    """Raise `ConfigError` if a picture cannot be drawn to `path`, before there is
    one.
    """
    path = path_of(path)
    if path.suffix.lower() not in _KINDS:
        suffix = repr(path.suffix) if path.suffix else "no suffix"
        raise ConfigError(
            f"{path}: the file of a plot must be one of {', '.join(_KINDS)}, got "
            f"{suffix}{nearest(path.suffix, _KINDS)}"
        )
    optional_module("matplotlib", "energize[plot]", "drawing a picture")


def draw(
    run: Simulation,
    path: Path | str,
    *,
    title: str = "",
    done: str = "planned",
    planned: Efficiency | None = None,
    delivered: Efficiency | None = None,
) -> None:
    """Draw the planned or delivered shares of a run, and its efficiency.

    The plot shows the share of every source over the steps, stacked, with dashed lines
    at the requested shares and the names of stages; the shares over all steps beside
    the requested ones; and the sources that are repeated most often. The largest eight
    sources have a colour each. `intervals_for` returns the number of points a run
    needs. With an efficiency, another plot shows what is lost over the steps: empty
    parts of packs, padding, and waiting for the most expensive rank.

    Args:
        run: The simulated or delivered run.
        path: A PNG, SVG or PDF file, or an HTML page.
        title: Title of the plot.
        done: "planned" or "delivered", for labels.
        planned: Efficiency of the plan, drawn as lines.
        delivered: Efficiency of a report, drawn as dots.

    Raises:
        ConfigError: If the file cannot be written, and as `check_plot`.

    Example:
        >>> import tempfile
        >>> from energize import BlendDataset, ListSource
        >>> from energize.report import simulate
        >>> blend = BlendDataset(
        ...     (ListSource("ab", name="web"), 3), (ListSource("c", name="code"), 1)
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "mix.html"
        ...     draw(simulate(blend, 1000, intervals=200), file, title="mix")
        ...     file.read_text().startswith("<!doctype html>")
        True
    """
    check_plot(path)
    path = path_of(path)
    kind = path.suffix.lower().removeprefix(".")
    lost = [
        *(_Lost.of(planned, "planned", ".-") if planned else []),
        *(_Lost.of(delivered, "delivered", "o") if delivered else []),
    ]
    content = _picture(run, title, done, "svg" if kind == "html" else kind, lost)
    if kind == "html":
        heading = escape(title or "What a run takes").encode()
        drawing = content[content.index(b"<svg") :]
        content = (
            b'<!doctype html>\n<meta charset="utf-8">\n<title>%b</title>\n' % heading
            + drawing
        )
    write_new(path, content, ConfigError)


@dataclass(frozen=True, slots=True)
class Band:
    """A source, or the remaining sources together, in a stack.

    `shares` and `requested` are values from 0 to 1 at every point; NaN without a
    request. `share` and `requested_share` are means over all steps.
    """

    name: str
    colour: str
    shares: FloatArray
    requested: FloatArray
    share: float
    requested_share: float | None


def bands_of(run: Simulation) -> list[Band]:
    """Return the sources with the largest shares as bands, and one band for the rest.

    The rest are sources beyond the maximum and sources too thin to be visible. Sources
    that are neither read nor requested are left out.

    Example:
        >>> from energize import BlendDataset, ListSource
        >>> from energize.report import simulate
        >>> sources = [(ListSource("ab", name=f"s{i}"), 1) for i in range(20)]
        >>> bands = bands_of(simulate(BlendDataset(sources), 1000))
        >>> len(bands), bands[-1].name, round(bands[-1].share, 3)
        (9, '12 others', 0.6)
    """
    shares = run.shares()
    widest = np.fmax(shares, run.requested).max(axis=0)
    order = sorted(
        range(len(run.sources)), key=lambda number: -run.sources[number].share
    )
    read = [number for number in order if widest[number] > 0]
    shown = [number for number in read if widest[number] >= _TINY][: len(COLOURS)]
    groups = [[number] for number in shown]
    if rest := [number for number in read if number not in shown]:
        groups.append(rest)
    bands = []
    for group, colour in zip(
        groups, (*COLOURS[: len(shown)], _REST_COLOUR), strict=False
    ):
        bands.append(_band(run, shares, group, colour))
    return bands


def _band(run: Simulation, shares: FloatArray, group: list[int], colour: str) -> Band:
    """Return one band of the sources in `group`, given as indices."""
    sources = [run.sources[number] for number in group]
    requested = [source.requested for source in sources if source.requested is not None]
    return Band(
        name=sources[0].name if len(group) == 1 else f"{len(group):,} others",
        colour=colour,
        shares=shares[:, group].sum(axis=1),
        requested=run.requested[:, group].sum(axis=1),
        share=sum(source.share for source in sources),
        requested_share=sum(requested) if len(requested) == len(sources) else None,
    )


@dataclass(frozen=True, slots=True)
class _Lost:
    """The loss by a measure over the steps: percent, at the points of its parts."""

    label: str
    points: Sequence[int]
    percent: FloatArray
    style: str
    colour: str

    @classmethod
    def of(cls, efficiency: Efficiency, done: str, style: str) -> list[_Lost]:
        """Return the losses of all measures that are shares or ratios."""
        losses: list[_Lost] = []
        for measure in efficiency.measures:
            if measure.kind not in _LOSSES:
                continue
            name, lost_at = _LOSSES[measure.kind]
            of = f", {measure.of}" if measure.of else ""
            mean = _percent(float(lost_at(np.array(measure.mean))))
            label = f"{name}{of}, {done}  {mean}"
            values = 100 * lost_at(np.array(measure.values))
            colour = COLOURS[len(losses) % len(COLOURS)]
            losses.append(cls(label, efficiency.points, values, style, colour))
        return losses


_LOSSES: dict[str, tuple[str, Callable[[FloatArray], FloatArray]]] = {
    "fill": ("empty", lambda share: 1 - share),
    "padding": ("padding", lambda share: share),
    "dropped": ("too long", lambda share: share),
    "rank_cost": ("waiting", lambda ratio: 1 - 1 / ratio),
}
"""Names of losses, and the functions that turn measures into lost shares."""


def _draw_losses(axes: Any, run: Simulation, losses: Sequence[_Lost]) -> None:
    axes.set_title("Lost over the steps")
    for loss in losses:
        label = _short(loss.label, 60)
        axes.plot(loss.points, loss.percent, loss.style, color=loss.colour, label=label)
    axes.set(xlim=(0, run.steps), xlabel="step (a batch of any rank)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _picture(
    run: Simulation, title: str, done: str, kind: str, losses: Sequence[_Lost]
) -> bytes:
    """Return a picture of a run as the bytes of a file of a kind."""
    matplotlib = optional_module("matplotlib", "energize[plot]", "drawing a picture")
    module = optional_module("matplotlib.figure", "energize[plot]", "drawing a picture")
    bands = bands_of(run)
    repeated = sorted(run.sources, key=lambda source: -source.epochs)
    rows = max(len(bands), min(len(repeated), _ROWS))
    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings(action="ignore"):
        # It warns of letters that its font does not have.
        heights = [4.2, 0.6 + 0.27 * rows, *([2.4] if losses else [])]
        figure = module.Figure(figsize=(11, 0.8 + sum(heights)), layout="constrained")
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        heading = f"{title}\n{_subtitle(run)}" if title else _subtitle(run)
        figure.suptitle(heading, x=0.01, ha="left", size=12, wrap=True)
        _draw_stack(figure.add_subplot(grid[0, :]), run, bands, done)
        _draw_shares(figure.add_subplot(grid[1, 0]), run, bands, done)
        _draw_epochs(figure.add_subplot(grid[1, 1]), repeated, bands)
        if losses:
            _draw_losses(figure.add_subplot(grid[2, :]), run, losses)
        figure.savefig(
            file, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else {}
        )
    return file.getvalue()


def _draw_stack(axes: Any, run: Simulation, bands: list[Band], done: str) -> None:
    below = np.zeros(len(run.points) - 1)
    requested = np.zeros(len(run.points) - 1)
    for band in bands:
        high = below + 100 * band.shares
        label = f"{_short(band.name)}  {_percent(band.share)}"
        axes.stairs(
            high, run.points, baseline=below, fill=True, color=band.colour, label=label
        )
        axes.stairs(high, run.points, baseline=None, color="white", lw=0.8)
        below = high
    for band in bands[:-1]:
        requested = requested + 100 * band.requested
        axes.stairs(
            requested, run.points, baseline=None, color=_INK, lw=1, ls=(0, (4, 3))
        )
    dashed = "" if np.isnan(requested).any() else "; dashed: asked"
    pad = 20 if run.stages else 8
    axes.set_title(
        f"Share of the {_counted(run)} over the steps, {done}{dashed}", pad=pad
    )
    axes.set(xlim=(0, run.steps), ylim=(0, 100), xlabel="step (a batch of any rank)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), reverse=True)
    for stage in run.stages:
        if stage.start:
            axes.axvline(stage.start, color=_INK, lw=1.2)
        room = int((stage.stop - stage.start) / run.steps * 90)
        if room > 2:
            at = stage.start + run.steps * 0.004
            axes.text(at, 102, _short(stage.name, room), weight="bold")


def _draw_shares(axes: Any, run: Simulation, bands: list[Band], done: str) -> None:
    weighed = any(each.requested_share is not None for each in bands)
    axes.set_title(
        f"Of all {_counted(run)}, {done}{' (bar) and asked (line)' if weighed else ''}"
    )
    for row, band in enumerate(bands):
        reach = 100 * band.share
        label = _percent(band.share)
        if band.requested_share is not None:
            requested = 100 * band.requested_share
            reach = max(reach, requested)
            label = f"{label}, asked {_percent(band.requested_share)}"
            axes.vlines(requested, row - 0.45, row + 0.45, color=_INK, lw=1.8, zorder=3)
        axes.barh(row, 100 * band.share, 0.66, color=band.colour)
        axes.text(reach, row, f"  {label}", va="center")
    _name_rows(axes, [each.name for each in bands])


def _draw_epochs(axes: Any, repeated: list[SourceForecast], bands: list[Band]) -> None:
    rest = repeated[_ROWS:]
    most = (
        f" (and {len(rest):,} more, {rest[0].epochs:,.2f} or less each)" if rest else ""
    )
    axes.set_title(f"Epochs{most}")
    colours = {source.name: source.colour for source in bands}
    for row, source in enumerate(repeated[:_ROWS]):
        axes.barh(
            row, source.epochs, 0.66, color=colours.get(source.name, _REST_COLOUR)
        )
        axes.text(source.epochs, row, f"  {source.epochs:,.2f}", va="center")
    _name_rows(axes, [source.name for source in repeated[:_ROWS]])


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name) for name in names])
    axes.set(
        xticks=[], ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.7 * axes.dataLim.x1 or 1)
    )
    axes.spines["bottom"].set_visible(False)


def _subtitle(run: Simulation) -> str:
    weighed = any(source.requested is not None for source in run.sources)
    weights = f"; weights count {run.unit}" if weighed else ""
    return f"{run.steps:,} steps, {run.samples:,} samples{weights}"


def _counted(run: Simulation) -> str:
    return "samples" if run.spent is None else run.unit


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _short(name: str, longest: int = 30) -> str:
    """Return a name that fits, cut in the middle: the ends distinguish folders.

    >>> _short("a_folder/with/a/long/name/captions", 20)
    'a_folde…ame/captions'
    """
    if len(name) <= longest:
        return name
    head = (longest - 1) * 2 // 5
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"
