"""Shards at web addresses, from a server on this machine."""

import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest

from energize import get_loader
from energize.errors import ConfigError, EncoderError
from energize.sources import web_shards


def shard(name, samples):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for number in range(samples):
            for part in ("jpg", "txt"):
                content = f"{name} {number} {part}".encode() * 50
                info = tarfile.TarInfo(f"{name}-{number}.{part}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


SHARDS = {f"/{name:02d}.tar": shard(f"{name:02d}", 6) for name in range(4)}


@pytest.fixture
def server():
    """Serve `SHARDS`; `server.broken` is how often each is cut off, by its path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = SHARDS.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            server.requests.append(self.path)
            if server.broken.get(self.path, 0):
                server.broken[self.path] -= 1
                content = content[: len(content) // 2]
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.broken = {}
    server.requests = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def keys_of(loader, count):
    return [sample["__key__"] for sample in islice(loader, count)]


def test_samples_of_shards_at_addresses_with_braces(server):
    shards = web_shards(f"{server.url}/{{00..03}}.tar", shuffle=False)
    samples = list(islice(get_loader(shards), 24))
    expected = [f"{name:02d}-{number}" for name in range(4) for number in range(6)]
    assert [sample["__key__"] for sample in samples] == expected
    assert samples[7]["txt"] == b"01 1 txt" * 50
    assert (samples[7]["__shard__"], samples[7]["__index__"]) == ("01.tar", 1)


@pytest.mark.jobs
def test_the_order_is_keyed_and_resumes_on_other_workers(server):
    shards = web_shards(f"{server.url}/{{00..03}}.tar")
    whole = keys_of(get_loader(shards, num_workers=0), 60)
    assert sorted(whole[:24]) == sorted(
        f"{name:02d}-{number}" for name in range(4) for number in range(6)
    )
    loader = get_loader(shards, num_workers=2)
    first = keys_of(loader, 17)
    state = loader.state_dict()
    loader.close()
    other = get_loader(shards, num_workers=0)
    other.load_state_dict(state)
    assert first + keys_of(other, 43) == whole


def test_a_connection_that_breaks_is_opened_again(server, caplog):
    server.broken["/01.tar"] = 2
    shards = web_shards(f"{server.url}/{{00..03}}.tar", shuffle=False)
    expected = [f"{name:02d}-{number}" for name in range(4) for number in range(6)]
    assert keys_of(get_loader(shards), 24) == expected
    assert server.requests.count("/01.tar") >= 3
    assert "01.tar broke off at sample" in caplog.text


def test_addresses_that_cannot_be_read(server):
    with pytest.raises(ConfigError, match="must begin with http"):
        web_shards("pipe:cat x.tar")
    with pytest.raises(ConfigError, match="at least one address"):
        web_shards([])
    missing = web_shards(f"{server.url}/missing.tar")
    with pytest.raises(EncoderError, match=r"missing.tar cannot be read.*404"):
        next(iter(get_loader(missing)))
