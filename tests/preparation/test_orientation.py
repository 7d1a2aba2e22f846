"""Photographs on their side: turned if they are loose, as dataset.yaml says if
prepared."""

from __future__ import annotations

import logging

import PIL.Image
import pytest
import yaml

from energize import (
    DefaultTaskEncoder,
    SampleDecoder,
    convert,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from tests.support.images import encoded, picture

STORED = (3, 20, 40)
UPRIGHT = (3, 40, 20)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setattr("energize.core.ignored._logged", set())


def photograph(image_format: str = "JPEG") -> bytes:
    exif = PIL.Image.Exif()
    exif[274] = 6
    return encoded(picture(40, 20), image_format, exif=exif)


def shapes(path, **options) -> set[tuple[int, ...]]:
    dataset = get_val_dataset(path, split_part="train", batch_size=None, **options)
    return {tuple(sample.image.shape) for sample in dataset}


def photographs(folder, count: int = 4):
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(photograph())
        (folder / f"{number}.txt").write_text(f"a photograph {number}")
    return folder


def packed(folder, told: str = ""):
    samples = [{"__key__": f"{n}", "jpg": photograph(), "txt": "a"} for n in range(4)]
    write_shards(samples, folder)
    prepare(
        folder, split_ratios={"train": 1}, sample_type="CaptioningSample", workers=1
    )
    with (folder / ".nv-meta" / "dataset.yaml").open("a") as file:
        file.write(told)
    return folder


def test_loose_photographs_are_upright_and_stay_so_when_they_are_converted(tmp_path):
    loose = photographs(tmp_path / "photographs")
    convert(loose, tmp_path / "shards")
    assert shapes(loose) == shapes(tmp_path / "shards") == {UPRIGHT}
    text = (tmp_path / "shards" / ".nv-meta" / "dataset.yaml").read_text()
    assert yaml.safe_load(text)["orient"] is True
    one, other = (
        get_train_dataset(each, batch_size=2) for each in (loose, tmp_path / "shards")
    )
    assert one.describe() == other.describe()


def test_tables_and_tars_that_nobody_prepared_are_loose_too(tmp_path):
    samples = [{"__key__": f"{n}", "JPG": photograph(), "txt": "a"} for n in range(4)]
    write_shards(samples, tmp_path / "tars")
    assert shapes(tmp_path / "tars") == {UPRIGHT}
    assert shapes(packed(tmp_path / "prepared")) == {STORED}


@pytest.mark.parametrize(
    ("told", "decoder", "expected"),
    [
        ("", None, STORED),
        ("orient: true\n", None, UPRIGHT),
        ("orient: false\n", None, STORED),
        ("", True, UPRIGHT),
        ("orient: true\n", False, STORED),
    ],
)
def test_the_decoder_wins_over_dataset_yaml_which_wins_over_the_default(
    told, decoder, expected, tmp_path
):
    folder = packed(tmp_path / "shards", told)
    encoder = DefaultTaskEncoder(decoder=SampleDecoder(orient=decoder))
    assert shapes(folder, task_encoder=encoder) == {expected}
    masked = SampleDecoder(fields={"image": SampleDecoder(orient=decoder)})
    assert shapes(folder, task_encoder=DefaultTaskEncoder(decoder=masked)) == {expected}


def test_a_type_that_an_entry_names_keeps_what_dataset_yaml_says_of_decoding(tmp_path):
    folder = packed(tmp_path / "shards", "orient: true\n")
    told = {"sample_type": "ImageSample", "field_map": {"image": "jpg"}}
    assert shapes(folder, **told) == {UPRIGHT}


@pytest.mark.parametrize("loose", [True, False])
def test_the_first_rotated_image_is_named_once_for_all_workers(loose, tmp_path, caplog):
    caplog.set_level(logging.INFO, "energize")
    folder = photographs(tmp_path / "a", 8) if loose else packed(tmp_path / "a")
    loader = get_loader(get_train_dataset(folder, batch_size=1), num_workers=2)
    for _, _ in zip(range(8), loader, strict=False):
        pass
    loader.close()
    [line] = [each for each in caplog.records if "EXIF" in each.getMessage()]
    assert f"{folder}, sample '" in line.getMessage()
    assert (
        "turned upright" if loose else "orient: true in dataset.yaml"
    ) in line.getMessage()
