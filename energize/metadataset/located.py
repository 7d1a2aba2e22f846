"""Plain values that remember the line on which each of them was written; YAML as such values.

Nothing but text, numbers, booleans, null, lists and mappings can come out of it: a tag that asks
for anything else is an error, and nothing is constructed by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from energize.core import limits
from energize.core.limits import INSIDE_ITSELF, SafeLoader, check_yaml
from energize.data.files import read_file, remedy
from energize.errors import ConfigError
from energize.metadataset.problems import Problem, check_few, cut, shown
from energize.metadataset.variables import expanded

KeyPath = tuple[str | int, ...]
"""The way from the root of a document to a value: keys of mappings and indices of lists."""

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_PLAIN = {
    "null": re.compile(r"^(~|null|)$", re.IGNORECASE),
    "bool": re.compile(r"^(true|false|yes|no)$", re.IGNORECASE),
    "int": re.compile(r"^[-+]?[0-9]{1,18}$"),
    "float": re.compile(
        r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$", re.IGNORECASE
    ),
}

_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() in ("true", "yes"),
    "int": int,
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    "str": str,
}


class _Loader(SafeLoader):  # type: ignore[misc,valid-type]  # of two, by what is installed
    """The syntax of YAML 1.1 with the numbers of 1.2, in which 1e-3 is one and 1:30 is text."""


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, None)


_EXPLAINED_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Located:
    """The values of a file, and the line (from 1) of each path in them."""

    file: Path
    data: Any
    lines: Mapping[KeyPath, int]

    def place(self, path: KeyPath = ()) -> str:
        """`file:line (path)`; the line of what encloses it for a path that is not there."""
        where = f"{self.file}:{self._line(path)}" if self.lines else str(self.file)
        return f"{where} ({written(path)})" if path else where

    def problem(self, path: KeyPath, message: str) -> Problem:
        """A fault of the value at `path`."""
        return Problem(self.place(path), message, self._line(path))

    def _line(self, path: KeyPath) -> int:
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def written(path: KeyPath) -> str:
    """A path as people write it: `splits.train.blend[1].weight`."""
    text = ""
    for part in path:
        if isinstance(part, int) or not re.fullmatch(r"[\w-]{1,80}", part):
            text += f"[{cut(repr(part))}]"
        else:
            text += f".{part}" if text else part
    return text


def read_yaml(file: Path, problems: list[Problem], *, variables: bool = False) -> Located | None:
    """The values of `file`, or None when it cannot be read at all; faults go to `problems`.

    With `variables`, texts are those that `expanded` makes of them; what is written without quotes
    may become a number that way.
    """
    content = read_bytes(file, problems)
    if content is None:
        return None
    place = str(file)
    try:
        check_yaml(content, circles=True)  # whose places are told below
        root = yaml.compose(content, Loader=_Loader)
    except yaml.MarkedYAMLError as quick:
        error = _explained(content, quick)
        mark = error.problem_mark or error.context_mark
        if mark is not None:
            place += f":{mark.line + 1}, column {mark.column + 1}"
        fault = f"invalid YAML: {', '.join(filter(None, (error.context, error.problem)))}"
    except yaml.YAMLError as error:
        fault = f"invalid YAML: {' '.join(str(error).split())}"
    except ValueError as error:
        fault = str(error)
    else:
        if root is not None:
            reader = _Reader(file, problems, variables=variables)
            return Located(file, reader.value(root, ()), reader.lines)
        fault = "the document is empty; expected a mapping with __module__, __class__ and splits"
    problems.append(Problem(place, fault))
    return None


def _explained(content: bytes, error: yaml.MarkedYAMLError) -> yaml.MarkedYAMLError:
    """What PyYAML's own parser says, which names what it found; it is too slow for large files."""
    if len(content) > _EXPLAINED_BYTES:
        return error
    try:
        yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as better:
        return better
    return error


def plain_values(data: Any, file: Path, problems: list[Problem]) -> Located:
    """What a program gives instead of a file, as what could stand in one; faults go to `problems`.

    Paths become texts, tuples lists. Functions and types, which no file holds, are left as they
    are.
    """

    def plain(value: Any, path: KeyPath) -> Any:
        if len(path) > limits.LEVELS:
            raise ConfigError(f"{file}: {limits.over('LEVELS')}")
        if isinstance(value, Mapping):
            return {str(name): plain(each, (*path, str(name))) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each, (*path, i)) for i, each in enumerate(value)]
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        try:
            return expanded(text) if isinstance(text, str) else text
        except ConfigError as fault:
            problems.append(Problem(Located(file, None, {}).place(path), str(fault)))
            return None

    return Located(file, plain(data, ()), {})


def read_bytes(file: Path, problems: list[Problem]) -> bytes | None:
    """What is in `file`, or None when it cannot be read, which goes to `problems`."""
    try:
        return read_file(file, "YAML_BYTES")
    except FileNotFoundError:
        problems.append(Problem(str(file), "the file does not exist", not_found=True))
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}; {remedy(error)}"
        problems.append(Problem(str(file), what))
    return None


class _Reader:
    """Turns nodes into values, noting their lines."""

    def __init__(self, file: Path, problems: list[Problem], *, variables: bool) -> None:
        self._file = file
        self._variables = variables
        self._problems = problems
        self._open: set[int] = set()
        self.lines: dict[KeyPath, int] = {}

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, _line(node))
        if id(node) in self._open:
            return self._fault(node, path, INSIDE_ITSELF)
        self._open.add(id(node))
        value = self._by_kind(node, path)
        self._open.discard(id(node))
        return value

    def _by_kind(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        expected = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != _TAG + expected:
            return self._unknown_tag(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(each, (*path, i)) for i, each in enumerate(node.value)]
        return {
            name: self.value(each, (*path, name)) for name, each in self._items(node, path).items()
        }

    def _items(self, node: yaml.Node, path: KeyPath) -> dict[str, yaml.Node]:
        """The entries of a mapping; keys are text as written, merged ones come after its own."""
        own: dict[str, tuple[yaml.Node, int]] = {}
        merged: dict[str, yaml.Node] = {}
        for key, each in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fault(key, path, "a key must be text, not a list or mapping")
            elif key.value == _MERGE and not key.style:
                for mapping in self._merged(each, path):
                    merged = {**self._items(mapping, path), **merged}
            elif key.value in own:
                first = own[key.value][1]
                text = (
                    f"the key {shown(key.value)} is given twice, first in line {first}; remove one"
                )
                self._fault(key, (*path, key.value), text)
            else:
                own[key.value] = each, _line(key)
                self.lines[*path, key.value] = _line(key)
        return {name: each for name, (each, _) in own.items()} | {
            name: each for name, each in merged.items() if name not in own
        }

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.Node]:
        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(each, yaml.MappingNode) and id(each) not in self._open:
                self._open.add(id(each))
                yield each
                self._open.discard(id(each))
            else:
                self._fault(each, (*path, _MERGE), "'<<' merges other mappings only")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind not in _SCALARS:
            return self._unknown_tag(node, path)
        if self._variables and "${" in text:
            try:
                text = expanded(text)
            except ConfigError as fault:
                return self._fault(node, path, str(fault))
            if kind == "str" and not node.style:
                kind = next((name for name, each in _PLAIN.items() if each.match(text)), "str")
            if len(text) > limits.LETTERS:
                return self._fault(node, path, limits.over("LETTERS", len(text)))
        try:
            return _SCALARS[kind](text)
        except ValueError:
            return self._fault(
                node,
                path,
                f"{shown(node.value)} is no value of its tag, {node.tag.replace(_TAG, '!!')!r}",
            )

    def _unknown_tag(self, node: yaml.Node, path: KeyPath) -> None:
        tag = node.tag.replace(_TAG, "!!")
        text = f"the tag {shown(tag)} is not allowed: a metadataset is plain data; remove the tag"
        self._fault(node, path, text)

    def _fault(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        """Note a fault at the line of `node`; the value there becomes null."""
        here = Located(self._file, None, {path: _line(node)})
        self._problems.append(here.problem(path, message))
        check_few(self._file, self._problems)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
