"""Generate docs/your-data.md: common layouts of data and the field map of each.

Each row is a layout of these tests, so the page shows only what is tested.
`python -m tests.layouts.page` writes the page.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import tests.layouts.known
import tests.layouts.more  # noqa: F401
from energize import infer
from energize.errors import EnergizeError
from tests.layouts.base import LAYOUTS, Layout, instance

PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"
HEAD = Path(__file__).with_name("head.md")
COUNT = "{layouts}"

READ = {
    "imagefolder_csv": "ImageFolder of Hugging Face: `train` and `test`",
    "kohya_txt": "a `.txt` beside each image",
    "img2dataset_tars": "img2dataset, `webdataset`",
    "coco_captions": "COCO captions",
    "flickr8k": "Flickr8k",
    "jsonl_and_images": "a `.jsonl` per split part, one folder of images",
    "jsonl_data_uri": "images as `data:` URLs",
    "parquet_struct": "Parquet with images as bytes",
    "hf_saved_images": "a saved `DatasetDict`",
    "wds_json": "tars, captions in JSON",
    "mds_split_folders": "MDS of MosaicML Streaming",
    "videos_with_texts": "a `.txt` beside each video",
    "torchvision_flat": "a folder per class",
    "kaggle_labels_csv": "Kaggle: `labels.csv` of id and class",
    "mnist_hub": "Parquet of the Hub with class names",
    "wds_cls": "tars of `jpg` and `cls`",
    "images_alone": "images alone",
    "llava_mix": "LLaVA",
    "openai_messages": "OpenAI messages, text",
    "openai_data_uri": "OpenAI messages, images in pieces",
    "llama_factory_messages": "LLaMA-Factory",
    "qwen_video": "Qwen-VL with videos",
    "alpaca": "Alpaca",
    "prompt_response": "prompt and response about an image",
    "tools_openai": "tool calls",
    "vqav2_json": "VQA v2 as downloaded",
    "textvqa_json": "TextVQA",
    "scienceqa": "ScienceQA of the Hub",
    "mmpr": "MMPR: chosen and rejected answers",
    "obelics_bytes": "OBELICS with images",
    "mmc4": "MMC4",
    "text_jsonl": "C4",
    "yolo_images_labels": "YOLO boxes",
    "pascal_voc": "Pascal VOC boxes",
}
"""Layouts that are read: the words of the page for each."""

REFUSED = {
    "two_tables": (
        "two tables for the same images",
        'Choose one: `files: ["captions.csv", "images/*"]`',
    ),
    "images_and_masks": (
        "folders that may be classes or not",
        "Write `format: classes`, or `format: images` to read images alone",
    ),
    "images_and_videos": (
        "images and videos in one folder",
        "Choose one kind: `files: ['*.jpg']`",
    ),
    "train_is_a_class": (
        "a folder `train` beside folders of classes",
        "`files: ['train/**']` for this folder, `files: ['**']` for all folders",
    ),
    "column_partition": (
        "numbers in a column that names split parts",
        'Name the parts: `split_by: {"partition": '
        '{"0": "train", "1": "val", "2": "test"}}`, or `split_by: {}`',
    ),
    "hub_configs": (
        "several configurations of one dataset",
        "Choose one: `path: en`",
    ),
    "laion_urls": (
        "addresses of images on the web",
        "Download the images first, for example with img2dataset",
    ),
    "labels_in_mat": (
        "labels in a format that is not read",
        "`format: images` reads the images alone",
    ),
    "tar_of_classes": (
        "a tar of class folders",
        "Unpack it, or write `sample_type: ImageSample`",
    ),
    "latin_csv": ("a table in another encoding than UTF-8", "Save it as UTF-8"),
}
"""Layouts that are an error: the words of the page, and the remedy."""

_SHOWN_FILES = 3


def text_of_page(folder: Path) -> str:
    """Return the page, from instances of the layouts written into a folder."""
    sections: dict[str, list[str]] = {}
    for name, words in READ.items():
        root = instance(name, folder)
        sample_type, row = row_of_reading(words, LAYOUTS[name], root)
        sections.setdefault(sample_type, []).append(row)
    text = HEAD.read_text().replace(COUNT, str(len(LAYOUTS)))
    for sample_type in sorted(sections):
        text += f"\n### {sample_type}\n\n"
        text += "| layout | files | field map |\n|---|---|---|\n"
        text += "".join(sections[sample_type])
    text += "\n## Layouts that need a line from you\n\n"
    text += "These are errors, because more than one reading is possible or a file\n"
    text += "cannot be read. The error prints the lines that you can write.\n\n"
    text += "| layout | files | remedy |\n|---|---|---|\n"
    for name, (words, remedy) in REFUSED.items():
        text += row_of_refusal(words, remedy, LAYOUTS[name], instance(name, folder))
    return text


def row_of_reading(words: str, layout: Layout, root: Path) -> tuple[str, str]:
    """Return the sample type of a layout and its row, from its first opening."""
    spec = infer(root / layout.expected[0].path)
    _, _, field_map = spec.override.partition("field_map: ")
    return spec.sample_type, row(words, files_of(root), code(field_map or "{}"))


def row_of_refusal(words: str, remedy: str, layout: Layout, root: Path) -> str:
    """Return the row of a layout that is an error whose message has the remedy."""
    with pytest.raises(EnergizeError) as error:
        infer(root / layout.expected[0].path)
    message = str(error.value).replace(f"{root}/", "")
    for line in re.findall("`(.*?)`", remedy):
        assert line in message, (words, line)
    return row(words, files_of(root), remedy)


def row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def code(text: str) -> str:
    return f"`{text}`"


def files_of(root: Path) -> str:
    """Return the first files of an instance, one of each folder and extension."""
    names = sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    )
    kinds = {
        (os.path.dirname(name), os.path.splitext(name)[1]): name
        for name in reversed(names)
    }
    shown: Sequence[str] = sorted(kinds.values())[:_SHOWN_FILES]
    return ", ".join(map(code, shown))


def main() -> None:
    """Write the page."""
    logging.getLogger("energize").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/.cache"
        PAGE.write_text(text_of_page(Path(folder)))


if __name__ == "__main__":
    main()
