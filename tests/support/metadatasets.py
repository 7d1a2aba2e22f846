"""The files under metadatasets/ beside small folders that are called as those of the
demo."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.support.prepared import captions, classes

ROOT = Path(__file__).parents[2]


def beside_folders(folder: Path) -> Path:
    """The copied files; their folders hold 60, 30 and 30 samples to train on."""
    shutil.copytree(ROOT / "metadatasets", folder / "metadatasets")
    captions(folder / "demo-data" / "captions_a", 80)
    captions(folder / "demo-data" / "captions_b", 40, start=100)
    classes(folder / "demo-data" / "classification", 40)
    return folder / "metadatasets"


def written(file: Path, node: dict, module: str = "energize") -> Path:
    """A metadataset whose split `train` is `node`."""
    document = {
        "__module__": module,
        "__class__": "MetadatasetV2",
        "splits": {"train": node},
    }
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file
