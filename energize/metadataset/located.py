"""Documents as plain values with their lines, and the faults of documents.

Files contain only text, numbers, booleans, null, lists and mappings. Other YAML tags
are errors; nothing is constructed by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from energize.core import limits
from energize.core.os_errors import os_error_message
from energize.core.validation import (
    INSIDE_ITSELF,
    MOST_FAULTS,
    KeyPath,
    check_yaml,
    line_of,
    place,
    safe_loader,
    short,
)
from energize.data.files import absent, read_file
from energize.errors import (
    ConfigError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
)

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_PLAIN = {
    "null": re.compile(r"^(~|null|)$", re.IGNORECASE),
    "bool": re.compile(r"^(true|false|yes|no)$", re.IGNORECASE),
    "int": re.compile(r"^[-+]?[0-9]{1,18}$"),
    "float": re.compile(
        r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$",
        re.IGNORECASE,
    ),
}
_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() in ("true", "yes"),
    "int": int,
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
    "str": str,
}
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Loader(safe_loader()):  # type: ignore[misc]  # of two, by what is installed
    """YAML 1.1 with the numbers of YAML 1.2: 1e-3 is a number, 1:30 is text."""


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, None)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a document.

    Attributes:
        place: The location, as `file:line (path in the document)`.
        message: The fault and its remedy.
        line: The line, from 1; 0 if unknown.
        not_found: Whether the fault is a path that does not exist.
    """

    place: str
    message: str
    line: int = 0
    not_found: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def as_error(
    file: Path, problems: Sequence[Problem]
) -> MetadatasetError | DatasetNotFoundError:
    """Return all faults of a mix as one error.

    A `DatasetNotFoundError` if all faults are paths that do not exist.

    Args:
        file: The outermost file.
        problems: The faults.
    """
    text = str(problems[0])
    if len(problems) > 1:
        listed = [
            f"  {n}. {problem}" for n, problem in enumerate(problems[:MOST_FAULTS], 1)
        ]
        first = "The first " if len(problems) >= MOST_FAULTS else ""
        text = "\n".join([f"{first}{len(listed)} errors in {file}:", *listed])
    missing = all(problem.not_found for problem in problems)
    return DatasetNotFoundError(text) if missing else MetadatasetError(text)


def check_few(file: Path, problems: Sequence[Problem]) -> None:
    """Raise all faults if there are many.

    Args:
        file: The outermost file.
        problems: The faults so far.
    """
    if len(problems) >= MOST_FAULTS:
        raise as_error(file, problems)


@contextmanager
def place_noted(location: str) -> Iterator[None]:
    """Add a location to errors of the block.

    Args:
        location: The location, as `file:line (path)`.
    """
    try:
        yield
    except EnergizeError as error:
        raise noted(error, location) from error


def noted(error: EnergizeError, location: str) -> EnergizeError:
    """Return an error with the location of its node.

    Args:
        error: The error.
        location: The location, as `file:line (path)`.
    """
    if not location or str(error).endswith(f"requested at {location}"):
        return error
    return type(error)(f"{error}\n  requested at {location}")


@dataclass(frozen=True, slots=True)
class Located:
    """The values of a document, with the line (from 1) of each path.

    Attributes:
        file: The file.
        data: The values.
        lines: The line of each path.
        renamed: Original paths of a document in another grammar, by paths in `data`.
            Locations contain the original paths.
    """

    file: Path
    data: Any
    lines: Mapping[KeyPath, int]
    renamed: Mapping[KeyPath, KeyPath] = field(default_factory=dict)

    def place(self, path: KeyPath = ()) -> str:
        """Return the location of a path, as `file:line (path)`.

        Args:
            path: Keys and indices; for a missing path, the line of the enclosing value.
        """
        return place(
            self.file, self._as_written(path) if self.renamed else path, self.lines
        )

    def problem(self, path: KeyPath, message: str) -> Problem:
        """Return a fault of a value.

        Args:
            path: The path of the value.
            message: The fault and its remedy.
        """
        return Problem(
            self.place(path), message, line_of(self._as_written(path), self.lines) or 1
        )

    def _as_written(self, path: KeyPath) -> KeyPath:
        for end in range(len(path), 0, -1):
            if path[:end] in self.renamed:
                return self.renamed[path[:end]] + path[end:]
        return path


def read_yaml(
    file: Path, problems: list[Problem], *, variables: bool = False
) -> Located | None:
    """Read a YAML file.

    Args:
        file: The file.
        problems: Receives the faults.
        variables: Whether environment variables in text are replaced, see `expanded`.
            Text without quotes can become a number.

    Returns:
        The values; None if the file cannot be read.
    """
    content = read_bytes(file, problems)
    if content is None:
        return None
    location = str(file)
    if file.suffix == ".json":
        content = content.replace(b"\t", b" ")  # JSON indents with tabs, YAML may not
    try:
        content = check_yaml(content, circles=True)  # whose places are told below
        root = yaml.compose(content, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(
            error, "context_mark", None
        )
        location += f":{mark.line + 1}, column {mark.column + 1}" if mark else ""
        fault = (
            f"invalid YAML: {' '.join(str(getattr(error, 'problem', error)).split())}"
        )
    except ValueError as error:
        fault = str(error)
    else:
        if root is not None:
            reader = _Reader(file, problems, variables=variables)
            return Located(file, reader.value(root, ()), reader.lines)
        fault = (
            "the document is empty. Expected a mapping with __module__, __class__ "
            "and splits"
        )
    problems.append(Problem(location, fault))
    return None


def read_bytes(file: Path, problems: list[Problem]) -> bytes | None:
    """Read a file.

    Args:
        file: The file.
        problems: Receives the faults.

    Returns:
        The content; None if the file cannot be read.
    """
    try:
        return read_file(file, "YAML_BYTES")
    except FileNotFoundError:
        problems.append(Problem(str(file), f"the file {absent(file)}", not_found=True))
    except OSError as error:
        message = os_error_message(error, file, "the file cannot be read").removeprefix(
            f"{file}: "
        )
        problems.append(Problem(str(file), message))
    return None


def plain_values(data: Any, file: Path, problems: list[Problem]) -> Located:
    """Return values of a program as values of a file.

    Paths become text, and tuples lists. Functions and types stay as they are.

    Args:
        data: The values.
        file: A name for messages.
        problems: Receives faults of environment variables.
    """

    def plain(value: Any, path: KeyPath) -> Any:
        if len(path) > limits.LEVELS:
            raise ConfigError(f"{file}: {limits.over('LEVELS')}")
        if isinstance(value, Mapping):
            return {
                str(name): plain(entry, (*path, str(name)))
                for name, entry in value.items()
            }
        if isinstance(value, list | tuple):
            return [plain(entry, (*path, i)) for i, entry in enumerate(value)]
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        try:
            return expanded(text) if isinstance(text, str) else text
        except ConfigError as fault:
            problems.append(Problem(Located(file, None, {}).place(path), str(fault)))
            return None

    return Located(file, plain(data, ()), {})


def expanded(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Replace environment variables in text, as shells do.

    `${NAME}` is the value of the variable, `${NAME:-default}` the default if it is
    unset or empty, and `$${` is a literal `${`. Values are not expanded again.

    Args:
        text: The text.
        environment: The variables.

    Raises:
        ConfigError: If a variable without a default is unset, or the syntax is invalid.

    Example:
        >>> expanded("${ROOT}/captions/${SET:-small}", {"ROOT": "/data"})
        '/data/captions/small'
    """

    def value(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        name, has_default, default = (match["inside"] or "").partition(":-")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{short(text)} has '${{' without a variable name. Write ${{NAME}}, "
                "${NAME:-default}, or $${ for a literal ${"
            )
        if not has_default and name not in environment:
            raise ConfigError(
                f"{short(text)} needs the environment variable {name}, which is not "
                f"set. Set it, or write a default: ${{{name}:-...}}"
            )
        return environment.get(name) or default

    return _VARIABLE.sub(value, text)


def _plain_type(text: str) -> str:
    """Return the type of a value that is written without quotes."""
    for name, pattern in _PLAIN.items():
        if pattern.match(text):
            return name
    return "str"


class _Reader:
    """Turns nodes of YAML into values, and records their lines."""

    def __init__(self, file: Path, problems: list[Problem], *, variables: bool) -> None:
        self._file = file
        self._variables = variables
        self._problems = problems
        self._open: set[int] = set()
        self.lines: dict[KeyPath, int] = {}

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node at a path."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        listed = isinstance(node, yaml.SequenceNode)
        if node.tag != _TAG + ("seq" if listed else "map"):
            return self._unknown_tag(node, path)
        if id(node) in self._open:
            return self._fault(node, path, INSIDE_ITSELF)
        self._open.add(id(node))
        value: Any = {}
        if listed:
            value = [
                self.value(child, (*path, i)) for i, child in enumerate(node.value)
            ]
        else:
            for name, child in self._items(node, path).items():
                value[name] = self.value(child, (*path, name))
        self._open.discard(id(node))
        return value

    def _items(self, node: yaml.Node, path: KeyPath) -> dict[str, yaml.Node]:
        """Return the entries of a mapping, followed by merged entries."""
        items: dict[str, yaml.Node] = {}
        firsts: dict[KeyPath, int] = {}
        merged: dict[str, yaml.Node] = {}
        for key, child in node.value:
            location = (*path, key.value)
            if not isinstance(key, yaml.ScalarNode):
                self._fault(key, path, "a key must be text, not a list or mapping")
            elif key.value == _MERGE and not key.style:
                for mapping in self._merged(child, path):
                    merged = {**self._items(mapping, path), **merged}
            elif location in firsts:
                text = (
                    f"the key {short(key.value)} is given twice, first in line "
                    f"{firsts[location]}"
                )
                self._fault(key, location, f"{text}. Remove one")
            else:
                items[key.value] = child
                firsts[location] = key.start_mark.line + 1
        self.lines.update(firsts)
        return (
            items
            if not merged
            else items | {n: v for n, v in merged.items() if n not in items}
        )

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[yaml.Node]:
        for child in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(child, yaml.MappingNode) and id(child) not in self._open:
                self._open.add(id(child))
                yield child
                self._open.discard(id(child))
            else:
                self._fault(child, (*path, _MERGE), "'<<' merges other mappings only")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        type_name = node.tag.removeprefix(_TAG)
        text = node.value
        if type_name not in _SCALARS:
            return self._unknown_tag(node, path)
        if self._variables and "${" in text:
            try:
                text = expanded(text)
            except ConfigError as fault:
                return self._fault(node, path, str(fault))
            if type_name == "str" and not node.style:
                type_name = _plain_type(text)
            if len(text) > limits.LETTERS:
                return self._fault(node, path, limits.over("LETTERS", len(text)))
        try:
            return _SCALARS[type_name](text)
        except ValueError:
            tag = node.tag.replace(_TAG, "!!")
            return self._fault(
                node, path, f"{short(node.value)} is not a value of its tag, {tag!r}"
            )

    def _unknown_tag(self, node: yaml.Node, path: KeyPath) -> None:
        tag = node.tag.replace(_TAG, "!!")
        text = (
            f"the tag {short(tag)} is not allowed, as a metadataset is plain data. "
            "Remove the tag"
        )
        self._fault(node, path, text)

    def _fault(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        """Note a fault at the line of `node`; its value becomes null."""
        located = Located(self._file, None, {path: node.start_mark.line + 1})
        self._problems.append(located.problem(path, message))
        check_few(self._file, self._problems)
