"""What an epoch and its batches are made of, beside MosaicML Streaming 0.13, which
tests/compat/test_streaming_interop.py runs on the same cases.
"""

from __future__ import annotations

from energize.order.epochs.quotas import Quota, epoch_counts


def proportions(*values):
    return [Quota(proportion=value) for value in values]


def repeats(*values):
    return [Quota(repeat=value) for value in values]


def chosen(*values):
    return [Quota(choose=value) for value in values]


NONE = Quota()

# Sizes of the streams, quotas, epoch size and samples of each stream. "match": the same counts;
# "improve": there the leftovers go to random streams, and products are cut off after a float error.
COUNTS = {
    "A1 match": ([2] * 4, [NONE] * 4, None, [2, 2, 2, 2]),
    "A2 match": ([100, 200, 300], [NONE] * 3, None, [100, 200, 300]),
    "A3 match": ([200, 300], [NONE] * 2, 10, [4, 6]),
    "A4 improve: ties to the first": ([1] * 3, [NONE] * 3, 7, [3, 2, 2]),
    "A5 match": ([100, 200], proportions(0.25, 0.75), None, [75, 225]),
    "A6 match": ([100, 200], proportions(2, 6), None, [75, 225]),
    "A8 improve: ties to the first": ([100, 200, 300], proportions(1, 1, 1), 100, [34, 33, 33]),
    "A9 match": ([2] * 4, proportions(0, 1 / 6, 2 / 6, 3 / 6), 12, [0, 2, 4, 6]),
    "A10 match": ([100] * 3, proportions(0.7, 0.2, 0.1), 10, [7, 2, 1]),
    "A10 match, long": ([100] * 3, proportions(0.6, 0.3, 0.1), 1000, [600, 300, 100]),
    "A11 improve: 0 gets nothing": ([10] * 3, proportions(0.5, 0.5, 0), 7, [4, 3, 0]),
    "A13 improve: nearest": ([1000] * 2, proportions(0.999, 0.001), 100, [100, 0]),
    "A15 improve: no float error": ([100, 100], repeats(0.29, 1), None, [29, 100]),
    "A15 improve, second": ([100, 100], repeats(0.57, 0.58), None, [57, 58]),
    "A17 match": ([3, 3], repeats(1.5, 0.5), None, [4, 1]),
    "A18 match": ([100, 200], chosen(250, 50), None, [250, 50]),
    "A19 match": (
        [2] * 4,
        [Quota(repeat=0), NONE, Quota(repeat=2), Quota(choose=6)],
        None,
        [0, 2, 4, 6],
    ),
    "A22 match": ([10], proportions(0.3), None, [10]),
    "A23 match": ([100, 200], proportions(1, 1), 1000, [500, 500]),
    "one third, match": ([3], repeats(1 / 3), None, [1]),
    "huge, match": ([10**12, 10**12], proportions(1, 2), 3 * 10**15, [10**15, 2 * 10**15]),
}


def shares(*weights, epoch_size=1000):
    quotas = [Quota(proportion=weight) for weight in weights]
    return tuple(epoch_counts([1] * len(weights), quotas, epoch_size).tolist())


# Method, samples of each stream, device batch, ranks; then batches on each rank, samples drawn, and
# what every full global batch holds (None: it varies). "match": the same numbers; "improve": what
# is better here.
BATCHES = {
    "B1 improve: exact over some batches, no long runs": (
        "random",
        (100, 100),
        8,
        1,
        25,
        (100, 100),
        None,
    ),
    "B2 improve: mixed without shuffle too": ("random", (100, 100), 8, 1, 25, (100, 100), None),
    "B4 improve: none twice": ("random", (5, 5), 1, 4, 3, (5, 5), None),
    "B5 improve: none twice": ("random", (41, 28), 4, 2, 9, (41, 28), None),
    "C1 improve: nothing dropped": ("stratified", (200, 300), 4, 1, 125, (200, 300), None),
    "C2 improve: nothing dropped": ("stratified", (200, 300), 7, 1, 72, (200, 300), None),
    "C4 match": ("stratified", (200, 300), 10, 1, 50, (200, 300), (4, 6)),
    "C6 improve: nothing dropped": ("stratified", (300, 300, 300), 8, 1, 113, (300,) * 3, None),
    "C6 improve, wider": ("stratified", (300, 300, 300), 10, 1, 90, (300,) * 3, None),
    "C7 improve: nothing dropped": ("stratified", (300,) * 4, 6, 1, 200, (300,) * 4, None),
    "C7 improve, two": ("stratified", (300, 300), 5, 1, 120, (300, 300), None),
    "C9 improve: exact shares": ("stratified", shares(0.9, 0.1), 8, 1, 125, (900, 100), None),
    "C10 improve: exact shares": ("stratified", shares(0.8, 0.2), 8, 1, 125, (800, 200), None),
    "C10 improve, .55/.45": ("stratified", shares(0.55, 0.45), 2, 1, 500, (550, 450), None),
    "C11 match": (
        "stratified",
        shares(0.6, 0.3, 0.1, epoch_size=900),
        10,
        1,
        90,
        (540, 270, 90),
        (6, 3, 1),
    ),
    "C12 improve: nothing dropped": ("stratified", (1000, 67), 8, 1, 134, (1000, 67), None),
    "C15 improve: half a sample is enough": (
        "stratified",
        (100,) * 16,
        8,
        1,
        200,
        (100,) * 16,
        None,
    ),
    "C15 match": ("stratified", (100,) * 16, 16, 1, 100, (100,) * 16, (1,) * 16),
    "C15 match, wider": ("stratified", (100,) * 16, 32, 1, 50, (100,) * 16, (2,) * 16),
    "E1 match": ("per_stream", (200, 300), 4, 1, 125, (200, 300), None),
    "E2 match": ("per_stream", (200, 300), 7, 1, 70, (196, 294), None),
    "E4 match": ("per_stream", (1000, 8), 4, 2, 126, (1000, 8), None),
    "F2 improve: equal steps": ("device_per_stream", (200, 300), 4, 4, 31, (200, 296), None),
    "F2 improve, of 7": ("device_per_stream", (200, 300), 7, 4, 17, (189, 287), None),
    "F3 improve: equal steps": ("device_per_stream", (40, 28), 4, 2, 8, (36, 28), None),
    "F4 match": ("device_per_stream", (41, 28), 4, 4, 4, (40, 24), None),
    "F5 improve: no nodes to split over": ("device_per_stream", (6, 8), 4, 1, 3, (4, 8), None),
}
