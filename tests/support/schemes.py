"""What every scheme keeps: counts and locate agree, nothing is taken back."""

from __future__ import annotations

import numpy as np


def check_counts(scheme, slots: int, start: int = 0, every: int = 7) -> None:
    """Over `slots` slots from `start`: counts sum to n, never fall, and say what locate says."""
    counts = scheme.counts(start).copy()
    source, nth = scheme.locate(np.arange(start, start + slots))
    for k in range(slots):
        if k % every == 0:
            assert (scheme.counts(start + k) == counts).all(), start + k
            assert counts.sum() == start + k
        assert nth[k] == counts[source[k]], start + k
        counts[source[k]] += 1
    assert (scheme.counts(start + slots) == counts).all()
    alone = np.array([scheme.locate(np.array([k]))[0][0] for k in range(start, start + slots, 53)])
    assert (alone == source[::53]).all()
