"""Texts as token ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.errors import ConfigError, nearest
from energize.sources.optional import optional_module

__all__ = ["TokenizeExample", "Tokenizer", "TokenizerConfig", "loaded_tokenizer"]

Tokenizer = Callable[[str], Any]
"""A function of a text that gives token ids, or a mapping with `input_ids` among its values."""


@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer by name or path, and how it is called.

    `name_or_path` is a function of a text, the file of a saved tokenizer (`tokenizer.json`), or a
    name or folder that transformers finds on this machine. Nothing is downloaded, and no code that
    comes with a tokenizer is run.
    """

    name_or_path: str | Tokenizer
    max_length: int = 2048
    truncation: bool = True
    add_special_tokens: bool = True
    return_attention_mask: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name_or_path, str | os.PathLike) and not callable(self.name_or_path):
            raise ConfigError(
                "a tokenizer is a function of a text, a file, or a name that transformers knows; "
                f"got {self.name_or_path!r}"
            )


@dataclass(frozen=True)
class TokenizeExample:
    """`input_ids`, `attention_mask` where it is wanted, and the fields that are kept."""

    tokenizer: Tokenizer
    config: TokenizerConfig
    content_field: str
    kept: tuple[str, ...]

    def __call__(self, example: Mapping[str, Any]) -> dict[str, Any]:
        for name in (self.content_field, *self.kept):
            if name not in example:
                raise ConfigError(
                    f"an example has no field {name!r}{nearest(name, list(example)) or '.'} "
                    f"It has {', '.join(example)}; set content_field and additional_fields of the "
                    "DatasetConfig"
                )
        tokens = self._tokens(str(example[self.content_field]))
        return {**tokens, **{name: example[name] for name in self.kept}}

    def _tokens(self, text: str) -> dict[str, Any]:
        given = self.tokenizer(text)
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

    def __call__(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.tokenizer.encode(
            text, add_special_tokens=self.add_special_tokens
        ).ids
        return ids


@dataclass(frozen=True)
class _NamedTokenizer:
    """A tokenizer of the library transformers, called with what the config says."""

    tokenizer: Any
    add_special_tokens: bool

    def __call__(self, text: str) -> Mapping[str, Any]:
        return dict(self.tokenizer(text, add_special_tokens=self.add_special_tokens))


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
    return _NamedTokenizer(found, config.add_special_tokens)
