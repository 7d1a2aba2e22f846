"""Boxes follow their image, and are written as models read them."""

from __future__ import annotations

import json

import numpy as np
import PIL.Image
import pytest
import torch

from energize import get_train_dataset
from energize.encoders import (
    BOX_FORMATS,
    BoxFormat,
    GroundingTaskEncoder,
    moved_boxes,
)
from energize.errors import ConfigError, DataError, SkipSample
from energize.extras.transforms import (
    CenterCrop,
    MergeTransform,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Resize,
)
from energize.samples import GroundingSample, OCRSample

WIDTH, HEIGHT = 60, 40
BOX = (12, 8, 36, 20)
STORED = {
    "corners in pixels": (BoxFormat(layout="xyxy", units="pixels"), [12, 8, 36, 20]),
    "sizes in pixels": (BoxFormat(layout="xywh", units="pixels"), [12, 8, 24, 12]),
    "thousandths": (
        BoxFormat(layout="xyxy", units="thousandths"),
        [200, 200, 600, 500],
    ),
    "fractions": (BoxFormat(layout="xywh", units="fractions"), [0.2, 0.2, 0.4, 0.3]),
}


def image_of(box=BOX):
    """A white box on black."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 255
    return PIL.Image.fromarray(pixels)


def seen_in(image):
    """The corners of what is white."""
    rows, columns = np.nonzero(np.asarray(image.convert("L")) > 127)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("name", STORED)
def test_formats_of_one_box(name):
    form, numbers = STORED[name]
    corners = form.to_pixels([numbers], WIDTH, HEIGHT)
    assert corners.tolist() == [pytest.approx(BOX)]
    assert form.from_pixels(corners, WIDTH, HEIGHT) == [pytest.approx(numbers)]


@pytest.mark.parametrize(
    "transforms",
    [
        [Resize((80, 90))],
        [RandomHorizontalFlip(1.0)],
        [RandomVerticalFlip(1.0), Resize((20, 30))],
        [CenterCrop((30, 44))],
        [Resize((80, 120)), RandomCrop((60, 100)), RandomHorizontalFlip(0.5)],
    ],
)
def test_boxes_are_where_the_pixels_are(transforms):
    transform = MergeTransform(transforms)
    for seed in range(5):
        torch.manual_seed(seed)
        image, matrix = transform.with_matrix(image_of())
        boxes, visible = moved_boxes(torch.tensor([BOX]).double(), matrix, *image.size)
        assert boxes[0].tolist() == pytest.approx(seen_in(image), abs=1.01)
        inside = (boxes[0, 2:] - boxes[0, :2]).prod() / visible[0]
        scale = abs(np.linalg.det(np.asarray(matrix)[:2, :2]))
        assert float(inside) == pytest.approx(24 * 12 * scale, rel=1e-6)


def test_boxes_outside_of_a_crop_are_not_visible():
    crop = MergeTransform([CenterCrop((40, 20))])  # columns 20 to 40
    _, matrix = crop.with_matrix(image_of())
    corners = torch.tensor([BOX, (0, 0, 10, 10), (22, 0, 30, 40)]).double()
    boxes, visible = moved_boxes(corners, matrix, 20, 40)
    assert visible.tolist() == pytest.approx([16 / 24, 0, 1])
    assert boxes[0].tolist() == [0, 8, 16, 20]


@pytest.mark.parametrize(
    "box",
    [[12, 8, 90, 20], [-9, 8, 36, 20], [36, 8, 12, 20], [12, 8, float("nan"), 20]],
)
def test_boxes_that_are_none_name_number_value_and_remedy(box):
    form = BoxFormat(layout="xyxy", units="pixels")
    with pytest.raises(
        DataError, match=r"box 1 is .* xyxy in pixels .* 60 x 40.*stored="
    ):
        form.to_pixels([BOX, box], WIDTH, HEIGHT)


@pytest.mark.parametrize(
    "boxes", [[[1, 2], [3, 4]], [1, 2, 3, 4], [[1] * 8], [["1", 2, 3, 4]], None]
)
def test_points_polygons_and_flat_lists_are_not_boxes(boxes):
    form = BoxFormat(layout="xyxy", units="pixels")
    with pytest.raises(DataError, match="four numbers for each box"):
        form.to_pixels(boxes, WIDTH, HEIGHT)
    assert form.to_pixels([], WIDTH, HEIGHT).shape == (0, 4)


def test_formats_that_do_not_exist_are_errors():
    with pytest.raises(ConfigError, match="layout"):
        BoxFormat(layout="cxcywh", units="pixels")
    with pytest.raises(ConfigError, match="units"):
        BoxFormat(layout="xyxy", units="percent")


# Text for models.

PIXELS = BoxFormat(layout="xyxy", units="pixels")
TURNS = [
    {"role": "user", "content": "<image>Where is <ref-object>?"},
    {"role": "assistant", "content": "It is at <bbox>"},
]


def encoder_of(written, **options):
    pytest.importorskip("transformers")
    from tests.support.video_processor import qwen

    return GroundingTaskEncoder(qwen(), stored=PIXELS, written=written, **options)


def text_of(encoder, sample):
    encoded = encoder.encode_sample(sample)
    ids = encoded.per_token["input_ids"]
    text = encoder.tokenizer.decode(ids)
    answer = encoder.tokenizer.decode(ids[encoded.per_token["labels"] != -100])
    return text, answer


def grounded(**options):
    return GroundingSample(
        __key__="0",
        turns=options.pop("turns", TURNS),
        images=[image_of()],
        boxes=options.pop("boxes", [BOX]),
        labels=options.pop("labels", ["the box"]),
    )


@pytest.mark.jobs
def test_the_text_of_qwen_models():
    texts = {
        "qwen2_vl": "It is at <|box_start|>(200,200),(600,500)<|box_end|><|im_end|>\n",
        "qwen3_vl": "It is at [200, 200, 600, 500]<|im_end|>\n",
        # The processor makes 24 x 32 pixels of 60 x 40: at most 1024, multiples of 8.
        "qwen2_5_vl": "It is at [6, 5, 19, 12]<|im_end|>\n",
    }
    for written, answer in texts.items():
        encoder = encoder_of(written)
        if written == "qwen2_5_vl":
            media = encoder.encode_sample(grounded()).media
            assert media["image_grid_thw"].tolist() == [[1, 6, 8]]
            assert [
                round(12 * 32 / 60),
                round(8 * 24 / 40),
                round(36 * 32 / 60),
                round(20 * 24 / 40),
            ] == [6, 5, 19, 12]
        assert text_of(encoder, grounded())[1] == answer
    text, _ = text_of(encoder_of("qwen2_vl"), grounded())
    assert "<|object_ref_start|>the box<|object_ref_end|>?" in text
    assert set(BOX_FORMATS) == texts.keys()


@pytest.mark.jobs
def test_a_mirrored_image_has_mirrored_boxes_in_its_text():
    mirror = MergeTransform([RandomHorizontalFlip(1.0)])
    encoder = encoder_of("qwen3_vl", transform=mirror)
    encoder.training = True
    assert "[400, 200, 800, 500]" in text_of(encoder, grounded())[1]
    encoder.training = False
    assert "[200, 200, 600, 500]" in text_of(encoder, grounded())[1]


@pytest.mark.jobs
def test_lines_of_text_as_json():
    lines = torch.tensor([[12.0, 8.0, 24.0, 12.0, 0.9], [0.0, 30.0, 6.0, 10.0, 0.8]])
    sample = OCRSample(
        __key__="0",
        image=image_of(),
        text='a "word"\nend',
        lines_boxes=lines,
        lines_text=['a "word"', "end"],
    )
    crop = MergeTransform([CenterCrop((40, 48))])  # columns 6 to 54
    encoder = encoder_of("qwen3_vl", prompt="Read.", transform=crop)
    encoder.training = True
    text, answer = text_of(encoder, sample)
    assert "Read." in text
    assert json.loads(answer.removesuffix("<|im_end|>\n")) == [
        {"bbox_2d": [125, 200, 625, 500], "text_content": 'a "word"'}
    ]


@pytest.mark.jobs
def test_samples_that_do_not_fit_are_damaged_or_left_out():
    encoder = encoder_of("qwen3_vl", transform=MergeTransform([CenterCrop((40, 6))]))
    encoder.training = True
    with pytest.raises(SkipSample, match="outside"):
        encoder.encode_sample(grounded(boxes=[(0, 0, 10, 10)]))
    encoder.training = False
    with pytest.raises(DataError, match="2 values for <bbox>, but its turns have 1"):
        encoder.encode_sample(grounded(boxes=[BOX, BOX]))
    with pytest.raises(DataError, match="0 values for <ref-object>"):
        encoder.encode_sample(grounded(labels=[]))
    with pytest.raises(ConfigError, match="written"):
        encoder_of("qwen")


@pytest.mark.jobs
def test_a_row_that_is_damaged_is_named_by_file_and_line(tmp_path, caplog):
    image_of().save(tmp_path / "0.png")
    rows = [
        {"messages": TURNS, "images": ["0.png"], "objects": {"ref": ["x"], "bbox": box}}
        for box in ([BOX], [[0, 0, 99, 9]], [BOX])
    ]
    (tmp_path / "boxes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = get_train_dataset(
        tmp_path / "boxes.jsonl",
        batch_size=None,
        sample_type=GroundingSample,
        field_map={
            "turns": "messages",
            "images": "images",
            "boxes": "objects[bbox]",
            "labels": "objects[ref]",
        },
        task_encoder=encoder_of("qwen3_vl"),
    )
    keys = {sample.__key__ for sample in dataset.at(range(6))}
    assert keys == {"000000", "000002"}
    assert "line 2" in caplog.text
    assert "box 0 is [0.0, 0.0, 99.0, 9.0]" in caplog.text
