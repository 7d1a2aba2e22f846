"""Batches in which all ranks have a sample with a modality at a step, or none has."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    DataError,
    EpochizeDataset,
    FailurePolicy,
    FilterDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
    SkipSample,
    StateError,
    WorkerConfig,
    get_loader,
)
from energize.core.costs import ColumnCost
from energize.core.padding import padding_rows
from energize.datasets.align import AlignedBudgetDataset, Alignment
from energize.datasets.planned import PackDataset
from energize.errors import ColumnError, NotIndexedError, WeightError
from energize.experimental import (
    AlignDataset,
    LevelDataset,
    Stage,
    StagedDataset,
    StagePlan,
)
from energize.testing import check_laws
from tests.support.loading import loader_of

MODALITIES = ("images", "audio")


def source(name, count, images=0.0, audio=0.0, seed=0):
    rng = np.random.default_rng([seed, len(name), *name.encode()])
    columns = {
        "images": (rng.random(count) < images) * rng.integers(1, 4, count),
        "audio": (rng.random(count) < audio).astype(int),
        "tokens": rng.integers(1, 50, count),
    }
    samples = [
        {
            "__key__": f"{name}{number}",
            **{modality: int(columns[modality][number] > 0) for modality in MODALITIES},
        }
        for number in range(count)
    ]
    lists = {column: values.tolist() for column, values in columns.items()}
    return ListSource(samples, name=name, columns=lists)


def collated(samples):
    return {
        "__key__": [sample["__key__"] for sample in samples],
        **{name: [sample[name] for sample in samples] for name in MODALITIES},
    }


def mix(scheme="block", weights=(6, 2, 1)):
    parts = {
        "text": ShuffleDataset(source("text", 53)),
        "pictures": ShuffleDataset(source("pictures", 17, images=0.7)),
        "films": ShuffleDataset(source("films", 9, images=0.9, audio=0.5)),
    }
    weights = dict(zip(parts, weights, strict=True))
    return BlendDataset(parts, weights=weights, scheme=scheme)


def finite(count):
    parts = source("text", 50, audio=0.2), source("pictures", 17, images=0.9)
    return LimitDataset(BlendDataset((parts[0], 3), (parts[1], 1)), count)


@dataclass
class Case:
    """An aligned dataset, and what its batches are made of."""

    inner: Any
    size: int
    ranks: int
    steps: int
    options: dict[str, Any]

    @property
    def micro_batches(self):
        return self.ranks * self.steps

    def dataset(self, inner=None, **more):
        options = {"columns": list(MODALITIES), "ranks": self.ranks} | self.options
        return AlignDataset(
            self.inner if inner is None else inner,
            self.size,
            collated,
            global_batch_size=self.size * self.micro_batches,
            **options | more,
        )


@st.composite
def cases(draw, endless=None):
    is_endless = draw(st.booleans()) if endless is None else endless
    inner = mix(draw(st.sampled_from(["block", "exact", "random"])))
    if not is_endless:
        inner = ShuffleDataset(finite(draw(st.integers(12, 60))))
    rule = draw(st.sampled_from(["together", "always"]))
    return Case(
        inner,
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 3, 4, 6])),
        draw(st.integers(1, 3)),
        {"columns": {"images": rule, "audio": "together"}},
    )


def modalities(batch):
    return tuple(name for name in MODALITIES if any(batch[name]))


def weighted(batches):
    """The keys of the samples that count, with the number of each."""
    return Counter(
        key
        for batch in batches
        for key, weight in zip(
            batch["__key__"], batch["sample_weights"].tolist(), strict=True
        )
        if weight
    )


def check_aligned(batches, ranks, names=MODALITIES):
    for first in range(0, len(batches) - ranks + 1, ranks):
        step = {
            tuple(name for name in names if any(batch[name]))
            for batch in batches[first : first + ranks]
        }
        assert len(step) == 1, (first, step)


@given(cases(), st.integers(0, 10**9))
def test_micro_steps_are_aligned_and_samples_of_global_batches_stay(case, far):
    dataset = case.dataset()
    whole = case.micro_batches
    always = ["images"] if case.options["columns"]["images"] == "always" else []
    for number in (0, 1, 2, far):
        batches = dataset.at(range(number * whole, (number + 1) * whole))
        for ranks in (size for size in range(1, case.ranks + 1) if not whole % size):
            if case.ranks % ranks == 0:
                check_aligned(batches, ranks)
        if always:
            assert all("images" in modalities(batch) for batch in batches)
        size = whole * case.size
        start, stop = number * size, (number + 1) * size
        inner = case.inner.size
        if inner < 2**62:
            groups = -(-inner // size)
            start = number // groups * inner + number % groups * size
            stop = min(start + size, (number // groups + 1) * inner)
        expected = Counter(
            item["__key__"] for item in case.inner.at(range(start, stop))
        )
        assert weighted(batches) == expected


@given(cases())
def test_fillers_are_marked_few_and_have_the_modality(case):
    whole = case.micro_batches
    dataset = case.dataset()
    batches = dataset.at(range(3 * whole))
    fillers = Counter()
    for position, batch in enumerate(batches):
        weights = batch["sample_weights"]
        rows = padding_rows(batch)
        assert rows == np.flatnonzero(weights.numpy() == 0).tolist()
        assert len(rows) <= len(MODALITIES)
        assert len(weights) - len(rows) <= case.size
        for row in rows:
            has = [name for name in MODALITIES if batch[name][row]]
            assert has or len(rows) == len(weights)
            for name in has:
                fillers[position // whole, name] += 1
    if case.inner.size > 2**62 and case.size > 2 and not dataset.alignment.always:
        assert all(count < 2 * case.ranks for count in fillers.values())


@given(cases(), st.integers(0, 40))
def test_counts_equal_brute_force(case, n):
    dataset = case.dataset()
    counts = dict.fromkeys([source.name for source in dataset.sources], 0)
    for key, number in weighted(dataset.at(range(n))).items():
        counts[key.rstrip("0123456789")] += number
    assert dataset.consumed(n).tolist() == list(counts.values())


@pytest.mark.parametrize("columns", ["images", {"audio": "always"}])
@pytest.mark.parametrize(
    "inner", [mix("random"), finite(29), RepeatDataset(finite(31))]
)
def test_the_laws_of_all_nodes(inner, columns):
    check_laws(
        AlignDataset(inner, 2, collated, global_batch_size=8, columns=columns),
        epochs=1,
        items=16,
    )


def ranks_of(dataset, world_size, state=None, workers=0, **options):
    loaders = [
        loader_of(dataset, workers, rank, world_size, **options)
        for rank in range(world_size)
    ]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def run(loaders, steps):
    """Batches in the order of positions."""
    iterators = [iter(loader) for loader in loaders]
    return [next(iterator) for _ in range(steps) for iterator in iterators]


@given(cases(endless=True), st.data())
def test_a_run_resumes_at_any_step_on_other_ranks(case, data):
    dataset = case.dataset()
    sizes = [size for size in range(1, case.ranks + 1) if case.ranks % size == 0]
    first, second = data.draw(st.tuples(*[st.sampled_from(sizes)] * 2))
    steps = data.draw(st.integers(0, 2 * case.micro_batches // first))
    expected = dataset.at(range(4 * case.micro_batches))
    loaders = ranks_of(dataset, first)
    batches = run(loaders, steps)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    resumed = ranks_of(dataset, second, state)
    position = steps * first
    if position % second:
        with pytest.raises(StateError, match="which would then not be aligned"):
            run(resumed, 1)
        return
    batches += run(resumed, (len(expected) - position) // second)
    assert repr(batches) == repr(expected[: len(batches)])
    check_aligned(batches, case.ranks)


@given(
    st.integers(0, 20),
    st.tuples(*[st.integers(0, 5)] * 2),
    st.sampled_from([1, 2, 4]),
)
def test_a_live_change_keeps_batches_aligned(steps, weights, world_size):
    dataset = AlignDataset(
        mix(), 2, collated, global_batch_size=16, columns="images", ranks=4
    )
    loaders = ranks_of(dataset, world_size)
    iterators = [iter(loader) for loader in loaders]
    batches = [next(each) for _ in range(steps) for each in iterators]
    for loader in loaders:
        loader.set_weights(
            dict(zip(["text", "pictures", "films"], (1, *weights), strict=True))
        )
    batches += [next(each) for _ in range(40 // world_size) for each in iterators]
    check_aligned(batches, 4, ["images"])
    for first in range(0, len(batches) - 8, 8):
        assert sum(weighted(batches[first : first + 8]).values()) == 16


def test_workers_deliver_the_same_batches_and_the_report_counts_fillers():
    dataset = AlignDataset(mix(), 2, collated, global_batch_size=16, columns="images")
    batches = run(ranks_of(dataset, 2, workers=2), 20)
    assert repr(batches) == repr(dataset.at(range(40)))
    loader = loader_of(dataset)
    for batch in islice(loader, 40):
        assert loader.padding_rows == padding_rows(batch)
        loader.record_losses(torch.ones(len(batch["__key__"])))
    report = loader.report()
    fillers = sum(len(padding_rows(batch)) for batch in batches)
    assert report.ranks[0].fillers == report.to_dict()["mix/fillers"] == fillers > 0
    assert report.total.counts.samples == report.total.losses.count == 80
    assert report.total.counts.weight == 80
    assert f"{fillers} fillers" in str(report)


def test_levelled_batches_that_are_aligned_keep_their_order():
    level = LevelDataset(mix(), 2, global_batch_size=16, cost="tokens")
    dataset = AlignDataset(
        level, 2, collated, global_batch_size=16, columns="images", ranks=1
    )
    plain = BatchDataset(level, 2, collated)
    keys = [batch["__key__"] for batch in plain.at(range(24))]
    assert [batch["__key__"] for batch in dataset.at(range(24))] == keys


def costliest_over_mean(batches, name):
    costs = [sum(row[name] for row in batch) for batch in batches]
    return max(costs) / (sum(costs) / len(costs))


def test_batches_that_are_aligned_again_are_levelled_again():
    """Alignment moves samples, so their costs are levelled within their modalities."""
    rng = np.random.default_rng(0)
    tokens = rng.lognormal(6, 0.7, 256).astype(int).tolist()
    columns = {"images": [number % 10 == 0 for number in range(256)], "tokens": tokens}
    rows = [
        {"__key__": str(number), "tokens": cost} for number, cost in enumerate(tokens)
    ]
    source = ListSource(rows, columns=columns)
    options = {"global_batch_size": 256, "columns": "images", "ranks": 8}
    level = LevelDataset(source, 8, global_batch_size=256, cost="tokens")
    plain = [*AlignDataset(source, 8, **options)]
    levelled = [*AlignDataset(level, 8, **options)]
    keys = [
        {row["__key__"] for batch in some for row in batch}
        for some in (plain, levelled)
    ]
    assert keys[0] == keys[1] == {str(number) for number in range(256)}
    assert costliest_over_mean(plain, "tokens") > 1.5
    assert costliest_over_mean(levelled, "tokens") < 1.1


def packed(samples):
    names = {name: max(row[name] for row in samples) for name in MODALITIES}
    return {"__key__": [sample["__key__"] for sample in samples], **names}


def joined(packs):
    keys = [key for pack in packs for key in pack["__key__"]]
    return {
        "__key__": keys,
        **{name: [pack[name] for pack in packs] for name in MODALITIES},
    }


def test_packs_are_aligned_and_all_samples_of_a_filler_are_padding():
    packs = PackDataset(mix(weights=(40, 1, 0)), "tokens", 90, packed, window=64)
    dataset = AlignDataset(
        packs, 2, joined, global_batch_size=16, columns="images", ranks=4
    )
    check_laws(dataset, items=12, epochs=1)
    loader = get_loader(dataset)
    batches = list(islice(loader, 32))
    check_aligned(batches, 4, ["images"])
    expected = Counter(key for pack in packs.at(range(64)) for key in pack["__key__"])
    assert weighted(batches) == expected
    fillers = 0
    for batch in batches:
        padded = np.flatnonzero(batch["sample_weights"].numpy() == 0).tolist()
        assert padding_rows(batch) == padded
        fillers += len(padded)
    assert loader.report().ranks[0].fillers == fillers > 0
    assert loader.report().total.counts.samples == sum(expected.values())
    assert loader.report().total.counts.weight == sum(expected.values())


@given(cases(), st.integers(0, 40))
def test_each_sample_finds_its_batch(case, position):
    dataset = case.dataset()
    routes = dataset.route(np.array([position]))
    members = routes.position
    if routes.padding is not None:
        members = members[~routes.padding]
    assert all(dataset.batch_of(member) == position for member in members.tolist())


def damaged(sample):
    if sample["__key__"] in ("pictures3", "films2", "text5"):
        raise DataError("damaged")
    if sample["__key__"].endswith("4"):
        raise SkipSample
    return sample


def picky(samples):
    if any(sample["__key__"] == "text11" for sample in samples):
        raise SkipSample
    return collated(samples)


@pytest.mark.parametrize("role", ["train", "eval"])
def test_substitutes_have_the_modalities_of_samples_that_failed(role):
    dataset = AlignDataset(
        MapDataset(mix(), damaged),
        2,
        picky,
        global_batch_size=16,
        columns=MODALITIES,
        ranks=4,
    )
    policy = FailurePolicy(on_error="skip", budget=None)
    loader = get_loader(dataset, failures=policy, role=role)
    batches = list(islice(loader, 80))
    check_aligned(batches, 4)
    assert loader.failures.count > 0


def test_epochs_of_steps_and_accumulation():
    dataset = EpochizeDataset(
        AlignDataset(
            mix(), 2, collated, global_batch_size=24, columns="images", ranks=4
        ),
        3,
    )
    loaders = ranks_of(dataset, 2, global_batch_size=24)
    assert loaders[0].accumulation_steps == 6
    batches = []
    for _ in range(8):
        batches += [batch for step in zip(*loaders, strict=True) for batch in step]
    check_aligned(batches, 4, ["images"])
    assert repr(batches) == repr(dataset.at(range(48)))


def stages(first_steps):
    parts = [
        AlignDataset(mix(weights=w), 2, collated, global_batch_size=8, columns="images")
        for w in ((6, 2, 1), (1, 1, 0))
    ]
    plan = [
        Stage("one", 0, first_steps, dataset=parts[0], items_per_step=4),
        Stage("two", first_steps, None, dataset=parts[1], items_per_step=4),
    ]
    return StagedDataset(StagePlan(plan))


def test_stages_are_aligned():
    check_aligned(run(ranks_of(stages(5), 4), 12), 4, ["images"])


# Batches of a budget


def budgets(inner=None, budget=120, columns="images", ranks=4, window=64, **more):
    return AlignedBudgetDataset(
        mix() if inner is None else inner,
        {"tokens": budget},
        more.pop("batcher", collated),
        columns=columns,
        ranks=ranks,
        window=window,
        **more,
    )


def tokens_of(dataset):
    return {
        source[n]["__key__"]: source.column("tokens").values[n]
        for source in dataset.sources
        for n in range(source.count)
    }


@st.composite
def budget_cases(draw):
    inner = mix(draw(st.sampled_from(["block", "exact", "random"])))
    if draw(st.booleans()):
        inner = RepeatDataset(ShuffleDataset(finite(draw(st.integers(30, 80)))))
    rules = {"images": draw(st.sampled_from(["together", "always"]))}
    if draw(st.booleans()):
        rules["audio"] = "together"
    return budgets(
        inner,
        draw(st.sampled_from([100, 150, 400])),
        rules,
        draw(st.sampled_from([1, 2, 3, 6])),
        draw(st.sampled_from([40, 64, 101])),
        level=draw(st.sampled_from([None, "tokens", {"tokens": 1, "images": 0.3}])),
    )


def window_end(dataset, windows):
    items = 0
    for window in range(windows):
        items = dataset.window_end(window, items)
    return items


@given(budget_cases())
def test_steps_of_budgets_are_aligned_and_windows_keep_their_samples(dataset):
    lengths = tokens_of(dataset)
    columns = dataset.alignment.columns
    end = window_end(dataset, 3)
    batches = dataset.at(range(end))
    assert not end % dataset.ranks
    for ranks in (size for size in range(1, 7) if not dataset.ranks % size):
        check_aligned(batches, ranks, columns)
    expected = dataset.inputs[0].at(range(3 * dataset.window))
    assert weighted(batches) == Counter(sample["__key__"] for sample in expected)
    for batch in batches:
        rows = padding_rows(batch)
        assert rows == np.flatnonzero(batch["sample_weights"].numpy() == 0).tolist()
        size = len(batch["__key__"])
        assert size * max(lengths[key] for key in batch["__key__"]) <= dataset.budget
        assert set(dataset.alignment.always) <= set(modalities(batch))
        if not dataset.alignment.always:
            assert not rows or len(rows) == size
    for n in (1, end // 2, end - 1, end):
        counts = dict.fromkeys([source.name for source in dataset.sources], 0)
        for key, number in weighted(batches[:n]).items():
            counts[key.rstrip("0123456789")] += number
        assert dataset.consumed(n).tolist() == list(counts.values())


@given(budget_cases(), st.integers(0, 60))
def test_each_sample_finds_its_batch_of_a_budget(dataset, position):
    routes = dataset.route(np.array([position]))
    is_filler = np.zeros(len(routes.position), bool)
    if routes.padding is not None:
        is_filler = routes.padding
    members = routes.position[~is_filler].tolist()
    assert all(dataset.batch_of(member) == position for member in members)


def unevenness(dataset, cost, ranks):
    """The cost of the most expensive batches of all steps of ranks over the mean."""
    end = window_end(dataset, 2)
    costs = ColumnCost(cost).of(dataset, np.arange(end)).reshape(-1, ranks)
    return costs.max(axis=1).sum() / costs.mean(axis=1).sum()


@pytest.mark.parametrize("rule", ["together", "always"])
@pytest.mark.parametrize("ranks", [2, 6, 8])
def test_levelled_batches_of_a_step_cost_about_the_same(rule, ranks):
    """By every cost, also on each number of ranks that divides those of a step."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, 2000)
    columns = {
        "images": images,
        "tokens": rng.integers(50, 60, 2000),
        "patches": np.where(images, rng.integers(20, 200, 2000), 1),
    }
    samples = ShuffleDataset(
        ListSource(
            [{"__key__": f"{n}"} for n in range(2000)],
            columns={name: values.tolist() for name, values in columns.items()},
        )
    )
    options = {"columns": {"images": rule}, "ranks": ranks, "window": 1000}
    plain = budgets(samples, 1000, **options)
    level = budgets(samples, 1000, level=["tokens", "patches"], **options)
    for fewer in (size for size in range(2, ranks + 1) if not ranks % size):
        for cost in ("tokens", "patches"):
            after = unevenness(level, cost, fewer)
            assert after < unevenness(plain, cost, fewer)
            assert after < 1.03


def test_batches_of_one_sample_are_not_levelled():
    columns = {"images": [0, 1] * 8, "tokens": [9] * 16, "patches": range(1, 17)}
    samples = ListSource([{"__key__": f"{n}"} for n in range(16)], columns=columns)
    plain, level = (
        budgets(samples, 10, level=cost, batcher=list) for cost in (None, "patches")
    )
    assert list(level) == list(plain)


def test_fillers_of_budgets_are_few():
    """Without "always", only a combination with fewer samples than ranks has some."""
    dataset = budgets(mix(weights=(6, 2, 0)))
    loader = get_loader(dataset)
    batches = list(islice(loader, window_end(dataset, 4)))
    assert {modalities(batch) for batch in batches} == {(), ("images",)}
    assert loader.report().ranks[0].fillers == 0
    loader = get_loader(budgets(mix(weights=(6, 2, 0)), columns={"images": "always"}))
    batches = list(islice(loader, 40))
    fillers = sum(len(padding_rows(batch)) for batch in batches)
    assert loader.report().ranks[0].fillers == fillers > 0
    assert loader.report().total.counts.samples == weighted(batches).total()


@pytest.mark.parametrize("columns", ["images", {"images": "always"}])
@pytest.mark.parametrize(
    "inner", [mix("random"), finite(57), RepeatDataset(finite(31))]
)
def test_the_laws_of_all_nodes_hold_for_budgets(inner, columns):
    check_laws(budgets(inner, columns=columns), epochs=1, items=16)


def test_packs_in_batches_of_a_budget_are_aligned():
    packs = PackDataset(mix(weights=(40, 1, 0)), "tokens", 90, packed, window=64)
    dataset = budgets(packs, 300, batcher=joined, window=30)
    check_laws(dataset, items=12, epochs=1)
    end = window_end(dataset, 2)
    batches = list(islice(get_loader(dataset), end))
    check_aligned(batches, 4, ["images"])
    expected = Counter(key for pack in packs.at(range(60)) for key in pack["__key__"])
    assert weighted(batches) == expected


@given(
    st.integers(0, 20),
    st.sampled_from([0, 2]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3, 6]),
)
def test_a_live_change_and_a_resume_keep_budgets_aligned(steps, far, first, second):
    columns = {"images": "always", "audio": "together"}
    steps = 6 * (steps // 2) + far * 6
    weights = dict(zip(["text", "pictures", "films"], (1, 1, 3), strict=True))

    def dataset():
        return budgets(mix(), 150, columns, ranks=6)

    loaders = ranks_of(dataset(), first)
    batches = run(loaders, steps)
    for loader in loaders:
        loader.set_weights(weights)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    expected = run(loaders, 6 * 12 // first)
    resumed = run(ranks_of(dataset(), second, state), 6 * 12 // second)
    assert repr(resumed) == repr(expected)
    check_aligned(batches + resumed, 6)


@pytest.mark.parametrize("role", ["train", "eval"])
@pytest.mark.parametrize("columns", [MODALITIES, {"images": "always"}])
def test_substitutes_in_budgets_have_the_modalities_and_fit(role, columns):
    dataset = budgets(MapDataset(mix(), damaged), 150, columns, batcher=picky)
    lengths = tokens_of(dataset)
    policy = FailurePolicy(on_error="skip", budget=None)
    loader = get_loader(dataset, failures=policy, role=role)
    batches = list(islice(loader, 80))
    check_aligned(batches, 4, dataset.alignment.columns)
    assert loader.failures.count > 0
    for batch in batches:
        longest = max(lengths[key] for key in batch["__key__"])
        assert len(batch["__key__"]) * longest <= 150


def test_windows_without_images_have_fillers_of_earlier_windows():
    images = [1, *[0] * 99]
    samples = ListSource(
        [{"__key__": f"{n}", "images": images[n], "audio": 0} for n in range(100)],
        columns={"images": images, "tokens": [3] * 100},
    )
    dataset = budgets(samples, 30, {"images": "always"}, ranks=2, window=20)
    batches = list(dataset)
    assert all(any(batch["images"]) for batch in batches)
    assert weighted(batches) == Counter(f"{n}" for n in range(100))
    check_laws(dataset, items=10)


def test_an_example_of_budgets():
    """Two steps of two ranks. The only image is on one rank of the second step; the
    other rank gets it as a filler, which has the loss weight 0.
    """
    images = [0, 0, 1, 0, 0]
    samples = ListSource(
        [
            {"__key__": key, "images": has, "audio": 0}
            for key, has in zip("abcde", images, strict=True)
        ],
        columns={"images": images, "tokens": [2, 1, 4, 2, 1]},
    )
    dataset = budgets(samples, 4, ranks=2)
    batches = list(dataset)
    assert [batch["__key__"] for batch in batches] == [
        ["d", "a"],
        ["e", "b"],
        ["c"],
        ["c"],
    ]
    assert [padding_rows(batch) for batch in batches] == [[], [], [], [0]]
    assert batches[3]["sample_weights"].tolist() == [0]
    assert dataset.consumed(4).tolist() == [5]


class TestMistakesOfBudgets:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ranks": None}, "Set align: ranks"),
        ],
    )
    def test_arguments(self, options, message):
        with pytest.raises(ConfigError, match=message):
            budgets(**options)

    def test_no_room_for_a_filler(self):
        samples = ListSource(
            "abc", columns={"images": [0, 1, 1], "tokens": [30, 20, 20]}
        )
        dataset = budgets(samples, 40, {"images": "always"}, ranks=1)
        with pytest.raises(
            ColumnError, match=r"length is 30, and a batch of 40 has no"
        ):
            dataset.at([0])

    def test_no_sample_for_fillers(self):
        dataset = budgets(mix(weights=(1, 0, 0)), columns={"images": "always"})
        with pytest.raises(ColumnError, match="no sample with 'images' > 0 within"):
            dataset.at([0])

    def test_ranks_that_do_not_divide(self):
        config = WorkerConfig(rank=0, world_size=3, num_workers=0)
        with pytest.raises(ConfigError, match="Set ranks=3"):
            next(iter(get_loader(budgets(), worker_config=config)))


class TestMistakes:
    def test_keys(self):
        with pytest.raises(ConfigError, match="did you mean 'columns'"):
            Alignment.parsed({"colums": "images", "ranks": 8})

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"columns": "image"}, ColumnError, "no column 'image'; did you mean"),
            ({"columns": []}, ConfigError, "columns must be 1 to 16 different names"),
            ({"columns": ["audio"] * 2}, ConfigError, "different names"),
            ({"columns": {"images": 8}}, ConfigError, r"'images': 8.*'ranks': 8"),
            ({"ranks": 3}, ConfigError, "ranks=3 must divide the 4 micro batches"),
            ({"ranks": 0}, ConfigError, "align: ranks must be a whole number >= 1"),
            ({"global_batch_size": 7}, ConfigError, "not a multiple"),
        ],
    )
    def test_arguments(self, options, error, message):
        given = {"columns": "images", "global_batch_size": 8} | options
        with pytest.raises(error, match=message):
            AlignDataset(mix(), 2, **given)

    def test_a_column_that_is_always_0(self):
        with pytest.raises(ColumnError, match="'audio' is 0 for all samples"):
            AlignDataset(
                source("a", 9, images=1), 1, global_batch_size=3, columns="audio"
            )

    def test_a_column_of_words(self):
        words = ListSource("ab", columns={"kind": ["x", "y"]})
        with pytest.raises(ColumnError, match=r"must have numbers.*has words"):
            AlignDataset(words, 1, global_batch_size=2, columns="kind")

    def test_no_sample_at_all_for_a_micro_batch(self):
        dataset = AlignDataset(
            LimitDataset(mix(weights=(1, 0, 0)), 20),
            2,
            collated,
            global_batch_size=8,
            columns="images",
            always=True,
        )
        with pytest.raises(ColumnError, match="no sample with 'images' > 0"):
            dataset.at([0])

    def test_a_stream(self):
        stream = FilterDataset(mix(), bool)
        with pytest.raises(NotIndexedError, match=r"FilterDataset.*\['images'\]"):
            AlignDataset(stream, 2, global_batch_size=8, columns="images")

    def test_samples_without_a_place_for_weights(self):
        numbers = ListSource(range(8), columns={"images": [1, 0] * 4})
        dataset = AlignDataset(numbers, 2, global_batch_size=8, columns="images")
        with pytest.raises(WeightError, match="cannot be weighed"):
            dataset.at([0])

    def test_another_global_batch_below(self):
        level = LevelDataset(mix(), 2, global_batch_size=8, cost="tokens")
        with pytest.raises(ConfigError, match="levels global batches of 8"):
            AlignDataset(level, 2, global_batch_size=16, columns="images")

    @pytest.mark.parametrize("world_size", [3, 8])
    def test_ranks_that_do_not_divide(self, world_size):
        dataset = AlignDataset(
            mix(), 2, global_batch_size=16, columns="images", ranks=4
        )
        config = WorkerConfig(rank=0, world_size=world_size, num_workers=0)
        with pytest.raises(ConfigError, match=f"Set ranks={world_size}.*1, 2, 4"):
            next(iter(get_loader(dataset, worker_config=config)))

    @pytest.mark.parametrize(
        "above",
        [
            lambda dataset: ShuffleDataset(LimitDataset(dataset, 8)),
            lambda dataset: LimitDataset(dataset, 7),
            lambda dataset: BlendDataset((dataset, 1), (mix(), 1)),
            lambda dataset: FilterDataset(dataset, bool),
            lambda dataset: BatchDataset(dataset, 2, list),
            lambda dataset: stages(3).with_inputs([dataset, stages(3).inputs[1]]),
        ],
    )
    def test_nodes_that_do_not_keep_steps(self, above):
        dataset = above(
            AlignDataset(mix(), 2, collated, global_batch_size=16, columns="images")
        )
        with pytest.raises(ConfigError, match="whole micro steps of 8 micro batches"):
            next(iter(get_loader(dataset)))


def test_an_example():
    """Two steps of two ranks. The only image would be on one rank of the first step; the
    other rank gets it as a filler, which has the loss weight 0.
    """
    samples = ListSource(
        [{"__key__": key, "images": int(key == "d"), "audio": 0} for key in "abcdefgh"],
        columns={"images": [int(key == "d") for key in "abcdefgh"]},
    )
    dataset = AlignDataset(
        samples, 2, collated, global_batch_size=8, columns="images", ranks=2
    )
    batches = list(dataset)
    assert [batch["__key__"] for batch in batches] == [
        ["a", "c"],
        ["b", "e"],
        ["d", "g"],
        ["f", "h", "d"],
    ]
    assert batches[3]["sample_weights"].tolist() == [1, 1, 0]
    assert padding_rows(batches[3]) == [2]
    assert dataset.consumed(4).tolist() == [8]
