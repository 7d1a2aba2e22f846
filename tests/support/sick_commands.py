"""Everything that writes, and all commands, on a disk that fails: a program as `sick_readers`.

Answers requests, JSON lists of the name of an action and the faults, with what became of it: the
error, whether it is one of energize, what was printed, and which files were left that are neither
the old ones nor those of success.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from energize import (
    BatchDataset,
    EpochizeDataset,
    MapDataset,
    ShuffleDataset,
    WebdatasetSource,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.cli.main import app
from energize.errors import DataError, EnergizeError
from energize.preparation.jsonl import prepare_jsonl
from tests.support.prepared import image_bytes
from tests.support.sick_disk import Fault, hits, planned

SAMPLES = [{"__key__": f"{i:04d}", "txt": f"text {i}" * 9} for i in range(24)]


def make(folder: Path) -> None:
    """What actions begin with."""
    for name in ("shards", "prepared"):
        write_shards(SAMPLES, folder / name, samples_per_shard=8)
    prepare(folder / "prepared", split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    (folder / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (folder / "media").mkdir()
    for i in range(3):
        (folder / "media" / f"{i}.jpg").write_bytes(image_bytes(i))
    (folder / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: prepared\n"
    )
    mix = get_train_dataset(
        folder / "mix.yaml",
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with get_loader(mix) as loader:
        for _, _ in zip(range(3), loader, strict=False):
            pass
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))


def _bad(number: int) -> int:
    if number % 3 == 0:
        raise DataError(f"{number} is damaged")
    return number


def _quarantine(folder: Path) -> None:
    source = WebdatasetSource(folder / "prepared")
    dataset = MapDataset(ShuffleDataset(source), lambda sample: _bad(sample["__index__"]))
    file = folder / "failed.jsonl"
    with get_loader(EpochizeDataset(BatchDataset(dataset, 2, list), 8), quarantine=file) as loader:
        list(loader)


def _command(*arguments: str) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        named = [each.replace("@", f"{folder}/") for each in arguments]
        done = CliRunner().invoke(app, named)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code:
            raise EnergizeError(done.output)
        return done.output

    return run


WRITERS: dict[str, Callable[[Path], Any]] = {
    "prepare": lambda folder: prepare(
        folder / "shards",
        split_ratios={"train": 1},
        sample_type="TextSample",
        sqlite=True,
        workers=1,
    ),
    "prepare again": lambda folder: prepare(
        folder / "prepared",
        split_ratios={"train": 1, "val": 1},
        sample_type="TextSample",
        overwrite=True,
        workers=2,
    ),
    "columns": _command("prepare", "@prepared", "--column", "size=size:txt"),
    "write shards": lambda folder: write_shards(SAMPLES, folder / "new", samples_per_shard=8),
    "index lines": lambda folder: prepare_jsonl(folder / "lines.jsonl"),
    "media": _command("prepare-media", "@media", "--media-metadata-by-extension"),
    "quarantine": _quarantine,
    "plot": _command("simulate", "@mix.yaml", "--steps", "20", "--plot", "@plot.svg"),
    "remap": _command("state", "remap", "@state.json", "@mix.yaml", "--output", "@new.json"),
    "schema": _command("schema", "--output", "@schema.json"),
}
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "info": _command("info", "@prepared"),
    "info of a mix": _command("info", "@mix.yaml"),
    "lint": _command("lint", "@prepared"),
    "preview": _command("preview", "@prepared"),
    "plan": _command("plan", "@mix.yaml"),
    "simulate": _command("simulate", "@mix.yaml", "--steps", "20"),
    "report": _command("report", "@state.json"),
    "state show": _command("state", "show", "@state.json"),
    "state diff": _command("state", "diff", "@state.json", "@mix.yaml"),
    "checkpoint info": _command("checkpoint", "info", "@state.json"),
}


def files_of(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def answer(root: Path, made: Path, name: str, faults: list[Any]) -> dict[str, Any]:
    planned()
    folder = root / "work"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    old = files_of(folder)
    planned(*(Fault(**{**each, "pattern": f"{folder}/{each['pattern']}"}) for each in faults))
    told: dict[str, Any] = {"error": None}
    try:
        ((WRITERS | COMMANDS)[name])(folder)
    except Exception as error:
        told["error"], told["text"] = type(error).__name__, str(error)
        told["ours"] = isinstance(error, EnergizeError)
    told["hits"] = [hits(number) for number in range(len(faults))]
    planned()
    new = files_of(folder)
    told["changed"] = sorted(each for each in old if new.get(each) != old[each])
    told["added"] = sorted(set(new) - set(old))
    try:
        ((WRITERS | COMMANDS)[name])(folder)
    except Exception as error:
        told["again"] = f"{type(error).__name__}: {error}"
    told["at last"] = sorted(files_of(folder))
    return told


def main() -> None:
    root = Path(sys.argv[1])
    made = root / "made"
    made.mkdir()
    make(made)
    for line in sys.stdin:
        print(json.dumps(answer(root, made, *json.loads(line))), flush=True)
