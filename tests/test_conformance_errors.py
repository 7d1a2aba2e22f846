"""Mixes, schedules, quotas, batches and stages that cannot be: each is refused by name.

Some are runs of MosaicML Streaming 0.13 that ended without a message, or with one.
"""

from __future__ import annotations

import pytest

from energize import (
    BlendDataset,
    ComposedDataset,
    ConfigError,
    EmptyDatasetError,
    MixBatchDataset,
    Quota,
    QuotaDataset,
    Schedule,
    Stage,
    StagePlan,
    WeightSchedulePoint,
    WeightScheduler,
)
from tests.support.datasets import numbers

NAN, INF = float("nan"), float("inf")
PARTS = {"code": numbers(3), "text": numbers(4, 100)}


def point(step=0, **weights):
    return WeightSchedulePoint(step, weights)


def blend(*weights, **options):
    return BlendDataset(zip(PARTS.values(), weights, strict=True), **options)


def named(dataset=BlendDataset, code=1, text=1, **options):
    return dataset(PARTS, weights={"code": code, "text": text}, **options)


def plan(*bounds, steps=20):
    return StagePlan([Stage(name, *bound, dataset=name) for name, bound in bounds], steps)


def composed(sizes, method, batch_size, global_batch_size=None):
    return ComposedDataset(
        [numbers(size, 10_000 * i) for i, size in enumerate(sizes)],
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        batching_method=method,
    )


REFUSED = {
    "missing and unknown names": (
        lambda: BlendDataset(PARTS, weights={"code": 1, "txt": 1, "math": 1}),
        r"missing 'text'; unknown 'txt'; did you mean 'text'\?, 'math'",
    ),
    "missing and unknown names, mixed batches": (
        lambda: MixBatchDataset(PARTS, weights={"code": 1, "txt": 1}, batch_size=2),
        "missing 'text'; unknown 'txt'",
    ),
    "missing and unknown names in a scheduler": (
        lambda: BlendDataset(PARTS, weights=WeightScheduler([point(code=0.5, math=0.5)])),
        "missing 'text'; unknown 'math'",
    ),
    "missing and unknown names in a point": (
        lambda: WeightScheduler([point(a=0.5, b=0.5), point(9, a=0.5, c=0.5)]),
        "the point at step 9 .*missing 'b'; unknown 'c'",
    ),
    "unknown names of epochs": (
        lambda: named(max_epochs={"txet": 1}),
        "max_epochs: the datasets are code, text; unknown 'txet'; did you mean 'text'",
    ),
    "unknown names of limits": (
        lambda: named(min_share={"txet": 0.1}),
        "min_share: the datasets are code, text; unknown 'txet'",
    ),
    "a point that does not sum": (lambda: point(5, a=0.5, b=0.4), r"at step 5.* sum to 0\.9"),
    "points without weights": (lambda: point(5), "at step 5: weights map each source to a number"),
    "all zero points": (lambda: point(5, a=0, b=0), "at step 5: all 2 weights are 0"),
    "negative in a point": (lambda: point(5, a=-1, b=2), "at step 5, source 'a'.* got -1"),
    "NaN in a point": (lambda: point(5, a=NAN, b=1), "at step 5, source 'a'.* got nan"),
    "infinite in a point": (lambda: point(5, a=INF, b=1), "at step 5, source 'a'.* got inf"),
    "two points at one step": (
        lambda: WeightScheduler([point(5, a=1), point(5, a=1)]),
        r"WeightScheduler: points are in order of their steps.* got \[5, 5\]",
    ),
    "points out of order": (
        lambda: WeightScheduler([point(5, a=1), point(2, a=1)]),
        r"WeightScheduler: points are in order of their steps.* got \[5, 2\]",
    ),
    "points that are no pairs": (lambda: Schedule([3, 4]), r"pairs \(step, value\); got 3"),
    "points that are no list": (lambda: Schedule(None), "pairs .*; got None"),
    "negative": (lambda: blend(-1, 1), "dataset 0: .*not negative, got -1"),
    "NaN": (lambda: blend(1, NAN), "dataset 1: .*finite.* got nan"),
    "infinite": (lambda: blend(INF, 1), "dataset 0: .*finite.* got inf"),
    "negative, by name": (lambda: named(text=-1), "dataset 'text': .* got -1"),
    "NaN, by name": (lambda: named(code=NAN), "dataset 'code': .* got nan"),
    "no number, by name": (lambda: named(code="1"), "dataset 'code': .*number, got '1'"),
    "all zero": (lambda: blend(0, 0), "all 2 weights are 0"),
    "all zero, scheduled": (lambda: blend(Schedule([(0, 0)]), 0), "all 2 weights are 0"),
    "no datasets": (lambda: BlendDataset([]), "no datasets to mix"),
    "no datasets, by name": (lambda: BlendDataset({}, weights={}), "no datasets to mix"),
    "a share that is text": (lambda: blend(1, 1, min_share="1"), "from 0 to 1, got '1'"),
    "quotas of two kinds": (lambda: Quota(proportion=1, repeat=2), "got proportion=1, repeat=2"),
    "quotas of two kinds, apart": (
        lambda: QuotaDataset((numbers(3), Quota(proportion=1)), (numbers(3), Quota(repeat=2))),
        r"stream 0 \(.*\) has a proportion, but stream 1 \(.*\) has repeat",
    ),
    "a quota for some": (
        lambda: QuotaDataset((numbers(3), Quota(proportion=1)), numbers(3)),
        r"stream 0 \(.*\) has a proportion, but stream 1 \(.*\) has no quota",
    ),
    "a quota and a size": (
        lambda: QuotaDataset((numbers(3), Quota(choose=1)), epoch_size=5),
        r"epoch_size=5 and choose of stream 0 \(.*\) contradict",
    ),
    "a remainder that is too small for all devices": (
        lambda: composed((5, 5), "random", 1, 4),
        r"10 samples leaves 2 .* too few for 4 devices. Use drop_last=True .*; pad=\.\.\. ",
    ),
    "a batch larger than the epoch": (
        lambda: composed((3, 3), "stratified", 8),
        "6 samples of an epoch cannot fill one global batch of 8; use .* of at most 6",
    ),
    "no global batch of a stream": (
        lambda: composed((1000, 6), "per_stream", 4, 8),
        r"stream 1 \(.*\) gives 6 samples .*batch of 8.* at most 6",
    ),
    "no device batch of a stream": (
        lambda: composed((8, 3), "device_per_stream", 4),
        r"stream 1 \(.*\) gives 3 samples .*batch of 4.* at most 3",
    ),
    "stages that overlap": (lambda: plan(("a", (0, 6)), ("b", (5,))), "5 to 6 belong to two"),
    "a gap between stages": (lambda: plan(("a", (0, 4)), ("b", (5,))), "4 to 5 belong to no"),
    "a gap at the end": (lambda: plan(("a", (0, 4))), "4 to 20 belong to no stage"),
    "a stage that never runs": (
        lambda: plan(("a", (0,)), ("b", (100,))),
        "stage 'b' would never run: it starts at step 100, and training has 20 steps",
    ),
    "an empty dataset that restarts": (
        lambda: BlendDataset((numbers(3), 1), (numbers(0, 7), 1)),
        r"dataset 1 has weight 1\.0 and no items \(it reads 'numbers7'\)",
    ),
    "an empty dataset in a mixed batch": (
        lambda: MixBatchDataset((numbers(3), 1), (numbers(0, 7), 1), batch_size=2),
        "no items .it reads 'numbers7'",
    ),
    "no epochs": (lambda: blend(1, 1, max_epochs=0), "max_epochs.* 1 or more.* got 0"),
    "no epochs, of one": (lambda: blend(1, 1, max_epochs=[2, 0]), "max_epochs, dataset 1.* got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_mixed_is_named(case):
    make, message = REFUSED[case]
    with pytest.raises((ConfigError, EmptyDatasetError), match=message):
        make()
