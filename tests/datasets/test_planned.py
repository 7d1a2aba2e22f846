"""Packs and batches that are planned from columns."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    DataError,
    DefaultTaskEncoder,
    EncoderError,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    NotIndexedError,
    RepeatDataset,
    ShuffleDataset,
    SkipSample,
    StateError,
    StateMismatchError,
    get_train_dataset,
)
from energize.core.config import unpacked
from energize.datasets.planned import BudgetBatchDataset, PackDataset, PlannedDataset
from energize.errors import ColumnError, EmptyDatasetError, SubstitutionError
from energize.experimental import LevelDataset, Stage, StagedDataset, StagePlan
from energize.integrations.torch_data import as_torch_dataset
from tests.support.loading import loader_of, take, with_pid
from tests.support.states import resealed

WORDS = ("en", "de", None, "en")


def source(name, count, longest=40, seed=0):
    """Samples `(name, number)` with columns of lengths, words and grades."""
    rng = np.random.default_rng(seed)
    columns = {
        "tokens": rng.integers(1, longest + 1, count).tolist(),
        "images": (np.arange(count) % 4).tolist(),
        "language": [WORDS[n % len(WORDS)] for n in range(count)],
        "grade": [n % 3 for n in range(count)],
    }
    return ListSource([(name, n) for n in range(count)], name=name, columns=columns)


def mix(a=3, b=1, **options):
    parts = {
        "a": ShuffleDataset(source("a", 150)),
        "b": ShuffleDataset(source("b", 70, seed=1)),
    }
    return BlendDataset(parts, weights={"a": a, "b": b}, **options)


def packs(dataset=None, capacity=100, **options):
    settings = {"window": 32, **options}
    return PackDataset(
        mix() if dataset is None else dataset, "tokens", capacity, list, **settings
    )


def budgets(dataset=None, size=160, **options):
    settings = {"window": 32, **options}
    return BudgetBatchDataset(
        mix() if dataset is None else dataset, {"tokens": size}, list, **settings
    )


PLANNED = {
    "packs": packs,
    "packs by source": lambda: packs(homogeneous="source"),
    "packs by word": lambda: packs(homogeneous="language"),
    "packs of two lengths": lambda: PackDataset(
        mix(), ("tokens", "images"), (100, 5), list, window=32
    ),
    "budgets": budgets,
    "batches of packs": lambda: BatchDataset(packs(), 2, list),
    "level packs": lambda: LevelDataset(packs(), 2, global_batch_size=4, cost="tokens"),
}


def saved(loader):
    return json.loads(json.dumps(loader.state_dict()))


def in_turn(loaders, steps):
    """Items of some steps of all ranks, in the order of positions."""
    read = [take(loader, steps) for loader in loaders]
    return [item for step in zip(*read, strict=True) for item in step]


def loaders_of(dataset, ranks, workers=0, state=None, **options):
    loaders = [
        loader_of(dataset, workers, rank, ranks, **options) for rank in range(ranks)
    ]
    for loader in loaders if state is not None else ():
        loader.load_state_dict(state)
    return loaders


def plans_made(monkeypatch):
    """The first positions of the windows that are planned from now on."""
    made = []
    for owner in (PackDataset, BudgetBatchDataset):

        def plan(self, samples, original=owner.plan):
            made.append(int(samples.positions[0]))
            return original(self, samples)

        monkeypatch.setattr(owner, "plan", plan)
    return made


def first_of(dataset, windows):
    """Number of items of the first windows."""
    count = 0
    for window in range(windows):
        count = planned_in(dataset).window_end(window, count)
    return count


def planned_in(dataset):
    while not isinstance(dataset, PlannedDataset):
        dataset = dataset.inputs[0]
    return dataset


# What a window has


@given(
    count=st.integers(1, 60),
    window=st.integers(1, 25),
    lengths=st.sampled_from([("tokens",), ("tokens", "images")]),
    homogeneous=st.sampled_from([None, "source", "language", "grade"]),
    shuffled=st.booleans(),
)
def test_packs_keep_capacities_and_have_every_sample_once(
    count, window, lengths, homogeneous, shuffled
):
    parts = [source("a", count), source("b", 9, seed=1)]
    samples = BlendDataset(*((part, 1) for part in parts), stop="all_exhausted")
    if shuffled:
        samples = ShuffleDataset(samples)
    capacities = (60, 5)[: len(lengths)]
    dataset = PackDataset(
        samples, lengths, capacities, list, window=window, homogeneous=homogeneous
    )
    columns = {part.name: part.column for part in parts}
    for epoch in (0, 1, 5):
        items = dataset.at(np.arange(dataset.size) + epoch * dataset.size)
        assert sorted(chain.from_iterable(items)) == sorted(samples)
        for pack in items:
            for length, capacity in zip(lengths, capacities, strict=True):
                values = [int(columns[name](length).values[n]) for name, n in pack]
                assert sum(values) <= capacity
            assert len({alike(homogeneous, name, n) for name, n in pack}) == 1


def alike(homogeneous, name, number):
    return {
        None: "",
        "source": name,
        "language": WORDS[number % len(WORDS)],
        "grade": number % 3,
    }[homogeneous]


@pytest.mark.parametrize("name", PLANNED)
def test_a_window_has_its_samples_and_is_planned_alike_everywhere(name):
    dataset = PLANNED[name]()
    if name == "level packs":
        return
    end = first_of(dataset, 4)
    items = range(end // 2 if name == "batches of packs" else end)
    members = Counter(samples_of(dataset.at(items)))
    window = Counter(mix().at(range(128)))
    if end % 2 and name == "batches of packs":
        assert members < window
    else:
        assert members == window
    assert pickle.loads(pickle.dumps(dataset)).at(items) == dataset.at(items)


def samples_of(items):
    for item in items:
        if isinstance(item, tuple):
            yield item
        else:
            yield from samples_of(item)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    keep_order=st.booleans(),
)
@settings(deadline=None)
def test_batches_keep_their_budget(lengths, keep_order):
    samples = ListSource(range(len(lengths)), columns={"tokens": lengths})
    dataset = BudgetBatchDataset(
        samples, {"tokens": 60}, list, window=15, keep_order=keep_order
    )
    batches = list(dataset)
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    assert all(max(lengths[n] for n in batch) * len(batch) <= 60 for batch in batches)
    if keep_order:
        assert list(chain.from_iterable(batches)) == list(range(len(lengths)))


@pytest.mark.parametrize(
    "samples", [mix(), source("a", 50), RepeatDataset(ShuffleDataset(source("a", 50)))]
)
def test_a_sample_finds_its_batch(samples):
    for dataset in (budgets(samples), packs(samples)):
        for position in (*range(40), 90):
            members = dataset.route(np.array([position])).position.tolist()
            assert {dataset.batch_of(member) for member in members} == {position}


def test_shares_hold_in_every_window():
    dataset = packs(window=64)
    end = first_of(dataset, 3)
    assert dataset.consumed(end).tolist() == [144, 48]


# The same stream everywhere


@pytest.mark.parametrize("name", PLANNED)
def test_the_stream_is_the_same_on_any_ranks_and_workers(name):
    dataset = PLANNED[name]()
    expected = dataset.at(range(60))
    for ranks, workers in ((1, 0), (2, 0), (3, 0), (1, 2)):
        loaders = loaders_of(dataset, ranks, workers)
        assert in_turn(loaders, 60 // ranks) == expected, (ranks, workers)
        for loader in loaders:
            loader.close()


@given(
    name=st.sampled_from(sorted(PLANNED)),
    steps=st.integers(0, 40),
    ranks=st.sampled_from([1, 2, 3]),
    others=st.sampled_from([1, 2, 3, 6]),
)
def test_a_run_resumes_at_any_step_on_other_ranks(name, steps, ranks, others):
    dataset = PLANNED[name]()
    loaders = loaders_of(dataset, ranks)
    if steps:
        in_turn(loaders, steps)
    done = steps * ranks
    resumed = loaders_of(PLANNED[name](), others, state=saved(loaders[0]))
    expected = dataset.at(range(done, done + 24))
    assert in_turn(resumed, 24 // others) == expected
    again = loaders_of(dataset, 1, state=saved(resumed[0]))
    assert again[0].state_dict()["cursor"] == resumed[0].state_dict()["cursor"]


@pytest.mark.parametrize(
    ("method", "workers"),
    [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.jobs)],
)
def test_workers_of_any_kind_resume(method, workers):
    dataset = packs()
    [loader] = loaders_of(dataset, 1)
    take(loader, 30)
    options = {"state": saved(loader), "multiprocessing_context": method}
    [other] = loaders_of(dataset, 1, workers, **options)
    assert take(other, 30) == dataset.at(range(30, 60))
    other.close()


# Anchors


FAR = 10**7


def far_state(dataset, item=3):
    """A state some items after the start of a window that begins with item `FAR`."""
    loader = loader_of(dataset)
    take(loader, 1)
    cursor = unpacked(saved(loader)["cursor"], "cursor")
    cursor.pop("places")
    cursor |= {"position": FAR + item, "anchors": {"": [FAR // 6, FAR]}}
    return resealed(saved(loader), cursor=json.dumps(cursor))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_far_position_plans_no_earlier_windows(workers, monkeypatch):
    dataset = packs()
    state = far_state(dataset)
    made = plans_made(monkeypatch)
    loader = loader_of(packs(), workers)
    loader.load_state_dict(state)
    items = take(loader, 9)
    state = saved(loader)
    loader.set_weights({"a": 1, "b": 1})
    items += take(loader, 9)
    state = saved(loader)
    assert min(made) >= FAR // 6 * 32
    assert len(made) < 30
    loader.close()
    other = loader_of(packs(), workers)
    other.load_state_dict(state)
    following = take(other, 5)
    assert min(made) >= FAR // 6 * 32
    assert following == take(loader, 5)
    loader.close()
    other.close()


def test_a_worker_that_is_replaced_plans_no_earlier_windows(tmp_path, monkeypatch):
    log = tmp_path / "windows"

    def plan(self, samples, original=PackDataset.plan):
        with log.open("a") as file:
            file.write(f"{os.getpid()} {samples.positions[0] // 32}\n")
        return original(self, samples)

    monkeypatch.setattr(PackDataset, "plan", plan)
    dataset = MapDataset(packs(), with_pid)
    loader = loader_of(dataset, 1, prefetch_factor=2, multiprocessing_context="fork")
    first = take(loader, 120)
    loader.set_weights({"a": 1, "b": 1})
    first = take(loader, 60)
    os.kill(first[-1][0], signal.SIGKILL)
    rest = take(loader, 60)
    assert rest[-1][0] != first[-1][0]
    expected = loader.dataset.inputs[0].at(range(180, 240))
    assert [pack for _, pack in rest] == expected
    loader.close()
    planned = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    started, _ = loader.dataset.inputs[0].window_of(170)
    assert min(window for pid, window in planned if pid == rest[-1][0]) >= started


def test_anchors_are_pickled_and_dropped_by_other_parameters(monkeypatch):
    dataset = packs()
    end = first_of(dataset, 70)
    dataset.at([end])
    copied = pickle.loads(pickle.dumps(dataset))
    made = plans_made(monkeypatch)
    assert copied.at([end]) == dataset.at([end])
    assert made == [70 * 32]
    other = dataset.replace(capacities=(50,))
    assert other.window_of(end) == packs(capacity=50).window_of(end) != (70, end)


def test_damaged_and_foreign_anchors_are_errors():
    loader = loader_of(packs())
    take(loader, 40)
    state = saved(loader)
    cursor = unpacked(state["cursor"], "cursor")
    [window, items] = cursor["anchors"][""]
    bad_anchors = [
        None,
        [],
        {},
        {"0": [window, items]},
        {"": [window]},
        {"": [window, items, 1]},
        {"": [window, True]},
        {"": [window, -1]},
        {"": [window, float(items)]},
        {"": "3"},
        {"": [window + 1, items]},
        {"": [window - 1, items]},
        {"": [window, items + 30]},
        {"": [window, items - 30]},
        {"": [2**61, items]},
    ]
    for anchors in bad_anchors:
        bad = resealed(state, cursor=json.dumps(cursor | {"anchors": anchors}))
        fresh = loader_of(packs())
        with pytest.raises(StateError):
            fresh.load_state_dict(bad)
        assert take(fresh, 3) == packs().at(range(3))
    cursor.pop("anchors")
    with pytest.raises(StateError, match="no 'anchors'"):
        loader_of(packs()).load_state_dict(resealed(state, cursor=json.dumps(cursor)))
    with pytest.raises(StateMismatchError, match="capacities"):
        loader_of(packs(capacity=90)).load_state_dict(state)


def test_a_dataset_is_not_changed_by_a_state_that_is_loaded():
    dataset = packs()
    state = far_state(packs())
    loader = loader_of(dataset)
    loader.load_state_dict(state)
    take(loader, 2)
    assert dataset.at(range(20)) == packs().at(range(20))
    assert loader_of(dataset).state_dict() == loader_of(packs()).state_dict()


# Weights that change


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("later", [False, True])
def test_weights_change_with_the_next_window(name, later, caplog):
    caplog.set_level(logging.INFO, "energize")
    dataset = PLANNED[name]()
    whole = []
    for ranks in (1, 3):
        loaders = loaders_of(PLANNED[name](), ranks)
        items = in_turn(loaders, 6 // ranks)
        change = {"at_step": 24 // ranks} if later else {}
        if not later:
            items += in_turn(loaders, 18 // ranks)
        steps = {loader.set_weights({"a": 1, "b": 9}, **change) for loader in loaders}
        state = saved(loaders[0])
        done = len(items)
        items += in_turn(loaders, (90 - done) // ranks)
        whole.append(items)
        resumed = loaders_of(PLANNED[name](), 1, state=state)
        assert take(resumed[0], 90 - done) == items[done:]
        [step] = steps
        changed = loaders[0].dataset
        expected = changing_item(dataset, changed)
        assert step == expected // ranks
        assert f"change from step {step} on" in caplog.text
    assert whole[0] == whole[1]
    assert whole[0][:24] == dataset.at(range(24))
    members = Counter(name for name, _ in samples_of(whole[0][expected:]))
    assert members["a"] / members.total() == pytest.approx(0.1, abs=0.04)


def changing_item(before, after):
    """The first item that a change of weights may have changed, by its samples."""
    window = next(
        window
        for window in range(60)
        if samples_in(before, window) != samples_in(after, window)
    )
    count = first_of(before, window)
    if isinstance(before, LevelDataset):
        return count // 4 * 4
    return count // 2 if isinstance(before, BatchDataset) else count


def samples_in(dataset, window):
    child = planned_in(dataset).inputs[0]
    return child.at(np.arange(window * 32, (window + 1) * 32))


# Other nodes above and below


def test_a_stage_that_ends_inside_a_window_leaves_its_samples_out():
    stages = [
        Stage("one", 0, 20, dataset=packs(mix(3, 1))),
        Stage("two", 20, 60, dataset=packs(mix(1, 1))),
    ]
    dataset = StagedDataset(StagePlan(stages))
    window, before = packs().window_of(20)
    assert before < 20  # the stage ends inside a window
    items = dataset.at(range(60))
    assert items[:20] == packs().at(range(20))
    started = (window + 1) * 32
    for name, share in (("a", 3), ("b", 1)):
        first = started * share // 4
        inner = mix().inputs["ab".index(name)]
        expected = Counter(inner.at(range(first, first + 16)))
        members = [item for item in samples_of(items[20:]) if item[0] == name]
        assert not expected - Counter(members)
    taken = Counter(name for name, _ in samples_of(items))
    assert dataset.consumed(60).tolist() == [taken["a"], taken["b"]]
    for ranks in (1, 2):
        loaders = loaders_of(dataset, ranks)
        assert in_turn(loaders, 24 // ranks) == items[:24]
        [resumed] = loaders_of(dataset, 1, state=saved(loaders[0]))
        assert take(resumed, 36) == items[24:]


def test_limits_and_loops_cut_anywhere():
    dataset = packs()
    limited = LimitDataset(dataset, 11)
    assert list(limited) == dataset.at(range(11))
    assert take(loader_of(limited), 22) == dataset.at(range(11)) * 2
    loops = loader_of(EpochizeDataset(dataset, 5))
    assert [*loops, *loops, *loops] == dataset.at(range(15))


def test_epochs_of_a_finite_dataset_have_the_same_number_of_packs(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level(logging.INFO, "energize")
    for samples in (source("a", 70), ShuffleDataset(source("a", 70))):
        dataset = packs(samples)
        epochs = [list(loader) for loader in [loader_of(dataset)] for _ in range(3)]
        assert len({len(epoch) for epoch in epochs}) == 1
        for epoch in epochs:
            assert sorted(samples_of(epoch)) == sorted(samples)
        for n in (0, 1, dataset.size, 2 * dataset.size + 3):
            counted = len(dataset.refs(np.arange(n)))
            assert dataset.consumed(n).tolist() == [counted]
        loader = loader_of(dataset, rank=1, ranks=3)
        steps = len(list(loader))
        assert steps == len(list(loader_of(dataset, 2, rank=0, ranks=3)))
    assert "every epoch has the groups of the first one" in caplog.text


def test_passes_over_a_repeated_dataset_are_planned_one_after_another():
    dataset = packs(RepeatDataset(ShuffleDataset(source("a", 70))))
    end = first_of(dataset, 70)  # windows of 32: 32 passes
    assert set(Counter(samples_of(dataset.at(range(end)))).values()) == {32}


def test_packs_are_mixed_like_samples():
    parts = {"packs": packs(), "budgets": budgets(window=20)}
    blend = BlendDataset(parts, weights={"packs": 2, "budgets": 1})
    for ranks in (1, 2):
        loaders = loaders_of(blend, ranks)
        assert in_turn(loaders, 30 // ranks) == blend.at(range(30))
        [resumed] = loaders_of(blend, 1, 2, saved(loaders[0]))
        assert take(resumed, 30) == blend.at(range(30, 60))
        resumed.close()


# An edited mix


@pytest.mark.parametrize("steps", [1, 5, 17, 40])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_edited_mix_continues_with_a_new_window(steps, wrapped):
    def dataset(parts):
        inputs = {name: ShuffleDataset(source(name, 3000)) for name in parts}
        inner = packs(
            BlendDataset(inputs, weights=parts), capacity=100 + 20 * len(parts)
        )
        return BatchDataset(inner, 2, list) if wrapped else inner

    loader = loader_of(dataset({"a": 3, "b": 1}))
    read = take(loader, steps)
    window, before = planned_in(loader.dataset).window_of(steps * (1 + wrapped))
    started = 32 * (window + (before < steps * (1 + wrapped)))
    edited = dataset({"a": 1, "b": 1, "c": 2})
    other = loader_of(edited)
    other.load_state_dict(saved(loader), on_mismatch="remap")
    [two] = loaders_of(dataset({"a": 1, "b": 1, "c": 2}), 1, 2)
    two.load_state_dict(saved(loader), on_mismatch="remap")
    following = take(other, 30)
    assert following == take(two, 30)
    two.close()
    counts = Counter(name for name, _ in samples_of(following))
    assert counts["c"] / counts.total() == pytest.approx(0.5, abs=0.05)
    for name, share in (("a", 0.75), ("b", 0.25), ("c", 0)):
        first = round(started * share)
        expected = ShuffleDataset(source(name, 3000)).at(range(first, first + 8))
        assert set(expected) <= set(samples_of(following))
    assert not {*samples_of(read)} & {*samples_of(following)}
    resumed = loader_of(edited)
    resumed.load_state_dict(saved(other), on_mismatch="remap")
    assert take(resumed, 8) == take(other, 8)
    assert edited.at(range(9)) == dataset({"a": 1, "b": 1, "c": 2}).at(range(9))


# Samples that fail, are skipped, or are longer than planned


def skipping(sample):
    if sample[1] % 7 == 0:
        raise SkipSample
    if sample[1] % 11 == 0:
        raise DataError(f"{sample} is damaged")
    return sample


def test_failed_and_skipped_samples_are_left_out_of_packs_on_any_ranks():
    dataset = packs(MapDataset(mix(), skipping))
    whole = []
    for ranks in (1, 2):
        loaders = loaders_of(dataset, ranks, on_error="skip")
        whole.append(in_turn(loaders, 24 // ranks))
    assert whole[0] == whole[1]
    assert all(sum(map(tokens_of, pack)) <= 100 for pack in whole[0])
    assert all(n % 7 and n % 11 for _, n in samples_of(whole[0]))


def test_dropped_samples_count_at_the_end_of_their_window():
    dataset = packs(capacity=30, too_long="drop")
    end = first_of(dataset, 2)
    samples = mix().at(range(64))
    long = [sample for sample in samples if tokens_of(sample) > 30]
    assert long
    delivered = list(samples_of(dataset.at(range(end))))
    assert Counter(delivered) == Counter(samples) - Counter(long)
    assert dataset.consumed(end).sum() == 64
    loader = loader_of(LimitDataset(dataset, end))
    take(loader, end)
    total = loader.report().total.counts
    assert total.samples == len(delivered)
    assert total.skipped == len(long)


def test_windows_without_packs_are_counted_too():
    dataset = PackDataset(
        column([50, 60, 3, 70, 80, 90, 4, 5]),
        "tokens",
        10,
        list,
        window=2,
        too_long="drop",
    )
    loader = loader_of(dataset)
    assert list(map(sorted, loader)) == [[2], [6, 7]]
    total = loader.report().total.counts
    assert (total.samples, total.skipped) == (3, 5)
    assert dataset.consumed(2).tolist() == [8]


def tokens_of(sample):
    name, number = sample
    data = {"a": source("a", 150), "b": source("b", 70, seed=1)}[name]
    return int(data.column("tokens").values[number])


def test_a_longer_sample_is_an_error_that_counts_them_by_source():
    dataset = packs(capacity=30)
    counts = [
        sum(source(*part).column("tokens").values > 30)
        for part in (("a", 150), ("b", 70, 40, 1))
    ]
    text = rf"longer samples by source: a: {counts[0]} of 150, b: {counts[1]} of 70"
    with pytest.raises(ColumnError, match=text):
        dataset.at([0])


@pytest.mark.parametrize("factor", [0.5, 2])
def test_lengths_that_differ_from_their_column_are_warned_of(
    factor, caplog, monkeypatch
):
    monkeypatch.setattr("energize.core.ignored._logged", set())

    def measured(sample):
        return round(tokens_of(sample) * factor)

    loader = loader_of(LimitDataset(packs(measure=measured), 12))
    items = take(loader, 12)
    assert all(sum(map(measured, pack)) <= 100 for pack in items)
    left_out = len(list(samples_of(packs().at(range(12))))) - len(
        list(samples_of(items))
    )
    assert bool(left_out) == (factor > 1)
    total = loader.report().total.counts
    assert total.skipped == left_out
    [warning] = [line for line in caplog.messages if "by the column tokens" in line]
    assert "energize prepare --column" in warning


def test_an_evaluation_marks_the_rows_of_skipped_samples():
    samples = source("a", 150)
    dataset = packs(MapDataset(samples, skipping)).with_role("eval")
    loader = loader_of(dataset, on_error="skip")
    real = [
        sample
        for pack in loader
        for row, sample in enumerate(pack)
        if not loader.padding and row not in loader.padding_rows
    ]
    assert sorted(real) == sorted(s for s in samples if s[1] % 7 and s[1] % 11)


EVERY_THIRD = {(name, n) for name in "ab" for n in range(0, 150, 3)}


def readable(sample):
    if sample in EVERY_THIRD:
        raise SkipSample("every third")
    return sample


def lengths_in(dataset):
    """The length of each sample by the columns."""
    return {
        source[n]: source.column("tokens").values[n]
        for source in dataset.sources
        for n in range(source.count)
    }


@pytest.mark.parametrize("make", [packs, budgets])
def test_samples_that_fail_are_left_out_of_their_group(make):
    dataset = make(MapDataset(mix(), readable))
    whole = make(mix())
    for item, planned in zip(dataset.at(range(60)), whole.at(range(60)), strict=True):
        expected = [sample for sample in planned if sample not in EVERY_THIRD]
        assert not expected or item == expected
    loaders = loaders_of(dataset, 3)
    assert in_turn(loaders, 20) == dataset.at(range(60))


@given(window=st.integers(1, 40), capacity=st.integers(40, 120))
def test_packs_keep_capacities_when_samples_fail(window, capacity):
    dataset = packs(MapDataset(mix(), readable), capacity, window=window)
    lengths = lengths_in(dataset)
    for pack in dataset.at(range(30)):
        assert 0 < sum(lengths[sample] for sample in pack) <= capacity


def test_a_pack_that_fails_is_replaced_by_another_pack():
    def packer(samples):
        if len(samples) == 3:
            raise SkipSample("three")
        return samples

    dataset = PackDataset(mix(), "tokens", 100, packer, window=32)
    whole = packs().at(range(200))
    assert {len(pack) for pack in whole} > {3}
    for pack in dataset.at(range(50)):
        assert len(pack) != 3
        assert pack in whole


def test_an_evaluation_leaves_out_what_fails():
    dataset = packs(MapDataset(source("a", 70), readable)).with_role("eval")
    read = samples_of(loader_of(dataset))
    assert set(read) == set(source("a", 70)) - EVERY_THIRD


# Measured lengths


def measured(measure, capacity=100):
    return packs(capacity=capacity, measure=measure)


def test_samples_that_do_not_fit_are_left_out():
    lengths = lengths_in(mix())
    dataset = measured(lambda sample: 3 * lengths[sample], 120)
    for pack in dataset.at(range(40)):
        assert 0 < 3 * sum(lengths[sample] for sample in pack) <= 120


@pytest.mark.parametrize("value", ["5", None, float("nan"), -5, 2.5])
def test_a_measure_that_is_no_length_is_an_error(value):
    with pytest.raises(EncoderError, match=r"whole number >= 0, got (.|\n)*at [ab]"):
        measured(lambda _: value)[0]


def test_a_measure_that_nothing_fits_is_an_error():
    with pytest.raises(SubstitutionError):
        measured(lambda _: 10**30)[0]


@pytest.mark.parametrize("length", [1e19, 1e300, 2**62])
def test_lengths_beyond_all_capacities_are_too_long(length):
    column = {"tokens": [5, 7, length, 3]}
    samples = ListSource("abcd", columns=column)
    with pytest.raises(ColumnError, match="longer samples by source: list: 1 of 4"):
        packs(samples)[0]
    with pytest.raises(ColumnError, match="but a batch holds 160"):
        budgets(samples)[0]
    kept = chain.from_iterable(packs(samples, too_long="drop"))
    assert sorted(kept) == ["a", "b", "d"]


# Bad input


def column(values, **others):
    return ListSource(
        list(range(len(values))), name="texts", columns={"tokens": values, **others}
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3, 0], "texts, sample 1: its length must be a number > 0, got 0"),
        ([3, -2], "its length must be a number > 0, got -2"),
        ([3, 1.5], "its length must be a whole number, got 1.5"),
        ([3, float("nan")], "its length must be a number > 0, got nan"),
        (["a", "b"], "has words such as 'a'"),
        ([3, 50], "its length is 50"),
    ],
)
def test_lengths_of_a_column(values, message):
    for dataset in (
        lambda: PackDataset(column(values), "tokens", 40, list),
        lambda: BudgetBatchDataset(column(values), {"tokens": 40}, list),
    ):
        with pytest.raises(ColumnError, match=message):
            dataset().at([0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": "tokns"}, "no column 'tokns'; did you mean 'tokens'"),
        ({"homogeneous": "lang"}, "no column 'lang'"),
        ({"capacity": 0}, "capacity must be a whole number >= 1"),
        ({"capacity": (3, 4)}, "length has 1 values, capacity 2"),
        ({"window": 0}, "window must be a whole number >= 1"),
        ({"too_long": "cutt"}, "too_long.*'cut'"),
        ({"packer": lambda samples: (yield samples)}, "generator function"),
        ({"dataset": FilterDataset(column([1]), bool)}, "the columns tokens"),
    ],
)
def test_arguments(options, message):
    arguments = {
        "dataset": column([3, 4]),
        "length": "tokens",
        "capacity": 10,
        "packer": list,
    }
    with pytest.raises((ConfigError, ColumnError, NotIndexedError), match=message):
        PackDataset(**arguments | options)


def test_samples_that_are_all_too_long_are_an_error():
    for samples in (column([50, 60]), RepeatDataset(column([50, 60]))):
        dataset = PackDataset(samples, "tokens", 10, list, too_long="drop")
        with pytest.raises(EmptyDatasetError):
            take(loader_of(dataset), 1)


def test_a_measure_must_give_a_length():
    dataset = packs(measure=lambda sample: "long")
    with pytest.raises(EncoderError, match="whole number >= 0, got long"):
        dataset.at([0])


def test_a_window_smaller_than_a_global_batch_is_warned_of(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    for window, warned in ((32, True), (320, False)):
        caplog.clear()
        batches = BatchDataset(packs(window=window), 2, list)
        loader_of(batches, global_batch_size=20)
        assert ("window=32 samples make" in caplog.text) is warned


# Adapters


def unchanged(item):
    return item


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_data_loader_resumes(workers):
    dataset = packs()
    loops = EpochizeDataset(dataset, 10)
    data = as_torch_dataset(loops)
    first = list(DataLoader(data, None, num_workers=workers, collate_fn=unchanged))
    assert first == dataset.at(range(10))
    state = json.loads(json.dumps(data.state_dict(4)))
    again = as_torch_dataset(EpochizeDataset(packs(), 10))
    again.load_state_dict(state)
    rest = list(DataLoader(again, None, num_workers=workers, collate_fn=unchanged))
    assert rest == dataset.at(range(4, 10))
    loader = loader_of(loops)
    loader.load_state_dict(state)
    assert list(loader) == rest


# Examples


def test_packs_of_sentences():
    sentences = ["aaaaaaa", "bbbbb", "ccc", "dddd", "e"]
    samples = ListSource(sentences, columns={"size": [len(text) for text in sentences]})
    dataset = PackDataset(samples, length="size", capacity=10, packer="|".join)
    assert sorted(dataset) == ["aaaaaaa|ccc", "bbbbb|dddd|e"]


def test_batches_of_a_budget():
    sentences = ["aaaaaaa", "bbbbb", "ccc", "dddd", "e"]
    samples = ListSource(sentences, columns={"size": [len(text) for text in sentences]})
    dataset = BudgetBatchDataset(samples, {"size": 10}, sorted)
    assert sorted(dataset) == [["aaaaaaa"], ["bbbbb", "dddd"], ["ccc", "e"]]


# Encoders


class Packing(DefaultTaskEncoder):
    def pack_selected_samples(self, samples):
        return [len(sample.text) for sample in samples]


class Selecting(Packing):
    def select_samples_to_pack(self, samples):
        return [samples]


class Grouping(DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        return len(sample.text), None


PACKING = {"length": "tokens", "capacity": 40}


@pytest.fixture
def texts(tmp_path):
    """A file of 30 texts of 1 to 30 letters, with their lengths as a column."""
    rows = [{"text": "x" * n, "tokens": n} for n in range(1, 31)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "texts.jsonl")


def test_an_encoder_packs_and_batches_by_columns(texts):
    dataset = get_train_dataset(
        texts, task_encoder=Packing(), batch_size=None, packing=PACKING, repeat=False
    )
    packed = list(dataset)
    assert all(sum(pack) <= 40 for pack in packed)
    assert sorted(chain.from_iterable(packed)) == list(range(1, 31))
    batches = get_train_dataset(
        texts, task_encoder=DefaultTaskEncoder(), batch_budget={"tokens": 60}
    )
    lengths = [len(text) for text in next(iter(loader_of(batches))).text]
    assert max(lengths) * len(lengths) <= 60


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        (DefaultTaskEncoder, {"packing": PACKING}, "has no pack_selected_samples"),
        (Packing, {"packing": {"length": "tokens"}}, "packing needs capacity"),
        (Packing, {"packing": PACKING | {"capcity": 3}}, "did you mean 'capacity'"),
        (
            Packing,
            {"packing": PACKING | {"length": "tokns"}},
            "energize prepare .* --column tokns=",
        ),
        (Packing, {"packing": PACKING, "packing_buffer_size": 9}, "Remove one"),
        (Grouping, {"batch_budget": {"tokens": 40}}, "batch_group_criterion"),
        (Packing, {"batch_budget": {"tokens": 4}}, "a batch holds 4"),
        (Packing, {"batch_budget": {"tokens": 40}, "batch_size": 2}, "both set"),
        (
            Packing,
            {"batch_budget": {"tokens": 40}, "batch_drop_last": True},
            "batch_drop_last has no effect",
        ),
        (Packing, {"batch_size": ...}, "batch_size is missing"),
    ],
)
def test_arguments_of_a_program(texts, encoder, options, message):
    arguments = {"batch_size": None} | options
    if arguments["batch_size"] is ...:
        del arguments["batch_size"]
    with pytest.raises((ConfigError, ColumnError), match=message):
        take(
            loader_of(get_train_dataset(texts, task_encoder=encoder(), **arguments)), 1
        )


def test_a_selection_that_a_plan_replaces_is_logged(texts, caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level(logging.INFO, "energize")
    get_train_dataset(texts, task_encoder=Selecting(), batch_size=None, packing=PACKING)
    assert "select_samples_to_pack is not called" in caplog.text


MIX = """
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    path: texts.jsonl
    packing: {length: %s, capacity: 40}
"""


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("tokens", ""),
        ("tokens, buffer_size: 9", "buffer_size"),
        ("text", "has no column 'text' with numbers.*energize prepare --length text="),
    ],
)
def test_packs_of_a_file_are_planned_if_all_sources_have_the_columns(
    texts, tmp_path, length, reason, caplog, monkeypatch
):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level(logging.INFO, "energize")
    (tmp_path / "mix.yaml").write_text(MIX % length)
    options = {"task_encoder": Packing(), "batch_size": None}
    dataset = get_train_dataset(tmp_path / "mix.yaml", **options)
    assert dataset.indexed is not bool(reason)
    if reason:
        assert re.search(f"not planned from .*{reason}", caplog.text)
        return
    packing = {"length": "tokens", "capacity": 40}
    planned = get_train_dataset(texts, packing=packing, **options)
    assert take(loader_of(dataset), 20) == take(loader_of(planned), 20)
