"""The hooks of task encoders: which there are, which an encoder has, and how one is called."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeVar, cast, overload

from energize.core.call import generates, index_of_call
from energize.core.description import described, function_name
from energize.core.ignored import accepted
from energize.core.samples import Sample
from energize.core.trace import gathering
from energize.errors import ConfigError, ReturnError
from energize.task.collate import Batch
from energize.task.fields import contradiction

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

HOOKS = {
    "cook_crude_sample": "sample",
    "preencode_sample": "sample",
    "encode_sample": "sample",
    "select_samples_to_pack": "samples",
    "postencode_sample": "sample",
    "pack_selected_samples": "samples",
    "batch": "batch",
    "batch_group_criterion": "sample",
    "encode_batch": "batch",
}
"""The hooks of an encoder, in the order in which data pass through them, and what each is given."""

_RETURN = ("select_samples_to_pack", "batch_group_criterion")
"""Those that may not yield."""

BUILDERS = ("build_train_datasets", "build_val_datasets")
"""Methods that make a whole dataset, where they are overridden."""

_ALIKE = 0.88
"""How alike a name must be to that of a hook to be taken for a slip of the pen."""

_CHECKED = 3
"""Of so many results of a hook the fields are compared with their declared types."""

_END = object()

_running: ContextVar[Hook] = ContextVar("running_hook")


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...


def stateless(
    fn: F | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> F | Callable[[F], F]:
    """Mark a hook as a function of its argument; accepted so that encoders of Energon run as is.

    It changes nothing. Every call is seeded by its position, as `restore_seeds` asks for, so every
    sample can be restored. Failures are counted for the whole loader by its `failure_budget`, not
    for one hook by `failure_tolerance`, of which a word in the log says so.

    >>> from energize import TaskEncoder
    >>> class Encoder(TaskEncoder):
    ...     @stateless(restore_seeds=True)
    ...     def encode_sample(self, sample):
    ...         return sample
    """
    accepted("stateless", failure_tolerance=failure_tolerance)
    return (lambda marked: marked) if fn is None else fn


def get_stateless(fn: Callable[..., Any]) -> bool:
    """Return whether what `fn` makes of a sample can be made again: here always, marked or not."""
    return True


def default(method: T) -> T:
    """Mark the method of a hook as what encoders have that do not override it."""
    method.is_default = True  # type: ignore[attr-defined]  # a function has attributes
    return method


def overrides(encoder: Any, name: str) -> bool:
    """Return whether a method of an encoder is not the one that the classes here have."""
    return not getattr(getattr(encoder, name), "is_default", False)


def builds(encoder: Any, name: str) -> bool:
    """Return whether an encoder has a method of its own that makes a whole dataset."""
    return hasattr(encoder, name) and not isinstance(encoder, type) and overrides(encoder, name)


def active_hooks(encoder: Any) -> frozenset[str]:
    """Return the names of the hooks that do something; `batch` always does."""
    acting = {"batch", *encoder.default_hooks}
    return frozenset(name for name in HOOKS if name in acting or overrides(encoder, name))


@dataclass(frozen=True)
class Hook:
    """A hook of an encoder, as the datasets call it.

    It looks at what the hook returns: None, which a forgotten `return` gives, is an error. So is a
    value that contradicts the declared type of its field, in the first dataclasses of another type
    than what the hook was given.
    """

    encoder: Any
    name: str

    @cached_property
    def method(self) -> Callable[..., Any]:
        """The encoder's own method."""
        return getattr(self.encoder, self.name)  # type: ignore[no-any-return]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.method

    @cached_property
    def _yields(self) -> bool:
        return generates(self.method)

    @cached_property
    def _unchecked(self) -> list[None]:
        """One for each of the first things returned, whose fields are looked at."""
        return [None] * _CHECKED

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: what it was made of."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def describe(self) -> Any:
        """Return the name of the method."""
        return described(self.method)

    def __call__(self, argument: Any, **own: Any) -> Any:
        if self._yields:
            return self._items(self._called(argument, own), argument)
        token = _running.set(self)
        try:
            made = self._called(argument, own)
        finally:
            _running.reset(token)
        return self._checked(made, argument)

    def _called(self, argument: Any, own: dict[str, Any]) -> Any:
        """What the method makes; `own` is the random generator that it asks for, by name."""
        return self.method(argument, **own)

    def _items(self, items: Iterator[Any], argument: Any) -> Iterator[Any]:
        while True:
            token = _running.set(self)
            try:
                item = next(items, _END)
            finally:
                _running.reset(token)
            if item is _END:
                return
            yield self._checked(item, argument)

    def _checked(self, made: T, argument: Any) -> T:
        if made is None:
            what = "batch" if "batch" in self.name else "sample"
            raise ReturnError(
                f"{function_name(self.method)} returned None, which is no {what}: does it lack a "
                "`return`? Raise SkipSample to leave something out"
            )
        if self._unchecked and is_dataclass(made):
            self._unchecked.pop()
            given = argument[0] if isinstance(argument, list) and argument else argument
            # A sample type in place of a batch type holds many of what it declares, and a batch
            # type in place of a sample type one.
            other = Sample if "batch" in self.name else Batch
            if type(made) is not type(given) and not isinstance(made, other):
                self._check_types(made)
        return made

    def _check_types(self, made: Any) -> None:
        own = (each.name for each in fields(made) if not each.name.startswith("__"))
        found = contradiction(type(made), {name: getattr(made, name) for name in own})
        if found is not None:
            raise ReturnError(
                f"{function_name(self.method)} returned a {type(made).__name__} whose field "
                f"{found[0]!r} {found[1]}; correct one of the two"
            )


def hook_index(takes: str, what: str) -> int:
    """Return the number of the sample or batch that the running hook is called for.

    Raises `ConfigError` outside hooks, and where there is no such number.
    """
    hook = _running.get(None)
    if hook is None:
        raise ConfigError(f"{what} is known while a dataset calls a hook of the encoder, not here")
    index = index_of_call.get()
    if HOOKS[hook.name] == takes:
        return index
    batches = gathering.get(None)
    if batches is not None and getattr(batches.inputs[0], "map_fn", None) == hook:
        return cast("Any", batches).batch_of(index)  # type: ignore[no-any-return]
    why = "several samples" if takes == "sample" else "what is not settled into batches yet"
    raise ConfigError(f"{what} is not known in {hook.name}, which is given {why}")


# What is wrong with an encoder is said when a dataset is made.


def check_encoder(encoder: Any) -> None:
    """Raise `ConfigError` for an encoder that no dataset could be made with."""
    kind = type(encoder)
    known = {*HOOKS, *getattr(encoder, "not_hooks", ())}
    for name in dir(kind):
        if name.startswith("_") or name in known or not callable(getattr(kind, name, None)):
            continue
        near = get_close_matches(name, HOOKS, 1, _ALIKE)
        if near:
            raise ConfigError(
                f"{kind.__name__} has a method {name!r}, which nothing calls; did you mean the "
                f"hook {near[0]!r}? If it is meant so: not_hooks = ({name!r},)"
            )
    for name in _RETURN:
        if generates(getattr(encoder, name)):
            raise ConfigError(f"{kind.__name__}.{name} is a generator function, and has to return")
    if {"preencode_sample", "encode_sample"} <= active_hooks(encoder):
        raise ConfigError(
            f"{kind.__name__} has both preencode_sample and encode_sample; give one, "
            "preencode_sample with postencode_sample after packing, or encode_sample alone"
        )


def check_takes(encoder: Any, name: str, kind: type, where: str) -> None:
    """Raise `ConfigError` where the annotation of a hook does not allow samples of type `kind`."""
    method = getattr(encoder, name)
    try:
        hints = typing.get_type_hints(inspect.unwrap(getattr(method, "__func__", method)))
        parameters = list(inspect.signature(method).parameters)
    except (NameError, TypeError, ValueError, AttributeError):
        return  # an annotation that cannot be resolved says nothing
    hint = hints.get(parameters[0]) if parameters else None
    if hint is not None and not _allows(hint, kind):
        shown = getattr(hint, "__name__", str(hint))
        raise ConfigError(
            f"{function_name(method)} takes a {shown}, and {where} has samples of type "
            f"{kind.__name__}; give another encoder for these, or change the annotation"
        )


def _allows(hint: Any, kind: type) -> bool:
    """Whether a value of a type may be given where an annotation is; what is not known may."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_allows(each, kind) for each in typing.get_args(hint))
    hint = origin or hint
    if hint is Any or not isinstance(hint, type):
        return True
    try:
        return issubclass(kind, hint)
    except TypeError:  # a protocol that cannot be asked
        return True
