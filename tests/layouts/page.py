"""The page docs/your-data.md: every layout of these tests, what it becomes, and how to
change it.

`python -m tests.layouts.page` writes it.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import tests.layouts.known
import tests.layouts.more  # noqa: F401
from energize import infer
from energize.errors import EnergizeError
from tests.layouts.base import LAYOUTS, Layout, instance

PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"

HEAD = """\
# Your data look like this

`get_train_dataset(path)` reads the layouts on this page without `energize prepare`. Find the row
that looks like your folder: it names the sample type and the line that changes it. How loose data
are read is explained in [loose-files.md](loose-files.md).

Print what is inferred of your own data before you train:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from energize import infer
    >>> path = Path(tempfile.mkdtemp(), "questions.jsonl")
    >>> _ = path.write_text('{"prompt": "Is the sky blue?", "response": "Yes."}\\n')
    >>> spec = infer(path)
    >>> spec.sample_type, spec.splits
    ('ConversationSample', {'train': 1})
    >>> print(spec.override)
    sample_type: ConversationSample, field_map: {"turns": "chat(user=prompt, assistant=response)"}

Correct that line and write it into the entry of your metadataset, or pass the same names as
arguments:
`get_train_dataset(path, sample_type=..., field_map=...)`. `energize init PATH -o mix.yaml` writes a
metadataset with all lines.

Each row is a test of the library. This page is generated: `python -m tests.layouts.page`.
"""

REFUSED = "Refused, with the line to write"
_SHOWN_FILES = 4
_LONGEST = 330


def text_of_page(folder: Path) -> str:
    """The page, from instances of all layouts that are written into a folder."""
    sections: dict[str, list[str]] = {}
    for name, layout in LAYOUTS.items():
        root = instance(name, folder)
        heading, row = row_of(layout, root)
        sections.setdefault(heading, []).append(row)
    order = sorted(sections, key=lambda heading: (heading == REFUSED, heading))
    text = HEAD
    for heading in order:
        column = "what to do" if heading == REFUSED else "the line that changes it"
        text += f"\n## {heading}\n\n| layout | files | samples | {column} |\n|---|---|---|---|\n"
        text += "".join(sections[heading])
    return text


def row_of(layout: Layout, root: Path) -> tuple[str, str]:
    """The heading of a layout, and its row, from its first opening."""
    opening = layout.expected[0]
    path = root / opening.path
    try:
        spec = infer(path)
    except EnergizeError as error:
        heading, samples, line = REFUSED, "none", plain(str(error), root)
    else:
        heading = spec.sample_type
        samples = ", ".join(f"{part}: {count}" for part, count in spec.splits.items())
        line = code(spec.override)
    cells = (
        layout.source.replace("<", "&lt;"),
        ", ".join(files_of(root)),
        samples,
        line,
    )
    return (
        heading,
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n",
    )


def plain(message: str, root: Path) -> str:
    """A message in one line, without the folder of the instance."""
    text = message.replace(f"{root}/", "").replace(str(root), root.name)
    text = re.sub(r"\s+", " ", text).replace("<", "&lt;")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} ..."


def code(text: str) -> str:
    return f"`{text}`"


def files_of(root: Path) -> Iterator[str]:
    """The first files of an instance: one of each folder and extension before any
    other."""
    names = sorted(
        str(each.relative_to(root)) for each in root.rglob("*") if each.is_file()
    )
    kinds = {
        (os.path.dirname(name), os.path.splitext(name)[1]): name
        for name in reversed(names)
    }
    shown: Sequence[str] = sorted(kinds.values())[:_SHOWN_FILES]
    yield from map(code, shown)
    if len(names) > len(shown):
        yield f"{len(names) - len(shown)} more"


def main() -> None:
    """Write the page."""
    logging.getLogger("energize").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/.cache"
        PAGE.write_text(text_of_page(Path(folder)))


if __name__ == "__main__":
    main()
