"""Planned packs in stages and limits: resuming late counts no earlier windows."""

from __future__ import annotations

import json
import logging
from collections import Counter

import numpy as np
import pytest

from energize import BatchDataset, EpochizeDataset, LimitDataset, ShuffleDataset
from energize.core.config import unpacked
from energize.datasets.planned import PackDataset
from energize.experimental import Stage, StagedDataset, StagePlan
from tests.datasets.test_planned import (
    FAR,
    in_turn,
    loaders_of,
    mix,
    packs,
    plans_made,
    samples_of,
    saved,
)
from tests.support.loading import loader_of, take
from tests.support.states import resealed

WINDOW = 32


def stages(scale=1, repeated=False):
    """Packs of two mixes, a mix that continues, batches of packs, and the first mix."""
    last = LimitDataset(packs(), 13) if repeated else packs()
    return StagedDataset(
        StagePlan(
            [
                Stage("one", 0, 20 * scale, dataset=packs()),
                Stage("again", 20 * scale, 50 * scale, dataset=packs()),
                Stage("two", 50 * scale, 90 * scale, dataset=packs(mix(1, 1)), seed=3),
                Stage(
                    "batches",
                    90 * scale,
                    110 * scale,
                    dataset=BatchDataset(packs(mix(1, 2)), 2, list),
                ),
                Stage("last", 110 * scale, dataset=last),
            ]
        )
    )


def cursor_in(state):
    return unpacked(state["cursor"], "cursor")


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_resumes_in_any_stage_on_other_ranks(repeated, workers):
    dataset = stages(repeated=repeated)
    expected = dataset.at(range(170))
    for step in (5, 10, 26, 45, 50, 62):
        loaders = loaders_of(stages(repeated=repeated), 2)
        in_turn(loaders, step)
        state = saved(loaders[0])
        resumed = loaders_of(stages(repeated=repeated), 3, workers, state)
        items = in_turn(resumed, 12)
        assert items == expected[2 * step : 2 * step + 36]
        again = loaders_of(stages(repeated=repeated), 1, state=saved(resumed[0]))
        assert take(again[0], 4) == expected[2 * step + 36 :][:4]
        for loader in resumed:
            loader.close()


def far_state(dataset, item, ends):
    """A state in a late stage, all stages of which began with a window.

    Args:
        dataset: The dataset.
        item: The item.
        ends: The window and its first pack that each stage has reached.
    """
    loader = loader_of(dataset)
    take(loader, 1)
    state = saved(loader)
    cursor = cursor_in(state)
    cursor.pop("places", None)
    plan = dataset.plan
    stage = plan.index_of_item(item - 1)
    cursor |= {
        "position": item,
        "anchors": ends,
        "stage_idx": stage,
        "stage_name": plan.stages[stage].name,
    }
    return resealed(state, cursor=json.dumps(cursor))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_late_stage_plans_no_windows_of_earlier_ones(workers, monkeypatch):
    scale = FAR // 10
    ends = {
        "0": [scale // 3, 20 * scale],
        "1": [scale // 2, 50 * scale],
        "2": [scale // 4, 40 * scale],
        "3/0": [scale // 5, 20 * scale - 2],
    }
    item = 90 * scale + 10 * scale
    state = far_state(stages(scale), item, ends)
    made = plans_made(monkeypatch)
    loader = loader_of(stages(scale), workers)
    loader.load_state_dict(state)
    take(loader, 6)
    loader.set_weights({"a": 1, "b": 9}, blend="batches")
    items = take(loader, 12)
    state = saved(loader)
    following = take(loader, 6)
    assert len(made) < 60
    other = loader_of(stages(scale), workers)
    other.load_state_dict(state)
    assert take(other, 6) == following
    assert len(made) < 100
    loader.report()
    assert len(made) < 130
    counts = Counter(name for name, _ in samples_of(items[6:]))
    assert counts["b"] > counts["a"]
    loader.close()
    other.close()


def test_a_fresh_start_plans_no_windows_of_later_stages(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "energize")
    made = plans_made(monkeypatch)
    loader = loader_of(stages(FAR))
    take(loader, 5)
    saved(loader)
    loader.report()
    assert max(made) <= 1000 * WINDOW
    assert "data stages: 5" in caplog.text


def test_weights_change_within_a_stage_at_its_own_windows():
    dataset = stages()
    reading = loader_of(stages())
    items = take(reading, 60)
    step = reading.set_weights({"a": 1, "b": 50}, blend="two")
    state = saved(reading)
    items += take(reading, 30)
    assert items[:step] == dataset.at(range(step))
    assert items[step] != dataset.at([step])[0]
    child = dataset.children[2]
    window, before = child.window_of(60 - 50)
    assert step == 50 + child.window_end(window, before)
    [other] = loaders_of(stages(), 1, 2, state)
    assert take(other, 30) == items[60:]
    other.close()


# Limits


def test_a_limit_over_packs_resumes_at_once(monkeypatch):
    def limited():
        return EpochizeDataset(LimitDataset(packs(), 2 * FAR), 10)

    loader = loader_of(limited())
    take(loader, 1)
    state = saved(loader)
    assert set(cursor_in(state)["anchors"]) == {"0/0"}
    cursor = cursor_in(state)
    cursor.pop("places", None)
    cursor |= {"position": FAR + 3, "anchors": {"0/0": [FAR // 6, FAR]}, "step": 3}
    made = plans_made(monkeypatch)
    resumed = loader_of(limited())
    resumed.load_state_dict(resealed(state, cursor=json.dumps(cursor)))
    take(resumed, 9)
    saved(resumed)
    assert min(made) >= FAR // 6 * WINDOW
    assert len(made) < 30


@pytest.mark.parametrize("steps", [4, 19, 20, 21, 33, 47])
def test_epochs_of_a_limit_resume_on_other_ranks(steps):
    expected = LimitDataset(packs(), 40).at(range(200))
    loaders = loaders_of(EpochizeDataset(LimitDataset(packs(), 40), 1000), 2)
    assert in_turn(loaders, steps) == expected[: 2 * steps]
    state = saved(loaders[0])
    resumed = loaders_of(EpochizeDataset(LimitDataset(packs(), 40), 1000), 3, 2, state)
    assert in_turn(resumed, 20) == expected[2 * steps : 2 * steps + 60]
    for loader in resumed:
        loader.close()


# Reports


def test_a_report_locates_windows_not_packs(monkeypatch):
    loader = loader_of(packs(window=2048))
    take(loader, 400)
    loader.report()
    take(loader, 50)
    located = []

    def group_at(self, position, original=PackDataset.group_at):
        located.append(position)
        return original(self, position)

    monkeypatch.setattr(PackDataset, "group_at", group_at)
    report = loader.report()
    assert len(located) < 30
    counts = Counter(name for name, _ in samples_of(packs(window=2048).at(range(450))))
    for row in report.rows:
        if row.is_source:
            assert row.counts.samples == counts[row.name]
            assert row.shares.planned == pytest.approx(
                counts[row.name] / counts.total()
            )


def test_packs_of_any_positions_are_located_together():
    dataset = packs(ShuffleDataset(mix().inputs[0]), capacity=90)
    positions = np.random.default_rng(0).integers(0, 200, 300)
    refs = dataset.refs(positions)
    for row, position in enumerate(positions.tolist()):
        alone = dataset.refs([position])
        of_row = refs.item == row
        assert refs.index[of_row].tolist() == alone.index.tolist()
        assert refs.epoch[of_row].tolist() == alone.epoch.tolist()
