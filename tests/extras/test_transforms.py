"""Merged transforms, compared with Pillow doing one step after the other."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from PIL.Image import Resampling

from energize.errors import ConfigError
from energize.extras import transforms as T
from energize.extras.transforms import CustomTransform, MergeTransform

SIZES = [(33, 55), (60, 60), (1, 7), (128, 97)]


def noise(height: int, width: int, bands: str = "RGB") -> PIL.Image.Image:
    shape = (height, width, len(bands)) if len(bands) > 1 else (height, width)
    values = np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)
    return PIL.Image.fromarray(values, bands)


def soft(height: int, width: int) -> PIL.Image.Image:
    """A gradient to the right and one down, nowhere black."""
    values = np.full((height, width, 3), 100.0)
    values[..., 0] = 20 + 200 * np.arange(width)[None, :] / width
    values[..., 1] = 20 + 200 * np.arange(height)[:, None] / height
    return PIL.Image.fromarray(values.astype(np.uint8))


def merged(transforms, image, seed=0):
    torch.manual_seed(seed)
    return MergeTransform(transforms)(image)


def apart(ours, theirs) -> int:
    """The largest difference of two images."""
    assert ours.size == theirs.size
    a, b = (np.asarray(each, dtype=np.int64) for each in (ours, theirs))
    return int(np.abs(a - b).max(initial=0))


def drawn(high: int) -> int:
    return torch.randint(0, high, (1,)).item()


def test_resizing():
    for size, new in product(SIZES, [(100, 100), (10, 10), (3, 1), (33, 55)]):
        image = noise(*size)
        ours = merged([T.Resize(new, interpolation="nearest")], image)
        theirs = np.asarray(image.resize(new[::-1], Resampling.NEAREST))
        differing = (np.asarray(ours) != theirs).any(axis=2)
        # A new pixel whose middle lies between two of the image may be either of them.
        between = np.logical_or.outer(
            *(
                (np.arange(b) * 2 + 1) * a % (2 * b) == 0
                for a, b in zip(size, new, strict=True)
            )
        )
        assert not (differing & ~between).any(), (size, new)
    for mode in ("bilinear", "bicubic"):  # smaller: of all pixels
        image = noise(128, 97)
        ours = merged([T.Resize((30, 20), interpolation=mode)], image)
        assert apart(ours, image.resize((20, 30), Resampling[mode.upper()])) == 0, mode
    image = soft(40, 50)
    assert apart(merged([T.Resize((80, 75))], image), image.resize((75, 80), 2)) <= 1
    for size, asked, new in (
        ((50, 100), T.Resize(25), (25, 50)),
        ((100, 50), T.Resize((25,)), (50, 25)),
        ((50, 100), T.Resize(100, max_size=150), (75, 150)),
        ((50, 60), T.Resize(100, max_size=150), (100, 120)),
        ((33, 50), T.Resize(25), (25, 37)),  # cut off, as torchvision does
    ):
        assert MergeTransform([asked]).merged(*size)[1] == new, asked


def test_cropping():
    image = noise(155, 120)
    for height, width in ((155, 120), (100, 50), (3, 3), (50, 201), (203, 200)):
        padded = PIL.Image.new("RGB", (max(width, 120), max(height, 155)))
        padded.paste(image, (max(0, (width - 120) // 2), max(0, (height - 155) // 2)))
        x, y = round((padded.width - width) / 2), round((padded.height - height) / 2)
        expected = padded.crop((x, y, x + width, y + height))
        assert apart(merged([T.CenterCrop((height, width))], image), expected) == 0
    image = noise(20, 30)
    crop = T.RandomCrop((40, 34), padding=(1, 2), pad_if_needed=True, fill=7)
    ours = merged([crop], image, 5)
    torch.manual_seed(5)
    # With 2 above and below, and 16 more each; with 1 left and right, and 2 more each.
    padded = PIL.ImageOps.expand(image, (3, 18), (7, 7, 7))
    top, left = drawn(padded.height - 40 + 1), drawn(padded.width - 34 + 1)
    assert apart(ours, padded.crop((left, top, left + 34, top + 40))) == 0


def test_a_part_resized():
    image = soft(60, 50)
    step = T.RandomResizedCrop(90, scale=(0.3, 0.7), ratio=(0.75, 1.3))
    for seed in range(5):
        torch.manual_seed(seed)
        ((_, (top, left, height, width)),) = MergeTransform([step]).merged(60, 50)[2]
        assert 0.25 <= height * width / 3000 <= 0.75
        assert 0.7 <= width / height <= 1.35
        part = image.crop((left, top, left + width, top + height))
        assert apart(merged([step], image, seed), part.resize((90, 90), 2)) <= 4
    for ratio, middle in (
        (3, (30, 0, 30, 90)),
        (1 / 3, (0, 30, 90, 30)),
    ):  # no part is so wide
        step = T.RandomResizedCrop(8, scale=(1, 1), ratio=(ratio, ratio))
        assert MergeTransform([step]).merged(90, 90)[2][0][1] == middle


def test_flips():
    for size, seed in product(SIZES, range(6)):
        image = noise(*size)
        torch.manual_seed(seed)
        flipped = bool(torch.rand(1) < 0.6)
        for step, flip in (
            (T.RandomHorizontalFlip(0.6), PIL.ImageOps.mirror),
            (T.RandomVerticalFlip(0.6), PIL.ImageOps.flip),
        ):
            assert (
                apart(merged([step], image, seed), flip(image) if flipped else image)
                == 0
            )


def test_perspective():
    seen = set()
    for seed in range(6):
        torch.manual_seed(seed)
        matrix, _, _ = MergeTransform([T.RandomPerspective(p=0.7)]).merged(133, 128)
        torch.manual_seed(seed)
        seen.add(away := bool(torch.rand(1) < 0.7))
        lows = ((0, 0), (128 - 33, 0), (128 - 33, 133 - 34), (0, 133 - 34))
        start = [(0, 0), (127, 0), (127, 132), (0, 132)]
        corners = [(x + drawn(33), y + drawn(34)) for x, y in lows] if away else start
        for (x, y), corner in zip(start, corners, strict=True):
            point = matrix @ [x, y, 1]
            assert np.allclose(point[:2] / point[2], corner, atol=1e-6), seed
    assert seen == {True, False}
    line = noise(1, 30)
    assert apart(merged([T.RandomPerspective(0.9, 1.0)], line), line) == 0


STEPS = {
    "nearest": [T.RandomRotation((33, 33), fill=5), T.RandomCrop(20, fill=5)],
    "bilinear": [
        T.RandomRotation((33, 33), "bilinear", fill=5),
        T.RandomCrop(20, fill=5),
    ],
    "bicubic": [T.RandomRotation((33, 33), "bicubic"), T.CenterCrop(20)],
    "smaller": [T.Resize((21, 17)), T.RandomHorizontalFlip(1.0)],
    "perspective": [T.RandomPerspective(0.3, 1.0), T.RandomCrop(40)],
}


def test_tensors_are_as_images_of_any_type_and_shape():
    image = soft(50, 61)
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    for name, steps in STEPS.items():
        ours = merged(steps, tensor, 2)
        assert ours.dtype == torch.uint8
        exact = merged(steps, tensor.double(), 2).round().clamp(0, 255)
        assert (exact - ours).abs().max() <= 1e-3 or name == "bicubic"
        shown = PIL.Image.fromarray(ours.permute(1, 2, 0).numpy())
        assert apart(shown, merged(steps, image, 2)) <= 3, name
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int32):
        typed = tensor.to(dtype)
        stacked = torch.stack([typed, typed.flip(0)])[None]
        ours = merged(STEPS["bilinear"], stacked, 2)
        assert (ours.shape, ours.dtype) == ((1, 2, 3, 20, 20), dtype)
        assert torch.equal(ours[0, 0], merged(STEPS["bilinear"], typed, 2))
        assert torch.equal(ours[0, 1], ours[0, 0].flip(0))
    mask = torch.randint(0, 2, (30, 40), generator=torch.Generator().manual_seed(0))
    rotated = merged([T.RandomRotation((45, 45))], mask)
    assert rotated.shape == (30, 40)
    assert set(rotated.unique().tolist()) == {0, 1}
    lit = merged([T.RandomRotation((90, 90), expand=True)], mask.bool())
    assert torch.equal(lit, torch.rot90(mask.bool()))


class Shift(CustomTransform):
    def __init__(self):
        pass

    def apply_transform(self, matrix, dst_size):
        return self.translate(5, 5) @ matrix, dst_size, ("Shift", (5, 5))


class MyFlip(T.RandomHorizontalFlip):
    pass


def test_steps_of_ones_own_and_pickles():
    image = noise(40, 50)
    expected = PIL.Image.new("RGB", image.size)
    expected.paste(image, (5, 5))
    assert apart(merged([Shift()], image), expected) == 0
    assert (
        apart(merged([Shift(), MyFlip(1.0)], image), PIL.ImageOps.mirror(expected)) == 0
    )
    transform = MergeTransform([T.RandomRotation(30), T.RandomCrop(10)])
    assert isinstance(transform, torch.nn.Module)
    torch.manual_seed(4)
    first = transform(image)
    torch.manual_seed(4)
    assert apart(pickle.loads(pickle.dumps(transform))(image), first) == 0


def stand_in(name: str, module: str, **attributes):
    """An object as torchvision's: of a class of this name, with the attributes as it
    keeps them."""
    made = type(name, (torch.nn.Module,), {"__module__": module})()
    vars(made).update(attributes)
    return made


V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2._geometry"


def test_the_crop_of_torchvisions_second_version():
    """It keeps left, right, top and bottom."""
    padded = {"padding": [1, 2, 3, 4], "pad_if_needed": False, "fill": 0}
    image = noise(20, 30)
    theirs = stand_in("RandomCrop", V2, size=(5, 5), **padded)
    ours = T.RandomCrop(5, padding=(1, 3, 2, 4))
    assert apart(merged([theirs], image, 8), merged([ours], image, 8)) == 0


class ColorJitter:
    pass


def test_what_cannot_be_merged():
    image = noise(20, 30)
    for steps, given_, words in (
        ([T.Resize(30, max_size=20)], image, "max_size=20 must be >"),
        ([T.Resize((0, 5))], image, "turns an image of 20 x 30 into"),
        ([T.RandomCrop(25)], image, r"larger than the image, 20 x 30.*pad_if_needed"),
        ([T.RandomCrop(5, padding_mode="reflect")], image, "'constant'"),
        ([T.RandomCrop(5, padding=(1, 2, 3))], image, "one number, two or four"),
        ([T.RandomRotation(30, expand=True, center=(1, 1))], image, "expand=True"),
        (
            [T.RandomRotation(3), T.Resize(5)],
            image,
            "same interpolation, got 'nearest' and",
        ),
        (
            [T.RandomRotation(3, fill=1), T.RandomCrop(5)],
            image,
            "same fill, got 1 and 0",
        ),
        ([ColorJitter()], image, r"ColorJitter cannot be merged.*before or after"),
        ([T.Resize(3, interpolation="lanczos")], image, "'lanczos' cannot be merged"),
        (
            [stand_in("RandomRotation", V2, degrees=[0, 1], fill={"x": 1})],
            image,
            "for each type",
        ),
        (
            [T.RandomRotation(9, fill=(1, 2, 3))],
            torch.zeros(1, 9, 9),
            "3 values, the image has 1 chan",
        ),
        ([], np.zeros((3, 3)), "got array"),
        ([], torch.zeros(3), r"got a tensor \(3,\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            merged(steps, given_)
    MergeTransform([T.RandomRotation(3, fill=(0, 0, 0)), T.RandomCrop(5)])
