"""Files at paths: the same on this machine, in memory, over S3 and over HTTP."""

from __future__ import annotations

import functools
import http.server
import json
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys
import threading
import uuid

import pytest

from energize.errors import ConfigError, DatasetError
from energize.extras.paths import EPath
from tests.support.s3 import SECRET, s3_server

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server():
    with s3_server("bucket", "other") as url:
        yield url


@pytest.fixture
def profiles(server, tmp_path, monkeypatch):
    """Profiles of the Multi-Storage Client in a file, and nothing else that could be found."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("S3_SECRET", SECRET)
    s3 = {
        "storage_provider": {
            "type": "s3",
            "options": {"base_path": "", "endpoint_url": server, "region_name": "us-east-1"},
        },
        "credentials_provider": {
            "type": "S3Credentials",
            "options": {"access_key": "key", "secret_key": "${S3_SECRET}"},
        },
    }
    below = json.loads(json.dumps(s3))
    below["storage_provider"]["options"]["base_path"] = "bucket/below"
    files = {"storage_provider": {"type": "file", "options": {"base_path": str(tmp_path / "data")}}}
    cloud = {"storage_provider": {"type": "gcs", "options": {"base_path": "x"}}}
    unset = {"storage_provider": {"type": "s3", "options": {"base_path": "${NOT_SET_ANYWHERE}"}}}
    named = {"store": s3, "below": below, "files": files, "cloud": cloud, "unset": unset}
    config = tmp_path / "msc.json"
    config.write_text(json.dumps({"profiles": named}))
    monkeypatch.setenv("MSC_CONFIG", str(config))
    return config


@pytest.fixture(params=["local", "file profile", "s3 profile", "s3 below", "memory"])
def root(request, profiles, tmp_path):
    unique = uuid.uuid4().hex
    return EPath(
        {
            "local": str(tmp_path / "data"),
            "file profile": "msc://files/folder",
            "s3 profile": f"msc://store/bucket/{unique}",
            "s3 below": f"msc://below/{unique}",
            "memory": f"memory://{unique}",
        }[request.param]
    )


def test_reading_and_writing(root):
    path = root / "dir" / "file.txt"
    assert not path.is_file()
    assert not path.exists()
    path.write_text("gr\u00fc\u00df")
    assert path.read_text() == "gr\u00fc\u00df"
    assert path.read_bytes() == "gr\u00fc\u00df".encode()
    assert (path.size(), path.is_file(), path.is_dir()) == (6, True, False)
    assert (path.parent.is_dir(), path.parent.is_file()) == (True, False)
    with path.open() as file:
        assert file.read() == "gr\u00fc\u00df"
    with path.open("w") as file:
        file.write("\u00e4")
    assert path.read_bytes() == "\u00e4".encode()
    with path.open("wb") as file:
        file.write(struct.pack("QQ", 7, 512))
    for options in ({}, {"prefetch_file": True}, {"block_size": 2**16}):
        with path.open("rb", **options) as file:
            file.seek(8)
            assert struct.unpack("Q", file.read(8)) == (512,)
    with path.open("r", prefetch_file=True) as file:
        assert len(file.read()) == 16
    path.unlink()
    path.unlink()
    assert not path.is_file()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    with pytest.raises(FileNotFoundError):
        path.size()


def test_what_is_changed_by_others_is_seen(root):
    path = root / "file"
    path.write_bytes(b"one")
    first = path.stat()
    assert (first.type, first.content_length) == ("file", 3)
    assert [each.name for each in root.walk()] == ["file"]
    other = pickle.loads(pickle.dumps(root))
    (other / "more").write_bytes(b"three")
    (other / "file").write_bytes(b"three")
    assert path.stat().content_length == 5
    assert [each.name for each in root.walk()] == ["file", "more"]
    if root.scheme != "memory":
        assert path.stat().last_modified >= first.last_modified


def test_finding(root):
    names = ["a.txt", "b/2.tar", "b/10.tar", "b/c/3.tar", "b/c/[x].tar", "z*.tar"]
    for name in names:
        (root / name).write_bytes(b"")
    inside = sorted(names, key=lambda name: (root / name).parts)

    def found(pattern):
        return [path.relative_to(root) for path in root.glob(pattern)]

    assert sorted(path.relative_to(root) for path in root.walk()) == sorted(inside)
    assert found("*.txt") == ["a.txt"]
    assert sorted(found("**/*.tar")) == sorted(name for name in inside if name.endswith(".tar"))
    assert found("*") == ["a.txt", "z*.tar"]
    assert found("b/*.tar") == ["b/10.tar", "b/2.tar"]
    assert found("b/[0-2].tar") == ["b/2.tar"]
    assert found("b/c/?.tar") == ["b/c/3.tar"]
    assert found("a.txt") == ["a.txt"]
    assert found("nothing") == found("nothing/*") == found("c/*") == []
    assert all(isinstance(path, EPath) for path in root.glob("**"))
    assert [str(path) for path in (root / "b/c").glob("*")] == [
        f"{root}/b/c/3.tar",
        f"{root}/b/c/[x].tar",
    ]


def test_wildcards_in_the_folder_itself_are_none(root):
    folder = root / "[ab]*"
    (folder / "1.tar").write_bytes(b"")
    (root / "a1" / "2.tar").write_bytes(b"")
    assert [path.name for path in folder.glob("*.tar")] == ["1.tar"]


def test_copying_and_moving(root, tmp_path):
    for name in ("a", "b/c"):
        (root / "from" / name).write_bytes(name.encode())
    there = EPath(tmp_path / "there")
    (root / "from").copy(there)
    assert (there / "b" / "c").read_bytes() == b"b/c"
    there.copy(root / "back")
    assert [path.read_bytes() for path in (root / "back").walk()] == [b"a", b"b/c"]
    (root / "from" / "a").copy(root / "copied" / "a")
    (root / "from" / "a").move(root / "moved" / "a")
    assert (root / "copied" / "a").read_bytes() == (root / "moved" / "a").read_bytes() == b"a"
    assert not (root / "from" / "a").exists()
    (root / "from").move(root / "to")
    assert (root / "to" / "b" / "c").read_bytes() == b"b/c"
    assert not (root / "from" / "b" / "c").exists()
    with pytest.raises(FileNotFoundError, match="missing"):
        (root / "missing").copy(there)


def test_what_is_copied_or_moved_to_itself_is_still_there(root):
    path = root / "dir" / "file"
    path.write_bytes(b"one")
    same = [EPath(path)]
    if root.is_local():
        (root / "link").local_path().symlink_to(path.local_path())
        same.append(root / "link")
    elif root.profile == "below":
        same.append(EPath(f"msc://store/bucket/below{path.internal_path}"))
    for other in same:
        with pytest.raises(ConfigError, match="cannot be copied"):
            other.copy(path)
        assert path.read_bytes() == b"one"
    if root.is_local():
        path.move(path)
    else:
        with pytest.raises(ConfigError, match="cannot be copied"):
            path.move(path)
    assert path.read_bytes() == b"one"


def test_folders_are_made_where_there_are_folders(root):
    folder = root / "x" / "y"
    if not root.is_local():
        folder.mkdir()
        return
    with pytest.raises(FileNotFoundError):
        folder.mkdir()
    folder.mkdir(parents=True)
    folder.mkdir()
    assert folder.is_dir()
    with pytest.raises(FileExistsError):
        folder.mkdir(exist_ok=False)


def test_local_paths_are_paths_of_the_system(root):
    (root / "file").write_text("hello")
    if root.is_local():
        with open(root / "file") as file:
            assert file.read() == (root / "file").local_path().read_text() == "hello"
    else:
        with pytest.raises(ConfigError, match="not a local path"):
            os.fspath(root / "file")


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    found = [path.name for path in EPath(tmp_path).walk()]
    assert found == ["file"]


def read_elsewhere(path: EPath, answers) -> None:
    answers.put(path.read_text())


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_in_another_process(profiles, context):
    path = EPath("msc://store/bucket/process.txt")
    path.write_text("hello")
    answers = context.Queue()
    process = context.Process(target=read_elsewhere, args=(path, answers))
    process.start()
    assert answers.get(timeout=60) == "hello"
    process.join(30)
    assert process.exitcode == 0


def test_no_secret_is_in_a_pickle(profiles):
    path = EPath("msc://store/bucket/secret.txt")
    path.write_text("x")
    assert path.fs.secret == SECRET
    assert SECRET.encode() not in pickle.dumps(path)
    assert SECRET not in repr(path)


def test_s3_by_its_own_protocol(profiles, server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    path = EPath("s3://bucket/own/file.txt")
    path.write_text("hello")
    assert EPath("msc://store/bucket/own/file.txt").read_text() == "hello"
    assert [str(each) for each in EPath("s3://bucket").glob("own/*")] == [str(path)]


class TestProfiles:
    def test_those_of_rclone(self, server, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("MSC_CONFIG", raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        EPath(tmp_path / "config/rclone/rclone.conf").write_text(
            f"[cold]\ntype = s3\naccess_key_id = key\nsecret_access_key = {SECRET}\n"
            f"region = us-east-1\nendpoint = {server}\n"
        )
        path = EPath("msc://cold/bucket/rclone.txt")
        path.write_text("hello")
        assert path.read_text() == "hello"

    def test_yaml_that_includes_other_files(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("MSC_CONFIG", raising=False)
        (tmp_path / ".msc_config.yaml").write_text("include: [more.yaml]\n")
        (tmp_path / "more.yaml").write_text(
            "profiles:\n  here:\n    storage_provider:\n      type: file\n"
            f"      options: {{base_path: {tmp_path}}}\n"
        )
        assert EPath("msc://here/more.yaml").read_text().startswith("profiles")
        assert EPath("msc://here/more.yaml").local_path() == tmp_path / "more.yaml"

    def test_an_unknown_name(self, profiles):
        with pytest.raises(
            ConfigError, match=r"no profile 'stor'; did you mean 'store'.*msc\.json"
        ):
            EPath("msc://stor/bucket").is_dir()

    def test_a_kind_that_is_not_read(self, profiles):
        with pytest.raises(ConfigError, match=r"msc\.json: profile 'cloud' is of the type 'gcs'"):
            EPath("msc://cloud/x").read_bytes()

    def test_a_variable_that_is_not_set(self, profiles):
        with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE, which is not set"):
            EPath("msc://unset/x").read_bytes()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("[1, 2]", "expected a mapping"),
            ("{", "cannot be read"),
            ('{"profiles": [1]}', "`profiles` is a mapping"),
            ('{"profiles": {"a": 1}}', "profile 'a' is a mapping"),
            ('{"profiles": {"a": {}}}', "no `storage_provider`"),
            (
                '{"profiles": {"a": {"storage_provider": {"type": "s3"}, '
                '"credentials_provider": {"type": "my.Own"}}}}',
                "credentials of the type 'my.Own'",
            ),
        ],
    )
    def test_files_that_are_none(self, profiles, text, reason):
        profiles.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            EPath("msc://a/x").read_bytes()

    def test_a_store_that_is_not_there(self, profiles, monkeypatch):
        content = json.loads(profiles.read_text())
        content["profiles"]["store"]["storage_provider"]["options"]["endpoint_url"] = (
            "http://127.0.0.1:9"
        )
        profiles.write_text(json.dumps(content))
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises((DatasetError, OSError), match=r"127\.0\.0\.1:9"):
            EPath("msc://store/bucket/x").read_bytes()


def test_errors_name_the_path(profiles):
    for path in (EPath("msc://store/nosuchbucket/x"), EPath("msc://store/bucket/nosuch")):
        with pytest.raises(FileNotFoundError, match=str(path)):
            path.read_bytes()


def test_a_protocol_that_is_not_known():
    with pytest.raises(ConfigError, match="paths of nosuch:// are not known"):
        EPath("nosuch://a/b").read_bytes()


def test_a_library_that_is_missing_is_named():
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from energize.epathlib import EPath\n"
        "try:\n    EPath('s3://a/b').read_bytes()\n"
        "except ValueError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("ConfigError"), done.stderr
    assert "energize[s3]" in done.stdout


def test_over_http(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a.txt").write_text("hello")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        root = EPath(f"http://127.0.0.1:{web.server_port}/dir")
        path = root / "a.txt"
        assert (path.read_text(), path.size(), path.is_file()) == ("hello", 5, True)
        assert [each.name for each in root.glob("*.txt")] == ["a.txt"]
        path.copy(EPath(tmp_path / "copied.txt"))
        assert (tmp_path / "copied.txt").read_text() == "hello"
        with pytest.raises(FileNotFoundError):
            (root / "b.txt").read_bytes()
        web.shutdown()
        thread.join()
