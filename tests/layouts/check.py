"""Opens every layout, and compares splits, types, contents and messages with what is
right.

    python -m tests.layouts.check [PART_OF_NAME]

`wrong_of` returns what is wrong with a layout, nothing if it is read right or refused
clearly where that is allowed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from energize import get_train_dataset, get_val_dataset
from energize.errors import EnergizeError
from tests.layouts import known, more  # noqa: F401 - they register layouts
from tests.layouts.base import LAYOUTS, Opening, Want, hash_of_colour, instance

_PLACE = re.compile(r"\s*(<image>|<video>)\s*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclasses.dataclass
class Got:
    """The content of a sample: images as hashes, texts and numbers in their order."""

    sample: Any
    images: tuple[str, ...]
    videos: int
    texts: tuple[str, ...]
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, sample: Any) -> Got:
        images, texts, numbers, videos = [], [], [], 0
        for value in leaves(fields_of(sample)):
            if (found := image_hash(value)) is not None:
                images.append(found)
            elif isinstance(value, str):
                texts.append(value)
                numbers += map(float, _NUMBER.findall(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                numbers.append(float(value))
            elif type(value).__name__ == "AVDecoder":
                videos += 1
        return cls(sample, tuple(images), videos, tuple(texts), tuple(numbers))

    @property
    def kind(self) -> str:
        return type(self.sample).__name__

    @property
    def key(self) -> str:
        sample = self.sample
        return str(sample["__key__"] if isinstance(sample, Mapping) else sample.__key__)

    def has(self, text: str) -> bool:
        return any(text in each for each in self.texts)

    def has_run(self, box: tuple[float, ...]) -> bool:
        runs = (self.numbers[n : n + len(box)] for n in range(len(self.numbers)))
        return any(
            len(run) == len(box) and np.allclose(run, box, atol=1e-4) for run in runs
        )

    def __str__(self) -> str:
        own = {n: v for n, v in fields_of(self.sample).items() if image_hash(v) is None}
        return f"{self.kind}(images={list(self.images)}, {str(own)[:140]})"


def fields_of(sample: Any) -> dict[str, Any]:
    if isinstance(sample, Mapping):
        named = dict(sample)
    else:
        named = {
            each.name: getattr(sample, each.name) for each in dataclasses.fields(sample)
        }
    return {n: v for n, v in named.items() if not n.startswith("__")}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from leaves(
            [getattr(value, each.name) for each in dataclasses.fields(value)]
        )
    elif hasattr(value, "tolist") and image_hash(value) is None:
        yield from leaves(value.tolist())
    elif isinstance(value, bytes) and image_hash(value) is None:
        yield value.decode("utf-8", "replace")
    else:
        yield value


def image_hash(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            value = Image.open(io.BytesIO(value)).convert("RGB")
        except Exception:
            return None
    if isinstance(value, Image.Image):
        return hash_of_colour(np.asarray(value.convert("RGB")).reshape(-1, 3).mean(0))
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) != 3 or shape[0] not in (1, 3, 4) or min(shape[1:]) < 4:
        return None
    pixels = np.asarray(value).astype(np.float64)
    pixels = pixels * 255 if "float" in str(value.dtype) else pixels
    mean = pixels.reshape(shape[0], -1).mean(1)
    return hash_of_colour([*mean, *mean, *mean][:3] if shape[0] == 1 else mean[:3])


def plain(text: Any, *, placed: bool = True) -> str:
    """A text with places of images as they are compared."""
    text = text if isinstance(text, str) else ""
    return _PLACE.sub(r" \1 " if placed else " ", text).replace("  ", " ").strip()


def written(turn: Any) -> str:
    """The text of a turn, or the calls of tools that it makes in place of one."""
    calls = [json.dumps(call["function"]) for call in turn.extra.get("tool_calls", ())]
    return turn.text or " ".join(calls)


def turns_fit(turns: Any, want: Want) -> bool:
    pairs = zip(turns, want.turns, strict=False)
    return len(turns) == len(want.turns) and all(
        turn.role in role.split("|")
        and plain(written(turn), placed=want.placed) == plain(text, placed=want.placed)
        for turn, (role, text) in pairs
    )


def fits(got: Got, want: Want, meaning: str) -> bool:
    """Whether a sample has what is wanted, in a type of this meaning."""
    sample, kind = got.sample, got.kind
    crude = kind == "CrudeSample"
    if got.videos != want.videos or (got.images != want.images and not crude):
        return False
    if meaning in ("caption", "video caption"):
        text = (want.texts or ("",))[0] if want.caption is None else want.caption
        return kind == "CaptioningSample" and plain(sample.caption) == plain(text)
    if meaning == "classification":
        if kind != "ImageClassificationSample":
            return False
        return want.label in (None, sample.label_name) and want.label_id in (
            None,
            sample.label,
        )
    if meaning == "vqa":
        named = plain(getattr(sample, "context", None), placed=False) == plain(
            want.question, placed=False
        )
        return (
            kind == "VQASample"
            and named
            and {*want.answers} <= {*(sample.answers or ())}
        )
    if meaning == "choice":
        asked = kind == "MultiChoiceVQASample" and plain(sample.context) == plain(
            want.question
        )
        return (
            asked
            and tuple(sample.choices) == want.choices
            and sample.correct_choice_idx == want.right
        )
    if meaning.endswith("conversation") or meaning == "text-chat":
        return kind == "ConversationSample" and turns_fit(sample.turns, want)
    if meaning == "interleaved":
        sequence = sample.sequence if kind == "InterleavedSample" else ()
        return (
            tuple(e if isinstance(e, str) else f"#{image_hash(e)}" for e in sequence)
            == want.sequence
        )
    types = {
        "image": ("ImageSample",),
        "ocr": ("OCRSample", "CrudeSample"),
        "preference": ("PreferenceSample", "CrudeSample"),
        "text": ("TextSample",),
    }
    return kind in types.get(meaning, ("CrudeSample",)) and holds_all(got, want)


def holds_all(got: Got, want: Want) -> bool:
    """Whether all that is wanted is somewhere in the sample."""
    texts = [text for _, text in want.turns] + [want.question or "", *want.sequence]
    pieces = [
        piece
        for text in texts
        for line in text.split("\n")
        for piece in _PLACE.split(line)
    ]
    pieces += [
        *want.texts,
        *want.choices,
        *want.answers[:1],
        want.caption or "",
        want.label or "",
    ]
    words = [
        each.strip()
        for each in pieces
        if not each.startswith(("#", "<image>", "<video>"))
    ]
    words = [each for each in words if each]
    alike = sorted(got.images) == sorted(want.images) and got.videos == want.videos
    return alike and all(map(got.has, words)) and all(map(got.has_run, want.boxes))


class Log(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def is_clear(error: BaseException, path: Path) -> bool:
    """Whether an error is one of energize and names what it is about."""
    near = [path.name, str(path)]
    near += (
        [each.name for each in path.iterdir()] if path.is_dir() else [str(path.parent)]
    )
    return isinstance(error, EnergizeError) and any(each in str(error) for each in near)


def read_all(path: Path, part: str) -> list[Got]:
    dataset = get_val_dataset(path, split_part=part, batch_size=None)
    samples = [Got.of(dataset[n]) for n in range(len(dataset))]
    if part == "train":
        training = get_train_dataset(path, batch_size=None, repeat=False)
        keys = Counter(Got.of(each).key for each in training)
        assert len(training) == len(dataset)
        assert not keys.keys() - {each.key for each in samples}
    return samples


def wrong_of(name: str, folder: Path) -> list[str]:
    """What is wrong with a layout, of which an instance is written into a folder."""
    root = instance(name, folder)
    return [
        f"{opening.path}: {fault}"
        for opening in LAYOUTS[name].expected
        for fault in faults_of(root, opening)
    ]


def faults_of(root: Path, opening: Opening) -> Iterator[str]:
    path, log = root / opening.path, Log()
    logger = logging.getLogger("energize")
    logger.addHandler(log)
    refused = False
    try:
        if opening.refuse:
            for part in ("train", "val", "test"):
                told = part == "train" and opening.says
                yield from refusal(path, part, opening.refuse, told or ())
        for part in opening.splits:
            try:
                samples = read_all(path, part)
            except Exception as error:
                refused = True
                if not opening.may_refuse or not is_clear(error, path):
                    yield f"{part}: {type(error).__name__}: {error}"
                continue
            yield from compared(samples, opening, part)
        for part in opening.not_splits:
            yield from refusal(path, part, "there is no such split part", ())
    finally:
        logger.removeHandler(log)
    if not (refused or opening.refuse):
        text = "\n".join(log.lines)
        for words in opening.left_out:
            if not any(each in text for each in words.split("|")):
                yield f"no word of {words}"


def refusal(path: Path, part: str, why: str, says: tuple[str, ...]) -> Iterator[str]:
    try:
        samples = read_all(path, part)
    except Exception as error:
        if not is_clear(error, path) or (
            says and not any(word in str(error) for word in says)
        ):
            yield f"{part}: {type(error).__name__}: {error}"
        return
    yield f"{part}: {len(samples)} samples such as {samples[0]}, but {why}"


def compared(samples: list[Got], opening: Opening, part: str) -> Iterator[str]:
    counts = opening.splits[part]
    counts = counts if isinstance(counts, tuple) else (counts,)
    if len(samples) not in counts:
        yield f"{part}: {len(samples)} samples in place of {counts}"
    for want in opening.samples.get(part, ()):
        meanings = (opening.meaning, *opening.also)
        if not any(fits(got, want, each) for got in samples for each in meanings):
            alike = [got for got in samples if got.images[:1] == want.images[:1]]
            yield f"{part}: {(alike or samples or ['nothing'])[0]} is not {opening.meaning} {want}"


def main() -> int:
    """Print what is wrong with all layouts whose names have a text in them."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for name in LAYOUTS:
            if asked in name:
                try:
                    faults = wrong_of(name, Path(folder))
                except Exception as error:
                    faults = [f"the check fails: {type(error).__name__}: {error}"]
                wrong += bool(faults)
                print(
                    *(f"{name}: {fault}"[:600] for fault in faults),
                    sep="\n",
                    end="\n" * bool(faults),
                )
        print(f"{len(LAYOUTS)} layouts, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
