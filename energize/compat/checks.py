"""Arguments checked against their annotations, with errors in the words of whoever is called."""

from __future__ import annotations

import inspect
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    ValidationError,
    WrapValidator,
    validate_call,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from energize.core.checks import checked_whole, whole_number
from energize.core.lanes import WorkerConfig
from energize.errors import ConfigError, EnergizeError, WeightError, nearest

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SAID = {
    "bool_type": "is True or False",
    "callable_type": "is a function",
    "dict_type": "is a dict",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "sequence_str": "is a list",
    "string_type": "is text",
    "unexpected_keyword_argument": "is not known",
    "unexpected_positional_argument": "is one too many by position",
}
"""What pydantic's faults are called here; others carry their own words."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, or the `__init__` of a class, called with values of the annotated types only.

    Raises `ConfigError` naming the function or class, the argument and the value.
    """
    call = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)
    parameters = list(inspect.signature(function).parameters)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except ValidationError as error:
            owner = type(args[0]).__name__ if parameters[0] == "self" else function.__name__
            raise _explained(owner, parameters, error.errors(include_url=False)[0]) from None

    return called


def checked_fields(kind: type[T]) -> type[T]:
    """A dataclass whose fields are checked when it is made."""
    made: Any = kind.__init__
    shown = made.__annotations__
    made.__annotations__ = get_type_hints(kind, include_extras=True)  # of all modules it is from
    kind.__init__ = checked(made)  # type: ignore[method-assign]
    made.__annotations__ = shown
    return kind


def expected(text: str, error: type[ConfigError] = ConfigError) -> WrapValidator:
    """A note on a type: what is said of a value of another type, and the error that says it."""
    return WrapValidator(partial(_expected, PydanticCustomError("", text, {"raises": error})))


def _expected(error: PydanticCustomError, value: Any, handler: Callable[[Any], Any]) -> Any:
    try:
        return handler(value)
    except ValidationError:
        raise error from None


def or_fields(kind: type[T]) -> BeforeValidator:
    """A note on a type: it is also made of a dict of its fields."""
    return BeforeValidator(lambda value: of_fields(kind, value))


def of_fields(kind: type[T], value: T | Mapping[str, Any]) -> T:
    """An object of its class as it is, or made of a dict of its fields, where None is none."""
    if not isinstance(value, Mapping):
        return value
    return kind(**{str(name): each for name, each in value.items() if each is not None})


def _whole(least: int, value: object) -> int:
    number = whole_number(value, least)
    if number is None:
        raise PydanticCustomError("whole", f"is a whole number, {least} or more")
    return number


ByName = Annotated[Mapping[str, T], expected("is given by name, {'code': ..., 'text': ...}")]
"""Values of any kind by the names of sources."""

Weights = Annotated[
    Mapping[str, Any], expected("maps names to numbers, {'code': 0.3, 'text': 0.7}", WeightError)
]
"""Numbers by the names of sources; which ones will do is for the mix to say."""

Count = Annotated[int, PlainValidator(partial(_whole, 1))]
"""A whole number of any kind, 1 or more."""

Whole = Annotated[int, PlainValidator(partial(_whole, 0))]
"""A whole number of any kind, 0 or more."""


def _explained(owner: str, parameters: list[str], fault: ErrorDetails) -> EnergizeError:
    context, kind = fault.get("ctx", {}), fault["type"]
    if isinstance(context.get("error"), EnergizeError):
        cause: EnergizeError = context["error"]
        return cause
    name, *inside = fault["loc"]
    name = parameters[name] if isinstance(name, int) and name < len(parameters) else name
    where = f"{owner}: {name}{''.join(f'[{part!r}]' for part in inside)}"
    text = _SAID.get(kind, fault["msg"].replace("Input should be", "is"))
    if kind.endswith("_argument"):
        known = [each for each in parameters if each != "self"]
        hint = "" if name in known else nearest(str(name), known)
        return ConfigError(f"{where} {text}{hint or '.'} Known: {', '.join(known)}")
    if kind == "is_instance_of":
        text = f"is a {context['class'].replace('Sequence', 'list')}"
    hint = nearest(str(fault["input"]), re.findall("'(.*?)'", context.get("expected", "")))
    raises: type[ConfigError] = context.get("raises", ConfigError)
    return raises(f"{where} {text}; got {fault['input']!r:.200}{hint}")


# The seed of a mix that may be given none.

_log = logging.getLogger("energize")


def checked_seed(seed: int | None, owner: str, name: str = "seed") -> int:
    """`seed`, or for None one that is drawn and logged.

    Raises `ConfigError` for anything else than a whole number from 0, and for None where there are
    several ranks: each would draw another one, and they would read the same data.
    """
    if seed is not None:
        return checked_whole(seed, f"{owner}: {name}", 0)
    if WorkerConfig().world_size > 1:
        raise ConfigError(
            f"{owner}: there are several ranks, and without a seed each would draw an order of its "
            "own; give all of them the same seed"
        )
    drawn = secrets.randbits(32)
    _log.info("%s: seed %d was drawn; give it to repeat this order", owner, drawn)
    return drawn
