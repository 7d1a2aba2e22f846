"""Megatron-Energon's names, arguments and import paths, and its factories."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml

import energize
from energize import (
    BaseWebdatasetFactory,
    CaptioningSample,
    CrudeJsonlDatasetFactory,
    CrudeSample,
    CrudeWebdataset,
    DatasetLoader,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    JoinedWebdatasetFactory,
    MapDataset,
    Sample,
    SavableDataset,
    StandardWebdatasetFactory,
    TextSample,
    WorkerConfig,
    flavors,
    get_dataset_from_config,
    get_loader,
    restore_sample,
)
from energize.core.ignored import IGNORED
from energize.data.media import MediaFilterConfig, MediaFilterStrategy
from energize.data.source import Subset
from energize.data.stores import JsonlFileStore, WebdatasetFileStore
from energize.data.tar import split_name
from energize.energon.factories import (
    INDEX_SQLITE_FILENAME,
    INFO_JSON_FILENAME,
    MAIN_FOLDER_NAME,
    BaseWrapperDataset,
    Savable,
    WebdatasetMeta,
    edataclass,
    skip_meta_re,
    split_name_re,
)
from energize.errors import ConfigError, PrepareError, SplitError, UntrustedCodeError
from energize.task.load import IMAGE_SPECS
from tests.support.peers import run_energon
from tests.support.prepared import image_bytes
from tests.support.shards import packed

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
            yield ".".join(filter(None, ["energize", module])), name, arguments


ROWS = list(rows())
TOP = {name for module, name, _ in ROWS if module == "energize" and "." not in name}


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
    return rest and argument in IGNORED


def missing(module, name, arguments) -> list[str]:
    """What of a line is not there, or is there against the table."""
    place = f"{module}:{name}".removeprefix("energize").lstrip(".:")
    try:
        value = found(module, name)
    except AttributeError:
        return [] if place in DIFFERENT else [place]
    if place in DIFFERENT:
        return [f"{place} is there"]
    if arguments == ["@"]:
        owner, _, last = name.rpartition(".")
        is_method = inspect.isfunction(inspect.getattr_static(found(module, owner), last))
        return [f"{place} is a method"] if is_method else []
    passed_on = PASSED_ON.get(place, "").split()
    return [f"{place}({a})" for a in arguments if a not in passed_on and not takes(value, a)]


def test_every_name_and_argument_is_there():
    assert len(ROWS) > 250
    assert not [each for row in ROWS for each in missing(*row)]
    assert not TOP - set(energize.__all__)
    assert "__version__" in vars(energize)
    for path, names in PATHS.items():
        module = importlib.import_module(f"energize.{path}")
        for value in (getattr(module, name) for name in names.split()):
            if isinstance(value, type):
                assert pickle.loads(pickle.dumps(value)) is value, path
    with pytest.raises(ImportError):
        importlib.import_module("energize.nowhere.at_all")
    # Importing a module sets it on the package, but not in the place of a name.
    assert importlib.import_module("energize.edataclass").edataclass is energize.edataclass


def test_the_page_for_newcomers_has_all_of_them():
    """Every name, and every argument without a use; families of names may be put together."""
    page = ROOT / "docs" / "coming-from-energon.md"
    words = set(re.findall(r"\w+", page.read_text()))
    endings = ("_stateless", "_failure_tolerance")
    names = [name for _, name, _ in ROWS if "." not in name and not name.endswith("Webdataset")]
    unused = [each for *_, given in ROWS for each in given if each in IGNORED]
    assert not [each for each in names if each not in words]
    assert not [each for each in unused if each not in words and not each.endswith(endings)]


@pytest.mark.energon
def test_the_tables_are_those_of_the_real_package():
    places = [f"{module.replace('energize', 'energon', 1)}:{name}" for module, name, _ in ROWS]
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

HERE = WorkerConfig(rank=0, world_size=1)
AS_STORED = {"split_part": "train", "training": False, "worker_config": HERE}
FIELDS = {"image": "jpg", "caption": "txt"}


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


def write_config(root: Path, name: str = "dataset.yaml", **content) -> None:
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    text = json.dumps({"sample_type": kind, **content})  # which is YAML, too
    (root / MAIN_FOLDER_NAME / name).write_text(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve captions in three shards, all of them in train, with an index."""
    root = write_shards_of(tmp_path_factory.mktemp("factories") / "captions", 3)
    BaseWebdatasetFactory.prepare_dataset(
        root, ["parts/data-{0..2}.tar"], split_parts_ratio=[("train", 1.0)], shuffle_seed=None
    )
    write_config(root, field_map=FIELDS)
    return root


def test_preparing(folder, tmp_path):
    """What is written, in which order shards are cut, what progress is told, metadata of media."""
    info = json.loads((folder / MAIN_FOLDER_NAME / INFO_JSON_FILENAME).read_text())
    assert info["shard_counts"] == {f"parts/data-{i}.tar": 4 for i in range(3)}
    assert (folder / MAIN_FOLDER_NAME / INDEX_SQLITE_FILENAME).is_file()
    root, seen = write_shards_of(tmp_path, 5), []

    def progress(steps, total):
        for step in steps:
            seen.append((step, total))
            yield step
        seen.append("closed")

    def prepared(*paths, **options):
        return BaseWebdatasetFactory.prepare_dataset(root, paths, workers=1, **options)

    def shards(part="train"):
        files = WebdatasetMeta.from_config(root, split_part=part).split_part_files
        return [int(name.removesuffix(".tar")[-1]) for name in files]

    ratio = {"split_parts_ratio": [("train", 0.8), ("val", 0.2)]}
    parts = prepared("parts/data-{0..4}.tar", progress_fn=progress, **ratio)
    assert parts == {"jpg", "txt", "json"}
    assert seen == [*((k, 5) for k in range(5)), "closed"]
    # random.Random(42).shuffle of five names, as Megatron-Energon 7.4.1 leaves them.
    assert shards() == [3, 1, 2, 4]
    patterns = [("train", "parts/data-0"), ("train", "parts/data-1.*"), ("val", ".*-2")]
    prepared("parts/data-0.tar", "parts/data-{1..2}.tar", split_parts_patterns=patterns)
    assert (shards(), shards("val")) == ([0, 1], [2])
    media = MediaFilterConfig(MediaFilterStrategy.EXTENSION, [])
    one = {"split_parts_ratio": [("train", 1)], "split_config": "other.yaml"}
    prepared("parts/data-0.tar", media_filter=media, **one)
    write_config(root, field_map=FIELDS)
    factory = get_dataset_from_config(root, split_config="other.yaml", **AS_STORED)
    known = factory.as_file_store().get_media_metadata("000.jpg")
    assert (len(factory), known.width, known.height) == (4, 32, 24)


def test_a_factory_of_what_a_folder_says(folder, tmp_path):
    factory = get_dataset_from_config(folder, sample_type=CaptioningSample, **AS_STORED)
    samples = list(factory.build())
    assert [each.caption for each in samples] == [f"caption {i}" for i in range(12)]
    assert samples[0].image.shape == (3, 24, 32)
    assert samples[5].__sources__[0].shard_name == "parts/data-1.tar"
    assert (factory.__sample_type__, len(factory)) == (CaptioningSample, 12)
    assert factory.config() == factory.build().describe()
    assert pickle.loads(pickle.dumps(factory.build())) == factory.build()
    assert isinstance(factory.as_file_store(), WebdatasetFileStore)
    assert factory.as_file_store()["007.txt"][0] == b"caption 7"
    loader = get_loader(get_dataset_from_config(folder, worker_config=HERE).build())
    first, second = ([each.__key__ for each in loader] for _ in range(2))
    assert sorted(first) == sorted(second) == [f"{i:03d}" for i in range(12)]
    assert first != second
    field_map, labels = {"image": "jpg", "caption": "json[caption][en]"}, {"a": 1, "b": 2}
    write_config(folder, "of_json.yaml", field_map=field_map, subflavors=labels)
    given = {"dataset_config": "of_json.yaml", "subflavors": {"b": 3}, "decoder": None}
    given |= {"subset": Subset(ratios=(0.0, 0.5)), "parallel_shard_iters": 4}
    half = list(get_dataset_from_config(folder, **given, **AS_STORED).build())
    assert len(half) == 6
    assert (half[1].caption, half[1].image) == ("json 1", image_bytes(1))
    assert half[1].__subflavors__ == {"a": 1, "b": 3}
    kinds = DatasetLoader(folder, subflavors={"a": 1, "b": 2})
    asked = AS_STORED | {"subflavors": {"b": 3}}
    assert next(iter(kinds.get_dataset(**asked).build())).__subflavors__ == {"a": 1, "b": 3}
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
    assert CrudeJsonlDatasetFactory.prepare_dataset(file) == 5
    lines = get_dataset_from_config(file, subflavors={"of": "lines"}, **AS_STORED)
    assert [each["json"]["n"] for each in lines.build()] == list(range(5))
    assert next(iter(lines.build()))["__subflavors__"] == {"of": "lines"}
    assert isinstance(lines.as_file_store(), JsonlFileStore)


def test_the_length_is_what_is_read(folder):
    """Without excluded samples, and of a subset: Megatron-Energon counts them all."""
    shards = "split_parts: {train: ['parts/data-{0..2}.tar']}\n"
    excluded = "exclude: [parts/data-0.tar, 'parts/data-1.tar/00{4..5}']\n"
    (folder / MAIN_FOLDER_NAME / "less.yaml").write_text(shards + excluded)
    options = {"split_config": "less.yaml", **AS_STORED}
    factory = get_dataset_from_config(folder, **options)
    assert [each.__key__ for each in factory.build()] == [f"{i:03d}" for i in range(6, 12)]
    assert len(factory) == len(factory.build()) == 6
    meta = WebdatasetMeta.from_config(folder, split_part="train", split_config="less.yaml")
    assert meta.sample_excludes == {"parts/data-1.tar/004", "parts/data-1.tar/005"}
    half = get_dataset_from_config(folder, subset=Subset(ratios=(0.5, 1.0)), **options)
    assert len(half) == len(list(half.build())) == 4


def test_code_of_the_folder_is_run_where_it_is_trusted(folder):
    code = "def load(raw):\n    return {'image': raw['jpg'], 'caption': '<' + raw['txt'] + '>'}\n"
    keep = "\n\ndef keep(part):\n    return part != 'json'\n"
    (folder / MAIN_FOLDER_NAME / "loader.py").write_text(code + keep)
    named = {"sample_loader": "loader.py:load", "part_filter": "loader.py:keep"}
    write_config(folder, "of_code.yaml", **named)
    asked = {"dataset_config": "of_code.yaml", **AS_STORED}
    with pytest.raises(UntrustedCodeError, match=r"trust_code=\[.*captions'\]"):
        get_dataset_from_config(folder, **asked)
    sample = next(iter(get_dataset_from_config(folder, trust_code=[folder], **asked).build()))
    assert sample.caption == "<caption 0>"
    assert sample.__sources__[0].file_names == ("000.jpg", "000.txt")
    own = {"sample_loader": lambda raw: {"image": raw["jpg"], "caption": "own"}}
    given = get_dataset_from_config(folder, part_filter=["jpg"], **own, **asked)
    assert next(iter(given.build())).caption == "own"


@edataclass
class Shouted(Sample):
    text: str


def shouting(parts: dict) -> dict:
    assert "jpg" not in parts
    return {"__key__": f"loud-{parts['__key__']}", "text": parts["txt"].upper()}


class Louder(DefaultDecoderWebdatasetFactory[CaptioningSample]):
    __sample_type__ = CaptioningSample

    def load_sample(self, raw_data):
        sample = super().load_sample(raw_data)
        sample.caption = sample.caption.upper()
        return sample


class Plain(DefaultGenericWebdatasetFactory[CaptioningSample]):
    __sample_type__ = CaptioningSample


class Own(BaseWebdatasetFactory[dict]):
    __sample_type__ = dict

    def load_sample(self, raw_data):
        return {"key": raw_data["__key__"], "text": raw_data["txt"].decode()}


class Typeless(DefaultDecoderWebdatasetFactory):
    pass


def test_factories_of_ones_own(folder):
    loud = {"sample_type": Shouted, "sample_loader": shouting, "part_filter": ["txt"]}
    factory = StandardWebdatasetFactory(folder, subflavors={"loud": True}, **loud, **AS_STORED)
    samples = list(factory.build())
    assert [each.text for each in samples] == [f"CAPTION {i}" for i in range(12)]
    assert (samples[3].__key__, samples[3].__subflavors__) == ("loud-003", {"loud": True})
    source = samples[3].__sources__[0]
    assert (source.file_names, source.index) == (("003.txt",), 3)
    assert [each["text"] for each in Own(folder, **AS_STORED).build()][1] == "caption 1"
    louder = Louder(folder, field_map=FIELDS, **AS_STORED).build()
    assert next(iter(louder)).caption == "CAPTION 0"
    again = restore_sample(louder, louder[7].__restore_key__)
    assert (again.__key__, again.caption) == ("007", "CAPTION 7")
    plain = Plain(folder, field_map=FIELDS, **AS_STORED)
    assert next(iter(plain.build())).caption == b"caption 0"
    crude = CrudeWebdataset(folder, part_filter=lambda part: part != "jpg", **AS_STORED)
    sample = next(iter(crude.build()))
    assert sorted(name for name in sample if not name.startswith("__")) == ["json", "txt"]
    joined = JoinedWebdatasetFactory(
        {"one": Own(folder, **AS_STORED), "other": crude},
        joiner=lambda one, other: Shouted(__key__=one["key"], text=one["text"] + other["txt"]),
        training=False,
        worker_config=HERE,
    )
    assert (len(joined), next(iter(joined.build())).text) == (12, "caption 0caption 0")


def test_a_run_over_a_function_of_parts_is_resumed(folder):
    def loader():
        loud = {"sample_type": Shouted, "sample_loader": shouting, "part_filter": ["txt"]}
        given = AS_STORED | loud | {"training": True}
        return get_loader(StandardWebdatasetFactory(folder, **given).build())

    whole, again = loader(), loader()
    rest = iter(whole)
    head = [next(rest).__key__ for _ in range(5)]
    again.restore_state_rank(whole.save_state_rank())
    tail = [each.__key__ for each in rest]
    assert [each.__key__ for each in again] == tail
    assert len({*head, *tail}) == 12


def test_what_is_refused(folder, tmp_path):
    def prepare(*paths):
        BaseWebdatasetFactory.prepare_dataset(raw, paths, split_parts_ratio=[("train", 1.0)])

    def config(path=folder, **options):
        get_dataset_from_config(path, worker_config=HERE, **options)

    def typed(sample_type=Shouted, **options):
        StandardWebdatasetFactory(folder, sample_type=sample_type, **AS_STORED, **options)

    raw, lines = write_shards_of(tmp_path / "raw", 1), tmp_path / "a.jsonl"
    loaded = {"sample_loader": shouting, "part_filter": [], "field_map": {"text": "txt"}}
    for made, error, said in (
        (lambda: prepare("parts/data-7.tar"), PrepareError, "data-7.tar: cannot be read"),
        (lambda: prepare(*["parts/data-0.tar"] * 2), PrepareError, "data-0.tar is named twice"),
        (lambda: prepare("../elsewhere.tar"), PrepareError, "not below the folder"),
        (lambda: prepare("/tmp/elsewhere.tar"), PrepareError, "not below the folder"),
        (prepare, PrepareError, "no shard is named"),
        (lambda: prepare("parts/data-{0..2.tar"), ConfigError, "malformed brace pattern"),
        (lambda: config(sample_type=TextSample), ConfigError, "CaptioningSample.*for TextSample"),
        (lambda: config(split_part="vall"), SplitError, "no split part 'vall'"),
        (lambda: config(lines, dataset_config="d.yaml"), ConfigError, "d.yaml.*file of JSON lines"),
        (lambda: config(shuffle_over_epoch=1), TypeError, "shuffle_over_epoch"),
        (lambda: typed(sample_loader="a.py:load"), UntrustedCodeError, "sample_loader='a.py:"),
        (lambda: typed(part_filter="a.py"), UntrustedCodeError, "part_filter='a.py'"),
        (lambda: typed(sample_loader=shouting), ConfigError, "needs part_filter"),
        (lambda: typed(**loaded), ConfigError, "give no field_map too"),
        (lambda: typed(field_map={"txet": "txt"}), ConfigError, "txet"),
        (lambda: typed(subset=(0, 1)), ConfigError, "subset is"),
        (lambda: typed(paralel_shard_iters=2), TypeError, "paralel_shard_iters"),
        (lambda: typed(int), ConfigError, "extends Sample.*; got <class 'int'>"),
        (
            lambda: Typeless(folder, **AS_STORED),
            ConfigError,
            "extends Sample.*; got <class 'NoneType'>",
        ),
    ):
        with pytest.raises(error, match=said):
            made()
    assert not (raw / MAIN_FOLDER_NAME).exists()


def test_names_for_annotations(folder):
    source = get_dataset_from_config(folder, worker_config=HERE).build()
    mapped = MapDataset(source, lambda sample: sample)
    assert isinstance(mapped, SavableDataset)
    assert isinstance(mapped, BaseWrapperDataset)
    assert not isinstance(source.inputs[0].inputs[0], BaseWrapperDataset)
    assert not isinstance([1], SavableDataset)
    assert issubclass(MapDataset, SavableDataset)
    for base in (SavableDataset, BaseWrapperDataset[int, int], Savable):
        with pytest.raises(ConfigError, match=r"Mine extends .*IterMapDataset"):
            extended(base)
    made = edataclass(type("Own", (flavors.PinMemoryMixin,), {"__annotations__": {"ids": object}}))
    assert made(ids=torch.tensor([1])).pin_memory().ids.tolist() == [1]
    typed = [name for name in energize.__all__ if name.endswith("Webdataset")]
    assert len(typed) == 12  # eleven, and CrudeWebdataset, which is none of them
    for name in typed:
        sample = getattr(flavors, name.removesuffix("Webdataset") + "Sample")
        assert getattr(flavors, name).__sample_type__ is sample
    with pytest.warns(FutureWarning, match=r"CaptioningWebdataset is deprecated: use Standard"):
        older = flavors.CaptioningWebdataset(folder, field_map=FIELDS, **AS_STORED)
    assert next(iter(older.build())).caption == "caption 0"
    assert CrudeWebdataset.__sample_type__ is CrudeSample
    assert set(get_args(flavors.ImageDecoderType)) == set(IMAGE_SPECS)
    assert set(get_args(flavors.AVDecoderType)) == {"torch", "AVDecoder", "pyav"}
    for name in ("a/b.c.jpg", "a.b/c.jpg", "__meta__/a.json", "plain", "a/__x__.json", "a.json"):
        match = None if skip_meta_re.match(name) else split_name_re.match(name)
        assert (match.groups() if match else None) == split_name(name), name


def extended(base):
    class Mine(base):
        pass
