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

from energize import WorkerConfig, get_train_dataset, get_val_dataset, load_dataset
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.webdataset import WebdatasetSource
from energize.metadataset import DatasetBlendMode
from energize.preparation import prepare
from tests.support.joining import keys, texts
from tests.support.peers import run_energon
from tests.support.tars import write_tar

pytestmark = pytest.mark.energon

SPLITS = ("train", "val", "test")
SHUFFLED = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}

# Prepared folders

LOAD = """
import json, sys
from megatron.energon import (
    Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, get_val_dataset,
    stateless,
)

@stateless
def cook(sample):
    return sample

class Encoder(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

    def batch(self, samples):
        return samples

def shown(value):
    return value if isinstance(value, str) else bytes(value).decode("latin-1")

path, counts = sys.argv[1], json.loads(sys.argv[2])
for split, count in counts.items():
    make = get_train_dataset if split == "train" else get_val_dataset
    shuffling = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = make(
        path, split_part=split, batch_size=1, task_encoder=Encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        **(shuffling if split == "train" else {}),
    )
    for _, (sample,) in zip(range(count), get_loader(dataset)):
        if isinstance(sample, dict):
            parts = {part: value for part, value in sample.items() if not part.startswith("__")}
            key = sample["__key__"]
        else:
            parts, key = {"jpg": sample.image, "seg.txt": sample.caption}, sample.__key__
        print(json.dumps([split, key, {part: shown(value) for part, value in parts.items()}]))
"""

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
CAPTIONS = {"image": "jpg", "caption": "seg.txt"}


@pytest.fixture(params=FORMATS)
def folder(request, tmp_path):
    """Ten shards of samples in nested folders, between members that belong to no sample; names too
    long for USTAR, and beyond ASCII, in the other two formats.
    """
    inside = "cats" if request.param == "ustar" else "naïve-" + "long/" * 40
    for shard in range(10):
        files = [("README", b"no sample"), ("__meta__/x.json", b"{}")]
        for i in range(shard + 1):
            key = f"{inside}/a.b/{shard}-{i:04d}"
            files.append((f"{key}.jpg", bytes(range(256)) * (i + 1)))
            files.append((f"{key}.seg.txt", f"text {i}".encode() * 200))
        path = tmp_path / "ds" / "parts" / f"d-{shard:02d}.tar"
        write_tar(path, files, FORMATS[request.param])
    return tmp_path / "ds"


def expected(folder, split):
    """The samples of a split by `tarfile`."""
    samples = {}
    for shard in read_splits(folder).parts[split]:
        with tarfile.open(folder / shard) as tar:
            for member in tar:
                if member.name == "README" or member.name.startswith("__"):
                    continue
                head, _, name = member.name.rpartition("/")
                key, _, part = name.partition(".")
                content = tar.extractfile(member).read()
                samples.setdefault(f"{head}/{key}", {})[part] = content
    return samples


def loaded(folder, split, **options):
    source = WebdatasetSource(folder, split_part=split, **options)
    return {
        sample["__key__"]: {p: v for p, v in sample.items() if not p.startswith("__")}
        for sample in source
    }


def loaded_by_energon(folder):
    """One epoch of train and val."""
    samples = {split: {} for split in ("train", "val")}
    counts = {split: len(expected(folder, split)) for split in samples}
    for line in run_energon(folder, json.dumps(counts), program=LOAD).splitlines():
        split, key, parts = json.loads(line)
        samples[split][key] = {part: text.encode("latin-1") for part, text in parts.items()}
    return samples


def energon_prepares(folder, *options, captions=True):
    kind = "CaptioningSample" if captions else "CrudeWebdataset"
    mapped = ["--field-map", json.dumps(CAPTIONS)] if captions else []
    asked = ["--non-interactive", "--split-ratio", "8,1,1", "--num-workers", "2"]
    run_energon("prepare", folder, *asked, "--sample-type", kind, *mapped, *options)


def energize_prepares(folder, captions=True, **options):
    kind = "CaptioningSample" if captions else "CrudeWebdataset"
    ratios = {"train": 8, "val": 1, "test": 1}
    field_map = CAPTIONS if captions else None
    prepare(folder, split_ratios=ratios, sample_type=kind, field_map=field_map, **options)


@pytest.mark.parametrize(
    ("folder", "captions"), [("gnu", True), ("pax", False)], indirect=["folder"]
)
def test_energon_reads_what_energize_prepared(folder, captions):
    energize_prepares(folder, captions, sqlite=not captions)
    known = {split: expected(folder, split) for split in ("train", "val")}
    assert loaded_by_energon(folder) == known
    if captions:
        shown = run_energon("info", folder)
        assert "CaptioningSample" in shown
        assert "55" in shown


@pytest.mark.parametrize("folder", ["gnu"], indirect=True)
def test_energize_reads_what_energon_prepared(folder):
    """With and without its database; checksums of shards fit when it prepares them again."""
    energize_prepares(folder, checksums=True)
    energon_prepares(folder, "--force-overwrite")
    assert sum(read_info(folder).shard_counts.values()) == 55
    assert read_dataset_yaml(folder).field_map == CAPTIONS
    for split in SPLITS:
        assert loaded(folder, split, checksums=True) == expected(folder, split)
    for name in ("index.sqlite", "index.uuid"):
        (folder / ".nv-meta" / name).unlink()
    for split in SPLITS:
        assert loaded(folder, split) == expected(folder, split)


@pytest.mark.parametrize(
    ("folder", "captions", "shuffle"),
    [("ustar", False, True), ("pax", True, False)],
    indirect=["folder"],
)
def test_both_write_the_same_files(folder, captions, shuffle):
    energize_prepares(folder, captions, sqlite=True, shuffle_shards=shuffle)
    ours = written(folder)
    for name in ours:
        (folder / name).unlink()
    energon_prepares(folder, *(["--shuffle-tars"] if shuffle else []), captions=captions)
    theirs = written(folder)
    for made in (ours, theirs):
        assert len(made.pop(".nv-meta/index.uuid")) == 36
    databases = [described(folder, each.pop(".nv-meta/index.sqlite")) for each in (ours, theirs)]
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
    plain = (" ".join(line.split()).replace("( ", "(").replace(" )", ")") for line in lines)
    return sorted(plain), numbers


# Metadatasets

MIXES = """
import contextlib, json, sys
from collections import Counter
sys.path.insert(0, sys.argv[1])
from megatron.energon import (
    DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, get_val_dataset, load_dataset,
    prepare_metadataset,
)
from megatron.energon.epathlib import EPath

worker_config = WorkerConfig(rank=0, world_size=1, num_workers=0)
for file, split in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(sys.stderr):
        prepare_metadataset(EPath(file))
        common = {"split_part": split, "worker_config": worker_config, "batch_size": None}
        stored = get_val_dataset(file, **common)
        found = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=worker_config
        )
        in_order = [[sample.__key__, sample.text] for sample in get_loader(stored)]
        epoch = None
        if found.blend_mode.value == "sample_repetitions":
            order = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
            train = get_train_dataset(file, repeat=False, **order, **common)
            epoch = Counter(sample.__key__ for sample in get_loader(train))
    numbers = [[each.weight, each.repetitions] for each in found.datasets]
    print(json.dumps([in_order, epoch, found.blend_mode.value, numbers]))
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


@pytest.fixture
def mixes(tmp_path):
    """Three folders, one with excluded samples; the third has what the first has, elsewhere."""
    first = [keys(*range(10)), keys(*range(10, 17)), keys(*range(20, 25))]
    texts(tmp_path / "a", first, splits={"train": [0, 1], "val": [2]}, prefix="a ")
    second = [keys(*range(100, 111)), keys(*range(120, 128))]
    exclude = ["s0.tar/0103", "s0.tar/0104", "s1.tar/0121"]
    texts(tmp_path / "b", second, splits={"train": [0], "val": [1]}, prefix="b ", exclude=exclude)
    third = [keys(*range(30, 2, -1)), keys(2, 1, 0)]
    texts(tmp_path / "c", third, splits={"train": [0, 1], "val": [0]}, prefix="c ")
    (tmp_path / "joiners_of_energon.py").write_text(JOINER)
    return tmp_path


def mix(folder, name, node, newer=True):
    kind = "MetadatasetV2" if newer else "Metadataset"
    splits = {"train": node, "val": json.loads(json.dumps(node))}  # no aliases for the peer
    document = {"__module__": "megatron.energon", "__class__": kind, "splits": splits}
    (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
    return folder / name


def by_energon(folder, asked):
    given = json.dumps([[str(file), split] for file, split in asked])
    lines = run_energon(folder, given, program=MIXES).splitlines()
    return zip(asked, map(json.loads, lines), strict=True)


def stored(file, split):
    samples = get_val_dataset(file, split_part=split, batch_size=None)
    return [[each.__key__, each.text] for each in samples]


def subset(start, end):
    return {"subset": {"range": [start, end]}}


def blended(*entries, kind="blend"):
    return {kind: list(entries)}


A, B, C = ({"path": name} for name in "abc")
TWICE = {"path": "a", "repetitions": 2}
NODES = {
    "absolute": A | subset(2, 5),
    "to the end": A | subset(3, "end"),
    "percent": A | subset("29%", "71%"),
    "excluded": B | subset("10%", "60%"),
    "fractions": B | subset("33.3%", "66.6%"),
    "blend": subset("25%", "75%") | blended(A, B | subset("0%", "80%")),
    "both kinds": subset("50%", "100%") | blended(A | subset(1, 5), B),
    "part": subset("0%", "70%") | blended(TWICE, B, kind="blend_epochized"),
    "nested": subset("10%", "55%") | blended({"path": "blend.yaml"}, {"path": "absolute.yaml"}),
    "inner": blended(TWICE | {"repetitions": 3}, B | {"repetitions": 2}, kind="blend_epochized"),
    "outer": blended({"path": "inner.yaml", "repetitions": 2}, C, kind="blend_epochized"),
    "weights": blended(A | {"weight": 3}, {"path": "old.yaml", "weight": 1}),
}
OLD = {"datasets": [B | {"weight": 4}, C | {"subflavor": "x"}]}


def test_the_same_samples_and_numbers_of_mixes(mixes):
    files = [mix(mixes, f"{name}.yaml", node) for name, node in NODES.items()]
    files.append(mix(mixes, "old.yaml", OLD, newer=False))
    asked = [(file, split) for file in files for split in ("train", "val")]
    for (file, split), (in_order, epoch, mode, numbers) in by_energon(mixes, asked):
        assert stored(file, split) == in_order, (file.name, split)
        if file.stem not in ("inner", "outer", "old", "weights"):
            continue  # a part of a mix has numbers of its own here
        ours = load_dataset(file).get_datasets(
            training=True, split_part=split, worker_config=WorkerConfig()
        )
        assert ours.blend_mode is DatasetBlendMode(mode)
        for own, (weight, repetitions) in zip(ours.datasets, numbers, strict=True):
            assert own.weight == (None if weight is None else pytest.approx(weight))
            assert own.repetitions == repetitions
        if epoch:
            options = {"split_part": split, "batch_size": None, "repeat": False}
            dataset = get_train_dataset(file, **options, **SHUFFLED)
            assert Counter(sample.__key__ for sample in dataset) == epoch


def test_the_same_rows_of_joins(mixes):
    names = {"__module__": "joiners_of_energon", "__function__": "both"}
    files = []
    for nonmatch in ("error", "skip"):
        node = {"join": [A, C | {"nonmatch": nonmatch}], "joiner": names}
        files += [
            mix(mixes, f"{nonmatch}.yaml", node),
            mix(mixes, f"some {nonmatch}.yaml", node | subset("20%", "60%")),
            mix(mixes, f"blend {nonmatch}.yaml", blended(node | {"weight": 2.0}, B)),
        ]
    for (file, _), (in_order, *_) in by_energon(mixes, [(file, "train") for file in files]):
        text = file.read_text().replace("joiners_of_energon", __name__)
        file.write_text(text.replace("__function__: both", "__function__: own_both"))
        assert stored(file, "train") == in_order, file.name
