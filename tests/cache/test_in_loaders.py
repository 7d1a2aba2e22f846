"""Stores and caches in hooks of a task encoder, in real loaders with real workers."""

import json
import os
import signal
import threading
from dataclasses import dataclass

import pytest

from energize import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_train_dataset,
)
from energize.core.stores import NoCachePool, active_pool
from energize.extras.cache import FileStoreCachePool
from energize.preparation import prepare
from energize.preparation.jsonl import prepare_jsonl
from tests.support.tars import write_tar

COUNT = 24


@dataclass
class Cooked(Sample):
    text: list


@cooker(need_cache=True, need_primary=True)
def cook(sample, primary, shards, plain, lines, cache):
    number = int(sample["__key__"])
    now = [
        shards.get(f"{number:03d}.txt", sample),
        plain.get(f"{number}.txt", sample),
        lines.get(f"{number}.json", sample)["n"],
    ]
    later = [
        cache.get_lazy(primary, f"{(number + 1) % COUNT:03d}.txt"),
        cache.get_lazy(primary, ".txt"),
        cache.get_lazy(shards, f"{(number + 2) % COUNT:03d}.txt"),
        cache.to_cache({"kind": type(cache).__name__}, "kind"),
    ]
    return Cooked(**basic_sample_keys(sample), text=[now, later])


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)

    def select_samples_to_pack(self, samples):
        return [[sample] for sample in samples]

    def pack_selected_samples(self, samples):
        (sample,) = samples
        now, later = sample.text
        sample.text = [*now, *(each.get(sample) for each in later), os.getpid()]
        return sample

    def batch(self, samples):
        return [[each.__key__, each.text, each.__sources__] for each in samples]


@pytest.fixture
def mix(tmp_path):
    def files(prefix):
        return [(f"{i:03d}.txt", f"{prefix} {i}".encode()) for i in range(COUNT)]

    for name in ("main", "aux"):
        members = files(name)
        for shard in range(3):
            write_tar(tmp_path / name / f"{shard}.tar", members[shard::3])
        prepare(
            tmp_path / name,
            split_ratios={"train": 1},
            sample_type="CrudeWebdataset",
            sqlite=True,
            workers=1,
        )
    (tmp_path / "plain").mkdir()
    for i in range(COUNT):
        (tmp_path / "plain" / f"{i}.txt").write_text(f"plain {i}")
    (tmp_path / "lines.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(COUNT)))
    prepare_jsonl(tmp_path / "lines.jsonl")
    path = tmp_path / "mix.yaml"
    aux = {"shards": "aux", "plain": "filesystem://plain", "lines": "lines.jsonl"}
    path.write_text(
        "__module__: energize\n__class__: MetadatasetV2\n"
        f"splits: {{train: {{path: main, aux: {json.dumps(aux)}}}}}\n"
    )
    return path


def batches(mix, pool, workers, count, **options):
    dataset = get_train_dataset(
        mix,
        batch_size=2,
        packing_buffer_size=6,
        task_encoder=Encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
    )
    loader = get_loader(dataset, cache_pool=pool, **options)
    found = []
    for _, batch in zip(range(count), loader, strict=False):
        found.append(batch)
    return loader, found


def check(found, kind):
    samples = [each for batch in found for each in batch]
    for key, text, sources in samples:
        i = int(key)
        assert text[:6] == [
            f"aux {i}",
            f"plain {i}",
            i,
            f"main {(i + 1) % COUNT}",
            f"main {i}",
            f"aux {(i + 2) % COUNT}",
        ]
        assert text[6] == {"kind": kind}
        names = [name for source in sources for name in source.file_names]
        assert names == [
            f"{key}.txt",
            f"{key}.txt",
            f"{i}.txt",
            f"{i}.json",
            f"{(i + 1) % COUNT:03d}.txt",
            f"{key}.txt",
            f"{(i + 2) % COUNT:03d}.txt",
        ]
    return {text[7] for _, text, _ in samples}


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_cookers_are_given_stores_and_the_cache(mix, tmp_path, workers, method):
    with_cache = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=2)
    loader, found = batches(mix, with_cache, workers, 30, multiprocessing_context=method)
    processes = check(found, "FileStoreCachePool")
    assert (os.getpid() in processes) == (workers == 0)
    assert len(processes) == max(1, workers)
    loader.close()
    assert list((tmp_path / "cache").iterdir()) == []
    loader, without = batches(mix, None, workers, 30)
    loader.close()
    check(without, "NoCachePool")
    keys = [[[key for key, *_ in batch] for batch in each] for each in (found, without)]
    assert keys[0] == keys[1]


def test_a_full_cache_stops_nobody(mix, tmp_path):
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=1, max_cache_count=2)
    loader, found = batches(mix, pool, 2, 30)
    check(found, "FileStoreCachePool")
    loader.close()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_killed_worker_leaves_nothing(mix, tmp_path):
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache")
    dataset = get_train_dataset(
        mix,
        batch_size=2,
        packing_buffer_size=6,
        task_encoder=Encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
    )
    loader = get_loader(dataset, cache_pool=pool)
    found, killed = [], None
    for number, batch in zip(range(40), loader, strict=False):
        found.append(batch)
        if number == 10:
            killed = batch[0][1][7]
            os.kill(killed, signal.SIGKILL)
    assert len(check(found, "FileStoreCachePool") - {killed}) == 2
    loader.close()
    pool.close()
    _ = pool.cache_dir
    pool.close()
    assert list((tmp_path / "cache").iterdir()) == []
    assert not [each for each in threading.enumerate() if each.name == "energize-cache"]


def test_outside_of_a_loader_there_is_no_cache():
    assert isinstance(active_pool(), NoCachePool)
