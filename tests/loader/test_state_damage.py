"""Damaged states: an error of ours or a run that goes on, and never anything else."""

from __future__ import annotations

import base64
import json
import resource
import zlib

import pytest

from energize import BlendDataset, EnergizeError, StateError
from energize.core.config import packed, unpacked
from tests.support.datasets import INDEXED, STREAMING
from tests.support.loading import loader_of
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


def test_the_states_that_are_mutated_are_sound(states):
    for dataset, found in states.values():
        assert [outcome(dataset, state) for state in found] == ["goes on"] * 3
