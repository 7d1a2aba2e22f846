"""Tables of cases in one test: a failure names its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

Fault = tuple[Callable[[], Any], str]
"""What is done wrong, and words of the error, with "..." for what is between."""


@contextmanager
def row(name: object) -> Iterator[None]:
    """Failures inside say of which row they are."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"in the row {name!r}")
        raise


def check_faults(kind: type[Exception], faults: Mapping[str, Fault]) -> None:
    """Every fault raises an error of this kind, which has its words in their order."""
    wrong = []
    for name, (call, words) in faults.items():
        with row(name), pytest.raises(kind) as caught:
            call()
        text, at = str(caught.value), 0
        for part in words.split("..."):
            at = text.find(part, at)
            if at < 0:
                wrong.append(f"{name}: no {part!r} in {text!r}")
                break
    assert not wrong, "\n".join(wrong)
