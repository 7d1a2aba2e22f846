"""The check value of states: it tells any change, and survives what people do with states."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
import torch

from energize import RestoreKeyError, StateError, restore_sample
from energize.core.quarantine import read_entries
from energize.loader.state import FIELDS, VERSION, checked_state
from tests.support.datasets import numbers
from tests.support.loading import loader_of, prints, take
from tests.support.states import evens, resealed, saved


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


@pytest.mark.parametrize("way", WAYS)
def test_a_state_survives(way):
    dataset = evens()
    loader = loader_of(dataset, lanes=2)
    take(loader, 5)
    other = loader_of(dataset)
    other.load_state_dict(WAYS[way](loader.state_dict()))
    assert prints(take(other, 9)) == prints(take(loader, 9))


@pytest.mark.parametrize("field", [*FIELDS, "check"])
def test_any_changed_text_is_told(field):
    state = saved(evens(), lanes=2)
    text = state[field]
    for at in range(0, len(text), 1 + len(text) // 40):
        letter = "1" if text[at] == "0" else "0"
        with pytest.raises(StateError, match="changed or damaged since it was saved"):
            checked_state(state | {field: text[:at] + letter + text[at + 1 :]})


def test_fields_that_are_gone_new_or_of_another_type():
    state = saved(evens(), lanes=2)
    for field in state:
        with pytest.raises(StateError, match=f"'{field}'"):
            checked_state({name: value for name, value in state.items() if name != field})
        with pytest.raises(StateError, match=f"'{field}'"):
            checked_state(state | {field: [state[field]]})
    with pytest.raises(StateError, match=r"has 'curser', .* did you mean 'cursor'"):
        checked_state(state | {"curser": "{}"})
    with pytest.raises(StateError, match=f"'version' 3, this energize reads version {VERSION}"):
        checked_state(state | {"version": 3})


def test_a_loader_writes_the_check_value_anew():
    loader = loader_of(numbers(9))
    loader.load_state_dict(resealed(loader.state_dict(), cursor='{"position": 4}'))
    assert checked_state(loader.state_dict())["cursor"] == '{"position":4}'
    assert take(loader, 2) == [4, 5]


@pytest.mark.parametrize(
    "cursor",
    [
        '{"position": 4, "more": 1}',
        '{"position": 4.0}',
        '{"position": true}',
        f'{{"position": {2**45}}}',
        '{"position": NaN}',
        '{"position": 4, "step": -1}',
        '{"position": 4, "changes": [["", 9, {"a": 1}, false], ["", 3, {"a": 1}, false]]}',
        '{"position": ' + "9" * 6000 + "}",
        '{"position": [' + "0," * 1_000_001 + "0]}",
    ],
)
def test_what_no_run_can_have(cursor):
    dataset = numbers(9)
    with pytest.raises(StateError):
        loader_of(dataset).load_state_dict(resealed(saved(dataset, 3), cursor=cursor))


KEYS = {
    "far": ("energize", 2**61),
    "digits": ("energize", 10**6000),
    "below 0": ("energize", -1),
    "a float": ("energize", 1.0),
    "deep": ("energize", 0, 2, '{"a":' * 5000 + "1" + "}" * 5000),
    "long": ("energize", 0, 2, " " * 2**26),
    "another type": ("energize", 0, 2, b"{}"),
    "lanes": ("energize", 10**6000, 10**6001, "{}"),
    "contradicting": ("energize", 0, 2, '{"epoch": 0, "taken": 1, "input": {"rejected": 9}}'),
    "a shard": ("Webdataset", "a\x00\ud800", 2**63),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("dataset", [numbers(9), evens()], ids=["indexed", "stream"])
def test_hostile_restore_keys(key, dataset):
    with pytest.raises(RestoreKeyError) as caught:
        restore_sample(dataset, KEYS[key])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("index", ["-1", "1e3", "9" * 5000, str(2**62), "NaN", "[[1]]"])
def test_hostile_lists_of_failed_samples(index, tmp_path):
    line = f'{{"dataset": "a", "shard": null, "index": {index}, "key": null, "reason": "bad"}}'
    (tmp_path / "bad.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1"):
        list(read_entries(tmp_path / "bad.jsonl"))
