"""Libraries that are only needed for some sources."""

from energize.optional import is_instance_of, optional_module

__all__ = ["is_instance_of", "optional_module"]
