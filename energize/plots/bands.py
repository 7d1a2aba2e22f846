"""What a picture of a run shows: its sources as bands of a stack, those too thin to see as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energize.arrays import FloatArray
from energize.preview.simulating import Simulation, SourceForecast

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
