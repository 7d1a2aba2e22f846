# Same seed = same sequence

# Different seeds = different sequences
