"""The interface of MosaicML Streaming over datasets of energize.

A `Stream` is a folder with a quota. A `StreamingDataset` composes the epochs and global
batches of several streams; a `StreamingDataLoader` adds a state to torch's DataLoader.
"""

from __future__ import annotations

from energize.compat.streaming.base.dataloader import StreamingDataLoader
from energize.compat.streaming.base.dataset import StreamingDataset
from energize.compat.streaming.base.stream import (
    Stream,
    StreamsRegistry,
    streams_registry,
)
from energize.core.lazy import optional_module

__all__ = [
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "StreamsRegistry",
    "register_with_mosaicml",
    "streams_registry",
]


def register_with_mosaicml() -> None:
    """Make the `StreamingDataLoader` of MosaicML Streaming save states of our datasets.

    Their loader returns a state only for instances of their `StreamingDataset`. This
    function registers the class of this module as a virtual subclass of it. The
    `StreamingDataLoader` of this module does not need it.

    Raises:
        ConfigError: If `streaming` cannot be imported.

    Example:
        Once, before the loader is made:

            from streaming import StreamingDataLoader
            from energize.compat.streaming import register_with_mosaicml

            register_with_mosaicml()
    """
    module = optional_module(
        "streaming.base.dataset", "mosaicml-streaming", "register_with_mosaicml"
    )
    module.StreamingDataset.register(StreamingDataset)
