"""Which frames a video has, and when each of them is shown."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

from energize.av.opening import opened, video_stream
from energize.errors import DecodeError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

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
