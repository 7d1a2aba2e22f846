"""The efficiency of packs, batches and ranks, against delivered items."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ListSource,
    MapDataset,
    RepeatDataset,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)
from energize.core import tree
from energize.datasets.align import AlignDataset
from energize.datasets.planned import BudgetBatchDataset, PackDataset
from energize.errors import ColumnError
from energize.report import Ledger, measure_efficiency
from energize.report.efficiency import EfficiencyMeter
from tests.golden.mixes import MIXES


def source(count, name, seed):
    draws = np.random.default_rng(seed)
    lengths = draws.integers(1, 40, count)
    images = draws.integers(0, 4, count)
    samples = list(zip(lengths.tolist(), images.tolist(), strict=True))
    return ListSource(samples, name=name, columns={"tokens": lengths, "images": images})


def mix():
    pairs = [(source(90, "a", 0), 3), (source(40, "b", 1), 1)]
    return BlendDataset(
        *((RepeatDataset(ShuffleDataset(part)), weight) for part, weight in pairs)
    )


def packs(dataset, **options):
    return PackDataset(
        dataset, ("tokens", "images"), (100, 9), list, window=50, **options
    )


def images_and_one(images):
    return images + 1


def identity(batch):
    return batch


TREES = {
    "packs": lambda: packs(mix()),
    "packs of an epoch": lambda: packs(source(333, "a", 2)),
    "batches of packs": lambda: BatchDataset(packs(mix()), 3, list),
    "budget": lambda: BudgetBatchDataset(mix(), {"tokens": 120}, list, window=50),
    "budget in order": lambda: BudgetBatchDataset(
        source(301, "a", 3), {"tokens": 120}, list, window=50, keep_order=True
    ),
    "fixed": lambda: MapDataset(BatchDataset(mix(), 4, list), identity),
    "level": lambda: BatchDataset(mix(), 4, list, level="tokens", global_batch_size=48),
    "blend of batches": lambda: BlendDataset(
        (BatchDataset(source(99, "a", 4), 4, list), 2),
        (BudgetBatchDataset(source(70, "b", 5), {"tokens": 99}, list, window=20), 1),
    ),
}


def samples_in(item):
    """Return the samples of packs and batches of packs."""
    if isinstance(item, tuple):
        return [item]
    return [sample for part in item for sample in samples_in(part)]


def measured(steps, name):
    """Measure real items, by step and rank.

    Args:
        steps: For each step the items of each rank.
        name: The name of the tree, which says what items are.
    """
    items = [item for step in steps for rank in step for item in rank]
    numbers = {}
    packed = items
    if "of packs" in name:
        packed = [pack for batch in items for pack in batch]
    if "packs" in name:
        for column, capacity in enumerate((100, 9)):
            key = ("fill_tokens", "fill_images")[column]
            fills = [sum(sample[column] for sample in pack) for pack in packed]
            shares = np.array(fills) / capacity
            numbers[key] = (shares.mean(), shares.min())
    if name not in ("packs", "packs of an epoch", "cost alone"):
        sizes = [
            [sum(sample[0] for sample in samples_in([part])) for part in batch]
            for batch in items
        ]
        padded = np.array([len(size) * max(size) for size in sizes])
        real = np.array([sum(size) for size in sizes])
        share = 1 - real / padded
        numbers["padding_tokens"] = (1 - real.sum() / padded.sum(), share.max())
    for column, cost in enumerate(("tokens", "images")):
        if len(steps[0]) > 1:
            costs = [
                [sum(sample[column] for sample in samples_in(rank)) for rank in step]
                for step in steps
            ]
            ratios = [max(step) / np.mean(step) for step in costs if any(step)]
            numbers[f"rank_cost_{cost}"] = (np.mean(ratios), max(ratios))
    return numbers


def loaders(name, ranks, state=None):
    """Return a loader for each rank, resumed from a state if there is one."""
    opened = []
    for rank in range(ranks):
        config = WorkerConfig(rank=rank, world_size=ranks)
        loader = get_loader(TREES[name](), worker_config=config)
        if state is not None:
            loader.load_state_dict(state)
        opened.append(loader)
    return opened


def batched(items, size):
    """Return lists of consecutive items."""
    rest = iter(items)
    return list(iter(lambda: list(islice(rest, size)), []))


def delivered(opened, steps):
    """Return the items of each rank, for each step."""
    micro_batches = opened[0].accumulation_steps
    items = [list(islice(loader, steps * micro_batches)) for loader in opened]
    micro_steps = list(zip(*items, strict=True))
    return grouped([[[item] for item in step] for step in micro_steps], micro_batches)


def grouped(steps, micro_batches):
    """Return the items of each rank, for each group of steps."""
    return [
        [[item for [item] in rank] for rank in zip(*group, strict=True)]
        for group in batched(steps, micro_batches)
    ]


def agree(used, numbers, *, costs=("tokens",)):
    """Assert that measures are those of real items."""
    checked = {
        key: value
        for key, value in numbers.items()
        if not key.startswith("rank_cost") or key.removeprefix("rank_cost_") in costs
    }
    shown = used.to_dict()
    for key, (mean, worst) in checked.items():
        assert shown[key] == pytest.approx(mean), key
        assert shown[f"{key}_worst"] == pytest.approx(worst), key
    kinds = ("fill", "padding", "rank_cost")
    assert {m.name for m in used.measures if m.kind in kinds} == set(checked)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", TREES)
def test_a_plan_measures_what_ranks_deliver(name, ranks):
    opened = loaders(name, ranks)
    micro_batches = opened[0].accumulation_steps
    items = delivered(opened, 6)
    used = measure_efficiency(
        TREES[name](),
        0,
        6 * ranks * micro_batches,
        ranks=ranks,
        micro_batches=micro_batches,
        costs=["tokens"],
        length="tokens",
    )
    assert (used.steps, used.measured) == (6, 6)
    agree(used, measured(items, name))


@pytest.mark.parametrize("micro_batches", [2, 3])
@pytest.mark.parametrize("name", ["batches of packs", "budget", "fixed", "level"])
def test_a_rank_costs_all_micro_batches_of_a_step(name, micro_batches):
    ranks = 4
    single = [
        [[item] for item in step]
        for step in batched(islice(TREES[name](), 6 * micro_batches * ranks), ranks)
    ]
    items = grouped(single, micro_batches)
    used = measure_efficiency(
        TREES[name](),
        0,
        len(single) * ranks,
        ranks=ranks,
        micro_batches=micro_batches,
        costs=["tokens", "images"],
        length="tokens",
    )
    assert used.steps == 6
    agree(used, measured(items, name), costs=("tokens", "images"))


@pytest.mark.parametrize("name", ["packs", "batches of packs", "budget", "level"])
def test_a_report_measures_what_was_delivered_since_the_resume(name):
    first = loaders(name, 2)
    items = delivered(first, 5)
    costs = ("tokens", "images") if "packs" in name else ("tokens",)
    numbers = measured(items, name)
    if name == "level":
        del numbers["padding_tokens"]
    for loader in first:
        agree(loader.report().efficiency, numbers, costs=costs)
    resumed = loaders(name, 3, first[0].state_dict())
    items = delivered(resumed, 7)
    numbers = measured(items, name)
    if name == "level":
        del numbers["padding_tokens"]
    for loader in resumed:
        report = loader.report()
        agree(report.efficiency, numbers, costs=costs)
        assert report.as_json()["efficiency"]["steps"] == 7
        key = "rank_cost_tokens"
        assert report.to_dict()[f"mix/{key}"] == pytest.approx(numbers[key][0])
        assert "most expensive rank" in str(report)


def test_a_report_measures_global_batches_of_a_level():
    dataset = TREES["level"]()
    ranks = [
        get_loader(
            dataset,
            worker_config=WorkerConfig(rank=rank, world_size=4),
            global_batch_size=48,
            ledger=Ledger(images_and_one),
        )
        for rank in range(4)
    ]
    assert ranks[0].accumulation_steps == 3
    items = delivered(ranks, 2)
    for loader in ranks:
        next(iter(loader))
    used = ranks[1].report().efficiency
    items = [
        [[[(1, sample[1] + 1) for sample in item] for item in rank] for rank in step]
        for step in items
    ]
    numbers = measured(items, "cost alone")
    assert used.micro_batches == 3
    assert used.steps == 2  # the third is not complete
    ratio = used["rank_cost_images_and_one"]
    assert (ratio.mean, ratio.worst) == pytest.approx(numbers["rank_cost_images"])


def test_reports_of_a_long_run_measure_equal_parts_and_keep_them(monkeypatch):
    monkeypatch.setattr("energize.report.efficiency._SAMPLES_OF_PART", 64)
    loader = get_loader(TREES["budget"](), worker_config=WorkerConfig())
    counts = []
    batches = iter(loader)
    for _ in range(12):
        for _ in range(25):
            next(batches)
        used = loader.report().efficiency
        counts.append(used.measured)
        assert len(used.points) <= 8
        assert len(used["padding_tokens"].values) == len(used.points)
    assert used.steps == 300
    assert counts[0] == 25
    assert max(counts) < 200
    # A new measurement of the same parts gives the same numbers.
    assert used == EfficiencyMeter(TREES["budget"](), 1).delivered(0, 300)
    assert loader.report().efficiency == used


def test_epochs_have_whole_steps():
    dataset = TREES["packs of an epoch"]()
    ranks = 4
    steps = -(-dataset.size // ranks)
    assert dataset.size % ranks
    used = measure_efficiency(dataset, 0, 3 * dataset.size, ranks=ranks)
    assert used["steps_per_epoch"].mean == steps
    assert used["packs_per_epoch"].mean == dataset.size
    assert used.steps == 3 * steps
    begun = 3 * dataset.size - dataset.size % ranks + 1
    assert used == measure_efficiency(dataset, 0, begun, ranks=ranks)
    once = measure_efficiency(dataset, 0, dataset.size, ranks=ranks)
    assert used["rank_cost_tokens"].mean == pytest.approx(once["rank_cost_tokens"].mean)
    inside = measure_efficiency(
        dataset, dataset.size + 5, dataset.size + 6, ranks=ranks
    )
    assert (inside.steps, inside.points) == (1, (dataset.size + 4,))


def test_an_epoch_without_an_end_is_estimated():
    used = measure_efficiency(TREES["budget"](), 0, 500, ranks=2)
    per_epoch = used["steps_per_epoch"]
    assert per_epoch.is_estimate
    batches = islice(TREES["budget"](), 500)
    samples = sum(map(len, batches)) / 500
    assert per_epoch.mean == pytest.approx(130 / samples / 2, rel=0.1)
    assert "about" in per_epoch.text(per_epoch.mean)


def constant(missing=1):
    return missing


def has_whole_steps(dataset):
    """Return whether an indexed dataset has 4 steps of 3 ranks, and no fillers."""
    return dataset.indexed and dataset.size >= 12 and not tree.has_padding(dataset)


@pytest.mark.parametrize(
    "name", [name for name in MIXES if has_whole_steps(MIXES[name]())]
)
def test_ranks_cost_the_samples_of_their_items_in_any_tree(name):
    dataset = MIXES[name]()
    start = 0 if tree.never_ends(dataset) else dataset.size
    used = measure_efficiency(dataset, start, start + 12, ranks=3, costs=[constant])
    items = dataset.refs(np.arange(start, start + 12)).item
    costs = np.bincount(items, minlength=12).reshape(4, 3)
    ratios = costs.max(axis=1) / costs.mean(axis=1)
    ratio = used["rank_cost_constant"]
    assert (ratio.mean, ratio.worst) == pytest.approx((ratios.mean(), max(ratios)))


def test_a_live_change_of_weights_is_measured():
    parts = {name: RepeatDataset(source(400, name, 6)) for name in "ab"}
    blend = BlendDataset(parts, weights={"a": 3, "b": 1})
    loader = get_loader(packs(blend))
    items = list(islice(loader, 40))
    loader.set_weights({"a": 1, "b": 5})
    items += islice(loader, 60)
    agree(loader.report().efficiency, measured([[[item]] for item in items], "packs"))


def test_samples_that_are_too_long_are_counted():
    columns = {"tokens": [5, 30, 7, 9, 4, 50, 3, 2]}
    texts = ListSource(range(8), columns=columns)
    dropped = PackDataset(texts, "tokens", 10, list, window=4, too_long="drop")
    used = measure_efficiency(dropped, 0, dropped.size)
    assert used["dropped"].mean == 0.25
    cut = PackDataset(texts, "tokens", 10, list, window=4, too_long="cut")
    used = measure_efficiency(cut, 0, cut.size)
    sums = [sum(min(columns["tokens"][n], 10) for n in pack) for pack in cut]
    assert used["fill_tokens"].mean == pytest.approx(np.mean(sums) / 10)


@pytest.mark.parametrize("rule", ["together", "always"])
def test_fillers_of_aligned_batches_are_counted_and_cost(rule):
    samples = [
        {"__key__": str(number), "tokens": 1 + number % 7, "images": number % 5 == 0}
        for number in range(200)
    ]
    columns = {name: [s[name] for s in samples] for name in ("tokens", "images")}
    source = ShuffleDataset(ListSource(samples, columns=columns))
    dataset = AlignDataset(
        source, 3, list, global_batch_size=12, columns={"images": rule}, ranks=4
    )
    ranks = [
        get_loader(dataset, worker_config=WorkerConfig(rank=rank, world_size=4))
        for rank in range(4)
    ]
    fillers = []
    ratios = []
    for _ in range(15):
        batches = [next(iter(loader)) for loader in ranks]
        fillers.append(sum(len(loader.padding_rows) for loader in ranks))
        costs = [sum(sample["tokens"] for sample in batch) for batch in batches]
        ratios.append(max(costs) / np.mean(costs))
    assert sum(fillers)
    used = measure_efficiency(dataset, 0, 60, ranks=4, costs=["tokens"])
    counted = used["fillers_per_step"]
    assert (counted.mean, counted.worst) == (np.mean(fillers), max(fillers))
    ratio = used["rank_cost_tokens"]
    assert (ratio.mean, ratio.worst) == pytest.approx((np.mean(ratios), max(ratios)))
    for loader in ranks:
        report = loader.report()
        assert report.efficiency["fillers_per_step"] == counted
        assert report.to_dict()["mix/fillers"] == report.ranks[0].fillers


def test_nothing_is_measured_without_lengths_and_costs():
    assert measure_efficiency(TREES["fixed"](), 0, 100, ranks=4) is None
    assert get_loader(TREES["fixed"]()).report().efficiency is None
    used = measure_efficiency(TREES["level"](), 0, 100, ranks=4)
    assert [m.kind for m in used.measures] == ["rank_cost", "steps_per_epoch"]
    with pytest.raises(ColumnError, match="words"):
        measure_efficiency(TREES["fixed"](), 0, 100, costs=["words"])
    with pytest.raises(KeyError, match="rank_cost_tokens"):
        used["fill_tokens"]
