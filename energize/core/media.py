"""The interfaces of media: clips that are decoded on request, and metadata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

__all__ = ["ClipRange", "MediaDecoder", "MediaMetadata"]

ClipRange = tuple[float, float]
"""Start and end of a clip, in the unit that the method names."""


class MediaMetadata(Protocol):
    """The metadata of an image, a video or a sound."""

    def to_dict(self) -> dict[str, Any]:
        """Return the known fields by name."""


class MediaDecoder(ABC):
    """A video or sound that is not decoded yet; fields of samples hold one.

    `energize.extras.av.AVDecoder` implements it with PyAV and documents the methods.
    """

    __slots__ = ()

    @abstractmethod
    def get_clips(
        self,
        video_clip_ranges: Sequence[ClipRange] | None = None,
        audio_clip_ranges: Sequence[ClipRange] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> Any:
        """Return clips of the video, of the sound, or of both."""

    @abstractmethod
    def get_video_clips(
        self,
        video_clip_ranges: Sequence[ClipRange],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> Any:
        """Return the clips of the video and the seconds that each of them covers."""

    @abstractmethod
    def get_audio_clips(
        self,
        audio_clip_ranges: Sequence[ClipRange],
        audio_unit: Literal["samples", "seconds"] = "seconds",
    ) -> Any:
        """Return the clips of the sound and the seconds that each of them covers."""

    @abstractmethod
    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> Any:
        """Return size, rate and duration of the video and of the sound."""
