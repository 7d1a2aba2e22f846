"""Choice of a sample type by the columns of a table.

To add a type, add a row to `KINDS`, and roles to `FORMS` and to `ROLES` in `words.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from energize.core.samples import CrudeSample
from energize.data.tables import values_in
from energize.inference.columns import AV, IMAGE, ColumnProfile, Row
from energize.inference.words import ROLES, plain_name, words_of
from energize.task.shapes import items

_ROLE = re.compile(r"(?:(\w+)=)?\{(\w+)(\?)?\}")
_LETTERS = re.compile(r"(?:option|choice|answer)?[a-h]|(?:option|choice)\d")

FORMS: Mapping[str, tuple[str, ...]] = {
    "caption": ("text", "texts", "mixed"),
    "text": ("text", "mixed"),
    "question": ("text", "mixed"),
    "questions": ("texts",),
    "answers": ("text", "texts", "null", "mixed"),
    "turns": ("mixed",),
    "tools": ("json", "objects", "null"),
    "choices": ("texts", "text"),
    "right": ("number", "text"),
    "prompt": ("text",),
    "input": ("text", "null"),
    "response": ("text", "texts"),
    "system": ("text", "null"),
    "history": ("exchanges", "null", "texts"),
    "chosen": ("text", "turns", "object"),
    "rejected": ("text", "turns", "object"),
    "label": ("number",),
    "label_name": ("text",),
    "ocr": ("text",),
    "places": ("numbers", "number"),
}
"""The forms of columns that may have a role by their name."""

_ANYWHERE = ("places",)
"""Roles of columns in lists of objects, for any name of the list."""


@dataclass(frozen=True)
class SampleKind:
    """A sample type, and the roles of each field; optional roles end with `?`."""

    sample_type: str
    fields: Mapping[str, str]
    unless: Sequence[str] = ()
    """Roles that no column may have, as samples would lack them."""


KINDS: Sequence[SampleKind] = (
    SampleKind(
        "PreferenceSample",
        {
            "chosen": "{chosen}",
            "rejected": "{rejected}",
            "prompt": "{prompt}",
            "images": "{images?}",
        },
    ),
    SampleKind(
        "PreferenceSample",
        {
            "chosen": "{chosen}",
            "rejected": "{rejected}",
            "prompt": "{turns?}",
            "images": "{images?}",
        },
    ),
    SampleKind("InterleavedSample", {"sequence": "interleaved({in_turn}, {images})"}),
    SampleKind(
        "InterleavedSample",
        {"sequence": "interleaved({sentences}, {images}, {places})"},
    ),
    SampleKind(
        "ConversationSample",
        {
            "turns": "{turns}",
            "images": "{images?}",
            "videos": "{videos?}",
            "tools": "first({tools?})",
        },
    ),
    SampleKind(
        "MultiChoiceVQASample",
        {
            "image": "{image}",
            "context": "{question}",
            "choices": "items({choices})",
            "correct_choice_idx": "choice({right}, {choices})",
        },
    ),
    SampleKind(
        "VQASample",
        {
            "image": "{image}",
            "context": "{paired_questions}",
            "answers": "{paired_answers}",
        },
    ),
    SampleKind(
        "VidQASample",
        {
            "video": "{video}",
            "context": "{paired_questions}",
            "answers": "{paired_answers}",
        },
    ),
    SampleKind(
        "VQASample",
        {"image": "{image}", "context": "{question}", "answers": "{answers}"},
        unless=("needed_choices", "options", "questions"),
    ),
    SampleKind(
        "VidQASample",
        {"video": "{video}", "context": "{question}", "answers": "{answers}"},
        unless=("questions",),
    ),
    SampleKind(
        "ConversationSample",
        {
            "turns": "exchanges({exchanges}, images={images?}, videos={videos?})",
            "images": "{images?}",
            "videos": "{videos?}",
        },
    ),
    SampleKind(
        "ConversationSample",
        {
            "turns": (
                "chat(system={system?}, history={history?}, user={prompt}, "
                "user={input?}, "
                "assistant={response}, images={images?}, videos={videos?})"
            ),
            "images": "{images?}",
            "videos": "{videos?}",
        },
        unless=("choices", "options"),
    ),
    SampleKind(
        "ConversationSample",
        {
            "turns": (
                "exchanges({paired_questions}, {paired_answers}, images={images?}, "
                "videos={videos?})"
            ),
            "images": "{images?}",
            "videos": "{videos?}",
        },
    ),
    SampleKind("OCRSample", {"image": "{image}", "text": "{ocr}"}),
    SampleKind(
        "CaptioningSample",
        {"image": "{medium}", "caption": "{caption}"},
        unless=("questions",),
    ),
    SampleKind(
        "ImageClassificationSample",
        {"image": "{medium}", "label": "{label}", "label_name": "{label_name?}"},
    ),
    SampleKind(
        "ImageClassificationSample", {"image": "{medium}", "label_name": "{label_name}"}
    ),
    SampleKind("TextSample", {"text": "{text}"}),
    SampleKind("ImageSample", {"image": "{medium}"}),
)
"""Sample types by priority; the first with all its roles is chosen."""


@dataclass(frozen=True)
class Choice:
    """The sample type of a table, its field map by columns, and the used columns."""

    sample_type: str
    field_map: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)
    """The role of each column that a field is read from."""

    @property
    def is_crude(self) -> bool:
        """Whether samples stay as they are stored."""
        return self.sample_type == CrudeSample.__name__


CRUDE_CHOICE = Choice(CrudeSample.__name__)


@dataclass
class Roles:
    """Finds the columns that have a role."""

    columns: Mapping[str, ColumnProfile]
    rows: Sequence[Row]

    def of(self, role: str, used: Mapping[str, str]) -> list[ColumnProfile]:
        """Return the free columns of a role: the best one, or all."""
        free = {
            n: column for n, column in self.columns.items() if used.get(n, role) == role
        }
        roles = Roles(free, self.rows) if len(free) < len(self.columns) else self
        return _BY_VALUE[role](roles) if role in _BY_VALUE else roles.by_name(role)

    def by_name(self, role: str) -> list[ColumnProfile]:
        """Return the column with the best name for the role."""
        ranked = []
        for order, column in enumerate(self.columns.values()):
            rank = _rank_of_name(column, role)
            if rank is not None:
                ranked.append(((column.is_nested, rank, order), column))
        return [min(ranked, key=itemgetter(0))[1]] if ranked else []

    def media(self, *forms: str) -> list[ColumnProfile]:
        """Return the columns of media of some forms."""
        return [column for column in self.columns.values() if column.form in forms]

    def alone(
        self, role: str, suits: Callable[[ColumnProfile], bool]
    ) -> list[ColumnProfile]:
        """Return the one column with content that suits, none if its name fits another
        role.
        """
        other_names = {
            name for other, names in ROLES.items() if other != role for name in names
        }
        content = [column for column in self.columns.values() if _is_content(column)]
        suitable = [column for column in content if suits(column)]
        rest = [column for column in content if not suits(column)]
        if len(suitable) != 1 or not all(column.is_class for column in rest):
            return []
        return suitable if plain_name(suitable[0].name) not in other_names else []

    def numbered(self) -> list[ColumnProfile]:
        """Return the one column of whole numbers that repeat, in a table without
        names.
        """
        columns = [column for column in self.columns.values() if not column.is_media]
        alone = (
            len(columns) == 1 and columns[0].is_unnamed and columns[0].form == "number"
        )
        return (
            columns
            if alone and 2 * len({*columns[0].values}) <= columns[0].rows
            else []
        )

    def single(self, *forms: str) -> list[ColumnProfile]:
        """Return the column of media if there is just one, with one of some forms."""
        columns = self.media(*_MEDIA)
        return columns if len(columns) == 1 and columns[0].form in forms else []

    def options(self) -> list[ColumnProfile]:
        """Return the columns A, B, C and so on, of which one is right."""
        texts = ("text", "number", "null")
        columns = [
            column
            for column in self.columns.values()
            if column.form in texts
            and _LETTERS.fullmatch(plain_name(column.name))
            and not column.is_nested
        ]
        return columns if len(columns) > 1 else []

    def in_turn(self) -> list[ColumnProfile]:
        """Return the column of texts with a null for each image of the column of
        images.
        """
        images = self.media(f"{IMAGE}s")
        if len(images) != 1:
            return []
        return [
            column
            for column in self.columns.values()
            if column.form == "texts"
            and all(_are_in_turn(row, column.name, images[0].name) for row in self.rows)
        ][:1]

    def choices(self) -> list[ColumnProfile]:
        """Return the column of choices, if every row has some."""
        return [column for column in self.by_name("choices") if not column.nullable]

    def needed_choices(self) -> list[ColumnProfile]:
        """Return the column of choices, unless answers are true without them.

        These are columns of which some rows have no choices, and the answers of all
        others are texts of their choices.
        """
        return [
            column
            for column in self.by_name("choices")
            if not column.nullable or self.unanswered(column) is not None
        ]

    def unanswered(self, choices: ColumnProfile) -> Row | None:
        """Return a row with an answer that is not one of its choices, None without such
        a row.
        """
        for answer in self.by_name("right"):
            for row in self.rows:
                texts = items([("", row.get(choices.name))])
                if texts and row.get(answer.name) not in (*texts, None, ""):
                    return row
        return None

    def questions(self) -> list[ColumnProfile]:
        """Return the column of lists of questions."""
        columns = self.by_name("questions")
        return [column for column in columns if not column.is_nested]

    def paired_answers(self) -> list[ColumnProfile]:
        """Return the column of lists of answers."""
        columns = self.by_name("answers")
        return [
            column
            for column in columns
            if column.form == "texts" and not column.is_nested
        ]

    def paired_questions(self) -> list[ColumnProfile]:
        """Return the column of lists of questions, if each question has an answer in
        its row.
        """
        return [
            questions
            for questions in self.questions()
            for answers in self.paired_answers()
            if all(_are_as_long(row, questions.name, answers.name) for row in self.rows)
        ]

    def sentences(self) -> list[ColumnProfile]:
        """Return the column of lists of texts that images are placed among."""
        return [
            e for e in self.columns.values() if e.form == "texts" and not e.is_nested
        ][:1]


_MEDIA = (IMAGE, f"{IMAGE}s", AV, f"{AV}s")


def _rank_of_name(column: ColumnProfile, role: str) -> int | None:
    """Return how well the name of a column fits a role, 0 best; None if it does not."""
    names = ROLES[role]
    parent, star, _ = column.name.partition("[*]")
    is_inside = star and role not in _ANYWHERE and plain_name(parent) not in names
    if column.form not in FORMS[role] or is_inside:
        return None
    name = plain_name(column.name)
    if name in names:
        return names.index(name)
    last = words_of(column.name)[-1:]
    if last and last[0] in names and not column.is_metadata:
        return len(names) + names.index(last[0])
    return None


def _is_content(column: ColumnProfile) -> bool:
    """Return whether a column has content that samples should contain."""
    return column.has_content and not column.is_nested and not column.is_constant


def _are_in_turn(row: Row, texts: str, images: str) -> bool:
    text_list = row.get(texts)
    image_list = row.get(images)
    if not isinstance(text_list, list) or not isinstance(image_list, list):
        return False
    if len(text_list) != len(image_list) or None not in image_list:
        return False
    pairs = zip(text_list, image_list, strict=True)
    return all((text is None) != (image is None) for text, image in pairs)


def _are_as_long(row: Row, first: str, second: str) -> bool:
    """Return whether two columns of a row are lists of one length, or both without a
    value.
    """
    values = [row.get(name) or [] for name in (first, second)]
    are_lists = all(isinstance(value, list) for value in values)
    return are_lists and len(values[0]) == len(values[1])


_BY_VALUE: Mapping[str, Callable[[Roles], list[ColumnProfile]]] = {
    "image": lambda roles: roles.single(IMAGE),
    "video": lambda roles: roles.single(AV),
    "medium": lambda roles: roles.single(IMAGE, AV),
    "images": lambda roles: roles.media(IMAGE, f"{IMAGE}s"),
    "videos": lambda roles: roles.media(AV, f"{AV}s"),
    "turns": lambda roles: roles.media("turns") or roles.by_name("turns"),
    "exchanges": lambda roles: [
        e for e in roles.media("exchanges") if plain_name(e.name) != "history"
    ],
    "options": Roles.options,
    "choices": Roles.choices,
    "needed_choices": Roles.needed_choices,
    "questions": Roles.questions,
    "paired_answers": Roles.paired_answers,
    "paired_questions": Roles.paired_questions,
    "in_turn": Roles.in_turn,
    "sentences": Roles.sentences,
    "caption": lambda roles: (
        roles.by_name("caption")
        or roles.alone(
            "caption", lambda column: column.is_prose or column.is_unnamed_text
        )
    ),
    "label_name": lambda roles: (
        roles.by_name("label_name")
        or roles.alone("label_name", lambda column: column.is_class)
    ),
    "label": lambda roles: roles.by_name("label") or roles.numbered(),
    "text": lambda roles: (
        roles.by_name("text") or roles.alone("text", lambda column: column.is_prose)
    ),
}
"""Roles that depend on the values of columns, before or instead of their names."""


def choose(
    columns: Mapping[str, ColumnProfile],
    rows: Sequence[Row],
    required: Sequence[str] = (),
    taken: Collection[str] = (),
) -> Choice:
    """Return the first sample type that columns fill, and its columns.

    Args:
        columns: Columns of a table, as `columns_of` returns them.
        rows: Rows from which the columns were derived.
        required: Fields that the type must have, as the user names them.
        taken: Columns that the user names for these fields.

    Returns:
        The choice; of crude samples if no type fits, or if columns with content would
        be missing in a sample of an image alone.
    """
    fields = {*required}
    whole = {
        name: column
        for name, column in columns.items()
        if not column.is_nested or "[*]" in name
    }
    choice = _first_kind(whole, rows, fields)
    if choice is None or choice.sample_type == "ImageSample":
        nested = _nested_choice(columns, rows, fields)
        if nested is not None:
            return _with_places(nested, rows)
    if choice is None:
        return CRUDE_CHOICE
    choice = _with_places(choice, rows)
    used = {*choice.used, *taken}
    rest = [column for name, column in columns.items() if name not in used]
    has_more_media = any(column.is_media for column in rest)
    has_content = any(column.has_content and not column.is_nested for column in rest)
    is_image_alone = choice.sample_type == "ImageSample" and not required
    if has_more_media or (is_image_alone and has_content):
        return CRUDE_CHOICE
    return choice


def _nested_choice(
    columns: Mapping[str, ColumnProfile], rows: Sequence[Row], fields: set[str]
) -> Choice | None:
    """Return the sample type of the columns inside one column, None without one."""
    parents = dict.fromkeys(name.partition("[")[0] for name in columns if "[" in name)
    for parent in parents:
        inner = {
            name: column
            for name, column in columns.items()
            if column.is_media
            or (name.startswith(f"{parent}[") and name.count("[") == 1)
        }
        choice = _first_kind(inner, rows, fields)
        if choice is not None and choice.sample_type != "ImageSample":
            return choice
    return None


def why_mixed(columns: Mapping[str, ColumnProfile], rows: Sequence[Row]) -> str:
    """Return why rows with and without choices have no common type, or ""."""
    roles = Roles(columns, rows)
    if not roles.by_name("question"):
        return ""
    for column in roles.by_name("choices"):
        row = roles.unanswered(column) if column.values and column.nullable else None
        for answer in roles.by_name("right") if row is not None else []:
            value = (row or {}).get(answer.name)
            return (
                f"column {column.name!r} has choices in {len(column.values)} of the "
                f"{column.rows} rows that were looked at, and {answer.name!r} has no "
                f"text of them, but {value!r:.80}. Write rows with choices and rows "
                "without into files of their own, files: ['PATTERN', ...], or read "
                "rows as they are: sample_type: CrudeSample"
            )
    return ""


def _with_places(choice: Choice, rows: Sequence[Row]) -> Choice:
    """Return a choice of turns with placeholders for images, if rows have none."""
    turns = choice.field_map.get("turns", "")
    media = {
        n: choice.field_map[n] for n in ("images", "videos") if n in choice.field_map
    }
    if choice.used.get(turns) != "turns" or not media:
        return choice
    if any(_PLACES.search(str(values_in(row, turns))) for row in rows):
        return choice
    named = "".join(f", {name}={column}" for name, column in media.items())
    return replace(
        choice, field_map={**choice.field_map, "turns": f"placed({turns}{named})"}
    )


_PLACES = re.compile(r"<(image|video|img)|'type': '(image|video)")


def _first_kind(
    columns: Mapping[str, ColumnProfile], rows: Sequence[Row], required: set[str]
) -> Choice | None:
    roles = Roles(columns, rows)
    for kind in KINDS:
        if required <= {*kind.fields} and not any(
            roles.of(role, {}) for role in kind.unless
        ):
            choice = _filled(kind, roles, required)
            if choice is not None:
                return choice
    return None


def fill(
    sample_type: str,
    columns: Mapping[str, ColumnProfile],
    rows: Sequence[Row],
    stated: Sequence[str],
) -> Choice:
    """Return a stated type with as many of its fields as columns fill."""
    roles = Roles(columns, rows)
    kinds = [kind for kind in KINDS if kind.sample_type == sample_type]
    choices = [_filled(kind, roles, {*stated}, partly=True) for kind in kinds]
    fitting = [choice for choice in choices if choice is not None]
    return max(
        fitting, key=lambda match: len(match.field_map), default=Choice(sample_type)
    )


def _filled(
    kind: SampleKind, roles: Roles, stated: set[str], *, partly: bool = False
) -> Choice | None:
    """Return a kind with its fields filled, None if a column that it needs is
    missing.
    """
    field_map: dict[str, str] = {}
    used: dict[str, str] = {}
    for name, template in kind.fields.items():
        if name in stated:
            continue
        text = _filled_field(template, roles, used)
        if text is None and not partly:
            return None
        if text and not text.endswith("()"):
            field_map[name] = text
    needs_turns = kind.sample_type == "ConversationSample" and not partly
    if needs_turns and not field_map.get("turns"):
        return None
    return Choice(kind.sample_type, field_map, used)


def _filled_field(template: str, roles: Roles, used: dict[str, str]) -> str | None:
    """Return the description of a field by columns, None if a needed one is missing.

    Columns are added to `used`, with their roles.
    """
    text = template
    is_missing = False
    for match in _ROLE.finditer(template):
        label, role, optional = match.groups()
        columns = roles.of(role, used)
        is_missing |= not columns and not optional
        names = [
            f"{label}={column.name}" if label else column.name for column in columns
        ]
        joined = ", ".join(names)
        if template[:1] == "{" or role in ("images", "videos"):
            joined = joined.partition(", ")[0]
        text = text.replace(match[0], joined, 1)
        used |= {column.name: role for column in columns}
    if is_missing:
        return None
    return re.sub(r"(?<=\()(, )+|(, )+(?=\))|(?<=, )(, )+", "", text)
