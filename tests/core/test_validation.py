"""Faults of outside data: each with its line, its path, the value seen and the nearest
key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import (
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    TypeAdapter,
    model_validator,
)

from energize.core.validation import Listed, Model, lines_of, validated
from energize.errors import DatasetError


class Folder(Model):
    path: str
    weight: float | None = None


class Blend(Model):
    blend: Listed[Node]
    scheme: Literal["even", "exact"] = "even"
    size: PositiveInt | Literal["all"] = 1

    @model_validator(mode="after")
    def _checked(self) -> Blend:
        if len(self.blend) < 2:
            raise ValueError("a blend has two entries or more")
        return self


def _kind(value: Any) -> str:
    return "<blend>" if isinstance(value, dict) and "blend" in value else "<path>"


Node = Annotated[
    Annotated[Folder, Tag("<path>")] | Annotated[Blend, Tag("<blend>")],
    Discriminator(_kind),
]


class File(Model):
    kind: str = Field(alias="__class__")
    splits: dict[str, Node]
    extra: dict[str, int] | Listed[str] = ()


for each in (Blend, File):
    each.model_rebuild()
SCHEMA = TypeAdapter(File)

GOOD = """\
__class__: Mix
splits:
  train:
    blend:
      - {path: a, weight: 1}
      - blend: [{path: b}, {path: c}]
        size: all
    scheme: exact
extra: {a: 1}
"""


BAD = [  # what is changed, where the fault is, and what it says
    (
        "weight: 1",
        "wieght: 1",
        5,
        "splits.train.blend[0].wieght",
        "did you mean 'weight'?",
    ),
    (
        "weight: 1",
        "weight: heavy",
        5,
        "splits.train.blend[0].weight",
        "a number, got 'heavy'",
    ),
    ("weight: 1", "weight: '1'", 5, "splits.train.blend[0].weight", "got '1'"),
    (
        "{path: b}",
        "{}",
        6,
        "splits.train.blend[1].blend[0].path",
        "the key 'path' is missing",
    ),
    (
        "{path: b}",
        "5",
        6,
        "splits.train.blend[1].blend[0]",
        "expected a mapping, got 5",
    ),
    ("{path: b}, ", "", 6, "splits.train.blend[1]", "a blend has two entries or more"),
    (
        "exact",
        "evne",
        8,
        "splits.train.scheme",
        "expected 'even' or 'exact', got 'evne'",
    ),
    (
        "size: all",
        "size: 0",
        7,
        "splits.train.blend[1].size",
        "or expected 'all', got 0",
    ),
    ("{a: 1}", "{a: b}", 9, "extra.a", "expected an integer, got 'b'"),
    ("{a: 1}", "[a, 1]", 9, "extra[1]", "expected text, got 1"),
    ("splits:", "split:", 2, "split", "unknown key 'split'; did you mean 'splits'?"),
]


@pytest.mark.parametrize(("old", "new", "line", "path", "said"), BAD)
def test_a_fault_is_told_with_its_place(old, new, line, path, said):
    text = GOOD.replace(old, new)
    with pytest.raises(DatasetError) as caught:
        validated(SCHEMA, yaml.safe_load(text), DatasetError, "mix.yaml", text)
    told = [each.strip() for each in str(caught.value).splitlines()]
    assert any(
        each.startswith(f"mix.yaml:{line} ({path}): ") and said in each for each in told
    )


def test_all_faults_are_told_at_once():
    text = (
        GOOD.replace("weight: 1", "wieght: 1")
        .replace("exact", "evne")
        .replace("{a: 1}", "5")
    )
    with pytest.raises(DatasetError) as caught:
        validated(SCHEMA, yaml.safe_load(text), DatasetError, "mix.yaml", text)
    first, *others = str(caught.value).splitlines()
    assert first == "3 errors in mix.yaml:"
    assert [each.split()[0] for each in others] == [
        "mix.yaml:5",
        "mix.yaml:8",
        "mix.yaml:9",
    ]
    value = {"__class__": "a", "splits": {f"s{i}": 5 for i in range(10_000)}}
    with pytest.raises(DatasetError, match="100 errors"):
        validated(SCHEMA, value, DatasetError, "mix.yaml")


def test_values_keep_their_types():
    found = validated(SCHEMA, yaml.safe_load(GOOD), DatasetError, "mix.yaml", GOOD)
    assert found.splits["train"].blend[0] == Folder(path="a", weight=1)
    assert found.extra == {"a": 1}


def test_lines_of_what_refers_to_itself_or_is_no_yaml():
    assert lines_of("a: &a\n  b: *a")[("a", "b")] == 2
    assert lines_of("a: [") == {} == lines_of("")
    assert lines_of('{"a":\n [1,\n 2]}')[("a", 1)] == 3
