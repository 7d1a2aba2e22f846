"""Samples of text."""

from __future__ import annotations

from dataclasses import dataclass

from energize.samples.sample import Sample


@dataclass(kw_only=True, slots=True)
class TextSample(Sample):
    """A text."""

    text: str
