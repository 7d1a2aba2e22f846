"""Clips of videos and sounds, decoded by PyAV.

`AVDecoder` is a file that is decoded on request. Frames are located through an index
built from packets or, for formats without reliable packets, by decoding once.
`AVWebdatasetDecoder` applies it to parts of samples; the functions at the end take
clips at equal distances.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
)

import numpy as np

from energize.core import limits
from energize.core.checks import checked_choice
from energize.core.lazy import optional_module, torch
from energize.core.media import ClipRange, MediaDecoder
from energize.data.media import AVDecoderType, AVMetadata, kind_by_name
from energize.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

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

T = TypeVar("T")
Samples = np.ndarray[Any, Any]
Clips: TypeAlias = "tuple[list[torch.Tensor], list[tuple[float, float]]]"

_WHOLE: tuple[ClipRange] = ((0, math.inf),)


@dataclass(kw_only=True, slots=True)
class AVData:
    """Clips of a video or sound, and the seconds that each clip covers.

    Video clips are uint8 (frames, 3, height, width), RGB. Audio clips are (channels,
    samples) in the format of the codec: int16 or int32 for PCM and FLAC, float32 from
    -1 to 1 for most others. Clips that were not requested are empty lists.
    """

    video_clips: list[torch.Tensor] | None
    video_timestamps: list[tuple[float, float]] | None
    audio_clips: list[torch.Tensor] | None
    audio_timestamps: list[tuple[float, float]] | None


# Opening files.

# FFmpeg detects formats by content, whatever the name. Playlists and similar formats
# make it open other files and addresses, so only these formats are allowed.
_FORMATS = (
    "3g2,3gp,aac,ac3,aiff,amr,asf,au,avi,caf,flac,flv,gif,m4a,m4v,matroska,mj2,mov,"
    "mp3,mp4,mpeg,mpegts,mpegvideo,ogg,w64,wav,webm"
)
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "data"}


def _pyav() -> Any:
    return optional_module("av", "energize[av]", "decoding video and audio")


def _open_container(stream: BinaryIO) -> InputContainer:
    """Open the container in `stream` from its beginning.

    Decoding starts no threads: threads do not survive the fork of a worker, and
    decoding is parallel over workers.
    """
    stream.seek(0)
    # Not `options`, which also apply to streams: PyAV 17 corrupts memory if streams are
    # detected after the header, as in FLV.
    container: InputContainer = _pyav().open(stream, "r", container_options=_OPTIONS)
    for media_stream in (*container.streams.video, *container.streams.audio):
        if media_stream.codec_context is not None:
            media_stream.codec_context.thread_type = "NONE"
            media_stream.codec_context.thread_count = 1
    return container


@contextmanager
def _opened(stream: BinaryIO, name: str) -> Iterator[InputContainer]:
    """Open a container; convert errors of PyAV in the block to `DecodeError`."""
    av = _pyav()
    try:
        with _open_container(stream) as container:
            yield container
    except (av.FFmpegError, IndexError, struct.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DecodeError(
            f"{name} cannot be decoded: {type(error).__name__}: {reason}. Check that "
            "the file is complete and has a format that FFmpeg reads"
        ) from error


def _video_stream(container: InputContainer) -> VideoStream | None:
    """Return the first decodable video stream that is not a cover image."""
    cover = _pyav().stream.Disposition.attached_pic
    streams = (
        stream for stream in container.streams.video if stream.codec_context is not None
    )
    return next((stream for stream in streams if not stream.disposition & cover), None)


def _audio_stream(container: InputContainer) -> AudioStream | None:
    return next(
        (
            stream
            for stream in container.streams.audio
            if stream.codec_context is not None
        ),
        None,
    )


def _required(value: T | None, name: str, lacking: str) -> T:
    if value is None:
        raise DecodeError(f"{name} has no {lacking}")
    return value


# Frames of a video.

# In these codecs every packet is one shown frame; in others, such as VP8, not always.
_FRAME_PER_PACKET = frozenset(
    {
        "av1",
        "dvvideo",
        "ffv1",
        "gif",
        "h264",
        "hevc",
        "mjpeg",
        "mpeg1video",
        "mpeg2video",
    }
    | {"mpeg4", "msmpeg4v3", "png", "prores", "rawvideo", "vp9", "vvc"}
)
FRAME_PIXEL = 8
"""Bytes per pixel while decoding a frame, including its reference frames."""
_LISTING = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "avi"})
"""Containers with a list of all packets in the header."""


class _UntrustedIndexError(Exception):
    """The decoded frames contradict the index."""


@dataclass(frozen=True, slots=True)
class _FrameIndex:
    """The frames of a video in presentation order.

    Frame n is shown from `times[n]` to `times[n + 1]`, in ticks of `tick` seconds.
    Decoding can start at the frames in `keys`. If `stamped`, decoded frames carry these
    times; otherwise they are counted from the start.
    """

    times: list[int]
    tick: Fraction
    keys: list[int]
    stamped: bool = True

    def __len__(self) -> int:
        return len(self.times) - 1

    def shown_at(self, seconds: float) -> int:
        """Return the frame shown at a time; 0 before the start, -1 after the end.

        A time next to a tick means that tick, because files and callers round times.
        """
        ticks = Fraction(seconds) / self.tick
        near = min(
            Fraction(1, 2), Fraction(self.times[-1] - self.times[0], 10 * len(self))
        )
        at = round(ticks) if abs(ticks - round(ticks)) <= near else math.floor(ticks)
        return -1 if at >= self.times[-1] else max(0, bisect_right(self.times, at) - 1)

    def frames_of(self, clip_range: ClipRange, unit: str) -> tuple[int, int] | None:
        """Return the first and last frame of a range; None outside of the video."""
        start, end = clip_range
        last = len(self) - 1
        if unit == "frames":
            first = max(0, math.floor(start))
            until = last if end > last else math.floor(end)
        else:
            first = self.shown_at(start)
            until = -1 if end == math.inf else self.shown_at(end)
            until = last if until < 0 else until
        return None if end < 0 or not 0 <= first <= last else (first, until)

    def seconds(self, first: int, last: int) -> tuple[float, float]:
        """Return the start of frame `first` and the end of frame `last`, in seconds."""
        return self.times[first] * float(self.tick), self.times[last + 1] * float(
            self.tick
        )


def _frame_index(source: BinaryIO, name: str, *, decoding: bool) -> _FrameIndex:
    """Return the index from packets, or by decoding if packets do not suffice.

    Packets that an edit list discards are needed for decoding, but are not frames.
    """
    with _opened(source, name) as container:
        stream = _required(_video_stream(container), name, "video stream")
        # AVI stores the order of packets, not their presentation times.
        has_times = container.format.name != "avi"
        decoding = decoding or stream.codec_context.name not in _FRAME_PER_PACKET
        list_frames = _decoded_frames if decoding else _packets
        shown = list_frames(container, stream, name)
        rate = _frame_rate(stream) or 25  # as FFmpeg assumes
        tick = Fraction(stream.time_base or 1)
    if not shown:
        raise DecodeError(f"{name} has a video stream without frames")
    length = 1 / Fraction(rate) / tick
    if has_times:
        index = _stamped_index(shown, tick, max(1, round(length)))
        if index is not None:
            return index
        if not decoding:
            return _frame_index(source, name, decoding=True)
    times = [round(number * length) for number in range(len(shown) + 1)]
    return _FrameIndex(times, tick, [0], stamped=False)


def _frame_rate(stream: VideoStream) -> Fraction | None:
    return stream.average_rate or stream.guessed_rate


def _decoded_frames(
    container: InputContainer, stream: VideoStream, name: str
) -> list[tuple[Any, int, bool]]:
    """Decode all frames; return (time, duration, False) tuples, like `_packets`."""
    return [(f.pts, f.duration or 0, False) for f in container.decode(stream)]


def _packets(
    container: InputContainer, stream: VideoStream, name: str
) -> list[tuple[Any, int, bool]]:
    """Return time, duration and key flag of the frames, from their packets."""
    packets = [packet for packet in container.demux(stream) if packet.size]
    listed = len(stream.index_entries) if container.format.name in _LISTING else 0
    if listed > len(packets):
        raise DecodeError(
            f"{name} is cut off: {len(packets)} of the {listed} frames in its index "
            "are present"
        )
    return [
        (packet.pts, packet.duration or 0, packet.is_keyframe)
        for packet in packets
        if not packet.is_discard
    ]


def _stamped_index(
    shown: list[tuple[Any, int, bool]], tick: Fraction, length: int
) -> _FrameIndex | None:
    """Return the index by time stamps; None if some are missing or equal.

    `length` is the duration of the last frame if the file does not specify it.
    """
    times = [time for time, *_ in shown]
    if None in times:
        return None
    shown.sort()
    times.sort()
    gaps = [later - sooner for sooner, later in pairwise(times)]
    if 0 in gaps:
        return None
    last = gaps[-1] if gaps else length
    times.append(times[-1] + (shown[-1][1] or last))
    keys = [number for number, (*_, key) in enumerate(shown) if key or not number]
    return _FrameIndex(times, tick, keys)


@limits.decoding
def _read_frames(
    source: BinaryIO,
    name: str,
    index: _FrameIndex,
    spans: Sequence[tuple[int, int]],
    size: tuple[int, int] | None,
    *,
    upright: bool,
) -> list[torch.Tensor]:
    """Return a clip for each (first, last) pair, uint8 (frames, 3, height, width).

    Decodes each frame once. Raises `_UntrustedIndexError` if frames contradict `index`,
    `DecodeError` if they are damaged.
    """
    rows: dict[int, list[tuple[int, int]]] = {}
    for clip, (first, last) in enumerate(spans):
        for number in range(first, last + 1):
            rows.setdefault(number, []).append((clip, number - first))
    clips: list[Any] = [None] * len(spans)
    for number, frame in _frames(source, name, index, sorted(rows)):
        pixels = _pixels(frame, size, upright=upright)
        for clip, row in rows[number]:
            first, last = spans[clip]
            if clips[clip] is None:
                limits.decoding.spend((last - first + 1) * pixels.nbytes)
                clips[clip] = np.empty(
                    (last - first + 1, *pixels.shape), dtype=np.uint8
                )
            if clips[clip].shape[1:] != pixels.shape:
                _, height, width = pixels.shape
                raise DecodeError(
                    f"{name} changes its size at frame {number}, to {width} x "
                    f"{height}. Pass video_out_frame_size=(width, height) to resize "
                    "all frames"
                )
            # torch would wake its threads for each of these small copies.
            np.copyto(clips[clip][row], pixels)
    return [torch.from_numpy(clip) for clip in clips]


def _pixels(
    frame: VideoFrame, size: tuple[int, int] | None, *, upright: bool
) -> Samples:
    """Return RGB pixels (3, height, width), turned as the file demands if `upright`."""
    turns = round(frame.rotation / 90) if upright else 0
    form: dict[str, Any] = {}
    if size:
        width, height = size[::-1] if turns % 2 else size
        form = {"width": width, "height": height, "interpolation": "BILINEAR"}
    pixels = frame.reformat(format="rgb24", **form).to_ndarray().transpose(2, 0, 1)
    return np.rot90(pixels, turns, axes=(1, 2))


def _frames(
    source: BinaryIO, name: str, index: _FrameIndex, wanted: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield the frames with these ascending numbers, seeking to keyframes."""
    numbers = {time: number for number, time in enumerate(index.times[:-1])}

    def numbered(frames: Iterator[VideoFrame]) -> Iterator[tuple[int, VideoFrame]]:
        if not index.stamped:
            yield from enumerate(frames)
        for frame in frames:
            if frame.pts in numbers:
                yield numbers[frame.pts], frame
            elif frame.pts is None or frame.pts >= index.times[0]:
                raise _UntrustedIndexError(f"{name} has a frame at an unexpected time")

    with _opened(source, name) as container:
        stream = _required(_video_stream(container), name, "video stream")
        limits.decoding.spend(
            FRAME_PIXEL * stream.codec_context.width * stream.codec_context.height
        )
        ahead = numbered(container.decode(stream))
        at = -1
        sought = False
        for number in wanted:
            key = index.keys[bisect_right(index.keys, number) - 1]
            if key > at + 1:
                container.seek(index.times[key], stream=stream, backward=True)
                ahead = numbered(container.decode(stream))
                sought = True
            at, frame = next((pair for pair in ahead if pair[0] >= number), (-1, None))
            named = (
                f"frame {number} (at {index.seconds(number, number)[0]:.3f} s) of "
                f"{name}"
            )
            if frame is None or at != number:
                raise _UntrustedIndexError(f"{named} is missing")
            if frame.is_corrupt:
                # After seeking, the index may have named a false keyframe; without
                # seeking, the file is damaged.
                error = _UntrustedIndexError if sought else DecodeError
                raise error(f"{named} is damaged")
            yield number, frame


# Sound by sample numbers.

# Containers with exact sample numbers of packets. Others are decoded from the start,
# and samples are counted.
_EXACT = frozenset({"aiff", "caf", "flac", "mov", "w64", "wav"})
# Seconds decoded before a clip: in some codecs, samples depend on earlier ones.
_PREROLL = 1
_WORTH_SEEKING = 10
# Seconds by which time stamps may differ from the counted time before they are used.
_GAP = 0.1


@limits.decoding
def _read_sounds(
    source: BinaryIO, name: str, spans: Sequence[tuple[int, float]]
) -> list[tuple[int, Samples] | None]:
    """Return the first sample number and the samples (channels, n) for each span.

    Spans are half-open. Sample n is heard n / rate seconds after time 0 of the file.
    None for spans outside of the sound.
    """
    pieces: list[list[Samples]] = [[] for _ in spans]
    starts = [start for start, _ in spans]
    last = max((end for _, end in spans), default=0)
    with _opened(source, name) as container:
        for position, samples in _sound_from(container, min(starts, default=0), name):
            count = samples.shape[1]
            for clip, span in enumerate(spans):
                overlap = _overlap(span, position, count)
                if overlap is None:
                    continue
                limits.decoding.spend(2 * samples.nbytes)
                if not pieces[clip]:
                    starts[clip] = position + overlap.start
                pieces[clip].append(samples[:, overlap])
            if position + count > last:
                break
    return [
        (start, _joined(parts, name)) if parts else None
        for start, parts in zip(starts, pieces, strict=True)
    ]


def _overlap(span: tuple[int, float], position: int, count: int) -> slice | None:
    """Return the slice of a piece of sound that is inside a span; None if none is.

    An empty span has an empty slice in the piece that contains its start.
    """
    start, end = span
    low = max(0, start - position)
    high = min(count, end - position)
    is_empty_span = start == end and 0 <= start - position < count
    return slice(low, int(high)) if low < high or is_empty_span else None


def _sound_from(
    container: InputContainer, first: int, name: str
) -> Iterator[tuple[int, Samples]]:
    """Yield pieces of sound with their first sample number, from before `first`.

    Samples are counted from the time stamp of the first one.
    """
    stream = _required(_audio_stream(container), name, "audio stream")
    rate = _required(stream.sample_rate or None, name, "rate of its audio stream")
    tick = Fraction(stream.time_base or Fraction(1, rate))
    exact = container.format.name.split(",")[0] in _EXACT and tick <= Fraction(1, rate)
    if exact and first > _WORTH_SEEKING * rate:
        ticks = int((Fraction(first, rate) - _PREROLL) / tick)
        container.seek(ticks, stream=stream, backward=True)
    yield from _numbered_sound(container.decode(stream), rate, tick, name)


def _numbered_sound(
    frames: Iterator[AudioFrame], rate: int, tick: Fraction, name: str
) -> Iterator[tuple[int, Samples]]:
    """Yield the samples of each frame with the number of the first one."""
    position: int | None = None
    for frame in frames:
        if frame.sample_rate != rate:
            raise DecodeError(
                f"{name} changes its rate from {rate} to {frame.sample_rate} Hz"
            )
        if frame.pts is not None:
            stamped = round(frame.pts * Fraction(frame.time_base or tick) * rate)
            if position is None or abs(stamped - position) > _GAP * rate:
                position = stamped
        position = position or 0
        samples = frame.to_ndarray()
        if not frame.format.is_planar:
            samples = samples.reshape(frame.samples, -1).transpose()
        yield position, samples
        position += frame.samples


def _joined(parts: list[Samples], name: str) -> Samples:
    if len({(part.shape[0], part.dtype) for part in parts}) > 1:
        raise DecodeError(f"the sound of {name} changes its channels or their format")
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


# Decoders, which decode on request.


class AVDecoder(MediaDecoder):
    """A video or sound that is decoded on request, one method per kind of clip.

    Frames are numbered from 0 in presentation order. A video clip contains the frame
    shown at its start, the frame shown at its **end**, and all frames between, exactly,
    in every container. Times are those of the file, in seconds; most files begin at 0.
    An audio clip contains the samples from its start to before its end.

    A clip that reaches beyond the end of the file is shorter. A clip after the end is
    left out with a warning; the timestamps in `AVData` identify the remaining ones.
    Rotation flags of a file are not applied.

    Decoders can be pickled with their bytes, and are equal if their bytes are. Methods
    raise `DecodeError` for damaged files and missing streams, `ConfigError` without
    PyAV (`pip install 'energize[av]'`) and for invalid ranges.

        decoder = AVDecoder(open("talk.mp4", "rb"))
        data = decoder.get_clips([(0, 2), (4, 6)], video_out_frame_size=(224, 224))
        data.video_clips[1].shape  # (frames, 3, 224, 224), uint8

    Args:
        stream: An open binary file, or its bytes.
        suppress_warnings: Whether to leave clips after the end out without a warning.
        name: Name of the file in errors.

    Example:
        >>> AVDecoder(b"no video").has_video_stream()
        Traceback (most recent call last):
            ...
        energize.errors.DecodeError: a video or sound of 8 bytes cannot be decoded: ...
    """

    stream: BinaryIO
    suppress_warnings: bool

    def __init__(
        self,
        stream: BinaryIO | bytes,
        suppress_warnings: bool = False,
        *,
        name: str = "",
    ) -> None:
        if isinstance(stream, bytes | bytearray | memoryview):
            stream = io.BytesIO(stream)
        if not hasattr(stream, "seek") or not isinstance(stream.read(0), bytes):
            raise ConfigError(
                "AVDecoder: stream must be bytes or a file opened with open(path, "
                f"'rb'), got {stream!r:.80}"
            )
        self.stream = stream
        self.suppress_warnings = suppress_warnings
        self._name = name
        self._index: _FrameIndex | None = None

    def get_clips(
        self,
        video_clip_ranges: Sequence[ClipRange] | None = None,
        audio_clip_ranges: Sequence[ClipRange] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of the video, the sound or both, for ranges (start, end).

        Args:
            video_clip_ranges: Ranges of the video; None for no video. An end of
                `float("inf")` is the end of the file.
            audio_clip_ranges: Ranges of the sound; None for no sound.
            video_unit: Unit of the video ranges.
            audio_unit: Unit of the audio ranges.
            video_out_frame_size: (width, height) to resize to; None for the original
                size.

        Returns:
            The clips with their timestamps.

        Raises:
            DecodeError: If the file is damaged or lacks a requested stream.
            ConfigError: If a range is invalid, or PyAV is not installed.
        """
        data = AVData(
            video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[]
        )
        if video_clip_ranges is not None:
            data.video_clips, data.video_timestamps = self.get_video_clips(
                video_clip_ranges, video_unit, video_out_frame_size
            )
        if audio_clip_ranges is not None:
            data.audio_clips, data.audio_timestamps = self.get_audio_clips(
                audio_clip_ranges, audio_unit
            )
        return data

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[ClipRange],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
        *,
        upright: bool = False,
    ) -> Clips:
        """Return clips, uint8 (frames, 3, height, width), and their start and end
        seconds.

        Args:
            video_clip_ranges: Ranges (start, end).
            video_unit: Their unit.
            video_out_frame_size: (width, height) to resize to.
            upright: Whether frames are turned as the file demands: phones store
                pictures sideways, with a rotation.
        """
        ranges = _checked_ranges(
            "video", video_clip_ranges, video_unit, ("frames", "seconds")
        )
        size = video_out_frame_size
        if size is not None and (
            len(size) != 2 or not all(n == int(n) > 0 for n in size)
        ):
            raise ConfigError(
                f"video_out_frame_size={size!r} must be (width, height) in pixels"
            )
        for decoding in (False, True):
            index = self._indexed(decoding=decoding)
            spans = self._drop_missing(
                ranges,
                [index.frames_of(clip_range, video_unit) for clip_range in ranges],
            )
            try:
                clips = _read_frames(
                    self.open_stream(),
                    self.description,
                    index,
                    spans,
                    size,
                    upright=upright,
                )
            except _UntrustedIndexError as reason:
                if decoding:
                    raise DecodeError(
                        f"{reason}. Check that the file is complete"
                    ) from reason
            else:
                break
        return clips, [index.seconds(first, last) for first, last in spans]

    def get_audio_clips(
        self,
        audio_clip_ranges: Sequence[ClipRange],
        audio_unit: Literal["samples", "seconds"] = "seconds",
    ) -> Clips:
        """Return clips, (channels, samples), and their start and end seconds."""
        ranges = _checked_ranges(
            "audio", audio_clip_ranges, audio_unit, ("samples", "seconds")
        )
        rate = self.get_audio_samples_per_second()
        scale = 1 if audio_unit == "samples" else rate
        spans = []
        for start, end in ranges:
            first = math.floor(start * scale + 0.5)
            length = end if end == math.inf else math.floor((end - start) * scale + 0.5)
            spans.append((max(0, first), max(0, first + length)))
        sounds = self._drop_missing(
            ranges, _read_sounds(self.open_stream(), self.description, spans)
        )
        times = [
            (start / rate, (start + samples.shape[1]) / rate)
            for start, samples in sounds
        ]
        return [torch.from_numpy(samples) for _, samples in sounds], times

    def get_video(self) -> AVData:
        """Return all frames of the video, without sound."""
        return self.get_clips(video_clip_ranges=_WHOLE)

    def get_audio(self) -> AVData:
        """Return all of the sound."""
        return self.get_clips(audio_clip_ranges=_WHOLE)

    def get_video_with_audio(self) -> AVData:
        """Return all frames of the video and all of its sound."""
        return self.get_clips(video_clip_ranges=_WHOLE, audio_clip_ranges=_WHOLE)

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return all frames, with `video_decode_audio` also the sound; or the sound
        alone.
        """
        if not self.has_video_stream():
            return self.get_audio()
        sounding = video_decode_audio and self.has_audio_stream()
        return self.get_video_with_audio() if sounding else self.get_video()

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Return metadata of the file; fields not present or not requested are None.

        Only `get_audio_num_samples` decodes the sound; `audio_duration` is then
        computed from the decoded samples.

        Args:
            get_video: Whether to fill the video fields.
            get_video_duration: Whether to fill `video_duration`.
            get_video_frame_count: Whether to fill `video_num_frames`.
            get_video_frame_size: Whether to fill `video_width` and `video_height`.
            get_audio: Whether to fill the audio fields.
            get_audio_duration: Whether to fill `audio_duration`.
            get_audio_num_samples: Whether to decode the sound and count its samples.

        Returns:
            The metadata.

        Raises:
            DecodeError: If the file is damaged.
        """
        metadata = AVMetadata()
        with _opened(self.open_stream(), self.description) as container:
            video = _video_stream(container) if get_video else None
            audio = _audio_stream(container) if get_audio else None
            if video is not None:
                _fill_video(metadata, container, video, size=get_video_frame_size)
            if audio is not None:
                _fill_audio(metadata, container, audio, duration=get_audio_duration)
        if video is not None and (get_video_duration or get_video_frame_count):
            index = self._indexed()
            duration = float((index.times[-1] - index.times[0]) * index.tick)
            metadata.video_duration = duration if get_video_duration else None
            metadata.video_num_frames = len(index) if get_video_frame_count else None
            metadata.video_fps = metadata.video_fps or len(index) / duration
        if audio is not None and get_audio_num_samples:
            count = self._count_audio_samples()
            metadata.audio_num_samples = count
            metadata.audio_duration = count / (metadata.audio_sample_rate or 1)
        return metadata

    def _count_audio_samples(self) -> int:
        with _opened(self.open_stream(), self.description) as container:
            pieces = _sound_from(container, 0, self.description)
            return sum(samples.shape[1] for _, samples in pieces)

    def get_video_fps(self) -> float:
        """Return the average frame rate of the video, in frames per second."""
        metadata = self.get_metadata(True, False, False, False, False)
        return _required(
            metadata.video_fps, self.description, "video stream with a frame rate"
        )

    def get_audio_samples_per_second(self) -> int:
        """Return the sample rate of the sound, in Hz."""
        metadata = self.get_metadata(get_video=False, get_audio_duration=False)
        return _required(
            metadata.audio_sample_rate or None,
            self.description,
            "audio stream with a rate",
        )

    def get_video_duration(
        self, get_frame_count: bool = False
    ) -> tuple[float | None, int | None]:
        """Return the duration in seconds and, if requested, the frame count."""
        metadata = self.get_metadata(True, True, get_frame_count, False, False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Return the duration of the sound in seconds; None without sound."""
        return self.get_metadata(get_video=False).audio_duration

    def get_frame_times(self) -> list[float]:
        """Return the start of each frame in seconds, and the end of the last one.

        Raises:
            DecodeError: If the file is damaged or has no video stream.
        """
        index = self._indexed()
        return [time * float(index.tick) for time in index.times]

    def has_audio_stream(self) -> bool:
        """Return whether the file has sound."""
        with _opened(self.open_stream(), self.description) as container:
            return _audio_stream(container) is not None

    def has_video_stream(self) -> bool:
        """Return whether the file has a video stream; cover images do not count."""
        with _opened(self.open_stream(), self.description) as container:
            return _video_stream(container) is not None

    def get_video_stream_index(self) -> int:
        """Return the index of the decoded video stream among all streams.

        Raises:
            DecodeError: If the file is damaged or has no video stream.
        """
        with _opened(self.open_stream(), self.description) as container:
            stream = _video_stream(container)
            return _required(stream, self.description, "video stream").index

    def _indexed(self, *, decoding: bool = False) -> _FrameIndex:
        if self._index is None or decoding:
            self._index = _frame_index(
                self.open_stream(), self.description, decoding=decoding
            )
        return self._index

    def open_stream(self) -> BinaryIO:
        """Return the file, rewound; for bytes in memory a separate reader."""
        if isinstance(self.stream, io.BytesIO):
            return io.BytesIO(self.stream.getvalue())
        self.stream.seek(0)
        return self.stream

    @property
    def description(self) -> str:
        """The name for messages, with the size if the file is in memory."""
        name = self._name or "a video or sound"
        if not isinstance(self.stream, io.BytesIO):
            return name
        return f"{name} of {len(self.stream.getvalue())} bytes"

    def _drop_missing(
        self, ranges: list[ClipRange], clips: Sequence[T | None]
    ) -> list[T]:
        """Return the clips that exist, and warn about ranges without one."""
        behind = [
            clip_range
            for clip_range, span in zip(ranges, clips, strict=True)
            if span is None
        ]
        if behind and not self.suppress_warnings:
            listed = ", ".join(f"{start:g} to {end:g}" for start, end in behind[:5])
            warnings.warn(
                f"{self.description} ends before {len(behind)} of the requested clips "
                f"({listed}{', ...' if len(behind) > 5 else ''}). These clips are "
                "skipped",
                RuntimeWarning,
                stacklevel=3,
            )
        return [span for span in clips if span is not None]

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.open_stream().read()
        return partial(AVDecoder, name=self._name), (data, self.suppress_warnings)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AVDecoder):
            return NotImplemented
        return self is other or self.open_stream().read() == other.open_stream().read()

    def __hash__(self) -> int:
        return hash(self.open_stream().read())

    def __repr__(self) -> str:
        return f"AVDecoder({self.description})"


class AVProbeEntry(NamedTuple):
    """Time of a frame, in ticks of its stream, and whether decoding can start there."""

    timestamp: int
    is_keyframe: bool


class AVProbeIndex:
    """The frames of a video stream in packet order.

    Rewinds the container afterwards.

    Args:
        container: An open container of PyAV.
        stream_idx: Index of the stream among video streams.
    """

    def __init__(self, container: InputContainer, stream_idx: int = 0) -> None:
        packets = container.demux(video=stream_idx)
        self._entries = [
            AVProbeEntry(packet.pts, packet.is_keyframe)
            for packet in packets
            if packet.pts is not None
        ]
        container.seek(0)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, idx: int) -> AVProbeEntry:
        return self._entries[idx]

    def search_timestamp(
        self, timestamp: int, *, backward: bool = True, any_frame: bool = False
    ) -> int:
        """Return the number of a keyframe near `timestamp`.

        Args:
            timestamp: Time in ticks of the stream.
            backward: Whether to return the last keyframe up to `timestamp`, or the
                first if none precedes it. Otherwise returns the first keyframe from
                `timestamp` on, -1 if there is none.
            any_frame: Whether to consider all frames, not only keyframes.

        Returns:
            The number of the frame.
        """
        shown = sorted(
            (entry.timestamp, number)
            for number, entry in enumerate(self._entries)
            if any_frame or entry.is_keyframe
        )
        count = bisect_right(shown, (timestamp - (not backward), len(self)))
        at = max(count - 1, 0) if backward else count
        return shown[at][1] if at < len(shown) else -1


def _fill_video(
    metadata: AVMetadata, container: InputContainer, stream: VideoStream, *, size: bool
) -> None:
    """Set the frame rate, and with `size` the frame size, from the header."""
    rate = _frame_rate(stream)
    metadata.video_fps = float(rate) if rate else None
    if size:
        width, height = _frame_size(container, stream)
        metadata.video_width = width
        metadata.video_height = height


def _fill_audio(
    metadata: AVMetadata,
    container: InputContainer,
    stream: AudioStream,
    *,
    duration: bool,
) -> None:
    """Set rate and channels, and with `duration` the duration, from the header."""
    metadata.audio_sample_rate = stream.sample_rate
    metadata.audio_channels = stream.channels
    if duration:
        container.seek(0)
        metadata.audio_duration = _audio_duration(container, stream)


def _audio_duration(container: InputContainer, stream: AudioStream) -> float | None:
    """Return the seconds of a sound by the header, or by the end of its last packet."""
    tick = float(stream.time_base or 0)
    if stream.duration is not None:
        return stream.duration * tick
    ends = [
        p.pts + (p.duration or 0) for p in container.demux(stream) if p.pts is not None
    ]
    return (max(ends) - (stream.start_time or 0)) * tick if ends else None


def _frame_size(container: InputContainer, stream: VideoStream) -> tuple[int, int]:
    """Return width and height from the header, or from the first frame."""
    sized: Any = stream.codec_context
    if not (sized.width and sized.height):
        sized = next(iter(container.decode(stream)), sized)
    return sized.width, sized.height


def _checked_ranges(
    name: str, ranges: Sequence[ClipRange], unit: str, units: tuple[str, ...]
) -> list[ClipRange]:
    checked_choice(unit, f"{name}_unit", units)
    for number, clip_range in enumerate(ranges):
        if (
            len(clip_range) != 2
            or not clip_range[0] <= clip_range[1]
            or math.isinf(clip_range[0])
        ):
            raise ConfigError(
                f"{name}_clip_ranges[{number}]={clip_range!r} must be (start, end) "
                "with start <= end. Pass float('inf') as the end to read to the end "
                "of the file"
            )
    return [(start, end) for start, end in ranges]


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return `num_clips` clips of equal length, spread evenly over a file.

    Video and sound clips have the same times, within the part that has both. Clips of 0
    seconds are single frames. If the clips are longer than the file, each covers the
    whole file.

        clips = get_clips_uniform(
            decoder, clip_duration_seconds=3, num_clips=5, request_audio=True
        )

    Args:
        av_decoder: The file.
        clip_duration_seconds: Length of a clip.
        num_clips: Number of clips, at least 1.
        request_video: Whether to return video clips.
        request_audio: Whether to return audio clips.
        video_out_frame_size: (width, height) to resize to; None for the original size.

    Returns:
        The clips with their timestamps.

    Raises:
        ConfigError: If neither video nor audio is requested.
        DecodeError: If the file lacks a requested stream.
    """
    if not request_video and not request_audio:
        raise ConfigError(
            "get_clips_uniform: no stream is requested. Set request_video, "
            "request_audio or both"
        )
    if num_clips < 1 or not 0 <= clip_duration_seconds < math.inf:
        raise ConfigError(
            "get_clips_uniform: num_clips must be >= 1 and clip_duration_seconds >= "
            f"0, got {num_clips!r} and {clip_duration_seconds!r}"
        )
    metadata = av_decoder.get_metadata(
        get_video=request_video, get_video_frame_size=False, get_audio=request_audio
    )
    name = av_decoder.description
    lengths = []
    if request_video:
        lengths.append(_required(metadata.video_duration, name, "video stream"))
    if request_audio:
        lengths.append(_required(metadata.audio_duration, name, "audio stream"))
    margin = 0.0
    if clip_duration_seconds == 0:
        margin = 0.5 / (metadata.video_fps or math.inf)
    last = max(margin, min(lengths) - clip_duration_seconds - margin)
    starts = _start_seconds(av_decoder) + np.linspace(margin, last, num_clips)
    ranges = [(float(start), float(start + clip_duration_seconds)) for start in starts]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=ranges if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


def _start_seconds(av_decoder: AVDecoder) -> float:
    """Return the first second at which all streams of a file have started."""
    with _opened(av_decoder.open_stream(), av_decoder.description) as container:
        streams = (_video_stream(container), _audio_stream(container))
        return max(
            float((stream.start_time or 0) * (stream.time_base or 0))
            for stream in streams
            if stream
        )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
    """Return `num_frames` frames at equal distances, including the first and the last.

    Args:
        av_decoder: The file.
        num_frames: Number of frames. If the video has fewer, some repeat.
        video_out_frame_size: (width, height) to resize to; None for the original size.
        return_timestamps: Whether to return the start second of each frame, too.

    Returns:
        uint8 (num_frames, 3, height, width), and the timestamps if requested.
    """
    clips = get_clips_uniform(
        av_decoder,
        0,
        num_frames,
        request_video=True,
        video_out_frame_size=video_out_frame_size,
    )
    frames = torch.cat(clips.video_clips or [])
    if not return_timestamps:
        return frames
    return frames, [start for start, _ in clips.video_timestamps or []]


@dataclass(frozen=True)
class AVWebdatasetDecoder:
    """Decodes parts that are videos or sounds, in the form that `av_decode` selects.

    Args:
        video_decode_audio: Whether `"torch"` decodes the sound of videos.
        av_decode: `"AVDecoder"` for an `AVDecoder`, which decodes on request; `"torch"`
            for an `AVData` of all frames, or of all sound without video; `"pyav"` for
            an open container of PyAV, which cannot be pickled.

    Raises:
        ConfigError: If `av_decode` is another name.
    """

    video_decode_audio: bool = False
    av_decode: AVDecoderType = "AVDecoder"

    def __post_init__(self) -> None:
        checked_choice(self.av_decode, "av_decode", get_args(AVDecoderType))

    def __call__(self, key: str, data: bytes) -> Any:
        """Decode the part `key`; return None if it is neither a video nor a sound.

        Raises:
            DecodeError: If the part is damaged, except with `"AVDecoder"`, which
                decodes later.
        """
        return self.decoded(key, data) if kind_by_name(f"a.{key}") == "av" else None

    def decoded(self, key: str, data: bytes) -> Any:
        """Decode a part that is a video or a sound, whatever its name."""
        decoder = AVDecoder(data, name=f"part {key!r}")
        if self.av_decode == "torch":
            return decoder.get_frames(video_decode_audio=self.video_decode_audio)
        if self.av_decode == "pyav":
            decoder.has_audio_stream()  # raises for damaged files
            return _open_container(decoder.stream)
        return decoder
