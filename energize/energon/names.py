"""Small names of Megatron-Energon: its decorator of samples, sources, what its classes extend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform

from energize.core.dataset import Dataset
from energize.core.samples import SourceInfo
from energize.core.stores import add_source
from energize.errors import ConfigError

T = TypeVar("T")
T_in = TypeVar("T_in")
T_co = TypeVar("T_co", covariant=True)


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """`@dataclass(slots=True, kw_only=True)`, as every sample type is made.

    With named fields a subclass may add some without a default after those that have one, and with
    slots a field that is written wrong is an error. For other options use `dataclass` itself.

    >>> from energize import Sample
    >>> @edataclass
    ... class Tokens(Sample):
    ...     ids: list[int]
    >>> Tokens(__key__="a", __restore_key__=(), ids=[1, 2]).ids
    [1, 2]
    """
    return dataclass(slots=True, kw_only=True)(cls)


class FlexState(dict[str, Any]):
    """A state by the names of what it is made of: a dict. States here are plain ones."""


def add_source_info(sample: T, *source_infos: SourceInfo) -> T:
    """Add sources to the `__sources__` of a sample or dict; what has no place for them is an error.

    >>> source = SourceInfo(dataset_path="cats", index=0, shard_name="0.tar", file_names=("a.jpg",))
    >>> add_source_info({"__key__": "a"}, source)["__sources__"][0].shard_name
    '0.tar'
    """
    for source in source_infos:
        add_source(sample, source)
    return sample


def get_source_info(sample: Any) -> list[SourceInfo] | None:
    """The sources of a sample, or of all samples of a list; None where nothing is known."""
    if isinstance(sample, list | tuple):
        found = [source for each in sample for source in get_source_info(each) or ()]
        return found or None
    is_dict = isinstance(sample, dict)
    sources = sample.get("__sources__") if is_dict else getattr(sample, "__sources__", None)
    # A batch has a tuple for each of its samples, or None.
    of_each = [one if isinstance(one, tuple | list) else [one] for one in sources or () if one]
    return [source for one in of_each for source in one] or None


# What Megatron-Energon's datasets and objects with a state extend: names for annotations.


class _NameOnly:
    """A name for annotations and `isinstance`. Extending it is a `ConfigError`: there objects move,
    and are asked for their state; here they are descriptions, and cursors over them move.
    """

    _instead = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_instead" not in vars(cls):
            base = next(each for each in cls.__mro__ if "_instead" in vars(each))
            raise ConfigError(
                f"{cls.__name__} extends {base.__name__}, and nothing here would ask for what it "
                f"adds, so a run that goes on would not be the same. {cls._instead}"
            )


class Savable(_NameOnly):
    """A name for annotations only.

    >>> class Counter(Savable):
    ...     pass
    Traceback (most recent call last):
        ...
    energize.errors.ConfigError: Counter extends Savable, and nothing here would ask...
    """

    _instead = (
        "Make it a function of the sample, and of a parameter rng where it draws random numbers; "
        "or, where items depend on those before them, a function of a stream for IterMapDataset, "
        "which is resumed"
    )


class _Datasets(type):
    """Every dataset, or every one over others, is an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls) and (
            cls is not BaseWrapperDataset or bool(getattr(instance, "inputs", ()))
        )

    def __subclasscheck__(cls, subclass: type) -> bool:
        return Dataset in subclass.__mro__


if TYPE_CHECKING:
    SavableDataset = Dataset

    class BaseWrapperDataset(Dataset[T_co], Generic[T_in, T_co]):
        """A dataset over others."""

else:

    class SavableDataset(_NameOnly, Generic[T_co], metaclass=_Datasets):
        """The name of `Dataset` in Megatron-Energon, for annotations and `isinstance`.

        >>> from energize import ListSource
        >>> isinstance(ListSource([1]), SavableDataset)
        True
        """

        _instead = (
            "Give items by number as a list or with SequenceSource, items that come one after "
            "another with IterableSource, and change a stream of items with MapDataset or "
            "IterMapDataset; all of them are saved and resumed"
        )

    class BaseWrapperDataset(_NameOnly, Generic[T_in, T_co], metaclass=_Datasets):
        """The name of datasets over others in Megatron-Energon, for annotations and `isinstance`.

        >>> from energize import LimitDataset, ListSource
        >>> isinstance(LimitDataset(ListSource("abc"), 2), BaseWrapperDataset)
        True
        """

        _instead = (
            "Write what it does with items as a function: for MapDataset, which may yield several "
            "items or raise SkipSample, or of the whole stream, for IterMapDataset; both are saved "
            "and resumed"
        )
