"""Damaged states: an error of ours or a run that goes on, and never anything else."""

from __future__ import annotations

import base64
import json
import random
import resource
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("field", ["config", "details", "cursor"])
def test_cut_off_anywhere(states, name, field):
    dataset, (*_, state) = states[name]
    text = state[field]
    step = max(1, len(text) // 60)
    found = {
        outcome(dataset, changed_in(state, field, text[:length]))
        for length in range(0, len(text), step)
    }
    assert found == ({"goes on"} if field == "details" else {"StateError"})


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, -1, 10**30, "3", 3.0, True, None, [2]])
def test_another_version(states, version):
    dataset, (state, *_) = states["stream"]
    assert outcome(dataset, state | {"version": version}) == "StateError"


NONSENSE = {
    "empty": "",
    "not base64": "not base64!",
    "no text": base64.b64encode(b"\x00" * 99).decode(),
    "not zlib": base64.b64encode(bytes(range(256))).decode(),
    "not UTF-8": base64.b64encode(zlib.compress(b"\xff\xfe{}")).decode(),
    "a list": "[1, 2]",
    "a packed list": base64.b64encode(zlib.compress(b"[1, 2]")).decode(),
    "packed nothing": base64.b64encode(zlib.compress(b"")).decode(),
    "a number without end": '{"position": ' + "9" * 100_000 + "}",
    "not ASCII": "{\u2028\ud800",
    "NUL": "\x00",
}


@pytest.mark.parametrize("field", ["config", "cursor"])
@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense(states, field, what):
    for dataset, (*_, state) in (states["indexed"], states["stream"]):
        assert outcome(dataset, changed_in(state, field, NONSENSE[what])) == "StateError"
        assert (
            outcome(dataset, changed_in(state, field, NONSENSE[what]), strict=False) == "StateError"
        )


@pytest.mark.parametrize("value", [None, 3, b"{}", {"position": 1}, [], object()])
@pytest.mark.parametrize("field", ["fingerprint", "config", "cursor"])
def test_fields_of_other_types(states, field, value):
    dataset, (state, *_) = states["indexed"]
    assert outcome(dataset, changed_in(state, field, value)) == "StateError"


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


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(BASES)), data=st.data())
def test_a_character_changed_anywhere(states, seed, name, data):
    dataset, found = states[name]
    draw = random.Random(seed)
    state = dict(draw.choice(found))
    field = draw.choice(["config", "details", "cursor"])
    text = state[field]
    at = draw.randrange(len(text))
    middle = data.draw(st.sampled_from(["", text[at] * 2, "0", "9", "-", "}", '"', "é", "\x00"]))
    outcome(
        dataset, changed_in(state, field, text[:at] + middle + text[at + 1 :]), draw.random() < 0.5
    )


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 10), st.integers(), st.floats(), st.text(max_size=3),
    st.sampled_from([10**6, 2**62 - 1, 2**62, 2**63, 2**70, [], {}, [None], [{}], [[]], {"a": 1}]),
)  # fmt: skip


def changed(draw, tree):
    """A tree that is different somewhere."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 5)) == 0:
        return draw(JUNK)
    items = dict(tree) if isinstance(tree, dict) else dict(enumerate(tree))
    key = draw(st.sampled_from(list(items)))
    how = draw(st.integers(0, 9))
    if how == 0:
        del items[key]
    elif how == 1 and isinstance(tree, dict):
        items["more"] = draw(JUNK)
    else:
        items[key] = changed(draw, items[key])
    return items if isinstance(tree, dict) else list(items.values())


@settings(max_examples=600)
@given(name=st.sampled_from(sorted(BASES)), data=st.data())
def test_a_value_changed_anywhere(states, name, data):
    """Values in texts whose packing is sound, so that they come as far as they can."""
    dataset, found = states[name]
    state = dict(data.draw(st.sampled_from(found)))
    field = data.draw(st.sampled_from(["config", "details", "cursor"]))
    tree = unpacked(state[field], field)
    if field == "config":
        tree = changed(data.draw, tree)
    elif "cursors" in tree and data.draw(st.booleans()):
        tree["cursors"] = packed(changed(data.draw, unpacked(tree["cursors"], "cursors")))
    else:
        tree = changed(data.draw, tree)
    outcome(dataset, changed_in(state, field, packed(tree)), data.draw(st.booleans()))


def test_the_states_that_are_mutated_are_sound(states):
    for dataset, found in states.values():
        assert [outcome(dataset, state) for state in found] == ["goes on"] * 3
