"""Reading frames of a video by their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from energize.av.frames import FrameIndex
from energize.av.opening import opened, video_stream
from energize.errors import DecodeError
from energize.late import torch

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Numbered = tuple[int, "VideoFrame"]


class UntrustedIndexError(Exception):
    """What was decoded is not what the index said."""


def read_frames(
    source: BinaryIO,
    what: str,
    index: FrameIndex,
    spans: Sequence[tuple[int, int]],
    size: tuple[int, int] | None,
) -> list[torch.Tensor]:
    """For each (first, last) a clip of these frames, uint8 (frames, 3, height, width).

    Every frame is decoded once, however many clips have it. Raises `UntrustedIndexError` where
    frames are not what `index` says, `DecodeError` when they are damaged.
    """
    places: dict[int, list[tuple[int, int]]] = {}
    for clip, (first, last) in enumerate(spans):
        for number in range(first, last + 1):
            places.setdefault(number, []).append((clip, number - first))
    clips: list[Any] = [None] * len(spans)
    with ExitStack() as stack:
        reader = _FrameReader(source, what, index, stack)
        for number, frame in reader.frames(sorted(places)):
            pixels = _pixels(frame, size)
            height, width, channels = pixels.shape
            for clip, place in places[number]:
                if clips[clip] is None:
                    first, last = spans[clip]
                    shape = (last - first + 1, channels, height, width)
                    clips[clip] = np.empty(shape, dtype=np.uint8)
                if clips[clip].shape[2:] != (height, width):
                    raise DecodeError(
                        f"{what} changes its size at frame {number}, to {width} x {height}; give "
                        "video_out_frame_size=(width, height) to have all frames of one size"
                    )
                # By numpy: torch would wake its threads for each of these small copies.
                np.copyto(clips[clip][place], pixels.transpose(2, 0, 1))
    return [torch.from_numpy(clip) for clip in clips]


def _pixels(frame: VideoFrame, size: tuple[int, int] | None) -> np.ndarray[Any, Any]:
    """The frame as (height, width, 3) of RGB, of `size` (width, height) if it is given."""
    if size is None:
        return frame.reformat(format="rgb24").to_ndarray()
    width, height = size
    frame = frame.reformat(width=width, height=height, format="rgb24", interpolation="BILINEAR")
    return frame.to_ndarray()


class _FrameReader:
    """Goes through a video from left to right, and over what is not wanted where keys allow it."""

    def __init__(self, source: BinaryIO, what: str, index: FrameIndex, stack: ExitStack) -> None:
        self._source = source
        self._what = what
        self._index = index
        self._stack = stack
        self._container, self._stream = self._opened()

    def frames(self, wanted: Sequence[int]) -> Iterator[Numbered]:
        """The frames of these numbers, which ascend."""
        ahead: Iterator[Numbered] = self._numbered()
        sought = False
        at = -1
        for number in wanted:
            if self._index.key_before(number) > at + 1:
                ahead = self._beginning_at(number)
                sought = True
            at, frame = next((each for each in ahead if each[0] >= number), (-1, None))
            if frame is None or at != number:
                raise UntrustedIndexError(f"{self._named(number)} is missing")
            if frame.is_corrupt:
                if sought:  # a key may not have been one: from the start there is no doubt
                    raise UntrustedIndexError(f"{self._named(number)} is damaged")
                raise DecodeError(f"{self._named(number)} is damaged")
            yield number, frame

    def _beginning_at(self, number: int) -> Iterator[Numbered]:
        """Numbered frames from one at or before `number` on."""
        key = self._index.key_before(number)
        while key > 0:
            time = self._index.times[key]
            self._container.seek(time, stream=self._stream, backward=True)
            frames = self._numbered()
            first = next(frames, None)
            if first is not None and first[0] <= number:
                return chain((first,), frames)
            key = self._index.key_before(key - 1)
        self._stack.close()
        self._container, self._stream = self._opened()
        return self._numbered()

    def _numbered(self) -> Iterator[Numbered]:
        frames = self._container.decode(self._stream)
        if not self._index.stamped:
            yield from enumerate(frames)
            return
        numbers = {time: number for number, time in enumerate(self._index.times)}
        for frame in frames:
            if frame.pts in numbers:
                yield numbers[frame.pts], frame
            elif frame.pts is None or frame.pts >= self._index.times[0]:
                raise UntrustedIndexError(f"{self._what} has a frame at an unexpected time")

    def _opened(self) -> tuple[InputContainer, VideoStream]:
        container = self._stack.enter_context(opened(self._source, self._what))
        stream = video_stream(container)
        if stream is None:
            raise DecodeError(f"{self._what} has no video stream")
        return container, stream

    def _named(self, number: int) -> str:
        start, _ = self._index.seconds(number, number)
        return f"frame {number} (at {start:.3f} s) of {self._what}"
