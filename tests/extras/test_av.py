"""Clips of videos and sounds: exactly the frames and samples that decoding everything
gives."""

from __future__ import annotations

import io
import math
import pickle
import random
import sys
import warnings
from dataclasses import dataclass
from itertools import islice

import av
import numpy as np
import pytest
import torch

from energize import (
    Batch,
    DefaultTaskEncoder,
    Sample,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)
from energize.core import limits
from energize.errors import ConfigError, DecodeError
from energize.extras.av import (
    AVData,
    AVDecoder,
    AVMetadata,
    AVProbeIndex,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)
from energize.samples import VidQASample
from tests.support.images import encoded, picture
from tests.support.videos import (
    CONTAINERS,
    HEIGHT,
    WIDTH,
    numbers_of,
    sound,
    tone,
    video,
    wav,
)

FRAMES, FPS = 60, 25
BEGINS = {"ts h264": 0.08, "flv h264": 0.08}
"""The second at which the video begins, where that is not 0."""


def numbers(clips: list[torch.Tensor]) -> list[list[int]]:
    return [numbers_of(clip) for clip in clips]


def approx(*values: float):
    return pytest.approx(values, abs=1e-3)


# Frames.


def test_an_index_of_the_packets_of_a_stream():
    with av.open(io.BytesIO(video("mkv h264"))) as container:
        index = AVProbeIndex(container)
        shown = sorted(frame.pts for frame in container.decode(video=0))
    assert sorted(each.timestamp for each in index) == shown
    keys = [each.timestamp for each in index if each.is_keyframe]
    assert index[0].is_keyframe
    for timestamp in (*shown, -1, shown[-1] + 1):
        found = index.search_timestamp(timestamp)
        assert index[found].timestamp == max(
            [k for k in keys if k <= timestamp], default=keys[0]
        )
        found = index.search_timestamp(timestamp, backward=False)
        later = [k for k in keys if k >= timestamp]
        assert (index[found].timestamp if later else -1) == (
            later[0] if later else found
        )
        exact = index.search_timestamp(timestamp, any_frame=True)
        assert timestamp not in shown or index[exact].timestamp == timestamp


@pytest.mark.parametrize("name", CONTAINERS)
def test_frames_by_number_and_by_time(name):
    decoder, begin = AVDecoder(video(name)), BEGINS.get(name, 0.0)
    data = decoder.get_video()
    assert data.video_clips[0].shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert data.video_clips[0].dtype == torch.uint8
    assert numbers(data.video_clips) == [list(range(FRAMES))]
    assert data.video_timestamps == [approx(begin, begin + FRAMES / FPS)]
    assert data.audio_clips == data.audio_timestamps == []

    ranges = [
        (48, 70),
        (0, 0),
        (7, 9),
        (8, 8),
        (5, 21),
        (59, math.inf),
        (23.7, 24.2),
        (7, 9),
    ]
    clips, times = decoder.get_video_clips(ranges, "frames")
    wanted = [(48, 59), (0, 0), (7, 9), (8, 8), (5, 21), (59, 59), (23, 24), (7, 9)]
    assert numbers(clips) == [list(range(first, last + 1)) for first, last in wanted]
    assert times[2] == approx(begin + 7 / FPS, begin + 10 / FPS)

    at = [begin + number / FPS for number in range(FRAMES)]
    for shown in (at, [time + 0.5 / FPS for time in at]):
        clips, _ = decoder.get_video_clips([(time, time) for time in shown])
        assert numbers(clips) == [[number] for number in range(FRAMES)]
    clips, _ = decoder.get_video_clips([(begin + 0.28, begin + 0.36)])
    assert numbers(clips) == [[7, 8, 9]]

    frames, times = get_single_frames_uniform(decoder, 5, return_timestamps=True)
    assert numbers_of(frames) == [0, 15, 30, 44, 59]
    assert times == sorted(times)


def test_clips_are_counted_before_they_are_made(monkeypatch):
    size = 8 * WIDTH * HEIGHT + 3 * WIDTH * HEIGHT * FRAMES
    monkeypatch.setattr(limits, "DECODED_BYTES", size)
    AVDecoder(video()).get_video()
    with pytest.raises(
        DecodeError, match=f"{size + 3 * WIDTH * HEIGHT}, more than {size}"
    ):
        AVDecoder(video()).get_video_clips([(0, 59), (7, 7)], "frames")
    monkeypatch.setattr(limits, "DECODED_BYTES", 20_000)
    with pytest.raises(DecodeError, match="DECODED_BYTES"):
        AVDecoder(wav()).get_audio()


def test_clips_behind_the_end_are_left_out_with_a_warning():
    with pytest.warns(
        RuntimeWarning, match=r"2 of the requested clips \(3 to 4, 2\.4 to 9\)"
    ):
        clips, times = AVDecoder(video()).get_video_clips(
            [(0, 0), (3, 4), (2.3, 9), (2.4, 9)]
        )
    assert (numbers(clips), len(times)) == ([[0], [57, 58, 59]], 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = AVDecoder(video(), suppress_warnings=True)
        assert quiet.get_video_clips([(60, 70)], "frames") == ([], [])
    with pytest.warns(RuntimeWarning, match="skipped"):
        clips, times = AVDecoder(wav()).get_audio_clips([(3, 4), (1.9, 3)])
    assert ([clip.shape for clip in clips], times) == ([(2, 1600)], [(1.9, 2.0)])


def test_uniform_clips():
    few = AVDecoder(video(frames=3))
    assert numbers_of(get_single_frames_uniform(few, 6)) == [0, 0, 1, 1, 2, 2]
    assert get_single_frames_uniform(few, 1).shape[0] == 1
    decoder = AVDecoder(video())
    data = get_clips_uniform(decoder, 0.5, 3, request_video=True, request_audio=True)
    found = [(len(each), each[0]) for each in numbers(data.video_clips)]
    assert found == [(13, 0), (14, 23), (13, 47)]
    assert [clip.shape for clip in data.audio_clips] == [(2, 24000)] * 3
    data = get_clips_uniform(decoder, 10, 2, request_video=True)
    assert numbers(data.video_clips) == [list(range(FRAMES))] * 2


# Sounds.


def test_far_ahead_in_a_long_sound():
    samples = 60 * 16000
    for data in (wav(samples=samples), sound("flac", "flac", samples=samples)):
        for asked in (
            [(50.25, 50.5)],
            [(50.25, 50.5), (30, 30.125)],
            [(1, 1.5), (50.25, 50.5)],
        ):
            clips, _ = AVDecoder(data).get_audio_clips(asked)
            for clip, (start, end) in zip(clips, asked, strict=True):
                expected = tone(samples)[:, int(start * 16000) : int(end * 16000)]
                assert np.array_equal(clip.numpy(), expected), asked


# What a file is.


@pytest.mark.parametrize("name", CONTAINERS)
def test_metadata_of_videos(name):
    decoder = AVDecoder(video(name))
    found = decoder.get_metadata(get_audio=False)
    assert found == AVMetadata(
        video_duration=pytest.approx(2.4, abs=1e-3),
        video_num_frames=60,
        video_fps=pytest.approx(25.0),
        video_width=64,
        video_height=48,
    )
    assert decoder.get_video_fps() == found.video_fps
    assert decoder.get_video_duration() == (found.video_duration, None)
    assert decoder.get_video_duration(get_frame_count=True) == (
        found.video_duration,
        60,
    )
    sounding = CONTAINERS[name][2] is not None
    assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (True, sounding)
    clips = decoder.get_frames(video_decode_audio=True).audio_clips
    assert len(clips) == sounding
    if sounding:
        assert decoder.get_audio_duration() == pytest.approx(2.4, abs=0.1)
    assert decoder.get_frames().audio_clips == []


def test_the_cover_of_a_sound_is_no_video():
    made = io.BytesIO()
    with av.open(made, "w", format="flac") as output:
        heard = output.add_stream("flac", rate=16000, layout="mono")
        cover = output.add_stream("png", rate=1)
        cover.width = cover.height = 8
        cover.pix_fmt = "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic.value
        output.mux(cover.encode(av.VideoFrame(8, 8, "rgb24")))
        frame = av.AudioFrame("s16", "mono", 4096)
        frame.planes[0].update(bytes(frame.planes[0].buffer_size))
        frame.sample_rate = 16000
        output.mux(heard.encode(frame))
        output.mux(heard.encode())
    decoder = AVDecoder(made.getvalue())
    with av.open(decoder.stream) as container:
        assert len(container.streams.video) == 1
    assert not decoder.has_video_stream()
    assert decoder.get_frames().audio_clips[0].shape == (1, 4096)


def test_a_decoder_is_a_value(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(video())
    with path.open("rb") as file:
        of_file = AVDecoder(file)
        assert numbers(of_file.get_video_clips([(3, 4)], "frames")[0]) == [[3, 4]]
        assert of_file == AVDecoder(video()) == AVDecoder(io.BytesIO(video()))
        copied = pickle.loads(pickle.dumps(of_file))
    assert numbers(copied.get_video_clips([(3, 4)], "frames")[0]) == [[3, 4]]
    assert copied == AVDecoder(video())
    assert copied != AVDecoder(wav())


# What is wrong.


def test_what_cannot_be_asked(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    decoder, silent = AVDecoder(video()), AVDecoder(video("webm vp9"))
    with (tmp_path / "a.txt").open() as text:
        for ask, words in (
            (lambda: AVDecoder(text), "must be bytes or a file"),
            (lambda: AVDecoder("a.mp4"), "open"),
            (lambda: decoder.get_video_clips([(2, 1)]), r"clip_ranges\[0\]"),
            (
                lambda: decoder.get_video_clips([(0, 1), (math.nan, 1)]),
                r"clip_ranges\[1\]",
            ),
            (
                lambda: decoder.get_audio_clips([(math.inf, math.inf)]),
                r"clip_ranges\[0\]",
            ),
            (lambda: decoder.get_video_clips([(0, 1)], "samples"), "frames, seconds"),
            (
                lambda: decoder.get_video_clips([(0, 1)], video_out_frame_size=(0, 5)),
                "width, height",
            ),
            (lambda: get_clips_uniform(silent, 1, 1), "request_video"),
            (lambda: get_clips_uniform(silent, 1, 0, request_video=True), "num_clips"),
            (
                lambda: AVWebdatasetDecoder(av_decode="avdecoder"),
                "did you mean 'AVDecoder'",
            ),
        ):
            with pytest.raises(ConfigError, match=words):
                ask()
    for ask, lacking in (
        (
            lambda: get_clips_uniform(
                silent, 1, 1, request_video=True, request_audio=True
            ),
            "audio",
        ),
        (silent.get_audio, "audio"),
        (AVDecoder(wav()).get_video, "video"),
    ):
        with pytest.raises(DecodeError, match=f"no {lacking} stream"):
            ask()


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["mp4 h264", "mkv h264", "ts h264"])
def test_flipped_bytes_give_frames_or_an_error_that_says_so(name):
    refused = 0
    for seed in range(12):
        chance = random.Random(seed)
        data = bytearray(video(name))
        for _ in range(3 ** (seed % 6)):
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        try:
            assert AVDecoder(bytes(data)).get_frames(True).video_clips
        except DecodeError as error:
            refused += 1
            assert str(len(data)) in str(error)  # noqa: PT017 - either is right
    assert refused


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r"energize\[av\]"):
        AVDecoder(wav()).get_audio()


# From shards to batches.


def test_what_parts_become():
    assert AVWebdatasetDecoder()("clip.MP4", video()) == AVDecoder(video())
    data = AVWebdatasetDecoder(True, "torch")("mp4", video())
    assert isinstance(data, AVData)
    assert len(data.audio_clips) == 1
    container = AVWebdatasetDecoder(av_decode="pyav")("mp4", video())
    assert sum(1 for _ in container.decode(video=0)) == 60
    container.close()
    assert AVWebdatasetDecoder()("png", encoded(picture(), "PNG")) is None
    for name in ("torch", "pyav"):
        with pytest.raises(DecodeError, match=r"part 'a\.mp4' of 5 bytes"):
            AVWebdatasetDecoder(av_decode=name)("a.mp4", b"hello")


@dataclass
class Frames(Sample):
    frames: torch.Tensor


@dataclass
class FramesBatch(Batch):
    frames: torch.Tensor


class Encoder(DefaultTaskEncoder):
    def __init__(self):
        super().__init__(raw_batch_type=FramesBatch)

    def encode_sample(self, sample: VidQASample) -> Frames:
        frames = get_single_frames_uniform(
            sample.video, 4, video_out_frame_size=(32, 24)
        )
        return Frames.derive_from(sample, frames=frames)


def test_a_damaged_video_is_replaced_and_named(tmp_path, caplog):
    data = [video(frames=20), b"no video", video(frames=22)]
    folder = tmp_path / "shards"
    write_shards(
        (
            {"__key__": f"{i:03d}", "mp4": each, "txt": ""}
            for i, each in enumerate(data)
        ),
        folder,
    )
    field_map = {"video": "mp4", "context": "txt"}
    prepare(
        folder,
        split_ratios={"train": 1},
        sample_type="VidQASample",
        field_map=field_map,
    )
    with get_loader(
        get_train_dataset(folder, batch_size=3, task_encoder=Encoder())
    ) as loader:
        batches = list(islice(loader, 3))
    assert {key for batch in batches for key in batch.__key__} == {"000", "002"}
    assert {batch.frames.shape for batch in batches} == {(3, 4, 3, 24, 32)}
    assert "001" in caplog.text
    assert "part 'mp4' of 8 bytes" in caplog.text
