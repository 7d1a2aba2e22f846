"""Merged transforms, compared with Pillow doing one step after the other."""

from __future__ import annotations

import enum
import math
import pickle

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.Image import Resampling

from energize import transforms as T
from energize.errors import ConfigError
from energize.extras.transforms import CustomTransform, MergeTransform, homography

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


def apart(ours, theirs, *, common=False) -> int:
    """The largest difference of two images; with `common` where neither is black."""
    assert ours.size == theirs.size
    a, b = (np.asarray(each, dtype=np.int64) for each in (ours, theirs))
    seen = (a.max(axis=2) > 0) & (b.max(axis=2) > 0) if common else slice(None)
    assert not common or seen.mean() > 0.1
    return int(np.abs(a - b)[seen].max(initial=0))


def as_tensor(image: PIL.Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


class TestResize:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("new", [(100, 100), (10, 10), (3, 1), (33, 55)])
    def test_nearest(self, size, new):
        """Where a pixel lies between two of the image's, either may be taken."""
        image = noise(*size)
        ours = merged([T.Resize(new, interpolation="nearest")], image)
        theirs = np.asarray(image.resize(new[::-1], Resampling.NEAREST))
        differing = (np.asarray(ours) != theirs).any(axis=2)
        between = np.logical_or.outer(
            *((np.arange(b) * 2 + 1) * a % (2 * b) == 0 for a, b in zip(size, new, strict=True))
        )
        assert not (differing & ~between).any()

    @pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
    def test_smaller_is_pillows_with_all_pixels(self, mode):
        image = noise(128, 97)
        ours = merged([T.Resize((30, 20), interpolation=mode)], image)
        assert apart(ours, image.resize((20, 30), Resampling[mode.upper()])) == 0

    def test_larger(self):
        image = soft(40, 50)
        assert apart(merged([T.Resize((80, 75))], image), image.resize((75, 80), 2)) <= 1

    @pytest.mark.parametrize(
        ("size", "asked", "new"),
        [
            ((50, 100), T.Resize(25), (25, 50)),
            ((100, 50), T.Resize((25,)), (50, 25)),
            ((50, 100), T.Resize(100, max_size=150), (75, 150)),
            ((50, 60), T.Resize(100, max_size=150), (100, 120)),
        ],
    )
    def test_the_shorter_edge(self, size, asked, new):
        assert MergeTransform([asked]).merged(*size)[1] == new

    def test_what_cannot_be(self):
        with pytest.raises(ConfigError, match="max_size=20 is not above"):
            merged([T.Resize(30, max_size=20)], noise(10, 20))
        with pytest.raises(ConfigError, match="nothing"):
            merged([T.Resize((0, 5))], noise(10, 20))


class TestCrops:
    @pytest.mark.parametrize("size", [(155, 120), (154, 119)])
    @pytest.mark.parametrize("new", [(155, 120), (100, 50), 3, 120, (50, 201), (203, 200)])
    def test_the_middle(self, size, new):
        image = noise(*size)
        height, width = new if isinstance(new, tuple) else (new, new)
        padded, (left, top) = image, (0, 0)
        if width > image.width or height > image.height:
            left, top = max(0, (width - size[1]) // 2), max(0, (height - size[0]) // 2)
            padded = PIL.Image.new("RGB", (max(width, size[1]), max(height, size[0])))
            padded.paste(image, (left, top))
        x, y = round((padded.width - width) / 2), round((padded.height - height) / 2)
        expected = padded.crop((x, y, x + width, y + height))
        assert apart(merged([T.CenterCrop(new)], image), expected) == 0

    @pytest.mark.parametrize("size", [(155, 120), (100, 50), 3, 120, (8, 120)])
    def test_anywhere(self, size):
        image = noise(155, 120)
        height, width = size if isinstance(size, tuple) else (size, size)
        torch.manual_seed(3)
        top = left = 0
        if (height, width) != (155, 120):
            top = torch.randint(0, 155 - height + 1, (1,)).item()
            left = torch.randint(0, 120 - width + 1, (1,)).item()
        expected = image.crop((left, top, left + width, top + height))
        assert apart(merged([T.RandomCrop(size)], image, 3), expected) == 0

    def test_padded(self):
        image = noise(20, 30)
        ours = merged(
            [T.RandomCrop((40, 34), padding=(1, 2), pad_if_needed=True, fill=7)], image, 5
        )
        torch.manual_seed(5)
        # With 2 above and below, and 16 more each; with 1 left and right, and 2 more each.
        padded = PIL.ImageOps.expand(image, (3, 18), (7, 7, 7))
        top = torch.randint(0, padded.height - 40 + 1, (1,)).item()
        left = torch.randint(0, padded.width - 34 + 1, (1,)).item()
        assert apart(ours, padded.crop((left, top, left + 34, top + 40))) == 0

    def test_larger_than_the_image(self):
        with pytest.raises(ConfigError, match=r"larger than the image, 20 x 30.*pad_if_needed"):
            merged([T.RandomCrop(25)], noise(20, 30))
        with pytest.raises(ConfigError, match="'constant'"):
            merged([T.RandomCrop(5, padding_mode="reflect")], noise(20, 30))

    @pytest.mark.parametrize("seed", range(5))
    def test_a_part_resized(self, seed):
        image = soft(60, 50)
        step = T.RandomResizedCrop(90, scale=(0.3, 0.7), ratio=(0.75, 1.3))
        torch.manual_seed(seed)
        ((_, (top, left, height, width)),) = MergeTransform([step]).merged(60, 50)[2]
        assert 0.25 <= height * width / 3000 <= 0.75
        part = image.crop((left, top, left + width, top + height))
        assert apart(merged([step], image, seed), part.resize((90, 90), 2)) <= 4

    def test_a_part_that_cannot_be_is_in_the_middle(self):
        step = T.RandomResizedCrop(8, scale=(1, 1), ratio=(3, 3))
        assert MergeTransform([step]).merged(90, 90)[2][0][1] == (30, 0, 30, 90)
        step = T.RandomResizedCrop(8, scale=(1, 1), ratio=(1 / 3, 1 / 3))
        assert MergeTransform([step]).merged(90, 90)[2][0][1] == (0, 30, 90, 30)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", SIZES)
def test_flips(size, seed):
    image = noise(*size)
    torch.manual_seed(seed)
    flipped = bool(torch.rand(1) < 0.6)
    for step, flip in (
        (T.RandomHorizontalFlip(0.6), PIL.ImageOps.mirror),
        (T.RandomVerticalFlip(0.6), PIL.ImageOps.flip),
    ):
        assert apart(merged([step], image, seed), flip(image) if flipped else image) == 0


class TestRotation:
    @pytest.mark.parametrize("expand", [False, True])
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("size", SIZES[:2])
    def test_as_pillow_turns(self, size, seed, expand):
        image = soft(*size)
        torch.manual_seed(seed)
        angle = torch.empty(1).uniform_(-180, 269).item()
        ours = merged([T.RandomRotation((-180, 269), "bilinear", expand)], image, seed)
        assert apart(ours, image.rotate(angle, Resampling.BILINEAR, expand)) <= 1

    @pytest.mark.parametrize("expand", [False, True])
    @pytest.mark.parametrize("angle", [0, 90, 180, 270, -90, 360])
    def test_right_angles_are_exact(self, angle, expand):
        image = noise(60, 60) if not expand else noise(33, 55)
        for mode in ("nearest", "bilinear"):
            ours = merged([T.RandomRotation((angle, angle), mode, expand)], image)
            assert apart(ours, image.rotate(angle, expand=expand)) == 0

    def test_around_another_point_over_a_color(self):
        image = soft(40, 60)
        step = T.RandomRotation((30, 30), "bilinear", center=(10, 5), fill=(1, 2, 3))
        expected = image.rotate(30, Resampling.BILINEAR, center=(10, 5), fillcolor=(1, 2, 3))
        assert apart(merged([step], image), expected) <= 1
        with pytest.raises(ConfigError, match="expand=True"):
            merged([T.RandomRotation(30, expand=True, center=(1, 1))], image)


@pytest.mark.parametrize("seed", range(5))
def test_affine(seed):
    image = soft(60, 80)
    step = T.RandomAffine(40, (0.1, 0.2), (1.0, 1.5), (-10, 10, -20, 20), "bilinear")
    torch.manual_seed(seed)

    def uniform(low, high):
        return torch.empty(1).uniform_(low, high).item()

    turn = math.radians(uniform(-40, 40))
    right, down = round(uniform(-8, 8)), round(uniform(-12, 12))
    factor = uniform(1.0, 1.5)
    across, along = math.radians(uniform(-10, 10)), math.radians(uniform(-20, 20))
    # The formula of torchvision's documentation: RSS(a, s, (sx, sy)).
    changed = factor * np.array(
        [
            [
                math.cos(turn - along) / math.cos(along),
                -math.cos(turn - along) * math.tan(across) / math.cos(along) - math.sin(turn),
            ],
            [
                math.sin(turn - along) / math.cos(along),
                -math.sin(turn - along) * math.tan(across) / math.cos(along) + math.cos(turn),
            ],
        ]
    )
    back = np.linalg.inv(changed)
    offset = np.array([40, 30]) - back @ np.array([40 + right, 30 + down])
    data = (*back[0], offset[0], *back[1], offset[1])
    expected = image.transform((80, 60), PIL.Image.Transform.AFFINE, data, Resampling.BILINEAR)
    assert apart(merged([step], image, seed), expected, common=True) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_perspective(seed):
    image = soft(133, 128)
    torch.manual_seed(seed)
    if torch.rand(1) >= 0.9:
        corners = None
    else:
        draw = [
            *((0, 33), (0, 34)),
            *((128 - 33, 128), (0, 34)),
            *((128 - 33, 128), (133 - 34, 133)),
            *((0, 33), (133 - 34, 133)),
        ]
        drawn = [torch.randint(*each, (1,)).item() for each in draw]
        corners = list(zip(drawn[::2], drawn[1::2], strict=True))
    ours = merged([T.RandomPerspective(p=0.9)], image, seed)
    if corners is None:
        assert apart(ours, image) == 0
        return
    start = [(0, 0), (127, 0), (127, 132), (0, 132)]
    data = tuple(homography(corners, start).flatten()[:8].tolist())
    expected = image.transform((128, 133), PIL.Image.Transform.PERSPECTIVE, data, 2)
    assert apart(ours, expected, common=True) <= 4


def test_a_line_has_no_perspective():
    image = noise(1, 30)
    assert apart(merged([T.RandomPerspective(0.9, 1.0)], image), image) == 0


class TestMerging:
    def test_one_after_the_other_is_the_same(self):
        image = soft(133, 128)
        ours = merged(
            [
                T.RandomRotation((20, 20), "bilinear"),
                T.Resize((200, 180)),
                T.RandomHorizontalFlip(1.0),
                T.CenterCrop((90, 80)),
            ],
            image,
        )
        turned = image.rotate(20, Resampling.BILINEAR).resize((180, 200), 2)
        expected = PIL.ImageOps.mirror(turned).crop((50, 55, 130, 145))
        assert apart(ours, expected) <= 2

    def test_turning_and_cutting_with_one_seed(self):
        image = soft(133, 128)
        ours = merged([T.RandomRotation((45, 269), "bilinear"), T.RandomCrop(70)], image, 1)
        torch.manual_seed(1)
        angle = torch.empty(1).uniform_(45, 269).item()
        top, left = (torch.randint(0, size - 70 + 1, (1,)).item() for size in (133, 128))
        turned = image.rotate(angle, Resampling.BILINEAR)
        assert apart(ours, turned.crop((left, top, left + 70, top + 70))) <= 1

    def test_what_a_step_cuts_off_and_another_brings_back_is_there(self):
        image = noise(40, 40)
        steps = [T.CenterCrop(10), T.CenterCrop(40)]
        assert apart(merged(steps, image), image) == 0

    def test_many_turns_blur_once(self):
        image = noise(60, 60)
        ours = merged([T.RandomRotation((30, 30), "bilinear")] * 12, image)
        assert apart(ours, image) <= 1
        pillows = image
        for _ in range(12):
            pillows = pillows.rotate(30, Resampling.BILINEAR)
        assert apart(pillows, image) > 50

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(8, 60), st.integers(8, 60))
    def test_points_go_where_their_pixels_go(self, seed, height, width):
        x, y = seed % width, seed // 7 % height
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        pixels[y, x] = 255
        steps = [
            T.RandomHorizontalFlip(),
            T.RandomVerticalFlip(),
            T.RandomCrop(70, pad_if_needed=True),
            T.Resize((140, 210), interpolation="nearest"),
        ]
        torch.manual_seed(seed)
        matrix, size, _ = MergeTransform(steps).merged(height, width)
        image = merged(steps, PIL.Image.fromarray(pixels), seed)
        assert size == (140, 210) == image.size[::-1]
        at = matrix @ np.array([x + 0.5, y + 0.5, 1.0])
        column, row = (at[:2] / at[2]).astype(int)
        if 0 <= column < 210 and 0 <= row < 140:
            assert image.getpixel((int(column), int(row))) == (255, 255, 255)

    def test_it_is_a_module_that_pickles(self):
        transform = MergeTransform([T.RandomRotation(30), T.RandomCrop(10)])
        assert isinstance(transform, torch.nn.Module)
        again = pickle.loads(pickle.dumps(transform))
        image = noise(40, 40)
        torch.manual_seed(4)
        first = transform(image)
        torch.manual_seed(4)
        assert apart(again(image), first) == 0

    def test_without_steps_nothing_changes(self):
        assert apart(merged([], noise(20, 30)), noise(20, 30)) == 0


STEPS = {
    "nearest": [T.RandomRotation((33, 33), fill=5), T.RandomCrop(20, fill=5)],
    "bilinear": [T.RandomRotation((33, 33), "bilinear", fill=5), T.RandomCrop(20, fill=5)],
    "bicubic": [T.RandomRotation((33, 33), "bicubic"), T.CenterCrop(20)],
    "smaller": [T.Resize((21, 17)), T.RandomHorizontalFlip(1.0)],
    "perspective": [T.RandomPerspective(0.3, 1.0), T.RandomCrop(40)],
}


class TestTensors:
    @pytest.mark.parametrize("name", STEPS)
    def test_they_are_as_images(self, name):
        image = soft(50, 61)
        theirs = merged(STEPS[name], image, 2)
        ours = merged(STEPS[name], as_tensor(image), 2)
        assert ours.dtype == torch.uint8
        assert apart(PIL.Image.fromarray(ours.permute(1, 2, 0).numpy()), theirs) <= 3

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
    def test_their_type_and_leading_dimensions_stay(self, dtype):
        image = as_tensor(soft(50, 61)).to(dtype)
        stacked = torch.stack([image, image.flip(0)])[None]
        ours = merged(STEPS["bilinear"], stacked, 2)
        assert (ours.shape, ours.dtype) == ((1, 2, 3, 20, 20), dtype)
        assert torch.equal(ours[0, 0], merged(STEPS["bilinear"], image, 2))
        assert torch.equal(ours[0, 1], ours[0, 0].flip(0))

    def test_masks_keep_their_values(self):
        mask = torch.randint(0, 2, (30, 40), generator=torch.Generator().manual_seed(0))
        turned = merged([T.RandomRotation((45, 45))], mask)
        assert turned.shape == (30, 40)
        assert set(turned.unique().tolist()) == {0, 1}
        lit = merged([T.RandomRotation((90, 90), expand=True)], mask.bool())
        assert torch.equal(lit, torch.rot90(mask.bool()))

    def test_colors(self):
        step = T.RandomRotation((45, 45), "bilinear", fill=(1.0, 2.0, 3.0))
        turned = merged([step], torch.full((3, 21, 21), 9.0))
        assert turned[:, 0, 0].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(ConfigError, match="3 values, the image 1 channels"):
            merged([step], torch.zeros(1, 9, 9))

    def test_what_is_no_image(self):
        with pytest.raises(ConfigError, match="got array"):
            merged([], np.zeros((3, 3)))
        with pytest.raises(ConfigError, match=r"got a tensor \(3,\)"):
            merged([], torch.zeros(3))


class Shift(CustomTransform):
    def __init__(self):
        pass

    def apply_transform(self, matrix, dst_size):
        return self.translate(5, 5) @ matrix, dst_size, ("Shift", (5, 5))


def test_a_step_of_ones_own():
    image = noise(40, 50)
    expected = PIL.Image.new("RGB", image.size)
    expected.paste(image, (5, 5))
    assert apart(merged([Shift()], image), expected) == 0
    both = merged([Shift(), T.RandomHorizontalFlip(1.0)], image)
    assert apart(both, PIL.ImageOps.mirror(expected)) == 0


@pytest.mark.parametrize(("bands", "fill"), [("L", 9), ("RGB", (9, 8, 7)), ("RGBA", (0,) * 4)])
def test_modes_of_pillow(bands, fill):
    turned = merged([T.RandomRotation((45, 45), "bilinear", fill=fill)], noise(20, 30, bands))
    assert turned.mode == bands
    assert turned.getpixel((0, 0)) == fill


class TestAgreement:
    def test_of_interpolation_and_fill(self):
        with pytest.raises(ConfigError, match="one interpolation, got 'nearest' and 'bilinear'"):
            MergeTransform([T.RandomRotation(3), T.Resize(5)])
        with pytest.raises(ConfigError, match="one fill, got 1 and 0"):
            MergeTransform([T.RandomRotation(3, fill=1), T.RandomCrop(5)])
        MergeTransform([T.RandomRotation(3, fill=(0, 0, 0)), T.RandomCrop(5)])

    def test_of_other_transforms(self):
        class ColorJitter:
            pass

        with pytest.raises(ConfigError, match=r"ColorJitter cannot be merged.*before or after"):
            MergeTransform([ColorJitter()])
        with pytest.raises(ConfigError, match="'lanczos' cannot be merged"):
            MergeTransform([T.Resize(3, interpolation="lanczos")])


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"


def stand_in(name: str, module: str, **attributes):
    """An object as torchvision's: of a class of this name, with the attributes as it keeps them."""
    made = type(name, (torch.nn.Module,), {"__module__": module})()
    vars(made).update(attributes)
    return made


class TestTorchvisionsNames:
    v1 = "torchvision.transforms.transforms"
    v2 = "torchvision.transforms.v2._geometry"

    def test_attributes_as_torchvision_keeps_them(self):
        image = noise(60, 50)
        bilinear = InterpolationMode.BILINEAR
        theirs = [
            stand_in("Resize", self.v1, size=40, interpolation=bilinear, max_size=None),
            stand_in("RandomHorizontalFlip", self.v1, p=1.0),
            stand_in(
                "RandomRotation",
                self.v2,
                degrees=[-30.0, 30.0],
                interpolation=bilinear,
                expand=False,
                center=None,
                fill=0,
            ),
            stand_in(
                "RandomCrop",
                self.v1,
                size=(20, 30),
                padding=None,
                pad_if_needed=False,
                fill=0,
                padding_mode="constant",
            ),
        ]
        ours = [
            T.Resize(40),
            T.RandomHorizontalFlip(1.0),
            T.RandomRotation(30, "bilinear"),
            T.RandomCrop((20, 30)),
        ]
        expected = merged(ours, image, 6)
        assert apart(merged(theirs, image, 6), expected) == 0
        composed = stand_in("Compose", self.v1, transforms=theirs[1:])
        assert apart(merged([theirs[0], composed], image, 6), expected) == 0

    def test_the_newer_crop_draws_only_where_there_is_a_choice(self):
        values = {"size": (20, 30), "padding": None, "pad_if_needed": False, "fill": 0}
        torch.manual_seed(0)
        first = torch.randint(0, 41, (1,)).item()
        torch.manual_seed(0)
        torch.randint(0, 1, (1,))
        second = torch.randint(0, 41, (1,)).item()
        assert first != second
        for module, left in ((self.v1, second), (self.v2, first)):
            torch.manual_seed(0)
            drawn = MergeTransform([stand_in("RandomCrop", module, **values)]).merged(20, 70)[2]
            assert drawn == [("RandomCrop", (left, 0, 20, 30))]

    def test_the_newer_crop_keeps_left_right_top_and_bottom(self):
        values = {"size": (5, 5), "pad_if_needed": False, "fill": 0, "padding": [1, 2, 3, 4]}
        image = noise(20, 30)
        theirs = merged([stand_in("RandomCrop", self.v2, **values)], image, 8)
        ours = merged([T.RandomCrop(5, padding=(1, 3, 2, 4))], image, 8)
        assert apart(theirs, ours) == 0

    def test_a_color_for_each_type(self):
        step = stand_in("RandomRotation", self.v2, degrees=[0, 1], fill={"image": 1})
        with pytest.raises(ConfigError, match="a value for each type"):
            MergeTransform([step])

    def test_classes_that_extend_them(self):
        class MyFlip(T.RandomHorizontalFlip):
            pass

        image = noise(10, 20)
        assert apart(merged([MyFlip(1.0)], image), PIL.ImageOps.mirror(image)) == 0
