"""What public programs of Megatron-Energon do beside its interface: datasets of their
own, paths in stores, and failures that they look up."""

from __future__ import annotations

import json
import logging
from itertools import chain, islice

import pytest
from click.testing import CliRunner
from energize.energon.epathlib import EPath
from energize.energon.flavors import BaseWebdatasetFactory

import energize as ez
from energize.energon import (
    BaseWrapperDataset,
    Cooker,
    DefaultTaskEncoder,
    MapDataset,
    SampleDecoder,
    SavableDataset,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
    traverse_metadataset,
)
from energize.errors import FatalSampleError
from tests.support.prepared import captions

ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
USUAL = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}


# Datasets with their own `__iter__`


class PoolSort(SavableDataset):
    """Sorts pools of items by a key."""

    segment_length = 40

    def __init__(self, dataset, *, pool_size, key_fn, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset = dataset
        self.pool_size = pool_size
        self.key_fn = key_fn
        self.pools = 0

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        items = iter(self.dataset)
        while pool := list(islice(items, self.pool_size)):
            self.pools += 1
            yield from sorted(pool, key=self.key_fn, reverse=self.pools % 2 == 0)


class Evens(BaseWrapperDataset):
    def __iter__(self):
        return (item for item in self.dataset if item % 2 == 0)


def sorted_pools(items, size, segment):
    """The pools of every segment, every other one backwards."""
    for begin in range(0, len(items), segment):
        part = items[begin : begin + segment]
        for number, first in enumerate(range(0, len(part), size)):
            yield from sorted(part[first : first + size], reverse=number % 2 == 1)


def test_a_dataset_with_its_own_iter_is_delivered():
    numbers = ez.ShuffleDataset(ez.ListSource(range(100)))
    mine = PoolSort(numbers, pool_size=7, key_fn=int, worker_config=ALONE)
    expected = list(sorted_pools(list(numbers), 7, 40))
    assert expected != list(numbers)
    loader = get_savable_loader(mine, worker_config=ALONE)
    assert len(loader) == 100
    assert list(loader) == expected
    halves = MapDataset(Evens(mine, worker_config=ALONE), lambda item: item // 2)
    assert list(halves) == [item // 2 for item in expected if item % 2 == 0]
    assert mine.pools == 0  # copies are iterated over
    for stop in (0, 1, 39, 40, 93):
        first, resumed = (get_savable_loader(mine, worker_config=ALONE) for _ in "ab")
        seen = list(islice(first, stop))
        resumed.restore_state_rank(first.save_state_rank())
        assert [*seen, *resumed] == expected
    for size in (7, 8):
        other = PoolSort(numbers, pool_size=size, key_fn=int, worker_config=ALONE)
        is_equal = MapDataset(other, int).dataset == MapDataset(mine, int).dataset
        assert is_equal == (size == 7)


class Numbers(DefaultTaskEncoder):
    """Sorts before batching, in training, as LoongForge does."""

    is_sorting = False

    def encode_sample(self, sample):
        return int(sample.caption.split()[1])

    def batch(self, samples):
        return samples

    def build_train_datasets(self, **options):
        self.is_sorting = True
        try:
            return super().build_train_datasets(**options)
        finally:
            self.is_sorting = False

    def build_batch(self, dataset, **options):
        if self.is_sorting:
            config = options["worker_config"]
            dataset = PoolSort(dataset, pool_size=10, key_fn=int, worker_config=config)
        return super().build_batch(dataset, **options)


def test_a_task_encoder_sorts_before_it_batches(tmp_path):
    folder = captions(tmp_path / "folder", 80)  # 60 of them for training
    dataset = get_train_dataset(
        folder, worker_config=ALONE, batch_size=5, task_encoder=Numbers(), **USUAL
    )
    pools = list(islice(get_savable_loader(dataset), 8))
    for number in range(0, 8, 2):
        pool = [*pools[number], *pools[number + 1]]
        assert pool == sorted(pool, reverse=number % 4 == 2)
    assert len(set(chain(*pools))) == 40


# Failures


class Failing(DefaultTaskEncoder):
    def batch(self, samples):
        raise ValueError("no batch")


def test_a_batch_hook_that_fails_names_its_samples(tmp_path, caplog):
    folder = captions(tmp_path / "folder", 8, shards=1)
    dataset = get_train_dataset(
        folder, worker_config=ALONE, batch_size=3, task_encoder=Failing(), **USUAL
    )
    keys = ", ".join(repr(sample.__key__) for sample in islice(_samples(folder), 3))
    with pytest.raises(ez.EncoderError, match=f"of the samples {keys}"):
        next(iter(ez.get_loader(dataset)))
    with (
        caplog.at_level(logging.ERROR, "energize"),
        pytest.raises(FatalSampleError, match="of the samples '"),
    ):
        next(iter(get_savable_loader(dataset)))
    assert f"the batch of samples {keys} is left out" in caplog.text


def _samples(folder):
    return iter(
        get_train_dataset(folder, worker_config=ALONE, batch_size=None, **USUAL)
    )


# Commands


def test_commands_of_tools_are_click_commands(tmp_path):
    from energize.energon.tools.prepare import command

    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n')
    done = CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    assert (done.exit_code, path.with_name("lines.jsonl.idx").exists()) == (0, True)
    assert "Done" in done.output


# Paths in stores


@stateless
def with_media(crude, media):
    text = media.get(crude["json"]["file"], crude)
    return {**basic_sample_keys(crude), "text": text}


class Cooked(DefaultTaskEncoder):
    decoder = SampleDecoder()
    cookers = (Cooker(with_media),)

    def batch(self, samples):
        return [sample["text"] for sample in samples]


MIX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: {path}
    aux: {{media: "{media}"}}
"""


def test_folders_of_the_multi_storage_client(tmp_path, monkeypatch):
    """As data, as a plain folder beside and as a prepared one; prepared in place."""
    pytest.importorskip("multistorageclient")
    store = tmp_path / "store"
    options = {"type": "file", "options": {"base_path": str(store)}}
    config = {"profiles": {"programs": {"storage_provider": options}}}
    (tmp_path / "msc.json").write_text(json.dumps(config))
    monkeypatch.setenv("MSC_CONFIG", str(tmp_path / "msc.json"))
    rows = [{"__key__": f"k{n}", "json": {"file": f"{n}.txt"}} for n in range(6)]
    ez.write_shards(rows, store / "crude")
    texts = [{"__key__": str(n), "txt": f"text {n}"} for n in range(6)]
    ez.write_shards(texts, store / "texts")
    (store / "plain").mkdir()
    for n in range(6):
        (store / "plain" / f"{n}.txt").write_text(f"text {n}")
    for name in ("crude", "texts"):
        BaseWebdatasetFactory.prepare_dataset(
            EPath(f"msc://programs/{name}"),
            ["shard-{000000..000000}.tar"],
            split_parts_ratio=[("train", 1)],
            workers=1,
        )
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    EPath("msc://programs/crude/.nv-meta/dataset.yaml").write_text(crude)
    for media in ("msc://programs/texts", "filesystem+msc://programs/plain"):
        mix = tmp_path / "mix.yaml"
        mix.write_text(MIX.format(path="msc://programs/crude", media=media))
        dataset = get_train_dataset(
            mix, worker_config=ALONE, batch_size=6, task_encoder=Cooked(), **USUAL
        )
        (batch,) = islice(get_savable_loader(dataset), 1)
        texts = [text if isinstance(text, str) else text.decode() for text in batch]
        assert sorted(texts) == [f"text {n}" for n in range(6)]
        (found,) = traverse_metadataset(mix, split_part="train")
        assert found.path == EPath("msc://programs/crude")
        assert found.aux == {"media": EPath(media.removeprefix("filesystem+"))}
