"""The program that reads everything on a disk that can be made sick, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sick_program import SickProgram


class Readers(SickProgram):
    """The program that reads everything on a disk that fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__("sick_readers", folder)
        self._well: dict[str, list[str]] = {}

    def ask(self, name: str, workers: int, faults: list[dict[str, Any]], after: int) -> Any:
        """What a reader made of these faults; see `tests/support/sick_readers.py`."""
        return self.told(name, workers, faults, after)

    def well(self, name: str) -> list[str]:
        """What the reader gives on a disk that is well."""
        if name not in self._well:
            told = self.ask(name, 0, [], -1)
            assert told["error"] is None, told
            assert len(told["items"]) == 20
            self._well[name] = told["items"]
        return self._well[name]


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> Iterator[Readers]:
    started = Readers(tmp_path_factory.mktemp("sick"))
    yield started
    started.close()
