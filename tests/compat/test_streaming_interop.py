"""MDS shards, quotas and batches, with the real mosaicml-streaming.

All that runs it is in this file: processes that make its datasets at the same time, which pytest
starts for different files, can get into each other's way.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from energize.data.mds import MdsSource
from energize.errors import ConfigError, DatasetError
from energize.order.quota import EpochDraws, Quota, epoch_counts
from tests.support.composing import composed, global_batches
from tests.support.mds import COMPRESS, numbered_mds, write_mds, write_rows
from tests.support.mds_samples import COLUMNS, ENCODINGS, expected, sample, shown
from tests.support.mosaicml_cases import BATCHES, COUNTS, NONE, chosen, proportions, repeats
from tests.support.peers import run_streaming

pytestmark = pytest.mark.streaming

ALIASES = {"jpegarray"}
"""Other names of encodings of the package."""

COMPRESSIONS = [None, "br", "br:3", "bz2", "bz2:1", "gz", "gz:0", "snappy", "zstd", "zstd:9"]

WRITE_ROWS = """
import json
from streaming.base.format import CSVWriter, JSONWriter, TSVWriter, XSVWriter
kind, compression, out = sys.argv[1:]
writer = {"csv": CSVWriter, "json": JSONWriter, "tsv": TSVWriter, "xsv": XSVWriter}[kind]
columns = {"id": "int", "score": "float", "text": "str"}
options = {"separator": "<|>"} if kind == "xsv" else {}
with writer(columns=columns, out=out, compression=compression or None, hashes=["sha1", "xxh64"],
            size_limit=300, **options) as shards:
    for sample in json.load(sys.stdin):
        shards.write(sample)
"""

READ = """
import json
data = StreamingDataset(local=sys.argv[1], batch_size=1)
print(json.dumps([data[i] for i in range(len(data))]))
"""


def test_what_it_writes_is_read(tmp_path):
    run_streaming(
        "from mds_samples import COLUMNS, sample\n"
        f"for number, compression in enumerate({COMPRESSIONS!r}):\n"
        "    with MDSWriter(columns=COLUMNS, out=f'{sys.argv[1]}/{number}',"
        " compression=compression, hashes=['md5', 'sha1', 'xxh64'], size_limit=20000) as writer:\n"
        "        for i in range(25):\n"
        "            writer.write(sample(i))\n",
        tmp_path,
    )
    for number, compression in enumerate(COMPRESSIONS):
        index = json.loads((tmp_path / str(number) / "index.json").read_text())
        assert {shard["compression"] for shard in index["shards"]} == {compression}
        for algorithm in (None, "md5", "sha1", "xxh64"):
            source = MdsSource(tmp_path / f"{number}", validate_hash=algorithm)
            assert len(source.shards) > 2
            assert [shown(found) for found in source] == [shown(expected(i)) for i in range(25)]


SLOW = pytest.mark.slow  # each starts their package
MORE = [("json", None), ("csv", None), ("tsv", None), ("xsv", "br")]
KINDS = ["json", "csv", "tsv"]


def rows(count):
    texts = ['a "quoted" cat', "Zürich 東京", "", " spaces "]
    return [{"id": i - 2, "score": i / 7, "text": texts[i % 4]} for i in range(count)]


@pytest.mark.parametrize(
    ("kind", "compression"),
    [
        ("xsv", None),
        ("json", "gz"),
        *(pytest.param(*each, marks=SLOW) for each in MORE),
    ],
)
def test_rows_that_it_writes_are_read(tmp_path, kind, compression):
    out = tmp_path / "written"
    run_streaming(WRITE_ROWS, kind, compression or "", out, given=json.dumps(rows(40)))
    source = MdsSource(out, validate_hash="xxh64")
    assert len(source.shards) > 2
    assert list(source) == rows(40)
    # Its reader leaves the unpacked files beside the compressed ones.
    assert json.loads(run_streaming(READ, out)) == rows(40)
    names = {each.name for each in out.iterdir()}
    assert {f"shard.00000.{kind}", f"shard.00000.{kind}.meta"} <= names
    assert list(MdsSource(out, validate_hash="sha1")) == rows(40)


@pytest.mark.parametrize("kind", ["xsv", *(pytest.param(each, marks=SLOW) for each in KINDS)])
def test_it_reads_the_rows_that_the_tests_write(tmp_path, kind):
    columns = {"id": "int", "score": "float", "text": "str"}
    folder = write_rows(
        tmp_path / "data", rows(23), columns, kind, separator="|", compression="snappy"
    )
    assert json.loads(run_streaming(READ, folder)) == rows(23)


def test_its_merged_index_is_read(tmp_path):
    root = tmp_path / "data"
    numbered_mds(root / "a", 12, per_shard=5)
    numbered_mds(root / "b", 7, start=12, compression="gz")
    run_streaming("from streaming.base.util import merge_index\nmerge_index(sys.argv[1])", root)
    by_folder = [each["number"] for each in MdsSource(root)]
    assert sorted(by_folder) == list(range(19))
    theirs = json.loads(run_streaming(READ, root))
    assert [each["number"] for each in theirs] == by_folder
    assert [each["number"] for each in MdsSource(root)] == by_folder


def test_it_reads_what_the_tests_write(tmp_path):
    samples = [sample(i) for i in range(23)]
    kinds = [None, *COMPRESS]
    for kind in kinds:
        write_mds(tmp_path / str(kind), samples, COLUMNS, compression=kind)
    read = run_streaming(
        "from mds_samples import shown\n"
        "for folder in sys.argv[1:]:\n"
        "    data = StreamingDataset(local=folder, batch_size=1)\n"
        "    print([shown(data[i]) for i in range(23)])",
        *(tmp_path / str(kind) for kind in kinds),
    )
    assert read.splitlines() == [str([shown(expected(i)) for i in range(23)])] * len(kinds)


def test_every_encoding_it_knows_is_read_but_pickles(tmp_path):
    known = set(run_streaming("print(*get_mds_encodings())").split())
    assert known == {each.partition(":")[0] for each in ENCODINGS} | ALIASES | {"pkl"}
    samples = [sample(i) for i in range(3)]
    folder = write_mds(tmp_path / "data", samples, COLUMNS)
    index = (folder / "index.json").read_text()
    called = {name: each.replace("jpeg_array", "jpegarray") for name, each in COLUMNS.items()}
    for written in (folder, write_mds(tmp_path / "alias", samples, called)):
        read = [shown(found) for found in MdsSource(written)]
        assert read == [shown(expected(i)) for i in range(3)]
    (folder / "index.json").write_text(index.replace('"jpeg_array"', '"pkl"'))
    with pytest.raises(DatasetError, match=r"column 'column_\d+' holds pickles"):
        MdsSource(folder)


Case = tuple[Sequence[int], Sequence[Quota], int | None]
"""Sizes of the streams, their quotas, and the size of the epoch."""

APPLY = """
import json, numpy as np
found = []
for sizes, quotas, epoch_size in json.load(sys.stdin):
    streams = [Stream(local="unread", **quota) for quota in quotas]
    try:
        Stream.apply_weights(streams, np.array(sizes), epoch_size, 9176)
        found.append([int(stream.choose) for stream in streams])
    except ValueError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def their_counts(cases: Sequence[Case]) -> list[list[int] | str]:
    """The samples that it takes of each stream, or its error."""
    given = [
        [sizes, [{each.kind: getattr(each, each.kind)} if each.kind else {} for each in quotas], e]
        for sizes, quotas, e in cases
    ]
    return json.loads(run_streaming(APPLY, given=json.dumps(given)))


def exact_counts(sizes: Sequence[int], quotas: Sequence[Quota], epoch_size: int | None) -> list:
    """The samples that are asked of each stream, as fractions."""
    relative = [Fraction(repr(each.proportion)) for each in quotas if each.kind == "proportion"]
    if relative or epoch_size:
        weights = relative or [Fraction(size) for size in sizes]
        return [(epoch_size or sum(sizes)) * weight / sum(weights) for weight in weights]
    return [
        Fraction(each.choose)
        if each.choose is not None
        else size * Fraction(repr(1.0 if each.repeat is None else each.repeat))
        for size, each in zip(sizes, quotas, strict=True)
    ]


def test_counts_are_theirs_or_named_as_improved():
    rows = [row[:3] for row in COUNTS.values()]
    for name, ours, theirs in zip(COUNTS, COUNTS.values(), their_counts(rows), strict=True):
        assert (theirs == ours[3]) == ("match" in name), name


def whole_cases(rng: random.Random) -> list[Case]:
    """Quotas that are whole numbers, in numbers that floats hold exactly."""
    cases: list[Case] = []
    for _ in range(20):
        weights = [rng.randrange(9) for _ in range(rng.randrange(1, 6))] + [1]
        weights.append(64 - sum(weights))
        sizes = [rng.randrange(1, 50) * 4 for _ in weights]
        scale = rng.choice([1, 0.25, 8])
        epoch_size = 64 * rng.randrange(1, 30)
        cases.append((sizes, proportions(*(weight * scale for weight in weights)), epoch_size))
        absolute = [repeats(rng.randrange(1, 20) / 4), chosen(rng.randrange(300)), [NONE]]
        cases.append((sizes, [rng.choice(absolute)[0] for _ in sizes], None))
    return cases


def test_whole_quotas_are_the_same():
    cases = whole_cases(random.Random(3))
    assert their_counts(cases) == [epoch_counts(*case).tolist() for case in cases]


def other_cases(rng: random.Random) -> list[Case]:
    """Quotas that have to be rounded, or that floats do not hold."""
    cases: list[Case] = []
    for _ in range(20):
        sizes = [rng.randrange(1, 500) for _ in range(rng.randrange(2, 7))]
        some = [rng.randrange(1, 100) / 100 for _ in sizes]
        cases.append((sizes, proportions(*some), rng.choice([None, rng.randrange(10, 5000)])))
        cases.append((sizes, [NONE] * len(sizes), rng.randrange(10, 5000)))
        cases.append((sizes, repeats(*(4 * each for each in some)), None))
    return cases


def test_rounded_quotas_are_nearer_to_what_is_asked():
    """Both are within one sample of it. It cuts floats off and gives what is missing to random
    streams; the largest remainders, and the nearest numbers of samples, are nearer.
    """
    cases = other_cases(random.Random(4))
    nearer = 0
    for case, theirs in zip(cases, their_counts(cases), strict=True):
        exact, ours = exact_counts(*case), epoch_counts(*case).tolist()
        if case[1][0].kind != "repeat":
            assert sum(ours) == sum(theirs) == sum(exact)
        off = [
            [abs(count - asked) for count, asked in zip(counts, exact, strict=True)]
            for counts in (ours, theirs)
        ]
        assert max(off[0]) < 1
        assert max(off[1]) <= 1
        assert sum(off[0]) <= sum(off[1])
        nearer += sum(off[0]) < sum(off[1])
    assert nearer > len(cases) / 3


def test_quotas_that_both_refuse():
    cases: list[Case] = [
        ([100, 200], [*proportions(1), *chosen(1)], None),
        ([100, 200], [NONE, *proportions(1)], None),
        ([100, 200], chosen(2, 1), 10),
        ([100, 200], [NONE, *repeats(1)], 10),
    ]
    for case, theirs in zip(cases, their_counts(cases), strict=True):
        assert isinstance(theirs, str)
        with pytest.raises(ConfigError):
            epoch_counts(*case)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders 0 to 15 of 1000 samples, in shards of 100."""
    root = tmp_path_factory.mktemp("streams")
    for stream in range(16):
        numbered_mds(root / str(stream), 1000, per_shard=100)
    return root


VISITS = """
import json, numpy as np
found = []
for count in json.load(sys.stdin):
    data = StreamingDataset(
        streams=[Stream(local=f"{sys.argv[1]}/0", choose=count)], batch_size=1, shuffle=True
    )
    samples = [data.resample_streams(epoch)[1] for epoch in range(3)]
    found.append([np.bincount(each, minlength=1000).tolist() for each in samples])
print(json.dumps(found))
"""


def test_samples_come_as_often(folders):
    """An epoch of c samples of n takes each floor(c / n) or ceil(c / n) times."""
    counts = [1, 400, 1000, 1001, 2600]
    for count, theirs in zip(
        counts, json.loads(run_streaming(VISITS, folders, given=json.dumps(counts))), strict=True
    ):
        draws = EpochDraws(1000, count, 7, shuffle=True, fixed=False)
        for epoch in range(3):
            nth = np.arange(count)
            ours = np.bincount(draws.locate(np.full_like(nth, epoch), nth) % 1000, minlength=1000)
            assert Counter(ours.tolist()) == Counter(theirs[epoch])


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
        # In a global batch of several device batches of one stream each, their number varies.
        if method != "device_per_stream":
            assert held == ours, name
            assert every is None or set(held) == {every}, name
