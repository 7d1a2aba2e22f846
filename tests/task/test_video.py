"""Frames of videos by time or number, and what processors and models make of them."""

from __future__ import annotations

import io
import json
import struct
import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch

from energize import ConversationSample, get_train_dataset
from energize.data.av import AVDecoder
from energize.encoders import ModelPacking, VideoFrames, VideoTaskEncoder
from energize.errors import ConfigError, DecodeError
from tests.support.videos import CONTAINERS, numbers_of, picture_of, video, wav

STEPS = (0, 400, 500, 600, 1600, 1900)
"""The starts of frames of a video, in 1/1000 s."""


def decoder(**options):
    return AVDecoder(video(**options))


def seconds_of(sampled):
    indices = np.array(sampled.metadata["frames_indices"])
    return (indices / sampled.metadata["fps"]).tolist()


def test_frames_by_time_and_by_number():
    """A video of 60 frames, 25 a second."""
    by_time = VideoFrames(fps=5, multiple_of=1).read(decoder())
    assert numbers_of(by_time.frames) == list(range(0, 60, 5))
    assert seconds_of(by_time) == pytest.approx([n / 25 for n in range(0, 60, 5)])
    by_number = VideoFrames(count=6).read(decoder())
    assert numbers_of(by_number.frames) == list(range(0, 60, 10))
    assert by_number.metadata["total_num_frames"] == 60
    assert by_number.metadata["duration"] == pytest.approx(2.4)


@pytest.mark.parametrize("name", ["mp4 h264", "ts h264", "avi mpeg4", "webm vp9"])
def test_containers_have_the_same_frames(name):
    sampled = VideoFrames(fps=2.5, multiple_of=1, backend="pyav").read(
        AVDecoder(video(name))
    )
    assert name in CONTAINERS
    assert numbers_of(sampled.frames) == [0, 10, 20, 30, 40, 50]


def test_frames_of_a_video_of_varying_rate_are_those_shown_at_the_times():
    sampled = VideoFrames(fps=4, multiple_of=1).read(
        decoder(name="mkv h264", frames=6, times=STEPS, rate=Fraction(10))
    )
    duration = sampled.metadata["duration"]
    number = int(duration * 4)
    shown = [
        max(n for n, start in enumerate(STEPS) if start <= 1000 * i * duration / number)
        for i in range(min(number, 6))
    ]
    assert numbers_of(sampled.frames)[: len(shown)] != list(range(len(shown)))
    starts = [STEPS[n] / 1000 for n in numbers_of(sampled.frames)]
    assert seconds_of(sampled) == pytest.approx(starts)


@pytest.mark.parametrize(
    ("frames", "numbers"),
    [
        (VideoFrames(fps=25, max_frames=4), [0, 15, 30, 45]),
        (VideoFrames(fps=1), [0, 30]),
        (VideoFrames(fps=0.1), [0]),
        (VideoFrames(count=100), list(range(60))),
    ],
)
def test_limits_and_multiples(frames, numbers):
    assert numbers_of(frames.read(decoder()).frames) == numbers


# Backends.


@pytest.fixture
def torchcodec():
    try:
        VideoFrames(fps=1, backend="torchcodec")
    except ConfigError:
        pytest.skip("needs torchcodec, with FFmpeg")


def turned(data, turns):
    """An mp4 whose header turns frames by quarters, clockwise."""
    cosine, sine = [(1, 0), (0, 1), (-1, 0), (0, -1)][turns]
    matrix = [cosine, sine, 0, -sine, cosine, 0, 0, 0]
    at = data.index(b"tkhd") + 44
    fixed = [value << 16 for value in matrix] + [1 << 30]
    return data[:at] + struct.pack(">9i", *fixed) + data[at + 36 :]


def of_two_sizes():
    """A stream whose frames become larger."""
    made = b""
    for first, width in [(0, 64), (10, 128)]:
        file = io.BytesIO()
        with av.open(file, "w", format="mpegts") as output:
            stream = output.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"
            stream.options = {"bf": "0"}
            for number in range(10):
                pixels = np.zeros((48, width, 3), np.uint8)
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = first + number, Fraction(1, 10)
                output.mux(stream.encode(frame))
            output.mux(stream.encode())
        made += file.getvalue()
    return made


def of_two_streams():
    """A file whose second stream, with other frames, is the default one."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        streams = [output.add_stream("libx264", rate=10) for _ in range(2)]
        streams[0].disposition = 0
        streams[1].disposition = av.stream.Disposition.default.value
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            pixels = picture_of(number // 2), picture_of(100 + number // 2)
            frame = av.VideoFrame.from_ndarray(pixels[number % 2], format="rgb24")
            output.mux(streams[number % 2].encode(frame))
        for stream in streams:
            output.mux(stream.encode())
    return file.getvalue()


VARYING = {"frames": 6, "times": STEPS, "rate": Fraction(10)}
LATE = {**VARYING, "times": tuple(5000 + step for step in STEPS)}
FILES = {
    **{name: partial(video, name) for name in CONTAINERS},
    **{f"varying {n}": partial(video, n, **VARYING) for n in list(CONTAINERS)[:7]},
    **{f"late {name[:3]}": partial(video, name, **LATE) for name in CONTAINERS},
    "two streams": of_two_streams,
    **{f"turned {n}": lambda n=n: turned(video("mp4 hevc"), n) for n in range(4)},
}


@pytest.mark.parametrize("name", FILES)
def test_torchcodec_has_the_frames_of_pyav(torchcodec, name):
    data = FILES[name]()
    for choice in ({"fps": 5}, {"count": 7}, {"fps": 1000}):
        options = {"multiple_of": 1, **choice}
        one, other = (
            VideoFrames(backend=backend, **options).read(AVDecoder(data))
            for backend in ("torchcodec", "pyav")
        )
        assert one.metadata == other.metadata
        assert torch.equal(one.frames, other.frames)


def test_torchcodec_itself_decodes_where_its_frames_are_exact(torchcodec, monkeypatch):
    monkeypatch.setattr("energize.task.video._by_pyav", lambda video, numbers: None)
    for name in ("mp4 h264", "mp4 hevc", "mkv h264", "webm vp8 opus", "webm vp9"):
        frames = VideoFrames(fps=5, multiple_of=1, backend="torchcodec")
        sampled = frames.read(AVDecoder(video(name)))
        assert numbers_of(sampled.frames) == list(range(0, 60, 5))
    sampled = replace(frames, fps=2).read(AVDecoder(of_two_streams()))
    assert numbers_of(sampled.frames) == [0, 5, 10, 15]
    for name in ("ts h264", "avi h264 mp3", "avi mpeg4"):
        assert frames.read(AVDecoder(video(name))).frames is None


@pytest.mark.parametrize("backend", ["pyav", "torchcodec"])
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: video()[:-900], "cannot be decoded"),
        (
            lambda: video(options=(("movflags", "faststart"),))[:20000],
            "of the 60 frames in its index are present",
        ),
        (of_two_sizes, "changes the size of its frames"),
        (wav, "no video stream"),
        (lambda: b"ffconcat version 1.0\nfile a.mp4", "cannot be decoded"),
    ],
)
def test_damaged_videos_are_errors(request, backend, made, words):
    if backend == "torchcodec":
        request.getfixturevalue("torchcodec")
    with pytest.raises(DecodeError, match=words):
        VideoFrames(fps=10, backend=backend).read(AVDecoder(made()))


@pytest.mark.parametrize("turns", range(4))
def test_frames_are_upright(turns):
    """Phones store frames sideways, with the rotation in the header."""
    stored = AVDecoder(turned(video("mp4 hevc"), turns))
    upright = VideoFrames(count=2, backend="pyav").read(stored).frames
    clips, _ = stored.get_video_clips([(0, 0), (30, 30)], "frames")
    assert numbers_of(torch.cat(clips)) == [0, 30]
    assert torch.equal(upright, torch.rot90(torch.cat(clips), -turns, (2, 3)))
    (clip,), _ = stored.get_video_clips([(30, 30)], "frames", (32, 80), upright=True)
    assert clip.shape[2:] == (80, 32)


class FakeDecoder:
    """A `VideoDecoder` of torchcodec, as far as it is called, by PyAV."""

    late = 0
    metadata = SimpleNamespace(width=64, height=48)

    def __init__(self, source, stream_index, device):
        self.video = AVDecoder(source)
        *self.starts, _ = self.video.get_frame_times()

    def get_frames_played_at(self, seconds):
        numbers = [sum(start <= at for start in self.starts) - 1 for at in seconds]
        numbers = [max(number, self.late) for number in numbers]
        clips, _ = self.video.get_video_clips([(n, n) for n in numbers], "frames")
        starts = torch.tensor([self.starts[n] for n in numbers], dtype=torch.float64)
        return SimpleNamespace(data=torch.cat(clips) + 1, pts_seconds=starts)


def test_torchcodec_is_called_with_times_where_it_is_installed(monkeypatch):
    """Frames at other times, and errors, are those of PyAV."""
    module = SimpleNamespace(VideoDecoder=FakeDecoder)
    monkeypatch.setitem(sys.modules, "torchcodec", SimpleNamespace(decoders=module))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    frames = VideoFrames(fps=5, multiple_of=1)
    by_pyav = replace(frames, backend="pyav")
    for name in ("mp4 h264", "ts h264"):
        sampled = frames.read(AVDecoder(video(name)))
        expected = by_pyav.read(AVDecoder(video(name)))
        assert torch.equal(sampled.frames, expected.frames + 1)
        assert sampled.metadata == expected.metadata
        with monkeypatch.context() as patch:
            patch.setattr(FakeDecoder, "late", 8)
            sampled = frames.read(AVDecoder(video(name)))
            assert torch.equal(sampled.frames, expected.frames)
    monkeypatch.setattr("energize.core.limits.DECODED_BYTES", 64 * 48 * 40)
    with pytest.raises(DecodeError, match="too large"):
        frames.read(decoder())
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    for header in (None, SimpleNamespace(width=None, height=None)):
        monkeypatch.setattr(FakeDecoder, "metadata", header)
        monkeypatch.setattr(module, "VideoDecoder", FakeDecoder if header else _fails)
        assert numbers_of(frames.read(decoder()).frames) == list(range(0, 60, 5))


def _fails(source, stream_index, device):
    raise RuntimeError("no stream")


@pytest.mark.parametrize(
    "options",
    [{}, {"fps": 1, "count": 2}, {"fps": 0}, {"count": -1}, {"fps": float("inf")}],
)
def test_rates_that_do_not_choose_frames_are_errors(options):
    with pytest.raises(ConfigError, match="either fps or count"):
        VideoFrames(**options)


def test_a_damaged_video_is_a_damaged_sample():
    with pytest.raises(DecodeError, match="cannot be decoded"):
        VideoFrames(fps=1).read(AVDecoder(b"no video"))


# What processors and models make of them.


def talk(number=0):
    turns = [
        {"role": "user", "content": "<video>what?"},
        {"role": "assistant", "content": ["red", "blue red", "green"][number % 3]},
    ]
    videos = [decoder(frames=30 + 10 * number)]
    if number % 3 == 2:
        turns[0]["content"] = "<video>and<video>what?"
        videos.append(decoder(frames=20))
    return ConversationSample(__key__=str(number), turns=turns, videos=videos)


def built(name):
    pytest.importorskip("transformers")
    from tests.support import models
    from tests.support.video_processor import qwen

    processor = qwen(f"{name}Processor")
    return processor, models._qwen(processor, name)


MODELS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")


@pytest.mark.jobs
def test_processors_are_given_the_times_of_frames():
    frames = VideoFrames(fps=4)
    for name in MODELS[1:]:
        processor, _ = built(name)
        encoder = VideoTaskEncoder(processor, frames=frames)
        batch = encoder.batch([encoder.encode_sample(talk())])
        text = processor.tokenizer.decode(batch.input_ids[0])
        assert "red<|im_end|>" in processor.tokenizer.decode(
            batch.input_ids[batch.labels != -100]
        )
        if name == "Qwen3VL":  # 30 frames, 25 a second, of which 0, 7, 15 and 22
            assert "<0.1 seconds>" in text
            assert "<0.7 seconds>" in text
        else:
            assert batch.second_per_grid_ts.tolist() == pytest.approx([2 / (4 / 1.2)])


@pytest.mark.jobs
@pytest.mark.parametrize("name", MODELS)
def test_packed_videos_have_the_positions_of_the_model_and_the_losses_of_samples(name):
    from tests.task.test_model_packing import sample_losses

    processor, model = built(name)
    padded = VideoTaskEncoder(processor, frames=VideoFrames(fps=4))
    packed = VideoTaskEncoder(
        processor, frames=VideoFrames(fps=4), packing=ModelPacking(model)
    )
    samples = [padded.encode_sample(talk(number)) for number in range(3)]
    rows, pack = padded.batch(samples), packed.batch(samples)
    arguments = {
        name: rows[name]
        for name in rows
        if name.endswith(("_thw", "_ts", "input_ids", "type_ids", "mask"))
    }
    expected, _ = model.model.get_rope_index(**arguments)
    expected = expected[:, rows.attention_mask.bool()]
    assert torch.equal(pack.position_ids[1:, 0], expected)
    losses = [sample_losses(model, batch) for batch in (rows, pack)]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-5)


@pytest.mark.jobs
def test_a_batch_is_what_the_processor_of_transformers_makes():
    pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    from tests.support.video_processor import Patches, qwen

    options = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 256}}
    real = transformers.Qwen2VLVideoProcessor(**options)
    processor = qwen(video_processor=real)
    encoder = VideoTaskEncoder(processor, frames=VideoFrames(fps=5))
    batch = encoder.batch([encoder.encode_sample(talk())])
    frames = torch.from_numpy(
        np.stack(
            [
                decoder(frames=30)
                .get_video_clips([(n, n) for n in range(30)], "frames")[0][n][0]
                .numpy()
                for n in range(30)
            ]
        )
    )
    chosen = [0, 5, 10, 15, 20, 25]
    text = processor.apply_chat_template(talk().messages)
    metadata = {"total_num_frames": 30, "fps": 25.0, "frames_indices": chosen}
    expected = processor(
        text=[text],
        videos=[frames[chosen]],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert set(expected) == set(batch) - {"labels"}
    for key, value in expected.items():
        torch.testing.assert_close(batch[key], value, msg=key)
    assert isinstance(qwen().video_processor, Patches)


@pytest.mark.jobs
def test_a_processor_without_videos_is_an_error():
    pytest.importorskip("transformers")
    from tests.support.processors import llava

    with pytest.raises(ConfigError, match="no video processor"):
        VideoTaskEncoder(llava(), frames=VideoFrames(fps=1))


@pytest.mark.jobs
def test_a_damaged_video_is_left_out_and_named_by_file_and_line(tmp_path, caplog):
    turns = [{"from": "human", "value": "<video>?"}, {"from": "gpt", "value": "red"}]
    files = {"0.mp4": video(), "1.mp4": video()[:900], "2.mp4": video()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    rows = [{"video": name, "conversations": turns} for name in files]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    encoder = VideoTaskEncoder(built("Qwen2VL")[0], frames=VideoFrames(fps=2))
    dataset = get_train_dataset(
        tmp_path / "chat.jsonl", batch_size=None, task_encoder=encoder
    )
    keys = {sample.__key__ for sample in dataset.at(range(6))}
    assert keys == {"000000", "000002"}
    assert "line 2" in caplog.text
    assert "cannot be decoded" in caplog.text
