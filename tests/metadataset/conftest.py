"""Folders that the tests of metadatasets read, prepared once, and files beside links to
them."""

from __future__ import annotations

import shutil
from textwrap import dedent, indent

import pytest
import yaml

from energize import DefaultTaskEncoder, get_train_dataset, prepare, write_shards
from energize.preparation import prepare_columns
from energize.preparation.index import prepare_jsonl
from tests.support.joining import keys, texts
from tests.support.prepared import classes

SIZES = {"a": 60, "b": 30, "c": 9}
"""Samples to train on; one shard more is for validation."""


class Keys(DefaultTaskEncoder):
    """Batches of any samples are their keys; nothing is decoded."""

    decoder = None

    def batch(self, samples):
        return [sample.__key__ for sample in samples]


def folder_of(path, number, count):
    """Sample i has the key 1000 * number + i, `i % 5 + 1` words, and is high where 3
    divides i."""

    def sample(i):
        kind = {"quality": "low" if i % 3 else "high", "score": i / count}
        return {
            "__key__": f"{number}{i:03d}",
            "txt": f"{path.name} " * (i % 5 + 1),
            "json": kind,
        }

    write_shards(
        map(sample, range(count + count // 3)), path, samples_per_shard=count // 3
    )
    shards = sorted(each.name for each in path.glob("*.tar"))
    patterns = {"train": shards[:3], "val": shards[3:]}
    prepare(
        path, split_patterns=patterns, sample_type="TextSample", sqlite=True, workers=1
    )
    columns = {"quality": "json[quality]", "score": "json[score]", "tokens": "size:txt"}
    prepare_columns(path, columns, workers=1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    for number, (name, count) in enumerate(SIZES.items()):
        folder_of(root / name, number, count)
    classes(root / "images", 40)
    texts(root / "crude", [keys(*range(4))], sample_type="CrudeWebdataset")
    texts(root / "notes", [keys(*range(29, 6, -1)), keys(*range(7))], prefix="note ")
    (root / "lines.jsonl").write_text(
        "".join(f'{{"text": "{i}"}}\n' for i in range(10))
    )
    prepare_jsonl(root / "lines.jsonl")
    (root / "files" / "inner").mkdir(parents=True)
    (root / "files" / "inner" / "a.txt").write_text("a file")
    return root


@pytest.fixture
def mix(folders, tmp_path):
    """Writes a metadataset whose split train is a node (YAML, or a mapping) beside the
    folders."""
    for each in folders.iterdir():
        (tmp_path / each.name).symlink_to(each)
    (
        tmp_path / "files"
    ).unlink()  # what a plain folder serves lies below that of the file
    shutil.copytree(folders / "files", tmp_path / "files")

    def write(node, name="mix.yaml", module="energize", splits=""):
        text = node if isinstance(node, str) else yaml.safe_dump(node, sort_keys=False)
        body = indent(dedent(text).strip(), "    ")
        head = f"__module__: {module}\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        (tmp_path / name).write_text(f"{head}{body}\n{indent(dedent(splits), '  ')}")
        return tmp_path / name

    return write


def train(file, batch_size=None, **options):
    """The training dataset of a file, of samples, or of batches of keys."""
    if batch_size is not None:
        options = {"task_encoder": Keys(), **options}
    return get_train_dataset(file, batch_size=batch_size, **options)
