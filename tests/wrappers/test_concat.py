"""Joining batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.task.collate import Batch, concat_pad, generic_concat, homogeneous_concat_mix


@st.composite
def shapes_of_one_rank(draw):
    rank = draw(st.integers(1, 4))
    shape = st.tuples(*[st.integers(0, 4)] * rank)
    return draw(st.lists(shape, min_size=1, max_size=5))


@given(shapes_of_one_rank(), st.sampled_from(["left", "right"]), st.integers(-3, 3))
def test_every_value_is_in_its_place_and_the_rest_is_padding(shapes, side, pad_value):
    tensors = [torch.randint(10, 99, shape) for shape in shapes]
    joined = concat_pad(tensors, pad_value=pad_value, side=side)
    sizes = [max(dims) for dims in zip(*shapes, strict=True)]
    assert joined.shape == (sum(shape[0] for shape in shapes), *sizes[1:])
    assert joined.dtype == torch.int64
    seen = torch.zeros_like(joined, dtype=torch.bool)
    row = 0
    for tensor in tensors:
        for index in torch.cartesian_prod(
            *[torch.arange(n) for n in tensor.shape], torch.tensor([0])
        ).reshape(-1, tensor.ndim + 1)[:, :-1]:
            at = [row + index[0].item()]
            for dim in range(1, tensor.ndim):
                shift = joined.shape[dim] - tensor.shape[dim] if side == "left" else 0
                at.append(index[dim].item() + shift)
            assert joined[tuple(at)] == tensor[tuple(index.tolist())]
            seen[tuple(at)] = True
        row += tensor.shape[0]
    assert (joined[~seen] == pad_value).all()


def test_the_result_is_a_copy():
    tensor = torch.zeros(2, 2)
    concat_pad([tensor])[0, 0] = 1
    assert tensor.sum() == 0


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "no tensors"),
        ([torch.tensor(1), torch.tensor(2)], r"shape \(\)"),
        ([torch.zeros(1, 2), torch.zeros(3)], r"different ranks.*1, 2.*shapes \(1, 2\), \(3,\)"),
        ([torch.zeros(1), torch.zeros(1, dtype=torch.int64)], "dtypes.*float32, torch.int64"),
        ([torch.zeros(1), torch.zeros(1, device="meta")], "devices.*cpu, meta"),
        ([torch.zeros(1), [1]], "entry 1 is a list"),
    ],
)
def test_what_cannot_be_joined(tensors, message):
    with pytest.raises(ConfigError, match=message):
        concat_pad(tensors)


def test_an_unknown_side():
    with pytest.raises(ConfigError, match="'middle'"):
        concat_pad([torch.zeros(1)], side="middle")


class Box(NamedTuple):
    corners: torch.Tensor
    name: str


@dataclass
class CaptioningBatch(Batch):
    image: torch.Tensor
    caption: list[str]
    boxes: Box
    weight: float = 1.0


def captions(*keys: str, width: int = 2):
    return CaptioningBatch(
        torch.ones(len(keys), 3, 2, width),
        [f"caption {key}" for key in keys],
        Box(torch.ones(len(keys), 4), "box"),
        __key__=list(keys),
        __restore_key__=[("Webdataset", key) for key in keys],
        __subflavors__=[{"width": width}] * len(keys),
    )


def test_a_batch_is_joined_field_by_field():
    mixed = homogeneous_concat_mix([captions("a", "b"), captions("c", width=3)])
    assert type(mixed) is CaptioningBatch
    assert mixed.image.shape == (3, 3, 2, 3)
    assert mixed.image[0, 0, 0].tolist() == [1, 1, 0]
    assert mixed.__key__ == ["a", "b", "c"]
    assert mixed.caption == ["caption a", "caption b", "caption c"]
    assert mixed.__restore_key__[2] == ("Webdataset", "c")
    assert mixed.__subflavors__ == [{"width": 2}, {"width": 2}, {"width": 3}]
    assert mixed.boxes.corners.shape == (3, 4)
    assert mixed.boxes.name == ["box", "box"]
    assert mixed.weight.tolist() == [1.0, 1.0, 1.0]
    again = [{"__key__": ["a", "b"], "weight": mixed.weight[:2]}, {"__key__": ["d"], "weight": 0.5}]
    assert generic_concat(again)["weight"].tolist() == [1.0, 1.0, 0.5]


def test_joining_is_associative_where_it_is_about_samples():
    parts = [{"key": [key], "image": torch.ones(1, len(key))} for key in ("a", "bcd", "ef")]
    once = generic_concat(parts)
    twice = generic_concat([generic_concat(parts[:2]), parts[2]])
    assert torch.equal(once["image"], twice["image"])
    assert once["key"] == twice["key"] == ["a", "bcd", "ef"]


def test_metadata_that_no_batch_has_stay_none():
    mixed = generic_concat([Batch(__key__=["a"]), Batch(__key__=["b", "c"])])
    assert mixed == Batch(__key__=["a", "b", "c"])


def test_metadata_that_only_some_batches_have_are_an_error():
    with pytest.raises(ConfigError, match="field __subflavors__ of different types"):
        generic_concat([Batch(__key__=["a"]), Batch(__key__=["b"], __subflavors__=[None])])


def test_different_types_are_named():
    with pytest.raises(ConfigError, match=r"Box, .*CaptioningBatch.*batch_mix_fn"):
        homogeneous_concat_mix([captions("a"), Box(torch.ones(1), "x")])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{"a": {"b": torch.ones(1)}}, {"a": {"b": torch.ones(1, 1)}}], "field a.b: .*ranks"),
        ([{"a": ["x"]}, {"a": None}], "field a of different types.*NoneType, list"),
        ([{"a": torch.ones(1)}, {"a": [1]}], "field a of different types.*Tensor, list"),
        ([{"a": 1}, {"b": 1}], "only some have the keys 'a', 'b'"),
        ([], "no tensors"),
    ],
)
def test_the_field_that_does_not_fit_is_named(batches, message):
    with pytest.raises(ConfigError, match=message):
        generic_concat(batches)
