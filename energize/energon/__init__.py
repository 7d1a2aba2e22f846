"""What a program written for Megatron-Energon imports in place of `megatron.energon`.

`from energize.energon import X` is `from energize import X`, but for the names of
`energize.energon.running`, which mean here what Energon means by them. The paths below
are those of Energon's modules, see `energize.energon.paths`.
"""

import sys
from typing import Any

from energize.energon.paths import Package, name_of

sys.modules[__name__].__class__ = Package


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sys.modules["energize"].__all__
    return name_of(__name__, name)
