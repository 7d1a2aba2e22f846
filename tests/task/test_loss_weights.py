"""Weights on the way from sources to batches, whatever users' functions make of
samples; and the mean of weighted losses. Over ranks see test_training.
"""

from __future__ import annotations

import json
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

import energize as ez
from energize.core.loss_weights import field_of, weight_of
from energize.core.padding import marked
from tests.support.refusals import check_refusals


@dataclass(kw_only=True, slots=True)
class Tokens(ez.Sample):
    ids: torch.Tensor


@dataclass(kw_only=True, slots=True)
class Encoded(ez.Sample):
    ids: torch.Tensor
    sample_weight: float | None = None


@dataclass(kw_only=True, slots=True)
class TokenBatch(ez.Batch):
    ids: torch.Tensor


@dataclass(slots=True)
class Placeless:
    ids: Any


@dataclass
class Open:
    """Without a field for weights, but open to attributes, as samples may be."""

    ids: Any


@dataclass(frozen=True)
class OwnBatch:
    ids: Any
    sample_weights: torch.Tensor | None = None


def tokens(count: int = 8) -> ez.ListSource[Tokens]:
    return ez.ListSource(
        [Tokens(__key__=f"{i}", ids=torch.arange(i + 1)) for i in range(count)]
    )


def by_length(sample: Any) -> float:
    return float(len(sample.ids))


def weighted(count: int = 8) -> ez.Dataset[Any]:
    """Sample i counts i + 1."""
    return ez.SampleWeightDataset(tokens(count), by_length)


def encode(sample: Tokens) -> Encoded:
    return Encoded.derive_from(sample, ids=sample.ids, sample_weight=0.5)


def lengths(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([len(each.ids) for each in samples])


def weights(batch: Any) -> Any:
    """The weights of the samples of a batch, as lists."""
    found = field_of(batch, "sample_weights")
    return None if found is None else found.tolist()


def first(dataset: ez.Dataset[Any]) -> Any:
    return lambda: next(iter(dataset))


BATCHERS = {
    "generic": ez.generic_batch,
    "a batch type": TokenBatch.from_samples,
    "a dict": lambda samples: {"ids": lengths(samples)},
    "a frozen dataclass": lambda samples: OwnBatch(lengths(samples)),
    "like a dict": lambda samples: UserDict(ids=lengths(samples)),
}


def test_batches_of_any_type_get_the_product_of_all_weights_or_nothing():
    for name, batcher in BATCHERS.items():
        batch = ez.BatchDataset(ez.MapDataset(weighted(), encode), 3, batcher)[1]
        assert field_of(batch, "sample_weights").dtype == torch.float32
        assert weights(batch) == [2.0, 2.5, 3.0], name
        plain = ez.BatchDataset(tokens(), 3, batcher)[1]
        assert weights(plain) is None, name
        assert not isinstance(plain, dict) or set(plain) == {"ids"}
    mix = ez.BlendDataset((ez.SampleWeightDataset(tokens(), 0.5), 1), (tokens(), 1))
    batch = ez.BatchDataset(mix, 6, ez.generic_batch)[0]
    assert sorted(weights(batch)) == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]
    some = [{"ids": [1, 2], "sample_weight": 0.5}, {"ids": [3]}]
    batch = ez.generic_batch(some)
    assert (weights(batch), batch["sample_weight"]) == ([0.5, 1.0], [0.5, None])
    assert weights(ez.packing.concat_pack(some, ["ids"])) == [0.5, 1.0]
    assert ez.batch_weights(list(weighted(3))).tolist() == [1.0, 2.0, 3.0]
    assert ez.batch_weights(list(tokens(3))) is ez.batch_weights([]) is None


def test_no_batch_has_the_weight_of_single_samples():
    """Whatever a function copies from its samples: no `__sample_weight__`, no None."""
    samples = [{"__key__": f"{number}", "x": number} for number in range(4)]
    weighted_dicts = ez.SampleWeightDataset(ez.ListSource(samples), 0.5)

    def collate(given):
        return {name: [sample[name] for sample in given] for name in given[0]}

    def with_weights(given):
        return {**collate(given), "sample_weights": ez.batch_weights(given)}

    for batcher in (
        collate,
        with_weights,
        default_collate,
        lambda given: UserDict(collate(given)),
        lambda given: given[0],
    ):
        batch = ez.BatchDataset(weighted_dicts, 2, batcher)[0]
        assert set(batch) == {"__key__", "x", "sample_weights"}
        assert weights(batch) == [0.5, 0.5]


def test_a_batch_of_dicts_of_a_metadataset_has_its_weights_and_no_other_key_of_ours(
    tmp_path,
):
    class Dicts(ez.DefaultTaskEncoder):
        def encode_sample(self, sample):
            return {"text": sample.text}

        def batch(self, given):
            return {name: [sample[name] for sample in given] for name in given[0]}

    lines = [json.dumps({"text": str(number)}) for number in range(4)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    entry = {"path": str(tmp_path / "texts.jsonl"), "weight": 1, "sample_weight": 0.5}
    splits = {"train": {"blend": [entry]}}
    mix = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": splits}
    dataset = ez.get_train_dataset(mix, batch_size=2, task_encoder=Dicts())
    batch = next(iter(ez.get_loader(dataset)))
    assert set(batch) == {"text", "sample_weights"}
    assert weights(batch) == [0.5, 0.5]


def test_weights_find_their_samples_by_the_keys_of_a_batch():
    def longest_first(samples):
        return TokenBatch.from_samples(sorted(samples, key=by_length, reverse=True))

    def by_keys(samples):
        ordered = samples[::-1]
        return {"__key__": [each.__key__ for each in ordered], "ids": lengths(ordered)}

    def leaves_out(samples):
        return {"__key__": [samples[1].__key__], "ids": lengths(samples[1:2])}

    own = torch.tensor([9.0, 9.0, 9.0])
    for batcher, expected in (
        (longest_first, [3.0, 2.0, 1.0]),
        (by_keys, [3.0, 2.0, 1.0]),
        (leaves_out, [2.0]),
        (
            lambda samples: {"ids": lengths(samples), "sample_weights": own},
            [9.0, 9.0, 9.0],
        ),
    ):
        assert weights(ez.BatchDataset(weighted(), 3, batcher)[0]) == expected
    own = torch.tensor([9.0])
    kept = TokenBatch.from_samples([weighted()[1]], sample_weights=own)
    assert weights(kept) == [9.0]
    # A key that two samples have is told apart by their order alone.
    doubled = ez.ListSource(
        [{"__key__": "a", "sample_weight": each} for each in (1.0, 2.0)]
    )
    same = ez.BatchDataset(doubled, 2, lambda samples: {"__key__": ["a", "a"]})
    assert weights(same[0]) == [1.0, 2.0]
    other = ez.BatchDataset(doubled, 2, lambda samples: {"__key__": ["a"]})
    unknown = ez.BatchDataset(
        weighted(), 3, lambda s: {"__key__": ["?"] * 3, "ids": s[0].ids}
    )
    check_refusals(
        ez.EncoderError,
        unknown=(first(unknown), "'?', which none of its samples has"),
        twice=(first(other), "two samples called 'a' have different weights"),
    )


# Functions of one item.


def test_what_a_function_makes_of_a_sample_keeps_its_weight():
    for made in (
        lambda sample: {"ids": sample.ids},
        lambda sample: Open(sample.ids),
        lambda sample: Tokens(__key__="new", ids=sample.ids),
        lambda sample: Tokens.derive_from(sample, ids=sample.ids),
    ):
        assert weight_of(ez.MapDataset(weighted(), made)[2]) == 3.0
    # What an earlier hook said is not lost with its field.
    later = ez.MapDataset(
        ez.MapDataset(weighted(), encode), lambda s: Tokens.derive_from(s, ids=s.ids)
    )
    assert weight_of(later[3]) == 2.0
    again = ez.MapDataset(later, lambda s: {"ids": s.ids, "sample_weight": 3})
    assert weight_of(again[3]) == 6.0
    whole = ez.MapDataset(
        weighted(), lambda s: {"ids": s.ids, "__sample_weight__": 7.0}
    )
    assert weight_of(whole[3]) == 7.0
    # Users' objects are not changed.
    source, shared = [{"x": 1}], {"x": 2}
    made = ez.MapDataset(
        ez.SampleWeightDataset(ez.ListSource(source), 0.5), lambda _: shared
    )
    assert (weight_of(made[0]), source, shared) == (0.5, [{"x": 1}], {"x": 2})
    lists = ez.BatchDataset(weighted(), 3, list)
    assert [weight_of(each) for each in lists[0]] == [1.0, 2.0, 3.0]
    batches = ez.MapDataset(lists, lambda samples: {"ids": lengths(samples)})
    assert weights(batches[0]) == [1.0, 2.0, 3.0]


def test_what_encoders_said_of_each_sample_may_be_a_column():
    """As long as no source says anything: then the weights are all there."""

    @dataclass(slots=True)
    class Column:
        sample_weight: torch.Tensor

    def batch(samples):
        return Column(torch.tensor([each.sample_weight for each in samples]))

    assert (
        ez.BatchDataset(ez.MapDataset(tokens(), encode), 3, batch)[
            0
        ].sample_weight.sum()
        == 1.5
    )
    with pytest.raises(ez.EncoderError, match="no place for the weights"):
        ez.BatchDataset(ez.MapDataset(weighted(), encode), 3, batch)[0]


def test_encode_batch_takes_the_weights_of_the_raw_batch_over():
    raw = ez.BatchDataset(weighted(), 3, TokenBatch.from_samples)
    for made in (
        lambda batch: {"ids": batch.ids},
        lambda batch: OwnBatch(batch.ids),
        lambda batch: TokenBatch.derive_from(batch, ids=batch.ids),
    ):
        assert weights(ez.MapDataset(raw, made)[0]) == [1.0, 2.0, 3.0]
    backwards = ez.MapDataset(raw, lambda b: {"__key__": b.__key__[::-1], "ids": b.ids})
    assert weights(backwards[0]) == [3.0, 2.0, 1.0]
    with pytest.raises(ez.EncoderError, match="to Placeless"):
        ez.MapDataset(raw, lambda batch: Placeless(batch.ids))[0]


# Functions that give several things, and streams.


def test_what_gives_several_things_of_weighted_samples_says_which_has_which():
    batches = ez.BatchDataset(
        weighted(), 2, lambda samples: {"ids": [s.ids for s in samples]}
    )

    def apart(batch):
        for ids, weight in zip(batch["ids"], batch["sample_weights"], strict=True):
            yield {"ids": ids, "sample_weight": weight}

    def bare(batch):
        yield from ({"ids": ids} for ids in batch["ids"])

    def named(samples):
        yield TokenBatch.from_samples(samples[:1])
        yield {"__key__": [each.__key__ for each in samples[1:]]}

    def unnamed(samples):
        yield {"n": len(samples)}

    def pairs(items):
        for each in items:
            yield {"ids": [each, next(items, None)]}

    assert [weight_of(each) for each in ez.MapDataset(batches, apart)] == [
        *map(float, range(1, 9))
    ]
    found = list(ez.BatchDataset(weighted(4), 3, named))
    assert list(map(weights, found[:2])) == [[1.0], [2.0, 3.0]]
    assert len(list(ez.IterMapDataset(tokens(), pairs))) == 4
    told = (ez.EncoderError, "returned several items", "energize.batch_weights")
    check_refusals(
        a_batch=(first(ez.MapDataset(batches, bare)), *told),
        a_batcher=(first(ez.BatchDataset(weighted(4), 3, unnamed)), *told),
        a_stream=(first(ez.IterMapDataset(weighted(), pairs)), *told),
    )


def packs(pack) -> ez.PackingDataset[Any]:
    return ez.PackingDataset(
        weighted(), 4, lambda samples: [samples[:3], samples[3:]], pack
    )


def test_packs_have_a_weight_for_each_piece():
    pack = first(packs(lambda samples: ez.packing.concat_pack(samples, ["ids"])))()
    assert pack["sample_weights"].dtype == torch.float32
    spread = torch.repeat_interleave(pack["sample_weights"], pack["cu_seqlens"].diff())
    assert spread.tolist() == [1, 2, 2, 3, 3, 3]
    by_hand = packs(lambda samples: {"ids": torch.cat([s.ids for s in samples])})
    assert weights(first(by_hand)()) == [1.0, 2.0, 3.0]
    derived = packs(
        lambda samples: Tokens.derive_from(
            samples[0], ids=torch.cat([s.ids for s in samples])
        )
    )
    made = first(derived)()
    assert (made.__sample_weight__, weights(made)) == (None, [1.0, 2.0, 3.0])
    for batcher in (ez.generic_batch, lambda packs: {"n": len(packs)}):
        batch = first(ez.BatchDataset(by_hand, 2, batcher))()
        assert weights(batch) == [[1, 2, 3], [4, 0, 0]]
    heavier = ez.SampleWeightDataset(
        packs(lambda s: ez.packing.concat_pack(s, ["ids"])), 2
    )
    assert weights(first(heavier)()) == [2.0, 4.0, 6.0]
    beside = [
        ez.packing.concat_pack([{"ids": [1, 2]}, {"ids": [3]}], ["ids"]),
        ez.packing.concat_pack([{"ids": [4], "sample_weight": 0.5}], ["ids"]),
    ]
    assert ez.batch_weights(beside).tolist() == [[1.0, 1.0], [0.5, 0.0]]

    def each_alone(samples):
        for each in samples:
            yield ez.packing.concat_pack([each], ["ids"])

    def unweighed(samples):
        yield {"ids": samples[0].ids}

    assert list(map(weights, packs(each_alone))) == [[float(i + 1)] for i in range(8)]
    tensors = packs(lambda samples: torch.cat([s.ids for s in samples]))
    pieces = lambda: ez.batch_weights([{"ids": [1, 2]}, beside[1]])  # noqa: E731
    check_refusals(
        ez.EncoderError,
        no_place=(first(tensors), "no place for the weights"),
        yields=(first(packs(unweighed)), "returned several items"),
        no_pieces=(pieces, ez.WeightError, "'sample_weights' of its pieces"),
    )


def inner(weight: float | None, size=1, batcher=ez.generic_batch) -> ez.Dataset[Any]:
    source = tokens() if weight is None else ez.SampleWeightDataset(tokens(), weight)
    return ez.BatchDataset(source, size, batcher)


def test_mixes_have_the_weights_of_all_their_batches():
    for join in (ez.homogeneous_concat_mix, lambda batches: {"n": len(batches)}):
        mix = ez.MixBatchDataset(
            (inner(0.25), 1), (inner(None), 1), batch_size=6, batch_mix_fn=join
        )
        assert sorted(weights(mix[0])) == [0.25] * 3 + [1.0] * 3
    numbers = [inner(each, 2, lambda s: {"n": lengths(s)}) for each in (0.25, 0.5)]
    mix = ez.MixBatchDataset(
        *((each, 1) for each in numbers),
        batch_size=4,
        batch_mix_fn=lambda batches: {"n": torch.cat([each["n"] for each in batches])},
    )
    assert (len(weights(mix[0])), sum(weights(mix[0]))) == (8, 3.0)

    def encoder(weight, size):
        made = lambda s: {"__key__": [e.__key__ for e in s], "weight": weight}  # noqa: E731
        return ez.BatchDataset(tokens(), size, made)

    mix = ez.MixBatchDataset(
        (encoder(0.2, 2), 1), (encoder(0.8, 1), 1), batch_size=4,
        batch_mix_fn=ez.homogeneous_concat_mix,
    )  # fmt: skip
    weight = mix[0]["weight"]
    assert (weight.dtype, weight.shape) == (torch.float32, (6,))
    assert weight.sum().item() == pytest.approx(4 * 0.2 + 2 * 0.8)
    assert weights(mix[0]) is None


def test_whole_batches_of_a_tree_are_weighed_sample_by_sample():
    assert weights(ez.SampleWeightDataset(inner(0.5), 0.5)[0]) == [0.25]
    plain = ez.BatchDataset(tokens(), 3, lambda samples: {"ids": lengths(samples)})
    assert weights(ez.SampleWeightDataset(plain, 2)[0]) == [2.0, 2.0, 2.0]
    lists = ez.SampleWeightDataset(ez.BatchDataset(tokens(), 3, list), 2)
    assert [weight_of(each) for each in lists[0]] == [2.0, 2.0, 2.0]
    uneven = ez.BatchDataset(
        tokens(), 3, lambda s: {"a": torch.zeros(2), "b": torch.zeros(5)}
    )
    with pytest.raises(ez.EncoderError, match="has an unknown number of samples"):
        ez.SampleWeightDataset(uneven, 2)[0]


# The mean of weighted losses.

LOSS = torch.tensor([1.0, 2.0, 4.0])
WEIGHTS = torch.tensor([3.0, 1.0, 0.0])


def test_the_mean_of_one_batch():
    assert ez.weighted_mean(LOSS, WEIGHTS).item() == 1.25
    assert ez.weighted_mean(LOSS).item() == pytest.approx(7 / 3)
    assert ez.weighted_mean(LOSS, WEIGHTS.double()).dtype == torch.float64
    assert ez.weighted_mean(LOSS.half(), WEIGHTS).dtype == torch.float32
    assert ez.weighted_mean(LOSS, WEIGHTS, total=8).item() == 0.625
    spread = torch.repeat_interleave(WEIGHTS, torch.tensor([1, 2, 3]))
    assert ez.weighted_mean(torch.arange(6.0), spread).item() == pytest.approx(
        (1 + 2) / 5
    )
    loss = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    mean = ez.weighted_mean(loss, torch.zeros(3))
    mean.backward()
    assert (mean.item(), loss.grad.tolist()) == (0.0, [0.0, 0.0, 0.0])
    assert ez.weighted_mean(loss, torch.tensor([2.0, 0.0, 0.0])).item() == 1.0
    assert ez.weighted_mean(LOSS, WEIGHTS, total=0.0).item() == 0.0
    shapes = ("(3, 2) and the weights have (3,)", "'none'")
    check_refusals(
        ez.ConfigError,
        shapes=(lambda: ez.weighted_mean(torch.zeros(3, 2), WEIGHTS), *shapes),
        a_number=(lambda: ez.weighted_mean(1.0, WEIGHTS), "got a float"),
        a_list=(lambda: ez.weighted_mean(LOSS, [1.0, 2.0, 3.0]), "and a list"),
    )


def test_totals_of_weights_and_of_batches():
    plain = ez.Batch(__key__=["a", "b"])
    heavy = ez.Batch(__key__=["c"], sample_weights=torch.tensor([0.25]))
    for given_, expected in (
        (WEIGHTS, 4.0),
        ([WEIGHTS, WEIGHTS], 8.0),
        (heavy, 0.25),
        ([plain, heavy], 2.25),
        ([marked(plain), heavy], 0.25),
        (marked({"x": torch.zeros(3)}), 0.0),
        ({"x": torch.zeros(3)}, 3.0),
    ):
        assert ez.total_weight(given_).item() == expected
    assert ez.total_weight([WEIGHTS]).dtype == torch.float64
    text = ez.TextSample(__key__="a", text="b")
    check_refusals(
        ez.WeightError,
        nothing=(
            lambda: ez.total_weight([]),
            ez.ConfigError,
            "the list of weights is empty",
        ),
        row_None=(lambda: ez.total_weight([None, WEIGHTS]), "a NoneType"),
        a_sample=(lambda: ez.total_weight(text), "unknown number of samples"),
    )


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_the_effective_sample_size_is_between_one_and_all(given_):
    size = ez.effective_sample_size(given_)
    if not any(each**2 for each in given_):
        assert size == 0
    else:
        assert 1 - 1e-9 <= size <= len(given_) * (1 + 1e-9)
        assert ez.effective_sample_size(np.ones(len(given_))) == len(given_)
    assert size == pytest.approx(
        ez.effective_sample_size(torch.tensor(given_, dtype=torch.float64))
    )
