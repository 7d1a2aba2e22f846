"""Decoders as values, what they say of files, and what damage gets."""

from __future__ import annotations

import io
import pickle
import random
import sys

import av
import pytest

from energize.errors import ConfigError, DecodeError
from energize.extras.av import AVData, AVDecoder, AVMetadata, AVWebdatasetDecoder
from tests.support.images import encoded, picture
from tests.support.videos import CONTAINERS, numbers_of, sound, video, wav


def test_a_decoder_is_made_of_bytes_or_an_open_file(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(video())
    with path.open("rb") as file:
        of_file = AVDecoder(file)
        assert numbers_of(of_file.get_video_clips([(3, 4)], "frames")[0][0]) == [3, 4]
        assert of_file == AVDecoder(video()) == AVDecoder(io.BytesIO(video()))
        copied = pickle.loads(pickle.dumps(of_file))
    assert numbers_of(copied.get_video_clips([(3, 4)], "frames")[0][0]) == [3, 4]
    assert copied == AVDecoder(video())
    assert hash(copied) == hash(AVDecoder(video()))
    assert copied != AVDecoder(wav())
    assert copied != "a video"
    with path.open(encoding="latin-1") as text, pytest.raises(ConfigError, match="reading bytes"):
        AVDecoder(text)
    with pytest.raises(ConfigError, match="open"):
        AVDecoder(str(path))


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
    assert decoder.get_video_duration(get_frame_count=True) == (found.video_duration, 60)
    sounding = CONTAINERS[name][2] is not None
    assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (True, sounding)


@pytest.mark.parametrize("data", [wav(samples=48000), sound("flac", "flac")])
def test_metadata_of_sounds(data):
    decoder = AVDecoder(data)
    expected = AVMetadata(audio_duration=3.0, audio_channels=2, audio_sample_rate=16000)
    assert decoder.get_metadata() == expected
    expected.audio_num_samples = 48000
    assert decoder.get_metadata(get_audio_num_samples=True) == expected
    assert decoder.get_audio_duration() == 3.0
    assert decoder.get_audio_samples_per_second() == 16000
    assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (False, True)
    with pytest.raises(DecodeError, match="no video stream"):
        decoder.get_video()


def test_only_what_is_asked_is_told():
    found = AVDecoder(video()).get_metadata(
        get_video_duration=False, get_video_frame_count=False, get_audio_duration=False
    )
    assert (found.video_duration, found.video_num_frames, found.audio_duration) == (None,) * 3
    assert (found.video_width, found.audio_channels) == (64, 2)


def test_frames_of_a_video_its_sound_and_of_a_sound():
    silent = AVDecoder(video()).get_frames()
    assert (len(silent.video_clips), silent.audio_clips) == (1, [])
    both = AVDecoder(video()).get_frames(video_decode_audio=True)
    assert (len(both.video_clips), len(both.audio_clips)) == (1, 1)
    assert AVDecoder(video("webm vp9")).get_frames(video_decode_audio=True).audio_clips == []
    assert AVDecoder(wav()).get_frames().audio_clips[0].shape == (2, 32000)


def test_the_cover_of_a_sound_is_no_video():
    made = io.BytesIO()
    with av.open(made, "w", format="flac") as output:
        heard = output.add_stream("flac", rate=16000, layout="mono")
        cover = output.add_stream("png", rate=1)
        cover.width = cover.height = 8
        cover.pix_fmt = "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic.value
        image = av.VideoFrame(8, 8, "rgb24")
        output.mux(cover.encode(image))
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


class TestDamage:
    @pytest.mark.parametrize(
        "data",
        [b"", b"hello" * 100, video()[: len(video()) // 2], video("avi mpeg4")[:3000]],
        ids=["nothing", "text", "half an mp4", "the beginning of an avi"],
    )
    def test_what_is_no_complete_file(self, data):
        decoder = AVDecoder(data, name="part 'mp4'")
        for method in (decoder.get_frames, decoder.get_metadata, decoder.has_video_stream):
            with pytest.raises(DecodeError, match=rf"part 'mp4' of {len(data)} bytes"):
                method()

    @pytest.mark.parametrize("name", ["mp4 h264", "mkv h264", "ts h264", "avi mpeg4", "webm vp9"])
    def test_flipped_bytes_give_frames_or_an_error_that_says_so(self, name):
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

    @pytest.mark.parametrize("part", [0.5, 0.7, 0.9])
    def test_a_file_that_is_cut_after_its_index(self, part):
        data = video("mp4 h264", options=(("movflags", "faststart"),))
        assert AVDecoder(data).get_video_duration(get_frame_count=True)[1] == 60
        with pytest.raises(
            DecodeError, match=r"cut off: of 60 frames that its index lists, \d+ are"
        ):
            AVDecoder(data[: int(len(data) * part)]).get_video_clips([(3, 4)], "frames")

    def test_playlists_open_no_other_file(self, tmp_path):
        (tmp_path / "other.ts").write_bytes(video("ts h264"))
        playlist = f"#EXTM3U\n#EXTINF:2,\n{tmp_path}/other.ts\n#EXT-X-ENDLIST\n"
        script = f"ffconcat version 1.0\nfile {tmp_path}/other.ts\n"
        for text in (playlist, script):
            with pytest.raises(DecodeError):
                AVDecoder(text.encode()).get_frames()


class TestParts:
    def test_what_each_name_gives(self):
        lazy = AVWebdatasetDecoder()("clip.MP4", video())
        assert lazy == AVDecoder(video())
        data = AVWebdatasetDecoder(True, "torch")("mp4", video())
        assert isinstance(data, AVData)
        assert len(data.audio_clips) == 1
        container = AVWebdatasetDecoder(av_decode="pyav")("mp4", video())
        assert sum(1 for _ in container.decode(video=0)) == 60
        container.close()
        assert AVWebdatasetDecoder()("png", encoded(picture(), "PNG")) is None

    @pytest.mark.parametrize("name", ["torch", "pyav"])
    def test_damage_names_the_part(self, name):
        with pytest.raises(DecodeError, match=r"part 'a\.mp4' of 5 bytes"):
            AVWebdatasetDecoder(av_decode=name)("a.mp4", b"hello")

    def test_an_unknown_name(self):
        with pytest.raises(ConfigError, match="did you mean 'AVDecoder'"):
            AVWebdatasetDecoder(av_decode="avdecoder")


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    decoder = AVDecoder(wav())
    with pytest.raises(ConfigError, match=r"energize\[av\]"):
        decoder.get_audio()
