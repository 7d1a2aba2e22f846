"""Factories of datasets, and the preparing that they offer."""

from __future__ import annotations

import json
import pickle
import sqlite3
import warnings
from pathlib import Path
from typing import get_args

import pytest
import torch

import energize
from energize import (
    BaseWebdatasetFactory,
    CaptioningSample,
    CrudeJsonlDatasetFactory,
    CrudeSample,
    CrudeWebdataset,
    DefaultCrudeJsonlDatasetFactory,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
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
from energize.data.media import MediaFilterConfig, MediaFilterStrategy
from energize.data.source import Subset
from energize.data.stores import JsonlFileStore, WebdatasetFileStore
from energize.data.tar import split_name
from energize.energon.factories import (
    INDEX_SQLITE_FILENAME,
    INFO_JSON_FILENAME,
    MAIN_FOLDER_NAME,
    WebdatasetMeta,
    skip_meta_re,
    split_name_re,
)
from energize.energon.names import BaseWrapperDataset, Savable, edataclass
from energize.errors import (
    ConfigError,
    PrepareError,
    SplitError,
    UntrustedCodeError,
)
from energize.task.decode import IMAGE_SPECS
from tests.support.prepared import captions, image_bytes
from tests.support.shards import packed

HERE = WorkerConfig(rank=0, world_size=1)
AS_STORED = {"split_part": "train", "training": False, "worker_config": HERE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve captions in three shards, all of them in train, with an index."""
    root = tmp_path_factory.mktemp("factories") / "captions"
    write_shards_of(root, 3)
    BaseWebdatasetFactory.prepare_dataset(
        root, ["parts/data-{0..2}.tar"], split_parts_ratio=[("train", 1.0)], shuffle_seed=None
    )
    write_config(root, field_map={"image": "jpg", "caption": "txt"})
    return root


def write_shards_of(root: Path, shards: int) -> None:
    (root / "parts").mkdir(parents=True)
    for shard in range(shards):
        files = []
        for number in range(4 * shard, 4 * shard + 4):
            named = {"jpg": image_bytes(number), "txt": f"caption {number}".encode()}
            named["json"] = json.dumps({"caption": {"en": f"json {number}"}}).encode()
            files += [(f"{number:03d}.{part}", data) for part, data in named.items()]
        (root / f"parts/data-{shard}.tar").write_bytes(packed(files))


def write_config(root: Path, name: str = "dataset.yaml", **content) -> None:
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    text = json.dumps({"sample_type": kind, **content})  # which is YAML, too
    (root / MAIN_FOLDER_NAME / name).write_text(text)


class TestPrepareDataset:
    def test_it_writes_what_energon_writes(self, folder):
        meta = folder / MAIN_FOLDER_NAME
        info = json.loads((meta / INFO_JSON_FILENAME).read_text())
        assert info["shard_counts"] == {f"parts/data-{i}.tar": 4 for i in range(3)}
        with sqlite3.connect(meta / INDEX_SQLITE_FILENAME) as index:
            assert index.execute("SELECT COUNT(*) FROM samples").fetchone() == (12,)
        assert (meta / "index.uuid").exists()

    def test_it_returns_the_parts_and_shows_progress(self, tmp_path):
        write_shards_of(tmp_path, 3)
        seen = []

        def progress(steps, total):
            for step in steps:
                seen.append((step, total))
                yield step
            seen.append("closed")

        parts = BaseWebdatasetFactory.prepare_dataset(
            tmp_path,
            ["parts/data-0.tar", "parts/data-{1..2}.tar"],
            split_parts_patterns=[
                ("train", "parts/data-0"),
                ("train", "parts/data-1.*"),
                ("val", ".*-2"),
            ],
            progress_fn=progress,
            workers=1,
        )
        assert parts == {"jpg", "txt", "json"}
        assert seen == [(0, 3), (1, 3), (2, 3), "closed"]
        assert WebdatasetMeta.from_config(tmp_path, split_part="train").split_part_files == [
            "parts/data-0.tar",
            "parts/data-1.tar",
        ]

    def test_shards_are_shuffled_as_energon_does_before_they_are_cut(self, tmp_path):
        write_shards_of(tmp_path, 5)
        names = ["parts/data-{0..4}.tar"]
        ratio = [("train", 0.8), ("val", 0.2)]
        BaseWebdatasetFactory.prepare_dataset(tmp_path, names, split_parts_ratio=ratio, workers=1)
        meta = WebdatasetMeta.from_config(tmp_path, split_part="train")
        # random.Random(42).shuffle of five names, as Megatron-Energon 7.4.1 leaves them.
        assert meta.split_part_files == [f"parts/data-{i}.tar" for i in (3, 1, 2, 4)]

    def test_metadata_of_media_and_another_name_of_the_split_file(self, tmp_path):
        write_shards_of(tmp_path, 1)
        BaseWebdatasetFactory.prepare_dataset(
            tmp_path,
            ["parts/data-0.tar"],
            split_parts_ratio=[("train", 1)],
            split_config="other.yaml",
            media_filter=MediaFilterConfig(MediaFilterStrategy.EXTENSION, []),
        )
        assert not (tmp_path / MAIN_FOLDER_NAME / "split.yaml").exists()
        write_config(tmp_path, field_map={"image": "jpg", "caption": "txt"})
        factory = get_dataset_from_config(
            tmp_path, split_config="other.yaml", worker_config=HERE, training=False
        )
        assert len(factory) == 4
        known = factory.as_file_store().get_media_metadata("000.jpg")
        assert (known.width, known.height) == (32, 24)


class TestGetDatasetFromConfig:
    def test_samples_as_stored_and_typed(self, folder):
        factory = get_dataset_from_config(
            folder, sample_type=CaptioningSample, training=False, worker_config=HERE
        )
        assert factory.__sample_type__ is CaptioningSample
        dataset = factory.build()
        assert len(factory) == len(dataset) == 12
        samples = list(get_loader(dataset))
        assert [each.caption for each in samples] == [f"caption {i}" for i in range(12)]
        assert samples[0].image.shape == (3, 24, 32)
        assert samples[5].__sources__[0].shard_name == "parts/data-1.tar"
        assert [each.__key__ for each in get_loader(dataset)] == [each.__key__ for each in samples]

    def test_training_is_another_order_of_the_same_in_each_epoch(self, folder):
        dataset = get_dataset_from_config(folder, worker_config=HERE).build()
        loader = get_loader(dataset)
        first, second = ([each.__key__ for each in loader] for _ in range(2))
        assert sorted(first) == sorted(second) == [f"{i:03d}" for i in range(12)]
        assert first != second

    def test_files_and_settings_win_over_those_of_the_folder(self, folder):
        write_config(
            folder,
            "of_json.yaml",
            field_map={"image": "jpg", "caption": "json[caption][en]"},
            subflavors={"a": 1, "b": 2},
        )
        factory = get_dataset_from_config(
            folder,
            dataset_config="of_json.yaml",
            subflavors={"b": 3},
            decoder=None,
            max_samples_per_sequence=2,
            parallel_shard_iters=4,
            subset=Subset(ratios=(0.0, 0.5)),
            worker_config=HERE,
            training=False,
        )
        samples = list(factory.build())
        assert len(factory) == len(samples) == 6
        assert samples[1].caption == "json 1"
        assert samples[1].image == image_bytes(1)
        assert samples[1].__subflavors__ == {"a": 1, "b": 3}

    def test_crude_folders_and_jsonl(self, folder, tmp_path):
        crude = folder / MAIN_FOLDER_NAME / "crude.yaml"
        crude.write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
        factory = get_dataset_from_config(
            folder, dataset_config="crude.yaml", sample_type=CrudeSample, **AS_STORED
        )
        sample = next(iter(factory.build()))
        assert factory.__sample_type__ is CrudeSample
        assert sample["json"] == {"caption": {"en": "json 0"}}
        file = tmp_path / "texts.jsonl"
        file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
        assert CrudeJsonlDatasetFactory.prepare_dataset(file) == 5
        lines = get_dataset_from_config(file, subflavors={"of": "lines"}, **AS_STORED)
        assert [each["json"]["n"] for each in lines.build()] == list(range(5))
        assert next(iter(lines.build()))["__subflavors__"] == {"of": "lines"}
        assert isinstance(lines.as_file_store(), JsonlFileStore)

    def test_code_of_the_folder_is_run_where_it_is_trusted(self, folder):
        code = (
            "def load(raw):\n    return {'image': raw['jpg'], 'caption': '<' + raw['txt'] + '>'}\n"
        )
        (folder / MAIN_FOLDER_NAME / "loader.py").write_text(
            code + "\n\ndef keep(part):\n    return part != 'json'\n"
        )
        write_config(
            folder, "of_code.yaml", sample_loader="loader.py:load", part_filter="loader.py:keep"
        )
        asked = {"dataset_config": "of_code.yaml", **AS_STORED}
        with pytest.raises(UntrustedCodeError, match=r"trust_code=\[.*captions'\]"):
            get_dataset_from_config(folder, **asked)
        sample = next(iter(get_dataset_from_config(folder, trust_code=[folder], **asked).build()))
        assert sample.caption == "<caption 0>"
        assert sample.__sources__[0].file_names == ("000.jpg", "000.txt")
        own = get_dataset_from_config(
            folder,
            sample_loader=lambda raw: {"image": raw["jpg"], "caption": "own"},
            part_filter=["jpg"],
            **asked,
        )
        assert next(iter(own.build())).caption == "own"


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


def test_what_cannot_be(folder, tmp_path):
    def prepare(*paths):
        BaseWebdatasetFactory.prepare_dataset(raw, paths, split_parts_ratio=[("train", 1.0)])

    def config(path=folder, **options):
        get_dataset_from_config(path, worker_config=HERE, **options)

    def typed(sample_type=Shouted, **options):
        StandardWebdatasetFactory(folder, sample_type=sample_type, **AS_STORED, **options)

    raw, lines = tmp_path / "raw", tmp_path / "a.jsonl"
    write_shards_of(raw, 1)
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
        (lambda: typed(int), ConfigError, "extends energize.Sample; got <class 'int'>"),
        (lambda: Typeless(folder, **AS_STORED), ConfigError, "Typeless: set .* __sample_type__"),
    ):
        with pytest.raises(error, match=said):
            made()
    assert not (raw / MAIN_FOLDER_NAME).exists()


class TestFactories:
    def test_a_function_makes_the_fields(self, folder):
        factory = StandardWebdatasetFactory(
            folder,
            sample_type=Shouted,
            sample_loader=shouting,
            part_filter=["txt"],
            subflavors={"loud": True},
            **AS_STORED,
        )
        samples = list(get_loader(factory.build()))
        assert [each.text for each in samples] == [f"CAPTION {i}" for i in range(12)]
        assert samples[3].__key__ == "loud-003"
        assert samples[3].__subflavors__ == {"loud": True}
        assert samples[3].__sources__[0].file_names == ("003.txt",)
        assert samples[3].__sources__[0].index == 3

    def test_load_sample_may_be_overridden_at_every_level(self, folder):
        assert [each["text"] for each in Own(folder, **AS_STORED).build()][:2] == [
            "caption 0",
            "caption 1",
        ]
        louder = Louder(folder, field_map={"image": "jpg", "caption": "txt"}, **AS_STORED)
        assert next(iter(louder.build())).caption == "CAPTION 0"
        built = louder.build()
        again = restore_sample(built, built[7].__restore_key__)
        assert (again.__key__, again.caption) == ("007", "CAPTION 7")
        plain = Plain(folder, field_map={"image": "jpg", "caption": "txt"}, **AS_STORED)
        assert next(iter(plain.build())).caption == b"caption 0"

    def test_crude_parts_may_be_left_out(self, folder):
        factory = CrudeWebdataset(folder, part_filter=lambda part: part != "jpg", **AS_STORED)
        sample = next(iter(factory.build()))
        assert sorted(name for name in sample if not name.startswith("__")) == ["json", "txt"]
        assert sample["txt"] == "caption 0"

    def test_what_is_built_goes_to_other_processes(self, folder):
        factory = get_dataset_from_config(folder, worker_config=HERE)
        store = factory.as_file_store()
        assert isinstance(store, WebdatasetFileStore)
        assert store["007.txt"][0] == b"caption 7"
        assert pickle.loads(pickle.dumps(factory.build())) == factory.build()
        assert factory.config() == factory.build().describe()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_run_over_a_function_of_parts_is_resumed(self, folder, workers):
        config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
        options = {"sample_type": Shouted, "sample_loader": shouting, "part_filter": ["txt"]}

        def loader():
            factory = StandardWebdatasetFactory(
                folder, split_part="train", training=True, worker_config=config, **options
            )
            return get_loader(factory.build())

        whole = loader()
        rest = iter(whole)
        head = [next(rest).__key__ for _ in range(5)]
        state = whole.save_state_rank()
        tail = [each.__key__ for each in rest]
        again = loader()
        again.restore_state_rank(state)
        assert [each.__key__ for each in again] == tail
        assert len({*head, *tail}) == 12

    def test_the_length_is_what_is_read(self, folder):
        """Without excluded samples, and of a subset: Megatron-Energon counts them all."""
        meta = folder / MAIN_FOLDER_NAME
        shards = "split_parts: {train: ['parts/data-{0..2}.tar']}\n"
        excluded = "exclude: [parts/data-0.tar, 'parts/data-1.tar/00{4..5}']\n"
        (meta / "less.yaml").write_text(shards + excluded)
        options = {"split_config": "less.yaml", **AS_STORED}
        factory = get_dataset_from_config(folder, **options)
        keys = [each.__key__ for each in factory.build()]
        assert keys == [f"{i:03d}" for i in range(6, 12)]
        assert len(factory) == len(factory.build()) == 6
        assert WebdatasetMeta.from_config(
            folder, split_part="train", split_config="less.yaml"
        ).sample_excludes == {"parts/data-1.tar/004", "parts/data-1.tar/005"}
        half = get_dataset_from_config(folder, subset=Subset(ratios=(0.5, 1.0)), **options)
        assert len(half) == len(list(half.build())) == 4

    def test_older_names_warn(self, folder):
        typed = {n: getattr(flavors, n) for n in energize.__all__ if n.endswith("Webdataset")}
        assert len(typed) == 12  # eleven, and CrudeWebdataset, which is none of them
        for name, kind in typed.items():
            sample = name.removesuffix("Webdataset") + "Sample"
            assert kind.__sample_type__ is getattr(flavors, sample)
        with pytest.warns(FutureWarning, match=r"CaptioningWebdataset is deprecated: use Standard"):
            factory = flavors.CaptioningWebdataset(
                folder, field_map={"image": "jpg", "caption": "txt"}, **AS_STORED
            )
        assert next(iter(factory.build())).caption == "caption 0"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            CrudeWebdataset(folder, **AS_STORED)


class TestNamesForAnnotations:
    def test_every_dataset_is_a_savable_dataset(self, folder):
        source = get_dataset_from_config(folder, worker_config=HERE).build()
        mapped = MapDataset(source, lambda sample: sample)
        assert isinstance(mapped, SavableDataset)
        assert isinstance(mapped, BaseWrapperDataset)
        assert not isinstance(source.inputs[0].inputs[0], BaseWrapperDataset)
        assert not isinstance([1], SavableDataset)
        assert issubclass(MapDataset, SavableDataset)
        assert DefaultCrudeJsonlDatasetFactory.__sample_type__ is CrudeSample

    @pytest.mark.parametrize("base", [SavableDataset, BaseWrapperDataset[int, int], Savable])
    def test_extending_them_says_what_to_do(self, base):
        with pytest.raises(ConfigError, match=r"Mine extends .*IterMapDataset"):

            class Mine(base):
                pass

    def test_memory_is_pinned_by_the_mixin(self):
        @edataclass
        class Own(flavors.PinMemoryMixin):
            ids: torch.Tensor

        made = Own(ids=torch.tensor([1]))
        assert made.pin_memory().ids.tolist() == [1]


@pytest.mark.parametrize(
    "name", ["a/b.c.jpg", "a.b/c.jpg", "__meta__/a.json", "plain", "a/__x__.json", "a.json"]
)
def test_the_expressions_of_member_names_are_those_of_the_reader(name):
    found = None if skip_meta_re.match(name) else split_name_re.match(name)
    assert (found.groups() if found else None) == split_name(name)


def test_the_names_of_decodings_are_those_of_the_decoder():
    assert set(get_args(flavors.ImageDecoderType)) == set(IMAGE_SPECS)
    assert set(get_args(flavors.AVDecoderType)) == {"torch", "AVDecoder", "pyav"}


def test_a_folder_prepared_by_the_command_line_is_read_too(tmp_path):
    captions(tmp_path / "captions", 8, shards=2)
    factory = get_dataset_from_config(tmp_path / "captions", **AS_STORED)
    assert len(factory) == 4
