"""Two epochs of one library, from a local folder or an object store, in a process of
its own.

    python -m benchmarks.programs.object_storage LIBRARY CASE

prints one JSON line; with the word `write` after it, the data are written in the format
of the library instead. It needs the standard library and the one it measures.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import tarfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = [
    "ENDPOINT",
    "OPENERS",
    "WRITERS",
    "Asked",
    "Epoch",
    "Measured",
    "module_of_streaming",
    "photographs",
]

ENDPOINT = "AWS_ENDPOINT_URL"
"""The environment variable that holds the URL of the store."""

_TICKS = 100
_BATCH = 32
_SHARD = 8_000_000
"""Bytes of a shard of formats that are written here, about those of the tar files."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a library: two shuffled epochs of `samples` photographs.

    `data`: the folder, which is `key` in the store; `remote`: whether it is read from
    there; `decoded`: whether batches of pixels are asked for, or single samples as
    bytes; `full`: whether the whole epoch is shuffled, and not runs of 100 neighbours
    through a buffer; `cache`: an empty folder; `server`: the process of the store.
    """

    data: str
    key: str
    remote: bool
    decoded: bool
    full: bool
    workers: int
    samples: int
    cache: str
    server: int


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Seconds of `samples` samples from the one that came before, and CPU seconds
    within them: of the trainer and its workers, of processes that fetch for them, of
    the store.
    """

    samples: int
    bytes: int
    wall: float
    trainer: float
    fetching: float
    server: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one process measured: seconds from its start to the first item; bytes that
    all of its processes had in memory at most, added up; what an item looks like.
    """

    startup: float
    memory: int
    epochs: list[Epoch]
    item: str
    version: str


def _energize(asked: Asked, suffix: str = "") -> Iterator[Any]:
    energize: Any = import_module("energize")
    encoder = energize.DefaultTaskEncoder()
    encoder.decoder = (
        energize.SampleDecoder(image_decode="torchrgb") if asked.decoded else None
    )
    dataset = energize.get_train_dataset(
        (f"s3://{asked.key}" if asked.remote else asked.data) + suffix,
        worker_config=energize.WorkerConfig(num_workers=asked.workers),
        batch_size=_BATCH if asked.decoded else None,
        shuffle_buffer_size=None if asked.full else 1000,
        max_samples_per_sequence=None if asked.full else 100,
        task_encoder=encoder,
    )
    return ((item.image, item.caption) for item in energize.get_loader(dataset))


def _energon(asked: Asked) -> Iterator[Any]:
    """Its remote paths are those of the multi-storage client, here without its cache:
    that asks the store for the version before each read, and gave cut files where it
    was told not to.
    """
    settings = Path(asked.cache) / "msc.yaml"
    provider = {
        "type": "s3",
        "options": {"base_path": "", "endpoint_url": os.environ.get(ENDPOINT)},
    }
    settings.write_text(
        json.dumps({"profiles": {"store": {"storage_provider": provider}}})
    )
    os.environ["MSC_CONFIG"] = str(settings)
    energon: Any = import_module("megatron.energon")
    encoder = energon.DefaultTaskEncoder()
    encoder.decoder = (
        energon.SampleDecoder(image_decode="torchrgb") if asked.decoded else None
    )
    dataset = energon.get_train_dataset(
        f"msc://store/{asked.key}" if asked.remote else asked.data,
        worker_config=energon.WorkerConfig(
            rank=0, world_size=1, num_workers=asked.workers
        ),
        batch_size=_BATCH if asked.decoded else None,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    return ((item.image, item.caption) for item in energon.get_loader(dataset))


def _webdataset(asked: Asked) -> Iterator[Any]:
    """Shards through curl, as it reads URLs by default, kept in its cache."""
    webdataset: Any = import_module("webdataset")
    shards = [path.name for path in sorted(Path(asked.data).glob("*.tar"))]
    base = f"{os.environ.get(ENDPOINT)}/{asked.key}" if asked.remote else asked.data
    pipeline = webdataset.WebDataset(
        [f"{base}/{name}" for name in shards],
        shardshuffle=len(shards),
        cache_dir=asked.cache if asked.remote else None,
    ).shuffle(1000)
    if asked.decoded:
        pipeline = pipeline.decode("torchrgb")
    pipeline = pipeline.to_tuple("jpg", "txt").repeat()
    if asked.decoded:
        pipeline = pipeline.batched(_BATCH, partial=False)
    return iter(
        webdataset.WebLoader(pipeline, batch_size=None, num_workers=asked.workers)
    )


def _streaming(asked: Asked) -> Iterator[Any]:
    """MosaicML Streaming."""
    reads = module_of_streaming(
        "dataset"
    ).StreamingDataset  # imported first, as others import it
    module_of_streaming("util").clean_stale_shared_memory()
    os.environ["S3_ENDPOINT_URL"] = os.environ.get(ENDPOINT, "")
    dataset = reads(
        remote=f"s3://{asked.key}.mds" if asked.remote else None,
        local=f"{asked.cache}/mds" if asked.remote else f"{asked.data}.mds",
        shuffle=True,
        batch_size=_BATCH,
    )
    for stream in (
        dataset.streams
    ):  # workers would share the connection that read the index, and hang
        stream._downloader.clean_up()
    return _loaded(dataset, asked, import_module("torch.utils.data").DataLoader)


def module_of_streaming(module: str) -> Any:
    """A module of its base, without what its top level imports for other parts of
    it.
    """
    if "streaming" not in sys.modules:
        spec = importlib.util.find_spec("streaming")
        found = list((spec and spec.submodule_search_locations) or ())
        for name, below in (("streaming", ""), ("streaming.base", "/base")):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [folder + below for folder in found]
    return import_module(f"streaming.base.{module}")


def _litdata(asked: Asked) -> Iterator[Any]:
    litdata: Any = import_module("litdata")
    downloader = import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the store is on loopback
    options = {"endpoint_url": os.environ.get(ENDPOINT)}
    dataset = litdata.StreamingDataset(
        f"s3://{asked.key}.litdata" if asked.remote else f"{asked.data}.litdata",
        cache_dir=f"{asked.cache}/litdata" if asked.remote else None,
        storage_options=options if asked.remote else {},
        shuffle=True,
        drop_last=False,
    )
    return _loaded(dataset, asked, litdata.StreamingDataLoader)


def _loaded(dataset: Any, asked: Asked, loader: Any) -> Iterator[Any]:
    """Items or batches of a dataset of torch, epoch after epoch."""
    collate = _batched if asked.decoded else _single
    options = {"batch_size": _BATCH if asked.decoded else 1, "collate_fn": collate}
    if asked.workers:
        options["persistent_workers"] = True
    reading = loader(dataset, num_workers=asked.workers, **options)
    while True:
        yield from reading


def _single(samples: list[Any]) -> tuple[Any, Any]:
    return samples[0]["jpg"], samples[0]["txt"]


def _batched(samples: list[Any]) -> tuple[Any, Any]:
    """Pixels as the others have them: float32 of 0 to 1, channels first."""
    import numpy as np
    import PIL.Image
    import torch

    images = []
    for sample in samples:
        pixels = np.asarray(PIL.Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
        images.append(
            torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255)
        )
    return torch.stack(images), [sample["txt"] for sample in samples]


OPENERS: dict[str, Callable[[Asked], Iterator[Any]]] = {
    "energize": _energize,
    "energize, all shuffled": _energize,
    "energize, Parquet": partial(_energize, suffix=".parquet"),
    "energon": _energon,
    "streaming": _streaming,
    "litdata": _litdata,
    "webdataset": _webdataset,
}

_PACKAGES = {"energon": "megatron-energon", "streaming": "mosaicml-streaming"}


def write_mds(data: str) -> None:
    """Write a folder of tar files as MDS shards beside it."""
    writer = module_of_streaming("format").MDSWriter
    columns = {"jpg": "bytes", "txt": "str"}
    with writer(
        columns=columns, out=f"{data}.mds", size_limit=_SHARD, exist_ok=True
    ) as written:
        for jpg, txt in photographs(data):
            written.write({"jpg": jpg, "txt": txt})


def write_litdata(data: str) -> None:
    """Write a folder of tar files as chunks of litdata beside it."""
    litdata: Any = import_module("litdata")
    litdata.optimize(
        fn=_whole,
        inputs=[data],
        output_dir=f"{data}.litdata",
        chunk_bytes=_SHARD,
        num_workers=1,
        mode="overwrite",
    )


def write_parquet(data: str) -> None:
    """Write a folder of tar files as Parquet beside it, in groups of 64 rows."""
    pyarrow = import_module("pyarrow")
    parquet = import_module("pyarrow.parquet")
    rows = [{"image": jpg, "text": txt} for jpg, txt in photographs(data)]
    Path(made := f"{data}.parquet.made").mkdir(exist_ok=True)
    for first in range(0, len(rows), 512):
        table = pyarrow.Table.from_pylist(rows[first : first + 512])
        parquet.write_table(table, f"{made}/{first:08d}.parquet", row_group_size=64)
    Path(made).rename(f"{data}.parquet")


def _whole(data: str) -> Iterator[dict[str, Any]]:
    for jpg, txt in photographs(data):
        yield {"jpg": jpg, "txt": txt}


WRITERS: dict[str, Callable[[str], None]] = {
    "streaming": write_mds,
    "litdata": write_litdata,
    "energize, Parquet": write_parquet,
}


def photographs(data: str) -> Iterator[tuple[bytes, str]]:
    """Yield the photographs and captions of a folder of tar files."""
    for path in sorted(Path(data).glob("*.tar")):
        with tarfile.open(path) as shard:
            parts: dict[str, bytes] = {}
            for member in shard:
                parts[member.name.rpartition(".")[2]] = shard.extractfile(member).read()  # type: ignore[union-attr]
                if len(parts) == 2:
                    yield parts["jpg"], parts["txt"].decode()
                    parts = {}


def main(library: str, asked: Asked) -> Measured:
    """Measure."""
    launched = time.monotonic()
    items = OPENERS[library](asked)
    item = next(items)
    startup = time.monotonic() - launched
    epochs = []
    for _ in range(2):
        before = _spent(asked.server)
        began = time.perf_counter()
        count = 0
        size = 0
        while count < asked.samples:
            image, caption = next(items)
            count += len(caption) if asked.decoded else 1
            size += image.nbytes if asked.decoded else len(image)
        wall = time.perf_counter() - began
        after = _spent(asked.server)
        spent = {role: after[role] - before[role] for role in after if role != "memory"}
        epochs.append(Epoch(samples=count, bytes=size, wall=wall, **spent))
    image = item[0]
    look = (
        "bytes" if isinstance(image, bytes) else f"{image.dtype} {tuple(image.shape)}"
    )
    package = library.partition(",")[0]
    return Measured(
        startup=startup,
        memory=int(_spent(asked.server)["memory"]),
        epochs=epochs,
        item=look,
        version=version(_PACKAGES.get(package, package)),
    )


def _spent(server: int) -> dict[str, float]:
    """CPU seconds by what processes do, those of children that have ended with them;
    bytes of memory at most.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    spent = {"trainer": 0.0, "fetching": 0.0, "memory": 0.0}
    for pid in family:
        try:
            fetches = (
                b"energize.data.sidecar" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        spent["fetching" if fetches else "trainer"] += ticks[pid] / _TICKS
        if "VmHWM:" in status:
            spent["memory"] += int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return spent | {"server": ticks.get(server, 0) / _TICKS}


if __name__ == "__main__":
    name, case, *wanted = sys.argv[1:]
    if wanted:
        WRITERS[name](json.loads(case)["data"])
    else:
        print(json.dumps(asdict(main(name, Asked(**json.loads(case))))), flush=True)
        os._exit(0)  # without waiting for what still downloads
