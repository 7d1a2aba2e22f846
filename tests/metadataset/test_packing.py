"""Packing that a metadataset asks for."""

from __future__ import annotations

import pytest
import torch

from energize import (
    ConfigError,
    MetadatasetError,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.testing import check_resume, check_topology

COUNT = 40
HEAD = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n"
PACKING = "packing: {length: ids, capacity: 16, buffer_size: 20}"


class Tokens(TaskEncoder):
    """A text of n words as n tokens, all of the number of the text."""

    def encode_sample(self, sample):
        words = sample.text.split()
        number = int(sample.__key__)
        return {"__key__": sample.__key__, "ids": torch.full((len(words),), number)}

    def batch(self, samples):
        return samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts")
    samples = ({"__key__": f"{n:03d}", "txt": "w " * (n % 9 + 1)} for n in range(COUNT))
    write_shards(samples, path, samples_per_shard=12)
    prepare(path, sample_type="TextSample", split_ratios={"train": 1})
    return path


@pytest.fixture
def mix(tmp_path):
    def write(body, name="mix.yaml"):
        file = tmp_path / name
        file.write_text(HEAD + body)
        return file

    return write


def numbers(packs):
    return sorted(number for pack in packs for number in pack["ids"].tolist())


def test_a_split_is_packed(folder, mix):
    file = mix(f"  train:\n    path: {folder}\n    {PACKING}\n")
    dataset = get_train_dataset(file, batch_size=3, task_encoder=Tokens(), repeat=False)
    packs = [pack for batch in dataset for pack in batch]
    assert numbers(packs) == sorted(n for n in range(COUNT) for _ in range(n % 9 + 1))
    assert all(len(pack["ids"]) <= 16 for pack in packs)
    assert sum(len(pack["ids"]) for pack in packs) / 16 / len(packs) > 0.9
    ends = packs[0]["cu_seqlens"].tolist()
    assert ends[0] == 0
    assert ends[-1] == len(packs[0]["ids"])
    check_resume(dataset, items=12, lanes=(1, 2))
    check_topology(dataset, items=12, lanes=(1, 2))


def test_a_blend_is_packed_after_it_is_mixed(folder, mix):
    entries = (
        f"[{{path: {folder}, weight: 3}}, {{path: {folder}, weight: 1, subflavors: {{a: 1}}}}]"
    )
    file = mix(f"  train:\n    blend: {entries}\n    {PACKING}\n")
    dataset = get_train_dataset(file, batch_size=2, task_encoder=Tokens())
    with get_loader(dataset, worker_config=WorkerConfig(0, 1, 2), lanes=4) as loader:
        batches = [batch for batch, _ in zip(loader, range(20), strict=False)]
    assert any("," in pack["__key__"] for batch in batches for pack in batch)


def test_validation_is_packed_too(folder, mix):
    file = mix(f"  val:\n    path: {folder}\n    split_part: train\n    {PACKING}\n")
    dataset = get_val_dataset(file, batch_size=None, task_encoder=Tokens())
    assert numbers(dataset) == sorted(n for n in range(COUNT) for _ in range(n % 9 + 1))


def test_several_lengths_and_a_pack_of_the_encoder(folder, mix):
    class Counted(Tokens):
        def encode_sample(self, sample):
            return super().encode_sample(sample) | {"images": [sample.__key__]}

        def pack_selected_samples(self, samples):
            return [each["images"] for each in samples]

    packing = "packing: {length: [ids, images], capacity: [16, 2], method: balanced}"
    file = mix(f"  train:\n    path: {folder}\n    {packing}\n")
    packs = list(get_train_dataset(file, batch_size=None, task_encoder=Counted(), repeat=False))
    assert max(map(len, packs)) == 2
    assert sum(map(len, packs)) == COUNT


def test_stages_are_packed_one_by_one(folder, mix):
    stages = "".join(
        f"      - {{name: {name}, start_step: {start}, end_step: {start + 3}, path: {folder}, "
        f"packing: {{length: ids, capacity: {capacity}}}}}\n"
        for name, start, capacity in (("short", 0, 16), ("long", 3, 64))
    )
    file = mix(f"  train:\n    stages:\n{stages}")
    batches = list(get_train_dataset(file, batch_size=2, task_encoder=Tokens()))
    longest = [max(len(pack["ids"]) for pack in batch) for batch in batches]
    assert len(batches) == 6
    assert max(longest[:3]) <= 16 < min(longest[3:])


def test_what_packing_does_not_go_with(folder, mix):
    file = mix(f"  train:\n    path: {folder}\n    {PACKING}\n")
    with pytest.raises(ConfigError, match="so does packing_buffer_size"):
        get_train_dataset(file, batch_size=2, task_encoder=Tokens(), packing_buffer_size=5)

    class Selects(Tokens):
        def select_samples_to_pack(self, samples):
            return [samples]

    with pytest.raises(ConfigError, match="so does select_samples_to_pack of Selects"):
        get_train_dataset(file, batch_size=2, task_encoder=Selects())


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ("{capacity: 16}", "length"),
        ("{length: ids}", "capacity"),
        ("{length: ids, capacity: 0}", "a whole number, 1 or more"),
        ("{length: ids, capacity: [16, 2]}", "1 lengths and 2 capacities"),
        ("{length: ids, capacity: 16, method: best}", "did you mean 'best_fit'"),
        ("{length: ids, capacity: 16, bufer_size: 9}", "did you mean 'buffer_size'"),
    ],
)
def test_mistakes_are_told_with_their_line(folder, mix, packing, message):
    file = mix(f"  train:\n    path: {folder}\n    packing: {packing}\n")
    with pytest.raises(MetadatasetError, match=message) as caught:
        get_train_dataset(file, batch_size=2, task_encoder=Tokens())
    assert "mix.yaml:6" in str(caught.value)


def test_packing_is_for_the_outermost(folder, mix):
    inner = mix(f"  train:\n    path: {folder}\n    {PACKING}\n", "inner.yaml")
    file = mix(f"  train:\n    blend: [{{path: {inner}}}, {{path: {folder}}}]\n")
    with pytest.raises(MetadatasetError, match="here they are mixed with others first"):
        get_train_dataset(file, batch_size=2, task_encoder=Tokens())
    alone = mix(f"  train:\n    path: {inner}\n", "alone.yaml")
    dataset = get_train_dataset(alone, batch_size=None, task_encoder=Tokens(), repeat=False)
    assert "cu_seqlens" in next(iter(dataset))
