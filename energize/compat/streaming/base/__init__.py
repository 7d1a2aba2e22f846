"""The modules of `streaming.base` that training programs import."""

from energize.compat.streaming.base.dataloader import StreamingDataLoader
from energize.compat.streaming.base.dataset import StreamingDataset
from energize.compat.streaming.base.stream import Stream

__all__ = ["Stream", "StreamingDataLoader", "StreamingDataset"]
