"""Each recipe on 2 ranks with 2 workers, resumed on 3 ranks: the stream of one process."""

from __future__ import annotations

import json

import pytest

from tests.recipes.files import annotations, eagle, internvl, llava, qwen
from tests.support.launching import launched
from tests.support.recipe_program import dataset

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.mark.parametrize("recipe", [llava, internvl, eagle, qwen])
def test_ranks_read_one_stream_and_resume_on_others(recipe, tmp_path):
    for name in ("a.json", "b.jsonl"):
        annotations(tmp_path / name, 21, images=tmp_path / "images")
    file, options = recipe(tmp_path)
    alone = dataset(str(file), options)
    expected = [alone[number] for number in range(5 * STEPS)]
    position = 0
    for mode, ranks in (("save", 2), ("resume", 3)):
        out = tmp_path / mode
        out.mkdir()
        arguments = (out, file, json.dumps(options), STEPS, tmp_path / "state", mode)
        launched("tests.support.recipe_program", *arguments, ranks=ranks)
        read = [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]
        stream = [batch for step in zip(*read, strict=True) for batch in step]
        assert stream == expected[position : position + ranks * STEPS]
        position += ranks * STEPS
