"""Pages of a run: what they show, in a real browser too, and who gets them."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from energize import CaptioningSample, ListSource, get_loader, get_train_dataset
from energize.cli.mixes import RunOptions
from energize.cli.pages import PreviewPage
from energize.core.html import (
    THUMBNAIL_BYTES,
    item_html,
    pictures_of,
    text,
    thumbnail,
    value_html,
)
from tests.cli.commands import refused, run
from tests.support.browser import browser, needs_browser
from tests.support.prepared import image_bytes

ROOT = Path(__file__).parents[2]
EVIL = '</script><script>document.title="run"</script><img src=x onerror=alert(1)>"\u202e\x1b[2J'
ENCODER = """
import torch
from energize import DefaultTaskEncoder
class Words:
    def convert_ids_to_tokens(self, ids):
        return [f"<{i}>" for i in ids]
class Encoder(DefaultTaskEncoder):
    tokenizer = Words()
    def encode_sample(self, sample):
        ids = torch.arange(6)
        return {"__key__": sample.__key__, "pixel_values": torch.randn(3, 8, 8),
                "input_ids": ids, "labels": torch.where(ids < 2, -100, ids)}
class Twice(DefaultTaskEncoder):
    def encode_sample(self, sample):
        with open(__file__ + ".calls", "a") as file:
            file.write("1")
        for i in range(2):
            yield {"__key__": f"{sample.__key__}-{i}"}
class Fails(DefaultTaskEncoder):
    def encode_sample(self, sample):
        raise ValueError("no <such> token")
"""


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    """Photographs of which one is damaged, and conversations that count twice."""
    root = tmp_path_factory.mktemp("pages")
    (root / "photos").mkdir()
    for i in range(6):
        (root / f"photos/{i}.jpg").write_bytes(image_bytes(i)[: 60 if i == 3 else None])
    rows = [{"file_name": f"{i}.jpg", "text": f"{i} {EVIL}"} for i in range(6)]
    (root / "photos/metadata.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in rows)
    )
    said = [
        {"from": "human", "value": f"<image>\nWhat? {EVIL}"},
        {"from": "gpt", "value": "A cat."},
    ]
    chats = [{"image": f"photos/{i}.jpg", "conversations": said} for i in (0, 1, 2)]
    (root / "chat.json").write_text(json.dumps(chats))
    (root / "encoder.py").write_text(ENCODER)
    (root / "mix.yaml").write_text(
        "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: photos, weight: 3}\n"
        "      - {path: chat.json, weight: 1, sample_weight: 2}\n"
        "  val: {path: chat.json, split_part: train}\n"
    )
    return root / "mix.yaml"


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_data_is_text_wherever_it_stands(mix):
    page = (
        PreviewPage(mix, RunOptions(encoder=f"{mix.parent}/encoder.py:Encoder"))
        .page(0, 2)
        .decode()
    )
    tags = Tags(page).found
    assert [tag for tag, _ in tags].count("script") == 1
    assert not [name for _, given in tags for name in given if name.startswith("on")]
    images = [given for tag, given in tags if tag == "img"]
    assert len(images) > 16
    assert all(
        each["src"].startswith("data:image/jpeg;base64,") and each["alt"]
        for each in images
    )
    assert not re.search(r"(src|href|action)=.?(https?:|//)", page)
    assert "<b>✕</b>" in page
    assert "cannot be decoded: OSError" in page
    assert page.count("loss weight 2") == 4
    assert '<span class=masked title="1">&lt;1&gt;</span><span title="2">' in page
    assert re.search(r"float32 \(8, 3, 8, 8\), -[\d.]+ to [\d.]+", page)
    assert re.search("75.00%</td>.*67% count in the loss", page, re.DOTALL)
    assert not re.search("[\u202e\x1b]", page)


def test_what_an_encoder_raises_is_shown_for_its_batch(mix):
    page = (
        PreviewPage(
            mix, RunOptions(batch_size=4, encoder=f"{mix.parent}/encoder.py:Fails")
        )
        .page(1, 2)
        .decode()
    )
    assert page.count("ValueError: no &lt;such&gt; token") == 2
    assert page.count('class="sample"') == 8
    assert (
        "Step 1,000,000,000"
        in PreviewPage(mix, RunOptions(batch_size=4)).page(10**9, 1).decode()
    )
    val = PreviewPage(mix, RunOptions(batch_size=4, split="val"))
    assert "Step 9 does not exist" in val.page(9, 1).decode()
    assert val.page(0, 9).decode().count('class="sample"') == 3


def test_pages_of_a_stream_go_on_where_the_one_before_ended(mix):
    run, calls = (
        RunOptions(batch_size=4, encoder=f"{mix.parent}/encoder.py:Twice"),
        mix.parent / "encoder.py.calls",
    )
    look, asked = PreviewPage(mix, run), [(0, 2), (2, 1), (7, 2), (1, 1)]
    pages = [look.page(*each) for each in asked]
    read = calls.stat().st_size
    assert pages == [PreviewPage(mix, run).page(*each) for each in asked]
    assert calls.stat().st_size - read > read


@pytest.mark.parametrize(
    "picture",
    [
        PIL.Image.effect_noise((5000, 3000), 90),
        PIL.Image.new("RGBA", (3, 2), (255, 0, 0, 0)),
        PIL.Image.new("P", (4000, 1)),
        PIL.Image.new("I;16", (9, 9), 40_000),
        PIL.Image.new("F", (9, 9), 0.5),
        PIL.Image.new("CMYK", (600, 9)),
    ],
    ids=lambda picture: picture.mode,
)
def test_thumbnails_are_small(picture):
    shown = thumbnail(picture, EVIL)
    assert len(shown) < THUMBNAIL_BYTES * 4 / 3 + 1000
    assert [tag for tag, _ in Tags(shown).found] == ["img"]


def test_values():
    assert pictures_of(torch.zeros(3, 2, 2))
    assert value_html(torch.randn(1, 9, 9)).count("<img") == 1
    assert value_html(np.full((3, 5, 7), np.nan, np.float32)).count("<img") == 1
    assert "not all finite" in value_html(torch.tensor([1.0, float("nan")]))
    assert value_html([1, "<b>"]).count("<li>") == 2
    assert "900 more letters" in text("x" * 1000, 100)
    assert (
        "\ud800"
        not in PreviewPage.__name__ + text("\ud800").encode(errors="replace").decode()
    )
    assert item_html({"input_ids": torch.arange(3)}).count("<span title=") == 3


def test_notebooks(mix):
    sample = CaptioningSample(__key__="<7>", image=torch.zeros(3, 4, 4), caption=EVIL)
    assert [tag for tag, _ in Tags(sample._repr_html_()).found].count("script") == 0
    dataset = get_train_dataset(mix, batch_size=4)
    for each in (dataset, get_loader(dataset)):
        assert "photos" in each._repr_html_()
        assert "75.0%" in each._repr_html_()
    assert "without end" in dataset._repr_html_()
    assert "2 items per epoch" in ListSource([1, 2], name="<x>")._repr_html_()


def test_the_command(mix, tmp_path):
    shown = run(
        "preview",
        mix.parent / "photos",
        "--html",
        tmp_path / "p.html",
        "--batches",
        "1",
    )
    assert "Wrote" in shown
    assert (tmp_path / "p.html").read_text().count('class="sample"') == 8
    (tmp_path / "texts.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    run("preview", tmp_path / "texts.jsonl", "--html", tmp_path / "p.html")
    assert "<img" not in (tmp_path / "p.html").read_text()
    refused(
        [
            (
                [mix, "--html", "/proc/none.html"],
                2,
                "/proc/none.html",
                "cannot be written",
            ),
            ([mix, "--html", tmp_path / "p.html", "--split-parts", "test"], 1, "test"),
            ([mix, "--encoder", "a:b"], 2, "--html"),
            ([mix, "--html", tmp_path / "p.html", "-n", "3"], 2, "--batches"),
            ([mix, "--html", tmp_path / "p.html", "--encoder", "none:b"], 2, "'none'"),
            ([tmp_path / "none", "--html", tmp_path / "p.html"], 2, "none"),
        ],
        "preview",
    )


# In a browser


@pytest.mark.jobs
@needs_browser
def test_in_a_browser(mix, tmp_path):
    encoder = f"{mix.parent}/encoder.py:Encoder"
    run(
        "preview",
        mix,
        "--html",
        tmp_path / "p.html",
        "--encoder",
        encoder,
        "--batches",
        "2",
    )
    with browser(tmp_path / "profile") as tab:
        grounds = []
        for scheme in ("light", "dark"):
            tab.prefers(scheme)
            tab.open((tmp_path / "p.html").as_uri())
            grounds.append(tab.js("getComputedStyle(document.body).backgroundColor"))
        assert grounds == ["rgb(246, 246, 244)", "rgb(21, 23, 26)"]
        assert tab.js("document.title") == "mix.yaml, step 0 - energize"
        assert tab.js(
            "[...document.images].every(e => e.complete && e.naturalWidth && e.alt)"
        )
        here = (
            "[...document.querySelectorAll('.sample')].indexOf(document.activeElement)"
        )
        seen = []
        for key in ("j", "ArrowRight", "j", "k", "ArrowLeft", "n", "p"):
            tab.press(key)
            seen.append(tab.js(here))
        assert seen == [0, 1, 2, 1, 0, 8, 0]
        tab.press("m")
        assert tab.js("document.activeElement.querySelector('details').open")
        assert (
            tab.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        )
        for shown in (True, False):
            tab.press("?")
            assert tab.js("document.getElementById('help').open") is shown
        tab.press("t")
        assert tab.js("getComputedStyle(document.body).backgroundColor") == grounds[0]
        tab.open((tmp_path / "p.html").as_uri())
        assert tab.js("document.documentElement.dataset.theme") == "light"
        tab(
            "Emulation.setDeviceMetricsOverride",
            width=360,
            height=800,
            deviceScaleFactor=1,
            mobile=True,
        )
        assert tab.js("document.documentElement.scrollWidth") == 360
        assert tab.js("document.querySelector('section .chip').offsetHeight") < 40
        assert not tab.told
        assert {each.split(":")[0] for each in tab.asked} <= {"file", "data"}


@contextmanager
def served(mix, *options):
    command = [sys.executable, "-m", "energize", "serve", str(mix), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        line = process.stdout.readline()
        yield process, int(re.search(r"http://127.0.0.1:(\d+)/", line)[1])
    finally:
        process.kill()
        process.communicate()


def answer(port, path, host=None):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", path, headers={} if host is None else {"Host": host})
    found = link.getresponse()
    return found.status, found.read().decode()


@pytest.mark.jobs
@needs_browser
def test_served_pages_of_any_step(mix, tmp_path):
    with served(mix, "--port", "0", "--batch-size", "2") as (process, port):
        home = f"http://127.0.0.1:{port}/"
        with browser(tmp_path / "profile") as tab:
            tab.open(home)
            assert tab.js("document.querySelector('.batch').id") == "step-0"
            tab.press("n")
            tab.wait()
            assert tab.js("location.search") == "?step=1"
            tab.js("document.getElementById('step').value = 1000000")
            tab.js("document.querySelector('nav form').submit()")
            tab.wait()
            assert tab.js("document.querySelector('.batch').id") == "step-1000000"
            assert tab.js("document.querySelectorAll('.sample').length") == 2
            assert not tab.told
            assert all(each.startswith((home, "data:")) for each in tab.asked)
        for path, host, code in (
            ("/?step=7", f"localhost:{port}", 200),
            ("/", f"evil.example:{port}", 403),
            ("/", "127.0.0.1", 403),
            ("/../mix.yaml", None, 404),
            ("//etc/passwd", None, 404),
            ("/?step=-1", None, 400),
            ("/?step=9999999999999", None, 400),
            ("/?step=x", None, 400),
        ):
            status, page = answer(port, path, host)
            assert status == code, (path, host)
            assert not re.search("root:|__module__", page)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            told = ["--port", str(taken.getsockname()[1])]
            refused(
                [([mix, *told], 2, f"port {told[1]} cannot be used", "--port 0")],
                "serve",
            )
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "Ended\n")
        assert "Traceback" not in errors
