"""`energize prepare`: index a folder of tar shards, asking for what was not given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.prompt import Prompt
from rich.table import Table

from energize.cli.console import (
    Console,
    counted_text,
    progress_bar,
    show_config,
    show_lines,
    show_note,
    show_samples,
    show_splits,
)
from energize.cli.info import AskedColumns, asked_columns, show_measured
from energize.cli.lint import Fault, FaultList
from energize.cli.mixes import is_folder, is_jsonl
from energize.data.nv_meta import CRUDE, is_prepared
from energize.energon.loading import prepare_metadataset
from energize.errors import ConfigError, EnergizeError, nearest
from energize.preparation.fields import (
    SAMPLE_TYPE_NAMES,
    FirstLook,
    check_choice,
    propose_field_map,
    propose_sample_type,
    sample_fields,
)
from energize.preparation.index import PrepareReport, prepare_jsonl, split
from energize.preparation.index import prepare as prepare_folder
from energize.preparation.media import MediaReport
from energize.preparation.media import prepare_media as collect_media
from energize.preparation.scan import find_shards
from energize.preparation.verify import prepare_checksums
from energize.task.load import parse_field

Folder = Annotated[
    Path, typer.Argument(help="A folder of tar shards, a .jsonl file, or a metadataset with joins.")
]
SplitRatio = Annotated[
    str | None, typer.Option(help="Shares of the shards for train, val and test: 8,1,1.")
]
SplitParts = Annotated[
    list[str] | None,
    typer.Option(help="SPLIT:REGEX, the shards of a split by name: 'val:val-.*'. One per split."),
]
Exclude = Annotated[
    str | None, typer.Option(help="Leave out shards in whose name this REGEX is found.")
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Go on without folders and shards that cannot be read."),
]
ShuffleTars = Annotated[
    bool, typer.Option("--shuffle-tars", help="Shuffle the shards before the ratio cuts them.")
]
SampleType = Annotated[str | None, typer.Option(help=f"One of {', '.join(SAMPLE_TYPE_NAMES)}.")]
FieldMap = Annotated[
    str | None,
    typer.Option(
        help='The part each field comes from, as JSON: {"image": "jpg,png", "caption": "txt"}. '
        "By default proposed by the parts found."
    ),
]
DatasetYamlName = Annotated[
    str, typer.Option(help="The name of the file that says what samples are.")
]
SkipDatasetYaml = Annotated[
    bool, typer.Option("--skip-dataset-yaml", help="Do not write a dataset.yaml.")
]
Sqlite = Annotated[
    bool, typer.Option("--sqlite", help="Write index.sqlite too; training does not read it.")
]
TarIndexOnly = Annotated[
    bool, typer.Option("--tar-index-only", help="Write the index of a prepared folder again.")
]
FixDuplicates = Annotated[
    bool,
    typer.Option(
        "--fix-duplicates",
        help="When shards share keys: write them anew, the members of each in a folder of its own.",
    ),
]
MediaByGlob = Annotated[
    str | None,
    typer.Option(
        "--media-metadata-by-glob",
        help="Store metadata of media, which are files named so: '*.jpg,*.png'.",
    ),
]
MediaByHeader = Annotated[
    bool, typer.Option("--media-metadata-by-header", help="The same, by how files begin.")
]
MediaByExtension = Annotated[
    bool, typer.Option("--media-metadata-by-extension", help="The same, by usual extensions.")
]
TmpPath = Annotated[
    Path | None, typer.Option(help="The folder in which the index with media metadata is built.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="NAME=HOW, what is to be known of each sample without reading it: tokens=size:txt, "
        "quality=json[quality], width=image:width, length=len:txt, tokens=MODULE:FUNCTION. Of a "
        "folder that is prepared, columns are all that is written. One option for each.",
    ),
]
ColumnDefaults = Annotated[
    list[str] | None,
    typer.Option("--column-default", help="NAME=VALUE, for samples without a value: tokens=1."),
]
Checksums = Annotated[
    bool,
    typer.Option(
        "--checksums",
        help="Write a checksum of each sample, for get_train_dataset(checksums=True) and lint. Of "
        "a folder that is prepared, they are all that is written.",
    ),
]
ForceOverwrite = Annotated[
    bool, typer.Option("--force-overwrite", help="Prepare a folder again without asking.")
]
NonInteractive = Annotated[
    bool, typer.Option("--non-interactive", help="Never ask: what is missing is an error.")
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        "--num-workers", "--workers", help="How many processes read shards; by default the cores."
    ),
]
ShowProgress = Annotated[bool, typer.Option("--progress/--no-progress")]

G = TypeVar("G")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Choices:
    """What may be given as options or asked for."""

    ratios: Mapping[str, float] | None
    patterns: Mapping[str, Sequence[str]] | None
    sample_type: str | None
    field_map: Mapping[str, str] | None
    overwrite: bool
    typed: bool
    exclude: str | None
    skip_unreadable: bool

    @classmethod
    def parsed(
        cls,
        ratios: str | None,
        patterns: Sequence[str] | None,
        sample_type: str | None,
        field_map: str | None,
        *others: Any,
    ) -> _Choices:
        """Those of options as they are typed."""
        return cls(
            _maybe(parse_ratios, ratios),
            _maybe(parse_patterns, patterns or None),
            sample_type,
            _maybe(parse_field_map, field_map),
            *others,
        )

    def options(self) -> dict[str, Any]:
        """As `prepare` takes them."""
        return {
            "split_ratios": self.ratios,
            "split_patterns": self.patterns,
            "sample_type": self.sample_type,
            "field_map": self.field_map,
            "overwrite": self.overwrite,
            "exclude": self.exclude,
            "skip_unreadable": self.skip_unreadable,
        }


def _maybe(parse: Callable[[G], T], given: G | None) -> T | None:
    """An option that was given, parsed."""
    return None if given is None else parse(given)


def prepare(
    path: Folder,
    *,
    split_ratio: SplitRatio = None,
    split_parts: SplitParts = None,
    exclude: Exclude = None,
    skip_unreadable: SkipUnreadable = False,
    shuffle_tars: ShuffleTars = False,
    sample_type: SampleType = None,
    field_map: FieldMap = None,
    dataset_yaml_name: DatasetYamlName = "dataset.yaml",
    skip_dataset_yaml: SkipDatasetYaml = False,
    sqlite: Sqlite = False,
    tar_index_only: TarIndexOnly = False,
    fix_duplicates: FixDuplicates = False,
    force_overwrite: ForceOverwrite = False,
    non_interactive: NonInteractive = False,
    num_workers: NumWorkers = None,
    column: Columns = None,
    column_default: ColumnDefaults = None,
    checksums: Checksums = False,
    media_by_glob: MediaByGlob = None,
    media_by_header: MediaByHeader = False,
    media_by_extension: MediaByExtension = False,
    tmp_path: TmpPath = None,
    progress: ShowProgress = True,
) -> None:
    """Index a folder of tar shards, and say how it is split and what its samples are.

    What is not given is asked for, after a look at the first samples; answers may come from a pipe.
    """
    console = Console(soft_wrap=True)
    media = media_filter(media_by_glob, media_by_header, media_by_extension)
    if media is not None and (tar_index_only or not is_folder(path)):
        raise ConfigError("only folders have metadata of media; for it alone use prepare-media")
    columns = asked_columns(path, column, column_default)
    if not is_folder(path):
        _prepare_file(console, path, checksums=checksums, progress=progress)
        return
    given = split_ratio, split_parts, sample_type, field_map
    if (columns or checksums) and is_prepared(path) and not (force_overwrite or tar_index_only):
        columns.check_alone(*given, exclude, media)
        _add(console, path, columns, num_workers, checksums=checksums, progress=progress)
        return
    passed = (force_overwrite, not skip_dataset_yaml, exclude, skip_unreadable)
    choices = _Choices.parsed(*given, *passed)
    if not tar_index_only:
        choices = _chosen(console, path, choices, may_ask=not non_interactive)
    _index(
        console,
        path,
        choices,
        progress,
        dataset_yaml=dataset_yaml_name,
        shuffle_shards=shuffle_tars,
        workers=num_workers,
        sqlite=sqlite or media is not None,
        tar_index_only=tar_index_only,
        fix_duplicates=fix_duplicates,
        columns=columns.columns,
        column_defaults=columns.defaults,
        checksums=checksums,
    )
    _end(console, path, media, num_workers, tmp_path, progress=progress)


def _index(console: Console, path: Path, choices: _Choices, progress: bool, **options: Any) -> None:
    with progress_bar(console, "Indexing shards", shown=progress) as on_progress:
        report = prepare_folder(path, **choices.options(), **options, on_progress=on_progress)
    _show(console, report)


def _end(
    console: Console,
    path: Path,
    media: str | None,
    workers: int | None,
    tmp_path: Path | None,
    *,
    progress: bool,
) -> None:
    """What is left to do: metadata of media, if any; exits with 1 where some are damaged."""
    if media is None:
        console.print("Done")
        return
    found = collected(console, path, media, workers, tmp_path, progress=progress)
    console.print("Done")
    if found.damaged:
        raise typer.Exit(1)


def _add(
    console: Console,
    path: Path,
    columns: AskedColumns,
    workers: int | None,
    *,
    checksums: bool,
    progress: bool,
) -> None:
    """Checksums and columns for a folder that is prepared."""
    if checksums:
        with progress_bar(console, "Reading shards", shown=progress) as on_progress:
            report = prepare_checksums(path, workers=workers, on_progress=on_progress)
        console.print(f"Wrote checksums of {report.samples:,} samples, {report.bytes:,} bytes")
    if columns:
        columns.measure(console, workers, progress=progress)
    console.print("Done")


def _prepare_file(console: Console, path: Path, *, checksums: bool, progress: bool) -> None:
    """Index a file of JSON lines; or write down the joins of a metadataset, if it has any."""
    if not is_jsonl(path):
        if path.suffix not in (".yaml", ".yml"):
            raise ConfigError(
                f"{path} is a file, and neither a .jsonl file nor a metadataset .yaml; of tar "
                "shards give the folder"
            )
        if checksums:
            raise ConfigError(
                f"{path}: --checksums is for folders of shards and .jsonl files; write those of "
                "each dataset of a metadataset by itself"
            )
        prepare_metadataset(path)
        console.print("Done")
        return
    with progress_bar(console, "Indexing lines", shown=progress) as on_progress:
        count = prepare_jsonl(path, checksums=checksums, on_progress=on_progress)
    console.print(f"Done. Found {count} samples.")


def _chosen(console: Console, path: Path, choices: _Choices, *, may_ask: bool) -> _Choices:
    """The choices, complete: what was not given is asked for, where somebody may be asked.

    Raises `ConfigError` that names the options for all that is missing.
    """
    check_choice(choices.sample_type, choices.field_map)
    missing = _missing(choices)
    if not may_ask:
        if missing:
            raise ConfigError(f"--non-interactive asks nothing: give {'; and '.join(missing)}")
        return choices
    prepared = is_prepared(path) and not choices.overwrite
    try:
        return _completed(Dialogue(console, sys.stdin.isatty()), path, choices)
    except AnswersEndedError as question:
        needed = [*(["--force-overwrite"] if prepared else []), *missing]
        raise ConfigError(
            f"the input ended at the question {str(question)!r}: please give "
            f"{'; and '.join(needed) or 'an answer to it'}"
        ) from None


def _missing(choices: _Choices) -> list[str]:
    """The options for what would have to be asked."""
    missing = []
    if choices.ratios is None and choices.patterns is None:
        missing.append("--split-ratio 8,1,1 or --split-parts 'train:train-.*'")
    if choices.typed and choices.sample_type is None:
        missing.append("--sample-type (CrudeWebdataset for plain dicts) or --skip-dataset-yaml")
    return missing


def _completed(dialogue: Dialogue, path: Path, choices: _Choices) -> _Choices:
    """The choices with what was missing asked for."""
    prepared = is_prepared(path) and not choices.overwrite
    mapped = choices.sample_type in (None, CRUDE) or choices.field_map is not None
    if mapped and not (prepared or _missing(choices)):
        return choices
    console = dialogue.console
    names = find_shards(path, choices.exclude, skip_unreadable=choices.skip_unreadable).names
    console.print(f"Found {len(names):,} shards, from {names[0]} to {names[-1]}", markup=False)
    if prepared:
        if not dialogue.confirm("It is prepared already. Prepare it again?", proposal=False):
            raise typer.Abort
        choices = replace(choices, overwrite=True)
    look = FirstLook(path / names[0])
    show_samples(console, names[0], look)
    if choices.ratios is None and choices.patterns is None:
        choices = replace(choices, ratios=ask_ratios(dialogue, names))
    if choices.typed and choices.sample_type is None:
        if not dialogue.confirm("Say in a dataset.yaml what its samples are?", proposal=True):
            return replace(choices, typed=False)
        choices = replace(choices, sample_type=ask_sample_type(dialogue, look))
    if choices.sample_type is not None and choices.field_map is None:
        field_map = ask_field_map(dialogue, choices.sample_type, look)
        choices = replace(choices, field_map=field_map)
    return choices


def _show(console: Console, report: PrepareReport) -> None:
    shards = f"{len(report.shard_counts):,} shard{'s' if len(report.shard_counts) > 1 else ''}"
    console.print(f"Indexed {report.samples:,} samples in {shards}")
    if report.splits:
        show_splits(console, report.splits, report.shard_counts)
    if report.config is not None:
        show_config(console, report.config)
    if report.columns:
        show_measured(console, report.columns, report.samples)
    for note in report.notes:
        show_note(console, note)


_PARTS = ("train", "val", "test")


def parse_ratios(text: str) -> dict[str, float]:
    """Shares of train, val and test: "8,1,1", "0.9,0.1" (no test).

    >>> parse_ratios("8, 2")
    {'train': 8.0, 'val': 2.0}
    """
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= len(_PARTS):
        raise ConfigError(
            f"split ratio: expected up to three numbers for train, val and test such as 8,1,1, "
            f"got {text!r}"
        )
    return dict(zip(_PARTS, numbers, strict=False))


def parse_patterns(given: Sequence[str]) -> dict[str, list[str]]:
    """Patterns of shard names by split: "train:train-.*"; several for one split are joined.

    >>> parse_patterns(["train:a-.*", "train:b-.*", "val:c-.*"])
    {'train': ['a-.*', 'b-.*'], 'val': ['c-.*']}
    """
    patterns: dict[str, list[str]] = {}
    for each in given:
        part, colon, pattern = each.partition(":")
        if not (part and colon and pattern):
            raise ConfigError(
                f"--split-parts: expected SPLIT:PATTERN such as train:train-.*, got {each!r}"
            )
        patterns.setdefault(part, []).append(pattern)
    return patterns


def parse_field_map(text: str) -> dict[str, str]:
    """A JSON object from fields to parts.

    >>> parse_field_map('{"image": "jpg,png", "caption": "json[caption]"}')
    {'image': 'jpg,png', 'caption': 'json[caption]'}
    """
    try:
        content = json.loads(text)
    except ValueError as reason:
        raise ConfigError(f"--field-map: {text!r} is not valid JSON: {reason}") from reason
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise ConfigError(
            '--field-map: expected an object from fields to parts such as {"image": "jpg,png", '
            f'"caption": "txt"}}, got {text!r}'
        )
    return content


_NONE = "-"
_NO_NUMBER = ("VQAOCRSample",)
_YES, _NO = ("y", "yes"), ("n", "no")


class AnswersEndedError(Exception):
    """The input ended before a question was answered; the message is the question."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Questions on `console`. A person is told what is wrong with an answer, and asked again; of
    answers from a pipe a wrong one is an error, for those after it belong to other questions.
    """

    console: Console
    person: bool

    def ask(self, question: str, proposal: str | None, parse: Callable[[str], T]) -> T:
        """The answer, parsed; an empty one is the `proposal`.

        Raises `AnswersEndedError` at the end of the input, `ConfigError` for a wrong answer that
        nobody can correct.
        """
        while True:
            answer = self._answer(question, proposal).strip()
            try:
                return parse(answer)
            except EnergizeError as reason:
                if not self.person:
                    raise ConfigError(f"the answer {answer!r} to {question!r}: {reason}") from None
                self.console.print(str(reason), style="red", markup=False)

    def confirm(self, question: str, *, proposal: bool) -> bool:
        """Yes or no."""

        def parse(text: str) -> bool:
            if text.lower() not in (*_YES, *_NO):
                raise ConfigError("answer y or n")
            return text.lower() in _YES

        return self.ask(rf"{question} \[y/n]", "y" if proposal else "n", parse)

    def _answer(self, question: str, proposal: str | None) -> str:
        try:
            if proposal is None:
                answer = Prompt.ask(question, console=self.console)
            else:
                answer = Prompt.ask(question, console=self.console, default=proposal)
        except EOFError:
            self.console.print()
            raise AnswersEndedError(question.replace(r"\[", "[")) from None
        if not self.person:  # a terminal shows what is typed; of a pipe nothing would be seen
            self.console.print(answer or "", markup=False)
        return answer or ""


def ask_ratios(dialogue: Dialogue, names: Sequence[str]) -> dict[str, float]:
    """How the shards are shared out; the proposal leaves a shard for each split if it can."""
    shards = len(names)
    if shards >= 10:
        proposal = "8,1,1"
    else:
        proposal = {1: "1,0,0", 2: "1,1,0"}.get(shards, f"{shards - 2},1,1")

    def parse(text: str) -> dict[str, float]:
        ratios = parse_ratios(text)
        split(names, ratios, None)
        return ratios

    return dialogue.ask(f"Ratio of train, val, test over {shards} shards", proposal, parse)


def numbered_types() -> dict[int, str]:
    """The sample types by the numbers that Megatron-Energon gives them.

    It counts the types that it exports by name, its `Sample` among them; then come plain dicts, and
    here what it does not number.
    """
    numbered = sorted({*SAMPLE_TYPE_NAMES, "Sample"} - {CRUDE, *_NO_NUMBER})
    names = [*numbered, CRUDE, *_NO_NUMBER]
    return {n: name for n, name in enumerate(names) if name != "Sample"}


def ask_sample_type(dialogue: Dialogue, look: FirstLook) -> str:
    """Which sample type it is, by number or name."""
    numbers = numbered_types()
    table = Table("", "sample type", "fields (optional ones in brackets)", box=None)
    for number, name in numbers.items():
        fields = [f if needed else rf"\[{f}]" for f, needed in sample_fields(name).items()]
        table.add_row(str(number), name, ", ".join(fields) or "all parts as they are")
    dialogue.console.print(table)

    def parse(text: str) -> str:
        if text.isdecimal() and int(text) in numbers:
            return numbers[int(text)]
        if text not in SAMPLE_TYPE_NAMES:
            raise ConfigError(
                f"give one of the numbers above, or a name{nearest(text, SAMPLE_TYPE_NAMES)}"
            )
        return text

    return dialogue.ask("Sample type", propose_sample_type(look), parse)


def ask_field_map(dialogue: Dialogue, sample_type: str, look: FirstLook) -> dict[str, str] | None:
    """From which part each field comes; None for crude samples, which have no fields, and where
    the proposal is taken as it is, or nobody is there to say.
    """
    if sample_type == CRUDE:
        return None
    proposed = propose_field_map(sample_type, look)
    shown = ", ".join(f"{name} from {source}" for name, source in proposed.items())
    dialogue.console.print(f"Proposed: {shown or 'nothing fits'}", markup=False)
    try:
        if not dialogue.confirm("Say for each field where it comes from?", proposal=True):
            return None
    except AnswersEndedError:
        return None
    dialogue.console.print(
        f"Where each field comes from. Parts: {', '.join(look.parts)}. A comma separates "
        "alternatives (jpg,png), brackets look into JSON (json[caption][en]).",
        markup=False,
    )
    field_map = {}
    for name, needed in sample_fields(sample_type).items():
        answer = _ask_field(dialogue, name, look, proposed.get(name), needed=needed)
        if answer != _NONE:
            field_map[name] = answer
    return field_map


def _ask_field(
    dialogue: Dialogue, name: str, look: FirstLook, proposal: str | None, *, needed: bool
) -> str:
    def parse(text: str) -> str:
        if text == _NONE and not needed:
            return text
        for access in parse_field(text):
            if access.part not in look.parts:
                raise ConfigError(
                    f"there is no part {access.part!r}{nearest(access.part, look.parts)}"
                )
        look.check_keys(name, text)
        return text

    question = name if needed else f"{name} (- for none)"
    return dialogue.ask(question, proposal or (None if needed else _NONE), parse)


_WAYS = "--media-metadata-by-extension, --media-metadata-by-header or --media-metadata-by-glob"


def prepare_media(
    path: Annotated[Path, typer.Argument(help="A prepared folder, or a plain one of files.")],
    *,
    media_by_glob: MediaByGlob = None,
    media_by_header: MediaByHeader = False,
    media_by_extension: MediaByExtension = False,
    num_workers: NumWorkers = None,
    tmp_path: TmpPath = None,
    progress: ShowProgress = True,
) -> None:
    """Store width, height, duration and the like of all media, for stores to look up.

    Exits with 1 when some are damaged; what is known of the others is stored all the same.
    """
    by = media_filter(media_by_glob, media_by_header, media_by_extension)
    if by is None:
        raise ConfigError(f"say which files are media: {_WAYS}")
    if not is_folder(path):
        raise ConfigError(f"{path} is a file; media metadata are those of the files of a folder")
    console = Console(soft_wrap=True)
    report = collected(console, path, by, num_workers, tmp_path, progress=progress)
    console.print(f"Done. Stored metadata for {report.count} files.")
    if report.damaged:
        raise typer.Exit(1)


def media_filter(glob: str | None, header: bool, extension: bool) -> str | None:
    """Which files are media, as `prepare_media` takes it; None when nothing was said.

    Raises `ConfigError` for several answers.
    """
    given = [
        each
        for each in (glob, "header" if header else None, "extension" if extension else None)
        if each is not None
    ]
    if len(given) > 1:
        raise ConfigError(f"give one of {_WAYS}")
    return given[0] if given else None


def collected(
    console: Console,
    path: Path,
    by: str,
    workers: int | None,
    tmp_path: Path | None,
    *,
    progress: bool,
) -> MediaReport:
    """Collect the metadata, and tell which media are damaged."""
    with progress_bar(console, "Looking at media", shown=progress) as on_progress:
        report = collect_media(
            path, by, workers=workers, tmp_path=tmp_path, on_progress=on_progress
        )
    if report.damaged:
        count = counted_text(len(report.damaged), "damaged file")
        show_note(console, f"{count}, without metadata:")
        faults = FaultList()
        faults.add(Fault(place, "", text) for place, _, text in map(_parted, report.damaged))
        show_lines(console, faults.lines("file"))
    return report


def _parted(damaged: str) -> tuple[str, str, str]:
    return damaged.partition(": ")
