"""MDS shards, quotas and batches, with the real mosaicml-streaming.

All that runs it is in this file: processes that make its datasets at the same time,
which pytest starts for different files, can get into each other's way.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import numpy as np
import pytest

from energize.compat.streaming import Stream, StreamingDataLoader, StreamingDataset
from energize.compat.streaming.base.world import World
from energize.data.mds import MdsSource
from tests.support.composing import composed, global_batches
from tests.support.mds import COMPRESS, numbered_mds, write_mds, write_rows
from tests.support.mds_samples import COLUMNS, ENCODINGS, expected, sample, shown
from tests.support.mosaicml_cases import BATCHES, COUNTS
from tests.support.peers import ROOT, peer_python, run_streaming

pytestmark = pytest.mark.streaming

COMPRESSIONS = [
    None,
    "br",
    "br:3",
    "bz2",
    "bz2:1",
    "gz",
    "gz:0",
    "snappy",
    "zstd",
    "zstd:9",
]
ROWS = {"id": "int", "score": "float", "text": "str"}
KINDS = {"json": "gz", "csv": None, "tsv": None, "xsv": "br"}

WRITE = """
import json
from streaming.base.format import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from mds_samples import COLUMNS, sample
given = json.load(sys.stdin)
for number, compression in enumerate(given["compressions"]):
    with MDSWriter(columns=COLUMNS, out=f"{sys.argv[1]}/{number}", compression=compression,
                   hashes=["md5", "sha1", "xxh64"], size_limit=20000) as shards:
        for i in range(25):
            shards.write(sample(i))
writers = {"csv": CSVWriter, "json": JSONWriter, "tsv": TSVWriter, "xsv": XSVWriter}
for kind, compression in given["kinds"].items():
    options = {"separator": "<|>"} if kind == "xsv" else {}
    with writers[kind](columns=given["columns"], out=f"{sys.argv[1]}/{kind}", size_limit=300,
                       compression=compression, hashes=["sha1", "xxh64"], **options) as shards:
        for row in given["rows"]:
            shards.write(row)
"""

READ = """
import json
from streaming.base.util import merge_index
from mds_samples import shown
for folder in json.load(sys.stdin):
    if "merge" in folder:
        merge_index(folder)
    data = StreamingDataset(local=folder, batch_size=1)
    rows = [data[i] for i in range(len(data))]
    print(json.dumps([shown(row) for row in rows] if "mds" in folder else rows))
"""


def rows(count):
    texts = ['a "quoted" cat', "Zürich 東京", "", " spaces "]
    return [{"id": i - 2, "score": i / 7, "text": texts[i % 4]} for i in range(count)]


def test_what_it_writes_is_read(tmp_path):
    given = {
        "compressions": COMPRESSIONS,
        "kinds": KINDS,
        "columns": ROWS,
        "rows": rows(40),
    }
    run_streaming(WRITE, tmp_path, given=json.dumps(given))
    for number, compression in enumerate(COMPRESSIONS):
        index = json.loads((tmp_path / str(number) / "index.json").read_text())
        assert {shard["compression"] for shard in index["shards"]} == {compression}
        for algorithm in (None, "md5", "sha1", "xxh64"):
            source = MdsSource(tmp_path / f"{number}", validate_hash=algorithm)
            assert len(source.shards) > 2
            assert [shown(found) for found in source] == [
                shown(expected(i)) for i in range(25)
            ]
    for kind in KINDS:
        source = MdsSource(tmp_path / kind, validate_hash="xxh64")
        assert len(source.shards) > 2
        assert list(source) == rows(40), kind


def test_it_reads_what_the_tests_write(tmp_path):
    folders = {}
    for kind in [None, *COMPRESS]:
        samples = [sample(i) for i in range(23)]
        written = write_mds(
            tmp_path / f"mds {kind}", samples, COLUMNS, compression=kind
        )
        folders[written] = [
            [list(each) for each in shown(expected(i))] for i in range(23)
        ]
    for kind in KINDS:
        options = {"separator": "|", "compression": "snappy"}
        folders[write_rows(tmp_path / kind, rows(23), ROWS, kind, **options)] = rows(23)
    merged = tmp_path / "merge"
    numbered_mds(merged / "a", 12, per_shard=5)
    numbered_mds(merged / "b", 7, start=12, compression="gz")
    given = json.dumps([*map(str, folders), str(merged)])
    *read, last = map(json.loads, run_streaming(READ, given=given).splitlines())
    for (folder, known), found in zip(folders.items(), read, strict=True):
        assert found == known, folder
    assert sorted(each["number"] for each in last) == list(range(19))
    assert list(MdsSource(merged)) == last


def test_every_encoding_it_knows_is_read_but_pickles(tmp_path):
    known = set(run_streaming("print(*get_mds_encodings())").split())
    assert known == {each.partition(":")[0] for each in ENCODINGS} | {
        "jpegarray",
        "pkl",
    }
    samples = [sample(i) for i in range(3)]
    called = {
        name: each.replace("jpeg_array", "jpegarray") for name, each in COLUMNS.items()
    }
    found = MdsSource(write_mds(tmp_path / "alias", samples, called))
    assert [shown(each) for each in found] == [shown(expected(i)) for i in range(3)]


# Quotas: a case has the sizes of the streams, their quotas, and the size of the epoch.

APPLY = """
import json, numpy as np
found = []
for sizes, quotas, epoch_size in json.load(sys.stdin):
    streams = [Stream(local="unread", **quota) for quota in quotas]
    Stream.apply_weights(streams, np.array(sizes), epoch_size, 9176)
    found.append([int(stream.choose) for stream in streams])
print(json.dumps(found))
"""


def test_counts_of_an_epoch():
    """They are ours, or named as improved: it cuts floats off, and gives what is
    missing to random streams.
    """
    given = [
        [
            sizes,
            [
                {each.kind: getattr(each, each.kind)} if each.kind else {}
                for each in quotas
            ],
            e,
        ]
        for sizes, quotas, e, *_ in COUNTS.values()
    ]
    theirs = json.loads(run_streaming(APPLY, given=json.dumps(given)))
    for (name, row), counts in zip(COUNTS.items(), theirs, strict=True):
        assert (counts == row[3]) == ("match" in name), name


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders 0 to 15 of 1000 samples, in shards of 100."""
    root = tmp_path_factory.mktemp("streams")
    for stream in range(16):
        numbered_mds(root / str(stream), 1000, per_shard=100)
    return root


WORK = """
import json, numpy as np
from streaming.base.batching import generate_work
from streaming.base.world import World
found = []
for method, counts, batch_size, ranks, nodes in json.load(sys.stdin):
    streams = [
        Stream(local=f"{sys.argv[1]}/{stream}", choose=count) for stream, count in enumerate(counts)
    ]
    data = StreamingDataset(
        streams=streams, batch_size=batch_size, batching_method=method, num_canonical_nodes=nodes
    )
    try:
        work = generate_work(method, data, World(nodes, ranks // nodes, 1, 0), 0, 0)
    except ValueError:
        found.append([[], []])
        continue
    # Nodes, ranks of each, workers, batches, samples; -1 where there is none.
    batches = work.transpose(3, 2, 0, 1, 4).reshape(work.shape[3], -1)
    holds = [np.bincount(each[each >= 0] // 1000, minlength=len(counts)) for each in batches]
    on_rank = (work >= 0).any(axis=4).sum(axis=(2, 3)).reshape(-1)
    found.append([on_rank.tolist(), [each.tolist() for each in holds]])
print(json.dumps(found))
"""

NODES = {"per device, few samples, match": 2}


def test_batches_are_theirs_or_named_as_improved(folders):
    cases = [[*row[:4], NODES.get(name, 1)] for name, row in BATCHES.items()]
    found = json.loads(run_streaming(WORK, folders, given=json.dumps(cases)))
    for (name, row), theirs in zip(BATCHES.items(), found, strict=True):
        method, counts, batch_size, ranks, batches, drawn, every = row
        ours = Counter(global_batches(composed(counts, method, batch_size, ranks)))
        steps, held = theirs[0], Counter(map(tuple, theirs[1]))
        if "improve" in name:
            assert (steps, held) != ([batches] * ranks, ours), name
            continue
        assert steps == [batches] * ranks, name
        assert tuple(np.sum(theirs[1], axis=0)) == drawn, name
        # In a global batch of several device batches of one stream each, their number
        # varies.
        if method != "device_per_stream":
            assert held == ours, name
            assert every is None or set(held) == {every}, name


# What programs read of datasets, streams and shards, and the state.

LOOK = """
import json
from streaming.base.dataloader import StreamingDataLoader
from streaming.base.util import clean_stale_shared_memory
import numpy as np

def shown(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value

def values(thing):
    names = [name for name in dir(thing) if not name.startswith("_")]
    found = {name: shown(getattr(thing, name)) for name in names}
    return {name: value for name, value in found.items() if not callable(value)}

for case in json.load(sys.stdin):
    clean_stale_shared_memory()
    streams = [Stream(**stream) for stream in case["streams"]]
    data = StreamingDataset(streams=streams, **case["options"])
    loader = StreamingDataLoader(data, batch_size=data.batch_size)
    batches = iter(loader)
    for _ in range(case["batches"]):
        next(batches)
    state = loader.state_dict()
    found = values(data)
    spanner = [list(map(int, data.spanner[i])) for i in range(data.size)]
    shards = [
        [len(each), each.samples, each.compression, vars(each.raw_data)]
        + [None if each.zip_data is None else vars(each.zip_data)]
        for each in found.pop("shards")
    ]
    del found["spanner"]
    streams = [values(each) for each in found.pop("streams")]
    methods = [name for name in dir(data) if name[0] != "_" and callable(getattr(data, name))]
    of_streams = [name for name in dir(Stream) if name[0] != "_"]
    epoch = [array.tolist() for array in data.resample_streams(0)]
    print(json.dumps([found, streams, shards, spanner, state, methods, of_streams, epoch]))
"""
INHERITED = {"functions", "register_datapipe_as_function", "register_function"}
ABSENT = {"cache_usage", "evict_shard", "evict_coldest_shard", "on_exception"}
STREAM_ABSENT = {
    *("apply_weights", "get_index_size", "get_shards", "prepare_shard"),
    *("safe_keep_zip", "set_up_local", "validate_weights"),
}


def looked_at(folders):
    """Datasets to look at, by the words of both."""
    paths = [{"local": str(folders / name)} for name in "01"]
    given = [
        ([{}, {}], {"shuffle_algo": "py1s", "num_canonical_nodes": None}),
        ([{"proportion": 1}, {"proportion": 2}], {"epoch_size": 1000}),
        ([{"repeat": 2, "split": ""}, {"choose": 3000}], {"predownload": 7}),
        (
            [{}, {"validate_hash": None, "keep_zip": True}],
            {"epoch_size": 640, "sampling_method": "fixed", "shuffle": False},
        ),
    ]
    return [
        {
            "streams": [dict(p, **s) for p, s in zip(paths, streams, strict=True)],
            "options": {"batch_size": 8, "shuffle": True, **options},
            "batches": number,
        }
        for number, (streams, options) in enumerate(given, 1)
    ]


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def assert_values(ours, theirs, absent):
    for name, value in theirs.items():
        if name in absent:
            with pytest.raises(AttributeError, match=f"{name}.*: shards are read"):
                getattr(ours, name)
        else:
            assert plain(getattr(ours, name)) == pytest.approx(value), name


def test_programs_read_the_same_attributes_and_states(folders):
    cases = looked_at(folders)
    printed = run_streaming(LOOK, given=json.dumps(cases)).splitlines()
    for case, line in zip(cases, printed, strict=True):
        found, streams, shards, spanner, state, methods, of_streams, epoch = json.loads(
            line
        )
        made = [Stream(**stream) for stream in case["streams"]]
        data = StreamingDataset(streams=made, **case["options"])
        loader = StreamingDataLoader(data, batch_size=8)
        batches = iter(loader)
        for _ in range(case["batches"]):
            next(batches)
        assert_values(data, found, ABSENT)
        for stream, known in zip(data.streams, streams, strict=True):
            assert_values(stream, known, STREAM_ABSENT)
        assert {name for name in methods if not hasattr(data, name)} <= (
            ABSENT | INHERITED
        )
        assert {n for n in of_streams if not hasattr(made[0], n)} <= STREAM_ABSENT
        assert [list(data.spanner[i]) for i in range(data.size)] == spanner
        files = [
            [
                None if file is None else {n: getattr(file, n) for n in known}
                for file in (shard.raw_data, shard.zip_data)
            ]
            for shard, (*_, known, _) in zip(data.shards, shards, strict=True)
        ]
        assert [
            [len(shard), shard.samples, shard.compression, *pair]
            for shard, pair in zip(data.shards, files, strict=True)
        ] == shards
        ours = loader.state_dict()
        assert {name: ours[name] for name in state} == state
        assert set(ours) - set(state) == {
            *("version", "fingerprint", "config", "details", "cursor", "check")
        }
        runs, samples = map(plain, data.resample_streams(0))
        assert sum(runs) == len(samples) == len(epoch[1])
        shard = [data.spanner[number][0] for number in samples]
        assert shard == sorted(shard)
        if all(float(stream.repeat).is_integer() for stream in data.streams):
            assert [runs, samples] == epoch


WORLDS = """
import json
from streaming.base.world import World
for row in json.load(sys.stdin):
    world = World(*row)
    print(json.dumps([vars(world), vars(world.replicate(2))]))
"""


def test_a_world_has_the_same_numbers():
    rows = [[2, 4, 3, 17], [1, 2, 1, 1], [3, 8, 2, 40], [4, 1, 5, 19]]
    printed = run_streaming(WORLDS, given=json.dumps(rows)).splitlines()
    for row, line in zip(rows, printed, strict=True):
        world = World(*row)
        for ours, theirs in zip(
            (world, world.replicate(2)), json.loads(line), strict=True
        ):
            for name, value in vars(ours).items():
                assert theirs[name] == value, (row, name)


COMPOSER = """
import json
from pathlib import Path
from tests.support.composer_trainer import Trainer, ComposerModel
from composer import Callback
import torch
from torch.utils.data import DataLoader
from energize.compat.streaming import StreamingDataset

root = Path(sys.argv[1])

class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, batch):
        self.seen.append(batch["number"].tolist())
        return self.layer(batch["number"].float()[:, None])

    def loss(self, outputs, batch):
        return outputs.sum() * 0

class DatasetSwap(Callback):
    def __init__(self, index, dataset):
        self.index, self.saved, self.dataset = index, 0, dataset
        self.begin = dataset.state_dict(0, False)

    def after_load(self, state, logger):
        if self.saved < self.index:
            self.begin["epoch"] = max(self.begin["epoch"], 0)
            self.dataset.load_state_dict(self.begin)
            state.timestamp = state.timestamp.to_next_epoch()

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.saved = state["index"]

def run(name, duration, index=0, load=None):
    dataset = StreamingDataset(local=str(root / name), batch_size=8, shuffle=True)
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(dataset, batch_size=8),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration=duration,
        callbacks=[DatasetSwap(index, dataset)],
        load_path=load and str(root / "saved" / load),
        save_folder=None if load else str(root / "saved"),
        save_interval="1ba",
        save_filename="{batch}.pt",
        save_latest_filename=None,
        save_overwrite=True,
        progress_bar=False,
        device="cpu",
    )
    trainer.fit()
    trainer.close()
    return model.seen

swapped = run("b", "1ep")
whole = run("a", "2ep")
found = [run("a", "2ep", load=f"{n}.pt") for n in (3, 5)]
found.append(run("b", "2ep", index=1, load="3.pt"))
print(json.dumps([whole, swapped, *found]))
"""


@pytest.mark.slow
def test_composer_resumes_in_and_after_an_epoch_and_with_another_dataset(tmp_path):
    numbered_mds(tmp_path / "a", 40)
    numbered_mds(tmp_path / "b", 56, start=1000)
    program = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{COMPOSER}"
    command = [peer_python("streaming"), "-c", program, tmp_path]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    whole, swapped, within, after, other = json.loads(done.stdout.splitlines()[-1])
    assert len(whole) == 10
    assert within == whole[3:]
    assert after == whole[5:]
    assert other == swapped
