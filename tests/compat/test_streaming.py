"""MosaicML Streaming's words: folders, quotas of an epoch, composed batches, states.

The examples of its page are in `test_documents.py`.
"""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from itertools import chain, islice
from types import ModuleType

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import BatchEncoding

from energize import FailurePolicy, ListSource, WorkerConfig, errors, get_loader
from energize.compat.streaming import (
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    register_with_mosaicml,
    streams_registry,
)
from tests.support.mds import numbered_mds, write_mds
from tests.support.prepared import captions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("streams")
    numbered_mds(root / "stream_A", 100)
    numbered_mds(root / "stream_B", 200, start=1000, compression="zstd", per_shard=50)
    numbered_mds(root / "splits" / "val", 7)
    captions(root / "captions", 20)
    return root


def mixed(folder, **options) -> StreamingDataset:
    quotas = {"stream_A": 3, "stream_B": 1}
    streams = [
        Stream(local=str(folder / name), proportion=p) for name, p in quotas.items()
    ]
    settings = {"batch_size": 8, "epoch_size": 160, "batching_method": "stratified"}
    return StreamingDataset(streams=streams, **{**settings, "shuffle": True, **options})


def of_ranks(monkeypatch, ranks, make, *arguments, **options) -> list:
    """What is made on each rank, as torchrun would have it made."""
    made = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        made.append(make(*arguments, **options))
    return made


def numbers_of(samples) -> list[int]:
    return [int(each["number"]) for each in samples]


def joined(parts) -> list:
    return list(chain.from_iterable(parts))


class Numbers(Stream):
    """What a subclass may change: what it reads."""

    def samples(self, *, split="", seed=0):
        return ListSource(range(8), seed=seed)


def test_what_a_stream_reads(folder, tmp_path):
    assert list(StreamingDataset(streams=[Numbers(local="anywhere")])) == list(range(8))
    prepared = StreamingDataset(local=str(folder / "captions"))
    sample = next(iter(prepared))
    assert sample["txt"] == "caption 0"
    assert isinstance(sample["jpg"], Image.Image)
    assert len(prepared) == 15
    assert len(StreamingDataset(local=str(folder / "captions"), split="val")) == 5
    there = str(folder / "splits")
    for paths in (
        {"remote": there},
        {"remote": f"file://{there}", "local": str(tmp_path)},
    ):
        assert len(StreamingDataset(**paths, split="val")) == 7, paths
    assert (
        len(StreamingDataset(streams=[Stream(local=there, split="val")], split="train"))
        == 7
    )


def test_what_is_refused(folder, tmp_path):
    there, a = str(folder / "splits"), str(folder / "stream_A")
    one, other = Stream(local=a, proportion=1), Stream(local=a, choose=1)
    remote = {"remote": "s4://a/b", "local": str(tmp_path)}
    for given, error, told in (
        ({}, errors.ConfigError, "pass either streams="),
        ({"local": "a", "streams": [one]}, errors.ConfigError, "pass either streams="),
        (
            {"local": a, "batching_method": "stratified"},
            errors.ConfigError,
            "needs batch_size",
        ),
        (
            {"local": a, "stream_name": "stram"},
            errors.ConfigError,
            "'stram' is .*mean 'stream'",
        ),
        ({"local": a, "stream_config": {"arg1": 1}}, TypeError, "unexpected .*arg1"),
        (
            {"streams": [one], "stream_config": {"repeat": 2}},
            errors.ConfigError,
            "pass either streams=",
        ),
        ({"local": a, "shuffle_seed": -1}, errors.ConfigError, "shuffle_seed.*got -1"),
        ({"local": a, "batch_size": 0}, errors.ConfigError, "batch_size.*got 0"),
        ({"streams": [one, other]}, errors.WeightError, r"stream 1 \(.*\) has choose"),
        (
            remote,
            errors.ConfigError,
            "s4://a/b/index.json: s4:// is not a known scheme",
        ),
        (
            {"local": "a" * 300},
            errors.DatasetError,
            "cannot be read .File name too long",
        ),
        (
            {"local": there, "split": "train"},
            errors.DatasetNotFoundError,
            "no data at .*split 'train'",
        ),
    ):
        with pytest.raises(error, match=told):
            StreamingDataset(**given)
    with pytest.raises(RuntimeError, match="no data at"):  # the class that it is there
        StreamingDataset(local=str(tmp_path))
    write_mds(tmp_path / "empty", [], {"number": "int"})
    with pytest.raises(RuntimeError, match="have no samples"):
        StreamingDataset(local=str(tmp_path / "empty"))
    with pytest.raises(errors.WeightError, match="exactly one of proportion"):
        Stream(local="a", proportion=1, repeat=2)
    with pytest.raises(errors.WeightError, match=r"Stream 'a': repeat.*got -1"):
        Stream(local="a", repeat=-1)
    with pytest.raises(errors.ConfigError, match="neither local nor remote"):
        Stream(proportion=1)


def test_batches(folder, caplog):
    """Each holds the shares; without shuffle streams come in turn, in their order."""
    numbers = numbers_of(mixed(folder))
    for start in range(0, 160, 8):
        assert sum(number >= 1000 for number in numbers[start : start + 8]) == 2
    by_device = numbers_of(mixed(folder, batching_method="device_per_stream"))
    assert all(
        len({n >= 1000 for n in by_device[k : k + 8]}) == 1 for k in range(0, 160, 8)
    )
    numbers = numbers_of(
        mixed(folder, batching_method="random", shuffle=False, epoch_size=80)
    )
    assert numbers == sorted(numbers)
    assert "streams are read one after the other" in caplog.text


def test_epochs(folder):
    dataset = mixed(folder)
    first, second = numbers_of(dataset), numbers_of(dataset)
    assert first != second
    assert (
        numbers_of(mixed(folder)) == first != numbers_of(mixed(folder, shuffle_seed=1))
    )
    assert numbers_of(dataset.samples.open(state={"position": 160})) == second
    dataset = mixed(folder)
    assert numbers_of(islice(dataset, 9)) == first[:9]
    copied = pickle.loads(pickle.dumps(dataset))
    assert numbers_of(copied) == numbers_of(dataset) == second


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream"])
def test_global_batches_on_any_number_of_ranks(folder, monkeypatch, method):
    for size in (160, 166):
        options = {"epoch_size": size, "batching_method": method}
        (one,) = of_ranks(monkeypatch, 1, mixed, folder, **options)
        whole = numbers_of(one)
        for ranks in (2, 4):
            own = 8 // ranks
            datasets = of_ranks(
                monkeypatch, ranks, mixed, folder, batch_size=own, **options
            )
            parts = [numbers_of(each) for each in datasets]
            assert list(map(len, datasets)) == list(map(len, parts))
            assert len({-(-len(part) // own) for part in parts}) == 1
            for batch in range(len(whole) // 8):
                shares = [part[batch * own : (batch + 1) * own] for part in parts]
                assert joined(shares) == whole[8 * batch : 8 * batch + 8], (
                    size,
                    ranks,
                    batch,
                )
            assert sorted(joined(parts)) == sorted(whole)


def test_a_rest_that_not_every_rank_gets_something_of(folder, monkeypatch):
    def ranks_of(**options):
        given = {"batch_size": 2, "epoch_size": 163, **options}
        return of_ranks(monkeypatch, 4, mixed, folder, **given)

    plain = {"batch_size": None, "batching_method": "random"}
    for options in ({}, plain | {"drop_last": False}):
        parts = [numbers_of(each) for each in ranks_of(**options)]
        assert list(map(len, parts)) == [41] * 4
        assert (
            len(set(chain(*(part[-1:] for part in parts)))) == 3
        )  # one of them comes twice
    for options in ({"drop_last": True}, plain):
        assert [len(numbers_of(each)) for each in ranks_of(**options)] == [40] * 4, (
            options
        )


def test_states(folder):
    """Exact after any sample, however far has been read ahead."""
    for options in ({}, {"batch_size": None, "batching_method": "random"}):
        whole = mixed(folder, **options)
        expected = numbers_of(whole) + numbers_of(whole)
        for taken in (0, 1, 8, 13, 70, 159, 160):
            dataset, resumed = (mixed(folder, **options) for _ in range(2))
            assert numbers_of(islice(dataset, taken)) == expected[:taken]
            resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
            assert numbers_of(resumed) == expected[taken:160], taken
            assert numbers_of(resumed) == expected[160:], taken
    with pytest.raises(errors.StateError):
        mixed(folder).load_state_dict({})


@pytest.mark.jobs
def test_the_state_of_another_dataset_is_an_error_of_the_next_iteration(folder):
    """Trainers load the state of a checkpoint before a callback can replace it."""
    state = mixed(folder).state_dict(num_samples=40)
    swapped = mixed(folder, epoch_size=200)
    first = swapped.state_dict(0, False)
    difference = r"(?s)was 160, is 200.*the state$"
    for read in (list, StreamingDataset.state_dict, partial(loaded, num_workers=2)):
        swapped.load_state_dict(state)
        with pytest.raises(errors.StateMismatchError, match=difference):
            read(swapped)
    swapped.load_state_dict(first)
    assert numbers_of(swapped) == numbers_of(mixed(folder, epoch_size=200))
    swapped.load_state_dict(first | {"shuffle_seed": 5})
    with pytest.raises(errors.StateMismatchError, match=r"was 5 in the .*, is 9176"):
        next(iter(swapped))


def test_the_numbers_of_a_state_decide_the_position(folder, caplog):
    """Programs edit them, or write a state of them alone."""
    whole = mixed(folder)
    epochs = [numbers_of(whole) for _ in range(2)]
    state = mixed(folder).state_dict(num_samples=40)
    numbers = {
        "epoch": 0,
        "sample_in_epoch": 40,
        "num_canonical_nodes": 1,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    assert {name: state[name] for name in numbers} == numbers
    edited = {"epoch": 1, "sample_in_epoch": 16, "num_canonical_nodes": 6}
    for loaded_state in (state | edited, numbers | edited):
        dataset = mixed(folder)
        dataset.load_state_dict(json.loads(json.dumps(loaded_state)))
        assert numbers_of(dataset) == epochs[1][16:]
        assert dataset.state_dict(8, False) == state | edited | {
            "sample_in_epoch": 24,
            **{
                name: dataset.state_dict(8, False)[name] for name in ("cursor", "check")
            },
        }
    assert caplog.text.count("no fields of energize") == 1
    for damaged in ({"sample_in_epoch": -1}, {"epoch": "0"}):
        with pytest.raises(errors.StateError):
            mixed(folder).load_state_dict(numbers | damaged)


def test_states_of_ranks(folder, monkeypatch):
    """They are the same on all, for any number; what was padded is the end of an
    epoch."""
    whole = numbers_of(mixed(folder))
    state, later = (mixed(folder).state_dict(num_samples=taken) for taken in (40, 48))
    ranks_of = partial(of_ranks, monkeypatch, 4, mixed, folder, batch_size=2)
    datasets = ranks_of()
    for dataset in datasets:
        dataset.load_state_dict(state)
    parts = [numbers_of(dataset) for dataset in datasets]
    rest = [part[start : start + 2] for start in range(0, 30, 2) for part in parts]
    assert joined(rest) == whole[40:]
    assert datasets[0].state_dict(num_samples=8, from_beginning=False) == later
    ends = ranks_of(epoch_size=166)
    assert len({len(numbers_of(each)) for each in ends}) == 2
    loaders = [
        StreamingDataLoader(each, batch_size=2) for each in ranks_of(epoch_size=166)
    ]
    assert len({len(list(each)) for each in loaders}) == 1
    assert len({json.dumps(each.state_dict()) for each in [*ends, *loaders]}) == 1
    for dataset, again in zip(
        *(ranks_of(epoch_size=163) for _ in range(2)), strict=True
    ):
        first, second, start = (
            numbers_of(dataset),
            numbers_of(dataset),
            again.state_dict(),
        )
        for taken in (39, 40, 41):
            again.load_state_dict(start)
            numbers_of(islice(again, taken))
            again.load_state_dict(again.state_dict())
            assert numbers_of(again) == first[taken:], taken
            assert numbers_of(again) == second, taken
        again.load_state_dict(start)
        again.load_state_dict(again.state_dict(num_samples=21 * 8))
        assert again.next_epoch == 0
        assert again.state_dict() == again.state_dict(num_samples=21 * 8)
        assert numbers_of(again) == []  # loops of programs count the epoch that ended
        assert again.next_epoch == 1
        assert numbers_of(again) == second


def loaded(dataset, **options) -> list[list[int]]:
    return [
        batch["number"].tolist()
        for batch in DataLoader(dataset, batch_size=8, **options)
    ]


def test_data_loaders(folder):
    plain, dataset = (mixed(folder, epoch_size=165) for _ in range(2))
    epochs = [numbers_of(plain) for _ in range(3)]
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    for epoch in epochs[:2]:
        batches = [batch["number"].tolist() for batch in loader]
        assert joined(batches) == epoch
        assert list(map(len, batches)) == [8] * 20 + [5]
    with pytest.raises(errors.StateError, match=r"state_dict\(num_samples=batches"):
        dataset.state_dict()
    dataset = mixed(folder, epoch_size=165)
    assert len(list(islice(DataLoader(dataset, batch_size=8, num_workers=2), 3))) == 3
    state = dataset.state_dict(num_samples=24)
    assert joined(loaded(dataset)) == epochs[1]
    dataset.load_state_dict(state)
    assert joined(loaded(dataset, num_workers=2)) == epochs[0][24:]
    assert joined(loaded(dataset)) == epochs[1]
    dataset.load_state_dict(plain.state_dict(num_samples=20))
    assert sorted(joined(loaded(dataset, num_workers=2))) == sorted(epochs[2][20:])


def test_get_loader(folder):
    """It delivers the batches of the dataset, and goes on from its state."""
    plain, config = mixed(folder), WorkerConfig(rank=0, world_size=1)
    loader, again = (
        get_loader(mixed(folder).batches(numbers_of), worker_config=config)
        for _ in range(2)
    )
    assert joined(loader) == numbers_of(plain)
    again.load_state_dict(loader.state_dict())
    assert joined(again) == numbers_of(plain)


class Doubled(StreamingDataset):
    """As most programs extend it: what is delivered is what `__getitem__` returns."""

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        if isinstance(sample, dict):
            sample = {"doubled": 2 * int(sample["number"]), "at": int(at)}
        return sample


def doubled(folder, **options) -> Doubled:
    streams = [Stream(local=str(folder / name)) for name in ("stream_A", "stream_B")]
    return Doubled(streams=streams, **{"batch_size": 4, "shuffle": True, **options})


def test_every_sample_is_what_getitem_of_a_subclass_returns(folder, monkeypatch):
    dataset = doubled(folder)
    stored = [*range(100), *range(1000, 1200)]
    for at in (0, 99, 100, -1, 299):
        assert dataset[at]["doubled"] == 2 * stored[at]
    assert [each["doubled"] for each in dataset[-3::2]] == [2 * 1197, 2 * 1199]
    assert [each["at"] for each in dataset[[5, 250]]] == [5, 250]
    assert [each["at"] for each in Subset(dataset, [7, 299])] == [7, 299]
    with pytest.raises(IndexError, match=r"sample 300 is out of range: .* 300 samples"):
        dataset[300]
    samples = list(dataset)
    assert sorted(each["at"] for each in samples) == list(range(300))
    assert all(each["doubled"] == 2 * stored[each["at"]] for each in samples)
    loader = StreamingDataLoader(doubled(folder), batch_size=4, num_workers=2)
    batches = [batch["doubled"].tolist() for batch in loader]
    assert joined(batches) == [each["doubled"] for each in samples]
    ranks = [
        [each["at"] for each in dataset]  # the last batch has fewer samples than ranks
        for dataset in of_ranks(monkeypatch, 4, doubled, folder, epoch_size=289)
    ]
    assert [len(each) for each in ranks] == [73] * 4
    assert len(set(joined(ranks))) == 289


def test_a_damaged_sample_is_substituted_before_a_subclass_sees_it(
    folder, tmp_path, caplog
):
    samples = [{"number": n, "text": f"text {n}!"} for n in range(20)]
    write_mds(tmp_path / "damaged", samples, {"number": "int", "text": "str"})
    shard = tmp_path / "damaged" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b"text 7!", b"\xff" * 7))

    def damaged(**options):
        return Doubled(local=str(tmp_path / "damaged"), batch_size=4, **options)

    delivered = list(damaged())
    assert len(delivered) == 20
    assert all(
        each["at"] != 7 and each["doubled"] == 2 * each["at"] for each in delivered
    )
    assert caplog.text.count("cannot be decoded") == 1
    rows = joined(get_loader(damaged().batches(), worker_config=WorkerConfig()))
    assert numbers_of(rows) == [each["at"] for each in delivered]
    assert "batches() reads samples as they are stored" in caplog.text
    loader = StreamingDataLoader(damaged(), batch_size=4, num_workers=2)
    assert joined(batch["at"].tolist() for batch in loader) == [
        each["at"] for each in delivered
    ]
    for refusing in (
        damaged(failures=FailurePolicy(budget=0)),
        damaged(failures=FailurePolicy(budget=0), shuffle=True),
    ):
        with pytest.raises(errors.FailureBudgetError, match="1 samples failed"):
            list(refusing)
    assert damaged()[7]["doubled"] != 14
    with pytest.raises(errors.FailureBudgetError, match="1 samples failed"):
        damaged(failures=FailurePolicy(budget=0))[7]


def test_what_a_program_looks_at(folder):
    dataset = doubled(folder)
    assert (dataset.num_samples, dataset.size, dataset.epoch_size) == (300, 300, 300)
    assert dataset.samples_per_stream.tolist() == [100, 200]
    assert dataset.num_shards == len(dataset.shards)
    assert sum(each.samples for each in dataset.shards) == 300
    other = StreamingDataset(
        streams=[Numbers(local="anywhere"), Stream(local=str(folder / "captions"))]
    )
    assert [len(shard) for shard in other.shards[:1]] == [8]
    assert sum(map(len, other.shards)) == other.size == 23
    assert other.spanner[8] == (1, 0)
    assert dataset.next_epoch == 0
    list(dataset)
    assert dataset.next_epoch == 1
    dataset.next_epoch = 0
    assert [e["at"] for e in dataset] == [e["at"] for e in doubled(folder)]
    options = {"choose": 50}, {"repeat": 0.5}
    streams = [Stream(local=str(folder / "stream_A"), **each) for each in options]
    for _ in range(2):  # a stream keeps what it was given
        made = StreamingDataset(streams=streams, batch_size=5)
        resolved = [
            (each.proportion, each.repeat, each.choose) for each in made.streams
        ]
        assert resolved == [(0.5, 0.5, 50)] * 2
    stream = Stream(local=str(folder / "stream_A"), choose=50)
    stream.choose = 70  # what is set before a dataset is made counts
    assert StreamingDataset(streams=[stream]).epoch_size == stream.choose == 70
    with pytest.raises(ValueError, match="exactly one of proportion"):
        Stream(local="a", repeat=1, choose=1)


def test_arguments_without_use_are_said_once_and_unknown_ones_refused(
    folder, caplog, monkeypatch
):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level("INFO", "energize")
    for _ in range(2):
        made = doubled(
            folder, num_canonical_nodes=2, shuffle_algo="py1e", predownload=None
        )
        assert made.num_canonical_nodes == 2
    said = [
        each.getMessage()
        for each in caplog.records
        if "has no effect" in each.getMessage()
    ]
    assert [each.split("=")[0] for each in said] == [
        "StreamingDataset: num_canonical_nodes",
        "StreamingDataset: shuffle_algo",
    ]
    with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
        doubled(folder, shufle=True)

    class Downloading(Stream):
        def prepare_shard(self, shard):
            raise AssertionError

    StreamingDataset(streams=[Downloading(local=str(folder / "stream_A"))])
    assert "Downloading.prepare_shard is never called" in caplog.text


def test_without_shuffle_every_epoch_is_the_same(folder):
    for method in ("random", "stratified", "per_stream", "device_per_stream"):
        dataset = doubled(folder, shuffle=False, batching_method=method)
        first, second = ([each["at"] for each in dataset] for _ in range(2))
        assert first == second, method
    dataset = doubled(folder, shuffle=False, epoch_size=100)  # quotas choose others
    assert [each["at"] for each in dataset] != [each["at"] for each in dataset]


def test_replication(folder, monkeypatch):
    """So many ranks in a row get the same samples."""
    datasets = of_ranks(monkeypatch, 4, doubled, folder, replication=2)
    parts = [[each["at"] for each in dataset] for dataset in datasets]
    assert parts[0] == parts[1]
    assert parts[2] == parts[3]
    assert sorted(parts[0] + parts[2]) == list(range(300))
    with pytest.raises(
        errors.ConfigError, match="replication=3 does not divide the 4 ranks"
    ):
        doubled(folder, replication=3)


def test_the_state_of_a_streaming_data_loader(folder):
    whole = [
        batch["at"].tolist()
        for batch in StreamingDataLoader(doubled(folder), batch_size=4)
    ]
    for before, after in ((0, 2), (2, 0), (2, 3)):
        loader = StreamingDataLoader(doubled(folder), batch_size=4, num_workers=before)
        begun = [batch["at"].tolist() for batch in islice(loader, 7)]
        state = json.loads(json.dumps(loader.state_dict()))
        other = StreamingDataLoader(doubled(folder), batch_size=4, num_workers=after)
        other.load_state_dict(state)
        assert begun + [batch["at"].tolist() for batch in other] == whole
        assert other.state_dict() == doubled(folder).state_dict(num_samples=300)
    with pytest.raises(
        errors.ConfigError, match="needs a StreamingDataset to have a state"
    ):
        StreamingDataLoader([1, 2]).state_dict()
    for size in (None, 2):
        loader = StreamingDataLoader(
            doubled(folder, batch_size=size), batch_size=4, num_workers=2
        )
        with pytest.raises(errors.StateError, match="the same batch_size"):
            loader.state_dict()


class Packed(StreamingDataLoader):
    def _get_batch_size(self, batch):
        return self.batch_size


def test_a_loader_counts_batches_by_its_hook(folder):
    """A packed batch has one row, whatever number of samples it holds."""

    def packed(samples):
        return {"ids": torch.tensor([[each["at"] for each in samples]])}

    def loader(kind):
        return kind(doubled(folder), batch_size=4, collate_fn=packed, num_workers=2)

    whole = [batch["ids"].tolist() for batch in loader(Packed)]
    for kind, taken in ((Packed, 12), (StreamingDataLoader, 3)):
        begun = loader(kind)
        assert len(list(islice(begun, 3))) == 3
        assert begun.num_samples_yielded == taken
    resumed = loader(Packed)
    begun = loader(Packed)
    list(islice(begun, 3))
    resumed.load_state_dict(begun.state_dict())
    assert [batch["ids"].tolist() for batch in resumed] == whole[3:]
    sizes = [
        (BatchEncoding({"ids": torch.zeros(5, 2)}), 5),
        (torch.zeros(3, 2), 3),
        ([torch.zeros(2, 2), torch.zeros(9)], 2),
    ]
    plain = loader(StreamingDataLoader)
    assert [plain._get_batch_size(batch) for batch, _ in sizes] == [
        size for _, size in sizes
    ]


def test_a_dataset_is_one_of_theirs_once_it_is_registered(folder, monkeypatch):
    """Their StreamingDataLoader returns None as the state of any other dataset."""

    class Theirs(IterableDataset):
        pass

    module = ModuleType("streaming.base.dataset")
    module.StreamingDataset = Theirs
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert not isinstance(doubled(folder), Theirs)
    register_with_mosaicml()
    assert isinstance(doubled(folder), Theirs)
    assert not isinstance(DataLoader([1]), Theirs)


def test_kinds_of_streams_by_entry_points_and_decorators(folder, monkeypatch, tmp_path):
    package = tmp_path / "kinds-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kinds\nVersion: 1\n"
    )
    module = f"{__name__}:Named"
    (package / "entry_points.txt").write_text(
        f"[streaming_streams_registry]\nby_entry_point = {module}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    @streams_registry.register("by_decorator")
    class Decorated(Named):
        pass

    for name, kind in (("by_entry_point", Named), ("by_decorator", Decorated)):
        (stream,) = StreamingDataset(
            local=str(folder / "stream_A"),
            stream_name=name,
            stream_config={"label": "x"},
        ).streams
        assert (type(stream), stream.label) == (kind, "x")
        assert streams_registry.get(name) is kind
    with pytest.raises(ValueError, match="'by_nobody' is not one of"):
        streams_registry.get("by_nobody")


class Named(Stream):
    def __init__(self, *, label, **options):
        super().__init__(**options)
        self.label = label


@pytest.mark.parametrize("allowed", [False, True])
def test_pickles_are_read_where_they_are_allowed(tmp_path, allowed):
    write_mds(
        tmp_path / "a",
        [{"value": pickle.dumps({n})} for n in range(3)],
        {"value": "pkl"},
    )
    if allowed:
        dataset = StreamingDataset(local=str(tmp_path / "a"), allow_unsafe_types=True)
        assert [each["value"] for each in dataset] == [{0}, {1}, {2}]
    else:
        with pytest.raises(ValueError, match="unsafe type"):
            StreamingDataset(local=str(tmp_path / "a"))
