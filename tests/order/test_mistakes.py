"""What people write by mistake when they mix: the error names the class they made."""

from __future__ import annotations

import math

import numpy as np
import torch

from energize import (
    BlendDataset,
    FilterDataset,
    ListSource,
    MixBatchDataset,
    RepeatDataset,
)
from energize.compat.streaming import Stream, StreamingDataset
from energize.datasets.quota import ComposedDataset, ComposedSamples, QuotaDataset
from energize.errors import EnergizeError
from energize.order import Schedule, WeightSchedulePoint, WeightScheduler, make_scheme
from energize.order.quota import Quota
from energize.order.timeline import MixingScheme
from tests.support.datasets import is_even, numbers
from tests.support.mds import numbered_mds
from tests.support.tables import check_faults

A, B = numbers(3), numbers(4, 100)
STREAM, EMPTY = FilterDataset(numbers(6), is_even), ListSource([])
NAMED = {"a": A, "b": B}
SCHEDULER = WeightScheduler([WeightSchedulePoint(0, {"a": 1})])
OBJECT = make_scheme("exact", [1, 2])
ENDS, LATE = Schedule([(0, 1), (9, 0)]), Schedule([(0, 0), (9, 1)])


class MyBlend(BlendDataset):
    pass


def mix_batch(*datasets, **options):
    return MixBatchDataset(*datasets, **{"batch_size": 2, **options})


def composed(*streams, **options):
    return ComposedDataset(*streams, **{"batch_size": 2, **options})


def composed_samples(*streams, **options):
    return ComposedSamples(*streams, **{"batch_size": 2, **options})


BLENDS = {
    "BlendDataset": BlendDataset,
    "MixBatchDataset": mix_batch,
    "MyBlend": MyBlend,
}
BLEND_FAULTS = [
    ([(A, "1"), (B, 2)], {}, "dataset 0: a weight is a number, got '1'"),
    ([(A, 1), (B, -2)], {}, "dataset 1: a weight is finite and not negative, got -2"),
    ([(A, 0), (B, 0)], {}, "all 2 weights are 0"),
    ([A, B], {}, "numbers0..., not a pair (dataset, weight)"),
    ([A], {}, "numbers0..., not a pair (dataset, weight)"),
    (
        [(1, A), (2, B)],
        {},
        'dataset 0 is "(1, ...not a pair (dataset, weight)',
    ),
    ([(A, 1, 2)], {}, "not a pair (dataset, weight)"),
    ([([1, 2], 1)], {}, "dataset 0 is '[1, 2]', not a pair (dataset"),
    ([("/data", 1)], {}, "dataset 0 is '/data', not a pair (dataset"),
    ([[A, B], [1, 2]], {}, "dataset 0: a weight is a number"),
    ([], {}, "the mix has no datasets"),
    ([[]], {}, "the mix has no datasets"),
    ([(A, 1), ()], {}, "dataset 1 is '()', not a pair (dataset"),
    ([NAMED], {}, "need weights={name: weight}"),
    ([{A: 1, B: 2}], {}, "need weights={name: weight}"),
    ([NAMED], {"weights": [1, 2]}, "or a WeightScheduler, got [1, 2]"),
    ([A, B], {"weights": {"a": 1}}, "need datasets by name. Pass {name: dataset}"),
    ([NAMED], {"weights": {"a": 1, "c": 2}}, "missing 'b'; unknown 'c'"),
    (
        [{"a": [1]}],
        {"weights": {"a": 1}},
        "dataset 'a' is '([1], 1)', not a pair (dataset",
    ),
    ([NAMED], {"weigths": {"a": 1}}, "did you mean 'weights'?"),
    ([(A, 1)], {"mix": 1}, "unknown parameter 'mix'. Known: "),
    ([(A, 1)], {"blocksize": 3}, "did you mean 'block_size'?"),
    ([(A, 1)], {"scheme": "exact", "block_size": 3}, "unknown parameter 'block"),
    ([(A, 1)], {"scheme": "blok"}, "scheme='blok' is not one of...did you mean"),
    ([(A, 1)], {"stop": "first"}, "stop='first' is not one of restart"),
    ([(A, 1)], {"scheme": MixingScheme}, "an object with counts and locate, got"),
    ([(A, 1)], {"scheme": OBJECT}, "has 2 sources"),
    (
        [(A, 1), (B, 1)],
        {"scheme": OBJECT, "stop": "all_exhausted"},
        "the name of a scheme",
    ),
    ([(A, 1), (B, 1)], {"scheme": OBJECT, "max_epochs": 2}, "the name of a scheme"),
    ([(A, 1), (B, 1)], {"scheme": OBJECT, "block_size": 5}, "block_size"),
    ([(A, 1)], {"max_epochs": 0}, "max_epochs, dataset 0: a number of epochs"),
    ([(A, 1)], {"max_epochs": [1, 2]}, "2 values were passed for 1 datasets"),
    (
        [(A, 1)],
        {"max_epochs": {"a": 1}},
        "max_epochs of dataset='a' is not one of none",
    ),
    ([(A, 1)], {"temperature": math.nan}, "temperature must be a finite number > 0"),
    ([(A, 1)], {"exponent": -1}, "exponent must be a finite number >= 0, got -1"),
    (
        [(A, 1)],
        {"temperature": 5, "exponent": 2},
        "temperature=5 means exponent=0.2, but exponent is 2. Set one",
    ),
    ([A, B], {"weights": "sise"}, "weights='sise' is not one of...did you mean 'size'"),
    ([(A, 1)], {"weights": "size"}, "sets all weights, but dataset 1 is '1'. Pass"),
    ([A, STREAM], {"weights": "size"}, "needs the size of dataset 1...Pass a number"),
    ([(A, SCHEDULER)], {}, "dataset 0: a weight is a number, got WeightSched"),
    ([(A, 1)], {"min_share": A}, "min_share: a share must be a number from"),
    ([(A, 1), (B, 1)], {"min_share": 0.6}, "the floors of the 2 datasets sum to 1.2"),
    ([(A, ENDS), (B, 1)], {"min_share": 0.1}, "need weights that are numbers"),
    ([(EMPTY, 1), (B, 1)], {}, "dataset 0 has weight 1.0 and no items"),
    ([(EMPTY, LATE), (B, 1)], {}, "dataset 0 has weight Schedule"),
    ([(EMPTY, 1)], {"stop": "all_exhausted"}, "all datasets are empty"),
    ([(A, ENDS)], {}, "all 1 weights are 0 at slot 9"),
]
BATCH_FAULTS = [
    (
        [(A, 1)],
        {"mix_fn": "".join},
        "unknown parameter 'mix_fn'; did you mean 'batch_mix_fn'?",
    ),
    ([(A, 1)], {"batch_mix_fn": "join"}, "batch_mix_fn must be a function, got 'join'"),
    ([(A, 1)], {"batch_size": "2"}, "batch_size must be a whole number >= 1, got '2'"),
    (
        [(A, 1)],
        {"batch_size": 9, "drop_last": True, "max_epochs": 1},
        "cannot fill one batch",
    ),
]
QUOTAS = {
    "QuotaDataset": QuotaDataset,
    "ComposedDataset": composed,
    "ComposedSamples": composed_samples,
}
PAIR = "stream 0 must be a dataset or a pair (dataset, Quota(...)), got "
QUOTA_FAULTS = [
    ([(A, 1), (B, 2)], {}, PAIR),
    ([NAMED], {}, f"{PAIR}\"{{'a'"),
    ([{A: Quota(repeat=2)}], {}, PAIR),
    ([[1, 2]], {}, f"{PAIR}'1'"),
    ([], {}, "the mix has no streams"),
    (
        [(A, Quota(proportion=1)), B],
        {},
        "stream 0 (numbers0) has a proportion, but stream 1",
    ),
    ([(A, Quota(repeat=1))], {"epoch_size": 3}, "contradict each other"),
    ([A], {"sampling_method": "fixd"}, "did you mean 'fixed'?"),
    ([EMPTY], {}, "stream 0 (list) has no samples"),
    ([STREAM], {}, "can only be read as a stream"),
    ([RepeatDataset(A)], {}, "never ends, so it cannot have a quota"),
]
COMPOSED_FAULTS = [
    ([A, B], {"batching_method": "stratifed"}, "did you mean 'stratified'?"),
    (
        [A, B],
        {"batching_method": ["random"]},
        "batching_method=['random'] is not one of random",
    ),
    ([A, B], {"global_batch_size": 3}, "is not a multiple of batch_size=2"),
    ([A, B], {"batch_size": "3"}, "batch_size must be a whole number >= 1, got '3'"),
    ([A, B], {"batcher": "join"}, "batcher must be a function, got 'join'"),
    (
        [A, B],
        {"batch_size": 9, "drop_last": True},
        "the 7 samples of an epoch cannot fill one",
    ),
]


def check_owners(owners, faults):
    """Every owner's errors begin with its name, and name no other dataset."""
    rows = {}
    for owner, make in owners.items():
        for arguments, options, words in faults:
            rows[f"{owner}: {words} {options}"] = (
                lambda m=make, a=arguments, o=options: m(*a, **o),
                f"{owner}: ...{words}",
            )
    check_faults(EnergizeError, rows)


def test_errors_name_the_class_that_was_made(tmp_path):
    check_owners(BLENDS, BLEND_FAULTS)
    check_owners({"MixBatchDataset": mix_batch}, BATCH_FAULTS)
    check_owners(QUOTAS, QUOTA_FAULTS)
    check_owners({"ComposedDataset": composed}, COMPOSED_FAULTS)
    paths = [str(numbered_mds(tmp_path / name, 3)) for name in ("one", "two")]
    mixed = [Stream(local=paths[0], proportion=1), Stream(local=paths[1])]
    faults = [([], {"streams": mixed}, "stream 0 (...) has a proportion, but")]
    for options in ({"batching_method": "stratifed"}, {"epoch_size": "3q"}):
        faults.append(([], {"local": paths[0], "batch_size": 1, **options}, ""))
    check_owners({"StreamingDataset": StreamingDataset}, faults)


def test_numbers_of_any_kind():
    weights = {"a": torch.tensor(9), "b": np.int8(1)}
    for given, plain in [
        ({"temperature": np.float32(0.5)}, {"temperature": 0.5}),
        ({"min_share": np.float32(0.4)}, {"min_share": 0.4}),
        ({"max_share": np.array([0.6, 0.5])}, {"max_share": [0.6, 0.5]}),
        ({"max_share": {"a": np.float64(0.6)}}, {"max_share": {"a": 0.6}}),
        ({"max_epochs": np.array([2, 1])}, {"max_epochs": [2, 1]}),
        ({"block_size": torch.tensor(8)}, {"block_size": 8}),
    ]:
        one = BlendDataset(NAMED, weights=weights, **given)
        other = BlendDataset(NAMED, weights={"a": 9, "b": 1}, **plain)
        assert one == other, given
        assert one.describe() == other.describe()
    assert BlendDataset(zip([A, B], [1, 3], strict=True)).shares() == [0.25, 0.75]
    assert BlendDataset([(A, np.float32(1)), (B, np.int64(1))]).shares() == [0.5, 0.5]
    assert mix_batch((A, 1), batch_size=np.int64(3))[0] == [0, 1, 2]


def test_blends_of_schedules_and_of_blends():
    """Weights multiply, equal datasets are merged, temperature and limits hold."""
    rising = Schedule([(0, 3), (8000, 1)])
    inner = BlendDataset((numbers(5), rising), (numbers(6, 100), 1.0))
    outer = BlendDataset((inner, Schedule([(0, 1), (4000, 3)])), (numbers(7, 200), 1.0))
    counts = np.diff(
        [outer.taken(slot) for slot in (4000, 8000, 12_000)], axis=0, prepend=0
    )
    assert counts.tolist() == [[1500, 500, 2000], [2250, 750, 1000], [1500, 1500, 1000]]
    assert BlendDataset((inner, 1), (numbers(7, 200), 1)).taken(8000) == [
        3000,
        1000,
        4000,
    ]
    twice = BlendDataset((A, Schedule([(0, 1), (1000, 3)])), (B, 2), (A, 1))
    assert [twice.shares(0), twice.shares(1000)[0]] == [[0.5, 0.5], 2 / 3]
    even = BlendDataset((A, Schedule([(0, 1), (1000, 9)])), (B, 1), temperature=2)
    assert [even.shares(0), even.shares(1000)] == [[0.5, 0.5], [0.75, 0.25]]
    named = BlendDataset(NAMED, weights={"a": 9, "b": 1}, max_share={"a": 0.6})
    assert named.shares() == [0.6, 0.4]
