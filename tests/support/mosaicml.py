"""The real mosaicml-streaming, in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.peers import peer_python

# Importing the packages `streaming` and `streaming.base` themselves would import torchvision and
# transformers too. Packages that only know where their modules lie give those that are tested.
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

HERE = Path(__file__).parent


def run_streaming(program: str, *arguments: str | Path, given: str = "") -> str:
    """What a Python program prints, which may import the modules of this folder and read `given`;
    it must succeed.
    """
    program = f"{IMPORTS}sys.path.append({str(HERE)!r})\n{program}"
    done = subprocess.run(
        [peer_python("streaming"), "-c", program, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
