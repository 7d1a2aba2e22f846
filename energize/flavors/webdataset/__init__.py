"""Factories of datasets over prepared folders of shards."""

from energize.av import AVData, AVDecoder
from energize.errors import EmptyDatasetError
from energize.flavors.webdataset.base_webdataset import BaseWebdatasetFactory
from energize.flavors.webdataset.config import MAIN_FOLDER_NAME
from energize.flavors.webdataset.default_decoder_webdataset import DefaultDecoderWebdatasetFactory
from energize.flavors.webdataset.default_generic_webdataset import DefaultGenericWebdatasetFactory
from energize.flavors.webdataset.joined_webdataset import JoinedWebdatasetFactory
from energize.flavors.webdataset.metadata import WebdatasetMeta
from energize.flavors.webdataset.sample_decoder import (
    AVDecoderType,
    ImageDecoderType,
    SampleDecoder,
)
from energize.flavors.webdataset.standard_webdataset import StandardWebdatasetFactory

__all__ = [
    "MAIN_FOLDER_NAME",
    "AVData",
    "AVDecoder",
    "AVDecoderType",
    "BaseWebdatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "EmptyDatasetError",
    "ImageDecoderType",
    "JoinedWebdatasetFactory",
    "SampleDecoder",
    "StandardWebdatasetFactory",
    "WebdatasetMeta",
]
