"""Where samples were read from."""

from __future__ import annotations

from typing import Any, TypeVar

from energize.cache.base import add_source
from energize.samples.source_info import SourceInfo

__all__ = ["SourceInfo", "add_source_info", "get_source_info"]

T = TypeVar("T")


def add_source_info(sample: T, *source_infos: SourceInfo) -> T:
    """Add sources to the `__sources__` of a sample or dict; what has no place for them is an error.

    >>> source = SourceInfo(dataset_path="cats", index=0, shard_name="0.tar", file_names=("a.jpg",))
    >>> add_source_info({"__key__": "a"}, source)["__sources__"][0].shard_name
    '0.tar'
    """
    for source in source_infos:
        add_source(sample, source)
    return sample


def get_source_info(sample: Any) -> list[SourceInfo] | None:
    """The sources of a sample, or of all samples of a list; None where nothing is known."""
    if isinstance(sample, list | tuple):
        found = [source for each in sample for source in get_source_info(each) or ()]
        return found or None
    is_dict = isinstance(sample, dict)
    sources = sample.get("__sources__") if is_dict else getattr(sample, "__sources__", None)
    # A batch has a tuple for each of its samples, or None.
    of_each = [one if isinstance(one, tuple | list) else [one] for one in sources or () if one]
    return [source for one in of_each for source in one] or None
