"""Everything that is read, on a disk that fails: run as a program under `SickDisk.environment`.

    python -c "from tests.support.sick_readers import main; main()" FOLDER

Reads requests from its input, one JSON list a line: the name of a reader, the number of workers,
the faults, and after how many items they begin (-1: before the dataset is made). Answers each with
a line of JSON: what was delivered and what was raised; and once the disk is well, what the rest is.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from energize import (
    BatchDataset,
    Cooker,
    DefaultTaskEncoder,
    EpochizeDataset,
    HuggingFaceSource,
    JsonlSource,
    JsonSource,
    MdsSource,
    ParquetSource,
    Sample,
    ShuffleDataset,
    TextSample,
    WebdatasetSource,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_train_dataset,
    prepare,
    prepare_columns,
    write_shards,
)
from energize.errors import EnergizeError
from energize.extras.cache import FileStoreCachePool
from energize.preparation.jsonl import prepare_jsonl
from energize.testing import fingerprint
from tests.support.mds import numbered_mds
from tests.support.sick_disk import Fault, hits, planned

COUNT = 48


@dataclass
class Cooked(Sample):
    text: list


@cooker(need_cache=True)
def cook(sample, shards, plain, lines, cache):
    number = int(sample["__key__"])
    lazy = cache.get_lazy(plain, f"{number}.txt")
    found = [
        shards.get(f"{number:04d}.txt", sample),
        plain.get(f"{number}.txt", sample),
        lines.get(f"{number}.json", sample)["n"],
        lazy.get(sample),
    ]
    return Cooked(**basic_sample_keys(sample), text=found)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


def make(folder: Path) -> None:
    """All folders that are read."""
    samples = [{"__key__": f"{i:04d}", "txt": f"text {i}" * 20} for i in range(COUNT)]
    options = {"split_ratios": {"train": 1}, "workers": 1}
    for name in ("shards", "other"):
        write_shards(samples, folder / name, samples_per_shard=12)
        prepare(folder / name, sample_type="TextSample", sqlite=True, **options)
    prepare_columns(folder / "shards", {"size": "size:txt"}, workers=1)
    write_shards(samples, folder / "crude", samples_per_shard=12)
    prepare(folder / "crude", sample_type="CrudeWebdataset", **options)
    lines = [json.dumps({"n": i, "text": f"text {i}" * 20}) for i in range(COUNT)]
    for name in ("lines", "rows"):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    prepare_jsonl(folder / "lines.jsonl")
    (folder / "array.json").write_text(f"[{','.join(lines)}]")
    table = pa.table({"n": list(range(COUNT)), "text": [f"text {i}" * 20 for i in range(COUNT)]})
    pq.write_table(table, folder / "rows.parquet", row_group_size=8)
    numbered_mds(folder / "mds", COUNT)
    datasets.Dataset(table).save_to_disk(folder / "arrow")
    (folder / "plain").mkdir()
    for i in range(COUNT):
        (folder / "plain" / f"{i}.txt").write_text(f"file {i}")
    (folder / "joined.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n"
        "      first: {path: shards}\n      second: {path: other, nonmatch: skip}\n"
        "    joiner:\n      __module__: tests.support.sick_readers\n      __function__: both\n"
    )
    (folder / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: shards, weight: 2}\n      - {path: other, weight: 1}\n"
    )
    (folder / "stores.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: crude\n"
        "    aux:\n      shards: shards\n      plain: filesystem://plain\n"
        "      lines: lines.jsonl\n"
    )


def both(first: TextSample, second: TextSample) -> TextSample:
    return TextSample.derive_from(first, text=first.text + second.text)


def _mix(name: str, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: get_train_dataset(
        folder / name,
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        **options,
    )


def _of(make_source: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: BatchDataset(ShuffleDataset(make_source(folder)), 2, list)


@functools.cache
def _loaded(folder: Path) -> Any:
    """What a program loads itself: what that raises is the library's."""
    return datasets.load_from_disk(folder)


def _by_column(folder: Path) -> Any:
    source = WebdatasetSource(folder / "shards")
    return BatchDataset(ShuffleDataset(source), 2, list, level="size", global_batch_size=4)


READERS: dict[str, Callable[[Path], Any]] = {
    "webdataset": _of(lambda folder: WebdatasetSource(folder / "shards")),
    "lines": _of(lambda folder: JsonlSource(folder / "lines.jsonl")),
    "rows": _of(lambda folder: JsonSource(folder / "rows.jsonl")),
    "array": _of(lambda folder: JsonSource(folder / "array.json")),
    "parquet": _of(lambda folder: ParquetSource(folder / "rows.parquet", cache_bytes=1)),
    "mds": _of(lambda folder: MdsSource(folder / "mds")),
    "arrow": _of(lambda folder: HuggingFaceSource(_loaded(folder / "arrow"), name="arrow")),
    "column": _by_column,
    "joined": _mix("joined.yaml"),
    "mix": _mix("mix.yaml"),
    "stores": _mix("stores.yaml", task_encoder=Encoder()),
}


def answer(folder: Path, name: str, workers: int, faults: list[Any], after: int) -> dict[str, Any]:
    """What is delivered of the first epoch, or 20 items, with these faults."""
    planned()
    began = time.monotonic()
    wanted = [Fault(**{**each, "pattern": f"{folder}/{each['pattern']}"}) for each in faults]
    items: list[str] = []
    state: Any = None
    told: dict[str, Any] = {"error": None}
    if after < 0:
        planned(*wanted)
    try:
        loader = _loader(folder, name, workers)
        state = loader.state_dict()
        for item in loader:
            items.append(fingerprint(item))
            state = loader.state_dict()
            if len(items) == after:
                planned(*wanted)
            if len(items) == 20:
                break
        told["failed"] = loader.failures.count
        loader.close()
    except Exception as error:
        told["error"] = type(error).__name__
        told["ours"] = isinstance(error, EnergizeError)
        told["text"] = str(error)
        if "loader" in locals():
            loader.close()
    told["hits"] = [hits(number) for number in range(len(wanted))]
    told["seconds"] = time.monotonic() - began
    planned()
    told["items"] = items
    if len(items) < 20:
        loader = _loader(folder, name, workers)
        if state is not None:
            loader.load_state_dict(state)
        told["rest"] = [fingerprint(item) for item in islice(loader, 20 - len(items))]
        loader.close()
    return told


def _loader(folder: Path, name: str, workers: int) -> Any:
    dataset = READERS[name](folder)
    if name not in ("joined", "mix", "stores"):
        dataset = EpochizeDataset(dataset, 20)
    pool = FileStoreCachePool(parent_cache_dir=folder / "cache") if name == "stores" else None
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    return get_loader(dataset, worker_config=config, timeout=60, cache_pool=pool)


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    folder = Path(sys.argv[1])
    if not (folder / "mix.yaml").exists():
        make(folder)
    datasets.disable_progress_bars()
    for line in sys.stdin:
        print(json.dumps(answer(folder, *json.loads(line))), flush=True)
