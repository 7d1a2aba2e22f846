"""Cookers: how crude samples become typed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

from energize.core.samples import METADATA, CrudeSample, SourceInfo
from energize.core.stores import FileStore, PrimaryFileStore, active_pool
from energize.errors import ConfigError
from energize.task.hooks import Hook, overrides

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Cooker:
    """`cook(sample, **aux)` makes a typed sample of a crude one, of datasets with some subflavors.

    `has_subflavors` are labels that a dataset must have for this cooker; None takes any. Of the
    `cookers` of an encoder the first one that fits a dataset is taken, when the dataset is made.
    `cook` is given the sample, a `CrudeSample`, and by name the auxiliary stores (`aux`) of its
    dataset; what more it needs is said with `@cooker`.

    Raises `ConfigError` for what is no function, and for labels that are no dict.

    >>> def cook_text(sample):
    ...     return TextSample(**basic_sample_keys(sample), text=sample["txt"])
    >>> from energize import TextSample
    >>> Cooker(cook=cook_text, has_subflavors={"kind": "text"}).fits({"kind": "text", "lang": "en"})
    True
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.cook):
            raise ConfigError(f"Cooker: cook is a function of a crude sample; got {self.cook!r}")
        if not isinstance(self.has_subflavors, Mapping | None):
            raise ConfigError(
                f"Cooker: has_subflavors is a dict of labels, or None; got {self.has_subflavors!r}"
            )

    def fits(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether a dataset with these labels is for this cooker."""
        wanted, labels = self.has_subflavors or {}, subflavors or {}
        return all(name in labels and labels[name] == value for name, value in wanted.items())


@overload
def cooker(fn: F) -> F: ...


@overload
def cooker(
    fn: None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Callable[[F], F]: ...


def cooker(
    fn: F | None = None, *, need_cache: bool = False, need_primary: bool = False
) -> F | Callable[[F], F]:
    """Say what a cook function needs beside its sample and the auxiliary stores.

    `need_cache` gives it `cache`, the loader's cache pool; `need_primary` gives it `primary`, the
    store of all files of its own dataset, where a name that begins with "." is that part of the
    sample being cooked.

    >>> @cooker(need_cache=True)
    ... def cook(sample, cache):
    ...     return sample
    """

    def marked(function: F) -> F:
        function.needs = (  # type: ignore[attr-defined]  # a function has attributes
            ("cache",) * need_cache + ("primary",) * need_primary
        )
        return function

    return marked if fn is None else marked(fn)


def needs_of(cook: Callable[..., Any]) -> tuple[str, ...]:
    """Return what a cook function asked for with `@cooker`."""
    return getattr(getattr(cook, "__func__", cook), "needs", ())


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: Sequence[SourceInfo] = ()
) -> dict[str, Any]:
    """Return the metadata of a crude sample, to be handed on to the typed one.

    >>> basic_sample_keys({"__key__": "7", "__subflavors__": {}, "txt": "hello"})
    {'__key__': '7', '__subflavors__': {}}
    """
    kept = {name: crude_sample[name] for name in sorted(METADATA) if name in crude_sample}
    if additional_source_info:
        kept["__sources__"] = (*(kept.get("__sources__") or ()), *additional_source_info)
    return kept


def cooker_for(
    cookers: Sequence[Cooker], subflavors: Mapping[str, Any] | None, where: str
) -> Cooker:
    """Return the first cooker that fits; `ConfigError` when none does."""
    for each in cookers:
        if not isinstance(each, Cooker):
            raise ConfigError(f"cookers is a list of Cooker, got {each!r}")
        if each.fits(subflavors):
            return each
    wanted = ", ".join(str(dict(each.has_subflavors or {})) for each in cookers)
    raise ConfigError(
        f"{where}: no cooker fits its subflavors {dict(subflavors or {})}; those of the encoder "
        f"are for {wanted}. Give it matching subflavors, or add a Cooker without has_subflavors"
    )


def cooked(sample: CrudeSample, chosen: Cooker, aux: Mapping[str, FileStore[Any]]) -> Any:
    """Return the sample as `chosen` cooks it, given what it asked for."""
    needs = needs_of(chosen.cook)
    given: dict[str, Any] = {name: store for name, store in aux.items() if name != "primary"}
    if "primary" in needs:
        given["primary"] = aux["primary"]
    if "cache" in needs:
        given["cache"] = active_pool()
    return chosen.cook(sample, **given)


@dataclass(frozen=True)
class Cook(Hook):
    """Has an encoder cook the samples of a dataset: a function to map over it.

    `primary` is the store of the dataset's own files, where the cooker asked for it.
    """

    cooker: Cooker
    aux: Mapping[str, FileStore[Any]]
    primary: FileStore[Any] | None = None

    @cached_property
    def method(self) -> Callable[..., Any]:
        """What is called in the end: it says whether it yields, and asks for random numbers."""
        return super().method if overrides(self.encoder, self.name) else self.cooker.cook

    def describe(self) -> str:
        """Return the name of the cook function."""
        return getattr(self.cooker.cook, "__qualname__", type(self.cooker.cook).__qualname__)

    def _called(self, argument: CrudeSample, own: dict[str, Any]) -> Any:
        aux = dict(self.aux)
        if self.primary is not None:
            aux["primary"] = PrimaryFileStore(self.primary, argument["__key__"])
        if self.method is self.cooker.cook:  # the encoder's hook hands on what the cooker asks for
            return self.encoder.cook_crude_sample(argument, self.cooker, aux | own)
        return self.encoder.cook_crude_sample(argument, self.cooker, aux, **own)
