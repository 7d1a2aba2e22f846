"""What users import, call and type is what it was."""

from __future__ import annotations

import json
import pickle

import energize
from tests.golden import api

RECORDED = json.loads(api.API.read_text())
PATHS = json.loads(api.ENERGON.read_text())


def allowed(name: str) -> bool:
    """Whether a name, or what it is in, was taken away on purpose; see `allowed` in api.json, which
    has a reason for each.
    """
    return any(
        name == each or name.startswith((f"{each}.", f"{each} ")) for each in RECORDED["allowed"]
    )


def now(name: str, was: str) -> str:
    """What a name is today, in the words of the record."""
    try:
        if was.startswith("is "):
            return was if api.found(name) is api.found(was[3:]) else "another object"
        answer = api.answer(name)
    except (ImportError, AttributeError) as error:
        return f"gone ({error})"
    if name.endswith(" <") and set(was.split()) <= set(answer.split()):
        return was
    return answer


def test_names_and_parameters():
    differences = [
        f"{name}\n    was {was}\n    is  {found}"
        for name, was in RECORDED["names"].items()
        if not allowed(name) and (found := now(name, was)) != was
    ]
    assert not differences, "\n".join(["the public API is another one:", *differences])


def test_commands_and_options():
    today = api.options()
    differences = [
        f"{name}\n    was {was}\n    is  {today.get(name, 'gone')}"
        for name, was in RECORDED["options"].items()
        if not allowed(name) and today.get(name) != was
    ]
    assert not differences, "\n".join(["the command line is another one:", *differences])


def test_what_is_allowed_has_a_reason():
    assert all(isinstance(reason, str) and reason for reason in RECORDED["allowed"].values())


def test_paths_of_energon():
    """`from PATH import NAME`, and what is of the root is that very object."""
    differences = []
    for path, module in ((path, PATHS[path]) for path in PATHS if not allowed(path)):
        for name in module["names"]:
            scope: dict[str, object] = {}
            try:
                exec(f"from {path} import {name}", scope)
            except ImportError as error:
                differences.append(str(error))
                continue
            value = scope[name]
            if name in energize.__all__ and value is not api.found(f"energize:{name}"):
                differences.append(f"{path}.{name} is not energize.{name}")
            if isinstance(value, type) and pickle.loads(pickle.dumps(value)) is not value:
                differences.append(f"{path}.{name} is another class when it is pickled")
    assert not differences, "\n".join(differences)
