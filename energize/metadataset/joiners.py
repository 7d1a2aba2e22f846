"""What makes one sample of those that a join found, as metadatasets name it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from energize.core.samples import Sample, is_own_module, sample_type_named
from energize.errors import ConfigError, MetadatasetError, UntrustedCodeError, nearest
from energize.metadataset.problems import place_noted, shown

_NAMES = ("__class__", "__function__")
_EXPECTED = (
    "a mapping with '__module__' and either '__class__' (a type of samples with from_joined) or "
    "'__function__'"
)
JOINER_SCHEMA = {
    "description": _EXPECTED,
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 1} for name in ("__module__", *_NAMES)},
    "required": ["__module__"],
    "oneOf": [{"required": [name]} for name in _NAMES],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class JoinerName:
    """A joiner by its module and name; `kind` is `__class__` or `__function__`."""

    module: str
    name: str
    kind: str


Joiner = JoinerName | Callable[..., Any]
"""A joiner as a file names it, or the type or function that a program gives itself."""


def joiner_of(value: Any) -> Joiner:
    """The joiner that a file writes as a mapping; what a program gives is taken as it is.

    >>> joiner_of({"__module__": "my_project.samples", "__class__": "TextAndImage"})
    JoinerName(module='my_project.samples', name='TextAndImage', kind='__class__')
    """
    if callable(value) or isinstance(value, JoinerName):
        own: Joiner = value
        return own
    kinds = [name for name in _NAMES if isinstance(value, Mapping) and name in value]
    if len(kinds) != 1 or set(value) != {"__module__", *kinds}:
        raise ConfigError(f"expected {_EXPECTED}; got {shown(value)}")
    module, name = value["__module__"], value[kinds[0]]
    if not all(isinstance(each, str) and each for each in (module, name)):
        raise ConfigError(f"expected {_EXPECTED}, both as text; got {shown(value)}")
    return JoinerName(module, name, kinds[0])


def joining_function(joiner: Joiner, place: str) -> Callable[..., Any]:
    """The function that joins samples: of a type of samples its `from_joined`.

    Nothing is imported because a file names it: a module is one that the program has imported, and
    modules of energize and of Megatron-Energon mean the types here.
    Raises `UntrustedCodeError` for another one, `MetadatasetError` for a name that is not there or
    is no joiner; both name the `place` in the file.
    """
    found = _imported(joiner, place) if isinstance(joiner, JoinerName) else joiner
    if not isinstance(found, type):
        return found
    if not issubclass(found, Sample):
        raise MetadatasetError(
            f"{place}: the joiner {found.__name__} is no type of samples: it has to extend "
            "energize.Sample, or be a function"
        )
    return found.from_joined


def joined_type(joiner: Joiner, place: str) -> type[Any]:
    """The type of the samples that a joiner makes: `Sample` where a function does not say it."""
    found = _imported(joiner, place) if isinstance(joiner, JoinerName) else joiner
    made = found if isinstance(found, type) else _annotated(found)
    return made if isinstance(made, type) and issubclass(made, Sample) else Sample


def _annotated(function: Callable[..., Any]) -> Any:
    made = getattr(function, "__annotations__", {}).get("return")
    if isinstance(made, str):  # annotations of a module that postpones them
        return getattr(function, "__globals__", {}).get(made)
    return made


def _imported(joiner: JoinerName, place: str) -> Any:
    if joiner.kind == "__class__" and is_own_module(joiner.module):
        with place_noted(place):
            return sample_type_named(joiner.module, joiner.name)
    if joiner.module not in sys.modules:
        raise UntrustedCodeError(
            f"{place}: the joiner is {shown(joiner.name)} of the module "
            f"{shown(joiner.module)}, which this program has not imported. Nothing is "
            "imported because a file asks for it: if you "
            f"trust that module, write `import {joiner.module}` in your program before this"
        )
    names = vars(sys.modules[joiner.module])
    found = names.get(joiner.name)
    fits = isinstance(found, type) if joiner.kind == "__class__" else callable(found)
    if not fits:
        wanted = "class" if joiner.kind == "__class__" else "function"
        has = "it has a " + type(found).__name__ if joiner.name in names else "there is none"
        hint = "" if joiner.name in names else nearest(joiner.name, list(names))
        raise MetadatasetError(
            f"{place}: the joiner is the {wanted} {shown(joiner.name)} of the module "
            f"{shown(joiner.module)}, and {has} of that name{hint}"
        )
    return found
