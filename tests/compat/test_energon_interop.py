"""Folders prepared by one library and read by the other, with the real megatron-energon."""

import json
import sqlite3
import tarfile

import pytest

from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.webdataset import WebdatasetSource
from energize.preparation import prepare
from tests.support.peers import run_energon
from tests.support.tars import write_tar

pytestmark = pytest.mark.energon

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

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
ONE_SHARD = "parts/d-03.tar"
TYPES = {
    "CaptioningSample": {"image": "jpg", "caption": "seg.txt"},
    "CrudeWebdataset": None,
}


def files(shard: int, count: int, folder: str) -> list[tuple[str, bytes]]:
    """Samples with members in nested folders, between members that belong to no sample."""
    found = [("README", b"no sample"), ("__meta__/x.json", b"{}")]
    for i in range(count):
        key = f"{folder}/a.b/{shard}-{i:04d}"
        found.append((f"{key}.jpg", bytes(range(256)) * (i + 1)))
        found.append((f"{key}.seg.txt", f"text {i}".encode() * 200))
    return found


@pytest.fixture(params=FORMATS)
def folder(request, tmp_path):
    """Ten shards; names too long for USTAR, and beyond ASCII, in the other two formats."""
    inside = "cats" if request.param == "ustar" else "naïve-" + "long/" * 40
    for shard in range(10):
        path = tmp_path / "ds" / "parts" / f"d-{shard:02d}.tar"
        write_tar(path, files(shard, shard + 1, inside), FORMATS[request.param])
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
                sample = samples.setdefault(f"{head}/{key}", {})
                sample[part] = tar.extractfile(member).read()
    return samples


def loaded_by_energon(folder):
    """One epoch of train and val."""
    samples = {split: {} for split in ("train", "val")}
    counts = {split: len(expected(folder, split)) for split in samples}
    for line in run_energon(folder, json.dumps(counts), program=LOAD).splitlines():
        split, key, parts = json.loads(line)
        samples[split][key] = {part: text.encode("latin-1") for part, text in parts.items()}
    return samples


def loaded_by_energize(folder, split):
    source = WebdatasetSource(folder, split_part=split)
    samples = [source[k] for k in range(len(source))]
    return {
        sample["__key__"]: {p: v for p, v in sample.items() if not p.startswith("__")}
        for sample in samples
    }


def energon_prepares(folder, sample_type, *options):
    field_map = TYPES[sample_type]
    mapped = [] if field_map is None else ["--field-map", json.dumps(field_map)]
    run_energon(
        "prepare", folder, "--non-interactive", "--split-ratio", "8,1,1",
        "--sample-type", sample_type, "--num-workers", "2", *mapped, *options,
    )  # fmt: skip


def energize_prepares(folder, sample_type, **options):
    return prepare(
        folder,
        split_ratios={"train": 8, "val": 1, "test": 1},
        sample_type=sample_type,
        field_map=TYPES[sample_type],
        **options,
    )


@pytest.mark.parametrize(
    ("folder", "sample_type"),
    [
        ("gnu", "CaptioningSample"),
        ("pax", "CrudeWebdataset"),
        pytest.param("ustar", "CrudeWebdataset", marks=pytest.mark.slow),
    ],
    indirect=["folder"],
)
def test_energon_reads_what_energize_prepared(folder, sample_type):
    energize_prepares(folder, sample_type, sqlite=sample_type == "CrudeWebdataset")
    assert loaded_by_energon(folder) == {
        split: expected(folder, split) for split in ("train", "val")
    }


@pytest.mark.parametrize(
    "folder",
    ["gnu", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ustar", "pax"))],
    indirect=True,
)
def test_energize_reads_what_energon_prepared(folder):
    energon_prepares(folder, "CaptioningSample")
    assert sum(read_info(folder).shard_counts.values()) == 55
    assert read_dataset_yaml(folder).field_map == TYPES["CaptioningSample"]
    with_database = [loaded_by_energize(folder, split) for split in ("train", "val", "test")]
    (folder / ".nv-meta/index.sqlite").unlink()
    (folder / ".nv-meta/index.uuid").unlink()
    for split, samples in zip(("train", "val", "test"), with_database, strict=True):
        assert samples == loaded_by_energize(folder, split) == expected(folder, split)


@pytest.mark.parametrize(
    ("folder", "sample_type", "shuffle"),
    [
        ("ustar", "CrudeWebdataset", True),
        pytest.param("gnu", "CaptioningSample", True, marks=pytest.mark.slow),
        ("pax", "CaptioningSample", False),
    ],
    indirect=["folder"],
)
def test_both_write_the_same_files(folder, sample_type, shuffle):
    energize_prepares(folder, sample_type, sqlite=True, shuffle_shards=shuffle)
    ours = written(folder)
    for name in ours:
        (folder / name).unlink()
    energon_prepares(folder, sample_type, *(["--shuffle-tars"] if shuffle else []))
    theirs = written(folder)
    for made in (ours, theirs):
        assert len(made.pop(".nv-meta/index.uuid")) == 36
    databases = [
        described_database(folder, made.pop(".nv-meta/index.sqlite")) for made in (ours, theirs)
    ]
    assert databases[0] == databases[1]
    assert ".nv-meta/shards.json" not in theirs
    ours.pop(".nv-meta/shards.json")
    assert ours == theirs
    assert f"{ONE_SHARD}.idx" in ours


@pytest.mark.parametrize("folder", ["gnu"], indirect=True)
def test_what_energize_wrote_of_shards_fits_when_energon_prepares_them_again(folder):
    energize_prepares(folder, "CaptioningSample", checksums=True)
    energon_prepares(folder, "CaptioningSample", "--force-overwrite")
    for split in ("train", "val", "test"):
        source = WebdatasetSource(folder, split_part=split, checksums=True)
        assert source.record is not None
        assert loaded_by_energize(folder, split) == expected(folder, split)
        assert len(list(source)) == len(expected(folder, split))


@pytest.mark.parametrize("folder", ["gnu"], indirect=True)
def test_energon_info_of_what_energize_prepared(folder):
    energize_prepares(folder, "CaptioningSample")
    shown = run_energon("info", folder)
    assert "CaptioningSample" in shown
    assert "55" in shown
    program = "import megatron.energon; print(megatron.energon.__version__)"
    assert run_energon(program=program).strip() == read_info(folder).energon_version


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".tar"
    }


def described_database(folder, content):
    """Schema and rows of a database; the order of rows is not part of the format."""
    path = folder / "read.sqlite"
    path.write_bytes(content)
    database = sqlite3.connect(path)
    schema = {
        name: " ".join(sql.replace("IF NOT EXISTS ", "").split())
        .replace("( ", "(").replace(" )", ")")
        for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL")
    }  # fmt: skip
    rows = [
        sorted(database.execute(f"SELECT * FROM {table}")) for table in ("samples", "sample_parts")
    ]
    version, page = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "page_size")
    )
    database.close()
    path.unlink()
    return schema, rows, version, page
