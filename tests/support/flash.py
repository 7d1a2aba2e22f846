"""Flash attention of variable length, computed on a CPU, for models of transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """As of the package flash_attn, for (batch, tokens, heads, size)."""
    groups = q.shape[2] // k.shape[2]
    k, v = (part.repeat_interleave(groups, 2) for part in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    age = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    hidden = (age < 0) if causal else torch.zeros_like(age, dtype=torch.bool)
    if window_size[0] >= 0:
        hidden |= age > window_size[0]
    if window_size[1] >= 0:
        hidden |= -age > window_size[1]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """As of the package flash_attn, which checks less, for (tokens, heads, size)."""
    for offsets, longest, size in (
        (cu_seqlens_q, max_seqlen_q, len(q)),
        (cu_seqlens_k, max_seqlen_k, len(k)),
    ):
        assert offsets.dtype == torch.int32
        assert offsets[0] == 0
        assert offsets[-1] == size
        assert 0 < offsets.diff().min() <= offsets.diff().max() == longest
    bounds = cu_seqlens_q.tolist()
    parts = [
        flash_attn_func(
            *(part[None, start:stop] for part in (q, k, v)),
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
        )[0]
        for start, stop in pairwise(bounds)
    ]
    return torch.cat(parts)


def use_flash(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model take the path of flash attention, with the functions above."""
    from transformers import modeling_flash_attention_utils as utils

    functions = (flash_attn_func, flash_attn_varlen_func, None)
    padding = (utils._pad_input, utils._unpad_input)
    monkeypatch.setattr(utils, "_lazy_imports", lambda *_, **__: functions + padding)
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
