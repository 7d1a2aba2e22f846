"""Small real images of every kind that decoders meet."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image


def picture(width: int = 60, height: int = 40, mode: str = "RGB") -> PIL.Image.Image:
    """Smooth surfaces, edges between saturated colours, and some noise."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 7), np.cos(y / 5), np.sin((x + y) / 9)], axis=2)
    noise = np.random.default_rng(0).normal(0, 8, waves.shape)
    values = (
        np.where((x // 15 + y // 10)[..., None] % 2, 128 + 120 * waves, 300 * waves)
        + noise
    )
    image = PIL.Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if mode == "RGBA":
        image.putalpha(
            PIL.Image.fromarray(np.tile(np.arange(width, dtype=np.uint8), (height, 1)))
        )
        return image
    return image.convert(mode)


def encoded(image: PIL.Image.Image, image_format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()
