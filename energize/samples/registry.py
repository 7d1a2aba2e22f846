"""Sample types by the names under which dataset.yaml knows them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from energize.errors import DatasetError, UntrustedCodeError, nearest
from energize.samples.crude import CrudeSample
from energize.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
from energize.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
from energize.samples.ocr import OCRSample, VQAOCRSample
from energize.samples.sample import Sample
from energize.samples.text import TextSample
from energize.samples.video import VidQASample
from energize.samples.vqa import MultiChoiceVQASample, VQASample

SampleType = type[Sample] | type[CrudeSample]

SAMPLE_TYPES: Mapping[str, SampleType] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            TextSample,
            ImageSample,
            CaptioningSample,
            ImageClassificationSample,
            VQASample,
            MultiChoiceVQASample,
            OCRSample,
            VQAOCRSample,
            VidQASample,
            InterleavedSample,
            SimilarityInterleavedSample,
            CrudeSample,
        )
    }
    | {"CrudeWebdataset": CrudeSample}
)
"""The sample types that come with energize; "CrudeWebdataset" is what prepared folders write."""

_OWN_MODULES = ("energize", "megatron.energon")


def is_own_module(module: str) -> bool:
    """Whether a name means the types that come with energize: those of its modules, and of
    Megatron-Energon's.
    """
    return any(module == own or module.startswith(f"{own}.") for own in _OWN_MODULES)


def sample_type_named(module: str, name: str) -> SampleType:
    """The sample type that dataset.yaml means by `__module__: module` and `__class__: name`.

    Modules of energize and of Megatron-Energon mean the types here. A type of another module is
    found only when the program has imported that module itself: nothing is imported because a data
    folder names it.

    Raises `UntrustedCodeError` for a module that has not been imported, `DatasetError` for an
    unknown name and for what is no sample type.

    >>> sample_type_named("megatron.energon", "TextSample").__name__
    'TextSample'
    """
    if is_own_module(module):
        if name not in SAMPLE_TYPES:
            known = ", ".join(SAMPLE_TYPES)
            raise DatasetError(
                f"sample type {name!r} of {module!r} is not known; known are {known}"
                f"{nearest(name, list(SAMPLE_TYPES))}"
            )
        return SAMPLE_TYPES[name]
    return _imported(module, name)


def _imported(module: str, name: str) -> SampleType:
    if module not in sys.modules:
        raise UntrustedCodeError(
            f"the dataset names the sample type {name!r} of the module {module!r}, which this "
            f"program has not imported. Nothing is imported because a data folder asks for it: if "
            f"you trust that module, write `import {module}` in your program before opening the "
            "dataset"
        )
    kind = vars(sys.modules[module]).get(name)
    if not isinstance(kind, type) or not issubclass(kind, Sample | CrudeSample):
        found = "has no such name" if kind is None else f"has a {type(kind).__name__} of that name"
        raise DatasetError(
            f"the dataset names the sample type {name!r} of the module {module!r}, which {found}; "
            "a sample type is a dataclass that extends energize.Sample"
        )
    return kind
