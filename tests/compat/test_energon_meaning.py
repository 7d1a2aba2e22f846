"""What `energize.energon` means as Megatron-Energon does, and energize does not."""

from __future__ import annotations

import copy
import importlib
import logging
import multiprocessing
import pickle
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Literal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import energize
from energize import ListSource, energon, write_shards
from energize.energon import (
    BatchDataset,
    FilterDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    WorkerConfig,
    get_savable_loader,
)
from energize.errors import FatalSampleError, StateMismatchError
from tests.support.mds import numbered_mds
from tests.support.prepared import captions, image_bytes
from tests.support.rows import texts, write_parquet

LETTERS = "abcdefghijk"


@dataclass
class Box:
    size: tuple[int, int]
    names: set[str]
    kind: Literal["a", "b"] = "a"
    inner: Box | None = None


def upper(rank=0, world_size=1, num_workers=0, letters=LETTERS, **options):
    config = WorkerConfig(
        rank=rank, world_size=world_size, num_workers=num_workers, **options
    )
    return MapDataset(ListSource(letters), str.upper, worker_config=config)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_iterating_lengths_and_limits_are_those_of_a_rank(world_size):
    ranks = [upper(rank, world_size) for rank in range(world_size)]
    shares = [list(each) for each in ranks]
    delivered = [len(list(get_savable_loader(each))) for each in ranks]
    assert [len(each) for each in ranks] == delivered
    assert set(delivered) == {max(map(len, shares))}  # a smaller share is filled up
    assert sorted(chain(*shares)) == sorted(LETTERS.upper())
    for rank, each in enumerate(ranks):
        limited = LimitDataset(each, 3)
        assert len(limited) == 3
        assert list(limited) == shares[rank][:3]
        loader = get_savable_loader(limited)
        assert len(loader) == 3
        assert list(loader) == shares[rank][:3]
    config = WorkerConfig(rank=0, world_size=world_size)
    whole = energize.MapDataset(ListSource(LETTERS), str.upper, worker_config=config)
    assert len(whole) == len(LETTERS)
    assert list(whole) == list(LETTERS.upper())
    assert not isinstance(whole, IterableDataset)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dataset_goes_on_where_it_was_left_saved_or_restored(stream):
    dataset = upper(1, 2)
    if stream:
        dataset = FilterDataset(dataset, str.isupper)
    running = iter(dataset)
    first, state = next(running), dataset.save_state()
    rest = list(running)
    assert stream or [first, *rest] == list("BDFHJ")
    for other in (dataset, pickle.loads(pickle.dumps(dataset))):
        other.restore_state(state)
        assert list(other) == rest
        assert stream or list(other) == [first, *rest]  # the next epoch
    dataset.restore_state(state)
    dataset.reset_state_deep()
    assert next(iter(dataset)) == first
    assert dataset.worker_has_samples()
    assert dataset.can_restore_sample()
    assert not upper(1, 2, letters="a").worker_has_samples()
    assert dataset.config()["kind"] == type(dataset).__name__
    with pytest.raises(
        AttributeError, match="'MapDataset' object has no attribute 'save_stat'"
    ):
        upper().save_stat()
    with pytest.raises(AttributeError):
        energize.MapDataset(ListSource("a"), str).save_state()


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_torchs_dataloader_have_shares_too(rank):
    dataset = upper(rank, 2, 2)
    assert isinstance(dataset, IterableDataset)
    assert [dataset.len_worker(worker) for worker in (0, 1)] == [3, 3]
    assert sum(map(dataset.len_worker, (0, 1))) == len(dataset) == 6
    loaded = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert loaded == list(LETTERS.upper()[rank::2])


def test_a_loader_is_a_dataloader_and_knows_how_much_there_is(caplog):
    dataset = upper(num_workers=2)
    loader = get_savable_loader(dataset)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.dataset) == (None, 2, dataset)
    with loader:
        assert list(loader) == list(LETTERS.upper())
    packs = PackingDataset(
        upper(), 4, lambda samples: [samples], "".join, worker_config=WorkerConfig(0, 1)
    )
    with pytest.raises(TypeError):
        len(energize.get_loader(packs))
    with caplog.at_level(logging.WARNING, "energize"):
        assert len(get_savable_loader(packs)) == len(packs) == 11
        assert len(BatchDataset(packs, 2, list)) == 6
    said = [
        each.getMessage()
        for each in caplog.records
        if "is an estimate" in each.getMessage()
    ]
    assert len(said) == len(set(said)) == 2


def test_a_failing_sample_is_logged_and_left_out(caplog):
    def odd(letter):
        if letter in "ace":
            raise ValueError("no vowels")
        return letter

    here = MapDataset(ListSource(LETTERS), odd, worker_config=WorkerConfig(0, 1))
    taken = list(get_savable_loader(here))
    assert len(taken) == len(LETTERS)  # others of the same source take their places
    assert not set(taken) & set("ace")
    assert "no vowels" in caplog.text
    with pytest.raises(energize.EncoderError):
        list(energize.get_loader(MapDataset(ListSource(LETTERS), odd)))


def test_a_state_goes_on_where_it_can(caplog):
    """Of a mix whose batches are of another size by now: after the samples that were
    taken."""

    def batches(size):
        numbers = RepeatDataset(energize.ShuffleDataset(ListSource(range(24))))
        return BatchDataset(numbers, size, list, worker_config=WorkerConfig(0, 1))

    stream = list(chain(*islice(get_savable_loader(batches(4)), 20)))
    loader = get_savable_loader(batches(4))
    assert list(chain(*islice(loader, 3))) == stream[:12]
    state = loader.save_state_rank()
    other = get_savable_loader(batches(6))
    other.restore_state_rank(state)
    assert list(chain(*islice(other, 8))) == stream[12:60]
    assert "the state resumes in a changed mix" in caplog.text
    assert "start without the state" not in caplog.text
    with pytest.raises(StateMismatchError):
        energize.get_loader(batches(6)).load_state_dict(state)
    fresh = get_savable_loader(batches(4))
    fresh.restore_state_rank(None)
    assert next(iter(fresh)) == stream[:4]


def test_a_worker_config_says_what_energons_does(capsys, tmp_path):
    config = WorkerConfig(rank=1, world_size=3, num_workers=2, worker_log_level=1)
    assert config.should_log(1)
    assert not config.should_log(2)
    assert (
        config.global_rank(),
        config.rank_worker_id(),
        config.global_worker_id(1),
    ) == (1, 0, 3)
    # As Megatron-Energon 7.4.1 has them.
    assert config.worker_seed(0) == 2273462765
    assert WorkerConfig(rank=1, world_size=3, num_workers=0).worker_seed() == 3250511459
    assert config.config()["num_workers"] == 2
    assert WorkerConfig.active_worker_config is not config
    config.worker_activate(5)
    assert energon.WorkerConfig.active_worker_config is config
    config.worker_deactivate()
    assert WorkerConfig.active_worker_config is not config
    config.worker_log({"t": "read"})
    assert capsys.readouterr().out == '{"t": "read"}\n'
    path = tmp_path / "logs" / "{worker_id}.jsonl"
    WorkerConfig(1, 3, 2, worker_debug_path=str(path)).worker_log({"n": 1})
    assert (tmp_path / "logs" / "3.jsonl").read_text() == '{"n": 1}\n'
    assert pickle.loads(pickle.dumps(config)) == config
    assert get_worker_info() is None


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_limit_of_validation_counts_batches_of_each_rank(world_size, tmp_path):
    folder = captions(tmp_path / "captions", 20)
    limited = []
    for rank in range(world_size):
        config = WorkerConfig(rank=rank, world_size=world_size)
        options = {
            "split_part": "train",
            "worker_config": config,
            "batch_size": 2,
            "limit": 2,
        }
        dataset = energon.get_val_dataset(folder, **options)
        ((single, _),) = energon.get_val_datasets(folder, **options)
        for each in (dataset, single):
            assert len(each) == len(get_savable_loader(each)) == 2
        limited += [
            key for batch in get_savable_loader(dataset) for key in batch.__key__
        ]
    assert len(set(limited)) == 4 * world_size


@pytest.mark.parametrize("of_dataset", [False, True])
@pytest.mark.parametrize(("own", "most"), [(None, 100), (7, 7), (0, None)])
def test_failures_in_a_row_end_the_run(own, most, of_dataset):
    calls = []

    def never(letter):
        calls.append(letter)
        raise ValueError("no")

    if own is not None and not of_dataset:
        never = energon.stateless(failure_tolerance=own)(never)
    options = {"failure_tolerance": own} if of_dataset else {}
    config = WorkerConfig(0, 1)
    dataset = MapDataset(
        ListSource(range(1000)), never, worker_config=config, **options
    )
    dataset = dataset.with_inputs(dataset.inputs)
    error = energize.errors.SubstitutionError if most is None else FatalSampleError
    with pytest.raises(
        error, match="ValueError: no" if most is None else f"failed {most} times"
    ):
        list(get_savable_loader(dataset))
    assert len(calls) == (256 if most is None else most)
    calls.clear()

    def most_of_them(number):
        calls.append(number)
        if number % 50:
            raise ValueError("no")
        return number

    some = MapDataset(
        ListSource(range(300)), most_of_them, worker_config=WorkerConfig(0, 1)
    )
    assert next(iter(get_savable_loader(some))) % 50 == 0


def test_what_calls_no_function_has_no_tolerance():
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'failure_tolerance'"
    ):
        LimitDataset(upper(), 3, failure_tolerance=3)

    def never(letter):
        raise ValueError("no")

    dataset = FilterDataset(upper(letters="a" * 50), never, failure_tolerance=3)
    with pytest.raises(FatalSampleError, match="failed 3 times"):
        list(get_savable_loader(dataset))


def test_numpy_arrays_come_as_tensors():
    def arrays(numbers):
        return {"x": np.array(numbers), "rest": [np.ones(2), "text"], "n": len(numbers)}

    batches = BatchDataset(
        ListSource([1, 2, 3]), 3, arrays, worker_config=WorkerConfig(0, 1)
    )
    (batch,) = get_savable_loader(batches)
    assert batch["x"].tolist() == [1, 2, 3]
    assert isinstance(batch["rest"][0], torch.Tensor)
    assert (batch["rest"][1], batch["n"]) == ("text", 3)
    (plain,) = energize.get_loader(BatchDataset(ListSource([1, 2, 3]), 3, arrays))
    assert isinstance(plain["x"], np.ndarray)


def test_a_batch_is_extended():
    @dataclass
    class Words(energon.Batch):
        words: list[str]

    @dataclass
    class Counted(Words):
        lengths: list[int]

    batch = Words(__key__=["a"], words=["ab"])
    longer = Counted.extend(batch, lengths=[2])
    assert (longer.__key__, longer.words, longer.lengths) == (["a"], ["ab"], [2])


def loose_images(folder):
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"{number}.jpg").write_bytes(image_bytes(number))
        (folder / f"{number}.txt").write_text(f"caption {number}")


FOLDERS = {
    "prepared": partial(captions, count=30),
    "images": loose_images,
    "parquet": lambda folder: write_parquet(folder / "0.parquet", texts("words", 30)),
    "MDS": partial(numbered_mds, count=30),
    "tars": partial(
        write_shards, [{"__key__": str(n), "txt": f"{n}"} for n in range(30)]
    ),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_run_goes_on_in_folders_that_were_moved_or_renamed(
    kind, tmp_path, caplog, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    for name in ("cats", "dogs"):
        FOLDERS[kind](tmp_path / "a" / name)

    def loader(root, cats="cats"):
        subset = "weight: 2, subset: {range: ['10%', '100%']}"
        text = (
            "{__module__: megatron.energon, __class__: MetadatasetV2, splits: {train: {blend: "
            f"[{{path: {cats}, {subset}}}, {{path: dogs, weight: 1}}]}}}}}}"
        )
        (root / "mix.yaml").write_text(text)
        dataset = energon.get_train_dataset(
            root / "mix.yaml",
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=3,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
        )
        return get_savable_loader(dataset)

    def keys(loader, count):
        return [batch.__key__ for batch in islice(loader, count)]

    first = loader(tmp_path / "a")
    keys(first, 7)
    state = first.save_state_rank()
    rest = keys(first, 20)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = loader(tmp_path / "b")
    moved.restore_state_rank(state)
    assert keys(moved, 20) == rest
    (tmp_path / "b" / "cats").rename(tmp_path / "b" / "kittens")
    renamed = loader(tmp_path / "b", "kittens")
    renamed.restore_state_rank(state)
    assert keys(renamed, 20) == rest
    assert "resumes as 'cats'" in caplog.text
    again = loader(tmp_path / "b", "kittens")
    again.restore_state_rank(renamed.save_state_rank())
    assert keys(again, 5) == keys(renamed, 5)


@dataclass
class Described(energon.Batch):
    __key__: list[str]
    __restore_key__: tuple = ()
    __subflavors__: dict = None
    __sources__: tuple = None
    image: torch.Tensor = None
    caption: list[str] = None
    weight: float = 1.0


class Weighing(energon.AugmentTaskEncoder):
    def encode_sample(self, sample):
        sample = super().encode_sample(sample)
        return Described(**asdict(sample), weight=0.8)


def test_no_field_of_ours_shows_up_where_nobody_asked(tmp_path):
    folder = captions(tmp_path / "captions", 20)
    options = {
        "split_part": "train",
        "worker_config": WorkerConfig(0, 1),
        "batch_size": 5,
    }
    encoder = Weighing(energon.DefaultTaskEncoder())
    dataset = energon.get_val_dataset(folder, task_encoder=encoder, **options)
    batch = next(iter(get_savable_loader(dataset)))
    assert batch.weight == [0.8] * 5
    assert set(asdict(batch)) == {each.name for each in fields(Described)} - {
        "sample_weights"
    }
    plain = next(iter(get_savable_loader(energon.get_val_dataset(folder, **options))))
    for each in (
        plain,
        copy.copy(plain),
        replace(plain),
        pickle.loads(pickle.dumps(plain)),
    ):
        names = {"__key__", "__restore_key__", "__subflavors__", "__sources__"}
        assert asdict(each).keys() == names | {"image", "caption"}
    made = energize.SampleWeightDataset(
        ListSource([energize.TextSample(__key__="a", text="x")]), 2
    )
    (weighed,) = made.at([0])
    assert asdict(weighed)["__sample_weight__"] == 2
    assert asdict(replace(weighed, text="y"))["__sample_weight__"] == 2
    assert pickle.loads(pickle.dumps(weighed)) == weighed

    class Plain(energon.DefaultTaskEncoder):
        def encode_batch(self, batch):
            return dict(asdict(batch), more=1)

    made = energon.get_val_dataset(folder, task_encoder=Plain(), **options)
    batch = next(iter(get_savable_loader(made)))
    assert batch.keys() == names | {"image", "caption", "more"}


def test_hooks_run_around_a_fork():
    from energize.energon.fork_hook import (
        DataclassForkMixin,
        ForkMixin,
        WeakCallbacks,
        after_in_child_fork_hook,
    )

    class Counted(ForkMixin):
        calls = ()

        def __before_fork__(self):
            self.calls += ("before",)

        def __after_in_parent_fork__(self):
            self.calls += ("parent",)

        def __after_in_child_fork__(self):
            self.calls += ("child",)

    counted, dropped, kept = Counted(), Counted(), []
    seen = weakref.ref(dropped)
    after_in_child_fork_hook(lambda: kept.append("child"), make_persistent=True)
    del dropped
    assert seen() is None  # a hook keeps nothing alive
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=lambda: there.send((counted.calls, kept))
    )
    process.start()
    assert here.recv() == (("before", "child"), ["child"])
    process.join()
    assert counted.calls == ("before", "parent")
    assert kept == []

    @dataclass
    class Fields(DataclassForkMixin):
        size: int

        def __before_fork__(self):
            self.size += 1

    of_fields, together = Fields(1), WeakCallbacks()
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert of_fields.size == 2
    together.add_hook(of_fields.__before_fork__)
    together.run()
    assert of_fields.size == 3
    seen = weakref.ref(of_fields)
    del of_fields
    together.run()
    assert seen() is None


def test_names_below_flavors():
    from energize.energon.flavors.webdataset.structs import (
        DatasetSubset,
        FilteredSample,
        ShardInfo,
        WebdatasetInfo,
        WebdatasetSplits,
    )

    assert DatasetSubset(range=(0.25, 0.5)).compute_subset(10) == (2, 5)
    assert DatasetSubset(range=(0, 1)).config() == {
        "range": (0, 1),
        "absolute_range": None,
    }
    assert WebdatasetInfo(shard_counts={"a.tar": 3}).energon_version is None
    assert WebdatasetSplits(split_parts={"train": ["a.tar"]}).exclude == []
    assert ShardInfo("a.tar", "a.tar", 3).count == 3
    assert FilteredSample.__required_keys__ >= {"__key__", "__sources__"}


def test_what_stands_nowhere_in_energon_is_not_imported():
    for path in (
        "wrappers.blend",
        "flavors.webdataset.anything",
        "epathlib.epath.more",
    ):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"energize.energon.{path}")
    with pytest.raises(ImportError):
        from energize.energon.wrappers import BlendDatasets  # noqa: F401


def test_typed_values_of_plain_ones(tmp_path):
    from energize.energon.dataset_config import load_config
    from energize.energon.eyaml import load_yaml

    from energize.energon import typed_converter

    raw = {
        "size": [1, 2],
        "names": ["x"],
        "inner": {"size": [3, 4], "names": [], "kind": "b"},
    }
    made = typed_converter.JsonParser().raw_to_typed(raw, Box)
    assert made == Box((1, 2), {"x"}, inner=Box((3, 4), set(), "b"))
    told = typed_converter.to_json_object(made)
    assert told == {**raw, "kind": "a", "inner": {**raw["inner"], "inner": None}}
    for wrong in ({"size": [1, "2"]}, {"kind": "c"}, {"more": 1}, {"names": object()}):
        with pytest.raises(typed_converter.JsonValueError):
            typed_converter.JsonParser().raw_to_typed({**raw, **wrong}, Box)
    assert (
        typed_converter.JsonParser(strict=False).raw_to_typed({**raw, "more": 1}, Box)
        == made
    )
    path = tmp_path / "box.yaml"
    path.write_text("size: [1, 2]\nnames: [x]\n")
    assert load_config(path, default_type=Box, default_kwargs={"kind": "b"}).kind == "b"
    assert load_yaml(path.read_text()) == {"size": [1, 2], "names": ["x"]}
    named = {"__module__": "megatron.energon", "__class__": "DatasetLoader"}
    asked = {"default_type": energon.DatasetLoader}
    assert isinstance(
        load_config({**named, "path": tmp_path}, **asked), energon.DatasetLoader
    )
    popen = {
        "__module__": "subprocess",
        "__class__": "Popen",
        "args": ["touch", f"{tmp_path}/mark"],
    }
    for kind in (Box, energon.DatasetLoader, object):
        with pytest.raises(
            typed_converter.JsonValueError, match=r"is not a .*\. Name a "
        ):
            load_config(popen, default_type=kind)
    assert not (tmp_path / "mark").exists()
    for unknown in ({"__class__": "Nothing"}, {"__module__": "not_imported"}):
        with pytest.raises(typed_converter.JsonValueError, match="Import the module"):
            load_config({**named, **unknown}, **asked)


def test_an_index_written_by_hand_is_read(tmp_path):
    from energize.energon.flavors.webdataset.indexing import (
        DuplicateSampleKeyError,
        SqliteIndexReader,
        SqliteIndexWriter,
    )
    from energize.energon.flavors.webdataset.prepare import IndexSample, IndexSamplePart

    folder = captions(tmp_path / "captions", 12)
    with SqliteIndexReader(folder / ".nv-meta" / "index.sqlite") as reader:
        samples, parts = (
            list(reader.list_all_samples()),
            list(reader.list_all_sample_parts()),
        )
        assert reader.get_sample_count() == len(samples) == 12
        key = samples[3][0]
        place, part = (
            reader.get_sample_pointer_by_key(key),
            reader.get_sample_part(key, "txt"),
        )
        assert (
            place.byte_offset
            < part.raw_byte_offset
            < place.byte_offset + place.byte_size
        )
        assert reader.get_total_size() == sum(size for _, size, _ in samples)
        assert len(parts) == 24
        with pytest.raises(KeyError, match="nowhere"):
            reader.get_sample_pointer_by_key("nowhere")
    path = tmp_path / "own" / "index.sqlite"
    with SqliteIndexWriter(path) as writer:
        where = {
            "tar_file_id": 0,
            "byte_offset": place.byte_offset,
            "byte_size": place.byte_size,
        }
        writer.append_samples([IndexSample(sample_key="a", sample_index=0, **where)])
        for keys in (["b", "a"], ["c", "c"]):
            rows = [
                IndexSample(sample_key=each, sample_index=1, **where) for each in keys
            ]
            with pytest.raises(DuplicateSampleKeyError) as found:
                writer.append_samples(rows)
            assert found.value.sample_key == keys[1]
        lies = {
            "content_byte_offset": part.raw_byte_offset,
            "content_byte_size": part.raw_byte_size,
        }
        row = IndexSamplePart(tar_file_id=0, sample_index=0, part_name="txt", **lies)
        writer.append_parts([row])
    with pytest.raises(energize.ConfigError, match="closed"):
        writer.append_parts([])
    with SqliteIndexReader(path) as reader:
        assert list(reader.list_all_samples()) == [("a", place.byte_size, 0)]
        assert reader.get_sample_part("a", "txt") == (0, *part[1:])


def test_views_keep_positions_apart_from_descriptions():
    dataset = ListSource(LETTERS)
    views = [
        energon.RankView(dataset, WorkerConfig(rank=0, world_size=1)) for _ in range(2)
    ]
    first = iter(views[0])
    assert [next(first) for _ in range(3)] == list("abc")
    assert next(iter(views[0])) == "d"
    assert next(iter(views[1])) == "a"
    assert list(dataset) == list(LETTERS)
    assert views[0] == views[1]
    assert vars(dataset).keys() == vars(ListSource(LETTERS)).keys() | {
        name for name in vars(dataset) if name in dir(type(dataset))
    }


def test_a_view_is_its_dataset_as_an_input_and_in_a_loader():
    shuffled = energize.ShuffleDataset(ListSource(range(20)))
    view = energon.RankView(shuffled, WorkerConfig(rank=0, world_size=1))
    plain = energize.get_loader(energize.BatchDataset(shuffled, 3, list))
    seen = energize.get_loader(energize.BatchDataset(view, 3, list))
    assert list(plain) == list(seen)
    state = plain.state_dict()
    seen.load_state_dict(state)
    loader = get_savable_loader(BatchDataset(view, 3, list))
    loader.load_state_dict(state)
    assert list(islice(loader, 2)) == list(islice(seen, 2))
    assert view.consumed(5).tolist() == [5]
    assert view.describe() == shuffled.describe()


NODES = {
    "BatchDataset": lambda made, data: made(data, 3, list),
    "BlendDataset": lambda made, data: made((data, 1), stop="all_exhausted"),
    "ConcatDataset": lambda made, data: made(data, data),
    "EpochizeDataset": lambda made, data: made(data, 4),
    "FilterDataset": lambda made, data: made(data, str.isalpha),
    "GcDataset": lambda made, data: made(data, every_n_iter=5),
    "IterMapDataset": lambda made, data: made(data, iter),
    "LimitDataset": lambda made, data: made(data, 5),
    "LogSampleDataset": lambda made, data: made(data, mode="train"),
    "MapDataset": lambda made, data: made(dataset=data, map_fn=str.upper),
    "RepeatDataset": lambda made, data: made(data, 2),
    "ShuffleBufferDataset": lambda made, data: made(data, 4),
}


@pytest.mark.parametrize("name", NODES)
def test_the_datasets_of_the_face_read_what_those_of_energize_read(name):
    config = WorkerConfig(rank=0, world_size=1)
    data = ListSource(LETTERS, name="letters")
    plain = NODES[name](getattr(energize, name), data)
    view = NODES[name](getattr(energon, name), energon.RankView(data, config))
    assert isinstance(view, energon.BaseWrapperDataset)
    assert view.dataset == plain
    assert list(view) == list(plain)
    assert list(pickle.loads(pickle.dumps(view))) == list(plain)


def test_importing_the_face_changes_nothing_elsewhere():
    program = """
import sys
finders = list(sys.meta_path)
import energize
assert sys.meta_path == finders
assert not [name for name in sys.modules if name.startswith("energize.energon")]
dataset = energize.MapDataset(energize.ListSource("abc"), str.upper)
before = len(dataset), list(dataset)
import energize.energon
from torch.utils.data import DataLoader, IterableDataset
assert not isinstance(dataset, IterableDataset)
assert not isinstance(energize.ListSource("a"), IterableDataset)
assert (len(dataset), list(dataset)) == before
assert [batch for batch in DataLoader(dataset, batch_size=2)] == [["A", "B"], ["C"]]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("packed", [False, True])
def test_samples_of_a_generator_know_their_batch(
    tmp_path, world_size, num_workers, packed
):
    class Twice(energon.DefaultTaskEncoder):
        @energon.stateless(restore_seeds=True)
        def encode_sample(self, sample):
            for copy_ in "ab":
                number = f"{sample.caption} {copy_} {self.current_batch_index}"
                yield energize.TextSample.derive_from(sample, text=number)

    class Packing(Twice):
        def select_samples_to_pack(self, samples):
            return [samples]

        @energon.stateless
        def pack_selected_samples(self, samples):
            text = str({int(each.text.split()[-1]) for each in samples})
            return energize.TextSample.derive_from(samples[0], text=text)

    folder = captions(tmp_path / "captions", 25)
    options = {
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "batch_size": 3,
    }
    if packed:
        options["packing_buffer_size"] = 2

    def made(rank):
        config = WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers)
        encoder = Packing() if packed else Twice()
        dataset = energon.get_train_dataset(
            folder, worker_config=config, task_encoder=encoder, **options
        )
        return get_savable_loader(dataset)

    for rank in range(world_size):
        loader = made(rank)
        batches = list(islice(loader, 9))
        state = loader.state_dict()
        found = [
            {text.split()[-1].strip("{}") for text in batch.text} for batch in batches
        ]
        assert found == [{str(number)} for number in range(9)]
        for batch in batches[:3]:
            assert loader.restore_sample(batch.__restore_key__).text == batch.text
        rest = [batch.text for batch in islice(loader, 3)]
        loader.close()
        other = made(rank)
        other.restore_state_rank(state)
        assert [batch.text for batch in islice(other, 3)] == rest
        other.close()


def test_aux_as_energon_keeps_it(tmp_path):
    from energize.energon.metadataset.metadataset_v2 import (
        AuxDatasetReference,
        AuxFilesystemReference,
    )

    folder = captions(tmp_path / "captions", 4)
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("a")
    plain = AuxFilesystemReference(fs_path=str(files))
    prepared = AuxDatasetReference(path=str(folder))
    entry = {
        "path": str(folder),
        "aux": {"plain": plain, "prepared": prepared, "text": str(folder)},
    }
    named = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (found,) = energize.energon.load_dataset(
        {**named, "splits": {"train": entry}}
    ).traverse(split_part="train")
    stores = {name: str(path) for name, path in found.aux.items()}
    assert stores == {"plain": str(files), "prepared": str(folder), "text": str(folder)}
    assert plain.get_file_store()["a.txt"][0] == b"a"
    assert prepared.get_file_store().get_path() == str(folder)
    entry["aux"] = {"wrong": {"paths": "x"}}
    with pytest.raises(energize.MetadatasetError, match="aux"):
        energize.energon.load_dataset({**named, "splits": {"train": entry}})


def test_commands_are_click_commands(tmp_path):
    from energize.energon.tools.prepare import command
    from energize.energon.tools.prepare_media import command as prepare_media

    (tmp_path / "lines.jsonl").write_text('{"text": 1}\n\n{"text": 2}\n')
    done = CliRunner().invoke(
        command, [str(tmp_path / "lines.jsonl")], catch_exceptions=False
    )
    assert done.exit_code == 0
    assert "Found 2 samples" in done.stdout
    assert (tmp_path / "lines.jsonl.idx").exists()
    assert prepare_media.name == "prepare-media"
    with pytest.raises(ImportError, match="command"):
        from energize.energon.tools.mount import command as mount  # noqa: F401
