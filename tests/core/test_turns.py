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
    "nulls": (
        {"from": "gpt", "value": "A", "weight": None, "text": None},
        Turn("assistant", "A"),
    ),
    "empty values": (
        {
            "role": "assistant",
            "content": "A",
            "refusal": "",
            "annotations": [],
            "audio": {},
        },
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
    "a weight of a question": (
        {"role": "user", "content": "Q", "weight": 1},
        Turn("user", "Q"),
    ),
    "a trained question": (
        {"role": "user", "content": "Q", "train": True},
        Turn("user", "Q", learned=True),
    ),
    "ShareGPT's call": (
        {"from": "function_call", "value": '{"name": "look", "arguments": {"x": 1}}'},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "swift's calls": (
        {
            "role": "tool_call",
            "content": '[{"name": "look", "arguments": "{\\"x\\": 1}"}]',
        },
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "OpenAI's calls": (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "look", "arguments": "{}"},
                }
            ],
        },
        Turn(
            "assistant",
            "",
            None,
            {
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "look", "arguments": {}},
                    }
                ]
            },
        ),
    ),
    "OpenAI's older call": (
        {
            "role": "assistant",
            "content": "A",
            "function_call": {"name": "look", "arguments": None},
        },
        Turn(
            "assistant",
            "A",
            None,
            {
                "tool_calls": [
                    {"type": "function", "function": {"name": "look", "arguments": {}}}
                ]
            },
        ),
    ),
    "parameters": (
        {"role": "assistant", "tool_call": {"name": "look", "parameters": {"x": 1}}},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    **{
        f"a result of {role}": ({"role": role, "content": "R"}, Turn("tool", "R"))
        for role in (
            "tool",
            "observation",
            "function",
            "tool_response",
            "function_response",
        )
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
        {
            "role": "assistant",
            "content": "A",
            "reasoning": "WHY",
            "reasoning_content": "WHY",
        },
        Turn("assistant", "A", None, WHY),
    ),
    "reasoning that is also the name": (
        {"role": "assistant", "content": "A", "reasoning": "look", "name": "look"},
        Turn("assistant", "A", None, {"name": "look", "reasoning_content": "look"}),
    ),
    "reasoning of white space": (
        {
            "role": "assistant",
            "content": "A",
            "reasoning_content": "\n\n",
            "thinking": "WHY",
        },
        Turn("assistant", "A", None, WHY),
    ),
    "an empty reasoning before another": (
        {
            "role": "assistant",
            "content": "A",
            "reasoning_content": "",
            "reasoning": "WHY",
        },
        Turn("assistant", "A", None, WHY),
    ),
    "a role with spaces": ({"from": "GPT ", "value": "A"}, Turn("assistant", "A")),
    "a role in capitals": ({"role": "USER", "content": "Q"}, Turn("user", "Q")),
    "a call in capitals": (
        {"role": "Tool_Call", "content": {"name": "look", "arguments": {"x": 1}}},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "a role of its own": (
        {"role": "developer", "content": "S"},
        Turn("developer", "S"),
    ),
    "calls as text": (
        {"role": "assistant", "content": "A", "tool_calls": json.dumps([CALL])},
        Turn("assistant", "A", None, {"tool_calls": [CALL]}),
    ),
    "a call under two names": (
        {"role": "assistant", "tool_calls": [CALL], "tool_call": [CALL]},
        Turn("assistant", "", None, {"tool_calls": [CALL]}),
    ),
    "two calls": (
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        Turn("assistant", "", None, {"tool_calls": [CALL, CALL]}),
    ),
    "no calls": (
        {"role": "assistant", "content": "A", "tool_calls": [], "function_call": None},
        Turn("assistant", "A"),
    ),
    "a masked call": (
        {
            "role": "function_call",
            "content": json.dumps(CALL["function"]),
            "train": False,
        },
        Turn("assistant", "", False, {"tool_calls": [CALL]}),
    ),
    "a result in pieces": (
        {"role": "tool", "content": [{"type": "text", "text": "R"}]},
        Turn("tool", "R"),
    ),
    "a question that is not masked": (
        {"role": "user", "content": "Q", "masked": False},
        Turn("user", "Q"),
    ),
    "a trained system prompt": (
        {"role": "system", "content": "S", "train": 1},
        Turn("system", "S", learned=True),
    ),
    "flags that agree": (
        {
            "role": "assistant",
            "content": "A",
            "train": 1,
            "loss_mask": True,
            "masked": 0,
        },
        Turn("assistant", "A", learned=True),
    ),
    "flags without a value": (
        {"role": "assistant", "content": "A", "train": None, "weight": None},
        Turn("assistant", "A"),
    ),
    "an unknown key that is false": (
        {"role": "assistant", "content": "A", "toxic": False},
        Turn("assistant", "A", None, {"toxic": False}),
    ),
    "pieces for a cache": (
        {
            "role": "user",
            "content": [{"type": "text", "text": "Q", "cache_control": {"a": "b"}}],
        },
        Turn("user", "Q"),
    ),
    "pieces": (
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Q"},
                {"type": "input_text", "text": "?"},
            ],
        },
        Turn("user", "Q?"),
    ),
}

REFUSED = {
    "no content": ({"role": "user"}, "a turn must be {from, value}"),
    "null content": ({"role": "user", "content": None}, "a turn must be {from, value}"),
    "a negative weight": (
        {"role": "assistant", "content": "A", "weight": -0.5},
        "{'weight': -0.5}",
    ),
    "two weights": (
        {"role": "assistant", "content": "A", "weight": 0.5, "loss_weight": 2},
        "different values",
    ),
    "a mask of tokens": (
        {"role": "assistant", "content": "A", "loss_mask": [0, 1]},
        "unclear",
    ),
    "a flag in words": (
        {"role": "assistant", "content": "A", "train": "false"},
        "unclear",
    ),
    "two flags": (
        {"role": "assistant", "content": "A", "train": True, "masked": True},
        "{'train': True, 'masked': True}",
    ),
    "a call that is no JSON": (
        {"from": "function_call", "value": "CALL"},
        "JSON, got 'CALL'",
    ),
    "a call without a name": (
        {"role": "assistant", "tool_calls": [{"id": "f"}]},
        "must have a 'name', got {'id': 'f'}",
    ),
    "thoughts in pieces": (
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "WHY"}]},
        "a turn must be",
    ),
    "thoughts that are called text": (
        {"role": "assistant", "content": [{"type": "reasoning", "text": "WHY"}]},
        "a turn must be",
    ),
    "a masked piece": (
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "A", "train": False}],
        },
        "a turn must be",
    ),
    "two reasonings": (
        {"role": "assistant", "content": "A", "reasoning": "WHY", "thinking": "HOW"},
        "{'reasoning': 'WHY', 'thinking': 'HOW'}",
    ),
    "two different calls": (
        {
            "role": "assistant",
            "tool_calls": [CALL],
            "function_call": {"name": "listen"},
        },
        "keys of the same meaning have different values",
    ),
    "a weight in words": (
        {"role": "assistant", "content": "A", "weight": "1"},
        "unclear",
    ),
    "a weight that is no number": (
        {"role": "assistant", "content": "A", "weight": float("nan")},
        "unclear",
    ),
    "arguments that are no JSON": (
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "look", "arguments": "x=1"}}],
        },
        "JSON, got 'x=1'",
    ),
    "a result that is an object": (
        {"role": "tool", "content": {"t": 20}},
        "a turn must be",
    ),
    "a call in pieces": (
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "name": "look", "input": {}}],
        },
        "a turn must be",
    ),
    "a refusal in pieces": (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        "a turn must be",
    ),
    "texts in a list": ({"role": "user", "content": ["Q"]}, "a turn must be"),
    "a number as text": ({"from": "human", "value": 5}, "a turn must be"),
    "a number as role": ({"role": 5, "content": "Q"}, "a turn must be"),
    "other keys": ({"speaker": "user", "text": "Q"}, "a turn must be"),
    "a pair": (["user", "Q"], "a turn must be"),
    "a text": ("Q", "a turn must be"),
    "reasoning as a number": (
        {"role": "assistant", "content": "A", "reasoning": 5},
        "a turn must be",
    ),
    "reasoning in blocks": (
        {"role": "assistant", "content": "A", "thinking": [{}]},
        "a turn must be",
    ),
}


def test_turns_of_all_forms_are_read():
    for name, (given, turn) in FORMS.items():
        with row(name):
            sample = ConversationSample(__key__="0", turns=[given])
            assert sample.turns == [turn]
            preferred = PreferenceSample(
                __key__="0", chosen=[given], rejected="No.", prompt="Q"
            )
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
    "one function": (json.dumps(TOOL), [{"type": "function", "function": TOOL}]),
    "schemas as text": (
        json.dumps([{"type": "function", "function": TOOL}]),
        [{"type": "function", "function": TOOL}],
    ),
    "null": (None, []),
    "a list of one text": (["[]"], []),
    "an empty text": ("", []),
    "an empty list": ("[]", []),
}


def test_tools_of_all_forms_are_read():
    turns = [{"role": "user", "content": "Q"}]
    for name, (given, tools) in TOOLS.items():
        with row(name):
            assert (
                ConversationSample(__key__="0", turns=turns, tools=given).tools == tools
            )
    for wrong in ("look", ["look"], 5, [{"description": "d"}], [{"function": "look"}]):
        with (
            row(wrong),
            pytest.raises(DataError, match=r"have a 'name'|is JSON|must be JSON"),
        ):
            ConversationSample(__key__="0", turns=turns, tools=wrong)


def test_a_turn_is_shown_without_what_it_lacks():
    assert repr(Turn("user", "Q")) == "Turn(role='user', text='Q')"
    assert (
        repr(Turn("user", "Q", False)) == "Turn(role='user', text='Q', learned=False)"
    )


def test_keys_of_an_exchange_are_those_of_its_answer():
    given = [{"user": "Q", "assistant": "A", "loss": 0, "source": "s"}, ["P", "B"]]
    assert exchanges([("", given)]) == [
        Turn("user", "Q"),
        Turn("assistant", "A", False, {"source": "s"}),
        Turn("user", "P"),
        Turn("assistant", "B"),
    ]
