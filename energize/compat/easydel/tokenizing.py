"""Texts as token ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import StrictBool

from energize.compat.checks import Count, checked_fields, expected, or_fields
from energize.errors import ConfigError
from energize.optional import optional_module

Tokenizer = Callable[[str], Any]
"""A function of a text that gives token ids, or a mapping with `input_ids` among its values."""

_TOKENIZER = expected("is a function of a text, a file, or a name that transformers knows")


@checked_fields
@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer by name or path, and how it is called.

    `name_or_path` is a function of a text, the file of a saved tokenizer (`tokenizer.json`), or a
    name or folder that transformers finds on this machine. Nothing is downloaded, and no code that
    comes with a tokenizer is run.
    """

    name_or_path: Annotated[str | os.PathLike[str] | Tokenizer, _TOKENIZER]
    max_length: Count = 2048
    truncation: StrictBool = True
    add_special_tokens: StrictBool = True
    return_attention_mask: StrictBool = True


AnyTokenizer = Annotated[
    str | os.PathLike[str] | TokenizerConfig | Tokenizer, _TOKENIZER, or_fields(TokenizerConfig)
]
"""A tokenizer, by itself or with how it is called."""


@dataclass(frozen=True)
class Tokens:
    """`input_ids` of a text, `attention_mask` where it is wanted, and what the tokenizer adds."""

    tokenizer: Tokenizer
    config: TokenizerConfig

    def __call__(self, text: object) -> dict[str, Any]:
        given = self.tokenizer(str(text))
        values = dict(given) if isinstance(given, Mapping) else {"input_ids": list(given)}
        if "input_ids" not in values:
            raise ConfigError(
                f"the tokenizer gave {', '.join(values)} and no input_ids; it has to give token "
                "ids, or a mapping with input_ids"
            )
        if self.config.truncation:
            values = {name: ids[: self.config.max_length] for name, ids in values.items()}
        if not self.config.return_attention_mask:
            values.pop("attention_mask", None)
        elif "attention_mask" not in values:
            values["attention_mask"] = [1] * len(values["input_ids"])
        return values


@dataclass(frozen=True)
class _SavedTokenizer:
    """A tokenizer of the library tokenizers, called like a function."""

    tokenizer: Any
    add_special_tokens: bool

    def __call__(self, text: str) -> Any:
        return self.tokenizer.encode(text, add_special_tokens=self.add_special_tokens).ids


def loaded_tokenizer(config: TokenizerConfig, dataset: str) -> Tokenizer:
    """The tokenizer of a config; `ConfigError` naming the dataset where there is none."""
    if callable(config.name_or_path):
        return config.name_or_path
    path = Path(config.name_or_path)
    purpose = f"tokenizing dataset {dataset!r} with {config.name_or_path!r}"
    if path.is_file():
        tokenizers = optional_module("tokenizers", "tokenizers", purpose)
        return _SavedTokenizer(tokenizers.Tokenizer.from_file(str(path)), config.add_special_tokens)
    transformers = optional_module("transformers", "transformers", purpose)
    try:
        found = transformers.AutoTokenizer.from_pretrained(
            config.name_or_path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{purpose}: it is not on this machine, and nothing is downloaded; fetch it first, or "
            f"give a function or the file of a saved tokenizer ({error})"
        ) from error
    return partial(found, add_special_tokens=config.add_special_tokens)
