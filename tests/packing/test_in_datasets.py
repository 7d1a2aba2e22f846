"""Packers where they are used: in datasets, loaders and task encoders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from energize import (
    DefaultTaskEncoder,
    ListSource,
    Packer,
    PackingDataset,
    RepeatDataset,
    Sample,
    ShuffleDataset,
    WorkerConfig,
    concat_pack,
    get_savable_loader,
    get_train_dataset,
    prepare,
    stateless,
    write_shards,
)
from energize.testing import check_laws

CAPACITY = 64


def caption(number: int) -> dict:
    length = 1 + number * 7 % 40
    images = [f"image {number}"] if number % 3 else []
    return {"ids": torch.full((length,), number), "images": images}


def pack(samples):
    return concat_pack(samples, ["ids"], flatten=["images"])


def packs(method, count=50, buffer_size=16):
    captions = ListSource([caption(number) for number in range(count)])
    packer = Packer("ids", CAPACITY, method=method)
    return PackingDataset(ShuffleDataset(captions), buffer_size, packer, pack)


def numbers_in(found) -> Counter:
    """How often each caption came; all its tokens are its number."""
    numbers = Counter()
    for each in found:
        ends = each["cu_seqlens"].tolist()
        assert ends[-1] == len(each["ids"]) == len(each["position_ids"]) <= CAPACITY
        numbers.update(each["ids"][ends[:-1]].tolist())
        expected = [f"image {number}" for number in each["ids"][ends[:-1]].tolist() if number % 3]
        assert each["images"] == expected
    return numbers


@pytest.mark.parametrize("method", ["first_fit", "best_fit", "balanced"])
def test_every_caption_is_in_one_pack_of_an_epoch(method):
    dataset = packs(method)
    assert numbers_in(dataset) == Counter(range(50))


@pytest.mark.parametrize("method", ["best_fit", "balanced"])
def test_laws(method):
    check_laws(packs(method), epochs=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_in_the_middle_of_a_buffer(workers):
    def loader():
        return get_savable_loader(
            RepeatDataset(packs("balanced")), worker_config=WorkerConfig(0, 1, workers)
        )

    def shown(found):
        return [each["ids"].tolist() for each in found]

    first = loader()
    iterator = iter(first)
    expected = shown(next(iterator) for _ in range(12))
    for taken in (1, 5):
        some = loader()
        iterator = iter(some)
        for _ in range(taken):
            next(iterator)
        state = some.save_state_rank()
        again = loader()
        again.restore_state_rank(state)
        iterator = iter(again)
        assert shown(next(iterator) for _ in range(12 - taken)) == expected[taken:]


def test_a_partial_function_makes_packs():
    captions = ListSource([caption(number) for number in range(20)])
    final = partial(concat_pack, fields=["ids"], flatten=["images"])
    dataset = PackingDataset(captions, 10, Packer("ids", CAPACITY), final)
    assert numbers_in(dataset) == Counter(range(20))


@dataclass(kw_only=True, slots=True)
class Tokens(Sample):
    tokens: torch.Tensor


class Encoder(DefaultTaskEncoder):
    packer = Packer("tokens", CAPACITY, method="balanced")

    @stateless
    def encode_sample(self, sample):
        return Tokens.derive_from(sample, tokens=torch.tensor(list(sample.text.encode())))

    def select_samples_to_pack(self, samples):
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples):
        return concat_pack(samples, ["tokens"])


def test_the_hooks_of_a_task_encoder(tmp_path):
    texts = [f"caption {number} " + "x" * (number * 5 % 30) for number in range(60)]
    folder = tmp_path / "texts"
    write_shards(({"__key__": f"{i:03d}", "txt": text} for i, text in enumerate(texts)), folder)
    prepare(folder, split_ratios={"train": 1}, sample_type="TextSample", field_map={"text": "txt"})
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(0, 1, 0),
        batch_size=None,
        packing_buffer_size=20,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
        repeat=False,
    )
    found = Counter()
    for each in dataset:
        assert len(each["tokens"]) <= CAPACITY
        data = bytes(each["tokens"].tolist())
        ends = each["cu_seqlens"].tolist()
        found.update(data[a:b].decode() for a, b in pairwise(ends))
        assert len(each["__key__"].split(",")) == len(ends) - 1
    assert found == Counter(texts)
    assert np.mean([len(each["tokens"]) for each in dataset]) > 0.8 * CAPACITY
