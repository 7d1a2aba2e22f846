"""Loose files of documents, preference pairs and questions about images."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq

COLOURS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220)}
NAMES = list(COLOURS)


def image(folder: Path, number: int) -> str:
    """Draw an image of one colour, and return its name."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{number}.png"
    size = (20 + number % 7, 20)
    PIL.Image.new("RGB", size, COLOURS[NAMES[number % 3]]).save(folder / name)
    return name


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def documents(folder: Path, count: int = 48) -> Path:
    """Documents as OBELICS has them: lists of images and of texts, with gaps."""
    rows = []
    for number in range(count):
        colours = [NAMES[number % 3], NAMES[(number + 1) % 3]]
        names: list[str | None] = []
        texts: list[str | None] = []
        if number % 4 == 0:
            names.append(None)
            texts.append("what is this ?")
        for more, colour in enumerate(colours[: 1 + number % 2]):
            names += [image(folder / "images", number + more), None]
            texts += [None, f"a {colour} square"]
        rows.append({"images": names, "texts": texts})
    return lines(folder / "documents.jsonl", rows)


def documents_parquet(folder: Path, count: int = 48) -> Path:
    """The same documents with their images as bytes, in one Parquet file."""
    source = documents(folder / "loose", count)
    rows = [json.loads(row) for row in source.read_text().splitlines()]
    for row in rows:
        row["images"] = [
            name and {"bytes": (source.parent / "images" / name).read_bytes()}
            for name in row["images"]
        ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "documents.parquet")
    return folder / "documents.parquet"


def preferences(folder: Path, count: int = 48, *, turns: bool = False) -> Path:
    """Pairs as texts, or as lists of messages, with an image."""
    rows = []
    for number in range(count):
        chosen = f"a {NAMES[number % 3]} square"
        rejected = f"a {NAMES[(number + 1 + number % 2) % 3]} square"
        row: dict[str, Any] = {"images": [image(folder / "images", number)]}
        row |= {"prompt": "what is this ?", "chosen": chosen, "rejected": rejected}
        if turns:
            roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
            for name, role in roles.items():
                row[name] = [{"role": role, "content": row[name]}]
        rows.append(row)
    return lines(folder / "pairs.jsonl", rows)


def questions(folder: Path, count: int = 48) -> Path:
    """Images with a list of questions and a list of answers."""
    rows = []
    for number in range(count):
        colour = NAMES[number % 3]
        row: dict[str, Any] = {"image": image(folder / "images", number)}
        row["questions"] = ["what is this ?", "is this blue ?", "what ?"]
        answers = [f"a {colour} square", "red" if colour == "red" else "blue", colour]
        row["answers"] = answers
        more = 2 + number % 2
        row |= {"questions": row["questions"][:more], "answers": answers[:more]}
        rows.append(row)
    return lines(folder / "questions.jsonl", rows)


def png(colour: str = "red") -> bytes:
    """An image as bytes."""
    stream = io.BytesIO()
    PIL.Image.new("RGB", (20, 20), COLOURS[colour]).save(stream, "PNG")
    return stream.getvalue()
