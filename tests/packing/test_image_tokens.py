"""Rules of image tokens agree with the processors of transformers."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, DataError
from energize.packing import ImageTokenRule, image_token_rule, image_tokens

pytest.importorskip("transformers")
import transformers

from tests.support.processors import (
    PROCESSORS,
    SIZE,
    gemma,
    idefics,
    llava,
    mllama,
    onevision,
    paligemma,
    qwen,
    tokenizer,
)

pytestmark = pytest.mark.jobs

PLACES = {
    "Qwen2VLProcessor": "<|image_pad|>",
    "Qwen2_5_VLProcessor": "<|image_pad|>",
    "Qwen3VLProcessor": "<|image_pad|>",
    "InternVLProcessor": "<IMG_CONTEXT>",
    "Gemma3Processor": "<start_of_image>",
}


def split_idefics():
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 24}
    )
    return transformers.Idefics3Processor(images, tokenizer(None), image_seq_len=3)


def split_idefics2():
    processor = PROCESSORS["idefics2"]()
    processor.image_processor.do_image_splitting = True
    return processor


def qwen_of(**parameters):
    processor = qwen(name="Qwen3VLProcessor")
    processor.image_processor = transformers.Qwen2VLImageProcessorPil(**parameters)
    return processor


def siglip_llava():
    return transformers.LlavaProcessor(
        transformers.SiglipImageProcessorPil(size={"height": 24, "width": 16}),
        tokenizer(None),
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=3,
    )


def many_tiles(**parameters):
    processor = PROCESSORS["internvl"]()
    processor.image_processor = transformers.GotOcr2ImageProcessorPil(
        size={"height": 8, "width": 8}, **parameters
    )
    return processor


def wide_onevision():
    processor = onevision()
    pinpoints = [[16 * row, 16 * column] for row in (1, 2, 5) for column in (1, 3, 6)]
    processor.image_processor.image_grid_pinpoints = pinpoints
    processor.vision_aspect_ratio = "anyres_max_2"
    processor.num_image_tokens = 9
    return processor


ALL = {
    **PROCESSORS,
    "paligemma": paligemma,
    "idefics split": split_idefics,
    "idefics2 split": split_idefics2,
    "qwen wide": partial(qwen_of, patch_size=6, min_pixels=900, max_pixels=9000),
    "qwen as made": qwen_of,
    "siglip llava": siglip_llava,
    "internvl 6": partial(many_tiles, min_patches=2, max_patches=6),
    "internvl 1": partial(many_tiles, max_patches=1),
    "onevision wide": wide_onevision,
}
SIDES = st.one_of(st.integers(3, 60), st.integers(3, 400))


@pytest.fixture(scope="module")
def processors():
    return {name: make() for name, make in ALL.items()}


def tokens_of(processor, sizes, **options):
    """Process real images, and count their tokens."""
    name = next(
        cls.__name__
        for cls in type(processor).__mro__
        if not cls.__name__.startswith("W")
    )
    place = PLACES.get(name, "<image>")
    images = [PIL.Image.new("RGB", size) for size in sizes]
    text = " ".join([place] * len(sizes))
    arguments = {"images_kwargs": options} if options else {}
    [ids] = processor(text=[text], images=[images], **arguments)["input_ids"]
    counted = "<image_soft_token>" if name == "Gemma3Processor" else place
    return list(ids).count(processor.tokenizer.convert_tokens_to_ids(counted))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=50, deadline=None)
@given(size=st.tuples(SIDES, SIDES))
def test_the_rule_of_a_processor_counts_as_the_processor(processors, name, size):
    rule = image_token_rule(processors[name])
    if "qwen" in name and max(size) > 200 * min(size):
        with pytest.raises(DataError, match="more than 200 times"):
            rule(*size)
        return
    assert int(rule(*size)) == tokens_of(processors[name], [size])


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(8, 90), st.integers(8, 90)), max_size=8))
def test_tokens_of_several_images_are_added(processors, name, sizes):
    rule = image_token_rule(processors[name])
    expected = tokens_of(processors[name], sizes) if sizes else 0
    assert rule.of_sample(sizes) == expected


@settings(max_examples=50, deadline=None)
@given(size=st.tuples(SIDES, SIDES), crop=st.integers(4, 40), crops=st.integers(2, 6))
def test_options_of_calls_change_the_rule(processors, size, crop, crops):
    scan = {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": crop,
        "pan_and_scan_max_num_crops": crops,
        "pan_and_scan_min_ratio_to_activate": 1.3,
    }
    for name, options in (
        ("gemma", scan),
        ("internvl", {"crop_to_patches": False}),
        ("internvl", {"max_patches": crops}),
        ("idefics", {"do_image_splitting": True}),
    ):
        rule = image_token_rule(processors[name], **options)
        assert int(rule(*size)) == tokens_of(processors[name], [size], **options)


@pytest.mark.parametrize("edge", [1456, 2048, 6000])
@settings(max_examples=50, deadline=None)
@given(size=st.tuples(st.integers(1, 9000), st.integers(1, 9000)))
def test_large_images_of_smolvlm(edge, size):
    """Sizes as the image processor resizes them, without the pixels."""
    module = transformers.models.smolvlm.image_processing_pil_smolvlm
    sides = module._resize_output_size_rescale_to_max_len(*size[::-1], max_len=edge)
    height, width = module._resize_output_size_scale_below_upper_bound(
        *sides, max_len=module.MAX_IMAGE_SIZE
    )
    aspect = width / height
    if width >= height:
        columns = math.ceil(width / 364)
        rows = math.ceil(int(columns * 364 / aspect) / 364)
    else:
        rows = math.ceil(height / 364)
        columns = math.ceil(int(rows * 364 * aspect) / 364)
    expected = rows * columns + 1 if max(rows, columns) > 1 else 1
    found = image_tokens.smolvlm(*size, longest_edge=edge, tile_size=364, tokens=1)
    assert int(found) == expected


@settings(max_examples=50, deadline=None)
@given(size=st.tuples(st.integers(20, 9000), st.integers(20, 9000)))
def test_large_images_by_the_arithmetic_of_processors(size):
    width, height = size
    qwen_module = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl
    if max(size) <= 200 * min(size):
        for factor, least, most in ((28, 3136, 1003520), (32, 65536, 16777216)):
            rows, columns = qwen_module.smart_resize(height, width, factor, least, most)
            found = image_tokens.qwen_vl(
                *size, patch_size=factor // 2, min_pixels=least, max_pixels=most
            )
            assert int(found) == rows * columns // factor**2
    tiles = transformers.models.got_ocr2.image_processing_pil_got_ocr2
    columns, rows = tiles.get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
    count = columns * rows
    assert int(image_tokens.internvl(*size)) == 256 * (count + (count > 1))
    pinpoints = [list(pair) for pair in image_tokens.ONEVISION_PINPOINTS]
    processor = onevision()
    processor.image_processor.image_grid_pinpoints = pinpoints
    processor.num_image_tokens = 729
    expected = processor._get_number_of_features(height, width, 384, 384)
    assert int(image_tokens.llava_onevision(*size)) == expected
    processor = llava(name="LlavaNextProcessor")
    processor.patch_size = 14
    pinpoints = [list(pair) for pair in image_tokens.LLAVA_NEXT_PINPOINTS]
    processor.image_processor.image_grid_pinpoints = pinpoints
    expected = processor._get_number_of_features(height, width, 336, 336)
    assert int(image_tokens.llava_next(*size)) == expected


RULES = [
    image_tokens.fixed_grid,
    image_tokens.qwen_vl,
    image_tokens.llava_next,
    image_tokens.llava_onevision,
    image_tokens.internvl,
    image_tokens.smolvlm,
    partial(image_tokens.gemma3, pan_and_scan=True),
]


@given(
    sizes=st.lists(
        st.tuples(st.integers(20, 4000), st.integers(20, 4000)), min_size=1, max_size=9
    )
)
def test_arrays_have_the_tokens_of_their_elements(sizes):
    widths, heights = np.array(sizes).T
    for rule in RULES:
        found = rule(widths, heights)
        assert found.dtype == np.int64
        assert found.tolist() == [int(rule(*size)) for size in sizes]
        grid = rule(widths[:, None], heights[:, None])
        assert grid.tolist() == [[count] for count in found]


def test_refusals():
    with pytest.raises(DataError, match="widths must be >= 1, got 0"):
        image_tokens.qwen_vl([4, 0], [4, 4])
    with pytest.raises(DataError, match="got 4000 x 10"):
        image_tokens.qwen_vl([40, 4000], [40, 10])
    with pytest.raises(ConfigError, match=r"no rule for MllamaProcessor.*Qwen2VL"):
        image_token_rule(mllama())
    with pytest.raises(ConfigError, match=r"no option 'max_pixel'.* max_pixels"):
        image_token_rule(qwen(), max_pixel=3)
    resized = idefics()
    resized.image_processor.do_resize = False
    with pytest.raises(ConfigError, match="Idefics3Processor with do_resize=False"):
        image_token_rule(resized)
    uncropped = llava()
    uncropped.image_processor.do_center_crop = False
    with pytest.raises(ConfigError, match="LlavaProcessor with size="):
        image_token_rule(uncropped)


def test_example():
    rule = image_token_rule(qwen_of(min_pixels=3136, max_pixels=1003520))
    assert isinstance(rule, ImageTokenRule)
    assert rule([640, 4000], [480, 3000]).tolist() == [391, 1230]
    assert rule.of_sample([(640, 480)] * 8) == 8 * 391
    assert image_token_rule(gemma()).of_sample([]) == 0
    assert SIZE == {"height": 16, "width": 16}
