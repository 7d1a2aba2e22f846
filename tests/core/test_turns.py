"""Turns of conversations are read in all their usual forms, or refused."""

from __future__ import annotations

import json

import pytest

from energize import ConversationSample, PreferenceSample, Turn
from energize.errors import DataError
from energize.task.shapes import exchanges
from tests.support.tables import row

CALL = {"type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
WHY = {"reasoning_content": "WHY"}

# What one turn is given as, and what it is.
FORMS = {
    "ShareGPT": ({"from": "human", "value": "Q"}, Turn("user", "Q")),
    "OpenAI": ({"role": "assistant", "content": "A"}, Turn("assistant", "A")),
    "nulls": ({"from": "gpt", "value": "A", "weight": None, "text": None}, Turn("assistant", "A")),
    "empty values": (
        {"role": "assistant", "content": "A", "refusal": "", "annotations": [], "audio": {}},
        Turn("assistant", "A"),
    ),
    "an empty text": ({"role": "assistant", "content": ""}, Turn("assistant", "")),
    "Arrow's union": (
        {"role": None, "content": None, "from": "gpt", "value": "A"},
        Turn("assistant", "A"),
    ),
    "two texts": (
        {"role": "user", "content": "Q", "value": "P"},
        Turn("user", "Q", None, {"value": "P"}),
    ),
    **{
        f"{key}: {value}": (
            {"role": "assistant", "content": "A", key: value},
            Turn("assistant", "A", learned),
        )
        for key, value, learned in [
            *(("train", True, True), ("train", False, False), ("loss", 0, False)),
            *(("loss", True, True), ("weight", 0.0, False), ("weight", 1, True)),
            *(("loss_mask", 1, True), ("loss_mask", 0, False)),
            *(("masked", True, False), ("masked", 0, True)),
        ]
    },
    "a weight of a question": ({"role": "user", "content": "Q", "weight": 1}, Turn("user", "Q")),
    "a trained question": (
        {"role": "user", "content": "Q", "train": True},
        Turn("user", "Q", learned=True),
    ),
    "ShareGPT's call": (
        {"from": "function_call", "value": '{"name": "look", "arguments": {"x": 1}}'},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "swift's calls": (
        {"role": "tool_call", "content": '[{"name": "look", "arguments": "{\\"x\\": 1}"}]'},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "OpenAI's calls": (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ],
        },
        Turn(
            "assistant",
            "",
            None,
            {
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "look", "arguments": {}}}
                ]
            },
        ),
    ),
    "OpenAI's older call": (
        {"role": "assistant", "content": "A", "function_call": {"name": "look", "arguments": None}},
        Turn(
            "assistant",
            "A",
            None,
            {"tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}]},
        ),
    ),
    "parameters": (
        {"role": "assistant", "tool_call": {"name": "look", "parameters": {"x": 1}}},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    **{
        f"a result of {role}": ({"role": role, "content": "R"}, Turn("tool", "R"))
        for role in ("tool", "observation", "function", "tool_response", "function_response")
    },
    "the call that a result is of": (
        {"role": "tool", "content": "R", "tool_call_id": "1", "name": "look"},
        Turn("tool", "R", None, {"tool_call_id": "1", "name": "look"}),
    ),
    **{
        name: (
            {"role": "assistant", "content": "A", name: "WHY"},
            Turn("assistant", "A", None, WHY),
        )
        for name in ("reasoning_content", "reasoning", "thinking")
    },
    "reasoning under two names": (
        {"role": "assistant", "content": "A", "reasoning": "WHY", "reasoning_content": "WHY"},
        Turn("assistant", "A", None, WHY),
    ),
    "pieces": (
        {
            "role": "user",
            "content": [{"type": "text", "text": "Q"}, {"type": "input_text", "text": "?"}],
        },
        Turn("user", "Q?"),
    ),
}

REFUSED = {
    "no content": ({"role": "user"}, "a turn is {from, value}"),
    "null content": ({"role": "user", "content": None}, "a turn is {from, value}"),
    "half a weight": ({"role": "assistant", "content": "A", "weight": 0.5}, "{'weight': 0.5}"),
    "a mask of tokens": ({"role": "assistant", "content": "A", "loss_mask": [0, 1]}, "unclear"),
    "a flag in words": ({"role": "assistant", "content": "A", "train": "false"}, "unclear"),
    "two flags": (
        {"role": "assistant", "content": "A", "train": True, "masked": True},
        "{'train': True, 'masked': True}",
    ),
    "a call that is no JSON": ({"from": "function_call", "value": "CALL"}, "JSON, got 'CALL'"),
    "a call without a name": (
        {"role": "assistant", "tool_calls": [{"id": "f"}]},
        "has a 'name'; got {'id': 'f'}",
    ),
    "thoughts in pieces": (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "WHY"}]},
        "a turn is",
    ),
    "thoughts that are called text": (
        {"role": "assistant", "content": [{"type": "reasoning", "text": "WHY"}]},
        "a turn is",
    ),
    "a masked piece": (
        {"role": "assistant", "content": [{"type": "text", "text": "A", "train": False}]},
        "a turn is",
    ),
    "reasoning in blocks": ({"role": "assistant", "content": "A", "thinking": [{}]}, "a turn is"),
}


def test_turns_of_all_forms_are_read():
    for name, (given, turn) in FORMS.items():
        with row(name):
            sample = ConversationSample(__key__="0", turns=[given])
            assert sample.turns == [turn]
            preferred = PreferenceSample(__key__="0", chosen=[given], rejected="No.", prompt="Q")
            assert preferred.chosen == [turn]


def test_turns_that_cannot_be_read_are_refused():
    for name, (given, words) in REFUSED.items():
        with row(name), pytest.raises(DataError, match="turn 0 is ") as caught:
            ConversationSample(__key__="0", turns=[given])
        assert words in str(caught.value), name


TOOLS = {
    "functions": ([TOOL], [{"type": "function", "function": TOOL}]),
    "schemas": (
        [{"type": "function", "function": TOOL}],
        [{"type": "function", "function": TOOL}],
    ),
    "text": (json.dumps([TOOL]), [{"type": "function", "function": TOOL}]),
    "null": (None, []),
    "an empty text": ("", []),
    "an empty list": ("[]", []),
}


def test_tools_of_all_forms_are_read():
    turns = [{"role": "user", "content": "Q"}]
    for name, (given, tools) in TOOLS.items():
        with row(name):
            assert ConversationSample(__key__="0", turns=turns, tools=given).tools == tools
    for wrong in ("look", ["look"], 5, [{"description": "d"}]):
        with row(wrong), pytest.raises(DataError, match=r"has a 'name'|is JSON|are JSON"):
            ConversationSample(__key__="0", turns=turns, tools=wrong)


def test_a_turn_is_shown_without_what_it_lacks():
    assert repr(Turn("user", "Q")) == "Turn(role='user', text='Q')"
    assert repr(Turn("user", "Q", False)) == "Turn(role='user', text='Q', learned=False)"


def test_keys_of_an_exchange_are_those_of_its_answer():
    given = [{"user": "Q", "assistant": "A", "loss": 0, "source": "s"}, ["P", "B"]]
    assert exchanges([("", given)]) == [
        Turn("user", "Q"),
        Turn("assistant", "A", False, {"source": "s"}),
        Turn("user", "P"),
        Turn("assistant", "B"),
    ]
