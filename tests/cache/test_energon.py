"""Stores and the cache pool beside those of the real megatron-energon: the same answers."""

import json
import shutil

import pytest

from energize.core.stores import PrimaryFileStore
from energize.data.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from energize.preparation import prepare
from energize.preparation.jsonl import prepare_jsonl
from tests.support.energon import run_energon
from tests.support.tars import unprepared

pytestmark = pytest.mark.energon

POOL = """
import gc, json, sys, tempfile, time
from pathlib import Path

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

IMPORTS = """
from megatron.energon.cache import FileStore, FileStoreCachePool
from megatron.energon.source_info import SourceInfo
"""

OUR_IMPORTS = """
from energize.cache import FileStore, FileStoreCachePool
from energize.core.samples import SourceInfo
"""


@pytest.mark.slow
def test_a_small_pool_does_the_same_at_every_step():
    """What is fetched, what waits for room and in which order, what is freed when."""
    printed = run_energon(program=f"{IMPORTS}{POOL}\nprint('found', json.dumps(list(steps())))")
    (theirs,) = [line[6:] for line in printed.splitlines() if line.startswith("found ")]
    scope = {"__name__": "pool"}
    exec(OUR_IMPORTS + POOL, scope)
    assert json.loads(json.dumps(list(scope["steps"]()))) == json.loads(theirs)


STORES = """
import json, sys
from megatron.energon.cache import PrimaryFileStore, SystemFileStore
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath

folder, plain = sys.argv[1:3]
shards = WebdatasetFileStore(EPath(folder))
stores = {"shards": shards, "plain": SystemFileStore(plain)}
stores["primary"] = PrimaryFileStore(shards, "00100001")
for asked in sys.argv[3:]:
    name, key = asked.split(" ")
    data, source = stores[name][key]
    told = [str(source.dataset_path), source.index, source.shard_name, list(source.file_names)]
    print("found", json.dumps([data.decode(), told]))
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
    plain = tmp_path / "plain"
    shutil.copytree(folder / "parts", plain / "parts")
    (plain / "a.txt").write_text("plain")
    shards = WebdatasetFileStore(folder)
    stores = {
        "shards": shards,
        "plain": SystemFileStore(plain),
        "primary": PrimaryFileStore(shards, "00100001"),
    }
    asked = ["shards 00000001.jpg", "shards 00200003.txt", "plain a.txt", "primary .txt"]
    printed = run_energon(str(folder), str(plain), *asked, program=STORES).splitlines()
    theirs = [json.loads(line[6:]) for line in printed if line.startswith("found ")]
    ours = []
    for name, key in (each.split(" ") for each in asked):
        data, source = stores[name][key]
        told = [source.dataset_path, source.index, source.shard_name, list(source.file_names)]
        ours.append([data.decode(), told])
    assert ours == theirs


LINES = """
import json, sys
from megatron.energon.cache.file_store import JsonlFileStore
from megatron.energon.epathlib import EPath

data, source = JsonlFileStore(EPath(sys.argv[1]))["1.json"]
told = [str(source.dataset_path), source.index, source.shard_name, list(source.file_names)]
print("found", json.dumps([data.decode(), told]))
"""


def test_lines_are_the_same(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    prepare_jsonl(path)
    printed = run_energon(str(path), program=LINES).splitlines()
    (theirs,) = [json.loads(line[6:]) for line in printed if line.startswith("found ")]
    data, source = JsonlFileStore(path)["1.json"]
    told = [source.dataset_path, source.index, source.shard_name, list(source.file_names)]
    assert [data.decode().strip(), told] == [theirs[0].strip(), theirs[1]]
