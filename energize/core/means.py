"""Means of weighted losses over a whole global batch, however it is divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import as_tensor
from energize.core.checks import checked_choice, checked_whole
from energize.core.lazy import torch
from energize.core.loss_weights import (
    LOSS_WEIGHTS,
    OFFSETS,
    WEIGHTS,
    counted,
    field_of,
)
from energize.core.padding import is_padding, padding_rows
from energize.errors import ConfigError, WeightError

Weights: TypeAlias = Any
"""A tensor of weights, or a batch with its `sample_weights`; without them each sample
counts 1."""


_POWERS = {"tokens": 1.0, "samples": 0.0, "sqrt_tokens": 0.5}
"""The power of its number of learned tokens that a sample counts."""


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


def token_weights(
    batch: Any,
    mean: Literal["tokens", "samples", "sqrt_tokens"],
    *,
    ignored: int = -100,
) -> torch.Tensor:
    """Return the weights of the tokens of a batch, for the mean of their losses.

    Packed, padded and accumulated batches, on any number of ranks, have the same mean
    sum(weights * losses) / sum(weights) if `total_weight` sums the weights of all micro
    batches of the global batch.

    Args:
        batch: A batch with `labels` of shape (samples, tokens). If it has `cu_seqlens`,
            labels are packs of shape (tokens,) or (packs, tokens). `loss_weights` of
            tokens, as of messages with a weight, and `sample_weights` multiply; padding
            rows count 0.
        mean: "tokens" counts each learned token 1; "samples" each sample 1, divided by
            its learned tokens; "sqrt_tokens" each sample the square root of its learned
            tokens. A token with a weight in `loss_weights` is that many tokens.
        ignored: The label of tokens that are not learned. If the model predicts labels
            of later tokens, the first token of each sample has to have it, as in
            batches of `ProcessorTaskEncoder`.

    Returns:
        float32 of the shape of the labels, on their device. Models that predict the
        next token need `weights[..., 1:]`.

    Raises:
        ConfigError: For another `mean`, missing labels, or labels of one dimension
            without `cu_seqlens`.
        WeightError: If `sample_weights` are not one for each sample, or offsets are
            not those of the tokens.

    Example:
        >>> labels = torch.tensor([[-100, 5, 6, 7, 8], [-100, 9, -100, -100, -100]])
        >>> token_weights({"labels": labels}, "samples")
        tensor([[0.0000, 0.2500, 0.2500, 0.2500, 0.2500],
                [0.0000, 1.0000, 0.0000, 0.0000, 0.0000]])
        >>> token_weights({"labels": labels}, "sqrt_tokens").sum()
        tensor(3.)
    """
    checked_choice(mean, "mean", tuple(_POWERS), "token_weights")
    labels = field_of(batch, "labels")
    if not isinstance(labels, torch.Tensor):
        raise ConfigError(
            "token_weights: the batch has no tensor 'labels', got "
            f"{type(labels).__name__}. Pass a batch with the labels of its tokens"
        )
    rows = labels if labels.ndim > 1 else labels[None]
    lengths = _sample_lengths(batch, labels, rows)
    learned = (rows != ignored).to(torch.float32)
    factors = field_of(batch, LOSS_WEIGHTS)
    if factors is not None:
        learned = learned * factors.to(learned).reshape(learned.shape)
    weights = _sample_weights(batch, lengths)
    flat = [
        _shares(part, sizes, weight, _POWERS[mean])
        for part, sizes, weight in zip(learned, lengths, weights, strict=True)
    ]
    return torch.stack(flat).reshape(labels.shape)


def _shares(
    learned: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor, power: float
) -> torch.Tensor:
    """Return the weights of the tokens of a row of samples, with 0 after the last."""
    count = len(lengths)
    numbers = torch.arange(count, device=lengths.device).repeat_interleave(lengths)
    learned = learned * _padded_to(torch.ones_like(numbers), len(learned))
    numbers = _padded_to(numbers, len(learned))
    tokens = learned.new_zeros(count).index_add_(0, numbers, learned)
    tokens = torch.where(tokens > 0, tokens, 1)
    scales = tokens ** (power - 1) * weights
    return learned * scales[numbers]


def _padded_to(values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)))


def _sample_lengths(
    batch: Any, labels: torch.Tensor, rows: torch.Tensor
) -> list[torch.Tensor]:
    """Return the lengths of the samples of each row."""
    bounds = [field_of(batch, name) for name in OFFSETS]
    offsets = next((values for values in bounds if values is not None), None)
    if offsets is None:
        if labels.ndim == 1:
            raise ConfigError(
                "token_weights: labels of one dimension may be several samples. Pass "
                "a pack with cu_seqlens, or labels of shape (samples, tokens)"
            )
        return [torch.tensor([rows.shape[1]], device=labels.device)] * len(rows)
    offsets = offsets.to(labels.device)
    lengths = (offsets if offsets.ndim > 1 else offsets[None]).diff()
    if len(lengths) != len(rows) or (lengths < 0).any():
        raise WeightError(
            f"token_weights: cu_seqlens {offsets.tolist()!s:.80} are not the offsets "
            f"of {len(rows)} packs. Pass ascending offsets, one row for each pack"
        )
    if (lengths.sum(1) > rows.shape[1]).any():
        raise WeightError(
            f"token_weights: cu_seqlens end at {int(offsets.max())}, but the labels "
            f"have {rows.shape[1]} tokens. Pass the offsets of these labels"
        )
    return list(lengths)


def _sample_weights(batch: Any, lengths: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the weights of the samples of each row; padding has 0."""
    counts = [len(sizes) for sizes in lengths]
    values = field_of(batch, WEIGHTS)
    if values is None:
        values = _unweighted(batch, counts)
    if values.numel() != sum(counts):
        raise WeightError(
            f"token_weights: the batch has {values.numel()} sample_weights for "
            f"{sum(counts)} samples. Pass one for each sample"
        )
    flat = values.to(lengths[0].device, torch.float32).flatten()
    return list(flat.split(counts))


def _unweighted(batch: Any, counts: list[int]) -> torch.Tensor:
    """Return 1 for each sample of several rows, and 0 for those of padding."""
    if is_padding(batch):
        return torch.zeros(sum(counts))
    weights = [torch.ones(count) for count in counts]
    for row in padding_rows(batch):
        if row >= len(weights):
            raise WeightError(
                f"token_weights: row {row} of the batch is padding, but it has "
                f"{len(weights)} rows of labels. Add a field sample_weights to the "
                "type of the batch"
            )
        weights[row].zero_()
    return torch.cat(weights)


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


class TokenMean:
    """The mean loss of the learned tokens of a global batch.

    `steps` divides batches into steps of the optimizer; a call returns the loss of a
    micro batch. Gradients and the sum of the losses are those of one large batch, for
    padded and packed batches, with accumulation, on any number of ranks.

    Args:
        mean: As of `token_weights`.
        group: The process group that averages gradients; None for all ranks.

    Raises:
        ConfigError: For another `mean`. Calls raise it for batches without labels.

    Example:
        >>> batch = {"labels": torch.tensor([[-100, 1, 1], [-100, 0, -100]])}
        >>> logits = torch.zeros(2, 3, 4)
        >>> mean = TokenMean("samples")
        >>> for micro_batches in mean.steps([batch, batch], accumulation=2):
        ...     print([float(mean(logits, micro)) for micro in micro_batches])
        [0.6931471824645996, 0.6931471824645996]
    """

    def __init__(
        self,
        mean: Literal["tokens", "samples", "sqrt_tokens"] = "tokens",
        *,
        group: Any = None,
    ) -> None:
        checked_choice(mean, "mean", tuple(_POWERS), "TokenMean")
        self.mean = mean
        self.group = group
        self.total: torch.Tensor | float | None = None

    def steps(
        self, batches: Iterable[Any], accumulation: int = 1
    ) -> Iterator[list[Any]]:
        """Yield the micro batches of one step after another.

        Args:
            batches: A loader, or batches of this rank.
            accumulation: Micro batches of a step.

        Raises:
            ConfigError: For an `accumulation` below 1.
        """
        checked_whole(accumulation, "TokenMean: accumulation", 1)
        ahead = iter(batches)
        while micro_batches := list(islice(ahead, accumulation)):
            self.begin(micro_batches)
            yield micro_batches

    def begin(self, micro_batches: Sequence[Any]) -> None:
        """Sum the weights of the micro batches of a step; all ranks have to call it.

        Args:
            micro_batches: All micro batches of this rank.
        """
        weights = [token_weights(batch, self.mean) for batch in micro_batches]
        self.total = total_weight(weights, group=self.group)

    def __call__(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return the loss of a micro batch of the step that `begin` began.

        Args:
            logits: The outputs of the model, of shape (rows, tokens, vocabulary), each
                for the next token.
            batch: The batch.

        Returns:
            A scalar to call `backward()` on.
        """
        weights = token_weights(batch, self.mean)[..., 1:].to(logits.device)
        labels = field_of(batch, "labels")[..., 1:].to(logits.device)
        exact = torch.promote_types(logits.dtype, torch.float32)
        losses = torch.nn.functional.cross_entropy(
            logits[..., :-1, :].flatten(0, -2).to(exact),
            labels.flatten(),
            reduction="none",
        )
        return weighted_mean(
            losses, weights.flatten(), total=self.total, group=self.group
        )


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
