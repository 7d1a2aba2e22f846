"""Batches of documents, preference pairs and several questions about an image."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

pytest.importorskip("transformers")

import transformers

from energize import (
    ConversationSample,
    PreferenceSample,
    ProcessorTaskEncoder,
    VQASample,
    get_train_dataset,
)
from energize.encoders import (
    InterleavedTaskEncoder,
    ModelPacking,
    PreferenceTaskEncoder,
    QuestionsTaskEncoder,
    answer_losses,
)
from energize.errors import ConfigError, DataError
from energize.samples import InterleavedSample
from tests.support import task_files
from tests.support.images import picture
from tests.support.models import MODELS, llava, qwen2_vl
from tests.support.processors import PROCESSORS, qwen, tokenizer

pytestmark = pytest.mark.jobs
assert transformers  # before lazy loaders of it

QUESTIONS = ["what is this ?", "what ?", "is this"]
ANSWERS = ["a red square", "blue", "green and red"]


def document(key="0", *pieces):
    """Return a text before two images in succession, and a text after each."""
    images = [picture(24, 16), picture(16, 24), picture(20, 20)]
    default = ["red blue", *images[:2], "green", images[2], "a square"]
    return InterleavedSample(__key__=key, sequence=list(pieces) or default)


def losses_of(model, batch):
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits[:, :-1].transpose(1, 2)
    losses = cross_entropy(logits, batch.labels[:, 1:], reduction="none")
    return losses[batch.labels[:, 1:] != -100]


# Documents.


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_document_is_what_the_processor_makes_of_its_text(name):
    """The text is written by hand, with the placeholder of the processor."""
    processor = PROCESSORS[name]()
    mark = "<start_of_image>" if name == "gemma" else processor.image_token
    encoder = InterleavedTaskEncoder(processor, separator=" ")
    sample = document()
    batch = encoder.batch([encoder.encode_sample(sample)])
    text = f"red blue {mark} {mark} green {mark} a square<|end|>"
    images = [piece for piece in sample.sequence if not isinstance(piece, str)]
    expected = processor(text=[text], images=[images], return_tensors="pt")
    for key, value in expected.items():
        torch.testing.assert_close(batch[key], value, msg=key)
    learned = batch.input_ids[batch.labels != -100]
    words = processor.tokenizer.decode(learned).removeprefix("red ")
    assert words == "blue green a square <|end|>"  # no token predicts the first


@pytest.mark.parametrize("name", ["qwen2_vl", "llava", "gemma3", "smolvlm"])
def test_packed_documents_have_the_losses_of_padded_ones(name):
    processor, model = MODELS[name]()
    samples = [
        document("0", picture(24, 16), "red", picture(16, 24), "a square"),
        document("1", "what ?", picture(24, 24), "red blue red"),
    ]
    losses = []
    for packing in (False, ModelPacking(model)):
        encoder = InterleavedTaskEncoder(processor, packing=packing)
        batch = encoder.batch([encoder.encode_sample(sample) for sample in samples])
        losses.append(losses_of(model, batch))
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)


def test_loose_documents_of_both_forms_are_the_same(tmp_path):
    encoder = InterleavedTaskEncoder(qwen())
    tables = []
    for make in (task_files.documents, task_files.documents_parquet):
        path = make(tmp_path / make.__name__, 6)
        folder = {"image_folder": "images"} if path.suffix == ".jsonl" else {}
        dataset = get_train_dataset(path, batch_size=1, task_encoder=encoder, **folder)
        batches = [dataset[number] for number in range(6)]
        tables.append({batch.__key__[0]: batch for batch in batches})
    loose, parquet = tables
    assert loose.keys() == parquet.keys()
    for key, batch in loose.items():
        for name, value in batch.items():
            torch.testing.assert_close(parquet[key][name], value)


# Preference pairs.


def pair(number=0, **changes):
    values = {
        "prompt": "what is this ?",
        "chosen": ANSWERS[number],
        "rejected": "blue",
        "images": [picture(24, 16)],
    }
    return PreferenceSample(__key__=str(number), **(values | changes))


@pytest.mark.parametrize("name", ["qwen", "llava", "gemma", "smolvlm"])
def test_pairs_are_those_of_trl(name):
    """The collator of TRL is the oracle, with pairs as lists of messages."""
    trainer = pytest.importorskip("trl.trainer.dpo_trainer")
    processor = PROCESSORS[name]()
    encoder = PreferenceTaskEncoder(processor)
    images = [picture(24, 16), picture(16, 24)]
    rows = []
    samples = []
    for number, image in enumerate(images):
        row = {
            "prompt": [{"role": "user", "content": "what is this ?"}],
            "chosen": [{"role": "assistant", "content": ANSWERS[2 * number]}],
            "rejected": [{"role": "assistant", "content": "blue"}],
        }
        rows.append(row | {"images": [image]})
        samples.append(PreferenceSample(__key__=str(number), **row, images=[image]))
    batch = encoder.batch([encoder.encode_sample(sample) for sample in samples])
    expected = trainer.DataCollatorForVisionPreference(processor)(rows)
    assert set(batch) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(batch[key], value, msg=key)
    assert batch.__key__ == ["0", "1"]


def test_the_log_probs_of_pairs_are_those_of_their_answers():
    processor, model = llava()
    encoder = PreferenceTaskEncoder(processor)
    samples = [pair(0), pair(2)]
    batch = encoder.batch([encoder.encode_sample(sample) for sample in samples])
    chosen, rejected = batch.log_probs(model(**batch.inputs).logits)
    plain = ProcessorTaskEncoder(processor)
    expected = []
    for answer in (ANSWERS[0], ANSWERS[2], "blue", "blue"):
        image = samples[0].images[0]
        sample = VQASample(
            __key__="0",
            image=image,
            context="<image>\nwhat is this ?",
            answers=[answer],
        )
        alone = plain.batch([plain.encode_sample(sample)])
        expected.append(-losses_of(model, alone).sum())
    found = torch.cat([chosen, rejected])
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-4)


def test_texts_and_messages_are_the_same_pairs(tmp_path):
    encoder = PreferenceTaskEncoder(qwen())
    batches = []
    for turns in (False, True):
        path = task_files.preferences(tmp_path / str(turns), 4, turns=turns)
        dataset = get_train_dataset(
            path, image_folder="images", batch_size=4, task_encoder=encoder
        )
        batches.append(dataset[0])
    for name, value in batches[0].items():
        assert torch.equal(batches[1][name], value)


# Several questions about an image.


def asked(count=3):
    turns = []
    for question, answer in zip(QUESTIONS[:count], ANSWERS, strict=False):
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": answer})
    turns[0]["content"] = "<image>" + turns[0]["content"]
    return ConversationSample(__key__="0", turns=turns, images=[picture(24, 16)])


@pytest.mark.parametrize(
    "attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"gemma3"}))
def test_separate_questions_have_the_losses_of_samples_of_their_own(name, attention):
    processor, model = MODELS[name]()
    model.set_attn_implementation(attention)
    plain = ProcessorTaskEncoder(processor)
    samples = [
        VQASample(
            __key__="0", image=picture(24, 16), context=question, answers=[answer]
        )
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    ]
    alone = plain.batch([plain.encode_sample(sample) for sample in samples])
    packing = ModelPacking(model)
    encoder = QuestionsTaskEncoder(processor, questions="separate", packing=packing)
    row = encoder.batch([encoder.encode_sample(asked(count)) for count in (3, 1, 2)])
    assert row.cu_seqlens.diff().sum() < 2 * alone.attention_mask.sum()
    expected = losses_of(model, alone)
    losses = losses_of(model, row)
    numbers = alone.labels[:, 1:] != -100
    first = int(numbers[0].sum())
    second = int(numbers[:2].sum())
    expected = torch.cat([expected, expected[:first], expected[:second]])
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)
    assert len(row.__key__) == 3


def test_the_image_of_questions_is_in_a_batch_once():
    processor, model = qwen2_vl()
    for questions in ("turns", "separate"):
        encoder = QuestionsTaskEncoder(
            processor, questions=questions, packing=ModelPacking(model)
        )
        batch = encoder.batch([encoder.encode_sample(asked())])
        assert len(batch.image_grid_thw) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_answer_losses_are_means_of_their_tokens(packed):
    processor, model = llava()
    packing = ModelPacking(model) if packed else False
    encoder = QuestionsTaskEncoder(processor, packing=packing)
    batch = encoder.batch([encoder.encode_sample(asked(count)) for count in (3, 2)])
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    tokens = losses_of(model, batch)
    lengths = [len(answer.split()) + 1 for answer in (*ANSWERS, *ANSWERS[:2])]
    expected = torch.stack([part.mean() for part in tokens.split(lengths)])
    torch.testing.assert_close(answer_losses(logits, batch.labels), expected)


# Bad input.


def failure_of(tmp_path, caplog, rows, encoder, **options):
    """Write two rows, the second one faulty, and return why it is left out."""
    task_files.image(tmp_path / "images", 0)
    path = task_files.lines(tmp_path / "rows.jsonl", rows)
    dataset = get_train_dataset(
        path, image_folder="images", batch_size=1, task_encoder=encoder, **options
    )
    assert {dataset[number].__key__[0] for number in range(4)} == {"000000"}
    [text] = [line for line in caplog.messages if "DataError" in line]
    assert "rows.jsonl, line 2, sample '000001'" in text
    return text


GOOD = {"images": ["0.png"], "prompt": "what ?", "chosen": "red", "rejected": "blue"}
PAIRS = {
    "an image that is missing": ({"images": ["9.png"]}, ["rows.jsonl", "9.png"]),
    "two placeholders": ({"prompt": "<image> <image> what ?"}, ["1 images", "2 place"]),
    "equal answers": ({"rejected": "red"}, ["same answer", "Remove the pair"]),
    "no rejected answer": (
        {"rejected": None},
        ["'rejected' must be text", "None", "Add it"],
    ),
}


@pytest.mark.parametrize("fault", PAIRS)
def test_a_faulty_pair_is_named(fault, tmp_path, caplog):
    changes, words = PAIRS[fault]
    rows = [GOOD, GOOD | changes]
    text = failure_of(tmp_path, caplog, rows, PreferenceTaskEncoder(qwen()))
    for word in words:
        assert word in text


DOCUMENTS = {
    "an image that is missing": (["9.png", None], [None, "a"], ["9.png"]),
    "fewer images than gaps": (["0.png"], [None, None], ["2 texts", "1 images"]),
    "no text": (["0.png"], [None], ["no text"]),
    "a placeholder": (["0.png", None], [None, "a <|image_pad|>"], ["piece 1"]),
}


@pytest.mark.parametrize("fault", DOCUMENTS)
def test_a_faulty_document_is_named(fault, tmp_path, caplog):
    images, texts, words = DOCUMENTS[fault]
    rows = [
        {"images": ["0.png", None], "texts": [None, "a"]},
        {"images": images, "texts": texts},
    ]
    options = {
        "sample_type": "InterleavedSample",
        "field_map": {"sequence": "interleaved(texts, images)"},
    }
    text = failure_of(tmp_path, caplog, rows, InterleavedTaskEncoder(qwen()), **options)
    for word in words:
        assert word in text


def test_questions_without_an_answer_are_named(tmp_path, caplog):
    row = {"image": "0.png", "questions": QUESTIONS, "answers": ANSWERS}
    encoder = QuestionsTaskEncoder(qwen())
    rows = [row, row | {"answers": ANSWERS[:2]}]
    options = {
        "sample_type": "ConversationSample",
        "field_map": {
            "turns": "exchanges(questions, answers, images=image)",
            "images": "image",
        },
    }
    text = failure_of(tmp_path, caplog, rows, encoder, **options)
    assert "3 questions and 2 answers" in text


def test_settings_that_cannot_work_are_errors_when_an_encoder_is_made():
    with pytest.raises(ConfigError, match="does not pack"):
        PreferenceTaskEncoder(qwen(), packing=True)
    with pytest.raises(ConfigError, match="sdpa or eager"):
        QuestionsTaskEncoder(qwen(), questions="separate", packing=True)
    without = "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
    with pytest.raises(ConfigError, match="image_text='<image>'"):
        InterleavedTaskEncoder(qwen(without))
    with pytest.raises(ConfigError, match="only PreferenceSample"):
        PreferenceTaskEncoder(qwen()).encode_sample(document())
    with pytest.raises(ConfigError, match="cannot read images"):
        InterleavedTaskEncoder(tokenizer()).encode_sample(document())
    with pytest.raises(DataError, match="same answer"):
        PreferenceTaskEncoder(qwen()).encode_sample(pair(1))
