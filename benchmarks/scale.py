"""What many shards and samples cost before, and while, they are read.

    python -m benchmarks.scale [--shards 20000 --samples 50000] [--data FOLDER]

makes a prepared folder of so many shards of so many samples, and opens it in a process
of its own. Its shards are names of one real tar of tiny samples (hard links), with an
index beside each name that is another name of one index: what is opened, looked up and
kept is that of as many shards, and what they take on the disk is not. Nor are reads of
cold disks measured: all is in the page cache. Each shard has a record of its own in
`shards.json`.

`rss` is the memory of the process, after a small folder has been read; `held` what it
has more when the large one is open. An item is a sample that is drawn at random from
all of them. A worker's own memory is what no other process has a part in. A column of
numbers is looked up before workers are started, where it has no more than 10**8 values.
Seconds are CPU time of the process; those until workers have given a batch pass on the
clock, imports and all.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from energize import Dataset, get_loader, get_train_dataset, prepare
from energize.data import nv_meta
from energize.data.columns import (
    COLUMNS_FOLDER,
    COLUMNS_NAME,
    ColumnIndex,
    StoredColumn,
    dump_columns,
    folder_version,
    values_file,
)
from energize.report.forecast import plan, simulate

__all__ = ["main", "many_shards"]

_MIB = 2**20
_MOST_VALUES = 10**8
_RANDOM = 200


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table; with `--json` write it too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=5000, help="in each shard")
    parser.add_argument(
        "--data", type=Path, help="where folders are kept; by default nowhere"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.measure is not None:
        with redirect_stdout(sys.stderr):
            found = _measured(given.measure)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = many_shards(given.data or Path(temporary), given.shards, given.samples)
        command = [sys.executable, "-m", "benchmarks.scale", "--measure", str(folder)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    print(f"{given.shards:,} shards, {given.shards * given.samples:,} samples")
    for what, value in found.items():
        print(f"  {what:48}{value:16,.4g}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))


def many_shards(root: Path, shards: int, samples: int) -> Path:
    """A prepared folder of so many shards, made when it is not there yet."""
    folder = root / f"{shards}x{samples}"
    meta = folder / nv_meta.META_FOLDER
    if (meta / "split.yaml").exists():
        return folder
    folder.mkdir(parents=True)
    names = [f"shard-{number:06d}.tar" for number in range(shards)]
    with tarfile.open(folder / names[0], "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            text = str(number).encode()
            member = tarfile.TarInfo(f"{number:08d}.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    prepare(
        folder,
        split_ratios={"train": 1},
        sample_type="TextSample",
        field_map={"text": "txt"},
    )
    record = next(iter((nv_meta.read_records(folder) or {}).values()))
    for name in names[1:]:
        os.link(folder / names[0], folder / name)
        os.link(folder / f"{names[0]}.idx", folder / f"{name}.idx")
    counts = dict.fromkeys(names, samples)
    info = nv_meta.Info(energon_version=nv_meta.FORMAT_VERSION, shard_counts=counts)
    (meta / ".info.json").write_text(nv_meta.dump_info(info))
    (meta / nv_meta.RECORDS_NAME).write_text(
        nv_meta.dump_records(dict.fromkeys(names, record))
    )
    if shards * samples <= _MOST_VALUES:
        _write_column(folder, counts)
    (meta / "split.yaml").write_text(
        nv_meta.dump_splits({"train": names}, "split.yaml")
    )
    return folder


def _write_column(folder: Path, counts: dict[str, int]) -> None:
    values = np.arange(sum(counts.values()), dtype=np.int64)
    (folder / COLUMNS_FOLDER).mkdir()
    file = values_file("tokens", values, None)
    np.save(folder / COLUMNS_FOLDER / file, values)
    column = StoredColumn(file=file, dtype="int64", measured="len:txt")
    index = ColumnIndex(
        index=folder_version(folder), shard_counts=counts, columns={"tokens": column}
    )
    (folder / COLUMNS_FOLDER / COLUMNS_NAME).write_text(dump_columns(index))


def _measured(folder: Path) -> dict[str, float]:
    opened = 0

    def note(event: str, args: Any) -> None:
        nonlocal opened
        opened += event == "open" and str(args[0]).startswith(str(folder))

    next(
        iter(
            get_loader(
                get_train_dataset(many_shards(folder.parent, 1, 4), batch_size=8)
            )
        )
    )
    sys.addaudithook(note)
    found = {"rss before, MiB": _rss()}
    began = time.process_time()
    dataset: Dataset[Any] = get_train_dataset(folder, batch_size=8)
    found["open, s"] = time.process_time() - began
    found["files opened"] = opened
    source: Any = dataset.sources[0]
    shards = len(source.shards)
    found["held, bytes a shard"] = (_rss() - found["rss before, MiB"]) * _MIB / shards
    meta = [
        each.stat().st_size for each in (folder / nv_meta.META_FOLDER).glob("*[nl]")
    ]
    found[".nv-meta, bytes a shard"] = sum(meta) / shards
    found["index on disk, bytes a sample"] = (
        8 * (source.count / shards + 1) * shards / source.count
    )
    found["pickled, bytes a shard"] = len(pickle.dumps(dataset)) / shards
    found["unpickle, s"] = _seconds(pickle.loads, pickle.dumps(dataset))
    drawn = np.random.default_rng(0).integers(0, source.count, _RANDOM)
    each = [_seconds(source.__getitem__, k) for k in drawn]
    found["random item of a new shard, ms"] = 1000 * statistics.median(each)
    each = [_seconds(source.__getitem__, k) for k in drawn]
    found["random item of a known shard, ms"] = 1000 * statistics.median(each)
    found["plan of 100 batches at 10**9, s"] = _seconds(list, plan(dataset, 10**9, 100))
    found["simulation of 10**6 batches, s"] = _seconds(simulate, dataset, 10**6)
    loader = get_loader(dataset)
    found["first batch in process, s"] = _first(loader)
    found["save a state, s"] = _seconds(loader.state_dict)
    state = loader.state_dict()
    found["a state, bytes"] = len(json.dumps(state))
    again = get_loader(dataset)
    found["load a state, and the next batch, s"] = _seconds(
        again.load_state_dict, state
    )
    found["load a state, and the next batch, s"] += _first(again)
    found["report, s"] = _seconds(loader.report)
    if source.column_names:
        found["look a column up, s"] = _seconds(source.column, "tokens")
    for method in ("fork", "spawn"):
        with get_loader(
            dataset, num_workers=2, multiprocessing_context=method
        ) as workers:
            began = time.perf_counter()
            batches = iter(workers)
            next(batches)
            found[f"first batch of 2 workers by {method}, s"] = (
                time.perf_counter() - began
            )
            list(islice(batches, 8))
            (worker, *_) = _children()
            found[f"memory of a worker by {method}, own, MiB"] = _own(worker)
    found["rss at last, MiB"] = _rss()
    return found


def _seconds(action: Callable[..., object], *arguments: Any) -> float:
    began = time.process_time()
    action(*arguments)
    return time.process_time() - began


def _first(loader: Any) -> float:
    return _seconds(lambda: next(iter(loader)))


def _rss() -> float:
    """Memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def _own(pid: int) -> float:
    """Memory of a process that no other one has a part in, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return (
        sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024
    )


def _children() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == os.getpid() and b"resource_tracker" not in (
            entry.with_name("cmdline").read_bytes()
        ):
            yield int(entry.parent.name)


if __name__ == "__main__":
    main()
