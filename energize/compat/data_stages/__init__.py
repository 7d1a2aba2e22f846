"""The stages of a trainer's own TOML file, in its words: `[[training.data_stages]]`."""
