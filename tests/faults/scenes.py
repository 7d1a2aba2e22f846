"""Everything that is read and written, on a disk that can be made sick: one program for
all tests.

    python -m tests.faults.scenes FOLDER

Reads requests from its input, one JSON list a line, and answers each with a line of
JSON: ["read", name, workers, faults, after] for what is delivered and raised when
faults begin after so many items (-1: before the dataset is made), and what the rest is
once the disk is well; ["do", name, faults] for what a command or writer makes, which
files are left that are neither the old ones nor those of success, and whether it works
once the disk is well.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from typer.testing import CliRunner

import energize as ez
from energize.cli.main import app
from energize.errors import DataError, EnergizeError
from energize.extras.cache import FileStoreCachePool
from energize.preparation.index import prepare_jsonl
from energize.testing import fingerprint
from tests.faults.disk import Fault, SickDisk, hits, planned
from tests.golden.stored import SPLITS, file_of, make_folders
from tests.support.prepared import image_bytes

ROOT = Path(__file__).parents[2]
ITEMS = 20


class Program:
    """The program of this file on a sick disk, with what its scenes give on a disk that
    is well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._disk = SickDisk()
        self._log = folder / "log"
        self._well: dict[tuple[str, str], Any] = {}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.scenes", str(folder)],
                cwd=ROOT,
                env=self._disk.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def told(self, *asked: Any) -> Any:
        """The answer to what is asked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended when asked {asked}: {self.log()[-3000:]}"
        return json.loads(line)

    def well(self, kind: str, name: str) -> Any:
        """What a scene gives on a disk that is well."""
        if (kind, name) not in self._well:
            told = self.told(kind, name, *((0, [], -1) if kind == "read" else ([],)))
            assert told["error"] is None, told
            self._well[kind, name] = told
        return self._well[kind, name]

    def log(self) -> str:
        """What it has printed as errors."""
        return self._log.read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._disk.close()


# Readers


def cook(sample: Any, notes: Any, plain: Any, lines: Any, cache: Any) -> ez.TextSample:
    number = int(sample["__key__"])
    lazy = cache.get_lazy(plain, f"{number}.txt")
    found = [
        notes.get(f"{number:04d}.txt", sample),
        plain.get(f"{number}.txt", sample),
        lines.get(f"{number}.json", sample)["id"],
        lazy.get(sample),
    ]
    return ez.TextSample(**ez.basic_sample_keys(sample), text=str(found))


class Cooking(ez.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (ez.Cooker(ez.cooker(need_cache=True)(cook)),)


MIXES = {
    "mix": SPLITS["blended, nested"],
    "joined": SPLITS["join"],
    "stores": {
        "path": "crude",
        "aux": {
            "notes": "notes",
            "plain": "filesystem://plain",
            "lines": "lines.jsonl",
        },
    },
}


def _of(make_source: Callable[[Path], Any], **options: Any) -> Callable[[Path], Any]:
    def made(folder: Path) -> Any:
        batches = ez.BatchDataset(
            ez.ShuffleDataset(make_source(folder)), 2, list, **options
        )
        return ez.EpochizeDataset(batches, ITEMS)

    return made


def _mix(name: str) -> Callable[[Path], Any]:
    encoder = {"task_encoder": Cooking()} if name == "stores" else {}
    return lambda folder: ez.get_train_dataset(
        folder / f"{name}.yaml", batch_size=2, **encoder
    )


@functools.cache
def _loaded(folder: Path) -> Any:
    """What a program loads itself: what that raises is the library's."""
    return datasets.load_from_disk(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "webdataset": _of(lambda folder: ez.WebdatasetSource(folder / "web")),
    "lines": _of(lambda folder: ez.sources.JsonlSource(folder / "lines.jsonl")),
    "rows": _of(lambda folder: ez.sources.JsonSource(folder / "rows.jsonl")),
    "array": _of(lambda folder: ez.sources.JsonSource(folder / "rows.json")),
    "parquet": _of(lambda folder: ez.sources.ParquetSource(folder / "rows-*.parquet")),
    "mds": _of(lambda folder: ez.sources.MdsSource(folder / "mds")),
    "arrow": _of(
        lambda folder: ez.sources.HuggingFaceSource(
            _loaded(folder / "arrow"), name="arrow"
        )
    ),
    "column": _of(
        lambda folder: ez.WebdatasetSource(folder / "web"),
        level="tokens",
        global_batch_size=4,
    ),
    **{name: _mix(name) for name in MIXES},
}


def make_read(folder: Path) -> None:
    """All folders that are read."""
    make_folders(folder)
    rows = [{"id": i, "text": f"text {i}"} for i in range(30)]
    datasets.Dataset.from_list(rows).save_to_disk(folder / "arrow")
    (folder / "plain").mkdir()
    for i in range(30):
        (folder / "plain" / f"{i}.txt").write_text(f"file {i}")
    for name, split in MIXES.items():
        file_of(folder, split).rename(folder / f"{name}.yaml")


def read(
    folder: Path, name: str, workers: int, faults: list[dict[str, Any]], after: int
) -> dict[str, Any]:
    """What is delivered of the first items with these faults."""

    def loader_of() -> Any:
        pool = (
            FileStoreCachePool(parent_cache_dir=folder / "cache")
            if name == "stores"
            else None
        )
        config = ez.WorkerConfig(rank=0, world_size=1, num_workers=workers)
        dataset = READERS[name](folder)
        return ez.get_loader(dataset, worker_config=config, timeout=60, cache_pool=pool)

    began, wanted = time.monotonic(), _planned_in(folder, faults)
    items: list[str] = []
    told: dict[str, Any] = {"error": None}
    loader = state = None
    if after < 0:
        planned(*wanted)
    try:
        loader = loader_of()
        state = loader.state_dict()
        for item in islice(loader, ITEMS):
            items.append(fingerprint(item))
            state = loader.state_dict()
            if len(items) == after:
                planned(*wanted)
        told["failed"] = loader.failures.count
    except Exception as error:
        told |= _raised(error)
    if loader is not None:
        loader.close()
    told["hits"] = [hits(number) for number in range(len(wanted))]
    told["seconds"] = time.monotonic() - began
    planned()
    told["items"] = items
    if len(items) < ITEMS:
        with loader_of() as loader:
            if state is not None:
                loader.load_state_dict(state)
            told["rest"] = [
                fingerprint(item) for item in islice(loader, ITEMS - len(items))
            ]
    return told


# Writers and commands

SAMPLES = [{"__key__": f"{i:04d}", "txt": f"text {i}" * 9} for i in range(24)]
PREPARING: dict[str, Any] = {"sample_type": "TextSample", "workers": 1}


def make_written(folder: Path) -> None:
    """What actions begin with."""
    for name in ("shards", "prepared"):
        ez.write_shards(SAMPLES, folder / name, samples_per_shard=8)
    ez.prepare(folder / "prepared", split_ratios={"train": 1}, **PREPARING)
    (folder / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "media").mkdir()
    for i in range(3):
        (folder / "media" / f"{i}.jpg").write_bytes(image_bytes(i))
    file_of(folder, {"path": "prepared"}).rename(folder / "mix.yaml")
    with ez.get_loader(
        ez.get_train_dataset(folder / "mix.yaml", batch_size=2)
    ) as loader:
        list(islice(loader, 3))
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))


def _bad(sample: Any) -> Any:
    if sample["__index__"] % 3 == 0:
        raise DataError("it is damaged")
    return sample


def _quarantine(folder: Path) -> None:
    source = ez.ShuffleDataset(ez.WebdatasetSource(folder / "prepared"))
    batches = ez.BatchDataset(ez.MapDataset(source, _bad), 2, list)
    with ez.get_loader(
        ez.EpochizeDataset(batches, 8),
        failures=ez.FailurePolicy(quarantine=folder / "failed.jsonl"),
    ) as loader:
        list(loader)


def _command(line: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        done = CliRunner().invoke(app, line.replace("@", f"{folder}/").split())
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code:
            raise EnergizeError(done.output)
        return done.output

    return run


WRITERS: dict[str, Callable[[Path], Any]] = {
    "prepare": lambda folder: ez.prepare(
        folder / "shards", split_ratios={"train": 1}, sqlite=True, **PREPARING
    ),
    "prepare again": lambda folder: ez.prepare(
        folder / "prepared",
        split_ratios={"train": 1, "val": 1},
        overwrite=True,
        **PREPARING,
    ),
    "columns": _command("prepare @prepared --column size=size:txt"),
    "write shards": lambda folder: ez.write_shards(
        SAMPLES, folder / "new", samples_per_shard=8
    ),
    "index lines": lambda folder: prepare_jsonl(folder / "lines.jsonl"),
    "media": _command("prepare-media @media --media-metadata-by-extension"),
    "quarantine": _quarantine,
    "plot": _command("simulate @mix.yaml --steps 20 --plot @plot.svg"),
    "remap": _command("state remap @state.json @mix.yaml --output @new.json"),
    "schema": _command("schema --output @schema.json"),
}
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "info": _command("info @prepared"),
    "info of a mix": _command("info @mix.yaml"),
    "lint": _command("lint @prepared"),
    "preview": _command("preview @prepared"),
    "plan": _command("plan @mix.yaml"),
    "simulate": _command("simulate @mix.yaml --steps 20"),
    "report": _command("report @state.json"),
    "state show": _command("state show @state.json"),
    "state diff": _command("state diff @state.json @mix.yaml"),
    "checkpoint info": _command("checkpoint info @state.json"),
}


def files_of(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def do(made: Path, name: str, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """What an action makes with these faults, and once more without them."""
    folder, action = made.parent / "work", (WRITERS | COMMANDS)[name]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    old = files_of(folder)
    planned(*_planned_in(folder, faults))
    told: dict[str, Any] = {"error": None}
    try:
        action(folder)
    except Exception as error:
        told |= _raised(error)
    told["hits"] = [hits(number) for number in range(len(faults))]
    planned()
    new = files_of(folder)
    told["changed"] = sorted(each for each in old if new.get(each) != old[each])
    told["added"] = sorted(set(new) - set(old))
    try:
        action(folder)
    except Exception as error:
        told["again"] = f"{type(error).__name__}: {error}"
    told["at last"] = sorted(files_of(folder))
    return told


def _planned_in(folder: Path, faults: list[dict[str, Any]]) -> list[Fault]:
    return [
        Fault(**{**each, "pattern": f"{folder}/{each['pattern']}"}) for each in faults
    ]


def _raised(error: Exception) -> dict[str, Any]:
    ours = isinstance(error, EnergizeError)
    return {"error": type(error).__name__, "text": str(error), "ours": ours}


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    datasets.disable_progress_bars()
    scenes = {"read": (read, make_read, "read"), "do": (do, make_written, "made")}
    for line in sys.stdin:
        kind, *asked = json.loads(line)
        scene, make, name = scenes[kind]
        folder = Path(sys.argv[1]) / name
        planned()
        if not folder.exists():
            folder.mkdir()
            make(folder)
        print(json.dumps(scene(folder, *asked)), flush=True)


if __name__ == "__main__":
    main()
