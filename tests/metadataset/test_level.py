"""Batches of level cost that a metadataset, or a program, asks for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from energize import (
    ConfigError,
    ItemCost,
    MetadatasetError,
    NotIndexedError,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    prepare,
    write_shards,
)
from energize.datasets.level import LevelDataset
from energize.errors import ColumnError
from energize.packing import attention_cost
from energize.testing import check_resume, check_topology

HEAD = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n"
LEVEL = "level: {cost: tokens, global_batch_size: 64}"
COUNTS = (192, 128)


class Tokens(TaskEncoder):
    """A text of n words as n tokens, all of the number of the text."""

    def encode_sample(self, sample):
        number = int(sample.__key__)
        return {"__key__": sample.__key__, "ids": torch.full((len(sample.text.split()),), number)}

    def batch(self, samples):
        return samples


class Grouped(Tokens):
    def batch_group_criterion(self, sample):
        return len(sample["ids"]) % 2, None


class OwnBatches(Tokens):
    def build_batch(self, dataset, **options):
        return super().build_batch(dataset, **options)


def words_in(sample):
    return len(sample["txt"].split())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    random = np.random.default_rng(0)
    for name, count, start in zip("ab", COUNTS, (0, 1000), strict=True):
        lengths = np.clip(random.lognormal(2, 0.8, count), 1, 60).astype(int).tolist()
        samples = (
            {"__key__": f"{start + n:04d}", "txt": "w " * each} for n, each in enumerate(lengths)
        )
        write_shards(samples, root / name, samples_per_shard=50)
        measured = {"tokens": words_in}
        prepare(root / name, sample_type="TextSample", split_ratios={"train": 1}, columns=measured)
    write_shards([{"__key__": "0", "txt": "w"}], root / "bare")
    prepare(root / "bare", sample_type="TextSample", split_ratios={"train": 1})
    return root


@pytest.fixture
def mix(folders):
    def write(body, name="mix.yaml"):
        file = folders / name
        file.write_text(HEAD + body)
        return file

    return write


BLEND = "  train:\n    blend: [{path: a, weight: 2}, {path: b, weight: 1}]\n"


def keys(batches):
    return sorted(sample["__key__"] for batch in batches for sample in batch)


def worst(batches):
    costs = [sum(len(sample["ids"]) for sample in batch) for batch in batches]
    return max(costs) / (sum(costs) / len(costs))


def trained(path, **options):
    return get_train_dataset(path, batch_size=8, task_encoder=Tokens(), **options)


def test_a_program_asks_for_it(mix):
    file = mix(BLEND)
    plain, level = trained(file), trained(file, level="tokens", global_batch_size=64)
    for start in range(0, 40, 8):
        at = range(start, start + 8)
        assert keys(level.at(at)) == keys(plain.at(at))
        assert worst(level.at(at)) < 1.08
    assert max(worst(plain.at(range(n, n + 8))) for n in range(0, 40, 8)) > 1.3
    first = [[sample["__key__"] for sample in each] for each in (level[0], plain[0])]
    assert first[0] != first[1]
    check_resume(level, items=12)
    check_topology(level, items=12)


def test_a_file_asks_for_it(mix):
    file = mix(f"{BLEND}    {LEVEL}\n")
    level = trained(mix(BLEND, "plain.yaml"), level="tokens", global_batch_size=64)
    items, expected = (
        [[sample["__key__"] for sample in batch] for batch in dataset.at(range(16))]
        for dataset in (trained(file), level)
    )
    assert items == expected
    loader = get_loader(trained(file), worker_config=WorkerConfig(0, 4, 0))
    assert loader.accumulation_steps == 2


def test_a_function_of_columns(folders):
    level = trained(folders / "a", level=attention_cost, global_batch_size=64)
    assert worst(level.at(range(8))) < 1.1


def test_one_folder_once(folders):
    level = trained(folders / "a", level="tokens", global_batch_size=64, repeat=False)
    assert keys(level) == [f"{n:04d}" for n in range(COUNTS[0])]


def test_stages(mix):
    stages = (
        f"    stages:\n    - {{name: one, start_step: 0, end_step: 16, path: a, {LEVEL}}}\n"
        "    - {name: two, start_step: 16, end_step: 20, path: b}\n"
    )
    staged = trained(mix(f"  train:\n{stages}"))
    assert worst(staged.at(range(8))) < 1.05
    assert worst(staged.at(range(8, 16))) < 1.05
    assert len(staged.at(range(20))) == 20


def test_validation(mix):
    file = mix(f"  val:\n    path: a\n    split_part: train\n    {LEVEL}\n")
    level = get_val_dataset(file, batch_size=8, task_encoder=Tokens())
    assert keys(level) == [f"{n:04d}" for n in range(COUNTS[0])]
    assert worst(level.at(range(8))) < 1.05


PACKING = "packing: {length: ids, capacity: 64, buffer_size: 30, fields: ids}"


def cost_of_pack(pack):
    ends = np.diff(pack["cu_seqlens"].tolist())
    return sum(attention_cost(int(each), 4) for each in ends)


def test_packs_are_levelled_as_they_come(mix):
    body = f"{BLEND}    {PACKING}\n    level: {{field: ids, buffer_size: 32}}\n"
    told = trained(mix(body))
    file = mix(f"{BLEND}    {PACKING}\n", "plain.yaml")
    asked = trained(file, level=ItemCost("ids"), level_buffer_size=32)
    for one, other in zip(told, asked, strict=False):
        assert [pack["ids"].tolist() for pack in one] == [pack["ids"].tolist() for pack in other]
        if one[0]["ids"][0] == 0:
            break
    check_resume(told, items=4, lanes=(2,))


def test_packs_by_what_attention_costs(mix):
    file = mix(f"{BLEND}    {PACKING}\n", "plain.yaml")
    level = iter(trained(file, level=ItemCost(cost_of_pack), level_buffer_size=64))
    batches = [next(level) for _ in range(8)]
    costs = [sum(map(cost_of_pack, batch)) for batch in batches]
    assert max(costs) / np.mean(costs) < 1.03


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"level": "token", "global_batch_size": 64}, ColumnError, "did you mean 'tokens'"),
        ({"level": "tokens"}, ConfigError, "global_batch_size is missing"),
        ({"global_batch_size": 64}, ConfigError, "global_batch_size is given, and level is not"),
        ({"level_buffer_size": 64}, ConfigError, "level_buffer_size is given, and level is not"),
        ({"level": "tokens", "global_batch_size": 60}, ConfigError, "not a whole number of micro"),
        (
            {"level": "tokens", "global_batch_size": 64, "level_buffer_size": 64},
            ConfigError,
            "give an ItemCost",
        ),
        (
            {"level": ItemCost("ids"), "global_batch_size": 64},
            ConfigError,
            "cannot be levelled as a whole",
        ),
        ({"level": ItemCost("ids"), "level_buffer_size": 9}, ConfigError, "batches of 8"),
        (
            {"level": "tokens", "global_batch_size": 64, "batch_size": None},
            ConfigError,
            "batch_size is None",
        ),
        (
            {"level": "tokens", "global_batch_size": 64, "task_encoder": Grouped()},
            ConfigError,
            "batch_group_criterion of Grouped",
        ),
        (
            {"level": "tokens", "global_batch_size": 64, "task_encoder": OwnBatches()},
            ConfigError,
            "OwnBatches overrides build_batch",
        ),
    ],
)
def test_mistakes_of_a_program(folders, options, error, message):
    given = {"batch_size": 8, "task_encoder": Tokens()} | options
    with pytest.raises(error, match=message):
        get_train_dataset(folders / "a", **given)


def test_a_folder_without_the_column_is_told_with_what_adds_it(mix):
    file = mix(f"  train:\n    blend: [{{path: a}}, {{path: bare}}]\n    {LEVEL}\n")
    with pytest.raises(ColumnError, match=r"(?s)bare.*no column 'tokens'.*--column") as told:
        trained(file)
    assert "mix.yaml" in str(told.value)


def test_packs_have_no_columns(mix):
    with pytest.raises(NotIndexedError, match=r"PackingDataset.*ItemCost"):
        trained(mix(f"{BLEND}    {PACKING}\n"), level="tokens", global_batch_size=64)


def test_what_it_does_not_go_with(mix):
    both = mix(f"{BLEND}    {LEVEL}\n")
    with pytest.raises(ConfigError, match=r"said here and by the program.*(?s:.*)mix.yaml"):
        trained(both, level="tokens", global_batch_size=64)
    composed = mix(
        "  train:\n    composition: {method: random, global_batch_size: 64}\n"
        f"    blend: [{{path: a, repeat: 1}}, {{path: b, repeat: 1}}]\n    {LEVEL}\n"
    )
    with pytest.raises(ConfigError, match="composition says which samples share a batch"):
        trained(composed)
    with pytest.raises(ConfigError, match="its batches are levelled"):
        load_dataset(both).get_datasets(
            training=True, split_part="train", worker_config=WorkerConfig()
        )


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("{cost: tokens}", r"global_batch_size is missing"),
        ("{global_batch_size: 64}", "give either 'cost'"),
        ("{cost: tokens, field: ids, global_batch_size: 64}", "give either 'cost'"),
        ("{field: ids, global_batch_size: 64}", "cannot be levelled as a whole"),
        ("{cost: tokens, global_batch_size: 64, buffer_size: 9}", "leave the buffer size out"),
        ("{cost: tokens, global_batch: 64}", "did you mean 'global_batch_size'"),
        ("{cost: tokens, global_batch_size: 0}", "global_batch_size"),
        ("tokens", "a mapping with 'cost' and 'global_batch_size'"),
    ],
)
def test_mistakes_of_a_file_are_told_with_their_line(mix, level, message):
    file = mix(f"  train:\n    path: a\n    level: {level}\n")
    with pytest.raises(MetadatasetError, match=rf"mix.yaml:6 \(splits.train.level.*{message}"):
        trained(file)


def test_it_is_for_the_outermost(mix):
    inner = mix(f"{BLEND}    {LEVEL}\n", "inner.yaml")
    with pytest.raises(MetadatasetError, match=r"this file levels its batches.*give level to the"):
        trained(mix(f"  train:\n    blend: [{{path: {inner}}}, {{path: b}}]\n"))
    assert isinstance(trained(inner).inputs[0], LevelDataset)
