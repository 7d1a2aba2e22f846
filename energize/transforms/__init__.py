"""Several changes of an image's geometry as one."""

from energize.transforms.base import TransformMapper
from energize.transforms.custom import CustomTransform
from energize.transforms.mappers import (
    CenterCropMapper,
    RandomAffineMapper,
    RandomCropMapper,
    RandomHorizontalFlipMapper,
    RandomPerspectiveMapper,
    RandomResizedCropMapper,
    RandomRotationMapper,
    RandomVerticalFlipMapper,
    ResizeMapper,
)
from energize.transforms.merge import MergeTransform
from energize.transforms.steps import (
    CenterCrop,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)

__all__ = [
    "CenterCrop",
    "CenterCropMapper",
    "CustomTransform",
    "MergeTransform",
    "RandomAffine",
    "RandomAffineMapper",
    "RandomCrop",
    "RandomCropMapper",
    "RandomHorizontalFlip",
    "RandomHorizontalFlipMapper",
    "RandomPerspective",
    "RandomPerspectiveMapper",
    "RandomResizedCrop",
    "RandomResizedCropMapper",
    "RandomRotation",
    "RandomRotationMapper",
    "RandomVerticalFlip",
    "RandomVerticalFlipMapper",
    "Resize",
    "ResizeMapper",
    "TransformMapper",
]
