"""The examples run, each in a process of its own, and show what they promise."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples import photographs, resume
from tests.jobs import metadatasets
from tests.support.launching import TRAINERS, launched
from tests.support.peers import peer_python

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]
NAMES = [recipe.name for recipe in photographs.RECIPES]


def run(name: str, data: Path, *options: object) -> str:
    """What an example prints."""
    wide = {"COLUMNS": "120"}
    done = launched(f"examples.{name}", "--data", data, *options, environment=wide)
    assert done.stderr == ""
    return done.stdout


def ran(*arguments: object, folder: Path) -> str:
    """What a command prints, which may fail."""
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    ).stdout


def rows(output: str, title: str) -> dict[str, list[str]]:
    """The rows of the table of that title, by their first cell."""
    lines = output[output.index(title) :].splitlines()
    body = lines[4 : next(i for i, line in enumerate(lines) if line.startswith("└"))]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in body]
    return {first: others for first, *others in cells}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "data"
    assert run("photographs", folder).count(", made") == 3
    return folder


def test_the_demo(data):
    """Losses go down, shares are exact, validation reads every sample and gives the
    same numbers twice, and a resumed run goes on with equal batches.
    """
    demo = run("demo", data, "--batch-size", "4")
    assert demo.count("already there") == 3
    losses = rows(demo, "Loss without weights")
    assert set(losses) == {"CaptionBatch", "ImageBatch"}
    assert {each[0] for each in losses.values()} == {"500"}
    for each in losses.values():
        assert 0 <= float(each[2]) < 0.6 * float(each[1])
    assert rows(demo, "Shares of the blend") == {
        "classification": ["50.00%", "50.00%", "2000", "1.00"],
        "captions_a": ["30.00%", "30.00%", "1200", "1.00"],
        "captions_b": ["20.00%", "20.00%", "800", "0.50"],
    }
    mixed = demo[demo.index("3  A mix") :]
    (losses,) = rows(mixed, "Loss without weights").values()
    assert 0 < float(losses[2]) < 0.8 * float(losses[1])
    shares = {name: each[2] for name, each in rows(mixed, "Shares of the mix").items()}
    assert shares == {"classification": "600", "captions_a": "300", "captions_b": "100"}
    found = rows(demo, "Validation  ")
    assert {name: (each[0], each[3]) for name, each in found.items()} == {
        "classification": ("200", "equal"),
        "captions_a": ("160", "equal"),
        "captions_b": ("120", "equal"),
    }
    assert (
        f"{resume.COMPARED} of {resume.COMPARED} batches and losses are equal" in demo
    )
    assert "DIFFERS" not in demo
    assert "all equal" in demo
    assert demo.splitlines()[-1].startswith(
        "  Try next: .venv/bin/energize simulate metadatasets/"
    )


def test_every_metadataset_runs_on_two_ranks_of_two_workers(data, tmp_path):
    folder = tmp_path / "metadatasets"
    shutil.copytree(ROOT / "metadatasets", folder)
    (tmp_path / "demo-data").symlink_to(data)
    launched("tests.jobs.metadatasets", folder, ranks=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert {name.split()[0] for name in ranks[0]} == {
        file.name for file in folder.iterdir()
    }
    for name, dataset in metadatasets.datasets(folder).items():
        delivered = [
            batch
            for step in zip(*(rank[name] for rank in ranks), strict=True)
            for batch in step
        ]
        assert len(delivered) == 2 * metadatasets.STEPS, name
        if dataset.indexed:
            assert delivered == [
                metadatasets.keys_of(dataset[k]) for k in range(len(delivered))
            ]
        else:
            assert len({key for batch in delivered for key in batch}) == sum(
                map(len, delivered)
            ), name


SHORT = {
    "packing.py": [
        r"step 10: loss \d",
        r"step 20: loss \d.*(8|9)\d% of the batch is tokens",
    ],
    "columns.py": [r"captions_a: (49|50)\.\d%", r"captions_b: (49|50)\.\d%"],
    "joins.py": [r"'0\.\d\d'\] a"] * 3,
}
"""What the short programs print, line by line."""


@pytest.mark.parametrize("name", SHORT)
def test_a_short_program_runs(data, tmp_path, name):
    shutil.copytree(data, tmp_path / "demo-data")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launch = torchrun if name == "packing.py" else []
    command = [sys.executable, *launch, ROOT / "examples" / name]
    printed = ran(*command, folder=tmp_path).splitlines()
    assert len(printed) == len(SHORT[name])
    assert all(map(re.search, SHORT[name], printed)), printed


def test_an_example_on_its_own_saves_a_model_that_another_loads(data, tmp_path):
    saved = tmp_path / "model.pt"
    options = ("--batch-size", "8", "--workers", "0")
    trained = run("train_blend", data, "--steps", 60, "--save", saved, *options)
    shares = rows(trained, "Shares of the blend")
    assert sum(int(each[2]) for each in shares.values()) == 480
    validated = run("validate", data, "--model", saved, *options)
    assert "DIFFERS" not in validated
    untrained = run("validate", data, *options)
    loss = {
        name: float(each[1]) for name, each in rows(validated, "Validation  ").items()
    }
    before = {
        name: float(each[1]) for name, each in rows(untrained, "Validation  ").items()
    }
    assert all(loss[name] < before[name] for name in NAMES)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "classification").mkdir()
    (tmp_path / "classification" / "mine.tar").write_bytes(b"mine")
    done = launched("examples.photographs", "--data", tmp_path, fails=True)
    assert done.codes == [1]
    said = done.stderr.replace("\n", "")
    assert str(tmp_path / "classification") in said
    assert "--data" in said
    assert (tmp_path / "classification" / "mine.tar").read_bytes() == b"mine"


# energize under the real packages of others, and the script that was written for
# Megatron-Energon.

CLIENTS = {
    "ddp": 6,
    "checkpoint": 2,
    "lightning_fit": 5,
    "accelerate_train": 4,
    "hf_trainer": 6,
    "torch_dataloader": 6,
}
"""How many comparisons each example makes."""


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_runs_and_what_is_resumed_is_equal(name):
    done = launched(f"examples.clients.{name}", imports=TRAINERS)
    assert "Traceback" not in done.stderr
    compared = [line for line in done.stdout.splitlines() if line.endswith(", equal")]
    assert len(compared) == CLIENTS[name], done.stdout
    assert "DIFFERENT" not in done.stdout


def test_lightnings_own_launcher(tmp_path):
    program = ROOT / "tests" / "support" / "lightning_program.py"
    launched(str(program), tmp_path, imports=TRAINERS)
    ranks = [
        ast.literal_eval((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)
    ]
    assert [len(seen) for seen in ranks] == [12, 12]
    assert sorted(ranks[0] + ranks[1]) == list(range(24))


def test_the_script_for_energon_trains_saves_restores_and_validates(tmp_path):
    script = str(ROOT / "examples" / "energon_training.py")
    done = launched(script, "--data", tmp_path / "data", "--steps", 12, folder=tmp_path)
    assert "after restoring: 6 of 6 batches are equal" in done.stdout
    assert re.search(r"validation: \d+ batches, loss \d", done.stdout)


@pytest.mark.energon
def test_it_is_a_script_of_energon_but_for_its_imports(tmp_path):
    text = (ROOT / "examples" / "energon_training.py").read_text()
    theirs, changed = re.subn(
        r"(?m)^from energize\.energon\b", "from megatron.energon", text
    )
    (tmp_path / "script.py").write_text(theirs)
    assert changed == 2
    given = ["script.py", "--data", "data", "--steps", "12"]
    # It trains there too; whether it ends is not asked: packs of joined samples cannot
    # be restored.
    printed = ran(peer_python("energon"), *given, folder=tmp_path)
    assert re.search(r"step 11: loss \d", printed)


def test_a_vision_language_model_is_fine_tuned_and_goes_on_from_the_middle(tmp_path):
    """By the Trainer on 2 ranks x 2 workers, and by Lightning: the same losses as in
    one run."""
    for ranks in (2, 0):
        launched("tests.support.finetuning", tmp_path, ranks=ranks, imports=TRAINERS)
    found = {
        file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")
    }
    (losses, again), (alone, first, rest) = found["Trainer"], found["Lightning"]
    assert again == losses
    assert (first, rest) == (alone[:7], alone)
    for each in (losses, alone):
        assert len(each) == 20
        assert sum(each[-3:]) < sum(each[:3]) / 4


def test_the_program_for_ddp_resumes_with_equal_losses(tmp_path):
    """On two ranks, with batches of text alone, validated every ten steps."""
    script = str(ROOT / "examples" / "train_ddp.py")
    printed = {
        (folder, steps): launched(
            script, tmp_path / folder, "--steps", steps, ranks=2
        ).stdout.splitlines()
        for folder, steps in (("whole", 40), ("stopped", 20), ("stopped", 40))
    }
    whole = printed["whole", 40]
    assert [line.split(":")[0] for line in whole] == [
        f"step {step}" for step in (10, 20, 30, 40)
    ]
    assert printed["stopped", 20] + printed["stopped", 40] == whole
    losses = [float(line.rpartition(" ")[2]) for line in whole]
    assert losses[-1] < 0.7 * losses[0]


def test_every_example_is_run_and_listed():
    text = (ROOT / "examples" / "README.md").read_text()
    documented = (ROOT / "docs" / "frameworks.md").read_text()
    for path in (ROOT / "examples").glob("[a-z]*.py"):
        assert path.name in text or f"examples.{path.stem}`" in text, path.name
    clients = {path.stem for path in (ROOT / "examples" / "clients").glob("[a-z]*.py")}
    assert clients - {"common"} == set(CLIENTS)
    for name in CLIENTS:
        assert f"examples.clients.{name}`" in text
        assert f"examples/clients/{name}.py" in documented
