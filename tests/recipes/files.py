"""Annotation files and images, shaped like those of public recipes."""

from __future__ import annotations

import json

import yaml
from PIL import Image

from energize import DefaultTaskEncoder


class Answers(DefaultTaskEncoder):
    """Batches are the answers of conversations, which name the file and the row."""

    decoder = None

    def batch(self, samples):
        return [sample.turns[-1].text for sample in samples]


def conversation(name, number, image):
    """Return a row as LLaVA writes it."""
    question = {"from": "human", "value": "<image>\nWhat is this?"}
    answer = {"from": "gpt", "value": f"{name} {number}"}
    return {
        "id": f"{name}{number}",
        "image": image,
        "conversations": [question, answer],
    }


def annotations(file, count, *, images, prefix=""):
    """Write a .json or .jsonl file of `count` conversations, and an image of each.

    Args:
        file: The file.
        count: Number of rows.
        images: The folder of the images.
        prefix: What the names of images in rows begin with, below `images`.
    """
    name = file.stem
    rows = []
    for number in range(count):
        image = f"{prefix}{name}_{number}.jpg"
        (images / image).parent.mkdir(parents=True, exist_ok=True)
        size = (16 + 8 * (number % 3), 16)
        Image.new("RGB", size, (number % 256, 9, 9)).save(images / image)
        rows.append(conversation(name, number, image))
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(map(json.dumps, rows))
    file.write_text(lines if file.suffix == ".jsonl" else json.dumps(rows))
    return rows


def answers(rows):
    """Return the answers of rows, as `Answers` gives them."""
    return [row["conversations"][-1]["value"] for row in rows]


def epoch(dataset, count, first=0):
    """Return the sorted answers of `count` batches from the batch `first` on."""
    batches = (dataset[number] for number in range(first, first + count))
    return sorted(answer for batch in batches for answer in batch)


def llava(folder):
    """Write a recipe of LLaVA-NeXT for a.json and b.jsonl; return it with its options."""
    entries = [
        {"json_path": f"{folder}/a.json", "sampling_strategy": "random:30%"},
        {"json_path": f"{folder}/b.jsonl", "sampling_strategy": "end:4"},
    ]
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"datasets": entries}))
    return folder / "recipe.yaml", {"image_folder": f"{folder}/images"}


def internvl(folder):
    """Write a recipe of InternVL for a.json and b.jsonl; return it with its options."""
    meta = {
        name: {
            "root": f"{folder}/images",
            "annotation": f"{folder}/{file}",
            "repeat_time": time,
        }
        for name, file, time in (("a", "a.json", 2), ("b", "b.jsonl", 0.5))
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json", {"use_data_resampling": True}


def qwen(folder):
    """Write a recipe of Qwen-VL for a.json and b.jsonl; return it with its options."""
    entry = {"annotation_path": f"{folder}/a.json", "data_path": f"{folder}/images"}
    (folder / "data_dict.json").write_text(json.dumps({"a": entry}))
    return folder / "data_dict.json", {"dataset_use": "a%50"}


def eagle(folder):
    """Write a recipe of Eagle for a.json and b.jsonl; return it with its options."""
    file, _ = internvl(folder)
    meta = json.loads(file.read_text())
    meta["a"]["weight"] = 1
    file.write_text(json.dumps(meta))
    return file, {}


def llama_factory(folder):
    """Write a run of LLaMA-Factory that validates on b.jsonl; return it."""
    columns = {"messages": "conversations", "images": "image"}
    described = {
        name: {"file_name": file, "formatting": "sharegpt", "columns": columns}
        for name, file in (("a", "a.json"), ("b", "b.jsonl"))
    }
    described["a"]["num_samples"] = 9
    (folder / "dataset_info.json").write_text(json.dumps(described))
    run = {"dataset": "a", "eval_dataset": "b", "template": "qwen2_vl"}
    run |= {"dataset_dir": str(folder), "media_dir": f"{folder}/images"}
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    return folder / "run.yaml", {}


def trl(folder):
    """Write a run of TRL with slices of a.json; return it with its options."""
    entry = {"path": "json", "data_files": f"{folder}/a.json"}
    entries = [{**entry, "split": "train[:40%]+train[-3:]"}]
    keys = {"datasets": entries, "test_split_size": 0.25}
    (folder / "trl.yaml").write_text(yaml.safe_dump(keys))
    return folder / "trl.yaml", {"image_folder": f"{folder}/images"}
