"""Clips of videos and sounds."""

from energize.av.data import AVData

__all__ = ["AVData"]
