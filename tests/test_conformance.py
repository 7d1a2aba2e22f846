"""What other mixing systems were seen to do, asked of this one through the public API.

The cases are runs of nanotron, the data-stages document and MosaicML Streaming 0.13;
those of EasyDeL and squirrel-core are in tests/compat. Where "improve" is in a name,
there it is another value, and the one that is intended is asked for.
"""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest

from energize import ComposedDataset, StateMismatchError
from energize.order.quota import epoch_counts
from tests.support.composing import composed, global_batches
from tests.support.datasets import numbers
from tests.support.mosaicml_cases import BATCHES, COUNTS
from tests.support.stages import two_mixes

# Stages


@pytest.mark.parametrize(
    "changed",
    [{"position": 39}, {"stage_idx": 0}, {"stage_name": "general"}, {"stage_idx": 7}],
    ids=str,
)
def test_a_state_that_contradicts_itself(changed):
    data = two_mixes()
    cursor = data.open()
    list(islice(cursor, 45))
    with pytest.raises(
        StateMismatchError, match="in this plan the item before belongs to stage"
    ):
        data.open(state={**cursor.state(), **changed})


# MosaicML Streaming


def test_counts_of_an_epoch():
    for name, (sizes, quotas, epoch_size, counts) in COUNTS.items():
        assert epoch_counts(sizes, quotas, epoch_size).tolist() == counts, name


def test_batches_of_an_epoch():
    for name, (method, counts, size, ranks, batches, drawn, every) in BATCHES.items():
        found = global_batches(composed(counts, method, size, ranks))
        assert len(found) == batches, name
        assert tuple(np.sum(found, axis=0)) == drawn, name
        assert every is None or set(found) == {every}, name
        if method == "stratified" and len(found) > 1:  # shares hold over any batches
            due = np.outer(
                np.arange(1, batches + 1), np.array(drawn) * size * ranks / sum(drawn)
            )
            assert abs(np.cumsum(found, axis=0)[:-1] - due[:-1]).max() < 1.68, name


def streams_in(batches, streams):
    samples = np.fromiter(chain.from_iterable(batches), dtype=np.int64)
    return tuple(np.bincount(samples // 10_000, minlength=streams).tolist())


@pytest.mark.parametrize("least", [1, 2, 33, 65, 66])
def test_a_stream_too_small_for_every_batch_comes_as_often_as_asked(least, caplog):
    data = [numbers(1000), numbers(least, 10_000)]
    batches = ComposedDataset(data, batch_size=8, batching_method="stratified")
    assert streams_in(list(batches), 2) == (1000, least)
    assert "8 hold less than half a sample of some streams" in caplog.text
    caplog.clear()
    smallest = -(-(1000 + least) // (2 * least))  # half a sample of it in each
    whole = ComposedDataset(data, batch_size=smallest, batching_method="stratified")
    assert whole.counts() == [1000, least]
    assert not caplog.records
    ComposedDataset(data, batch_size=smallest - 1, batching_method="stratified")
    assert "less than half a sample" in caplog.text
