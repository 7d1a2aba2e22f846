"""Parts of samples: one of each kind that is decoded."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from energize import SampleDecoder
from tests.fuzz.formats import Corpus, Format, Seen, everything, told
from tests.support.images import encoded, picture
from tests.support.videos import video

_DECODER = SampleDecoder(image_decode="rgb8")
_GUESSING = SampleDecoder(image_decode="pil", guess_content=True)


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def _saved() -> bytes:
    stream = io.BytesIO()
    torch.save({"a": torch.arange(60.0).view(3, 20), "name": "ä cat"}, stream)
    return stream.getvalue()


def _image(kind: str, mode: str = "RGB") -> Callable[[], bytes]:
    return lambda: encoded(picture(20, 13, mode), kind)


_NUMBERS = np.arange(60, dtype=np.float32).reshape(3, 20)
_TREE = {"caption": "ä cat", "boxes": [[0, 1.5], [2, -3]], "none": None, "ok": True}
_JSON = json.dumps(_TREE).encode()

PARTS: dict[str, Callable[[], bytes]] = {
    "a.jpg": _image("JPEG"),
    "a.png": _image("PNG", "RGBA"),
    "a.webp": _image("WEBP"),
    "a.gif": _image("GIF", "P"),
    "a.bmp": _image("BMP"),
    "a.tiff": _image("TIFF"),
    "a.ppm": _image("PPM"),
    "a.npy": lambda: _npy(_NUMBERS),
    "a.npz": lambda: _npz(a=_NUMBERS, b=np.array(["x", "yz"])),
    "a.json": lambda: _JSON,
    "a.txt": lambda: "ä text\n".encode() * 9,
    "a.cls": lambda: b"17",
    "a.json.gz": lambda: gzip.compress(_JSON, mtime=0),
    "a.npy.gz": lambda: gzip.compress(_npy(_NUMBERS), mtime=0),
    "a.pth": _saved,
    "a.mp4": partial(video, "mp4 h264", frames=8),
    "a.mkv": partial(video, "mkv h264", frames=8),
    "a.webm": partial(video, "webm vp8 opus", frames=8),
    "a.avi": partial(video, "avi mjpeg", frames=8),
}
_AV = ("mp4", "mkv", "webm", "avi")


def _write(folder: Path, name: str) -> None:
    (folder / name).write_bytes(PARTS[name]())


def _read(folder: Path, name: str, decoder: SampleDecoder) -> Seen:
    return Seen((told(decoder.decode(name, (folder / name).read_bytes())),))


def _corpus(name: str, decoder: SampleDecoder = _DECODER) -> Corpus:
    kind = f"part {name}{' guessed' if decoder is _GUESSING else ''}"
    return Corpus(
        kind, partial(_write, name=name), partial(_read, name=name, decoder=decoder)
    )


FORMATS = [
    *(
        Format(
            f"part {name[1:]}",
            _corpus(name),
            name,
            unchecked=everything,
            named=[f"part '{name.removesuffix('.gz')}'"],
            cost=4 if name[2:] in _AV else 0.5,
        )
        for name in PARTS
    ),
    *(
        Format(
            f"part {name[1:]} guessed",
            _corpus(name, _GUESSING),
            name,
            unchecked=everything,
        )
        for name in ("a.png", "a.txt")
    ),
]
