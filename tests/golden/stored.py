"""Mixes of stored samples: folders, files of rows, metadatasets, stages; each a
function of the folder that `make_folders` has filled.
"""

from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import yaml
from PIL import Image

import energize as ez
from energize.preparation.index import prepare_jsonl
from tests.golden.mixes import Batch, Blend, Filter, Repeat, Shuffle, noisy
from tests.support.mds import numbered_mds

METADATASETS = Path(__file__).parents[2] / "metadatasets"
SPLITS = yaml.safe_load((Path(__file__).parent / "metadatasets.yaml").read_text())
SIZES = {"web": 60, "books": 24, "code": 18, "notes": 40, "crude": 20}
DEMO = {"captions_a": 60, "captions_b": 24, "classification": 36}


def text_of(folder: str, number: int) -> dict[str, Any]:
    quality = ("high", "low", "low", "none")[number % 4]
    facts = {
        "quality": quality,
        "score": number / 64,
        "lang": "en" if number % 5 else "de",
    }
    key, text = f"{number:04d}", f"{folder} {number}" + " word" * (number * number % 7)
    return {"__key__": key, "txt": text, "json": facts}


def _folder(
    path: Path, samples: list[Any], kind: str, fields: Any = None, **options: Any
) -> None:
    ez.write_shards(samples, path, samples_per_shard=-(-len(samples) // 4))
    ez.prepare(
        path,
        split_ratios={"train": 3, "val": 1},
        sample_type=kind,
        field_map=fields,
        sqlite=True,
        workers=1,
        **options,
    )


def _png(number: int) -> bytes:
    pixels = np.full((3 + number % 3, 4, 3), number * 9 % 256, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def make_folders(root: Path) -> None:
    """Everything that is read: the same in every place and at any time."""
    columns = {"tokens": "size:txt", "quality": "json[quality]", "score": "json[score]"}
    for name, size in SIZES.items():
        kind = "CrudeWebdataset" if name == "crude" else "TextSample"
        fields = None if name == "crude" else {"text": "txt"}
        measured = {} if name == "notes" else {"columns": columns}
        _folder(
            root / name,
            [text_of(name, i) for i in range(size)],
            kind,
            fields,
            **measured,
        )
    for name, size in DEMO.items():
        samples = [text_of(name, i) for i in range(size)]
        _folder(root / "demo-data" / name, samples, "TextSample", {"text": "txt"})
    images = [
        {"__key__": f"{i:03d}", "png": _png(i), "txt": f"image {i}"} for i in range(16)
    ]
    _folder(
        root / "images", images, "CaptioningSample", {"image": "png", "caption": "txt"}
    )
    _folder(root / "damaged", images, "TextSample", {"text": "txt"}, checksums=True)
    shard = next((root / "damaged").glob("*0.tar"))
    shard.write_bytes(shard.read_bytes().replace(b"image 2", b"imagf 2"))
    rows = [{"text": f"row {i}", "id": i, "kind": "ab"[i % 2]} for i in range(30)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "rows.jsonl").write_text(lines)
    (root / "lines.jsonl").write_text(lines)
    prepare_jsonl(root / "lines.jsonl")
    (root / "rows.json").write_text(json.dumps(rows[:7]))
    for part in (0, 1):
        table = pyarrow.Table.from_pylist(rows[part * 20 :][:20])
        pyarrow.parquet.write_table(
            table, root / f"rows-{part}.parquet", row_group_size=6
        )
    numbered_mds(root / "mds", 33)
    numbered_mds(root / "mds_b", 14, start=1000)
    shutil.copytree(METADATASETS, root / "metadatasets")


class Keys(ez.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches of keys, without decoding anything."""

    decoder = None

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        keys = [each.__key__ for each in samples]
        return {"__key__": keys, "labels": [each.__subflavors__ for each in samples]}


class Drawing(Keys):
    """Draws for every sample and every batch."""

    def encode_sample(self, sample: Any) -> Any:
        return ez.TextSample.derive_from(sample, text=str(noisy(sample.text)))

    def batch(self, samples: list[Any]) -> list[str]:
        return [each.text for each in samples]

    def encode_batch(self, batch: list[str], rng: np.random.Generator) -> list[Any]:
        return [batch, int(rng.integers(10**6))]


class Yielding(Drawing):
    """None to two of each sample."""

    def encode_sample(self, sample: Any) -> Any:
        for part in range(int(sample.__key__) % 3):
            yield ez.TextSample.derive_from(sample, text=f"{sample.__key__}.{part}")


class Tokens(ez.TaskEncoder):
    """A token for each letter; what packs and levels are made by."""

    def encode_sample(self, sample: ez.TextSample) -> dict[str, Any]:
        tokens = torch.frombuffer(bytearray(sample.text.encode()), dtype=torch.uint8)
        key = sample.__key__
        return {
            "__key__": key,
            "tokens": tokens,
            "labels": tokens + 1,
            "tiles": 1,
            "images": [key],
        }

    def batch(self, samples: list[Any]) -> list[Any]:
        return [
            [each["__key__"], each["tokens"], each.get("images")] for each in samples
        ]


class Grouping(Keys):
    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        return int(sample.__key__) % 3, None


class Packing(Keys):
    """Packs by hooks."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        ordered = sorted(samples, key=lambda each: zlib.crc32(each.__key__.encode()))
        return [ordered[at : at + 3] for at in range(0, len(ordered), 3)]

    def postencode_sample(self, sample: Any) -> Any:
        return ez.TextSample.derive_from(sample, text=str(noisy(sample.text)))

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return ez.TextSample.derive_from(
            samples[0], text="+".join(each.text for each in samples)
        )

    def batch(self, samples: list[Any]) -> list[str]:
        return [each.text for each in samples]


def cook(sample: Any, notes: Any) -> ez.TextSample:
    text = f"{sample['txt']}|{notes.get(sample['__key__'] + '.txt', sample)}"
    return ez.TextSample(**ez.basic_sample_keys(sample), text=text)


def cook_row(sample: Any) -> ez.TextSample:
    return ez.TextSample(**ez.basic_sample_keys(sample), text=sample["json"]["text"])


class Cooking(ez.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Typed samples of crude ones."""

    cookers = (ez.Cooker(cook_row, has_subflavors={"kind": "row"}), ez.Cooker(cook))

    def batch(self, samples: list[Any]) -> list[Any]:
        return [[each.__key__, each.text, each.__subflavors__] for each in samples]


class Pictures(ez.DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[Any]) -> list[Any]:
        return [[each.__key__, each.image.mean(), each.caption] for each in samples]


class Building(Keys):
    """Puts the datasets together itself."""

    def build_train_datasets(self, *, datasets: Any, batch_size: int, **_: Any) -> Any:
        parts = [(Repeat(self._load_dataset(each)), each.weight) for each in datasets]
        return Batch(Blend(parts, scheme="exact"), batch_size, self.batch)


def file_of(root: Path, split: Any, part: str = "train", **head: str) -> Path:
    """A metadataset with one split, beside the folders."""
    head = {"__module__": "energize", "__class__": "MetadatasetV2", **head}
    text = json.dumps({**head, "splits": {part: split}})
    file = root / f"mix-{zlib.crc32(text.encode())}.yaml"
    file.write_text(text)
    return file


def written(name: str, split: Any, root: Path) -> Any:
    """What a split of `metadatasets.yaml` makes."""
    make = ez.get_val_dataset if name.startswith("validated") else ez.get_train_dataset
    options = {"batch_size": 4, "task_encoder": Keys(), **OPTIONS.get(name, {})}
    head = {
        key: options.pop(key) for key in ("__module__", "__class__") if key in options
    }
    part = "val" if name.startswith("validated") else "train"
    return options.pop("make", make)(file_of(root, split, part, **head), **options)


def folder(name: str = "web", **options: Any) -> Any:
    given = {"batch_size": 4, "task_encoder": Keys(), **options}
    return lambda root: ez.get_train_dataset(root / name, **given)


def example(name: str, split: str, root: Path) -> Any:
    """A split of a file of the repository."""
    make = ez.get_train_dataset if "val" not in split else ez.get_val_dataset
    if name.startswith("stages"):
        make, split = ez.experimental.get_staged_train_dataset, "train"
    options = {"split_part": split, "batch_size": 4, "task_encoder": Keys()}
    return make(root / "metadatasets" / name, **options)


EXAMPLES = {
    **dict.fromkeys(
        ["blend.yaml", "curriculum.yaml", "energon.yaml", "nested.yaml"], "train val"
    ),
    **dict.fromkeys(
        ["composition.yaml", "demo.yaml", "scheduled.yaml", "stops.yaml"], "train"
    ),
    **dict.fromkeys(["stages.toml", "stages.yaml", "temperature.yaml"], "train"),
    "passes.yaml": "train ordered",
    "quotas.yaml": "train sized",
    "schemes.yaml": "train fine",
    "validation.yaml": "val seen",
}
"""The files of the repository with their splits."""

ENERGON = {"__module__": "megatron.energon"}
OPTIONS: dict[str, dict[str, Any]] = {
    "blended, drawing": {"task_encoder": Drawing()},
    "blended, of its own": {"task_encoder": Building()},
    "blended, energon": ENERGON,
    "blended, older": {**ENERGON, "__class__": "Metadataset"},
    "blended, per type": {
        "task_encoder": {ez.TextSample: Keys(), ez.CaptioningSample: Keys()}
    },
    "blended, first exhausted": {"batch_drop_last": True},
    "blended, unit of items": {"task_encoder": Tokens()},
    "blended, packing": {"task_encoder": Tokens()},
    "blended, level buffer": {"task_encoder": Tokens()},
    "passes, once": {"repeat": False},
    "join in a blend": {"task_encoder": Drawing()},
    "staged, not carried": {
        "make": ez.experimental.get_staged_train_dataset,
        "carry_over": False,
    },
    "cooked": {"task_encoder": Cooking()},
    "validated, limited": {"limit": 3},
    "validated, drop last": {"batch_drop_last": True, "task_encoder": Drawing()},
}
"""How splits of `metadatasets.yaml` are read otherwise than in batches of four keys."""

# fmt: off
STORED: dict[str, Callable[[Path], Any]] = {
    # Sources
    "webdataset": lambda root: ez.WebdatasetSource(root / "web"),
    "webdataset, seed": lambda root: Shuffle(ez.WebdatasetSource(root / "web", seed=4)),
    "webdataset, shards as runs": lambda root: Shuffle(ez.WebdatasetSource(root / "web"), shuffle_buffer_size=7),
    "webdataset, damaged": lambda root: Repeat(ez.WebdatasetSource(root / "damaged", checksums=True)),
    "webdataset by ranges": lambda root: ez.by_property(Shuffle(ez.WebdatasetSource(root / "web")), "score", {"..0.25": 1, "0.25..": 2}),
    "json lines": lambda root: Shuffle(ez.sources.JsonSource([root / "rows.jsonl"], name="rows")),
    "indexed lines": lambda root: Shuffle(ez.sources.JsonlSource(root / "lines.jsonl")),
    "parquet": lambda root: Shuffle(ez.sources.ParquetSource(root / "rows-*.parquet")),
    "parquet by words": lambda root: ez.by_property(ez.sources.ParquetSource(root / "rows-*.parquet", name="rows"), "kind", {"a": 3, "b": 1}),
    "mds": lambda root: Shuffle(ez.sources.MdsSource(root / "mds")),
    "joined": lambda root: Shuffle(ez.sources.JoinedSource(ez.WebdatasetSource(root / "web"), ez.WebdatasetSource(root / "notes"), nonmatch=["skip"])),
    "blend of all": lambda root: Blend((Shuffle(ez.WebdatasetSource(root / "web")), 2), (ez.sources.MdsSource(root / "mds"), 1), (ez.sources.MdsSource(root / "mds_b"), 0.3), (ez.sources.ParquetSource(root / "rows-*.parquet", name="parquet"), 1), (ez.sources.JsonSource(root / "rows.json", name="json"), 0.5)),
    "filter of lines": lambda root: Filter(Shuffle(ez.sources.JsonSource(root / "rows.jsonl")), lambda row: row["id"] % 3),
    # Folders
    "folder": folder(),
    "folder, samples": folder(batch_size=None, task_encoder=None),
    "folder, drawing": folder(task_encoder=Drawing()),
    "folder, yielding": folder(task_encoder=Yielding()),
    "folder, once": folder(repeat=False),
    "folder, loops": folder(virtual_epoch_length=5),
    "folder, in windows": folder(shuffle_buffer_size=6, max_samples_per_sequence=5),
    "folder, over epochs": folder(shuffle_over_epochs_multiplier=2),
    "folder, with replacement": folder(shuffle_over_epochs_multiplier=-1),
    "folder, not shuffled": folder(shuffle_over_epochs_multiplier=None),
    "folder, subset": folder(subset={"range": ["25%", "end"]}, subflavors={"a": 1}),
    "folder, level": folder(level="tokens", global_batch_size=16),
    "folder, level items": folder(level=ez.ItemCost(lambda sample: len(sample["tokens"])), level_buffer_size=16, task_encoder=Tokens()),
    "folder, packing": folder(packing_buffer_size=12, task_encoder=Packing()),
    "folder, grouping": folder(task_encoder=Grouping()),
    "folder, pictures": folder("images", task_encoder=Pictures(), batch_size=3),
    "folder, checksums": folder("damaged", checksums=True, task_encoder=Drawing()),
    "folder, loader of its own": folder(sample_loader=lambda parts: {"text": parts["txt"][::-1]}, part_filter=["txt"], task_encoder=Drawing()),
    "folder, validated": lambda root: ez.get_val_dataset(root / "web", batch_size=4, task_encoder=Keys()),
    "factory": lambda root: ez.energon.get_dataset_from_config(root / "web", split_part="train", training=True, worker_config=ez.WorkerConfig(0, 1)).build(),
    **{f"metadatasets/{name} {split}": partial(example, name, split) for name, splits in EXAMPLES.items() for split in splits.split()},
    **{name: partial(written, name, split) for name, split in SPLITS.items() if name[0] != "."},
}
# fmt: on


def pair(text: Any, note: Any) -> ez.TextSample:
    """What a join makes."""
    return ez.TextSample.derive_from(text, text=f"{text.text}|{note and note.text}")
