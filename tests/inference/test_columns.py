"""What columns are, and which samples they make: literal rows, literal types and
fields."""

from __future__ import annotations

import json

import pytest

from energize.data.documents import NotRows, document_of
from energize.inference.columns import Named, columns_of, form_of
from energize.inference.kinds import choose
from tests.support.images import encoded, picture

JPEG = encoded(picture(8, 6), "JPEG")
TURNS = [{"from": "human", "value": "<image> What?"}, {"from": "gpt", "value": "That."}]
CHAT = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]

FORMS = [
    (JPEG, "image"),
    ({"bytes": JPEG, "path": None, "height": 6}, "image"),
    (b"PK", "bytes"),
    ("a cat", "text"),
    ("http://a.example/0.jpg", "url"),
    ("see http://a.example for more", "text"),
    (3, "number"),
    (True, "flag"),
    ([1.5, 2], "numbers"),
    ([[1, 2], [3, 4]], "list"),
    (["a", None], "texts"),
    ([JPEG, None], "images"),
    (TURNS, "turns"),
    (CHAT, "turns"),
    ([{"user": "a", "assistant": "b"}], "exchanges"),
    ([["a", "b"]], "exchanges"),
    ([{"x": 1}], "objects"),
    ({"x": 1}, "object"),
]


@pytest.mark.parametrize(("value", "form"), FORMS)
def test_a_value_has_a_form(value, form):
    assert form_of(value) == form


def sentence(number: int) -> str:
    return f"a sentence of several words, number {number}"


S = [sentence(n) for n in range(4)]
CHOICES = {
    "caption": ({"image": JPEG, "text": S}, "CaptioningSample", {"caption": "text"}),
    "text before title": (
        {"image": JPEG, "title": S, "text": S},
        "CaptioningSample",
        {"caption": "text"},
    ),
    "a name that ends so": (
        {"image": JPEG, "blip_caption": S, "image_id": [*"abcd"]},
        "CaptioningSample",
        {"caption": "blip_caption"},
    ),
    "the only sentences": (
        {"image": JPEG, "p": S, "seed": 3},
        "CaptioningSample",
        {"caption": "p"},
    ),
    "in an object": (
        {"image": JPEG, "meta": [{"caption": each} for each in S]},
        "CaptioningSample",
        {"caption": "meta[caption]"},
    ),
    "in a text of JSON": (
        {
            "image": JPEG,
            "text": [
                json.dumps({"question": s, "chosen": s, "rejected": s}) for s in S
            ],
        },
        "PreferenceSample",
        {"chosen": "text[chosen]", "prompt": "text[question]"},
    ),
    "in lists of objects": (
        {"image": JPEG, "sentences": [[{"raw": each}] for each in S]},
        "CaptioningSample",
        {"caption": "sentences[*][raw]"},
    ),
    "no caption of two texts": ({"image": JPEG, "x": S, "y": S}, "CrudeSample", {}),
    "a question is no caption": ({"image": JPEG, "question": S}, "CrudeSample", {}),
    "classes by name": (
        {"image": JPEG, "label": [0, 1, 0, 1]},
        "ImageClassificationSample",
        {"label": "label"},
    ),
    "classes by value": (
        {"image": JPEG, "breed": ["pug", "pug", "collie", "collie"]},
        "ImageClassificationSample",
        {"label_name": "breed"},
    ),
    "no class of many": (
        {"image": JPEG, "breed": ["a", "b", "c", "d"]},
        "CrudeSample",
        {},
    ),
    "where it is from is no class": (
        {"image": JPEG, "source": ["web", "web", "book", "book"]},
        "ImageSample",
        {"image": "image"},
    ),
    "question": (
        {"image": JPEG, "question": S, "answer": S},
        "VQASample",
        {"context": "question", "answers": "answer"},
    ),
    "votes": (
        {
            "image": JPEG,
            "question": S,
            "answers": [[{"answer": "a", "answer_id": 1}]] * 4,
        },
        "VQASample",
        {"answers": "answers[*][answer]"},
    ),
    "query and label": (
        {"image": JPEG, "query": S, "label": [["a"]] * 4},
        "VQASample",
        {"context": "query", "answers": "label"},
    ),
    "choices": (
        {"image": JPEG, "question": S, "choices": [["a", "b"]] * 4, "answer": 1},
        "MultiChoiceVQASample",
        {"choices": "items(choices)", "correct_choice_idx": "choice(answer, choices)"},
    ),
    "lettered choices": (
        {"image": JPEG, "question": S, "A": "x", "B": "y", "answer": "B"},
        "CrudeSample",
        {},
    ),
    "turns": (
        {"image": JPEG, "chat": [TURNS] * 4},
        "ConversationSample",
        {"turns": "chat"},
    ),
    "turns without a place": (
        {"image": JPEG, "chat": [CHAT] * 4},
        "ConversationSample",
        {"turns": "placed(chat, images=image)"},
    ),
    "turns alone": (
        {"messages": [CHAT] * 4, "prompt": S},
        "ConversationSample",
        {"turns": "messages"},
    ),
    "exchanges": (
        {"images": [[JPEG]] * 4, "texts": [[{"user": "a", "assistant": "b"}]] * 4},
        "ConversationSample",
        {"turns": "exchanges(texts, images=images)", "images": "images"},
    ),
    "prompt and response": (
        {"image": JPEG, "prompt": S, "response": S},
        "ConversationSample",
        {"turns": "chat(user=prompt, assistant=response, images=image)"},
    ),
    "alpaca": (
        {"instruction": S, "input": ["", *S[1:]], "output": S},
        "ConversationSample",
        {"turns": "chat(user=instruction, user=input, assistant=output)"},
    ),
    "input and output": (
        {"input": S, "output": S},
        "ConversationSample",
        {"turns": "chat(user=input, assistant=output)"},
    ),
    "system": (
        {"system_prompt": S, "question": S, "response": S},
        "ConversationSample",
        {"turns": "chat(system=system_prompt, user=question, assistant=response)"},
    ),
    "history": (
        {"query": S, "response": S, "history": [[["a", "b"]]] * 4},
        "ConversationSample",
        {"turns": "chat(history=history, user=query, assistant=response)"},
    ),
    "preference": (
        {"image": JPEG, "question": S, "chosen": S, "rejected": S},
        "PreferenceSample",
        {
            "chosen": "chosen",
            "rejected": "rejected",
            "prompt": "question",
            "images": "image",
        },
    ),
    "preference of turns": (
        {
            "prompt": S,
            "chosen": [CHAT] * 4,
            "rejected": [CHAT] * 4,
            "messages": [CHAT] * 4,
        },
        "PreferenceSample",
        {"prompt": "prompt"},
    ),
    "documents": (
        {"images": [[None, JPEG]] * 4, "texts": [["a", None]] * 4},
        "InterleavedSample",
        {"sequence": "interleaved(texts, images)"},
    ),
    "documents with places": (
        {
            "text_list": [["a", "b"]] * 4,
            "image_info": [[{"image": JPEG, "matched_text_index": 1}]] * 4,
        },
        "InterleavedSample",
        {
            "sequence": (
                "interleaved(text_list, image_info[*][image], image_info[*][matched_text_index])"
            )
        },
    ),
    "images and a text": ({"images": [[JPEG, JPEG]] * 4, "text": S}, "CrudeSample", {}),
    "two images": ({"before": JPEG, "after": JPEG, "edit": S}, "CrudeSample", {}),
    "ocr": (
        {"image": JPEG, "transcription": S},
        "OCRSample",
        {"text": "transcription"},
    ),
    "text": ({"text": S, "timestamp": S}, "TextSample", {"text": "text"}),
    "content": ({"content": S, "id": [*"abcd"]}, "TextSample", {"text": "content"}),
    "image alone": (
        {"image": JPEG, "width": 8, "id": [*"abcd"]},
        "ImageSample",
        {"image": "image"},
    ),
    "boxes": (
        {"image": JPEG, "objects": [{"bbox": [[1, 2, 3, 4]]}] * 4},
        "CrudeSample",
        {},
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_columns_make_a_type_of_samples(case):
    columns, kind, fields = CHOICES[case]
    rows = [
        {
            name: each[n] if isinstance(each, list) else each
            for name, each in columns.items()
        }
        for n in range(4)
    ]
    found = choose(columns_of(rows, lambda name, values: None), rows)
    assert found.sample_type == kind
    assert found.field_map.items() >= fields.items()


def test_columns_that_name_files_are_media():
    rows = [{"file": f"{n}.jpg", "text": sentence(n)} for n in range(4)]

    def look(name, values):
        return Named("image", ("photos/{}",)) if name == "file" else None

    columns = columns_of(rows, look)
    assert (columns["file"].form, columns["file"].paths) == ("image", ("photos/{}",))


ROW = {"text": "a"}
DOCUMENTS = {
    "an array": ([ROW, ROW], "rows", 2),
    "in data": ({"version": 1, "data": [ROW]}, "rows", 1),
    "in questions": ({"info": {}, "questions": [ROW, ROW]}, "rows", 2),
    "of pandas": ({"text": {"0": "a", "1": "b"}, "n": {"0": 1, "1": 2}}, "columns", 2),
    "by id": ({"x1": ROW, "x2": ROW}, "by key", 2),
    "lists by id": ({"1": [{"a": 1}], "2": []}, "by key", 2),
    "texts by name": ({"a.jpg": "a cat", "b.jpg": ["a dog"]}, "by key", 2),
    "one": ({"text": "a", "boxes": [{"x": 1}]}, "one row", 1),
    "captions": (
        {
            "images": [{"id": 1, "file_name": "a.jpg"}],
            "annotations": [{"image_id": 1, "caption": "x"}] * 2,
        },
        "joined",
        2,
    ),
    "boxes": (
        {
            "images": [{"id": 1, "file_name": "a.jpg"}],
            "annotations": [{"image_id": 1, "bbox": []}] * 2,
        },
        "joined",
        1,
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_json_value_holds_rows(case):
    value, shape, count = DOCUMENTS[case]
    document = document_of(value)
    assert (document.shape, len(document.rows)) == (shape, count)
    assert all(isinstance(row, dict) for row in document.rows)


NO_ROWS = {
    "a metadataset": ({"__module__": "energize", "splits": {}}, "is a metadataset"),
    "a list of datasets": (
        {"a": {"root": "x", "annotation": "y"}},
        "is a list of datasets",
    ),
    "another one": ({"a": {"file_name": "x", "columns": {}}}, "is a list of datasets"),
    "settings": ({"model": {"a": 1}, "data": {"b": 2}}, "is one object with the keys"),
    "lists": ([["a", 1], ["b", 2]], "an array without objects"),
    "columns of lists": (
        {"text": ["a", "b"], "n": [1, 2]},
        "may be columns or one row",
    ),
    "nothing": ({}, "is the JSON value"),
    "a number": (3, "is the JSON value"),
}


@pytest.mark.parametrize("case", NO_ROWS)
def test_a_json_value_without_rows_is_refused(case):
    value, words = NO_ROWS[case]
    with pytest.raises(NotRows, match=words):
        document_of(value)
