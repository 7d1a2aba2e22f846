"""Values of options, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from energize.errors import ConfigError

_PARTS = ("train", "val", "test")


def parse_ratios(text: str) -> dict[str, float]:
    """Shares of train, val and test: "8,1,1", "0.9,0.1" (no test).

    >>> parse_ratios("8, 2")
    {'train': 8.0, 'val': 2.0}
    """
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= len(_PARTS):
        raise ConfigError(
            f"split ratio: expected up to three numbers for train, val and test such as 8,1,1, "
            f"got {text!r}"
        )
    return dict(zip(_PARTS, numbers, strict=False))


def parse_patterns(given: Sequence[str]) -> dict[str, list[str]]:
    """Patterns of shard names by split: "train:train-.*"; several for one split are joined.

    >>> parse_patterns(["train:a-.*", "train:b-.*", "val:c-.*"])
    {'train': ['a-.*', 'b-.*'], 'val': ['c-.*']}
    """
    patterns: dict[str, list[str]] = {}
    for each in given:
        part, colon, pattern = each.partition(":")
        if not (part and colon and pattern):
            raise ConfigError(
                f"--split-parts: expected SPLIT:PATTERN such as train:train-.*, got {each!r}"
            )
        patterns.setdefault(part, []).append(pattern)
    return patterns


def parse_field_map(text: str) -> dict[str, str]:
    """A JSON object from fields to parts.

    >>> parse_field_map('{"image": "jpg,png", "caption": "json[caption]"}')
    {'image': 'jpg,png', 'caption': 'json[caption]'}
    """
    try:
        content = json.loads(text)
    except ValueError as reason:
        raise ConfigError(f"--field-map: {text!r} is not valid JSON: {reason}") from reason
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise ConfigError(
            '--field-map: expected an object from fields to parts such as {"image": "jpg,png", '
            f'"caption": "txt"}}, got {text!r}'
        )
    return content
