"""Which samples a clip of sound has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import DecodeError
from energize.extras.av import AVDecoder, get_clips_uniform
from tests.support.videos import sound, tone, video, wav

LOSSLESS = {
    "wav": (wav(), 16000, 32000),
    "flac": (sound("flac", "flac"), 16000, 48000),
    "mov with pcm": (video("mov h264 pcm"), 48000, 115200),
    "mkv with flac": (video("mkv ffv1 flac"), 48000, 115200),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_all_samples(name):
    data, rate, count = LOSSLESS[name]
    found = AVDecoder(data).get_audio()
    assert found.video_clips == []
    assert np.array_equal(found.audio_clips[0].numpy(), tone(count))
    assert found.audio_timestamps == [pytest.approx((0.0, count / rate))]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(LOSSLESS)),
    ranges=st.lists(st.tuples(st.integers(0, 31999), st.integers(1, 9000)), max_size=5),
)
def test_samples_by_number_end_not_included(name, ranges):
    data, rate, count = LOSSLESS[name]
    asked = [(start, start + more) for start, more in ranges]
    clips, times = AVDecoder(data).get_audio_clips(asked, "samples")
    assert len(clips) == len(asked)
    for clip, time, (start, end) in zip(clips, times, asked, strict=True):
        assert np.array_equal(clip.numpy(), tone(count)[:, start:end])
        assert time == pytest.approx((start / rate, min(end, count) / rate))


def test_seconds_have_the_samples_of_their_length_wherever_they_begin():
    decoder = AVDecoder(wav(samples=160000))
    length = 0.9954783485892385
    clips = get_clips_uniform(decoder, length, 10, request_audio=True).audio_clips
    assert {clip.shape for clip in clips} == {(2, math.floor(length * 16000 + 0.5))}
    (half,), _ = decoder.get_audio_clips([(0.5, 1.0)])
    assert np.array_equal(half.numpy(), tone(160000)[:, 8000:16000])


def test_far_ahead_in_a_long_sound_is_the_same_as_read_from_the_start():
    samples = 60 * 16000
    for data in (wav(samples=samples), sound("flac", "flac", samples=samples)):
        clips, _ = AVDecoder(data).get_audio_clips([(50.25, 50.5), (1, 1.5), (30, 30.125)])
        for clip, (start, end) in zip(
            clips, [(804000, 808000), (16000, 24000), (480000, 482000)], strict=True
        ):
            assert np.array_equal(clip.numpy(), tone(samples)[:, start:end])


@pytest.mark.parametrize("codec", [("mp3", "mp3"), ("adts", "aac"), ("ogg", "libopus")])
def test_lossy_sounds_are_cut_where_they_would_be_when_decoded_whole(codec):
    decoder = AVDecoder(sound(*codec, rate=48000, samples=96000))
    (whole,), ((begin, _),) = decoder.get_audio_clips([(0, math.inf)])
    assert whole.dtype == torch.float32
    first = round(begin * 48000)
    clips, _ = decoder.get_audio_clips([(40000, 50000), (45000, 45010)], "samples")
    assert torch.equal(clips[0], whole[:, 40000 - first : 50000 - first])
    assert torch.equal(clips[1], whole[:, 45000 - first : 45010 - first])


def test_clips_beyond_the_end():
    decoder = AVDecoder(wav())
    with pytest.warns(RuntimeWarning, match="left out"):
        clips, times = decoder.get_audio_clips([(3, 4), (1.9, 3)])
    assert [clip.shape for clip in clips] == [(2, 1600)]
    assert times == [(1.9, 2.0)]
    (clip,), _ = decoder.get_audio_clips([(5, 5)], "samples")
    assert clip.shape == (2, 0)


def test_sound_of_a_silent_video():
    with pytest.raises(DecodeError, match="no audio stream"):
        AVDecoder(video("webm vp9")).get_audio()
