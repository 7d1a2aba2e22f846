"""From a path to a dataset of batches."""

from energize.metadataset.building import get_train_dataset, get_val_dataset, get_val_datasets

__all__ = ["get_train_dataset", "get_val_dataset", "get_val_datasets"]
