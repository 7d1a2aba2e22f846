"""The packer that selects samples, the pack that is made of them, and both in
datasets."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import energize as ez
from energize.core.description import described
from energize.errors import ConfigError, SampleError
from energize.packing import Packer, balanced, best_fit, concat_pack, first_fit
from tests.support.refusals import check_refusals


@dataclass(kw_only=True, slots=True)
class Tokens(ez.Sample):
    ids: list[int]
    tiles: int = 0
    images: list[str] = field(default_factory=list)


def tokens(*lengths, tiles=0):
    return [
        Tokens(__key__=f"{i}", ids=[i] * each, tiles=tiles)
        for i, each in enumerate(lengths)
    ]


def length(sample):
    return len(sample.ids)


def cost(sample):
    return len(sample.ids) ** 2


@given(st.lists(st.integers(0, 30), max_size=40))
def test_samples_are_packed_as_their_lengths_are(lengths):
    samples = tokens(*lengths)
    for method in (first_fit, best_fit, balanced):
        packs = Packer(length, 30, method=method.__name__)(samples)
        expected = [[samples[i] for i in pack] for pack in method(lengths, 30)]
        assert [[*map(id, pack)] for pack in packs] == [
            [*map(id, pack)] for pack in expected
        ]


def test_samples_that_are_too_long_are_told_or_left_out_with_one_warning(caplog):
    packer = Packer(length, 20, too_long="skip")
    with caplog.at_level(logging.WARNING, "energize"):
        packs = packer(tokens(3, 30, 17, 40, 21))
        assert [[each.__key__ for each in pack] for pack in packs] == [["0", "2"]]
        assert packer(tokens(50)) == []
    told = "sample '1' has length 30, but a pack holds 20"
    [record] = caplog.records
    assert "3 of 5 samples are too long and left out" in record.getMessage()
    assert told in record.getMessage()
    both = Packer(("ids", "tiles"), (20, 5))
    pairs = ("sample '0' has length (3, 9)", "holds (20, 5)")
    check_refusals(
        SampleError,
        one=(lambda: Packer(length, 20)(tokens(3, 30, 40)), told),
        both=(lambda: both(tokens(3, tiles=9)), *pairs),
    )


def test_it_goes_to_workers_and_into_descriptions():
    packer = Packer(length, 20, "balanced", cost=cost)
    assert packer(tokens(3, 4)) == pickle.loads(pickle.dumps(packer))(tokens(3, 4))
    assert pickle.loads(pickle.dumps(packer)) == packer
    assert hash(Packer(["ids", "tiles"], [20, 5])) == hash(
        Packer(("ids", "tiles"), (20, 5))
    )
    assert described(packer) == {
        "length": f"{__name__}.length",
        "capacity": 20,
        "method": "balanced",
        "too_long": "error",
        "cost": f"{__name__}.cost",
    }


# One pack made of several samples.


@dataclass(kw_only=True, slots=True)
class Encoded(ez.Sample):
    tokens: torch.Tensor
    labels: torch.Tensor
    images: list[str]


@dataclass(kw_only=True, slots=True)
class Packed(Encoded):
    cu_seqlens: torch.Tensor
    max_seqlen: int
    position_ids: torch.Tensor


def encoded(key, ids, images=(), **metadata):
    made = torch.tensor(ids)
    return Encoded(
        __key__=key, tokens=made, labels=-made, images=list(images), **metadata
    )


def test_a_pack_of_images_and_texts():
    source = ez.samples.SourceInfo(
        dataset_path="web", index=3, shard_name="0.tar", file_names=("a.jpg",)
    )
    samples = [
        encoded(
            "a",
            [5, 6, 7],
            ["A", "B"],
            __sources__=(source,),
            __subflavors__={"k": 1, "l": 2},
        ),
        encoded(
            "b", [8], __subflavors__={"k": 1, "l": 3}, __restore_key__=("Webdataset", 1)
        ),
        encoded("c", [9, 10], ["C"], __subflavors__={"k": 1}),
    ]
    pack = concat_pack(samples, ["tokens", "labels"], flatten=["images"], into=Packed)
    assert (type(pack), pack.images, pack.max_seqlen) == (Packed, ["A", "B", "C"], 3)
    assert pack.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert pack.labels.tolist() == [-5, -6, -7, -8, -9, -10]
    assert (pack.cu_seqlens.tolist(), pack.cu_seqlens.dtype) == (
        [0, 3, 4, 6],
        torch.int32,
    )
    assert (pack.position_ids.tolist(), pack.position_ids.dtype) == (
        [0, 1, 2, 0, 0, 1],
        torch.int64,
    )
    assert (pack.__key__, pack.__sources__, pack.__restore_key__) == (
        "a,b,c",
        (source,),
        (),
    )
    assert pack.__subflavors__ == {"k": 1}
    listed = concat_pack(
        [encoded("a", [1], ["A", "B"]), encoded("b", [2])], ["tokens", "labels"]
    )
    assert listed["images"] == [["A", "B"], []]
    assert listed["__subflavors__"] is listed["__sources__"] is None


class Pair(NamedTuple):
    ids: Any
    picture: Any


def test_records_of_every_kind_and_numbers_of_every_kind():
    for make in (
        lambda ids: {"ids": torch.tensor(ids), "picture": "P"},
        lambda ids: {"ids": ids, "picture": "P"},
        lambda ids: Pair(np.array(ids), "P"),
    ):
        pack = concat_pack([make([1, 2]), make([3])], ["ids"], flatten=["picture"])
        assert (type(pack), pack["picture"]) == (dict, ["P", "P"])
        assert torch.equal(pack["ids"], torch.tensor([1, 2, 3]))
    image = torch.zeros(3, 4, 4)
    some = [{"ids": [1], "image": image}, {"ids": [2]}, {"ids": [3], "image": None}]
    assert [
        each is image for each in concat_pack(some, ["ids"], flatten=["image"])["image"]
    ] == [True]
    own = [
        {"x": torch.ones(n, 4), "position_ids": torch.arange(n) * 10} for n in (2, 3)
    ]
    pack = concat_pack(own, ["x", "position_ids"])
    assert pack["x"].shape == (5, 4)
    assert pack["position_ids"].tolist() == [0, 10, 0, 10, 20]


def ids(*values, **others):
    return {"__key__": f"k{values[0]}", "ids": torch.tensor(values)} | others


def test_what_cannot_be_joined_is_named():
    wide = [{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}]
    rows = {
        "no samples": ([], ["ids"], "the pack has no samples. Skip empty packs"),
        "no fields": ([ids(1)], [], "of at least one field", "got []"),
        "a text": ([ids(1)], "ids", "fields and flatten must be names"),
        "no record": (["text"], ["ids"], "sample 0 of the pack", "str"),
        "no such field": (
            [ids(1)],
            ["id"],
            "sample 'k1' has no 'id'",
            "did you mean 'ids'",
        ),
        "nothing in it": ([ids(1, labels=None)], ["ids", "labels"], "has no 'labels'"),
        "some have it": (
            [ids(1), ids(2, image="A")],
            ["ids"],
            "only some have",
            "'image'",
        ),
        "lengths": (
            [ids(1, 2, labels=[1])],
            ["ids", "labels"],
            "'k1' has 1 entries in 'labels'",
        ),
        "dtypes": (
            [ids(1), ids(2.0)],
            ["ids"],
            "'ids' of sample 'k2.0' has dtype torch.float32",
        ),
        "shapes": (wide, ["x"], "shape (1, 3)"),
        "no dimension": ([{"x": torch.tensor(1)}], ["x"], "shape ()"),
        "no numbers": (
            [{"x": ["a"]}],
            ["x"],
            "is not a tensor, array or list of numbers",
        ),
        "a name that is made": (
            [ids(1, max_seqlen=1)],
            ["ids"],
            "has a field 'max_seqlen'",
        ),
        "positions": (
            [ids(1, position_ids=[0])],
            ["ids"],
            "list position_ids in fields",
        ),
    }
    check_refusals(
        {
            name: (
                lambda s=s, f=f: concat_pack(s, f),
                ConfigError,
                "concat_pack: ",
                *words,
            )
            for name, (s, f, *words) in rows.items()
        }
        | {
            "a type with more": (
                lambda: concat_pack([ids(1)], ["ids"], into=Packed),
                *(ConfigError, "Packed needs the fields 'tokens'"),
            )
        }
    )
