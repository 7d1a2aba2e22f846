"""Typed samples of raw ones: field maps, declared types, functions of programs and of
folders."""

from __future__ import annotations

import io
import json
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import pytest

import energize as ez
from energize.core.samples import (
    CaptioningSample,
    CrudeSample,
    ImageSample,
    InterleavedSample,
    TextSample,
    VQASample,
)
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DecodeError,
    EncoderError,
    UntrustedCodeError,
)
from energize.preparation import prepare
from energize.task.load import FolderFunction, LoadingCode, SampleLoader
from tests.support.images import encoded, picture
from tests.support.refusals import check_refusals
from tests.support.tars import write_tar

JPG = encoded(picture(), "JPEG")


@dataclass
class Masked(ez.Sample):
    image: Any
    mask: Any
    depth: Any
    size: int
    kept: bytes


def raw(**parts: Any) -> dict[str, Any]:
    origin = {
        "__key__": "d/7",
        "__dataset__": "/data/ds",
        "__shard__": "a.tar",
        "__index__": 7,
    }
    return origin | {name.replace("_", "."): data for name, data in parts.items()}


def load(
    kind: type, told: dict[str, str] | None = None, **options: Any
) -> SampleLoader:
    return SampleLoader(sample_type=kind, field_map=told, **options)


# Field maps.


def test_parts_are_chosen_by_what_a_sample_has():
    loader = load(ImageSample, {"image": "jpg,png"})
    for _ in range(2):
        assert loader(raw(png=encoded(picture(), "PNG"))).image.shape == (3, 40, 60)
        assert loader(raw(jpg=JPG, png=b"broken")).image.shape == (3, 40, 60)
    text = load(TextSample, {"text": "json[a],json[b],txt"})
    assert text(raw(json=b'{"b": "from b"}', txt=b"x")).text == "from b"
    sample = text(raw(json=b"{}", txt=b"from txt"))
    assert (sample.text, sample.__sources__[0].file_names) == (
        "from txt",
        ("d/7.json", "d/7.txt"),
    )
    # Only what is needed is decoded, and a part that is there has to be readable.
    assert (
        load(TextSample)(raw(txt=b"fine", jpg=b"broken", json=b"broken")).text == "fine"
    )
    keys = load(TextSample, {"text": "json[a][b]"})

    def call(loader, **parts):
        return lambda: loader(raw(**parts))

    png = raw(png=encoded(picture(), "PNG"))["png"]
    check_refusals(
        DataError,
        broken=(call(loader, jpg=b"x", png=png), DecodeError, "'d/7'", "part 'jpg'"),
        no_part=(call(loader, gif=JPG, txt=b""), "jpg or png", "parts gif, txt"),
        no_key=(call(keys, json=b'{"b": 1}'), "an object with the keys 'b'"),
        deeper=(call(keys, json=b'{"a": {"c": 1}}'), "json[a] is an object"),
        a_list=(call(keys, json=b'{"a": [1]}'), "json[a] is a list of 1"),
        a_text=(call(keys, json=b'{"a": "text"}'), "json[a] is a str"),
        no_JSON=(call(keys, json=b"{"), DecodeError, "part 'json'"),
    )


def test_fields_have_decoders_of_their_own():
    seg = PIL.Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3), "P")
    seg.putpalette([7, 8, 9] * 256)
    deep = PIL.Image.fromarray(np.array([[0, 300, 65535]], np.uint16))
    photo = encoded(picture(), "JPEG")
    stored = ez.SampleDecoder(image_decode="torchstored")
    own = {"mask": stored, "depth": stored, "size": len, "kept": None}
    decoder = ez.SampleDecoder(fields=own)
    told = {
        "image": "jpg",
        "mask": "mask.png",
        "depth": "d.png",
        "size": "jpg",
        "kept": "jpg",
    }
    parts = {
        "mask_png": encoded(seg, "PNG"),
        "d_png": encoded(deep, "PNG"),
        "jpg": photo,
    }
    sample = load(Masked, told, decoder=decoder)(raw(**parts))
    assert sample.mask.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert sample.depth.tolist() == [[0, 300, 65535]]
    assert (sample.image.shape, sample.size, sample.kept) == (
        (3, 40, 60),
        len(photo),
        photo,
    )
    files = ("d/7.jpg", "d/7.mask.png", "d/7.d.png")
    assert sample.__sources__[0].file_names == files
    by_part = ez.SampleDecoder(
        fields={"mask.png": ez.SampleDecoder(image_decode="stored")}
    )
    crude = load(CrudeSample, decoder=by_part)(raw(**parts))
    assert crude["mask.png"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert crude["d.png"].shape == (3, 1, 3)
    assert json.dumps(decoder.describe()) != json.dumps(by_part.describe())
    assert pickle.loads(pickle.dumps(by_part)) == by_part
    bad = ez.SampleDecoder(fields={"image": lambda data: 1 / 0})
    check_refusals(
        ConfigError,
        no_decoder=(
            lambda: ez.SampleDecoder(fields={"mask": "pil"}),
            "fields['mask']",
            "'pil'",
        ),
        fails=(
            lambda: load(ImageSample, decoder=bad)(raw(jpg=photo)),
            DecodeError,
            "'jpg'",
        ),
    )


def test_images_are_turned_when_asked_and_cut_off_values_are_said_once(
    monkeypatch, caplog
):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    lying = PIL.Image.fromarray(np.zeros((2, 3, 3), np.uint8))
    exif = PIL.Image.Exif()
    exif[274] = 6  # turned by 90 degrees
    for kind in ("JPEG", "PNG"):
        data = io.BytesIO()
        lying.save(data, kind, exif=exif)
        for orient, shape in ((False, (2, 3, 3)), (True, (3, 2, 3))):
            decoder = ez.SampleDecoder(image_decode="rgb8", orient=orient)
            assert decoder.decode("jpg", data.getvalue()).shape == shape
    deep = encoded(PIL.Image.fromarray(np.full((2, 2), 300, np.uint16)), "PNG")
    for _ in range(2):
        assert (
            int(ez.SampleDecoder(image_decode="rgb8").decode("png", deep).max()) == 255
        )
    assert caplog.text.count("fields=") == 1


def test_other_ways_to_a_value():
    undecoded = load(
        CaptioningSample, {"image": "jpg", "caption": "json[c]"}, decoder=None
    )
    sample = undecoded(raw(jpg=JPG, json=b'{"c": "x"}'))
    assert (sample.image, sample.caption) == (JPG, "x")
    of_key = load(TextSample, {"text": "__key__"})(raw(txt=b"x"))
    assert (of_key.text, of_key.__sources__[0].file_names) == ("d/7", ())
    packed = encoded_arrays(ids=np.arange(3))
    assert load(ImageSample, {"image": "npz[ids]"})(raw(npz=packed)).image.tolist() == [
        0,
        1,
        2,
    ]
    in_turn = raw(json=b"{}") | {"0.txt": b"see", "10.txt": b"end", "1.jpg": JPG}
    found = load(InterleavedSample, {"sequence": "*.*"})(in_turn).sequence
    assert [type(each).__name__ for each in found] == ["str", "Tensor", "str"]


def encoded_arrays(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_what_cannot_work_is_refused_when_it_is_made():
    def made(*arguments, **options):
        return lambda: load(*arguments, **options)

    nearest = "did you mean 'caption'"
    named, text = {"image": "jpg", "captoin": "txt"}, {"text": "txt"}
    check_refusals(
        ConfigError,
        unknown=(made(CaptioningSample, named), nearest),
        lacks=(made(CaptioningSample, {"image": "jpg"}), "no caption"),
        malformed=(made(TextSample, {"text": "json["}), "has no part to read"),
        metadata=(made(TextSample, text | {"__key__": "id"}), "__key__"),
        crude=(made(CrudeSample, text), "has no fields"),
        no_type=(made(dict), "extends Sample"),
        both=(made(TextSample, text, sample_loader=len), "remove field_map"),
        for_crude=(made(CrudeSample, sample_loader=len), "has no fields"),
        a_filter=(made(TextSample, part_filter="txt"), "or names"),
        numbers=(made(TextSample, part_filter=[1]), "or names"),
    )


# Annotations are no contracts: what cannot be collated fails where it is collated.


def test_a_value_of_another_type_than_is_declared_is_loaded():
    told = {"image": "jpg", "context": "json[q]", "answers": "json[a]"}
    sample = load(VQASample, told)(raw(jpg=JPG, json=b'{"q": 3, "a": "yes"}'))
    assert (sample.context, sample.answers) == (3, ["yes"])


# Functions in place of field maps.

CODE = """
from dataclasses import dataclass
from pathlib import Path

(Path(__file__).parent / "ran").touch()

@dataclass
class Parsed:
    text: str

def sample_loader(raw):
    return {"text": Parsed(raw["txt"]).text + ":" + ",".join(sorted(k for k in raw if k[0] != "_"))}

def part_filter(part):
    return part != "jpg"

def other(raw):
    return {"__key__": raw["__key__"] + "!", "text": raw["txt"]}
"""
NAMED = {
    "sample_loader": "sample_loader.py",
    "part_filter": "sample_loader.py:part_filter",
}


def folder(path, **named):
    write_tar(
        path / "0.tar",
        [
            (f"{i:03d}.{part}", data)
            for i in range(4)
            for part, data in (
                ("jpg", b"no image"),
                ("txt", b"text %d" % i),
                ("json", b"{}"),
            )
        ],
    )
    prepare(path, split_ratios={"train": 1}, sample_type="TextSample", workers=1)
    config = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        **named,
    }
    (path / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    (path / ".nv-meta" / "sample_loader.py").write_text(CODE)
    return path


def texts(path, **options):
    dataset = ez.get_val_dataset(path, split_part="train", batch_size=None, **options)
    return [sample.text for sample in dataset]


def test_the_program_gives_functions(tmp_path):
    def loader(parts):
        assert parts["__sources__"][0].file_names
        return {"text": parts["txt"].upper()}

    path = folder(tmp_path / "ds", **NAMED)
    plain = folder(tmp_path / "plain", field_map={"text": "txt"})
    given = {"sample_loader": loader, "part_filter": ["txt"]}
    by_folder = {name: {str(path): value} for name, value in given.items()}
    upper = [f"TEXT {i}" for i in range(4)]
    assert (
        texts(path, **given)
        == texts(path, **by_folder)
        == texts(plain, **given)
        == upper
    )
    assert texts(plain, **by_folder) == [f"text {i}" for i in range(4)]
    assert not (path / ".nv-meta" / "ran").exists()

    def returning(value):
        return lambda: texts(
            plain, sample_loader=lambda parts: value, part_filter=["txt"]
        )

    check_refusals(
        EncoderError,
        half=(
            lambda: texts(path, sample_loader=loader),
            UntrustedCodeError,
            "part_filter",
        ),
        unknown=(returning({"text": "a", "n": 1}), "the field 'n'", "'000'"),
        lacks=(returning({}), "returned no text, which TextSample needs"),
        a_text=(returning("text"), "returned a str"),
        trust=(
            lambda: texts(path, trust_code="/data"),
            ConfigError,
            "['/data'] for one",
        ),
        file=(
            lambda: texts(path, sample_loader="file.py"),
            ConfigError,
            "must be a function",
        ),
        dict=(
            lambda: texts(path, sample_loader={"a": 1}),
            ConfigError,
            "must be a function",
        ),
        filter=(lambda: texts(plain, part_filter="jpg"), ConfigError, "or names"),
    )


def test_functions_of_folders_travel_and_are_described_wherever_they_are(tmp_path):
    seen = []
    for place in ("a", "b"):
        path = folder(tmp_path / place / "ds", **NAMED)
        function, parts, _ = LoadingCode(trust_code=[path]).of(path, NAMED, None)
        again = pickle.loads(pickle.dumps(function))
        assert (again, again({"txt": "a"})) == (function, {"text": "a:txt"})
        assert parts("jpg") is False
        seen.append(
            load(TextSample, sample_loader=function, part_filter=parts).describe()
        )
    assert seen[0] == seen[1]
    assert seen[0]["sample_loader"] == "sample_loader.py:sample_loader"


def test_dataset_files_that_name_what_is_none(tmp_path):
    path = folder(tmp_path / "ds")
    (tmp_path / "outside.py").write_text("raise SystemExit")
    meta = path / ".nv-meta"
    (meta / "broken.py").write_text("1 / 0")
    (meta / "text.txt").write_text("")
    (meta / "linked.py").symlink_to(tmp_path / "outside.py")
    modules = set(sys.modules)
    typed = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}
    }
    crude = {
        "__class__": "CrudeWebdataset",
        "sample_type": {"__module__": "megatron.energon", "__class__": "CrudeSample"},
    }

    def naming(**config):
        def call():
            (meta / "dataset.yaml").write_text(json.dumps(typed | config))
            texts(path, trust_code=[path])

        return call

    outside = (UntrustedCodeError, "is outside the folder")
    listed = (DatasetError, "(part_filter")
    check_refusals(
        DatasetError,
        above=(naming(sample_loader="../../outside.py"), *outside),
        root=(naming(sample_loader="/etc/hostname:x"), *outside),
        linked=(naming(sample_loader="linked.py"), *outside),
        missing=(naming(sample_loader="none.py"), "there is no file"),
        no_such=(naming(sample_loader="sample_loader.py:none"), "'none'"),
        broken=(naming(sample_loader="broken.py"), "ZeroDivisionError"),
        text=(naming(sample_loader="text.txt"), "is not a Python file"),
        number=(naming(sample_loader=3), "(sample_loader)"),
        mapping=(naming(part_filter={"a": 1}), *listed),
        numbers=(naming(part_filter=[1]), *listed),
        both=(naming(**NAMED, field_map={"text": "txt"}), "field_map"),
        crude=(naming(**crude, **NAMED), "crude samples have no"),
        value=(
            lambda: FolderFunction(meta / "sample_loader.py", "CODE")({}),
            "has no function 'CODE'",
        ),
    )
    assert not [each for each in set(sys.modules) - modules if each.endswith("broken")]


@dataclass(kw_only=True)
class Checked(ez.Sample):
    text: Any

    def __post_init__(self):
        if not self.text:
            raise DataError("the text is empty")


def test_a_check_of_a_type_names_the_sample_without_a_decoder():
    load = SampleLoader(sample_type=Checked, field_map={"text": "txt"}, decoder=None)
    raw = {"__key__": "a", "__dataset__": "", "__shard__": "0.tar", "__index__": 0}
    for _ in range(2):  # the second one with a stored plan
        assert load({**raw, "txt": b"cat"}).text == b"cat"
        with pytest.raises(DataError, match="sample 'a': the text is empty"):
            load({**raw, "txt": b""})
