"""What is looked up without saying which samples they are is what refs say."""

from __future__ import annotations

import numpy as np
import pytest

from energize import INFINITE
from energize.core.trace import Trace
from tests.support.datasets import INDEXED


@pytest.mark.parametrize("name", sorted(INDEXED))
def test_it_agrees_with_refs(name):
    dataset = INDEXED[name]
    size = min(dataset.size, 50) if dataset.size != INFINITE else 50
    positions = np.concatenate([np.arange(3 * size), np.arange(size)[::-1] * 7])
    shallow, whole = Trace(dataset, positions, exact=False).refs(), dataset.refs(positions)
    assert shallow.item.tolist() == whole.item.tolist()
    assert shallow.source.tolist() == whole.source.tolist()
    assert shallow.epoch.tolist() == whole.epoch.tolist()
