"""Qwen's processors with bytes as tokens, and a video processor without torchvision."""

from __future__ import annotations

from typing import Any

import lazy_loader
import torch
from tokenizers import AddedToken

from tests.support import chat_templates, processors

transformers = lazy_loader.load("transformers")  # seconds, which few tests need

SPECIAL = (
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
)
PIECES = (
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}{% else %}"
    "<|vision_start|><|{{ p['type'] }}_pad|><|vision_end|>{% endif %}{% endfor %}"
)


class Patches:
    """Frames of one size as patches, by the arithmetic of `Qwen2VLVideoProcessor`."""

    patch_size = 4
    merge_size = 2
    temporal_patch_size = 2
    side = 16

    def __call__(self, videos: Any, video_metadata: Any = None, **_: Any) -> Any:
        utilities = transformers.video_utils
        videos = utilities.make_batched_videos(videos)
        described = utilities.make_batched_metadata(videos, video_metadata)
        parts = [self.patches(torch.as_tensor(video)) for video in videos]
        sides = self.side // self.patch_size
        times = [len(part) // sides**2 for part in parts]
        return {
            "pixel_values_videos": torch.cat(parts),
            "video_grid_thw": torch.tensor([[time, sides, sides] for time in times]),
            "video_metadata": described,
        }

    def patches(self, frames: torch.Tensor) -> torch.Tensor:
        size = (self.side, self.side)
        pixels = torch.nn.functional.interpolate(frames.float(), size) / 127.5 - 1
        while len(pixels) % self.temporal_patch_size:
            pixels = torch.cat([pixels, pixels[-1:]])
        blocks = self.side // self.patch_size // self.merge_size
        shape = (
            *(-1, self.temporal_patch_size, 3),
            *(blocks, self.merge_size, self.patch_size) * 2,
        )
        parts = pixels.reshape(shape).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        width = 3 * self.temporal_patch_size * self.patch_size**2
        return parts.reshape(-1, width)


def qwen(name: str = "Qwen2_5_VLProcessor", *, video_processor: Any = None) -> Any:
    words = chat_templates.tokenizer("chatml")
    words.add_special_tokens(
        {"additional_special_tokens": [AddedToken(text) for text in SPECIAL]}
    )
    template = words.chat_template.replace("{{ m['content'] }}", PIECES)
    words.chat_template = None
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, min_pixels=256, max_pixels=1024
    )
    made_class = processors._without_video(name)
    made = made_class(images, words, chat_template=template)
    made.video_processor = video_processor or Patches()
    return made
