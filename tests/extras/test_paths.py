"""Paths: what they mean, and files at them, the same on this machine, in memory and
over S3."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import uuid
import warnings
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem, asyn

from energize.data.files import path_of
from energize.errors import ConfigError
from energize.extras.paths import DEFAULT_PROFILE_NAME, EPath
from tests.support.s3 import SECRET, s3_server


@pytest.fixture(autouse=True, scope="module")
def _no_thread_left():
    """fsspec's thread ends with the tests that started it: later ones fork this
    process."""
    yield
    loop, thread = asyn.loop[0], asyn.iothread[0]
    if loop is not None and thread is not None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        asyn.loop[0] = asyn.iothread[0] = None
    for kind in AbstractFileSystem.__subclasses__():
        kind.clear_instance_cache()


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """Profiles of the Multi-Storage Client over a server of S3 and over a folder."""
    folder = tmp_path_factory.mktemp("paths")
    (folder / "data").mkdir()
    with s3_server("bucket") as url, pytest.MonkeyPatch.context() as patch:
        options = {
            "base_path": "bucket",
            "endpoint_url": url,
            "region_name": "us-east-1",
        }
        secrets = {"access_key": "key", "secret_key": "${S3_SECRET}"}
        store = {
            "storage_provider": {"type": "s3", "options": options},
            "credentials_provider": {"type": "S3Credentials", "options": secrets},
        }
        base = {"base_path": str(folder / "data")}
        files = {"storage_provider": {"type": "file", "options": base}}
        config = folder / "msc.json"
        config.write_text(json.dumps({"profiles": {"store": store, "files": files}}))
        for name, value in (
            ("S3_SECRET", SECRET),
            ("MSC_CONFIG", str(config)),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", url),
        ):
            patch.setenv(name, value)
        yield


@pytest.fixture(params=["local", "msc file", "msc s3", "s3", "memory"])
def root(request, profiles, tmp_path):
    unique = uuid.uuid4().hex
    return EPath(
        {
            "local": str(tmp_path / "data"),
            "msc file": f"msc://files/{unique}",
            "msc s3": f"msc://store/{unique}",
            "s3": f"s3://bucket/{unique}",
            "memory": f"memory://{unique}",
        }[request.param]
    )


def test_what_is_shown_is_the_path_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, shown in (
        ("/a/b", "/a/b"),
        ("/a/./b/../c//d/", "/a/c/d"),
        ("file:///a/b", "/a/b"),
        (f"msc://{DEFAULT_PROFILE_NAME}/etc/hosts", "/etc/hosts"),
        ("msc://default/etc/hosts", "/etc/hosts"),
        ("msc://store/tmp/x.txt", "msc://store/tmp/x.txt"),
        ("rclone://store/tmp/x.txt", "msc://store/tmp/x.txt"),
        ("s3://bucket/a/b.tar", "s3://bucket/a/b.tar"),
        ("https://example.org:81/b?c=d", "https://example.org:81/b?c=d"),
        ("a/../b", f"{tmp_path}/b"),
        (Path("b"), f"{tmp_path}/b"),
        (Path("https:/x"), f"{tmp_path}/https:/x"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            path = EPath(text)
        assert len(caught) == str(text).startswith("rclone"), text
        assert str(path) == path.url == shown, text
        assert (
            EPath(shown) == EPath(path) == path == pickle.loads(pickle.dumps(path))
        ), text
        assert hash(EPath(shown)) == hash(path), text
        assert repr(path) == f"EPath({shown!r})", text


def test_components_and_joining():
    path = EPath("msc://store/dir.d/a.b.tar")
    assert (path.name, path.stem, path.suffix) == ("a.b.tar", "a.b", ".tar")
    assert path.display_name == "a.b.tar"
    assert str(path.parent) == "msc://store/dir.d"
    assert str(path.with_suffix(".idx")) == "msc://store/dir.d/a.b.idx"
    base = EPath("/a")
    for other, joined in (
        ("b/../c.tar", "/a/c.tar"),
        ("/etc", "/etc"),
        ("s3://b/c", "s3://b/c"),
        (EPath("/x"), "/x"),
        (Path("x"), "/a/x"),
    ):
        assert str(base / other) == joined
    for written, meant in (
        ("msc://store/a/../b/./c.tar", "msc://store/b/c.tar"),
        ("s3://bucket/a/../x", "s3://bucket/x"),
    ):
        assert str(EPath(written)) == meant
    for outside in ("msc://store/../x", "s3://bucket/a/../../other/x"):
        with pytest.raises(ConfigError, match="is outside of"):
            EPath(outside)
    with pytest.raises(ConfigError, match="is outside of"):
        path / "../../../x"
    assert EPath("/a/b/c").relative_to(EPath("/a")) == "b/c"
    for other in ("/b", "/a/b/c/d", "/a/b/cd", "s3://a"):
        with pytest.raises(ConfigError, match="/a/b/c is not below"):
            EPath("/a/b/c").relative_to(EPath(other))
    with pytest.raises(ConfigError, match="is not below"):
        EPath("memory://a/b/c").relative_to(EPath("/a"))


def test_versioned_datasets_lie_below_the_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("NVDATASET_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR"):
        EPath("dss://charts@v0/images")
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    (EPath("dss://charts@v0") / "images" / "000.jpg").write_bytes(b"data")
    assert (tmp_path / "charts" / "v0" / "images" / "000.jpg").read_bytes() == b"data"
    assert [each.name for each in EPath("dss://charts@v0").walk()] == ["000.jpg"]
    for text in (
        "charts",
        "@v0/x",
        "charts@",
        "",
        "charts@../x",
        "..@v0",
        "a@1/../../x",
    ):
        with pytest.raises(ConfigError, match="NAME@VERSION"):
            EPath(f"dss://{text}")


def test_reading_and_writing(root):
    path = root / "dir" / "file.txt"
    assert not path.exists()
    path.write_text("grüß")
    assert (path.read_text(), path.read_bytes()) == ("grüß", "grüß".encode())
    assert (path.size(), path.is_file(), path.is_dir()) == (6, True, False)
    assert path.parent.is_dir()
    with path.open("w") as file:
        file.write("0123456789ä")
    for options in ({}, {"prefetch_file": True}, {"block_size": 2**16}):
        with path.open("rb", **options) as file:
            file.seek(8)
            assert file.read(2) == b"89"
        with path.open(**options) as file:
            assert file.read() == "0123456789ä"
    path.unlink()
    path.unlink()
    for ask in (path.read_bytes, path.size):
        with pytest.raises(FileNotFoundError):
            ask()


def test_finding(root):
    names = ["a.txt", "b/10.tar", "b/2.tar", "b/c/3.tar", "b/c/[x].tar", "z*.tar"]
    for name in names:
        (root / name).write_bytes(b"")
    for pattern, expected in (
        ("**", names),
        ("*.txt", ["a.txt"]),
        ("**/*.tar", names[1:]),
        ("*", ["a.txt", "z*.tar"]),
        ("b/*.tar", ["b/10.tar", "b/2.tar"]),
        ("b/[0-2].tar", ["b/2.tar"]),
        ("b/c/?.tar", ["b/c/3.tar"]),
        ("c/*", []),
    ):
        assert [path.relative_to(root) for path in root.glob(pattern)] == expected, (
            pattern
        )
    strange = root / "[ab]*"
    (strange / "1.tar").write_bytes(b"")
    (root / "a1" / "2.tar").write_bytes(b"")
    assert [path.name for path in strange.glob("*.tar")] == ["1.tar"]


def test_copying_and_moving(root, tmp_path):
    for name in ("a", "b/c"):
        (root / "from" / name).write_bytes(name.encode())
    there = EPath(tmp_path / "there")
    (root / "from").copy(there)
    assert (there / "b" / "c").read_bytes() == b"b/c"
    there.copy(root / "back")
    assert [path.read_bytes() for path in (root / "back").walk()] == [b"a", b"b/c"]
    (root / "from").move(root / "to")
    assert (root / "to" / "b" / "c").read_bytes() == b"b/c"
    assert not (root / "from" / "a").exists()
    with pytest.raises(FileNotFoundError, match="missing"):
        (root / "missing").copy(there)
    path = root / "to" / "a"
    same = [EPath(str(path))]
    if root.is_local():
        same.append(root / "link")
        same[1].local_path().symlink_to(path.local_path())
        path.move(path)
    for other in same:
        with pytest.raises(ConfigError, match="cannot be copied"):
            other.copy(path)
    assert path.read_bytes() == b"a"


def test_local_paths_are_paths_of_the_system(root):
    (root / "x" / "file").write_text("hello")
    if not root.is_local():
        (root / "y").mkdir()  # there are no folders to make
        with pytest.raises(ConfigError, match="not a local path"):
            (root / "file").local_path()
        assert EPath(path_of(root / "file")) == root / "file"
        return
    with open(root / "x" / "file") as file:
        assert file.read() == (root / "x" / "file").local_path().read_text() == "hello"
    with pytest.raises(FileNotFoundError):
        (root / "y" / "z").mkdir()
    (root / "y" / "z").mkdir(parents=True)
    (root / "y" / "z").mkdir()
    with pytest.raises(FileExistsError):
        (root / "y" / "z").mkdir(exist_ok=False)


def test_files_behind_a_link_to_a_folder_are_listed_too(tmp_path):
    """As Energon does."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"a")
    (tmp_path / "copies").symlink_to(tmp_path / "images")
    found = [str(path).removeprefix(str(tmp_path)) for path in EPath(tmp_path).walk()]
    assert found == ["/copies/a.jpg", "/images/a.jpg"]
    assert len(list(EPath(tmp_path).glob("**/*.jpg"))) == 2


def test_links_to_folders_are_followed_and_those_in_a_circle_are_not(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").write_text("")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    found = [str(path).removeprefix(str(tmp_path)) for path in EPath(tmp_path).walk()]
    assert found == ["/a/file", "/b/link/file"]


READ = """
import pickle, sys
sys.stdout.write(pickle.loads(bytes.fromhex(sys.argv[1])).read_text())
"""


@pytest.mark.jobs
def test_pickles_have_no_secrets_and_are_read_elsewhere(profiles):
    for text in ("msc://store/secret.txt", "s3://bucket/secret.txt"):
        path = EPath(text)
        path.write_text("hello")
        pickled = pickle.dumps(path)
        assert SECRET.encode() not in pickled
        assert SECRET not in repr(path)
        command = [sys.executable, "-c", READ, pickled.hex()]
        assert (
            subprocess.run(command, capture_output=True, check=True).stdout == b"hello"
        )


def test_what_cannot_be_reached(profiles, monkeypatch):
    with pytest.raises(ValueError, match='Profile "stor" not found'):
        EPath("msc://stor/x").read_bytes()
    with pytest.raises(ConfigError, match=r"nosuch://.*not known"):
        EPath("nosuch://a/b")
    with pytest.raises(ConfigError):
        EPath("a\0b")

    def unknown(protocol):
        raise ValueError(f"Protocol not known: {protocol}")

    with monkeypatch.context() as patch:  # as without the library
        patch.setattr("energize.extras.paths.fsspec.get_filesystem_class", unknown)
        with pytest.raises(
            ConfigError, match=r"msc://store/x: .*pip install 'energize\[msc\]'"
        ):
            EPath("msc://store/x")
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from energize.energon.epathlib import EPath\n"
        "try:\n    EPath('s3://a/b')\n"
        "except ValueError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("ConfigError"), done.stderr
    assert "energize[s3]" in done.stdout
