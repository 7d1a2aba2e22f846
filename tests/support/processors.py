"""Processors of transformers, small, with a tokenizer trained on the spot."""

from __future__ import annotations

from typing import Any

import lazy_loader
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

transformers = lazy_loader.load("transformers")  # seconds, which few tests need

SPECIAL = [
    *("<unk>", "<pad>", "<s>", "<|end|>", "<image>", "<|image_pad|>", "<|video_pad|>"),
    *("<end_of_utterance>", "<fake_token_around_image>", "<global-img>"),
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


def tokenizer(template: str | None = TURNS.replace("BODY", "{{ m['content'] }}")) -> Any:
    trained = Tokenizer(models.WordLevel(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = "user: assistant: system: what is this ? red blue green and a square image caption"
    trained.train_from_iterator([words], trainers.WordLevelTrainer(special_tokens=SPECIAL))
    named = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<|end|>"}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained, extra_special_tokens=SPECIAL[4:], **named
    )
    made.chat_template = template
    return made


def _template(form: str, place: str) -> str:
    return form.replace("BODY", PIECES.replace("PLACE", f" {place} "))


def qwen(form: str = TURNS) -> Any:
    class WithoutVideo(transformers.Qwen2VLProcessor):
        """Its video processor needs torchvision."""

        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            if name != "video_processor":
                return super().check_argument_for_proper_class(name, argument)
            return None

    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, min_pixels=64, max_pixels=1024
    )
    return WithoutVideo(images, tokenizer(None), chat_template=_template(form, "<|image_pad|>"))


def llava(form: str = TURNS) -> Any:
    size = {"height": 16, "width": 16}
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size)
    return transformers.LlavaProcessor(
        images,
        tokenizer(None),
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=_template(form, "<image>"),
    )


def idefics(form: str = TURNS) -> Any:
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}, do_image_splitting=False
    )
    place = _template(form, "<image>")
    return transformers.Idefics3Processor(
        images, tokenizer(None), image_seq_len=4, chat_template=place
    )


PROCESSORS = {"qwen": qwen, "llava": llava, "idefics": idefics}
