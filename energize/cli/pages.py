"""HTML pages of `energize preview`, `blame` and `serve`: the batches of a run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from string import Template
from threading import Lock
from typing import Annotated, Any, cast
from urllib.parse import parse_qs, urlsplit

import numpy as np
from rich.filesize import decimal
from typer import Option

from energize.cli import mixes
from energize.cli.console import Console, short
from energize.core import tree
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.html import (
    conversation,
    error,
    fields_shown,
    gallery,
    item_html,
    mapping_html,
    rows,
    text,
    value_html,
)
from energize.core.loss_weights import WEIGHTS, field_of
from energize.core.node import Refs
from energize.core.progress import counted
from energize.core.records import is_record
from energize.core.restoring import loads_of
from energize.core.samples import ConversationSample
from energize.core.trace import (
    SILENT,
    Trace,
)
from energize.data.webdataset import WebdatasetSource
from energize.datasets.transform import SampleWeightDataset
from energize.errors import ConfigError, EnergizeError
from energize.report import PlannedSample
from energize.report.blame import BlamedSample
from energize.report.forecast import batches_read, planned_samples, simulate, weighed_in
from energize.report.levels import source_names

_BATCH = 8  # default batch size
_MOST_SAMPLES = 48  # samples of a batch that are shown
_HORIZON = 1000  # steps of the forecast
_FARTHEST = 10**12  # the last step
_COLOURS = 8


@dataclass(frozen=True)
class PreviewBatch:
    """A batch of a run, for a page.

    Args:
        step: The step.
        item: The batch, or the error of making it.
        samples: Its samples, of a past step with losses.
        refs: The sources and indices of its samples.
        rank: The rank of a past step.
    """

    step: int
    item: Any
    samples: Sequence[PlannedSample | BlamedSample]
    refs: Refs
    rank: int | None = None

    @property
    def name(self) -> str:
        return f"Step {self.step:,}" + (
            "" if self.rank is None else f", rank {self.rank}"
        )

    @property
    def anchor(self) -> str:
        return f"step-{self.step}" + ("" if self.rank is None else f"-{self.rank}")


@dataclass
class PreviewPage:
    """The batches of a run as HTML pages; by default read by its options."""

    mix: Path
    run: mixes.RunOptions
    opened: InitVar[Dataset[Any] | None] = None

    def __post_init__(self, opened: Dataset[Any] | None) -> None:
        self.dataset = self._read() if opened is None else opened
        self.loads, self.weights = loads_of(self.dataset), _weights(self.dataset)
        self.labels = source_names(self.dataset)
        self.words = None
        self._stream: Iterator[tuple[Any, Refs]] | None = None
        self._reached = 0  # of a stream: the step that comes next
        if self.run.encoder is not None:
            encoder = mixes.load_encoder(self.run.encoder)
            owner = getattr(encoder, "processor", encoder)
            tokenizer = getattr(owner, "tokenizer", owner)
            self.words = getattr(tokenizer, "convert_ids_to_tokens", None)

    def _read(self) -> Dataset[Any]:
        node = mixes.node_at(self.mix, self.run.split)
        composed = getattr(node, "composition", None) or getattr(node, "plan", None)
        return self.run.read(self.mix, None if composed else _BATCH, samples=True)

    @cached_property
    def end(self) -> int:
        """The number of steps, limited for runs without an end."""
        ends = self.run.validates and self.dataset.indexed
        return min(self.dataset.size, _FARTHEST) if ends else _FARTHEST

    def batches(self, at: int, steps: int) -> Iterator[PreviewBatch]:
        """Yield the batches of some steps, with errors of those that fail."""
        none = np.zeros(0, dtype=np.int64)
        for step in range(at, min(at + steps, self.end)):
            item = None
            refs = Refs(none, none, none, none)
            try:
                if not self.dataset.indexed:
                    if self._stream is None or step < self._reached:
                        self._stream = batches_read(self.dataset, SILENT)
                        self._reached = 0
                    item, refs = next(islice(self._stream, step - self._reached, None))
                    self._reached = step + 1
                else:
                    dataset = cast("IndexedDataset[Any]", self.dataset)
                    trace = Trace(dataset, np.array([step], dtype=np.int64))
                    refs = trace.refs()
                    item = trace.items(SILENT)[0]
            except StopIteration:
                self._stream = None
                return
            except Exception as reason:  # whatever the encoder of the user raises
                self._stream = None
                item = reason
            samples = planned_samples(
                self.dataset.sources, self.labels, refs, keys=False
            )
            yield PreviewBatch(step, item, samples, refs)
            if not self.dataset.indexed and isinstance(item, Exception):
                return

    def stored(self, source: int, index: int) -> Any:
        """Return a sample before the encoder, or its error."""
        reader, load = self.loads[source]
        try:
            raw = reader.read(np.array([index], dtype=np.int64))[0]
            return raw if load is None or isinstance(raw, Failed) else load(raw)
        except Exception as reason:  # whatever libraries raise of damaged bytes
            return reason

    # HTML

    def page(
        self,
        at: int,
        steps: int,
        *,
        served: bool = False,
        past: Sequence[PreviewBatch] = (),
    ) -> bytes:
        """Return an HTML page of some steps.

        Args:
            at: The first step.
            steps: Number of steps.
            served: Whether the page has links to other steps.
            past: Batches of a past step, which are shown without a forecast.
        """
        read_batches = []
        shown = ""
        for batch in past or self.batches(at, steps):
            shown += self._batch_html(batch)
            read_batches.append(replace(batch, item=None))  # which may be large
        kinds = ("html", "css", "js")
        shell, *assets = (
            Path(__file__).with_name(f"page.{suffix}").read_text() for suffix in kinds
        )
        digests = [
            base64.b64encode(hashlib.sha256(e.encode()).digest()).decode()
            for e in assets
        ]
        page = Template(shell).substitute(
            name=text(self.mix.name or self.mix),
            split=text(self.run.split),
            step=f"{at:,}",
            style=assets[0],
            style_digest=digests[0],
            script=assets[1],
            script_digest=digests[1],
            links=self._links(at, steps, read_batches, served=served),
            sources="" if past else self._sources(read_batches, steps),
            batches=shown or error(f"Step {at:,} does not exist"),
        )
        return page.encode("utf-8", "backslashreplace")

    def _links(
        self, at: int, steps: int, read_batches: Sequence[PreviewBatch], *, served: bool
    ) -> str:
        if not served:
            return "".join(
                f'<a href="#{b.anchor}">{b.name}</a>' for b in read_batches[:12]
            )
        previous_step = max(0, at - steps)
        next_step = at + steps
        back = (
            '<a href="/?step=0">First</a><a rel="prev" '
            f'href="/?step={previous_step}">Previous</a>'
        )
        ahead = (
            f'<a rel="next" href="/?step={next_step}">Next</a>'
            if next_step < self.end
            else ""
        )
        return (
            f'{back if at else ""}{ahead}<form action="/"><label '
            'for="step">Step</label><input '
            f'id="step" name="step" type="number" min="0" max="{self.end - 1}" '
            f'value="{at}">'
            "<button>Go</button></form>"
        )

    def _sources(self, read_batches: Sequence[PreviewBatch], steps: int) -> str:
        """Return the table of requested and delivered shares, with a forecast."""
        shown_counts = Counter(
            entry.source for batch in read_batches for entry in batch.samples
        )
        horizon = min(max(_HORIZON, steps), max(1, self.end))
        try:
            read = None if self.dataset.indexed else max(1, steps)
            forecast = simulate(self.dataset, horizon, read=read)
        except Exception as reason:  # reading a stream calls the encoder of the user
            return error(f"The share of each source is not known: {reason}")
        body = []
        bar = ""
        begun = 0.0
        for number, entry in enumerate(forecast.sources):
            requested = "-" if entry.requested is None else f"{entry.requested:.2%}"
            size = stored_size(self.dataset.sources[number])
            numbers = (
                f"{shown_counts[entry.name]:,}",
                short(entry.count),
                size,
                short(entry.epochs, 2),
            )
            body.append(
                (_chip(entry.name, number), requested, f"{entry.share:.2%}", *numbers)
            )
            bar += (
                f'<rect class="s{number % _COLOURS}" x="{100 * begun:.3f}" y="0" '
                'height="1" '
                f'width="{100 * entry.share:.3f}"/>'
            )
            begun += entry.share
        counts = "samples" if self.run.validates else weighed_in(self.dataset)
        extent = f"{counted(horizon, 'step')}, {counted(forecast.samples, 'sample')}"
        head = (
            "source",
            ">asked",
            ">delivered",
            ">here",
            ">samples",
            ">stored",
            ">epochs",
        )
        return (
            f"<h2>Sources <small>of {extent}; weights count {text(counts)}</small></h2>"
            '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" '
            'role="img" '
            f'aria-label="Shares of the sources, as in the table">{bar}</svg>'
            f'<div class="wide">{rows(head, body)}</div>'
        )

    def _batch_html(self, batch: PreviewBatch) -> str:
        count = len(batch.samples)
        weights = np.asarray(
            field_of(batch.item, WEIGHTS) if is_record(batch.item) else None
        )
        loss_weights = [self.weights[source] for source in batch.refs.source.tolist()]
        if weights.shape == (count,):
            loss_weights = weights.tolist()
        shown = "".join(
            self._sample_html(batch, row, loss_weights[row])
            for row in range(min(count, _MOST_SAMPLES))
        )
        more = count - _MOST_SAMPLES
        if more > 0:
            shown += f'<p class="note">and {counted(more, "sample")} more</p>'
        return (
            f'<section class="batch" id="{batch.anchor}" aria-label="{batch.name}">'
            f"<h2>{batch.name} <small>{counted(count, 'sample')}</small></h2>"
            f'<div class="samples">{shown}</div>{self._encoded(batch)}</section>'
        )

    def _encoded(self, batch: PreviewBatch) -> str:
        if batch.rank is not None:
            return ""
        named = self.run.encoder or "the default encoder, as --encoder names none"
        if not isinstance(batch.item, Exception):
            inner = f'<div class="wide">{item_html(batch.item, self.words)}</div>'
        elif self.run.encoder is None and not isinstance(batch.item, OSError):
            inner = f'<p class="note">No batch: {text(batch.item)}</p>'
        else:
            inner = error(_failure_text(batch.item))
        return (
            f"<h3>After the encoder <small>{text(named)}</small></h3>"
            f'<div class="encoded">{inner}</div>'
        )

    def _sample_html(self, batch: PreviewBatch, row: int, weight: float) -> str:
        planned = batch.samples[row]
        source = int(batch.refs.source[row])
        sample = self.stored(source, int(batch.refs.index[row]))
        location = f"{planned.shard or ''} #{planned.index:,}".strip()
        if planned.epoch:
            location += f", pass {planned.epoch + 1:,}"
        loss_html = _loss_html(weight, getattr(planned, "loss", None))
        key = ""
        more: dict[str, Any] = {"type": type(sample).__name__}
        if isinstance(sample, Failed | Exception):
            body = error(
                f"{_failure_text(sample)}\nA substitute takes its place in the batch."
            )
        else:
            values = fields_shown(sample)
            key = str(values.get("__key__", ""))
            more |= _metadata_of(values)
            body = _fields_html(sample, values)
        files = getattr(sample, "__sources__", None) or ()
        more |= {"files": " ".join(name for info in files for name in info.file_names)}
        label = f"Sample {row + 1} of {len(batch.samples)}, {planned.source} {key}"
        metadata = mapping_html({k: v for k, v in more.items() if v})
        return (
            '<article class="sample" tabindex="0" '
            f'aria-label="{text(label[:300])}"><header>'
            f'{_chip(planned.source, source)}<span class="where">{text(key)} '
            f"{text(location)}</span>"
            f"{loss_html}</header><div "
            f'class="body">{body}<details><summary>Metadata</summary>'
            f"{metadata}</details></div></article>"
        )


def _weights(dataset: Dataset[Any], above: float = 1.0) -> list[float]:
    """Return the loss weights of the samples of each source, if they are numbers."""
    if isinstance(dataset, SampleWeightDataset) and not callable(dataset.weight):
        above *= dataset.weight
    if not dataset.inputs:
        return [above for _ in dataset.sources]
    return tree.of_sources(dataset, [_weights(node, above) for node in dataset.inputs])


def _loss_html(weight: float, loss: float | None) -> str:
    """Return the loss weight of a sample, unless it is 1, and its loss if recorded."""
    html = ""
    if weight != 1:
        html += f'<span class="weight">loss weight {weight:g}</span>'
    if loss is not None:
        html += f'<span class="weight">loss {loss:.4g}</span>'
    return html


def _metadata_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a sample with underscores, without its key."""
    return {
        name.strip("_"): value
        for name, value in values.items()
        if name.startswith("__") and name != "__key__"
    }


def _fields_html(sample: Any, values: Mapping[str, Any]) -> str:
    """Return the fields of a sample, pictures before other values."""
    if isinstance(sample, ConversationSample):
        return conversation(sample.turns, sample.images, sample.videos)
    pictures = []
    details = []
    for name, value in values.items():
        if name.startswith("__") or value is None:
            continue
        if picture := gallery(value, name):
            pictures.append(picture)
        else:
            html = value_html(value, name)
            details.append(f'<div class="field"><b>{text(name)}</b>{html}</div>')
    return "".join(pictures + details)


def _failure_text(reason: object) -> str:
    ours = isinstance(reason, EnergizeError | Failed)
    return str(reason) if ours else f"{type(reason).__name__}: {reason}"


def _chip(name: str, number: int) -> str:
    return f'<span class="chip s{number % _COLOURS}">{text(name)}</span>'


def stored_size(source: Any) -> str:
    """Return the local size of a source, if it can be determined quickly."""
    with suppress(OSError, AttributeError):
        if isinstance(source, WebdatasetSource) and len(source.shards) <= 10_000:
            return decimal(
                sum((source.path / shard).stat().st_size for shard in source.shards)
            )
        if source.path.is_file():
            return decimal(source.path.stat().st_size)
    return "-"


# On loopback

_HOST = "127.0.0.1"
_PORT = 8000
_TRIED = 20


class _Server(ThreadingHTTPServer):
    """Serves the pages of a run to this machine."""

    daemon_threads = True
    look: PreviewPage
    steps: int
    first: int
    reading = Lock()


class _Handler(BaseHTTPRequestHandler):
    """Answers `/?step=N` for requests to the name of this machine."""

    server: _Server
    timeout = 30
    server_version = "energize"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        step = parse_qs(url.query).get("step", [str(self.server.first)])[-1]
        names = [f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")]
        if self.headers.get("Host", "").lower() not in names:
            self._answer(403, b"This page is for " + " and ".join(names).encode())
        elif url.path != "/":
            self._answer(404, b"The page is at /?step=0")
        elif not re.fullmatch("[0-9]{1,12}", step):
            self._answer(400, b"step is a whole number from 0 on, of at most 12 digits")
        else:
            try:
                with self.server.reading:
                    page = self.server.look.page(
                        int(step), self.server.steps, served=True
                    )
                self._answer(200, page, "text/html")
            except EnergizeError as reason:
                self._answer(500, str(reason).encode("utf-8", "backslashreplace"))

    do_HEAD = do_GET  # noqa: N815 - its name there

    def _answer(self, code: int, body: bytes, content_type: str = "text/plain") -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", f"{content_type}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print no requests."""

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser was closed
            super().handle()


def _bound(port: int | None) -> _Server:
    """Return a server at the port; without one, at the first free port of some."""
    tried = range(_PORT, _PORT + _TRIED) if port is None else (port,)
    for port_number in tried:
        try:
            return _Server((_HOST, port_number), _Handler)
        except OSError as reason:
            refused = reason
    named = (
        f"port {port}" if port is not None else f"a port from {_PORT} to {tried[-1]}"
    )
    raise ConfigError(
        f"--port: {named} cannot be used ({refused.strerror}). Pass another one, or "
        "--port 0 for any free port"
    )


@mixes.takes_run
def serve(
    mix: mixes.MixPath,
    run: mixes.RunOptions,
    *,
    port: Annotated[
        int | None,
        Option(
            min=0,
            max=65535,
            help="The port; by default the first free one from 8000 on.",
        ),
    ] = None,
    at: Annotated[int, Option(min=0, help="The first step.")] = 0,
    batches: Annotated[int, Option(min=1, max=64, help="Batches on a page.")] = 1,
) -> None:
    """Show the batches of any step of a run in a local browser, until Ctrl-C."""
    look = PreviewPage(mix, run)
    with _bound(port) as server:
        server.look = look
        server.steps = batches
        server.first = at
        console = Console()
        console.write_line(
            f"http://{_HOST}:{server.server_port}/?step={at} shows {mix}; Ctrl-C ends "
            "it"
        )
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        console.write_line("Ended")
