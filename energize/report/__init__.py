"""Requested, planned and delivered samples of a run, by level of its mix."""

from energize.report.efficiency import Efficiency as Efficiency
from energize.report.efficiency import Measure as Measure
from energize.report.efficiency import measure_efficiency as measure_efficiency
from energize.report.forecast import PlannedBatch as PlannedBatch
from energize.report.forecast import PlannedSample as PlannedSample
from energize.report.forecast import Simulation as Simulation
from energize.report.forecast import SourceForecast as SourceForecast
from energize.report.forecast import StageSpan as StageSpan
from energize.report.forecast import plan as plan
from energize.report.forecast import simulate as simulate
from energize.report.ledger import Book as Book
from energize.report.ledger import Ledger as Ledger
from energize.report.statement import ReportPosition as ReportPosition
from energize.report.table import LedgerRow as LedgerRow
from energize.report.table import Outlier as Outlier
from energize.report.table import RankTotals as RankTotals
from energize.report.table import Report as Report
