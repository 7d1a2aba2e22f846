"""Videos and sounds: exact clips of them, decoded when they are asked for."""

from energize.av.data import AVData
from energize.av.decoder import AVDecoder
from energize.av.parts import AVWebdatasetDecoder
from energize.av.uniform import get_clips_uniform, get_single_frames_uniform
from energize.media.metadata import AVMetadata

__all__ = [
    "AVData",
    "AVDecoder",
    "AVMetadata",
    "AVWebdatasetDecoder",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
