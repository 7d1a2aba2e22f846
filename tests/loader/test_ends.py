"""Where epochs of streams end: steps that are filled, inputs without items, second
readings."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EncoderError,
    FilterDataset,
    GroupBatchDataset,
    ItemCost,
    IterableSource,
    LimitDataset,
    ListSource,
    LogSampleDataset,
    MapDataset,
    RepeatDataset,
    Schedule,
    SequenceSource,
    ShuffleBufferDataset,
    restore_sample,
)
from energize.datasets.transform import FlatMapDataset
from energize.errors import EmptyDatasetError, NotRepeatableError
from energize.loader import Loader
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of, take

pytestmark = pytest.mark.usefixtures("gives_up_soon")

EVENS = FilterDataset(shuffled(26), is_even)  # 13 items, 6 and 7 in two lanes
ENDING = {
    "found by reading": EVENS,
    "batches": BatchDataset(EVENS, 2, list),
    "buffers": ShuffleBufferDataset(EVENS, 4),
    "known": LimitDataset(RepeatDataset(EVENS), 7),
    "fewer than lanes": LimitDataset(RepeatDataset(EVENS), 1),
    "a mix": BlendDataset((EVENS, 1), (numbers(7, 100), 1), stop="all_exhausted"),
    "indexed": shuffled(11),
}


def all_ranks(dataset, ranks: int, workers: int = 0, **options) -> list[Loader]:
    lanes = None if dataset.indexed else 2
    return [
        loader_of(dataset, workers, rank, ranks, lanes=lanes, **options)
        for rank in range(ranks)
    ]


def steps(loaders: list[Loader], many: int) -> list[list[tuple]]:
    """So many steps of all ranks, over epochs: the item of each rank, and whether it is
    padding."""
    made: list[list[tuple]] = []
    while len(made) < many:
        rows = zip(*map(iter, loaders), strict=True)
        for row in islice(rows, many - len(made)):
            pads = [each.padding for each in loaders]
            made.append(list(zip(row, pads, strict=True)))
    for each in loaders:
        each.close()
    return made


def check_resumes(dataset, ranks: int, workers: int, many: int, **options) -> None:
    """Resumed after any step, all ranks make the steps of a run that was not
    interrupted."""
    whole = steps(all_ranks(dataset, ranks, **options), many)
    assert steps(all_ranks(dataset, ranks, workers, **options), many) == whole
    for at in range(many):
        first = all_ranks(dataset, ranks, workers, **options)
        steps(first, at)
        [state] = {json.dumps(each.state_dict()) for each in first}
        resumed = all_ranks(dataset, ranks, workers, **options)
        for each in resumed:
            each.load_state_dict(json.loads(state))
        assert steps(resumed, many - at) == whole[at:], f"after step {at}"


MORE_RANKS = [
    pytest.param(1, marks=pytest.mark.jobs),
    2,
    pytest.param(3, marks=pytest.mark.jobs),
]


@pytest.mark.parametrize("uneven", ["pad", "repeat", "drop"])
@pytest.mark.parametrize("ranks", MORE_RANKS)
@pytest.mark.parametrize("name", ENDING)
def test_a_resumed_run_fills_steps_like_one_that_was_not_interrupted(
    name, ranks, uneven
):
    if uneven == "drop" and name == "fewer than lanes":
        uneven = "pad"
    check_resumes(ENDING[name], ranks, 0, 3 + 12 // ranks, uneven=uneven)


@pytest.mark.jobs
@pytest.mark.parametrize("uneven", ["pad", "repeat"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_resumed_run_whose_workers_read_fills_steps_alike(ranks, uneven):
    check_resumes(ENDING["batches"], ranks, 2, 5, uneven=uneven)


@pytest.mark.parametrize("uneven", ["pad", "repeat"])
@pytest.mark.parametrize("ranks", MORE_RANKS)
@pytest.mark.parametrize("name", ["found by reading", "known", "a mix", "indexed"])
def test_a_resumed_run_fills_the_last_global_batch_alike(name, ranks, uneven):
    options = {"global_batch_size": 6, "micro_batch_size": 1}
    check_resumes(ENDING[name], ranks, 0, 2 + 18 // ranks, uneven=uneven, **options)


def test_a_missing_item_is_the_first_one_of_the_run_or_of_its_lane():
    plain = FilterDataset(numbers(10), is_even)

    def of_two_ranks(uneven, lanes, many):
        loaders = [
            loader_of(plain, 0, rank, 2, lanes=lanes, uneven=uneven)
            for rank in range(2)
        ]
        return steps(loaders, many)

    full = [[(0, False), (2, False)], [(4, False), (6, False)]]
    assert of_two_ranks("pad", 1, 3) == [*full, [(8, False), (0, True)]]
    assert of_two_ranks("repeat", 1, 3) == [*full, [(8, False), (0, False)]]
    first = [[(0, False), (6, False)]]  # the lanes have 0, 2, 4, 8 and 6
    assert of_two_ranks("pad", 2, 4) == first + [
        [(n, False), (0, True)] for n in (2, 4, 8)
    ]
    assert of_two_ranks("repeat", 2, 4) == first + [
        [(n, False), (6, False)] for n in (2, 4, 8)
    ]


def test_the_restore_key_of_a_copy_gives_its_item():
    for uneven in ("pad", "repeat"):
        loader = loader_of(EVENS, 0, 1, 2, lanes=1, uneven=uneven)
        *_, last = loader
        assert restore_sample(EVENS, loader.restore_key) == last == next(iter(EVENS))


def test_a_loader_over_a_stream_of_known_length_closes_at_the_end_of_an_epoch():
    with loader_of(ENDING["known"], 2, lanes=2) as loader:
        assert len(list(islice(loader, 7))) == 7


# Inputs that give nothing.


def web() -> ListSource:
    return ListSource(range(30), name="web")


def books() -> FilterDataset:
    return FilterDataset(ListSource(range(30), name="books"), lambda sample: False)


EMPTY = {
    **{
        f"{stop}, {named}": lambda stop=stop, unit=unit: BlendDataset(
            (web(), 1), (books(), 1), stop=stop, unit=unit
        )
        for stop in ("restart", "first_exhausted", "all_exhausted")
        for named, unit in (("samples", None), ("costs", ItemCost(lambda item: 1)))
    },
    "some epochs": lambda: BlendDataset((web(), 1), (books(), 1), max_epochs=2),
    "by name": lambda: BlendDataset(
        {"a": web(), "b": books()}, weights={"a": 1, "b": 1}, stop="first_exhausted"
    ),
    "alone": books,
    "again and again": lambda: RepeatDataset(books()),
    "in batches": lambda: BatchDataset(books(), 2, list),
    "in groups": lambda: GroupBatchDataset(books(), 2, lambda sample: (0, None), list),
    "all concatenated": lambda: ConcatDataset(books(), books()),
    "an iterable": lambda: BlendDataset(
        (web(), 1), (IterableSource([], name="books"), 1), stop="first_exhausted"
    ),
}


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", EMPTY)
def test_a_stream_without_items_is_an_error_that_names_its_sources(name, lanes):
    loader = loader_of(EMPTY[name](), lanes=lanes)
    with pytest.raises(EmptyDatasetError, match="'books'"):
        take(loader, 200)
    with pytest.raises(EmptyDatasetError, match="'books'"):
        take(loader, 200)


@pytest.mark.parametrize("stop", ["restart", "first_exhausted", "all_exhausted"])
def test_a_stream_without_items_is_found_after_a_resume_too(stop):
    for at in range(3):
        blend = BlendDataset((web(), 5), (books(), 1), stop=stop)
        loader = loader_of(blend, lanes=1)
        assert len(list(islice(loader, at))) == at
        other = loader_of(blend, lanes=1)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(EmptyDatasetError, match="'books'"):
            take(other, 200)


def test_a_stream_that_ends_is_no_error_and_its_epochs_are_full():
    def of(size, name):
        return FilterDataset(ListSource(range(size), name=name), lambda sample: True)

    for stop, sizes in (
        ("first_exhausted", [9, 9, 9]),
        ("all_exhausted", [34, 34, 34]),
    ):
        blend = BlendDataset(
            (of(30, "web"), 1), (of(4, "books"), 1), stop=stop, scheme="exact"
        )
        loader = loader_of(blend)
        assert [len(list(loader)) for _ in range(3)] == sizes


def test_a_dataset_known_to_be_empty_is_left_out_where_all_are_to_be_exhausted():
    empty = ListSource([], name="empty")
    for parts in ([web(), empty], [FilterDataset(web(), lambda sample: True), empty]):
        blend = BlendDataset([(each, 1) for each in parts], stop="all_exhausted")
        assert sorted(loader_of(blend)) == list(range(30))


def test_messages_name_a_few_of_many_sources():
    parts = [(ListSource(range(5), name=f"s{n}"), 1) for n in range(20)]
    nothing = FilterDataset(BlendDataset(parts), lambda sample: False)
    with pytest.raises(
        EmptyDatasetError, match="FilterDataset over 's0', 's1', 's2' and 17 more"
    ):
        next(nothing.open())


# Weights that reach 0.


def letters(letter: str, size: int) -> FilterDataset:
    return FilterDataset(ListSource([letter] * size, name=letter), lambda sample: True)


@pytest.mark.parametrize(
    "unit", [None, ItemCost(lambda item: 1)], ids=["samples", "costs"]
)
def test_a_stream_is_never_drawn_where_its_weight_is_0(unit):
    gone, late = Schedule([(0, 1), (6, 0)]), Schedule([(0, 0), (10, 1)])

    def blend(x, a, size, **options):
        pairs = (letters("x", 30), x), (letters("a", size), a)
        return BlendDataset(*pairs, stop="all_exhausted", unit=unit, **options)

    changed = blend(1, 1, 10).with_weights_from(6, [0, 1])
    begun = blend(0, 1, 10).with_weights_from(6, [1, 0])
    for dataset, x, a in (
        (blend(gone, 1, 10), 3, 10),
        (blend(late, 1, 4), 0, 4),
        (changed, 3, 10),
    ):
        loader = loader_of(dataset)
        for _ in range(2):
            whole = "".join(loader)
            assert (whole.count("x"), whole.count("a")) == (x, a)
            assert "x" not in whole[6:]
        check_resumes(dataset, 1, 0, x + a + 2)
    assert "".join(loader_of(begun)) == "a" * 6 + "x" * 30


# Second readings, and functions that raise StopIteration.


def shrinking(sizes):
    """An iterable that has so many items in its first reading, its second, and so
    on."""
    readings = iter(sizes)
    return IterableSource(lambda: iter(range(next(readings))), name="live")


def test_a_source_that_is_shorter_at_a_second_reading_is_named():
    with pytest.raises(
        NotRepeatableError, match=r"'live': sample 9 .*(read again|second reading)"
    ):
        list(loader_of(shrinking([25, 9, 9])))
    source = shrinking([25, 25, 25, 9, 9])
    loader = loader_of(source)
    for _ in islice(loader, 20):
        pass
    again = loader_of(source)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(
        NotRepeatableError, match=r"'live': sample 9 .*(read again|second reading)"
    ):
        next(iter(again))


def test_a_function_that_makes_fewer_items_after_a_resume_is_named():
    sizes = {"letters": 3}
    flat = FlatMapDataset(
        ListSource("a", name="letters"), lambda _: iter(range(sizes["letters"]))
    )
    cursor = flat.open()
    assert [next(cursor), next(cursor)] == [0, 1]
    sizes["letters"] = 1
    with pytest.raises(NotRepeatableError, match="FlatMapDataset over 'letters'"):
        next(flat.open(state=cursor.state()))


def stop_iteration(*_):
    raise StopIteration


class Stopping:
    """A map-style dataset that misses a sample."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise StopIteration
        return index


STOPPING = {
    "map": lambda below: MapDataset(below, stop_iteration),
    "filter": lambda below: FilterDataset(below, stop_iteration),
    "batch": lambda below: BatchDataset(below, 2, stop_iteration),
    "group": lambda below: GroupBatchDataset(below, 2, stop_iteration, list),
    "group batch": lambda below: GroupBatchDataset(
        below, 2, lambda n: (0, None), stop_iteration
    ),
    "log": lambda below: LogSampleDataset(below, get_keys_fn=stop_iteration),
    "cost": lambda below: BlendDataset((below, 1), unit=ItemCost(stop_iteration)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", STOPPING)
def test_a_function_that_raises_stop_iteration_ends_no_epoch(name, workers):
    for below in (numbers(5), FilterDataset(numbers(5), lambda n: True)):
        loader = loader_of(STOPPING[name](below), workers)
        with loader, pytest.raises(EncoderError, match="StopIteration"):
            take(loader, 9)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_raises_stop_iteration_ends_no_epoch(workers):
    rows = SequenceSource(Stopping(), name="rows")
    for dataset in (rows, FilterDataset(rows, lambda n: True)):
        with (
            loader_of(dataset, workers) as loader,
            pytest.raises(EncoderError, match="rows"),
        ):
            list(loader)
    loader = loader_of(IterableSource(stop_iteration, name="rows"), workers)
    with loader, pytest.raises(EncoderError, match=r"'rows'.*StopIteration"):
        list(loader)
