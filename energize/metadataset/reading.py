"""Metadataset files: from text to checked nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.errors import nearest
from energize.metadataset.checking import NodeChecker
from energize.metadataset.grammar import OLDER, Grammar, grammar_of
from energize.metadataset.keys import ENERGIZE, Home, Spec
from energize.metadataset.located import KeyPath, Located, plain_values, read_yaml
from energize.metadataset.problems import Problem, as_error, shown
from energize.metadataset.table import unknown_key

_GIVEN = Path("<a mapping>")
_HEAD = ("__module__", "__class__", "splits")
STAGE_FILE = (
    "a file of stages is no metadataset; it is read by get_staged_train_dataset and read_stages"
)


@dataclass(frozen=True, slots=True)
class MetadatasetFile:
    """A metadataset file, checked by itself: what it refers to was not looked at."""

    file: Path
    splits: Mapping[str, Spec]
    text: Located

    @property
    def older(self) -> bool:
        """Whether it is written in Energon's older grammar."""
        return grammar_of(self.text.data) is OLDER

    def place(self, path: KeyPath = ()) -> str:
        """Where a path in the document is: `file:line (path)`."""
        return self.text.place(path)


def read_metadataset(path: str | os.PathLike[str]) -> MetadatasetFile:
    """Read a metadataset file; the files and folders it names are not touched.

    The text is plain data: nothing in it is imported or executed. Variables of the environment are
    put in where a text names them: `${NAME}`, or `${NAME:-default}`.

    Raises `MetadatasetError` with every fault of the file, each with its line, its path in the
    document, the value and what was expected; `DatasetNotFoundError` when there is no such file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
    >>> _ = file.write_text('''
    ... __module__: energize
    ... __class__: MetadatasetV2
    ... splits:
    ...   train:
    ...     blend:
    ...       - {path: captions, weight: 3}
    ...       - {path: photographs, weight: 1}
    ... ''')
    >>> [(entry.path, entry.weight) for entry in read_metadataset(file).splits["train"].entries]
    [('captions', 3), ('photographs', 1)]
    """
    problems: list[Problem] = []
    metadataset = load(Path(path), problems)
    if metadataset is None:
        raise as_error(Path(path), problems)
    return metadataset


def load(file: Path, problems: list[Problem]) -> MetadatasetFile | None:
    """The document in `file`, or None when it cannot be used; every fault goes to `problems`."""
    found: list[Problem] = []
    return _document(file, read_yaml(file, found, variables=True), found, problems)


def given(data: Mapping[str, Any]) -> MetadatasetFile:
    """What a program gives as a mapping in place of a file; relative paths in it begin in the
    current folder.

    Raises `MetadatasetError` with all faults, each by its path.
    """
    found: list[Problem] = []
    problems: list[Problem] = []
    file = _document(_GIVEN, plain_values(data, _GIVEN, found), found, problems)
    if file is None:
        raise as_error(_GIVEN, problems)
    return file


def _document(
    file: Path, text: Located | None, found: list[Problem], problems: list[Problem]
) -> MetadatasetFile | None:
    splits: Mapping[str, Spec] = {}
    if text is not None and isinstance(text.data, dict) and _is_of_stages(text.data):
        found.append(text.problem(("training",), STAGE_FILE))
    elif text is not None:
        places = {problem.place for problem in found}
        splits, faults = _checked(text)
        found += [problem for problem in faults if problem.place not in places]
    problems += sorted(found, key=lambda problem: problem.line)
    return None if found or text is None else MetadatasetFile(file, splits, text)


def _is_of_stages(data: dict[str, Any]) -> bool:
    return "training" in data and "splits" not in data


def _checked(text: Located) -> tuple[dict[str, Spec], list[Problem]]:
    """The splits of a document, and what is wrong with it."""
    data, grammar = text.data, grammar_of(text.data)
    if not isinstance(data, Mapping):
        fault = f"expected a mapping with __module__, __class__ and splits; got {shown(data)}"
        return {}, [text.problem((), fault)]
    checker = NodeChecker(text, grammar, weights=data.get("__module__") == ENERGIZE)
    _check_head(checker, data, grammar)
    splits = data.get("splits", {})
    if isinstance(splits, Mapping) and splits:
        nodes = {
            name: checker.node(each, ("splits", name), Home.SPLIT) for name, each in splits.items()
        }
        whole = {name: node for name, node in nodes.items() if node is not None}
        return whole, checker.problems
    if "splits" in data:
        checker.fault(("splits",), f"expected {grammar.splits}; got {shown(splits)}")
    return {}, checker.problems


def _check_head(checker: NodeChecker, data: Mapping[str, Any], grammar: Grammar) -> None:
    words = {"__module__": grammar.modules, "__class__": (grammar.kind,)}
    strange = [name for name in data if name not in _HEAD]
    for name in strange:
        checker.fault((name,), unknown_key(name, list(_HEAD)))
    for name, allowed in words.items():
        value, expected = data.get(name), " or ".join(allowed)
        if name not in data:
            if grammar.headed and not any(nearest(other, [name]) for other in strange):
                checker.fault((), f"the key {name!r} is missing; expected {expected}")
        elif value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            checker.fault((name,), f"expected {expected}; got {shown(value)}{hint}")
    if "splits" not in data and not any(nearest(other, ["splits"]) for other in strange):
        checker.fault((), f"the key 'splits' is missing; expected {grammar.splits}")
