"""Small videos and sounds of which every frame and every sample is known."""

from __future__ import annotations

import io
import tempfile
import wave
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import torch

WIDTH, HEIGHT = 64, 48
BITS = 8

CONTAINERS = {
    "mp4 h264": ("mp4", "libx264", "aac"),
    "mp4 hevc": ("mp4", "libx265", None),
    "mov h264 pcm": ("mov", "libx264", "pcm_s16le"),
    "mkv h264": ("matroska", "libx264", "aac"),
    "mkv ffv1 flac": ("matroska", "ffv1", "flac"),
    "webm vp8 opus": ("webm", "libvpx", "libopus"),
    "webm vp9": ("webm", "libvpx-vp9", None),
    "avi h264 mp3": ("avi", "libx264", "mp3"),
    "avi mpeg4": ("avi", "mpeg4", None),
    "avi mjpeg": ("avi", "mjpeg", None),
    "ts h264": ("mpegts", "libx264", "aac"),
    "flv h264": ("flv", "libx264", None),
}
"""Containers, and codecs with frames between keyframes, most of them shown in another
order."""

_OPTIONS = {
    "libx264": {"bf": "2"},
    "libx265": {"bf": "2", "x265-params": "log-level=none"},
    "mpeg4": {"bf": "2"},
}


def picture_of(number: int) -> np.ndarray:
    """An image with a white bar for each bit of a number."""
    bits = [number >> bit & 1 for bit in range(BITS)]
    row = np.repeat(np.array(bits, dtype=np.uint8) * 255, WIDTH // BITS)
    return np.broadcast_to(row[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def numbers_of(clip: torch.Tensor) -> list[int]:
    """The numbers that the frames of a clip (frames, 3, height, width) show."""
    width = clip.shape[3]
    middles = [round((bit + 0.5) * width / BITS) for bit in range(BITS)]
    lit = clip[:, :, clip.shape[2] // 2, middles].float().mean(dim=1) > 127
    return [sum(1 << bit for bit in range(BITS) if row[bit]) for row in lit.tolist()]


def tone(samples: int, channels: int = 2) -> np.ndarray:
    """Samples (channels, n), int16, that rise by one, and by three in the second
    channel."""
    steps = np.arange(samples)
    return np.stack([steps * (1 + 2 * c) % 30000 for c in range(channels)]).astype(
        np.int16
    )


@cache
def video(
    name: str = "mp4 h264",
    *,
    frames: int = 60,
    rate: Fraction = Fraction(25),
    keys_every: int = 10,
    times: tuple[int, ...] | None = None,
    sound_rate: int = 48000,
    options: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """A video whose frame n shows n; at `times` (in 1/1000 s) if given, else `rate` a
    second."""
    container, codec, sound = CONTAINERS[name]
    with (
        tempfile.NamedTemporaryFile() as made,  # some options need a file to open a second time
        av.open(made.name, "w", format=container, options=dict(options)) as output,
    ):
        seen = output.add_stream(codec, rate=rate)
        seen.width, seen.height = WIDTH, HEIGHT
        seen.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        seen.options = {"g": str(keys_every), **_OPTIONS.get(codec, {})}
        tick = 1 / rate if times is None else Fraction(1, 1000)
        seen.codec_context.time_base = tick
        heard = (
            output.add_stream(sound, rate=sound_rate, layout="stereo")
            if sound
            else None
        )
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture_of(number), format="rgb24")
            frame.pts, frame.time_base = (
                number if times is None else times[number],
                tick,
            )
            output.mux(seen.encode(frame))
        output.mux(seen.encode())
        if heard is not None:
            _add_sound(output, heard, int(frames / rate * sound_rate), sound_rate)
        output.close()
        return Path(made.name).read_bytes()


def _add_sound(output, stream, samples: int, rate: int) -> None:
    context = stream.codec_context
    frame = av.AudioFrame.from_ndarray(
        tone(samples).T.reshape(1, -1).copy(), format="s16", layout="stereo"
    )
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    size = context.frame_size or 1024
    resampler = av.AudioResampler(context.format.name, "stereo", rate, frame_size=size)
    for each in [*resampler.resample(frame), *resampler.resample(None)]:
        output.mux(stream.encode(each))
    output.mux(stream.encode())


@cache
def sound(
    container: str, codec: str, *, samples: int = 48000, rate: int = 16000
) -> bytes:
    """A sound of `tone`, by PyAV."""
    made = io.BytesIO()
    with av.open(made, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="stereo")
        _add_sound(output, stream, samples, rate)
    return made.getvalue()


@cache
def wav(*, samples: int = 32000, rate: int = 16000, channels: int = 2) -> bytes:
    """A sound of `tone`, by the standard library."""
    made = io.BytesIO()
    with wave.open(made, "wb") as output:
        output.setnchannels(channels)
        output.setsampwidth(2)
        output.setframerate(rate)
        output.writeframes(tone(samples, channels).T.tobytes())
    return made.getvalue()
