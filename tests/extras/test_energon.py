"""Stores and the cache pool beside those of the real megatron-energon: the same
answers."""

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
    return [
        json.loads(line.removeprefix("found "))
        for line in lines
        if line.startswith("found ")
    ]


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
        options = [
            "--non-interactive",
            "--split-ratio",
            "1,0,0",
            "--sample-type",
            "TextSample",
        ]
        options += [
            "--field-map",
            '{"text": "txt"}',
            "--num-workers",
            "1",
            "--no-progress",
        ]
        run_energon("prepare", *options, str(folder))
    files, lines = tmp_path / "plain", tmp_path / "a.jsonl"
    shutil.copytree(folder / "parts", files / "parts")
    (files / "a.txt").write_text("plain")
    lines.write_text('{"n": 0}\n{"n": 1}\n')
    prepare_jsonl(lines)
    store = WebdatasetFileStore(folder)
    stores = {"shards": store, "primary": PrimaryFileStore(store, "00100001")}
    stores |= {"plain": SystemFileStore(files), "lines": JsonlFileStore(lines)}
    asked = [
        "shards 00000001.jpg",
        "shards 00200003.txt",
        "plain a.txt",
        "primary .txt",
    ]
    asked.append("lines 1.json")
    ours = []
    for name, key in (each.split(" ") for each in asked):
        data, source = stores[name][key]
        told = [
            source.dataset_path,
            source.index,
            source.shard_name,
            list(source.file_names),
        ]
        ours.append([data.decode().strip(), told])
    printed = run_energon(str(folder), str(files), str(lines), *asked, program=STORES)
    assert ours == found_in(printed)
