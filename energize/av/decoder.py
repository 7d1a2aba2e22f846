"""Videos and sounds that are decoded when, and as far as, somebody asks."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar

from energize.av.audio import count_samples, read_sounds
from energize.av.data import AVData
from energize.av.frames import FrameIndex, index_by_decoding, index_by_packets
from energize.av.opening import audio_stream, opened, video_stream
from energize.av.probing import audio_duration, frame_rate, frame_size
from energize.av.video import UntrustedIndexError, read_frames
from energize.errors import ConfigError, DecodeError
from energize.late import torch
from energize.media.metadata import AVMetadata

T = TypeVar("T")

Range = tuple[float, float]
Clips: TypeAlias = "tuple[list[torch.Tensor], list[tuple[float, float]]]"

_WHOLE: tuple[Range] = ((0, math.inf),)


class AVDecoder:
    """A video or sound that has not been decoded: its methods give the clips that are wanted.

    `stream` is an open binary file, or its bytes. Frames are numbered in the order in which they
    are shown, the first being 0, and which ones a clip has is exact in every container: the frame
    that is shown at its start, the one that is shown at its **end**, and all between them. Times
    are those of the file, in seconds; most begin at 0. Of sound a clip has the samples from its
    start up to its end, the sample there not included.

    A clip that reaches beyond the end of the file is shorter. One that lies behind it altogether is
    left out, with a warning unless `suppress_warnings`; `AVData` says the times of the others.
    Rotations that a file asks players for are not applied.

    A decoder can be pickled, takes its bytes along, and equals another one of the same bytes.
    Methods raise `DecodeError` for damaged files and for what a file does not have, `ConfigError`
    without PyAV (`pip install 'energize[av]'`) and for ranges that are none. `name` is what errors
    call the file.

        decoder = AVDecoder(open("talk.mp4", "rb"))
        data = decoder.get_clips([(0, 2), (4, 6)], video_out_frame_size=(224, 224))
        data.video_clips[1].shape  # (frames, 3, 224, 224), uint8

    >>> AVDecoder(b"no video").has_video_stream()
    Traceback (most recent call last):
        ...
    energize.errors.DecodeError: a video or sound of 8 bytes cannot be decoded: ...
    """

    stream: BinaryIO
    suppress_warnings: bool

    def __init__(
        self, stream: BinaryIO | bytes, suppress_warnings: bool = False, *, name: str = ""
    ) -> None:
        if isinstance(stream, bytes | bytearray | memoryview):
            stream = io.BytesIO(stream)
        text = isinstance(stream, io.TextIOBase) or "t" in str(getattr(stream, "mode", "rb"))
        if text or not hasattr(stream, "read") or not hasattr(stream, "seek"):
            raise ConfigError(
                f"AVDecoder takes bytes or a file opened for reading bytes, open(path, 'rb'); got "
                f"{'a file opened as text' if text else repr(stream)[:80]}"
            )
        self.stream = stream
        self.suppress_warnings = suppress_warnings
        self._name = name
        self._frame_index: FrameIndex | None = None

    def get_clips(
        self,
        video_clip_ranges: Sequence[Range] | None = None,
        audio_clip_ranges: Sequence[Range] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Clips of the video, of the sound, or of both, for ranges (start, end).

        An end of `float("inf")` is that of the file. `video_out_frame_size` is (width, height).
        """
        clips: list[torch.Tensor] = []
        sounds: list[torch.Tensor] = []
        times: list[Range] = []
        heard: list[Range] = []
        if video_clip_ranges is not None:
            clips, times = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
        if audio_clip_ranges is not None:
            sounds, heard = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return AVData(
            video_clips=clips, video_timestamps=times, audio_clips=sounds, audio_timestamps=heard
        )

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[Range],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> Clips:
        """The clips, uint8 (frames, 3, height, width), and the seconds that each covers."""
        _checked_unit("video_unit", video_unit, ("frames", "seconds"))
        ranges = _checked_ranges("video_clip_ranges", video_clip_ranges)
        size = _checked_size(video_out_frame_size)
        try:
            return self._video_clips(self._index(), ranges, video_unit, size)
        except UntrustedIndexError:
            self._frame_index = None
        try:
            return self._video_clips(self._index(decoding=True), ranges, video_unit, size)
        except UntrustedIndexError as reason:
            raise DecodeError(f"{reason}; is the file complete?") from reason

    def get_audio_clips(
        self,
        audio_clip_ranges: Sequence[Range],
        audio_unit: Literal["samples", "seconds"] = "seconds",
    ) -> Clips:
        """The clips, (channels, samples), and the seconds that each covers."""
        _checked_unit("audio_unit", audio_unit, ("samples", "seconds"))
        ranges = _checked_ranges("audio_clip_ranges", audio_clip_ranges)
        rate = self.get_audio_samples_per_second()
        spans = [_samples_of(each, 1 if audio_unit == "samples" else rate) for each in ranges]
        read = read_sounds(self._reading(), self._what, spans)
        self._warn_of(
            [each for each, (_, found) in zip(ranges, read, strict=True) if found is None]
        )
        there = [(start, found) for start, found in read if found is not None]
        times = [(start / rate, (start + found.shape[1]) / rate) for start, found in there]
        return [torch.from_numpy(found) for _, found in there], times

    def get_video(self) -> AVData:
        """All frames of the video, without sound."""
        return self.get_clips(video_clip_ranges=_WHOLE)

    def get_audio(self) -> AVData:
        """All of the sound."""
        return self.get_clips(audio_clip_ranges=_WHOLE)

    def get_video_with_audio(self) -> AVData:
        """All frames of the video and all of its sound."""
        return self.get_clips(video_clip_ranges=_WHOLE, audio_clip_ranges=_WHOLE)

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """All of it: of a video the frames, and if asked the sound, where there is one; of a sound
        the sound.
        """
        with opened(self._reading(), self._what) as container:
            seen, heard = video_stream(container) is not None, audio_stream(container) is not None
        if not seen:
            return self.get_audio()
        return self.get_video_with_audio() if video_decode_audio and heard else self.get_video()

    def get_metadata(  # noqa: PLR0917 - as Energon's
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """What the file is; fields that are not asked for, or that it does not have, are None.

        Only `get_audio_num_samples` decodes the sound; the duration is then that of its samples.
        """
        found = AVMetadata()
        with opened(self._reading(), self._what) as container:
            seen, heard = video_stream(container), audio_stream(container)
            if get_video and seen is not None:
                found.video_fps = frame_rate(seen)
                if get_video_frame_size:
                    found.video_width, found.video_height = frame_size(container, seen)
            if get_audio and heard is not None:
                found.audio_sample_rate = heard.sample_rate
                found.audio_channels = heard.channels
                if get_audio_duration:
                    container.seek(0)
                    found.audio_duration = audio_duration(container, heard)
        if get_video and seen is not None and (get_video_duration or get_video_frame_count):
            index = self._index()
            found.video_duration = index.duration if get_video_duration else None
            found.video_num_frames = len(index.times) if get_video_frame_count else None
            found.video_fps = found.video_fps or len(index.times) / index.duration
        if get_audio and heard is not None and get_audio_num_samples:
            found.audio_num_samples = count_samples(self._reading(), self._what)
            if found.audio_sample_rate:
                found.audio_duration = found.audio_num_samples / found.audio_sample_rate
        return found

    def get_video_fps(self) -> float:
        """Frames per second of the video, on average."""
        found = self.get_metadata(
            get_video_duration=False,
            get_video_frame_count=False,
            get_video_frame_size=False,
            get_audio=False,
        )
        return self._required(found.video_fps, "video stream with a frame rate")

    def get_audio_samples_per_second(self) -> int:
        """Samples per second of the sound."""
        found = self.get_metadata(get_video=False, get_audio_duration=False)
        return self._required(found.audio_sample_rate, "audio stream with a sample rate")

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Seconds from the first frame to the end of the last, and if asked how many there are."""
        found = self.get_metadata(
            get_video_frame_count=get_frame_count, get_video_frame_size=False, get_audio=False
        )
        return found.video_duration, found.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Seconds of the sound; None without one."""
        return self.get_metadata(get_video=False).audio_duration

    def has_audio_stream(self) -> bool:
        """Whether there is sound."""
        with opened(self._reading(), self._what) as container:
            return audio_stream(container) is not None

    def has_video_stream(self) -> bool:
        """Whether there are moving pictures; the cover of a sound is none."""
        with opened(self._reading(), self._what) as container:
            return video_stream(container) is not None

    def start_time(self) -> float:
        """The second at which all of its streams have begun; 0 of most files."""
        with opened(self._reading(), self._what) as container:
            streams = [video_stream(container), audio_stream(container)]
            starts = [
                float(each.start_time * each.time_base)
                for each in streams
                if each is not None and each.start_time is not None and each.time_base
            ]
        return max(starts, default=0.0)

    def _video_clips(
        self,
        index: FrameIndex,
        ranges: list[Range],
        unit: str,
        size: tuple[int, int] | None,
    ) -> Clips:
        spans = [_frames_of(each, index, unit) for each in ranges]
        self._warn_of([each for each, span in zip(ranges, spans, strict=True) if span is None])
        there = [span for span in spans if span is not None]
        clips = read_frames(self._reading(), self._what, index, there, size)
        return clips, [index.seconds(first, last) for first, last in there]

    def _index(self, *, decoding: bool = False) -> FrameIndex:
        """The frames of the video; what packets say of them is believed unless `decoding`."""
        if self._frame_index is None:
            with opened(self._reading(), self._what) as container:
                stream = video_stream(container)
                if stream is None:
                    raise DecodeError(f"{self._what} has no video stream")
                if not decoding:
                    self._frame_index = index_by_packets(container, stream, self._what)
            if self._frame_index is None:
                self._frame_index = index_by_decoding(self._reading(), self._what)
        return self._frame_index

    def _reading(self) -> BinaryIO:
        """The file, at its beginning; of bytes in memory a reader of its own."""
        if isinstance(self.stream, io.BytesIO):
            return io.BytesIO(self.stream.getvalue())
        self.stream.seek(0)
        return self.stream

    def _content(self) -> bytes:
        return self._reading().read()

    @property
    def _what(self) -> str:
        size = (
            f" of {len(self.stream.getvalue())} bytes"
            if isinstance(self.stream, io.BytesIO)
            else ""
        )
        return f"{self._name or 'a video or sound'}{size}"

    def _required(self, value: T | None, what: str) -> T:
        if value is None:
            raise DecodeError(f"{self._what} has no {what}")
        return value

    def _warn_of(self, behind: list[Range]) -> None:
        if behind and not self.suppress_warnings:
            listed = ", ".join(f"{start:g} to {end:g}" for start, end in behind[:5])
            warnings.warn(
                f"{self._what} has nothing at {len(behind)} of the asked clips ({listed}"
                f"{', ...' if len(behind) > 5 else ''}), which are left out",
                RuntimeWarning,
                stacklevel=4,
            )

    def __getstate__(self) -> dict[str, Any]:
        kept = {"suppress_warnings": self.suppress_warnings, "_name": self._name}
        return kept | {"stream": self._content()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, stream=io.BytesIO(state["stream"]), _frame_index=None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AVDecoder):
            return NotImplemented
        return self is other or self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return f"AVDecoder({self._what})"


def _checked_unit(name: str, unit: str, known: tuple[str, ...]) -> None:
    if unit not in known:
        raise ConfigError(f"{name}={unit!r} is none of {', '.join(map(repr, known))}")


def _checked_size(size: tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    good = len(size) == 2 and all(int(each) == each and each > 0 for each in size)
    if not good:
        raise ConfigError(f"video_out_frame_size={size!r} is not (width, height) in pixels")
    return int(size[0]), int(size[1])


def _checked_ranges(name: str, ranges: Sequence[Range]) -> list[Range]:
    checked = []
    for number, each in enumerate(ranges):
        start, end = each if len(each) == 2 else (math.nan, math.nan)
        if not start <= end or math.isinf(start):
            raise ConfigError(
                f"{name}[{number}]={each!r} is not (start, end) with numbers start <= end, the end "
                "float('inf') for that of the file"
            )
        checked.append((start, end))
    return checked


def _frames_of(asked: Range, index: FrameIndex, unit: str) -> tuple[int, int] | None:
    """The first and the last frame of a range; None when it lies outside the video."""
    start, end = asked
    last = len(index.times) - 1
    if end < 0:
        return None
    if unit == "frames":
        first = max(0, math.floor(start))
        return None if first > last else (first, last if end > last else math.floor(end))
    first = index.shown_at(start)
    if first < 0:
        return None
    shown = -1 if end == math.inf else index.shown_at(end)
    return first, last if shown < 0 else shown


def _samples_of(asked: Range, rate: int) -> tuple[int, int | None]:
    """The samples [start, end) of a range, with as many of them as its length says."""
    start, end = asked
    first = math.floor(start * rate + 0.5)
    until = None if end == math.inf else first + math.floor((end - start) * rate + 0.5)
    return max(0, first), until if until is None else max(0, until)
