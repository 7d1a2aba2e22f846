"""Small datasets: sources, what users' functions do, and one of everything for the
laws.

`INDEXED` and `STREAMS` are the mixes whose items are recorded (`tests/golden/mixes.py`)
and are small, with a few more; `STREAMING` are streams that tests with processes read.
"""

from __future__ import annotations

import numpy as np

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    Dataset,
    EpochizeDataset,
    FilterDataset,
    IterableSource,
    LimitDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    SampleWeightDataset,
    ShuffleDataset,
    SkipSample,
    by_property,
    generic_batch,
)
from energize.compat.multiplexing import EpochEnd, MultiplexedDataset
from energize.data.selection import PropertySource, Selection
from energize.datasets.planned import BudgetBatchDataset, PackDataset
from energize.experimental import AlignDataset, AlignedBudgetDataset, LevelDataset
from energize.order import make_scheme
from tests.golden import mixes
from tests.golden.mixes import KINDS, MIXES, boxed, heavy, is_even, noisy, skipping

skip_thirds = skipping


def numbers(count: int, start: int = 0, name: str = "numbers") -> ListSource:
    return ListSource(range(start, start + count), name=f"{name}{start}")


def shuffled(count: int, start: int = 0, **options) -> ShuffleDataset:
    return ShuffleDataset(numbers(count, start), **options)


def evens(count: int = 20, start: int = 0) -> FilterDataset:
    return FilterDataset(shuffled(count, start), is_even)


def costly(count: int, start: int = 0) -> ListSource:
    """Numbers with a column `cost`, of which a few are dear."""
    costs = [1 + (7 * number) % 11 ** (1 + number % 3) for number in range(count)]
    return ListSource(
        range(start, start + count), name=f"costly{start}", columns={"cost": costs}
    )


def labelled(count: int, start: int = 0) -> ListSource:
    """Numbers with a word each, or none, and their place among them."""
    kinds = [KINDS[i % len(KINDS)] for i in range(count)]
    columns = {"kind": kinds, "place": range(count)}
    return ListSource(
        range(start, start + count), name=f"labelled{start}", columns=columns
    )


def pictured(count: int, start: int = 0, share: int = 4) -> ShuffleDataset:
    """Boxes, a few of which have images, or audio."""
    columns = {
        "images": [int(7 * i % 11 < share) for i in range(count)],
        "audio": [int(i % 7 == 4) for i in range(count)],
        "words": [1 + 5 * i % 9 for i in range(count)],
    }
    boxes = [boxed(number) for number in range(start, start + count)]
    return ShuffleDataset(ListSource(boxes, name=f"p{start}", columns=columns))


def jitter_unless_fifth(box: dict, rng: np.random.Generator) -> dict:
    if box["item"] % 5 == 0:
        raise SkipSample
    return box | {"drawn": int(rng.integers(10**9))}


LARGE = {
    "blend of 120", "blend of 41 that ends", "blend, far windows", "quotas, large",
    "quotas, sized", "shuffle, large", "shuffle, larger",
}  # fmt: skip
"""Mixes that take too long to be read from every position."""

EVERY: dict[str, Dataset] = {name: MIXES[name]() for name in MIXES if name not in LARGE}

INDEXED: dict[str, Dataset] = {
    name: each for name, each in EVERY.items() if each.indexed
} | {
    "blend": BlendDataset((shuffled(5), 0.7), (shuffled(3, 100), 0.3)),
    "batch of repeat": BatchDataset(RepeatDataset(shuffled(7)), 3, list),
    "batch of sample weights": BatchDataset(
        SampleWeightDataset(MapDataset(shuffled(11), boxed), heavy), 3, generic_batch
    ),
    "level batches, drop last": BatchDataset(
        LevelDataset(
            ShuffleDataset(costly(23)),
            3,
            global_batch_size=6,
            cost=lambda cost: 2 * cost,
        ),
        3,
        list,
        drop_last=True,
    ),
    "aligned": AlignDataset(
        pictured(37),
        2,
        global_batch_size=12,
        columns=["images", "audio"],
        ranks=3,
    ),
    "aligned, drop last": AlignDataset(
        pictured(37),
        2,
        generic_batch,
        global_batch_size=12,
        columns="images",
        drop_last=True,
    ),
    "aligned, endless": AlignDataset(
        MapDataset(
            BlendDataset((pictured(9), 1), (pictured(5, 100, 0), 4)),
            jitter_unless_fifth,
        ),
        2,
        global_batch_size=8,
        columns={"images": "always", "audio": "together"},
    ),
    "aligned budget": AlignedBudgetDataset(
        pictured(37),
        {"words": 20},
        generic_batch,
        columns=["images", "audio"],
        ranks=3,
        window=24,
    ),
    "aligned budget, levelled": AlignedBudgetDataset(
        pictured(37),
        {"words": 20},
        generic_batch,
        columns="images",
        ranks=2,
        level={"words": 1, "images": 0.5},
    ),
    "composed, padded": ComposedDataset(
        numbers(21), batch_size=1, global_batch_size=4, shuffle=True
    ),
    "property": PropertySource(labelled(23), Selection("kind", "low")),
    "property, others": PropertySource(
        labelled(23), Selection("kind", other_than=("low",))
    ),
}

# fmt: off
PLANNED: dict[str, Dataset] = {
    "planned packs, endless": mixes.planned(MapDataset(RepeatDataset(mixes.mixed(23)), skipping), window=9),
    "planned packs of a blend": mixes.planned(mixes.blend(3, 1, 1)),
    "planned packs by words": mixes.planned(RepeatDataset(mixes.mixed(29)), homogeneous="kind"),
    "planned packs by source": mixes.planned(mixes.blend(3, 1, 1), homogeneous="source"),
    "planned packs of two lengths": PackDataset(mixes.blend(1, 2), ("cost", lambda place: place % 4), (130, 6), list, window=12, too_long="cut"),
    "planned packs, changed": mixes.planned(mixes.blend(3, 1).with_weights_from(32, [1, 3])),
    "planned packs in stages": mixes.staged(mixes.Stage("one", 0, 9, dataset=mixes.planned(mixes.two_to(1, 1))), mixes.Stage("two", 9, 30, dataset=mixes.planned(mixes.two_to(1, 3))), total=30),
    "blend of planned packs": BlendDataset((mixes.planned(RepeatDataset(mixes.mixed(23))), 1), (mixes.planned(mixes.blend(1, 2)), 2)),
    "batches of planned packs": BatchDataset(mixes.planned(mixes.blend(2, 1)), 3, list),
    "budget": BudgetBatchDataset(mixes.blend(2, 1), {"cost": 1400}, list, window=20),
    "aligned budget, levelled, endless": AlignedBudgetDataset(MapDataset(BlendDataset((pictured(37), 1), (pictured(15, 100, 0), 2)), jitter_unless_fifth), {"words": 30}, generic_batch, columns={"images": "always", "audio": "together"}, ranks=2, window=20, level="words"),
    "budget of planned packs": BudgetBatchDataset(mixes.planned(mixes.blend(2, 1), too_long="cut", capacity=40), {"cost": 3000}, list, window=8),
}
# fmt: on
"""Plans of mixes without end. Their far positions are found by planning all before."""

INDEXED |= PLANNED

STREAMING: dict[str, Dataset] = {
    "by property of filter": by_property(
        FilterDataset(ShuffleDataset(labelled(29)), is_even),
        "kind",
        {"high": 2, "low": 1},
        other=1,
    ),
    "filter": evens(),
    "map of filter": MapDataset(evens(), noisy),
    "skipping map of filter": MapDataset(evens(30), skip_thirds),
    "batch of filter": BatchDataset(evens(), 3, list),
    "batch of filter, drop last": BatchDataset(evens(), 3, list, drop_last=True),
    "repeat of filter": RepeatDataset(evens()),
    "limit of filter": LimitDataset(evens(), 4),
    "epochize of filter": EpochizeDataset(evens(), 4),
    "concat of filter": ConcatDataset(evens(), shuffled(3, 100)),
    "blend of filter": BlendDataset((evens(), 1), (shuffled(5, 100), 2)),
    "mix batch of filter": MixBatchDataset(
        (evens(), 1), (shuffled(5, 100), 2), batch_size=3
    ),
    "filter of blend": FilterDataset(INDEXED["blend"], is_even),
}


def multiplexed(rule: str, *passes: int | None) -> MultiplexedDataset:
    inputs = evens(), IterableSource(range(100, 107), name="rows")
    slots = make_scheme("block", [1, 2], key=7)
    return MultiplexedDataset(inputs, ["evens", "rows"], slots, EpochEnd(rule, passes))


STREAMS: dict[str, Dataset] = (
    STREAMING
    | {name: each for name, each in EVERY.items() if not each.indexed}
    | {
        "multiplexed, leave out": multiplexed("leave_out", 1, 2),
        "multiplexed, all seen": multiplexed("all_seen", None, None),
    }
)
