"""Batches made of samples, and of batches: values decide how, field by field at any
depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from energize import (
    Batch,
    CrudeSample,
    concat_pad,
    generic_batch,
    homogeneous_concat_mix,
)
from energize.core.samples import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    SourceInfo,
)
from energize.encoders import batch_list, batch_pad_stack, batch_stack, generic_concat
from energize.errors import ConfigError
from tests.support.refusals import check_refusals

SOURCE = SourceInfo(
    dataset_path="ds", index=0, shard_name="0.tar", file_names=("a.jpg",)
)


def test_tensors():
    tensor = torch.zeros(2, 2)
    concat_pad([tensor])[0, 0] = 1
    assert tensor.sum() == 0
    assert torch.equal(batch_stack([torch.ones(2)] * 3), torch.ones(3, 2))
    assert batch_pad_stack([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]
    assert batch_list((1, 2)) == [1, 2]
    large = torch.arange(3 * 2**19, dtype=torch.int32).view(3, 2**10, 2**9)
    for tensor in (
        large,
        large.bfloat16(),
        large.permute(1, 2, 0),
        torch.view_as_complex(large.float().view(3, -1, 2)).conj(),
        large.float().requires_grad_(),
    ):
        stacked = batch_stack([tensor, tensor.flip(0)])
        expected = torch.stack([tensor, tensor.flip(0)])
        assert torch.equal(stacked, expected)
        assert stacked.stride() == expected.stride()
        assert stacked.requires_grad == expected.requires_grad
    one, whole, meta = (
        torch.zeros(1),
        torch.zeros(1).long(),
        torch.zeros(1, device="meta"),
    )
    ranks = ("different ranks", "1, 2", "shapes (1, 2), (3,)")
    check_refusals(
        ConfigError,
        none=(lambda: concat_pad([]), "no tensors"),
        scalars=(lambda: concat_pad([torch.tensor(1)]), "shape ()"),
        ranks=(lambda: concat_pad([torch.zeros(1, 2), torch.zeros(3)]), *ranks),
        dtypes=(lambda: concat_pad([one, whole]), "float32, torch.int64"),
        devices=(lambda: concat_pad([one, meta]), "devices", "cpu, meta"),
        a_list=(lambda: concat_pad([one, [1]]), "entry 1 is a list"),
        side=(lambda: concat_pad([one], side="middle"), "'middle'"),
        stack=(
            lambda: batch_stack([torch.ones(2), torch.ones(3)]),
            "(2,), (3,)",
            "batch_pad_stack",
        ),
        no_stack=(lambda: batch_stack([]), "no tensors"),
        stacked=(lambda: batch_pad_stack([one, torch.ones(2, 2)]), "ranks"),
        pads=(lambda: batch_pad_stack([one, whole]), "batch_pad_stack"),
    )


class Point(NamedTuple):
    at: torch.Tensor
    name: str


@dataclass
class Summed:
    value: int

    @classmethod
    def from_samples(cls, samples):
        return cls(sum(each.value for each in samples))


def captioned(key, width=2, **changed):
    values = {
        "__key__": key,
        "image": torch.ones(3, 2, width),
        "caption": f"caption {key}",
    }
    return CaptioningSample(**values | changed)


def test_a_generic_batch_has_the_structure_of_its_samples():
    samples = [
        {"p": Point(torch.ones(n), str(n)), "a": np.ones(2), "n": n} for n in (1, 2)
    ]
    batch = generic_batch(samples)
    assert (type(batch["p"]), batch["p"].name) == (Point, ["1", "2"])
    assert batch["p"].at.tolist() == [[1, 0], [1, 1]]
    assert (type(batch["a"]), batch["n"]) == (list, [1, 2])
    assert samples[0]["p"].at.tolist() == [1]
    assert generic_batch([{"s": Summed(1)}, {"s": Summed(2)}])["s"] == Summed(3)
    named = [
        captioned("a", __subflavors__={"x": 1}),
        captioned("b", 4, __sources__=(SOURCE,)),
    ]
    batch = generic_batch(named)
    assert (type(batch), batch.__key__) == (CaptioningSample, ["a", "b"])
    assert batch.__subflavors__ == [{"x": 1}, None]
    assert batch.__sources__ == [None, (SOURCE,)]
    assert batch.image.shape == (2, 3, 2, 4)


@dataclass
class ClassificationBatch(Batch):
    image: torch.Tensor
    label: list[int | None]
    weight: float = 1.0


def test_batches_keep_metadata_aligned():
    kind = ImageClassificationSample
    one = kind(__key__="a", image=torch.ones(1, 2), label=3, __subflavors__={"x": 1})
    other = kind(__key__="b", image=torch.ones(2, 1), __sources__=(SOURCE,))
    batch = ClassificationBatch.from_samples([one, other])
    assert batch.image.tolist() == [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
    assert (batch.label, batch.weight) == ([3, None], 1.0)
    assert batch.__subflavors__ == [{"x": 1}, None]
    assert batch.__sources__ == [None, (SOURCE,)]
    assert batch.__restore_key__ == [(), ()]
    own = ClassificationBatch.from_samples(
        [one, other], image=torch.zeros(1), weight=0.5
    )
    assert (own.image.tolist(), own.weight) == ([0.0], 0.5)
    derived = Batch.derive_from(batch, __key__=["x", "y"])
    assert (derived.__key__, derived.__sources__) == (["x", "y"], batch.__sources__)
    assert Batch.derive_from({"__key__": ["x"]}).__key__ == ["x"]
    for samples in (one, [one]):
        with pytest.raises(ConfigError, match=r"Batch\.from_samples"):
            Batch.derive_from(samples)
    crude = [
        CrudeSample(__key__=k, image=torch.ones(1), label=1, extra=1) for k in "ab"
    ]
    assert ClassificationBatch.from_samples(crude).__key__ == ["a", "b"]
    assert batch.pin_memory().image.is_pinned() == torch.cuda.is_available()
    assert not batch.image.is_pinned()


@dataclass
class MaskedBatch(Batch):
    image: torch.Tensor
    image_mask: torch.Tensor


def test_padding_of_images_is_said_once_and_masked_where_asked(monkeypatch, caplog):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    sizes = {"a": (3, 1, 2), "b": (3, 2, 1)}
    samples = [
        ImageSample(__key__=key, image=torch.ones(size)) for key, size in sizes.items()
    ]
    for _ in range(2):
        batch = MaskedBatch.from_samples(samples)
    mask = [[[1, 1], [0, 0]], [[1, 0], [1, 0]]]
    assert batch.image[:, 0].tolist() == batch.image_mask.int().tolist() == mask
    assert (
        caplog.text.count("of shapes like [(3, 1, 2), (3, 2, 1)] are padded with zeros")
        == 1
    )


@dataclass
class CaptioningBatch(Batch):
    image: torch.Tensor
    caption: list[str]
    boxes: Point
    weight: float = 1.0


def captions(*keys: str, width: int = 2):
    return CaptioningBatch(
        torch.ones(len(keys), 3, 2, width),
        [f"caption {key}" for key in keys],
        Point(torch.ones(len(keys), 4), "box"),
        __key__=list(keys),
        __restore_key__=[("Webdataset", key) for key in keys],
        __subflavors__=[{"width": width}] * len(keys),
    )


def test_batches_are_joined_field_by_field():
    mixed = homogeneous_concat_mix([captions("a", "b"), captions("c", width=3)])
    assert (type(mixed), mixed.image.shape) == (CaptioningBatch, (3, 3, 2, 3))
    assert mixed.image[0, 0, 0].tolist() == [1, 1, 0]
    assert mixed.__key__ == ["a", "b", "c"]
    assert mixed.caption == ["caption a", "caption b", "caption c"]
    assert mixed.__restore_key__[2] == ("Webdataset", "c")
    assert mixed.__subflavors__ == [{"width": 2}, {"width": 2}, {"width": 3}]
    assert mixed.boxes.at.shape == (3, 4)
    assert mixed.boxes.name == ["box", "box"]
    assert mixed.weight.tolist() == [1.0, 1.0, 1.0]
    again = [
        {"__key__": ["a", "b"], "weight": mixed.weight[:2]},
        {"__key__": ["d"], "weight": 0.5},
    ]
    assert generic_concat(again)["weight"].tolist() == [1.0, 1.0, 0.5]
    parts = [
        {"key": [key], "image": torch.ones(1, len(key))} for key in ("a", "bcd", "ef")
    ]
    once = generic_concat(parts)
    twice = generic_concat([generic_concat(parts[:2]), parts[2]])
    assert torch.equal(once["image"], twice["image"])
    assert once["key"] == twice["key"] == ["a", "bcd", "ef"]
    bare = generic_concat([Batch(__key__=["a"]), Batch(__key__=["b", "c"])])
    assert bare == Batch(__key__=["a", "b", "c"])
