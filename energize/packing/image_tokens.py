"""Image tokens of vision-language models, computed from image sizes alone.

Each rule repeats the arithmetic of a processor of transformers on arrays of widths and
heights, so no image is decoded. `image_token_rule` reads the parameters of a processor.

The tokens counted are those that hold image features, such as `<|image_pad|>` or
`<image>`. Tokens that only mark images, rows or tiles count as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array
from energize.errors import ConfigError, DataError

Rule = Callable[[Any, Any], Int64Array]
"""A function of widths and heights that returns image tokens."""
Pinpoints = Sequence[Sequence[int]]
"""Resolutions as (height, width)."""

MOST_SIDES = 200
"""Largest ratio of the sides of an image for Qwen-VL."""
LARGEST_SIDE = 4096
"""Largest side of an image for Idefics 3 and SmolVLM."""
FIVE_TILES = 5
"""Images that Idefics 2 makes of a split one."""
LLAVA_NEXT_PINPOINTS = (
    (336, 672),
    (672, 336),
    (672, 672),
    (1008, 336),
    (336, 1008),
)
"""Resolutions of LLaVA-NeXT as (height, width)."""
ONEVISION_PINPOINTS = tuple(
    (height, width)
    for height in range(384, 2305, 384)
    for width in range(384, 2305, 384)
)
"""Resolutions of LLaVA-OneVision as (height, width)."""


def _sizes(width: npt.ArrayLike, height: npt.ArrayLike) -> tuple[Int64Array, ...]:
    """Return widths and heights as arrays of one shape; raise for sizes below 1."""
    sizes = np.broadcast_arrays(
        np.asarray(width, dtype=np.int64), np.asarray(height, dtype=np.int64)
    )
    for name, values in zip(("width", "height"), sizes, strict=True):
        if values.size and values.min() < 1:
            raise DataError(
                f"image {name}s must be >= 1, got {values.min()}. Images without a "
                "size have no tokens: leave them out"
            )
    return sizes[0], sizes[1]


def fixed_grid(
    width: npt.ArrayLike, height: npt.ArrayLike, *, tokens: int = 576
) -> Int64Array:
    """Return the image tokens of a model that scales all images to one size.

    Among these are LLaVA 1.5 (576), models with a SigLIP encoder such as PaliGemma
    (256, 1024 or 4096), and Gemma 3 without pan and scan (256).

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        tokens: Tokens of an image.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> fixed_grid([640, 32], [480, 32]).tolist()
        [576, 576]
    """
    widths, _ = _sizes(width, height)
    return np.full(widths.shape, tokens, dtype=np.int64)


def qwen_vl(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    patch_size: int = 14,
    merge_size: int = 2,
    min_pixels: int = 56 * 56,
    max_pixels: int = 28 * 28 * 1280,
) -> Int64Array:
    """Return the image tokens of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

    Sides are rounded to multiples of `patch_size * merge_size`, within the limits of
    pixels: `smart_resize` of transformers. Qwen3-VL has patches of 16 pixels.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        patch_size: Side of a patch in pixels.
        merge_size: Side of the square of patches that become one token.
        min_pixels: Least pixels of a scaled image.
        max_pixels: Most pixels of a scaled image.

    Returns:
        Tokens of each image, in the shape of `width`.

    Raises:
        DataError: If a side is more than 200 times the other, which these models
            refuse.

    Example:
        >>> qwen_vl([640, 4000], [480, 3000]).tolist()
        [391, 1230]
    """
    widths, heights = _sizes(width, height)
    longest = np.maximum(widths, heights)
    shortest = np.minimum(widths, heights)
    if (longest / shortest > MOST_SIDES).any():
        row = int(np.argmax(longest / shortest))
        raise DataError(
            f"Qwen-VL refuses images with one side more than {MOST_SIDES} times the "
            f"other, got {widths.flat[row]} x {heights.flat[row]}. Leave them out"
        )
    factor = patch_size * merge_size
    rows = np.rint(heights / factor)
    columns = np.rint(widths / factor)
    pixels = rows * columns * factor**2
    shrink = np.sqrt(widths * heights / max_pixels)
    grow = np.sqrt(min_pixels / (widths * heights))
    is_large = pixels > max_pixels
    is_small = ~is_large & (pixels < min_pixels)

    def scaled(sides: Int64Array, rounded: FloatArray) -> FloatArray:
        smaller = np.maximum(1, np.floor(sides / shrink / factor))
        larger = np.ceil(sides * grow / factor)
        return np.where(is_large, smaller, np.where(is_small, larger, rounded))

    return _whole(scaled(heights, rows) * scaled(widths, columns))


def llava_next(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    pinpoints: Pinpoints = LLAVA_NEXT_PINPOINTS,
    tile_size: int = 336,
    patch_size: int = 14,
    extra: int = 0,
) -> Int64Array:
    """Return the image tokens of LLaVA-NeXT: a small image and tiles of a large one.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        pinpoints: Resolutions (height, width) of large images.
        tile_size: Side of a tile in pixels.
        patch_size: Side of a patch in pixels.
        extra: Tokens of an image besides its patches, as a class token.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> llava_next([640, 1000], [480, 200]).tolist()
        [2340, 1598]
    """
    widths, heights = _sizes(width, height)
    side = tile_size // patch_size
    rows, columns = _unpadded(widths, heights, pinpoints, tile_size, side)
    return rows * columns + rows + side**2 + extra


def llava_onevision(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    pinpoints: Pinpoints = ONEVISION_PINPOINTS,
    tile_size: int = 384,
    tokens: int = 729,
    max_tiles: int = 9,
    extra: int = 0,
) -> Int64Array:
    """Return the image tokens of LLaVA-OneVision, for samples with one image.

    Tiles with the features of more than `max_tiles` are scaled down. In samples with
    several images, each image has `tokens + 1` tokens.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        pinpoints: Resolutions (height, width) of large images.
        tile_size: Side of a tile in pixels.
        tokens: Tokens of a tile, a square number.
        max_tiles: Tiles from which the features are scaled down.
        extra: Further tokens of an image.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> llava_onevision([640, 384], [480, 384]).tolist()
        [2929, 1485]
    """
    widths, heights = _sizes(width, height)
    side = int(np.sqrt(tokens))
    rows, columns = _unpadded(widths, heights, pinpoints, tile_size, side)
    ratio = np.sqrt(rows * columns / (max_tiles * side**2))
    is_large = ratio > 1.1
    ratio = np.maximum(ratio, 1)
    rows = np.where(is_large, _whole(rows // ratio), rows)
    columns = np.where(is_large, _whole(columns // ratio), columns)
    return rows * columns + rows + tokens + extra


def internvl(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    tile_size: int | tuple[int, int] = 448,
    tokens: int = 256,
    min_tiles: int = 1,
    max_tiles: int = 12,
    thumbnail: bool = True,
) -> Int64Array:
    """Return the image tokens of InternVL: tiles in the grid of the nearest aspect.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        tile_size: Side of a tile in pixels, or its height and width.
        tokens: Tokens of a tile.
        min_tiles: Least tiles of an image.
        max_tiles: Most tiles of an image, without the thumbnail.
        thumbnail: Whether images of several tiles have the whole image as a further
            tile.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> internvl([448, 896, 4000], [448, 448, 3000]).tolist()
        [256, 768, 3328]
    """
    widths, heights = _sizes(width, height)
    tile = tile_size if isinstance(tile_size, tuple) else (tile_size, tile_size)
    aspects = widths / heights
    areas = widths * heights
    closest = np.full(widths.shape, np.inf)
    tiles = np.ones(widths.shape, dtype=np.int64)
    for columns, rows in _grids(min_tiles, max_tiles):
        count = columns * rows
        difference = np.abs(aspects - columns / rows)
        is_filled = areas > 0.5 * tile[0] * tile[1] * count
        is_better = (difference < closest) | ((difference == closest) & is_filled)
        tiles = np.where(is_better, count, tiles)
        closest = np.minimum(closest, difference)
    return tokens * (tiles + (thumbnail & (tiles > 1)))


def _grids(least: int, most: int) -> list[tuple[int, int]]:
    """Return grids of tiles (columns, rows), by their number of tiles."""
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= columns * rows <= most
    ]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def smolvlm(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    longest_edge: int = 2048,
    tile_size: int = 512,
    tokens: int = 64,
    split: bool = True,
) -> Int64Array:
    """Return the image tokens of SmolVLM and Idefics 3.

    Images are scaled to `longest_edge`, and cut into tiles; the whole image is a
    further tile.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        longest_edge: Longest side of a scaled image in pixels.
        tile_size: Side of a tile in pixels.
        tokens: Tokens of a tile.
        split: Whether images are cut into tiles.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> smolvlm([640, 480], [480, 480]).tolist()
        [832, 1088]
    """
    widths, heights = _sizes(width, height)
    if not split:
        return np.full(widths.shape, tokens, dtype=np.int64)
    heights, widths = _scaled_to(longest_edge, heights, widths)
    is_wide = widths >= heights
    heights = np.maximum(1, heights + np.where(is_wide, heights % 2, 0))
    widths = np.maximum(1, widths + np.where(is_wide, 0, widths % 2))
    if longest_edge > LARGEST_SIDE:
        heights, widths = _scaled_to(LARGEST_SIDE, heights, widths)
        heights, widths = np.maximum(1, heights), np.maximum(1, widths)
    longest = -(-np.maximum(heights, widths) // tile_size)
    heights, widths = _scaled_to(longest * tile_size, heights, widths)
    rows = -(-heights // tile_size)
    columns = -(-widths // tile_size)
    tiles = rows * columns
    return tokens * np.where(tiles > 1, tiles + 1, 1)


def _scaled_to(
    longest: int | Int64Array, heights: Int64Array, widths: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return heights and widths with this longer side, the shorter rounded down."""
    aspects = widths / heights
    is_wide = widths >= heights
    return (
        np.where(is_wide, _whole(longest / aspects), longest),
        np.where(is_wide, longest, _whole(longest * aspects)),
    )


def gemma3(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    tokens: int = 256,
    pan_and_scan: bool = False,
    min_crop_size: int = 256,
    max_crops: int = 4,
    min_ratio: float = 1.2,
) -> Int64Array:
    """Return the image tokens of Gemma 3, also with pan and scan.

    Args:
        width: Widths in pixels.
        height: Heights in pixels, of the same shape.
        tokens: Tokens of an image or crop.
        pan_and_scan: Whether long images have crops.
        min_crop_size: Least side of a crop in pixels.
        max_crops: Most crops of an image.
        min_ratio: Ratio of the sides from which an image has crops.

    Returns:
        Tokens of each image, in the shape of `width`.

    Example:
        >>> gemma3([640, 1200], [480, 400]).tolist()
        [256, 256]
        >>> gemma3([640, 1200], [480, 400], pan_and_scan=True).tolist()
        [768, 1024]
    """
    widths, heights = _sizes(width, height)
    if not pan_and_scan:
        return np.full(widths.shape, tokens, dtype=np.int64)
    long = np.maximum(widths, heights)
    short = np.minimum(widths, heights)
    ratio = long / short
    crops = np.minimum(long // min_crop_size, _whole(ratio + 0.5))
    crops = np.minimum(max_crops, np.maximum(2, crops))
    crop_size = np.minimum(_whole(np.ceil(long / crops)), short)
    has_crops = (ratio >= min_ratio) & (crop_size >= min_crop_size)
    return tokens * (1 + np.where(has_crops, crops, 0))


def _unpadded(
    widths: Int64Array,
    heights: Int64Array,
    pinpoints: Pinpoints,
    tile_size: int,
    side: int,
) -> tuple[Int64Array, Int64Array]:
    """Return rows and columns of features of large images, without padding."""
    target_height, target_width = _best_resolutions(widths, heights, pinpoints)
    rows = side * (target_height // tile_size)
    columns = side * (target_width // tile_size)
    is_wider = widths / heights > columns / rows
    # The processors round to 7 digits before they cut, as whole numbers need not.
    fewer_rows = rows - (rows - heights * columns // widths) // 2 * 2
    fewer_columns = columns - (columns - widths * rows // heights) // 2 * 2
    return (
        np.where(is_wider, fewer_rows, rows),
        np.where(is_wider, columns, fewer_columns),
    )


def _best_resolutions(
    widths: Int64Array, heights: Int64Array, pinpoints: Pinpoints
) -> tuple[Int64Array, Int64Array]:
    """Return the heights and widths of `select_best_resolution` of transformers."""
    most = np.zeros(widths.shape, dtype=np.int64)
    least_waste = np.full(widths.shape, np.inf)
    best_height = np.zeros(widths.shape, dtype=np.int64)
    best_width = np.zeros(widths.shape, dtype=np.int64)
    for height, width in pinpoints:
        scale: FloatArray = np.minimum(width / widths, height / heights)
        scaled = _whole(widths * scale) * _whole(heights * scale)
        effective = np.minimum(scaled, widths * heights)
        waste = width * height - effective
        is_better = (effective > most) | ((effective == most) & (waste < least_waste))
        most = np.where(is_better, effective, most)
        least_waste = np.where(is_better, waste, least_waste)
        best_height = np.where(is_better, height, best_height)
        best_width = np.where(is_better, width, best_width)
    return best_height, best_width


def _whole(values: npt.NDArray[Any]) -> Int64Array:
    """Return numbers rounded down."""
    whole: Int64Array = np.floor(values).astype(np.int64)
    return whole


# Rules of processors.


@dataclass(frozen=True)
class ImageTokenRule:
    """The image tokens of a processor, from image sizes.

    Args:
        name: Name of the processor, for messages.
        one: Tokens of images that are alone in their samples.
        several: Tokens of each image in samples with several; by default `one`.

    Example:
        >>> rule = ImageTokenRule("Qwen2VLProcessor", qwen_vl)
        >>> rule([640, 4000], [480, 3000]).tolist()
        [391, 1230]
        >>> rule.of_sample([(640, 480), (4000, 3000)]), rule.of_sample([])
        (1621, 0)
    """

    name: str
    one: Rule
    several: Rule | None = None

    def __call__(self, width: npt.ArrayLike, height: npt.ArrayLike) -> Int64Array:
        """Return the tokens of images that are alone in their samples."""
        return self.one(width, height)

    def of_sample(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Return the tokens of all images of a sample.

        Args:
            sizes: Width and height of each image.
        """
        pairs = np.array([*sizes], dtype=np.int64).reshape(-1, 2)
        if not len(pairs):
            return 0
        rule = self.several if self.several and len(pairs) > 1 else self.one
        return int(rule(pairs[:, 0], pairs[:, 1]).sum())


def image_token_rule(processor: Any, **options: Any) -> ImageTokenRule:
    """Return the rule of a processor of transformers, with its parameters.

    Args:
        processor: The processor, as `AutoProcessor.from_pretrained` returns it.
        **options: Options of images with which you call the processor, such as
            `max_pixels` or `do_pan_and_scan`.

    Returns:
        The rule.

    Raises:
        ConfigError: For an unknown processor or option, and for parameters with which
            the number of tokens does not follow from the size.

    Example:
        >>> from energize.errors import ConfigError
        >>> try:
        ...     image_token_rule(object())
        ... except ConfigError as error:
        ...     print(str(error)[:51])
        image_token_rule has no rule for object. It has rul
    """
    classes = [cls.__name__ for cls in type(processor).__mro__]
    name = next((name for name in classes if name in _PROCESSORS), None)
    if name is None:
        raise ConfigError(
            f"image_token_rule has no rule for {classes[0]}. It has rules for "
            f"{', '.join(sorted(_PROCESSORS))}; for others, write a function of the "
            "sample that returns the number of its image tokens"
        )
    parameters = _Parameters(name, processor, options)
    one, several = _PROCESSORS[name](parameters)
    parameters.check_used()
    return ImageTokenRule(name, one, several)


class _Parameters:
    """Parameters of a processor and its image processor, with options of calls."""

    def __init__(self, name: str, processor: Any, options: Mapping[str, Any]) -> None:
        self.name = name
        self.processor = processor
        self._options = dict(options)
        self._used: set[str] = set()
        if not self.of_images("do_resize"):
            raise self.error("do_resize=False")

    def option(self, name: str, default: Any) -> Any:
        """Return an option of calls."""
        self._used.add(name)
        return self._options.get(name, default)

    def of_images(self, name: str, default: Any = None) -> Any:
        """Return an option of calls, or a parameter of the image processor."""
        return self.option(name, getattr(self.processor.image_processor, name, default))

    def length(self, name: str, *keys: str) -> int | None:
        """Return the first value that a size has of some keys."""
        size = self.of_images(name)
        sizes = {} if size is None else dict(size)
        values = (sizes.get(key) for key in keys)
        return next((int(value) for value in values if value is not None), None)

    def sides(self, *names: str) -> tuple[int, int]:
        """Return the height and width of the first of some sizes that is fixed."""
        for name in names:
            height = self.length(name, "height")
            width = self.length(name, "width")
            if height is not None and width is not None:
                return height, width
        raise self.error(f"{names[0]}={self.of_images(names[0])}")

    def error(self, reason: str) -> ConfigError:
        """Return the error for parameters without a rule."""
        return ConfigError(
            f"image_token_rule has no rule for {self.name} with {reason}. Write a "
            "function of the sample that returns the number of its image tokens"
        )

    def check_used(self) -> None:
        """Raise `ConfigError` for options that do not exist."""
        unknown = sorted(self._options.keys() - self._used)
        if unknown:
            known = ", ".join(sorted(self._used))
            raise ConfigError(
                f"image_token_rule: {self.name} has no option {unknown[0]!r} that "
                f"changes its image tokens. Its options are {known}"
            )

    @property
    def extra(self) -> int:
        """Tokens of an image besides its patches, for LLaVA."""
        more = getattr(self.processor, "num_additional_image_tokens", 0)
        is_default = self.processor.vision_feature_select_strategy == "default"
        return int(more) - int(is_default)


_Rules = tuple[Rule, Rule | None]


def _of_qwen(parameters: _Parameters) -> _Rules:
    least = parameters.option("min_pixels", None)
    most = parameters.option("max_pixels", None)
    least = least or parameters.length("size", "shortest_edge", "min_pixels")
    most = most or parameters.length("size", "longest_edge", "max_pixels")
    rule = partial(
        qwen_vl,
        patch_size=parameters.of_images("patch_size"),
        merge_size=parameters.of_images("merge_size"),
        min_pixels=least or parameters.of_images("min_pixels"),
        max_pixels=most or parameters.of_images("max_pixels"),
    )
    return rule, None


def _cropped(parameters: _Parameters) -> tuple[int, int]:
    """Return the height and width of images after resizing and cropping."""
    if parameters.of_images("do_center_crop", default=False):
        return parameters.sides("crop_size")
    return parameters.sides("size")


def _of_llava(parameters: _Parameters) -> _Rules:
    height, width = _cropped(parameters)
    patch = parameters.processor.patch_size
    tokens = (height // patch) * (width // patch) + parameters.extra
    return partial(fixed_grid, tokens=tokens), None


def _of_llava_next(parameters: _Parameters) -> _Rules:
    height, width = _cropped(parameters)
    if height != width:
        raise parameters.error(f"tiles of {height} x {width}")
    rule = partial(
        llava_next,
        pinpoints=parameters.of_images("image_grid_pinpoints"),
        tile_size=height,
        patch_size=parameters.processor.patch_size,
        extra=parameters.extra,
    )
    return rule, None


def _of_onevision(parameters: _Parameters) -> _Rules:
    height, width = parameters.sides("size")
    if height != width:
        raise parameters.error(f"tiles of {height} x {width}")
    tokens = parameters.processor.num_image_tokens
    aspect = parameters.processor.vision_aspect_ratio
    one = partial(
        llava_onevision,
        pinpoints=parameters.of_images("image_grid_pinpoints"),
        tile_size=height,
        tokens=tokens,
        max_tiles=int(aspect.removeprefix("anyres_max_")),
        extra=parameters.extra,
    )
    return one, partial(fixed_grid, tokens=tokens + 1 + parameters.extra)


def _of_internvl(parameters: _Parameters) -> _Rules:
    tokens = parameters.processor.image_seq_length
    most = parameters.of_images("max_patches")
    # The processor sets this option, whatever its image processor has.
    if not parameters.option("crop_to_patches", default=True) or most <= 1:
        return partial(fixed_grid, tokens=tokens), None
    rule = partial(
        internvl,
        tile_size=parameters.sides("size"),
        tokens=tokens,
        min_tiles=parameters.of_images("min_patches"),
        max_tiles=most,
    )
    return rule, None


def _of_smolvlm(parameters: _Parameters) -> _Rules:
    longest = parameters.length("size", "longest_edge")
    tile_size = parameters.length("max_image_size", "longest_edge")
    if longest is None or tile_size is None:
        raise parameters.error(f"size={parameters.of_images('size')}")
    rule = partial(
        smolvlm,
        longest_edge=longest,
        tile_size=tile_size,
        tokens=parameters.processor.image_seq_len,
        split=bool(parameters.of_images("do_image_splitting")),
    )
    return rule, None


def _of_gemma3(parameters: _Parameters) -> _Rules:
    # The processor sets these options, whatever its image processor has.
    rule = partial(
        gemma3,
        tokens=parameters.processor.image_seq_length,
        pan_and_scan=bool(parameters.option("do_pan_and_scan", default=False)),
        min_crop_size=parameters.option("pan_and_scan_min_crop_size", 256),
        max_crops=parameters.option("pan_and_scan_max_num_crops", 4),
        min_ratio=parameters.option("pan_and_scan_min_ratio_to_activate", 1.2),
    )
    return rule, None


def _of_idefics2(parameters: _Parameters) -> _Rules:
    split = parameters.processor.image_processor.do_image_splitting
    tokens = parameters.processor.image_seq_len * (FIVE_TILES if split else 1)
    return partial(fixed_grid, tokens=tokens), None


def _of_paligemma(parameters: _Parameters) -> _Rules:
    return partial(fixed_grid, tokens=parameters.processor.image_seq_length), None


_PROCESSORS: Mapping[str, Callable[[_Parameters], _Rules]] = {
    "Gemma3Processor": _of_gemma3,
    "Idefics2Processor": _of_idefics2,
    "Idefics3Processor": _of_smolvlm,
    "InternVLProcessor": _of_internvl,
    "LlavaNextProcessor": _of_llava_next,
    "LlavaOnevisionProcessor": _of_onevision,
    "LlavaProcessor": _of_llava,
    "PaliGemmaProcessor": _of_paligemma,
    "Qwen2VLProcessor": _of_qwen,
    "Qwen2_5_VLProcessor": _of_qwen,
    "Qwen3VLProcessor": _of_qwen,
    "SmolVLMProcessor": _of_smolvlm,
}
