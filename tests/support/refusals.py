"""Tables of what is refused: each row a call, words of its error, and the type of
that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_refusals(
    kind: type[Exception] | None = None,
    rows: Mapping[str, Any] | None = None,
    /,
    **named: Any,
) -> None:
    """Every call raises an error of just this type, or its own, whose text has all the
    words."""
    wrong = []
    for name, (call, *told) in {**(rows or {}), **named}.items():
        own, *words = told if told and isinstance(told[0], type) else (kind, *told)
        try:
            found = f"it returned {call()!r}"
        except Exception as error:
            missing = [word for word in words if word not in str(error)]
            if type(error) is own and not missing:
                continue
            found = f"{type(error).__name__} without {missing}: {error}"
        wrong.append(f"{name}: {found}")
    assert not wrong, "\n".join(wrong)
