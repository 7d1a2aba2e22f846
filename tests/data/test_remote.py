"""Folders and files in object storage: paths, and mixes read from there as from the
disk."""

from __future__ import annotations

import io
import json
import pickle
import posixpath
import re
import shutil
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import datasets as hub
import numpy as np
import PIL.Image
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    ConfigError,
    DatasetNotFoundError,
    FailurePolicy,
    ShuffleDataset,
    WebdatasetSource,
    convert,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.cli.main import app
from energize.compat import easydel as easydel_words
from energize.compat.squirrel import Multiplexer, MultiplexingStrategy
from energize.compat.stage_files import get_staged_train_dataset
from energize.compat.streaming import Stream
from energize.core.os_errors import is_url
from energize.data.files import absolute, files_at, joined, path_of
from energize.data.join import write_matches
from energize.data.stores import open_store
from energize.data.trust import trust
from energize.energon import WorkerConfig
from energize.errors import PrepareError, ShardError, UntrustedCodeError
from energize.preparation.index import prepare_jsonl
from energize.sources import JoinedSource, JsonlSource, JsonSource, ParquetSource
from tests.cli import commands
from tests.support import remote_program
from tests.support.launching import launched
from tests.support.loading import eventually, loader_of, prints, take
from tests.support.mds import numbered_mds
from tests.support.object_server import counts, object_server, set_faults
from tests.support.refusals import check_refusals
from tests.support.rows import texts, write_lines, write_parquet

names = st.text("ab.", min_size=1, max_size=3)
paths = st.lists(names | st.just(".."), min_size=1, max_size=4).map("/".join)


@given(paths, paths)
def test_a_url_is_joined_as_paths_are(first, second):
    """In its bucket, which nothing leads out of."""
    found, same = path_of(f"s3://bucket/{first}") / second, Path("/", first, second)
    tidy = posixpath.normpath(same)
    assert str(found) == f"s3://bucket{'' if tidy == '/' else tidy}"
    if tidy != "/":
        assert (found.name, found.suffix, found.stem) == (
            Path(tidy).name, Path(tidy).suffix, Path(tidy).stem)  # fmt: skip
        assert found.parent / found.name == found
        assert found.is_relative_to("s3://bucket")
        assert pickle.loads(pickle.dumps(found)) == found


def test_what_is_a_url_and_what_a_path():
    assert [is_url(each) for each in ("s3://b", "file:///a", "/a://b", "a", Path("s3://b"))] == [
        True, False, False, False, False]  # fmt: skip
    for url in ("file:///data/a", "file://localhost/data/a"):
        assert (
            path_of(url)
            == path_of(absolute(url))
            == joined(Path("b"), url)
            == Path("/data/a")
        )
    assert str(path_of("abfs://c@account.host/a").parent) == "abfs://c@account.host"
    assert str(path_of("s3://b/a#1") / "b #2.tar") == "s3://b/a#1/b #2.tar"
    assert path_of("s3://b/a") / "/data" == Path("/data")
    assert path_of("s3://b/a") / "gs://c/d" == path_of("gs://c/d")
    told = " is not read: names, passwords and text after a '?'"
    check_refusals({
        url: (partial(path_of, url), ConfigError, shown + told)
        for url, shown in {
            "s3://me:secret@b/a": "s3://b/a", "https://h/a?sig=secret": "https://h/a?...",
            "s3://b/a/x?.png": "s3://b/a/x?...", "https://h/a#b": "https://h/a#b"}.items()
    } | {
        url: (partial(call, given), ConfigError, "merges two slashes. Pass s3://BUCKET/... or")
        for call, given, url in (
            (path_of, Path("s3://b/a"), "s3:/b/a"), (absolute, "file:/a", "file:/a"),
            (ParquetSource, "file://b/*.parquet", "file://b"))
    } | {
        url: (partial(WebdatasetSource, url), ConfigError, "the bucket or host is missing after")
        for url in ("s3://", "gs:///a", "https://")
    })  # fmt: skip


def png(number: int, side: int) -> bytes:
    data, noise = io.BytesIO(), np.random.default_rng(number).bytes(3 * side * side)
    PIL.Image.frombytes("RGB", (side, side), noise).save(data, "PNG", compress_level=0)
    return data.getvalue()


MIX = """
__module__: energize
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: ./web, weight: 3}
      - {path: ../more/photographs, weight: 1}
"""


def mix_in(bucket: Path, side: int = 8) -> Path:
    """A mix of two prepared folders, in eight shards."""
    for name, count in (("mixes/web", 150), ("more/photographs", 90)):
        samples = (
            {
                "__key__": f"{name[-3:]}{i:04d}",
                "png": png(i, side),
                "txt": f"{name} {i}",
            }
            for i in range(count)
        )
        write_shards(samples, bucket / name, samples_per_shard=30)
        options = {"sample_type": "CaptioningSample", "workers": 1, "sqlite": True}
        prepare(bucket / name, split_ratios={"train": 1}, **options)
    file = bucket / "mixes" / "mix.yaml"
    file.write_bytes(MIX.encode())
    return file


@contextmanager
def store(tmp_path: Path, monkeypatch, **faults):
    """The URL of a bucket whose objects lie in `tmp_path/store/bucket`, and its
    server."""
    with object_server(tmp_path / "store", **faults) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
        yield "s3://bucket", url


KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


def keys(batches) -> list[list[str]]:
    return [list(each.__key__) for each in batches]


@pytest.mark.jobs
def test_all_that_is_read_from_the_disk_is_read_from_a_store(tmp_path, monkeypatch):
    """The same items, identities and columns; states go to and fro, and to a mix on the
    disk that names a folder there and one here.
    """
    bucket = tmp_path / "store" / "bucket"
    here = mix_in(bucket)
    lines = write_lines(bucket / "lines.jsonl", [{"n": n} for n in range(50)])
    prepare_jsonl(lines)
    write_parquet(bucket / "rows" / "a.parquet", [{"n": n} for n in range(70)])
    numbered_mds(bucket / "mds", 40)
    with store(tmp_path, monkeypatch) as (there, _):
        for open_at in (
            lambda root: WebdatasetSource(f"{root}/mixes/web"),
            lambda root: JsonlSource(f"{root}/lines.jsonl"),
            lambda root: ParquetSource(f"{root}/rows/*.parquet"),
            lambda root: Stream(local=f"{root}/mds").samples(),
        ):
            far, near = open_at(there), open_at(bucket)
            assert far.key == near.key
            assert len(far) == len(near)
            same = dict if isinstance(near[0], dict) else list
            for number in (0, 7, len(near) - 1):
                a, b = same(far[number]), same(near[number])
                assert {**a, "__dataset__": ""} == {**b, "__dataset__": ""}
        assert open_store(f"{there}/mixes/web").get("web0003.txt") == b"mixes/web 3"
        assert open_store(f"filesystem://{there}/mixes").get("mix.yaml") == MIX.encode()
        far, near = (
            get_train_dataset(each, batch_size=4)
            for each in (f"{there}/mixes/mix.yaml", here)
        )
        with loader_of(near) as plain:
            whole = keys(take(plain, 40))
        state = None
        named = tmp_path / "mix.yaml"
        text = MIX.replace("./web", f"{there}/mixes/web").replace("..", f"{bucket}")
        named.write_text(text)
        mixed = get_train_dataset(named, batch_size=4)
        for number, dataset in enumerate((far, near, mixed, near)):
            with loader_of(dataset, workers=number % 3) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                at = 10 * number
                assert keys(take(loader, 10)) == whole[at : at + 10]
                state = loader.state_dict()
        assert "secret" not in json.dumps(state)


@pytest.mark.jobs
def test_each_byte_is_fetched_once(tmp_path, monkeypatch, capsys):
    """Ahead, by a command, or by who reads; a new process of the machine fetches none
    again."""
    here = mix_in(tmp_path / "store" / "bucket")
    stored = sum(
        each.stat().st_size for each in here.parents[1].rglob("*") if each.is_file()
    )
    with store(tmp_path, monkeypatch) as (there, url):
        mix = f"{there}/mixes/mix.yaml"
        dataset = get_train_dataset(mix, batch_size=4)
        opened = counts(url)["requests"]
        assert opened <= 4 * 10
        with loader_of(dataset, workers=2) as loader:
            whole = keys(take(loader, 60))
        fetched = counts(url)
        assert 0 < fetched["bytes"] <= stored
        warm = ["cache", "warm", mix, "--steps", "60", "--batch-size", "4"]
        assert app(warm, standalone_mode=False) is None
        assert "section" in capsys.readouterr().out
        with loader_of(dataset) as loader:
            assert keys(take(loader, 60)) == whole
        assert counts(url)["bytes"] == fetched["bytes"]
        with loader_of(get_train_dataset(here, batch_size=4)) as plain:
            assert keys(take(plain, 60)) == whole
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "nodecache-v1").write_text("a file")
        monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "none"))
        told = commands.run(*warm, code=1)
        assert re.search(
            r"of ([\d.]+ .?B) that these steps read, \1 are not kept", told
        ), told


@pytest.mark.jobs
def test_weights_change_while_samples_are_on_their_way(tmp_path, monkeypatch):
    """What was expected before is asked for by who reads anew, before that expects
    anything."""
    here = mix_in(tmp_path / "store" / "bucket")
    with store(tmp_path, monkeypatch) as (there, _):
        read = []
        for mix in (f"{there}/mixes/mix.yaml", here):
            with loader_of(get_train_dataset(mix, batch_size=4)) as loader:
                found = keys(take(loader, 1))
                loader.set_weights({"web": 1, "photographs": 1})
                read.append(found + keys(take(loader, 30)))
    assert read[0] == read[1]


@pytest.mark.jobs
def test_a_cache_that_cannot_be_written_costs_little(tmp_path, monkeypatch):
    body = bytes(range(256)) * 32 * 1024
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    (tmp_path / "store" / "bucket" / "a.tar").write_bytes(body)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "nodecache-v1").write_text("a file")
    with store(tmp_path, monkeypatch) as (there, url):
        far, path = files_at(there), f"{there}/a.tar"
        starts = [*range(0, len(body), 400_000)]
        stops = [start + 20_000 for start in starts]
        for _ in range(10):
            far.plan(path, starts, stops)
            found = [*far.read_ranges(path, starts, stops)]
        assert found == [
            body[start:stop] for start, stop in zip(starts, stops, strict=True)
        ]
        wanted = 20_000 * len(starts)
        assert counts(url)["bytes"] < 2 * len(body) + 10 * 1.2 * wanted


def column_bytes(file: Path) -> int:
    """The bytes of the first two columns of a file."""
    metadata = pyarrow.parquet.read_metadata(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(
        group.column(at).total_compressed_size for group in groups for at in (0, 1)
    )


@pytest.mark.jobs
def test_row_groups_are_fetched_ahead_and_no_other_columns(tmp_path, monkeypatch):
    """A store that answers no more after the first batches is not missed."""
    bucket, noise = tmp_path / "store" / "bucket", np.random.default_rng(0)
    for name in "ab":
        rows = [
            {"n": n, "text": noise.bytes(500).hex(), "rest": noise.bytes(500).hex()}
            for n in range(900)
        ]
        write_parquet(bucket / f"{name}.parquet", rows, row_group_size=200)
    with store(tmp_path, monkeypatch) as (there, url):

        def batches(root):
            source = ParquetSource(f"{root}/*.parquet", columns=["n", "text"])
            return BatchDataset(
                ShuffleDataset(source, shuffle_buffer_size=400), 20, list
            )

        far, before = batches(there), counts(url)["bytes"]
        wanted = sum(map(column_bytes, bucket.iterdir()))
        with loader_of(far) as loader, loader_of(batches(bucket)) as plain:
            whole = take(plain, 90)
            assert take(loader, 20) == whole[:20]
            assert eventually(lambda: counts(url)["bytes"] - before == wanted)
            set_faults(url, answer="403 AccessDenied")
            assert take(loader, 70) == whole[20:]
        set_faults(url, answer="")
        loose = get_train_dataset(f"{there}/a.parquet", batch_size=4).sources[0]
        assert loose.remote
        assert loose.sample_ranges(0, [0]) == loose.rows.sample_ranges(0, [0]) != []


@pytest.mark.jobs
def test_programs_of_other_libraries_read_stores(tmp_path, monkeypatch):
    """EasyDeL's pipeline, squirrel's multiplexer and a trainer's stage file: the same
    as of the disk, with states from there and back.
    """
    here = mix_in(tmp_path / "store" / "bucket").parents[1]
    write_parquet(here / "code" / "0.parquet", texts("code", 50), row_group_size=20)
    write_lines(here / "text" / "0.jsonl", texts("prose", 40))
    np.save(here / "tokens.npy", np.arange(64, dtype=np.uint16))
    hub.Dataset.from_list(texts("saved", 12)).save_to_disk(here / "saved")
    stages = [
        {"dataset_type": "energize", "dataset_path": "{root}/mixes/mix.yaml"},
        {
            "dataset_type": "energize",
            "dataset_folders": ["mixes/web", "{root}/more/photographs"],
        },
        {"dataset_type": "packed_memmap", "dataset_path": "tokens.npy"},
        {"dataset_type": "huggingface", "dataset": "a/b", "dataset_path": "saved"},
    ]
    for number, each in enumerate(stages):
        each |= {"name": f"s{number}", "start_step": 4 * number, "seq_len": 4}
    toml = "[training]\nsteps = 16\n" + "".join(
        "[[training.data_stages]]\n"
        + "".join(f"{k} = {json.dumps(v)}\n" for k, v in each.items())
        for each in stages
    )

    def easydel(root):
        given = {"code": f"{root}/code/*.parquet", "text": f"{root}/text/0.jsonl"}
        read = [{"name": name, "data_files": files} for name, files in given.items()]
        pipeline = easydel_words.Pipeline.from_config({"datasets": read, "seed": 3})
        return pipeline.source().mix().load().build()

    def squirrel(root):
        parts = (
            JsonSource(f"{root}/text/0.jsonl"),
            ParquetSource(f"{root}/code/*.parquet"),
        )
        return loader_of(
            Multiplexer(
                parts, MultiplexingStrategy.SAMPLING, [0.3, 0.7], seed=1
            ).dataset
        )

    def staged(root):
        (file := path_of(root) / "run.toml").write_bytes(
            toml.replace("{root}", str(root)).encode()
        )
        return loader_of(get_staged_train_dataset(file, batch_size=2))

    def said(batches):  # samples of folders tell where these lie
        return prints([getattr(each, "__key__", each) for each in batches])

    with store(tmp_path, monkeypatch) as (there, _):
        for open_at in easydel, squirrel, staged:
            with open_at(here) as plain:
                whole = said(take(plain, 16))
            state = None
            for number, root in enumerate((there, here, there, here)):
                with open_at(root) as loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    at = 4 * number
                    assert said(take(loader, 4)) == whole[at : at + 4], open_at
                    state = loader.state_dict()


@pytest.mark.jobs
def test_what_is_written_to_a_store_is_what_is_written_to_the_disk(
    tmp_path, monkeypatch
):
    samples = [
        {"__key__": f"{i:03d}", "txt": f"text {i}", "json": {"n": i}} for i in range(40)
    ]
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    with store(tmp_path, monkeypatch) as (there, _):
        for folder in (f"{there}/web", tmp_path / "web"):
            write_shards(samples, folder, samples_per_shard=15)
            options = {"sample_type": "CrudeWebdataset", "columns": {"n": "json[n]"}}
            prepare(
                folder, split_ratios={"train": 3, "val": 1}, checksums=True, **options
            )
        far, near = tmp_path / "store" / "bucket" / "web", tmp_path / "web"
        made = {each.relative_to(near) for each in near.rglob("*") if each.is_file()}
        assert {
            each.relative_to(far) for each in far.rglob("*") if each.is_file()
        } == made
        for name in made:
            assert (far / name).read_bytes() == (near / name).read_bytes(), name
        source = WebdatasetSource(f"{there}/web", checksums=True)
        assert source.column("n").values.tolist() == list(range(len(source)))


@pytest.mark.jobs
def test_what_a_store_refuses_is_no_damaged_sample(tmp_path, monkeypatch):
    """Credentials expire in the middle of a run on loose images: none is left out for
    that."""
    folder = tmp_path / "store" / "bucket" / "photos"
    folder.mkdir(parents=True)
    for i in range(40):
        (folder / f"{i:02d}.png").write_bytes(png(i, 8))
    with store(tmp_path, monkeypatch) as (there, url):
        dataset = get_train_dataset(f"{there}/photos", batch_size=2)
        (folder / "07.png").unlink()
        with loader_of(dataset) as loader:
            take(loader, 2)
            set_faults(url, answer="400 ExpiredToken", to="bucket/photos/1")
            with pytest.raises(ShardError, match=r"expired credentials"):
                take(loader, 40)
            assert loader.failures.count < 2


@pytest.mark.jobs
def test_what_is_refused_at_its_very_end_goes_on(tmp_path, monkeypatch):
    write_parquet(tmp_path / "store" / "bucket" / "last" / "a.parquet", texts("a", 20))
    out = tmp_path / "store" / "bucket" / "out"
    with store(tmp_path, monkeypatch) as (there, url):
        options = {"samples_per_shard": 5, "workers": 1}
        set_faults(
            url, answer="403 AccessDenied", to="PUT bucket/out/.nv-meta/.info.json"
        )
        with pytest.raises(
            PrepareError, match=r"info.json: cannot be written: it is forbidden"
        ):
            convert(f"{there}/last", f"{there}/out", **options)
        written = {each: each.stat().st_ino for each in out.glob("*.tar")}
        set_faults(url, answer="", to="")
        assert convert(f"{there}/last", f"{there}/out", **options).samples == 20
        assert {each: each.stat().st_ino for each in out.glob("*.tar")} == written
        assert not [each for each in out.rglob("tasks/*/*") if each.is_file()]


@pytest.mark.jobs
@pytest.mark.parametrize("scheme", ["http", "msc"])
def test_what_lists_nothing_and_what_another_library_serves(
    tmp_path, monkeypatch, scheme
):
    """A plain web server; a folder of another library, written there by it."""
    here = mix_in(tmp_path / "store" / "bucket")
    with ExitStack() as stack:
        if scheme == "http":
            _, url = stack.enter_context(store(tmp_path, monkeypatch))
            there = f"{url}/bucket/mixes/mix.yaml"
            write_parquet(here.parent / "rows" / "a.parquet", [{"text": "a"}])
            with pytest.raises(
                DatasetNotFoundError, match="that its server does not list"
            ):
                get_train_dataset(f"{url}/bucket/mixes/rows", batch_size=4)
        else:
            provider = {"type": "file", "options": {"base_path": str(tmp_path / "msc")}}
            config = tmp_path / "msc.json"
            config.write_text(
                json.dumps({"profiles": {"disk": {"storage_provider": provider}}})
            )
            monkeypatch.setenv("MSC_CONFIG", str(config))
            monkeypatch.setenv("ENERGIZE_CACHE", str(tmp_path / "cache"))
            (tmp_path / "msc").mkdir()
            there = str(mix_in(path_of("msc://disk/a")))
            assert (
                tmp_path / "msc" / "a" / "mixes" / "web" / ".nv-meta" / "split.yaml"
            ).is_file()
        with loader_of(get_train_dataset(here, batch_size=4)) as plain:
            whole = keys(take(plain, 30))
            state = plain.state_dict()
            more = keys(take(plain, 10))
        with loader_of(get_train_dataset(there, batch_size=4), workers=2) as loader:
            assert keys(take(loader, 30)) == whole
        with loader_of(get_train_dataset(there, batch_size=4)) as loader:
            loader.load_state_dict(state)
            assert keys(take(loader, 10)) == more


@pytest.mark.jobs
def test_what_commands_write_is_written_to_a_store(tmp_path, monkeypatch, capsys):
    here = mix_in(tmp_path / "store" / "bucket")
    shutil.copytree(here.parent / "web", here.parents[1] / "coded")
    with store(tmp_path, monkeypatch) as (there, _):
        mix, out = f"{there}/mixes/mix.yaml", tmp_path / "store" / "bucket" / "out"
        with loader_of(get_train_dataset(here, batch_size=4)) as loader:
            take(loader, 5)
            path_of(f"{there}/s.json").write_bytes(
                json.dumps(loader.state_dict()).encode()
            )
        of = ["--batch-size", "4"]
        for command in ("info", "lint", "prepare"):
            with pytest.raises(SystemExit):
                app([command, "s3://nowhere/x"], standalone_mode=False)
            error = capsys.readouterr().err
            assert "Error: s3://nowhere/x" in error
            assert "cannot be used: the bucket does not exist" in error
        for command in (
            [
                "state",
                "remap",
                f"{there}/s.json",
                mix,
                "-o",
                f"{there}/out/r.json",
                *of,
            ],
            ["report", f"{there}/out/r.json", mix, "--plot", f"{there}/out/a.svg", *of],
            ["simulate", mix, "--steps", "20", "--plot", f"{there}/out/b.html", *of],
            ["schema", "-o", f"{there}/out/schema.json"],
            ["prepare-media", f"{there}/mixes/web", "--media-metadata-by-extension"],
        ):
            assert app(command, standalone_mode=False) is None, command
        assert {each.name for each in out.iterdir()} == {
            "r.json",
            "a.svg",
            "b.html",
            "schema.json",
        }
        web = open_store(f"{there}/mixes/web")
        assert web.get_media_metadata("web0003.png").width == 8
        source = partial(WebdatasetSource, f"{there}/mixes/web")
        pairs = partial(JoinedSource, source(), source(), nonmatch=["skip"])
        matches = write_matches(pairs(cache=path_of(f"{there}/matches")))
        assert write_matches(again := pairs(cache=matches.parent)) == matches
        assert again.identity == pairs().identity
        named = {"sample_type": {"__module__": "energize", "__class__": "TextSample"},
                 "sample_loader": "a.py", "part_filter": "a.py"}  # fmt: skip
        (tmp_path / "store/bucket/coded/.nv-meta/dataset.yaml").write_text(
            json.dumps(named)
        )
        coded = partial(get_train_dataset, f"{there}/coded", batch_size=4)
        own = {f"{there}/coded": lambda parts: {"text": parts["txt"]}}
        given = coded(sample_loader=own, part_filter=["txt"])
        assert len(given[0].text) == 4
        listed = partial(
            get_loader,
            get_train_dataset(mix, batch_size=4),
            failures=FailurePolicy(quarantine=f"{there}/q.jsonl"),
        )
        check_refusals({
            "quarantine": (listed, ConfigError, "a remote store cannot append lines"),
            "lines of workers": (
                partial(WorkerConfig, 0, 1, worker_debug_path=f"{there}/{{pid}}"), ConfigError,
                "has no files to append lines to"),
            "code": (
                coded, UntrustedCodeError, "code of a store is not run", "later. Do without: pass"),
            "trust": (partial(trust, f"{there}/mixes"), ConfigError, "code of a store is not run"),
        })  # fmt: skip


def run(tmp_path, mix, kind, world, workers, steps, job, saved="") -> list[list[str]]:
    """The batches of all ranks of a job, in the order of the stream."""
    given = (mix, kind, workers, steps, tmp_path, job, saved)
    launched(remote_program.__name__, *given, ranks=world, timeout=180)
    ranks = [
        json.loads((tmp_path / f"{job}-{rank}.json").read_text())
        for rank in range(world)
    ]
    return [batch for step in zip(*ranks, strict=True) for batch in step]


@pytest.mark.jobs
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("indexed", 2),
        *(pytest.param("stream", n, marks=pytest.mark.slow) for n in (2, 3)),
    ],
)
def test_a_bad_network_changes_nothing_of_a_run(tmp_path, monkeypatch, kind, world):
    """5 % errors, 2 % cut bodies, 5 % slow answers, a server that is killed and started
    again; two ranks of two workers under DDP, that go on from a state of the disk, and
    the disk from theirs.
    """
    here = mix_in(tmp_path / "store" / "bucket", side=200)  # of 120 KB: many requests
    dataset, lanes = (
        remote_program.dataset_of(str(here), kind),
        {} if kind == "indexed" else {"lanes": 6},
    )
    state, end = tmp_path / "before.state", 12 + 20 * world
    with loader_of(dataset, **lanes) as plain:
        whole = keys(take(plain, 12))
        state.write_text(json.dumps(plain.state_dict()))
        whole += keys(take(plain, 20 * world + 10))
    faults = {
        "errors": 0.05,
        "truncated": 0.02,
        "slow": 0.05,
        "seconds": 1.0,
        "latency": 0.01,
    }
    with store(tmp_path, monkeypatch, **faults) as (there, url), ExitStack() as second:
        killed = threading.Thread(
            target=restarted, args=(url, tmp_path / "store", second, faults)
        )
        killed.start()
        given = run(
            tmp_path, f"{there}/mixes/mix.yaml", kind, world, 2, 20, "far", state
        )
        killed.join()
        assert counts(url)["requests"] > 20
    assert given == whole[12:end]
    with loader_of(dataset, **lanes) as plain:
        plain.load_state_dict(json.loads((tmp_path / "far.state").read_text()))
        assert keys(take(plain, 10)) == whole[end:]


def restarted(url: str, root: Path, stack: ExitStack, faults: dict) -> None:
    """Kill a server that is being read from, and start another one in its place."""
    assert eventually(lambda: counts(url)["errors"] > 3, 100)
    with suppress(OSError):
        urllib.request.urlopen(f"{url}/__die__")
    time.sleep(1)
    stack.enter_context(object_server(root, port=int(url.rpartition(":")[2]), **faults))
