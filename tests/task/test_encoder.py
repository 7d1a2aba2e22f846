"""Task encoders and their hooks, from a folder to batches."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

import energize as ez
from energize.core.samples import CaptioningSample
from energize.errors import ConfigError, EncoderError
from energize.preparation import prepare
from energize.task.decode import SampleDecoder
from energize.task.hooks import active_hooks
from tests.support.refusals import check_refusals

COUNT = 40


def made(path, kind, texts, **options):
    samples = ({"__key__": f"{n:03d}", "txt": text} for n, text in enumerate(texts))
    ez.write_shards(samples, path, samples_per_shard=12)
    prepare(path, sample_type=kind, split_ratios={"train": 1}, workers=1, **options)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts of 1 to 9 words."""
    texts = [" ".join([f"w{n}"] * (n % 9 + 1)) for n in range(COUNT)]
    return made(tmp_path_factory.mktemp("texts"), "TextSample", texts)


@pytest.fixture(scope="module")
def crude(tmp_path_factory):
    texts = [f"w{n}" for n in range(COUNT)]
    return made(tmp_path_factory.mktemp("crude"), "CrudeWebdataset", texts, sqlite=True)


def train(path, encoder, batch_size=None, **options):
    return ez.get_train_dataset(
        path, batch_size=batch_size, task_encoder=encoder, repeat=False, **options
    )


def encoder_with(base=ez.TaskEncoder, **hooks):
    return type("Encoder", (base,), hooks)()


def drawn(*arguments, first=False, **options):
    """A call that makes a dataset and reads it."""
    return lambda: (
        next(iter(train(*arguments, **options)))
        if first
        else list(train(*arguments, **options))
    )


class Words(ez.TaskEncoder):
    """Every hook, in the order in which they are called."""

    decoder = None

    def __init__(self):
        self.log = []

    def preencode_sample(self, sample):
        self.log.append("preencode")
        return sample

    def select_samples_to_pack(self, samples):
        self.log.append(f"select {len(samples)}")
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    def postencode_sample(self, sample):
        self.log.append("postencode")
        return sample.text.decode().split()

    def pack_selected_samples(self, samples):
        self.log.append(f"pack {len(samples)}")
        return [word for sample in samples for word in sample]

    def batch(self, samples):
        self.log.append(f"batch {len(samples)}")
        return samples

    def encode_batch(self, batch):
        self.log.append("encode_batch")
        return {"packs": batch}


class ByLength(ez.TaskEncoder):
    def encode_sample(self, sample):
        return sample.text.split()

    def batch_group_criterion(self, sample):
        return len(sample) > 4, None

    def batch(self, samples):
        return samples


def test_batches_of_samples_that_belong_together(folder):
    batches = list(train(folder, ByLength(), 3))
    assert all(len({len(words) > 4 for words in batch}) == 1 for batch in batches)
    assert sum(map(len, batches)) == COUNT
    sized = encoder_with(
        ByLength, batch_group_criterion=lambda self, s: (len(s), len(s))
    )
    assert all(len(batch) <= len(batch[0]) for batch in train(folder, sized))
    assert [
        len(each) for each in train(folder, ByLength(), 3, batch_drop_last=True)
    ] == [3] * (sum(len(each) == 3 for each in batches))
    both = encoder_with(ByLength, batch_group_criterion=lambda self, sample: (0, 3))
    none = encoder_with(ByLength, batch_group_criterion=lambda self, sample: (0, None))
    check_refusals(
        EncoderError,
        both=(drawn(folder, both, 3), "batch size"),
        none=(drawn(folder, none), "batch size"),
    )


# Crude samples.


@dataclass
class Cooked(ez.Sample):
    text: str
    extra: Any = None


@ez.stateless
def cook(sample) -> Cooked:
    return Cooked(**ez.basic_sample_keys(sample), text=sample["txt"])


@ez.cooker(need_primary=True, need_cache=True)
def cook_lazily(sample, primary, cache):
    lazy = cache.get_lazy(primary, ".txt")
    return Cooked(**ez.basic_sample_keys(sample), text=sample["txt"], extra=lazy.get())


def cook_two(sample) -> Iterator[Cooked]:
    yield cook(sample)
    yield cook(sample)


def noisy(sample, rng):
    return Cooked(
        **ez.basic_sample_keys(sample), text=sample["txt"], extra=rng.random()
    )


class Cooks(ez.TaskEncoder):
    cookers = (ez.Cooker(cook_two, has_subflavors={"times": 2}), ez.Cooker(cook))


class CooksTwice(ez.TaskEncoder):
    cookers = (ez.Cooker(cook),)

    def cook_crude_sample(self, sample, cooker, aux):
        yield from [super().cook_crude_sample(sample, cooker, aux)] * 2


def mixed(tmp_path, entries):
    file = tmp_path / "mix.yaml"
    listed = "".join(f"      - {{{each}}}\n" for each in entries)
    file.write_text(
        "__module__: energize\n__class__: MetadatasetV2\n"
        f"splits:\n  train:\n    blend:\n{listed}  val:\n    blend:\n{listed}"
    )
    return file


def test_cookers(crude, tmp_path):
    assert next(iter(train(crude, ez.TaskEncoder())))["txt"].startswith("w")
    samples = list(train(crude, Cooks()))
    assert sorted(each.text for each in samples) == sorted(
        f"w{n}" for n in range(COUNT)
    )
    assert type(samples[0]) is Cooked
    assert samples[0].__sources__[0].shard_name
    entries = [f"path: {crude}, subflavors: {{times: {times}}}" for times in (2, 1)]
    mix = mixed(tmp_path, entries)
    stream = iter(ez.get_train_dataset(mix, batch_size=None, task_encoder=Cooks()))
    assert sum(each.__subflavors__["times"] == 2 for each in islice(stream, 40)) == 20
    lazily = list(train(crude, encoder_with(cookers=[ez.Cooker(cook_lazily)])))
    assert all(each.extra == each.text for each in lazily)
    draws = [
        each.extra for each in train(crude, encoder_with(cookers=[ez.Cooker(noisy)]))
    ]
    assert draws == [
        each.extra for each in train(crude, encoder_with(cookers=[ez.Cooker(noisy)]))
    ]
    assert len(set(draws)) == COUNT
    assert len(list(train(crude, CooksTwice()))) == 2 * COUNT
    forgets = encoder_with(cookers=[ez.Cooker(lambda sample: None)])
    picky = encoder_with(cookers=[ez.Cooker(cook, has_subflavors={"kind": "photo"})])
    check_refusals(
        ConfigError,
        forgets=(
            drawn(crude, forgets, first=True),
            EncoderError,
            "None",
            "not a sample",
        ),
        none_fits=(drawn(crude, picky), "no cooker fits its subflavors"),
        no_cooker=(drawn(crude, encoder_with(cookers=[cook])), "a list of"),
        no_function=(lambda: ez.Cooker("cook"), "a function of a crude sample"),
        no_labels=(lambda: ez.Cooker(cook, ["a"]), "a dict of labels"),
    )


# What an encoder must not do.


class ForCooked(ez.TaskEncoder):
    def encode_sample(self, sample: Cooked) -> Cooked:
        return sample


class ForText(ez.TaskEncoder):
    def encode_sample(self, sample: Cooked | ez.TextSample) -> Any:
        return sample


def yielding(self, given):
    yield given


def test_what_is_wrong_with_an_encoder_is_told_when_a_dataset_is_made(folder):
    slip = {"encode_samples": lambda self, sample: sample}
    same = {
        name: lambda self, sample: sample
        for name in ("preencode_sample", "encode_sample")
    }
    with pytest.warns(UserWarning, match="the hook is 'encode_sample'"):
        assert len(list(train(folder, encoder_with(**slip)))) == COUNT
    for encoder in (ForText(), ForCooked()):  # annotations are no contracts
        assert len(list(train(folder, encoder))) == COUNT
    post = encoder_with(Words, postencode_sample=yielding)
    assert len(list(train(folder, post))) == COUNT

    def making(encoder, size=None):
        return lambda: train(folder, encoder, packing_buffer_size=size)

    select = encoder_with(Words, select_samples_to_pack=yielding)
    group = encoder_with(Words, batch_group_criterion=yielding)
    has_to = "is a generator function"
    lacks = ("no select_samples_to_pack and no pack_selected",)
    check_refusals(
        ConfigError,
        selects=(making(select, 3), "select_samples_to_pack " + has_to),
        groups=(making(group, 3), "batch_group_criterion " + has_to),
        post=(making(post, 4), "generator function, and under packing"),
        no_packing=(making(ez.TaskEncoder(), 4), *lacks),
        both=(making(encoder_with(**same)), "both preencode_sample"),
    )


def test_what_hooks_return_is_looked_at(folder):
    nothing = {
        name: encoder_with(**{name: lambda self, given: None})
        for name in ("encode_sample", "batch", "encode_batch")
    }
    hidden = encoder_with(
        encode_sample=lambda self, sample: (w for w in sample.text.split())
    )
    other = encoder_with(
        Words, select_samples_to_pack=lambda self, samples: [["other"]]
    )
    check_refusals(
        EncoderError,
        {
            **{
                name: (
                    drawn(folder, each, 2),
                    EncoderError,
                    "returned None",
                    "a `return`",
                )
                for name, each in nothing.items()
            }
        },
        hidden=(drawn(folder, hidden, 2), "returned a generator instead of an item"),
        not_given=(
            drawn(folder, other, packing_buffer_size=4),
            "samples that are not in its input",
        ),
    )


# Numbers, wrapped encoders, types, older arguments.


class Numbered(ez.TaskEncoder):
    def encode_sample(self, sample):
        return self.current_sample_index, self.current_batch_index

    def batch(self, samples):
        return self.current_batch_index, samples

    def encode_batch(self, batch):
        assert batch[0] == self.current_batch_index
        return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_hooks_know_the_number_of_their_sample_and_batch(folder, workers):
    config = ez.WorkerConfig(0, 1, workers)
    with ez.get_loader(train(folder, Numbered(), 4), worker_config=config) as loader:
        for epoch in range(2):
            for number, (batch, samples) in enumerate(loader, epoch * COUNT // 4):
                assert batch == number
                assert samples == [(number * 4 + place, number) for place in range(4)]
    with pytest.raises(ConfigError, match="while a dataset calls a hook"):
        _ = Numbered().current_sample_index
    alone = encoder_with(
        Numbered, encode_sample=lambda self, sample: self.current_batch_index
    )
    assert list(train(folder, alone)) == list(
        range(COUNT)
    )  # no batch is settled: of the sample


class Inner(Words):
    cookers = (ez.Cooker(cook),)
    decoder = ez.TaskEncoder.decoder

    def postencode_sample(self, sample):
        return [sample.text]


class Outer(ez.encoders.AugmentTaskEncoder):
    def pack_selected_samples(self, samples):
        return ["outer", *super().pack_selected_samples(samples)]


def test_hooks_know_whether_they_train(folder):
    def told(self, sample):
        return [self.training]

    def batch(self, samples):
        return [*chain.from_iterable(samples), self.training]

    plain = encoder_with(encode_sample=told, batch=batch)
    added = ez.encoders.AugmentTaskEncoder(plain)
    options = {"split_part": "train", "batch_size": 2}
    for encoder in (plain, added):
        trains = train(folder, encoder, batch_size=2)
        validates = ez.get_val_dataset(folder, task_encoder=encoder, **options)
        [(each, _)] = ez.get_val_datasets(folder, task_encoder=encoder, **options)
        pairs = ((trains, True), (validates, False), (each, False))
        assert [dataset[0] for dataset, _ in pairs] == [[told] * 3 for _, told in pairs]
    assert plain.training
    own = encoder_with(encode_sample=told, training="mine")
    assert train(folder, own)[0] == ["mine"]


def test_an_encoder_that_adds_to_another_keeps_its_hooks(crude, folder):
    outer = Outer(ez.encoders.AugmentTaskEncoder(Inner()))
    batches = list(train(crude, outer, 2, packing_buffer_size=4))
    packs = [pack for batch in batches for pack in batch["packs"]]
    assert all(pack[0] == "outer" for pack in packs)
    assert sorted(w for pack in packs for w in pack[1:]) == sorted(
        f"w{n}" for n in range(COUNT)
    )
    again = pickle.loads(pickle.dumps(outer))
    assert list(train(crude, again, 2, packing_buffer_size=4)) == batches
    assert active_hooks(ez.encoders.AugmentTaskEncoder(ByLength())) == active_hooks(
        ByLength()
    )
    typed = ez.encoders.AugmentTaskEncoder(
        ez.DefaultTaskEncoder(encoded_sample_type=dict)
    )
    assert type(next(iter(train(folder, typed)))) is dict
    with pytest.raises(ConfigError, match="must wrap a TaskEncoder"):
        Outer(3)


class Image(NamedTuple):
    image: torch.Tensor


@dataclass
class Text:
    text: str
    language: str = "en"


@dataclass
class Captions:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


class Tokenizing(ez.DefaultTaskEncoder):
    def __init__(self, size):
        super().__init__(batch_type=Captions)
        self.size = size

    def encode_batch(self, batch):
        assert type(batch) is Captions
        return {"keys": batch.__key__, "lengths": [len(each) for each in batch.caption]}


def captioned(key, width=2):
    return CaptioningSample(
        __key__=key, image=torch.ones(3, 2, width), caption=f"caption {key}"
    )


def test_types_are_filled_by_name():
    def encode(kind):
        return ez.DefaultTaskEncoder(encoded_sample_type=kind).encode_sample

    sample, text = captioned("a"), Text("x")
    assert encode(Text)(ez.TextSample(__key__="a", text="hello")) == Text("hello")
    assert encode(Text)({"text": "x", "language": "de", "other": 1}) == Text("x", "de")
    assert encode(Text)(text) is text
    assert encode(Image)(sample) == Image(sample.image)
    metadata = ["__key__", "__restore_key__", "__subflavors__", "__sources__"]
    assert list(encode(dict)(sample)) == [*metadata, "image", "caption"]
    plain = ez.DefaultTaskEncoder()
    assert plain.encode_sample(sample) is plain.encode_batch(sample) is sample
    assert type(plain.batch([sample])) is CaptioningSample
    both = ez.DefaultTaskEncoder(raw_batch_type=dict, batch_type=Captions)
    assert type(both.batch([sample])) is dict
    assert type(both.encode_batch(both.batch([sample]))) is Captions
    encoder = pickle.loads(pickle.dumps(Tokenizing(5)))
    samples = ez.ListSource([captioned(str(i), 2 + i) for i in range(3)])
    batches = ez.MapDataset(
        ez.BatchDataset(samples, 2, encoder.batch), encoder.encode_batch
    )
    assert list(batches) == [
        {"keys": ["0", "1"], "lengths": [9, 9]},
        {"keys": ["2"], "lengths": [9]},
    ]
    batch = ez.DefaultTaskEncoder(batch_type=Captions).batch
    given = "Text needs the fields 'text', but a Captioning"
    check_refusals(
        ConfigError,
        {
            **{
                f"{name} {kind}": (
                    lambda name=name, kind=kind: ez.DefaultTaskEncoder(**{name: kind}),
                    *(ConfigError, name),
                )
                for name in ("encoded_sample_type", "raw_batch_type", "batch_type")
                for kind in (int, tuple, "Text", list[int])
            }
        },
        lacks=(lambda: encode(Text)(sample), given),
        batch=(lambda: batch([{"__key__": "", "caption": ""}]), "'image'"),
        number=(lambda: encode(Text)(3), "got a int"),
    )


def test_stateless_changes_nothing():
    def hook(self, sample):
        return sample

    assert ez.stateless(hook) is hook
    assert ez.stateless(restore_seeds=True, failure_tolerance=3)(hook) is hook
    assert list(inspect.signature(hook).parameters) == ["self", "sample"]


def test_decoders_belong_to_their_class_and_older_arguments_to_one_dataset(folder):
    encoder = ez.DefaultTaskEncoder()
    assert encoder_with(decoder=None).decoder is None
    assert ez.DefaultTaskEncoder(decoder=None).decoder is None
    assert encoder.decoder == SampleDecoder()
    options = {"split_part": "train", "batch_size": None, "task_encoder": encoder}
    assert isinstance(
        ez.get_val_dataset(folder, **options, auto_decode=False)[0].text, bytes
    )
    assert isinstance(ez.get_val_dataset(folder, **options)[0].text, str)
    own = (ConfigError, "so does the decoder of Words")
    check_refusals(
        FrozenInstanceError,
        frozen=(lambda: setattr(encoder.decoder, "image_decode", "pil"),),
        both=(lambda: train(folder, Words(), image_decode="pil"), *own),
        typo=(
            lambda: train(folder, encoder, imge_decode="pil"),
            TypeError,
            "imge_decode",
        ),
    )


# Building it oneself.


class WholeBatches(ez.TaskEncoder):
    """Blends whole batches, as one would have it done in Megatron-Energon."""

    def build_train_datasets(self, *, datasets, worker_config, batch_size, **options):
        config = {"worker_config": worker_config}
        parts = []
        for each in datasets:
            samples = ez.RepeatDataset(
                self._load_dataset(each, 0, worker_config), **config
            )
            encoded = self.build_encode_sample(samples, **config)
            batches = self.build_batch(encoded, batch_size=batch_size, **config)
            parts.append((batches, each.weight))
        return ez.BlendDataset(*parts, **config)

    def encode_sample(self, sample):
        return sample.__subflavors__["part"]

    def batch(self, samples):
        return samples


class Noting(ez.TaskEncoder):
    modes: ClassVar[list[Any]] = []

    def build_train_datasets(self, *, blend_mode, **given):
        self.modes.append(blend_mode)
        return super().build_train_datasets(blend_mode=blend_mode, **given)

    def build_val_datasets(self, **given):
        return super().build_val_datasets(**given)

    def encode_sample(self, sample):
        return sample.__subflavors__["part"]


def test_an_encoder_may_build_the_dataset_itself(folder, tmp_path):
    entries = [
        f"path: {folder}, weight: {weight}, subflavors: {{part: {number}}}"
        for number, weight in enumerate((3, 1))
    ]
    file = mixed(tmp_path, entries)
    dataset = ez.get_train_dataset(file, batch_size=4, task_encoder=WholeBatches())
    batches = list(islice(dataset, 400))
    assert all(len(set(batch)) == 1 and len(batch) == 4 for batch in batches)
    assert sum(batch[0] == 0 for batch in batches) == 300
    with ez.get_loader(dataset, worker_config=ez.WorkerConfig(0, 1, 2)) as loader:
        assert list(islice(loader, 50)) == batches[:50]
    parts = islice(
        ez.get_train_dataset(file, batch_size=None, task_encoder=Noting()), 400
    )
    assert sum(part == 0 for part in parts) == 300
    assert [mode.name for mode in Noting.modes] == ["DATASET_WEIGHT"]
    limited = ez.get_val_dataset(
        file, split_part="train", batch_size=8, task_encoder=Noting(), limit=7
    )
    assert [len(batch) for batch in limited] == [8] * 7
    with pytest.raises(ConfigError, match="Noting overrides build_train_datasets"):
        ez.encoders.AugmentTaskEncoder(Noting())
