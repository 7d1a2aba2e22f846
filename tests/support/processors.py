"""Processors of transformers, small, with a tokenizer trained on the spot."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import lazy_loader
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

transformers = lazy_loader.load("transformers")  # seconds, which few tests need

SPECIAL = [
    *("<unk>", "<pad>", "<s>", "<|end|>", "<image>", "<|image_pad|>", "<|video_pad|>"),
    *("<end_of_utterance>", "<fake_token_around_image>", "<global-img>"),
    *("<|image|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
]
PIECES = (
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}PLACE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
)
TURNS = (
    "<s>{% for m in messages %}{{ m['role'] }}: BODY<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKED = (
    "<s>{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' %}"
    "{% generation %}BODY<|end|>{% endgeneration %}{% else %}BODY<|end|>{% endif %}{% endfor %}"
)


def tokenizer(
    template: str | None = TURNS.replace("BODY", "{{ m['content'] }}"), **tokens: str
) -> Any:
    """`tokens` are special ones that a processor asks for by name."""
    trained = Tokenizer(models.WordLevel(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = "user: assistant: system: what is this ? red blue green and a square image caption"
    trained.train_from_iterator(
        [words], trainers.WordLevelTrainer(special_tokens=SPECIAL)
    )
    named = {
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
    }
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, extra_special_tokens=tokens or SPECIAL[4:], **named
    )
    made.chat_template = template
    return made


def _template(form: str, place: str) -> str:
    return form.replace("BODY", PIECES.replace("PLACE", f" {place} "))


def _without_video(name: str) -> Any:
    """Return a class whose video processor would need torchvision."""

    class WithoutVideo(getattr(transformers, name)):
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            if name != "video_processor":
                return super().check_argument_for_proper_class(name, argument)
            return None

    return WithoutVideo


def qwen(form: str = TURNS, name: str = "Qwen2VLProcessor") -> Any:
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, min_pixels=64, max_pixels=1024
    )
    template = _template(form, "<|image_pad|>")
    return _without_video(name)(images, tokenizer(None), chat_template=template)


SIZE = {"height": 16, "width": 16}
PINPOINTS = [[16, 32], [32, 16], [32, 32]]


def llava(form: str = TURNS, name: str = "LlavaProcessor") -> Any:
    kind, more = transformers.CLIPImageProcessorPil, {}
    if name == "LlavaNextProcessor":
        kind, more = (
            transformers.LlavaNextImageProcessorPil,
            {"image_grid_pinpoints": PINPOINTS},
        )
    return getattr(transformers, name)(
        kind(size={"shortest_edge": 16}, crop_size=SIZE, **more),
        tokenizer(None),
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=_template(form, "<image>"),
    )


def idefics(form: str = TURNS) -> Any:
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 32},
        max_image_size={"longest_edge": 16},
        do_image_splitting=False,
    )
    place = _template(form, "<image>")
    return transformers.Idefics3Processor(
        images, tokenizer(None), image_seq_len=4, chat_template=place
    )


def smolvlm(form: str = TURNS) -> Any:
    module = import_module("transformers.models.smolvlm.processing_smolvlm")
    module.num2words = str  # only asked for videos, whose length it spells
    images = transformers.SmolVLMImageProcessorPil(
        size={"longest_edge": 32},
        max_image_size={"longest_edge": 16},
        do_image_splitting=False,
    )
    return _without_video("SmolVLMProcessor")(
        images,
        tokenizer(None),
        SimpleNamespace(num_frames=1, fps=1, size=SIZE),
        image_seq_len=4,
        chat_template=_template(form, "<image>"),
    )


def onevision(form: str = TURNS) -> Any:
    return _without_video("LlavaOnevisionProcessor")(
        transformers.LlavaOnevisionImageProcessorPil(
            size=SIZE, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(None),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=_template(form, "<image>"),
    )


def idefics2(form: str = TURNS) -> Any:
    images = transformers.Idefics2ImageProcessorPil(
        size={"shortest_edge": 16, "longest_edge": 32}, do_image_splitting=False
    )
    place = _template(form, "<image>")
    return transformers.Idefics2Processor(
        images, tokenizer(None), image_seq_len=4, chat_template=place
    )


def gemma(form: str = TURNS) -> Any:
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    return transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessorPil(size=SIZE, image_seq_length=4),
        tokenizer(None, **named),
        image_seq_length=4,
        chat_template=_template(form, "<start_of_image>"),
    )


def internvl(form: str = TURNS) -> Any:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    return _without_video("InternVLProcessor")(
        transformers.GotOcr2ImageProcessorPil(
            size=SIZE, crop_to_patches=True, max_patches=2
        ),
        tokenizer(None, **named),
        None,
        image_seq_length=4,
        chat_template=_template(form, "<IMG_CONTEXT>"),
    )


def mllama(form: str = TURNS) -> Any:
    return transformers.MllamaProcessor(
        transformers.MllamaImageProcessorPil(size=SIZE, max_image_tiles=2),
        tokenizer(None),
        chat_template=_template(form, "<|image|>"),
    )


def paligemma(form: str = TURNS) -> Any:
    images = transformers.SiglipImageProcessorPil(size=SIZE)
    images.image_seq_length = 4
    template = _template(form, "<image>")
    return transformers.PaliGemmaProcessor(
        images, tokenizer(None), chat_template=template
    )


PROCESSORS = {
    "qwen": qwen,
    "qwen2.5": partial(qwen, name="Qwen2_5_VLProcessor"),
    "qwen3": partial(qwen, name="Qwen3VLProcessor"),
    "llava": llava,
    "llava_next": partial(llava, name="LlavaNextProcessor"),
    "onevision": onevision,
    "idefics2": idefics2,
    "idefics": idefics,
    "smolvlm": smolvlm,
    "gemma": gemma,
    "internvl": internvl,
}
