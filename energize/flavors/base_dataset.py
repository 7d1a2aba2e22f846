"""What Megatron-Energon's datasets extend: names for annotations, and factories of datasets."""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from energize.cache.base import FileStore
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.samples.pinning import pin_memory
from energize.samples.sample import Sample
from energize.samples.source_info import SourceInfo
from energize.samples.structure import is_record
from energize.state import FlexState
from energize.topology import WorkerConfig

__all__ = [
    "BaseCoreDatasetFactory",
    "FlexState",
    "PinMemoryMixin",
    "Sample",
    "SavableDataset",
    "SourceInfo",
    "WorkerConfig",
]

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    SavableDataset = Dataset
else:

    class _AnyDataset(ABCMeta):
        """Every dataset is an instance, and every class of datasets a subclass."""

        def __instancecheck__(cls, instance: object) -> bool:
            return Dataset in type(instance).__mro__  # isinstance would ask here again

        def __subclasscheck__(cls, subclass: type) -> bool:
            return Dataset in subclass.__mro__

    class SavableDataset(Dataset[T_co], metaclass=_AnyDataset):
        """The name of `Dataset` in Megatron-Energon, for annotations and `isinstance`.

        It cannot be extended: there a dataset moves and says itself what its state is, here a
        dataset is a description, and cursors over it move. Extending it is a `ConfigError`.

        >>> from energize import ListSource
        >>> isinstance(ListSource([1]), SavableDataset)
        True
        """

        def __init_subclass__(cls, **kwargs: Any) -> None:
            raise ConfigError(
                f"{cls.__name__} extends SavableDataset, whose state nothing here would ask for. "
                "Give items by number as a list or with SequenceSource, items that come one after "
                "another with IterableSource, and change a stream of items with MapDataset or "
                "IterMapDataset; all of them are saved and resumed"
            )


class PinMemoryMixin:
    """Gives a dataclass a method `pin_memory`; `Sample` and `Batch` have theirs already."""

    __slots__ = ()

    def pin_memory(self) -> Self:
        """A copy with all tensors in page-locked memory; the object itself without a GPU."""
        return pin_memory(self) if is_record(self) else self


class BaseCoreDatasetFactory(ABC, Generic[T_co]):
    """A dataset as it is asked for, before it is made: `build()` makes it.

    `len` is the number of samples in one pass, on all ranks together.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[Any]
    subflavors: dict[str, Any]
    sample_weight: float | None = None
    """How much its samples count in the loss, as the metadataset says that it was loaded from."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        """The dataset: one pass over the samples, in a new order each time where `training`."""

    @abstractmethod
    def as_file_store(self) -> FileStore[Any]:
        """The files of the dataset, by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Samples in one pass."""
