"""Weights in a file that an operator writes while a run goes on."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from energize.core.blends import numbers_by_name
from energize.core.checks import checked_whole
from energize.core.limits import load_yaml
from energize.data.files import files_at
from energize.errors import ConfigError, EnergizeError, WeightError
from energize.loader.agreement import Agreement

_LARGEST = 2**16
"""Characters of a file of weights, at most."""

_WHAT = "the file of weights"

_FIELDS = ("at_step", "blend")

_log = logging.getLogger("energize")


class Changed(Protocol):
    """The loader whose weights the file has."""

    def set_weights(
        self, weights: Mapping[str, float], at_step: int | None = None, *, blend: str | None = None
    ) -> None: ...

    def has_set(
        self, weights: Mapping[str, float], at_step: int | None, blend: str | None
    ) -> bool: ...

    def talking(self) -> Agreement | None: ...


class WeightsFile:
    """A YAML or JSON file `{name: weight, ...}`, with `at_step` and `blend` where they are wanted,
    or with the weights under `weights`. It need not be there yet.

    The first rank looks at it before the first step and then every `every` steps, and tells the
    others. What is new in it since it was looked at last is given to `Loader.set_weights`, unless
    the blend has these weights already, as in a resumed run. What cannot be read or set is a
    warning, and changes nothing. Write it elsewhere and rename it, so that nobody sees half of it.
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 50) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"the file of weights is a path; got {path!r}")
        self.path = Path(path)
        self._every = checked_whole(every, "WeightsFile: every", 1)
        self._steps = 0
        self._seen: str | None = None

    def look(self, loader: Changed) -> None:
        """Called before each step on all ranks: take over what is new in the file, now and then."""
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        agreement = loader.talking()
        first = agreement is None or agreement.first
        told = self._news() if first else None
        if agreement is not None:
            told = agreement.told_by_first(told, _WHAT)
        if told is None or loader.has_set(told["weights"], told["at_step"], told["blend"]):
            return
        try:
            loader.set_weights(told["weights"], told["at_step"], blend=told["blend"])
        except (ConfigError, WeightError) as reason:
            if first:
                _log.warning("%s: %s. The weights stay as they are", self.path, reason)

    def _news(self) -> dict[str, Any] | None:
        """What is new in the file."""
        try:
            path = os.fspath(self.path)
            files = files_at(path)
            text = files.read(path, 0, min(files.size(path), _LARGEST + 1)).decode("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as reason:  # ValueError: of a name with NUL, and no UTF-8
            text, fault = str(reason), reason
            if text != self._seen:
                self._seen = text
                _log.warning(
                    "%s cannot be read (%s). The weights stay as they are", self.path, fault
                )
            return None
        if text == self._seen:
            return None
        self._seen = text
        try:
            return read_weights(text)
        except EnergizeError as reason:
            _log.warning("%s: %s. The weights stay as they are", self.path, reason)
            return None


def read_weights(text: str) -> dict[str, Any]:
    r"""The `weights`, `at_step` and `blend` of a file; `ConfigError` saying what is wrong.

    >>> read_weights("web: 3\ncode: 1\nat_step: 2000")
    {'weights': {'web': 3, 'code': 1}, 'at_step': 2000, 'blend': None}
    """
    if len(text) > _LARGEST:
        raise ConfigError(f"a file of weights has {_LARGEST} characters at most")
    try:
        content = load_yaml(text)
    except yaml.YAMLError as reason:
        mark = getattr(reason, "problem_mark", None)
        last = text.rstrip().count("\n")
        line = "" if mark is None else f" in line {min(mark.line, last) + 1}"
        problem = getattr(reason, "problem", None) or type(reason).__name__
        raise ConfigError(f"it is no YAML{line}: {problem}") from reason
    except ValueError as reason:  # too deep, or aliases that stand for too much
        raise ConfigError(f"it is no file of weights: {reason}") from reason
    if not isinstance(content, dict):
        raise ConfigError(
            f"it holds weights by name, name: weight in each line; got {str(content)[:80]!r}"
        )
    fields = {name: content.get(name) for name in _FIELDS}
    if "weights" in content and isinstance(content["weights"], dict):
        unknown = [str(name) for name in content if name not in (*_FIELDS, "weights")]
        if unknown:
            raise ConfigError(f"beside 'weights' there are at_step and blend; got {unknown[0]!r}")
        weights = content["weights"]
    else:
        weights = {name: value for name, value in content.items() if name not in _FIELDS}
    at_step, blend = fields["at_step"], fields["blend"]
    if at_step is not None and (isinstance(at_step, bool) or not isinstance(at_step, int)):
        raise ConfigError(f"at_step is a whole number; got {at_step!r}")
    if blend is not None and not isinstance(blend, str):
        raise ConfigError(f"blend is the name of a blend; got {blend!r}")
    return {"weights": numbers_by_name(weights), "at_step": at_step, "blend": blend}
