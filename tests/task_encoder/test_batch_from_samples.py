"""Batches made of samples: values decide how, not the types of samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from energize import Batch, CrudeSample, ImageSample


@dataclass
class Images(Batch):
    image: torch.Tensor


def test_tensors_are_stacked_padded_and_metadata_stay_aligned():
    samples = [
        ImageSample(__key__="a", image=torch.ones(1, 2), __subflavors__={}),
        ImageSample(__key__="b", image=torch.ones(2, 2), __subflavors__={"lang": "en"}),
        ImageSample(__key__="c", image=torch.ones(1, 1), __subflavors__=None),
    ]
    batch = Images.from_samples(samples)
    assert isinstance(batch.image, torch.Tensor)
    assert batch.image.shape == (3, 2, 2)
    assert batch.image.sum(dim=(1, 2)).tolist() == [2, 4, 1]
    assert batch.__key__ == ["a", "b", "c"]
    assert batch.__subflavors__ == [{}, {"lang": "en"}, None]


def test_of_crude_samples_too():
    samples = [
        CrudeSample(__key__=key, __subflavors__={}, image=torch.full((1, 2), index), extra=1)
        for index, key in enumerate("ab")
    ]
    batch = Images.from_samples(samples)
    assert batch.image.tolist() == [[[0, 0]], [[1, 1]]]
    assert batch.__key__ == ["a", "b"]
    assert batch.__subflavors__ == [{}, {}]
