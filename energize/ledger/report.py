"""What a ledger says: asked, planned and delivered, level by level, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from energize.ledger.showing import rendered


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What was counted of a source, or of a part of a mix with all its sources.

    `path`: the names on the way to it; none for the whole. `depth` is their number, `is_source`
    whether it is a source. Shares are those of its level, 0 to 1: the parts of one blend make 1
    together. `asked`: by the weights, over the items that were counted; `planned`: by the order;
    both in the `unit` of the weights ("samples", "batches", or what a blend weighs), None where
    nobody asks or only reading tells. `delivered`: what came, in that unit.

    `samples`, `batches` (items, by their parts; exact where they are of one source), `cost` (tokens
    or what the ledger was told to count) and `weight` (the sum of loss weights) are counts,
    `*_share` their shares of all that was delivered. `effective`: Kish's effective sample size of
    the loss weights. `epochs`: how often the source was passed through since the run began, None
    for more than one source or one without a length; of a stream, the samples that came of it by
    those it has. `repeats`: the part of its samples that were
    drawn in a second pass or later. `skipped` and `failed`: samples left out, others in their
    place. `chance`: of a part whose parts have asked shares, how likely independent draws differ
    from these as much (see `chance_of`).
    """

    path: tuple[str, ...]
    is_source: bool
    unit: str = "samples"
    asked: float | None = None
    planned: float | None = None
    delivered: float | None = None
    samples: int = 0
    samples_share: float = 0.0
    batches: float = 0.0
    batches_share: float = 0.0
    cost: float | None = None
    cost_share: float | None = None
    weight: float = 0.0
    weight_share: float = 0.0
    effective: float = 0.0
    epochs: float | None = None
    repeats: float = 0.0
    skipped: int = 0
    failed: int = 0
    chance: float | None = None

    @property
    def name(self) -> str:
        """What it is called on its level."""
        return self.path[-1] if self.path else "all"

    @property
    def depth(self) -> int:
        """How many names lead to it."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class RankTotals:
    """What one rank was delivered: `items`, and `padding` beside them; the seconds that `next` was
    `waited` for, in all and the `longest` time, and those that passed (`seconds`).
    """

    rank: int
    items: int
    padding: int
    waited: float
    longest: float
    seconds: float

    @property
    def waiting_share(self) -> float:
        """The part of the time that went by waiting for items, 0 to 1."""
        return self.waited / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What was asked for and what was delivered; printed by `print` of rich, as text by `str`.

    `rows`: the whole first, then every part of the mix, each before its own parts. `ranks`: the
    totals of this rank, or of all where it was asked for them. `title`: whose counts these are.
    `cost_name`: what `cost` counts. `left_out`: how many samples were left out for each reason, on
    this rank, those with it that were only read ahead. `weighed`: whether any item had a loss
    weight. `notes`: what to know of the counts. `warnings`: differences that chance does not
    explain, with their causes.

    >>> from energize import BlendDataset, ListSource, get_loader
    >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
    >>> loader = get_loader(BlendDataset(parts, weights={"web": 3, "code": 1}))
    >>> for step, sample in zip(range(40), loader): pass
    >>> report = loader.report(show=False)
    >>> [(row.name, row.samples) for row in report.rows], report.to_dict()["mix/web/asked_share"]
    ([('all', 40), ('web', 30), ('code', 10)], 0.75)
    """

    title: str
    rows: tuple[LedgerRow, ...]
    ranks: tuple[RankTotals, ...]
    world_size: int
    cost_name: str | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    weighed: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total(self) -> LedgerRow:
        """The row of the whole."""
        return self.rows[0]

    @property
    def sources(self) -> tuple[LedgerRow, ...]:
        """The rows of sources."""
        return tuple(each for each in self.rows if each.is_source)

    def __getitem__(self, name: str) -> LedgerRow:
        """The row of a part, by its names: `report["web/news"]`; `KeyError` lists them."""
        for each in self.rows:
            if "/".join(each.path) == name:
                return each
        known = ", ".join("/".join(each.path) for each in self.rows[1:20])
        raise KeyError(f"{name!r} is no part of this mix; parts are {known}")

    def to_dict(self, prefix: str = "mix") -> dict[str, float]:
        """Flat numbers for a log, such as "mix/web/delivered_share" and "mix/waiting_share"; what
        is not known is left out.
        """
        return dict(self._numbers(prefix))

    def _numbers(self, prefix: str) -> Iterator[tuple[str, float]]:
        for row in self.rows:
            name = "/".join((prefix, *row.path))
            for key, value in _numbers_of(row, self.cost_name).items():
                if value is not None:
                    yield f"{name}/{key}", value
        waited, seconds = (sum(getattr(r, n) for r in self.ranks) for n in ("waited", "seconds"))
        yield f"{prefix}/items", float(sum(each.items for each in self.ranks))
        yield f"{prefix}/padding", float(sum(each.padding for each in self.ranks))
        yield f"{prefix}/waiting_seconds", waited
        yield f"{prefix}/waiting_share", waited / seconds if seconds else 0.0
        yield f"{prefix}/longest_wait_seconds", max((r.longest for r in self.ranks), default=0.0)
        yield f"{prefix}/warnings", float(len(self.warnings))

    def as_json(self) -> dict[str, Any]:
        """All of it as a JSON-able tree."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from rendered(self, console.width)

    def __str__(self) -> str:
        console = Console(width=140, color_system=None)
        with console.capture() as said:
            console.print(self)
        return said.get()


def _numbers_of(row: LedgerRow, cost_name: str | None) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {
        "asked_share": row.asked,
        "planned_share": row.planned,
        "delivered_share": row.delivered,
        "samples": float(row.samples),
        "batches": row.batches,
        "weight": row.weight,
        "weight_share": row.weight_share,
        "effective_sample_size": row.effective,
        "epochs": row.epochs,
        "repeats_share": row.repeats,
        "skipped": float(row.skipped),
        "failed": float(row.failed),
        "chance": row.chance,
    }
    if cost_name is not None:
        numbers |= {cost_name: row.cost, f"{cost_name}_share": row.cost_share}
    if not row.path:
        for name in ("asked_share", "planned_share", "delivered_share", "weight_share"):
            del numbers[name]
    return numbers
