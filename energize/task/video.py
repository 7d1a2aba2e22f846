"""Conversations about videos, for processors of transformers."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch

from energize.core import limits
from energize.core.checks import checked_choice, checked_whole
from energize.core.ignored import log_once
from energize.core.samples import ConversationSample
from energize.core.turns import Turn
from energize.data.av import FRAME_PIXEL, AVDecoder
from energize.errors import ConfigError, DecodeError
from energize.task.model_packing import grid_positions
from energize.task.ready import ProcessorBatch, ProcessorTaskEncoder


@dataclass(frozen=True)
class SampledVideo:
    """Frames of a video.

    Attributes:
        frames: uint8 of shape (frames, 3, height, width), RGB.
        metadata: The arguments of `VideoMetadata` of transformers. Its `frames_indices`
            divided by `fps` are the seconds at which frames start, even if the frame
            rate of the video varies.
    """

    frames: torch.Tensor
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class VideoFrames:
    """How frames of a video are chosen: at equal distances in time, from its start.

    Args:
        fps: Frames per second.
        count: Number of frames, in place of `fps`.
        max_frames: Frames of a long video at most.
        multiple_of: The number is a multiple of it, such as Qwen's 2 frames per patch.
            No video has more frames than it stores.
        backend: "torchcodec", "pyav", or "auto" for torchcodec where it is installed.
            Both give the same frames, upright. PyAV, which is needed for both, lists
            them, and decodes files of which torchcodec returns other frames. Pixels of
            more than 8 bits may differ; torchcodec also returns frames with damaged
            bits, which are errors in PyAV.

    Raises:
        ConfigError: For numbers that are not positive, `fps` beside `count`, and a
            backend that is not installed.

    Example:
        >>> VideoFrames(fps=1).times(duration=4, total=100)
        [0.0, 1.0, 2.0, 3.0]
        >>> VideoFrames(count=2).times(duration=4, total=100)
        [0.0, 2.0]
    """

    fps: float | None = None
    count: int | None = None
    max_frames: int = 768
    multiple_of: int = 2
    backend: Literal["auto", "torchcodec", "pyav"] = "auto"

    def __post_init__(self) -> None:
        checked_choice(self.backend, "backend", ("auto", "torchcodec", "pyav"))
        for name in ("max_frames", "multiple_of"):
            checked_whole(getattr(self, name), f"VideoFrames: {name}", 1)
        rates = [rate for rate in (self.fps, self.count) if rate is not None]
        if len(rates) != 1 or not 0 < rates[0] < math.inf:
            raise ConfigError(
                f"VideoFrames needs either fps or count, > 0, got fps={self.fps} and "
                f"count={self.count}. Pass one of them"
            )
        if self.backend == "torchcodec":
            _torchcodec(required=True)

    def times(self, duration: float, total: int) -> list[float]:
        """Return the times of the frames, in seconds from the start of the video.

        Args:
            duration: Seconds of the video.
            total: Its frames.
        """
        wanted = self.count or duration * (self.fps or 0)
        most = min(wanted, self.max_frames, total) + _TINY
        number = max(int(most // self.multiple_of) * self.multiple_of, 1)
        return [at * duration / number for at in range(number)]

    def read(self, video: AVDecoder) -> SampledVideo:
        """Decode the frames of a video.

        Args:
            video: The video, as in samples.

        Raises:
            DecodeError: If the video is damaged or has no frames.
        """
        bounds = video.get_frame_times()
        *starts, end = bounds
        duration = end - starts[0]
        numbers = [
            bisect_right(starts, starts[0] + at + _TINY) - 1
            for at in self.times(duration, len(starts))
        ]
        frames = None
        if self.backend != "pyav":
            spans = [(bounds[n], bounds[n + 1]) for n in numbers]
            frames = _by_torchcodec(video, spans, required=self.backend == "torchcodec")
        if frames is None:
            frames = _by_pyav(video, numbers)
        rate = len(starts) / duration
        metadata = {
            "total_num_frames": len(starts),
            "fps": rate,
            "duration": duration,
            "frames_indices": [(starts[n] - starts[0]) * rate for n in numbers],
        }
        return SampledVideo(frames, metadata)


def _by_pyav(video: AVDecoder, numbers: list[int]) -> torch.Tensor:
    """Return upright frames by their numbers."""
    spans = [(n, n) for n in numbers]
    clips, _ = video.get_video_clips(spans, "frames", upright=True)
    if len({clip.shape for clip in clips}) > 1:
        raise DecodeError(
            f"{video.description} changes the size of its frames. Split it into videos "
            "of one size"
        )
    return torch.cat(clips)


@limits.decoding
def _by_torchcodec(
    video: AVDecoder, spans: list[tuple[float, float]], *, required: bool
) -> torch.Tensor | None:
    """Return the frames shown in spans of seconds.

    None if torchcodec does not load or has other frames, as in MPEG-TS and AVI, where
    it may start decoding behind them.
    """
    decoders = _torchcodec(required=required)
    if decoders is None:
        return None
    try:
        stream = video.get_video_stream_index()
        data = video.open_stream().read()
        decoder = decoders.VideoDecoder(data, stream_index=stream, device="cpu")
        pixels = decoder.metadata.width * decoder.metadata.height
        limits.decoding.spend((3 * len(spans) + FRAME_PIXEL) * pixels)
        shown = decoder.get_frames_played_at([sum(span) / 2 for span in spans])
    except _TORCHCODEC_ERRORS as error:
        reason = f"torchcodec cannot decode a video: {error!s:.80}"
    else:
        starts = torch.tensor([start for start, _ in spans], dtype=torch.float64)
        if (shown.pts_seconds - starts).abs().max() < _TINY:
            frames: torch.Tensor = shown.data
            return frames
        reason = "torchcodec returns other frames of a video"
    log_once("VideoFrames", "frames", f"{reason}. PyAV decodes such videos")
    return None


_TORCHCODEC_ERRORS = (RuntimeError, ValueError, IndexError, TypeError, AssertionError)
"""Of damaged files; the last two are those of a header without sizes or times."""
_TINY = 1e-6
"""Seconds, so that a time rounded down still means the frame that starts there."""


def _torchcodec(*, required: bool) -> Any:
    """Return the decoders of torchcodec; None if they do not load."""
    try:
        return import_module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError) as error:
        if required:
            raise ConfigError(
                f"VideoFrames: torchcodec does not load ({error!s:.200}). Install it "
                "with FFmpeg, or pass backend='pyav'"
            ) from error
        if not isinstance(error, ModuleNotFoundError):
            text = f"torchcodec does not load, so PyAV decodes videos: {error!s:.80}"
            log_once("VideoFrames", "backend", text, logging.WARNING)
        return None


@dataclass(kw_only=True)
class VideoBatch(ProcessorBatch):
    """A `ProcessorBatch` with the videos of Qwen's and other processors."""

    pixel_values_videos: torch.Tensor | None = None
    video_grid_thw: torch.Tensor | None = None
    second_per_grid_ts: torch.Tensor | None = None


class VideoTaskEncoder(ProcessorTaskEncoder):
    """Encode conversations about videos, and what `ProcessorTaskEncoder` encodes.

    Frames are decoded in the workers; the processor receives them with their times, so
    that Qwen2.5-VL has `second_per_grid_ts` and Qwen3-VL time stamps in the text.

    Args:
        processor: A processor of transformers with a video processor.
        frames: The frames of a video.
        **options: As of `ProcessorTaskEncoder`.

    Raises:
        ConfigError: For a processor that reads no videos, or a tokenizer without
            offsets.

    Example:
        >>> try:
        ...     VideoTaskEncoder("Qwen/Qwen2-VL", frames=VideoFrames(fps=1))
        ... except ConfigError as error:
        ...     print(str(error)[:43])
        ProcessorTaskEncoder needs a processor or a
    """

    def __init__(self, processor: Any, *, frames: VideoFrames, **options: Any) -> None:
        super().__init__(processor, **{"batch_type": VideoBatch} | options)
        self.frames = frames
        if getattr(processor, "video_processor", None) is None or not getattr(
            self.tokenizer, "is_fast", False
        ):
            raise ConfigError(
                f"VideoTaskEncoder: {type(processor).__name__} has no video processor, "
                "or its tokenizer has no offsets. Pass the processor of a model for "
                "videos, with a fast tokenizer"
            )

    def turns_of(self, sample: Any) -> tuple[list[Turn], list[Any]]:
        """Return the conversation of a sample, with its images and decoded videos."""
        if not isinstance(sample, ConversationSample):
            return super().turns_of(sample)
        stored: list[Any] = sample.videos
        videos = [self.frames.read(video) for video in stored]
        return sample.turns, [*sample.images, *videos]

    def media_arguments(self, media: list[Any]) -> dict[str, Any]:
        """Return the arguments of the processor for images and videos."""
        videos = [entry for entry in media if isinstance(entry, SampledVideo)]
        images = [entry for entry in media if not isinstance(entry, SampledVideo)]
        arguments = super().media_arguments(images)
        if videos:
            arguments |= {
                "videos": [[video.frames for video in videos]],
                "video_metadata": [[dict(video.metadata) for video in videos]],
                "do_sample_frames": False,
            }
        return arguments

    def positions_of(self, sample: Any) -> torch.Tensor:
        """Return the positions of a sample with videos on three axes."""
        videos = sample.media.get("video_grid_thw")
        if videos is None:
            return super().positions_of(sample)
        if self.model_packing is None:
            raise ConfigError(
                "packed rows with videos need the positions of a model. Pass "
                "packing=ModelPacking(model)"
            )
        ids = sample.per_token["input_ids"]
        media = (ids == self.processor.image_token_id).int()
        media += 2 * (ids == self.processor.video_token_id)
        merged = self.processor.video_processor.merge_size
        scale = torch.tensor([1, merged, merged])
        images = sample.media.get("image_grid_thw", torch.zeros(0, 3).long())
        seconds = sample.media.get("second_per_grid_ts")
        grids = self.model_packing.video_grids(videos // scale, seconds)
        return grid_positions(media, images // scale, grids)
