"""Pictures of runs, measured: bands are as wide as the shares, borders and lines where they
belong.
"""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ListSource,
    Schedule,
    Stage,
    StagedDataset,
    StagePlan,
)
from energize.extras.plots import (
    LIGHT,
    MOST_BANDS,
    bands_of,
    draw,
    intervals_for,
    number_text,
    placed,
    short,
    ticks,
)
from energize.preview import simulate

NASTY = "<script>alert(1)</script>&$a_b$"


def source(count, name, **options):
    return ListSource(range(count), name=name, **options)


WEB, BOOKS, MATHS = source(900, "web"), source(50, "_books $x$"), source(300, NASTY)


def batches(*pairs, **options):
    return BatchDataset(BlendDataset(*pairs, **options), 12, list)


def staged():
    glide = Schedule([(0, 6), (6000, 2)], "linear")
    first, then = batches((WEB, glide), (BOOKS, 2)), batches((WEB, 1), (BOOKS, 1), (MATHS, 2))
    stages = [Stage("start <b>", 0, 600, dataset=first), Stage("end", 600, 1000, dataset=then)]
    return simulate(StagedDataset(StagePlan(stages)), 1000, intervals=100)


def many(count=40):
    sources = [(source(50 + i, f"folder {i}"), 100 / (1 + i)) for i in range(count)]
    return simulate(batches(sources), 1000, intervals=50)


def validation():
    return simulate(BatchDataset(ConcatDataset(WEB, BOOKS), 10, list), 95, intervals=50)


def tokens():
    short_ones = source(900, "short", columns={"tokens": [10] * 900})
    long_ones = source(900, "long", columns={"tokens": [30] * 900})
    return simulate(batches((short_ones, 1), (long_ones, 1), unit="tokens"), 100, intervals=10)


RUNS = {"staged": staged, "many": many, "validation": validation, "tokens": tokens}


class Page(HTMLParser):
    """Tags with their attributes, and texts, of a page; open tags are closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def of_class(self, *names):
        return [each for _, each in self.tags if set(names) <= set(each.get("class", "").split())]


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    return RUNS[request.param]()


@pytest.fixture
def page(run, tmp_path):
    draw(run, tmp_path / "run.html", title=f"mix {NASTY}")
    return Page((tmp_path / "run.html").read_text())


def corners(path):
    return np.array(
        [[float(each) for each in pair.split()] for pair in re.split("[ML]", path[:-1])[1:]]
    )


def heights(points, at):
    """Of stairs drawn from left to right, in shares, at each x."""
    return np.array([points[points[:, 0] <= x + 0.06][-1, 1] for x in at])


def test_a_page_is_whole_and_fetches_nothing(page):
    assert page.open == []
    kinds = {tag for tag, _ in page.tags}
    assert not kinds & {"script", "link", "img", "iframe", "object", "use", "image"}
    assert not [each for _, each in page.tags if {"src", "href", "onload"} & set(each)]
    style = next(each for each in page.texts if "prefers-color-scheme: dark" in each)
    assert "url(" not in style
    assert "@import" not in style
    assert f"mix {NASTY}" in page.texts


def test_bands_on_a_page_are_as_wide_as_the_shares(run, page):
    bands = bands_of(run)
    drawn = page.of_class("band")
    assert len(drawn) == len(bands)
    steps = run.steps
    middles = 46 + (run.points[:-1] + np.diff(run.points) / 2) / steps * 650
    below = np.zeros(len(middles))
    for band, path in zip(bands, drawn, strict=True):
        points = corners(path["d"])
        turn = int(np.argmax(points[:, 0])) + 1
        high = (324 - heights(points[:turn], middles)) / 300
        assert np.allclose(high - below, band.shares, atol=1.5e-3)
        below = high
    assert np.allclose(below, 1, atol=1e-3)


def test_asked_shares_are_lines_on_a_page(run, page):
    lines = page.of_class("asked")
    bands = bands_of(run)
    if run.sources[0].asked is None:
        assert not lines
        return
    assert len(lines) == len(bands) - 1
    middles = 46 + (run.points[:-1] + np.diff(run.points) / 2) / run.steps * 650
    for number, line in enumerate(lines):
        high = (324 - heights(corners(line["d"] + " "), middles)) / 300
        asked = sum(each.asked for each in bands[: number + 1])
        assert np.allclose(high, asked, atol=1.5e-3)


def test_stages_have_borders_and_names_on_a_page(tmp_path):
    draw(staged(), tmp_path / "run.html")
    page = Page((tmp_path / "run.html").read_text())
    [border] = page.of_class("border")
    assert border["d"].startswith(f"M{46 + 0.6 * 650:.1f} ")
    assert "start <b>: steps 0 to 600" in page.texts
    assert page.texts.count("end") >= 2


def test_a_page_lists_all_sources(run, page):
    text = "".join(page.texts)
    for each in run.sources:
        assert each.name in text
        assert f"{each.drawn:,}" in text
    unit = "tokens" if run.spent is not None else "samples"
    assert f"Share of the {unit} over the steps, planned" in text


def test_bands_in_a_picture_are_as_wide_as_the_shares(run, tmp_path):
    draw(run, tmp_path / "run.png", title=f"mix {NASTY}")
    with Image.open(tmp_path / "run.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(np.int64)
    left, top, right, bottom = frame(pixels)
    colours = {None: (0xA8, 0xA8, 0xA3)} | {
        i: tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5)) for i, colour in enumerate(LIGHT)
    }
    bands = bands_of(run)
    for at in (0.03, 0.5, 0.97):
        number = int(np.searchsorted(run.points, at * run.steps, side="right")) - 1
        column = pixels[top:bottom, left + int(at * (right - left))]
        for band in bands:
            alike = (abs(column - colours[band.colour]).max(axis=1) <= 8).mean()
            assert alike == pytest.approx(band.shares[number], abs=0.03)


def frame(pixels):
    """The sides of the stack: the largest coloured block of rows below the headings."""
    coloured = (pixels.max(axis=2) - pixels.min(axis=2) > 3) | (abs(pixels - 0xA7).max(axis=2) < 5)
    rows = np.flatnonzero(coloured[:, : pixels.shape[1] * 2 // 3].mean(axis=1) > 0.6)
    cuts = np.flatnonzero(np.diff(rows) > 6)
    rows = rows[: cuts[0] + 1] if len(cuts) else rows
    columns = np.flatnonzero(coloured[rows[0] : rows[-1]].mean(axis=0) > 0.6)
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_other_kinds(kind, tmp_path):
    draw(staged(), tmp_path / f"run.{kind}")
    start = (tmp_path / f"run.{kind}").read_bytes()[:400]
    assert (
        start.startswith(b"%PDF")
        if kind == "pdf"
        else b"<svg" in start or b"<!DOCTYPE svg" in start
    )


def test_sources_that_are_too_many_or_too_thin_are_others():
    bands = bands_of(many())
    assert [each.name for each in bands] == [
        *(f"folder {i}" for i in range(MOST_BANDS)),
        "32 others",
    ]
    assert sum(each.share for each in bands) == pytest.approx(1)
    assert sum(each.asked_share for each in bands) == pytest.approx(1)
    thin = simulate(batches((WEB, 1000), (BOOKS, 2), (MATHS, 1), (source(9, "none"), 0)), 500)
    assert [(each.name, each.colour) for each in bands_of(thin)] == [("web", 0), ("2 others", None)]
    late = simulate(batches((WEB, 1), (BOOKS, Schedule([(0, 0), (5000, 9)]))), 500, intervals=50)
    assert [each.name for each in bands_of(late)] == ["web", "_books $x$"]
    nine = [each.name for each in bands_of(many(9))]
    assert nine[-1] == "folder 8"


def test_pictures_are_cut_into_as_many_intervals_as_have_something_to_show():
    samples = batches((WEB, 1), (BOOKS, 1))
    whole = BlendDataset((BatchDataset(WEB, 12, list), 1), (BatchDataset(BOOKS, 12, list), 1))
    assert intervals_for(samples, 640) == 120
    assert intervals_for(whole, 640) == 12
    assert intervals_for(whole, 10**6) == 400


@given(
    wanted=st.lists(st.floats(0, 300), max_size=9).map(sorted),
    gap=st.floats(1, 30),
)
def test_labels_do_not_overlap(wanted, gap):
    places = placed(wanted, gap, 8, 292)
    assert len(places) == len(wanted)
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(places))
    assert not places or places[-1] <= 292


@given(last=st.floats(1e-3, 1e15))
def test_ticks_are_few_and_reach_the_end(last):
    found = ticks(last)
    assert 3 <= len(found) <= 16
    assert found[-1] <= last * (1 + 1e-6)
    assert last - found[-1] < found[1] * (1 + 1e-6)
    assert all(len(number_text(each)) <= 11 for each in found)


@given(name=st.text(max_size=60), longest=st.integers(3, 40))
def test_names_are_cut_in_the_middle(name, longest):
    cut = short(name, longest)
    assert len(cut) == min(len(name), longest)
    assert cut == name or "…" in cut


def test_unescaped_names_are_read_as_they_are(tmp_path):
    draw(staged(), tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert "<script" not in text
    assert NASTY in unescape(text)
