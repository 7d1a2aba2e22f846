"""Reading sounds by the numbers of their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from energize.av.opening import audio_stream, opened
from energize.errors import DecodeError

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

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
    exact = container.format.name.split(",")[0] in _EXACT and _tick(stream) <= Fraction(1, rate)
    frames = _frames(container, stream, what)
    done = 0
    for start, end in _merged(spans, round(_WORTH_SEEKING * rate)):
        if exact and start - done > _WORTH_SEEKING * rate:
            ticks = int((Fraction(start, rate) - Fraction(_PREROLL)) / _tick(stream))
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
            stamped = round(frame.pts * _tick(stream, frame) * rate)
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


def _tick(stream: AudioStream, frame: AudioFrame | None = None) -> Fraction:
    tick = (frame.time_base if frame is not None else None) or stream.time_base
    return Fraction(tick) if tick else Fraction(1, stream.sample_rate)
