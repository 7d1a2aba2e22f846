"""Collecting what is known of the images, videos and sounds of a plain folder."""

from energize.prepare.media import prepare_filesystem_dataset

__all__ = ["prepare_filesystem_dataset"]
