"""Putting values of one structure together, field by field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.errors import ConfigError
from energize.late import torch
from energize.sample_weights.batches import batch_weights, joined_weights
from energize.sample_weights.places import OWN, WEIGHT, WEIGHTS, counted
from energize.samples.sample import METADATA
from energize.samples.structure import fields_of, is_record, rebuilt

_WEIGHT = "weight"
"""A field in which encoders say how much all samples of a batch count."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How to put tensors together, and lists; records are joined field by field.

    What is none of these is left as a list of the values, and so is the metadata of samples; lists
    are, too, where `lists` is not given. Metadata that no batch has stay None. With `from_samples`,
    a record type that has a method of this name joins its records itself. The weights of samples
    become the `sample_weights` of what is made of them.
    """

    tensors: Callable[[list[torch.Tensor]], torch.Tensor]
    lists: Callable[[list[list[Any]]], list[Any]] | None = None
    from_samples: bool = False

    def join(self, values: list[Any], where: str = "") -> Any:
        """The values as one; `ConfigError` naming the field where they are not alike."""
        if all(isinstance(each, torch.Tensor) for each in values):
            try:
                return self.tensors(values)
            except ConfigError as error:
                raise ConfigError(f"field {where}: {error}" if where else str(error)) from None
        if self.lists is not None and all(isinstance(each, list) for each in values):
            return self.lists(values)
        if is_record(values[0]) and all(type(each) is type(values[0]) for each in values):
            return self._records(values, where)
        if any(self._joined(each) for each in values):
            kinds = ", ".join(sorted({type(each).__name__ for each in values}))
            raise ConfigError(
                f"{f'field {where}' if where else 'values'} of different types cannot be joined: "
                f"{kinds}. Make them alike in encode_sample, or join them in a function of your own"
            )
        return values

    def columns(self, records: Sequence[Any], where: str = "") -> dict[str, list[Any]]:
        """For each field but weights its values; `ConfigError` when fields differ."""
        rows = [fields_of(each) for each in records]
        for row in rows if not where else ():
            row.pop(WEIGHT, None)
            row.pop(WEIGHTS, None)
            if self.lists is None and any(OWN in each for each in rows):
                row.setdefault(OWN, None)
        for row in rows:
            if row.keys() != rows[0].keys():
                odd = ", ".join(sorted(map(repr, row.keys() ^ rows[0].keys())))
                raise ConfigError(
                    f"{f'field {where}' if where else 'records'}: only some have the keys {odd}; "
                    "make them alike in encode_sample, or join them in a function of your own"
                )
        return {name: [row[name] for row in rows] for name in rows[0]}

    def column(self, name: str, values: list[Any], where: str = "") -> Any:
        """The values of one field as one."""
        batched = self.lists is not None and any(isinstance(each, list) for each in values)
        if name not in METADATA or batched:
            return self.join(values, f"{where}.{name}" if where else name)
        if self.lists is not None and all(each is None for each in values):
            return None
        return values

    def _records(self, records: list[Any], where: str) -> Any:
        kind = type(records[0])
        if self.from_samples and hasattr(kind, "from_samples"):
            return kind.from_samples(records)
        columns = self.columns(records, where)
        if not where and self.lists is not None and _has_numbers(columns.get(_WEIGHT, [])):
            pairs = zip(columns[_WEIGHT], records, strict=True)
            columns[_WEIGHT] = [_for_each(weight, batch) for weight, batch in pairs]
        joined = {name: self.column(name, values, where) for name, values in columns.items()}
        if where:
            return rebuilt(records[0], joined)
        weights = self.weights(records)
        if isinstance(records[0], dict):
            made = rebuilt(records[0], joined if weights is None else joined | {WEIGHTS: weights})
            made.pop(WEIGHT, None)
            return made
        own = {WEIGHT: None, WEIGHTS: weights}
        return rebuilt(records[0], {name: (own | joined)[name] for name in fields_of(records[0])})

    def weights(self, records: Sequence[Any]) -> torch.Tensor | None:
        """The weights of the samples, or of those of the batches; None where there are none."""
        return batch_weights(records) if self.lists is None else joined_weights(records)

    def _joined(self, value: Any) -> bool:
        listed = self.lists is not None and isinstance(value, list)
        return listed or isinstance(value, torch.Tensor) or is_record(value)


def _has_numbers(values: list[Any]) -> bool:
    """Whether some are numbers, and others at most tensors."""
    kinds = (int, float, np.integer, np.floating, torch.Tensor)
    known = all(isinstance(each, kinds) for each in values)
    return known and any(not getattr(each, "ndim", 0) for each in values)


def _for_each(weight: Any, batch: Any) -> torch.Tensor:
    """The weight of a batch for each of its samples: float32."""
    return torch.as_tensor(weight, dtype=torch.float32).expand(counted(batch))


def checked_alike(tensors: Sequence[torch.Tensor], owner: str) -> None:
    """Raises `ConfigError` unless there are tensors, of one rank, dtype and device."""
    if not tensors:
        raise ConfigError(f"{owner}: there are no tensors to join")
    for number, each in enumerate(tensors):
        if not isinstance(each, torch.Tensor):
            raise ConfigError(f"{owner}: entry {number} is a {type(each).__name__}, not a tensor")
    for what, values, remedy in (
        ("ranks", [each.ndim for each in tensors], "reshape them to one rank"),
        ("dtypes", [each.dtype for each in tensors], "convert them to one, or values are cut off"),
        ("devices", [each.device for each in tensors], "move them to one"),
    ):
        if len(set(values)) > 1:
            shapes = ", ".join(str(tuple(each.shape)) for each in tensors[:8])
            kinds = ", ".join(sorted({str(value) for value in values}))
            raise ConfigError(
                f"{owner}: tensors of different {what} cannot be joined: {kinds}, of shapes "
                f"{shapes}{', ...' if len(tensors) > 8 else ''}; {remedy}"
            )
