"""Stores and the cache pool beside those of the real megatron-energon: the same answers."""

from __future__ import annotations

import json
import shutil

import pytest

from energize.core.stores import PrimaryFileStore
from energize.data.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from energize.preparation import prepare
from energize.preparation.index import prepare_jsonl
from tests.support.peers import run_energon
from tests.support.tars import unprepared

pytestmark = pytest.mark.energon


def found_in(printed: str) -> list:
    lines = printed.splitlines()
    return [json.loads(line.removeprefix("found ")) for line in lines if line.startswith("found ")]


POOL = """
import gc, json, tempfile, time
from pathlib import Path
from PACKAGE.cache import FileStore, FileStoreCachePool
from PACKAGE.source_info import SourceInfo

class Store(FileStore):
    def __init__(self, contents):
        self.contents = contents

    def __getitem__(self, key):
        source = SourceInfo(dataset_path="m", index=key, shard_name="m", file_names=(key,))
        return self.contents[key], source

    def get_path(self):
        return "m"

def steps():
    pool = FileStoreCachePool(
        parent_cache_dir=Path(tempfile.mkdtemp()), max_cache_size_gbytes=0.0001,
        max_cache_count=2, num_workers=1,
    )
    pool.max_cache_size = 75_000
    sizes = {"a": 50_000, "b": 50_000, "c": 50_000, "d": 25_000, "e": 25_000, "f": 25_000}
    store = Store({name: name.encode() * size for name, size in sizes.items()})
    names = ["a", "b", "c", "d", "b2", "b3", "c2", "e", "f", "f2"]
    lazies = {name: pool.get_lazy(store, name[0]) for name in names}

    def status(step):
        time.sleep(0.7)
        each = {
            name: [lazy.entry.refcount, lazy.entry.send_to_cache_future.done()]
            for name, lazy in lazies.items()
            if lazy._data is None
        }
        return [step, each, pool.current_cache_count, pool.current_cache_size]

    yield status("all asked for")
    for name in ["b3", "a", "c", "c2", "d", "e", "f", "b", "b2"]:
        assert lazies[name].get() == store.contents[name[0]]
        yield status(name)
    del lazies["f2"]
    gc.collect()
    yield status("dropped")
    assert not list(pool.cache_dir.glob("*"))
    pool.close()
"""


@pytest.mark.slow
def test_a_small_pool_does_the_same_at_every_step():
    """What is fetched, what waits for room and in which order, what is freed when."""
    program = POOL.replace("PACKAGE", "megatron.energon")
    printed = run_energon(program=f"{program}\nprint('found', json.dumps(list(steps())))")
    scope = {"__name__": "pool"}
    exec(POOL.replace("PACKAGE", "energize"), scope)
    assert found_in(printed) == [json.loads(json.dumps(list(scope["steps"]())))]


STORES = """
import json, sys
from megatron.energon.cache import PrimaryFileStore, SystemFileStore
from megatron.energon.cache.file_store import JsonlFileStore, WebdatasetFileStore
from megatron.energon.epathlib import EPath

folder, plain, lines = sys.argv[1:4]
shards = WebdatasetFileStore(EPath(folder))
stores = {"shards": shards, "plain": SystemFileStore(plain), "lines": JsonlFileStore(EPath(lines))}
stores["primary"] = PrimaryFileStore(shards, "00100001")
for asked in sys.argv[4:]:
    name, key = asked.split(" ")
    data, source = stores[name][key]
    told = [str(source.dataset_path), source.index, source.shard_name, list(source.file_names)]
    print("found", json.dumps([data.decode().strip(), told]))
"""


@pytest.mark.parametrize("prepared_by", ["energize", "energon"])
def test_stores_give_the_same_files_and_sources(tmp_path, prepared_by):
    folder = unprepared(tmp_path / "ds")
    if prepared_by == "energize":
        prepare(folder, split_ratios={"train": 1}, sqlite=True, workers=1)
    else:
        options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample"]
        options += ["--field-map", '{"text": "txt"}', "--num-workers", "1", "--no-progress"]
        run_energon("prepare", *options, str(folder))
    files, lines = tmp_path / "plain", tmp_path / "a.jsonl"
    shutil.copytree(folder / "parts", files / "parts")
    (files / "a.txt").write_text("plain")
    lines.write_text('{"n": 0}\n{"n": 1}\n')
    prepare_jsonl(lines)
    store = WebdatasetFileStore(folder)
    stores = {"shards": store, "primary": PrimaryFileStore(store, "00100001")}
    stores |= {"plain": SystemFileStore(files), "lines": JsonlFileStore(lines)}
    asked = ["shards 00000001.jpg", "shards 00200003.txt", "plain a.txt", "primary .txt"]
    asked.append("lines 1.json")
    ours = []
    for name, key in (each.split(" ") for each in asked):
        data, source = stores[name][key]
        told = [source.dataset_path, source.index, source.shard_name, list(source.file_names)]
        ours.append([data.decode().strip(), told])
    printed = run_energon(str(folder), str(files), str(lines), *asked, program=STORES)
    assert ours == found_in(printed)
