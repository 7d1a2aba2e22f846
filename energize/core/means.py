"""Means of weighted losses over a whole global batch, however it is divided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import as_tensor
from energize.core.lazy import torch
from energize.core.loss_weights import WEIGHTS, counted, field_of
from energize.core.padding import is_padding, padding_rows
from energize.errors import ConfigError

Weights: TypeAlias = Any
"""A tensor of weights, or a batch with its `sample_weights`; without them each sample
counts 1."""


def weighted_mean(
    loss: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    total: torch.Tensor | float | None = None,
    group: Any = None,
) -> torch.Tensor:
    """Return the weighted mean of `loss` over the global batch.

    The result is sum(weights * loss) of this rank, divided by the weights of the whole
    global batch, times the number of ranks. After DistributedDataParallel or FSDP have
    averaged gradients, the gradient is that of sum(w * l) / sum(w) over all samples of
    the global batch, for any numbers of ranks and samples. The mean of the results of
    the ranks is that value as well.

    Args:
        loss: Losses of any shape, such as (batch,) or (tokens,).
        weights: Weights of the same shape; None for 1. An entry with weight 0 adds 0,
            even if its loss is not finite. If all weights are 0, result and gradient
            are 0.
        total: The weights of the global batch, over all ranks and accumulated micro
            batches, from `total_weight`. None: this batch is all of it on this rank,
            and all ranks must call this function, for a collective of one number.
        group: The process group that averages gradients; None for all ranks. Without
            torch.distributed there is one rank.

    Returns:
        A scalar to call `backward()` on.

    Raises:
        ConfigError: If shapes differ.

    Example:
        >>> weighted_mean(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0]))
        tensor(1.2500)
    """
    if not isinstance(loss, torch.Tensor) or not isinstance(
        weights, torch.Tensor | None
    ):
        kinds = f"a {type(loss).__name__} and a {type(weights).__name__}"
        raise ConfigError(
            f"weighted_mean: the loss and its weights must be tensors, got {kinds}"
        )
    weights = torch.ones_like(loss) if weights is None else weights.to(loss.device)
    if loss.shape != weights.shape:
        raise ConfigError(
            f"weighted_mean: the loss has the shape {tuple(loss.shape)} and the "
            f"weights have {tuple(weights.shape)}. Pass one loss for each sample "
            "(reduction='none'), or for each token the weight of its sample "
            "(torch.repeat_interleave)"
        )
    if total is None:
        total = total_weight(weights, group=group)
    over = as_tensor(total, torch.float64).to(loss.device)
    scale = torch.where(over > 0, _ranks(group) / over, torch.zeros_like(over))
    counting = torch.where(
        weights > 0, loss * weights, torch.zeros_like(loss * weights)
    )
    return counting.sum() * scale.to(counting.dtype)


def total_weight(
    weights: Weights | Iterable[Weights], *, group: Any = None
) -> torch.Tensor:
    """Return the sum of all weights over all ranks, for `weighted_mean(total=...)`.

    All ranks must call it at the same point, for a collective of one number.

    Args:
        weights: A tensor of weights or a batch; or several of them, the micro batches
            that gradients are accumulated over. A batch without `sample_weights` counts
            its samples, without padding.
        group: The process group; None for all ranks.

    Returns:
        A float64 scalar.

    Raises:
        ConfigError: If there are no weights.
        WeightError: If a value is neither tensor nor batch, or the number of samples of
            a batch is unknown.

    Example:
        >>> total_weight(
        ...     [torch.tensor([0.5, 1.0]), {"sample_weights": torch.tensor([2.0])}]
        ... )
        tensor(3.5000, dtype=torch.float64)
    """
    several = isinstance(weights, list | tuple) and not hasattr(weights, "_fields")
    sums = [_summed(part) for part in (weights if several else [weights])]
    if not sums:
        raise ConfigError(
            "total_weight: the list of weights is empty. Pass those of all micro "
            "batches"
        )
    total = torch.stack([part.to(sums[0].device) for part in sums]).sum()
    if _ranks(group) > 1:
        backend = torch.distributed.get_backend(group)
        if (
            total.device.type == "cpu"
            and "gloo" not in backend
            and torch.cuda.is_available()
        ):
            total = total.to("cuda")
        torch.distributed.all_reduce(total, group=group)
    return total


def effective_sample_size(weights: npt.ArrayLike | torch.Tensor) -> float:
    """Return the number of equally weighted samples of equal statistical effect.

    It is (sum of w)² / sum of w² (Kish, Survey Sampling, 1965): the number of samples
    if all weights are equal, and 0 if all are 0.

    Args:
        weights: Weights of any shape.

    Example:
        >>> (
        ...     effective_sample_size([1.0, 1.0, 1.0, 1.0]),
        ...     effective_sample_size([2.0, 1.0, 0.0, 0.0]),
        ... )
        (4.0, 1.8)
    """
    on_host = weights.detach().cpu() if isinstance(weights, torch.Tensor) else weights
    values = np.asarray(on_host, dtype=np.float64)
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares else 0.0


def _summed(weights: Weights) -> torch.Tensor:
    values: torch.Tensor | None = weights
    if not isinstance(weights, torch.Tensor):
        values = field_of(weights, WEIGHTS)
    if values is not None:
        return values.sum(dtype=torch.float64)
    number = 0
    if not is_padding(weights):
        number = counted(weights) - len(padding_rows(weights))
    return as_tensor(number, torch.float64)


def _ranks(group: Any) -> int:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size(group)
