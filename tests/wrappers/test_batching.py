"""Making batches of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize.core.samples import CaptioningSample, ImageClassificationSample, SourceInfo
from energize.errors import ConfigError
from energize.task.collate import (
    Batch,
    batch_as,
    batch_list,
    batch_pad_stack,
    batch_stack,
    generic_batch,
)


def source(key: str) -> SourceInfo:
    return SourceInfo(dataset_path="ds", index=0, shard_name="0.tar", file_names=(f"{key}.jpg",))


def captioned(key: str, width: int = 2, **changed):
    values = {
        "__key__": key,
        "__restore_key__": ("Webdataset", "0.tar", 0),
        "__sources__": (source(key),),
        "image": torch.ones(3, 2, width),
        "caption": f"caption {key}",
    }
    return CaptioningSample(**values | changed)


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 2), min_size=1, max_size=6), st.integers(-2, 2))
def test_padding_keeps_every_value_and_fills_the_rest(shapes, pad_value):
    tensors = [torch.randint(10, 99, shape) for shape in shapes]
    stacked = batch_pad_stack(tensors, pad_value=pad_value)
    for row, tensor in zip(stacked, tensors, strict=True):
        height, width = tensor.shape
        assert torch.equal(row[:height, :width], tensor)
        assert (row[height:] == pad_value).all()
        assert (row[:, width:] == pad_value).all()


def test_stacking():
    assert torch.equal(batch_stack([torch.ones(2)] * 3), torch.ones(3, 2))
    assert batch_pad_stack([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    assert batch_list((1, 2)) == [1, 2]


@pytest.mark.parametrize(
    ("stack", "tensors", "message"),
    [
        (batch_stack, [torch.ones(2), torch.ones(3)], r"\(2,\), \(3,\).*batch_pad_stack"),
        (batch_stack, [], "no tensors"),
        (batch_pad_stack, [torch.ones(2), torch.ones(2, 2)], "batch_pad_stack: .*ranks"),
        (batch_pad_stack, [torch.ones(2), torch.ones(2).int()], "float32, torch.int32"),
    ],
)
def test_what_cannot_be_stacked(stack, tensors, message):
    with pytest.raises(ConfigError, match=message):
        stack(tensors)


class Point(NamedTuple):
    at: torch.Tensor
    name: str


def test_a_generic_batch_has_the_structure_of_its_samples():
    samples = [{"p": Point(torch.ones(n), str(n)), "a": np.ones(2), "n": n} for n in (1, 2)]
    batch = generic_batch(samples)
    assert type(batch["p"]) is Point
    assert batch["p"].at.tolist() == [[1, 0], [1, 1]]
    assert batch["p"].name == ["1", "2"]
    assert isinstance(batch["a"], list)
    assert batch["n"] == [1, 2]
    assert samples[0]["p"].at.tolist() == [1]


def test_metadata_are_lists_with_one_entry_per_sample():
    samples = [captioned("a", __subflavors__={"x": 1}), captioned("b", width=4)]
    batch = generic_batch(samples)
    assert type(batch) is CaptioningSample
    assert batch.__key__ == ["a", "b"]
    assert batch.__subflavors__ == [{"x": 1}, None]
    assert batch.__sources__ == [(source("a"),), (source("b"),)]
    assert batch.image.shape == (2, 3, 2, 4)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"a": torch.ones(1)}, {"a": None}], "field a of different types.*NoneType, Tensor"),
        ([{"a": {"x": 1}}, {"a": {"y": 1}}], "field a: only some have the keys 'x', 'y'"),
        ([{"a": {"x": torch.ones(1)}}, {"a": {"x": torch.ones(1, 1)}}], "field a.x: .*ranks"),
    ],
)
def test_the_field_that_does_not_fit_is_named(samples, message):
    with pytest.raises(ConfigError, match=message):
        generic_batch(samples)


@dataclass
class RawBatch:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


class ImageTuple(NamedTuple):
    image: torch.Tensor
    extra: int = 5


@dataclass
class NeedsMore:
    image: torch.Tensor
    depth: torch.Tensor
    name: str
    label: int = 0
    tags: list[str] = field(default_factory=list)


class TestBatchAs:
    def test_a_dataclass_takes_the_fields_it_has(self):
        batch = batch_as([captioned("a"), captioned("b", width=3)], RawBatch)
        assert type(batch) is RawBatch
        assert batch.__key__ == ["a", "b"]
        assert batch.image.shape == (2, 3, 2, 3)

    def test_named_tuples_and_dicts(self):
        batch = batch_as([captioned("a")], ImageTuple)
        assert (batch.image.shape, batch.extra) == ((1, 3, 2, 2), 5)
        assert list(batch_as([{"a": 1, "b": 2}], dict)) == ["a", "b"]

    def test_fields_that_are_not_wanted_are_not_batched(self):
        samples = [{"image": torch.ones(1), "odd": torch.ones(n + 1, *[1] * n)} for n in range(2)]
        assert batch_as(samples, ImageTuple).image.shape == (2, 1)

    def test_missing_fields_are_named(self):
        with pytest.raises(
            ConfigError, match=r"NeedsMore needs the fields 'depth', 'name'.*'image'"
        ):
            batch_as([captioned("a")], NeedsMore)

    def test_samples_without_fields_are_refused(self):
        with pytest.raises(ConfigError, match="got int"):
            batch_as([1, 2], RawBatch)
        with pytest.raises(ConfigError, match="no samples"):
            batch_as([], RawBatch)


@dataclass
class ClassificationBatch(Batch):
    image: torch.Tensor
    label: list[int | None]
    weight: float = 1.0


class TestBatch:
    samples = (
        ImageClassificationSample(
            __key__="a", image=torch.ones(1, 2), label=3, __subflavors__={"x": 1}
        ),
        ImageClassificationSample(__key__="b", image=torch.ones(2, 1), __sources__=(source("b"),)),
    )

    def test_from_samples_pads_tensors_and_keeps_metadata_aligned(self):
        batch = ClassificationBatch.from_samples(self.samples)
        assert batch.image.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
        assert batch.label == [3, None]
        assert batch.__subflavors__ == [{"x": 1}, None]
        assert batch.__sources__ == [None, (source("b"),)]
        assert batch.__restore_key__ == [(), ()]
        assert batch.weight == 1.0

    def test_given_fields_win(self):
        batch = ClassificationBatch.from_samples(self.samples, image=torch.zeros(1), weight=0.5)
        assert (batch.image.tolist(), batch.weight) == ([0.0], 0.5)

    def test_missing_fields_are_named(self):
        with pytest.raises(ConfigError, match="ClassificationBatch needs the fields 'label'"):
            ClassificationBatch.from_samples([captioned("a")])

    def test_derive_from_keeps_the_metadata(self):
        batch = ClassificationBatch.from_samples(self.samples)
        derived = Batch.derive_from(batch, __key__=["x", "y"])
        assert derived.__key__ == ["x", "y"]
        assert derived.__sources__ == batch.__sources__
        with pytest.raises(TypeError, match="imagee"):
            ClassificationBatch.derive_from(batch, imagee=1)

    def test_a_type_with_from_samples_is_batched_by_it(self):
        @dataclass
        class Summed:
            value: int

            @classmethod
            def from_samples(cls, samples):
                return cls(sum(each.value for each in samples))

        assert generic_batch([{"s": Summed(1)}, {"s": Summed(2)}])["s"] == Summed(3)
        assert batch_as([Summed(4)], Summed) == Summed(4)

    def test_pinning_changes_a_copy_only(self):
        batch = ClassificationBatch.from_samples(self.samples)
        pinned = batch.pin_memory()
        assert pinned.image.is_pinned() == torch.cuda.is_available()
        assert not batch.image.is_pinned()
