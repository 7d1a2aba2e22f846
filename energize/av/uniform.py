"""Clips at equal distances from each other."""

from __future__ import annotations

import math
from typing import Literal, overload

import numpy as np

from energize.av.data import AVData
from energize.av.decoder import AVDecoder
from energize.errors import ConfigError, DecodeError
from energize.late import torch


def get_clips_uniform(  # noqa: PLR0917 - as Energon's
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """`num_clips` clips of one length, the first at the beginning and the last up to the end.

    Of a video with sound both are asked for the same times, of the part where there are both. Clips
    of 0 seconds are single frames. Where the clips are longer than the file, each is all of it.
    Raises `ConfigError` when neither is requested, `DecodeError` when the file lacks what is.

        clips = get_clips_uniform(decoder, clip_duration_seconds=3, num_clips=5, request_audio=True)
    """
    if not request_video and not request_audio:
        raise ConfigError("get_clips_uniform: set request_video, request_audio, or both")
    if num_clips < 1 or not 0 <= clip_duration_seconds < math.inf:
        raise ConfigError(
            f"get_clips_uniform: num_clips={num_clips!r} is at least 1, and "
            f"clip_duration_seconds={clip_duration_seconds!r} at least 0"
        )
    lengths = []
    if request_video:
        lengths.append(av_decoder.get_video_duration()[0])
    if request_audio:
        lengths.append(av_decoder.get_audio_duration())
    if None in lengths:
        lacking = "audio" if not request_video or lengths[0] is not None else "video"
        raise DecodeError(f"{av_decoder!r} has no {lacking} stream of a known duration")
    length = min(each for each in lengths if each is not None)
    margin = 0.5 / av_decoder.get_video_fps() if clip_duration_seconds == 0 else 0.0
    first, last = margin, max(margin, length - clip_duration_seconds - margin)
    starts = av_decoder.start_time() + np.linspace(first, last, num_clips)
    ranges = [(float(start), float(start + clip_duration_seconds)) for start in starts]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=ranges if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[True],
) -> tuple[torch.Tensor, list[float]]: ...


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
    """`num_frames` frames at equal distances, the first and the last frame of the video among them.

    They are uint8 (num_frames, 3, height, width); of a video with fewer frames some come more than
    once. With `return_timestamps` also the second at which each begins to be shown.
    """
    clips = get_clips_uniform(
        av_decoder,
        clip_duration_seconds=0,
        num_clips=num_frames,
        request_video=True,
        video_out_frame_size=video_out_frame_size,
    )
    frames = torch.cat(clips.video_clips or [])
    if not return_timestamps:
        return frames
    return frames, [start for start, _ in clips.video_timestamps or []]
