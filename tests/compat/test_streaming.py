"""MosaicML Streaming's vocabulary, and the examples of its page on mixing."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from energize import ListSource, WorkerConfig, get_loader
from energize.compat import streaming
from energize.compat.streaming import Stream, StreamingDataset, StreamsRegistry, streams_registry
from energize.errors import (
    ConfigError,
    DatasetNotFoundError,
    StateError,
    StateMismatchError,
    WeightError,
)
from tests.support.mds import numbered_mds
from tests.support.prepared import captions

EXAMPLES = Path(__file__).parents[1] / "documents" / "mosaicml_mixing"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("streams")
    numbered_mds(root / "stream_A", 100)
    numbered_mds(root / "stream_B", 200, start=1000, compression="zstd", per_shard=50)
    numbered_mds(root / "splits" / "val", 7)
    captions(root / "captions", 20)
    return root


def run(folder: Path, *names: str, **supplied) -> dict:
    """Run examples one after the other; returns their names."""
    found = {name: getattr(streaming, name) for name in streaming.__all__} | supplied
    for name in names:
        text = (EXAMPLES / f"{name}.py").read_text()
        text = text.replace(
            "from streaming.base.stream import", "from energize.compat.streaming import"
        )
        text = text.replace("'/tmp/", f"'{folder}/").replace(
            "'/local/path'", f"'{folder}/stream_A'"
        )
        # What the page leaves to the reader: the custom stream takes its argument.
        text = text.replace(
            "    pass\n",
            "    def __init__(self, arg1, **kwargs):\n"
            "        super().__init__(**kwargs)\n"
            "        self.arg1 = arg1\n",
        )
        exec(compile(text, name, "exec", dont_inherit=True), found)
    return found


def drawn(dataset: StreamingDataset) -> tuple[int, int]:
    """Samples of streams A and B in the next epoch."""
    numbers = [each["number"] for each in dataset]
    return sum(number < 1000 for number in numbers), sum(number >= 1000 for number in numbers)


def test_example_proportion(folder):
    dataset = run(folder, "proportion")["dataset"]
    assert len(dataset) == 300
    assert drawn(dataset) == (75, 225)


def test_example_epoch_size(folder):
    dataset = run(folder, "proportion", "epoch_size")["dataset"]
    assert len(dataset) == 400
    assert drawn(dataset) == drawn(dataset) == (100, 300)


def test_example_repeat(folder):
    stream = run(folder, "repeat")["stream_A"]
    assert Counter(each["number"] for each in StreamingDataset(streams=[stream])) == dict.fromkeys(
        range(100), 3
    )


def test_a_quarter_of_a_stream(folder):
    stream = Stream(local=str(folder / "stream_A"), repeat=0.25)
    assert drawn(StreamingDataset(streams=[stream])) == (25, 0)


def test_example_choose(folder):
    stream = run(folder, "choose")["stream_A"]
    visits = Counter(each["number"] for each in StreamingDataset(streams=[stream]))
    assert Counter(visits.values()) == {2: 50, 3: 50}


def test_example_registry(folder):
    found = run(folder, "registry")
    dataset = found["dataset"]
    assert len(dataset) == 100
    assert type(dataset.streams[0]) is found["MyStream"]
    assert dataset.streams[0].arg1 == "val1"
    assert streams_registry.get("my_stream") is found["MyStream"]


def test_registry():
    kinds = StreamsRegistry({"stream": Stream})
    kinds.register("other")(Stream)
    assert list(kinds) == list(kinds.get_all()) == ["stream", "other"]
    assert "other" in kinds
    with pytest.raises(
        ConfigError, match="no stream is registered as 'othr'; did you mean 'other'"
    ):
        kinds.get("othr")
    with pytest.raises(ConfigError, match="a subclass of Stream or a function; got 3"):
        kinds.register("three", func=3)


class Numbers(Stream):
    """What a subclass may change: what it reads."""

    def samples(self, *, split="", seed=0):
        return ListSource(range(8), seed=seed)


def test_a_stream_may_read_anything(folder):
    dataset = StreamingDataset(streams=[Numbers(local="anywhere")])
    assert list(dataset) == list(range(8))


def test_prepared_folders(folder):
    dataset = StreamingDataset(local=str(folder / "captions"))
    sample = next(iter(dataset))
    assert sample["txt"] == "caption 0"
    assert isinstance(sample["jpg"], Image.Image)
    assert len(dataset) == 15
    assert len(StreamingDataset(local=str(folder / "captions"), split="val")) == 5


def test_places(folder, tmp_path):
    there = str(folder / "splits")
    for paths in ({"remote": there}, {"remote": f"file://{there}", "local": str(tmp_path)}):
        assert len(StreamingDataset(**paths, split="val")) == 7
    assert len(StreamingDataset(streams=[Stream(local=there, split="val")], split="train")) == 7
    with pytest.raises(DatasetNotFoundError, match="s3://a/b is remote storage"):
        StreamingDataset(remote="s3://a/b", local=str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match=r"no data at .*split 'train'"):
        StreamingDataset(local=there, split="train")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either streams="),
        ({"local": "a", "streams": [Stream(local="b")]}, "give either streams="),
        ({"local": "a", "batching_method": "stratified"}, "say with batch_size"),
        ({"local": "a", "stream_name": "stram"}, "no stream is registered as 'stram'"),
        (
            {"local": "a", "stream_config": {"arg1": 1}},
            "Stream: arg1 is not known.* Known: remote",
        ),
        ({"local": "a", "stream_config": [1]}, r"stream_config is a dict; got \[1\]"),
        ({"streams": [Stream(local="a")], "stream_config": {"repeat": 2}}, "are made already"),
        ({"streams": ["a"]}, r"streams\[0\] is a Stream; got 'a'"),
        ({"streams": Stream(local="a")}, r"streams is a list; got Stream\(local='a'\)"),
        ({"local": "a", "shuffle_seed": -1}, "shuffle_seed is a whole number, 0 or more; got -1"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(**arguments)


def test_quotas_are_checked(folder):
    with pytest.raises(WeightError, match="one quota"):
        Stream(local="a", proportion=1, repeat=2)
    with pytest.raises(ConfigError, match="give local"):
        Stream(proportion=1)
    one = Stream(local=str(folder / "stream_A"), proportion=1)
    with pytest.raises(WeightError, match=r"stream 1 \(.*\) has choose"):
        StreamingDataset(streams=[one, Stream(local=str(folder / "stream_B"), choose=1)])


def test_a_stream_tells_its_quota():
    stream = Stream(local="a", repeat=3)
    assert (stream.proportion, stream.repeat, stream.choose) == (None, 3, None)
    assert repr(stream) == "Stream(local='a', repeat=3)"
    with pytest.raises(WeightError, match=r"Stream 'a': repeat.*got -1"):
        Stream(local="a", repeat=-1)


def test_a_copy_has_a_place_of_its_own(folder):
    plain = mixed(folder)
    first, second = numbers_of(plain), numbers_of(plain)
    dataset = mixed(folder)
    assert numbers_of(dataset) == first
    copied = pickle.loads(pickle.dumps(dataset))
    assert numbers_of(copied) == numbers_of(dataset) == second


def joined(parts) -> list:
    return list(chain.from_iterable(parts))


def mixed(folder, **options) -> StreamingDataset:
    streams = [
        Stream(local=str(folder / "stream_A"), proportion=3),
        Stream(local=str(folder / "stream_B"), proportion=1),
    ]
    settings = {"batch_size": 8, "epoch_size": 160, "batching_method": "stratified"}
    return StreamingDataset(streams=streams, **{**settings, "shuffle": True, **options})


def numbers_of(samples) -> list[int]:
    return [int(each["number"]) for each in samples]


def test_composition_of_batches(folder):
    numbers = numbers_of(mixed(folder))
    for start in range(0, 160, 8):
        assert sum(number >= 1000 for number in numbers[start : start + 8]) == 2
    by_device = numbers_of(mixed(folder, batching_method="device_per_stream"))
    assert all(
        len({number >= 1000 for number in by_device[start : start + 8]}) == 1
        for start in range(0, 160, 8)
    )


def test_without_shuffle_streams_come_in_turn(folder, caplog):
    numbers = numbers_of(mixed(folder, batching_method="random", shuffle=False, epoch_size=80))
    assert numbers == sorted(numbers)
    assert "streams come one after the other" in caplog.text


def test_epochs_follow_one_another(folder):
    dataset = mixed(folder)
    first, second = numbers_of(dataset), numbers_of(dataset)
    assert first != second
    assert numbers_of(mixed(folder)) == first
    assert numbers_of(mixed(folder, shuffle_seed=1)) != first
    cursor = dataset.samples.open(state={"position": 160})
    assert numbers_of(cursor) == second


def test_sampling_methods(folder):
    def epochs(method):
        stream = Stream(local=str(folder / "stream_A"), choose=40)
        dataset = StreamingDataset(streams=[stream], sampling_method=method, shuffle=True)
        return [set(numbers_of(dataset)) for _ in range(3)]

    assert len(set(map(frozenset, epochs("fixed")))) == 1
    assert len(set(map(frozenset, epochs("balanced")))) == 3


def of_ranks(folder, monkeypatch, ranks, **options) -> list[StreamingDataset]:
    """The datasets of all ranks, as torchrun would have them made."""
    datasets = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        datasets.append(mixed(folder, **{"batch_size": 8 // ranks, **options}))
    return datasets


@pytest.mark.parametrize("epoch_size", [160, 166])
@pytest.mark.parametrize("method", ["random", "stratified", "per_stream"])
def test_global_batches_on_any_number_of_ranks(folder, monkeypatch, method, epoch_size):
    options = {"epoch_size": epoch_size, "batching_method": method}
    whole = numbers_of(mixed(folder, **options))
    for ranks in (2, 4):
        streams = [numbers_of(each) for each in of_ranks(folder, monkeypatch, ranks, **options)]
        assert [len(each) for each in of_ranks(folder, monkeypatch, ranks, **options)] == [
            len(stream) for stream in streams
        ]
        assert len({-(-len(stream) // (8 // ranks)) for stream in streams}) == 1
        size = 8 // ranks
        full = len(whole) // 8
        for batch in range(full):
            parts = [stream[batch * size : (batch + 1) * size] for stream in streams]
            assert joined(parts) == whole[8 * batch : 8 * batch + 8]
        assert sorted(joined(streams)) == sorted(whole)


def marked(sample: dict) -> dict:
    return {**sample, "number": -1 - sample["number"]}


def test_a_rest_that_not_every_rank_gets_something_of(folder, monkeypatch, caplog):
    with pytest.raises(
        ConfigError, match=r"StreamingDataset: an epoch of 163 samples leaves 3 .* 4"
    ):
        of_ranks(folder, monkeypatch, 4, epoch_size=163)
    for ranks in (1, 4):
        dropping = of_ranks(folder, monkeypatch, ranks, epoch_size=163, drop_last=True)
        assert [len(numbers_of(each)) for each in dropping] == [160 // ranks] * ranks
    assert "leave samples out of every epoch, others in each: 2 of 122 of stream 0" in caplog.text


@pytest.mark.parametrize("method", ["random", "stratified"])
def test_padding_where_a_rank_gets_nothing(folder, monkeypatch, method):
    options = {"epoch_size": 163, "batching_method": method, "pad": marked}
    whole = mixed(folder, **options)
    ranks = of_ranks(folder, monkeypatch, 4, **options)
    for _ in range(3):
        expected, parts = numbers_of(whole), [numbers_of(each) for each in ranks]
        assert len(expected) == ranks[0].size == 163
        assert list(map(len, parts)) == list(map(len, ranks)) == [41] * 4
        assert sorted(n for part in parts for n in part if n >= 0) == sorted(expected)
        assert [n for part in parts for n in part if n < 0] == [-1 - expected[160]]


def test_padding_in_workers_and_after_a_state(folder, monkeypatch):
    options = {"epoch_size": 163, "pad": marked}
    before_the_rest = mixed(folder, epoch_size=163).state_dict(num_samples=160)
    ranks = of_ranks(folder, monkeypatch, 4, **options)
    for rank, again in zip(ranks, of_ranks(folder, monkeypatch, 4, **options), strict=True):
        first, second, beginning = numbers_of(rank), numbers_of(rank), again.state_dict()
        loader = DataLoader(again, batch_size=2, num_workers=2)
        batches = [batch["number"].tolist() for batch in loader]
        assert list(map(len, batches)) == [2] * 20 + [1]
        assert joined(batches) == first
        again.load_state_dict(again.state_dict(num_samples=21 * 8))
        assert numbers_of(again) == second
        for taken in (39, 40, 41):
            again.load_state_dict(beginning)
            numbers_of(islice(again, taken))
            again.load_state_dict(again.state_dict())
            assert numbers_of(again) == (first[taken:] or second)
        again.load_state_dict(before_the_rest)
        assert numbers_of(again) == first[40:]


def test_without_a_batch_size_ranks_leave_out_what_they_cannot_share(folder, monkeypatch):
    def ranks_of(**options):
        return of_ranks(folder, monkeypatch, 4, **{"epoch_size": 163, **options})

    plain = {"batch_size": None, "batching_method": "random"}
    assert [len(numbers_of(each)) for each in ranks_of(**plain)] == [40] * 4
    assert [len(numbers_of(each)) for each in ranks_of(**plain, pad=marked)] == [41] * 4
    with pytest.raises(ConfigError, match="leaves 3"):
        ranks_of(**plain, drop_last=False)


def test_state_in_process(folder):
    whole = mixed(folder)
    expected = numbers_of(whole) + numbers_of(whole)
    for taken in (0, 1, 8, 13, 159, 160):
        dataset = mixed(folder)
        assert numbers_of(islice(dataset, taken)) == expected[:taken]
        if taken == 160:
            assert list(islice(dataset, 0)) == []
        state = json.loads(json.dumps(dataset.state_dict()))
        resumed = mixed(folder)
        resumed.load_state_dict(state)
        rest = numbers_of(resumed) or numbers_of(resumed)
        assert rest == (expected[taken:160] or expected[160:])


def test_state_at_the_end_of_an_epoch_starts_the_next(folder):
    dataset, resumed = mixed(folder), mixed(folder)
    list(dataset)
    resumed.load_state_dict(dataset.state_dict())
    assert numbers_of(resumed) == numbers_of(dataset)


def test_state_for_another_number_of_ranks(folder, monkeypatch):
    whole = numbers_of(mixed(folder))
    state, later = (mixed(folder).state_dict(num_samples=taken) for taken in (40, 48))
    datasets = of_ranks(folder, monkeypatch, 4)
    parts = []
    for dataset in datasets:
        dataset.load_state_dict(state)
        parts.append(numbers_of(dataset))
    rest = [
        number for start in range(0, 30, 2) for part in parts for number in part[start : start + 2]
    ]
    assert rest == whole[40:]
    assert datasets[0].state_dict(num_samples=8, from_beginning=False) == later


def test_states_that_do_not_fit(folder):
    state = mixed(folder).state_dict()
    with pytest.raises(StateMismatchError, match="epoch_size was 160, is 200"):
        mixed(folder, epoch_size=200).load_state_dict(state)
    with pytest.raises(StateError):
        mixed(folder).load_state_dict({})


def loaded(dataset, **options) -> list[list[int]]:
    return [batch["number"].tolist() for batch in DataLoader(dataset, batch_size=8, **options)]


def test_data_loader_without_workers(folder):
    dataset, plain = mixed(folder), numbers_of(mixed(folder))
    batches = loaded(dataset)
    assert joined(batches) == plain
    assert len(DataLoader(dataset, batch_size=8)) == len(batches) == 20


@pytest.mark.jobs
@pytest.mark.parametrize(
    "options", [{}, {"persistent_workers": True}, {"multiprocessing_context": "spawn"}]
)
def test_data_loader_with_workers(folder, options):
    plain = mixed(folder, epoch_size=165)
    expected = [numbers_of(plain), numbers_of(plain), numbers_of(plain)]
    dataset = mixed(folder, epoch_size=165)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, **options)
    for epoch in expected[: 2 if "multiprocessing_context" in options else 3]:
        batches = [batch["number"].tolist() for batch in loader]
        assert joined(batches) == epoch
        assert list(map(len, batches)) == [8] * 20 + [5]


def test_data_loader_workers_after_a_break_and_a_state(folder):
    plain = mixed(folder)
    first, second = numbers_of(plain), numbers_of(plain)
    dataset = mixed(folder)
    for batch in islice(DataLoader(dataset, batch_size=8, num_workers=2), 3):
        assert torch.is_tensor(batch["number"])
    with pytest.raises(StateError, match=r"state_dict\(num_samples=batches"):
        dataset.state_dict()
    state = dataset.state_dict(num_samples=24)
    assert joined(loaded(dataset, num_workers=2)) == second
    dataset.load_state_dict(state)
    assert joined(loaded(dataset, num_workers=2)) == first[24:]


def test_with_get_loader(folder):
    batches = mixed(folder).batches()
    loader = get_loader(batches, worker_config=WorkerConfig(num_workers=1))
    with loader:
        found = [numbers_of(batch) for batch in loader]
        assert joined(found) == numbers_of(mixed(folder))
        state = loader.state_dict()
    again = get_loader(mixed(folder).batches())
    again.load_state_dict(state)
    dataset = mixed(folder)
    list(dataset)
    assert joined(map(numbers_of, again)) == numbers_of(dataset)
    ranks = [
        get_loader(batches, worker_config=WorkerConfig(rank=rank, world_size=4))
        for rank in range(4)
    ]
    assert [len(list(rank)) for rank in ranks] == [5] * 4
