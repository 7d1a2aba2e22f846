"""The names of the files of a prepared folder, and of the members of a shard."""

from __future__ import annotations

import re

from energize.storage.nv_meta_files import INFO_NAMES, META_FOLDER, SQLITE_NAME, UUID_NAME

MAIN_FOLDER_NAME = META_FOLDER
INFO_JSON_FILENAME, INFO_YAML_FILENAME = INFO_NAMES
SPLIT_YAML_FILENAME = "split.yaml"
INDEX_SQLITE_FILENAME = SQLITE_NAME
INDEX_UUID_FILENAME = UUID_NAME

split_name_re = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
"""Splits the name of a member into the key of its sample and the name of its part."""
skip_meta_re = re.compile(r"__[^/]*__($|/)")
"""What the name of a member that belongs to no sample begins with."""
