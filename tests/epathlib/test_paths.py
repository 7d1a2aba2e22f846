"""Paths as values: what they mean, whatever lies there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.extras import paths as epath
from energize.extras.paths import DEFAULT_PROFILE_NAME, EPath

STORE = "msc://store/bucket"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/b", "/a/b"),
        ("/a/./b/../c//d/", "/a/c/d"),
        ("file:///a/b", "/a/b"),
        (f"msc://{DEFAULT_PROFILE_NAME}/etc/hosts", "/etc/hosts"),
        ("msc://default/etc/hosts", "/etc/hosts"),
        ("msc://s3/tmp/path/.././x.txt", "msc://s3/tmp/x.txt"),
        ("msc://s3", "msc://s3/"),
        ("s3://bucket/a/b.tar", "s3://bucket/a/b.tar"),
        ("https://example.org:81/a/../b?c=d", "https://example.org:81/b?c=d"),
        ("memory://a/b", "memory://a/b"),
        ("dss://charts@v0/images", "dss://charts@v0/images"),
    ],
)
def test_what_is_shown_is_the_path_again(text, shown):
    path = EPath(text)
    assert str(path) == path.url == shown
    assert EPath(shown) == EPath(path) == path
    assert hash(EPath(shown)) == hash(path)
    assert repr(path) == f"EPath({shown!r})"
    assert pickle.loads(pickle.dumps(path)) == path


def test_relative_paths_are_those_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = EPath(f"{tmp_path}/a/b")
    assert EPath("a/b") == EPath("./x/../a/b") == EPath(Path("a/b")) == expected
    assert EPath("file://a/b") == expected
    assert EPath(Path("https:/x")) == EPath(tmp_path / "https:" / "x")


def test_components():
    path = EPath(f"{STORE}/dir.d/a.b.tar")
    assert (path.name, path.stem, path.suffix) == ("a.b.tar", "a.b", ".tar")
    assert path.parts == ("/", "bucket", "dir.d", "a.b.tar")
    assert str(path.parent) == f"{STORE}/dir.d"
    assert str(path.with_suffix(".idx")) == f"{STORE}/dir.d/a.b.idx"
    assert str(path.with_name("c")) == f"{STORE}/dir.d/c"
    assert EPath("/").parent == EPath("/")
    assert (path.display_name, EPath("dss://a@1/x").display_name) == ("a.b.tar", "a@1")


def test_joining():
    base = EPath(f"{STORE}/a")
    assert str(base / "b/../c.tar") == f"{STORE}/a/c.tar"
    assert str(base / ".." / "x") == f"{STORE}/x"
    assert base / "/etc" == EPath("/etc")
    assert base / "s3://b/c" == EPath("s3://b/c")
    assert base / EPath("/x") == EPath("/x")
    assert base / Path("x") == base / "x"
    for outside in ("../../..", "../../../x"):
        with pytest.raises(ConfigError, match="above the root"):
            base / outside
    with pytest.raises(ConfigError, match="above the root"):
        EPath("msc://store/../x")


def test_relative_to():
    assert EPath("/a/b/c").relative_to(EPath("/a")) == "b/c"
    for other in ("/b", "/a/b/c/d", "msc://x/a", "s3://a"):
        with pytest.raises(ConfigError, match=r"/a/b/c does not lie below"):
            EPath("/a/b/c").relative_to(EPath(other))


parts = st.lists(st.sampled_from(["a", "b", "c.tar", "..", "."]), max_size=6).map("/".join)


@given(parts)
def test_paths_are_joined_as_the_system_does(inside):
    base = "/r/s/t/u/v/w"
    assert str(EPath(base) / inside) == os.path.normpath(f"{base}/{inside}")


@given(st.lists(parts.filter(lambda text: ".." not in text), min_size=2, max_size=5))
def test_paths_are_ordered_by_components(paths):
    ordered = sorted(EPath(f"{STORE}/{each}") for each in paths)
    assert [path.parts for path in ordered] == sorted(path.parts for path in ordered)
    assert sorted([EPath("s3://b/a"), EPath("/x")])[0] == EPath("/x")


def test_rclone_is_deprecated():
    with pytest.warns(FutureWarning, match="deprecated"):
        path = EPath("rclone://s3/tmp/x")
    assert str(path) == "msc://s3/tmp/x"


class TestVersionedDatasets:
    @pytest.mark.parametrize("text", ["dss://charts", "dss://@v0/x", "dss://charts@", "dss://"])
    def test_a_version_is_needed(self, text):
        with pytest.raises(ConfigError, match="must include a dataset version separated by '@'"):
            EPath(text)

    @pytest.mark.parametrize("text", ["dss://charts@../x", "dss://..@v0", "dss://a@./x"])
    def test_none_leads_out_of_the_cache(self, text):
        with pytest.raises(ConfigError, match=r"dataset version|above the root"):
            EPath(text)

    def test_files_lie_below_the_cache(self, tmp_path, monkeypatch):
        images = tmp_path / "charts" / "v0" / "images"
        images.mkdir(parents=True)
        for name in ("000.jpg", "001.jpg", "002.txt"):
            (images / name).write_bytes(b"data")
        monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
        root = EPath("dss://charts@v0")
        assert [str(path) for path in root.glob("**/*.jpg")] == [
            "dss://charts@v0/images/000.jpg",
            "dss://charts@v0/images/001.jpg",
        ]
        found = pickle.loads(pickle.dumps(list(root.walk())[2]))
        assert (found.relative_to(root), found.read_bytes()) == ("images/002.txt", b"data")
        assert found.local_path() == images / "002.txt"
        assert root.is_local()

    def test_the_cache_can_be_set_in_the_module(self, tmp_path, monkeypatch):
        monkeypatch.delenv("NVDATASET_CACHE_DIR", raising=False)
        with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR"):
            EPath("dss://a@1/x").is_file()
        monkeypatch.setattr(epath, "NVDATASET_CACHE_DIR", EPath(tmp_path))
        EPath("dss://a@1/x").write_text("hello")
        assert (tmp_path / "a" / "1" / "x").read_text() == "hello"
