"""Batches mixed from several datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar, cast

from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.order.arrangement import option_names
from energize.sample_weights import Keep, joined
from energize.topology import WorkerConfig
from energize.wrappers.batch import BatchDataset, FlatBatchDataset
from energize.wrappers.blend import BlendDataset, PairOf
from energize.wrappers.calling import generates
from energize.wrappers.checks import check_names, raised_as

T_in = TypeVar("T_in")
T_batch_co = TypeVar("T_batch_co", covariant=True)


class MixBatchDataset(BatchDataset[T_batch_co]):
    """Batches whose samples are drawn one by one from several datasets.

    Each batch is `batch_mix_fn` of a list of `batch_size` items, drawn from a `BlendDataset` of the
    pairs. Datasets usually give batches of one sample, which functions like
    `homogeneous_concat_mix` put together; inner batches of k samples give batches of `batch_size *
    k`. By default the list itself is the batch. Weights, `scheme`, `stop` and the other parameters
    of a blend are passed to it; in one that ends, the last batch may be short, unless `drop_last`.
    The `sample_weights` of inner batches are joined, with 1 for samples of those without.

    Raises what `BlendDataset` and `BatchDataset` raise, and `ConfigError` for unknown parameters.

    >>> from energize import ListSource
    >>> mix = MixBatchDataset(
    ...     (ListSource("a"), 6), (ListSource("b"), 4), batch_size=1000, batch_mix_fn="".join
    ... )
    >>> mix[0].count("a")
    600
    """

    def __new__(cls, *inputs: Any, **options: Any) -> Self:
        """A stream where the function is a generator function."""
        if cls is MixBatchDataset and generates(options.get("batch_mix_fn")):
            return cast("Self", super().__new__(FlatMixBatchDataset))
        return super().__new__(cls)

    def __init__(
        self,
        *pairs: PairOf[T_in] | Iterable[PairOf[T_in]] | Mapping[str, Dataset[T_in]],
        batch_size: int,
        batch_mix_fn: Callable[[list[T_in]], T_batch_co | Iterator[T_batch_co]] | None = None,
        drop_last: bool = False,
        worker_config: WorkerConfig | None = None,
        **blend: Any,
    ) -> None:
        mix_fn: Callable[[list[T_in]], Any] = same if batch_mix_fn is None else batch_mix_fn
        with raised_as(type(self).__name__, "BlendDataset"):
            if not callable(mix_fn):
                raise ConfigError(f"batch_mix_fn is a function of a list; got {mix_fn!r}")
            scheme = blend.get("scheme") or "block"  # a block_size names it, too
            options = option_names(scheme) if isinstance(scheme, str) else list(blend)
            check_names(blend, options, MixBatchDataset, BlendDataset)
            mix = BlendDataset(*pairs, worker_config=worker_config, **blend)
            super().__init__(mix, batch_size, mix_fn, drop_last=drop_last)

    @property
    def keep(self) -> Keep:
        return joined


def same(items: list[T_in]) -> list[T_in]:
    """The items as they are."""
    return items


class FlatMixBatchDataset(FlatBatchDataset[T_batch_co], MixBatchDataset[T_batch_co]):
    """What a generator function yields of every `batch_size` items of a mix."""
