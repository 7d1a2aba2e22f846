"""The hooks of task encoders, from a folder to batches."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import pytest
import torch

from energize import (
    AugmentTaskEncoder,
    BatchDataset,
    BlendDataset,
    Cooker,
    DefaultTaskEncoder,
    ListSource,
    RepeatDataset,
    Sample,
    SkipSample,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
    write_shards,
)
from energize.core.call import generates
from energize.errors import ConfigError, EncoderError
from energize.preparation import prepare
from energize.testing import check_resume, check_topology

COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts of 1 to 9 words."""
    path = tmp_path_factory.mktemp("texts")
    samples = (
        {"__key__": f"{n:03d}", "txt": " ".join([f"w{n}"] * (n % 9 + 1))} for n in range(COUNT)
    )
    write_shards(samples, path, samples_per_shard=12)
    prepare(path, sample_type="TextSample", split_ratios={"train": 1})
    return path


@pytest.fixture(scope="module")
def crude(tmp_path_factory):
    path = tmp_path_factory.mktemp("crude")
    samples = ({"__key__": f"{n:03d}", "txt": f"w{n}"} for n in range(COUNT))
    write_shards(samples, path, samples_per_shard=12)
    prepare(path, sample_type="CrudeWebdataset", split_ratios={"train": 1}, sqlite=True)
    return path


def train(path, encoder, batch_size=None, **options):
    return get_train_dataset(
        path, batch_size=batch_size, task_encoder=encoder, repeat=False, **options
    )


class Words(TaskEncoder):
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


def test_hooks_are_called_in_order(folder):
    encoder = Words()
    batches = iter(train(folder, encoder, 2, packing_buffer_size=4))
    first = next(batches)
    assert len(first["packs"]) == 2
    one_pack = ["postencode", "postencode", "pack 2"]
    assert encoder.log[:4] == ["preencode"] * 4
    assert [each for each in encoder.log if each != "preencode"] == [
        "select 4",
        *one_pack,
        *one_pack,
        "batch 2",
        "encode_batch",
    ]


def test_packs_hold_every_word_once_also_with_workers(folder):
    encoder = Words()
    dataset = train(folder, encoder, 3, packing_buffer_size=5)
    words = sorted(word for batch in dataset for pack in batch["packs"] for word in pack)
    assert words == sorted(f"w{n}" for n in range(COUNT) for _ in range(n % 9 + 1))
    with get_loader(dataset, worker_config=WorkerConfig(0, 1, 2), lanes=4) as loader:
        found = [word for batch in loader for pack in batch["packs"] for word in pack]
    assert sorted(found) == words


class Generating(TaskEncoder):
    def encode_sample(self, sample):
        for word in sample.text.split():
            yield word, random.random()

    def batch(self, samples):
        yield samples
        yield len(samples)

    def encode_batch(self, batch):
        yield batch
        yield "end"


def test_hooks_that_yield_give_any_number(folder):
    samples = list(train(folder, Generating()))
    assert sorted(word for word, _ in samples) == sorted(
        f"w{n}" for n in range(COUNT) for _ in range(n % 9 + 1)
    )
    dataset = train(folder, Generating(), 4)
    batches = list(dataset)
    assert batches[1::2] == ["end"] * (len(batches) // 2)
    assert sum(len(each) for each in batches[::4]) == len(samples)
    check_resume(dataset, items=30, lanes=(1, 3))
    check_topology(dataset, items=30, lanes=(1, 2))


def test_packs_of_a_folder_keep_the_laws(folder):
    dataset = train(folder, Words(), 2, packing_buffer_size=7)
    check_resume(dataset, items=20, lanes=(1, 3))
    check_topology(dataset, items=20, lanes=(1, 2))


class ByLength(TaskEncoder):
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
    sized = type(
        "Sized",
        (ByLength,),
        {
            "batch_group_criterion": lambda self, sample: (len(sample), len(sample)),
        },
    )
    assert all(len(batch) <= len(batch[0]) for batch in train(folder, sized()))


def test_two_batch_sizes_are_one_too_many(folder):
    both = type("Both", (ByLength,), {"batch_group_criterion": lambda self, sample: (0, 3)})
    with pytest.raises(EncoderError, match="batch size"):
        list(train(folder, both(), 3))
    none = type("None", (ByLength,), {"batch_group_criterion": lambda self, sample: (0, None)})
    with pytest.raises(EncoderError, match="batch size"):
        list(train(folder, none()))


# Crude samples


@dataclass
class Cooked(Sample):
    text: str
    extra: Any = None


@stateless
def cook(sample) -> Cooked:
    return Cooked(**basic_sample_keys(sample), text=sample["txt"])


@cooker(need_primary=True, need_cache=True)
def cook_lazily(sample, primary, cache):
    lazy = cache.get_lazy(primary, ".txt")
    return Cooked(**basic_sample_keys(sample), text=sample["txt"], extra=lazy.get())


def cook_two(sample) -> Iterator[Cooked]:
    yield cook(sample)
    yield cook(sample)


class Cooks(TaskEncoder):
    cookers = (Cooker(cook_two, has_subflavors={"times": 2}), Cooker(cook))


def mix(tmp_path, crude, subflavors):
    file = tmp_path / "mix.yaml"
    file.write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        + "".join(f"      - {{path: {crude}, subflavors: {each}}}\n" for each in subflavors)
    )
    return file


def test_the_first_cooker_that_fits_cooks_a_dataset(crude, tmp_path):
    samples = list(train(crude, Cooks()))
    assert sorted(each.text for each in samples) == sorted(f"w{n}" for n in range(COUNT))
    assert type(samples[0]) is Cooked
    assert samples[0].__sources__[0].shard_name
    dataset = get_train_dataset(
        mix(tmp_path, crude, ["{times: 2}", "{times: 1}"]), batch_size=None, task_encoder=Cooks()
    )
    stream = iter(dataset)
    twice = [next(stream) for _ in range(40)]
    assert sum(each.__subflavors__["times"] == 2 for each in twice) == 20


def test_a_cooker_may_draw_and_an_encoder_may_yield(crude):
    def noisy(sample, rng):
        return Cooked(**basic_sample_keys(sample), text=sample["txt"], extra=rng.random())

    class Noisy(TaskEncoder):
        cookers = (Cooker(noisy),)

    class Twice(Noisy):
        cookers = (Cooker(cook),)

        def cook_crude_sample(self, sample, cooker, aux):
            yield from [super().cook_crude_sample(sample, cooker, aux)] * 2

    draws = [each.extra for each in train(crude, Noisy())]
    assert draws == [each.extra for each in train(crude, Noisy())]
    assert len(set(draws)) == COUNT
    assert len(list(train(crude, Twice()))) == 2 * COUNT


def test_a_cooker_that_returns_nothing(crude):
    class Forgets(TaskEncoder):
        cookers = (Cooker(lambda sample: None),)

    with pytest.raises(EncoderError, match="returned None, which is no sample"):
        next(iter(train(crude, Forgets())))


def test_no_cooker_fits(crude):
    class Picky(TaskEncoder):
        cookers = (Cooker(cook, has_subflavors={"kind": "photo"}),)

    with pytest.raises(ConfigError, match="no cooker fits its subflavors"):
        train(crude, Picky())


def test_a_cooker_is_given_what_it_asks_for(crude):
    class Lazily(TaskEncoder):
        cookers = (Cooker(cook_lazily),)

    samples = list(train(crude, Lazily()))
    assert all(each.extra == each.text for each in samples)
    assert len(samples[0].__sources__) >= 1


def test_crude_samples_without_cookers_come_as_they_are(crude):
    assert next(iter(train(crude, TaskEncoder())))["txt"].startswith("w")


# What an encoder must not do


def test_a_method_named_almost_like_a_hook(folder):
    class Slip(TaskEncoder):
        def encode_samples(self, sample):
            return sample

    with pytest.raises(ConfigError, match="did you mean the hook 'encode_sample'"):
        train(folder, Slip())
    meant = type("Meant", (Slip,), {"not_hooks": ("encode_samples",)})
    assert len(list(train(folder, meant()))) == COUNT


@pytest.mark.parametrize("name", ["encode_sample", "batch", "encode_batch"])
def test_a_hook_that_returns_nothing(folder, name):
    forgetful = type("Forgetful", (TaskEncoder,), {name: lambda self, given: None})
    with pytest.raises(EncoderError, match=r"returned None.*lack a `return`"):
        list(train(folder, forgetful(), 2))


def test_a_generator_object_is_no_sample(folder):
    class Hidden(TaskEncoder):
        def encode_sample(self, sample):
            return (word for word in sample.text.split())

    with pytest.raises(EncoderError, match="returned a generator, which is no item"):
        list(train(folder, Hidden(), 2))


@pytest.mark.parametrize("name", ["select_samples_to_pack", "batch_group_criterion"])
def test_hooks_that_may_not_yield(folder, name):
    def yielding(self, given):
        yield given

    with pytest.raises(ConfigError, match=f"{name} is a generator function, and may not yield"):
        train(folder, type("Yields", (Words,), {name: yielding})(), packing_buffer_size=3)


def test_postencode_may_yield_without_packing_only(folder):
    class Post(Words):
        def postencode_sample(self, sample):
            yield sample
            yield sample

    assert len(list(train(folder, Post()))) == 2 * COUNT
    with pytest.raises(ConfigError, match="is a generator function: under packing"):
        train(folder, Post(), packing_buffer_size=4)


def test_packing_needs_both_hooks(folder):
    with pytest.raises(ConfigError, match="has no select_samples_to_pack and no pack_selected"):
        train(folder, TaskEncoder(), packing_buffer_size=4)


def test_pack_hooks_that_nothing_calls_are_told(folder, caplog):
    with caplog.at_level(logging.WARNING, logger="energize"):
        train(folder, Words())
    assert "nothing is packed" in caplog.text


def test_one_of_the_two_encoding_hooks(folder):
    class Both(TaskEncoder):
        def preencode_sample(self, sample):
            return sample

        def encode_sample(self, sample):
            return sample

    with pytest.raises(ConfigError, match="both preencode_sample and encode_sample"):
        train(folder, Both())


def test_an_encoder_for_other_samples_is_told_when_the_dataset_is_made(folder):
    class ForCooked(TaskEncoder):
        def encode_sample(self, sample: Cooked) -> Cooked:
            return sample

    class ForText(TaskEncoder):
        def encode_sample(self, sample: Cooked | TextSample) -> Any:
            return sample

    with pytest.raises(ConfigError, match=r"takes a Cooked, and .* has samples of type TextSample"):
        train(folder, ForCooked())
    assert len(list(train(folder, ForText()))) == COUNT


def test_samples_that_are_left_out_of_packs_are_told_once(folder, caplog):
    class Few(Words):
        def select_samples_to_pack(self, samples):
            return [samples[:1]]

    with caplog.at_level(logging.WARNING, logger="energize"):
        packs = list(train(folder, Few(), packing_buffer_size=4))
    assert len(packs) == COUNT / 4
    assert caplog.text.count("left out 3 of 4 samples") == 1


def test_samples_that_were_not_given_cannot_be_packed(folder):
    class Other(Words):
        def select_samples_to_pack(self, samples):
            return [["other"]]

    with pytest.raises(EncoderError, match="samples that it was not given"):
        list(train(folder, Other(), packing_buffer_size=4))


def test_a_pack_whose_samples_are_all_skipped_is_none(folder):
    class Skips(Words):
        def postencode_sample(self, sample):
            if len(sample.text.split()) < 9:
                raise SkipSample
            return sample.text.decode().split()

    packs = list(train(folder, Skips(), packing_buffer_size=4))
    assert sum(len(pack) for pack in packs) == 9 * sum(n % 9 == 8 for n in range(COUNT))
    assert all(packs)


# Numbers, wrapped encoders, older arguments


class Numbered(TaskEncoder):
    def encode_sample(self, sample):
        return self.current_sample_index, self.current_batch_index

    def batch(self, samples):
        return self.current_batch_index, samples

    def encode_batch(self, batch):
        assert batch[0] == self.current_batch_index
        return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_hooks_know_the_number_of_their_sample_and_batch(folder, workers):
    with get_loader(
        train(folder, Numbered(), 4), worker_config=WorkerConfig(0, 1, workers)
    ) as loader:
        for epoch in range(2):
            for number, (batch, samples) in enumerate(loader, epoch * COUNT // 4):
                assert batch == number
                assert samples == [(number * 4 + place, number) for place in range(4)]
    with pytest.raises(ConfigError, match="while a dataset calls a hook"):
        _ = Numbered().current_sample_index


class Inner(Words):
    cookers = (Cooker(cook),)
    decoder = TaskEncoder.decoder

    def postencode_sample(self, sample):
        return [sample.text]


class Outer(AugmentTaskEncoder):
    def pack_selected_samples(self, samples):
        return ["outer", *super().pack_selected_samples(samples)]


def test_an_encoder_that_adds_to_another_keeps_its_hooks(crude):
    outer = Outer(Inner())
    batches = list(train(crude, outer, 2, packing_buffer_size=4))
    packs = [pack for batch in batches for pack in batch["packs"]]
    assert all(pack[0] == "outer" for pack in packs)
    assert sorted(w for pack in packs for w in pack[1:]) == sorted(f"w{n}" for n in range(COUNT))
    assert (
        list(train(crude, pickle.loads(pickle.dumps(outer)), 2, packing_buffer_size=4)) == batches
    )


def test_an_augmented_encoder_that_yields(folder):
    outer = AugmentTaskEncoder(Generating())
    assert len(list(train(folder, outer))) == len(list(train(folder, Generating())))


def test_older_arguments_decode_for_one_dataset_only(folder):
    encoder = DefaultTaskEncoder()
    raw = get_val_dataset(
        folder, split_part="train", batch_size=None, auto_decode=False, task_encoder=encoder
    )
    assert isinstance(next(iter(raw)).text, bytes)
    again = get_val_dataset(folder, split_part="train", batch_size=None, task_encoder=encoder)
    assert isinstance(next(iter(again)).text, str)
    with pytest.raises(ConfigError, match="so does the decoder of Words"):
        train(folder, Words(), image_decode="pil")
    with pytest.raises(TypeError, match="imge_decode"):
        train(folder, encoder, imge_decode="pil")


def test_a_batcher_that_yields_needs_a_stream():
    def apart(items):
        yield from items

    assert generates(apart)
    dataset = BatchDataset(ListSource(range(5)), 2, apart)
    assert list(dataset) == [0, 1, 2, 3, 4]
    assert not dataset.indexed


# Building it oneself


class WholeBatches(TaskEncoder):
    """Blends whole batches, as one would have it done in Megatron-Energon."""

    def build_train_datasets(self, *, datasets, worker_config, batch_size, **options):
        parts = []
        for each in datasets:
            samples = RepeatDataset(
                self._load_dataset(each, 0, worker_config), worker_config=worker_config
            )
            encoded = self.build_encode_sample(samples, worker_config=worker_config)
            batches = self.build_batch(encoded, batch_size=batch_size, worker_config=worker_config)
            parts.append((batches, each.weight))
        return BlendDataset(*parts, worker_config=worker_config)

    def encode_sample(self, sample):
        return sample.__subflavors__["part"]

    def batch(self, samples):
        return samples


def weighted(tmp_path, folder, weights):
    file = tmp_path / "weighted.yaml"
    entries = "".join(
        f"      - {{path: {folder}, weight: {weight}, subflavors: {{part: {number}}}}}\n"
        for number, weight in enumerate(weights)
    )
    file.write_text(
        "__module__: energize\n__class__: MetadatasetV2\n"
        f"splits:\n  train:\n    blend:\n{entries}  val:\n    blend:\n{entries}"
    )
    return file


def test_an_encoder_may_build_the_dataset_itself(folder, tmp_path):
    file = weighted(tmp_path, folder, [3, 1])
    dataset = get_train_dataset(file, batch_size=4, task_encoder=WholeBatches())
    batches = list(islice(dataset, 400))
    assert all(len(set(batch)) == 1 and len(batch) == 4 for batch in batches)
    assert sum(batch[0] == 0 for batch in batches) == 300
    with get_loader(dataset, worker_config=WorkerConfig(0, 1, 2)) as loader:
        assert list(islice(loader, 50)) == batches[:50]


def test_super_builds_what_would_be_built_without(folder, tmp_path):
    class Noting(TaskEncoder):
        modes: ClassVar[list[Any]] = []

        def build_train_datasets(self, *, blend_mode, **given):
            self.modes.append(blend_mode)
            return super().build_train_datasets(blend_mode=blend_mode, **given)

        def build_val_datasets(self, **given):
            return super().build_val_datasets(**given)

        def encode_sample(self, sample):
            return sample.__subflavors__["part"]

    file = weighted(tmp_path, folder, [3, 1])
    parts = list(islice(get_train_dataset(file, batch_size=None, task_encoder=Noting()), 400))
    assert sum(part == 0 for part in parts) == 300
    assert [mode.name for mode in Noting.modes] == ["DATASET_WEIGHT"]
    limited = get_val_dataset(
        file, split_part="train", batch_size=8, task_encoder=Noting(), limit=7
    )
    assert [len(batch) for batch in limited] == [8] * 7
    with pytest.raises(ConfigError, match="Noting overrides build_train_datasets"):
        AugmentTaskEncoder(Noting())


@dataclass
class Worded(Sample):
    words: list[str]
    count: int


@dataclass
class WordedBatch:
    words: list[list[str]]
    count: torch.Tensor


def test_a_value_that_contradicts_its_field(folder):
    class Text(TaskEncoder):
        def encode_sample(self, sample):
            return Worded.derive_from(sample, words=sample.text, count=1)

    with pytest.raises(
        EncoderError, match=r"'words' is declared as list\[str\], and its value is str"
    ):
        next(iter(train(folder, Text())))

    class Listed(TaskEncoder):
        def encode_sample(self, sample):
            return Worded.derive_from(sample, words=sample.text.split(), count=1)

        def batch(self, samples):
            return WordedBatch([each.words for each in samples], [each.count for each in samples])

    with pytest.raises(EncoderError, match="'count' is declared as Tensor, and its value is list"):
        next(iter(train(folder, Listed(), 2)))
