"""Environment variables in metadatasets."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize import MetadatasetError, load_dataset
from energize.extras.paths import EPath
from energize.metadataset import read_metadataset, resolve
from energize.metadataset.located import expanded
from tests.metadataset.test_reading import HEADER


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROOT", "data")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNSET", raising=False)
    (tmp_path / "data" / "captions").mkdir(parents=True)
    return tmp_path / "mix.yaml"


def write(file, text):
    file.write_text(HEADER + textwrap.dedent(text))
    return file


def test_paths_and_texts(file):
    write(
        file,
        """
        splits:
          train:
            path: ${ROOT}/${UNSET:-captions}
            split_part: '${UNSET:-half}'
            subflavors: {"a": "${EMPTY:-b}", c: "$${ROOT} costs $5"}
        """,
    )
    leaf = resolve(file, "train")
    assert leaf.path == file.parent / "data" / "captions"
    assert leaf.split_part == "half"
    assert leaf.subflavors == {"a": "b", "c": "${ROOT} costs $5"}


def test_numbers_are_those_written_without_quotes(file, monkeypatch):
    monkeypatch.setenv("WEIGHT", "2.5")
    text = """
    splits:
      train:
        blend:
          - path: a
            weight: ${WEIGHT}
            subflavors:
              as_text: "${WEIGHT}"
              as_number: ${UNSET:-7}
              left_out: ${UNSET:-}
    """
    (entry,) = read_metadataset(write(file, text)).splits["train"].entries
    assert entry.weight == 2.5
    assert entry.subflavors == {"as_text": "2.5", "as_number": 7, "left_out": None}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("${UNSET}/x", "needs the environment variable UNSET, which is not set; set it, or give a"),
        ("x${ROOT", "has '${' without a variable's name"),
        ("${}", "has '${' without a variable's name"),
        ("${a b}", "has '${' without a variable's name"),
        ("${A:-${B}}", "has '${' without a variable's name"),
    ],
)
def test_what_cannot_be_expanded_is_an_error_with_its_line(file, written, told):
    write(file, f"splits:\n  train:\n    path: captions\n    split_part: '{written}'\n")
    with pytest.raises(MetadatasetError) as caught:
        read_metadataset(file)
    assert str(caught.value).startswith(f"{file}:6 (splits.train.split_part): ")
    assert told in str(caught.value)


def test_in_mappings_that_a_program_gives(file):
    splits = {"train": {"path": "${ROOT}/captions"}}
    mix = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": splits}
    loaded = load_dataset(mix)
    (found,) = loaded.traverse(split_part="train")
    assert found.path == EPath(file.parent / "data" / "captions")
    splits["train"]["path"] = "${UNSET}"
    with pytest.raises(MetadatasetError, match=r"<a mapping> \(splits.train.path\): .*UNSET"):
        load_dataset(mix)


def test_values_are_not_looked_through_again():
    assert expanded("${A}", {"A": "${B} $${C}"}) == "${B} $${C}"


@given(st.text(alphabet="a$ {}:-", max_size=12))
def test_text_without_an_opening_brace_stays_as_it_is(text):
    if "${" not in text:
        assert expanded(text, {}) == text
