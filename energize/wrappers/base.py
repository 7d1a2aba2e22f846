"""What Megatron-Energon's wrappers extend: a name for annotations and `isinstance`."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energize.dataset import Dataset
from energize.errors import ConfigError

T_in = TypeVar("T_in")
T_co = TypeVar("T_co", covariant=True)


class _AnyWrapper(ABCMeta):
    """Every dataset over others is an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Dataset) and bool(instance.inputs)


if TYPE_CHECKING:

    class BaseWrapperDataset(Dataset[T_co], Generic[T_in, T_co]):
        """A dataset over others."""

else:

    class BaseWrapperDataset(Generic[T_in, T_co], metaclass=_AnyWrapper):
        """The name of datasets over others in Megatron-Energon, for annotations and `isinstance`.

        It cannot be extended: there a wrapper moves and says itself what its state is, here it is a
        description. Extending it is a `ConfigError`.

        >>> from energize import LimitDataset, ListSource
        >>> isinstance(LimitDataset(ListSource("abc"), 2), BaseWrapperDataset)
        True
        """

        def __init_subclass__(cls, **kwargs: Any) -> None:
            raise ConfigError(
                f"{cls.__name__} extends BaseWrapperDataset, whose __iter__ and state nothing here "
                "would ask for. Write what it does with items as a function: for MapDataset, which "
                "may yield several items or raise SkipSample, or of the whole stream, for "
                "IterMapDataset; both are saved and resumed"
            )
