"""Staged mixes of two small sources."""

from __future__ import annotations

from energize import BatchDataset, BlendDataset, MapDataset
from energize.experimental import Stage, StagedDataset, StagePlan
from tests.support.datasets import shuffled


def web():
    return shuffled(100)


def maths():
    return shuffled(60, 1000)


def mix(web_share, batch_size=None, function=None):
    blend = BlendDataset((web(), web_share), (maths(), 1 - web_share), scheme="block")
    mapped = blend if function is None else MapDataset(blend, function)
    return mapped if batch_size is None else BatchDataset(mapped, batch_size, list)


def staged(*stages, total=None, **options):
    return StagedDataset(StagePlan(stages, total), **options)


def two_mixes(**options):
    return staged(
        Stage("general", 0, 40, dataset=mix(0.75, 2)),
        Stage("reasoning", 40, dataset=mix(0.25, 3), items_per_step=2),
        total=60,
        **options,
    )
