"""Laws that every dataset keeps, runnable on your own datasets."""

from energize.testing.items import fingerprint, same_item
from energize.testing.laws import (
    check_determinism,
    check_exactly_once,
    check_laws,
    check_purity,
    check_resume,
    check_topology,
)

__all__ = [
    "check_determinism",
    "check_exactly_once",
    "check_laws",
    "check_purity",
    "check_resume",
    "check_topology",
    "fingerprint",
    "same_item",
]
