"""Opening a mix on many ranks: one of them reads, and tells the others what it read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energize.core.lanes import current_ranks
from energize.data.files import Documents
from energize.errors import LoaderError
from energize.loader.agreement import Agreement

_WHAT = "shared_reading"


@contextmanager
def shared_reading(group: Any = None, timeout: float | None = 600.0) -> Iterator[None]:
    """A block in which datasets are opened by all ranks, and read from the disk by the first.

    The first rank of `group` (a process group or a device mesh; by default that of
    torch.distributed) goes through the block alone, and then tells the others the texts of all
    files of `.nv-meta` and of metadatasets that it read; these go through it reading none of them.
    Columns and shards are read by whoever needs them. Without torch.distributed the block is any
    other. Nothing in it may talk to other ranks.

    What the first rank raises in the block, the others raise as a `LoaderError` that says so;
    likewise where it has ended, or not all ranks have come here `timeout` seconds (None: ever)
    after one has.

    >>> with shared_reading():
    ...     pass  # dataset = get_train_dataset("mix.yaml", batch_size=32)
    """
    ranks = current_ranks(group)
    if ranks.group is None or ranks.world_size == 1:
        yield
        return
    agreement, told = Agreement(ranks, timeout), {}
    if not agreement.first:
        told = json.loads(agreement.bytes_of_first(b"", _WHAT))
        if "error" in told:
            raise LoaderError(f"the first rank could not open what all read: {told['error']}")
    documents = Documents(told.get("texts"))
    try:
        with documents.used():
            yield
        told = {"texts": documents.texts}
    except BaseException as error:
        told = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        if agreement.first:
            agreement.bytes_of_first(json.dumps(told).encode(), _WHAT)
