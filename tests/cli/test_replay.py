"""`energize replay` shows what a loader delivered, by the key that it printed."""

import inspect
import json
import re
from itertools import islice

import pytest

from energize import SkipSample, TaskEncoder, WorkerConfig, get_loader, get_train_dataset
from tests.cli.commands import program, run
from tests.support.prepared import captions


class Upper(TaskEncoder):
    def encode_sample(self, sample):
        if int(sample.__key__) % 3 == 0:
            raise SkipSample
        sample.caption = sample.caption.upper()
        return sample


class Twice(TaskEncoder):
    def encode_sample(self, sample):
        yield sample.caption
        yield sample.caption + " again"


def broken():
    raise ValueError("no encoder today")


ENCODERS = "\n\n".join(
    [
        "from energize import SkipSample, TaskEncoder",
        *(inspect.getsource(each) for each in (Upper, Twice, broken)),
    ]
)
"""What is here for loaders, in a file for the command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    captions(root / "web", 80)
    captions(root / "books", 40, start=500)
    (root / "encoders.py").write_text(ENCODERS)
    (root / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
        "  train:\n    blend:\n"
        "      - {path: web, weight: 1}\n      - {path: books, weight: 1, split_part: val}\n"
    )
    return root


def flat(sources):
    return [
        one for each in sources for one in (flat(each) if type(each) in (list, tuple) else [each])
    ]


def delivered(mix, count, **options):
    """Items, each with the key that the loader says it has."""
    config = WorkerConfig(rank=1, world_size=2, num_workers=0, seed_offset=5)
    loader = get_loader(get_train_dataset(mix, worker_config=config, **options))
    return [(item, loader.restore_key) for item in islice(loader, count)]


def test_batches_of_a_mix(folder):
    for item, key in delivered(folder / "mix.yaml", 3, batch_size=4):
        options = ("replay", folder / "mix.yaml", repr(key), "--batch-size", 4, "--seed", 5)
        shown = run(*options)
        assert shown == run(*options[:2], json.dumps(key), *options[3:])
        assert re.findall("'(0.*?)'", shown.partition("__key__")[2].splitlines()[0]) == (
            item.__key__
        )
        for caption in item.caption:
            assert repr(caption) in shown
        for sources in flat(item.__sources__):
            assert f"{sources.dataset_path}/{sources.shard_name}, sample {sources.index}" in shown


@pytest.mark.jobs
def test_as_a_program_with_the_encoder_of_the_run(folder):
    item, key = delivered(folder / "web", 4, batch_size=3, task_encoder=Upper())[-1]
    shown, _ = program(
        "replay", folder / "web", key, "--batch-size", 3, "--seed", 5, "--encoder",
        "encoders:Upper", cwd=folder,
    )  # fmt: skip
    for caption in item.caption:
        assert repr(caption) in shown
        assert caption == caption.upper()


def test_an_item_of_a_stream(folder):
    item, key = delivered(folder / "web", 5, batch_size=None, task_encoder=Twice())[-1]
    file = folder / "encoders.py"
    options = ("replay", folder / "web", json.dumps(key), "--seed", 5)
    shown = run(*options, "--encoder", f"{file}:Twice", "--unbatched")
    assert item in shown
    assert "is of another dataset" in run(*options, "--encoder", f"{file}:Twice", code=1)
    assert "the key is of another dataset" in run(*options, "--unbatched", code=1)


def test_a_stored_sample(folder):
    shown = run("replay", folder / "web", "('Webdataset', 'shard-001.tar', 3)")
    assert "CaptioningSample" in shown
    assert "caption (str): 'caption 23'" in shown
    assert "32 x 24 pixels" in shown
    assert "shard-001.tar, sample 3" in shown


def test_wrong_keys_and_options(folder):
    web = folder / "web"
    assert "expected a restore key" in run("replay", web, "nothing", code=2)
    assert "expected a restore key" in run("replay", web, "__import__('os').getcwd()", code=2)
    for key in ("('energize', -1)", "('elsewhere', 1)", "('Webdataset', 'none.tar', 1)"):
        assert key in run("replay", web, key, code=1)
    for encoder, words in (
        ("Upper", "expected MODULE:NAME"),
        ("none:Upper", "cannot be imported: ModuleNotFoundError"),
        (f"{folder}/encoders.py:Uper", "did you mean 'Upper'"),
        (f"{folder}/encoders.py:broken", "ValueError: no encoder today"),
        (f"{folder}/encoders.py:SkipSample", "is no TaskEncoder"),
        (f"{folder}/none.py:Upper", "there is no Python file"),
    ):
        said = run("replay", web, "('energize', 1)", "--encoder", encoder, code=2)
        assert words in said
