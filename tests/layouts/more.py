"""More layouts: of public data, of trainers' formats, and of what people do to
folders."""

from __future__ import annotations

import base64
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.layouts.base import (
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
    pictured,
    question,
    struct,
    table,
    talked,
    tarball,
    text_of,
    write,
)

# Folders of classes.

_PARTS = (("train", range(6)), ("val", range(10, 12)))


@layout(
    "ImageNet as torchvision reads it: train/n01440764, val/n01440764",
    Opening(
        meaning="classification",
        splits={"train": 6, "val": 2},
        samples={
            "train": (labelled(0, "n01440764", 0),),
            "val": (labelled(11, "n02102040", 1),),
        },
        not_splits=("test",),
    ),
)
def imagenet_folders(root: Path, rng: random.Random) -> None:
    for part, numbers in _PARTS:
        for n in numbers:
            draw(root / part / ("n01440764", "n02102040")[n % 2] / f"{n}.JPEG", n, rng)


@layout(
    "classes around split parts: cat/train, cat/val",
    Opening(
        meaning="classification",
        splits={"train": 6, "val": 2},
        samples={"train": (labelled(0, "cat", 0),), "val": (labelled(11, "dog", 1),)},
    ),
)
def parts_in_classes(root: Path, rng: random.Random) -> None:
    for part, numbers in _PARTS:
        for n in numbers:
            draw(root / ("cat", "dog")[n % 2] / part / f"{n}.jpg", n, rng)


@layout(
    "iNaturalist: kingdoms with folders of species in them",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "oak"), labelled(5, "wren"))},
    ),
)
def classes_in_kingdoms(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / ("plants/oak", "birds/wren")[n % 2] / f"{n}.jpg", n, rng)


@layout(
    "folders whose names recur in others: red/round, blue/round",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "red/round"), labelled(1, "blue/round"))},
    ),
)
def classes_of_two_levels(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / ("red/round", "blue/round", "red/flat")[n % 3] / f"{n}.jpg", n, rng)


@layout(
    "Tiny ImageNet: train/n01/images beside n01_boxes.txt, test without classes",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "n01"), labelled(5, "n02"))},
        may_refuse="tables of boxes beside classes may be asked about",
    ),
)
def tiny_imagenet(root: Path, rng: random.Random) -> None:
    for n in range(6):
        name = ("n01", "n02")[n // 3]
        draw(root / "train" / name / "images" / f"{name}_{n}.JPEG", n, rng)
    for name, numbers in (("n01", range(3)), ("n02", range(3, 6))):
        rows = "".join(f"{name}_{n}.JPEG\t0\t0\t9\t9\n" for n in numbers)
        write(root / "train" / name / f"{name}_boxes.txt", rows)
    write(root / "wnids.txt", "n01\nn02\n")


@layout(
    "GTSRB: folders 00000 and 00001, which may be classes or shards",
    Opening(refuse="numbers with zeros are classes or shards: it is not said"),
)
def numbered_folders(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / f"{n % 2:05d}" / f"{n}.png", n, rng)


@layout(
    "MNIST as PNG: folders 0 to 9",
    Opening(
        meaning="classification",
        splits={"train": 6, "test": 2},
        samples={"train": (labelled(0, "0", 0), labelled(5, "2", 2))},
    ),
)
def digit_folders(root: Path, rng: random.Random) -> None:
    for part, numbers in (("training", range(6)), ("testing", range(10, 12))):
        for n in numbers:
            draw(root / part / str(n % 3) / f"{n}.png", n, rng)


@layout(
    "a folder train beside folders of other vehicles",
    Opening(refuse="train is a split part or a class", says=("train",)),
)
def train_is_a_class(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / ("train", "bus", "car")[n % 3] / f"{n}.jpg", n, rng)


@layout(
    "classes of which one has a word for a split part in its name",
    Opening(
        meaning="classification",
        splits={"train": 8},
        samples={"train": (labelled(0, "bullet_train"), labelled(1, "canoe"))},
    ),
)
def bullet_train(root: Path, rng: random.Random) -> None:
    for n in range(8):
        draw(
            root / ("bullet_train", "canoe", "sled", "van")[n % 4] / f"{n}.jpg", n, rng
        )


@layout(
    "masks beside images, as for segmentation: images/0.png, masks/0.png",
    Opening(refuse="an image and its mask are no two classes"),
)
def images_and_masks(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / "images" / f"{n}.png", n, rng)
        draw(root / "masks" / f"{n}.png", n + 20, rng)


@layout(
    "photographs and videos in one folder",
    Opening(refuse="samples of images and samples of videos are of two kinds"),
)
def images_and_videos(root: Path, rng: random.Random) -> None:
    for n in range(4):
        draw(root / f"{n}.jpg", n, rng)
        film(root / f"{n + 10}.mp4", n)


@layout(
    "train_images and test_images, as Kaggle names them",
    Opening(
        meaning="image",
        splits={"train": 6, "test": 2},
        samples={"train": (pictured(0),), "test": (pictured(10),)},
        not_splits=("val",),
    ),
)
def train_images_test_images(root: Path, rng: random.Random) -> None:
    for folder, numbers in (("train_images", range(6)), ("test_images", range(10, 12))):
        for n in numbers:
            draw(root / folder / f"{n}.jpg", n, rng)


# Images with tables.


@layout(
    "Kaggle: train.csv of image_id and label, train_images, test_images, sample_submission.csv",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={
            "train": (
                Want(images=(hash_of(0),), label_id=0),
                Want(images=(hash_of(5),), label_id=1),
            )
        },
        may_refuse="a table of the test may be asked about",
    ),
)
def kaggle_train_csv(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / "train_images" / f"{n}.jpg", n, rng)
    for n in range(10, 12):
        draw(root / "test_images" / f"{n}.jpg", n, rng)
    table(
        root / "train.csv",
        [("image_id", "label"), *((f"{n}.jpg", n % 2) for n in range(6))],
    )
    table(
        root / "sample_submission.csv",
        [("image_id", "label"), ("10.jpg", 0), ("11.jpg", 0)],
    )


@layout(
    "Flickr8k: captions.txt of image,caption beside Images",
    Opening(
        meaning="caption",
        splits={"train": 12},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def flickr8k(root: Path, rng: random.Random) -> None:
    rows = ["image,caption\n"]
    for n in range(6):
        draw(root / "Images" / f"{n}_a.jpg", n, rng)
        rows += [f"{n}_a.jpg,{caption(n)}\n", f'{n}_a.jpg,"{caption(n)}, again"\n']
    write(root / "captions.txt", "".join(rows))


@layout(
    "Flickr30k: a .token file of name#number, tab, caption, which no format reads",
    Opening(refuse="the file of captions is not understood", says=("results.token",)),
)
def flickr_token(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append(f"{n}.jpg#0\t{caption(n)}\n")
    write(root / "results.token", "".join(rows))


@layout(
    "COCO with instances alone: boxes for each image",
    Opening(
        meaning="detection",
        splits={"train": 4, "val": 2},
        samples={
            "train": (
                Want(images=(hash_of(0),), boxes=((1.5, 2.5, 5, 6),), texts=("cat",)),
            )
        },
    ),
)
def coco_instances(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train2017", range(4)), ("val2017", range(10, 12))):
        images, boxes = [], []
        for n in numbers:
            draw(root / part / f"{n:012d}.jpg", n, rng)
            images.append(
                {"id": n, "file_name": f"{n:012d}.jpg", "width": 24, "height": 16}
            )
            boxes.append(
                {"id": n, "image_id": n, "category_id": 7, "bbox": [1.5, 2.5, 5 + n, 6]}
            )
        whole = {
            "images": images,
            "annotations": boxes,
            "categories": [{"id": 7, "name": "cat"}],
        }
        dump(root / "annotations" / f"instances_{part}.json", whole)


@layout(
    "Pascal VOC: JPEGImages, Annotations as XML, ImageSets/Main/train.txt and val.txt",
    Opening(
        meaning="detection",
        splits={"train": 4, "val": 2},
        samples={
            "train": (Want(images=(hash_of(0),), texts=("<xmin>1</xmin>", "cat")),)
        },
    ),
)
def pascal_voc(root: Path, rng: random.Random) -> None:
    base = root / "VOC2012"
    for n in range(6):
        draw(base / "JPEGImages" / f"2007_{n:06d}.jpg", n, rng)
        box = "<bndbox><xmin>1</xmin><ymin>2</ymin></bndbox>"
        text = f"<annotation><object><name>cat</name>{box}</object></annotation>"
        write(base / "Annotations" / f"2007_{n:06d}.xml", text)
    write(
        base / "ImageSets/Main/train.txt", "".join(f"2007_{n:06d}\n" for n in range(4))
    )
    write(
        base / "ImageSets/Main/val.txt", "".join(f"2007_{n:06d}\n" for n in range(4, 6))
    )


@layout(
    "LabelImg: an XML beside each image",
    Opening(
        meaning="detection",
        splits={"train": 4},
        samples={"train": (Want(images=(hash_of(0),), texts=("<xmin>1</xmin>",)),)},
    ),
)
def xml_beside(root: Path, rng: random.Random) -> None:
    for n in range(4):
        draw(root / f"{n}.jpg", n, rng)
        write(root / f"{n}.xml", "<annotation><xmin>1</xmin></annotation>")


@layout(
    "Oxford flowers: images with labels in a .mat file, which no format reads",
    Opening(refuse="imagelabels.mat describes the images", says=("imagelabels.mat",)),
)
def labels_in_mat(root: Path, rng: random.Random) -> None:
    for n in range(6):
        draw(root / "jpg" / f"image_{n:05d}.jpg", n, rng)
    (root / "imagelabels.mat").write_bytes(b"MATLAB 5.0 MAT-file\0" + bytes(100))


@layout(
    "CUB-200: images in folders of classes, images.txt and classes.txt beside them",
    Opening(
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "001.Albatross"), labelled(5, "002.Auklet"))},
        left_out=("classes.txt|images.txt",),
    ),
)
def cub_classes(root: Path, rng: random.Random) -> None:
    names = []
    for n in range(6):
        name = f"{('001.Albatross', '002.Auklet')[n // 3]}/bird_{n}.jpg"
        draw(root / "images" / name, n, rng)
        names.append(f"{n + 1} {name}\n")
    write(root / "images.txt", "".join(names))
    write(root / "classes.txt", "1 001.Albatross\n2 002.Auklet\n")


@layout(
    "a CSV that pandas wrote with its index, columns of no name",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def csv_with_index(root: Path, rng: random.Random) -> None:
    rows: list[Any] = [("", "file_name", "text")]
    for n in range(6):
        draw(root / f"{n}.jpg", n, rng)
        rows.append((n, f"{n}.jpg", caption(n)))
    table(root / "metadata.csv", rows)


@layout(
    "a table of names alone, images in folders below",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def names_without_folders(root: Path, rng: random.Random) -> None:
    rows: list[Any] = [("filename", "description")]
    for n in range(6):
        draw(root / "pictures" / ("a", "b")[n % 2] / f"{n}.jpg", n, rng)
        rows.append((f"{n}.jpg", caption(n)))
    table(root / "list.csv", rows, ";")


@layout(
    "paths that Windows wrote, and a table in UTF-16",
    Opening(
        meaning="caption",
        splits={"train": 6},
        samples={"train": (captioned(0), captioned(5))},
    ),
)
def windows_paths(root: Path, rng: random.Random) -> None:
    text = "path\ttitle\n"
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        text += f"images\\{n}.jpg\t{caption(n)}\n"
    write(root / "titles.tsv", text, "utf-16")


@layout(
    "a CSV in Latin-1",
    Opening(refuse="it is not UTF-8", says=("UTF-8",)),
)
def latin_csv(root: Path, rng: random.Random) -> None:
    for n in range(3):
        draw(root / f"{n}.jpg", n, rng)
    text = "file_name,text\n" + "".join(f"{n}.jpg,Grün {n}\n" for n in range(3))
    write(root / "metadata.csv", text, "latin-1")


@layout(
    "a table above the split parts, in lines of JSON that are not called metadata",
    Opening(
        meaning="caption",
        splits={"train": 6, "test": 2},
        samples={"train": (captioned(0),), "test": (captioned(10),)},
    ),
)
def captions_above_parts(root: Path, rng: random.Random) -> None:
    rows = []
    for part, numbers in (("train", range(6)), ("test", range(10, 12))):
        for n in numbers:
            draw(root / part / f"{n}.jpg", n, rng)
            rows.append({"image": f"{part}/{n}.jpg", "caption": caption(n)})
    lines(root / "captions.jsonl", rows)


@layout(
    "a jsonl for each split part beside one folder of images",
    Opening(
        meaning="caption",
        splits={"train": 6, "val": 2},
        samples={"train": (captioned(0),), "val": (captioned(10),)},
    ),
)
def jsonl_and_images(root: Path, rng: random.Random) -> None:
    for part, numbers in _PARTS:
        for n in numbers:
            draw(root / "images" / f"{n}.jpg", n, rng)
        rows = [{"image": f"images/{n}.jpg", "caption": caption(n)} for n in numbers]
        lines(root / f"{part}.jsonl", rows)


@layout(
    "dataset_flickr8k.json of Karpathy: images with sentences and a split",
    Opening(
        path="dataset_flickr8k.json",
        meaning="caption",
        splits={"train": 8, "val": 4},
        samples={"train": (captioned(0), captioned(3)), "val": (captioned(4),)},
        not_splits=("dev2",),
    ),
)
def karpathy(root: Path, rng: random.Random) -> None:
    images = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        said = [
            {"raw": caption(n), "sentid": 2 * n},
            {"raw": f"{caption(n)}, too", "sentid": 2 * n + 1},
        ]
        images.append(
            {
                "filename": f"{n}.jpg",
                "sentences": said,
                "split": "train" if n < 4 else "val",
            }
        )
    dump(root / "dataset_flickr8k.json", {"dataset": "flickr8k", "images": images})


@layout(
    "parquet of five captions for each image, as the hub has Flickr30k",
    Opening(
        meaning="caption",
        splits={"test": 8},
        samples={"test": (captioned(0), captioned(3))},
        not_splits=("train",),
    ),
)
def captions_in_lists(root: Path, rng: random.Random) -> None:
    rows = [
        {"image": struct(n, rng), "caption": [caption(n), f"{caption(n)}, too"]}
        for n in range(4)
    ]
    parquet(root / "data" / "test-00000-of-00001.parquet", rows)


@layout(
    "LAION: Parquet of URL, TEXT, WIDTH, HEIGHT",
    Opening(refuse="the images are on the web", says=("web",)),
)
def laion_urls(root: Path, rng: random.Random) -> None:
    rows = [
        {"URL": f"http://a.example/{n}", "TEXT": caption(n), "WIDTH": 16, "HEIGHT": 16}
        for n in range(6)
    ]
    parquet(root / "part-00000.parquet", rows)


@layout(
    "LJSpeech: metadata.csv of id|text|text beside wavs",
    Opening(
        meaning="crude",
        also=("video caption",),
        splits={"train": 3},
        may_refuse="sounds may be asked about",
    ),
)
def lj_speech(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(3):
        (root / "wavs").mkdir(exist_ok=True)
        (root / "wavs" / f"LJ001-{n:04d}.wav").write_bytes(
            b"RIFF\x24\0\0\0WAVEfmt " + bytes(60)
        )
        rows.append(f"LJ001-{n:04d}|{caption(n)}|{caption(n)}\n")
    write(root / "metadata.csv", "".join(rows))


# Questions about images.


@layout(
    "VizWiz: val.json of image, question and answers beside val",
    Opening(
        path="val.json",
        meaning="vqa",
        splits={"train": 6},
        samples={"train": (asked(0), asked(5))},
    ),
)
def vizwiz(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(6):
        draw(root / "val" / f"VizWiz_val_{n:08d}.jpg", n, rng)
        said = [{"answer": answer(n), "answer_confidence": "yes"}] * 3
        row = {
            "image": f"VizWiz_val_{n:08d}.jpg",
            "question": question(n),
            "answers": said,
        }
        rows.append(row | {"answer_type": "other", "answerable": 1})
    dump(root / "val.json", rows)


@layout(
    "CLEVR: questions/CLEVR_train_questions.json, images/train/CLEVR_train_000000.png",
    Opening(
        meaning="vqa",
        splits={"train": 6, "val": 2},
        samples={"train": (asked(0), asked(5)), "val": (asked(10),)},
    ),
)
def clevr(root: Path, rng: random.Random) -> None:
    for part, numbers in _PARTS:
        rows = []
        for n in numbers:
            name = f"CLEVR_{part}_{n:06d}.png"
            draw(root / "images" / part / name, n, rng)
            row = {"image_filename": name, "question": question(n), "answer": answer(n)}
            rows.append(
                row | {"split": part, "program": [{"function": "scene", "inputs": []}]}
            )
        whole = {"info": {"split": part}, "questions": rows}
        dump(root / "questions" / f"CLEVR_{part}_questions.json", whole)


@layout(
    "A-OKVQA: image_id, question, choices, correct_choice_idx, direct_answers",
    Opening(
        path="aokvqa_v1p0_train.json",
        meaning="choice",
        splits={"train": 6},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),),
                    question=question(0),
                    choices=(answer(0), answer(1)),
                    right=1,
                ),
            )
        },
        left_out=("rationales",),
    ),
)
def aokvqa(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(6):
        draw(root / "train2017" / f"{n:012d}.jpg", n, rng)
        row = {
            "split": "train",
            "image_id": n,
            "question_id": f"q{n}",
            "question": question(n),
        }
        row |= {"choices": [answer(n), answer(n + 1)], "correct_choice_idx": 1}
        rows.append(
            row | {"direct_answers": [answer(n + 1)], "rationales": ["It is so."]}
        )
    dump(root / "aokvqa_v1p0_train.json", rows)


@layout(
    "jsonl of prompt and response about one image",
    Opening(
        path="pairs.jsonl",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0, before="<image>"),)},
    ),
)
def prompt_response(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append(
            {"image": f"images/{n}.jpg", "prompt": question(n), "response": answer(n)}
        )
    lines(root / "pairs.jsonl", rows)


@layout(
    "questions with lettered choices A to D, which no type takes unasked",
    Opening(
        path="choices.csv",
        meaning="crude",
        splits={"train": 6},
        samples={
            "train": (Want(images=(hash_of(0),), texts=(question(0), answer(1), "B")),)
        },
        left_out=("items",),
    ),
)
def lettered_choices(root: Path, rng: random.Random) -> None:
    rows: list[Any] = [("image", "question", "A", "B", "C", "D", "answer")]
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append(
            (f"images/{n}.jpg", question(n), *(answer(n + i) for i in range(4)), "B")
        )
    table(root / "choices.csv", rows)


# Conversations.


@layout(
    "LLaVA pretraining: conversations, and a second JSON of captions and URLs",
    Opening(refuse="two files of rows of two kinds", says=("blip_laion.json",)),
    Opening(
        path="blip_laion.json",
        meaning="conversation",
        splits={"train": 6},
        samples={"train": (talked(0), talked(5))},
    ),
)
def llava_pretrain(root: Path, rng: random.Random) -> None:
    rows, meta = [], []
    for n in range(6):
        name = f"{n // 3:05d}/{n:09d}.jpg"
        draw(root / "images" / name, n, rng)
        rows.append({"id": f"{n:09d}", "image": name, "conversations": llava_turns(n)})
        meta.append(
            {
                "id": f"{n:09d}",
                "image": name,
                "blip_caption": caption(n),
                "url": "http://a.b",
            }
        )
    dump(root / "blip_laion.json", rows)
    dump(root / "blip_laion_meta.json", meta)


@layout(
    "ShareGPT with a system text beside the turns",
    Opening(
        path="chat.json",
        meaning="text-chat",
        splits={"train": 4},
        samples={
            "train": (
                Want(
                    turns=(
                        ("system", "Be kind."),
                        ("user", question(0)),
                        ("assistant", answer(0)),
                    )
                ),
            )
        },
    ),
)
def sharegpt_system(root: Path, rng: random.Random) -> None:
    rows = [
        {"system": "Be kind.", "conversations": llava_turns(n, "")} for n in range(4)
    ]
    dump(root / "chat.json", rows)


@layout(
    "OpenAI messages of text in split parts of jsonl",
    Opening(
        meaning="text-chat",
        splits={"train": 4, "val": 2},
        samples={"train": (chatted(0),), "val": (chatted(11),)},
    ),
)
def openai_messages(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train", range(4)), ("valid", range(10, 12))):
        lines(root / f"{part}.jsonl", [{"messages": chat_turns(n)} for n in numbers])


@layout(
    "Dolly: instruction, context, response, category",
    Opening(
        path="dolly.jsonl",
        meaning="text-chat",
        splits={"train": 4},
        samples={
            "train": (
                Want(
                    turns=(
                        ("user", f"{question(0)}\nOn shelves."),
                        ("assistant", answer(0)),
                    )
                ),
            )
        },
        left_out=("category",),
    ),
)
def dolly(root: Path, rng: random.Random) -> None:
    rows = [
        {
            "instruction": question(n),
            "context": "On shelves." if n % 2 == 0 else "",
            "response": answer(n),
            "category": "open_qa",
        }
        for n in range(4)
    ]
    lines(root / "dolly.jsonl", rows)


@layout(
    "OpenOrca: id, system_prompt, question, response",
    Opening(
        path="orca.parquet",
        meaning="text-chat",
        splits={"train": 4},
        samples={
            "train": (
                Want(
                    turns=(
                        ("system", "Be brief."),
                        ("user", question(0)),
                        ("assistant", answer(0)),
                    )
                ),
            )
        },
    ),
)
def open_orca(root: Path, rng: random.Random) -> None:
    rows = [
        {
            "id": f"flan.{n}",
            "system_prompt": "Be brief.",
            "question": question(n),
            "response": answer(n),
        }
        for n in range(4)
    ]
    parquet(root / "orca.parquet", rows)


@layout(
    "GSM8K: question and answer in split parts",
    Opening(
        meaning="text-chat",
        splits={"train": 4, "test": 2},
        samples={"train": (chatted(0),), "test": (chatted(10),)},
    ),
    Opening(path="train.csv", meaning="text-chat", splits={"train": 4}),
)
def gsm8k(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train", range(4)), ("test", range(10, 12))):
        rows = [("question", "answer"), *((question(n), answer(n)) for n in numbers)]
        table(root / f"{part}.csv", rows)


@layout(
    "a jsonl of conversations without a placeholder in any of them",
    Opening(
        path="chat.jsonl",
        meaning="conversation",
        splits={"train": 4},
        samples={"train": (talked(0, before="<image>"),)},
    ),
)
def no_placeholders(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(4):
        draw(root / f"{n}.jpg", n, rng)
        rows.append({"image": f"{n}.jpg", "conversations": llava_turns(n, "")})
    lines(root / "chat.jsonl", rows)


# Preferences.


@layout(
    "UltraFeedback binarized: prompt, chosen and rejected as turns, train_prefs and test_prefs",
    Opening(
        meaning="preference",
        splits={"train_prefs": 4, "test_prefs": 2},
        samples={
            "train_prefs": (Want(texts=(question(0), answer(0), "surely not 0")),)
        },
        not_splits=("train",),
    ),
)
def ultrafeedback(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train_prefs", range(4)), ("test_prefs", range(10, 12))):
        rows = []
        for n in numbers:
            worse = [
                chat_turns(n)[0],
                {"role": "assistant", "content": f"surely not {n}"},
            ]
            row = {"prompt": question(n), "chosen": chat_turns(n), "rejected": worse}
            rows.append(
                row
                | {
                    "messages": chat_turns(n),
                    "score_chosen": 8.0,
                    "score_rejected": 2.0,
                }
            )
        parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows)


@layout(
    "LLaMA-Factory: conversations, with chosen and rejected as one turn each",
    Opening(
        path="rlhf_v.json",
        meaning="preference",
        splits={"train": 4},
        samples={
            "train": (
                Want(
                    images=(hash_of(0),), texts=(question(0), answer(0), "surely not 0")
                ),
            )
        },
    ),
)
def factory_preferences(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(4):
        draw(root / "pictures" / f"{n}.jpg", n, rng)
        row: dict[str, Any] = {"conversations": llava_turns(n, "<image>")[:1]}
        row |= {"chosen": {"from": "gpt", "value": answer(n)}}
        row |= {"rejected": {"from": "gpt", "value": f"surely not {n}"}}
        rows.append(row | {"images": [f"pictures/{n}.jpg"]})
    dump(root / "rlhf_v.json", rows)


@layout(
    "HH-RLHF: chosen and rejected as texts without a prompt",
    Opening(
        path="hh.jsonl",
        meaning="preference",
        splits={"train": 4},
        samples={"train": (Want(texts=(answer(0), "surely not 0")),)},
    ),
)
def hh_rlhf(root: Path, rng: random.Random) -> None:
    rows = [{"chosen": answer(n), "rejected": f"surely not {n}"} for n in range(4)]
    lines(root / "hh.jsonl", rows)


# Documents.


@layout(
    "MMC4: text_list, and image_info with the text that each image belongs to",
    Opening(
        path="docs.jsonl",
        meaning="interleaved",
        splits={"train": 4},
        samples={
            "train": (
                Want(
                    images=(hash_of(0), hash_of(20)),
                    sequence=(
                        caption(0),
                        f"#{hash_of(0)}",
                        "then 0",
                        f"#{hash_of(20)}",
                        "and so on",
                    ),
                ),
            )
        },
    ),
)
def mmc4(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(4):
        info = []
        for place, number in ((1, n), (2, n + 20)):
            draw(root / "images" / f"{number}.png", number, rng)
            info.append({"image_name": f"{number}.png", "matched_text_index": place})
        texts = [caption(n), f"then {n}", "and so on"]
        rows.append({"url": "http://a.example", "text_list": texts, "image_info": info})
    lines(root / "docs.jsonl", rows)


@layout(
    "documents of which all images are null in some rows",
    Opening(
        path="docs.parquet",
        meaning="interleaved",
        splits={"train": 4},
        samples={
            "train": (
                Want(images=(hash_of(0),), sequence=(caption(0), f"#{hash_of(0)}")),
            )
        },
    ),
)
def documents_without_images(root: Path, rng: random.Random) -> None:
    rows = [
        {
            "images": [None, struct(n, rng) if n % 2 == 0 else None],
            "texts": [caption(n), None if n % 2 == 0 else "the end"],
        }
        for n in range(4)
    ]
    parquet(root / "docs.parquet", rows)


# Videos.


@layout(
    "WebVid with its videos: videoid names the file, name is the caption",
    Opening(
        meaning="video caption",
        splits={"train": 3},
        samples={"train": (Want(videos=1, caption=caption(0)),)},
        may_refuse="a column called name may be asked about",
    ),
)
def webvid_files(root: Path, rng: random.Random) -> None:
    rows: list[Any] = [("videoid", "name")]
    for n in range(3):
        film(root / "videos" / f"{1000 + n}.mp4", n)
        rows.append((1000 + n, caption(n)))
    table(root / "results.csv", rows)


@layout(
    "videos with a .txt beside each",
    Opening(
        meaning="video caption",
        splits={"train": 3},
        samples={"train": (Want(videos=1, caption=caption(0)),)},
    ),
)
def videos_with_texts(root: Path, rng: random.Random) -> None:
    for n in range(3):
        film(root / f"{n}.mp4", n)
        write(root / f"{n}.txt", caption(n))


# Files of rows in several spellings.


@layout(
    "Parquet with an image as bytes called jpg, and a text called txt",
    Opening(
        path="pairs.parquet",
        meaning="caption",
        splits={"train": 4},
        samples={"train": (captioned(0),)},
    ),
)
def parquet_of_parts(root: Path, rng: random.Random) -> None:
    parquet(
        root / "pairs.parquet",
        [{"jpg": encoded(n, rng), "txt": caption(n)} for n in range(4)],
    )


@layout(
    "Parquet with dictionaries for texts that repeat",
    Opening(
        path="labels.parquet",
        meaning="classification",
        splits={"train": 6},
        samples={"train": (labelled(0, "cat"), labelled(5, "dog"))},
    ),
)
def parquet_dictionary(root: Path, rng: random.Random) -> None:
    rows = [
        {"image": encoded(n, rng), "label": ("cat", "dog")[n % 2]} for n in range(6)
    ]
    schema = pa.schema(
        [("image", pa.binary()), ("label", pa.dictionary(pa.int32(), pa.string()))]
    )
    parquet(root / "labels.parquet", rows, schema)


@layout(
    "Parquet on the hub with classes, in one folder data",
    Opening(
        meaning="classification",
        splits={"train": 6, "val": 2},
        samples={"train": (labelled(0, "cat", 0),), "val": (labelled(11, "dog", 1),)},
    ),
)
def hub_classes(root: Path, rng: random.Random) -> None:
    import datasets

    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
    }
    for part, numbers in (("train", range(6)), ("validation", range(10, 12))):
        rows = [{"image": struct(n, rng), "label": n % 2} for n in numbers]
        hub_parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows, features)
    write(root / "README.md", "---\ndataset_info:\n  features: []\n---\n")


@layout(
    "a README with two configurations of files in one folder",
    Opening(
        refuse="one of two configurations has to be named", says=("small", "config")
    ),
)
def readme_of_two_configs(root: Path, rng: random.Random) -> None:
    for name, numbers in (("small", range(3)), ("large", range(6))):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(root / f"{name}.parquet", rows)
    configs = "".join(
        f"- config_name: {name}\n  data_files: {name}.parquet\n"
        for name in ("small", "large")
    )
    write(root / "README.md", f"---\nconfigs:\n{configs}---\n")


@layout(
    "rows whose column split says which part they are of, in lines of JSON",
    Opening(
        path="all.jsonl",
        meaning="text",
        splits={"train": 4, "val": 2},
        samples={
            "train": (Want(texts=(caption(0),)),),
            "val": (Want(texts=(caption(4),)),),
        },
        not_splits=("test",),
    ),
)
def split_in_lines(root: Path, rng: random.Random) -> None:
    rows = [
        {"text": caption(n), "split": "train" if n < 4 else "validation"}
        for n in range(6)
    ]
    lines(root / "all.jsonl", rows)


@layout(
    "dataset_coco.json of Karpathy: images of val2014 in restval, val and test",
    Opening(
        meaning="caption",
        splits={"train": 3, "restval": 2, "val": 1, "test": 1},
        samples={
            "train": (captioned(0),),
            "restval": (captioned(3),),
            "test": (captioned(6),),
        },
    ),
)
def karpathy_coco(root: Path, rng: random.Random) -> None:
    parts = ("train", "train", "train", "restval", "restval", "val", "test")
    images = []
    for n, part in enumerate(parts):
        folder = "train2014" if part == "train" else "val2014"
        name = f"COCO_{folder}_{n:012d}.jpg"
        draw(root / folder / name, n, rng)
        said = [{"raw": caption(n), "imgid": n}]
        row = {"filepath": folder, "filename": name, "sentences": said, "split": part}
        images.append(row)
    dump(root / "dataset_coco.json", {"images": images, "dataset": "coco"})


@layout(
    "rows with a split whose images all lie in train_images",
    Opening(
        meaning="caption",
        splits={"train": 4, "val": 1, "test": 1},
        samples={
            "train": (captioned(0),),
            "val": (captioned(4),),
            "test": (captioned(5),),
        },
    ),
)
def rows_in_train_images(root: Path, rng: random.Random) -> None:
    parts = ("train", "train", "train", "train", "val", "test")
    rows = []
    for n, part in enumerate(parts):
        draw(root / "train_images" / f"{n}.jpg", n, rng)
        rows.append(
            {"image": f"train_images/{n}.jpg", "caption": caption(n), "split": part}
        )
    dump(root / "annotations.json", {"images": rows})


@layout(
    "LLaVA-1.5 mix665k: one JSON over coco/train2017, gqa, vg and textvqa/train_images",
    Opening(
        meaning="conversation",
        splits={"train": 8},
        samples={"train": (talked(0), talked(1), talked(2), talked(7))},
        not_splits=("val", "test"),
    ),
)
def llava_mix_of_parts(root: Path, rng: random.Random) -> None:
    folders = ("coco/train2017", "gqa/images", "vg/VG_100K", "textvqa/train_images")
    rows = []
    for n in range(8):
        name = f"{folders[n % 4]}/{n}.jpg"
        draw(root / name, n, rng)
        rows.append({"id": str(n), "image": name, "conversations": llava_turns(n)})
    dump(root / "llava_v1_5_mix665k.json", rows)


@layout(
    "FER2013 with images: a column Usage of Training, PublicTest and PrivateTest",
    Opening(
        meaning="caption",
        splits={"train": 4, "PublicTest": 1, "PrivateTest": 1},
        samples={"train": (captioned(0),), "PrivateTest": (captioned(5),)},
        not_splits=("val", "test"),
    ),
)
def column_usage(root: Path, rng: random.Random) -> None:
    usage = (
        "Training",
        "Training",
        "Training",
        "Training",
        "PublicTest",
        "PrivateTest",
    )
    rows = [("image", "caption", "Usage")]
    for n, part in enumerate(usage):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append((f"{n}.jpg", caption(n), part))
    table(root / "labels.csv", rows)


@layout(
    "CelebA: a column partition of 0, 1 and 2",
    Opening(refuse="numbers do not say which split part they mean", says=("split_by",)),
)
def column_partition(root: Path, rng: random.Random) -> None:
    rows: list[tuple[Any, ...]] = [("image_id", "caption", "partition")]
    for n, part in enumerate((0, 0, 0, 0, 1, 2)):
        draw(root / "img_align_celeba" / f"{n:06d}.jpg", n, rng)
        rows.append((f"{n:06d}.jpg", caption(n), part))
    table(root / "list_eval_partition.csv", rows)


@layout(
    "a column is_train of 1 and 0",
    Opening(
        meaning="caption",
        splits={"train": 4, "test": 2},
        samples={"train": (captioned(0),), "test": (captioned(5),)},
        not_splits=("val",),
    ),
)
def column_is_train(root: Path, rng: random.Random) -> None:
    rows: list[tuple[Any, ...]] = [("image", "caption", "is_train")]
    for n in range(6):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append((f"{n}.jpg", caption(n), int(n < 4)))
    table(root / "labels.csv", rows)


@layout(
    "a split that is misspelled in a row: tarin",
    Opening(
        meaning="caption",
        splits={"train": 3, "tarin": 1, "val": 2},
        samples={"train": (captioned(0),), "val": (captioned(4),)},
        left_out=("tarin",),
    ),
)
def column_misspelled(root: Path, rng: random.Random) -> None:
    rows = [("image", "caption", "split")]
    for n, part in enumerate(("train", "train", "train", "tarin", "val", "val")):
        draw(root / "images" / f"{n}.jpg", n, rng)
        rows.append((f"{n}.jpg", caption(n), part))
    table(root / "labels.csv", rows)


@layout(
    "classes in folders, and a table of names and split parts alone",
    Opening(
        meaning="classification",
        splits={"train": 4, "test": 2},
        samples={"train": (labelled(0, "cat", 0),), "test": (labelled(5, "dog", 1),)},
        not_splits=("val",),
    ),
)
def classes_with_splits(root: Path, rng: random.Random) -> None:
    rows = [("filename", "split")]
    for n in range(6):
        name = f"{('cat', 'dog')[n % 2]}/{n}.jpg"
        draw(root / name, n, rng)
        rows.append((name, "train" if n < 4 else "test"))
    table(root / "splits.csv", rows)


@layout(
    "README.md whose pattern for training takes the held-out file too",
    Opening(refuse="the pattern and the name of a file contradict", says=("held out",)),
)
def readme_takes_all(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train", range(4)), ("validation", range(10, 12))):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(root / "data" / f"{part}-00000-of-00001.parquet", rows)
    write(
        root / "README.md",
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
        "    path: data/*.parquet\n  - split: validation\n    path: data/validaton-*\n---\n",
    )


@layout(
    "README.md of two configurations, of which one is the default",
    Opening(
        meaning="caption",
        splits={"train": 4},
        samples={"train": (captioned(0),)},
        left_out=("fr",),
    ),
)
def readme_default(root: Path, rng: random.Random) -> None:
    configs = ""
    for name, numbers in (("en", range(4)), ("fr", range(10, 14))):
        rows = [{"image": struct(n, rng), "caption": caption(n)} for n in numbers]
        parquet(root / name / "train-00000-of-00001.parquet", rows)
        default = "  default: true\n" if name == "en" else ""
        configs += f"- config_name: {name}\n{default}  data_files:\n"
        configs += f"  - split: train\n    path: {name}/train-*\n"
    write(root / "README.md", f"---\nconfigs:\n{configs}---\n")


@layout(
    "texts and their held-out part, of which the name says so",
    Opening(
        meaning="text",
        splits={"test": 2},
        samples={"test": (Want(texts=(caption(10),)),)},
        not_splits=("train", "val"),
    ),
)
def held_out(root: Path, rng: random.Random) -> None:
    lines(root / "texts.jsonl", [{"text": caption(n)} for n in range(4)])
    lines(root / "texts_held_out.jsonl", [{"text": caption(n)} for n in range(10, 12)])


@layout(
    "pandas' to_json: columns of an index",
    Opening(
        path="frame.json",
        meaning="text-chat",
        splits={"train": 4},
        samples={"train": (chatted(0), chatted(3))},
    ),
)
def pandas_json(root: Path, rng: random.Random) -> None:
    columns = {
        "question": {str(n): question(n) for n in range(4)},
        "answer": {str(n): answer(n) for n in range(4)},
    }
    dump(root / "frame.json", columns)


@layout(
    "captions by the name of the image, in one JSON",
    Opening(
        meaning="caption",
        splits={"train": 4},
        samples={"train": (captioned(0), captioned(3))},
    ),
)
def captions_by_name(root: Path, rng: random.Random) -> None:
    for n in range(4):
        draw(root / "images" / f"{n}.jpg", n, rng)
    dump(root / "captions.json", {f"{n}.jpg": caption(n) for n in range(4)})


@layout(
    "a metadataset that was saved as JSON",
    Opening(
        path="mix.json",
        refuse="this is a metadataset, and no samples",
        says=("metadataset",),
    ),
)
def metadataset_as_json(root: Path, rng: random.Random) -> None:
    dump(
        root / "mix.json",
        {"__module__": "energize", "__class__": "MetadatasetV2", "splits": {}},
    )


@layout(
    "base64 of images in a TSV, as OFA has it",
    Opening(
        path="pairs.tsv",
        meaning="caption",
        splits={"train": 4},
        samples={"train": (captioned(0),)},
    ),
)
def base64_tsv(root: Path, rng: random.Random) -> None:
    rows = [
        (n, caption(n), base64.b64encode(encoded(n, rng)).decode()) for n in range(4)
    ]
    table(root / "pairs.tsv", [("uniq_id", "caption", "image"), *rows], "\t")


@layout(
    "images without an extension, as caches of browsers and crawlers have them",
    Opening(
        meaning="caption",
        splits={"train": 4},
        samples={"train": (captioned(0),)},
    ),
)
def images_without_extension(root: Path, rng: random.Random) -> None:
    rows = []
    for n in range(4):
        (root / "blobs").mkdir(exist_ok=True)
        (root / "blobs" / f"f{n}a").write_bytes(encoded(n, rng))
        rows.append({"image": f"blobs/f{n}a", "caption": caption(n)})
    lines(root / "captions.jsonl", rows)


# Tars.


@layout(
    "tars of jpg and json with a conversation",
    Opening(
        meaning="conversation",
        splits={"train": 4},
        samples={"train": (talked(0),)},
    ),
)
def tars_of_conversations(root: Path, rng: random.Random) -> None:
    members = []
    for n in range(4):
        members.append((f"{n:04d}.jpg", encoded(n, rng)))
        members.append((f"{n:04d}.json", text_of({"conversations": llava_turns(n)})))
    tarball(root / "chat-0000.tar", members)


@layout(
    "tars whose names end in the split part",
    Opening(
        meaning="caption",
        splits={"train": 2, "test": 2},
        samples={"train": (captioned(0),), "test": (captioned(10),)},
        not_splits=("val",),
    ),
)
def tars_by_name(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train", range(2)), ("test", range(10, 12))):
        members = []
        for n in numbers:
            members += [
                (f"{n:04d}.png", encoded(n, rng, ".png")),
                (f"{n:04d}.txt", text_of(caption(n))),
            ]
        tarball(root / f"photos_{part}.tar", members)


@layout(
    "tars in two folders of the same names, as two datasets side by side",
    Opening(refuse="two folders have data of their own", says=("config", "folders")),
)
def two_folders_of_tars(root: Path, rng: random.Random) -> None:
    for folder, start in (("web", 0), ("books", 10)):
        members = []
        for n in range(start, start + 2):
            members += [
                (f"{n:04d}.jpg", encoded(n, rng)),
                (f"{n:04d}.txt", text_of(caption(n))),
            ]
        tarball(root / folder / "00000.tar", members)


# What is packed, empty or broken.


@layout(
    "a folder with a zip alone", Opening(refuse="it is packed", says=("images.zip",))
)
def zip_alone(root: Path, rng: random.Random) -> None:
    with zipfile.ZipFile(root / "images.zip", "w") as packed:
        packed.writestr("0.jpg", encoded(0, rng))


@layout(
    "a jsonl of no bytes",
    Opening(path="a.jsonl", refuse="it has no rows", says=("no row",)),
)
def empty_jsonl(root: Path, rng: random.Random) -> None:
    write(root / "a.jsonl", "")


@layout("a folder without a file", Opening(refuse="there is nothing"))
def empty_folder(root: Path, rng: random.Random) -> None:
    root.mkdir(exist_ok=True)


@layout(
    "images that are pages of HTML, as failed downloads are",
    Opening(refuse="they are no images", says=("cannot identify", "decoded")),
)
def pages_for_images(root: Path, rng: random.Random) -> None:
    for n in range(4):
        write(root / f"{n}.jpg", "<html>404</html>")
        write(root / f"{n}.txt", caption(n))


@layout(
    "a column of texts and numbers",
    Opening(path="a.jsonl", refuse="types are mixed", says=("'text'", "expected str")),
)
def mixed_types(root: Path, rng: random.Random) -> None:
    lines(root / "a.jsonl", [{"text": value} for value in ("a", 5, ["x"], "b")])


@layout(
    "a Parquet file that was cut",
    Opening(path="a.parquet", refuse="it is cut", says=("Parquet",)),
)
def cut_parquet(root: Path, rng: random.Random) -> None:
    parquet(root / "a.parquet", [{"text": caption(n)} for n in range(9)])
    data = (root / "a.parquet").read_bytes()
    (root / "a.parquet").write_bytes(data[: len(data) // 2])


@layout(
    "a list of lists in place of rows",
    Opening(path="a.json", refuse="an array of arrays has no columns", says=("array",)),
)
def lists_of_lists(root: Path, rng: random.Random) -> None:
    write(root / "a.json", json.dumps([["a", 1], ["b", 2]]))


# Folders of samples, lists of questions, and files in other folders.


@layout(
    "ScienceQA: problems.json by id, and the image of an id in train/ID/image.png",
    Opening(refuse="folders are ids, and no class", says=("probably not classes",)),
)
def scienceqa_folders(root: Path, rng: random.Random) -> None:
    problems = {}
    for part, numbers in (
        ("train", range(6)),
        ("val", range(10, 12)),
        ("test", range(20, 22)),
    ):
        for n in numbers:
            draw(root / part / str(n) / "image.png", n, rng)
            problems[str(n)] = {
                "question": question(n),
                "choices": [answer(n), "none"],
                "answer": 0,
                "image": "image.png",
                "split": part,
            }
    dump(root / "problems.json", problems)


@layout(
    "IconQA: a folder for each sample, with image.png and data.json",
    Opening(
        meaning="choice",
        splits={"train": 6, "val": 2},
        samples={
            "train": (
                Want(
                    images=(hash_of(5),),
                    question=question(5),
                    choices=(answer(5), "none"),
                    right=0,
                ),
            )
        },
        not_splits=("test",),
    ),
)
def iconqa_folders(root: Path, rng: random.Random) -> None:
    for part, numbers in _PARTS:
        for n in numbers:
            folder = root / "iconqa" / part / "choose_txt" / str(n)
            draw(folder / "image.png", n, rng)
            row = {"question": question(n), "choices": [answer(n), "none"], "answer": 0}
            dump(folder / "data.json", row)


@layout(
    "OCR-VQA: an object by id with lists of questions and answers",
    Opening(
        meaning="vqa",
        splits={"train": 8},
        samples={"train": (asked(0), asked(3))},
        left_out=("title",),
    ),
)
def ocrvqa_lists(root: Path, rng: random.Random) -> None:
    books = {}
    for n in range(4):
        draw(root / "images" / f"0{n}00X.jpg", n, rng)
        books[f"0{n}00X"] = {
            "imageURL": f"http://books.example/0{n}00X.jpg",
            "questions": [question(n), "Is this a book?"],
            "answers": [answer(n), "yes"],
            "title": caption(n),
        }
    dump(root / "dataset.json", books)


@layout(
    "MathVista: free answers and choices in one table",
    Opening(
        path="rows.parquet",
        meaning="vqa",
        splits={"train": 6},
        samples={"train": (asked(0), asked(1))},
        left_out=("choices",),
    ),
)
def choices_of_some_rows(root: Path, rng: random.Random) -> None:
    rows = [
        {
            "decoded_image": struct(n, rng),
            "question": question(n),
            "choices": [answer(n), "none"] if n % 2 else None,
            "answer": answer(n),
        }
        for n in range(6)
    ]
    parquet(root / "rows.parquet", rows)


@layout(
    "letters of choices and free answers in one table",
    Opening(
        path="rows.parquet",
        refuse="letters are no answers without choices",
        says=("has choices in 3 of the 6 rows",),
    ),
)
def letters_of_some_rows(root: Path, rng: random.Random) -> None:
    rows = [
        {
            "image": struct(n, rng),
            "question": question(n),
            "choices": [answer(n), "none"] if n % 2 else None,
            "answer": "A" if n % 2 else answer(n),
        }
        for n in range(6)
    ]
    parquet(root / "rows.parquet", rows)


@layout(
    "DocVQA: rows name documents/ID.png, and images are in spdocvqa_images",
    Opening(
        meaning="vqa",
        splits={"train": 4, "val": 2},
        samples={"train": (asked(0, answer(0), "it"),)},
        left_out=("spdocvqa_images",),
        holds=("spdocvqa_images",),
    ),
)
def docvqa_moved(root: Path, rng: random.Random) -> None:
    for part, numbers in (("train", range(4)), ("val", range(10, 12))):
        rows = []
        for n in numbers:
            draw(root / "spdocvqa_images" / f"doc{n:04d}_1.png", n, rng)
            rows.append(
                {
                    "questionId": n,
                    "question": question(n),
                    "image": f"documents/doc{n:04d}_1.png",
                    "answers": [answer(n), "it"],
                    "data_split": part,
                }
            )
        name = f"{part}_v1.0_withQT.json"
        dump(root / "spdocvqa_qas" / name, {"dataset_split": part, "data": rows})
