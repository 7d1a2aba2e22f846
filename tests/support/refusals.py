"""Tables of what is refused: each row a call, the type of its error, and words of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = tuple[Callable[[], Any], type[Exception], *tuple[str, ...]]


def check_refusals(rows: Mapping[str, Row]) -> None:
    """Every call raises an error of just this type whose text has all the words."""
    wrong = []
    for name, (call, kind, *words) in rows.items():
        try:
            found = f"it returned {call()!r}"
        except Exception as error:
            missing = [word for word in words if word not in str(error)]
            if type(error) is kind and not missing:
                continue
            found = f"{type(error).__name__} without {missing}: {error}"
        wrong.append(f"{name}: {found}")
    assert not wrong, "\n".join(wrong)
