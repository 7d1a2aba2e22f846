"""The public API as texts by name, and the module paths that programs for
Megatron-Energon import.

`api.json` has the names of `energize` and of the modules that the README, docs/ and
examples/ name; of classes the constructor, and what these pages mention of them; the
commands of `energize` with their options. A name is written "module:Class.method", an
option as it is typed.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import energize

HERE = Path(__file__).parent
API, ENERGON = HERE / "api.json", HERE / "energon_paths.json"
ATTRIBUTE = "attribute"
KINDS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "key "}


def found(name: str) -> Any:
    """What "module:Class.method" is; what has values of its own in each object is
    ATTRIBUTE."""
    module, _, steps = name.partition(":")
    value = importlib.import_module(module)
    for step in filter(None, steps.split(".")):
        if inspect.isclass(value):
            value = (
                getattr(value, step, None)
                if step in attributes(value)
                else getattr(value, step)
            )
            value = value if callable(value) else ATTRIBUTE
        else:
            value = getattr(value, step)
            if isinstance(value, ModuleType) and callable(value):
                value = getattr(
                    value, step
                )  # a path of Energon that has the name of a function
    return value


def attributes(kind: type) -> set[str]:
    """The names that its objects have, as far as the class says so."""
    fields = {
        name for each in kind.__mro__ for name in vars(each).get("__annotations__", ())
    }
    return {*dir(kind), *fields}


def signature(value: Any) -> str:
    """Of each parameter its name, kind and default; what else a name is."""
    if not callable(value):
        return value if value is ATTRIBUTE else f"a {type(value).__name__}"
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"one of {', '.join(value.__members__)}"
    if inspect.ismethoddescriptor(
        value
    ):  # of dict, of which not every Python says more
        return "callable"
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


def answer(name: str, was: str = "") -> str:
    """What a recorded name is now, in the words of the record."""
    try:
        if was.startswith("is "):
            return was if found(name) is found(was[3:]) else "another object"
        if not name.endswith(" <"):
            return signature(found(name))
        above = {each.__name__ for each in found(name[:-2]).__mro__}
        return was if set(was.split()) <= above else " ".join(sorted(above))
    except (ImportError, AttributeError) as error:
        return f"gone ({error})"


def allowed(name: str, names: Any) -> bool:
    """Whether a name, or what it is in, was taken away on purpose."""
    return any(
        name == each or name.startswith((f"{each}.", f"{each} ")) for each in names
    )


def options() -> dict[str, str]:
    """Every option and argument of every command."""
    main = importlib.import_module("energize.cli.main")
    command = typer.main.get_command(main.app)
    command.commands = {name: main.load_command(name) for name in main.COMMANDS}
    return dict(_options(command, "energize"))


def _options(command: Any, name: str) -> Iterator[tuple[str, str]]:
    for each in command.params:
        flag = "flag" if getattr(each, "is_flag", False) else "value"
        many = ", many" if each.multiple or each.nargs != 1 else ""
        typed = " ".join([name, *each.opts, *each.secondary_opts])
        yield typed, f"{flag}{many}, required={each.required}, default={each.default!r}"
    for inner, each in getattr(command, "commands", {}).items():
        yield f"{name} {inner}", "command"
        yield from _options(each, f"{name} {inner}")


def write() -> None:
    """Write what is recorded as it is now, and new names of `energize`; leave out what
    is gone.
    """
    recorded = json.loads(API.read_text())
    kept = {
        n: was
        for n, was in recorded["names"].items()
        if not allowed(n, recorded["allowed"])
    }
    new = {f"energize:{name}": "" for name in energize.__all__}
    names = {name: answer(name, was) for name, was in sorted((new | kept).items())}
    names = {name: now for name, now in names.items() if not now.startswith("gone")}
    api = {"allowed": recorded["allowed"], "names": names, "options": options()}
    API.write_text(json.dumps(api, indent=0) + "\n")
