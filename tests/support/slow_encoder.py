"""An encoder that is what a run waits for."""

import time

from energize import DefaultTaskEncoder


class Slow(DefaultTaskEncoder):
    """Takes 5 ms for a sample."""

    def encode_sample(self, sample):
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            sum(range(1000))
        return sample
