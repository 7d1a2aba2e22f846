"""Samples distributed so that the micro batches of a step have the same modalities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.order.align import aligned, micro_batch_sizes

LIMIT = settings(max_examples=100)


@st.composite
def global_batches(draw, modalities=3, short=True):
    """The masks of the samples of a global batch, and its sizes."""
    ranks = draw(st.integers(1, 8))
    steps = draw(st.integers(1, 6))
    size = draw(st.integers(1, 6))
    batches = ranks * steps
    count = batches * size
    if short and draw(st.booleans()):
        count = draw(st.integers(1, count))
    weights = draw(
        st.lists(st.integers(0, 9), min_size=2**modalities, max_size=2**modalities)
    )
    shares = np.array(weights) + (np.arange(2**modalities) == 0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    masks = rng.choice(2**modalities, size=count, p=shares / shares.sum())
    return masks.astype(np.int64), ranks, batches, size


def parts_of(result):
    bounds = result.bounds.tolist()
    return [result.order[a:b] for a, b in pairwise(bounds)]


def union(masks):
    return int(np.bitwise_or.reduce(masks)) if len(masks) else 0


@LIMIT
@given(global_batches(), st.integers(0, 7))
def test_each_sample_comes_once_and_what_is_missing_is_stated(batch, always):
    masks, ranks, batches, _ = batch
    sizes = micro_batch_sizes(len(masks), batches)
    result = aligned(masks, sizes, ranks, always)
    assert sorted(result.order.tolist()) == list(range(len(masks)))
    assert np.diff(result.bounds).tolist() == sizes.tolist()
    parts = [union(masks[part]) for part in parts_of(result)]
    for step in range(batches // ranks):
        rows = range(step * ranks, (step + 1) * ranks)
        present = union(np.array([parts[row] for row in rows])) | always
        for row in rows:
            assert result.present[row] == present
            assert result.missing[row] == present & ~parts[row]


@LIMIT
@given(global_batches(modalities=1, short=False))
def test_the_bound_of_one_modality(batch):
    masks, ranks, batches, size = batch
    result = aligned(masks, micro_batch_sizes(len(masks), batches), ranks)
    missing = int((result.missing > 0).sum())
    having = int(masks.sum())
    assert missing < ranks
    if having >= ranks and size > 1:
        assert not missing
    if 0 < having < ranks:
        assert missing == ranks - having


@LIMIT
@given(global_batches(modalities=2, short=False))
def test_the_bound_of_two_modalities(batch):
    masks, ranks, batches, size = batch
    result = aligned(masks, micro_batch_sizes(len(masks), batches), ranks)
    if size > 2:
        for bit in (1, 2):
            assert int((result.missing & bit > 0).sum()) < ranks


@LIMIT
@given(global_batches(modalities=1, short=False))
def test_always_needs_one_for_each_micro_batch_without_a_sample(batch):
    masks, ranks, batches, _ = batch
    result = aligned(masks, micro_batch_sizes(len(masks), batches), ranks, always=1)
    assert int((result.missing > 0).sum()) == max(batches - int(masks.sum()), 0)


@given(global_batches())
def test_an_aligned_batch_keeps_its_order(batch):
    masks, ranks, batches, _ = batch
    sizes = micro_batch_sizes(len(masks), batches)
    first = aligned(masks, sizes, ranks)
    again = aligned(masks[first.order], sizes, ranks)
    if not first.missing.any():
        assert again.order.tolist() == list(range(len(masks)))


def test_an_example():
    """Two micro steps of two ranks: both images are in the first one."""
    masks = np.array([0, 0, 1, 0, 0, 1, 0, 0])
    result = aligned(masks, micro_batch_sizes(8, 4), 2)
    assert [part.tolist() for part in parts_of(result)] == [
        [0, 2],
        [1, 5],
        [3, 6],
        [4, 7],
    ]
    assert not result.missing.any()
