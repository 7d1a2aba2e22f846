"""Mixes as states describe them, against the mixes themselves."""

import json

import numpy as np
import pytest

from energize import BatchDataset, BlendDataset, ListSource, Schedule, ShuffleDataset
from energize.core.description import config_tree
from energize.errors import StateError
from energize.preview.of_outline import mix_of_outline
from tests.support.datasets import INDEXED

KNOWN = {
    "BatchDataset", "BlendDataset", "ConcatDataset", "LimitDataset", "RepeatDataset",
    "ShuffleDataset", "StagedDataset",
}  # fmt: skip


def told(dataset):
    """The outline as a state has it."""
    return json.loads(json.dumps(config_tree(dataset)))


def kinds(tree):
    inputs = tree.get("inputs", [])
    return {tree["kind"]}.union(*map(kinds, inputs)) if inputs else set()


def counts(dataset):
    return {each.name: each.count for each in dataset.sources}


@pytest.mark.parametrize("name", INDEXED)
def test_a_described_mix_takes_as_many_samples(name):
    dataset = INDEXED[name]
    tree = told(dataset)
    text = json.dumps(tree)
    if not kinds(tree) <= KNOWN or '"unit"' in text or '"scheme": {' in text:
        with pytest.raises(StateError, match="give the mix too"):
            mix_of_outline(tree)
        return
    made = mix_of_outline(tree)
    assert counts(made) == counts(dataset)
    for items in (0, 1, 9, 40):
        read, expected = made.consumed(items).sum(), dataset.consumed(items).sum()
        assert abs(read - expected) <= 8  # whole batches of several sizes


def test_shares_of_a_described_mix_are_those_of_the_mix():
    glide = Schedule([(0, 9), (2000, 1)], "linear")
    web, code = (ShuffleDataset(ListSource(range(99), name=name)) for name in ("web", "code"))
    inner = BlendDataset((web, glide), (code, 1), scheme="exact")
    mix = BatchDataset(BlendDataset((inner, 2), (web, 1)), 4, list)
    made = mix_of_outline(told(mix))
    for items in (1, 100, 10**6):
        assert np.abs(made.consumed(items) - mix.consumed(items)).max() <= 8
    with pytest.raises(StateError, match="no samples"):
        made.at([0])


@pytest.mark.parametrize(
    "tree",
    [{}, {"kind": "BlendDataset"}, {"kind": "os.system", "inputs": []}, {"kind": "ListSource"},
     {"kind": "BlendDataset", "inputs": {"count": 3, "digests": "abcabc"}}],
)  # fmt: skip
def test_outlines_that_say_too_little(tree):
    with pytest.raises(StateError, match="give the mix too"):
        mix_of_outline(tree)
