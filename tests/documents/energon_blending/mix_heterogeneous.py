from megatron.energon import get_train_dataset, get_loader, MixBatchDataset, concat_pad

# Define your task encoder for CaptioningTask as in the task_encoders.md example.
# ...

def my_mix_fn(batch: List[Union[CaptioningBatch, ImageBatch]]) -> ImageWithOptionalCaptionBatch:
    # Here, concat the images, and return a list of captions which may contain None.
    return ImageWithOptionalCaptionBatch(
        images=concat_pad([entry.image for entry in batch]),
        captions=[entry.caption if isinstance(entry, CaptioningBatch) else None for entry in batch],
    )

# Combine two datasets (here even of different type) with weight 60/40%, i.e. batches
# will consist 60% of first dataset, and 40% of second dataset.
mix_dataset = MixBatchDataset(
    # It is important to set the inner batch_size to 1, to ensure proper mixing
    (
        get_train_dataset(
            '/my/dataset/image_dataset',
            batch_size=1,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=ImageTask(),
        ),
        6,
    ),
    (
        get_train_dataset(
            '/my/dataset/captioning_dataset',
            batch_size=1,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=CaptioningTask(),
        ),
        4,
    ),
    batch_size=32,
    batch_mix_fn=my_mix_fn,
)

# If needed, epochize here:
#mix_dataset = EpochizeDataset(mix_dataset, num_epochs=10)

# If needed, map the batches
#mix_dataset = MapDataset(mix_dataset, map_fn=lambda batch: batch)

train_loader = get_loader(mix_dataset)

# Iterating over train_loader will yield batches of type ImageWithOptionalCaptionBatch.
for sample in train_loader:
    # sample is ImageWithOptionalCaptionBatch
    pass
