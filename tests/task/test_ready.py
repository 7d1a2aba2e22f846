"""Encoders that are ready to use give what the processor gives, and learn what is
answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch

from energize import (
    CaptioningSample,
    ConversationSample,
    ImageClassificationSample,
    ImageClassificationTaskEncoder,
    ListSource,
    MapDataset,
    ProcessorTaskEncoder,
    SampleWeightDataset,
    TextSample,
    VQASample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.encoders import Padding, ProcessorBatch
from energize.errors import ConfigError, DataError, EnergizeError, SkipSample
from tests.support.images import picture
from tests.support.prepared import classes
from tests.support.tables import row

pytest.importorskip("transformers")
from tokenizers.processors import TemplateProcessing

from tests.support.processors import (
    MARKED,
    PIECES,
    PROCESSORS,
    TURNS,
    gemma,
    idefics,
    llava,
    mllama,
    paligemma,
    qwen,
    tokenizer,
)

pytestmark = pytest.mark.jobs

TALKS = [
    [("user", "what is <image> and <image> ?"), ("assistant", "red and blue")],
    [("system", "a"), ("user", "<image> what ?"), ("assistant", "green")],
    [
        *(("user", "what is <image> ?"), ("assistant", "a square")),
        *(("user", "and <image> this ?"), ("assistant", "red red")),
    ],
    [("user", "what ?"), ("assistant", "blue")],
]
SAID = ["red and blue", "green", "a square <|end|> red red", "blue"]


def talk(number: int, turns=None) -> ConversationSample:
    given = TALKS[number] if turns is None else turns
    count = sum(text.count("<image>") for _, text in given)
    images = [picture(24 + 8 * i, 16 + 8 * number) for i in range(count)]
    return ConversationSample(
        __key__=str(number),
        turns=[{"role": role, "content": text} for role, text in given],
        images=images,
    )


def by_hand(processor, samples, side):
    texts = [processor.apply_chat_template(each.messages) for each in samples]
    images = [each.images for each in samples]
    told = {"padding": True, "return_tensors": "pt", "add_special_tokens": False}
    told["padding_side"] = side
    return dict(processor(text=texts, images=images, **told))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_batch_is_what_the_processor_makes_of_it_and_the_answers_are_learned(name):
    for form in (TURNS, MARKED):
        processor = PROCESSORS[name](form)
        for side in ("right", "left"):
            processor.tokenizer.padding_side = side
            encoder, samples = (
                ProcessorTaskEncoder(processor),
                [talk(i) for i in range(3)],
            )
            batch = encoder.batch([encoder.encode_sample(each) for each in samples])
            expected = by_hand(processor, samples, side)
            assert set(batch) == {*expected, "labels"}
            for key, value in expected.items():
                torch.testing.assert_close(batch[key], value, msg=key)
            learned = [
                processor.tokenizer.decode(ids[labels != -100])
                for ids, labels in zip(batch.input_ids, batch.labels, strict=True)
            ]
            assert learned == [f"{said} <|end|>" for said in SAID[:3]]


# That of Idefics2 does not say where images are, that of LLaVA-OneVision writes one
# image alone otherwise than several.
@pytest.mark.parametrize("name", sorted(PROCESSORS.keys() - {"idefics2", "onevision"}))
def test_answers_are_found_alike_by_offsets_and_by_prefixes_and_images_processed_once(
    name, monkeypatch
):
    kind, calls = type(PROCESSORS[name]().image_processor), []
    process = kind.__call__

    def counted(self, *given, **named):
        calls.append(given)
        return process(self, *given, **named)

    monkeypatch.setattr(kind, "__call__", counted)
    for number in range(4):
        encoders = [
            ProcessorTaskEncoder(PROCESSORS[name](form)) for form in (TURNS, MARKED)
        ]
        found = [each.encode_sample(talk(number)).per_token for each in encoders]
        assert len(calls) == 2 * (number < 3)
        with monkeypatch.context() as slow:
            slow.setattr(type(tokenizer()), "is_fast", False)
            found += [each.encode_sample(talk(number)).per_token for each in encoders]
        calls.clear()
        for tokens in found[1:]:
            assert tokens.keys() == found[0].keys()
            assert all(map(torch.equal, tokens.values(), found[0].values()))


def test_the_answer_of_the_largest_weight_is_learned_and_images_of_0_to_1_are_scaled_once():
    encoder, image, weights = (
        ProcessorTaskEncoder(llava()),
        picture(),
        torch.tensor([0.1, 0.9]),
    )
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    one, other = (
        encoder.encode_sample(
            VQASample(
                __key__="0",
                image=each,
                context="what ?",
                answers=["red", "blue"],
                answer_weights=weights,
            )
        )
        for each in (image, pixels / 255)
    )
    labels = one.per_token["labels"]
    assert encoder.tokenizer.decode(labels[labels != -100]) == "blue <|end|>"
    torch.testing.assert_close(one.media["pixel_values"], other.media["pixel_values"])


def test_samples_without_images_and_of_other_types_share_a_batch():
    for name, processor in ((name, make()) for name, make in PROCESSORS.items()):
        encoder = ProcessorTaskEncoder(processor, padding=Padding(multiple_of=16))
        asked = VQASample(
            __key__="q", image=picture(), context="what ?", answers=["red"]
        )
        samples = [
            talk(3),
            talk(1),
            asked,
            TextSample(__key__="t", text="a red square"),
        ]
        turns = [("user", "what is <image> ?"), ("assistant", "a <image> square")]
        samples.append(talk(0, turns))  # no placeholder of an image is learned
        batch = encoder.batch([encoder.encode_sample(each) for each in samples])
        with row(name):
            assert batch.input_ids.shape[1] % 16 == 0
            decode = processor.tokenizer.decode
            pairs = zip(batch.input_ids, batch.labels, strict=True)
            learned = [decode(ids[labels != -100]) for ids, labels in pairs]
            assert learned == [
                f"{said} <|end|>"
                for said in ("blue", "green", "red", "red square", "a square")
            ]


def test_a_packed_row_has_the_loss_of_its_samples():
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=40, num_attention_heads=2, **small)
    ).eval()
    words = tokenizer()
    samples = [TextSample(__key__=str(i), text="red " * (i + 2)) for i in range(4)]
    turns = [{"role": role, "content": text} for role, text in TALKS[3]]
    samples.append(ConversationSample(__key__="4", turns=turns))
    packed, padded = (
        ProcessorTaskEncoder(words, packing=each) for each in (True, False)
    )
    batches = [
        each.batch([each.encode_sample(sample) for sample in samples])
        for each in (packed, padded)
    ]
    losses = [model(**batch).loss for batch in batches]
    torch.testing.assert_close(*losses)
    row_, whole = batches
    assert row_.cu_seqlens.diff().tolist() == whole.attention_mask.sum(1).tolist()
    assert row_.max_length_q == max(row_.cu_seqlens.diff())
    assert row_.__key__ == ["0", "1", "2", "3", "4"]
    texts = encoded(lambda: ProcessorTaskEncoder(gemma(), packing=True), talk(3))
    assert not texts.token_type_ids.any()


def test_a_packed_row_of_images_has_the_loss_of_its_samples():
    from examples.finetune_vlm import small_model, small_processor

    processor = small_processor()
    packed, padded = (
        ProcessorTaskEncoder(processor, packing=each) for each in (True, False)
    )
    samples = [packed.encode_sample(talk(i)) for i in (0, 1, 2, 0)]
    model = small_model(processor).eval()
    losses = [model(**each.batch(samples)).loss for each in (packed, padded)]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("ends", ["", " <|end|>"])
def test_a_text_alone_begins_and_ends_as_the_tokenizer_has_it(ends):
    words = tokenizer()
    tokens = [(each, words.convert_tokens_to_ids(each)) for each in ("<s>", "<|end|>")]
    words.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"<s> $A{ends}", special_tokens=tokens
    )
    for text in ("red", "<s> red", "red<|end|>"):
        ids = (
            ProcessorTaskEncoder(words)
            .encode_sample(TextSample(__key__="0", text=text))
            .per_token
        )
        assert words.decode(ids["input_ids"]) == "<s> red <|end|>"


def test_images_stand_upright(tmp_path):
    exif, seen = PIL.Image.Exif(), []
    exif[0x0112] = 6  # stored with its right side on top
    for name, image, options in (
        ("stored", picture(40, 20), {"exif": exif}),
        ("upright", picture(40, 20).transpose(PIL.Image.Transpose.ROTATE_270), {}),
    ):
        for colour in ("red", "blue"):
            (tmp_path / name / colour).mkdir(parents=True)
            image.save(tmp_path / name / colour / "0.png", **options)
        turns = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "red"}]
        said = json.dumps({"image": "red/0.png", "conversations": turns})
        (tmp_path / name / "chat.jsonl").write_text(said)
        both = {
            "": ImageClassificationTaskEncoder(8),
            "chat.jsonl": ProcessorTaskEncoder(llava()),
        }
        for file, encoder in both.items():
            told = {"split_part": "train", "batch_size": 1, "task_encoder": encoder}
            if not file:
                told["format"] = "classes"
            seen.append(get_val_dataset(tmp_path / name / file, **told)[0].pixel_values)
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])


def chats(folder, count=24):
    for i in range(count):
        picture(16 + i % 5, 12 + i % 3).save(folder / f"{i}.png")
    rows = [
        {
            "image": f"{i}.png",
            "conversations": [
                {"from": "human", "value": "<image> what is this ?"},
                {
                    "from": "gpt",
                    "value": " ".join(["red", "blue", "green"][: 1 + i % 3]),
                },
            ],
        }
        for i in range(count)
    ]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "chat.jsonl"


def told(batch):
    return {
        name: getattr(each, "tolist", lambda each=each: each)()
        for name, each in batch.items()
    }


@pytest.mark.parametrize("packing", ["padded", "row", "packs"])
def test_a_run_goes_on_from_every_step(packing, tmp_path):
    options = {"packing_buffer_size": 6} if packing == "packs" else {}
    encoder = ProcessorTaskEncoder(
        idefics(), packing=packing != "padded", max_length=48
    )
    size = 1 if options else 3
    dataset = get_train_dataset(
        chats(tmp_path, 12), batch_size=size, task_encoder=encoder, **options
    )
    loader, states, seen = get_loader(dataset), [], []
    for batch, _ in zip(loader, range(6), strict=False):
        seen.append(told(batch))
        states.append(loader.state_dict())
    for at, state in enumerate(states[:-1]):
        again = get_loader(dataset)
        again.load_state_dict(state)
        assert told(next(iter(again))) == seen[at + 1]


@pytest.mark.parametrize("packing", [False, True])
def test_workers_make_the_same_batches(packing, tmp_path):
    encoder = ProcessorTaskEncoder(idefics(), packing=packing, max_length=48)
    dataset = get_train_dataset(
        chats(tmp_path),
        batch_size=2,
        task_encoder=encoder,
        packing_buffer_size=6 if packing else None,
    )
    seen = []
    for workers in (0, 2, 3):
        with get_loader(dataset, num_workers=workers) as loader:
            seen.append(
                [told(batch) for batch, _ in zip(loader, range(8), strict=False)]
            )
    assert seen[0] == seen[1] == seen[2]


def test_weights_go_with_the_samples():
    encoder = ProcessorTaskEncoder(tokenizer(), packing=True)
    texts = ListSource([TextSample(__key__=str(i), text="a red") for i in range(4)])
    weighed = SampleWeightDataset(texts, 0.5)
    batch = encoder.build_batch(encoder.build_encode_sample(weighed), batch_size=4)[0]
    assert batch.sample_weights.tolist() == [0.5] * 4


def test_images_of_classes(tmp_path):
    folder, encoder = classes(tmp_path / "d", 16), ImageClassificationTaskEncoder(12)
    train = get_train_dataset(folder, batch_size=4, task_encoder=encoder)
    batch = train[1]
    assert (batch.pixel_values.shape, batch.pixel_values.dtype) == (
        (4, 3, 12, 12),
        torch.float32,
    )
    assert batch.labels.dtype == torch.int64
    assert torch.equal(batch.pixel_values, train[1].pixel_values)
    assert not torch.equal(train[0].pixel_values[0], train[3].pixel_values[0])
    loader = get_loader(train)
    first = [each.pixel_values for each, _ in zip(loader, range(3), strict=False)]
    assert torch.equal(first[1], batch.pixel_values)
    one = PIL.Image.new("RGB", (40, 20), (255, 0, 0))
    sample = ImageClassificationSample(__key__="0", image=one, label=3)
    val = MapDataset(ListSource([sample]), encoder.encode_sample)[0]
    expected = [
        (x - m) / s
        for x, m, s in zip(
            (1, 0, 0), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True
        )
    ]
    assert val.pixel_values[:, 3, 4].tolist() == pytest.approx(expected)
    by_names = ImageClassificationTaskEncoder(12, classes=["cat", "dog"])
    for name in ({"label_name": "dog"}, {"label": "dog"}):
        named = ImageClassificationSample(__key__="0", image=one, **name)
        assert MapDataset(ListSource([named]), by_names.encode_sample)[0].labels == 1
    kept = get_val_dataset(folder, batch_size=2, task_encoder=encoder)
    assert torch.equal(kept[0].pixel_values, kept[0].pixel_values)


@dataclass
class Other:
    __key__ = "0"


def short(**given):
    made = dict(tokenizer()(**given))
    return made | {"attention_mask": made["attention_mask"][:, 1:]}


class Shorter:
    tokenizer = tokenizer()
    chat_template = None

    def __call__(self, **given):
        return short(**given)


class Unable(Shorter):
    def __call__(self, **given):
        raise ImportError("requires the Torchvision library")


TURNS_OF_TEXT = TURNS.replace("BODY", "{{ m['content'] }}")
WITHOUT_IMAGES = TURNS.replace("BODY", PIECES.replace("PLACE", ""))
LATER = TURNS.replace("<|end|>", "{% if loop.last %}<|end|>{% endif %}")
FIRST = TURNS.replace("{{ m['role'] }}", "{{ messages | length }} {{ m['role'] }}")
TEXT = TextSample(__key__="0", text="red")


def without_pad():
    words = tokenizer()
    words.pad_token = None
    return words


REFUSED = {
    "no template": (
        lambda: ProcessorTaskEncoder(tokenizer(None)),
        talk(3),
        "no chat template",
    ),
    "no processor": (
        lambda: ProcessorTaskEncoder("a/b"),
        None,
        "AutoProcessor.from_pretrained",
    ),
    "no pad token": (
        lambda: ProcessorTaskEncoder(without_pad()),
        None,
        "pad_token = tokenizer.eos",
    ),
    "images for a tokenizer": (
        lambda: ProcessorTaskEncoder(tokenizer()),
        talk(1),
        "cannot read images",
    ),
    "a template that is not prefixes": (
        lambda: ProcessorTaskEncoder(llava(FIRST)),
        talk(2),
        "generation %}",
    ),
    "a template without images": (
        lambda: ProcessorTaskEncoder(llava(WITHOUT_IMAGES)),
        talk(1),
        "one placeholder",
    ),
    "a template of texts, given parts": (
        lambda: ProcessorTaskEncoder(llava(TURNS_OF_TEXT)),
        talk(3),
        "turn 0, 'user', given as [{'type': 'text', 'text': 'what ?'}]: it does not support this role, or "
        "does not accept a list of parts",
    ),
    "a template of parts, given texts": (
        lambda: ProcessorTaskEncoder(tokenizer(TURNS.replace("BODY", PIECES))),
        talk(3),
        "turn 0, 'user', given as 'what ?': it does not support this role, or does not accept ",
    ),
    "a role that the template leaves out": (
        lambda: ProcessorTaskEncoder(
            tokenizer(
                TURNS_OF_TEXT.replace(
                    "in messages", "in messages if m['role'] != 'tool'"
                )
            )
        ),
        talk(0, [("user", "what ?"), ("tool", "red"), ("assistant", "blue")]),
        "turn 1, 'tool'",
    ),
    "marks around nothing": (
        lambda: ProcessorTaskEncoder(
            tokenizer(
                TURNS_OF_TEXT
                + "{% if false %}{% generation %}a{% endgeneration %}{% endif %}"
            )
        ),
        talk(3),
        "nothing is in it",
    ),
    "masks of images": (
        lambda: ProcessorTaskEncoder(mllama()),
        talk(1),
        "'cross_attention_mask'",
    ),
    "a model that looks ahead in answers": (
        lambda: ProcessorTaskEncoder(paligemma()),
        None,
        "makes labels itself",
    ),
    "other lengths": (
        lambda: ProcessorTaskEncoder(Shorter()),
        TEXT,
        "an entry for each token",
    ),
    "torchvision": (
        lambda: ProcessorTaskEncoder(Unable()),
        TEXT,
        "pip install torchvision",
    ),
    "another type": (lambda: ProcessorTaskEncoder(llava()), Other(), "got a Other"),
    "no assistant": (
        lambda: ProcessorTaskEncoder(llava()),
        talk(0, [("user", "a")]),
        "nothing to learn",
    ),
    "no answer": (
        lambda: ProcessorTaskEncoder(llava()),
        VQASample(__key__="0", image=picture(), context="a"),
        "no answer",
    ),
    "too long": (
        lambda: ProcessorTaskEncoder(llava(), max_length=9),
        talk(0),
        "max_length is 9",
    ),
    "packs of images that look ahead": (
        lambda: ProcessorTaskEncoder(gemma(), packing=True),
        talk(1),
        "packed images of Gemma3Processor need masks",
    ),
    "no label": (ImageClassificationTaskEncoder, TEXT, "the number of its class"),
    "an unknown class": (
        lambda: ImageClassificationTaskEncoder(8, classes=["cat", "dog"]),
        ImageClassificationSample(__key__="0", image=picture(), label="dg"),
        "is not in classes=cat, dog; did you mean 'dog'?",
    ),
    **{
        f"the class {label}": (
            lambda: ImageClassificationTaskEncoder(8, classes=["cat", "dog"]),
            ImageClassificationSample(__key__="0", image=picture(), label=label),
            f"the label {label} is not the number of a class",
        )
        for label in (2, -1, 0.5)
    },
    "packing buffer": (
        lambda: ProcessorTaskEncoder(llava()).build_batch(
            ListSource([0]), batch_size=1, packing_buffer_size=3
        ),
        None,
        "packing=ModelPacking(model), max_length",
    ),
}


GIVEN = {"max_length": [0, -1, 2.5, "8"], "multiple_of": [0, -8, "2"]}

NO_TEXTS = [
    TextSample(__key__="0", text=None),
    CaptioningSample(__key__="0", image=picture(), caption=None),
    CaptioningSample(__key__="0", image=picture(), caption=5),
    CaptioningSample(__key__="0", image=None, caption="a"),
    VQASample(__key__="0", image=picture(), context="a", answers=[None]),
    # The placeholder of the processor itself, in what a user says.
    talk(0, [("user", "<image> what is <|image_pad|> ?"), ("assistant", "red")]),
]


@pytest.mark.parametrize("number", range(len(NO_TEXTS)))
def test_a_sample_that_cannot_be_encoded_is_damaged_and_ends_no_run(number):
    with pytest.raises(DataError):
        ProcessorTaskEncoder(qwen()).encode_sample(NO_TEXTS[number])


@pytest.mark.parametrize(
    ("name", "value"), [(n, each) for n in GIVEN for each in GIVEN[n]]
)
def test_numbers_that_are_none_are_refused(name, value):
    create = (
        Padding if name == "multiple_of" else partial(ProcessorTaskEncoder, llava())
    )
    with pytest.raises(ConfigError, match=rf"{name} must be a whole number >= 1"):
        create(**{name: value})


@pytest.mark.parametrize("make", [tokenizer, llava])
def test_a_conversation_may_begin_with_the_answer(make):
    words = make()
    turns = [("assistant", "red"), ("user", "what ?"), ("assistant", "blue")]
    made = ProcessorTaskEncoder(words).encode_sample(talk(0, turns)).per_token
    learned = made["labels"] != -100
    text = getattr(words, "tokenizer", words).decode(made["input_ids"][learned])
    assert text == "red <|end|> blue <|end|>"


def test_answers_are_found_where_a_processor_writes_its_own_beginning():
    """That of Mllama begins a text with the token that the template lacks."""
    processor = mllama(TURNS.removeprefix("<s>"))
    tokens = ProcessorTaskEncoder(processor).encode_sample(talk(3)).per_token
    learned = tokens["input_ids"][tokens["labels"] != -100]
    assert processor.tokenizer.decode(tokens["input_ids"]).startswith("<s>")
    assert processor.tokenizer.decode(learned) == "blue <|end|>"


def encoded(make, sample):
    encoder = make()
    given = [None] if isinstance(encoder, ImageClassificationTaskEncoder) else []
    return encoder.batch([encoder.encode_sample(sample, *given)])


def test_what_cannot_be_encoded_is_told():
    for name, (make, sample, words) in REFUSED.items():
        with row(name):
            with pytest.raises(EnergizeError) as caught:
                encoded(make, sample)
            assert words in str(caught.value)


def test_a_sample_too_long_is_left_out_by_choice(caplog):
    encoder = ProcessorTaskEncoder(llava(), max_length=12, too_long="skip")
    with pytest.raises(SkipSample):
        encoder.encode_sample(talk(0))
    assert "max_length is 12: left out" in caplog.text


def test_a_field_that_a_batch_has_not_is_given_by_a_subclass():
    @dataclass(kw_only=True)
    class More(ProcessorBatch):
        scores: torch.Tensor | None = None

    encoder = ProcessorTaskEncoder(llava())
    made = encoder.encode_sample(talk(1))
    made.media["scores"] = torch.ones(1, 2)
    with pytest.raises(EnergizeError, match="gives scores, for which ProcessorBatch"):
        encoder.batch([made])
    encoder.batch_type = More
    assert encoder.batch([made]).scores.shape == (1, 2)
