"""Models of transformers with random weights, for the processors of `processors`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lazy_loader
import torch

from tests.support import processors

transformers = lazy_loader.load("transformers")  # seconds, which few tests need

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def _built(model_class: Any, config: Any) -> Any:
    """Return a model whose weights are so large that attention matters."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model


def _text_of(processor: Any, **options: Any) -> dict[str, Any]:
    return TEXT | {"vocab_size": len(processor.tokenizer)} | options


def _qwen(processor: Any, name: str) -> Any:
    tower: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 4}
    tower |= {"spatial_merge_size": 2, "temporal_patch_size": 2}
    if name == "Qwen2VL":
        tower |= {"embed_dim": 16, "hidden_size": 16, "mlp_ratio": 2}
    else:
        tower |= {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 16}
    if name == "Qwen2_5_VL":
        tower |= {"window_size": 16, "fullatt_block_indexes": [1]}
    if name == "Qwen3VL":
        tower |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10.0}
    config = getattr(transformers, f"{name}Config")(
        vision_config=tower,
        text_config=_text_of(processor, rope_parameters=rope),
        image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
    )
    return _built(getattr(transformers, f"{name}ForConditionalGeneration"), config)


def qwen2_vl() -> tuple[Any, Any]:
    processor = processors.qwen()
    return processor, _qwen(processor, "Qwen2VL")


def qwen2_5_vl() -> tuple[Any, Any]:
    processor = processors.qwen(name="Qwen2_5_VLProcessor")
    return processor, _qwen(processor, "Qwen2_5_VL")


def qwen3_vl() -> tuple[Any, Any]:
    processor = processors.qwen(name="Qwen3VLProcessor")
    return processor, _qwen(processor, "Qwen3VL")


def llava() -> tuple[Any, Any]:
    processor = processors.llava()
    tower = {"image_size": 16, "patch_size": 8, "num_hidden_layers": 1}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**TOWER, **tower),
        text_config=transformers.LlamaConfig(**_text_of(processor)),
        image_token_index=processor.image_token_id,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    return processor, _built(transformers.LlavaForConditionalGeneration, config)


def internvl() -> tuple[Any, Any]:
    processor = processors.internvl()
    tower = {"image_size": [16, 16], "patch_size": [4, 4], "num_hidden_layers": 1}
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**TOWER, **tower),
        text_config=transformers.Qwen2Config(**_text_of(processor)),
        image_token_id=processor.image_token_id,
    )
    return processor, _built(transformers.InternVLForConditionalGeneration, config)


def smolvlm() -> tuple[Any, Any]:
    processor = processors.smolvlm()
    tower = {"image_size": 16, "patch_size": 4, "num_hidden_layers": 1}
    config = transformers.SmolVLMConfig(
        vision_config={**TOWER, **tower},
        text_config=transformers.LlamaConfig(**_text_of(processor, pad_token_id=1)),
        image_token_id=processor.image_token_id,
        scale_factor=2,
        pad_token_id=1,
    )
    return processor, _built(transformers.SmolVLMForConditionalGeneration, config)


def gemma3() -> tuple[Any, Any]:
    """A window of 6 tokens is shorter than samples, and longer than an image."""
    processor = processors.gemma()
    tower = {"image_size": 16, "patch_size": 4, "num_hidden_layers": 1}
    text = _text_of(processor, sliding_window=6, query_pre_attn_scalar=8)
    text["layer_types"] = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3Config(
        vision_config={**TOWER, **tower},
        text_config=text,
        mm_tokens_per_image=4,
        image_token_index=processor.tokenizer.image_token_id,
    )
    return processor, _built(transformers.Gemma3ForConditionalGeneration, config)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "llava": llava,
    "internvl": internvl,
    "smolvlm": smolvlm,
    "gemma3": gemma3,
}
