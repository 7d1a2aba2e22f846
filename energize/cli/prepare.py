"""`energize prepare`, `prepare-media` and `convert`: make folders readable."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from typer import Option

from energize.cli.clusters import Tasks, Work
from energize.cli.console import Console, table
from energize.cli.look import show_columns, show_config, show_item, show_splits
from energize.cli.mixes import is_folder, is_jsonl, object_named, path_argument, takes
from energize.core.progress import counted
from energize.data.media_filter import MediaFilterConfig
from energize.data.nv_meta import CRUDE, is_prepared
from energize.errors import ConfigError, EnergizeError, nearest
from energize.inference.converting import convert as converted
from energize.inference.measuring import is_measured_loose, measure_columns
from energize.preparation import fields, index, measures
from energize.preparation.columns import prepare_columns
from energize.preparation.media import prepare_media as collected
from energize.preparation.scan import find_shards, listed
from energize.preparation.tasks import JobPart
from energize.preparation.verify import prepare_checksums

_TYPES = f"One of {', '.join(fields.SAMPLE_TYPE_NAMES)}."
_SOURCE = "Images, conversations, a saved dataset, Parquet, MDS, tars."

Names = list[str] | None


@dataclass(frozen=True)
class Media:
    """Options that select media, shared by several commands."""

    media_metadata_by_glob: Annotated[
        str | None, Option(help="Store metadata of media, by name: '*.jpg,*.png'.")
    ] = None
    media_by_header: Annotated[
        bool,
        Option(
            "--media-metadata-by-header",
            help=("Store metadata of media, recognised by their first bytes."),
        ),
    ] = False
    media_by_extension: Annotated[
        bool,
        Option(
            "--media-metadata-by-extension",
            help="Store metadata of media, recognised by their extensions.",
        ),
    ] = False
    tmp_path: Annotated[
        Path | None,
        Option(help="Folder in which the index with media metadata is built."),
    ] = None

    @property
    def choices(self) -> tuple[str | None, bool, bool]:
        """The options that select media."""
        return (
            self.media_metadata_by_glob,
            self.media_by_header,
            self.media_by_extension,
        )


@dataclass(frozen=True)
class Splitting:
    """Options of the split parts of a folder."""

    split_ratio: Annotated[
        str | None, Option(help="Shares of train, val, test: 8,1,1.")
    ] = None
    split_parts: Annotated[
        Names, Option(help="Shards of a split by name, SPLIT:REGEX: 'val:val-.*'.")
    ] = None
    exclude: Annotated[
        str | None, Option(help="Leave out shards whose name matches this REGEX.")
    ] = None
    shuffle_tars: Annotated[
        bool, Option("--shuffle-tars", help="Shuffle shards before they are split.")
    ] = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `prepare` that choose shards and split parts."""
        ratios = self.split_ratio
        return {
            "split_ratios": None if ratios is None else index.ratios_of(ratios),
            "split_patterns": (
                parse_patterns(self.split_parts) if self.split_parts else None
            ),
            "exclude": self.exclude,
        }


@dataclass(frozen=True)
class Measuring:
    """Options of the columns and checksums of a folder."""

    column: Annotated[
        Names,
        Option(
            help=(
                "Measure a value of each sample, NAME=HOW: "
                "tokens=size:txt, quality=json[quality], "
                "width=image:width, length=len:txt, "
                "tokens=lengths.parquet:tokens, image_tokens=image:tokens:PROCESSOR, "
                "tokens=MODULE:FUNCTION."
            )
        ),
    ] = None
    length: Annotated[
        Names,
        Option(help="Measure a length, NAME=HOW: a whole number above 0."),
    ] = None
    column_default: Annotated[
        Names, Option(help="Value of samples that have none, NAME=VALUE.")
    ] = None
    checksums: Annotated[
        bool, Option("--checksums", help="Write a checksum of each sample.")
    ] = False

    @property
    def is_wanted(self) -> bool:
        """Whether columns or checksums are written."""
        return bool(self.column or self.length or self.checksums)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `prepare` that measure samples."""
        defaults = self.column_default or ()
        return {
            "columns": parse_columns([*(self.column or ()), *(self.length or ())]),
            "column_defaults": dict(
                _pair("--column-default", text) for text in defaults
            ),
            "lengths": [_pair("--length", text)[0] for text in self.length or ()],
            "checksums": self.checksums,
        }


@dataclass(frozen=True)
class Writing:
    """Options of what is written to a folder, and of what may be replaced."""

    dataset_yaml_name: Annotated[
        str, Option(help="Name of the file with the sample type.")
    ] = "dataset.yaml"
    skip_dataset_yaml: Annotated[
        bool, Option("--skip-dataset-yaml", help="Do not write a dataset.yaml.")
    ] = False
    sqlite: Annotated[
        bool, Option(help="Write the index that joins and stores read.")
    ] = True
    tar_index_only: Annotated[
        bool,
        Option("--tar-index-only", help="Write the index of a prepared folder again."),
    ] = False
    fix_duplicates: Annotated[
        bool, Option("--fix-duplicates", help="Rewrite shards that share keys.")
    ] = False
    force_overwrite: Annotated[
        bool,
        Option("--force-overwrite", help="Prepare a folder again without a prompt."),
    ] = False
    non_interactive: Annotated[
        bool,
        Option("--non-interactive", help="Never prompt: a missing option is an error."),
    ] = False


@takes("media", Media)
@takes("by", Tasks)
@takes("measuring", Measuring)
@takes("splitting", Splitting)
@takes("writing", Writing)
def prepare(
    path: Annotated[
        Path,
        path_argument(
            "A folder of tar shards, a .jsonl file, or a metadataset with joins; "
            "for columns, also loose data."
        ),
    ],
    media: Media,
    by: Tasks,
    splitting: Splitting,
    measuring: Measuring,
    writing: Writing,
    *,
    sample_type: Annotated[str | None, Option(help=_TYPES)] = None,
    field_map: Annotated[
        str | None,
        Option(
            help=('Parts by field, as JSON: {"image": "jpg,png", "caption": "txt"}.')
        ),
    ] = None,
) -> None:
    """Index a folder of tar shards, and write its splits and its sample type.

    Missing options are prompted for, after a look at the first samples; answers may
    come from a pipe. For a prepared folder, only --column and --checksums are written.
    Several machines can share the work: see --tasks.
    """
    console = Console()
    filtered = _media_filter(media)
    if filtered is not None:
        _check_may_have_media(path, by, tar_index_only=writing.tar_index_only)
    measured = measuring.arguments
    if measured["columns"] and is_measured_loose(path):
        options = {**splitting.arguments, "media": filtered, "writing": writing}
        _measure_loose(console, path, by, measured, options, sample_type, field_map)
        return
    if not is_folder(path):
        _check_file(path, by, measured["columns"])
        _prepare_file(console, path, by, checksums=measuring.checksums)
        return
    choices: dict[str, Any] = splitting.arguments | {
        "sample_type": sample_type,
        "field_map": None if field_map is None else parse_field_map(field_map),
    }
    writes_index = writing.force_overwrite or writing.tar_index_only
    if _only_measures(path, measuring, by, choices, writes_index=writes_index):
        _check_only_measured(path, (*choices.values(), filtered))
        _add(console, path, by.run(console), measured)
        return
    choices["overwrite"] = writing.force_overwrite
    if not writing.tar_index_only and by.task is None:
        typed = not writing.skip_dataset_yaml
        is_interactive = not (writing.non_interactive or by.on == "slurm")
        _complete(console, path, choices, typed=typed, is_interactive=is_interactive)
    by = by.run(console)
    report = index.prepare(
        path,
        **choices,
        **measured,
        dataset_yaml=writing.dataset_yaml_name,
        shuffle_shards=splitting.shuffle_tars,
        sqlite=writing.sqlite or filtered is not None,
        tar_index_only=writing.tar_index_only,
        fix_duplicates=writing.fix_duplicates,
        **by.arguments("Indexing shards"),
    )
    show_report(console, report, by, "Indexed {} in {}")
    _finish(console, path, filtered, media, by)


def _finish(
    console: Console,
    path: Path,
    filtered: MediaFilterConfig | None,
    media: Media,
    by: Tasks,
) -> None:
    """Store the metadata of media, if some are selected."""
    if filtered is None:
        console.write_line("Done")
    else:
        _collect(console, path, filtered, media, by)


def _check_may_have_media(path: Path, by: Tasks, *, tar_index_only: bool) -> None:
    """Raise `ConfigError` for a path or options without metadata of media."""
    if by.tasks or tar_index_only or not is_folder(path):
        raise ConfigError(
            "only folders have metadata of media. For it alone, use prepare-media"
        )


def _only_measures(
    path: Path,
    measuring: Measuring,
    by: Tasks,
    choices: Mapping[str, Any],
    *,
    writes_index: bool,
) -> bool:
    """Return whether only columns and checksums of a prepared folder are written."""
    if writes_index or not measuring.is_wanted or not is_prepared(path):
        return False
    return not (by.tasks and any(choices.values()))


def _check_file(path: Path, by: Tasks, columns: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options that only folders have."""
    if by.tasks:
        raise ConfigError(f"{path} is a file, and --tasks divide the shards of folders")
    if columns:
        raise ConfigError(f"{path} is a file: --column measures samples of folders")


def show_report(
    console: Console, report: index.PrepareReport, by: Tasks, done: str
) -> None:
    """Print the result of writing samples and shards."""
    of = "" if by.task is None else f"Task {by.task} of {by.tasks}: "
    samples = f"{report.samples:,} samples"
    console.write_line(
        of + done.format(samples, counted(len(report.shard_counts), "shard"))
    )
    if report.splits:
        show_splits(console, report.splits, report.shard_counts, report.windows)
    if report.config is not None:
        show_config(console, report.config)
    _show_measured(console, report)


def _show_measured(console: Console, report: Any) -> None:
    if report.columns:
        console.write_line(f"Columns of {report.samples:,} samples:")
        show_columns(console, report.columns, {})
    for note in report.notes:
        console.note(note)


def _add(console: Console, path: Path, by: Tasks, measured: dict[str, Any]) -> None:
    """Write checksums and columns of a prepared folder."""
    columns, defaults, lengths, checksums = measured.values()
    options = by.arguments("Reading shards")
    if checksums:
        report = prepare_checksums(path, **options)
        console.write_line(
            f"Wrote checksums of {report.samples:,} samples, {report.bytes:,} bytes"
        )
    if columns:
        report_of_columns = prepare_columns(
            path, columns, defaults=defaults, lengths=lengths, **options
        )
        _show_measured(console, report_of_columns)
    console.write_line("Done")


def _measure_loose(
    console: Console,
    path: Path,
    by: Tasks,
    measured: dict[str, Any],
    options: dict[str, Any],
    sample_type: str | None,
    field_map: str | None,
) -> None:
    """Measure columns of loose data, which are stored beside them."""
    writing = replace(options.pop("writing"), non_interactive=False)
    is_written = measured["checksums"] or writing != Writing()
    if is_written or any(options.values()):
        raise ConfigError(
            f"{path} is not a prepared folder, so only --column is written, beside it. "
            "Remove the other options, or convert it first, with: energize convert"
        )
    report = measure_columns(
        path,
        measured["columns"],
        defaults=measured["column_defaults"],
        lengths=measured["lengths"],
        sample_type=sample_type,
        field_map=None if field_map is None else parse_field_map(field_map),
        job=JobPart(**by.run(console).arguments("Measuring samples")),
    )
    _show_measured(console, report)
    console.write_line("Done")


def _prepare_file(console: Console, path: Path, work: Work, *, checksums: bool) -> None:
    """Index a file of JSON lines, or store the joins of a metadataset."""
    if is_jsonl(path):
        on_progress = work.reporter("Indexing lines")
        count = index.prepare_jsonl(path, checksums=checksums, on_progress=on_progress)
        console.write_line(f"Done. Found {count} samples.")
        return
    if checksums or path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{path} is neither a .jsonl file nor a metadataset .yaml, which has no "
            "checksums of its own. For tar shards, pass the folder"
        )
    from energize.energon.loading import prepare_metadataset

    prepare_metadataset(path)
    console.write_line("Done")


# Options as they are typed.


def _pair(option: str, text: str, separator: str = "=") -> tuple[str, str]:
    name, delimiter, value = text.partition(separator)
    if not (name and delimiter and value):
        raise ConfigError(f"{option}: expected NAME{separator}VALUE, got {text!r}")
    return name, value


def parse_columns(texts: Sequence[str]) -> dict[str, measures.How]:
    """Return the columns of `--column NAME=HOW`; imports functions."""
    columns: dict[str, measures.How] = {}
    for text in texts:
        name, how = _pair("--column", text)
        if name in columns:
            raise ConfigError(f"--column: {name!r} is given twice")
        try:
            written = measures.is_written(how)
            columns[name] = how if written else object_named(how, f"--column {name}")
        except ConfigError as fault:
            raise ConfigError(f"{fault}{measures.suggest_measure(how)}") from None
    return columns


def parse_patterns(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return patterns of shard names by split, from texts such as "train:train-.*".

    >>> parse_patterns(["train:a-.*", "train:b-.*", "val:c-.*"])
    {'train': ['a-.*', 'b-.*'], 'val': ['c-.*']}
    """
    patterns: dict[str, list[str]] = {}
    for text in texts:
        part, pattern = _pair("--split-parts", text, ":")
        patterns.setdefault(part, []).append(pattern)
    return patterns


def parse_field_map(text: str) -> dict[str, str]:
    """Return a field map from JSON.

    >>> parse_field_map('{"image": "jpg,png", "caption": "json[caption]"}')
    {'image': 'jpg,png', 'caption': 'json[caption]'}
    """
    try:
        return TypeAdapter(dict[str, str]).validate_json(text, strict=True)
    except ValidationError as reason:
        raise ConfigError(
            "--field-map: expected a JSON object from fields to parts such as "
            '{"image": "jpg,png", '
            f'"caption": "txt"}}, got {text!r}'
        ) from reason


# Asking for what was not given.

_NEEDED = (
    "please give --split-ratio 8,1,1 or --split-parts 'train:train-.*'; --sample-type "
    "(CrudeWebdataset for plain dicts) or --skip-dataset-yaml; and --force-overwrite "
    "where it is prepared already"
)


def _complete(
    console: Console,
    path: Path,
    choices: dict[str, Any],
    *,
    typed: bool,
    is_interactive: bool,
) -> None:
    """Prompt for missing choices; raise `ConfigError` if not interactive."""
    fields.check_choice(choices["sample_type"], choices["field_map"])
    has_split = choices["split_ratios"] or choices["split_patterns"]
    if has_split and (choices["sample_type"] or not typed):
        return
    if not is_interactive:
        raise ConfigError(f"--non-interactive has no prompts: {_NEEDED}")
    try:
        _prompt(console, path, choices, typed=typed)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise ConfigError(
            f"the input ended before the last answer: {_NEEDED}"
        ) from None


def _media_filter(media: Media) -> MediaFilterConfig | None:
    return MediaFilterConfig.parse(*media.choices) if any(media.choices) else None


def _check_only_measured(path: Path, choices: Sequence[Any]) -> None:
    """Raise `ConfigError` if a prepared folder gets other choices than columns."""
    if any(choices):
        raise ConfigError(
            f"{path} is prepared already, so only --column and --checksums are "
            "written. Remove the other options, or pass --force-overwrite to prepare "
            "it again"
        )


def _prompt_ratios(shards: int) -> Any:
    few = {1: "1,0,0", 2: "1,1,0"}.get(shards, f"{shards - 2},1,1")
    proposal = few if shards < 10 else "8,1,1"
    question = f"Ratio of train, val, test over {shards} shards"
    return _answer(question, proposal, index.ratios_of)


def _show_types(console: Console) -> None:
    """Show the sample types with their numbers and fields."""
    rows = []
    for number, name in numbered_types().items():
        names = [
            field if needed else f"[{field}]"
            for field, needed in fields.sample_fields(name).items()
        ]
        rows.append((number, name, ", ".join(names) or "all parts as they are"))
    console.print(
        table("", "sample type", "fields (optional ones in brackets)", rows=rows)
    )


def _prompt(
    console: Console, path: Path, choices: dict[str, Any], *, typed: bool
) -> None:
    names, _ = find_shards(path, choices["exclude"])
    console.write_line(f"Found {len(names):,} shards, from {names[0]} to {names[-1]}")
    if is_prepared(path) and not choices["overwrite"]:
        question = "It is prepared already. Prepare it again?"
        choices["overwrite"] = typer.confirm(question, abort=True)
    look = fields.FirstLook(path / names[0])
    show_item(console, look.samples[0].raw())
    if choices["split_ratios"] is None and choices["split_patterns"] is None:
        choices["split_ratios"] = _prompt_ratios(len(names))
    if not typed or choices["sample_type"] is not None:
        return
    if not typer.confirm("Say in a dataset.yaml what its samples are?", default=True):
        return
    _show_types(console)
    proposed = fields.propose_sample_type(look)
    sample_type = _answer("Sample type", proposed, _sample_type)
    choices["sample_type"] = sample_type
    if sample_type != CRUDE and choices["field_map"] is None:
        choices["field_map"] = _prompt_field_map(console, sample_type, look)


def _answer(question: str, proposal: str, parse: Any) -> Any:
    """Return the answer to a prompt; a wrong one at a terminal is prompted again."""

    def checked(text: str) -> Any:
        try:
            return parse(text.strip())
        except EnergizeError as reason:
            if not sys.stdin.isatty():  # the answers after it belong to other questions
                raise
            raise typer.BadParameter(str(reason)) from None

    return typer.prompt(question, default=proposal, value_proc=checked)


def numbered_types() -> dict[int, str]:
    """Return the sample types by the numbers of Megatron-Energon.

    It counts the types that it exports by name, including its `Sample`, and plain
    dicts. Types that it does not have follow.
    """
    rare = (
        CRUDE,
        "ConversationSample",
        "VQAOCRSample",
        "PreferenceSample",
        "GroundingSample",
    )
    names = [*sorted({*fields.SAMPLE_TYPE_NAMES, "Sample"}.difference(rare)), *rare]
    return {n: name for n, name in enumerate(names) if name != "Sample"}


def _sample_type(text: str) -> str:
    name = numbered_types().get(int(text), text) if text.isdecimal() else text
    if name not in fields.SAMPLE_TYPE_NAMES:
        near = nearest(text, fields.SAMPLE_TYPE_NAMES)
        raise ConfigError(
            f"the sample type must be one of the numbers above, or a name{near}"
        )
    return name


def _prompt_field_map(
    console: Console, sample_type: str, look: fields.FirstLook
) -> dict[str, str] | None:
    """Prompt for the parts of fields; None if the proposal is accepted."""
    proposed = fields.propose_field_map(sample_type, look)
    fields_text = ", ".join(
        f"{name} from {source}" for name, source in proposed.items()
    )
    console.write_line(f"Proposed: {fields_text or 'nothing fits'}")
    if not typer.confirm("Say for each field where it comes from?", default=True):
        return None
    console.write_line(
        f"Where each field comes from. Parts: {', '.join(look.parts)}. A comma "
        "separates alternatives (jpg,png), brackets look into JSON "
        "(json[caption][en])."
    )
    field_map: dict[str, str] = {}
    for name, needed in fields.sample_fields(sample_type).items():
        question = name if needed else f"{name} (- for none)"
        proposal = proposed.get(name, None if needed else "-")
        field_map[name] = typer.prompt(question, default=proposal).strip()
    return {name: source for name, source in field_map.items() if source != "-"}


# Metadata of media.


@takes("media", Media)
@takes("work", Work)
def prepare_media(
    path: Annotated[
        Path, path_argument("A prepared folder, or a plain folder of files.")
    ],
    media: Media,
    work: Work,
) -> None:
    """Store width, height, duration and other metadata of all media, for stores.

    Exits with 1 if some files are damaged; the metadata of the others are stored.
    """
    by = MediaFilterConfig.parse(*media.choices)
    if not is_folder(path):
        raise ConfigError(f"{path} is a file, and media metadata need a folder")
    _collect(Console(), path, by, media, work)


def _collect(
    console: Console, path: Path, by: MediaFilterConfig, media: Media, work: Work
) -> None:
    """Store the metadata, and print damaged files; exit with 1 if there are any."""
    report = collected(
        path,
        by,
        tmp_path=media.tmp_path,
        workers=work.num_workers,
        on_progress=work.reporter("Looking at media"),
    )
    if report.damaged:
        count = counted(len(report.damaged), "damaged file")
        console.note(f"{count}, without metadata:{listed(report.damaged)}")
    console.write_line(f"Done. Stored metadata for {report.count} files.")
    if report.damaged:
        raise typer.Exit(1)


# Loose files.


@takes("by", Tasks)
def convert(
    source: Annotated[Path, path_argument(_SOURCE)],
    out: Annotated[Path, path_argument("A new folder, or an interrupted conversion.")],
    by: Tasks,
    *,
    samples_per_shard: Annotated[
        int, Option(min=1, help="Samples in each shard.")
    ] = 1000,
    sample_type: Annotated[str | None, Option(help=_TYPES)] = None,
    field_map: Annotated[
        str | None, Option(help='Columns by field, as JSON: {"text": "a"}.')
    ] = None,
    image_folder: Annotated[
        str | None, Option(help="Folder that the paths in rows are relative to.")
    ] = None,
    strict: Annotated[
        bool, Option("--strict", help="Raise an error for samples that are left out.")
    ] = False,
) -> None:
    """Convert loose files to a prepared folder of tar shards, with the same order.

    An interrupted conversion is resumed. Saved states fit both the loose files and the
    folder. Several machines can share the work: see --tasks.
    """
    console = Console()
    by = by.run(console)
    report = converted(
        source,
        out,
        samples_per_shard=samples_per_shard,
        sample_type=sample_type,
        field_map=None if field_map is None else parse_field_map(field_map),
        image_folder=image_folder,
        strict=strict,
        **by.arguments("Writing shards"),
    )
    show_report(console, report, by, "Converted {} to {}")
