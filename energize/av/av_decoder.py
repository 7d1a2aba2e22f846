"""Decoding videos and sounds."""

from energize.av.decoder import AVDecoder
from energize.av.parts import AVWebdatasetDecoder

__all__ = ["AVDecoder", "AVWebdatasetDecoder"]
