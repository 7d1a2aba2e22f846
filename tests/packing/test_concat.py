"""One pack made of several samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import Sample, SourceInfo
from energize.errors import ConfigError
from energize.packing import concat_pack


@dataclass(kw_only=True, slots=True)
class Encoded(Sample):
    tokens: torch.Tensor
    labels: torch.Tensor
    images: list[str]


@dataclass(kw_only=True, slots=True)
class Packed(Sample):
    tokens: torch.Tensor
    labels: torch.Tensor
    images: list[str]
    cu_seqlens: torch.Tensor
    max_seqlen: int
    position_ids: torch.Tensor


def encoded(key, ids, images=(), **metadata):
    tokens = torch.tensor(ids)
    return Encoded(__key__=key, tokens=tokens, labels=-tokens, images=list(images), **metadata)


def test_images_and_texts():
    source = SourceInfo(dataset_path="web", index=3, shard_name="0.tar", file_names=("a.jpg",))
    samples = [
        encoded("a", [5, 6, 7], ["A", "B"], __sources__=(source,), __subflavors__={"k": 1, "l": 2}),
        encoded("b", [8], __subflavors__={"k": 1, "l": 3}, __restore_key__=("Webdataset", 1)),
        encoded("c", [9, 10], ["C"], __subflavors__={"k": 1}),
    ]
    pack = concat_pack(samples, ["tokens", "labels"], flatten=["images"], into=Packed)
    assert type(pack) is Packed
    assert pack.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert pack.labels.tolist() == [-5, -6, -7, -8, -9, -10]
    assert pack.images == ["A", "B", "C"]
    assert pack.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert pack.cu_seqlens.dtype == torch.int32
    assert pack.max_seqlen == 3
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert pack.position_ids.dtype == torch.int64
    assert (pack.__key__, pack.__sources__, pack.__restore_key__) == ("a,b,c", (source,), ())
    assert pack.__subflavors__ == {"k": 1}


def test_without_flatten_there_is_a_value_for_each_sample():
    pack = concat_pack([encoded("a", [1], ["A", "B"]), encoded("b", [2])], ["tokens", "labels"])
    assert pack["images"] == [["A", "B"], []]
    assert pack["__subflavors__"] is pack["__sources__"] is None


class Pair(NamedTuple):
    ids: Any
    picture: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: {"ids": torch.tensor(ids), "picture": "P"},
        lambda ids: {"ids": ids, "picture": "P"},
        lambda ids: Pair(np.array(ids), "P"),
    ],
)
def test_records_of_every_kind_and_numbers_of_every_kind(make):
    pack = concat_pack([make([1, 2]), make([3])], ["ids"], flatten=["picture"])
    assert type(pack) is dict
    assert torch.equal(pack["ids"], torch.tensor([1, 2, 3]))
    assert pack["picture"] == ["P", "P"]


def test_texts_have_no_images_and_a_single_image_is_one():
    image = torch.zeros(3, 4, 4)
    samples = [{"ids": [1], "image": image}, {"ids": [2]}, {"ids": [3], "image": None}]
    pack = concat_pack(samples, ["ids"], flatten=["image"])
    assert [each is image for each in pack["image"]] == [True]


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=8))
def test_the_samples_can_be_told_apart_again(rows):
    samples = [{"ids": torch.tensor(row, dtype=torch.int64)} for row in rows]
    pack = concat_pack(samples, ["ids"])
    ends = pack["cu_seqlens"].tolist()
    assert [pack["ids"][a:b].tolist() for a, b in pairwise(ends)] == rows
    assert pack["position_ids"].tolist() == [i for row in rows for i in range(len(row))]
    assert pack["max_seqlen"] == max(map(len, rows))


def test_features_for_each_token_and_positions_of_ones_own():
    samples = [{"x": torch.ones(n, 4), "position_ids": torch.arange(n) * 10} for n in (2, 3)]
    pack = concat_pack(samples, ["x", "position_ids"])
    assert pack["x"].shape == (5, 4)
    assert pack["position_ids"].tolist() == [0, 10, 0, 10, 20]


def ids(*values, **others):
    return {"__key__": f"k{values[0]}", "ids": torch.tensor(values)} | others


FAULTS = {
    "no samples": ([], ["ids"], {}, "there are no samples; leave empty packs out"),
    "no fields": ([ids(1)], [], {}, "fields has at least one; got []"),
    "a text": ([ids(1)], "ids", {}, "lists of names"),
    "no record": (["text"], ["ids"], {}, "sample 0 of the pack is a str"),
    "no such field": (
        [ids(1)],
        ["id"],
        {},
        "sample 'k1' has no 'id'; it has '__key__', 'ids'; did",
    ),
    "nothing in it": ([ids(1, labels=None)], ["ids", "labels"], {}, "has no 'labels'"),
    "some have it": (
        [ids(1), ids(2, image="A")],
        ["ids"],
        {},
        "list in flatten what some have none of, as images): only some have the keys 'image'",
    ),
    "lengths": (
        [ids(1, 2, labels=[1])],
        ["ids", "labels"],
        {},
        "sample 'k1' has 1 entries in 'labels' and 2 in 'ids'",
    ),
    "dtypes": (
        [ids(1), ids(2.0)],
        ["ids"],
        {},
        "'ids' of sample 'k2.0' has dtype torch.float32 and shape (1,), that of sample 'k1'",
    ),
    "shapes": ([{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}], ["x"], {}, "shape (1, 3)"),
    "no dimension": ([{"x": torch.tensor(1)}], ["x"], {}, "shape ()"),
    "no numbers": ([{"x": ["a"]}], ["x"], {}, "is no tensor, array or list of numbers"),
    "a name that is made": ([ids(1, max_seqlen=1)], ["ids"], {}, "has a field 'max_seqlen'"),
    "positions": ([ids(1, position_ids=[0])], ["ids"], {}, "or list it in fields"),
    "a type with more": ([ids(1)], ["ids"], {"into": Packed}, "Packed needs the fields 'tokens'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_joined_is_named(fault):
    samples, fields, options, message = FAULTS[fault]
    with pytest.raises(ConfigError) as caught:
        concat_pack(samples, fields, **options)
    assert message in str(caught.value)
