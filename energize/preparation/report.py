"""What preparing a folder found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from energize.core.columns import Column
from energize.data.nv_meta import DatasetConfig


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What was prepared: shards with their sample counts, the splits, and in how many samples each
    part was found. `config` is what `dataset.yaml` says, None where none was written; `columns` are
    those that were measured; `notes` are things that may be mistakes.
    """

    path: Path
    shard_counts: dict[str, int]
    parts: dict[str, int]
    splits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    config: DatasetConfig | None = None
    notes: tuple[str, ...] = ()
    columns: dict[str, Column] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())
