"""A run as one HTML page: without scripts, fetching nothing, for light and dark screens."""

from __future__ import annotations

from html import escape

from energize.plots.bands import Band, bands_of, most_repeated
from energize.plots.scales import share_text
from energize.plots.svg import asked_bars, epoch_bars, stack_of
from energize.plots.words import asked_title, epochs_title, shares_title, subtitle
from energize.preview.simulating import Simulation

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


def _stages(run: Simulation) -> str:
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
