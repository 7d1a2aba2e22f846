"""Lengths of captions, measured once: half of the letters, not of the samples, come of
each folder.

python -m examples.photographs                              # makes demo-data
python examples/columns.py
"""

from itertools import islice
from pathlib import Path
from typing import Any

from energize import DefaultTaskEncoder, get_loader, get_train_dataset
from energize.preparation import prepare_columns

MIX = {
    "__module__": "energize",
    "__class__": "MetadatasetV2",
    "splits": {
        "train": {
            "unit": "letters",
            "blend": [
                {"path": "demo-data/captions_a", "weight": 1},
                {"path": "demo-data/captions_b", "weight": 1},
            ],
        }
    },
}


def main() -> None:
    """Measure, and read some batches; `energize prepare --column letters=len:txt`
    measures too.
    """
    for name in ("captions_a", "captions_b"):
        prepare_columns(Path("demo-data", name), {"letters": "len:txt"})
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder(decoder=None)
    dataset = get_train_dataset(MIX, batch_size=8, task_encoder=encoder)
    with get_loader(dataset) as loader:
        letters: dict[str, int] = {}
        for batch in islice(loader, 100):
            for caption, sources in zip(batch.caption, batch.__sources__, strict=True):
                folder = Path(sources[0].dataset_path).name
                letters[folder] = letters.get(folder, 0) + len(caption)
    for folder, count in sorted(letters.items()):
        print(f"{folder}: {count / sum(letters.values()):.1%} of the letters")


if __name__ == "__main__":
    main()
