"""Checks of parameters that several wrappers take, and whom their errors name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from energize.errors import ConfigError, EmptyDatasetError, nearest


def checked_flag(value: object, name: str, owner: str) -> bool:
    """`value` as True or False; `ConfigError` naming the parameter and its owner."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{owner}: {name} is True or False; got {value!r}")
    return bool(value)


def check_names(given: Iterable[str], options: Iterable[str], *makers: type) -> None:
    """`ConfigError` for a name given that is neither of `options` nor a parameter of the classes
    `makers`; it lists those that are known.
    """
    parameters = [
        name
        for maker in makers
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    known = list(dict.fromkeys([*parameters, *options]))
    for name in given:
        if name not in known:
            raise ConfigError(
                f"there is no parameter {name!r}{nearest(name, known) or '.'} Known: "
                f"{', '.join(known)}"
            )


@contextmanager
def raised_as(owner: str, *parts: str) -> Iterator[None]:
    """Errors about parameters begin with the name of the class that the user made, `owner`, instead
    of one of the classes that it is put together from, or none.
    """
    try:
        yield
    except (ConfigError, EmptyDatasetError) as error:
        text = str(error)
        for name in (owner, *parts):
            text = text.removeprefix(f"{name}: ")
        error.args = (f"{owner}: {text}",)
        raise
