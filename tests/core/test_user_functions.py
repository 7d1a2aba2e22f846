"""Every function of a user is called by one rule: seeded by what it is called for, or
refused."""

import itertools
import logging
import random

import numpy as np
import pytest
import torch

from energize import (
    BatchDataset,
    BlendDataset,
    CrudeSample,
    DefaultTaskEncoder,
    FailurePolicy,
    FilterDataset,
    GroupBatchDataset,
    ItemCost,
    IterableSource,
    IterMapDataset,
    ListSource,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    SampleWeightDataset,
    SequenceSource,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energize.compat import squirrel
from energize.core.costs import ColumnCost
from energize.datasets.level import LevelDataset
from energize.errors import ConfigError, EncoderError, NotRepeatableError
from energize.experimental import LevelBufferDataset
from energize.packing import Packer
from energize.sources import HuggingFaceSource
from energize.task.encoder import Cooker

ITEMS = 18


class Chance:
    """Draws from all global generators, by a call, a subscript, an attribute or an
    operator."""

    def draw(self):
        drawn = random.random() + np.random.random() + torch.rand(1).item()
        return round(drawn % 1, 6)

    def __getitem__(self, _):
        return self.draw()

    @property
    def value(self):
        return self.draw()

    def __add__(self, _):
        return self.draw()


chance = Chance()

WAYS = {
    "call": lambda _: chance.draw(),
    "subscript": lambda item: chance[item],
    "attribute": lambda _: chance.value,
    "operator": lambda _: chance + 1,
}


def numbers(count=60, name="numbers"):
    return ShuffleDataset(ListSource(range(count), name=name))


def texts(count=60, name="texts"):
    rows = [{"__key__": f"{name}{n}", "text": "x" * (1 + n % 5)} for n in range(count)]
    return ShuffleDataset(ListSource(rows, name=name))


class Augmented:
    """A map-style dataset of torch that draws when it is read."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index, self.draw(index)


def flat_map(draw):
    def several(item):
        for _ in range(item % 3):
            yield item, draw(item)

    return MapDataset(numbers(), several)


def iter_map(draw):
    def pairs(items):
        for item in items:
            yield item, draw(item), next(items, None), draw(item)

    return IterMapDataset(MapDataset(numbers(), lambda item: (item, draw(item))), pairs)


def flat_batch(draw):
    def halves(items):
        yield items[::2], draw(items)
        yield items[1::2], draw(items)

    return BatchDataset(numbers(), 4, halves)


def iterable(draw):
    def samples():
        for number in range(30):
            yield number, draw(number)

    return IterableSource(samples)


def hub_rows(draw):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"n": list(range(20))})
    rows.set_transform(
        lambda batch: {"n": batch["n"], "drawn": [draw(n) for n in batch["n"]]}
    )
    return HuggingFaceSource(rows, name="hub")


def encoder(draw):
    class Drawing(DefaultTaskEncoder):
        cookers = [  # noqa: RUF012
            Cooker(lambda sample: {**sample, "cooked": draw(sample)})
        ]

        def encode_sample(self, sample):
            return {"cooked": sample["cooked"], "drawn": draw(sample)}

        def batch(self, samples):
            return {"samples": samples, "of_batch": draw(samples)}

        def encode_batch(self, batch):
            return batch | {"encoded": draw(batch)}

    return Drawing


def encoded(draw, tmp_path):
    file = tmp_path / "a.jsonl"
    if not file.exists():
        file.write_text("".join(f'{{"text": "t{n}"}}\n' for n in range(30)))
    return get_train_dataset(
        file, batch_size=3, sample_type=CrudeSample, task_encoder=encoder(draw)()
    )


def packed(draw):
    def pairs(samples):
        random.shuffle(samples)
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    return PackingDataset(
        texts(),
        8,
        pairs,
        lambda pack: ([each["text"] for each in pack], draw(pack)),
        sample_encoder=lambda sample: sample | {"drawn": draw(sample)},
    )


CALLERS = {
    "map": lambda draw: MapDataset(numbers(), lambda item: (item, draw(item))),
    "map on map": lambda draw: MapDataset(
        MapDataset(numbers(), lambda item: (item, draw(item))),
        lambda item: (item, draw(item)),
    ),
    "generator of a map": flat_map,
    "filter": lambda draw: FilterDataset(numbers(), lambda item: draw(item) < 0.6),
    "map over a filter": lambda draw: MapDataset(
        FilterDataset(numbers(), lambda item: draw(item) < 0.6),
        lambda item: (item, draw(item)),
    ),
    "generator of a stream": iter_map,
    "keys of a log": lambda draw: LogSampleDataset(
        numbers(), get_keys_fn=lambda item: [item, draw(item)]
    ),
    "sample weight": lambda draw: BatchDataset(
        SampleWeightDataset(texts(), draw), 3, joined
    ),
    "group": lambda draw: GroupBatchDataset(
        numbers(),
        None,
        lambda item: (draw(item) < 0.5, 3),
        lambda items: (items, draw(items)),
    ),
    "batch": lambda draw: BatchDataset(
        numbers(), 4, lambda items: (items, draw(items))
    ),
    "generator of batches": flat_batch,
    "mixed batch": lambda draw: MixBatchDataset(
        (numbers(name="a"), 2),
        (numbers(name="b"), 1),
        batch_size=3,
        batch_mix_fn=lambda items: (items, draw(items)),
    ),
    "packing": packed,
    "length of a packer": lambda draw: PackingDataset(
        texts(),
        12,
        Packer(length=lambda sample: 1 + int(3 * draw(sample)), capacity=6),
        list,
    ),
    "cost of a buffer": lambda draw: LevelBufferDataset(
        numbers(), 6, 2, lambda item: 1 + draw(item)
    ),
    "cost of a blend": lambda draw: BlendDataset(
        (numbers(name="a"), 1),
        (numbers(name="b"), 1),
        unit=ItemCost(lambda item: 1 + draw(item)),
    ),
    "map-style dataset": lambda draw: SequenceSource(Augmented(draw)),
    "rows of a hub dataset": hub_rows,
    "iterable": iterable,
    "squirrel": lambda draw: (
        squirrel.IterableSource(list(range(40)))
        .map(lambda item: (item, draw(item)))
        .filter(lambda item: item[1] < 0.7)
    ),
}


def joined(samples):
    return {"text": [each["text"] for each in samples]}


def plain(item):
    """An item as a value that can be compared."""
    if isinstance(item, dict):
        return {
            key: plain(value) for key, value in item.items() if key != "__restore_key__"
        }
    if isinstance(item, torch.Tensor):
        return item.tolist()
    return item


def dataset_of(name, draw, tmp_path):
    if name == "encoder":
        return encoded(draw, tmp_path)
    made = CALLERS[name](draw)
    return made if hasattr(made, "inputs") else IterableSource(made)


def loader_of(dataset, rank=0, world_size=1, workers=0, **options):
    config = WorkerConfig(rank=rank, world_size=world_size, num_workers=workers)
    return get_loader(dataset, worker_config=config, **options)


def read(loader, count):
    """The first items, over epochs; those of padding are None."""
    items = []
    while len(items) < count:
        for item in loader:
            items.append(None if loader.padding else plain(item))
            if len(items) == count:
                break
    loader.close()
    return items


def in_turn(of_ranks):
    return [
        item
        for step in zip(*of_ranks, strict=True)
        for item in step
        if item is not None
    ]


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, "subscript") for name in (*CALLERS, "encoder")]
    + [
        (name, way) for name in ("map", "encoder") for way in WAYS if way != "subscript"
    ],
)
def test_draws_are_equal_on_any_ranks_and_after_a_resume(name, way, tmp_path):
    dataset = dataset_of(name, WAYS[way], tmp_path)
    whole = read(loader_of(dataset), ITEMS)
    assert read(loader_of(dataset), ITEMS) == whole
    for world_size in (2, 3):
        steps = ITEMS // world_size
        ranks = [
            read(loader_of(dataset, rank, world_size), steps)
            for rank in range(world_size)
        ]
        shared = in_turn(ranks)
        assert shared == whole[: len(shared)]
    for taken in (1, 7):
        first = loader_of(dataset)
        begun = [plain(item) for _, item in zip(range(taken), first, strict=False)]
        again = loader_of(dataset_of(name, WAYS[way], tmp_path))
        again.load_state_dict(first.state_dict())
        assert begun + read(again, ITEMS - taken) == whole


@pytest.mark.jobs
@pytest.mark.parametrize("name", [*CALLERS, "encoder"])
def test_draws_are_equal_on_any_workers(name, tmp_path):
    draw = WAYS["subscript"]
    whole = read(loader_of(dataset_of(name, draw, tmp_path)), ITEMS)
    for workers in (2, 3):
        assert (
            read(loader_of(dataset_of(name, draw, tmp_path), workers=workers), ITEMS)
            == whole
        )


def late(item):
    """Draws for few items, after many that draw nothing."""
    return (item, chance[item]) if item % 50 == 49 else item


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_function_that_draws_seldom_is_found_when_it_does(workers, stream):
    source = ListSource(range(400))
    dataset = MapDataset(
        FilterDataset(source, lambda item: item % 7) if stream else source, late
    )
    seeded = MapDataset(dataset.inputs[0], lambda item: (chance.draw(), late(item))[1])
    read(loader_of(seeded), 1)
    found = read(loader_of(dataset, workers=workers), 300)
    again = loader_of(dataset, workers=workers)
    again.load_state_dict(read_until(loader_of(dataset), 130))
    assert found[130:] == read(again, 170)
    assert [item for item in found if isinstance(item, tuple)]


def read_until(loader, count):
    for _ in zip(range(count), loader, strict=False):
        pass
    return loader.state_dict()


@pytest.mark.jobs
@pytest.mark.parametrize(
    "method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_draws_are_equal_in_workers_that_start_from_nothing(method):
    dataset = MapDataset(FilterDataset(numbers(), below_half), drawn_with)
    whole = read(loader_of(dataset), ITEMS)
    assert (
        read(loader_of(dataset, workers=2, multiprocessing_context=method), ITEMS)
        == whole
    )


def below_half(item):
    return chance[item] < 0.5


def drawn_with(item):
    return item, chance.value


def test_the_generators_of_the_program_stay_where_they_were():
    for dataset in (
        CALLERS["map"](WAYS["call"]),
        CALLERS["filter"](WAYS["call"]),
        numbers(),
    ):
        random.seed(1)
        np.random.seed(1)
        np.random.standard_normal()  # of two numbers, the second is kept
        torch.manual_seed(1)
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        read(loader_of(dataset), ITEMS)
        after = random.getstate(), np.random.get_state(), torch.get_rng_state()
        assert before[0] == after[0]
        assert all(
            np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True)
        )
        assert torch.equal(before[2], after[2])


def test_a_dataset_that_a_function_reads_leaves_the_draws_of_the_function():
    inner = MapDataset(numbers(), lambda item: (item, chance.draw()))
    dataset = MapDataset(
        numbers(), lambda item: (random.random(), inner[item], random.random())
    )
    plain_draws = MapDataset(numbers(), lambda _: (random.random(), random.random()))
    for found, expected in zip(
        dataset.at(range(40)), plain_draws.at(range(40)), strict=True
    ):
        assert (found[0], found[2]) == expected
    assert [found[1] for found in dataset.at([3, 5])] == [
        inner[numbers()[3]],
        inner[numbers()[5]],
    ]


class TestStateBetweenCalls:
    """A function whose result depends on the calls before is found at once, and
    named."""

    def counted(self):
        counter = itertools.count()
        return lambda item: (item, next(counter))

    def own_generator(self):
        own = random.Random(4)
        return lambda item: (item, own.random())

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("kind", ["counted", "own_generator"])
    def test_it_is_an_error_that_names_the_function(self, kind, workers):
        dataset = MapDataset(numbers(), getattr(self, kind)())
        with pytest.raises(
            NotRepeatableError, match=f"{kind}.<locals>.<lambda> returned another"
        ):
            read(loader_of(dataset, workers=workers), 2)

    @pytest.mark.parametrize("world_size", [1, 2])
    def test_a_condition_is_found_on_every_rank(self, world_size):
        counter = itertools.count()
        dataset = FilterDataset(numbers(), lambda _: next(counter) % 3)
        for rank in range(world_size):
            with pytest.raises(NotRepeatableError, match="returned another value"):
                read(loader_of(dataset, rank, world_size), 4)

    def test_a_generator_function_is_found(self):
        counter = itertools.count()

        def several(item):
            yield item
            yield next(counter)

        with pytest.raises(NotRepeatableError, match="several returned another value"):
            read(loader_of(MapDataset(numbers(), several)), 3)

    def test_a_function_that_changes_its_sample_is_called_once_with_each(self):
        samples = [{"n": number} for number in range(40)]

        def grow(sample):
            sample["n"] += 1 + round(random.random())
            return sample["n"]

        found = read(loader_of(MapDataset(ListSource(samples), grow)), 40)
        assert {drawn - number for number, drawn in enumerate(found)} == {1, 2}

    def test_it_may_be_a_warning_or_nothing(self, caplog):
        for check, told in (("warn", 1), ("off", 0)):
            dataset = MapDataset(numbers(), self.own_generator())
            caplog.clear()
            with caplog.at_level(logging.WARNING, "energize"):
                policy = FailurePolicy(check_functions=check)
                read(loader_of(dataset, failures=policy), 5)
            assert (
                sum("keeps state" in record.message for record in caplog.records)
                == told
            )

    def test_what_is_not_seeded_is_not_checked(self):
        dataset = MapDataset(numbers(), self.counted(), seeded=False)
        assert [number for _, number in read(loader_of(dataset), 4)] == [0, 1, 2, 3]

    def test_an_iterable_that_is_another_at_each_reading_is_an_error(self):
        def shuffled():
            drawn = list(range(40))
            random.SystemRandom().shuffle(drawn)
            yield from drawn

        with pytest.raises(
            NotRepeatableError,
            match=r"^'pipeline': sample . of pass 0 differs when read again",
        ):
            read(loader_of(IterableSource(shuffled, name="pipeline")), 2)

    def test_an_iterable_that_changed_since_a_state_is_an_error(self):
        items = list(range(20))
        first = loader_of(IterableSource(lambda: iter(items), name="live"))
        state = read_until(first, 6)
        items[5] = 99
        again = loader_of(IterableSource(lambda: iter(items), name="live"))
        again.load_state_dict(state)
        with pytest.raises(
            NotRepeatableError,
            match="'live': sample 5 of pass 0 differs from the one before",
        ):
            read(again, 1)
        del items[3:]
        again = loader_of(IterableSource(lambda: iter(items), name="live"))
        again.load_state_dict(state)
        with pytest.raises(
            NotRepeatableError, match="'live': sample 3 of pass 0 is missing"
        ):
            read(again, 1)

    def test_a_cost_of_columns_may_not_draw(self):
        texts = ListSource(["a", "b", "c", "d"], columns={"tokens": [1, 2, 3, 4]})
        cost = ColumnCost(lambda tokens: tokens + np.random.random(len(tokens)))
        with pytest.raises(ConfigError, match="draws random numbers"):
            LevelDataset(texts, 2, global_batch_size=4, cost=cost).at([0])


def test_errors_of_a_map_style_dataset_are_those_of_functions():
    class Broken(Augmented):
        def __getitem__(self, index):
            raise ValueError("no such file")

    with pytest.raises(
        EncoderError, match=r"Broken.__getitem__ raised ValueError: no such file"
    ):
        read(loader_of(SequenceSource(Broken(None))), 1)


def test_errors_of_an_iterable_name_it():
    def broken():
        yield 1
        raise ValueError("no more")

    with pytest.raises(
        EncoderError, match=r"pipeline raised ValueError: no more\n  in pass 0, aft"
    ):
        list(loader_of(IterableSource(broken, name="pipeline")))


def test_functions_that_fail_are_not_called_twice_for_it():
    calls = []

    def fail(item):
        calls.append(item)
        raise ValueError(item)

    dataset = MapDataset(ListSource(range(10)), fail)
    with pytest.raises(EncoderError):
        dataset[3]
    assert calls == [3]


def test_few_calls_are_made_twice():
    calls = []
    dataset = MapDataset(
        ListSource(range(100)), lambda item: (item, calls.append(item))
    )
    read(loader_of(dataset), 50)
    assert len(calls) <= 100 + 2
