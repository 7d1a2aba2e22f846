"""Boxes in images: their formats, their text for models, and an encoder for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch

from energize.core.checks import checked_choice
from energize.core.samples import GroundingSample, OCRSample
from energize.core.turns import IMAGE, Turn
from energize.errors import ConfigError, DataError, SkipSample
from energize.task.ready import ProcessorTaskEncoder

BOX = "<bbox>"
"""The placeholder of a box in a text."""
LABEL = "<ref-object>"
"""The placeholder of a label in a text."""

_PLACES = re.compile(f"{BOX}|{LABEL}")
_OUTSIDE = 1.0  # pixels by which rounded boxes may lie outside of an image


@dataclass(frozen=True, kw_only=True)
class BoxFormat:
    """How boxes are stored in data, or written for a model.

    Args:
        layout: "xyxy" for two corners, "xywh" for a corner, width and height.
        units: "pixels", "thousandths" of width and height, or "fractions" from 0 to 1.
            For a model, pixels are those of the image after its processor.
        box: The text of a box, with four `{}`.
        label: The text of a label, with one `{}`.

    Raises:
        ConfigError: For another layout or other units.

    Example:
        >>> form = BoxFormat(layout="xywh", units="fractions")
        >>> form.to_pixels([[0.5, 0.5, 0.25, 0.5]], 40, 20).tolist()
        [[20.0, 10.0, 30.0, 20.0]]
    """

    layout: Literal["xyxy", "xywh"]
    units: Literal["pixels", "thousandths", "fractions"]
    box: str = "[{}, {}, {}, {}]"
    label: str = "{}"

    def __post_init__(self) -> None:
        checked_choice(self.layout, "layout", ("xyxy", "xywh"), "BoxFormat")
        checked_choice(self.units, "units", tuple(_PARTS), "BoxFormat")

    def to_pixels(self, boxes: Any, width: int, height: int) -> torch.Tensor:
        """Return boxes as corners in pixels, float64 of shape (boxes, 4).

        Args:
            boxes: Boxes of this format.
            width: Width of the image.
            height: Height of the image.

        Raises:
            DataError: For a box of other than four numbers, outside of the image, or
                without area.
        """
        try:
            values = torch.as_tensor(boxes, dtype=torch.float64)
            values = values.reshape(len(values), 4)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"boxes must be a list of four numbers for each box, got {boxes!r:.80}."
                " Convert points and polygons first"
            ) from error
        corners = values * self._scale(width, height)
        if self.layout == "xywh":
            corners[:, 2:] += corners[:, :2]
        ends = torch.tensor([width, height] * 2, dtype=torch.float64)
        inside = corners.clamp(min=0).minimum(ends)
        is_near = (corners - inside).abs() <= _OUTSIDE
        for number, right in enumerate(is_near.all(1) & (_areas(inside) > 0)):
            if not right:
                raise DataError(
                    f"box {number} is {values[number].tolist()}, which is not a box of "
                    f"{self.layout} in {self.units} within the image of {width} x "
                    f"{height}. Correct it, or pass the format of the data as stored="
                )
        return inside

    def from_pixels(
        self, corners: torch.Tensor, width: int, height: int
    ) -> list[list[float]]:
        """Return boxes in this format; pixels and thousandths are whole numbers.

        Args:
            corners: Corners in pixels, of shape (boxes, 4).
            width: Width of the image.
            height: Height of the image.
        """
        values = corners.clone()
        if self.layout == "xywh":
            values[:, 2:] -= values[:, :2]
        values = values / self._scale(width, height)
        if self.units == "fractions":
            return values.round(decimals=3).tolist()
        return values.round().long().tolist()

    def _scale(self, width: int, height: int) -> torch.Tensor:
        parts = _PARTS[self.units]
        size = [width / parts, height / parts] if parts else [1.0, 1.0]
        return torch.tensor(size * 2, dtype=torch.float64)


_PARTS = {"pixels": 0, "thousandths": 1000, "fractions": 1}

BOX_FORMATS: Mapping[str, BoxFormat] = MappingProxyType(
    {
        "qwen2_vl": BoxFormat(
            layout="xyxy",
            units="thousandths",
            box="<|box_start|>({},{}),({},{})<|box_end|>",
            label="<|object_ref_start|>{}<|object_ref_end|>",
        ),
        "qwen2_5_vl": BoxFormat(layout="xyxy", units="pixels"),
        "qwen3_vl": BoxFormat(layout="xyxy", units="thousandths"),
    }
)
"""The formats of models by name."""


def moved_boxes(
    corners: torch.Tensor, matrix: Any, width: int, height: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boxes after a transform of their image, and their visible shares.

    Args:
        corners: Corners in pixels, of shape (boxes, 4).
        matrix: 3 x 3, as of `MergeTransform.with_matrix`.
        width: Width of the new image.
        height: Height of the new image.

    Returns:
        The boxes around the moved corners, within the new image, and the share of the
        area of each that is inside.

    Example:
        >>> corners = torch.tensor([[2.0, 2.0, 6.0, 4.0]])
        >>> mirrored = [[-1, 0, 10], [0, 1, 0], [0, 0, 1]]
        >>> moved_boxes(corners, mirrored, 10, 10)[0].tolist()
        [[4.0, 2.0, 8.0, 4.0]]
    """
    x = corners[:, [0, 2, 0, 2]]
    y = corners[:, [1, 1, 3, 3]]
    points = torch.stack([x, y, torch.ones_like(x)], -1)
    points = points @ torch.as_tensor(matrix).to(points).T
    points = points[..., :2] / points[..., 2:]
    moved = torch.cat([points.amin(1), points.amax(1)], 1)
    inside = moved.clamp(min=0).minimum(torch.tensor([width, height] * 2).to(moved))
    return inside, _areas(inside) / _areas(moved)


def _areas(corners: torch.Tensor) -> torch.Tensor:
    return (corners[:, 2:] - corners[:, :2]).clamp(min=0).prod(1)


class GroundingTaskEncoder(ProcessorTaskEncoder):
    """Encode conversations about boxes, and images of text with the boxes of lines.

    Boxes of a `GroundingSample` are written in place of their placeholders. An
    `OCRSample` becomes the question `prompt`, and the lines as JSON with `bbox_2d` and
    `text_content`; without lines, the text. Other samples are those of
    `ProcessorTaskEncoder`.

    Args:
        processor: A processor of transformers.
        stored: The format of the boxes of a `GroundingSample`.
        written: The format of the model, or its name in `BOX_FORMATS`.
        transform: A `MergeTransform` of `energize.extras.transforms`, which changes the
            images of the training, with their boxes.
        min_visible: Share of a box that has to be in the image after `transform`.
            Lines below it are left out, and so are conversations with such a box.
        **options: As of `ProcessorTaskEncoder`.

    Raises:
        ConfigError: For an unknown format.
    """

    def __init__(
        self,
        processor: Any,
        *,
        stored: BoxFormat,
        written: BoxFormat | str,
        transform: Any = None,
        min_visible: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(processor, **options)
        if isinstance(written, str):
            checked_choice(written, "written", tuple(BOX_FORMATS), type(self).__name__)
            written = BOX_FORMATS[written]
        self.stored = stored
        self.written = written
        self.transform = transform
        self.min_visible = min_visible

    def turns_of(self, sample: Any) -> tuple[list[Turn], list[Any]]:
        """Return the conversation of a sample with its boxes as text, and its image."""
        if isinstance(sample, OCRSample):
            return self._reading(sample)
        if not isinstance(sample, GroundingSample):
            return super().turns_of(sample)
        if len(sample.images) != 1:
            raise DataError(f"boxes need one image, but it has {len(sample.images)}")
        image, boxes, visible = self._placed(
            sample.images[0], sample.boxes, self.stored
        )
        if (visible < self.min_visible).any():
            raise SkipSample("a box is outside of the transformed image")
        texts = {
            BOX: [self.written.box.format(*box) for box in boxes],
            LABEL: [self.written.label.format(label) for label in sample.labels],
        }
        return _filled(sample.turns, texts), [image]

    def _reading(self, sample: OCRSample) -> tuple[list[Turn], list[Any]]:
        """Return the question for the text of an image, and the answer."""
        answer = sample.text
        image: Any = sample.image
        if sample.lines_boxes is not None and sample.lines_text is not None:
            stored = BoxFormat(layout="xywh", units="pixels")
            corners = torch.as_tensor(sample.lines_boxes)[:, :4]
            image, boxes, visible = self._placed(image, corners, stored)
            answer = json.dumps(
                [
                    {"bbox_2d": box, "text_content": text}
                    for box, text, share in zip(
                        boxes, sample.lines_text, visible, strict=True
                    )
                    if share >= self.min_visible
                ],
                ensure_ascii=False,
            )
        return [Turn("user", IMAGE + self.prompt), Turn("assistant", answer)], [image]

    def _placed(
        self, image: Any, boxes: Any, stored: BoxFormat
    ) -> tuple[Any, list[list[float]], torch.Tensor]:
        """Return an image, its boxes for the model, and the visible share of each."""
        corners = stored.to_pixels(boxes, *image.size)
        visible = torch.ones(len(corners))
        if self.transform is not None and self.training:
            image, matrix = self.transform.with_matrix(image)
            corners, visible = moved_boxes(corners, matrix, *image.size)
        if self.written.units != "pixels":
            return image, self.written.from_pixels(corners, *image.size), visible
        size = self._processed_size(image)
        corners = corners * (torch.tensor(size) / torch.tensor(image.size)).repeat(2)
        return image, self.written.from_pixels(corners, *size), visible

    def _processed_size(self, image: Any) -> tuple[int, int]:
        """Return width and height of an image after the processor."""
        images = self.processor.image_processor
        grid = images(images=[image], return_tensors="pt").get("image_grid_thw")
        if grid is None:
            raise ConfigError(
                f"the size of images after {type(self.processor).__name__} is not "
                "known. Pass a format in thousandths or fractions as written="
            )
        _, rows, columns = (grid[0] * images.patch_size).tolist()
        return columns, rows


def _filled(turns: Sequence[Turn], texts: Mapping[str, list[str]]) -> list[Turn]:
    """Return turns with texts in place of placeholders."""
    places = [place for turn in turns for place in _PLACES.findall(turn.text)]
    for placeholder, values in texts.items():
        if places.count(placeholder) != len(values):
            raise DataError(
                f"the sample has {len(values)} values for {placeholder}, but its turns "
                f"have {places.count(placeholder)}. Write one for each"
            )
    left = {placeholder: iter(values) for placeholder, values in texts.items()}
    return [
        replace(turn, text=_PLACES.sub(lambda match: next(left[match[0]]), turn.text))
        for turn in turns
    ]
