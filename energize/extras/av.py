"""What is known of a picture, a video or a sound without decoding it again.

Stored as JSON in the `media_metadata` table of a folder's `index.sqlite`, as Energon does.
"""

from __future__ import annotations

import io
import json
import math
import struct
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from fractions import Fraction
from itertools import chain, pairwise
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

import numpy as np

from energize.core.lazy import optional_module, torch
from energize.errors import ConfigError, DatasetError, DecodeError, nearest

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = [
    "AVMetadata",
    "ImageMetadata",
    "MediaMetadataBase",
    "MediaMetadataType",
    "deserialize_media_metadata",
    "serialize_media_metadata",
]


class MediaMetadataType(StrEnum):
    """The kinds of metadata, by the names they are stored under."""

    IMAGE = "image"
    AV = "av"

    @classmethod
    def from_string(cls, value: str) -> MediaMetadataType:
        """The kind stored as `value`; `DatasetError` when there is none.

        >>> MediaMetadataType.from_string("av") is MediaMetadataType.AV
        True
        """
        try:
            return cls(value)
        except ValueError:
            known = [each.value for each in cls]
            raise DatasetError(
                f"media metadata of the kind {value!r} is not known{nearest(value, known)}; known "
                f"are {', '.join(known)}: it may have been written by a newer version"
            ) from None


@dataclass(slots=True, kw_only=True)
class MediaMetadataBase:
    """Base of the kinds of metadata: plain values, None where a thing is not known."""

    metadata_type: ClassVar[MediaMetadataType]

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, by name.

        >>> AVMetadata(audio_channels=2).to_dict()
        {'audio_channels': 2}
        """
        known = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in known if value is not None}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> Self:
        """The metadata with these fields; `DatasetError` for missing or unknown ones."""
        try:
            return cls(**payload)
        except TypeError as reason:
            names = ", ".join(each.name for each in fields(cls))
            raise DatasetError(
                f"media metadata {dict(payload)!r} is no {cls.__name__}, whose fields are {names}: "
                f"{reason}"
            ) from reason


@dataclass(slots=True, kw_only=True)
class ImageMetadata(MediaMetadataBase):
    """Of an image: pixels as stored (EXIF orientation is not applied), Pillow's format and mode.

    >>> ImageMetadata(width=8, height=4, format="PNG", mode="RGB").to_dict()
    {'width': 8, 'height': 4, 'format': 'PNG', 'mode': 'RGB'}
    """

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.IMAGE

    width: int
    height: int
    format: str
    mode: str


@dataclass(slots=True, kw_only=True)
class AVMetadata(MediaMetadataBase):
    """Of a video or sound: durations in seconds, frame sizes in pixels, rates per second."""

    metadata_type: ClassVar[MediaMetadataType] = MediaMetadataType.AV

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None

    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


_CLASSES: Mapping[MediaMetadataType, type[MediaMetadataBase]] = {
    kind.metadata_type: kind for kind in (ImageMetadata, AVMetadata)
}


def serialize_media_metadata(metadata: MediaMetadataBase) -> tuple[MediaMetadataType, str]:
    """The kind of the metadata, and its fields as compact JSON.

    >>> serialize_media_metadata(AVMetadata(video_fps=25.0))[1]
    '{"video_fps":25.0}'
    """
    return metadata.metadata_type, json.dumps(metadata.to_dict(), separators=(",", ":"))


def deserialize_media_metadata(
    metadata_type: str | MediaMetadataType, metadata_json: str
) -> MediaMetadataBase:
    """The metadata that `serialize_media_metadata` made the two arguments of.

    Raises `DatasetError` for an unknown kind and for JSON that does not hold its fields.

    >>> deserialize_media_metadata("av", '{"audio_channels": 1}').audio_channels
    1
    """
    kind = MediaMetadataType.from_string(metadata_type)
    try:
        payload = json.loads(metadata_json)
    except ValueError as reason:
        raise DatasetError(
            f"media metadata is not JSON: {reason}: {metadata_json[:80]!r}"
        ) from reason
    if not isinstance(payload, dict):
        raise DatasetError(f"media metadata is a JSON object, found {metadata_json[:80]!r}")
    return _CLASSES[kind].from_dict(payload)


# What decoding gives.


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


# Opening a video or sound with PyAV, and what damaged ones raise.

# FFmpeg recognises formats by content, whatever a part is called. Playlists and the like are among
# them, which make it open other files and addresses. Only these are ever tried.
_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,asf,au,avi,caf,flac,flv,gif,m4a,m4v,matroska,mj2,mov,mp3,mp4,mpeg,"
    "mpegts,mpegvideo,ogg,w64,wav,webm"
)
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "data"}


def pyav() -> Any:
    """PyAV; `ConfigError` naming the extra where it is missing."""
    return optional_module("av", "energize[av]", "decoding video and audio")


def open_container(stream: BinaryIO) -> InputContainer:
    """The container in `stream`, read from its beginning.

    Decoding starts no threads: they do not survive the fork of a worker, and workers are what
    decodes in parallel. Raises what PyAV raises.
    """
    stream.seek(0)
    # Not as `options`, which are those of streams too: PyAV 17 writes beyond its memory where
    # streams are found after the header, as in FLV.
    container: InputContainer = pyav().open(stream, "r", container_options=_OPTIONS)
    try:
        for stream_ in container.streams:
            context = getattr(stream_, "codec_context", None)
            if context is not None and stream_.type in ("video", "audio"):
                context.thread_type = "NONE"
                context.thread_count = 1
    except BaseException:
        container.close()
        raise
    return container


@contextmanager
def opened(stream: BinaryIO, what: str) -> Iterator[InputContainer]:
    """The container in `stream`; errors of PyAV inside the block become `DecodeError`s of `what`.

    A TimeoutError of a signal handler is none of them.
    """
    av = pyav()
    try:
        with open_container(stream) as container:
            yield container
    except (av.FFmpegError, IndexError, struct.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DecodeError(
            f"{what} cannot be decoded: {type(error).__name__}: {reason}; is the file complete, "
            "and of a format that FFmpeg reads?"
        ) from error


def video_stream(container: InputContainer) -> VideoStream | None:
    """The first stream of moving pictures that can be decoded; the cover of a sound is none."""
    cover = pyav().stream.Disposition.attached_pic
    streams = (each for each in container.streams.video if each.codec_context is not None)
    return next((each for each in streams if not each.disposition & cover), None)


def audio_stream(container: InputContainer) -> AudioStream | None:
    """The first stream of sound that can be decoded."""
    return next((each for each in container.streams.audio if each.codec_context is not None), None)


# Which frames a video has, and when each of them is shown.

# Of these codecs each packet is one frame that is shown. Of others, VP8 for one, some are not.
_FRAME_PER_PACKET = frozenset(
    {"av1", "dvvideo", "ffv1", "gif", "h264", "hevc", "mjpeg", "mpeg1video", "mpeg2video"}
    | {"mpeg4", "msmpeg4v3", "png", "prores", "rawvideo", "vp9", "vvc"}
)
# What these containers store for packets is their order, not when they are shown.
_WITHOUT_TIMES = frozenset({"avi"})
# Where a list of all packets comes with the header.
_LISTING = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "avi"})
_ASSUMED_RATE = 25  # what FFmpeg takes where a file says nothing


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The frames of a video in the order in which they are shown.

    `times` are the ticks of `tick` seconds at which each is first shown, ascending, and `end` the
    one at which the last is not shown any more. Reading can begin at the frames `keys`. Decoded
    frames carry these times if `stamped`; otherwise they are told apart by counting from the start.
    """

    times: tuple[int, ...]
    end: int
    tick: Fraction
    keys: tuple[int, ...] = (0,)
    stamped: bool = True

    def shown_at(self, seconds: float) -> int:
        """The number of the frame that is shown then; the first one before it, -1 after the end.

        A time next to a tick means that tick: files round times, and so do those who compute them.
        """
        ticks = Fraction(seconds) / self.tick
        near = min(Fraction(1, 2), Fraction(self.end - self.times[0], 10 * len(self.times)))
        nearest = round(ticks)
        at = nearest if abs(ticks - nearest) <= near else math.floor(ticks)
        return -1 if at >= self.end else max(0, bisect_right(self.times, at) - 1)

    def key_before(self, number: int) -> int:
        """The last frame up to `number` at which reading can begin."""
        return self.keys[bisect_right(self.keys, number) - 1]

    def seconds(self, first: int, last: int) -> tuple[float, float]:
        """When the frame `first` begins to be shown, and when `last` ends."""
        end = self.times[last + 1] if last + 1 < len(self.times) else self.end
        return self.times[first] * float(self.tick), end * float(self.tick)

    @property
    def duration(self) -> float:
        """The seconds from the first frame to the end of the last."""
        return (self.end - self.times[0]) * float(self.tick)


def index_by_packets(
    container: InputContainer, stream: VideoStream, what: str
) -> FrameIndex | None:
    """The index, without decoding; None where the packets do not tell.

    Packets that a cut leaves out are needed for decoding only and count as no frames.
    """
    if stream.codec_context.name not in _FRAME_PER_PACKET:
        return None
    packets = [packet for packet in container.demux(stream) if packet.size]
    listed = len(stream.index_entries) if container.format.name in _LISTING else 0
    if listed > len(packets):
        raise DecodeError(
            f"{what} is cut off: of {listed} frames that its index lists, {len(packets)} are there"
        )
    if container.format.name in _WITHOUT_TIMES:
        return _counted(len(packets), stream, what)
    shown = [packet for packet in packets if not packet.is_discard]
    times = sorted(packet.pts for packet in shown if packet.pts is not None)
    if not times or len(times) < len(shown) or any(a == b for a, b in pairwise(times)):
        return None
    numbers = {time: number for number, time in enumerate(times)}
    keys = {numbers[packet.pts] for packet in shown if packet.is_keyframe and packet.pts in numbers}
    last = next(packet for packet in shown if packet.pts == times[-1])
    return FrameIndex(
        times=tuple(times),
        end=times[-1] + (last.duration or _usual_duration(times, stream)),
        tick=_tick(stream),
        keys=tuple(sorted(keys | {0})),
    )


def index_by_decoding(source: BinaryIO, what: str) -> FrameIndex:
    """The index of a video whose packets do not tell: all of it is decoded once."""
    with opened(source, what) as container:
        stream = video_stream(container)
        if stream is None:
            raise DecodeError(f"{what} has no video stream")
        decoded = [(frame.pts, frame.duration) for frame in container.decode(stream)]
        return _of_decoded(decoded, container, stream, what)


def _of_decoded(
    decoded: list[tuple[int | None, int]],
    container: InputContainer,
    stream: VideoStream,
    what: str,
) -> FrameIndex:
    times = [time for time, _ in decoded]
    known = [time for time in times if time is not None]
    ascending = len(known) == len(times) and all(a < b for a, b in pairwise(known))
    if not known or not ascending or container.format.name in _WITHOUT_TIMES:
        return _counted(len(times), stream, what)
    end = known[-1] + (decoded[-1][1] or _usual_duration(known, stream))
    return FrameIndex(times=tuple(known), end=end, tick=_tick(stream))


def _counted(count: int, stream: VideoStream, what: str) -> FrameIndex:
    """An index of frames that are shown for the same time each."""
    if not count:
        raise DecodeError(f"{what} has a video stream without frames")
    tick = _tick(stream)
    length = _rate_duration(stream, tick)
    times = tuple(round(number * length) for number in range(count))
    return FrameIndex(times=times, end=round(count * length), tick=tick, stamped=False)


def _tick(stream: VideoStream) -> Fraction:
    return Fraction(stream.time_base or 1)


def _usual_duration(times: list[int], stream: VideoStream) -> int:
    gaps = [later - sooner for sooner, later in pairwise(times)]
    return gaps[-1] if gaps else max(1, round(_rate_duration(stream, _tick(stream))))


def _rate_duration(stream: VideoStream, tick: Fraction) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate or _ASSUMED_RATE
    return 1 / Fraction(rate) / tick


# What a video or sound is, without decoding more of it than is asked.


def frame_size(container: InputContainer, stream: VideoStream) -> tuple[int | None, int | None]:
    """Width and height of the frames; of the first one, where the header does not say."""
    width, height = stream.codec_context.width, stream.codec_context.height
    if width and height:
        return width, height
    first = next(iter(container.decode(stream)), None)
    return (None, None) if first is None else (first.width, first.height)


def frame_rate(stream: VideoStream) -> float | None:
    """Frames per second, on average."""
    rate = stream.average_rate or stream.guessed_rate
    return float(rate) if rate else None


def audio_duration(container: InputContainer, stream: AudioStream) -> float | None:
    """Seconds of the sound: what the header says, else up to the end of its last packet."""
    if not stream.time_base:
        return None
    tick = float(Fraction(stream.time_base))
    if stream.duration is not None:
        return stream.duration * tick
    ends = [
        each.pts + (each.duration or 0) for each in container.demux(stream) if each.pts is not None
    ]
    return (max(ends) - (stream.start_time or 0)) * tick if ends else None


# Reading sounds by the numbers of their samples.

Samples = np.ndarray[Any, Any]

# Only these containers say exactly which sample a packet begins with; in others all is decoded
# from the start, and counted.
_EXACT = frozenset({"aiff", "caf", "flac", "mov", "w64", "wav"})
_PREROLL = 1.0  # seconds decoded before a clip, for codecs whose sound depends on what came before
_WORTH_SEEKING = 10.0
_GAP = 0.1  # seconds by which time stamps may differ from the count before they are believed


def read_sounds(
    source: BinaryIO, what: str, spans: Sequence[tuple[int, int | None]]
) -> list[tuple[int, Samples | None]]:
    """For each span [start, end) of samples, None for the end of the sound, what it has of them.

    Sample n is the one that is heard n / rate seconds after time 0 of the file. Of each clip the
    number of its first sample is given, and the samples (channels, n); None when the sound has none
    in this span.
    """
    pieces: list[list[Samples]] = [[] for _ in spans]
    starts = [start for start, _ in spans]
    with opened(source, what) as container:
        stream = required_stream(container, what)
        for position, samples in _needed(container, stream, what, spans):
            count = samples.shape[1]
            for clip, (start, end) in enumerate(spans):
                low = max(0, start - position)
                high = count if end is None else min(count, end - position)
                if low < high or (start == end and 0 <= start - position < count):
                    if not pieces[clip]:
                        starts[clip] = position + low
                    pieces[clip].append(samples[:, low:high])
    return [
        (start, np.ascontiguousarray(_joined(parts, what)) if parts else None)
        for start, parts in zip(starts, pieces, strict=True)
    ]


def count_samples(source: BinaryIO, what: str) -> int:
    """How many samples the whole sound has, by decoding it."""
    with opened(source, what) as container:
        return sum(frame.samples for frame in container.decode(required_stream(container, what)))


def required_stream(container: InputContainer, what: str) -> AudioStream:
    """The sound of a file; `DecodeError` when it has none, or one without a rate."""
    stream = audio_stream(container)
    if stream is None:
        raise DecodeError(f"{what} has no audio stream")
    if not stream.sample_rate:
        raise DecodeError(f"{what} does not say how many samples a second its sound has")
    return stream


def _needed(
    container: InputContainer,
    stream: AudioStream,
    what: str,
    spans: Sequence[tuple[int, int | None]],
) -> Iterator[tuple[int, Samples]]:
    """Pieces of the sound, each with the number of its first sample, that cover all spans."""
    rate = stream.sample_rate
    exact = container.format.name.split(",")[0] in _EXACT and _audio_tick(stream) <= Fraction(
        1, rate
    )
    frames = _frames(container, stream, what)
    done = 0
    for start, end in _merged(spans, round(_WORTH_SEEKING * rate)):
        if exact and start - done > _WORTH_SEEKING * rate:
            ticks = int((Fraction(start, rate) - Fraction(_PREROLL)) / _audio_tick(stream))
            container.seek(ticks, stream=stream, backward=True)
            frames = _frames(container, stream, what)
        elif end is not None and end < done:
            continue
        for position, samples in frames:
            if position + samples.shape[1] > done:
                yield position, samples
                done = position + samples.shape[1]
            if end is not None and done > end:
                break


def _merged(spans: Sequence[tuple[int, int | None]], gap: int) -> Iterator[tuple[int, int | None]]:
    """Spans that cover all, ascending, with at least `gap` samples between them."""
    low, high = None, None
    for start, end in sorted(spans, key=lambda span: span[0]):
        if low is None:
            low, high = start, end
        elif high is None:
            break
        elif start - high <= gap:
            high = None if end is None else max(high, end)
        else:
            yield low, high
            low, high = start, end
    if low is not None:
        yield low, high


def _frames(
    container: InputContainer, stream: AudioStream, what: str
) -> Iterator[tuple[int, Samples]]:
    """What is decoded from here on; numbered by counting, from the time of the first frame."""
    rate = stream.sample_rate
    position: int | None = None
    for frame in container.decode(stream):
        if frame.sample_rate != rate:
            raise DecodeError(f"{what} changes its rate from {rate} to {frame.sample_rate} Hz")
        if frame.pts is not None:
            stamped = round(frame.pts * _audio_tick(stream, frame) * rate)
            if position is None or abs(stamped - position) > _GAP * rate:
                position = stamped
        position = position or 0
        yield position, _samples(frame)
        position += frame.samples


def _samples(frame: AudioFrame) -> Samples:
    """The samples of a frame, (channels, n)."""
    if frame.format.is_planar:
        return frame.to_ndarray()
    channels = int(frame.layout.nb_channels)
    return frame.to_ndarray().reshape(frame.samples, channels).transpose()


def _joined(parts: list[Samples], what: str) -> Samples:
    kinds = {(each.shape[0], str(each.dtype)) for each in parts}
    if len(kinds) > 1:
        found = " and ".join(f"{channels} channels of {kind}" for channels, kind in sorted(kinds))
        raise DecodeError(f"the sound of {what} changes: it has {found}")
    return np.concatenate(parts, axis=1)


def _audio_tick(stream: AudioStream, frame: AudioFrame | None = None) -> Fraction:
    tick = (frame.time_base if frame is not None else None) or stream.time_base
    return Fraction(tick) if tick else Fraction(1, stream.sample_rate)


# Reading frames of a video by their numbers.

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


# Videos and sounds that are decoded when, and as far as, somebody asks.

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


# Clips at equal distances from each other.


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


# Decoding the parts of samples that are videos and sounds.

AVDecoderType = Literal["torch", "AVDecoder", "pyav"]

AV_EXTENSIONS = frozenset({"mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"})
"""The parts that are decoded as videos and sounds."""


@dataclass(frozen=True)
class AVWebdatasetDecoder:
    """Makes of the bytes of a video or sound what `av_decode` names.

    "AVDecoder" is an `AVDecoder`, which decodes when it is asked; "torch" an `AVData` of all
    frames, or all sound where there is no video, and with `video_decode_audio` of both; "pyav" an
    open container of PyAV, which cannot be sent to another process.

    Raises `ConfigError` for another name.
    """

    video_decode_audio: bool = False
    av_decode: AVDecoderType = "AVDecoder"

    def __post_init__(self) -> None:
        known = get_args(AVDecoderType)
        if self.av_decode not in known:
            raise ConfigError(
                f"av_decode={self.av_decode!r} is not one of {', '.join(known)}"
                f"{nearest(str(self.av_decode), known)}"
            )

    def __call__(self, key: str, data: bytes) -> Any:
        """What the part `key` holds; None for parts that are neither video nor sound.

        Raises `DecodeError` naming the part, unless an `AVDecoder` is asked for, whose methods do.
        """
        if key.rpartition(".")[2].lower() not in AV_EXTENSIONS:
            return None
        return self.decoded(key, data)

    def decoded(self, key: str, data: bytes) -> Any:
        """As `__call__`, for a part of any name that is a video or a sound."""
        decoder = AVDecoder(data, name=f"part {key!r}")
        if self.av_decode == "AVDecoder":
            return decoder
        if self.av_decode == "torch":
            return decoder.get_frames(video_decode_audio=self.video_decode_audio)
        stream = io.BytesIO(data)
        with opened(stream, f"part {key!r} of {len(data)} bytes"):
            pass  # damage is told of here, in words
        return open_container(stream)
