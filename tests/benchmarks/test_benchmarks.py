"""The benchmarks run for real on a little data, and compare only equal work."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ledger
from benchmarks.common.comparing import OWN, Comparison, Subject
from benchmarks.common.measuring import Case, Measurement
from benchmarks.large_photographs import large_folder
from benchmarks.large_photographs import main as read_large
from benchmarks.levelling import COSTS, slowest
from benchmarks.mixing import drawn_by
from benchmarks.packing import METHODS, captions, delivered, measured
from benchmarks.programs.levelling_samples import stored
from benchmarks.programs.levelling_training import trained
from benchmarks.token_shares import ASKED, mixed
from tests.support.peers import peer_python

ROOT = Path(__file__).parents[2]
NEAR, FAR = 6_400, 10**12


def loading(found):
    for case in found["cases"].values():
        assert list(case["measured"]) == [OWN, "webdataset"]
        for (run,) in case["measured"].values():
            assert (run["samples"], run["wall"] > 0) == (96, True)


def resuming(found):
    kinds = [(each["kind"], each["position"]) for each in found["resumptions"]]
    assert kinds == [
        (kind, at) for kind in ("stream", "folders") for at in (NEAR, 10**9)
    ]
    for each in found["resumptions"]:
        assert each["json_bytes"] < 2_000
        assert 0 < each["state_again"] < each["resumed"] < 1
        assert each["ratio"] < 5


def token_shares(found):
    for each in found:
        assert sum(each["shares"]) == pytest.approx(1)
        if each["unit"] == "samples":
            assert each["off"] > 0.3, "long texts have nearly all the tokens"
        else:
            assert each["shares"] == pytest.approx(list(ASKED.values()), abs=0.01)


def levelling(found):
    assert all(each["level"] <= each["plain"] for each in found["slowest"])
    assert all(0 < each["planning"] < each["loading"] for each in found["planned"])


def levelling_several(found):
    rows = {each["order"]: each for each in found}
    assert list(rows) == ["plain", "tokens", "sum", "several"]
    assert rows["several"]["patches"] < rows["tokens"]["patches"]
    assert rows["several"]["tokens"] < rows["sum"]["tokens"]


def mixing(found):
    assert {each["mixer"] for each in found["slots"]} >= {
        "block",
        "exact",
        "round_robin",
    }
    assert all(each["mean"] > 0 for each in found["slots"])


def packing(found):
    assert [each["method"] for each in found["packed"]] == [*METHODS] * 2
    assert all(0.5 < each["fill"] <= 1 for table in found.values() for each in table)


def planned_packs(found):
    fill = {(row["samples"], row["method"]): row["fill"] for row in found["packed"]}
    for samples in ("captions", "conversations", "documents"):
        assert fill[samples, "best fit"] <= 1
        assert fill[samples, "planned"] > fill[samples, "energon greedy"]
    assert all(row["planned"] < row["random"] for row in found["evenness"])
    assert 0 < found["resumed"][0]["resumed"] < 1


def packed_training(found):
    real = {row["way"]: row["real_tokens"] / row["all_tokens"] for row in found}
    assert list(real) == ["fixed", "budget", "streamed", "planned"]
    assert real["fixed"] < 0.8 < min(real["budget"], real["streamed"], real["planned"])
    assert all(row["cpu_seconds"] > 0 for row in found)


def scale(found):
    assert found["files opened"] == 4
    assert 60 < found["pickled, bytes a shard"] < 200
    assert found["look a column up, s"] > 0


def positive(found):
    assert all(min(ways.values()) > 0 for ways in found.values())


def decoding(found):
    for row in found.values():
        assert 0 < row["worst"] <= row["ratio"] <= row["best"]


RUNS = {
    "decoding --samples 64 --rounds 1 --only by#1/2 --data @": decoding,
    "loading --samples 96 --runs 1 --only raw,#in#process --data @": loading,
    "integrity --samples 512 --runs 1": positive,
    "levelling --ranks 2 4 --stored 3 --steps 0 --global-batches 2 --data @": levelling,
    "levelling_several --ranks 8 --global-batches 2": levelling_several,
    "mixing --sources 3 --slots 1024 --libraries webdataset": mixing,
    "packing --captions 300 --buffers 100 300": packing,
    "packed_training --samples 500 --rounds 1 --steps 3": packed_training,
    "planned_packs --samples 20000 --position 2000": planned_packs,
    "scale --shards 40 --samples 50": scale,
    f"resuming --kinds stream folders --sources 3 --workers 0 --positions {NEAR} {10**9} "
    "--rounds 3 --data @": resuming,
    "token_shares --texts 2000 --folder 300": token_shares,
}


LONG = ("resuming", "scale", "token_shares")


@pytest.mark.jobs
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for line in RUNS
        for name in line.split()[:1]
    ],
)
def test_it_runs(line, tmp_path, capsys):
    name, *options = line.split()
    options = [each.replace("@", str(tmp_path)).replace("#", " ") for each in options]
    report = tmp_path / "report.json"
    importlib.import_module(f"benchmarks.{name}").main(
        [*options, "--json", str(report)]
    )
    RUNS[line](json.loads(report.read_text()))
    assert capsys.readouterr().out


@pytest.mark.jobs
def test_the_ledger_is_measured_with_and_without(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "_ITEMS", dict.fromkeys(ledger.CASES, 20))
    out = tmp_path / "found.json"
    cases = ["--cases", "packs", "numbers", "--workers", "0"]
    ledger.main(["--runs", "2", *cases, "--json", str(out)])
    assert all(
        each["noted_us"] > 0 and each["ratio"] > 0
        for each in json.loads(out.read_text())
    )


def of(wall, size=100, item="bytes"):
    return Measurement(
        startup=1.0,
        wall=wall,
        cpu=2 * wall,
        samples=10,
        bytes=10 * size,
        item=item,
        versions={},
    )


def case(folder="-"):
    return Case(
        folder=folder, image_decode=None, batch_size=None, workers=0, samples=10
    )


def test_ratios_are_those_of_single_rounds_and_only_of_equal_work():
    found = Comparison(case(), {OWN: [of(1.0), of(2.0)], "peer": [of(3.0), of(2.0)]})
    assert found.ratios("peer") == [3.0, 1.0]
    assert found.rate(OWN) == (10 + 5) / 2
    for other in (of(1.0, item="str"), of(1.0, size=300)):
        with pytest.raises(RuntimeError, match="did not do the same work"):
            Comparison(case(), {OWN: [of(1.0)], "peer": [other]}).check_same_work()


@pytest.mark.jobs
def test_a_failing_measurement_says_what_went_wrong(tmp_path):
    with pytest.raises(RuntimeError, match="DatasetNotFoundError"):
        Subject(sys.executable, "benchmarks.programs.loading_energize").measure(
            case(str(tmp_path / "gone"))
        )
    with pytest.raises(
        RuntimeError, match=r"programs.mixing nothing 3 0 failed:[^$]*KeyError"
    ):
        drawn_by(sys.executable, "nothing", 3, [0])


@pytest.mark.jobs
def test_energize_starts_anywhere_and_a_library_that_replays_does_not():
    start, far = drawn_by(sys.executable, OWN, 3, [0, FAR])
    assert not far.replays
    assert far.first < 1
    start, near, far = drawn_by(sys.executable, "webdataset", 3, [0, 10_000, FAR])
    assert start.replays
    assert far.each is None
    assert far.first == pytest.approx(FAR * near.each / 1e6)


@pytest.mark.jobs
def test_a_batch_that_is_not_the_next_one_is_no_measurement(tmp_path):
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(
        "from benchmarks.programs.resuming import main\n"
        "from benchmarks.programs.resuming_energize import Energize\n"
        "class Forgetful(Energize):\n"
        "    def load(self, loader, state):\n"
        "        pass\n"
        "main(Forgetful)\n"
    )
    asked = {
        "kind": "indexed",
        "sources": 3,
        "workers": 0,
        "positions": [NEAR],
        "rounds": 3,
    }
    command = [sys.executable, str(forgetful), json.dumps(asked | {"seconds": 5})]
    given = {
        "cwd": ROOT,
        "env": {"PYTHONPATH": str(ROOT)},
        "capture_output": True,
        "text": True,
    }
    done = subprocess.run(command, **given, timeout=60, check=False)
    assert "energize: the first batch is" in done.stderr
    assert not done.stdout


@pytest.mark.jobs
def test_large_photographs_are_read_within_their_bounds(tmp_path):
    found = read_large(str(large_folder(tmp_path, "jpg", side=700)), "torchrgb8", 3)
    assert found["one"] == 3 * 700 * 700
    assert found["one"] < found["shared"] < 2**30


@pytest.mark.jobs
def test_what_the_pages_say_of_packs_and_levels():
    lengths = captions(10_000, 100, 0.7, 2048)
    found = {each.method: each for each in measured(lengths, 2048, 10_000)}
    assert found["energon greedy"].fill < 0.96
    assert all(
        found[each].fill >= 0.98 for each in ("first_fit", "best_fit", "balanced")
    )
    assert 0.95 < found["balanced"].cheapest < found["balanced"].dearest < 1.05
    for cost in COSTS:
        found = slowest(64, cost)
        assert found.level <= found.level_worst <= 1.05
        assert found.plain > 1.5


@pytest.mark.slow
def test_a_training_is_timed(tmp_path):
    steps = trained(stored(tmp_path, 6), 4)
    assert min(steps.plain, steps.level) > 0


@pytest.mark.slow
@pytest.mark.energon
def test_energon_is_measured_at_the_same_work():
    found = delivered(captions(300, 100, 0.7, 2048), 2048, 100, peer_python("energon"))
    assert found[-1].method == "energon greedy"
    assert abs(found[-1].packs - found[0].packs) <= 3
    shares = list(mixed(2000, 300, str(peer_python("energon"))))
    assert all(each.off > 0.3 for each in shares if each.library == "megatron.energon")
