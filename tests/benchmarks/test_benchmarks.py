"""The loading benchmark, run for real on a few photographs."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.comparing import OWN, Comparison, Subject
from benchmarks.loading import main
from benchmarks.measuring import Case, Measurement
from benchmarks.photographs import SIDE, prepared_folder
from energize import WebdatasetSource

SAMPLES = 96


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("photographs")


def measured(wall, size=100, item="bytes"):
    return Measurement(
        startup=1.0, wall=wall, cpu=2 * wall, samples=10, bytes=10 * size, item=item, versions={}
    )


def comparison(own, other):
    case = Case(folder="-", image_decode=None, batch_size=None, workers=0, samples=10)
    return Comparison(case, {OWN: own, "peer": other})


def test_photographs_are_different_and_made_once(data):
    folder = prepared_folder(data, SAMPLES)
    before = {each: each.stat().st_mtime_ns for each in folder.rglob("*")}
    samples = list(WebdatasetSource(prepared_folder(data, SAMPLES)))
    assert {each: each.stat().st_mtime_ns for each in folder.rglob("*")} == before
    assert len({sample["jpg"] for sample in samples}) == len(samples) == SAMPLES
    assert 5_000 < sum(len(sample["jpg"]) for sample in samples) / SAMPLES < 30_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "item"),
    [
        ("raw, in process", "bytes"),
        ("torchrgb8, 2 workers", f"Tensor torch.uint8 (32, 3, {SIDE}, {SIDE})"),
    ],
)
def test_energize_and_webdataset_are_measured_at_the_same_work(data, tmp_path, capsys, case, item):
    report = tmp_path / "report.json"
    options = ["--samples", str(SAMPLES), "--runs", "1", "--only", case]
    main([*options, "--data", str(data), "--json", str(report)])
    cases = json.loads(report.read_text())["cases"]
    assert list(cases) == [case]
    assert list(cases[case]["measured"]) == [OWN, "webdataset"]
    for (run,) in cases[case]["measured"].values():
        assert run["item"] == item
        assert run["samples"] == SAMPLES
        assert run["wall"] > 0
        assert run["versions"]["torch"]
    assert "webdataset" in capsys.readouterr().out


def test_ratios_are_those_of_single_rounds():
    found = comparison([measured(1.0), measured(2.0)], [measured(3.0), measured(2.0)])
    assert found.ratios("peer") == [3.0, 1.0]
    assert found.rate(OWN) == (10 + 5) / 2
    assert found.cpu("peer") == pytest.approx(5 / 10 * 1e6)


@pytest.mark.parametrize("other", [measured(1.0, item="str"), measured(1.0, size=300)])
def test_unequal_work_is_not_compared(other):
    with pytest.raises(RuntimeError, match="did not do the same work"):
        comparison([measured(1.0)], [other]).check_same_work()


def test_a_failing_measurement_says_what_went_wrong(tmp_path):
    case = Case(
        folder=str(tmp_path / "gone"), image_decode=None, batch_size=None, workers=0, samples=10
    )
    with pytest.raises(RuntimeError, match="DatasetNotFoundError"):
        Subject(sys.executable, "benchmarks.subject_energize").measure(case)
