"""Weights on the way from sources to batches, whatever users' functions make of samples."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    Batch,
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    Dataset,
    EncoderError,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    ReturnError,
    Sample,
    SampleWeightDataset,
    ShuffleBufferDataset,
    WeightError,
    batch_weights,
    concat_pack,
    generic_batch,
    homogeneous_concat_mix,
)
from energize.core.loss_weights import weighed, weight_of
from energize.core.padding import marked


@dataclass(kw_only=True, slots=True)
class Tokens(Sample):
    ids: torch.Tensor


@dataclass(kw_only=True, slots=True)
class Encoded(Sample):
    ids: torch.Tensor
    sample_weight: float | None = None


@dataclass(kw_only=True, slots=True)
class TokenBatch(Batch):
    ids: torch.Tensor


@dataclass(slots=True)
class Placeless:
    ids: Any


@dataclass
class Open:
    """Without a field for weights, but open to attributes, as samples may be."""

    ids: Any


class Tuple(NamedTuple):
    ids: Any


@dataclass(frozen=True)
class OwnBatch:
    ids: Any
    sample_weights: torch.Tensor | None = None


def tokens(count: int = 8) -> ListSource[Tokens]:
    return ListSource([Tokens(__key__=f"{i}", ids=torch.arange(i + 1)) for i in range(count)])


def by_length(sample: Any) -> float:
    return float(len(sample.ids))


def weighted(count: int = 8) -> Dataset[Any]:
    """Sample i counts i + 1."""
    return SampleWeightDataset(tokens(count), by_length)


def encode(sample: Tokens) -> Encoded:
    return Encoded.derive_from(sample, ids=sample.ids, sample_weight=0.5)


def lengths(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([len(each.ids) for each in samples])


BATCHERS = {
    "generic": generic_batch,
    "a batch type": TokenBatch.from_samples,
    "a batch by hand": lambda samples: TokenBatch(__key__=["?"] * 3, ids=samples[0].ids),
    "a dict": lambda samples: {"ids": lengths(samples)},
    "a frozen dataclass": lambda samples: OwnBatch(lengths(samples)),
    "like a dict": lambda samples: UserDict(ids=lengths(samples)),
}


@pytest.mark.parametrize("name", BATCHERS)
def test_batches_of_any_type_get_the_product_of_all_weights(name):
    if name == "a batch by hand":
        with pytest.raises(EncoderError, match="'\\?', which none of its samples has"):
            BatchDataset(MapDataset(weighted(), encode), 3, BATCHERS[name])[0]
        return
    batch = BatchDataset(MapDataset(weighted(), encode), 3, BATCHERS[name])[1]
    found = batch["sample_weights"] if isinstance(batch, dict | UserDict) else batch.sample_weights
    assert found.dtype == torch.float32
    assert found.tolist() == [2.0, 2.5, 3.0]


@pytest.mark.parametrize("name", sorted(set(BATCHERS) - {"a batch by hand"}))
def test_nothing_changes_where_nobody_gives_a_weight(name):
    batch = BatchDataset(tokens(), 3, BATCHERS[name])[1]
    if isinstance(batch, dict | UserDict):
        assert set(batch) == {"ids"}
    else:
        assert batch.sample_weights is None
        assert "weight" not in repr(batch) or isinstance(batch, OwnBatch)


def test_samples_without_a_weight_count_one_beside_others():
    mix = BlendDataset((SampleWeightDataset(tokens(), 0.5), 1), (tokens(), 1))
    batch = BatchDataset(mix, 6, generic_batch)[0]
    assert sorted(batch.sample_weights.tolist()) == [0.5, 0.5, 0.5, 1.0, 1.0, 1.0]


def test_an_encoder_may_say_it_of_some_samples_only():
    some = [{"ids": [1, 2], "sample_weight": 0.5}, {"ids": [3]}]
    batch = generic_batch(some)
    assert batch["sample_weights"].tolist() == [0.5, 1.0]
    assert batch["sample_weight"] == [0.5, None]
    assert concat_pack(some, ["ids"])["sample_weights"].tolist() == [0.5, 1.0]


def test_a_batcher_that_sorts_and_names_its_samples():
    def longest_first(samples):
        return TokenBatch.from_samples(sorted(samples, key=by_length, reverse=True))

    def by_keys(samples):
        ordered = samples[::-1]
        return {"__key__": [each.__key__ for each in ordered], "ids": lengths(ordered)}

    def leaves_out(samples):
        return {"__key__": [samples[1].__key__], "ids": lengths(samples[1:2])}

    def weights(batcher):
        batch = BatchDataset(weighted(), 3, batcher)[0]
        found = batch.sample_weights if isinstance(batch, Batch) else batch["sample_weights"]
        return found.tolist()

    assert weights(longest_first) == [3.0, 2.0, 1.0]
    assert weights(by_keys) == [3.0, 2.0, 1.0]
    assert weights(leaves_out) == [2.0]


def test_what_a_batcher_says_itself_is_kept():
    own = torch.tensor([9.0, 9.0, 9.0])
    batcher = lambda samples: {"ids": lengths(samples), "sample_weights": own}  # noqa: E731
    assert BatchDataset(weighted(), 3, batcher)[0]["sample_weights"] is own


def test_lists_keep_weighted_samples_until_they_are_made_a_batch():
    lists = BatchDataset(weighted(), 3, list)
    assert [weight_of(each) for each in lists[0]] == [1.0, 2.0, 3.0]
    batches = MapDataset(lists, lambda samples: {"ids": lengths(samples)})
    assert batches[0]["sample_weights"].tolist() == [1.0, 2.0, 3.0]


class TestMaps:
    @pytest.mark.parametrize(
        "made",
        [
            lambda sample: {"ids": sample.ids},
            lambda sample: Open(sample.ids),
            lambda sample: Tokens(__key__="new", ids=sample.ids),
            lambda sample: Tokens.derive_from(sample, ids=sample.ids),
        ],
    )
    def test_what_can_carry_a_weight_does(self, made):
        assert weight_of(MapDataset(weighted(), made)[2]) == 3.0

    @pytest.mark.parametrize(
        ("made", "told"),
        [
            (Placeless, "`__sample_weight__: float | None = None` to Placeless"),
            (Tuple, "a Tuple: it has no place"),
            (lambda ids: ids, "a Tensor: it has no place"),
            (lambda ids: ids.tolist(), "a list: it has no place"),
            (str, "a str: it has no place"),
        ],
    )
    def test_what_cannot_is_an_error_that_names_the_field(self, made, told):
        def encode_sample(sample):
            return made(sample.ids)

        with pytest.raises(EncoderError) as caught:
            MapDataset(weighted(), encode_sample)[2]
        assert isinstance(caught.value.__cause__, ReturnError)
        assert told in str(caught.value)
        assert "encode_sample" in str(caught.value)
        assert "sample 2" in str(caught.value)
        assert MapDataset(tokens(), encode_sample)[2] is not None

    def test_what_an_earlier_hook_said_is_not_lost_with_its_field(self):
        later = MapDataset(
            MapDataset(weighted(), encode), lambda s: Tokens.derive_from(s, ids=s.ids)
        )
        assert weight_of(later[3]) == 2.0
        again = MapDataset(later, lambda s: {"ids": s.ids, "sample_weight": 3})
        assert weight_of(again[3]) == 6.0

    def test_a_hook_may_set_the_whole_weight(self):
        alone = MapDataset(weighted(), lambda s: {"ids": s.ids, "__sample_weight__": 7.0})
        assert weight_of(alone[3]) == 7.0

    def test_users_objects_are_not_changed(self):
        source = [{"x": 1}]
        shared = {"x": 2}
        made = MapDataset(SampleWeightDataset(ListSource(source), 0.5), lambda _: shared)
        assert weight_of(made[0]) == 0.5
        assert source == [{"x": 1}]
        assert shared == {"x": 2}

    @pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, None])
    def test_weights_of_encoders_are_checked_naming_the_sample(self, value):
        made = MapDataset(tokens(), lambda s: {"__key__": s.__key__, "sample_weight": value})
        if value is None:
            assert weight_of(made[4]) is None
            return
        with pytest.raises(EncoderError, match="sample_weight of sample '4'"):
            made[4]

    @pytest.mark.parametrize("value", [2, np.float32(2), torch.tensor(2.0), np.array(2.0)])
    def test_weights_of_encoders_are_any_number(self, value):
        made = MapDataset(weighted(), lambda _: {"sample_weight": value})
        assert BatchDataset(made, 2, generic_batch)[0]["sample_weights"].tolist() == [2.0, 4.0]

    def test_several_weights_of_one_sample_are_an_error(self):
        made = MapDataset(tokens(), lambda s: {"__key__": s.__key__, "sample_weight": [1.0, 2.0]})
        with pytest.raises(EncoderError, match="is one number, as a sample has one weight"):
            BatchDataset(made, 2, lambda samples: {"n": len(samples)})[0]

    def test_generators_hand_on_the_weight_of_what_they_were_given(self):
        def halves(sample):
            yield {"ids": sample.ids[::2]}
            yield {"ids": sample.ids[1::2]}

        assert [weight_of(each) for each in MapDataset(weighted(2), halves)] == [1.0, 1.0, 2.0, 2.0]

    def test_a_generator_that_takes_batches_apart_says_which_weight_is_whose(self):
        batches = BatchDataset(weighted(), 2, lambda samples: {"ids": [s.ids for s in samples]})

        def bare(batch):
            yield from ({"ids": ids} for ids in batch["ids"])

        with pytest.raises(EncoderError, match="gives several things of samples that have weights"):
            next(iter(MapDataset(batches, bare)))

        def apart(batch):
            for ids, weight in zip(batch["ids"], batch["sample_weights"], strict=True):
                yield {"ids": ids, "sample_weight": weight}

        found = [weight_of(each) for each in MapDataset(batches, apart)]
        assert found == [float(i + 1) for i in range(8)]


class TestBatches:
    @pytest.mark.parametrize("made", [Placeless, Open, Tuple, lambda ids: ids])
    def test_a_batch_without_a_place_is_an_error_that_names_the_field(self, made):
        def batch(samples):
            return made(lengths(samples))

        with pytest.raises(EncoderError, match=r"sample_weights: torch\.Tensor \| None = None"):
            BatchDataset(weighted(), 3, batch)[0]

    def test_a_batch_with_the_column_of_what_encoders_said_is_enough(self):
        """As long as no source says anything: then the weights are all there."""

        @dataclass(slots=True)
        class Column:
            sample_weight: torch.Tensor

        def batch(samples):
            return Column(torch.tensor([each.sample_weight for each in samples]))

        assert BatchDataset(MapDataset(tokens(), encode), 3, batch)[0].sample_weight.sum() == 1.5
        with pytest.raises(EncoderError, match="no place for the weights"):
            BatchDataset(MapDataset(weighted(), encode), 3, batch)[0]

    def test_encode_batch_inherits_the_weights_of_the_raw_batch(self):
        raw = BatchDataset(weighted(), 3, TokenBatch.from_samples)
        for made in (
            lambda batch: {"ids": batch.ids},
            lambda batch: OwnBatch(batch.ids),
            lambda batch: TokenBatch.derive_from(batch, ids=batch.ids),
        ):
            batch = MapDataset(raw, made)[0]
            found = batch["sample_weights"] if isinstance(batch, dict) else batch.sample_weights
            assert found.tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(EncoderError, match="to Placeless"):
            MapDataset(raw, lambda batch: Placeless(batch.ids))[0]

    def test_over_a_stream(self):
        odd = FilterDataset(weighted(), lambda sample: len(sample.ids) % 2)
        batches = BatchDataset(odd, 3, TokenBatch.from_samples)
        assert [batch.sample_weights.tolist() for batch in batches] == [[1, 3, 5], [7]]
        shuffled = ShuffleBufferDataset(weighted(), 4)
        assert all(weight_of(each) == len(each.ids) for each in shuffled)

    def test_groups(self):
        groups = GroupBatchDataset(
            weighted(), 2, lambda sample: (len(sample.ids) % 2, None), generic_batch
        )
        for batch in groups:
            assert batch.sample_weights.tolist() == [int(key) + 1 for key in batch.__key__]

    def test_a_batcher_that_yields(self):
        def named(samples):
            yield TokenBatch.from_samples(samples[:1])
            yield {"__key__": [each.__key__ for each in samples[1:]]}

        def unnamed(samples):
            yield {"n": len(samples)}

        found = list(BatchDataset(weighted(4), 3, named))
        assert found[0].sample_weights.tolist() == [1.0]
        assert found[1]["sample_weights"].tolist() == [2.0, 3.0]
        with pytest.raises(EncoderError, match=r"energize\.batch_weights makes of a list"):
            list(BatchDataset(weighted(4), 3, unnamed))

    def test_batch_weights_are_those_of_a_batch(self):
        assert batch_weights(list(weighted(3))).tolist() == [1.0, 2.0, 3.0]
        assert batch_weights(list(tokens(3))) is None
        assert batch_weights([]) is None


class TestMixes:
    def inner(self, weight: float | None, batcher=generic_batch) -> Dataset[Any]:
        source = tokens() if weight is None else SampleWeightDataset(tokens(), weight)
        return BatchDataset(source, 1, batcher)

    @pytest.mark.parametrize("join", [homogeneous_concat_mix, lambda batches: {"n": len(batches)}])
    def test_weights_are_joined_with_one_where_there_is_none(self, join):
        mix = MixBatchDataset(
            (self.inner(0.25), 1), (self.inner(None), 1), batch_size=6, batch_mix_fn=join
        )
        batch = mix[0]
        found = batch["sample_weights"] if isinstance(batch, dict) else batch.sample_weights
        assert sorted(found.tolist()) == [0.25] * 3 + [1.0] * 3

    def test_larger_inner_batches_without_keys(self):
        def numbers(weight, batcher):
            return BatchDataset(SampleWeightDataset(tokens(), weight), 2, batcher)

        inner = [numbers(each, lambda s: {"n": lengths(s)}) for each in (0.25, 0.5)]
        mix = MixBatchDataset(
            (inner[0], 1), (inner[1], 1), batch_size=4,
            batch_mix_fn=lambda batches: {"n": torch.cat([each["n"] for each in batches])},
        )  # fmt: skip
        assert mix[0]["sample_weights"].shape == (8,)
        assert mix[0]["sample_weights"].sum() == 3.0

    def test_the_scalar_weight_of_an_encoder_becomes_one_for_each_sample(self):
        def encoder(weight, size):
            made = lambda s: {"__key__": [e.__key__ for e in s], "weight": weight}  # noqa: E731
            return BatchDataset(tokens(), size, made)

        mix = MixBatchDataset(
            (encoder(0.2, 2), 1), (encoder(0.8, 1), 1), batch_size=4,
            batch_mix_fn=homogeneous_concat_mix,
        )  # fmt: skip
        batch = mix[0]
        assert batch["weight"].dtype == torch.float32
        assert batch["weight"].shape == (len(batch["__key__"]),) == (6,)
        assert batch["weight"].sum().item() == pytest.approx(4 * 0.2 + 2 * 0.8)
        assert "sample_weights" not in batch

    def test_whole_batches_of_a_tree_are_weighed_sample_by_sample(self):
        named = SampleWeightDataset(self.inner(0.5), 0.5)
        assert named[0].sample_weights.tolist() == [0.25]
        plain = BatchDataset(tokens(), 3, lambda samples: {"ids": lengths(samples)})
        assert SampleWeightDataset(plain, 2)[0]["sample_weights"].tolist() == [2.0, 2.0, 2.0]
        lists = SampleWeightDataset(BatchDataset(tokens(), 3, list), 2)
        assert [weight_of(each) for each in lists[0]] == [2.0, 2.0, 2.0]
        uneven = BatchDataset(tokens(), 3, lambda s: {"a": torch.zeros(2), "b": torch.zeros(5)})
        with pytest.raises(EncoderError, match="does not tell how many samples it has"):
            SampleWeightDataset(uneven, 2)[0]


class TestPacks:
    def packs(self, pack) -> PackingDataset[Any]:
        def select(samples):
            return [samples[:3], samples[3:]]

        return PackingDataset(weighted(), 4, select, pack)

    def test_a_pack_has_one_weight_for_each_piece_with_its_boundaries(self):
        pack = next(iter(self.packs(lambda samples: concat_pack(samples, ["ids"]))))
        assert pack["sample_weights"].dtype == torch.float32
        spread = torch.repeat_interleave(pack["sample_weights"], pack["cu_seqlens"].diff())
        assert spread.tolist() == [1, 2, 2, 3, 3, 3]
        assert len(spread) == len(pack["ids"])

    def test_a_pack_by_hand(self):
        pack = next(iter(self.packs(lambda samples: {"ids": torch.cat([s.ids for s in samples])})))
        assert pack["sample_weights"].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(EncoderError, match="no place for the weights"):
            next(iter(self.packs(lambda samples: torch.cat([s.ids for s in samples]))))

    def test_a_pack_derived_from_its_first_sample_counts_it_once(self):
        def pack(samples):
            return Tokens.derive_from(samples[0], ids=torch.cat([s.ids for s in samples]))

        first = next(iter(self.packs(pack)))
        assert (first.__sample_weight__, first.sample_weights.tolist()) == (None, [1.0, 2.0, 3.0])

    @pytest.mark.parametrize("batcher", [generic_batch, lambda packs: {"n": len(packs)}])
    def test_batches_of_packs_are_filled_up_with_zeros(self, batcher):
        def pack(samples):
            return {"ids": torch.cat([s.ids for s in samples])}

        batch = next(iter(BatchDataset(self.packs(pack), 2, batcher)))
        assert batch["sample_weights"].tolist() == [[1, 2, 3], [4, 0, 0]]

    def test_packs_without_weights_beside_others(self):
        mixed = [
            concat_pack([{"ids": [1, 2]}, {"ids": [3]}], ["ids"]),
            concat_pack([{"ids": [4], "sample_weight": 0.5}], ["ids"]),
        ]
        assert batch_weights(mixed).tolist() == [[1.0, 1.0], [0.5, 0.0]]
        with pytest.raises(WeightError, match="'sample_weights' of its pieces"):
            batch_weights([{"ids": [1, 2]}, mixed[1]])

    def test_packs_are_weighed_piece_by_piece(self):
        heavier = SampleWeightDataset(self.packs(lambda s: concat_pack(s, ["ids"])), 2)
        assert next(iter(heavier))["sample_weights"].tolist() == [2.0, 4.0, 6.0]

    def test_a_packer_that_yields_says_it_itself(self):
        def pack(samples):
            for each in samples:
                yield concat_pack([each], ["ids"])

        found = [each["sample_weights"].tolist() for each in self.packs(pack)]
        assert found == [[float(i + 1)] for i in range(8)]

        def bare(samples):
            yield {"ids": samples[0].ids}

        with pytest.raises(EncoderError, match="gives several things"):
            next(iter(self.packs(bare)))


class TestWholeStreams:
    def test_a_function_that_hands_samples_on(self):
        def through(items):
            yield from items

        found = [weight_of(each) for each in IterMapDataset(weighted(), through)]
        assert found == [float(i + 1) for i in range(8)]

    def test_a_function_that_loses_weights_is_an_error(self):
        def pairs(items):
            for first in items:
                yield {"ids": [first, next(items, None)]}

        assert len(list(IterMapDataset(tokens(), pairs))) == 4
        with pytest.raises(EncoderError, match="gives several things"):
            list(IterMapDataset(weighted(), pairs))


class TestPadding:
    def test_items_that_pad_epochs_count_nothing(self):
        batch = BatchDataset(weighted(), 3, TokenBatch.from_samples)[0]
        assert marked(batch).sample_weights.tolist() == [0.0, 0.0, 0.0]
        assert batch.sample_weights.tolist() == [1.0, 2.0, 3.0]
        plain = BatchDataset(tokens(), 3, TokenBatch.from_samples)[0]
        assert marked(plain).sample_weights.tolist() == [0.0, 0.0, 0.0]
        assert weight_of(marked(weighted()[0])) == 0.0
        assert marked(5) == 5

    def test_copies_that_share_the_last_global_batch_out(self):
        batches = ComposedDataset(
            weighted(5), batch_size=1, global_batch_size=4, batching_method="in_turn",
            batcher=generic_batch, pad=lambda sample: sample,
        )  # fmt: skip
        found = [batch.sample_weights.item() for batch in batches]
        assert found[:4] == [1, 2, 3, 4]
        assert sorted(found[4:]) == [0, 0, 0, 5]


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.floats(0, 1e6)), st.one_of(st.none(), st.floats(0, 1e6))),
        min_size=1,
        max_size=9,
    )
)
def test_weights_are_products_whatever_is_given(pairs):
    def sample(source, own):
        made = {} if own is None else {"sample_weight": own}
        return made if source is None else weighed(made, source)

    samples = [sample(*pair) for pair in pairs]
    found = batch_weights(samples)
    if all(each == (None, None) for each in pairs):
        assert found is None
        return
    asked = [(1 if a is None else a) * (1 if b is None else b) for a, b in pairs]
    assert torch.equal(found, torch.tensor(asked, dtype=torch.float32))
