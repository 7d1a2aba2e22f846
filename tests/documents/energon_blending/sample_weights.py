from dataclasses import dataclass
from typing import Callable, List
import torch
from megatron.energon import CaptioningSample, DefaultTaskEncoder

# Type for intermediate batch, after batching operation
@dataclass
class CaptioningRawBatch:
    # (n,)
    __key__: List[str]
    # (n, c, h, w)
    image: torch.Tensor
    # (n,)
    caption: List[str]

# Typing for the resulting batch data
@dataclass
class WeightedCaptioningBatch:
    __keys__: List[str]
    # (n, c, h, w)
    images: torch.Tensor
    # (n, c)
    text: torch.Tensor
    # scalar, as samples between sources are not intermixed in a single gpu batch
    weight: float

# All the typing is optional
class WeightedCaptioningTaskEncoder(
    DefaultTaskEncoder[
        CaptioningSample,
        CaptioningSample,
        CaptioningRawBatch,
        WeightedCaptioningBatch,
    ]
):
    """A simple task encoder for captioning."""

    def __init__(
        self,
        tokenizer: Callable[[List[str]], torch.Tensor],
        max_length: int = 128,
        sample_weight: float = 1,
    ):
        super().__init__(batch_type=CaptioningRawBatch)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.sample_weight = sample_weight

    def encode_batch(self, batch_data: CaptioningRawBatch) -> WeightedCaptioningBatch:
        return WeightedCaptioningBatch(
            __keys__=batch_data.__key__,
            images=batch_data.image,
            text=self.tokenizer(batch_data.caption),
            weight=self.sample_weight,
        )

# Interleave batches from two data sources. The batches are sampled 50/50% from each
# dataset (i.e. the batches of each dataset appear equally often), but samples from the
# first dataset have a higher weight.
train_loader = get_loader(BlendDataset(
    (
        get_train_dataset(
            '/my/dataset/captioning_dataset1',
            batch_size=32,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=WeightedCaptioningTaskEncoder(sample_weight=0.2),
        ),
        0.5,
    ),
    (
        get_train_dataset(
            '/my/dataset/captioning_dataset2',
            batch_size=32,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=WeightedCaptioningTaskEncoder(sample_weight=0.8),
        ),
        0.5,
    ),
))

for sample in train_loader:
    # sample is WeightedCaptioningBatch
    loss = forward_and_compute_loss(sample.image, sample.text) * sample.weight
    loss.backward()
    optimizer.step()
