"""LLaVA-NeXT's YAML: which samples an epoch has, against the rules of its loader."""

from __future__ import annotations

import logging
import math
from collections import Counter

import pytest

from energize import get_train_dataset
from energize.errors import DatasetNotFoundError, MetadatasetError
from tests.recipes.files import Answers, annotations, answers, epoch

SIZES = {"first.json": 25, "end.json": 33, "random.jsonl": 41, "all.json": 10}


@pytest.fixture
def data(tmp_path):
    """Return a folder with annotation files, and the rows of each file."""
    images = tmp_path / "images"
    return tmp_path, {
        name: annotations(tmp_path / name, count, images=images)
        for name, count in SIZES.items()
    }


def write(folder, *entries):
    """Write a recipe of pairs of a file and a strategy."""
    lines = ["datasets:"]
    for name, strategy in entries:
        lines.append(f"  - json_path: {folder}/{name}")
        if strategy is not None:
            lines.append(f"    sampling_strategy: {strategy}")
    file = folder / "onevision.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def read(file, folder, **options):
    images = folder / "images"
    return get_train_dataset(
        file, batch_size=1, image_folder=images, task_encoder=Answers(), **options
    )


def chosen(rows, strategy):
    """Return the rows that LLaVA-NeXT's loader takes, and how many it draws."""
    where, _, amount = strategy.partition(":")
    if not amount:
        return rows, None
    if "%" in amount:
        count = math.ceil(int(amount.split("%")[0]) * len(rows) / 100)
    else:
        count = int(amount)
    if where == "random":
        return rows, min(count, len(rows))
    return (rows[:count] if where == "first" else rows[-count:]), None


@pytest.mark.parametrize("amount", ["1", "10%", "7%", "24", "1000", "100%"])
def test_an_epoch_has_the_samples_that_llava_takes(data, amount):
    folder, rows = data
    strategies = {
        "first.json": f"first:{amount}",
        "end.json": f"end:{amount}",
        "random.jsonl": f"random:{amount}",
        "all.json": "all",
    }
    taken = {name: chosen(rows[name], each) for name, each in strategies.items()}
    sizes = {name: number or len(part) for name, (part, number) in taken.items()}
    got = epoch(read(write(folder, *strategies.items()), folder), sum(sizes.values()))
    assert Counter(answer.split()[0] for answer in got) == Counter(
        {name.partition(".")[0]: size for name, size in sizes.items()}
    )
    assert len(set(got)) == len(got)
    fixed = [part for part, number in taken.values() if number is None]
    expected = sorted(answer for part in fixed for answer in answers(part))
    assert [answer for answer in got if not answer.startswith("random")] == expected


def test_random_samples_are_the_same_in_every_epoch_and_run(data, caplog):
    folder, _ = data
    file = write(folder, ("random.jsonl", "random:20"))
    with caplog.at_level(logging.INFO, "energize"):
        dataset = read(file, folder)
    first = epoch(dataset, 20)
    assert epoch(dataset, 20, 20) == first
    assert epoch(read(file, folder), 20) == first
    assert "without a seed" in caplog.text


def test_a_brace_list_is_all_files(data):
    folder, rows = data
    got = epoch(read(f"{folder}/{{first,all}}.json", folder), 35)
    assert got == sorted(answers(rows["first.json"] + rows["all.json"]))


def test_all_faults_are_named_with_their_lines(data):
    folder, _ = data
    file = write(
        folder, ("first.json", "firs:10%"), ("all.json", "end:0"), ("gone.json", "all")
    )
    file.write_text(
        file.read_text().replace("  - json_path", "  - jsn_path: x\n    json_path", 1)
    )
    with pytest.raises(MetadatasetError) as raised:
        read(file, folder)
    message = str(raised.value)
    assert "onevision.yaml:2 (datasets[0].jsn_path): unknown key 'jsn_path'" in message
    assert "did you mean 'json_path'? LLaVA-NeXT ignores the key" in message
    assert "onevision.yaml:4 (datasets[0].sampling_strategy): expected all" in message
    assert "none of 10 samples is left" in message
    assert "onevision.yaml:7 (datasets[2].json_path)" in message


def test_a_missing_file_is_not_found(data):
    folder, _ = data
    with pytest.raises(DatasetNotFoundError, match=r"onevision.yaml:2 \(datasets\[0\]"):
        read(write(folder, ("gone.json", "all")), folder)


def test_an_unknown_option_is_an_error(data):
    folder, _ = data
    file = write(folder, ("all.json", "all"))
    with pytest.raises(MetadatasetError, match="unknown recipe option 'image_foldr'"):
        read(file, folder, recipe={"image_foldr": "x"})
