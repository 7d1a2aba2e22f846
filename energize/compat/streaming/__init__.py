"""The vocabulary of MosaicML Streaming over energize's datasets: `Stream`, `StreamingDataset`."""

from energize.compat.streaming.dataset import StreamingDataset
from energize.compat.streaming.stream import Stream, StreamsRegistry, streams_registry

__all__ = ["Stream", "StreamingDataset", "StreamsRegistry", "streams_registry"]
