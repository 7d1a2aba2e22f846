"""Why something else came than was asked for: differences that chance does not explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.dataset import Dataset
from energize.core.stream import INFINITE
from energize.ledger.chance import ALPHA
from energize.ledger.levels import Level

if TYPE_CHECKING:
    from energize.ledger.report import Report

_ROUNDING = 4.0
"""Slots by which the orders of mixes round at most: 3.36, and one more for those that are begun."""

_SAME = 1e-3
"""A part of a share that planned and delivered may differ in, where both count the same items."""


class Differing(NamedTuple):
    """The parts of a level: shares that were `asked` for and `planned`, and what came, in units."""

    level: Level
    unit: str
    asked: FloatArray
    planned: FloatArray | None
    units: FloatArray
    chance: float | None


def warnings_of(found: Sequence[Differing], report: Report) -> list[str]:
    """A line for each level whose shares differ by more than chance, with the cause."""
    return [_warning(each, report) for each in found if _differs(each)]


def _differs(each: Differing) -> bool:
    off = np.abs(each.units - each.units.sum() * each.asked).max(initial=0.0)
    if each.chance is None:
        return False
    return each.chance < ALPHA and off > max(_ROUNDING, _block(each.level.mix))


def _block(mix: Any) -> float:
    """Slots within which a scheme keeps shares."""
    scheme, options = getattr(mix, "scheme", None), getattr(mix, "options", {})
    if scheme == "block":
        return float(options.get("block_size", 1000))
    return 65_536.0 if scheme in ("random", "uniform") else 0.0


def _warning(each: Differing, report: Report) -> str:
    total = each.units.sum()
    came = each.units / total
    worst = int(np.abs(came - each.asked).argmax())
    part = each.level.parts[worst]
    where = f" of {each.level.label!r}" if each.level.path else ""
    causes = list(_causes(each, report))
    unknown = "no cause is known: compare the weights and the state with those of the run"
    chance = max(each.chance or 0.0, 1e-9)
    return (
        f"{part.name!r}{where} has {100 * came[worst]:.3f} % of {total:,.0f} {each.unit}, asked "
        f"were {100 * each.asked[worst]:.3f} %, which is no chance (p <= {chance:.1g}): "
        f"{'; '.join(causes) or unknown}"
    )


def _causes(each: Differing, report: Report) -> Iterator[str]:
    mix = each.level.mix
    as_planned = each.planned is not None and np.allclose(
        each.units / each.units.sum(), each.planned, rtol=0.02, atol=_SAME
    )
    if mix is not None and as_planned:
        ended = list(_exhausted(mix, each, report))
        if ended:
            named = ", ".join(ended)
            yield f"{named} came to the end that the stop rule sets, and others took over"
    leaving = _leaves_out(each.level)
    if leaving:
        yield (
            f"{leaving} stands above the blend and leaves out items after their shares were given; "
            "weigh what it gives instead: put it below the blend"
        )
    lost = _lost(each.level, report)
    if lost and not as_planned:
        yield f"{lost} samples were skipped or failed"
    if report.world_size != 1 and len(report.ranks) == 1:
        yield "one rank has its own part of the items; the sum over all ranks tells more"
    if each.planned is not None and not as_planned:
        yield "what came is not what the order gives: another state was loaded (strict=False)"


def _exhausted(mix: Any, each: Differing, report: Report) -> Iterator[str]:
    """The parts of a blend that ends that have given all they may."""
    if getattr(mix, "_endless", True):
        return
    for part, asked, units in zip(each.level.parts, each.asked, each.units, strict=True):
        if units < asked * each.units.sum():
            yield repr(part.name)


def _leaves_out(level: Level) -> str | None:
    """The first dataset above a blend that gives other items than it takes."""
    for node in level.above[:-1]:
        if not node.indexed and not (node._passes_on or node._ends_loops) and _finds(node):
            return type(node).__name__
    return None


def _finds(node: Dataset[Any]) -> bool:
    """Whether a dataset makes of its input what only reading tells."""
    inner = node.inputs[0]
    if inner.indexed:
        return True
    return not node.sized or not (inner.sized and node.size in (inner.size, INFINITE))


def _lost(level: Level, report: Report) -> int:
    for row in report.rows:
        if row.path == level.path:
            return row.skipped + row.failed
    return 0
