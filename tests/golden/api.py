"""The public API as texts by name, and the module paths that programs for Megatron-Energon import.

Public are the names of `energize` and of the modules that the README, docs/ and examples/ name; of
classes the constructor, and the methods and properties that these pages mention; the commands of
`energize` with their options. A name is written "module:Class.method", an option as it is typed.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import energize

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
API, ENERGON = HERE / "api.json", HERE / "energon_paths.json"
ATTRIBUTE = "attribute"
KINDS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "key "}


def pages() -> str:
    """What is written for users."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.py")]
    return "\n".join(each.read_text() for each in files)


def found(name: str) -> Any:
    """What "module:Class.method" is; what has values of its own in each object is ATTRIBUTE."""
    module, _, steps = name.partition(":")
    value = importlib.import_module(module)
    for step in filter(None, steps.split(".")):
        if inspect.isclass(value):
            value = (
                getattr(value, step, None) if step in attributes(value) else getattr(value, step)
            )
            value = value if callable(value) else ATTRIBUTE
        else:
            value = getattr(value, step)
            if isinstance(value, ModuleType) and callable(value):
                value = getattr(value, step)  # a path of Energon that has the name of a function
    return value


def attributes(kind: type) -> set[str]:
    """The names that its objects have, as far as the class says so."""
    fields = {name for each in kind.__mro__ for name in vars(each).get("__annotations__", ())}
    return {*dir(kind), *fields}


def signature(value: Any) -> str:
    """Of each parameter its name, kind and default; what else a name is."""
    if not callable(value):
        return value if value is ATTRIBUTE else f"a {type(value).__name__}"
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"one of {', '.join(value.__members__)}"
    try:
        given = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "callable"
    return f"({', '.join(KINDS.get(p.kind.name, '') + p.name + _default(p) for p in given)})"


def _default(parameter: Any) -> str:
    default = parameter.default
    if default is parameter.empty:
        return ""
    if default is None or isinstance(default, bool | int | float | str | tuple):
        return f"={default!r}"
    return f"={getattr(default, '__qualname__', f'{type(default).__name__}(...)')}"


def known_above(kind: type) -> list[type]:
    """The classes above it that users know."""
    public = {*energize.__all__, *vars(builtins)}
    return [each for each in kind.__mro__[1:-1] if each.__name__ in public]


def bases(kind: type) -> str:
    return " ".join(each.__name__ for each in known_above(kind))


def members(kind: type, words: set[str]) -> list[str]:
    """What the pages mention of a class, but what it has as those above it."""
    as_above = {
        name
        for above in known_above(kind)
        for name in words & attributes(above)
        if inspect.getattr_static(above, name, None) is inspect.getattr_static(kind, name, None)
    }
    return sorted(words & attributes(kind) - as_above)


def modules(text: str) -> list[str]:
    """Modules that the pages import from, or name; `energize` first."""
    named = set(re.findall(r"\b(energize(?:\.[a-z_]+)+)\b", text)) | {"energize", "energize.errors"}
    return sorted({_module(name) for name in named})


def _module(name: str) -> str:
    """The module that a dotted name leads to, or into."""
    try:
        return importlib.import_module(name).__name__
    except ImportError:
        return _module(name.rpartition(".")[0])


def names_of(module: Any) -> list[str]:
    """Its `__all__`, else what is defined in it and has no underscore."""
    own = [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", own))


def public_names() -> Iterator[tuple[str, str]]:
    """Every public name with what it is."""
    text, seen = pages(), {}
    words = set(re.findall(r"\.([a-z]\w*)", text)) | set(re.findall(r"`([a-z]\w*)[`(]", text))
    for path in modules(text):
        module = importlib.import_module(path)
        for name in names_of(module):
            key, value = f"{path}:{name}", getattr(module, name)
            if callable(value) and seen.setdefault(id(value), key) != key:
                yield key, f"is {seen[id(value)]}"
                continue
            yield key, signature(value)
            if inspect.isclass(value):
                yield f"{key} <", bases(value)
                for member in members(value, words):
                    yield f"{key}.{member}", signature(found(f"{key}.{member}"))


def answer(name: str) -> str:
    """What a recorded name is now."""
    return bases(found(name[:-2])) if name.endswith(" <") else signature(found(name))


def options() -> dict[str, str]:
    """Every option and argument of every command."""
    main = importlib.import_module("energize.cli.main")
    return dict(_options(typer.main.get_command(main.app), "energize"))


def _options(command: Any, name: str) -> Iterator[tuple[str, str]]:
    for each in command.params:
        flag = "flag" if getattr(each, "is_flag", False) else "value"
        many = ", many" if each.multiple or each.nargs != 1 else ""
        typed = " ".join([name, *each.opts, *each.secondary_opts])
        yield typed, f"{flag}{many}, required={each.required}, default={each.default!r}"
    for inner, each in getattr(command, "commands", {}).items():
        yield f"{name} {inner}", "command"
        yield from _options(each, f"{name} {inner}")


def energon_paths() -> Iterator[tuple[str, Any]]:
    """The paths that are recorded, with their names and where those are defined: nowhere near for
    modules that only hand names on.
    """
    for path, known in json.loads(ENERGON.read_text()).items():
        module = importlib.import_module(path)
        every = sorted({*known["names"], *getattr(module, "__all__", ())})
        defined = {name: getattr(getattr(module, name), "__module__", None) for name in every}
        own = module.__name__ in defined.values() or None in defined.values()
        yield (
            module.__name__,
            {"hands_on": not own and not hasattr(module, "__path__"), "names": defined},
        )


def write() -> None:
    """Write both files anew; what is allowed stays."""
    allowed = json.loads(API.read_text())["allowed"] if API.exists() else {}
    api = {"allowed": allowed, "names": dict(public_names()), "options": options()}
    API.write_text(json.dumps(api, indent=0) + "\n")
    ENERGON.write_text(json.dumps(dict(energon_paths()), indent=1) + "\n")
