"""A mix is opened by its manifest as without it, by two files; a wrong one is
refused."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from energize import get_train_dataset, get_val_dataset
from energize.core.config import config_of
from energize.core.description import digest
from energize.errors import DatasetError
from tests.cli.commands import run
from tests.support.launching import launched
from tests.support.prepared import captions

RANKS = 4
MIX = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n"


def write_mix(folder: Path, name: str, *entries: str) -> Path:
    listed = "".join(f"      - {{path: {each}}}\n" for each in entries)
    path = folder / name
    path.write_text(f"{MIX}  train:\n    blend:\n{listed}  val:\n    path: cats\n")
    return path


@pytest.fixture
def mix(tmp_path) -> Path:
    """A mix of two folders, one of them beside its own, the other by a file of its
    own."""
    folder = tmp_path / "mixes"
    captions(folder / "cats", 4, shards=2)
    captions(tmp_path / "dogs", 4, shards=2)
    write_mix(folder, "inner.yaml", "../dogs")
    return write_mix(folder, "mix.yaml", "cats", "inner.yaml")


def opened(folder: Path, action):
    """What `action` gives, and the names of the files below a folder that it opened."""
    names: list[str] | None = []

    def note(event, args):
        if (
            names is not None
            and event == "open"
            and str(args[0]).startswith(str(folder))
        ):
            names.append(Path(args[0]).name)

    sys.addaudithook(note)  # which cannot be taken back
    found, seen, names = action(), names, None
    return found, seen


def read(mix):
    return get_train_dataset(mix, batch_size=2), get_val_dataset(mix, batch_size=2)


def test_a_manifest_is_read_instead_of_folders_and_opens_the_same(mix, monkeypatch):
    root = mix.parent.parent
    plain, names = opened(root, lambda: read(mix))
    assert len(names) == 3 + 2 * 4 + 2 + 4, (
        "manifest or none, mixes, four of each folder"
    )
    assert "Wrote" in run("manifest", mix)
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        by_manifest, names = opened(root, lambda: read(mix))
        assert [*map(config_of, by_manifest)] == [*map(config_of, plain)]
    assert set(names) == {"mix.manifest.json", "mix.yaml"}


def test_mixes_without_a_file_read_each_file_once_too(mix):
    cats = mix.parent / "cats"
    names = opened(cats, lambda: get_train_dataset([cats, cats], batch_size=2))[1]
    assert len(names) == len(set(names)) == 4


def changed(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_manifest_of_something_else_is_refused(mix):
    run("manifest", mix)
    path, folder = mix.with_name("mix.manifest.json"), mix.parent
    documents = json.loads(path.read_text())["documents"]
    split, again = folder / "cats" / ".nv-meta" / "split.yaml", "energize manifest"
    rows = [
        (
            lambda: split.write_text(split.read_text() + "# edited"),
            "is stale",
            "split.yaml",
            again,
        ),
        (
            lambda: os.rename(folder / "cats", folder / "lions"),
            "is stale",
            "4 of its",
            again,
        ),
        (lambda: changed(path, version=2), "version", "expected 1, got 2"),
        (
            lambda: changed(path, documents=documents | {"more": ""}),
            "the file is damaged",
            again,
        ),
        (
            lambda: changed(path, digest=digest({"a": "b"}), documents={"a": "b"}),
            "'",
            "is stale",
        ),
        (lambda: path.write_bytes(path.read_bytes()[:100]), "is not valid JSON", again),
        (lambda: changed(path, documents={"a": 1}), "expected text, got 1", again),
    ]
    before = {each: each.read_bytes() for each in (path, split)}
    for change, *words in rows:
        change()
        with pytest.raises(DatasetError) as told:
            read(mix)
        for word in (str(path), *words):
            assert word in str(told.value), told.value
        if not folder.joinpath("cats").exists():
            os.rename(folder / "lions", folder / "cats")
        for each, data in before.items():
            each.write_bytes(data)
    split.unlink()
    split.symlink_to(split.name)  # what cannot be read has not changed
    with pytest.raises(
        DatasetError, match=r"split\.yaml: cannot be read .*lead to one another"
    ):
        read(mix)
    assert "single folder" in run("manifest", folder / "cats", code=2)
    assert "does not exist" in run("manifest", folder / "absent.yaml", code=2)
    lines = folder / "a.jsonl"
    lines.write_text('{"text": "a"}')
    assert "needs no manifest" in run("manifest", lines, code=2)
    assert not lines.with_name("a.manifest.json").exists()


def test_an_edited_mix_needs_no_other_manifest_and_a_moved_one_takes_it_along(
    mix, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path / "dogs")
    run("manifest", f"../mixes/{mix.name}")
    documents = json.loads(mix.with_name("mix.manifest.json").read_text())["documents"]
    assert {"inner.yaml", "cats/.nv-meta/split.yaml"} <= documents.keys()
    assert mix.name not in documents
    captions(mix.parent / "new", 4, shards=1)
    write_mix(mix.parent, "mix.yaml", "cats", "new")
    assert [each.name for each in read(mix)[0].sources] == ["cats", "new"]
    write_mix(mix.parent, "mix.yaml", "cats")
    run("manifest", mix)
    moved = mix.parent.rename(tmp_path / "moved")
    assert [each.name for each in read(moved / mix.name)[0].sources] == ["cats"]


@pytest.mark.jobs
def test_one_rank_reads_for_all_and_tells_what_goes_wrong(mix, tmp_path):
    write_mix(mix.parent, "other.yaml", "cats")
    program = "tests.support.shared_reading_program"
    done = launched(program, mix.parent, tmp_path, ranks=RANKS, fails=True)
    assert done.codes == [-signal.SIGKILL, 0, 0, 0], done
    found = [
        json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)
    ]
    assert [each["opened"] for each in found] == [6, 0, 0, 0]
    assert len({each["config"] for each in found}) == 1
    assert "gone.yaml" in found[0]["gone"]
    for each in found[1:]:
        assert each["gone"].startswith(
            "LoaderError: rank 0 reads for all ranks and failed"
        )
        assert found[0]["gone"] in each["gone"]
        assert "another rank, or the connection to it, has ended" in each["killed"]
    assert all("rank 3" in each["other"] for each in found), found
