"""Sample types, the names they are found by, records as fields, and samples as text."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_convert

from energize import Batch, ListSource, get_loader, is_padding, padding_rows
from energize.core.loss_weights import default_get_batch_keys
from energize.core.padding import marked, with_padding
from energize.core.records import format_sample_detailed
from energize.core.samples import (
    CaptioningSample,
    CrudeSample,
    ImageSample,
    Sample,
    SourceInfo,
    TextSample,
    pin_memory,
    sample_type_named,
)
from energize.errors import ConfigError, DatasetError, UntrustedCodeError
from tests.support.refusals import check_refusals

SOURCE = SourceInfo(
    dataset_path="ds", index=3, shard_name="0.tar", file_names=("a.txt",)
)
OTHER = SourceInfo(
    dataset_path="other", index=0, shard_name="1.tar", file_names=("a.txt",)
)
TAKEN = {
    "__key__": "a",
    "__restore_key__": ("Webdataset", 3),
    "__subflavors__": {"lang": "en"},
    "__sources__": (SOURCE,),
}


@dataclass
class Tokens(Sample):
    ids: list[int]


@dataclass
class LongText(TextSample):
    length: int = 0


@dataclass
class Captioned(Sample):
    image: object
    caption: str
    score: float = 0.0


class Pair(NamedTuple):
    left: object
    right: object


def test_metadata_is_taken_over():
    text = TextSample(**TAKEN, text="hello", __sample_weight__=0.5)
    crude = CrudeSample(
        **TAKEN, __shard__="0.tar", json={"ids": [1]}, __sample_weight__=0.5
    )
    for base in (text, crude):
        made = Tokens.derive_from(base, ids=[1])
        assert made == Tokens([1], **TAKEN, __sample_weight__=0.5)
        assert Tokens.derive_from(base, ids=[], __key__="b").__key__ == "b"
    assert Tokens.derive_from({"__key__": "b"}, ids=[]) == Tokens([], __key__="b")
    extended = LongText.extend(text, length=5)
    assert (extended.text, extended.length, extended.__key__) == ("hello", 5, "a")
    check_refusals(
        TypeError,
        positional=(lambda: TextSample("a", "hello"),),
        unknown=(lambda: setattr(text, "txt", "typo"), AttributeError),
        no_such_field=(lambda: Tokens.derive_from(text, ids=[], idz=[]), "idz"),
        lacks=(lambda: Tokens.derive_from(text), "ids"),
        no_subclass=(
            lambda: Tokens.extend(text),
            ConfigError,
            "TextSample",
            "derive_from",
        ),
        no_key=(
            lambda: Tokens.derive_from({"json": 1}, ids=[]),
            ConfigError,
            "'__key__'",
        ),
        no_sample=(lambda: Tokens.derive_from("a", ids=[]), ConfigError, "a str"),
    )


def test_joined_samples():
    first = ImageSample(**TAKEN, image=1)
    caption = {"__key__": "b", "caption": "hello", "__sources__": (OTHER,)}
    both = TAKEN | {"__sources__": (SOURCE, OTHER)}
    assert Captioned.from_joined(first, caption) == Captioned(1, "hello", **both)
    assert Captioned.from_joined(image=first, text=caption) == Captioned(
        1, "hello", **both
    )
    later = CrudeSample(
        __key__="b", caption="hello", image=2, __shard__="x", __index__=3
    )
    made = Captioned.from_joined(first, later, None, {"__key__": "c", "score": 0.5})
    assert made == Captioned(2, "hello", 0.5, **TAKEN)
    text = TextSample(__key__="b", text="x")
    check_refusals(
        ConfigError,
        no_primary=(lambda: Captioned.from_joined(None, first), "got None"),
        nothing=(Captioned.from_joined, "no sample"),
        no_place=(lambda: Captioned.from_joined(first, text), "'text'"),
        lacks=(lambda: Captioned.from_joined(first, None), "'caption'"),
        a_number=(lambda: Captioned.from_joined(first, 3), "int"),
        no_key=(lambda: Captioned.from_joined({"caption": "x"}), "'__key__'"),
    )


def test_names_of_types(tmp_path, monkeypatch):
    for module in ("energize", "megatron.energon", "megatron.energon.flavors"):
        assert sample_type_named(module, "CaptioningSample") is CaptioningSample
        assert sample_type_named(module, "CrudeWebdataset") is CrudeSample
    assert sample_type_named(__name__, "Tokens") is Tokens
    (tmp_path / "evil_types.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)

    def named(*names):
        return lambda: sample_type_named(*names)

    meant = "did you mean 'CaptioningSample'"
    check_refusals(
        DatasetError,
        nearest=(named("energize", "CaptionSample"), meant),
        evil=(named("evil_types", "A"), UntrustedCodeError, "import evil_types"),
        prefix=(named("energize_extras", "TextSample"), UntrustedCodeError),
        no_sample=(named(__name__, "Pair"), "extends energize.Sample"),
        missing=(named(__name__, "Missing"), "has no member of this name"),
        function=(named("os", "system"), "function"),
    )
    assert not (tmp_path / "ran").exists()
    assert "evil_types" not in sys.modules


@dataclass
class Checked:
    value: int
    doubled: int = 0

    def __post_init__(self):
        self.doubled = self.value * 2


def test_pinning_reaches_all_tensors_or_without_a_gpu_nothing():
    sample = ImageSample(__key__="a", image=torch.zeros(2))
    for pinned in (pin_memory({"x": [sample]})["x"][0], sample.pin_memory()):
        assert pinned.image.is_pinned() == torch.cuda.is_available()
    assert not sample.image.is_pinned()


# Batches as trainers want them.


@dataclass(slots=True)
class Pixels(Batch):
    image: torch.Tensor
    values: list[torch.Tensor]
    label: int = 0


@dataclass(slots=True)
class Slots:
    image: torch.Tensor
    __padding__: bool | tuple[int, ...] | None = None


@dataclass(slots=True)
class NoPlace:
    image: torch.Tensor


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    image: torch.Tensor
    __padding__: bool | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Frozen:
    image: torch.Tensor


def by_transformers(batch, device):
    trainer = pytest.importorskip("transformers").Trainer
    told = SimpleNamespace(
        args=SimpleNamespace(device=device), is_deepspeed_enabled=False
    )
    told._prepare_input = partial(trainer._prepare_input, told)
    return told._prepare_input(batch)


MOVED = {
    "to": lambda batch, device: batch.to(device, non_blocking=True),
    "its own items": lambda batch, device: type(batch)(
        {
            name: value.to(device) if name == "image" else value
            for name, value in batch.items()
        }
    ),
    "transformers": by_transformers,
    "accelerate": lambda *given: pytest.importorskip("accelerate.utils").send_to_device(
        *given
    ),
    "lightning": lambda *given: pytest.importorskip(
        "lightning_fabric.utilities"
    ).move_data_to_device(*given),
}


@pytest.mark.jobs  # trainers take seconds to import
@pytest.mark.parametrize("way", MOVED)
@pytest.mark.parametrize("weights", [None, torch.ones(2)])
def test_batches_pass_through_trainers(way, weights):
    """Moved, a batch keeps its type, metadata and mark; as arguments only what its user
    made."""
    values = {"image": torch.zeros(2, 3), "values": [torch.zeros(1)], "label": 7}
    batch = Pixels(__key__=["a", "b"], __sources__=[(SOURCE,), None], **values)
    batch.sample_weights = weights
    asked = {} if weights is None else {"sample_weights": weights}
    assert dict(**batch) == {**asked, **batch}
    assert list(batch) == [*asked, *values]
    assert "__key__" not in batch
    assert batch.get("__key__") is None
    assert "label" in batch
    partly = with_padding(batch, [1], 2)
    for given, rows in ((batch, []), (partly, [1]), (marked(batch), [0, 1])):
        for found in (
            MOVED[way](given, "meta"),
            copy.deepcopy(given),
            default_convert(given),
        ):
            assert type(found) is Pixels
            assert (is_padding(found), padding_rows(found)) == (rows == [0, 1], rows)
            assert (found.__key__, found.__sources__) == (
                batch.__key__,
                batch.__sources__,
            )
            assert list(found) == [*asked, *values]
            assert (found.sample_weights is None) == (weights is None and not rows)
        moved = MOVED[way](given, "meta")
        assert moved.image.is_meta
        assert not given.image.is_meta
    assert partly.sample_weights.tolist() == [1, 0]
    with pytest.raises(TypeError, match="positional"):
        Pixels(values)
    with pytest.raises(TypeError, match="'values'"):
        Pixels(__key__=[], image=0)


@pytest.mark.parametrize("kind", [Slots, FrozenSlots, Frozen])
def test_dataclasses_of_others_can_be_padding(kind):
    batch = kind(torch.ones(1))
    for item, rows in ((marked(batch), [0]), (with_padding(batch, [1], 3), [1])):
        for found in (item, copy.copy(item), pickle.loads(pickle.dumps(item))):
            assert padding_rows(found) == padding_rows(pin_memory(found)) == rows
            assert is_padding(found) == (rows == [0])
            assert isinstance(found, kind)
            assert found.image == 1
            assert type(found) is kind
    assert not is_padding(batch)


def test_a_dataclass_with_slots_has_no_place_for_marks_unless_it_declares_one():
    batch = NoPlace(torch.ones(1))
    assert marked(batch) is batch
    loader = get_loader(
        ListSource([batch]), role="eval", global_batch_size=2, micro_batch_size=1
    )
    assert [(loader.padding, is_padding(item)) for item in loader] == [
        (False, False),
        (True, False),
    ]


# The decorator of Megatron-Energon.


# Samples as text.


def test_everything_that_a_sample_may_hold_is_shown():
    sample = {
        "scalars": {"i": -3, "f": 2.5, "b": False, "n": None},
        "lines": "a\nb",
        "row": (1, 2, "x"),
        "tensor": torch.tensor([0.0, 2.0]),
        "array": np.arange(8),
        "boxes": Pair(9, {"a": 1}),
        "sample": Checked(1),
    }
    lines = format_sample_detailed(sample, "> ").splitlines()
    assert all(line.startswith("> ") for line in lines)
    text = " ".join(line.removeprefix("> ").strip() for line in lines)
    for said in (
        "'scalars': {'i': -3, 'f': 2.5, 'b': False, 'n': None}",
        "'lines': 'a\\nb'",
        "'row': (1, 2, 'x')",
        "dtype=torch.float32, device=cpu, min=0.0, max=2.0, values=[0.0, 2.0])",
        "np.ndarray(shape=(8,), dtype=int64, min=0, max=7, values=[0, 1, 2, ..., 5, 6, 7])",
        "Pair(left=9, right={'a': 1})",
        "Checked(value=1, doubled=2)",
    ):
        assert said in text
    values = {
        torch.zeros(0): "values=[]",
        torch.tensor([1 + 2j]): "dtype=torch.complex64, device=cpu)",
        torch.tensor([True, False]): "min=False, max=True",
        torch.zeros(2, device="meta"): "device=meta)",
        torch.tensor(3): "values=[3]",
    }
    for value, said in values.items():
        assert said in format_sample_detailed({"x": value})
    assert "np.ndarray(shape=(2,)" in format_sample_detailed(np.array(["a", "b"]))


def test_the_keys_of_a_batch():
    for batch, keys in (
        ({"__key__": ["a"]}, ["a"]),
        (Batch(__key__=["a"]), ["a"]),
        ({"__keys__": ["a"]}, ["a"]),
        ({"keys": ["a"]}, ["a"]),
        ([{"__key__": ["b"]}], ["b"]),
        ({"__key__": "a"}, None),
        ([], None),
        (3, None),
    ):
        assert default_get_batch_keys(batch) == keys, batch


def test_trainers_may_assign_the_sources_of_a_copy():
    """Lightning converts the tensors of a batch in copies of its dataclasses."""
    source = SourceInfo(
        dataset_path="texts", index=3, shard_name="0.tar", file_names=("a.txt",)
    )
    copied = copy.copy(source)
    copied.index = 4
    assert source.index == 3
    assert copied == replace(source, index=4)
    assert len({source, copied, copy.copy(source)}) == 2
