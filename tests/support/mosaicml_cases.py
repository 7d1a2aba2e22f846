"""What an epoch and its batches are made of, beside MosaicML Streaming 0.13, which
tests/compat/test_streaming_interop.py runs on the same cases.
"""

from __future__ import annotations

from energize.order.quota import Quota, epoch_counts


def proportions(*values):
    return [Quota(proportion=value) for value in values]


def repeats(*values):
    return [Quota(repeat=value) for value in values]


def chosen(*values):
    return [Quota(choose=value) for value in values]


NONE = Quota()

# Sizes of the streams, quotas, epoch size and samples of each stream. "match": the same
# counts; "improve": there the leftovers go to random streams, and products are cut off
# after a float error.
COUNTS = {
    "natural sizes, equal, match": ([2] * 4, [NONE] * 4, None, [2, 2, 2, 2]),
    "natural sizes, match": ([100, 200, 300], [NONE] * 3, None, [100, 200, 300]),
    "an epoch size, match": ([200, 300], [NONE] * 2, 10, [4, 6]),
    "shares that tie, improve: to the first": ([1] * 3, [NONE] * 3, 7, [3, 2, 2]),
    "proportions, match": ([100, 200], proportions(0.25, 0.75), None, [75, 225]),
    "proportions above 1, match": ([100, 200], proportions(2, 6), None, [75, 225]),
    "thirds, improve: to the first": (
        [100, 200, 300],
        proportions(1, 1, 1),
        100,
        [34, 33, 33],
    ),
    "sixths and nothing, match": (
        [2] * 4,
        proportions(0, 1 / 6, 2 / 6, 3 / 6),
        12,
        [0, 2, 4, 6],
    ),
    "tenths of 10, match": ([100] * 3, proportions(0.7, 0.2, 0.1), 10, [7, 2, 1]),
    "tenths of 1000, match": (
        [100] * 3,
        proportions(0.6, 0.3, 0.1),
        1000,
        [600, 300, 100],
    ),
    "a proportion of 0, improve: nothing": (
        [10] * 3,
        proportions(0.5, 0.5, 0),
        7,
        [4, 3, 0],
    ),
    "a tenth of a sample, improve: none": (
        [1000] * 2,
        proportions(0.999, 0.001),
        100,
        [100, 0],
    ),
    "repeat 0.29, improve: whole": ([100, 100], repeats(0.29, 1), None, [29, 100]),
    "repeat 0.57, improve: whole": ([100, 100], repeats(0.57, 0.58), None, [57, 58]),
    "repeat in halves, match": ([3, 3], repeats(1.5, 0.5), None, [4, 1]),
    "choose, match": ([100, 200], chosen(250, 50), None, [250, 50]),
    "repeat, choose and nothing said, match": (
        [2] * 4,
        [Quota(repeat=0), NONE, Quota(repeat=2), Quota(choose=6)],
        None,
        [0, 2, 4, 6],
    ),
    "the only proportion, match": ([10], proportions(0.3), None, [10]),
    "an epoch longer than the streams, match": (
        [100, 200],
        proportions(1, 1),
        1000,
        [500, 500],
    ),
    "one third, match": ([3], repeats(1 / 3), None, [1]),
    "huge, match": (
        [10**12, 10**12],
        proportions(1, 2),
        3 * 10**15,
        [10**15, 2 * 10**15],
    ),
}


def shares(*weights, epoch_size=1000):
    quotas = [Quota(proportion=weight) for weight in weights]
    return tuple(epoch_counts([1] * len(weights), quotas, epoch_size).tolist())


# Method, samples of each stream, device batch, ranks; then batches on each rank,
# samples drawn, and what every full global batch holds (None: it varies). "2:3 by 4":
# 200 and 300 samples in batches of 4; "match": the same numbers; "improve": what is
# better here.
BATCHES = {
    "random, improve: no long runs": ("random", (100, 100), 8, 1, 25, (100, 100), None),
    "random unshuffled, improve: mixed": (
        "random",
        (100, 100),
        8,
        1,
        25,
        (100, 100),
        None,
    ),
    "random with a remainder, improve: none twice": (
        "random",
        (5, 5),
        1,
        4,
        3,
        (5, 5),
        None,
    ),
    "random on two devices, improve: none twice": (
        "random",
        (41, 28),
        4,
        2,
        9,
        (41, 28),
        None,
    ),
    "2:3 by 4, improve: none dropped": (
        "stratified",
        (200, 300),
        4,
        1,
        125,
        (200, 300),
        None,
    ),
    "2:3 by 7, improve: none dropped": (
        "stratified",
        (200, 300),
        7,
        1,
        72,
        (200, 300),
        None,
    ),
    "2:3 by 10, match": ("stratified", (200, 300), 10, 1, 50, (200, 300), (4, 6)),
    "1:1:1 by 8, improve: none dropped": (
        "stratified",
        (300,) * 3,
        8,
        1,
        113,
        (300,) * 3,
        None,
    ),
    "1:1:1 by 10, improve: none dropped": (
        "stratified",
        (300,) * 3,
        10,
        1,
        90,
        (300,) * 3,
        None,
    ),
    "1:1:1:1 by 6, improve: none dropped": (
        "stratified",
        (300,) * 4,
        6,
        1,
        200,
        (300,) * 4,
        None,
    ),
    "1:1 by 5, improve: none dropped": (
        "stratified",
        (300, 300),
        5,
        1,
        120,
        (300, 300),
        None,
    ),
    "9:1 by 8, improve: exact": (
        "stratified",
        shares(0.9, 0.1),
        8,
        1,
        125,
        (900, 100),
        None,
    ),
    "4:1 by 8, improve: exact": (
        "stratified",
        shares(0.8, 0.2),
        8,
        1,
        125,
        (800, 200),
        None,
    ),
    "11:9 by 2, improve: exact": (
        "stratified",
        shares(0.55, 0.45),
        2,
        1,
        500,
        (550, 450),
        None,
    ),
    "6:3:1 by 10, match": (
        "stratified",
        shares(0.6, 0.3, 0.1, epoch_size=900),
        10,
        1,
        90,
        (540, 270, 90),
        (6, 3, 1),
    ),
    "1000:67 by 8, improve: none dropped": (
        "stratified",
        (1000, 67),
        8,
        1,
        134,
        (1000, 67),
        None,
    ),
    "16 by 8, improve: half is enough": (
        "stratified",
        (100,) * 16,
        8,
        1,
        200,
        (100,) * 16,
        None,
    ),
    "16 by 16, match": ("stratified", (100,) * 16, 16, 1, 100, (100,) * 16, (1,) * 16),
    "16 by 32, match": ("stratified", (100,) * 16, 32, 1, 50, (100,) * 16, (2,) * 16),
    "a stream at a time, by 4, match": (
        "per_stream",
        (200, 300),
        4,
        1,
        125,
        (200, 300),
        None,
    ),
    "a stream at a time, by 7, match": (
        "per_stream",
        (200, 300),
        7,
        1,
        70,
        (196, 294),
        None,
    ),
    "a stream at a time, 2 devices, match": (
        "per_stream",
        (1000, 8),
        4,
        2,
        126,
        (1000, 8),
        None,
    ),
    "per device by 4, improve: equal": (
        "device_per_stream",
        (200, 300),
        4,
        4,
        31,
        (200, 296),
        None,
    ),
    "per device by 7, improve: equal": (
        "device_per_stream",
        (200, 300),
        7,
        4,
        17,
        (189, 287),
        None,
    ),
    "per device of 2, improve: equal": (
        "device_per_stream",
        (40, 28),
        4,
        2,
        8,
        (36, 28),
        None,
    ),
    "per device, few samples, match": (
        "device_per_stream",
        (41, 28),
        4,
        4,
        4,
        (40, 24),
        None,
    ),
    "per device of 1, improve: no nodes": (
        "device_per_stream",
        (6, 8),
        4,
        1,
        3,
        (4, 8),
        None,
    ),
}
