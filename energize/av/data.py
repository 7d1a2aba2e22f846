"""What decoding gives."""

from __future__ import annotations

from dataclasses import dataclass

from energize.late import torch


@dataclass(kw_only=True, slots=True)
class AVData:
    """Clips of a video or sound, and the time in seconds that each of them covers.

    A video clip is uint8 (frames, 3, height, width), RGB. An audio clip is (channels, samples) in
    the format of the codec: int16 or int32 of PCM and FLAC, float32 from -1 to 1 of most others.
    What was not asked for is an empty list.
    """

    video_clips: list[torch.Tensor] | None
    video_timestamps: list[tuple[float, float]] | None
    audio_clips: list[torch.Tensor] | None
    audio_timestamps: list[tuple[float, float]] | None
