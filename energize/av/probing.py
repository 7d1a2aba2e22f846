"""What a video or sound is, without decoding more of it than is asked."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream


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
