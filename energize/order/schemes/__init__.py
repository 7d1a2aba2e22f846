"""Fixed weights: which source each slot belongs to."""
