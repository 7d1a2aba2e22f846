"""Libraries that read the same folders, each in an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def peer_python(name: str) -> Path:
    """The interpreter of `.venv-NAME`, or what ENERGIZE_NAME_PYTHON says; none is a failure in CI
    and a skip elsewhere.
    """
    given = os.environ.get(f"ENERGIZE_{name.upper()}_PYTHON")
    python = Path(given) if given else ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        missing = f"there is no {python}; `make peers` makes it"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return python
