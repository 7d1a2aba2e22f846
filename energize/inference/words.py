"""Words in names of files, folders and columns, with their meanings.

New words are added here; other modules of the inference contain none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _split(texts: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    return {name: text.split() for name, text in texts.items()}


_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name in lower case.

    Example:
        >>> words_of("trainImages_2017.v2")
        ('train', 'images', '2017', 'v', '2')
    """
    return tuple(word.lower() for word in _WORD.findall(_BOUNDARY.sub(" ", name)))


PARTS: Mapping[str, Sequence[str]] = _split(
    {
        "train": "train training trainset",
        "val": "val valid validation validate valset",
        "dev": "dev devel development",
        "eval": "eval evaluation",
        "test": "test testing testset holdout heldout",
    }
)
"""Split parts and the words that name them."""

SAME_PARTS: Mapping[str, Sequence[str]] = _split(
    {
        "val": "val dev eval",
        "dev": "dev val",
        "eval": "eval val",
    }
)
"""Synonyms of split parts by priority."""

_PART_OF = {word: part for part, words in PARTS.items() for word in words}


def parts_in(name: str) -> list[str]:
    """Return the distinct split parts in the words of a name.

    Example:
        >>> parts_in("coco_karpathy_val"), parts_in("held_out"), parts_in("contest")
        (['val'], ['test'], [])
    """
    words = words_of(name)
    pairs = (first + second for first, second in pairwise(words))
    return [
        *dict.fromkeys(_PART_OF[word] for word in (*words, *pairs) if word in _PART_OF)
    ]


def canonical_part(name: str) -> str:
    """Return the split part that a name refers to, or else the name.

    Example:
        >>> canonical_part("validation"), canonical_part("train_sft")
        ('val', 'train_sft')
    """
    return _PART_OF.get(name.lower(), name)


def nearly_part(name: str) -> str | None:
    """Return the part with a word in a name, or one edit from the name; None without
    one.

    Example:
        >>> nearly_part("tarin"), nearly_part("restval"), nearly_part("books")
        ('train', 'val', None)
    """
    text = name.lower()
    inside = [word for word in _PART_OF if word in text]
    if inside:
        return _PART_OF[max(inside, key=len)]
    return misspelled_part(name)


_OTHER_WORDS = _words(
    "text texts brain grain rest best vest nest tent task teen evil oval"
)
"""Words with another meaning that are one edit from a word for a split part."""


def misspelled_part(name: str) -> str | None:
    """Return the part with a word that is one edit from a name, None without one.

    Example:
        >>> misspelled_part("tset"), misspelled_part("test"), misspelled_part("text")
        ('test', None, None)
    """
    text = name.lower()
    if text in _OTHER_WORDS or text in _PART_OF:
        return None
    return next(
        (part for word, part in _PART_OF.items() if _is_one_edit(text, word)), None
    )


def _is_one_edit(text: str, word: str) -> bool:
    """Return whether one inserted, removed, changed or swapped character separates
    texts.
    """
    if abs(len(text) - len(word)) > 1:
        return False
    first = next(
        (n for n, (a, b) in enumerate(zip(text, word, strict=False)) if a != b), None
    )
    if first is None:
        return text != word
    rest = text[first:]
    other = word[first:]
    swapped = rest[:2] == other[1::-1] and rest[2:] == other[2:]
    return swapped or rest[1:] == other[1:] or rest[1:] == other or rest == other[1:]


def is_part_word(name: str) -> bool:
    """Return whether a name consists of a word for a split part, and numbers.

    Example:
        >>> (
        ...     is_part_word("train2017"),
        ...     is_part_word("Test"),
        ...     is_part_word("train_images"),
        ... )
        (True, True, False)
    """
    letters = [word for word in words_of(name) if not word.isdigit()]
    return letters != [] and len(parts_in(name)) == 1 and "".join(letters) in _PART_OF


GENERIC = _words(
    "part parts shard shards chunk split file files data dataset set of v version "
    "images image"
)
"""Words in file names that do not distinguish kinds of files."""


def qualifiers(stem: str) -> tuple[str, ...]:
    """Return the words of a file name other than split parts, generic words and
    numbers.

    Example:
        >>> qualifiers("train_sft-00000-of-00001"), qualifiers("data-part-3")
        (('sft',), ())
    """
    return tuple(
        word
        for word in words_of(stem)
        if not word.isdigit() and word not in GENERIC and word not in _PART_OF
    )


MODALITIES = _words(
    "image images img imgs rgb depth mask masks seg segmentation segmentations label "
    "labels gt"
    " condition conditions conditioning control lr hr lq hq annotation annotations png "
    "jpg jpeg"
    " jpegs photo photos picture pictures frames frame originals disparity"
)
"""Names of folders that name a modality of images, not a class."""

PAIRED = _words(
    "before after input inputs output outputs source sources target targets left right "
    "low high"
    " noisy clean blur sharp edge edges sketch sketches normal normals color colour "
    "raw original"
    " edited"
)
"""Names of folders with images that may be pairs if their names are equal."""

_SHARD = re.compile(
    r"(part|shard|chunk|batch|split|folder|dir|group|set)?[-_ ]?\d{3,}", re.I
)
_REPEATS = re.compile(r"\d+_.+")


def why_no_class(folder: str) -> str:
    """Return why a folder name may not be a class, an empty text if it may.

    Example:
        >>> why_no_class("images"), why_no_class("part-000001"), why_no_class("cat")
        ('it names the kind of the images', 'it is the name of a shard', '')
    """
    if {*words_of(folder)} & MODALITIES and len(words_of(folder)) <= 2:
        return "it names the kind of the images"
    if _SHARD.fullmatch(folder):
        return "it is the name of a shard"
    if _REPEATS.fullmatch(folder):
        return "it begins with a number of repeats"
    return ""


SYSTEM_FOLDERS: Mapping[str, str] = {
    "@eadir": "thumbnails of Synology",
    "__macosx": "forks of macOS",
    ".ipynb_checkpoints": "checkpoints of Jupyter",
    "__pycache__": "compiled Python",
    "lost+found": "of the file system",
    "$recycle.bin": "deleted files of Windows",
    "system volume information": "of Windows",
}
"""Folders, in small letters, that systems leave among data."""

SYSTEM_FILES: Mapping[str, str] = {
    "thumbs.db": "thumbnails of Windows",
    "desktop.ini": "settings of Windows",
    "_success": "a mark of Spark",
    "_metadata": "a summary of Parquet files",
    "_common_metadata": "a summary of Parquet files",
}
"""Files, in small letters, that systems leave among data."""

DOCUMENTS = _words(
    "readme license licence citation copying notice authors changelog changes"
    " requirements checksums sha256sums md5sums version attribution terms"
)
"""First words of the names of files that are written for people."""

KINDS: Mapping[str, str] = {
    extension: kind
    for kind, extensions in (
        (
            "table",
            "parquet pq arrow arrows ipc feather lance jsonl ndjson json csv tsv",
        ),
        ("text", "txt text caption cap tags lst list labels names classes"),
        (
            "annotation",
            "xml npy npz mat pkl pickle h5 hdf5 pth pt bin mdb tfrecord tfrecords",
        ),
        (
            "annotation",
            "safetensors xlsx xls db sqlite sqlite3 geojson srt vtt xmp pts ply obj",
        ),
        ("archive", "zip rar 7z gz tgz bz2 xz zst z lz4"),
        ("tar", "tar"),
        ("shard", "mds"),
        (
            "document",
            "md rst pdf html htm py ipynb sh bib yaml yml toml cfg ini log lock docx "
            "doc",
        ),
        ("document", "md5 sha1 sha256 cff bat ps1 js css tex data"),
        # Images that Pillow does not read, or of which it reads a thumbnail only.
        ("other", "svg eps wmf emf exr hdr cr2 cr3 nef arw dng orf rw2 raf"),
    )
    for extension in extensions.split()
}
"""Kinds of files that are no media, by extension in small letters."""

ROLES: Mapping[str, Sequence[str]] = _split(
    {
        "caption": (
            "text caption title description captions texts sentence sentences comment"
            " comments alt alttext utterance raw tags txt"
        ),
        "text": "text content body document article rawcontent txt page",
        "question": "question query problem q questions prompt context",
        "questions": "questions question queries prompts",
        "answers": (
            "answers answer multiplechoiceanswer label labels a gtanswer groundtruth "
            "target"
            " fullanswer solution"
        ),
        "choices": "choices options candidates multiplechoices answerchoices",
        "right": (
            "answer correctchoiceidx answeridx answerindex correctanswer label correct "
            "gold"
            " target answerkey groundtruth"
        ),
        "prompt": (
            "instruction prompt query question user human problem input inputs request"
        ),
        "input": "input inputs context",
        "response": (
            "response output outputs completion answer assistant gpt target solution "
            "reply answers"
        ),
        "system": "system systemprompt",
        "history": "history",
        "turns": "conversations messages conversation turns dialogue dialog",
        "tools": "tools functions",
        "chosen": "chosen preferred accepted chosenresponse responsechosen",
        "rejected": "rejected dispreferred rejectedresponse responserejected",
        "label": "label class category target cls labels classid labelid",
        "label_name": (
            "label class category labelname classname target cls labels categoryname"
        ),
        "ocr": "ocr ocrtext transcription transcript word",
        "places": "matchedtextindex matchedtextindices",
    }
)
"""Names of columns by role and priority, without punctuation."""

NUMBERED_SPLIT_COLUMNS = (
    "split",
    "set",
    "setname",
    "datasplit",
    "partition",
    "subset",
    "fold",
    "isvalid",
)
"""Names of columns that may state split parts by numbers, too."""

SPLIT_COLUMNS = (*NUMBERED_SPLIT_COLUMNS, "usage", "splitname", "splittype", "phase")
"""Names of columns that state the split part of a row."""

FLAG_COLUMNS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("train", "istrain", "istraining", "istrainingimage", "istrainset", "intrain"),
        ("train", "test"),
    ),
    **dict.fromkeys(("istest", "istestset"), ("test", "train")),
    **dict.fromkeys(("isval", "isvalset", "isvalidation"), ("val", "train")),
}
"""Names of columns of truth values that state split parts: the part if true, and if
false."""

_TRUTH = {
    **dict.fromkeys(("1", "true", "yes", "t", "y"), True),
    **dict.fromkeys(("0", "false", "no", "f", "n"), False),
}


def truth_of(text: str) -> bool | None:
    """Return the truth value of a text, None if it has none.

    Example:
        >>> truth_of("True"), truth_of("0"), truth_of("2")
        (True, False, None)
    """
    return _TRUTH.get(text.lower())


METADATA_WORDS = _words(
    "id idx index uid uuid key url uri source license licence lang language date time"
    " timestamp author dataset type split set hash md5 sha path name origin width"
    " height size score similarity confidence count length tokens token quality topic"
    " subject task grade"
)
"""Last words in the names of columns that describe samples."""


def plain_name(column: str) -> str:
    """Return the name of a column in lower case without punctuation; of a nested one
    its last key.

    Example:
        >>> plain_name("Multiple_Choice-Answer"), plain_name("sentences[*][raw]")
        ('multiplechoiceanswer', 'raw')
    """
    keys = [key for key in re.split(r"[\[\]]+", column) if key not in ("", "*")]
    return re.sub(r"[\W_]", "", keys[-1] if keys else column).lower()
