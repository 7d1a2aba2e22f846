"""Megatron-Energon's names, arguments and import paths, its factories, and faults that
it has in training, with what is right here. Those of its metadatasets are in
`tests/metadataset`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import re
import types
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml

import energize as ez
from energize import energon, errors
from energize.core.ignored import IGNORED, TOLERANCES
from energize.data.media_filter import MediaFilterConfig, MediaFilterStrategy
from energize.data.source import Subset
from energize.data.stores import JsonlFileStore, WebdatasetFileStore
from energize.data.tar import split_name
from energize.energon import factories, flavors
from energize.energon.factories import MAIN_FOLDER_NAME, WebdatasetMeta
from energize.task.images import IMAGE_SPECS
from tests.support.joining import keys, texts
from tests.support.peers import run_energon
from tests.support.prepared import image_bytes
from tests.support.shards import packed
from tests.support.tars import write_tar

ROOT = Path(__file__).parents[2]

# Names, arguments and paths

TABLE = yaml.safe_load((Path(__file__).parent / "energon_names.yaml").read_text())
DIFFERENT, PASSED_ON, PATHS = TABLE["different"], TABLE["passed_on"], TABLE["paths"]

PEER_SIGNATURES = """
import importlib, inspect, json, sys
import megatron.energon as peer

def of(function):
    try:
        return [p.name for p in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []

found = {"__all__": sorted(peer.__all__), "__version__": peer.__version__}
for place in json.loads(sys.argv[1]):
    module, name = place.split(":")
    value = importlib.import_module("megatron." + module)
    for step in name.split("."):
        value = inspect.getattr_static(value, step)
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    found[place] = "@" if isinstance(value, property) else of(value)
print(json.dumps(found))
"""


def rows():
    """Of each line of the tables, its module, name and arguments."""
    for module, text in TABLE["names"].items():
        for line in text.replace("\n    ", " ").strip().splitlines():
            name, *arguments = line.split()
            yield ".".join(filter(None, ["energize.energon", module])), name, arguments


ROWS = list(rows())
TOP = {
    name for module, name, _ in ROWS if module == "energize.energon" and "." not in name
}


def found(module: str, name: str):
    value = importlib.import_module(module)
    for step in name.split("."):
        value = getattr(value, step)
    return value


def takes(function, argument: str) -> bool:
    parameters = dict(inspect.signature(function).parameters)
    if inspect.isclass(function):  # what __new__ takes, and __init__
        parameters = {**inspect.signature(function.__init__).parameters, **parameters}
    if argument.startswith("*"):
        return any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if argument in parameters:
        return parameters[argument].kind is not inspect.Parameter.POSITIONAL_ONLY
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return rest and argument in {*IGNORED, *TOLERANCES}


def missing(module, name, arguments) -> list[str]:
    """What of a line is not there, or is there against the table."""
    place = f"{module}:{name}".removeprefix("energize.energon").lstrip(".:")
    try:
        value = found(module, name)
    except AttributeError:
        return [] if place in DIFFERENT else [place]
    if place in DIFFERENT:
        return [f"{place} is there"]
    if arguments == ["@"]:
        owner, _, last = name.rpartition(".")
        is_method = inspect.isfunction(
            inspect.getattr_static(found(module, owner), last)
        )
        return [f"{place} is a method"] if is_method else []
    passed_on = PASSED_ON.get(place, "").split()
    return [
        f"{place}({a})" for a in arguments if a not in passed_on and not takes(value, a)
    ]


def test_every_name_and_argument_is_there():
    assert len(ROWS) > 250
    assert not [each for row in ROWS for each in missing(*row)]
    assert not TOP - set(energon.__all__)
    assert "__version__" in vars(ez)
    assert energon.__version__.startswith(f"{TABLE['version']}.")
    assert "megatron-energon" in (ROOT / "docs" / "coming-from-energon.md").read_text()
    for path, names in PATHS.items():
        module = importlib.import_module(f"energize.energon.{path}")
        for value in (getattr(module, name) for name in names.split()):
            if isinstance(value, type):
                assert pickle.loads(pickle.dumps(value)) is value, path
    with pytest.raises(ImportError):
        importlib.import_module("energize.energon.nowhere.at_all")
    # Importing a module sets it on the package, but not in the place of a name.
    assert (
        importlib.import_module("energize.energon.edataclass").edataclass
        is ez.energon.edataclass
    )
    assert energon.edataclass is ez.energon.edataclass


def test_the_page_for_newcomers_has_all_of_them():
    """Every name, and every argument without a use; families of names may be put
    together."""
    page = ROOT / "docs" / "coming-from-energon.md"
    words = set(re.findall(r"\w+", page.read_text()))
    endings = ("_stateless", "_failure_tolerance")
    names = [
        name
        for _, name, _ in ROWS
        if "." not in name and not name.endswith("Webdataset")
    ]
    unused = [each for *_, given in ROWS for each in given if each in IGNORED]
    assert not [each for each in names if each not in words]
    assert not [
        each for each in unused if each not in words and not each.endswith(endings)
    ]


@pytest.mark.energon
def test_the_tables_are_those_of_the_real_package():
    places = [f"{module.removeprefix('energize.')}:{name}" for module, name, _ in ROWS]
    signatures = json.loads(run_energon(json.dumps(places), program=PEER_SIGNATURES))
    assert signatures["__version__"].startswith(f"{TABLE['version']}.")
    assert TOP | {"__version__"} == set(signatures["__all__"])
    for place, (_, _, arguments) in zip(places, ROWS, strict=True):
        of_peer = signatures[place]
        wanted = {each.lstrip("*") for each in arguments}
        # Some of its handlers name what they do not use with an underscore.
        known = {*of_peer, *(each.removeprefix("_") for each in of_peer)}
        assert of_peer == "@" if arguments == ["@"] else wanted <= known, place


# Preparing, and factories of datasets

HERE = energon.WorkerConfig(rank=0, world_size=1)
AS_STORED = {"split_part": "train", "training": False, "worker_config": HERE}
FIELDS = {"image": "jpg", "caption": "txt"}
PREPARE = ez.energon.BaseWebdatasetFactory.prepare_dataset


def write_shards_of(root: Path, shards: int) -> Path:
    """Four captions in each shard."""
    (root / "parts").mkdir(parents=True)
    for shard in range(shards):
        files = []
        for number in range(4 * shard, 4 * shard + 4):
            named = {"jpg": image_bytes(number), "txt": f"caption {number}".encode()}
            named["json"] = json.dumps({"caption": {"en": f"json {number}"}}).encode()
            files += [(f"{number:03d}.{part}", data) for part, data in named.items()]
        (root / f"parts/data-{shard}.tar").write_bytes(packed(files))
    return root


def write_config(root: Path, name: str = "dataset.yaml", **content) -> dict:
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    text = json.dumps({"sample_type": kind, **content})  # which is YAML, too
    (root / MAIN_FOLDER_NAME / name).write_text(text)
    return {"dataset_config": name, **AS_STORED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve captions in three shards, all of them in train, with an index."""
    root = write_shards_of(tmp_path_factory.mktemp("factories") / "captions", 3)
    ratio = [("train", 1.0)]
    PREPARE(root, ["parts/data-{0..2}.tar"], split_parts_ratio=ratio, shuffle_seed=None)
    write_config(root, field_map=FIELDS)
    return root


def captions(path, **options) -> list[str]:
    return [
        each.caption
        for each in ez.energon.get_dataset_from_config(path, **options).build()
    ]


def test_preparing(tmp_path):
    """What is written, in which order shards are cut, what progress is told, metadata
    of media."""
    root, seen = write_shards_of(tmp_path, 5), []

    def progress(steps, total):
        yield from (seen.append((step, total)) for step in steps)
        seen.append("closed")

    def shards(part="train"):
        files = WebdatasetMeta.from_config(root, split_part=part).split_part_files
        return [int(name.removesuffix(".tar")[-1]) for name in files]

    ratio = [("train", 0.8), ("val", 0.2)]
    parts = PREPARE(
        root, ["parts/data-{0..4}.tar"], split_parts_ratio=ratio, progress_fn=progress
    )
    assert parts == {"jpg", "txt", "json"}
    assert sorted(seen[:-1]) == [(k, 5) for k in range(5)]
    assert seen[-1] == "closed"
    # random.Random(42).shuffle of five names, as Megatron-Energon 7.4.1 leaves them.
    assert shards() == [3, 1, 2, 4]
    patterns = [("train", "parts/data-0"), ("train", "parts/data-1.*"), ("val", ".*-2")]
    PREPARE(root, ["parts/data-{0..2}.tar"], split_parts_patterns=patterns)
    assert (shards(), shards("val")) == ([0, 1], [2])
    media = MediaFilterConfig(MediaFilterStrategy.EXTENSION, [])
    one = {"split_parts_ratio": [("train", 1)], "split_config": "other.yaml"}
    PREPARE(root, ["parts/data-0.tar"], media_filter=media, **one)
    write_config(root, field_map=FIELDS)
    factory = ez.energon.get_dataset_from_config(
        root, split_config="other.yaml", **AS_STORED
    )
    known = factory.as_file_store().get_media_metadata("000.jpg")
    assert (len(factory), known.width, known.height) == (4, 32, 24)


def test_a_factory_of_what_a_folder_says(folder, tmp_path):
    factory = ez.energon.get_dataset_from_config(
        folder, sample_type=ez.CaptioningSample, **AS_STORED
    )
    samples = list(factory.build())
    assert [each.caption for each in samples] == [f"caption {i}" for i in range(12)]
    assert samples[0].image.shape == (3, 24, 32)
    assert samples[5].__sources__[0].shard_name == "parts/data-1.tar"
    assert [each.__sources__[0].index for each in samples] == list(range(len(samples)))
    assert (factory.__sample_type__, len(factory)) == (ez.CaptioningSample, 12)
    assert factory.config() == factory.build().describe()
    assert pickle.loads(pickle.dumps(factory.build())) == factory.build()
    assert isinstance(factory.as_file_store(), WebdatasetFileStore)
    assert factory.as_file_store()["007.txt"][0] == b"caption 7"
    loader = ez.get_loader(
        ez.energon.get_dataset_from_config(folder, worker_config=HERE).build()
    )
    first, second = ([each.__key__ for each in loader] for _ in range(2))
    assert sorted(first) == sorted(second) == [f"{i:03d}" for i in range(12)]
    assert first != second
    field_map = {"image": "jpg", "caption": "json[caption][en]"}
    given = write_config(
        folder, "json.yaml", field_map=field_map, subflavors={"a": 1, "b": 2}
    )
    given |= {"subflavors": {"b": 3}, "decoder": None, "parallel_shard_iters": 4}
    half = ez.energon.get_dataset_from_config(
        folder, subset=Subset(ratios=(0.0, 0.5)), **given
    ).build()
    assert len(half) == 6
    assert (half[1].caption, half[1].image) == ("json 1", image_bytes(1))
    assert half[1].__subflavors__ == {"a": 1, "b": 3}
    kinds = ez.energon.DatasetLoader(folder, subflavors={"a": 1, "b": 2})
    asked = AS_STORED | {"subflavors": {"b": 3}}
    assert next(iter(kinds.get_dataset(**asked).build())).__subflavors__ == {
        "a": 1,
        "b": 3,
    }
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
    assert ez.energon.CrudeJsonlDatasetFactory.prepare_dataset(file) == 5
    lines = ez.energon.get_dataset_from_config(
        file, subflavors={"of": "lines"}, **AS_STORED
    )
    found = [(each["json"]["n"], each["__subflavors__"]) for each in lines.build()]
    assert found == [(n, {"of": "lines"}) for n in range(5)]
    assert isinstance(lines.as_file_store(), JsonlFileStore)


def test_the_length_is_what_is_read(folder):
    """Without excluded samples, and of a subset: Megatron-Energon counts them all."""
    shards = "split_parts: {train: ['parts/data-{0..2}.tar']}\n"
    excluded = "exclude: [parts/data-0.tar, 'parts/data-1.tar/00{4..5}']\n"
    (folder / MAIN_FOLDER_NAME / "less.yaml").write_text(shards + excluded)
    options = {"split_config": "less.yaml", **AS_STORED}
    assert captions(folder, **options) == [f"caption {i}" for i in range(6, 12)]
    assert len(ez.energon.get_dataset_from_config(folder, **options)) == 6
    meta = WebdatasetMeta.from_config(
        folder, split_part="train", split_config="less.yaml"
    )
    assert meta.sample_excludes == {"parts/data-1.tar/004", "parts/data-1.tar/005"}
    half = ez.energon.get_dataset_from_config(
        folder, subset=Subset(ratios=(0.5, 1.0)), **options
    )
    assert len(half) == len(list(half.build())) == 4


def test_code_of_the_folder_is_run_where_it_is_trusted(folder):
    code = "def load(raw):\n    return {'image': raw['jpg'], 'caption': '<' + raw['txt'] + '>'}\n"
    keep = "\n\ndef keep(part):\n    return part != 'json'\n"
    (folder / MAIN_FOLDER_NAME / "loader.py").write_text(code + keep)
    named = {"sample_loader": "loader.py:load", "part_filter": "loader.py:keep"}
    asked = write_config(folder, "code.yaml", **named)
    with pytest.raises(errors.UntrustedCodeError, match=r"trust_code=\[.*captions'\]"):
        captions(folder, **asked)
    assert captions(folder, trust_code=[folder], **asked)[0] == "<caption 0>"
    own = {"sample_loader": lambda raw: {"image": raw["jpg"], "caption": "own"}}
    assert captions(folder, part_filter=["jpg"], **own, **asked) == ["own"] * 12


@ez.energon.edataclass
class Shouted(ez.Sample):
    text: str


def shouting(parts: dict) -> dict:
    assert "jpg" not in parts
    return {"__key__": f"loud-{parts['__key__']}", "text": parts["txt"].upper()}


class Louder(ez.energon.DefaultDecoderWebdatasetFactory[ez.CaptioningSample]):
    __sample_type__ = ez.CaptioningSample

    def load_sample(self, raw_data):
        sample = super().load_sample(raw_data)
        sample.caption = sample.caption.upper()
        return sample


class Plain(ez.energon.DefaultGenericWebdatasetFactory[ez.CaptioningSample]):
    __sample_type__ = ez.CaptioningSample


class Own(ez.energon.BaseWebdatasetFactory[dict]):
    __sample_type__ = dict

    def load_sample(self, raw_data):
        return {"key": raw_data["__key__"], "text": raw_data["txt"].decode()}


LOUD = {"sample_type": Shouted, "sample_loader": shouting, "part_filter": ["txt"]}


def test_factories_of_ones_own(folder):
    factory = ez.energon.StandardWebdatasetFactory(
        folder, subflavors={"loud": True}, **LOUD, **AS_STORED
    )
    samples = list(factory.build())
    assert [each.text for each in samples] == [f"CAPTION {i}" for i in range(12)]
    assert (samples[3].__key__, samples[3].__subflavors__) == (
        "loud-003",
        {"loud": True},
    )
    source = samples[3].__sources__[0]
    assert (source.file_names, source.index) == (("003.txt",), 3)
    assert [each["text"] for each in Own(folder, **AS_STORED).build()][1] == "caption 1"
    louder = Louder(folder, field_map=FIELDS, **AS_STORED).build()
    again = ez.restore_sample(louder, louder[7].__restore_key__)
    assert (louder[0].caption, again.__key__, again.caption) == (
        "CAPTION 0",
        "007",
        "CAPTION 7",
    )
    assert (
        Plain(folder, field_map=FIELDS, **AS_STORED).build()[0].caption == b"caption 0"
    )
    crude = ez.energon.CrudeWebdataset(
        folder, part_filter=lambda part: part != "jpg", **AS_STORED
    )
    sample = crude.build()[0]
    assert sorted(name for name in sample if not name.startswith("__")) == [
        "json",
        "txt",
    ]
    joined = ez.energon.JoinedWebdatasetFactory(
        {"one": Own(folder, **AS_STORED), "other": crude},
        joiner=lambda one, other: Shouted(
            __key__=one["key"], text=one["text"] + other["txt"]
        ),
        training=False,
        worker_config=HERE,
    )
    assert (len(joined), joined.build()[0].text) == (12, "caption 0caption 0")


def test_a_run_over_a_function_of_parts_is_resumed(folder):
    given = AS_STORED | LOUD | {"training": True}
    whole, again = (
        ez.get_loader(ez.energon.StandardWebdatasetFactory(folder, **given).build())
        for _ in range(2)
    )
    rest = iter(whole)
    head = [next(rest).__key__ for _ in range(5)]
    again.restore_state_rank(whole.save_state_rank())
    tail = [each.__key__ for each in rest]
    assert [each.__key__ for each in again] == tail
    assert len({*head, *tail}) == 12


def test_what_is_refused(folder, tmp_path):
    def prepare(*paths):
        PREPARE(raw, paths, split_parts_ratio=[("train", 1.0)])

    def typed(sample_type=Shouted, **options):
        ez.energon.StandardWebdatasetFactory(
            folder, sample_type=sample_type, **AS_STORED, **options
        )

    raw, lines = write_shards_of(tmp_path / "raw", 1), tmp_path / "a.jsonl"
    loaded = {
        "sample_loader": shouting,
        "part_filter": [],
        "field_map": {"text": "txt"},
    }
    untyped = type("Untyped", (ez.energon.DefaultDecoderWebdatasetFactory,), {})
    no_type, named = (
        "extends Sample.*, got <class 'NoneType'>",
        errors.UntrustedCodeError,
    )
    for made, error, said in (
        (
            lambda: prepare("parts/data-7.tar"),
            errors.PrepareError,
            "data-7.tar: cannot be read",
        ),
        (
            lambda: prepare("../elsewhere.tar"),
            errors.PrepareError,
            "not below the folder",
        ),
        (prepare, errors.PrepareError, "no shard is named"),
        (
            lambda: captions(folder, sample_type=ez.TextSample),
            ez.ConfigError,
            "not of sample_type=TextSample",
        ),
        (
            lambda: captions(folder, split_part="vall"),
            errors.SplitError,
            "no split part 'vall'",
        ),
        (
            lambda: captions(lines, dataset_config="d.yaml"),
            ez.ConfigError,
            "d.yaml.*JSON lines",
        ),
        (
            lambda: captions(folder, shuffle_over_epoch=1),
            TypeError,
            "shuffle_over_epoch",
        ),
        (lambda: typed(sample_loader="a.py:load"), named, "sample_loader='a.py:"),
        (lambda: typed(part_filter="a.py"), named, "part_filter='a.py'"),
        (lambda: typed(sample_loader=shouting), ez.ConfigError, "needs part_filter"),
        (lambda: typed(**loaded), ez.ConfigError, "so remove field_map"),
        (lambda: typed(field_map={"txet": "txt"}), ez.ConfigError, "txet"),
        (lambda: typed(subset=(0, 1)), ez.ConfigError, "subset must be"),
        (lambda: typed(paralel_shard_iters=2), TypeError, "paralel_shard_iters"),
        (lambda: typed(int), ez.ConfigError, "extends Sample.*, got <class 'int'>"),
        (lambda: untyped(folder, **AS_STORED), ez.ConfigError, no_type),
    ):
        with pytest.raises(error, match=said):
            made()
    assert not (raw / MAIN_FOLDER_NAME).exists()


def test_names_for_annotations(folder):
    source = ez.energon.get_dataset_from_config(folder, worker_config=HERE).build()
    mapped = energon.MapDataset(source, lambda sample: sample)
    bases = energon.SavableDataset, energon.BaseWrapperDataset
    for each in (source, mapped):
        assert isinstance(each, bases[0])
        assert isinstance(each, bases[1])
    assert not isinstance(mapped.dataset, bases[0])
    assert issubclass(energon.MapDataset, bases[0])
    for base in (bases[0], bases[1][int, int]):  # which is an error where it is read
        mine = types.new_class("Mine", (base,))(worker_config=HERE)
        assert isinstance(mine, base if base is bases[0] else bases[1])
        with pytest.raises(
            ez.ConfigError, match=r"got Mine .*IterableSource.*IterMapDataset"
        ):
            ez.MapDataset(mine, str)
        with pytest.raises(ez.ConfigError, match="needs an energize Dataset, got Mine"):
            ez.get_loader(mine)
    types.new_class("Mine", (energon.Savable,))
    with pytest.raises(ImportError, match="analyze_debug"):
        exec("from energize.energon.tools.analyze_debug import command")
    own = type("Own", (flavors.PinMemoryMixin,), {"__annotations__": {"ids": object}})
    assert ez.energon.edataclass(own)(
        ids=torch.tensor([1])
    ).pin_memory().ids.tolist() == [1]
    typed = [name for name in energon.__all__ if name.endswith("Webdataset")]
    assert len(typed) == 12  # eleven, and CrudeWebdataset, which is none of them
    for name in typed:
        sample = getattr(flavors, name.removesuffix("Webdataset") + "Sample")
        assert getattr(flavors, name).__sample_type__ is sample
    with pytest.warns(
        FutureWarning, match=r"CaptioningWebdataset is deprecated. Use Standard"
    ):
        older = flavors.CaptioningWebdataset(folder, field_map=FIELDS, **AS_STORED)
    assert older.build()[0].caption == "caption 0"
    assert set(get_args(flavors.ImageDecoderType)) == set(IMAGE_SPECS)
    assert set(get_args(flavors.AVDecoderType)) == {"torch", "AVDecoder", "pyav"}
    for name in (
        "a/b.c.jpg",
        "a.b/c.jpg",
        "__meta__/a.json",
        "plain",
        "a/__x__.json",
        "a.json",
    ):
        match = (
            None
            if factories.skip_meta_re.match(name)
            else factories.split_name_re.match(name)
        )
        assert (match.groups() if match else None) == split_name(name), name


# Faults in training


class Keys(ez.TaskEncoder):
    """Samples and batches are keys."""

    decoder = None

    def encode_sample(self, sample):
        return sample.__key__

    def batch(self, samples):
        return samples


class Packing(Keys):
    def select_samples_to_pack(self, samples):
        return [samples[start : start + 5] for start in range(0, len(samples), 5)]

    @ez.stateless
    def pack_selected_samples(self, samples):
        yield from (samples[start : start + 2] for start in range(0, len(samples), 2))


def skips(base, name):
    """An encoder whose hook of this name leaves everything out."""

    def skip(self, *_):
        raise ez.SkipSample

    skip.__qualname__ = f"Skips.{name}"
    return type("Skips", (base,), {name: skip})


PACKED = {"packing_buffer_size": 4}
NOTHING = [
    (skips(Keys, "encode_sample"), {}, "were all skipped or failed"),
    (
        type("PacksNothing", (Packing,), {"select_samples_to_pack": lambda *_: []}),
        PACKED,
        "",
    ),
    (skips(Packing, "pack_selected_samples"), PACKED, "pack_selected_samples"),
    (skips(Keys, "batch_group_criterion"), {}, "batch_group_criterion"),
    (skips(Keys, "encode_batch"), {"batch_size": 2}, "were all skipped or failed"),
    (
        skips(Packing, "encode_batch"),
        PACKED | {"batch_size": 2},
        "encode_batch left out",
    ),
]


@pytest.mark.jobs
def test_nothing_for_ever_is_an_error(tmp_path):
    folder = texts(tmp_path / "texts", [keys(*range(12)), keys(*range(12, 24))])

    def first(encoder, batch_size=None, **options):
        given = {
            "worker_config": HERE,
            "task_encoder": encoder(),
            "batch_size": batch_size,
        }
        return next(
            iter(ez.get_loader(ez.get_train_dataset(folder, **given, **options)))
        )

    for encoder, options, told in NOTHING:
        with pytest.raises((ez.EmptyDatasetError, errors.SubstitutionError)) as caught:
            first(encoder, **options)
        assert told in str(caught.value), (encoder, options)


def test_folders_that_cannot_be_prepared(tmp_path):
    twice = [[("a.txt", b"a"), ("0.txt", b"b")], [("a.txt", b"a"), ("1.txt", b"b")]]
    cases = [(twice, "  a: in ")]
    for name in ("/etc/a.txt", "x/../../a.txt"):
        cases.append(([[(name, b"b")]], f"s0.tar: the member {name!r}"))
    for number, (shards, told) in enumerate(cases):
        for k, members in enumerate(shards):
            write_tar(tmp_path / f"{number}" / f"s{k}.tar", members)
        with pytest.raises(errors.PrepareError) as caught:
            ez.prepare(
                tmp_path / f"{number}",
                split_ratios={"train": 1},
                sample_type="TextSample",
            )
        assert told in str(caught.value)
    for path in ("mcs://bucket/coco", "s4://bucket/mix.yaml"):
        with pytest.raises(ez.ConfigError, match=r"bucket/.* is not a known scheme"):
            ez.get_train_dataset(path, batch_size=1)
