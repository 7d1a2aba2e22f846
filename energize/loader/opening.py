"""Making a loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from energize.core.dataset import Dataset
from energize.core.ignored import accepted
from energize.core.lanes import WorkerConfig
from energize.errors import ConfigError
from energize.ledger import Ledger
from energize.loader.ahead import DEFAULT_BYTES
from energize.loader.deciding import OnError
from energize.loader.loader import Loader
from energize.loader.settings import DEFAULT_TIMEOUT, WATCH_SECONDS, ListPath, LoaderSettings

T = TypeVar("T")


def get_loader(
    dataset: Dataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    uneven: str = "pad",
    lanes: int | None = None,
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    prefetch_factor: int | None = None,
    prefetch_bytes: int = DEFAULT_BYTES,
    pin_memory: bool | None = None,
    failure_budget: int | None = 100,
    on_error: str | OnError = "raise",
    multiprocessing_context: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    asked_ahead: bool = False,
    cache_pool: Any = None,
    quarantine: ListPath | None = None,
    skip_listed: ListPath | Sequence[ListPath] = (),
    watchdog_timeout_seconds: float | None = WATCH_SECONDS,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    ledger: Ledger | bool = True,
    **ignored: Any,
) -> Loader[T]:
    """A `Loader` of this rank's items of `dataset`.

    What is delivered:

    `worker_config`: rank, world size and workers. When it is not given, the one that the dataset
    carries, else ranks as torch.distributed or the launcher say, without workers: processes are
    only started when they were asked for. A `seed_offset` reseeds a dataset that carries no config.
    `uneven`: "pad", "drop", "repeat" or "allow", for epochs that the ranks do not divide, see
    `Loader`.
    `lanes`: in how many parts a stream (a dataset with a `FilterDataset`, say) is read, by default
    world_size * num_workers of the start. It is fixed for the run and kept in its state: the stream
    is the same for every world size that divides it, and any number of workers up to it helps. So
    give a multiple of all world sizes that a run shall have. An indexed dataset needs none.
    `global_batch_size`, `micro_batch_size`: samples of an optimizer step and of an item of the
    dataset (by default its `batch_size`). Global batches are then equal for every world size that
    divides them, `Loader.accumulation_steps` is what fills one, and the last one of an epoch is
    filled or left out as `uneven` says.

    How:

    `prefetch_factor`: items that each worker has ready or in work, at most; by default 32.
    `prefetch_bytes`: what the items that this rank's workers read ahead may take together, as far
    as those before tell; by default 512 MiB. Each worker has one item to do in any case.
    `pin_memory`: whether tensors come in page-locked memory; by default, and at most, where there
    is a CUDA device.
    `failure_budget`: how many samples of this rank may fail and be left out; None for any number.
    `on_error`: what becomes of exceptions that functions of yours raise: "raise", "skip" to count
    the sample as failed and go on, or a function that is given the `EncoderError`, and raises it or
    returns. A `global_error_handler` of the worker config decides in place of "raise".
    `quarantine`: a file to which stored samples that fail are appended, a line of JSON for each:
    `dataset`, `shard`, `index`, `key` and `reason`. Each rank has its own: `{rank}` in the path
    stands for its number, which else is set before the suffix where there are several ranks.
    `skip_listed`: such files, of all ranks by the one path, whose samples are left out without
    being read; the same substitutes take their places as when they failed, so states stay good. It
    may be the path of `quarantine` itself, which need not be there yet.
    `multiprocessing_context`: how workers start; by default "fork" on Linux, which takes lambdas
    too, else "spawn", which needs a dataset that can be pickled.
    `timeout`: seconds to wait for a worker that runs but gives no whole answer, before another one
    takes its place, and for other ranks; None for ever.
    `watchdog_timeout_seconds`: seconds that an item may be waited for, before it is said in the log
    which worker is busy, and with what, with its Python stacks; again after twice as long, and so
    on. None for never. `watchdog_initial_timeout_seconds` is for the first item of a worker. With
    `fail_on_timeout` it is a `LoaderError` at once. Other workers take the place of silent ones
    after `timeout`; where that is not given, not before twice these seconds.
    `cache_pool`: what `energize.cache.active_pool()` and `TaskEncoder.cache` are in hooks, in each
    worker a pool of its own; it is closed with the loader.
    `asked_ahead`: whether the training loop takes each item before it trains on the one before it,
    as Lightning does where the loader has no length. The state is then the one before the last
    item, until the loop has ended, and a loop that is left early does not count that item.
    `ledger`: what `Loader.report` counts beside samples (see `Ledger`); False for nothing at all.

    `checkpoint_every_sec`, `checkpoint_every_min_n_samples`, `n_checkpoints`,
    `gc_collect_every_n_steps` and `gc_freeze_at_start` have no effect.

    Raises `ConfigError` for a value that cannot be used, and for a config that disagrees with the
    dataset's about the seed.

    >>> from energize.data.memory import ListSource
    >>> loader = get_loader(ListSource("abc"))
    >>> list(loader), len(loader)
    (['a', 'b', 'c'], 3)
    """
    return SavableDataLoader(
        dataset,
        worker_config=worker_config,
        uneven=uneven,
        lanes=lanes,
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        prefetch_factor=prefetch_factor,
        prefetch_bytes=prefetch_bytes,
        pin_memory=pin_memory,
        failure_budget=failure_budget,
        on_error=on_error,
        multiprocessing_context=multiprocessing_context,
        timeout=timeout,
        asked_ahead=asked_ahead,
        cache_pool=cache_pool,
        quarantine=quarantine,
        skip_listed=skip_listed,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        ledger=ledger,
        **ignored,
    )


get_savable_loader = get_loader  # every loader can be saved; users know both names


class SavableDataLoader(Loader[T]):
    """What `get_loader` makes, by the name that loaders have in Megatron-Energon; it takes the same
    arguments.

    >>> from energize.data.memory import ListSource
    >>> list(SavableDataLoader(ListSource("abc"), uneven="drop"))
    ['a', 'b', 'c']
    """

    def __init__(
        self, dataset: Dataset[T], *, worker_config: WorkerConfig | None = None, **options: Any
    ) -> None:
        accepted("get_loader", **{n: value for n, value in options.items() if n not in _OPTIONS})
        if not isinstance(dataset, Dataset):
            raise ConfigError(
                f"get_loader delivers an energize Dataset; got {type(dataset).__name__}"
            )
        settings = LoaderSettings(**{n: value for n, value in options.items() if n in _OPTIONS})
        super().__init__(*configured(dataset, worker_config), settings)


BasicDataLoader = SavableDataLoader
"""A loader whose state is not asked for."""

_OPTIONS = {each.name for each in fields(LoaderSettings)} - {"apart"}


def configured(dataset: Dataset[T], given: WorkerConfig | None) -> tuple[Dataset[T], WorkerConfig]:
    """The dataset and the config that it is read with; see `get_loader`."""
    carried = dataset.worker_config
    config = given or carried or WorkerConfig()
    if carried is None:
        return dataset.reseeded(config.seed_offset) if config.seed_offset else dataset, config
    if carried.seed_offset != config.seed_offset:
        raise ConfigError(
            f"the loader's worker config has seed_offset {config.seed_offset}, the dataset was "
            f"built with seed_offset {carried.seed_offset}: they name different orders. Build the "
            "dataset with the loader's worker config, or use one seed_offset for both"
        )
    return dataset, config


SavableDataLoaderState = dict
"""A state is plain data: `torch.load(path)` reads it, and JSON can keep it."""
