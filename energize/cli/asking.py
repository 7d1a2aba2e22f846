"""The questions of `energize prepare`, for what was not given as an option.

They come in the order, and take the answers, of the same command of Megatron-Energon, so that a
script which pipes answers into one pipes them into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.prompt import Prompt
from rich.table import Table

from energize.cli.console import Console
from energize.cli.options import parse_ratios
from energize.data.nv_meta import CRUDE
from energize.errors import ConfigError, EnergizeError, nearest
from energize.preparation.fields import (
    SAMPLE_TYPE_NAMES,
    FirstLook,
    propose_field_map,
    propose_sample_type,
    sample_fields,
)
from energize.preparation.split import split
from energize.task.fields import parse_field

T = TypeVar("T")

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
