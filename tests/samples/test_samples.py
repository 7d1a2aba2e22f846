"""Sample types, the names they are found by, and samples made of raw ones."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import MISSING, dataclass, fields
from typing import NamedTuple

import numpy as np
import pytest
import torch
from webdataset import TarWriter

from energize import MapDataset, WebdatasetSource, prepare
from energize.core.description import described
from energize.core.reading import Reading
from energize.core.samples import (
    METADATA,
    SAMPLE_TYPES,
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    OCRSample,
    Sample,
    SourceInfo,
    TextSample,
    VQASample,
    map_leaves,
    pin_memory,
    sample_type_named,
)
from energize.errors import ConfigError, DataError, DatasetError, DecodeError, UntrustedCodeError
from energize.task.decode import SampleDecoder
from energize.task.fields import declared_types, default_field_map, parse_field
from energize.task.load import SampleLoader
from tests.support.images import encoded, picture

SOURCE = SourceInfo(dataset_path="ds", index=3, shard_name="0.tar", file_names=("a.txt",))
JPG = encoded(picture(), "JPEG")


def raw(**parts: bytes):
    origin = {"__key__": "dir/007", "__dataset__": "/data/ds", "__shard__": "a.tar", "__index__": 7}
    return origin | parts


def text_sample(**changed):
    metadata = {"__restore_key__": ("Webdataset", 3), "__sources__": (SOURCE,)}
    return TextSample(**{"__key__": "a", "text": "hello", **metadata, **changed})


@dataclass
class Tokens(Sample):
    ids: list[int]


@dataclass
class LongText(TextSample):
    length: int = 0


class TestSample:
    def test_fields_are_keyword_only_and_known(self):
        with pytest.raises(TypeError):
            TextSample("a", "hello")
        with pytest.raises(AttributeError):
            text_sample().txt = "typo"

    def test_derive_from_keeps_the_metadata(self):
        base = text_sample(__subflavors__={"lang": "en"})
        derived = Tokens.derive_from(base, ids=[1])
        assert derived == Tokens(
            [1],
            __key__="a",
            __restore_key__=("Webdataset", 3),
            __subflavors__={"lang": "en"},
            __sources__=(SOURCE,),
        )
        assert Tokens.derive_from(base, ids=[], __key__="b").__key__ == "b"

    def test_derive_from_refuses_unknown_and_missing_fields(self):
        with pytest.raises(TypeError, match="idz"):
            Tokens.derive_from(text_sample(), ids=[], idz=[])
        with pytest.raises(TypeError, match="ids"):
            Tokens.derive_from(text_sample())

    def test_extend_keeps_all_fields(self):
        extended = LongText.extend(text_sample(), length=5)
        assert (extended.text, extended.length, extended.__key__) == ("hello", 5, "a")
        with pytest.raises(ConfigError, match="derive_from"):
            Tokens.extend(text_sample())

    @pytest.mark.parametrize(
        "kind", [kind for kind in SAMPLE_TYPES.values() if kind is not CrudeSample]
    )
    def test_every_type_pickles_and_copies(self, kind):
        sample = kind(
            **{f.name: "x" for f in fields(kind) if f.name not in ("__sources__",)},
            __sources__=(SOURCE,),
        )
        assert pickle.loads(pickle.dumps(sample)) == copy.copy(sample) == sample


@dataclass
class Captioned(Sample):
    image: object
    caption: str
    score: float = 0.0


class TestJoined:
    first = ImageSample(
        __key__="a",
        __restore_key__=("Webdataset", 3),
        __subflavors__={"lang": "en"},
        __sources__=(SOURCE,),
        image=1,
    )
    second = SourceInfo(dataset_path="other", index=0, shard_name="1.tar", file_names=("a.txt",))

    def joined(self, **changed):
        values = {
            "image": 1,
            "caption": "hello",
            "__key__": "a",
            "__restore_key__": ("Webdataset", 3),
            "__subflavors__": {"lang": "en"},
            "__sources__": (SOURCE, self.second),
        }
        return Captioned(**values | changed)

    def text(self, **changed):
        return text_sample(__key__="b", __subflavors__={}, __sources__=(self.second,), **changed)

    def test_fields_of_all_and_the_metadata_of_the_first(self):
        caption = {"__key__": "b", "caption": "hello", "__sources__": (self.second,)}
        assert Captioned.from_joined(self.first, caption) == self.joined()
        assert Captioned.from_joined(image=self.first, text=caption) == self.joined()

    def test_the_later_value_of_a_field_wins(self):
        caption = CrudeSample(__key__="b", caption="hello", image=2, __shard__="x", __index__=3)
        made = Captioned.from_joined(self.first, caption, {"__key__": "c", "score": 0.5})
        assert made == self.joined(image=2, score=0.5, __sources__=(SOURCE,))

    def test_what_has_no_match_gives_nothing(self):
        caption = {"__key__": "b", "caption": "hello"}
        assert Captioned.from_joined(self.first, None, caption).score == 0.0
        with pytest.raises(ConfigError, match="'caption', which the join lacks"):
            Captioned.from_joined(self.first, None)

    def test_what_cannot_be_joined(self):
        with pytest.raises(ConfigError, match=r"primary sample first.*None"):
            Captioned.from_joined(None, self.first)
        with pytest.raises(ConfigError, match="no sample"):
            Captioned.from_joined()
        with pytest.raises(ConfigError, match=r"no field 'text'.*override from_joined"):
            Captioned.from_joined(self.first, self.text())
        with pytest.raises(ConfigError, match="got a int"):
            Captioned.from_joined(self.first, 3)
        with pytest.raises(ConfigError, match="'__key__'; got one with 'caption'"):
            Captioned.from_joined({"caption": "x"})


class TestCrude:
    def test_a_typed_sample_has_the_metadata_of_a_crude_one(self):
        crude = CrudeSample(
            __key__="a",
            __restore_key__=("Webdataset", 3),
            __subflavors__={"lang": "en"},
            __sources__=(SOURCE,),
            __shard__="0.tar",
            json={"ids": [1]},
        )
        made = Tokens.derive_from(crude, ids=crude["json"]["ids"])
        assert made == Tokens(
            [1],
            __key__="a",
            __restore_key__=("Webdataset", 3),
            __subflavors__={"lang": "en"},
            __sources__=(SOURCE,),
        )
        assert Tokens.derive_from({"__key__": "b"}, ids=[]) == Tokens([], __key__="b")
        with pytest.raises(ConfigError, match="__key__"):
            Tokens.derive_from({"json": 1}, ids=[])
        with pytest.raises(ConfigError, match="got a str"):
            Tokens.derive_from("a", ids=[])


PEERS = {
    "TextSample": "text",
    "ImageSample": "image",
    "CaptioningSample": "image caption",
    "ImageClassificationSample": "image label=None label_name=None",
    "VQASample": "image context answers=None answer_weights=None",
    "MultiChoiceVQASample": "image context choices=None correct_choice_idx=0",
    "OCRSample": "image text block_boxes=None block_classes=None block_text=None lines_boxes=None "
    "lines_text=None words_boxes=None words_text=None chars_boxes=None chars_text=None",
    "VQAOCRSample": "image context text answers=None answer_weights=None words_boxes=None "
    "words_text=None",
    "VidQASample": "video context answers=None answer_weights=None",
    "InterleavedSample": "sequence",
    "SimilarityInterleavedSample": "images texts audio=None video=None similarity_matrix=None "
    "matched_text_indices=None",
}
"""Fields and defaults of Megatron-Energon's sample types."""


@pytest.mark.parametrize("name", PEERS)
def test_fields_and_defaults_are_energons(name):
    kind = sample_type_named("megatron.energon", name)
    shown = [
        each.name if each.default is MISSING else f"{each.name}={each.default!r}"
        for each in fields(kind)
        if each.name not in METADATA
    ]
    assert " ".join(shown) == PEERS[name]
    assert all(each.kw_only for each in fields(kind))
    assert declared_types(kind)


class Pair(NamedTuple):
    left: object
    right: object


def test_leaves_are_mapped_at_any_depth_into_a_copy():
    sample = ImageSample(__key__="a", image=torch.zeros(2))
    nested = CrudeSample(pair=Pair(sample, [torch.ones(1)]), plain=(1, {"t": torch.ones(1)}))
    mapped = map_leaves(nested, lambda x: x + 1 if isinstance(x, torch.Tensor) else x)
    assert type(mapped) is CrudeSample
    assert type(mapped["pair"]) is Pair
    assert mapped["pair"].left.image.tolist() == [1.0, 1.0]
    assert mapped["pair"].right[0].tolist() == [2.0]
    assert mapped["plain"][1]["t"].tolist() == [2.0]
    assert mapped["plain"][0] == 1
    assert sample.image.tolist() == [0.0, 0.0]
    assert nested["plain"][1]["t"].tolist() == [1.0]


@dataclass
class Checked:
    value: int
    doubled: int = 0

    def __post_init__(self):
        self.doubled = self.value * 2


def test_rebuilding_does_not_run_the_users_checks_again():
    assert map_leaves(Checked(3), str) == map_leaves(map_leaves(Checked(3), str), str)
    assert map_leaves(Checked(3), str).doubled == "6"


def test_pinning_reaches_all_tensors_or_without_a_gpu_nothing():
    sample = ImageSample(__key__="a", image=torch.zeros(2))
    pinned = pin_memory({"x": [sample]})["x"][0]
    assert pinned.image.is_pinned() == torch.cuda.is_available()
    assert sample.pin_memory().image.is_pinned() == torch.cuda.is_available()
    assert not sample.image.is_pinned()


class TestRegistry:
    @pytest.mark.parametrize("module", ["energize", "megatron.energon", "megatron.energon.flavors"])
    def test_own_types(self, module):
        assert sample_type_named(module, "CaptioningSample") is CaptioningSample
        assert sample_type_named(module, "CrudeWebdataset") is CrudeSample

    def test_an_unknown_name_gets_the_nearest(self):
        with pytest.raises(DatasetError, match="did you mean 'CaptioningSample'"):
            sample_type_named("megatron.energon", "CaptionSample")

    def test_nothing_is_imported_because_a_folder_names_it(self, tmp_path, monkeypatch):
        mark = tmp_path / "ran"
        (tmp_path / "evil_types.py").write_text(f"open({str(mark)!r}, 'w')\nclass Sample: ...\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(UntrustedCodeError, match="import evil_types"):
            sample_type_named("evil_types", "Sample")
        assert not mark.exists()
        assert "evil_types" not in sys.modules

    def test_an_imported_module_is_trusted_for_sample_types_only(self):
        assert sample_type_named(__name__, "Tokens") is Tokens
        with pytest.raises(DatasetError, match=r"extends energize\.Sample"):
            sample_type_named(__name__, "Pair")
        with pytest.raises(DatasetError, match="has no such name"):
            sample_type_named(__name__, "Missing")
        with pytest.raises(DatasetError, match="function"):
            sample_type_named("os", "system")

    def test_own_names_are_not_prefixes(self):
        with pytest.raises(UntrustedCodeError):
            sample_type_named("energize_extras", "TextSample")


class TestFieldMap:
    def test_parsing(self):
        (first, second) = parse_field("jpg, meta.json[a b][0]")
        assert (first.part, first.keys) == ("jpg", ())
        assert (second.part, second.keys) == ("meta.json", ("a b", "0"))

    @pytest.mark.parametrize("text", ["", ",", "jpg,", "json[", "json[]", "json[a]b", "[a]", "a]"])
    def test_malformed(self, text):
        with pytest.raises(ConfigError, match="does not say which part"):
            parse_field(text)

    def test_the_default_covers_every_field(self):
        assert default_field_map(TextSample) == {"text": "txt,text,json[text],text"}
        assert default_field_map(CaptioningSample)["image"].startswith("jpg,jpeg,png,webp")
        assert set(default_field_map(VQASample)) == {
            "image",
            "context",
            "answers",
            "answer_weights",
        }


class TestLoader:
    def test_a_typed_sample_with_its_source(self):
        load = SampleLoader(
            sample_type=CaptioningSample,
            field_map={"image": "png,jpg", "caption": "json[cap][0][en]"},
            subflavors={"lang": "en"},
        )
        given = raw(jpg=JPG, json=b'{"cap": [{"en": "a cat"}]}', txt=b"not used")
        before = dict(given)
        sample = load(given)
        assert given == before
        assert type(sample) is CaptioningSample
        assert sample.image.shape == (3, 40, 60)
        assert sample.caption == "a cat"
        assert sample.__key__ == "dir/007"
        assert sample.__restore_key__ == ("Webdataset", "a.tar", 7)
        assert sample.__subflavors__ == {"lang": "en"}
        assert sample.__sources__ == (
            SourceInfo(
                dataset_path="/data/ds",
                index=7,
                shard_name="a.tar",
                file_names=("dir/007.jpg", "dir/007.json"),
            ),
        )

    def test_samples_do_not_share_their_subflavors(self):
        given = {"lang": "en"}
        load = SampleLoader(sample_type=TextSample, subflavors=given)
        load(raw(txt=b"x")).__subflavors__["lang"] = "de"
        given["lang"] = "fr"
        assert load(raw(txt=b"x")).__subflavors__ == {"lang": "en"}

    def test_only_needed_parts_are_decoded(self):
        broken = raw(txt=b"fine", jpg=b"broken", json=b"broken")
        assert SampleLoader(sample_type=TextSample)(broken).text == "fine"

    def test_the_first_part_that_exists_is_taken_and_must_be_readable(self):
        load = SampleLoader(sample_type=ImageSample, field_map={"image": "jpg,png"})
        assert load(raw(png=encoded(picture(), "PNG"))).image.shape == (3, 40, 60)
        with pytest.raises(DecodeError, match=r"sample 'dir/007'.*part 'jpg'"):
            load(raw(jpg=b"broken", png=encoded(picture(), "PNG")))

    def test_a_missing_part_says_which_there_are(self):
        load = SampleLoader(sample_type=ImageSample, field_map={"image": "png,webp"})
        with pytest.raises(DataError, match=r"'dir/007'.*png or webp.*only the parts jpg, txt"):
            load(raw(jpg=JPG, txt=b""))

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b'{"b": 1}', "json is an object with the keys 'b'"),
            (b'{"a": {"c": 1}}', r"json\[a\] is an object with the keys 'c'"),
            (b'{"a": [1]}', r"json\[a\] is a list of 1"),
            (b'{"a": "text"}', r"json\[a\] is a str"),
        ],
    )
    def test_a_missing_key_says_what_there_is(self, content, reason):
        load = SampleLoader(sample_type=TextSample, field_map={"text": "json[a][b]"})
        with pytest.raises(DataError, match=reason):
            load(raw(json=content))

    def test_a_missing_key_falls_back_to_the_next_option(self):
        load = SampleLoader(sample_type=TextSample, field_map={"text": "json[a],json[b],txt"})
        assert load(raw(json=b'{"b": "from b"}', txt=b"from txt")).text == "from b"
        assert load(raw(json=b"{}", txt=b"from txt")).text == "from txt"

    def test_defaults_fill_fields_only_without_a_field_map(self):
        given = raw(jpg=JPG, cls=b"3")
        sample = SampleLoader(sample_type=ImageClassificationSample)(given)
        assert (sample.label, sample.label_name) == (3, None)
        told = {"image": "jpg", "label": "json[label]"}
        with pytest.raises(DataError, match="'label'"):
            SampleLoader(sample_type=ImageClassificationSample, field_map=told)(given)

    def test_without_a_decoder_parts_stay_bytes_and_json_is_still_read(self):
        told = {"image": "jpg", "caption": "json[c]"}
        load = SampleLoader(sample_type=CaptioningSample, field_map=told, decoder=None)
        sample = load(raw(jpg=JPG, json=b'{"c": "x"}'))
        assert (sample.image, sample.caption) == (JPG, "x")

    def test_crude_samples_have_all_parts(self):
        load = SampleLoader(sample_type=CrudeSample, decoder=SampleDecoder(image_decode="rgb8"))
        sample = load(raw(jpg=JPG, txt=b"x", pkl=b"\x80"))
        assert type(sample) is CrudeSample
        assert sample["jpg"].dtype == np.uint8
        assert (sample["txt"], sample["pkl"]) == ("x", b"\x80")
        assert sample["__sources__"][0].file_names == ("dir/007.jpg", "dir/007.txt", "dir/007.pkl")
        assert SampleLoader(sample_type=CrudeSample, decoder=None)(raw(txt=b"x"))["txt"] == b"x"

    @pytest.mark.parametrize(
        ("kind", "told", "message"),
        [
            (CaptioningSample, {"image": "jpg", "captoin": "txt"}, "did you mean 'caption'"),
            (CaptioningSample, {"image": "jpg"}, "names no caption, which CaptioningSample needs"),
            (TextSample, {"text": "json["}, "does not say which part"),
            (TextSample, {"text": "txt", "__key__": "id"}, "__key__"),
            (CrudeSample, {"text": "txt"}, "takes no field_map"),
            (dict, None, "extends Sample"),
        ],
    )
    def test_what_cannot_work_is_refused_when_it_is_made(self, kind, told, message):
        with pytest.raises(ConfigError, match=message):
            SampleLoader(sample_type=kind, field_map=told)

    def test_a_loader_is_a_value(self):
        def made(**changed):
            return SampleLoader(
                **{"sample_type": OCRSample, "subflavors": {"a": 1}, "decoder": None} | changed
            )

        assert made() == made() != made(subflavors={"a": 2})
        assert pickle.loads(pickle.dumps(made())) == made()
        assert described(made()) == {
            "kind": "SampleLoader",
            "sample_type": "energize.core.samples.OCRSample",
            "field_map": None,
            "decoder": None,
            "subflavors": {"a": 1},
        }


def test_samples_of_a_prepared_folder(tmp_path):
    with TarWriter(str(tmp_path / "shard-0.tar")) as shard:
        for number in range(3):
            caption = {"caption": f"picture {number}"}
            image = JPG if number != 1 else b"broken"
            shard.write({"__key__": f"{number:03d}", "jpg": image, "meta.json": caption})
    prepare(tmp_path, split_ratios={"train": 1})
    told = {"image": "jpg", "caption": "meta.json[caption]"}
    load = SampleLoader(sample_type=CaptioningSample, field_map=told)
    failures = []
    samples = MapDataset(WebdatasetSource(tmp_path), load).at(
        [0, 1, 2], Reading(report=failures.append)
    )
    assert [sample.caption for sample in samples][::2] == ["picture 0", "picture 2"]
    assert samples[1].caption in ("picture 0", "picture 2")
    assert samples[2].__sources__ == (
        SourceInfo(
            dataset_path=str(tmp_path),
            index=2,
            shard_name="shard-0.tar",
            file_names=("002.jpg", "002.meta.json"),
        ),
    )
    assert {type(failed.reason) for failed in failures} == {DecodeError}
    assert "shard-0.tar" in str(failures[0])
    assert "'001'" in str(failures[0])
