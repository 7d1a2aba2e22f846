"""What the data say of turns decides which tokens are learned, or the sample is
refused."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from energize import (
    CaptioningSample,
    ConversationSample,
    ProcessorTaskEncoder,
    VQASample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.encoders import TurnKeys
from energize.errors import DataError, EnergizeError, SampleError, SkipSample
from tests.support.images import picture
from tests.support.tables import row

pytest.importorskip("transformers")
from tests.support.chat_templates import FAMILIES, MISTRAL, tokenizer
from tests.support.processors import PIECES, PROCESSORS, TURNS

pytestmark = pytest.mark.jobs

CALL = {"type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
WHY = {"reasoning_content": "WHY"}

QUESTION = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
MORE = [{"role": "user", "content": "P"}, {"role": "assistant", "content": "B"}]
CALLS = [
    QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": "123456789"}]},
    {"role": "tool", "tool_call_id": "123456789", "content": "R"},
    ANSWER,
]
SHAREGPT = [
    {"from": "human", "value": "Q"},
    {"from": "function_call", "value": json.dumps(CALL["function"])},
    {"from": "observation", "value": "R"},
    {"from": "gpt", "value": "A"},
]
KEYS = {
    "nothing": [QUESTION, ANSWER, *MORE],
    "loss": [QUESTION, ANSWER | {"loss": 0}, *MORE],
    "weight": [QUESTION, ANSWER | {"weight": 1}, MORE[0], MORE[1] | {"weight": 0}],
    "masked": [
        QUESTION,
        ANSWER | {"masked": True},
        MORE[0],
        MORE[1] | {"masked": False},
    ],
    "loss_mask": [
        QUESTION | {"loss_mask": 1},
        ANSWER | {"loss_mask": 1},
        MORE[0],
        MORE[1] | {"loss_mask": 0},
    ],
    "train": [QUESTION | {"train": True}, ANSWER | {"train": False}, *MORE],
    "tool_calls": CALLS,
    "function_call": SHAREGPT,
    "reasoning": [QUESTION, ANSWER | {"reasoning": "WHY"}],
    "thinking": [QUESTION, ANSWER | {"thinking": "WHY"}],
    "reasoning before": [QUESTION, ANSWER | WHY, *MORE],
    "thoughts in the text": [QUESTION, ANSWER | {"content": "<think>WHY</think>A"}],
    "system": [{"role": "system", "content": "S"}, QUESTION, ANSWER],
    "two questions": [QUESTION, QUESTION, ANSWER],
    "tools": [QUESTION, ANSWER],
}
"""Conversations, by the key that decides what is learned."""

ENDS = {
    **dict.fromkeys(("chatml", "qwen2", "qwen3"), "<|im_end|>\n"),
    **dict.fromkeys(("mistral",), "</s>"),
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>\n",
    "deepseek": "<eos>",
    "harmony": "<|return|>",
    "marked": "<|im_end|>",
}


class Refused(str):
    """Words of the error that there is instead."""

    __slots__ = ()


NOT_WRITTEN = Refused("does not write")
REFUSES = "refuses the conversation: "
ALTERNATE = Refused(f"{REFUSES}Conversation roles must alternate")
EARLIER = Refused("differently from the beginning")
# Other answers than A and B with their ends, by key and family: what is learned, or why
# nothing is.
OTHERWISE = {
    ("loss_mask", "harmony"): "<|channel|>final<|message|>A<|return|>",
    **{("train", family): f"Q{end}B{end}" for family, end in ENDS.items()},
    ("train", "mistral"): "Q[/INST]B</s>",
    ("train", "deepseek"): "QB<eos>",
    ("train", "harmony"): "Q<|end|><|channel|>final<|message|>B<|return|>",
    ("train", "marked"): Refused("does not mark exactly the turns of the assistant"),
    **{
        (key, family): NOT_WRITTEN
        for key in ("tool_calls", "function_call")
        for family in FAMILIES
    },
    **{(key, "gemma"): ALTERNATE for key in ("tool_calls", "function_call")},
    **{
        (
            key,
            "qwen2",
        ): '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
        "<|im_end|>\nA<|im_end|>\n"
        for key in ("tool_calls", "function_call")
    },
    **{
        (key, "llama3"): '{"name": "look", "parameters": {"x": 1}}<|eot_id|>A<|eot_id|>'
        for key in ("tool_calls", "function_call")
    },
    **{
        (
            key,
            "deepseek",
        ): '<call>function<sep>look\n```json\n{"x": 1}\n```</call><eos>A<eos>'
        for key in ("tool_calls", "function_call")
    },
    (
        "tool_calls",
        "mistral",
    ): '[TOOL_CALLS]{"name": "look", "arguments": {"x": 1}}</s>A</s>',
    ("function_call", "mistral"): Refused(
        f"{REFUSES}Tool call IDs should be 9 characters long!"
    ),
    **{
        (key, family): NOT_WRITTEN
        for key in ("reasoning", "thinking")
        for family in FAMILIES
    },
    **{
        (key, "qwen3"): "<think>\nWHY\n</think>\n\nA<|im_end|>\n"
        for key in ("reasoning", "thinking")
    },
    **{
        (key, "harmony"): "<|channel|>analysis<|message|>WHY<|end|>"
        "<|start|>assistant<|channel|>final<|message|>A<|return|>"
        for key in ("reasoning", "thinking")
    },
    **{("reasoning before", family): NOT_WRITTEN for family in FAMILIES},
    **{("reasoning before", family): EARLIER for family in ("qwen3", "harmony")},
    **{
        ("thoughts in the text", family): f"<think>WHY</think>A{end}"
        for family, end in ENDS.items()
    },
    ("thoughts in the text", "deepseek"): Refused("does not write the text of turn 1"),
    ("thoughts in the text", "harmony"): (
        "<|channel|>final<|message|><think>WHY</think>A<|return|>"
    ),
    ("system", "mistral"): Refused(
        f"{REFUSES}Only user, assistant and tool roles are supported!"
    ),
    ("system", "gemma"): Refused(f"{REFUSES}System role not supported"),
    ("system", "deepseek"): Refused("does not write the text of turn 0, 'system'"),
    ("two questions", "mistral"): Refused(
        f"{REFUSES}After the optional system message, conversation roles"
    ),
    ("two questions", "gemma"): ALTERNATE,
    **{
        ("tools", family): Refused("does not write the tools")
        for family in ("chatml", "qwen3", "gemma", "deepseek", "harmony", "marked")
    },
}


def learned(words, batch):
    pairs = zip(batch.input_ids, batch.labels, strict=True)
    return [words.decode(ids[labels != -100]) for ids, labels in pairs]


def encoded(processor, turns, **more):
    encoder = ProcessorTaskEncoder(processor, **more.pop("options", {}))
    sample = ConversationSample(__key__="0", turns=turns, **more)
    return encoder.batch([encoder.encode_sample(sample)])


@pytest.mark.parametrize("family", FAMILIES)
def test_just_the_tokens_that_the_data_ask_for_are_learned(family):
    words, end = tokenizer(family), ENDS[family]
    head = "<|channel|>final<|message|>" if family == "harmony" else ""
    for key, turns in KEYS.items():
        tools = [TOOL] if key == "tools" else []
        asked = {
            "nothing": "AB",
            **dict.fromkeys(("loss", "masked"), "B"),
            **dict.fromkeys(
                ("weight", "loss_mask", "system", "two questions", "tools"), "A"
            ),
        }
        usual = "".join(f"{head}{each}{end}" for each in asked.get(key, ""))
        expected = OTHERWISE.get((key, family), usual)
        with row(f"{family}, {key}"):
            if isinstance(expected, Refused):
                with pytest.raises(EnergizeError) as caught:
                    encoded(words, turns, tools=tools)
                assert expected in str(caught.value)
            else:
                assert learned(words, encoded(words, turns, tools=tools)) == [expected]


PARTS = {
    "masked": (
        [
            {"role": "user", "content": "<image> what ?"},
            ANSWER | {"content": "red", "weight": 0},
            {"role": "user", "content": "and ?"},
            ANSWER | {"content": "blue"},
        ],
        ["blue <|end|>"],
    ),
    "a trained question": (
        [
            {"role": "user", "content": "<image> what ?", "train": True},
            ANSWER | {"content": "red"},
        ],
        ["what ? <|end|> red <|end|>"],
    ),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_turns_with_images_are_learned_as_the_data_ask(name):
    processor = PROCESSORS[name]()
    for case, (turns, expected) in PARTS.items():
        with row(case):
            batch = encoded(processor, turns, images=[picture()])
            assert learned(processor.tokenizer, batch) == expected


CALLED = TURNS.replace("BODY", PIECES.replace("PLACE", " <image> ")).replace(
    "<|end|>{% endfor %}",
    "{% for call in m['tool_calls'] or [] %} blue {{ call.function.name }}{% endfor %}"
    "<|end|>{% endfor %}",
)


def test_calls_of_tools_are_learned_beside_images():
    processor = PROCESSORS["llava"]()
    processor.chat_template = CALLED
    turns = [
        {"role": "user", "content": "<image> what ?"},
        {"role": "assistant", "tool_calls": [{"name": "square", "arguments": {}}]},
        {"role": "tool", "content": "red"},
        ANSWER | {"content": "green"},
    ]
    batch = encoded(processor, turns, images=[picture()])
    assert learned(processor.tokenizer, batch) == ["blue square <|end|> green <|end|>"]


def test_masked_turns_have_no_marks_where_the_template_has_some():
    words = tokenizer("marked")
    assert learned(words, encoded(words, KEYS["loss"])) == ["B<|im_end|>"]


@pytest.mark.parametrize("turns", [KEYS["loss"][:2], [QUESTION]])
def test_a_conversation_of_which_nothing_is_learned_is_damaged(turns):
    with pytest.raises(DataError, match="nothing to learn"):
        encoded(tokenizer("chatml"), turns)


def test_an_unknown_key_of_a_turn_is_an_error_or_a_skip_or_named(caplog):
    words = tokenizer("chatml")
    turns = [QUESTION, ANSWER | {"toxic": True, "id": 7}]
    with pytest.raises(
        SampleError, match=r"unknown keys: toxic; name keys .* in turn_keys=.*, or"
    ):
        encoded(words, turns)
    with pytest.raises(SkipSample):
        encoded(words, turns, options={"turn_keys": TurnKeys(unknown="skip")})
    assert "unknown keys: toxic: left out" in caplog.text
    found = encoded(words, turns, options={"turn_keys": TurnKeys(extra=["toxic"])})
    assert learned(words, found) == ["A<|im_end|>\n"]


def test_a_template_gets_the_extra_keys():
    words = tokenizer("chatml")
    words.chat_template = words.chat_template.replace(
        "{{ m['content'] }}", "{{ m['mood'] }}: A"
    )
    turns = [{"role": "user", "content": "A", "mood": "sad"}, ANSWER | {"mood": "glad"}]
    found = encoded(words, turns, options={"turn_keys": TurnKeys(extra=["mood"])})
    assert learned(words, found) == ["glad: A<|im_end|>\n"]


def rows(folder, *conversations):
    file = folder / "chat.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in conversations))
    return file


def test_a_conversation_that_the_template_refuses_is_left_out_and_counted(
    tmp_path, caplog
):
    caplog.set_level(logging.WARNING, "energize")
    good, bad = (
        {"messages": each} for each in (KEYS["nothing"], KEYS["two questions"])
    )
    file = rows(tmp_path, *[good] * 3, bad, *[good] * 4)
    encoder = ProcessorTaskEncoder(tokenizer("mistral"))
    loader = get_loader(get_train_dataset(file, batch_size=1, task_encoder=encoder))
    batches = [batch for batch, _ in zip(loader, range(8), strict=False)]
    assert len(batches) == 8
    assert loader.failures.count >= 1
    assert "conversation roles must alternate user/assistant" in caplog.text


def test_a_template_that_is_broken_ends_the_run(tmp_path):
    words = tokenizer("chatml")
    words.chat_template = MISTRAL + "{% if %}"
    file = rows(tmp_path, *[{"messages": KEYS["nothing"]}] * 3)
    dataset = get_train_dataset(
        file, batch_size=1, task_encoder=ProcessorTaskEncoder(words)
    )
    with pytest.raises(Exception, match="Expected an expression"):
        next(iter(get_loader(dataset)))


def test_tools_and_calls_of_a_file_are_learned(tmp_path):
    words = tokenizer("qwen2")
    with_tools = {"conversations": SHAREGPT, "tools": json.dumps([TOOL])}
    without = {"conversations": KEYS["nothing"]}
    file = rows(tmp_path, *[with_tools, without] * 4)
    dataset = get_val_dataset(
        file, split_part="train", batch_size=2, task_encoder=ProcessorTaskEncoder(words)
    )
    called = OTHERWISE["function_call", "qwen2"]
    assert learned(words, dataset[0]) == [called, "A<|im_end|>\nB<|im_end|>\n"]
    assert '"description": "Looks."' in words.decode(dataset[0].input_ids[0])


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_line_ends_of_captions_and_answers_are_not_learned(end, tmp_path):
    processor = PROCESSORS["llava"]()
    encoder = ProcessorTaskEncoder(processor)
    image = picture()
    image.save(tmp_path / "0.png")
    (tmp_path / "0.txt").write_bytes(f"red{end}".encode())
    dataset = get_val_dataset(
        tmp_path, split_part="train", batch_size=1, task_encoder=encoder
    )
    expected = dataset[0].input_ids
    for sample in (
        CaptioningSample(__key__="0", image=image, caption="red" + end),
        VQASample(__key__="0", image=image, context="", answers=["red" + end]),
    ):
        tokens = encoder.encode_sample(sample).per_token
        assert torch.equal(tokens["input_ids"], expected[0])
        assert (
            processor.decode(tokens["input_ids"][tokens["labels"] != -100])
            == "red <|end|>"
        )


def test_conversations_with_unknown_keys_are_counted(tmp_path):
    good = {"messages": [QUESTION, ANSWER]}
    bad = {"messages": [QUESTION, ANSWER | {"toxic": True}]}
    file = rows(tmp_path, *[good] * 5, bad, *[good] * 2)
    encoder = ProcessorTaskEncoder(
        tokenizer("chatml"), turn_keys=TurnKeys(unknown="skip")
    )
    loader = get_loader(get_train_dataset(file, batch_size=1, task_encoder=encoder))
    batches = [batch for batch, _ in zip(loader, range(8), strict=False)]
    assert len(batches) == 8
    assert "skipped: has turns with unknown keys: toxic" in str(loader.report())


def test_the_nulls_of_a_parquet_file_are_no_keys(tmp_path):
    turns = [QUESTION, ANSWER | {"weight": 1.0}, MORE[0], MORE[1] | {"weight": 0.0}]
    thoughts = [QUESTION, ANSWER | {"reasoning": "WHY"}]
    table = pa.Table.from_pylist([{"messages": turns}, {"messages": thoughts}] * 4)
    pq.write_table(table, tmp_path / "chat.parquet")
    words = tokenizer("qwen3")
    encoder = ProcessorTaskEncoder(words)
    file = tmp_path / "chat.parquet"
    dataset = get_val_dataset(
        file, split_part="train", batch_size=2, task_encoder=encoder
    )
    expected = ["A<|im_end|>\n", "<think>\nWHY\n</think>\n\nA<|im_end|>\n"]
    assert learned(words, dataset[0]) == expected


def test_system_and_functions_of_a_row_are_written(tmp_path):
    turns = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    row_of_file = {"conversations": turns, "system": "SYS", "functions": [TOOL]}
    file = rows(tmp_path, *[row_of_file] * 4)
    words = tokenizer("llama3")
    encoder = ProcessorTaskEncoder(words)
    dataset = get_val_dataset(
        file, split_part="train", batch_size=1, task_encoder=encoder
    )
    text = words.decode(dataset[0].input_ids[0])
    assert "system<|end_header_id|>\n\nSYS<|eot_id|>" in text
    assert '"description": "Looks."' in text
    assert learned(words, dataset[0]) == ["A<|eot_id|>"]
