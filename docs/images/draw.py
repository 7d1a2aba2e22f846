"""Draws the pictures of docs/debugging.md beside this file: python docs/images/draw.py

The folders of the first two mixes have no samples, only `.nv-meta`, which is all that a
simulation reads; the folders of the third mix are small and real.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tarfile
import tempfile
from itertools import islice
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from energize import WorkerConfig, get_loader, get_train_dataset, prepare
from energize.cli.main import app

COUNTS = {"web": 1_210_000, "books": 45_200, "charts": 67_100, "maths": 310_000}

STAGED = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    stages:
      - name: general
        start_step: 0
        end_step: 60000
        blend:
          - {path: web, weight: {points: {0: 6, 600000: 3}, interpolation: linear}}
          - {path: books, weight: 2}
          - {path: charts, weight: {points: {0: 1, 600000: 3}, interpolation: linear}}
      - name: reasoning
        start_step: 60000
        end_step: 90000
        blend:
          - {path: web, weight: 2}
          - {path: books, weight: 1}
          - {path: maths, weight: 5}
      - name: cooldown
        start_step: 90000
        end_step: 100000
        blend:
          - {path: books, weight: 1}
          - {path: charts, weight: 1}
          - {path: maths, weight: 1}
  val:
    blend:
      - {path: books, split_part: train, weight: 1}
      - {path: charts, split_part: train, weight: 1}
"""
CHANGED = """\
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend: [{path: web, weight: 3}, {path: books, weight: 1}]
"""
PACKED = """\
    packing:
      length: tokens
      capacity: 50
      method: balanced
      buffer_size: 100
      fields: [tokens]
"""
ENCODER = """\
from energize import DefaultTaskEncoder


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return {"__key__": sample.__key__, "tokens": list(sample.text.encode())}
"""


def main(folder: Path) -> None:
    """Draw all pictures into `folder`."""
    folder = folder.absolute()
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        lay_out(Path())
        energize(
            "simulate", "stages.yaml", "--batch-size", 10, into=folder / "stages.png"
        )
        energize(
            "report", "small/state.json", "small/mix.yaml", into=folder / "changed.png"
        )


def lay_out(data: Path) -> None:
    """The mixes and the state that the page names."""
    for name, count in COUNTS.items():
        described(data / name, count)
    parts = [
        f"      - {{path: part-{i:02d}, weight: {100 / (i + 1):.3f}}}"
        for i in range(40)
    ]
    for i in range(40):
        described(data / f"part-{i:02d}", 20_000 + 3_000 * i)
    head = CHANGED.partition("    blend:")[0]
    (data / "stages.yaml").write_text(STAGED)
    (data / "many.yaml").write_text(f"{head}    blend:\n" + "\n".join(parts) + "\n")
    trained(data / "small")


def described(folder: Path, count: int) -> None:
    """What simulations read of a prepared folder."""
    meta = folder / ".nv-meta"
    meta.mkdir(parents=True)
    shards = {f"shard-{i}.tar": count // 10 for i in range(10)}
    (meta / ".info.json").write_text(json.dumps({"shard_counts": shards}))
    (meta / "split.yaml").write_text(
        f"split_parts:\n  train: {json.dumps(list(shards))}\n"
    )
    (meta / "dataset.yaml").write_text(
        "sample_type: {__module__: energize, __class__: TextSample}\n"
        "field_map: {text: txt}\n"
    )


def trained(folder: Path) -> None:
    """The state of a run whose weights were changed at step 150 of 400."""
    for name, count in (("web", 400), ("books", 60)):
        (folder / name).mkdir(parents=True)
        with tarfile.open(folder / name / "shard-0.tar", "w") as shard:
            for number in range(count):
                member = tarfile.TarInfo(f"{number:05d}.txt")
                member.size = 4
                shard.addfile(member, io.BytesIO(b"text"))
        prepare(
            folder / name,
            split_ratios={"train": 1},
            sample_type="TextSample",
            field_map={"text": "txt"},
            workers=1,
        )
    (folder / "mix.yaml").write_text(CHANGED)
    (folder / "packing.yaml").write_text(CHANGED + PACKED)
    (folder / "tasks.py").write_text(ENCODER)
    config = WorkerConfig(rank=0, world_size=1)
    dataset = get_train_dataset(
        folder / "mix.yaml", batch_size=12, worker_config=config
    )
    with get_loader(dataset) as loader:
        loader.set_weights({"web": 1, "books": 2}, at_step=150)
        for _ in islice(loader, 400):
            pass
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))


def energize(*arguments: object, into: Path) -> None:
    """Run a command with `--plot`, and make its picture small."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--plot", str(into)])
    if done.exit_code:
        sys.exit(done.output)
    with Image.open(into) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(into, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
