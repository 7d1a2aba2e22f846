"""The check value of states: it tells any change, and survives what people do with states."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pytest
import torch

from energize import StateError
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
