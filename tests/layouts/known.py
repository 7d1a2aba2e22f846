"""Layouts of public data: shapes are those of the data that `source` names, all else is
made up."""

from __future__ import annotations

import base64
import gzip
import json
import random
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.layouts.base import (
    NOUNS,
    Opening,
    Want,
    answer,
    asked,
    caption,
    captioned,
    chat_turns,
    chatted,
    draw,
    dump,
    encoded,
    film,
    hash_of,
    hub_parquet,
    labelled,
    layout,
    lines,
    llava_turns,
    parquet,
    picture,
    pictured,
    question,
    struct,
    table,
    talked,
    tarball,
    text_of,
    write,
)

# A folder of images with a metadata file, as Hugging Face's ImageFolder reads it.

_HF = "huggingface/datasets, docs/source/image_dataset.mdx (ImageFolder)"


@layout(
    _HF,
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 3},
        samples={
            "train": (captioned(0), captioned(5)),
            "test": (captioned(10), captioned(12)),
        },
        not_splits=("val",),
    ),
    Opening(
        path="train",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(1), captioned(4))},
    ),
)
def imagefolder_csv(root: Path, rng: random.Random) -> None:
    """Write `train` and `test`, each with images and a metadata.csv."""
    for part, numbers in (("train", range(6)), ("test", range(10, 13))):
        for n in numbers:
            draw(root / part / f"{n:04d}.png", n, rng)
        rows = [(f"{n:04d}.png", caption(n)) for n in numbers]
        table(root / part / "metadata.csv", [("file_name", "text"), *rows])
    write(root / "README.md", "---\ntask_categories:\n- image-to-text\n---\n")


@layout(
    _HF,
    Opening(
        meaning="caption",
        splits={"train": 8},
        samples={"train": (captioned(0), captioned(7))},
        left_out=("aesthetic",),
    ),
)
def imagefolder_jsonl(root: Path, rng: random.Random) -> None:
    """Write images with a metadata.jsonl that has a column of scores too."""
    for n in range(8):
        draw(root / f"{n}.jpg", n, rng)
    rows = [
        {"file_name": f"{n}.jpg", "text": caption(n), "aesthetic": n / 2}
        for n in range(8)
    ]
    lines(root / "metadata.jsonl", rows)


@layout(
    _HF,
    Opening(
        meaning="caption",
        splits={"train": 7},
        samples={"train": (captioned(0), captioned(6))},
    ),
)
def imagefolder_parquet(root: Path, rng: random.Random) -> None:
    """Write images in a subfolder with a metadata.parquet above them."""
    for n in range(7):
        draw(root / "images" / f"{n}.webp", n, rng)
    rows = [{"file_name": f"images/{n}.webp", "text": caption(n)} for n in range(7)]
    parquet(root / "metadata.parquet", rows)


@layout(
    f"{_HF}: a column *_file_name",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def imagefolder_star_file_name(root: Path, rng: random.Random) -> None:
    """Write images named by a column image_file_name."""
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
    rows = [(caption(n), f"{n}.jpg") for n in range(6)]
    table(root / "metadata.csv", [("text", "image_file_name"), *rows])


@layout(
    "timbrooks/instructpix2pix-like pairs with two *_file_name columns",
    Opening(
        meaning="crude",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0), hash_of(20)), texts=("paint number 0",)),
                Want(images=(hash_of(5), hash_of(25)), texts=("paint number 5",)),
            )
        },
    ),
)
def imagefolder_edit_pairs(root: Path, rng: random.Random) -> None:
    """Write pairs of images, before and after an edit, with the words that ask for
    it."""
    for n in range(6):
        draw(root / "before" / f"{n}.png", n, rng)
        draw(root / "after" / f"{n}.png", n + 20, rng)
    rows = [
        {
            "before_file_name": f"before/{n}.png",
            "after_file_name": f"after/{n}.png",
            "edit_prompt": f"paint number {n}",
        }
        for n in range(6)
    ]
    lines(root / "metadata.jsonl", rows)


@layout(
    f"{_HF}: a column file_names of lists",
    Opening(
        meaning="crude",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0), hash_of(20)), texts=(caption(0),)),
                Want(images=(hash_of(5), hash_of(25)), texts=(caption(5),)),
            )
        },
    ),
)
def imagefolder_file_names(root: Path, rng: random.Random) -> None:
    """Write rows that name two images in a list."""
    for n in range(6):
        draw(root / f"{n}-a.png", n, rng)
        draw(root / f"{n}-b.png", n + 20, rng)
    rows = [
        {"file_names": [f"{n}-a.png", f"{n}-b.png"], "text": caption(n)}
        for n in range(6)
    ]
    lines(root / "metadata.jsonl", rows)


@layout(
    f"{_HF}: metadata in subfolders of split parts",
    Opening(
        meaning="caption",
        splits={"train": 8, "val": 4},
        samples={
            "train": (captioned(0), captioned(7)),
            "val": (captioned(10), captioned(13)),
        },
        not_splits=("test",),
    ),
)
def imagefolder_nested_metadata(root: Path, rng: random.Random) -> None:
    """Write a metadata.csv in each of two folders of each split part."""
    parts = {
        "train/a": (0, 4),
        "train/b": (4, 8),
        "validation/a": (10, 12),
        "validation/b": (12, 14),
    }
    for folder, (start, stop) in parts.items():
        for n in range(start, stop):
            draw(root / folder / f"{n}.jpg", n, rng)
        rows = [(f"{n}.jpg", caption(n)) for n in range(start, stop)]
        table(root / folder / "metadata.csv", [("file_name", "text"), *rows])


@layout(
    "datasets-examples/doc-image-5: train/ with images, metadata.jsonl above it",
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 3},
        samples={"train": (captioned(0), captioned(5)), "test": (captioned(10),)},
        may_refuse="a table above the split parts may be asked to be moved",
        holds=("metadata.jsonl",),
    ),
)
def imagefolder_metadata_above_splits(root: Path, rng: random.Random) -> None:
    """Write one metadata.jsonl at the root for the images of `train` and `test`."""
    rows = []
    for part, numbers in (("train", range(6)), ("test", range(10, 13))):
        for n in numbers:
            draw(root / part / f"{n}.jpg", n, rng)
            rows.append({"file_name": f"{part}/{n}.jpg", "text": caption(n)})
    lines(root / "metadata.jsonl", rows)


@layout(
    f"{_HF}: folders of classes and a metadata file, which wins",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def imagefolder_classes_and_metadata(root: Path, rng: random.Random) -> None:
    """Write images in folders of two classes, with captions in one metadata.csv above
    them."""
    rows: list[tuple[str, str]] = [("file_name", "text")]
    for n in range(6):
        name = f"{('ants', 'bees')[n % 2]}/{n}.jpg"
        draw(root / name, n, rng)
        rows.append((name, caption(n)))
    table(root / "metadata.csv", rows)


@layout(
    "metadata.csv with a column `split`, as many Kaggle sets have it",
    Opening(
        meaning="caption",
        splits={"train": 6, "val": 2, "test": 2},
        samples={"train": (captioned(0), captioned(5)), "test": (captioned(8),)},
        may_refuse="split parts in a column may be asked for",
    ),
)
def imagefolder_split_column(root: Path, rng: random.Random) -> None:
    """Write rows whose split part stands in a column."""
    for n in range(10):
        draw(root / f"{n}.jpg", n, rng)
    parts = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [(f"{n}.jpg", caption(n), parts[n]) for n in range(10)]
    table(root / "metadata.csv", [("file_name", "text", "split"), *rows])


# Folders of classes.


@layout(
    "torchvision.datasets.ImageFolder",
    Opening(
        meaning="classification",
        splits={"train": 9},
        samples={"train": (labelled(0, "cat", 0), labelled(8, "newt", 2))},
        not_splits=("val", "test"),
    ),
)
def torchvision_flat(root: Path, rng: random.Random) -> None:
    """Write a folder for each of three classes."""
    for n in range(9):
        draw(root / ("cat", "dog", "newt")[n // 3] / f"{n}.png", n, rng)


@layout(
    "Kaggle dog-breed-identification: labels.csv of id and breed, images named by id",
    Opening(
        meaning="classification",
        splits={"train": 6, "test": 3},
        samples={
            "train": (labelled(0, "beagle"), labelled(5, "collie")),
            "test": (pictured(10),),
        },
        may_refuse="a table of labels may be asked for",
        holds=("labels.csv",),
    ),
)
def kaggle_labels_csv(root: Path, rng: random.Random) -> None:
    """Write images for training with a table of their classes, and images for a test
    without."""
    rows: list[tuple[str, str]] = [("id", "breed")]
    for n in range(6):
        draw(root / "train" / f"{n:08x}.jpg", n, rng)
        rows.append((f"{n:08x}", ("beagle", "collie")[n // 3]))
    for n in range(10, 13):
        draw(root / "test" / f"{n:08x}.jpg", n, rng)
    table(root / "labels.csv", rows)


@layout(
    "torchvision.datasets.ImageFolder with files that no image library opens by default",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "normal"), labelled(5, "tumour"))},
        left_out=("dcm",),
    ),
)
def class_folders_with_dicom(root: Path, rng: random.Random) -> None:
    """Write folders of classes in which some files are DICOM."""
    for n in range(6):
        draw(root / ("normal", "tumour")[n // 3] / f"{n}.png", n, rng)
    for n in range(4):
        path = root / ("normal", "tumour")[n // 2] / f"scan{n}.dcm"
        path.write_bytes(b"\0" * 128 + b"DICM" + bytes(40))


@layout(
    "folders that passed through Synology, macOS, Windows and Jupyter",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "cat", 0), labelled(5, "dog", 1))},
    ),
)
def system_files(root: Path, rng: random.Random) -> None:
    """Write folders of classes with thumbnails and forks that systems leave there."""
    for n in range(6):
        draw(root / ("cat", "dog")[n // 3] / f"{n}.jpg", n, rng)
    for n in range(3):
        thumb = draw(root / "cat" / "@eaDir" / f"{n}.jpg" / "t.jpg", n + 40, rng)
        thumb.rename(thumb.with_name("SYNOPHOTO_THUMB_S.jpg"))
        write(root / "__MACOSX" / "cat" / f"._{n}.jpg", "\0\5\x16\7\0\2\0\0Mac OS X")
        write(root / "dog" / f"._{n + 3}.jpg", "\0\5\x16\7\0\2\0\0Mac OS X")
    draw(root / ".ipynb_checkpoints" / "0-checkpoint.jpg", 50, rng)
    draw(root / "dog" / ".ipynb_checkpoints" / "3-checkpoint.jpg", 51, rng)
    for name in (".DS_Store", "cat/.DS_Store", "Thumbs.db", "dog/desktop.ini"):
        write(root / name, "system")


# Texts and other files beside images.


@layout(
    "kohya-ss/sd-scripts: folders of repeats, a .txt beside each image",
    Opening(
        path="img",
        meaning="caption",
        splits={"train": 8},
        samples={"train": (captioned(0), captioned(7))},
        left_out=("10_|repeat|5_",),
    ),
)
def kohya_txt(root: Path, rng: random.Random) -> None:
    """Write img/10_dog and img/5_cat with captions as .txt."""
    for n in range(8):
        path = root / "img" / ("10_sks dog", "5_cat")[n // 4] / f"{n}.png"
        draw(path, n, rng)
        write(path.with_suffix(".txt"), caption(n))


@layout(
    "kohya-ss/sd-scripts: --caption_extension .caption",
    Opening(
        path="img",
        meaning="caption",
        splits={"train": 8},
        samples={"train": (captioned(0), captioned(7))},
        may_refuse="files .caption are not known",
        holds=(".caption",),
    ),
)
def kohya_caption(root: Path, rng: random.Random) -> None:
    """Write img/10_dog and img/5_cat with captions as .caption."""
    for n in range(8):
        path = root / "img" / ("10_sks dog", "5_cat")[n // 4] / f"{n}.png"
        draw(path, n, rng)
        write(path.with_suffix(".caption"), caption(n))


@layout(
    "poloclub/diffusiondb: images/part-000001 with a JSON of prompts by name",
    Opening(
        meaning="caption",
        splits={"train": 8},
        samples={"train": (captioned(0), captioned(7))},
        may_refuse="a JSON by name may be asked about",
        holds=("part-000001.json",),
    ),
)
def diffusiondb(root: Path, rng: random.Random) -> None:
    """Write two parts, each a folder of images and a JSON of {name: {p, se, c, st,
    sa}}."""
    for part in (1, 2):
        folder, rows = root / "images" / f"part-{part:06d}", {}
        for n in range(4 * part - 4, 4 * part):
            name = f"{n:08x}-0000-4000-8000-000000000000.png"
            draw(folder / name, n, rng)
            rows[name] = {
                "p": caption(n),
                "se": 7 * n,
                "c": 7.0,
                "st": 50,
                "sa": "k_lms",
            }
        dump(folder / f"part-{part:06d}.json", rows)


@layout(
    "img2dataset --output_format files",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        left_out=("00000.parquet|parquet",),
    ),
)
def img2dataset_files(root: Path, rng: random.Random) -> None:
    """Write a folder of images with .txt and .json, and a Parquet file and statistics
    beside it."""
    for shard in (0, 1):
        rows = []
        for n in range(3 * shard, 3 * shard + 3):
            key = f"{shard:05d}{n:04d}"
            draw(root / f"{shard:05d}" / f"{key}.jpg", n, rng)
            write(root / f"{shard:05d}" / f"{key}.txt", caption(n))
            row = {"url": f"http://a.example/{n}", "caption": caption(n), "key": key}
            row |= {
                "status": "success",
                "error_message": None,
                "width": 16,
                "height": 16,
            }
            dump(root / f"{shard:05d}" / f"{key}.json", row)
            rows.append(row)
        rows.append(
            {**rows[-1], "key": f"{shard:05d}9999", "status": "failed_to_download"}
        )
        parquet(root / f"{shard:05d}.parquet", rows)
        dump(
            root / f"{shard:05d}_stats.json",
            {"count": 4, "successes": 3, "failed_to_download": 1},
        )


# COCO, YOLO, VOC: boxes.


def coco(root: Path, rng: random.Random, part: str, numbers: range) -> dict[str, Any]:
    """Write images of a part of COCO, and return what all its annotation files begin
    with."""
    images = []
    for n in numbers:
        draw(root / part / f"{n:012d}.jpg", n, rng, (24, 16))
        images.append(
            {"id": n, "file_name": f"{n:012d}.jpg", "width": 24, "height": 16}
        )
    return {
        "info": {"year": 2017},
        "licenses": [{"id": 1, "name": "CC"}],
        "images": images,
    }


def coco_captions_of(numbers: range) -> list[dict[str, Any]]:
    """Return two captions for each image."""
    rows = [{"image_id": n, "id": 10 * n, "caption": caption(n)} for n in numbers]
    return rows + [
        {**row, "id": row["id"] + 1, "caption": f"{row['caption']}, too"}
        for row in rows
    ]


def coco_boxes_of(numbers: range, **more: Any) -> list[dict[str, Any]]:
    """Return a box for each image."""
    return [
        {
            "id": n,
            "image_id": n,
            "category_id": 17 + n % 2,
            "bbox": [1.5, 2.5, 5.0 + n, 6.0],
            "area": 30.0,
            "iscrowd": 0,
            "segmentation": [[1.5, 2.5, 6.5, 2.5, 6.5, 8.5]],
        }
        | more
        for n in numbers
    ]


_CATEGORIES = [
    {"id": 17, "name": "cat", "supercategory": "animal"},
    {"id": 18, "name": "dog", "supercategory": "animal"},
]
_COCO_PARTS = (("train2017", range(6)), ("val2017", range(10, 13)))
_ASK_COCO = "a folder annotations has to be joined with images, which may be asked for"


@layout(
    "COCO 2017: annotations/captions_*.json beside train2017 and val2017",
    Opening(
        meaning="caption",
        splits={"train": (6, 12), "val": (3, 6)},
        samples={"train": (captioned(0), captioned(5)), "val": (captioned(10),)},
        may_refuse=_ASK_COCO,
        holds=("captions_train2017.json",),
    ),
)
def coco_captions(root: Path, rng: random.Random) -> None:
    """Write images and two captions for each."""
    for part, numbers in _COCO_PARTS:
        head = coco(root, rng, part, numbers)
        head["annotations"] = coco_captions_of(numbers)
        dump(root / "annotations" / f"captions_{part}.json", head)


def boxed(number: int, label: str = "") -> Want:
    """Return what a sample of an image with the box of `coco_boxes_of` has."""
    return Want(images=(hash_of(number),), boxes=((1.5, 2.5, 5.0 + number, 6.0),))


@layout(
    "COCO 2017 as it is downloaded: captions, instances and keypoints of the same images",
    Opening(
        refuse="there are several annotations of the same images, of several types"
    ),
)
def coco_all(root: Path, rng: random.Random) -> None:
    """Write images with three files of annotations for each part."""
    for part, numbers in _COCO_PARTS:
        head = coco(root, rng, part, numbers)
        folder = root / "annotations"
        dump(
            folder / f"captions_{part}.json",
            head | {"annotations": coco_captions_of(numbers)},
        )
        head["categories"] = _CATEGORIES
        dump(
            folder / f"instances_{part}.json",
            head | {"annotations": coco_boxes_of(numbers)},
        )
        points = coco_boxes_of(numbers, keypoints=[3, 4, 2], num_keypoints=1)
        dump(folder / f"person_keypoints_{part}.json", head | {"annotations": points})


@layout(
    "Roboflow export 'COCO JSON': _annotations.coco.json in each split part",
    Opening(
        meaning="detection",
        splits={"train": 6, "val": 3},
        samples={"train": (boxed(0), boxed(5)), "val": (boxed(10),)},
        may_refuse=_ASK_COCO,
        holds=("_annotations.coco.json",),
    ),
)
def coco_roboflow(root: Path, rng: random.Random) -> None:
    """Write train and valid, each with images and one JSON."""
    for part, numbers in (("train", range(6)), ("valid", range(10, 13))):
        head = coco(root, rng, part, numbers) | {"categories": _CATEGORIES}
        head["annotations"] = coco_boxes_of(numbers)
        dump(root / part / "_annotations.coco.json", head)


def yolo_line(number: int) -> str:
    """Return the class and the box of an image of this number as YOLO writes it."""
    return f"{number % 2} 0.5 0.25 {0.1 + number / 100:.2f} 0.3\n"


def yolo_boxed(number: int) -> Want:
    """Return what a sample of an image with that box has."""
    return Want(
        images=(hash_of(number),), boxes=((0.5, 0.25, 0.1 + number / 100, 0.3),)
    )


_YOLO = "train: {0}\nval: {1}\nnc: 2\nnames: ['cat', 'dog']\n"
_ASK_YOLO = "labels of YOLO may be asked about"


@layout(
    "ultralytics coco8: images/train, labels/train, data.yaml",
    Opening(
        meaning="detection",
        splits={"train": 6, "val": 3},
        samples={"train": (yolo_boxed(0), yolo_boxed(5)), "val": (yolo_boxed(10),)},
        may_refuse=_ASK_YOLO,
        holds=("labels/train",),
    ),
)
def yolo_images_labels(root: Path, rng: random.Random) -> None:
    """Write images and labels in two trees of the same names; an image of none has no
    label."""
    for part, numbers in (("train", range(6)), ("val", range(10, 13))):
        for n in numbers:
            draw(root / "images" / part / f"{n:06d}.jpg", n, rng)
            write(root / "labels" / part / f"{n:06d}.txt", yolo_line(n))
    write(root / "data.yaml", _YOLO.format("images/train", "images/val"))


@layout(
    "Roboflow export 'YOLOv8': train/images, train/labels, data.yaml",
    Opening(
        meaning="detection",
        splits={"train": 6, "val": 3},
        samples={"train": (yolo_boxed(0), yolo_boxed(5)), "val": (yolo_boxed(10),)},
        may_refuse=_ASK_YOLO,
        holds=("labels",),
    ),
)
def yolo_roboflow(root: Path, rng: random.Random) -> None:
    """Write images and labels in each split part."""
    for part, numbers in (("train", range(6)), ("valid", range(10, 13))):
        for n in numbers:
            draw(root / part / "images" / f"{n}_jpg.rf.0a1b.jpg", n, rng)
            write(root / part / "labels" / f"{n}_jpg.rf.0a1b.txt", yolo_line(n))
    write(root / "data.yaml", _YOLO.format("../train/images", "../valid/images"))


@layout(
    "darknet and CVAT export 'YOLO 1.1': obj_train_data, a label .txt beside each image",
    Opening(
        meaning="detection",
        splits={"train": 6},
        samples={"train": (yolo_boxed(0), yolo_boxed(5))},
        may_refuse=_ASK_YOLO,
    ),
)
def yolo_beside(root: Path, rng: random.Random) -> None:
    """Write labels of YOLO right beside the images, where others have captions."""
    names = []
    for n in range(6):
        draw(root / "obj_train_data" / f"{n}.jpg", n, rng)
        write(root / "obj_train_data" / f"{n}.txt", yolo_line(n))
        names.append(f"data/obj_train_data/{n}.jpg\n")
    write(root / "train.txt", "".join(names))
    write(root / "obj.names", "cat\ndog\n")
    write(
        root / "obj.data",
        "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n",
    )


# Tables of captions.


@layout(
    "Kaggle hsankesara/flickr-image-dataset: results.csv with `| ` between values",
    Opening(
        meaning="caption",
        splits={"train": (4, 12)},
        samples={"train": (captioned(0), captioned(3))},
        may_refuse="the name of the table, or its separator, may be asked about",
        holds=("results.csv",),
    ),
)
def flickr30k_pipes(root: Path, rng: random.Random) -> None:
    """Write three captions for each image, in a table beside a folder of images."""
    rows = ["image_name| comment_number| comment\n"]
    for n in range(4):
        draw(root / "flickr30k_images" / f"{n:08d}.jpg", n, rng)
        rows += [f"{n:08d}.jpg| {i}| {caption(n)}{', again' * i}\n" for i in range(3)]
    write(root / "results.csv", "".join(rows))


@layout(
    "Google Conceptual Captions (CC3M): TSV of caption and URL, without names",
    Opening(refuse="the images are on the web"),
    Opening(path="Train_GCC-training.tsv", refuse="the images are on the web"),
)
def cc3m_tsv(root: Path, rng: random.Random) -> None:
    """Write tables of captions and URLs, for training and validation."""
    for name, start in (
        ("Train_GCC-training", 0),
        ("Validation_GCC-1.1.0-Validation", 10),
    ):
        rows = [
            (caption(n), f"http://a.example/{n}.jpg") for n in range(start, start + 6)
        ]
        table(root / f"{name}.tsv", rows, "\t")


@layout(
    "WebVid: results_2M_train.csv of videoid, contentUrl, duration, page_dir, name",
    Opening(refuse="the videos are on the web"),
)
def webvid_csv(root: Path, rng: random.Random) -> None:
    """Write tables of videos on the web and their captions."""
    names = ("videoid", "contentUrl", "duration", "page_dir", "name")
    for part, start in (("train", 0), ("val", 10)):
        rows = [
            (n, f"https://a.example/{n}.mp4", "PT00H00M09S", "0001_0050", caption(n))
            for n in range(start, start + 5)
        ]
        table(root / f"results_2M_{part}.csv", [names, *rows])


@layout(
    "open_clip --train-data: CSV of filepath and title, separated by tabs",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="a table that is not called metadata may be asked about",
        holds=("train_data.csv",),
    ),
)
def open_clip_csv(root: Path, rng: random.Random) -> None:
    """Write images and a table of their paths and titles."""
    rows: list[tuple[str, str]] = [("filepath", "title")]
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append((f"images/{n}.jpg", caption(n)))
    table(root / "train_data.csv", rows, "\t")


@layout(
    "salesforce/LAVIS: coco_karpathy_train.json with a caption, _val.json with lists of captions",
    Opening(
        path="coco_karpathy_train.json",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
    Opening(
        path="coco_karpathy_val.json",
        meaning="caption",
        also=("crude",),
        splits={"train": (3, 6)},
        samples={"train": (captioned(10), captioned(12))},
        may_refuse="lists of captions may be asked about",
    ),
)
def lavis_json(root: Path, rng: random.Random) -> None:
    """Write arrays of {image, caption, image_id}, where those for validation have
    lists."""
    for n in (*range(6), *range(10, 13)):
        draw(root / "images" / f"{n}.jpg", n, rng)
    rows = [
        {"caption": caption(n), "image": f"images/{n}.jpg", "image_id": f"coco_{n}"}
        for n in range(6)
    ]
    dump(root / "coco_karpathy_train.json", rows)
    rows = [
        {"image": f"images/{n}.jpg", "caption": [caption(n), f"{caption(n)}, too"]}
        for n in range(10, 13)
    ]
    dump(root / "coco_karpathy_val.json", rows)


# Conversations in files.


@layout(
    "liuhaotian/LLaVA-Instruct-150K: llava_v1_5_mix665k.json beside the folders of its images",
    Opening(
        path="llava_v1_5_mix665k.json",
        meaning="conversation",
        splits={"train": 8},
        samples={
            "train": (
                talked(0),
                talked(5),
                Want(turns=(("user", question(6)), ("assistant", answer(6)))),
            )
        },
    ),
    Opening(
        meaning="conversation",
        splits={"train": 8},
        samples={"train": (talked(0), talked(5), chatted(7))},
        may_refuse="a JSON beside folders of images may be asked about",
        holds=("llava_v1_5_mix665k.json",),
    ),
)
def llava_mix(root: Path, rng: random.Random) -> None:
    """Write conversations of an image each, and two without one."""
    rows = []
    for n in range(8):
        row: dict[str, Any] = {"id": f"{n:012d}"}
        if n < 6:
            name = ("coco/train2017", "vg/VG_100K")[n % 2] + f"/{n}.jpg"
            draw(root / name, n, rng)
            row["image"] = name
        row["conversations"] = llava_turns(n, "<image>\n" if n < 6 else "")
        rows.append(row)
    dump(root / "llava_v1_5_mix665k.json", rows)


@layout(
    "lmms-lab/LLaVA-OneVision-Data: Parquet of id, image, conversations, data_source",
    Opening(
        path="ai2d(internvl)",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0), talked(4), chatted(5))},
        left_out=("data_source",),
    ),
    Opening(
        refuse="there are two configurations; one has to be named",
        says=("config", "folders", "sharegpt4v(coco)"),
    ),
)
def llava_onevision_hub(root: Path, rng: random.Random) -> None:
    """Write two folders of Parquet; in one the last row has no image."""
    for folder, start in (("ai2d(internvl)", 0), ("sharegpt4v(coco)", 20)):
        rows = [
            {
                "id": f"{n}.jpg",
                "image": struct(n, rng, f"{n}.jpg") if n != 5 else None,
                "conversations": llava_turns(n, "<image>\n" if n != 5 else ""),
                "data_source": folder,
            }
            for n in range(start, start + 6)
        ]
        parquet(root / folder / "train-00000-of-00001.parquet", rows)


@layout(
    "Lin-Chen/ShareGPT4V: the placeholder ends the question",
    Opening(
        path="share-captioner_coco_lcs_sam_1246k_1107.json",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                talked(0, before="", after="\n<image>"),
                talked(5, before="", after="\n<image>"),
            )
        },
    ),
)
def sharegpt4v(root: Path, rng: random.Random) -> None:
    """Write conversations in which the image comes after the words."""
    rows = []
    for n in range(6):
        draw(root / "sam" / "images" / f"sa_{n}.jpg", n, rng)
        row = {"id": f"sa_{n}", "image": f"sam/images/sa_{n}.jpg"}
        rows.append(row | {"conversations": llava_turns(n, "", "\n<image>")})
    dump(root / "share-captioner_coco_lcs_sam_1246k_1107.json", rows)


@layout(
    "OpenAI vision fine tuning: images as data: URLs",
    Opening(
        path="train.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0), hash_of(20)),
                    turns=(
                        ("user", f"<image><image>{question(0)}"),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    images=(hash_of(5), hash_of(25)),
                    turns=(
                        ("user", f"<image><image>{question(5)}"),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
    ),
)
def openai_data_uri(root: Path, rng: random.Random) -> None:
    """Write messages whose parts hold two images each."""
    rows = []
    for n in range(6):
        parts: list[dict[str, Any]] = []
        for number in (n, n + 20):
            data = base64.b64encode(encoded(number, rng)).decode()
            url = f"data:image/jpeg;base64,{data}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        parts.append({"type": "text", "text": question(n)})
        turns = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": answer(n)},
        ]
        rows.append({"messages": turns})
    lines(root / "train.jsonl", rows)


@layout(
    "hiyouga/LLaMA-Factory: data/mllm_demo.json with messages and images, and dataset_info.json",
    Opening(
        path="mllm_demo.json",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0, before="<image>"), talked(5, before="<image>"))},
    ),
    Opening(
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0, before="<image>"), talked(5, before="<image>"))},
        may_refuse="two files of JSON are two tables",
        left_out=("dataset_info.json",),
        holds=("mllm_demo.json",),
    ),
)
def llama_factory_messages(root: Path, rng: random.Random) -> None:
    """Write messages with placeholders and a list of images, and the list of
    datasets."""
    rows = []
    for n in range(6):
        draw(root / "mllm_demo_data" / f"{n}.jpg", n, rng)
        row = {
            "messages": chat_turns(n, "<image>"),
            "images": [f"mllm_demo_data/{n}.jpg"],
        }
        rows.append(row)
    dump(root / "mllm_demo.json", rows)
    columns = {"messages": "messages", "images": "images"}
    info = {"file_name": "mllm_demo.json", "formatting": "sharegpt", "columns": columns}
    dump(root / "dataset_info.json", {"mllm_demo": info})


@layout(
    "HuggingFaceH4/llava-instruct-mix-vsft: parts of {index, text, type}, images beside",
    Opening(
        meaning="conversation",
        splits={"train": 6, "test": 3},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(("user", f"{question(0)}<image>"), ("assistant", answer(0))),
                ),
                Want(
                    images=(hash_of(5),),
                    turns=(("user", f"{question(5)}<image>"), ("assistant", answer(5))),
                ),
            )
        },
    ),
)
def llava_mix_vsft(root: Path, rng: random.Random) -> None:
    """Write Parquet with typed parts, of which those for images only say where one
    is."""
    for part, numbers in (("train", range(6)), ("test", range(10, 13))):
        rows = []
        for n in numbers:
            asking = [
                {"index": None, "text": question(n), "type": "text"},
                {"index": 0, "text": None, "type": "image"},
            ]
            replying = [{"index": None, "text": answer(n), "type": "text"}]
            turns = [
                {"content": asking, "role": "user"},
                {"content": replying, "role": "assistant"},
            ]
            rows.append({"messages": turns, "images": [struct(n, rng)]})
        parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows)


# Several images.


@layout(
    "NVlabs/EAGLE (Eagle 2): <image-1>, <image-2>, of which the second may be named first",
    Opening(
        path="pairs.jsonl",
        meaning="multi-image conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(20), hash_of(0)),
                    turns=(
                        ("user", f"Not <image> but <image>: {question(0)}"),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    images=(hash_of(25), hash_of(5)),
                    turns=(
                        ("user", f"Not <image> but <image>: {question(5)}"),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
        may_refuse="numbered placeholders may be asked about",
    ),
)
def eagle_numbered(root: Path, rng: random.Random) -> None:
    """Write rows whose placeholders have numbers."""
    rows = []
    for n in range(6):
        names = [f"image/{n}.jpg", f"image/{n + 20}.jpg"]
        for number, name in zip((n, n + 20), names, strict=True):
            draw(root / name, number, rng)
        turns = llava_turns(n, "Not <image-2> but <image-1>: ")
        rows.append({"image": names, "conversations": turns})
    lines(root / "pairs.jsonl", rows)


@layout(
    "MMMU/MMMU: image_1 to image_7, <image 1> in the question, options as a text of a list",
    Opening(
        path="Art",
        meaning="choice",
        also=("crude",),
        splits={"val": 4, "test": 2},
        not_splits=("train",),
        samples={
            "val": (
                Want(
                    images=(hash_of(0), hash_of(20)),
                    question=f"<image> and <image>: {question(0)}",
                    choices=(answer(0), answer(1)),
                    right=1,
                    texts=("Art_0",),
                ),
                Want(
                    images=(hash_of(3), hash_of(23)),
                    question=f"<image> and <image>: {question(3)}",
                    choices=(answer(3), answer(4)),
                    right=1,
                    texts=("Art_3",),
                ),
            )
        },
        may_refuse="dev and validation are two split parts, and images have numbers",
    ),
    Opening(
        refuse="there are two configurations; one has to be named",
        says=("config", "folders", "Math"),
    ),
)
def mmmu(root: Path, rng: random.Random) -> None:
    """Write two subjects with dev, validation and test."""
    sizes = (("dev", range(30, 33)), ("validation", range(4)), ("test", range(10, 12)))
    for subject in ("Art", "Math"):
        for part, numbers in sizes:
            rows = []
            for n in numbers:
                row: dict[str, Any] = {"id": f"{part}_{subject}_{n}"}
                row["question"] = f"<image 1> and <image 2>: {question(n)}"
                row |= {"options": f"['{answer(n)}', '{answer(n + 1)}']", "answer": "B"}
                row |= {
                    "image_1": struct(n, rng, "1.png"),
                    "image_2": struct(n + 20, rng, "2.png"),
                }
                row |= {f"image_{i}": None for i in range(3, 8)}
                rows.append(row)
            image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            names = ("id", "question", "options", "answer")
            kinds = [(name, pa.string()) for name in names]
            schema = pa.schema(kinds + [(f"image_{i}", image) for i in range(1, 8)])
            parquet(root / subject / f"{part}-00000-of-00001.parquet", rows, schema)


@layout(
    "OpenGVLab/InternVL: jsonl, and a meta file that names its folder of images",
    Opening(
        path="data/chat.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0), talked(5))},
        may_refuse="the folder of the images has to be said",
    ),
    Opening(path="meta.json", refuse="this is a list of datasets, and no samples"),
)
def internvl_meta(root: Path, rng: random.Random) -> None:
    """Write conversations, and a JSON of root, annotation, repeat_time and length for
    each set."""
    rows = []
    for n in range(6):
        draw(root / "data" / "pictures" / f"{n}.jpg", n, rng, (16, 16))
        row = {"id": n, "image": f"{n}.jpg", "width": 16, "height": 16}
        rows.append(row | {"conversations": llava_turns(n)})
    lines(root / "data" / "chat.jsonl", rows)
    meta = {"root": "data/pictures/", "annotation": "data/chat.jsonl", "repeat_time": 2}
    dump(root / "meta.json", {"chat": meta | {"data_augment": False, "length": 6}})


@layout(
    "QwenLM/Qwen-VL: <img> with the path in the text",
    Opening(
        path="data.json",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(
                        ("user", f"Picture 1: <image>\n{question(0)}"),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    images=(hash_of(5),),
                    turns=(
                        ("user", f"Picture 1: <image>\n{question(5)}"),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
        may_refuse="paths within texts may be asked about",
    ),
)
def qwen_vl_img(root: Path, rng: random.Random) -> None:
    """Write turns of user and assistant that name an image in their words."""
    rows = []
    for n in range(6):
        draw(root / "assets" / f"{n}.jpeg", n, rng)
        turns = [
            {
                "from": "user",
                "value": f"Picture 1: <img>assets/{n}.jpeg</img>\n{question(n)}",
            },
            {"from": "assistant", "value": answer(n)},
        ]
        rows.append({"id": f"identity_{n}", "conversations": turns})
    dump(root / "data.json", rows)


# Videos.


@layout(
    "QwenLM/Qwen2.5-VL and OpenGVLab/InternVL: `video` beside turns that say <video>",
    Opening(
        path="video.jsonl",
        meaning="video conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    videos=1,
                    turns=(
                        ("user", f"<video>\n{question(0)}"),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    videos=1,
                    turns=(
                        ("user", f"<video>\n{question(5)}"),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
    ),
)
def qwen_video(root: Path, rng: random.Random) -> None:
    """Write conversations about videos."""
    rows = []
    for n in range(6):
        film(root / "videos" / f"{n}.mp4", n)
        row = {"id": n, "video": f"videos/{n}.mp4"}
        rows.append(row | {"conversations": llava_turns(n, "<video>\n")})
    lines(root / "video.jsonl", rows)


@layout(
    "ShareGPT4Video/ShareGPT4Video: captions of parts of a video; idx -1 is that of the whole",
    Opening(
        path="sharegpt4video_40k.jsonl",
        meaning="video caption",
        also=("crude",),
        splits={"train": 6},
        samples={
            "train": (
                Want(videos=1, caption=caption(0)),
                Want(videos=1, caption=caption(5)),
            )
        },
        may_refuse="lists of captions may be asked about",
    ),
)
def sharegpt4video(root: Path, rng: random.Random) -> None:
    """Write rows of video_path, keyframe and captions."""
    rows = []
    for n in range(6):
        film(root / "panda" / f"{n}.mp4", n)
        said = [
            {"idx": "1", "content": f"part of {n}"},
            {"idx": "-1", "content": caption(n)},
        ]
        row = {
            "video_id": str(n),
            "video_path": f"panda/{n}.mp4",
            "timestamp": ["0:00", "0:01"],
        }
        row |= {
            "keyframe": [0, 3],
            "captions": said,
            "zip_folder": "panda_videos_1.zip",
        }
        rows.append(row)
    lines(root / "sharegpt4video_40k.jsonl", rows)


@layout(
    "OpenGVLab/VideoChat2-IT: QA lists of {i, q, a}",
    Opening(
        path="image/vqa/train.json",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0), talked(5))},
        may_refuse="another spelling of turns may be asked about",
    ),
)
def videochat2_qa(root: Path, rng: random.Random) -> None:
    """Write images with lists of questions and answers."""
    rows = []
    for n in range(6):
        draw(root / "image" / "vqa" / "pictures" / f"{n}.jpg", n, rng)
        qa = [{"i": "", "q": question(n), "a": answer(n)}]
        rows.append({"image": f"pictures/{n}.jpg", "QA": qa})
    dump(root / "image" / "vqa" / "train.json", rows)


@layout(
    "folders of actions, as Kinetics and UCF101 have them",
    Opening(
        meaning="classification",
        also=("crude",),
        splits={"train": 4, "val": 2},
        samples={
            "train": (Want(videos=1, label="archery"), Want(videos=1, label="juggling"))
        },
        may_refuse="there is no type for classes of videos",
    ),
)
def video_classes(root: Path, rng: random.Random) -> None:
    """Write a folder of videos for each class, in two split parts."""
    for part, numbers in (("train", range(4)), ("val", range(10, 12))):
        for n in numbers:
            film(root / part / ("archery", "juggling")[n % 2] / f"{n}.mp4", n)


# Documents of images and texts in turn.


@layout(
    "HuggingFaceM4/OBELICS: lists of URLs or null, and of texts or null",
    Opening(
        meaning="crude",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    texts=(caption(0), f"then {caption(0)}", "http://a.example/0.jpg")
                ),
                Want(
                    texts=(caption(5), f"then {caption(5)}", "http://a.example/5.jpg")
                ),
            )
        },
        may_refuse="the images are on the web",
    ),
)
def obelics_urls(root: Path, rng: random.Random) -> None:
    """Write documents whose images are on the web."""
    rows = [
        {
            "images": [None, f"http://a.example/{n}.jpg", None],
            "metadata": json.dumps([None, {"src": f"http://a.example/{n}.jpg"}, None]),
            "general_metadata": json.dumps({"url": "http://a.example"}),
            "texts": [caption(n), None, f"then {caption(n)}"],
        }
        for n in range(6)
    ]
    parquet(root / "data" / "train-00000-of-00001.parquet", rows)


def in_turn(number: int) -> Want:
    """Return what a document of text, image, text, image has."""
    sequence = (caption(number), f"#{hash_of(number)}", f"then {caption(number)}")
    return Want(
        images=(hash_of(number), hash_of(number + 20)),
        sequence=(*sequence, f"#{hash_of(number + 20)}"),
    )


@layout(
    "OBELICS with its images fetched: structs or null, and texts or null, of one length",
    Opening(
        meaning="interleaved",
        splits={"train": 6},
        samples={"train": (in_turn(0), in_turn(5))},
    ),
)
def obelics_bytes(root: Path, rng: random.Random) -> None:
    """Write documents whose images are in the file, with nulls where a text is."""
    rows = [
        {
            "images": [None, struct(n, rng), None, struct(n + 20, rng)],
            "texts": [caption(n), None, f"then {caption(n)}", None],
        }
        for n in range(6)
    ]
    parquet(root / "data" / "train-00000-of-00001.parquet", rows)


@layout(
    "OmniCorpus and MINT-1T spelling in jsonl: paths or null, texts or null",
    Opening(
        path="docs.jsonl",
        meaning="interleaved",
        splits={"train": 6},
        samples={"train": (in_turn(0), in_turn(5))},
    ),
)
def interleaved_nulls_jsonl(root: Path, rng: random.Random) -> None:
    """Write documents that name files, with nulls where a text is."""
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        draw(root / "images" / f"{n + 20}.jpg", n + 20, rng)
        images = [None, f"images/{n}.jpg", None, f"images/{n + 20}.jpg"]
        rows.append(
            {"images": images, "texts": [caption(n), None, f"then {caption(n)}", None]}
        )
    lines(root / "docs.jsonl", rows)


@layout(
    "PaddlePaddle/ERNIE (ERNIEKit): image_info and text_info with mask and no_mask",
    Opening(
        path="train.jsonl",
        meaning="conversation",
        also=("crude",),
        splits={"train": 6},
        samples={"train": (talked(0, before="<image>"), talked(5, before="<image>"))},
        may_refuse="another spelling of turns may be asked about",
    ),
)
def erniekit(root: Path, rng: random.Random) -> None:
    """Write rows of structs for images and for texts, of which one part is learned."""
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        said = [
            {"text": question(n), "tag": "mask"},
            {"text": answer(n), "tag": "no_mask"},
        ]
        image = {"matched_text_index": 0, "image_url": f"images/{n}.jpg"}
        rows.append({"image_info": [image], "text_info": said})
    lines(root / "train.jsonl", rows)


# Questions and answers.


@layout(
    "HuggingFaceM4/the_cauldron: folders of Parquet, texts of {user, assistant, source}",
    Opening(
        path="ai2d",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(
                        ("user", question(0)),
                        ("assistant", answer(0)),
                        ("user", question(1)),
                        ("assistant", answer(1)),
                    ),
                    placed=False,
                ),
                Want(
                    images=(hash_of(5),),
                    turns=(
                        ("user", question(5)),
                        ("assistant", answer(5)),
                        ("user", question(6)),
                        ("assistant", answer(6)),
                    ),
                    placed=False,
                ),
            )
        },
    ),
    Opening(
        refuse="there are two configurations; one has to be named",
        says=("config", "folders", "aokvqa"),
    ),
)
def cauldron(root: Path, rng: random.Random) -> None:
    """Write two configurations; a row has an image and two questions."""
    for name, start in (("ai2d", 0), ("aokvqa", 20)):
        rows = [
            {
                "images": [struct(n, rng)],
                "texts": [
                    {
                        "user": question(i),
                        "assistant": answer(i),
                        "source": name.upper(),
                    }
                    for i in (n, n + 1)
                ],
            }
            for n in range(start, start + 6)
        ]
        parquet(root / name / "train-00000-of-00001-2ce340398c113b79.parquet", rows)


def votes(number: int) -> list[dict[str, Any]]:
    """Return answers as VQAv2 has them."""
    said = (answer(number), answer(number), "none")
    return [
        {"answer": each, "answer_confidence": "yes", "answer_id": i + 1}
        for i, each in enumerate(said)
    ]


@layout(
    "VQA v2 as it is downloaded: questions and annotations in two JSONs, images in train2014",
    Opening(
        meaning="vqa",
        splits={"train": 6, "val": 3},
        samples={"train": (asked(0), asked(5)), "val": (asked(10),)},
        may_refuse="two files that have to be joined may be asked about",
        holds=("v2_OpenEnded_mscoco_train2014_questions.json",),
    ),
)
def vqav2_json(root: Path, rng: random.Random) -> None:
    """Write questions and annotations apart, which question_id joins."""
    for part, numbers in (("train2014", range(6)), ("val2014", range(10, 13))):
        questions, annotations = [], []
        for n in numbers:
            draw(root / part / f"COCO_{part}_{n:012d}.jpg", n, rng)
            known = {"image_id": n, "question_id": 1000 * n}
            questions.append(known | {"question": question(n)})
            said = {"multiple_choice_answer": answer(n), "answers": votes(n)}
            annotations.append(
                known | said | {"question_type": "what", "answer_type": "other"}
            )
        head = {"info": {}, "data_type": "mscoco", "data_subtype": part, "license": {}}
        name = f"v2_OpenEnded_mscoco_{part}_questions.json"
        dump(root / name, head | {"task_type": "Open-Ended", "questions": questions})
        dump(
            root / f"v2_mscoco_{part}_annotations.json",
            head | {"annotations": annotations},
        )


@layout(
    "lmms-lab/VQAv2: Parquet with answers as structs",
    Opening(
        meaning="vqa",
        splits={"val": 6, "test": 3},
        samples={"val": (asked(0), asked(5))},
        not_splits=("train",),
    ),
)
def vqav2_hub(root: Path, rng: random.Random) -> None:
    """Write validation with answers, and a test without."""
    answers = pa.list_(
        pa.struct(
            [
                ("answer", pa.string()),
                ("answer_confidence", pa.string()),
                ("answer_id", pa.int64()),
            ]
        )
    )
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = [("question_type", pa.string()), ("multiple_choice_answer", pa.string())]
    kinds += [
        ("answers", answers),
        ("image_id", pa.int64()),
        ("question_id", pa.int64()),
    ]
    schema = pa.schema([*kinds, ("question", pa.string()), ("image", image)])
    for part, numbers in (("validation", range(6)), ("test", range(10, 13))):
        known = part == "validation"
        rows = [
            {
                "question_type": "what",
                "multiple_choice_answer": answer(n) if known else None,
                "answers": votes(n) if known else None,
                "image_id": n,
                "question_id": 1000 * n,
                "question": question(n),
                "image": struct(n, rng, f"{n}.jpg"),
            }
            for n in numbers
        ]
        parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows, schema)


@layout(
    "GQA: train_balanced_questions.json is an object by question, images/<imageId>.jpg",
    Opening(
        path="train_balanced_questions.json",
        meaning="vqa",
        splits={"train": 6},
        samples={"train": (asked(0), asked(5))},
        may_refuse="an object by question may be asked about",
    ),
)
def gqa(root: Path, rng: random.Random) -> None:
    """Write questions by their number, with the number of an image."""
    rows = {}
    for n in range(6):
        draw(root / "images" / f"{2000 + n}.jpg", n, rng)
        row = {"question": question(n), "imageId": f"{2000 + n}", "answer": answer(n)}
        row |= {"isBalanced": True, "fullAnswer": f"It is {answer(n)}.", "semantic": []}
        rows[f"{n:08d}"] = row
    dump(root / "train_balanced_questions.json", rows)
    dump(root / "val_balanced_questions.json", rows)


@layout(
    "TextVQA 0.5.1: {data: [...]} with image_id, images in train_images",
    Opening(
        path="TextVQA_0.5.1_train.json",
        meaning="vqa",
        splits={"train": 6},
        samples={"train": (asked(0), asked(5))},
        may_refuse="numbers of images in place of paths may be asked about",
    ),
)
def textvqa_json(root: Path, rng: random.Random) -> None:
    """Write questions with ten answers, which name images by a number."""
    rows = []
    for n in range(6):
        draw(root / "train_images" / f"{n:016x}.jpg", n, rng)
        row = {"question": question(n), "question_id": n, "image_id": f"{n:016x}"}
        row |= {"image_classes": ["Shelf"], "image_width": 16, "image_height": 16}
        row |= {"flickr_300k_url": "http://a.example/x.jpg", "set_name": "train"}
        rows.append(
            row | {"answers": [answer(n)] * 10, "question_tokens": question(n).split()}
        )
    head = {
        "dataset_type": "train",
        "dataset_name": "textvqa",
        "dataset_version": "0.5.1",
    }
    dump(root / "TextVQA_0.5.1_train.json", head | {"data": rows})


@layout(
    "lmms-lab/DocVQA: configurations DocVQA and InfographicVQA, a test without answers",
    Opening(
        path="DocVQA",
        meaning="vqa",
        splits={"val": 6, "test": 3},
        samples={"val": (asked(0), asked(5))},
        not_splits=("train",),
    ),
    Opening(
        refuse="there are two configurations; one has to be named",
        says=("config", "folders", "InfographicVQA"),
    ),
)
def docvqa_hub(root: Path, rng: random.Random) -> None:
    """Write two configurations with validation and test."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = [("questionId", pa.string()), ("question", pa.string()), ("image", image)]
    schema = pa.schema(
        [*kinds, ("answers", pa.list_(pa.string())), ("data_split", pa.string())]
    )
    for folder in ("DocVQA", "InfographicVQA"):
        for part, numbers in (("validation", range(6)), ("test", range(10, 13))):
            rows = [
                {
                    "questionId": str(n),
                    "question": question(n),
                    "image": struct(n, rng),
                    "answers": [answer(n), answer(n).upper()]
                    if part == "validation"
                    else None,
                    "data_split": part,
                }
                for n in numbers
            ]
            parquet(root / folder / f"{part}-00000-of-00001.parquet", rows, schema)


@layout(
    "DocVQA as it is downloaded: train_v1.0.json with {data: [...]}, documents/",
    Opening(
        path="train_v1.0.json",
        meaning="vqa",
        splits={"train": 6},
        samples={"train": (asked(0), asked(5))},
    ),
)
def docvqa_json(root: Path, rng: random.Random) -> None:
    """Write questions about pages that are named by their path."""
    rows = []
    for n in range(6):
        draw(root / "documents" / f"xnbl{n:04d}_1.png", n, rng)
        row = {
            "questionId": n,
            "question": question(n),
            "docId": n,
            "data_split": "train",
        }
        row |= {"image": f"documents/xnbl{n:04d}_1.png", "answers": [answer(n)]}
        rows.append(row)
    head = {
        "dataset_name": "docvqa",
        "dataset_version": "1.0",
        "dataset_split": "train",
    }
    dump(root / "train_v1.0.json", head | {"data": rows})


@layout(
    "HuggingFaceM4/ChartQA: image, query, label as a list",
    Opening(
        meaning="vqa",
        splits={"train": 6, "val": 2, "test": 2},
        samples={"train": (asked(0), asked(5)), "test": (asked(20),)},
    ),
)
def chartqa_hub(root: Path, rng: random.Random) -> None:
    """Write questions called query with answers called label."""
    parts = (("train", range(6)), ("val", range(10, 12)), ("test", range(20, 22)))
    for part, numbers in parts:
        rows = [
            {
                "image": struct(n, rng),
                "query": question(n),
                "label": [answer(n)],
                "human_or_machine": n % 2,
            }
            for n in numbers
        ]
        features = chartqa_features()
        hub_parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows, features)


def chartqa_features() -> dict[str, Any]:
    """Return the features of ChartQA; the names of human_or_machine are no answers."""
    import datasets

    return {
        "image": datasets.Image(),
        "query": datasets.Value("string"),
        "label": datasets.Sequence(datasets.Value("string")),
        "human_or_machine": datasets.ClassLabel(names=["human", "machine"]),
    }


@layout(
    "vis-nlp/ChartQA: train/png, train/tables, train/annotations, train_human.json",
    Opening(
        meaning="vqa",
        splits={"train": (4, 8), "val": (2, 4)},
        samples={"train": (asked(0), asked(3))},
        may_refuse="several tables of one folder may be asked about",
        holds=("train_human.json", "annotations/"),
    ),
)
def chartqa_files(root: Path, rng: random.Random) -> None:
    """Write charts with their tables, and two files of questions for each split
    part."""
    for part, numbers in (("train", range(4)), ("val", range(10, 12))):
        rows = []
        for n in numbers:
            draw(root / part / "png" / f"{n}.png", n, rng)
            table(
                root / part / "tables" / f"{n}.csv", [("Year", "Share"), (2000 + n, n)]
            )
            dump(
                root / part / "annotations" / f"{n}.json",
                {"models": [], "type": "v_bar"},
            )
            rows.append(
                {"imgname": f"{n}.png", "query": question(n), "label": answer(n)}
            )
        dump(root / part / f"{part}_human.json", rows)
        more = [{**row, "query": f"{row['query']} Roughly?"} for row in rows]
        dump(root / part / f"{part}_augmented.json", more)


@layout(
    "derek-thomas/ScienceQA: some rows have no image; `answer` is a number",
    Opening(
        meaning="choice",
        also=("crude",),
        splits={"train": 6, "val": 3},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    question=question(0),
                    choices=(answer(0), answer(1), answer(2)),
                    right=1,
                ),
                Want(
                    question=question(1),
                    choices=(answer(1), answer(2), answer(3)),
                    right=2,
                ),
            )
        },
        left_out=("lecture",),
    ),
)
def scienceqa(root: Path, rng: random.Random) -> None:
    """Write questions with choices; each second one is without an image."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = [
        ("image", image),
        ("question", pa.string()),
        ("choices", pa.list_(pa.string())),
    ]
    names = ("hint", "task", "grade", "subject", "topic", "lecture", "solution")
    schema = pa.schema(
        [*kinds, ("answer", pa.int8()), *((name, pa.string()) for name in names)]
    )
    for part, numbers in (("train", range(6)), ("validation", range(10, 13))):
        rows = [
            {
                "image": struct(n, rng) if n % 2 == 0 else None,
                "question": question(n),
                "choices": [answer(n), answer(n + 1), answer(n + 2)],
                "answer": (n + 1) % 3,
                **dict.fromkeys(names, "words"),
            }
            for n in numbers
        ]
        parquet(
            root / "data" / f"{part}-00000-of-00001-1028f23e353fbe3e.parquet",
            rows,
            schema,
        )


# Preferences.

_ASK_PAIRS = "there is no type for preferences"


@layout(
    "openbmb/RLHF-V-Dataset: `text` is JSON of question, chosen, rejected",
    Opening(
        meaning="preference",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),), texts=(question(0), answer(0), "surely not 0")
                ),
                Want(
                    images=(hash_of(5),), texts=(question(5), answer(5), "surely not 5")
                ),
            )
        },
        may_refuse=_ASK_PAIRS,
    ),
)
def rlhf_v(root: Path, rng: random.Random) -> None:
    """Write Parquet whose column text is no caption, but JSON."""
    rows = []
    for n in range(6):
        said = {
            "question": question(n),
            "chosen": answer(n),
            "rejected": f"surely not {n}",
        }
        row = {"ds_name": "RLHF-V", "image": struct(n, rng), "text": json.dumps(said)}
        row |= {"origin_dataset": "LCS-558K", "origin_split": "{}", "idx": n}
        rows.append(row | {"image_path": f"llava1.5_7b_cvpr/{n}.jpg"})
    parquet(root / "RLHF-V-Dataset.parquet", rows)


@layout(
    "MMInstruction/VLFeedback: prompt, completions with ratings, img_path",
    Opening(
        path="vlfeedback_80k.jsonl",
        meaning="preference",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),), texts=(question(0), answer(0), "surely not 0")
                ),
                Want(
                    images=(hash_of(5),), texts=(question(5), answer(5), "surely not 5")
                ),
            )
        },
        may_refuse=_ASK_PAIRS,
    ),
)
def vlfeedback(root: Path, rng: random.Random) -> None:
    """Write prompts with the answers of two models and their ratings."""
    rows = []
    for n in range(6):
        draw(root / "merged_images" / f"{n}.jpg", n, rng)
        marks = [{"Helpfulness": {"Rating": str(r), "Rationale": "so"}} for r in (5, 1)]
        said = {
            "annotations": marks,
            "model": ["a", "b"],
            "response": [answer(n), f"surely not {n}"],
        }
        row = {
            "id": str(n),
            "prompt": question(n),
            "models": ["a", "b"],
            "completions": said,
        }
        rows.append(row | {"img_path": f"merged_images/{n}.jpg"})
    lines(root / "vlfeedback_80k.jsonl", rows)


@layout(
    "OpenGVLab/MMPR: jsonl of image, question, chosen, rejected",
    Opening(
        path="pairs.jsonl",
        meaning="preference",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),), texts=(question(0), answer(0), "surely not 0")
                ),
                Want(
                    images=(hash_of(5),), texts=(question(5), answer(5), "surely not 5")
                ),
            )
        },
        may_refuse=_ASK_PAIRS,
    ),
)
def mmpr(root: Path, rng: random.Random) -> None:
    """Write preferences as plain texts, with the path of an image."""
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        row = {"image": f"images/{n}.jpg", "question": f"<image>\n{question(n)}"}
        rows.append(row | {"chosen": answer(n), "rejected": f"surely not {n}"})
    lines(root / "pairs.jsonl", rows)


# Texts and instructions.


@layout(
    "tatsu-lab/stanford_alpaca: alpaca_data.json of instruction, input, output",
    Opening(
        meaning="text-chat",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    turns=(
                        ("user", f"{question(0)}\nLook at 0."),
                        ("assistant", answer(0)),
                    )
                ),
                chatted(1),
            )
        },
        may_refuse="another spelling of turns may be asked about",
    ),
)
def alpaca(root: Path, rng: random.Random) -> None:
    """Write instructions, of which each second one has an input."""
    rows = [
        {
            "instruction": question(n),
            "input": f"Look at {n}." if n % 2 == 0 else "",
            "output": answer(n),
        }
        for n in range(6)
    ]
    dump(root / "alpaca_data.json", rows)


def called(n: int) -> str:
    """The call of a tool, with its arguments as an object."""
    return f'{{"name": "look_up", "arguments": {{"shelf": {n}}}}}'


@layout(
    "OpenAI fine tuning: messages with tool_calls and answers of the role tool",
    Opening(
        path="tools.jsonl",
        meaning="text-chat",
        splits={"train": 6},
        samples={
            "train": tuple(
                Want(
                    turns=(
                        ("user", question(n)),
                        ("assistant", called(n)),
                        ("tool", f"shelf {n} seen"),
                        ("assistant", answer(n)),
                    )
                )
                for n in (0, 5)
            )
        },
    ),
)
def tools_openai(root: Path, rng: random.Random) -> None:
    """Write messages in which a tool is called."""
    rows = []
    for n in range(6):
        call = {"name": "look_up", "arguments": json.dumps({"shelf": n})}
        calls = [{"id": f"c{n}", "type": "function", "function": call}]
        turns = [
            {"role": "user", "content": question(n)},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{n}", "content": f"shelf {n} seen"},
            {"role": "assistant", "content": answer(n)},
        ]
        tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
        rows.append({"messages": turns, "tools": [tool]})
    lines(root / "tools.jsonl", rows)


@layout(
    "hiyouga/LLaMA-Factory glaive_toolcall: function_call, observation, tools as a text",
    Opening(
        path="glaive_toolcall_en_demo.json",
        meaning="text-chat",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    turns=(
                        ("user", question(0)),
                        (
                            "function_call|assistant|tool_call",
                            '{"name": "look_up", "arguments": {}}',
                        ),
                        ("observation|tool", "shelf 0 seen"),
                        ("assistant", answer(0)),
                    )
                ),
                Want(
                    turns=(
                        ("user", question(5)),
                        (
                            "function_call|assistant|tool_call",
                            '{"name": "look_up", "arguments": {}}',
                        ),
                        ("observation|tool", "shelf 5 seen"),
                        ("assistant", answer(5)),
                    )
                ),
            )
        },
    ),
)
def tools_sharegpt(root: Path, rng: random.Random) -> None:
    """Write conversations in which a tool is called, with what it can do beside
    them."""
    rows = []
    for n in range(6):
        turns = [
            {"from": "human", "value": question(n)},
            {"from": "function_call", "value": '{"name": "look_up", "arguments": {}}'},
            {"from": "observation", "value": f"shelf {n} seen"},
            {"from": "gpt", "value": answer(n)},
        ]
        rows.append({"conversations": turns, "tools": '[{"name": "look_up"}]'})
    dump(root / "glaive_toolcall_en_demo.json", rows)


@layout(
    "allenai/c4-like pretraining text: jsonl of text, timestamp, url",
    Opening(
        meaning="text",
        splits={"train": 6, "val": 3},
        samples={"train": (Want(texts=(caption(0),)), Want(texts=(caption(5),)))},
        left_out=("timestamp",),
    ),
)
def text_jsonl(root: Path, rng: random.Random) -> None:
    """Write texts for training and validation."""
    for part, numbers in (("train", range(6)), ("validation", range(10, 13))):
        rows = [
            {
                "text": caption(n),
                "timestamp": "2019-04-25T12:57:54Z",
                "url": "http://a.example",
            }
            for n in numbers
        ]
        lines(root / f"{part}-00000-of-00001.jsonl", rows)


# What Hugging Face's datasets wrote.


@layout(
    "huggingface/datasets: Dataset.save_to_disk with an image and a ClassLabel",
    Opening(
        meaning="classification",
        splits={"train": 8},
        samples={"train": (labelled(0, "cat", 0), labelled(7, "dog", 1))},
        not_splits=("val",),
    ),
)
def hf_saved(root: Path, rng: random.Random) -> None:
    """Write a saved dataset of images and classes."""
    import datasets

    images = [picture(n, rng) for n in range(8)]
    label = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"image": datasets.Image(), "label": label})
    rows = {"image": images, "label": [n % 2 for n in range(8)]}
    quietly_saved(datasets.Dataset.from_dict(rows, features=features), root)


def quietly_saved(dataset: Any, root: Path) -> None:
    """Save a dataset without a progress bar."""
    import datasets

    datasets.disable_progress_bars()
    dataset.save_to_disk(str(root))


@layout(
    "HuggingFaceH4/ultrachat_200k, saved: a DatasetDict of train_sft, test_sft",
    Opening(
        meaning="text-chat",
        splits={"train_sft": 6, "test_sft": 3},
        samples={"train_sft": (chatted(0), chatted(5)), "test_sft": (chatted(10),)},
        not_splits=("train_gen", "train", "test", "val"),
    ),
    Opening(
        path="train_sft",
        meaning="text-chat",
        splits={"train": 6},
        samples={"train": (chatted(0), chatted(5))},
    ),
)
def hf_saved_dict(root: Path, rng: random.Random) -> None:
    """Write a saved DatasetDict of conversations."""
    import datasets

    parts = {"train_sft": range(6), "test_sft": range(10, 13)}
    made = {
        part: datasets.Dataset.from_dict({"messages": [chat_turns(n) for n in numbers]})
        for part, numbers in parts.items()
    }
    quietly_saved(datasets.DatasetDict(made), root)


@layout(
    "huggingface/datasets: DatasetDict.save_to_disk of train and validation with images",
    Opening(
        meaning="caption",
        splits={"train": 6, "val": 3},
        samples={"train": (captioned(0), captioned(5)), "val": (captioned(10),)},
    ),
)
def hf_saved_images(root: Path, rng: random.Random) -> None:
    """Write a saved DatasetDict of images and captions."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "caption": datasets.Value("string")}
    )
    made = {}
    for part, numbers in (("train", range(6)), ("validation", range(10, 13))):
        rows = {
            "image": [picture(n, rng) for n in numbers],
            "caption": list(map(caption, numbers)),
        }
        made[part] = datasets.Dataset.from_dict(rows, features=features)
    quietly_saved(datasets.DatasetDict(made), root)


@layout(
    "HuggingFaceH4/ultrachat_200k: data/train_sft-*, train_gen-*, test_sft-*, test_gen-*",
    Opening(
        meaning="text-chat",
        splits={"train_sft": 6, "train_gen": 2, "test_sft": 3, "test_gen": 1},
        samples={"train_sft": (chatted(0),), "test_sft": (chatted(10),)},
        not_splits=("train", "test", "val"),
    ),
)
def hub_sft_gen(root: Path, rng: random.Random) -> None:
    """Write four split parts, of which no two may be read as one."""
    parts = {
        "train_sft": (0, 6),
        "train_gen": (20, 22),
        "test_sft": (10, 13),
        "test_gen": (30, 31),
    }
    for part, (start, stop) in parts.items():
        rows = [
            {"prompt": question(n), "messages": chat_turns(n)}
            for n in range(start, stop)
        ]
        parquet(root / "data" / f"{part}-00000-of-00001-a3ecf92756993583.parquet", rows)


@layout(
    "lmms-lab/MMBench: configurations en and cn with dev and test",
    Opening(
        refuse="there are two configurations; one has to be named",
        says=("config", "folders", "cn/"),
    ),
    Opening(
        path="en",
        meaning="choice",
        also=("vqa", "crude"),
        splits={"val": 4, "test": 2},
        samples={
            "val": (
                Want(images=(hash_of(0),), question=question(0), texts=(answer(0),)),
                Want(images=(hash_of(3),), question=question(3), texts=(answer(3),)),
            )
        },
    ),
)
def hub_configs(root: Path, rng: random.Random) -> None:
    """Write two configurations whose rows are the same but for their language."""
    for folder, word in (("en", ""), ("cn", "zh ")):
        for part, numbers in (("dev", range(4)), ("test", range(10, 12))):
            rows = [
                {
                    "index": n,
                    "question": f"{word}{question(n)}",
                    "A": answer(n),
                    "B": answer(n + 1),
                    "answer": "A",
                    "image": struct(n, rng),
                }
                for n in numbers
            ]
            parquet(root / folder / f"{part}-00000-of-00001.parquet", rows)


@layout(
    "Hugging Face Hub: README.md whose configs say which file is which split part",
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 3},
        samples={
            "train": (captioned(0), captioned(5)),
            "test": (captioned(10), captioned(12)),
        },
        may_refuse="split parts that only the README tells apart may be asked about",
    ),
)
def hub_readme_configs(root: Path, rng: random.Random) -> None:
    """Write two files whose names do not say which is for the test."""
    for name, numbers in (("pairs", range(6)), ("held_out", range(10, 13))):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(root / f"{name}.parquet", rows)
    files = "  - split: train\n    path: pairs.parquet\n  - split: test\n    path: held_out.parquet\n"
    write(
        root / "README.md",
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n",
    )


@layout(
    "huggingface/datasets docs, repository structure: split names in the middle of file names",
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 3},
        samples={
            "train": (captioned(0), captioned(5)),
            "test": (captioned(10), captioned(12)),
        },
        may_refuse="split parts within names may be asked about",
    ),
)
def hub_split_in_name(root: Path, rng: random.Random) -> None:
    """Write my-pairs-train.parquet and my-pairs-test.parquet."""
    for name, numbers in (
        ("my-pairs-train", range(6)),
        ("my-pairs-test", range(10, 13)),
    ):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(root / f"{name}.parquet", rows)


# Parquet and Arrow in several spellings.


@layout(
    "Parquet written by pandas or pyarrow: a struct of bytes and path, without features",
    Opening(
        path="pairs.parquet",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        left_out=("width",),
    ),
)
def parquet_struct(root: Path, rng: random.Random) -> None:
    """Write structs of images whose path is null, captions, and a column of widths."""
    rows = [
        {"image": struct(n, rng), "text": caption(n), "width": 16} for n in range(6)
    ]
    parquet(root / "pairs.parquet", rows)


@layout(
    "Parquet with a list of structs of images and one text for all",
    Opening(
        path="sets.parquet",
        meaning="crude",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0), hash_of(20)), texts=(caption(0),)),
                Want(images=(hash_of(5), hash_of(25)), texts=(caption(5),)),
            )
        },
    ),
)
def parquet_list_struct(root: Path, rng: random.Random) -> None:
    """Write two images for each text."""
    rows = [
        {"images": [struct(n, rng), struct(n + 20, rng)], "caption": caption(n)}
        for n in range(6)
    ]
    parquet(root / "sets.parquet", rows)


@layout(
    "Parquet written by polars or Lance: large_binary and large_string",
    Opening(
        path="pairs.parquet",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def parquet_large_binary(root: Path, rng: random.Random) -> None:
    """Write images as plain bytes of the large type."""
    rows = [{"image": encoded(n, rng), "caption": caption(n)} for n in range(6)]
    schema = pa.schema([("image", pa.large_binary()), ("caption", pa.large_string())])
    parquet(root / "pairs.parquet", rows, schema)


@layout(
    "Apache Spark image data source: struct of origin, height, width, nChannels, mode, data",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="raw pixels of Spark are not read",
    ),
)
def parquet_spark_image(root: Path, rng: random.Random) -> None:
    """Write pixels, in the order blue, green, red, beside a caption, as Spark leaves a
    folder."""
    rows = []
    for n in range(6):
        pixels = np.asarray(picture(n, rng, (12, 8)))[:, :, ::-1]
        image = {
            "origin": f"file:///data/{n}.jpg",
            "height": 8,
            "width": 12,
            "nChannels": 3,
        }
        rows.append(
            {
                "image": image | {"mode": 16, "data": pixels.tobytes()},
                "caption": caption(n),
            }
        )
    parquet(root / "part-00000-0b1c-c000.snappy.parquet", rows)
    write(root / "_SUCCESS", "")
    (root / ".part-00000-0b1c-c000.snappy.parquet.crc").write_bytes(b"crc\0")


@layout(
    "MMInstruction/M3IT: instruction, inputs, image_base64_str, outputs",
    Opening(
        path="train.jsonl",
        meaning="conversation",
        also=("vqa",),
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(
                        ("user", f"Answer.\n{question(0)}"),
                        ("assistant", answer(0)),
                    ),
                    placed=False,
                    question=question(0),
                    answers=(answer(0),),
                ),
                Want(
                    images=(hash_of(5),),
                    turns=(
                        ("user", f"Answer.\n{question(5)}"),
                        ("assistant", answer(5)),
                    ),
                    placed=False,
                    question=question(5),
                    answers=(answer(5),),
                ),
            )
        },
        may_refuse="base64 may be asked about",
    ),
)
def m3it(root: Path, rng: random.Random) -> None:
    """Write instructions with lists of images as base64."""
    rows = [
        {
            "instruction": "Answer.",
            "inputs": question(n),
            "image_base64_str": [base64.b64encode(encoded(n, rng)).decode()],
            "outputs": answer(n),
        }
        for n in range(6)
    ]
    lines(root / "train.jsonl", rows)


@layout(
    "jsonl with images as data: URLs, as labelling tools export them",
    Opening(
        path="pairs.jsonl",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="data: URLs in a column may be asked about",
    ),
)
def jsonl_data_uri(root: Path, rng: random.Random) -> None:
    """Write captions with an image within the line."""
    rows = []
    for n in range(6):
        data = base64.b64encode(encoded(n, rng, ".png")).decode()
        rows.append({"image": f"data:image/png;base64,{data}", "caption": caption(n)})
    lines(root / "pairs.jsonl", rows)


def arrow_table(numbers: range, rng: random.Random) -> pa.Table:
    """Return a table of images and captions."""
    rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
    return pa.Table.from_pylist(rows)


@layout(
    "Arrow IPC file, as pyarrow and polars write it, and Feather",
    Opening(
        path="pairs.arrow",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
    Opening(
        path="pairs.feather",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse=".feather is no name that has to be known",
    ),
)
def arrow_file(root: Path, rng: random.Random) -> None:
    """Write one table in the file format, under two names."""
    made = arrow_table(range(6), rng)
    for name in ("pairs.arrow", "pairs.feather"):
        with (
            pa.OSFile(str(root / name), "wb") as sink,
            pa.ipc.new_file(sink, made.schema) as out,
        ):
            out.write_table(made)


# Tars.

_WDS = "webdataset/webdataset"


def pairs(
    numbers: Iterable[int], rng: random.Random, folder: str = ""
) -> list[tuple[str, bytes]]:
    """Return members of a tar: an image and its caption for each number."""
    members = []
    for n in numbers:
        members.append((f"{folder}{n:06d}.jpg", encoded(n, rng)))
        members.append((f"{folder}{n:06d}.txt", text_of(caption(n))))
    return members


@layout(
    f"{_WDS}: folders train and val of shards",
    Opening(
        meaning="caption",
        splits={"train": 6, "val": 3},
        samples={"train": (captioned(0), captioned(5)), "val": (captioned(10),)},
    ),
)
def wds_split_folders(root: Path, rng: random.Random) -> None:
    """Write a folder of shards for each split part."""
    tarball(root / "train" / "00000.tar", pairs(range(3), rng))
    tarball(root / "train" / "00001.tar", pairs(range(3, 6), rng))
    tarball(root / "val" / "00000.tar", pairs(range(10, 13), rng))


@layout(
    f"{_WDS}: jpg and json with a caption, as LAION and DataComp have it",
    Opening(
        path="00000000.tar",
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        left_out=("uid",),
    ),
)
def wds_json(root: Path, rng: random.Random) -> None:
    """Write images with a JSON of caption, uid and url."""
    members = []
    for n in range(6):
        members.append((f"{n:08d}.jpg", encoded(n, rng)))
        row = {"caption": caption(n), "uid": f"u{n}", "url": f"http://a.example/{n}"}
        members.append((f"{n:08d}.json", text_of(row)))
    tarball(root / "00000000.tar", members)


@layout(
    f"{_WDS}: jpg and cls, as wds ImageNet",
    Opening(
        meaning="classification",
        splits={"train": 6, "val": 2},
        samples={
            "train": (
                Want(images=(hash_of(0),), label_id=7),
                Want(images=(hash_of(5),), label_id=12),
            )
        },
    ),
)
def wds_cls(root: Path, rng: random.Random) -> None:
    """Write images with the number of their class."""
    for part, numbers in (("train", range(6)), ("val", range(10, 12))):
        members = []
        for n in numbers:
            members.append((f"{n:06d}.jpg", encoded(n, rng)))
            members.append((f"{n:06d}.cls", text_of(str(7 + n))))
        tarball(root / f"imagenet-{part}-000000.tar", members)


@layout(
    f"{_WDS}: a mix of .jpeg, .webp, .png and .jpg",
    Opening(
        meaning="caption",
        splits={"train": 8},
        samples={"train": (captioned(0), captioned(1), captioned(2), captioned(7))},
    ),
)
def wds_mixed_images(root: Path, rng: random.Random) -> None:
    """Write images of four formats with captions."""
    members = []
    for n in range(8):
        suffix = (".jpeg", ".webp", ".png", ".jpg")[n % 4]
        members.append((f"{n:06d}{suffix}", encoded(n, rng, suffix)))
        members.append((f"{n:06d}.txt", text_of(caption(n))))
    tarball(root / "shard-000000.tar", members)


@layout(
    f"{_WDS}: several images for each key, 0.jpg and 1.jpg, and a JSON of conversations",
    Opening(
        meaning="multi-image conversation",
        also=("crude",),
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0), hash_of(20)),
                    turns=(
                        ("user", f"<image> <image> {question(0)}"),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    images=(hash_of(5), hash_of(25)),
                    turns=(
                        ("user", f"<image> <image> {question(5)}"),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
    ),
)
def wds_several_images(root: Path, rng: random.Random) -> None:
    """Write two images for each key."""
    members = []
    for n in range(6):
        members.append((f"{n:06d}.0.jpg", encoded(n, rng)))
        members.append((f"{n:06d}.1.jpg", encoded(n + 20, rng)))
        row = {"conversations": llava_turns(n, "<image> <image> ")}
        members.append((f"{n:06d}.json", text_of(row)))
    tarball(root / "chat-000000.tar", members)


@layout(
    f"{_WDS}: compressed shards, .tar.gz",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="compressed tars have no random access",
    ),
)
def wds_gzipped(root: Path, rng: random.Random) -> None:
    """Write compressed shards."""
    tarball(root / "shard-000000.tar.gz", pairs(range(3), rng), zipped=True)
    tarball(root / "shard-000001.tar.gz", pairs(range(3, 6), rng), zipped=True)


@layout(
    "a tar of an ImageFolder, as torchvision sets are packed: classes are folders",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "cats"), labelled(5, "dogs"))},
        may_refuse="a tar without keys may be asked to be unpacked",
    ),
)
def tar_of_classes(root: Path, rng: random.Random) -> None:
    """Write one tar with a folder of images for each class."""
    names = [
        (f"pets/{('cats', 'dogs')[n // 3]}/{n}.jpg", encoded(n, rng)) for n in range(6)
    ]
    tarball(root / "pets.tar", names)


@layout(
    "rom1504/img2dataset --output_format webdataset: tars, Parquet and _stats.json",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        left_out=("parquet",),
        holds=(".tar",),
    ),
)
def img2dataset_tars(root: Path, rng: random.Random) -> None:
    """Write two shards, with a row more in each Parquet file than samples in the
    tar."""
    for shard in (0, 1):
        members, rows = [], []
        for n in range(3 * shard, 3 * shard + 3):
            key = f"{shard:05d}{n:04d}"
            row = {"url": f"http://a.example/{n}", "caption": caption(n), "key": key}
            row |= {
                "status": "success",
                "error_message": None,
                "width": 16,
                "height": 16,
            }
            members += [
                (f"{key}.jpg", encoded(n, rng)),
                (f"{key}.json", text_of(row)),
                (f"{key}.txt", text_of(caption(n))),
            ]
            rows.append(row)
        rows.append(
            {**rows[-1], "key": f"{shard:05d}9999", "status": "failed_to_download"}
        )
        tarball(root / f"{shard:05d}.tar", members)
        parquet(root / f"{shard:05d}.parquet", rows)
        dump(
            root / f"{shard:05d}_stats.json",
            {"count": 4, "successes": 3, "failed_to_download": 1},
        )


# MDS of MosaicML's streaming.


def mds(root: Path, numbers: Iterable[int], rng: random.Random) -> None:
    """Write a shard of images and captions, and its index."""
    samples = []
    for n in numbers:
        parts = (caption(n).encode(), encoded(n, rng))
        sizes = np.array([len(each) for each in parts], np.uint32).tobytes()
        samples.append(sizes + b"".join(parts))
    config: dict[str, Any] = {
        "column_encodings": ["str", "jpeg"],
        "column_names": ["caption", "image"],
        "column_sizes": [None, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    head = json.dumps(config, sort_keys=True).encode()
    ends = np.cumsum([0, *map(len, samples)])
    starts = (ends + 4 + 4 * len(ends) + len(head)).astype(np.uint32)
    data = (
        np.uint32(len(samples)).tobytes() + starts.tobytes() + head + b"".join(samples)
    )
    root.mkdir(parents=True, exist_ok=True)
    (root / "shard.00000.mds").write_bytes(data)
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = config | {"raw_data": raw, "samples": len(samples), "zip_data": None}
    dump(root / "index.json", {"shards": [shard], "version": 2})


@layout(
    "mosaicml/streaming: train and val, each a folder of MDS",
    Opening(
        meaning="caption",
        splits={"train": 6, "val": 3},
        samples={"train": (captioned(0), captioned(5)), "val": (captioned(10),)},
    ),
)
def mds_split_folders(root: Path, rng: random.Random) -> None:
    """Write two folders of MDS."""
    mds(root / "train", range(6), rng)
    mds(root / "val", range(10, 13), rng)


# Text in images, and boxes in texts.


def word_of(number: int) -> str:
    """Return a word that stands in the image of this number."""
    return f"{NOUNS[number % len(NOUNS)].capitalize()}{number}"


def read(number: int) -> Want:
    """Return what a sample of an image and the word in it has."""
    return Want(images=(hash_of(number),), texts=(word_of(number),))


_ASK_OCR = "lists of labels as text may be asked about"


@layout(
    "VGG/IIIT synthetic words (MJSynth): annotation_train.txt of path and lexicon number",
    Opening(
        meaning="ocr",
        also=("caption",),
        splits={"train": 6, "val": 2, "test": 2},
        samples={"train": (read(0), read(5))},
        may_refuse=_ASK_OCR,
        holds=("annotation_train.txt", "lexicon.txt"),
    ),
)
def mjsynth(root: Path, rng: random.Random) -> None:
    """Write images of words in folders of numbers; the names have the words."""
    parts = (("train", range(6)), ("val", range(10, 12)), ("test", range(20, 22)))
    for part, numbers in parts:
        rows = []
        for n in numbers:
            name = f"./{n % 2}/{n}/1_{word_of(n)}_{n}.jpg"
            draw(root / name, n, rng)
            rows.append(f"{name} {n}\n")
        write(root / f"annotation_{part}.txt", "".join(rows))
    write(root / "lexicon.txt", "".join(f"{word_of(n).lower()}\n" for n in range(22)))


@layout(
    "PaddlePaddle/PaddleOCR recognition: rec_gt_train.txt of path, tab, text",
    Opening(
        meaning="ocr",
        also=("caption",),
        splits={"train": 6, "test": 3},
        samples={"train": (read(0), read(5)), "test": (read(10),)},
        may_refuse=_ASK_OCR,
        holds=("rec_gt_train.txt",),
    ),
)
def paddle_rec(root: Path, rng: random.Random) -> None:
    """Write folders of words with a list of labels beside them."""
    for part, numbers in (("train", range(6)), ("test", range(10, 13))):
        rows = []
        for n in numbers:
            draw(root / part / f"word_{n:03d}.jpg", n, rng)
            rows.append(f"{part}/word_{n:03d}.jpg\t{word_of(n)}\n")
        write(root / f"rec_gt_{part}.txt", "".join(rows))


@layout(
    "PaddlePaddle/PaddleOCR detection: train_icdar2015_label.txt of path, tab, JSON of boxes",
    Opening(
        meaning="ocr",
        also=("detection",),
        splits={"train": 6},
        samples={"train": (read(0), read(5))},
        may_refuse=_ASK_OCR,
        holds=("train_icdar2015_label.txt",),
    ),
)
def paddle_det(root: Path, rng: random.Random) -> None:
    """Write images with the corners and the text of a line in each."""
    rows = []
    for n in range(6):
        draw(root / "icdar_c4_train_imgs" / f"img_{n}.jpg", n, rng, (24, 16))
        box = {"transcription": word_of(n), "points": [[1, 2], [9, 2], [9, 8], [1, 8]]}
        rows.append(f"icdar_c4_train_imgs/img_{n}.jpg\t{json.dumps([box])}\n")
    write(root / "train_icdar2015_label.txt", "".join(rows))


@layout(
    "ICDAR 2019 SROIE: train/img, train/box, train/entities",
    Opening(
        meaning="ocr",
        splits={"train": 6, "test": 2},
        samples={"train": (read(0), read(5)), "test": (read(10),)},
        may_refuse=_ASK_OCR,
        holds=("box", "entities"),
    ),
)
def sroie(root: Path, rng: random.Random) -> None:
    """Write receipts, boxes of their lines, and what they are about, in three trees."""
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        for n in numbers:
            draw(root / part / "img" / f"X{n:08d}.jpg", n, rng, (24, 16))
            write(
                root / part / "box" / f"X{n:08d}.txt", f"1,2,9,2,9,8,1,8,{word_of(n)}\n"
            )
            known = {
                "company": word_of(n),
                "date": "25/12/2018",
                "address": "-",
                "total": "9.00",
            }
            dump(root / part / "entities" / f"X{n:08d}.txt", known)


@layout(
    "naver-clova-ix/cord-v2: ground_truth is JSON in a text",
    Opening(
        meaning="ocr",
        also=("crude",),
        splits={"train": 6, "val": 2},
        samples={
            "train": (
                Want(images=(hash_of(0),), texts=(word_of(0),)),
                Want(images=(hash_of(5),), texts=(word_of(5),)),
            )
        },
    ),
)
def cord(root: Path, rng: random.Random) -> None:
    """Write Parquet of images and a JSON of what is on a receipt."""
    for part, numbers in (("train", range(6)), ("validation", range(10, 12))):
        rows = [
            {
                "image": struct(n, rng),
                "ground_truth": json.dumps(
                    {"gt_parse": {"menu": [{"nm": word_of(n)}]}}
                ),
            }
            for n in numbers
        ]
        parquet(root / "data" / f"{part}-00000-of-00001-b4aaeceff1d90ecb.parquet", rows)


@layout(
    "lmms-lab/RefCOCO: question, answers, bbox, segmentation",
    Opening(
        meaning="detection",
        also=("vqa",),
        splits={"val": 4, "test": 2},
        samples={
            "val": (
                Want(
                    images=(hash_of(0),),
                    boxes=((1.5, 2.5, 5.0, 6.0),),
                    texts=(answer(0),),
                    question="Describe the box.",
                    answers=(answer(0),),
                ),
                Want(
                    images=(hash_of(3),),
                    boxes=((1.5, 2.5, 8.0, 6.0),),
                    texts=(answer(3),),
                    question="Describe the box.",
                    answers=(answer(3),),
                ),
            )
        },
        left_out=("bbox",),
    ),
)
def refcoco_hub(root: Path, rng: random.Random) -> None:
    """Write Parquet in which a box says what the question is about."""
    for part, numbers in (("val", range(4)), ("testA", range(10, 12))):
        name = "test" if part == "testA" else part
        rows = [
            {
                "question_id": str(n),
                "image": struct(n, rng),
                "question": "Describe the box.",
                "answer": [answer(n), answer(n).upper()],
                "segmentation": [1.0, 2.0],
                "bbox": [1.5, 2.5, 5.0 + n, 6.0],
                "file_name": f"COCO_train2014_{n}.jpg",
            }
            for n in numbers
        ]
        parquet(root / "data" / f"{name}-00000-of-00001.parquet", rows)


@layout(
    "Visual Genome region_descriptions.json: regions with phrases and boxes for each image",
    Opening(
        path="region_descriptions.json",
        meaning="detection",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0),), boxes=((1, 2, 5, 6),), texts=(caption(0),)),
                Want(images=(hash_of(5),), boxes=((1, 2, 5, 6),), texts=(caption(5),)),
            )
        },
        may_refuse="numbers of images in place of paths may be asked about",
    ),
)
def visual_genome(root: Path, rng: random.Random) -> None:
    """Write regions of images that are named by their number."""
    rows = []
    for n in range(6):
        draw(root / "VG_100K" / f"{n}.jpg", n, rng)
        region = {"region_id": n, "image_id": n, "phrase": caption(n)}
        region |= {"x": 1, "y": 2, "width": 5, "height": 6}
        rows.append({"id": n, "regions": [region]})
    dump(root / "region_descriptions.json", rows)


# Names, encodings, and what is broken or unclear.


@layout(
    "folders copied from macOS: names decomposed (NFD) on disk, composed (NFC) in the table",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="names that differ in their form may be an error",
        holds=("café", "row"),
    ),
)
def unicode_forms(root: Path, rng: random.Random) -> None:
    """Write files with decomposed names, and a metadata.csv with composed ones."""
    rows: list[tuple[str, str]] = [("file_name", "text")]
    for n in range(6):
        name = f"café-{n}.jpg"
        draw(root / unicodedata.normalize("NFD", name), n, rng)
        rows.append((unicodedata.normalize("NFC", name), caption(n)))
    table(root / "metadata.csv", rows)


@layout(
    "tables saved by Excel: a byte order mark and CRLF",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def bom_crlf_csv(root: Path, rng: random.Random) -> None:
    """Write a metadata.csv with a mark at its start and two letters at the ends of
    lines."""
    text = "\ufefffile_name,text\r\n"
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
        text += f"{n}.jpg,{caption(n)}\r\n"
    write(root / "metadata.csv", text)


@layout(
    "jsonl saved by Windows editors: a byte order mark, CRLF and a blank last line",
    Opening(
        path="chat.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0), talked(5))},
    ),
)
def bom_crlf_jsonl(root: Path, rng: random.Random) -> None:
    """Write lines of JSON with a mark at the start and two letters at the ends of
    lines."""
    text = "\ufeff"
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        row = {"image": f"images/{n}.jpg", "conversations": llava_turns(n)}
        text += json.dumps(row) + "\r\n"
    write(root / "chat.jsonl", text + "\r\n")


@layout(
    "texts beside images with CRLF, a mark, and capitals in suffixes",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def bom_crlf_txt(root: Path, rng: random.Random) -> None:
    """Write .TXT with a byte order mark beside .JPG."""
    for n in range(6):
        draw(root / f"IMG_{n}.JPG", n, rng)
        write(root / f"IMG_{n}.TXT", f"\ufeff{caption(n)}\r\n")


@layout(
    "a folder of images and nothing else, as for unconditional generation",
    Opening(
        meaning="image",
        splits={"train": 8},
        samples={"train": (pictured(0), pictured(7))},
        not_splits=("val",),
    ),
)
def images_alone(root: Path, rng: random.Random) -> None:
    """Write images without a word, beside a README."""
    for n in range(8):
        draw(root / f"DSC{n:05d}.JPG", n, rng)
    write(root / "README.txt", "Faces, aligned.")


@layout(
    "metadata.csv and metadata.jsonl of one folder, which differ",
    Opening(refuse="two tables describe one folder"),
)
def two_metadata(root: Path, rng: random.Random) -> None:
    """Write two metadata files with other captions."""
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
    table(
        root / "metadata.csv",
        [("file_name", "text"), *((f"{n}.jpg", caption(n)) for n in range(6))],
    )
    lines(
        root / "metadata.jsonl",
        [{"file_name": f"{n}.jpg", "text": "old"} for n in range(6)],
    )


@layout(
    "captions.csv and tags.csv beside a folder of images",
    Opening(
        refuse="two tables describe one folder",
        holds=("captions.csv", "tags.csv"),
    ),
)
def two_tables(root: Path, rng: random.Random) -> None:
    """Write two tables of the same images, of which neither is called metadata."""
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
    names = [f"images/{n}.jpg" for n in range(6)]
    rows = [(name, caption(n)) for n, name in enumerate(names)]
    table(root / "captions.csv", [("image", "caption"), *rows])
    table(root / "tags.csv", [("image", "tag"), *((name, "shelf") for name in names)])


@layout(
    "a folder with chat.jsonl and captions.jsonl, as downloads pile up",
    Opening(refuse="rows of two kinds are no one dataset"),
)
def two_kinds_of_jsonl(root: Path, rng: random.Random) -> None:
    """Write conversations and captions side by side."""
    lines(root / "captions.jsonl", [{"text": caption(n)} for n in range(6)])
    lines(
        root / "chat.jsonl", [{"conversations": llava_turns(n, "")} for n in range(6)]
    )


@layout(
    "the same rows twice, as jsonl and as Parquet",
    Opening(
        refuse="two formats of one dataset would count each sample twice, or hide one"
    ),
)
def two_formats(root: Path, rng: random.Random) -> None:
    """Write conversations as chat.jsonl, and others as chat.parquet."""
    lines(
        root / "chat.jsonl", [{"conversations": llava_turns(n, "")} for n in range(6)]
    )
    rows = [{"conversations": llava_turns(n, "")} for n in range(10, 16)]
    parquet(root / "chat.parquet", rows)


@layout(
    "jsonl that broke off in its last line",
    Opening(
        path="chat.jsonl",
        meaning="text-chat",
        splits={"train": (5, 6)},
        samples={"train": (chatted(0), chatted(4))},
        may_refuse="a line that is no JSON may be an error",
        left_out=("line 6|000005|chat.jsonl",),
    ),
)
def half_a_line(root: Path, rng: random.Random) -> None:
    """Write six lines of JSON, of which the last is cut."""
    text = "".join(
        json.dumps({"conversations": llava_turns(n, "")}) + "\n" for n in range(6)
    )
    write(root / "chat.jsonl", text[:-40])


@layout(
    "a conversation with more placeholders than images, as LLaVA mixes have some",
    Opening(
        path="chat.json",
        meaning="conversation",
        splits={"train": (5, 6)},
        samples={"train": (talked(0), talked(5))},
        left_out=("'000003'|placeholder",),
    ),
)
def placeholder_without_image(root: Path, rng: random.Random) -> None:
    """Write six conversations, of which one has two placeholders and one image."""
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        turns = llava_turns(n, "<image>\n<image>\n" if n == 3 else "<image>\n")
        rows.append({"image": f"images/{n}.jpg", "conversations": turns})
    dump(root / "chat.json", rows)


@layout(
    "image and depth trees of one name: image/0.png, depth/0.png",
    Opening(refuse="two images of one name are a pair, or two classes: it is not said"),
)
def paired_trees(root: Path, rng: random.Random) -> None:
    """Write two trees of images with the same names, as depth, masks and edits have
    them."""
    for n in range(6):
        draw(root / "image" / f"{n:04d}.png", n, rng)
        draw(root / "depth" / f"{n:04d}.png", n + 20, rng)


@layout(
    "a JSON with rows of image and a null, text or list by row",
    Opening(
        path="mixed.json",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                talked(0),
                Want(
                    images=(hash_of(1), hash_of(21)),
                    turns=(
                        ("user", f"<image>\n<image>\n{question(1)}"),
                        ("assistant", answer(1)),
                    ),
                ),
                chatted(2),
            )
        },
    ),
)
def image_null_text_or_list(root: Path, rng: random.Random) -> None:
    """Write conversations of one image, of two, and of none."""
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        draw(root / "images" / f"{n + 20}.jpg", n + 20, rng)
        two = [f"images/{n}.jpg", f"images/{n + 20}.jpg"]
        image = (two[0], two, None)[n % 3]
        before = "<image>\n" * (1, 2, 0)[n % 3]
        rows.append({"image": image, "conversations": llava_turns(n, before)})
    dump(root / "mixed.json", rows)


# More of what lies on disks: caches, lists of names, other suffixes.


@layout(
    "Food-101: images/<class>, meta/train.txt and meta/test.txt",
    Opening(
        meaning="classification",
        splits={"train": 6, "test": 2},
        samples={"train": (labelled(0, "apple_pie"), labelled(5, "waffles"))},
        may_refuse="lists of names say which images are for the test",
        left_out=("test.txt|meta",),
    ),
)
def food101(root: Path, rng: random.Random) -> None:
    """Write folders of classes, whose split parts are lists of names."""
    names = []
    for n in range(8):
        name = f"{('apple_pie', 'waffles')[n % 2]}/{1000 + n}"
        draw(root / "images" / f"{name}.jpg", n, rng)
        names.append(name)
    write(root / "meta" / "train.txt", "\n".join(names[:6]))
    write(root / "meta" / "test.txt", "\n".join(names[6:]))
    write(root / "meta" / "classes.txt", "apple_pie\nwaffles\n")


@layout(
    "Kaggle sets with Train, Val and Test in capitals",
    Opening(
        meaning="classification",
        splits={"train": 4, "val": 2, "test": 2},
        samples={"train": (labelled(0, "cat", 0),), "test": (labelled(21, "dog", 1),)},
    ),
)
def capital_splits(root: Path, rng: random.Random) -> None:
    """Write folders of classes in split parts whose names begin with a capital."""
    for part, numbers in (
        ("Train", range(4)),
        ("Val", range(10, 12)),
        ("Test", range(20, 22)),
    ):
        for n in numbers:
            draw(root / part / ("cat", "dog")[n % 2] / f"{n}.jpg", n, rng)


@layout(
    "SVHN and Cityscapes: train, test and extra side by side",
    Opening(
        meaning="classification",
        splits={"train": 4, "test": 2},
        samples={"train": (labelled(0, "cat"), labelled(3, "dog"))},
        left_out=("extra",),
    ),
)
def extra_beside_splits(root: Path, rng: random.Random) -> None:
    """Write folders of classes in train, test, and extra, which is no split part."""
    for part, numbers in (
        ("train", range(4)),
        ("test", range(10, 12)),
        ("extra", range(20, 26)),
    ):
        for n in numbers:
            draw(root / part / ("cat", "dog")[n % 2] / f"{n}.jpg", n, rng)


@layout(
    "Labelme: a JSON of shapes beside each image",
    Opening(
        meaning="detection",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0),), boxes=((1, 2, 9, 8),), texts=("cat",)),
                Want(images=(hash_of(5),), boxes=((1, 2, 9, 8),), texts=("cat",)),
            )
        },
        may_refuse="shapes of Labelme may be asked about",
    ),
)
def labelme(root: Path, rng: random.Random) -> None:
    """Write images with {version, shapes, imagePath}."""
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng, (24, 16))
        shape = {"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
        known = {
            "version": "5.0.1",
            "flags": {},
            "shapes": [shape],
            "imagePath": f"{n}.jpg",
        }
        dump(
            root / f"{n}.json",
            known | {"imageData": None, "imageHeight": 16, "imageWidth": 24},
        )


@layout(
    "captions whose file has the whole name of the image: 0.jpg.txt",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="names of another form may be asked about",
        holds=("0.jpg.txt",),
    ),
)
def text_named_with_suffix(root: Path, rng: random.Random) -> None:
    """Write 0.jpg and 0.jpg.txt."""
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
        write(root / f"{n}.jpg.txt", caption(n))


@layout(
    "CUB-200 and Oxford Flowers for text to image: trees images and text, ten lines each",
    Opening(
        meaning="caption",
        splits={"train": (6, 12)},
        samples={"train": (captioned(0), captioned(5))},
        may_refuse="texts in another tree may be asked about",
        holds=("text/",),
    ),
)
def cub_text_trees(root: Path, rng: random.Random) -> None:
    """Write images/class/name.jpg and text/class/name.txt with two captions."""
    for n in range(6):
        folder = ("001.Albatross", "002.Auklet")[n // 3]
        draw(root / "images" / folder / f"bird_{n}.jpg", n, rng)
        write(
            root / "text" / folder / f"bird_{n}.txt",
            f"{caption(n)}\n{caption(n)}, too\n",
        )


@layout(
    "a folder where 3.jpg and 3.png share 3.txt",
    Opening(refuse="it is not said which image the text is of"),
)
def two_images_one_text(root: Path, rng: random.Random) -> None:
    """Write captions, of which one belongs to two images."""
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
        write(root / f"{n}.txt", caption(n))
    draw(root / "3.png", 40, rng)


@layout(
    "huggingface_hub cache: snapshots/<revision> of links to blobs without suffix",
    Opening(
        path="datasets--org--pairs/snapshots/0a1b",
        meaning="caption",
        splits={"train": 6, "test": 2},
        samples={"train": (captioned(0), captioned(5)), "test": (captioned(10),)},
    ),
)
def hub_cache(root: Path, rng: random.Random) -> None:
    """Write blobs, refs and snapshots, as a download leaves them."""
    cache = root / "datasets--org--pairs"
    write(cache / "refs" / "main", "0a1b")
    (cache / "blobs").mkdir()
    data = cache / "snapshots" / "0a1b" / "data"
    data.mkdir(parents=True)
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(cache / "blobs" / f"{len(part)}f00d", rows)
        (data / f"{part}-00000-of-00001.parquet").symlink_to(
            f"../../../blobs/{len(part)}f00d"
        )


@layout(
    "huggingface/datasets cache: pairs-train.arrow, pairs-test.arrow, dataset_info.json",
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 2},
        samples={"train": (captioned(0), captioned(5)), "test": (captioned(10),)},
        may_refuse="split parts within names may be asked about",
    ),
)
def hf_cache_arrow(root: Path, rng: random.Random) -> None:
    """Write what load_dataset keeps: streams named by the builder and the split
    part."""
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        made = arrow_table(numbers, rng)
        path = str(root / f"pairs-{part}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, made.schema) as out:
            out.write_table(made)
    dump(
        root / "dataset_info.json",
        {"builder_name": "pairs", "splits": {"train": {}, "test": {}}},
    )


@layout(
    "QwenLM chat files: parts of {type: image, image: path} and {type: video, video: path}",
    Opening(
        path="chat.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(("user", f"<image>{question(0)}"), ("assistant", answer(0))),
                ),
                Want(
                    videos=1,
                    turns=(("user", f"<video>{question(5)}"), ("assistant", answer(5))),
                ),
            )
        },
    ),
)
def qwen_parts(root: Path, rng: random.Random) -> None:
    """Write messages of images, and of a video in the last row."""
    rows = []
    for n in range(6):
        kind, name = ("video", f"{n}.mp4") if n == 5 else ("image", f"{n}.jpg")
        if kind == "video":
            film(root / name, n)
        else:
            draw(root / name, n, rng)
        parts = [{"type": kind, kind: name}, {"type": "text", "text": question(n)}]
        reply = [{"type": "text", "text": answer(n)}]
        turns = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": reply},
        ]
        rows.append({"messages": turns})
    lines(root / "chat.jsonl", rows)


@layout(
    "modelscope/ms-swift: query, response, history, images",
    Opening(
        path="swift.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    turns=(
                        ("user", "<image>Hello 0"),
                        ("assistant", "Welcome 0"),
                        ("user", question(0)),
                        ("assistant", answer(0)),
                    ),
                ),
                Want(
                    images=(hash_of(5),),
                    turns=(
                        ("user", "<image>Hello 5"),
                        ("assistant", "Welcome 5"),
                        ("user", question(5)),
                        ("assistant", answer(5)),
                    ),
                ),
            )
        },
        may_refuse="another spelling of turns may be asked about",
    ),
)
def swift_query(root: Path, rng: random.Random) -> None:
    """Write questions and answers with what was said before."""
    rows = []
    for n in range(6):
        draw(root / "pictures" / f"{n}.jpg", n, rng)
        row = {
            "query": question(n),
            "response": answer(n),
            "images": [f"pictures/{n}.jpg"],
        }
        rows.append(row | {"history": [[f"<image>Hello {n}", f"Welcome {n}"]]})
    lines(root / "swift.jsonl", rows)


@layout(
    "uoft-cs/cifar100: img, fine_label, coarse_label",
    Opening(
        meaning="classification",
        also=("crude",),
        splits={"train": 6, "test": 2},
        samples={
            "train": (
                Want(images=(hash_of(0),), label="apple", texts=("fruit",)),
                Want(images=(hash_of(5),), label="bear", texts=("animal",)),
            )
        },
        may_refuse="two columns of classes may be asked about",
    ),
)
def cifar100_hub(root: Path, rng: random.Random) -> None:
    """Write images of two columns of classes."""
    import datasets

    fine = datasets.ClassLabel(names=["apple", "bear"])
    coarse = datasets.ClassLabel(names=["fruit", "animal"])
    features = {"img": datasets.Image(), "fine_label": fine, "coarse_label": coarse}
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        rows = [
            {"img": struct(n, rng), "fine_label": n % 2, "coarse_label": n % 2}
            for n in numbers
        ]
        hub_parquet(
            root / "cifar100" / f"{part}-00000-of-00001.parquet", rows, features
        )


@layout(
    "ylecun/mnist: image and label with the names of classes in the metadata of Parquet",
    Opening(
        path="mnist",
        meaning="classification",
        splits={"train": 6, "test": 2},
        samples={"train": (labelled(0, "zero", 0), labelled(5, "one", 1))},
    ),
)
def mnist_hub(root: Path, rng: random.Random) -> None:
    """Write images and classes in a folder of a configuration."""
    import datasets

    label = datasets.ClassLabel(names=["zero", "one"])
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        rows = [{"image": struct(n, rng), "label": n % 2} for n in numbers]
        path = root / "mnist" / f"{part}-00000-of-00001.parquet"
        hub_parquet(path, rows, {"image": datasets.Image(), "label": label})


@layout(
    "jsonl compressed with gzip, as allenai/c4 and mmc4 are published",
    Opening(
        meaning="text",
        splits={"train": 6},
        samples={
            "train": (
                Want(texts=(caption(0),)),
                Want(texts=(caption(5),)),
            )
        },
        may_refuse="compressed lines have no random access",
    ),
)
def jsonl_gzipped(root: Path, rng: random.Random) -> None:
    """Write compressed lines of JSON."""
    text = "".join(json.dumps({"text": caption(n)}) + "\n" for n in range(6))
    path = root / "c4-train.00000-of-00001.json.gz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
