"""The name of Megatron-Energon's states."""

from __future__ import annotations

from typing import Any


class FlexState(dict[str, Any]):
    """A state by the names of what it is made of: a dict. States here are plain ones."""
