"""Task encoders and their hooks."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from energize import BatchDataset, ListSource, MapDataset
from energize.core.samples import CaptioningSample, TextSample
from energize.errors import ConfigError
from energize.task.decode import SampleDecoder
from energize.task.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task.hooks import active_hooks, stateless


def captioned(key: str, width: int = 2):
    return CaptioningSample(__key__=key, image=torch.ones(3, 2, width), caption=f"caption {key}")


@dataclass
class CaptioningRawBatch:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@dataclass
class WeightedCaptioningBatch:
    __keys__: list[str]
    images: torch.Tensor
    text: torch.Tensor
    weight: float


class WeightedCaptioningTaskEncoder(
    DefaultTaskEncoder[
        CaptioningSample, CaptioningSample, CaptioningRawBatch, WeightedCaptioningBatch
    ]
):
    def __init__(self, tokenizer: Callable[[list[str]], torch.Tensor], sample_weight: float = 1):
        super().__init__(batch_type=CaptioningRawBatch)
        self.tokenizer = tokenizer
        self.sample_weight = sample_weight

    def encode_batch(self, batch_data: CaptioningRawBatch) -> WeightedCaptioningBatch:
        assert type(batch_data) is CaptioningRawBatch
        return WeightedCaptioningBatch(
            __keys__=batch_data.__key__,
            images=batch_data.image,
            text=self.tokenizer(batch_data.caption),
            weight=self.sample_weight,
        )


def lengths(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[len(text)] for text in texts])


def test_an_overridden_encode_batch_gets_the_batch_type():
    encoder = WeightedCaptioningTaskEncoder(lengths, sample_weight=0.2)
    batch = encoder.encode_batch(encoder.batch([captioned("a"), captioned("bcd", width=3)]))
    assert batch.__keys__ == ["a", "bcd"]
    assert batch.images.shape == (2, 3, 2, 3)
    assert batch.text.tolist() == [[9], [11]]
    assert batch.weight == 0.2


def test_hooks_are_mapped_over_datasets():
    encoder = WeightedCaptioningTaskEncoder(lengths)
    samples = ListSource([captioned(str(i)) for i in range(5)])
    batches = MapDataset(BatchDataset(samples, 2, encoder.batch), encoder.encode_batch)
    assert [batch.__keys__ for batch in batches] == [["0", "1"], ["2", "3"], ["4"]]


class Image(NamedTuple):
    image: torch.Tensor


@dataclass
class Text:
    text: str
    language: str = "en"


class TestTypes:
    def test_samples_are_filled_by_name(self):
        sample = TextSample(__key__="a", text="hello")
        encode = DefaultTaskEncoder(encoded_sample_type=Text).encode_sample
        assert encode(sample) == Text("hello")
        assert encode({"text": "x", "language": "de", "other": 1}) == Text("x", "de")
        assert sample == TextSample(__key__="a", text="hello")

    def test_a_value_of_the_type_is_passed_on(self):
        text = Text("x")
        assert DefaultTaskEncoder(encoded_sample_type=Text).encode_sample(text) is text

    def test_named_tuples_and_dicts(self):
        sample = captioned("a")
        made = DefaultTaskEncoder(encoded_sample_type=Image).encode_sample(sample)
        assert made == Image(sample.image)
        as_dict = DefaultTaskEncoder(encoded_sample_type=dict).encode_sample(sample)
        assert list(as_dict) == [
            "__key__",
            "__restore_key__",
            "__subflavors__",
            "__sources__",
            "image",
            "caption",
        ]

    def test_missing_fields_are_named(self):
        with pytest.raises(ConfigError, match="Text needs the fields 'text', which a Captioning"):
            DefaultTaskEncoder(encoded_sample_type=Text).encode_sample(captioned("a"))
        with pytest.raises(ConfigError, match="CaptioningRawBatch needs the fields 'image'"):
            DefaultTaskEncoder(batch_type=CaptioningRawBatch).batch(
                [{"__key__": "", "caption": ""}]
            )

    def test_values_without_fields(self):
        with pytest.raises(ConfigError, match="got a int"):
            DefaultTaskEncoder(encoded_sample_type=Text).encode_sample(3)

    def test_raw_and_final_types(self):
        encoder = DefaultTaskEncoder(raw_batch_type=dict, batch_type=CaptioningRawBatch)
        raw = encoder.batch([captioned("a")])
        assert type(raw) is dict
        assert type(encoder.encode_batch(raw)) is CaptioningRawBatch

    @pytest.mark.parametrize("name", ["encoded_sample_type", "raw_batch_type", "batch_type"])
    @pytest.mark.parametrize("kind", [int, tuple, "Text", list[int]])
    def test_a_type_without_fields_is_refused(self, name, kind):
        with pytest.raises(ConfigError, match=name):
            DefaultTaskEncoder(**{name: kind})

    def test_without_types_things_stay_as_they_are(self):
        encoder = DefaultTaskEncoder()
        sample = captioned("a")
        assert encoder.encode_sample(sample) is sample
        assert type(encoder.batch([sample])) is CaptioningSample
        assert encoder.encode_batch(sample) is sample


class Plain(TaskEncoder):
    pass


class Encoding(TaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample


class Forgetful(DefaultTaskEncoder):
    """Does not call the constructor of its base."""

    def __init__(self):
        self.size = 3


class TestActiveHooks:
    @pytest.mark.parametrize(
        ("encoder", "active"),
        [
            (Plain(), {"batch"}),
            (Forgetful(), {"batch"}),
            (DefaultTaskEncoder(), {"batch"}),
            (Encoding(), {"batch", "encode_sample"}),
            (DefaultTaskEncoder(encoded_sample_type=dict), {"batch", "encode_sample"}),
            (DefaultTaskEncoder(raw_batch_type=dict), {"batch"}),
            (DefaultTaskEncoder(batch_type=dict), {"batch", "encode_batch"}),
            (WeightedCaptioningTaskEncoder(lengths), {"batch", "encode_batch"}),
        ],
    )
    def test_only_what_does_something(self, encoder, active):
        assert active_hooks(encoder) == active

    def test_a_hook_set_on_the_object_counts(self):
        encoder = Plain()
        encoder.encode_sample = str
        assert "encode_sample" in active_hooks(encoder)


def test_stateless_changes_nothing():
    def hook(self, sample):
        return sample

    assert stateless(hook) is hook
    assert stateless(restore_seeds=True, failure_tolerance=3)(hook) is hook
    assert list(inspect.signature(Encoding.encode_sample).parameters) == ["self", "sample"]


def test_the_decoder_belongs_to_the_class_and_cannot_be_changed_for_others():
    class Raw(TaskEncoder):
        decoder = None

    assert Raw().decoder is None
    assert Plain().decoder == SampleDecoder()
    with pytest.raises(AttributeError):
        Plain().decoder.image_decode = "pil"


def test_encoders_pickle():
    encoder = pickle.loads(pickle.dumps(WeightedCaptioningTaskEncoder(lengths, 0.5)))
    assert encoder.sample_weight == 0.5
    assert type(encoder.batch([captioned("a")])) is CaptioningRawBatch
