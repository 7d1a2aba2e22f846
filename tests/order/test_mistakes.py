"""What people write by mistake when they mix: the error names the class they made."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
import torch

from energize import (
    BlendDataset,
    FilterDataset,
    ListSource,
    MixBatchDataset,
    RepeatDataset,
    get_loader,
)
from energize.compat.streaming import Stream, StreamingDataset
from energize.datasets.quota import ComposedDataset, ComposedSamples, QuotaDataset
from energize.errors import ConfigError, EmptyDatasetError, EnergizeError, WeightError
from energize.order.quota import Quota
from energize.order.timeline import MixingScheme, make_scheme
from energize.order.weights import Schedule, WeightSchedulePoint, WeightScheduler
from tests.support.datasets import is_even, numbers
from tests.support.mds import numbered_mds

A, B = numbers(3), numbers(4, 100)
STREAM = FilterDataset(numbers(6), is_even)
EMPTY: ListSource = ListSource([])
NAMED = {"a": A, "b": B}
SCHEDULER = WeightScheduler([WeightSchedulePoint(0, {"a": 1})])


class MyBlend(BlendDataset):
    pass


def mix_batch(*datasets, **options):
    return MixBatchDataset(*datasets, **{"batch_size": 2, **options})


BLENDS = {"BlendDataset": BlendDataset, "MixBatchDataset": mix_batch, "MyBlend": MyBlend}

# Arguments, options, and what the error says.
BLEND_FAULTS = {
    "a weight as text": ([(A, "1"), (B, 2)], {}, "dataset 0: a weight is a number, got '1'"),
    "below 0": ([(A, 1), (B, -2)], {}, "dataset 1: a weight is finite and not negative, got -2"),
    "NaN": ([(A, float("nan"))], {}, "not negative, got nan"),
    "None": ([(A, None)], {}, "a weight is a number, got None"),
    "all 0": ([(A, 0), (B, 0)], {}, "all 2 weights are 0"),
    "no weights": ([A, B], {}, "dataset 0 has no weight; give pairs (dataset, weight)"),
    "one dataset alone": ([A], {}, "dataset 0 has no weight; give pairs (dataset, weight)"),
    "no pair": ([A, 1], {}, "dataset 0 has no weight"),
    "the wrong way round": ([(1, A), (2, B)], {}, "dataset 0 stands after its weight"),
    "three": ([(A, 1, 2)], {}, "give pairs (dataset, weight)"),
    "a list as data": ([([1, 2], 1)], {}, "dataset 0 is '[1, 2]', which is no dataset"),
    "a path": ([("/data", 1)], {}, "dataset 0 is '/data', which is no dataset"),
    "two lists": ([[A, B], [1, 2]], {}, "give pairs (dataset, weight)"),
    "nothing": ([], {}, "there are no datasets to mix"),
    "an empty list": ([[]], {}, "there are no datasets to mix"),
    "an empty tuple": ([((), 1), (B, 1)], {}, "dataset 0 is '()', which is no dataset"),
    "an empty pair": ([(A, 1), ()], {}, "dataset 1 is '()'; give pairs"),
    "names without weights": ([NAMED], {}, "need weights={name: weight}"),
    "weights as keys": ([{A: 1, B: 2}], {}, "need weights={name: weight}"),
    "weights in a list": ([NAMED], {"weights": [1, 2]}, "or a WeightScheduler; got [1, 2]"),
    "weights by name": ([A, B], {"weights": {"a": 1}}, "need datasets by name, {name: dataset}"),
    "an unknown name": ([NAMED], {"weights": {"a": 1, "c": 2}}, "missing 'b'; unknown 'c'"),
    "no dataset by name": ([{"a": [1]}], {"weights": {"a": 1}}, "dataset 'a' is '[1]', which is"),
    "a misspelt parameter": ([NAMED], {"weigths": {"a": 1}}, "did you mean 'weights'?"),
    "an unknown parameter": ([(A, 1)], {"mix": 1}, "there is no parameter 'mix'. Known: "),
    "a misspelt option": ([(A, 1)], {"blocksize": 3}, "did you mean 'block_size'?"),
    "an option of another": ([(A, 1)], {"scheme": "exact", "block_size": 3}, "no parameter 'block"),
    "the key": ([(A, 1)], {"key": 3}, "there is no parameter 'key'. Known: "),
    "a block size of 0": ([(A, 1)], {"block_size": 0}, "block_size counts slots, 1 or more"),
    "an unknown scheme": ([(A, 1)], {"scheme": "blok"}, "unknown scheme 'blok'; did you mean"),
    "an unknown rule": ([(A, 1)], {"stop": "first"}, "unknown stop rule 'first'. Known: restart"),
    "a scheme's class": ([(A, 1)], {"scheme": MixingScheme}, "MixingScheme is a class, make an"),
    "a scheme for others": ([(A, 1)], {"scheme": make_scheme("exact", [1, 2])}, "for 2 sources"),
    "epochs of 0": ([(A, 1)], {"max_epochs": 0}, "max_epochs, dataset 0: a whole number"),
    "epochs for others": ([(A, 1)], {"max_epochs": [1, 2]}, "2 values are given for 1 datasets"),
    "temperature": ([(A, 1)], {"temperature": "1"}, "temperature is a number, 0 or more"),
    "a scheduler as a weight": (
        [(A, SCHEDULER)],
        {},
        "dataset 0 has a WeightScheduler, which holds",
    ),
    "a floor that is no number": (
        [(A, 1)],
        {"min_share": A},
        "min_share: a share is a number from",
    ),
    "floors": ([(A, 1), (B, 1)], {"min_share": 0.6}, "the floors of the 2 datasets sum to 1.2"),
    "no items": ([(EMPTY, 1), (B, 1)], {}, "dataset 0 has weight 1.0 and no items"),
    "nothing drawn": ([(A, Schedule([(0, 1), (9, 0)]))], {}, "all 1 weights are 0 at slot 9"),
}


@pytest.mark.parametrize("owner", BLENDS)
@pytest.mark.parametrize("fault", BLEND_FAULTS)
def test_blends(owner, fault):
    arguments, options, said = BLEND_FAULTS[fault]
    with pytest.raises(EnergizeError, match=re.escape(said)) as caught:
        BLENDS[owner](*arguments, **options)
    assert str(caught.value).startswith(f"{owner}: ")
    assert str(caught.value).count("Dataset: ") == (owner != "MyBlend")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"mix_fn": "".join},
            "no parameter 'mix_fn'; did you mean 'batch_mix_fn'? Known: batch",
        ),
        ({"batch_mix_fnn": "".join}, "did you mean 'batch_mix_fn'?"),
        ({"batch_mix_fn": "join"}, "batch_mix_fn is a function of a list; got 'join'"),
        ({"batch_size": 0}, "batch_size is a whole number, 1 or more; got 0"),
        ({"batch_size": "2"}, "batch_size is a whole number, 1 or more; got '2'"),
        ({"batch_size": 9, "drop_last": True, "stop": "first_exhausted"}, "cannot fill one batch"),
    ],
)
def test_batches_of_mixes(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        mix_batch((A, 1), **options)
    assert str(caught.value).startswith("MixBatchDataset: ")
    assert str(caught.value).count("Dataset: ") == 1


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"temperature": np.float32(0.5)}, {"temperature": 0.5}),
        ({"temperature": np.int64(0)}, {"temperature": 0}),
        ({"min_share": np.float64(0.4)}, {"min_share": 0.4}),
        ({"min_share": np.float32(0.4)}, {"min_share": 0.4}),
        ({"max_share": np.array([0.6, 0.5])}, {"max_share": [0.6, 0.5]}),
        ({"max_share": {"a": np.float64(0.6)}}, {"max_share": {"a": 0.6}}),
        ({"max_epochs": np.int64(2)}, {"max_epochs": 2}),
        ({"max_epochs": np.array([2, 1])}, {"max_epochs": [2, 1]}),
        ({"block_size": np.int64(8)}, {"block_size": 8}),
        ({"block_size": torch.tensor(8)}, {"block_size": 8}),
    ],
)
def test_numbers_of_any_kind(given, plain):
    weights = {"a": torch.tensor(9), "b": np.int8(1)}
    one = BlendDataset(NAMED, weights=weights, **given)
    other = BlendDataset(NAMED, weights={"a": 9, "b": 1}, **plain)
    assert one == other
    assert one.describe() == other.describe()


def test_what_works():
    assert BlendDataset((A, 1)).at(range(4)) == [0, 1, 2, 0]
    assert BlendDataset([(A, np.float32(1)), (B, np.int64(1))]).shares() == [0.5, 0.5]
    assert BlendDataset(zip([A, B], [1, 3], strict=True)).shares() == [0.25, 0.75]
    assert BlendDataset(NAMED, weights={"b": 3, "a": 1}).shares() == [0.25, 0.75]
    assert mix_batch((A, 1), batch_size=np.int64(3))[0] == [0, 1, 2]


@pytest.mark.parametrize("dataset", [A, STREAM], ids=["indexed", "stream"])
def test_the_same_dataset_twice_counts_as_one(dataset, caplog):
    with caplog.at_level("INFO", "energize"):
        twice = BlendDataset((dataset, 1), (dataset, 2))
    assert twice.inputs == (dataset,)
    assert twice.weights == (3.0,)
    assert "is listed twice; it is read as one, weight 3.0" in caplog.text
    passes = list(islice(dataset.open(), 3)) * 2
    assert list(islice(twice.open(), 6)) == passes


def test_streams_mix():
    other = FilterDataset(numbers(6, 100), is_even)
    mixed = list(islice(BlendDataset((STREAM, 1), (other, 1), block_size=2).open(), 12))
    assert [each for each in mixed if each < 100] == [0, 2, 4, 0, 2, 4]
    assert [each for each in mixed if each >= 100] == [100, 102, 104] * 2
    with get_loader(mix_batch((STREAM, 1), (other, 1), block_size=2)) as loader:
        assert [sorted(each < 100 for each in batch) for batch in islice(loader, 3)] == [
            [False, True]
        ] * 3


def test_a_stream_without_items_is_an_error():
    nothing = FilterDataset(ListSource([1, 3]), is_even)
    with pytest.raises(EmptyDatasetError, match="gave no item in a whole epoch"):
        list(islice(BlendDataset((nothing, 1), (A, 1)).open(), 9))


def composed(*streams, **options):
    return ComposedDataset(*streams, **{"batch_size": 2, **options})


def composed_samples(*streams, **options):
    return ComposedSamples(*streams, **{"batch_size": 2, **options})


QUOTAS = {
    "QuotaDataset": QuotaDataset,
    "ComposedDataset": composed,
    "ComposedSamples": composed_samples,
}

QUOTA_FAULTS = {
    "a weight": ([(A, 1), (B, 2)], {}, "stream 0 is a dataset, or a pair (dataset, Quota(...))"),
    "by name": ([NAMED], {}, "stream 0 is a dataset, or a pair (dataset, Quota(...)); got \"{'a'"),
    "in a dict": ([{A: Quota(repeat=2)}], {}, "stream 0 is a dataset, or a pair"),
    "no dataset": ([[1, 2]], {}, "stream 0 is a dataset, or a pair (dataset, Quota(...)); got '1'"),
    "nothing": ([], {}, "there are no streams to read"),
    "mixed": (
        [(A, Quota(proportion=1)), B],
        {},
        "stream 0 (numbers0) has a proportion, but stream 1 (numbers100) has no",
    ),
    "size and repeat": ([(A, Quota(repeat=1))], {"epoch_size": 3}, "contradict each other"),
    "a size": ([A], {"epoch_size": "3q"}, "epoch_size counts samples"),
    "a method": ([A], {"sampling_method": "fixd"}, "did you mean 'fixed'?"),
    "no items": ([EMPTY], {}, "stream 0 (list) has no samples"),
    "all 0": ([(A, Quota(repeat=0))], {}, "no sample of any of the 1 streams"),
    "a stream": ([STREAM], {}, "can only be read as a stream"),
    "endless": ([RepeatDataset(A)], {}, "never ends, so a quota of it means nothing"),
}


@pytest.mark.parametrize("owner", QUOTAS)
@pytest.mark.parametrize("fault", QUOTA_FAULTS)
def test_quotas(owner, fault):
    arguments, options, said = QUOTA_FAULTS[fault]
    with pytest.raises(EnergizeError, match=re.escape(said)) as caught:
        QUOTAS[owner](*arguments, **options)
    assert str(caught.value).startswith(f"{owner}: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batching_method": "stratifed"}, "did you mean 'stratified'?"),
        ({"batching_method": ["random"]}, "batching_method=['random'] is not one of random"),
        ({"global_batch_size": 3}, "cannot be divided into device batches of 2"),
        ({"batch_size": "3"}, "batch_size is a whole number, 1 or more; got '3'"),
        ({"batcher": "join"}, "batcher is a function of a list; got 'join'"),
        ({"pad": 0}, "pad is a function of a sample, or None; got 0"),
        ({"global_batch_size": 6}, "an epoch of 7 samples leaves 1 for its last global batch"),
        ({"batch_size": 9, "drop_last": True}, "the 7 samples of an epoch cannot fill one global"),
        ({"batch_size": 9, "batching_method": "stratified"}, "the 7 samples of an epoch cannot"),
    ],
)
def test_compositions(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        composed(A, B, **options)
    assert str(caught.value).startswith("ComposedDataset: ")


def test_streams_of_folders(tmp_path):
    paths = [str(numbered_mds(tmp_path / name, 3)) for name in ("one", "two")]
    mixed = [Stream(local=paths[0], proportion=1), Stream(local=paths[1])]
    with pytest.raises(
        WeightError, match=r"StreamingDataset: stream 0 \(.*\) has a proportion, but"
    ):
        StreamingDataset(streams=mixed)
    faults = ({"batching_method": "stratifed"}, {"batch_size": 0}, {"epoch_size": "3q"}, {"pad": 0})
    for options in faults:
        with pytest.raises(ConfigError) as caught:
            StreamingDataset(local=paths[0], **{"batch_size": 1, **options})
        assert str(caught.value).startswith("StreamingDataset: ")
