"""Paths of files that may lie anywhere."""

from energize.epathlib.epath import DEFAULT_PROFILE_NAME, EPath

__all__ = ["DEFAULT_PROFILE_NAME", "EPath"]
