"""Pictures of runs, measured: bands are as wide as the shares, lines where they
belong."""

from __future__ import annotations

from html import unescape

import numpy as np
import pytest
from PIL import Image, ImageColor

from energize import BatchDataset, BlendDataset, ConcatDataset, ListSource, Schedule
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.extras.plots import COLOURS, bands_of, draw
from energize.report import simulate

NASTY = "<script>alert(1)</script>&$a_b$"


def source(count, name, **options):
    return ListSource(range(count), name=name, **options)


WEB, BOOKS, MATHS = source(900, "web"), source(50, "_books $x$"), source(300, NASTY)


def batches(*pairs, **options):
    return BatchDataset(BlendDataset(*pairs, **options), 12, list)


def staged():
    falling = Schedule([(0, 6), (6000, 2)], "linear")
    first, then = (
        batches((WEB, falling), (BOOKS, 2)),
        batches((WEB, 1), (BOOKS, 1), (MATHS, 2)),
    )
    stages = [
        Stage("start <b>", 0, 600, dataset=first),
        Stage("end", 600, 1000, dataset=then),
    ]
    return simulate(StagedDataset(StagePlan(stages)), 1000, intervals=100)


def many(count=40):
    sources = [(source(50 + i, f"folder {i}"), 100 / (1 + i)) for i in range(count)]
    return simulate(batches(sources), 1000, intervals=50)


def validation():
    return simulate(BatchDataset(ConcatDataset(WEB, BOOKS), 10, list), 95, intervals=50)


def tokens():
    few = source(900, "few", columns={"tokens": [10] * 900})
    lots = source(900, "lots", columns={"tokens": [30] * 900})
    return simulate(batches((few, 1), (lots, 1), unit="tokens"), 100, intervals=10)


def ended():
    return simulate(
        batches((WEB, 1), (BOOKS, 1), stop="all_exhausted"), 60, intervals=30
    )


RUNS = {f.__name__: f for f in (staged, many, validation, tokens, ended)}


def drawn(run, path):
    draw(run, path, title=f"mix {NASTY}")
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


def stack(pixels):
    """The largest coloured block of rows below the headings."""
    coloured = (pixels.max(axis=2) - pixels.min(axis=2) > 3) | (
        abs(pixels - 0xA7).max(axis=2) < 5
    )
    rows = np.flatnonzero(coloured[:, : pixels.shape[1] * 3 // 4].mean(axis=1) > 0.6)
    cuts = np.flatnonzero(np.diff(rows) > 6)
    rows = rows[: cuts[0] + 1] if len(cuts) else rows
    columns = np.flatnonzero(coloured[rows[0] : rows[-1]].mean(axis=0) > 0.6)
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


@pytest.mark.parametrize("name", RUNS)
def test_bands_are_as_wide_as_the_shares(name, tmp_path):
    run = RUNS[name]()
    found = stack(drawn(run, tmp_path / "run.png"))
    bands = bands_of(run)
    assert np.allclose(sum(band.shares for band in bands), 1)
    for at in (0.03, 0.5, 0.97):
        number = int(np.searchsorted(run.points, at * run.steps, side="right")) - 1
        column = found[:, int(at * found.shape[1])]
        for band in bands:
            alike = (
                abs(column - np.array(ImageColor.getrgb(band.colour))).max(axis=1) <= 8
            )
            assert alike.mean() == pytest.approx(band.shares[number], abs=0.03), (
                at,
                band.name,
            )


def test_a_page_is_whole_and_fetches_nothing(tmp_path):
    for name in ("staged", "tokens"):
        run = RUNS[name]()
        draw(run, str(tmp_path / "run.html"), title=f"mix {NASTY}", done="delivered")
        text = (tmp_path / "run.html").read_text()
        assert text.startswith("<!doctype html>")
        for tag in (
            "<script",
            "<link",
            "<img",
            "<iframe",
            "src=",
            "@import",
            "<?xml",
            "onload",
        ):
            assert tag not in text, (name, tag)
        shown = unescape(text)
        unit = "tokens" if run.spent is not None else "samples"
        for words in (f"mix {NASTY}", f"Share of the {unit} over the steps, delivered"):
            assert words in shown, name
        for each in run.stages:
            assert each.name in shown


def test_sources_that_are_too_many_or_too_thin_are_others():
    bands = bands_of(many())
    names = [f"folder {i}" for i in range(len(COLOURS))]
    assert [each.name for each in bands] == [*names, "32 others"]
    assert len({each.colour for each in bands}) == len(bands)
    assert sum(each.share for each in bands) == pytest.approx(1)
    assert sum(each.requested_share for each in bands) == pytest.approx(1)
    thin = simulate(
        batches((WEB, 1000), (BOOKS, 2), (MATHS, 1), (source(9, "none"), 0)), 500
    )
    assert [each.name for each in bands_of(thin)] == ["web", "2 others"]
    late = simulate(
        batches((WEB, 1), (BOOKS, Schedule([(0, 0), (5000, 9)]))), 500, intervals=50
    )
    assert [each.name for each in bands_of(late)] == ["web", "_books $x$"]
    assert [each.name for each in bands_of(many(9))][-1] == "folder 8"
    rising = [(source(50, f"folder {i}"), i + 1) for i in range(20)]
    largest = [f"folder {i}" for i in range(19, 11, -1)]
    assert [each.name for each in bands_of(simulate(batches(rising), 500))][
        :8
    ] == largest
