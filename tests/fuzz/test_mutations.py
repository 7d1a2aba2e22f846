"""Mutations: always another file, and the same one for the same seed."""

from __future__ import annotations

import json
import random
import tarfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from energize.data.tar import plain_header
from tests.fuzz.mutations import BINARY, TEXT, changed_bytes, changed_span, mutated
from tests.fuzz.trees import WRITERS, changed, mutated_tree, places
from tests.support.shards import packed

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.binary(max_size=3000), st.integers(0, 999), st.booleans())
def test_bytes_are_other_ones_and_the_same_for_a_seed(data, seed, binary):
    kinds = BINARY if binary else TEXT
    new, told = mutated(data, random.Random(seed), [b"other"], kinds)
    assert new != data
    assert told
    assert (new, told) == mutated(data, random.Random(seed), [b"other"], kinds)
    start, stop = changed_span(data, new)
    assert data[:start] == new[:start]
    assert data[stop:] == new[len(new) - (len(data) - stop) :]
    assert changed_bytes(data, new)


@given(TREES, st.integers(0, 999))
def test_trees_are_left_alone_and_their_mutants_are_the_same_for_a_seed(tree, seed):
    before = json.dumps(tree)
    for kind, write in WRITERS.items():
        text = write({"training": tree})
        mutant = mutated_tree(text, kind, {"training": tree}, random.Random(seed), [])
        assert mutant == mutated_tree(text, kind, {"training": tree}, random.Random(seed), [])
    assert json.dumps(tree) == before
    assert len(list(places(tree))) >= 1


def test_trees_become_others_that_can_be_written():
    tree = {"a": [1, {"b": "x"}], "c": 2.5}
    found = {json.dumps(changed(tree, random.Random(seed))[0]) for seed in range(40)}
    assert len(found) > 25
    texts = {mutated_tree(b"a: 1", "yaml", tree, random.Random(n), [])[0] for n in range(30)}
    assert sum(_is_yaml(text) for text in texts) > 8


def _is_yaml(text: bytes) -> bool:
    try:
        yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, UnicodeError):
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_the_fast_way_of_reading_headers_finds_what_the_standard_library_finds(seed):
    """Or says nothing: on every damaged tar, as on sound ones."""
    files = [(f"{n:04d}.{part}", b"x" * n * 300) for n in range(4) for part in ("txt", "cls")]
    tar = packed(files)[: 8 * 1024]
    rng, read = random.Random(seed), 0
    for _ in range(400):
        data, _ = mutated(tar, rng, [], BINARY)
        for at in range(0, len(data) - 511, 512):
            found = plain_header(data, at)
            if found is not None:
                read += 1
                info = tarfile.TarInfo.frombuf(data[at : at + 512], "utf-8", "surrogateescape")
                assert found == (info.name, info.size)
                assert info.type == tarfile.REGTYPE
    assert read > 20
