"""Libraries that read the same folders, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# Importing the packages `streaming` and `streaming.base` themselves would import
# torchvision and transformers too. Packages that only know where their modules lie give
# those that are tested.
IMPORTS = """
import importlib.util, sys, types
found = importlib.util.find_spec("streaming").submodule_search_locations
for name, below in (("streaming", ""), ("streaming.base", "/base")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder + below for folder in found]
from streaming.base.dataset import StreamingDataset
from streaming.base.format import MDSWriter
from streaming.base.format.mds.encodings import get_mds_encodings
from streaming.base.stream import Stream
"""


def peer_python(name: str) -> Path:
    """The interpreter of `.venv-NAME`, or what ENERGIZE_NAME_PYTHON says; none is a
    failure in CI and a skip elsewhere.
    """
    given = os.environ.get(f"ENERGIZE_{name.upper()}_PYTHON")
    python = Path(given) if given else ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        missing = f"there is no {python}; `make peers` makes it"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return python


def _printed(command: list[str | Path], given: str | None) -> str:
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_energon(
    *arguments: str | Path, program: str = "", stdin: str | None = None
) -> str:
    """What `energon ARGUMENTS`, or a Python program given them, prints; it must
    succeed."""
    python = peer_python("energon")
    command = [python, "-c", program] if program else [python.with_name("energon")]
    return _printed([*command, *arguments], stdin)


def run_streaming(program: str, *arguments: str | Path, given: str = "") -> str:
    """What a Python program prints, which may import the modules of this folder and
    read `given`; it must succeed.
    """
    program = f"{IMPORTS}sys.path.append({str(Path(__file__).parent)!r})\n{program}"
    return _printed([peer_python("streaming"), "-c", program, *arguments], given)
