"""Values of a type out of plain ones, as Megatron-Energon's configs are read, and
back.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter

from energize.errors import ConfigError

T = TypeVar("T")

_missing_value = object()
"""In place of a value that was not given, which is one of no type."""


class JsonValueError(ConfigError, ValueError):
    """A value is not of the type that it is read as."""


class JsonParser:
    """Makes values of a type out of those that JSON and YAML know, by pydantic.

    Nothing is converted ("1" is no int), but for lists that become tuples and sets, and
    mappings that become dataclasses and named tuples. With `strict`, a key that is no
    field is an error.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     width: int
    ...     height: int = 1
    >>> JsonParser().raw_to_typed({"width": 2}, Size)
    Size(width=2, height=1)
    """

    def __init__(self, strict: bool = True) -> None:
        self._extra: Any = "forbid" if strict else "ignore"

    def raw_to_typed(self, raw_data: Any, inst_type: type[T]) -> T:
        """Return the value of type `inst_type`; raise `JsonValueError` if it is
        none.
        """
        try:
            text = json.dumps(raw_data)
            return TypeAdapter(inst_type).validate_json(
                text, strict=True, extra=self._extra
            )
        except (TypeError, ValueError) as reason:
            raise JsonValueError(
                f"{raw_data!r} is not a valid {inst_type}: {reason}"
            ) from reason

    def raw_to_instance(self, raw_data: Mapping[str, Any], default_type: type[T]) -> T:
        """Return an object of the class that `__module__` and `__class__` name.

        The class has to be a subclass of `default_type`, which is used if no class is
        named; the other values are its arguments. The module has to be imported
        already: a file never imports anything, and never calls an unrelated class.
        """
        values = {
            k: value
            for k, value in raw_data.items()
            if k not in ("__module__", "__class__")
        }
        target = default_type
        if "__class__" in raw_data:
            module, name = (
                str(raw_data.get(value)) for value in ("__module__", "__class__")
            )
            module = module.replace("megatron.energon", "energize.energon", 1)
            named_class = getattr(sys.modules.get(module), name, None)
            if not isinstance(named_class, type):
                raise JsonValueError(
                    f"{module} has no class {name!r}. Import the module first"
                )
            if default_type is object or not issubclass(named_class, default_type):
                wanted = default_type.__name__
                raise JsonValueError(
                    f"{module}.{name} is not a {wanted}. Name a {wanted}"
                )
            target = named_class
        if is_dataclass(target) or hasattr(target, "_fields"):
            return self.raw_to_typed(values, target)
        return target(**values)


def to_json_object(obj: Any) -> Any:
    """Return a value as JSON knows it; classes and functions as where they are defined.

    >>> to_json_object(((1, 2), ConfigError))
    [[1, 2], {'__module__': 'energize.errors', '__class__': 'ConfigError'}]
    """
    if isinstance(obj, type):
        return {"__module__": obj.__module__, "__class__": obj.__name__}
    if is_dataclass(obj):
        return {
            value.name: to_json_object(getattr(obj, value.name))
            for value in fields(obj)
        }
    if hasattr(obj, "_asdict"):
        obj = obj._asdict()
    if isinstance(obj, Mapping):
        return {key: to_json_object(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple | set | frozenset):
        return [to_json_object(value) for value in obj]
    if callable(obj):
        return {"__module__": obj.__module__, "__function__": obj.__name__}
    return obj


def load_yaml(stream: Any) -> Any:
    """Return what a YAML text or file holds: plain values."""
    return yaml.safe_load(stream)


def load_config(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    default_type: type[T],
    default_kwargs: Mapping[str, Any] | None = None,
    parser: JsonParser | None = None,
) -> T:
    """Return the object that a YAML file or a mapping describes.

    Missing values are taken from `default_kwargs`; see `raw_to_instance`.
    """
    raw = path if isinstance(path, Mapping) else load_yaml(Path(path).read_bytes())
    return (parser or JsonParser()).raw_to_instance(
        {**(default_kwargs or {}), **raw}, default_type
    )
