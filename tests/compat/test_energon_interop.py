"""Folders and metadatasets that one library wrote and the other reads, with the real
megatron-energon: the same samples, where its are right.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections import Counter
from contextlib import closing

import pytest
import yaml

from energize import WorkerConfig, get_train_dataset, get_val_dataset, prepare
from energize.data.nv_meta import read_splits
from energize.data.webdataset import WebdatasetSource
from energize.energon import load_dataset
from tests.support.joining import keys, texts
from tests.support.peers import run_energon
from tests.support.tars import write_tar

pytestmark = pytest.mark.energon

# Prepared folders

LOAD = """
import json, sys
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset

class Encoder(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return samples

config = WorkerConfig(rank=0, world_size=1, num_workers=0)
for split in sys.argv[2:]:
    dataset = get_val_dataset(
        sys.argv[1], split_part=split, batch_size=1, task_encoder=Encoder(), worker_config=config
    )
    for (sample,) in get_loader(dataset):
        parts = [bytes(part).decode("latin-1") for part in (sample.image, sample.caption)]
        print(json.dumps([split, sample.__key__, *parts]))
"""

CAPTIONS = {"image": "jpg", "caption": "seg.txt"}
SPLITS = ("train", "val", "test")


@pytest.fixture(params=[tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def folder(request, tmp_path):
    """Ten shards of samples in nested folders, between members that belong to no
    sample; names too long for USTAR, and beyond ASCII.
    """
    for shard in range(10):
        files = [("README", b"no sample"), ("__meta__/x.json", b"{}")]
        for i in range(shard + 1):
            key = f"naïve-{'long/' * 40}/a.b/{shard}-{i:04d}"
            files.append((f"{key}.jpg", bytes(range(256)) * (i + 1)))
            files.append((f"{key}.seg.txt", f"text {i}".encode() * 200))
        write_tar(
            tmp_path / "ds" / "parts" / f"d-{shard:02d}.tar", files, request.param
        )
    return tmp_path / "ds"


def expected(folder, split):
    """The samples of a split by `tarfile`."""
    samples = {}
    for shard in read_splits(folder).split_parts[split]:
        with tarfile.open(folder / shard) as tar:
            for member in tar:
                if member.name == "README" or member.name.startswith("__"):
                    continue
                head, _, name = member.name.rpartition("/")
                key, _, part = name.partition(".")
                content = tar.extractfile(member).read()
                samples.setdefault(f"{head}/{key}", {})[part] = content
    return samples


def energize_prepares(folder, **options):
    ratios = {"train": 8, "val": 1, "test": 1}
    options |= {"split_ratios": ratios, "field_map": CAPTIONS}
    prepare(folder, sample_type="CaptioningSample", sqlite=True, **options)


def test_energon_reads_what_energize_prepared(folder):
    energize_prepares(folder)
    found = {split: {} for split in SPLITS}
    for line in run_energon(folder, *SPLITS, program=LOAD).splitlines():
        split, key, *parts = json.loads(line)
        contents = [text.encode("latin-1") for text in parts]
        found[split][key] = dict(zip(CAPTIONS.values(), contents, strict=True))
    assert found == {split: expected(folder, split) for split in SPLITS}
    shown = run_energon("info", folder)
    assert "CaptioningSample" in shown
    assert "55" in shown


@pytest.mark.parametrize("shuffle", [False, True])
def test_both_write_the_same_files(folder, shuffle):
    """And what Energon prepared is read here."""
    energize_prepares(folder, shuffle_shards=shuffle)
    ours = written(folder)
    for name in ours:
        (folder / name).unlink()
    asked = ["--non-interactive", "--split-ratio", "8,1,1", "--num-workers", "2"]
    asked += ["--sample-type", "CaptioningSample", "--field-map", json.dumps(CAPTIONS)]
    run_energon("prepare", folder, *asked, *(["--shuffle-tars"] if shuffle else []))
    for split in SPLITS:
        read = {
            sample["__key__"]: {
                p: v for p, v in sample.items() if not p.startswith("__")
            }
            for sample in WebdatasetSource(folder, split_part=split)
        }
        assert read == expected(folder, split)
    theirs = written(folder)
    for made in (ours, theirs):
        assert len(made.pop(".nv-meta/index.uuid")) == 36
    databases = [
        described(folder, each.pop(".nv-meta/index.sqlite")) for each in (ours, theirs)
    ]
    assert databases[0] == databases[1]
    ours.pop(".nv-meta/shards.json")
    assert ours == theirs
    assert "parts/d-03.tar.idx" in ours


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".tar"
    }


def described(folder, content):
    """Schema and rows of a database; the order of rows is not part of the format."""
    (folder / "read.sqlite").write_bytes(content)
    with closing(sqlite3.connect(folder / "read.sqlite")) as database:
        lines = [line.replace("IF NOT EXISTS ", "") for line in database.iterdump()]
        pragmas = ("user_version", "page_size")
        numbers = [database.execute(f"PRAGMA {name}").fetchone() for name in pragmas]
    (folder / "read.sqlite").unlink()
    plain = (
        " ".join(line.split()).replace("( ", "(").replace(" )", ")") for line in lines
    )
    return sorted(plain), numbers


# Metadatasets

MIXES = """
import contextlib, json, sys
sys.path.insert(0, sys.argv[1])
from megatron.energon import (
    WorkerConfig, get_loader, get_val_dataset, load_dataset, prepare_metadataset,
)
from megatron.energon.epathlib import EPath

config = WorkerConfig(rank=0, world_size=1, num_workers=0)
for file, split in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(sys.stderr):
        prepare_metadataset(EPath(file))
        stored = get_val_dataset(file, split_part=split, worker_config=config, batch_size=None)
        in_order = [[sample.__key__, sample.text] for sample in get_loader(stored)]
        found = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=config
        )
    numbers = [[each.weight, each.repetitions] for each in found.datasets]
    print(json.dumps([in_order, found.blend_mode.value, numbers]))
"""

JOINER = """
from dataclasses import dataclass
from megatron.energon import Sample

@dataclass
class Both(Sample):
    text: str

def both(first, second):
    return Both.derive_from(first, text=f"{first.text} + {second.text}")
"""


def own_both(first, second):
    """The joiner of the peer's program, here."""
    return type(first).derive_from(first, text=f"{first.text} + {second.text}")


def subset(start, end):
    return {"subset": {"range": [start, end]}}


def blended(*entries, kind="blend"):
    return {kind: list(entries)}


A, B, C = ({"path": name} for name in "abc")
TWICE = {"path": "a", "repetitions": 2}
JOIN = {"joiner": {"__module__": "joiners_of_energon", "__function__": "both"}}
JOIN["join"] = [A, C | {"nonmatch": "skip"}]
PARTS = {
    "absolute": A | subset(2, 5),
    "percent": A | subset("29%", "71%"),
    "excluded": B | subset("33.3%", "66.6%"),
    "blend": subset("25%", "75%") | blended(A, B | subset("0%", "80%")),
    "nested": subset("10%", "55%")
    | blended({"path": "blend.yaml"}, {"path": "absolute.yaml"}),
    "join": JOIN,
    "some": JOIN | subset("20%", "60%"),
}
"""Parts of mixes have numbers of their own here."""
WHOLES = {
    "inner": blended(
        TWICE | {"repetitions": 3}, B | {"repetitions": 2}, kind="blend_epochized"
    ),
    "outer": blended(
        {"path": "inner.yaml", "repetitions": 2}, C, kind="blend_epochized"
    ),
    "old": {"datasets": [B | {"weight": 4}, C | {"subflavor": "x"}]},
    "weights": blended(A | {"weight": 3}, {"path": "old.yaml", "weight": 1}),
}


def test_the_same_samples_and_numbers_of_mixes(tmp_path):
    """Of three folders, one with excluded samples; the third has what the first has,
    elsewhere."""
    first = [keys(*range(10)), keys(*range(10, 17)), keys(*range(20, 25))]
    texts(tmp_path / "a", first, splits={"train": [0, 1], "val": [2]}, prefix="a ")
    second = [keys(*range(100, 111)), keys(*range(120, 128))]
    exclude = ["s0.tar/0103", "s0.tar/0104", "s1.tar/0121"]
    texts(
        tmp_path / "b",
        second,
        splits={"train": [0], "val": [1]},
        prefix="b ",
        exclude=exclude,
    )
    third = [keys(*range(30, 2, -1)), keys(2, 1, 0)]
    texts(tmp_path / "c", third, splits={"train": [0, 1], "val": [0]}, prefix="c ")
    (tmp_path / "joiners_of_energon.py").write_text(JOINER)
    asked = []
    for name, node in {**PARTS, **WHOLES}.items():
        file = tmp_path / f"{name}.yaml"
        kind = "Metadataset" if name == "old" else "MetadatasetV2"
        splits = {
            "train": node,
            "val": json.loads(json.dumps(node)),
        }  # no aliases for the peer
        document = {
            "__module__": "megatron.energon",
            "__class__": kind,
            "splits": splits,
        }
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        asked += [(file, split) for split in (["train"] if "join" in node else splits)]
    given = json.dumps([[str(file), split] for file, split in asked])
    answers = map(json.loads, run_energon(tmp_path, given, program=MIXES).splitlines())
    for (file, split), (in_order, mode, numbers) in zip(asked, answers, strict=True):
        text = file.read_text().replace("joiners_of_energon", __name__)
        file.write_text(text.replace("__function__: both", "__function__: own_both"))
        stored = get_val_dataset(file, split_part=split, batch_size=None)
        assert [[e.__key__, e.text] for e in stored] == in_order, (file.name, split)
        if file.stem in PARTS:
            continue
        ours = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=WorkerConfig()
        )
        assert ours.blend_mode.value == mode
        for own, (weight, repetitions) in zip(ours.datasets, numbers, strict=True):
            assert own.weight == (None if weight is None else pytest.approx(weight))
            assert own.repetitions == repetitions
        if mode == "sample_repetitions":
            often = Counter()
            for each in ours.datasets:
                found = [sample.__key__ for sample in each.dataset.build()]
                often.update(dict.fromkeys(found, each.repetitions))
            epoch = get_train_dataset(
                file, split_part=split, batch_size=None, repeat=False
            )
            assert Counter(sample.__key__ for sample in epoch) == often
