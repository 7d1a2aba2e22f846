"""`import energize` stays cheap; which package imports which is checked by
import-linter."""

from __future__ import annotations

import subprocess
import sys


def test_importing_energize_loads_little():
    program = "import sys, energize; print(sum(m.split('.')[0] == 'energize' for m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(loaded.stdout) <= 60
