"""Every public name of Megatron-Energon, and every argument, is there."""

from __future__ import annotations

import importlib
import inspect
import json
import pickle
import re
from pathlib import Path

import pytest
import yaml

import energize
from energize.core.ignored import IGNORED
from tests.support.energon import run_energon

TABLE = yaml.safe_load((Path(__file__).parent / "energon_names.yaml").read_text())
DIFFERENT, PASSED_ON, PATHS = TABLE["different"], TABLE["passed_on"], TABLE["paths"]

PEER_SIGNATURES = """
import importlib, inspect, json, sys
import megatron.energon as peer

def of(function):
    try:
        return [p.name for p in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []

found = {"__all__": sorted(peer.__all__), "__version__": peer.__version__}
for place in json.loads(sys.argv[1]):
    module, name = place.split(":")
    value = importlib.import_module("megatron." + module)
    for step in name.split("."):
        value = inspect.getattr_static(value, step)
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    found[place] = "@" if isinstance(value, property) else of(value)
print(json.dumps(found))
"""


def rows():
    """Of each line of the tables, its module, name and arguments."""
    for module, text in TABLE["names"].items():
        for line in text.replace("\n    ", " ").strip().splitlines():
            name, *arguments = line.split()
            yield ".".join(filter(None, ["energize", module])), name, arguments


ROWS = list(rows())
TOP = {name for module, name, _ in ROWS if module == "energize" and "." not in name}


def found(module: str, name: str):
    value = importlib.import_module(module)
    for step in name.split("."):
        value = getattr(value, step)
    return value


def takes(function, argument: str) -> bool:
    parameters = dict(inspect.signature(function).parameters)
    if inspect.isclass(function):  # what __new__ takes, and __init__
        parameters = {**inspect.signature(function.__init__).parameters, **parameters}
    if argument.startswith("*"):
        return any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if argument in parameters:
        return parameters[argument].kind is not inspect.Parameter.POSITIONAL_ONLY
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return rest and argument in IGNORED


@pytest.mark.parametrize(
    ("module", "name", "arguments"), ROWS, ids=[f"{m}:{n}" for m, n, _ in ROWS]
)
def test_the_name_and_its_arguments_are_there(module, name, arguments):
    place = f"{module}:{name}".removeprefix("energize").lstrip(".:")
    if place in DIFFERENT:
        with pytest.raises(AttributeError):
            found(module, name)
        return
    value = found(module, name)
    if arguments == ["@"]:
        owner = found(module, name.rpartition(".")[0])
        assert not inspect.isfunction(inspect.getattr_static(owner, name.rpartition(".")[2]))
        return
    passed_on = PASSED_ON.get(place, "").split()
    assert not [each for each in arguments if each not in passed_on and not takes(value, each)]


def test_what_differs_is_in_the_tables():
    known = {f"{m}:{n}".removeprefix("energize").lstrip(".:") for m, n, _ in ROWS}
    assert set(DIFFERENT) <= known


def test_all_names_of_the_root_are_exported():
    assert not TOP - set(energize.__all__)
    assert "__version__" in vars(energize)


@pytest.mark.parametrize(("path", "names"), PATHS.items())
def test_the_paths_of_modules_are_there(path, names):
    module = importlib.import_module(f"energize.{path}")
    for name in names.split():
        value = getattr(module, name)
        if isinstance(value, type):
            assert pickle.loads(pickle.dumps(value)) is value


def test_the_page_for_newcomers_has_all_of_them():
    """Every name, and every argument without a use; families of names may be put together."""
    page = Path(__file__).parents[2] / "docs" / "coming-from-energon.md"
    words = set(re.findall(r"\w+", page.read_text()))
    by_ending = ("_stateless", "_failure_tolerance")
    unnamed = [
        name
        for _, name, _ in ROWS
        if "." not in name and name not in words and not name.endswith("Webdataset")
    ]
    unexplained = [
        f"{name}({each})"
        for _, name, arguments in ROWS
        for each in arguments
        if each in IGNORED and each not in words and not each.endswith(by_ending)
    ]
    assert not unnamed
    assert not unexplained


@pytest.mark.energon
def test_the_tables_are_those_of_the_real_package():
    places = [f"{module.replace('energize', 'energon', 1)}:{name}" for module, name, _ in ROWS]
    signatures = json.loads(run_energon(json.dumps(places), program=PEER_SIGNATURES))
    assert signatures["__version__"].startswith(f"{TABLE['version']}.")
    assert TOP | {"__version__"} == set(signatures["__all__"])
    for place, (_, _, arguments) in zip(places, ROWS, strict=True):
        of_peer = signatures[place]
        wanted = {each.lstrip("*") for each in arguments}
        # Some of its handlers name what they do not use with an underscore.
        known = {*of_peer, *(each.removeprefix("_") for each in of_peer)}
        assert of_peer == "@" if arguments == ["@"] else wanted <= known, place
