"""Damaged states are refused; states are small; what they say is what they said."""

from __future__ import annotations

import base64
import json
import random
import resource
import sys
import zlib
from collections import Counter
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from energize import (
    BlendDataset,
    ConcatDataset,
    ConfigError,
    EmptyDatasetError,
    EnergizeError,
    EpochizeDataset,
    ListSource,
    ShuffleDataset,
    StateError,
    StateMismatchError,
)
from energize.core.config import packed, unpacked
from energize.errors import SubstitutionError
from tests.loader.test_delivery import trees
from tests.support.datasets import INDEXED, STREAMING, STREAMS
from tests.support.loading import loader_of, prints, take
from tests.support.state_mutants import closed, mutated, opened_up
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
    "wide": (
        BlendDataset([(of(f"{n * 7919 % 1000}-{n}"), n + 1) for n in range(90)]),
        None,
    ),
}


@pytest.fixture(scope="module")
def states():
    return {
        name: (dataset, [saved(dataset, steps, lanes=lanes) for steps in (0, 3, 8)])
        for name, (dataset, lanes) in BASES.items()
    }


def changed_in(state, field, value):
    """A state with another value; an outline is only read where the digest is another
    one."""
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


@pytest.mark.parametrize("depth", [100, 900, 100_000])
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
        inner = unpacked(unpacked(state["cursor"], "cursor")["cursors"], "cursors")[
            "cursors"
        ]
        lanes = json.dumps({"cursors": inner})[:-3] + f',"more":{nest}}}]}}'
        cursor = packed(unpacked(state["cursor"], "cursor") | {"cursors": lanes})
        assert outcome(dataset, resealed(state, cursor=cursor)) in (
            "StateError",
            "goes on",
        )


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
        with pytest.raises(StateError, match=f"'{field}' is damaged.*is too large"):
            loader_of(dataset).load_state_dict(changed_in(state, field, text))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 2**20  # KiB
    assert outcome(dataset, state | {"details": text}) == "StateError"
    assert outcome(dataset, resealed(state, details=text)) == "goes on"


ALL = {
    **INDEXED,
    **{f"{name}, {n} lanes": STREAMS[name] for name in STREAMS for n in (1, 3)},
}


@cache
def read_for_a_while(name: str):
    """A dataset in some lanes, and its states after some steps."""
    return subject(ALL[name], 3 if name.endswith("3 lanes") else 1)


def subject(dataset, lanes):
    return dataset, [saved(dataset, steps, lanes=lanes) for steps in (0, 5, 14)]


def check_mutant(of_states, seed: int) -> str:
    """A state with one value changed is refused, or a run that goes on, or ends in our
    errors."""
    draw, (dataset, states) = random.Random(seed), of_states
    state = draw.choice(states)
    return outcome(dataset, closed(state, mutated(opened_up(state), draw)))


@given(name=st.sampled_from(sorted(ALL)), seed=st.integers(0, 2**32))
def test_one_value_changed_anywhere(name, seed):
    check_mutant(read_for_a_while(name), seed)


@given(tree=trees(), lanes=st.sampled_from([1, 2, 3]), seed=st.integers(0, 2**32))
def test_one_value_changed_in_a_state_of_any_tree(tree, lanes, seed):
    try:
        found = subject(tree, 1 if tree.indexed else lanes)
    except (EmptyDatasetError, SubstitutionError, ConfigError):
        assume(False)
    check_mutant(found, seed)


def test_most_changes_are_refused():
    """What is left are other places."""
    found = Counter(
        check_mutant(read_for_a_while(n), seed)
        for n in sorted(ALL)[::6]
        for seed in range(20)
    )
    assert found["StateError"] > 0.7 * found.total(), found


@pytest.mark.parametrize("streamed", [False, True])
def test_a_place_that_the_mix_does_not_come_to(streamed):
    """Though each value of it could be one of a state, and the check value is right."""
    parts = {"a": of("a", 9), "b": evens(60) if streamed else of("b", 60)}
    mix = EpochizeDataset(BlendDataset(parts, weights={"a": 1, "b": 1}), 6)
    loader = loader_of(mix)
    take(loader, 4)
    loader.set_weights({"a": 3, "b": 1}, at_step=5)
    take(loader, 10)
    loader.set_weights({"a": 1, "b": 3}, at_step=30)
    state = loader.state_dict()
    cursor = unpacked(state["cursor"], "cursor")
    (first, later), places = cursor["changes"], cursor["places"]
    loader_of(mix).load_state_dict(state)
    source = min(places)
    for change, told in (
        ({"step": 6}, "step 6 of 6"),
        ({"position": cursor["position"] + 5}, "samples of a source of which"),
        (
            {"places": places | {source: places[source] + 1}},
            f"{places[source] + 1} samples of",
        ),
        (
            {"changes": [[*first[:1], 12, *first[2:]], later]},
            "samples of a source of which",
        ),
        (
            {"changes": [first, [*later[:1], 6, *later[2:]]]},
            "samples of a source of which",
        ),
        ({"changes": [later]}, "samples of a source of which"),
        ({"step": None}, "step 6 of 6"),
    )[: 6 if streamed else None]:
        said = {
            name: value
            for name, value in (cursor | change).items()
            if value is not None
        }
        edited = resealed(state, cursor=packed(said))
        with pytest.raises(
            StateError,
            match=f"the saved position does not exist in this dataset.*{told}",
        ):
            loader_of(mix).load_state_dict(edited)


MANY = 10_000
LARGE = 64 * 1024
"""Characters of the state of a mix of so many sources, at most."""


def folder(number, name="/data/train/shard-folder-{:06d}", changed=0):
    """A shuffled source; no two neighbours are of the same settings."""
    samples = ListSource(range(50 + number % 7 + changed), name=name.format(number))
    buffered = {"shuffle_buffer_size": 16} if number % 2 else {}
    return ShuffleDataset(samples.reseeded(number % 3), **buffered)


def blend(count, changed=None):
    parts = [(folder(n, changed=n == changed), 1 + n * 0.37 % 5) for n in range(count)]
    return BlendDataset(parts)


def nested(width, depth, number=0):
    """A mix of mixes of mixes, each of a few: what no node of which is wide."""
    if not depth:
        return folder(number)
    return ConcatDataset(
        *(nested(width, depth - 1, number * width + n) for n in range(width))
    )


def length(loader):
    return len(json.dumps(loader.state_dict()))


def calls(function):
    """How many functions it calls, here and in C: seconds are those of the machine."""
    found = Counter()
    sys.setprofile(lambda frame, event, argument: found.update([event]))
    try:
        function()
    finally:
        sys.setprofile(None)
    return found["call"] + found["c_call"]


@pytest.fixture(scope="module")
def many():
    return {
        "blend": blend(MANY),
        "nested": nested(10, 4),
        "changed": blend(MANY, changed=7777),
    }


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["blend", "nested"])
def test_of_10_000_sources(many, name):
    loader = loader_of(many[name])
    assert length(loader) <= LARGE
    assert calls(loader.state_dict) < 3 * MANY
    state = json.loads(json.dumps(loader.state_dict()))
    other = loader_of(many[name])
    other.load_state_dict(state)
    assert calls(lambda: other.load_state_dict(state)) < 6 * MANY
    take(loader, 5)
    other.load_state_dict(loader.state_dict())
    assert prints(take(other, 3)) == prints(take(loader, 3))


@pytest.mark.jobs
def test_one_different_source_of_10_000_is_named(many):
    state = loader_of(many["blend"]).state_dict()
    with pytest.raises(
        StateMismatchError, match="'/data/train/shard-folder-007777': its weight"
    ):
        loader_of(many["changed"]).load_state_dict(state)
