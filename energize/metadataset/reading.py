"""Metadataset files: from text to checked documents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from energize.metadataset.explaining import explained
from energize.metadataset.located_yaml import KeyPath, LocatedYaml, read_yaml
from energize.metadataset.problems import Problem, as_error
from energize.metadataset.schema import Document, Split, document_model

__all__ = ["STAGE_FILE", "Metadataset", "load", "read_metadataset"]

STAGE_FILE = (
    "a file of stages is no metadataset; it is read by get_staged_train_dataset and read_stages"
)


@dataclass(frozen=True, slots=True)
class Metadataset:
    """A metadataset file, checked by itself: what it refers to was not looked at."""

    file: Path
    document: Document
    text: LocatedYaml

    @property
    def splits(self) -> dict[str, Split]:
        """The dataset, blend or stages of each split, by the name of the split."""
        return dict(self.document.splits)

    def place(self, path: KeyPath = ()) -> str:
        """Where a path in the document is: `file:line (path)`."""
        return self.text.place(path)


def read_metadataset(path: str | os.PathLike[str]) -> Metadataset:
    """Read a metadataset file; the files and folders it names are not touched.

    The text is plain data: nothing in it is imported, executed or expanded.

    Raises `MetadatasetError` with every fault of the file, each with its line, its path in the
    document, the value and what was expected; `DatasetNotFoundError` when there is no such file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "mix.yaml"
    >>> _ = file.write_text('''
    ... __module__: energize
    ... __class__: MetadatasetV2
    ... splits:
    ...   train:
    ...     blend:
    ...       - {path: captions, weight: 3}
    ...       - {path: photographs, weight: 1}
    ... ''')
    >>> [(entry.path, entry.weight) for entry in read_metadataset(file).splits["train"].entries]
    [('captions', 3.0), ('photographs', 1.0)]
    """
    problems: list[Problem] = []
    metadataset = load(Path(path), problems)
    if metadataset is None:
        raise as_error(Path(path), problems)
    return metadataset


def load(file: Path, problems: list[Problem]) -> Metadataset | None:
    """The document in `file`, or None when it cannot be used; every fault goes to `problems`."""
    found: list[Problem] = []
    text = read_yaml(file, found)
    document = None
    if text is not None and _is_of_stages(text.data):
        found.append(text.problem(("training",), STAGE_FILE))
    elif text is not None:
        model = document_model(text.data)
        module = text.data.get("__module__") if isinstance(text.data, dict) else None
        try:
            document = model.model_validate(text.data, context={"module": module})
        except ValidationError as error:
            places = {problem.place for problem in found}
            found += [p for p in explained(text, model, error) if p.place not in places]
    problems += sorted(found, key=lambda problem: problem.line)
    return None if found or text is None or document is None else Metadataset(file, document, text)


def _is_of_stages(data: object) -> bool:
    return isinstance(data, dict) and "training" in data and "splits" not in data
