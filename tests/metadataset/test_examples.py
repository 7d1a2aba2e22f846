"""The files under metadatasets/ and the page about them."""

import json
from pathlib import Path

import pytest

from energize.metadataset import Stages, leaves_with_weights, read_metadataset, resolve
from tests.support.metadatasets import beside_folders
from tests.support.peers import run_energon

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    file
    for file in (ROOT / "metadatasets").glob("*.yaml")
    if not file.stem.startswith("stages")
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The examples beside folders that are called as those of the demo."""
    return beside_folders(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_split_of_every_example_resolves(examples, file):
    assert file.read_text().startswith("# ")
    for split in read_metadataset(file).splits:
        node = resolve(examples / file.name, split)
        staged = isinstance(node, Stages)
        for each in [stage.dataset for stage in node.plan.stages] if staged else [node]:
            assert sum(share for _, share in leaves_with_weights(each)) == 1


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
