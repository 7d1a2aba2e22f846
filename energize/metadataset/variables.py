"""Environment variables in the texts of a metadataset."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from energize.errors import ConfigError
from energize.metadataset.problems import shown

_FOUND = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORMS = "write ${NAME}, ${NAME:-default}, or $${ for the letters ${ themselves"


def expanded(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """A text with the values of the variables it names, as shells do it.

    `${NAME}` is the value of the variable, `${NAME:-default}` the default where it is not set or
    empty, and `$${` stands for `${`. Any other `$` is a letter like others. Values are not looked
    through for more variables.

    Raises `ConfigError` for a variable that is not set and has no default, and for `${` without a
    name and `}` after it.

    >>> expanded("${ROOT}/captions/${SET:-small}", {"ROOT": "/data"})
    '/data/captions/small'
    """

    def value(found: re.Match[str]) -> str:
        if found.group() == "$${":
            return "${"
        name, has_default, default = (found["inside"] or "").partition(":-")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{shown(text)} has '${{' without a variable's name: {_FORMS}")
        if not has_default and name not in environment:
            raise ConfigError(
                f"{shown(text)} needs the environment variable {name}, which is not set; set it, "
                f"or give a default: ${{{name}:-...}}"
            )
        return environment.get(name) or default

    return _FOUND.sub(value, text)
