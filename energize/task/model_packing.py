"""Packed rows for models of transformers: positions, masks, and a check of the model.

A row has several samples end to end. Models separate them by `position_ids` that
restart, flash attention also by the offsets `cu_seq_lens_q`, and Gemma 3 by masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, TypeAlias

import torch

from energize.errors import ConfigError, DataError

Row: TypeAlias = dict[str, Any]
"""Arguments of a model for one packed row."""

AXES = 3
"""Axes of the positions of Qwen's vision-language models: time, height and width."""

_THREE_AXES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_THREE_AXES_PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
_SPLIT_FRAMES = ("qwen3_vl", "qwen3_vl_moe")  # a time stamp before each frame
_BLOCK_MASKS = ("gemma3", "gemma3_text")
_PAD_INSTEAD = "Pad the samples instead, with packing=False"
_ATTENTION = "_attn_implementation"  # the only name by which configs have it
_MASK_DTYPES = {"sdpa": torch.bool, "eager": torch.float32}
_FIRST = 5  # tokens of the first sample of the row that checks a model
_SECOND = 4
_LARGEST_DIFFERENCE = 0.2  # norm of a difference that rounding does not explain


class ModelPacking:
    """Packing of samples into rows for one model, which is checked.

    The model is called once, with a row of two samples of a few tokens. The gradient of
    the second sample in respect of the tokens of the first has to be 0, and its outputs
    those of the sample alone. Models with recurrent or linear attention, and models
    with attention that ignores `position_ids`, are errors. Load the weights and set the
    attention implementation first; wrap the model for training afterwards.

    Only facts about the model are stored, not the model.

    Args:
        model: A model of transformers, of the class that is trained.

    Raises:
        ConfigError: If the model mixes the samples of a row, does not accept the
            arguments of a row, or has no weights yet.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     vocab_size=40,
        ...     hidden_size=16,
        ...     intermediate_size=16,
        ...     num_hidden_layers=1,
        ...     num_attention_heads=2,
        ... )
        >>> ModelPacking(LlamaForCausalLM(config))
        ModelPacking(LlamaForCausalLM with sdpa attention)
    """

    def __init__(self, model: Any) -> None:
        config = getattr(model, "config", None)
        if config is None or not isinstance(model, torch.nn.Module):
            raise ConfigError(
                "ModelPacking needs a model of transformers, to check that it does "
                f"not mix packed samples, got {model!r:.80}. Pass the loaded model"
            )
        text = config.get_text_config()
        self.model_name = type(model).__name__
        self.attention = str(getattr(text, _ATTENTION, None))
        self.has_three_axes = config.model_type in _THREE_AXES
        self.has_block_masks = config.model_type in _BLOCK_MASKS
        self.has_split_frames = config.model_type in _SPLIT_FRAMES
        self.tokens_per_second: float | None = None
        if config.model_type == "qwen2_5_vl":
            self.tokens_per_second = config.vision_config.tokens_per_second
        self.window: int | None = getattr(text, "sliding_window", None)
        self.takes_masks = (
            self.attention in _MASK_DTYPES
            and self.window is None
            and not self.has_block_masks
        )
        self._check(model, int(text.vocab_size))

    def __repr__(self) -> str:
        return f"ModelPacking({self.model_name} with {self.attention} attention)"

    def video_grids(
        self, grids: torch.Tensor, seconds: torch.Tensor | None
    ) -> list[list[float]]:
        """Return the runs of tokens of videos, for `grid_positions`.

        Args:
            grids: Times, rows and columns of tokens of each video, shape (videos, 3).
            seconds: Seconds between times, shape (videos,), if the processor has them.
        """
        sizes = grids.tolist()
        if self.has_split_frames:
            return [[1, *size[1:], 1] for size in sizes for _ in range(size[0])]
        steps = [1.0] * len(sizes)
        if self.tokens_per_second is not None and seconds is not None:
            steps = (seconds * self.tokens_per_second).tolist()
        return [[*size, step] for size, step in zip(sizes, steps, strict=True)]

    def masks(
        self, lengths: Sequence[int], is_image: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the masks of a row of Gemma 3 with images, by the type of a layer.

        A token attends to the tokens of its sample before it, and a token of an image
        also to the rest of the image. Sliding layers leave out tokens that are a window
        or more before it.

        Args:
            lengths: Tokens of each sample.
            is_image: Whether a token belongs to an image, bool of shape (tokens,).

        Returns:
            Masks of shape (1, 1, tokens, tokens): bool for sdpa, where True attends;
            float32 to add to scores for eager attention.

        Raises:
            ConfigError: For other implementations of attention.
        """
        dtype = _MASK_DTYPES.get(self.attention)
        if dtype is None:
            raise ConfigError(
                f"{self.model_name} attends in both directions within an image, which "
                f"{self.attention} attention cannot do in packed rows. Load the model "
                "with attn_implementation='sdpa', or pad the samples instead"
            )
        full = block_mask(lengths, is_image)
        sliding = full
        if self.window is not None:
            distant = torch.ones_like(full).tril(-self.window)
            sliding = full & ~distant
        masks = {"full_attention": full, "sliding_attention": sliding}
        return {name: _as_mask(mask, dtype) for name, mask in masks.items()}

    def attention_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a mask of a row in the form that the attention of the model takes.

        Args:
            mask: Whether the token of a row attends to that of a column, bool of shape
                (tokens, tokens).

        Returns:
            A mask of shape (1, 1, tokens, tokens): bool for sdpa, float32 to add to
            scores for eager attention.
        """
        return _as_mask(mask, _MASK_DTYPES[self.attention])

    def _check(self, model: torch.nn.Module, vocabulary: int) -> None:
        """Raise `ConfigError` if the model mixes samples."""
        device = next(model.parameters()).device
        if device.type == "meta":
            raise ConfigError(
                f"{self.model_name} has no weights yet, so ModelPacking cannot check "
                "that it does not mix packed samples. Load the weights first"
            )
        ids = (vocabulary // 2 + torch.arange(_FIRST + _SECOND)) % vocabulary
        with _evaluating(model):
            gradient, packed = self._outputs(model, ids, [_FIRST, _SECOND], device)
            _, alone = self._outputs(model, ids[_FIRST:], [_SECOND], device)
        if not (gradient[:_FIRST] == 0).all():
            raise ConfigError(
                f"{self.model_name} with {self.attention} attention mixes packed "
                "samples: a sample attends to the samples before it, or continues "
                f"their state. {_PAD_INSTEAD}, or load the model with another "
                "attn_implementation"
            )
        difference = (packed - alone).norm() / alone.norm()
        if not difference <= _LARGEST_DIFFERENCE:
            raise ConfigError(
                f"{self.model_name} with {self.attention} attention gives a packed "
                "sample other outputs than the sample alone, by "
                f"{float(difference):.0%}, so it does not use position_ids. "
                f"{_PAD_INSTEAD}"
            )

    def _outputs(
        self,
        model: torch.nn.Module,
        ids: torch.Tensor,
        lengths: Sequence[int],
        device: torch.device,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of the last sample, and their gradient for all tokens."""
        row = {"input_ids": ids[None]} | boundaries(lengths)
        positions = text_positions(lengths, 1 + AXES if self.has_three_axes else 1)
        row |= {"position_ids": positions}
        row = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in row.items()
        }
        with _embedded(model) as embeddings:
            try:
                output = model(**row)[0]
            except (TypeError, ValueError, NotImplementedError) as error:
                raise ConfigError(
                    f"{self.model_name} with {self.attention} attention does not "
                    f"accept packed rows: {str(error).rstrip('.')}. {_PAD_INSTEAD}"
                ) from error
        last = output[0, -lengths[-1] :].float()
        [gradient] = torch.autograd.grad(last.square().sum(), embeddings[-1])
        return gradient.reshape(-1, gradient.shape[-1]), last.detach()


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set all modules to evaluation, and restore their modes."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _embedded(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the embeddings of tokens, as tensors with gradients."""
    embeddings: list[torch.Tensor] = []

    def capture(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    handle = model.get_input_embeddings().register_forward_hook(capture)
    try:
        yield embeddings
    finally:
        handle.remove()


# The arguments that mark the samples of a row.


def boundaries(lengths: Sequence[int]) -> Row:
    """Return the offsets of samples, as flash attention takes them, and no cache.

    Example:
        >>> row = boundaries([3, 2])
        >>> row["cu_seq_lens_q"].tolist(), row["max_length_q"]
        ([0, 3, 5], 3)
    """
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "use_cache": False,  # with a cache, models do not look for samples
    }


def text_positions(lengths: Sequence[int], axes: int = 1) -> torch.Tensor:
    """Return the positions of tokens in their samples, for each of several axes.

    Returns:
        int64 of shape (1, tokens), or (axes, 1, tokens) for several axes.

    Example:
        >>> text_positions([3, 2])
        tensor([[0, 1, 2, 0, 1]])
    """
    row = torch.cat([torch.arange(length) for length in lengths])[None]
    return row if axes == 1 else row.repeat(axes, 1, 1)


def uses_three_axes(processor: Any) -> bool:
    """Return whether a processor is one of Qwen2-VL, Qwen2.5-VL or Qwen3-VL."""
    names = {base.__name__ for base in type(processor).__mro__}
    return not names.isdisjoint(_THREE_AXES_PROCESSORS)


def grid_positions(
    is_image: torch.Tensor,
    grids: torch.Tensor,
    videos: Sequence[Sequence[float]] = (),
) -> torch.Tensor:
    """Return the positions of the tokens of a sample with images on three axes.

    They are those of `get_rope_index` of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a text
    advances all axes, an image or video has its times, rows and columns, and advances
    by the larger of rows and columns.

    Args:
        is_image: Whether a token belongs to an image, bool of shape (tokens,); or 0 for
            text, 1 for an image and 2 for a video.
        grids: Times, rows and columns of tokens of each image, shape (images, 3).
        videos: Times, rows, columns and the step of times of each video.

    Returns:
        int64 of shape (4, tokens): the number of the token in the sample, by which
        models separate samples, then time, height and width.

    Raises:
        DataError: If images or videos have other numbers of tokens than their grids.

    Example:
        >>> is_image = torch.tensor([False, True, True, False])
        >>> grid_positions(is_image, torch.tensor([[1, 1, 2]])).tolist()
        [[0, 1, 2, 3], [0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
    """
    images = [(*grid, 1) for grid in grids.tolist()]
    sizes: dict[int, list[Any]] = {1: images, 2: [*videos]}
    parts = list[torch.Tensor]()
    start = 0
    for media, tokens in groupby(is_image.int().tolist()):
        count = sum(1 for _ in tokens)
        if not media:
            parts.append(torch.arange(start, start + count).repeat(AXES, 1))
            start += count
            continue
        missing = count
        while missing > 0 and sizes[media]:
            *size, step = sizes[media].pop(0)
            axes = torch.stack(
                torch.meshgrid(*map(torch.arange, size), indexing="ij")
            ).flatten(1)
            axes[0] = (axes[0] * step).long()
            parts.append(axes + start)
            missing -= axes.shape[1]
            start += max(size[1:])
        if missing:
            raise DataError(f"an image or video has {count} tokens, but another grid")
    if left := sizes[1] + sizes[2]:
        raise DataError(f"{len(left)} images or videos have no tokens")
    return torch.cat([torch.arange(len(is_image))[None], torch.cat(parts, 1)])


def block_mask(lengths: Sequence[int], is_image: torch.Tensor) -> torch.Tensor:
    """Return which tokens of a row attend to which, with images in both directions.

    Args:
        lengths: Tokens of each sample.
        is_image: Whether a token belongs to an image, bool of shape (tokens,).

    Returns:
        bool of shape (tokens, tokens), True where the token of the row attends to that
        of the column.

    Example:
        >>> block_mask([1, 3], torch.tensor([False, True, True, False])).int()
        tensor([[1, 0, 0, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 0],
                [0, 1, 1, 1]], dtype=torch.int32)
    """
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    previous = torch.cat([is_image.new_zeros(1), is_image[:-1]])
    changes = torch.cat([numbers.new_zeros(1), numbers.diff()]) != 0
    images = (is_image & (~previous | changes)).cumsum(0)
    images = torch.where(is_image, images, -1)
    in_image = (images[:, None] == images) & is_image
    causal = torch.ones_like(in_image).tril()
    return (numbers[:, None] == numbers) & (causal | in_image)


def _as_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return mask[None, None]
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, lowest)[None, None]
