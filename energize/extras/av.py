"""Clips of videos and sounds, by PyAV."""

from energize.data.av import (
    AVData,
    AVDecoder,
    AVDecoderType,
    AVMetadata,
    AVProbeIndex,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)

__all__ = [
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "AVMetadata",
    "AVProbeIndex",
    "AVWebdatasetDecoder",
    "get_clips_uniform",
    "get_single_frames_uniform",
]
