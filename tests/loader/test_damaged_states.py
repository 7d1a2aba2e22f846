"""Damaged states are refused; states are small; what they say is what they said."""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import resource
import time
import zlib
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    EmptyDatasetError,
    EnergizeError,
    FilterDataset,
    ListSource,
    Schedule,
    ShuffleDataset,
    Stage,
    StagedDataset,
    StagePlan,
    StateError,
    StateMismatchError,
)
from energize.core.description import packed, unpacked
from energize.errors import SubstitutionError
from tests.loader.test_delivery import trees
from tests.support.datasets import INDEXED, STREAMING, STREAMS
from tests.support.loading import loader_of, prints, take
from tests.support.state_mutants import Subject, closed, mutated, opened_up
from tests.support.states import evens, mixed, of, resealed, saved
from tests.support.trees import letters


def a_stream():
    return mixed((evens(), 1), (letters(9, 0), 2), stop="all_exhausted")


BASES = {
    "indexed": (INDEXED["tower"], None),
    "stages": (INDEXED["stages"], None),
    "stream": (a_stream(), 2),
    "loop": (STREAMING["epochize of filter"], 2),
    "batches": (STREAMING["batch of filter"], 2),
    "wide": (BlendDataset([(of(f"{n * 7919 % 1000}-{n}"), n + 1) for n in range(90)]), None),
}


@pytest.fixture(scope="module")
def states():
    return {
        name: (dataset, [saved(dataset, steps, lanes=lanes) for steps in (0, 3, 8)])
        for name, (dataset, lanes) in BASES.items()
    }


def changed_in(state, field, value):
    """A state with another value; an outline is only read where the digest is another one."""
    changes = ({"fingerprint": "another"} if field == "config" else {}) | {field: value}
    return resealed(state, **changes) if isinstance(value, str) else state | changes


def outcome(dataset, state, strict=True):
    """What comes of a state: nothing but a run that goes on, or an error of ours."""
    loader = loader_of(dataset)
    before = loader.state_dict()
    try:
        loader.load_state_dict(state, strict=strict)
    except EnergizeError as error:
        assert loader.state_dict() == before
        return type(error).__name__
    try:
        json.dumps(loader.state_dict())
        for _ in zip(range(3), loader, strict=False):
            pass
        json.dumps(loader.state_dict())
    except EnergizeError as error:
        return type(error).__name__
    return "goes on"


@pytest.mark.parametrize("depth", [100, 300, 450, 900, 1000, 5000, 100_000])
@pytest.mark.parametrize("name", ["indexed", "stream", "stages"])
def test_nested_however_deep(states, name, depth):
    dataset, (*_, state) = states[name]
    nest = '{"kind":"MapDataset","inputs":[' * depth + '{"kind":"x"}' + "]}" * depth
    for each in (nest, base64.b64encode(zlib.compress(nest.encode())).decode()):
        assert outcome(dataset, changed_in(state, "config", each)) in (
            "StateError",
            "StateMismatchError",
        )
    cursor = json.dumps(unpacked(state["cursor"], "cursor"))[:-1] + f',"more":{nest}}}'
    assert outcome(dataset, resealed(state, cursor=cursor)) in ("StateError", "goes on")
    if name == "stream":
        inner = unpacked(unpacked(state["cursor"], "cursor")["cursors"], "cursors")["cursors"]
        lanes = json.dumps({"cursors": inner})[:-3] + f',"more":{nest}}}]}}'
        cursor = packed(unpacked(state["cursor"], "cursor") | {"cursors": lanes})
        assert outcome(dataset, resealed(state, cursor=cursor)) in ("StateError", "goes on")


def bomb(blocks):
    """A small text that unpacks to so many times 16 MiB."""
    squeeze = zlib.compressobj(9)
    head = squeeze.compress(b" " * 2**24) + squeeze.flush(zlib.Z_FULL_FLUSH)
    block = squeeze.compress(b" " * 2**24) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return base64.b64encode(head + block * (blocks - 1) + squeeze.flush()).decode()


def test_a_small_text_that_would_be_gigabytes_is_not_unpacked(states):
    text = bomb(256)  # of 4 GiB
    assert len(text) < 2**23
    whole = zlib.decompressobj().decompress(base64.b64decode(bomb(2)))
    assert len(whole) == 2**25  # the text is what it says it is
    dataset, (state, *_) = states["stream"]
    for field in ("config", "cursor"):
        began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StateError, match=f"'{field}' cannot be read.*is too large"):
            loader_of(dataset).load_state_dict(changed_in(state, field, text))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 2**20  # KiB
    assert outcome(dataset, state | {"details": text}) == "StateError"
    assert outcome(dataset, resealed(state, details=text)) == "goes on"


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS = {
    "JSON": lambda state: json.loads(json.dumps(state)),
    "sorted JSON": lambda state: json.loads(json.dumps(state, sort_keys=True)),
    "torch": through_torch,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "numpy": lambda state: state | {"version": np.int64(state["version"])},
    "a tensor": lambda state: state | {"version": torch.tensor(state["version"])},
}


ALL = {**INDEXED, **{f"{name}, {n} lanes": STREAMS[name] for name in STREAMS for n in (1, 3)}}

OUTCOMES = {"refused", "same", "elsewhere", "other", "StateError", "EmptyDatasetError"}

PLACES = {
    "before", "calls", "called", "costs", "done", "given", "lanes", "made", "owed", "pass",
    "places", "position", "read", "rejected", "round", "slot", "step", "turn",
}  # fmt: skip
"""Numbers of which a run may have others, as far as the rest of a state says (what was read before
is more than the place says, once a mix was edited); and what only an edited mix goes by, which need
not be there."""


@cache
def subject(name: str) -> Subject:
    return Subject(ALL[name], 3 if name.endswith("3 lanes") else 1)


def check_mutant(subject: Subject, seed: int) -> str:
    draw = random.Random(seed)
    state = draw.choice(subject.states)
    was = opened_up(state)
    tree, way, how = mutated(was, draw)
    outcome = subject.outcome(closed(state, tree), state)
    assert outcome in OUTCOMES, (way, how)
    return outcome


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(ALL)), seed=st.integers(0, 2**32))
def test_one_value_changed_anywhere(name, seed):
    check_mutant(subject(name), seed)


@settings(max_examples=25)
@given(tree=trees(), lanes=st.sampled_from([1, 2, 3]), seed=st.integers(0, 2**32))
def test_one_value_changed_in_a_state_of_any_tree(tree, lanes, seed):
    try:
        found = Subject(tree, 1 if tree.indexed else lanes)
        check_mutant(found, seed)
    except (EmptyDatasetError, SubstitutionError, ConfigError):
        assume(False)


@pytest.mark.slow
def test_how_many_are_refused():
    """Nine of ten: what is left are other places."""
    found = Counter(check_mutant(subject(name), seed) for name in ALL for seed in range(100))
    assert found["refused"] > 0.85 * sum(found.values()), found


FOLDERS, MANY = 200, 10_000
SMALL, LARGE = 10 * 1024, 64 * 1024
"""Characters of the states of mixes of so many sources, at most."""


def folder(number, name="/data/train/shard-folder-{:06d}", changed=0):
    """A shuffled source; no two neighbours are of the same settings."""
    samples = ListSource(range(50 + number % 7 + changed), name=name.format(number))
    buffered = {"shuffle_buffer_size": 16} if number % 2 else {}
    return ShuffleDataset(samples.reseeded(number % 3), **buffered)


def weight(number):
    return 1 + number * 0.37 % 5


def blend(count, **options):
    return BlendDataset([(folder(each), weight(each)) for each in range(count)], **options)


def kept(item):
    return item % 3 > 0


def filtered(count):
    parts = [(FilterDataset(folder(each), kept), weight(each)) for each in range(count)]
    return BlendDataset(parts)


def staged(count):
    weights = [random.Random(stage).random() for stage in range(5)]
    stages = [
        Stage(f"stage-{stage}", 1000 * stage, dataset=BlendDataset(
            [(folder(each), weight(each) ** weights[stage]) for each in range(count)]
        ))
        for stage in range(5)
    ]  # fmt: skip
    return StagedDataset(StagePlan(stages, 5000))


def scheduled(count):
    glide = [
        Schedule([(0, weight(each)), (900 + each, each + 1)], "linear") for each in range(count)
    ]
    return BlendDataset([(folder(each), glide[each]) for each in range(count)], scheme="random")


def nested(width, depth, number=0):
    """A mix of mixes of mixes, each of a few: what no node of which is wide."""
    if not depth:
        return folder(number)
    return ConcatDataset(*(nested(width, depth - 1, number * width + n) for n in range(width)))


MIXES = {
    "blend": lambda: blend(FOLDERS),
    "tempered": lambda: blend(FOLDERS, temperature=0.7),
    "ends": lambda: blend(FOLDERS, stop="all_exhausted", max_epochs=[1, 2] * 100),
    "batches": lambda: BatchDataset(blend(FOLDERS), 8, list),
    "scheduled": lambda: scheduled(FOLDERS),
    "stages": lambda: staged(FOLDERS),
    "concat": lambda: ConcatDataset(*map(folder, range(FOLDERS))),
    "nested": lambda: nested(6, 3),
}  # fmt: skip


def length(loader):
    return len(json.dumps(loader.state_dict()))


def seconds(function):
    """The best of a few, for other processes take their time too."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return min(found)


@pytest.fixture(scope="module")
def many():
    return {
        "blend": blend(MANY),
        "nested": nested(10, 4),
        "changed": BlendDataset([(folder(n, changed=n == 7777), weight(n)) for n in range(MANY)]),
    }


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["blend", "nested"])
def test_of_10_000_sources(many, name):
    loader = loader_of(many[name])
    assert length(loader) <= LARGE
    assert seconds(loader.state_dict) < 0.02
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(many[name])
    other.load_state_dict(state)
    assert seconds(lambda: other.load_state_dict(state)) < 0.25
    take(loader, 5)
    other.load_state_dict(loader.state_dict())
    assert prints(take(other, 3)) == prints(take(loader, 3))


def test_one_different_source_of_10_000_is_named(many):
    state = loader_of(many["blend"]).state_dict()
    with pytest.raises(StateMismatchError, match="'/data/train/shard-folder-007777': its weight"):
        loader_of(many["changed"]).load_state_dict(state)
