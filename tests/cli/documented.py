"""What docs/command-line.md works on."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import torch

from energize import WorkerConfig, get_loader, get_train_dataset, prepare
from tests.support.prepared import captions, classes, image_bytes
from tests.support.shards import packed


def lay_out(folder: Path) -> None:
    """The folders and files that the page names."""
    captions(folder / "captions", 80)
    _strip(folder / "captions")
    (folder / "books").mkdir()
    for shard in range(4):
        files = [
            (f"{shard}-{i:03d}.json", json.dumps({"url": "", "title": str(i)}).encode())
            for i in range(20)
        ]
        (folder / "books" / f"shard-{shard:03d}.tar").write_bytes(packed(files))
    captions(folder / "web", 80)
    classes(folder / "classes", 40)
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"n": i}) + "\n" for i in range(9))
    )
    (folder / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: web, weight: 3}\n      - {path: classes, weight: 1}\n"
        "  val: {path: web}\n"
    )
    damaged = folder / "damaged"
    captions(damaged, 40)
    files = [
        (f"{i:06d}.{part}", data)
        for i in range(10)
        for part, data in (
            ("jpg", b"no jpeg!" if i % 4 == 1 else image_bytes(i)),
            ("txt", b"text"),
        )
    ]
    (damaged / "shard-000.tar").write_bytes(packed(files))
    _prepare_again(damaged)
    config = WorkerConfig(rank=0, world_size=2)
    dataset = get_train_dataset(folder / "web", batch_size=4, worker_config=config)
    loader = get_loader(dataset)
    for _ in islice(loader, 500):
        pass
    for rank in range(2):
        torch.save(loader.state_dict(), folder / f"loader_rank{rank}.pt")


def _strip(folder: Path) -> None:
    shutil.rmtree(folder / ".nv-meta")
    for index in folder.glob("*.idx"):
        index.unlink()


def _prepare_again(folder: Path) -> None:
    fields = {"image": "jpg", "caption": "txt"}
    prepare(
        folder,
        split_ratios={"train": 3, "val": 1},
        sample_type="CaptioningSample",
        field_map=fields,
        workers=1,
        overwrite=True,
    )
