"""Videos on their way from shards to batches, through workers too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from energize import (
    Batch,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    VidQASample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.extras.av import AVDecoder, get_single_frames_uniform
from tests.support.videos import numbers_of, video


@dataclass
class Frames(Sample):
    frames: torch.Tensor
    context: str


@dataclass
class FramesBatch(Batch):
    frames: torch.Tensor
    context: list[str]


class Encoder(DefaultTaskEncoder):
    def __init__(self):
        super().__init__(raw_batch_type=FramesBatch)

    def encode_sample(self, sample: VidQASample) -> Frames:
        frames = get_single_frames_uniform(sample.video, 4, video_out_frame_size=(32, 24))
        return Frames.derive_from(sample, frames=frames, context=sample.context)


def folder_of(path, data):
    samples = [
        {"__key__": f"{i:03d}", "mp4": each, "json": {"question": f"question {i}"}}
        for i, each in enumerate(data)
    ]
    write_shards(samples, path, samples_per_shard=4)
    prepare(
        path,
        split_ratios={"train": 1},
        sample_type="VidQASample",
        field_map={"video": "mp4", "context": "json[question]"},
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data = [video(frames=20 + i) for i in range(12)]
    return folder_of(tmp_path_factory.mktemp("videos") / "shards", data)


def train(folder, workers, encoder=None):
    return get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=3,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder or Encoder(),
    )


def taken(loader, count):
    return [batch for _, batch in zip(range(count), loader, strict=False)]


def test_frames_of_known_videos_come_in_batches_whatever_the_workers(folder):
    runs = []
    for workers in (0, 2):
        with get_loader(train(folder, workers)) as loader:
            runs.append(taken(loader, 4))
    for one, other in zip(*runs, strict=True):
        assert one.__key__ == other.__key__
        assert torch.equal(one.frames, other.frames)
    for batch in runs[0]:
        assert batch.frames.shape == (3, 4, 3, 24, 32)
        for key, frames, context in zip(batch.__key__, batch.frames, batch.context, strict=True):
            last = 19 + int(key)
            shown = numbers_of(frames)
            assert (shown[0], shown[-1]) == (0, last)
            assert context == f"question {int(key)}"


def test_a_resumed_run_goes_on(folder):
    with get_savable_loader(train(folder, 2)) as loader:
        first = taken(loader, 2)
        state = loader.save_state_rank()
        rest = taken(loader, 3)
    with get_savable_loader(train(folder, 0)) as again:
        again.restore_state_rank(state)
        resumed = taken(again, 3)
    assert len(first) == 2
    assert [batch.__key__ for batch in resumed] == [batch.__key__ for batch in rest]
    assert all(torch.equal(a.frames, b.frames) for a, b in zip(resumed, rest, strict=True))


def test_decoders_go_to_the_trainer_as_they_are(folder):
    class Undecoded(DefaultTaskEncoder):
        pass

    with get_loader(train(folder, 2, Undecoded())) as loader:
        (batch,) = taken(loader, 1)
    assert all(isinstance(each, AVDecoder) for each in batch.video)
    for key, each in zip(batch.__key__, batch.video, strict=True):
        assert each.get_video_duration(get_frame_count=True)[1] == 20 + int(key)


def test_a_damaged_video_is_replaced_and_named(tmp_path, caplog):
    data = [video(frames=20), b"no video", video(frames=22)]
    dataset = train(folder_of(tmp_path / "shards", data), 0)
    with get_loader(dataset) as loader:
        batches = taken(loader, 3)
    assert {key for batch in batches for key in batch.__key__} == {"000", "002"}
    assert "001" in caplog.text
    assert "part 'mp4' of 8 bytes" in caplog.text


def test_whole_videos_by_the_decoder_of_the_task_encoder(folder):
    class Whole(DefaultTaskEncoder):
        decoder = SampleDecoder(av_decode="torch")

    dataset = get_val_dataset(
        folder,
        split_part="train",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=2,
        task_encoder=Whole(),
    )
    with get_loader(dataset) as loader:
        batch = next(iter(loader))
    assert sorted(clips[0].shape[0] for clips in batch.video.video_clips) == [20, 21]
