"""Frames of videos by time or number, and what processors and models make of them."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from energize import ConversationSample, get_train_dataset
from energize.data.av import AVDecoder
from energize.encoders import ModelPacking, VideoFrames, VideoTaskEncoder
from energize.errors import ConfigError, DecodeError
from tests.support.videos import CONTAINERS, numbers_of, video

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


def test_torchcodec_has_the_frames_of_pyav():
    try:
        backend = VideoFrames(fps=5, backend="torchcodec")
    except ConfigError:
        pytest.skip("needs torchcodec, with FFmpeg")
    one = backend.read(decoder())
    other = VideoFrames(fps=5, backend="pyav").read(decoder())
    assert numbers_of(one.frames) == numbers_of(other.frames)
    assert seconds_of(one) == pytest.approx(seconds_of(other), abs=1e-4)


class FakeDecoder:
    """A `VideoDecoder` of torchcodec, as far as it is called, by PyAV."""

    def __init__(self, source):
        self.video = AVDecoder(source)
        *self.starts, end = self.video.get_frame_times()
        self.metadata = SimpleNamespace(
            begin_stream_seconds=self.starts[0], end_stream_seconds=end
        )

    def __len__(self):
        return len(self.starts)

    def get_frames_played_at(self, seconds):
        numbers = [sum(start <= at for start in self.starts) - 1 for at in seconds]
        clips, _ = self.video.get_video_clips([(n, n) for n in numbers], "frames")
        starts = torch.tensor([self.starts[n] for n in numbers])
        return SimpleNamespace(data=torch.cat(clips), pts_seconds=starts)


def test_torchcodec_is_called_with_times_where_it_is_installed(monkeypatch):
    module = SimpleNamespace(VideoDecoder=FakeDecoder)
    monkeypatch.setitem(sys.modules, "torchcodec", SimpleNamespace(decoders=module))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    for name in ("mp4 h264", "ts h264"):
        sampled = VideoFrames(fps=5, multiple_of=1).read(AVDecoder(video(name)))
        assert numbers_of(sampled.frames) == list(range(0, 60, 5))
        expected = [n / 25 for n in range(0, 60, 5)]
        assert seconds_of(sampled) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr(module, "VideoDecoder", _fails)
    with pytest.raises(DecodeError, match="by torchcodec: no stream"):
        VideoFrames(fps=5).read(decoder())


def _fails(source):
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
