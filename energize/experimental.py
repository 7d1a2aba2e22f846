"""Experimental features: stages, batches of equal cost, live weights, remapped states.

Names and arguments of this module can change in any release. Orders and saved states
stay valid.
"""

from energize.compat.stage_files import (
    StageData,
    build_stage,
    get_staged_train_dataset,
    read_stages,
)
from energize.datasets.align import AlignDataset, AlignedBudgetDataset
from energize.datasets.level import LevelBufferDataset, LevelDataset
from energize.datasets.stage_plan import Stage, StagePlan
from energize.datasets.stages import StagedDataset
from energize.inference.measuring import measure_columns
from energize.loader.following import Follower, WeightsFile
from energize.loader.remap import RemapReport

__all__ = [
    "AlignDataset",
    "AlignedBudgetDataset",
    "Follower",
    "LevelBufferDataset",
    "LevelDataset",
    "RemapReport",
    "Stage",
    "StageData",
    "StagePlan",
    "StagedDataset",
    "WeightsFile",
    "build_stage",
    "get_staged_train_dataset",
    "measure_columns",
    "read_stages",
]
