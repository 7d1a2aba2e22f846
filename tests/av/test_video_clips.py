"""Which frames a clip has: exact in every container."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, DecodeError
from energize.extras.av import AVDecoder, get_clips_uniform, get_single_frames_uniform
from tests.support.videos import CONTAINERS, HEIGHT, WIDTH, numbers_of, video

FRAMES = 60
FPS = 25
BEGINS = {"ts h264": 0.08, "flv h264": 0.08}
"""The second at which the video begins, where that is not 0."""


def numbers(clips: list[torch.Tensor]) -> list[list[int]]:
    return [numbers_of(clip) for clip in clips]


@pytest.mark.parametrize("name", CONTAINERS)
def test_all_frames_come_in_the_order_they_are_shown(name):
    data = AVDecoder(video(name)).get_video()
    (clip,) = data.video_clips
    assert clip.shape == (FRAMES, 3, HEIGHT, WIDTH)
    assert clip.dtype == torch.uint8
    assert numbers_of(clip) == list(range(FRAMES))
    begin = BEGINS.get(name, 0.0)
    assert data.video_timestamps == [pytest.approx((begin, begin + FRAMES / FPS), abs=1e-3)]
    assert data.audio_clips == data.audio_timestamps == []


@pytest.mark.parametrize("name", CONTAINERS)
def test_frames_by_number_end_included_in_any_order(name):
    ranges = [(48, 70), (0, 0), (7, 9), (8, 8), (5, 21), (59, math.inf), (23.7, 24.2), (7, 9)]
    clips, times = AVDecoder(video(name)).get_video_clips(ranges, "frames")
    assert numbers(clips) == [
        list(range(48, 60)),
        [0],
        [7, 8, 9],
        [8],
        list(range(5, 22)),
        [59],
        [23, 24],
        [7, 8, 9],
    ]
    begin = BEGINS.get(name, 0.0)
    assert times[2] == pytest.approx((begin + 7 / FPS, begin + 10 / FPS), abs=1e-3)


@pytest.mark.parametrize("name", CONTAINERS)
def test_every_frame_is_found_at_the_time_it_is_shown(name):
    begin = BEGINS.get(name, 0.0)
    at = [begin + number / FPS for number in range(FRAMES)]
    between = [time + 0.5 / FPS for time in at]
    decoder = AVDecoder(video(name))
    for times in (at, between):
        clips, _ = decoder.get_video_clips([(time, time) for time in times])
        assert numbers(clips) == [[number] for number in range(FRAMES)]
    clips, _ = decoder.get_video_clips([(begin + 0.28, begin + 0.36)])
    assert numbers(clips) == [[7, 8, 9]]


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["mp4 h264", "mkv h264", "avi h264 mp3", "ts h264"]),
    ranges=st.lists(
        st.tuples(st.integers(0, FRAMES - 1), st.integers(0, 12)), min_size=1, max_size=6
    ),
)
def test_what_a_clip_has_does_not_depend_on_the_other_clips(name, ranges):
    asked = [(first, first + more) for first, more in ranges]
    decoder = AVDecoder(video(name))
    together, _ = decoder.get_video_clips(asked, "frames")
    for clip, each in zip(together, asked, strict=True):
        (alone,), _ = AVDecoder(video(name)).get_video_clips([each], "frames")
        assert torch.equal(clip, alone)
        assert numbers_of(clip) == list(range(each[0], min(each[1], FRAMES - 1) + 1))


def test_pixels_are_pyavs():
    decoder = AVDecoder(video())
    with av.open(decoder.stream) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    expected = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
    assert torch.equal(decoder.get_frames().video_clips[0], expected)


def test_frames_of_other_lengths_are_found_by_their_time():
    times = (0, 40, 100, 500, 520, 1300, 1340)
    decoder = AVDecoder(video("mkv h264", frames=7, times=times))
    clips, spans = decoder.get_video_clips([(0.1, 0.1), (0.499, 0.51), (1.299, 1.31), (0, 0.05)])
    assert numbers(clips) == [[2], [2, 3], [4, 5], [0, 1]]
    assert spans[0] == (0.1, 0.5)


def test_one_third_seconds_in_milliseconds():
    decoder = AVDecoder(video("mkv h264", rate=Fraction(30)))
    clips, _ = decoder.get_video_clips([(number / 30, number / 30) for number in range(60)])
    assert numbers(clips) == [[number] for number in range(60)]


@pytest.mark.parametrize("keys_every", [1, 2, 250])
def test_whatever_the_distance_of_keyframes(keys_every):
    for name in ("mp4 h264", "mkv h264"):
        decoder = AVDecoder(video(name, keys_every=keys_every))
        clips, _ = decoder.get_video_clips([(40, 41), (3, 3)], "frames")
        assert numbers(clips) == [[40, 41], [3]]


def test_frames_of_another_size():
    clips, _ = AVDecoder(video()).get_video_clips([(5, 6)], "frames", (224, 112))
    assert clips[0].shape == (2, 3, 112, 224)
    assert numbers(clips) == [[5, 6]]
    assert clips[0].is_contiguous()


def test_clips_behind_the_end_are_left_out_with_a_warning():
    decoder = AVDecoder(video())
    with pytest.warns(RuntimeWarning, match=r"1 of the asked clips \(3 to 4\)"):
        clips, times = decoder.get_video_clips([(0, 0), (3, 4), (2.3, 9)])
    assert numbers(clips) == [[0], [57, 58, 59]]
    assert len(times) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = AVDecoder(video(), suppress_warnings=True)
        assert quiet.get_video_clips([(60, 70)], "frames") == ([], [])


@pytest.mark.parametrize(
    "ranges", [[(2, 1)], [(math.nan, 1)], [(1, math.nan)], [(math.inf, math.inf)], [(1, 2, 3)]]
)
def test_ranges_that_are_none(ranges):
    with pytest.raises(ConfigError, match=r"clip_ranges\[0\]"):
        AVDecoder(video()).get_video_clips(ranges)


def test_units_and_sizes_that_are_none():
    with pytest.raises(ConfigError, match="'frames', 'seconds'"):
        AVDecoder(video()).get_video_clips([(0, 1)], "samples")
    with pytest.raises(ConfigError, match="width, height"):
        AVDecoder(video()).get_video_clips([(0, 1)], video_out_frame_size=(0, 5))


class TestUniform:
    @pytest.mark.parametrize("name", CONTAINERS)
    def test_single_frames_from_the_first_to_the_last(self, name):
        frames, times = get_single_frames_uniform(AVDecoder(video(name)), 5, return_timestamps=True)
        assert numbers_of(frames) == [0, 15, 30, 44, 59]
        assert times == sorted(times)
        assert get_single_frames_uniform(AVDecoder(video(name)), 1).shape[0] == 1

    def test_more_frames_than_there_are(self):
        frames = get_single_frames_uniform(AVDecoder(video(frames=3)), 6)
        assert numbers_of(frames) == [0, 0, 1, 1, 2, 2]

    def test_clips_with_their_sound(self):
        data = get_clips_uniform(AVDecoder(video()), 0.5, 3, request_video=True, request_audio=True)
        assert [clip.shape[0] for clip in data.video_clips] == [13, 14, 13]
        assert [numbers_of(clip)[0] for clip in data.video_clips] == [0, 23, 47]
        assert [clip.shape for clip in data.audio_clips] == [(2, 24000)] * 3

    def test_clips_longer_than_the_file_are_all_of_it(self):
        data = get_clips_uniform(AVDecoder(video()), 10, 2, request_video=True)
        assert [clip.shape[0] for clip in data.video_clips] == [FRAMES, FRAMES]

    def test_what_cannot_be_asked(self):
        decoder = AVDecoder(video("webm vp9"))
        with pytest.raises(ConfigError, match="request_video"):
            get_clips_uniform(decoder, 1, 1)
        with pytest.raises(ConfigError, match="num_clips"):
            get_clips_uniform(decoder, 1, 0, request_video=True)
        with pytest.raises(DecodeError, match="no audio stream"):
            get_clips_uniform(decoder, 1, 1, request_video=True, request_audio=True)
