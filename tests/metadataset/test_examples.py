"""The files under metadatasets/ and the page about them."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from energize.errors import MetadatasetError
from energize.metadataset import Staged, leaves_with_weights, read_metadataset, resolve
from tests.support.metadatasets import beside_folders
from tests.support.peers import run_energon

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    file for file in (ROOT / "metadatasets").glob("*.yaml") if not file.stem.startswith("stages")
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The examples beside folders that are called as those of the demo."""
    return beside_folders(tmp_path_factory.mktemp("examples"))


def shares(file, split):
    return [
        (leaf.path.name, leaf.split_part, dict(leaf.subflavors), share)
        for leaf, share in leaves_with_weights(resolve(file, split))
    ]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_split_of_every_example_resolves(examples, file):
    assert file.read_text().startswith("# ")
    for split in read_metadataset(file).splits:
        node = resolve(examples / file.name, split)
        staged = isinstance(node, Staged)
        for each in [stage.dataset for stage in node.plan.stages] if staged else [node]:
            assert sum(share for _, share in leaves_with_weights(each)) == 1


def test_what_the_examples_say(examples):
    assert shares(examples / "blend.yaml", "train") == [
        ("classification", "train", {"task": "classify"}, Fraction(3, 5)),
        ("captions_a", "train", {"task": "caption"}, Fraction(2, 5)),
    ]
    assert shares(examples / "nested.yaml", "train") == [
        ("captions_a", "train", {}, Fraction(3, 8)),
        ("captions_b", "train", {}, Fraction(1, 8)),
        ("classification", "train", {"task": "classify", "curated": True}, Fraction(3, 10)),
        ("captions_a", "train", {"task": "caption", "curated": True}, Fraction(1, 5)),
    ]
    assert [share for *_, share in shares(examples / "energon.yaml", "train")] == [
        Fraction(4, 5),
        Fraction(1, 5),
    ]
    assert [name for name, *_ in shares(examples / "validation.yaml", "val")] == [
        "classification",
        "captions_a",
        "captions_b",
    ]
    assert {split for _, split, *_ in shares(examples / "validation.yaml", "seen")} == {"train"}


def test_the_page_shows_a_file_and_its_errors_as_they_are(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "metadataset.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    good, bad = (block for block in blocks if block.startswith("__module__"))
    printed = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    for name in ("captions", "charts", "photographs"):
        Path("data", name).mkdir(parents=True)
    Path("mix.yaml").write_text(good)
    assert sum(share for _, share in leaves_with_weights(resolve("mix.yaml", "train"))) == 1
    Path("mix.yaml").write_text(bad)
    with pytest.raises(MetadatasetError) as caught:
        resolve("mix.yaml", "train")
    assert str(caught.value) == printed.strip()


@pytest.mark.energon
@pytest.mark.parametrize("split", ["train", "val"])
def test_energon_finds_the_same_leaves(examples, split):
    program = (
        "import json, sys; from megatron.energon.metadataset.loader import traverse_metadataset\n"
        "for leaf in traverse_metadataset(sys.argv[1], split_part=sys.argv[2]):\n"
        "    print(json.dumps([str(leaf.path), leaf.split_part, leaf.subflavors]))\n"
    )
    file = examples / "energon.yaml"
    printed = run_energon(file, split, program=program)
    theirs = [json.loads(line) for line in printed.splitlines()]
    ours = [
        [str(leaf.path), leaf.split_part, leaf.subflavors]
        for leaf, _ in leaves_with_weights(resolve(file, split))
    ]
    assert ours == theirs
