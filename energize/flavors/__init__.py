"""Megatron-Energon's kinds of datasets: sample types, and factories that make datasets of them."""

from energize.av import AVData, AVDecoder
from energize.errors import EmptyDatasetError
from energize.flavors.base_dataset import (
    BaseCoreDatasetFactory,
    PinMemoryMixin,
    SavableDataset,
)
from energize.flavors.crude import CrudeWebdataset
from energize.flavors.jsonl import CrudeJsonlDatasetFactory, DefaultCrudeJsonlDatasetFactory
from energize.flavors.typed import (
    CaptioningWebdataset,
    ImageClassificationWebdataset,
    ImageWebdataset,
    InterleavedWebdataset,
    MultiChoiceVQAWebdataset,
    OCRWebdataset,
    SimilarityInterleavedWebdataset,
    TextWebdataset,
    VidQAWebdataset,
    VQAOCRWebdataset,
    VQAWebdataset,
)
from energize.flavors.webdataset import (
    BaseWebdatasetFactory,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    JoinedWebdatasetFactory,
    StandardWebdatasetFactory,
    WebdatasetMeta,
)
from energize.flavors.webdataset.sample_decoder import AVDecoderType, ImageDecoderType
from energize.samples.crude import CrudeSample
from energize.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
from energize.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
from energize.samples.ocr import OCRSample, VQAOCRSample
from energize.samples.sample import Sample
from energize.samples.text import TextSample
from energize.samples.video import VidQASample
from energize.samples.vqa import MultiChoiceVQASample, VQASample
from energize.task_encoder.decoding import SampleDecoder

__all__ = [
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "CaptioningSample",
    "CaptioningWebdataset",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "EmptyDatasetError",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageDecoderType",
    "ImageSample",
    "ImageWebdataset",
    "InterleavedSample",
    "InterleavedWebdataset",
    "JoinedWebdatasetFactory",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "OCRSample",
    "OCRWebdataset",
    "PinMemoryMixin",
    "Sample",
    "SampleDecoder",
    "SavableDataset",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "StandardWebdatasetFactory",
    "TextSample",
    "TextWebdataset",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "WebdatasetMeta",
]
