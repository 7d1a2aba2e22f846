from megatron.energon import get_train_dataset, get_val_dataset, get_loader, BlendDataset, ConcatDataset

# Define your task encoders for ImageTask and CaptioningTask as in the task_encoders.md
# example. ...

# Combine two datasets (here even of different type) with weight 60/40%, i.e. 60% of
# batches will be of type ImageBatch, 40% of batches will be CaptioningBatch
train_loader = get_loader(BlendDataset(
    (
        get_train_dataset(
            '/my/dataset/image_dataset',
            batch_size=32,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=ImageTask(),
        ),
        0.6,
    ),
    (
        get_train_dataset(
            '/my/dataset/captioning_dataset',
            batch_size=32,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            task_encoder=CaptioningTask(),
        ),
        0.4,
    ),
))
val_loader = get_loader(ConcatDataset(
    get_val_dataset('/my/dataset/image_dataset', batch_size=32, task_encoder=ImageTask()),
    get_val_dataset('/my/dataset/captioning_dataset', batch_size=32, task_encoder=CaptioningTask()),
))

# Iterating over train_loader/val_loader will yield batches of type
# Union[CaptioningBatch, ImageBatch], i.e. it will always yield a full batch of
# CaptioningBatch or ImageBatch. They will not be mixed within a single batch.
for sample in train_loader:
    # sample is either CaptioningBatch or ImageBatch
    pass
