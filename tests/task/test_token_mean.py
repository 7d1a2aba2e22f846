"""The mean of token losses of a global batch, in trainers, beside sums by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import log_softmax

from energize import ConversationSample, ProcessorTaskEncoder, token_weights
from energize.encoders import TokenMean
from energize.errors import ConfigError, DataError
from tests.support.launching import TRAINERS, launched
from tests.support.tables import row

pytest.importorskip("transformers")
from tests.support.processors import tokenizer

pytestmark = pytest.mark.jobs

ANSWERS = ["red", "blue and red", "a green square", "this"]
TURN_WEIGHTS = [{}, {"loss_weight": 0.25}, {"weight": 3}, {"loss_scale": 0}]
RANKS = 2


def conversation(number):
    """Two answers, with weights in the words of several libraries."""
    turns = []
    for turn in range(2):
        turns.append({"role": "user", "content": "what is this ?"[: 4 + number % 9]})
        answer = {"role": "assistant", "content": ANSWERS[(number + turn) % 4]}
        turns.append(answer | TURN_WEIGHTS[(number // 2 + turn) % 4])
    return turns


def written(folder, count=32):
    for part in range(2):
        (folder / f"part{part}").mkdir()
        rows = [
            json.dumps({"id": str(i), "messages": conversation(i)})
            for i in range(part, count, 2)
        ]
        (folder / f"part{part}" / "chat.jsonl").write_text("\n".join(rows))
    from tests.support.token_mean_program import SAMPLE_WEIGHTS

    entries = "".join(
        f"      - {{path: ./part{part}/chat.jsonl, weight: 1, sample_weight: {weight}}}\n"
        for part, weight in enumerate(SAMPLE_WEIGHTS)
    )
    (folder / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n"
        f"    blend:\n{entries}"
    )


def tokens_of(turns):
    """Ids and weights of the tokens of a conversation, by the words of its turns."""
    words, weights = ["<s>"], [0.0]
    for turn in turns:
        said = [*turn["content"].split(), "<|end|>"]
        words += [f"{turn['role']}:", *said]
        stated = {"loss_weight", "weight", "loss_scale"} & turn.keys()
        weight = turn[stated.pop()] if stated else 1
        is_answer = turn["role"] == "assistant"
        weights += [0.0] + [float(weight * is_answer)] * len(said)
    return torch.tensor(tokenizer().convert_tokens_to_ids(words)), torch.tensor(weights)


def mean_by_hand(model, samples, mean):
    """The sum over samples and tokens, divided by that of their weights."""
    above, below = 0.0, 0.0
    for ids, weights, sample_weight in samples:
        logits = model(input_ids=ids[None]).logits[0]
        losses = -log_softmax(logits[:-1], -1)[range(len(ids) - 1), ids[1:]]
        count = weights[1:].sum()
        size = {"tokens": count, "samples": 1.0, "sqrt_tokens": count**0.5}[mean]
        above = above + sample_weight * size * (losses * weights[1:]).sum() / count
        below = below + sample_weight * size
    return above / below


def trained_by_hand(folder, mean):
    """Losses and parameters of steps over whole global batches, in this process."""
    from tests.support.token_mean_program import (
        ACCUMULATION,
        RATE,
        SAMPLE_WEIGHTS,
        STEPS,
        dataset_of,
        language_model,
    )

    model, dataset, losses = language_model(), dataset_of(folder), []
    per_step = RANKS * ACCUMULATION
    for step in range(STEPS):
        samples = []
        for batch in dataset.at(range(step * per_step, (step + 1) * per_step)):
            for key, source in zip(batch.__key__, batch.__sources__, strict=True):
                part = int("part1" in str(source))
                turns = conversation(2 * int(key) + part)
                samples.append((*tokens_of(turns), SAMPLE_WEIGHTS[part]))
        loss = mean_by_hand(model, samples, mean)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(RATE * parameter.grad)
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.timeout(400)
def test_trainers_on_two_ranks_have_the_mean_of_one_process(tmp_path):
    written(tmp_path)
    launched(
        "tests.support.token_mean_program",
        tmp_path,
        ranks=RANKS,
        imports=TRAINERS,
        timeout=300,
    )
    results = json.loads((tmp_path / "out.json").read_text())
    assert len(results) == 18
    expected = {
        mean: trained_by_hand(tmp_path, mean)
        for mean in ("tokens", "samples", "sqrt_tokens")
    }
    first = [losses[0] for losses, _ in expected.values()]
    assert min(abs(a - b) for a in first for b in first if a is not b) > 1e-3
    for name, (losses, parameters) in results.items():
        by_hand, others = expected[name.split(",")[0]]
        with row(name):
            assert losses == pytest.approx(by_hand, abs=1e-6)
            torch.testing.assert_close(
                torch.tensor(parameters, dtype=torch.float64),
                others,
                rtol=0,
                atol=1e-6,
            )


def test_an_answer_of_half_a_weight_counts_half():
    encoder = ProcessorTaskEncoder(tokenizer())
    turns = [
        {"role": "user", "content": "what ?"},
        {"role": "assistant", "content": "red", "loss_weight": 0.5},
        {"role": "user", "content": "and ?"},
        {"role": "assistant", "content": "blue"},
    ]
    batch = encoder.batch(
        [encoder.encode_sample(ConversationSample(__key__="0", turns=turns))]
    )
    expected = [[0.0] * 6 + [0.5] * 2 + [0.0] * 5 + [1.0] * 2]
    assert token_weights(batch, "tokens").tolist() == expected
    assert "loss_weights" not in batch


@pytest.mark.parametrize(
    "keys",
    [{"loss_weight": -1}, {"weight": "2"}, {"weight": 0.5, "loss_weight": 2}],
)
def test_weights_of_messages_that_are_unclear_are_damage(keys):
    turn = {"role": "assistant", "content": "red", **keys}
    with pytest.raises(DataError, match=r"turn 0 is .*weight"):
        ConversationSample(__key__="0", turns=[turn])


def test_a_mean_that_does_not_exist_is_an_error():
    with pytest.raises(ConfigError, match="mean"):
        TokenMean("square")
    with pytest.raises(ConfigError, match="accumulation"):
        next(TokenMean().steps([], 0))


def test_a_trainer_with_two_losses_is_an_error(tmp_path):
    from transformers import TrainingArguments

    from energize.integrations.transformers import LoaderTrainer
    from tests.support.token_mean_program import language_model

    options = TrainingArguments(
        output_dir=tmp_path, use_cpu=True, report_to=[], label_smoothing_factor=0.1
    )
    with pytest.raises(ConfigError, match="label_smoothing_factor"):
        LoaderTrainer(language_model(), options, token_mean="samples")
