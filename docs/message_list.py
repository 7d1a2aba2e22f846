"""The errors, warnings and log lines of the package, read from its source.

`messages` parses every module; `page` renders all messages for the site. Values that
are inserted at run time are shown as the expression in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEVELS = {"info", "warning", "error", "exception"}
_CALLS = {"said_once", "Problem", "problem", "warn"} | LEVELS


class Message(NamedTuple):
    """A message: module, line, level or error type, and text."""

    module: str
    line: int
    type: str
    text: str


def messages() -> list[Message]:
    """Return all messages of the package, ordered by module and line."""
    found = []
    for path in sorted((ROOT / "energize").rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            for name, text in _texts(node):
                found.append(Message(module, node.lineno, name, text))  # type: ignore[attr-defined]
    return sorted(set(found))


def page() -> str:
    """Return the page of all messages, in Markdown."""
    lines = [
        "# All messages",
        "",
        "Every error, warning and log line of the package, with the inserted values in "
        "braces. [Common messages](../messages.md) explains the frequent ones.",
    ]
    module = ""
    for message in messages():
        if message.module != module:
            module = message.module
            lines += ["", f"## {module}", ""]
        text = " ".join(message.text.split()).replace("`", "'")
        lines.append(f"- {message.type}: `{text}`")
    return "\n".join(lines) + "\n"


def _texts(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (type, text) of a raised error or a call that logs."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        call = node.exc
        name = ast.unparse(call.func).rsplit(".", 1)[-1]
    elif isinstance(node, ast.Call):
        call = node
        name = ast.unparse(call.func).rsplit(".", 1)[-1]
        if name not in _CALLS:
            return
    else:
        return
    for argument in call.args:
        text = _rendered(argument)
        if " " in text.strip():
            yield name, text


def _rendered(node: ast.expr) -> str:
    """Return a string expression as a reader sees it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_rendered, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _rendered(node.left) + _rendered(node.right)
    return ""
