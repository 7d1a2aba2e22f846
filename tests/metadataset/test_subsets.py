"""Subsets: which samples they mean, on single datasets and on blends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    ConfigError,
    DefaultTaskEncoder,
    EmptyDatasetError,
    MetadatasetError,
    SkipSample,
    get_train_dataset,
    get_val_dataset,
)
from energize.core.samples import CrudeSample
from energize.data.source import Subset, nested
from energize.data.webdataset import WebdatasetSource
from energize.metadataset import leaves_with_weights, resolve
from energize.metadataset.models import RangeKeys


def subset_of(value):
    return RangeKeys.model_validate(value).subset()

from energize.preparation.jsonl import prepare_jsonl
from energize.testing import check_laws
from tests.support.joining import keys, texts
from tests.support.metadatasets import written


@pytest.fixture
def folder(tmp_path):
    texts(tmp_path / "a", [keys(*range(7)), keys(*range(7, 9)), keys(*range(9, 20))])
    texts(tmp_path / "b", [keys(*range(100, 130))], exclude=["s0.tar/0103", "s0.tar/0110"])
    return tmp_path


def read(folder, node, name="mix.yaml"):
    samples = get_val_dataset(written(folder / name, node), split_part="train", batch_size=None)
    return [sample.__key__ for sample in samples]


def subset(start, end):
    return {"range": [start, end]}


@pytest.mark.parametrize(
    ("range_", "numbers"),
    [
        ([3, 12], range(3, 12)),
        ([3, "end"], range(3, 20)),
        ([0, 20], range(20)),
        (["10%", "50%"], range(2, 10)),
        (["10%", "end"], range(2, 20)),
        (["12.5%", "37.5%"], range(2, 7)),
        (["0%", "100%"], range(20)),
    ],
)
def test_of_a_folder(folder, range_, numbers):
    assert read(folder, {"path": "a", "subset": {"range": range_}}) == keys(*numbers)


def test_excluded_samples_count_and_do_not_come(folder):
    numbers = [n for n in range(102, 112) if n not in (103, 110)]
    assert read(folder, {"path": "b", "subset": subset(2, 12)}) == keys(*numbers)


def test_percentages_of_blends_are_taken_inside(folder):
    inner = {"path": "a", "subset": subset("50%", "end")}
    node = {"subset": subset("50%", "100%"), "blend": [inner, {"path": "b"}]}
    assert read(folder, node) == keys(*range(15, 20), *range(115, 130))
    counted = {"path": "a", "subset": subset(4, 10)}
    node = {"subset": subset("0%", "50%"), "blend": [counted, {"path": "b"}]}
    first = [n for n in range(100, 115) if n not in (103, 110)]
    assert read(folder, node) == keys(*range(4, 7), *first)
    written(folder / "inner.yaml", node)
    outer = {"path": "inner.yaml", "subset": subset("0%", "50%")}
    leaves = leaves_with_weights(resolve(written(folder / "outer.yaml", outer), "train"))
    assert leaves[0][0].subset == Subset((4, 10), (0.0, 0.25))


def test_of_jsonl_files(folder):
    lines = [f'{{"text": "{number}"}}' for number in range(10)]
    (folder / "lines.jsonl").write_text("\n".join(lines))
    prepare_jsonl(folder / "lines.jsonl")
    file = written(folder / "mix.yaml", {"path": "lines.jsonl", "subset": subset("20%", "50%")})
    dataset = get_val_dataset(file, split_part="train", batch_size=None)
    samples = list(dataset)
    assert all(isinstance(sample, CrudeSample) for sample in samples)
    assert [sample["json"]["text"] for sample in samples] == ["2", "3", "4"]
    assert [sample["__key__"] for sample in samples] == ["2", "3", "4"]
    check_laws(dataset)


def test_jsonl_files_have_no_split_files(folder):
    (folder / "lines.jsonl").write_text("{}")
    for key in ("split_config", "dataset_config"):
        file = written(folder / "mix.yaml", {"path": "lines.jsonl", key: "x.yaml"})
        with pytest.raises(MetadatasetError, match=f"{key} is for prepared folders, and"):
            resolve(file, "train")


def test_two_parts_of_one_folder_are_two_datasets(folder):
    parts = [{"path": "a", "subset": subset("0%", "50%")}, {"path": "a", "subset": subset(10, 20)}]
    file = written(folder / "mix.yaml", {"blend": parts})
    assert len(leaves_with_weights(resolve(file, "train"))) == 2
    dataset = get_train_dataset(file, batch_size=None)
    first = [sample.__key__ for sample in dataset.at(range(20))]
    assert sorted(first) == keys(*range(20))
    identities = {source.identity for source in dataset.sources}
    assert len(identities) == 2


def test_no_substitute_comes_from_outside(folder):
    """A sample that is left out is replaced by one of the same part."""

    class Encoder(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.__key__ == "0003":
                raise SkipSample
            return sample

    node = {"path": "a", "subset": subset(2, 5)}
    dataset = get_train_dataset(
        written(folder / "mix.yaml", node), batch_size=None, task_encoder=Encoder()
    )
    seen = {sample.__key__ for sample in dataset.at(range(300))}
    assert seen == {"0002", "0004"}


@given(
    total=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
)
def test_neighbouring_ranges_share_nothing_and_leave_nothing_out(total, cuts):
    percent = sorted({0, 1000, *cuts})
    texts_of = [f"{each / 10}%" for each in percent]
    bounds = [
        subset_of(subset(start, end)).bounds(total) for start, end in itertools.pairwise(texts_of)
    ]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))


@settings(max_examples=25, deadline=None)
@given(
    first=st.integers(0, 10),
    size=st.integers(1, 20),
    shards=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    excluded=st.sets(st.integers(0, 23), max_size=4),
)
def test_a_part_of_a_source_has_the_samples_at_its_places(
    tmp_path_factory, first, size, shards, excluded
):
    total = sum(shards)
    cuts = [sum(shards[:i]) for i in range(len(shards) + 1)]
    shard_of = {n: i for i in range(len(shards)) for n in range(cuts[i], cuts[i + 1])}
    excluded = {n for n in excluded if n < total - 1}
    folder = texts(
        tmp_path_factory.mktemp("part"),
        [keys(*range(start, end)) for start, end in itertools.pairwise(cuts)],
        exclude=[f"s{shard_of[n]}.tar/{n:04d}" for n in sorted(excluded)],
    )
    source = WebdatasetSource(folder)
    start, stop = min(first, total), min(first + size, total)
    wanted = [n for n in range(start, stop) if n not in excluded]
    if not wanted:
        with pytest.raises(EmptyDatasetError):
            source.part(start, stop)
        return
    part = source.part(start, stop)
    assert [sample["__key__"] for sample in part] == keys(*wanted)
    assert part.indices(*part.locate(np.arange(part.count))).tolist() == list(range(len(wanted)))
    inner = part.part(0, part.stored_count)
    assert [sample["__key__"] for sample in inner] == keys(*wanted)


def test_nested_parts():
    assert nested(None, None) is None
    assert nested(Subset((1, 5)), None) == Subset((1, 5))
    assert nested(None, Subset(ratios=(0.5, 1.0))) == Subset(ratios=(0.5, 1.0))
    half = Subset(ratios=(0.0, 0.5))
    assert str(nested(Subset((10, None)), half)) == "[0%, 50%] of [10, end]"


@pytest.mark.parametrize(
    ("written_range", "told"),
    [
        ([1, "50%"], "which mixes them"),
        (["10%", 5], "which mixes them"),
        ([5, 1], "ends before it starts"),
        (["50%", "10%"], "ends before it starts"),
        (["0%", "101%"], "a percentage is from 0% to 100%; got '101%'"),
        ([0.1, 0.5], "for a percentage write '10%'"),
        ([-1, 5], "expected a mapping with 'range'"),
        ([True, 5], "expected a mapping with 'range'"),
        ([1], "expected a mapping with 'range'"),
        (["end", "end"], "expected a mapping with 'range'"),
        ("10%", "expected a mapping with 'range'"),
    ],
)
def test_wrong_ranges(folder, written_range, told):
    node = {"path": "a", "subset": {"range": written_range}}
    with pytest.raises(MetadatasetError) as caught:
        resolve(written(folder / "mix.yaml", node), "train")
    assert told in str(caught.value)
    assert "mix.yaml:6 (splits.train.subset)" in str(caught.value)


def test_more_than_there_is(folder):
    file = written(folder / "mix.yaml", {"path": "a", "subset": subset(3, 21)})
    with pytest.raises(ConfigError, match=r"(?s)but there are 20 samples.*mix\.yaml:5"):
        get_val_dataset(file, split_part="train", batch_size=None)


def test_nothing_left(folder):
    file = written(folder / "mix.yaml", {"path": "a", "subset": subset("50%", "52%")})
    with pytest.raises(EmptyDatasetError, match=r"(?s)no sample is left.*asked for at .*mix\.yaml"):
        get_val_dataset(file, split_part="train", batch_size=None)


@pytest.mark.parametrize(
    "node",
    [
        {"subset": subset(1, 5), "blend": [{"path": "a"}]},
        {"subset": subset(1, 5), "blend_epochized": [{"path": "a"}]},
        {"path": "inner.yaml", "subset": subset(1, 5)},
    ],
)
def test_numbers_of_samples_are_for_single_datasets(folder, node):
    written(folder / "inner.yaml", {"blend": [{"path": "a"}]})
    with pytest.raises(MetadatasetError, match=r"\[1, 5\] counts samples, which is only all"):
        resolve(written(folder / "mix.yaml", node), "train")
