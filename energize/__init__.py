"""energize decides what a training run reads, in which proportion, and delivers typed batches.

Names are loaded when they are first used; `__init__.pyi` is the list of them.
"""

import lazy_loader

from energize.energon.paths import install

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

__version__ = "0.1.0"

install()
