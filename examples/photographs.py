"""Makes three small prepared folders from photographs that come with installed
packages.

Shards are written and prepared with energize, as your own data would be. Run it with
`python -m examples.photographs --data demo-data`; folders that are complete stay as
they are.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from rich.console import Console

from energize import DatasetError, WebdatasetSource, prepare, write_shards
from energize.errors import PrepareError
from energize.nodes import ReadContext
from examples.command_line import ExampleError, data_parser, run

PHOTOGRAPHS = {
    "an astronaut": ("skimage", "data/astronaut.png"),
    "a cat": ("skimage", "data/chelsea.png"),
    "a cup of coffee": ("skimage", "data/coffee.png"),
    "a rocket": ("skimage", "data/rocket.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "a motorcycle": ("skimage", "data/motorcycle_left.png"),
    "a temple": ("sklearn", "datasets/images/china.jpg"),
    "a flower": ("sklearn", "datasets/images/flower.jpg"),
}
"""What is seen: the package that the photograph comes with, and its file there."""

ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "centre", "right")

SHARDS = 8
SPLIT = {"train": 6, "val": 2}

_NOTE = "README.txt"
_PIXELS = (80, 112)
"""The crops are stored with so many pixels a side."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One folder to make; `caption` has places for `what` is seen, and `row` and
    `column` of the crop; without one, the samples have a class.
    """

    name: str
    samples: int
    part: Literal["jpg", "png"]
    caption: str | None = None

    @property
    def contents(self) -> str:
        """What is in the folder, for people."""
        kind = "a class" if self.caption is None else "a caption"
        return (
            f"{self.samples} {'JPEG' if self.part == 'jpg' else 'PNG'} crops with "
            f"{kind}"
        )


RECIPES = (
    Recipe("classification", 800, "jpg"),
    Recipe("captions_a", 640, "jpg", "{what}, seen at the {row} {column}"),
    Recipe("captions_b", 480, "png", "the {row} {column} of a photograph of {what}"),
)


def make_photographs(data: Path, console: Console) -> None:
    """The three prepared folders in `data`, made where they are missing or
    incomplete.
    """
    data.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        folder = data / recipe.name
        made = not _complete(folder, recipe)
        if made:
            _make(folder, recipe)
        state = "made" if made else "already there"
        console.print(
            f"  {folder}: {recipe.contents}, {state}", soft_wrap=True, markup=False
        )


def _complete(folder: Path, recipe: Recipe) -> bool:
    """Whether every sample is there and can be read."""
    failed: list[object] = []
    read = 0
    try:
        for split_part in SPLIT:
            source = WebdatasetSource(folder, split_part=split_part)
            read += sum(
                1 for _ in source.open(reading=ReadContext.reporting(failed.append))
            )
    except DatasetError:
        return False
    return read == recipe.samples and not failed


def _make(folder: Path, recipe: Recipe) -> None:
    """Written beside its place and moved there when it is whole, so an abort leaves no
    half.
    """
    if folder.exists():
        if not (folder / _NOTE).exists():
            raise ExampleError(
                f"{folder} is there, but was not made by these examples. Give another "
                "folder with --data, or move it out of the way"
            )
        shutil.rmtree(folder)
    for left_by_a_killed_run in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left_by_a_killed_run)
    try:
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}-"
        ) as beside:
            whole = Path(beside) / folder.name
            _write_shards(whole, recipe)
            prepare(whole, split_ratios=SPLIT, workers=1, **_sample_type(recipe))
            whole.rename(folder)
    except (OSError, PrepareError) as error:
        raise ExampleError(
            f"{folder} cannot be written: {error}. The three folders need 20 MB; make "
            "room, or give another folder with --data"
        ) from error


def _sample_type(recipe: Recipe) -> dict[str, Any]:
    """The type of the samples, and the part that each of its fields comes from."""
    if recipe.caption is None:
        fields = {"image": recipe.part, "label": "cls"}
        return {"sample_type": "ImageClassificationSample", "field_map": fields}
    fields = {"image": recipe.part, "caption": "txt"}
    return {"sample_type": "CaptioningSample", "field_map": fields}


def _write_shards(folder: Path, recipe: Recipe) -> None:
    per_shard = recipe.samples // SHARDS
    write_shards(
        _samples(recipe), folder, samples_per_shard=per_shard, pattern="shard-%03d.tar"
    )
    files = "\n".join(f"{package}/{file}" for package, file in PHOTOGRAPHS.values())
    (folder / _NOTE).write_text(
        f"{recipe.contents}, made by the examples of energize.\n"
        "The photographs come with scikit-image and scikit-learn, which say who took "
        f"them:\n{files}\n"
    )


def _samples(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """Raw samples, the same in every run."""
    random = np.random.default_rng(zlib.crc32(recipe.name.encode()))
    photographs = {what: photograph(*where) for what, where in PHOTOGRAPHS.items()}
    names = list(photographs)
    for number in range(recipe.samples):
        label = int(random.integers(len(names)))
        crop, row, column = _random_crop(photographs[names[label]], random)
        sample: dict[str, Any] = {
            "__key__": f"{number:06d}",
            recipe.part: _encoded(crop, recipe),
        }
        if recipe.caption is None:
            sample["cls"] = label
        else:
            sample["txt"] = recipe.caption.format(
                what=names[label], row=row, column=column
            )
        yield sample


def _random_crop(
    photograph: Image.Image, random: np.random.Generator
) -> tuple[Image.Image, str, str]:
    """A part of the photograph, and in which row and column of it the part lies."""
    side = int(min(photograph.size) * random.uniform(0.3, 0.6))
    left = int(random.integers(photograph.width - side + 1))
    top = int(random.integers(photograph.height - side + 1))
    size = int(random.integers(_PIXELS[0], _PIXELS[1] + 1))
    crop = photograph.crop((left, top, left + side, top + side)).resize((size, size))
    row = ROWS[(top + side // 2) * 3 // photograph.height]
    column = COLUMNS[(left + side // 2) * 3 // photograph.width]
    return crop, row, column


def _encoded(crop: Image.Image, recipe: Recipe) -> bytes:
    with io.BytesIO() as stream:
        crop.save(stream, format="JPEG" if recipe.part == "jpg" else "PNG")
        return stream.getvalue()


def photograph(package: str, file: str) -> Image.Image:
    """The RGB photograph in `file` of an installed package; `ExampleError` when it is
    not there.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise ExampleError(
            f"the photographs come with the package {package!r}, which is not "
            "installed; install it with `pip install scikit-image scikit-learn`"
        )
    path = Path(found.origin).parent / file
    if not path.exists():
        raise ExampleError(
            f"{path} is missing: this release of {package} comes without that "
            "photograph; install the releases in constraints/tested.txt"
        )
    with Image.open(path) as image:
        return image.convert("RGB")


def main() -> bool:
    """Make the folders."""
    options = data_parser("Make three prepared folders from photographs.").parse_args()
    make_photographs(options.data, Console())
    return True


if __name__ == "__main__":
    run(main)
