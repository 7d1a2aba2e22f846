"""What users import, call and type is what it was; `allowed` in api.json has the
reasons for what was taken away.
"""

from __future__ import annotations

import json
import pickle

from energize import energon
from tests.golden import api

RECORDED = json.loads(api.API.read_text())
PATHS = json.loads(api.ENERGON.read_text())


def check(kind: str, answer) -> None:
    differences = [
        f"{name}\n    was {was}\n    is  {now}"
        for name, was in RECORDED[kind].items()
        if not api.allowed(name, RECORDED["allowed"])
        and (now := answer(name, was)) != was
    ]
    assert not differences, "\n".join([f"{kind} are others:", *differences])


def test_names_parameters_commands_and_options():
    today = api.options()
    check("names", api.answer)
    check("options", lambda name, _: today.get(name, "gone"))
    assert all(
        isinstance(reason, str) and reason for reason in RECORDED["allowed"].values()
    )


def test_paths_of_energon():
    """`from PATH import NAME` gives the object that `energize.energon` has."""
    differences = []
    for path in (each for each in PATHS if not api.allowed(each, RECORDED["allowed"])):
        for name in PATHS[path]["names"]:
            scope: dict[str, object] = {}
            try:
                exec(f"from {path} import {name}", scope)
            except ImportError as error:
                differences.append(str(error))
                continue
            value = scope[name]
            if value is not getattr(energon, name, value):
                differences.append(f"{path}.{name} is not energize.energon.{name}")
            if (
                isinstance(value, type)
                and pickle.loads(pickle.dumps(value)) is not value
            ):
                differences.append(f"{path}.{name} is another class when it is pickled")
    assert not differences, "\n".join(differences)
