"""Samples, batches and datasets as HTML for pages and notebooks.

All data are escaped by `text` and `attribute`.
"""

from __future__ import annotations

import base64
import html
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from energize.core.lazy import PIL
from energize.core.loss_weights import WEIGHTS
from energize.core.media import MediaDecoder
from energize.core.padding import PADDING
from energize.core.records import (
    STORED_KEY,
    fields_of,
    format_sample_detailed,
    is_record,
)
from energize.core.turns import Turn, messages_of
from energize.errors import EnergizeError, NotIndexedError, visible

LETTERS = 4000
PICTURES = 8
TOKENS = 512
ROWS = 4
DEPTH = 3
"""Shown of a text, of the images of a field, of a row of tokens, of the rows, of nested
values."""

THUMBNAIL_BYTES = 48_000
_SIDE = 448
_QUALITIES = (82, 65, 45, 25, 10)
_IGNORED = -100
"""The label of tokens without a loss, in torch and transformers."""

UNSEEN = frozenset({"__restore_key__", "__sources__", PADDING, STORED_KEY})


def text(value: object, most: int = LETTERS) -> str:
    """Return a text as HTML, escaped; of a long one the beginning.

    >>> text("<script>"), text("abcdef", 4)
    ('&lt;script&gt;', 'abcd<span class="more"> … and 2 more letters</span>')
    """
    shown = str(value)
    more = len(shown) - most
    tail = f'<span class="more"> … and {more:,} more letters</span>' if more > 0 else ""
    return html.escape(visible(shown[:most])) + tail


def rows(head: Sequence[str], body: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table of cells that are HTML; columns of a head with ">" are numbers."""
    cell_classes = [
        ' class="number"' if title.startswith(">") else "" for title in head
    ]
    names = [title.removeprefix(">") for title in head]
    top = "".join(
        f'<th scope="col"{k}>{text(n)}</th>'
        for k, n in zip(cell_classes, names, strict=True)
    )
    lines = (
        "".join(
            f"<td{cell_class}>{cell}</td>"
            for cell_class, cell in zip(cell_classes, cells, strict=True)
        )
        for cells in body
    )
    top_line = f"<caption>{text(caption)}</caption>" if caption else ""
    inner = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<table>{top_line}<thead><tr>{top}</tr></thead><tbody>{inner}</tbody></table>"
    )


# Pictures


def pictures_of(
    value: Any, depth: int = 0, *, stretched: bool = False
) -> list[PIL.Image.Image]:
    """Return the images in a value, at most the first `PICTURES`.

    Args:
        value: A PIL image; a tensor or array of shape (3, H, W) or (H, W, 3), with a
            batch dimension or without one, of uint8 or of numbers from 0 to 1; or a
            list of these.
        depth: The number of lists around the value.
        stretched: Scale other ranges to 0 to 1, and show one channel in grey.
    """
    if isinstance(value, PIL.Image.Image):
        return [value]
    array = _array(value)
    if isinstance(value, list | tuple) or (array is not None and array.ndim == 4):
        few = (value if array is None else array)[: PICTURES if depth < DEPTH else 0]
        inner = (pictures_of(part, depth + 1, stretched=stretched) for part in few)
        return list(islice(chain.from_iterable(inner), PICTURES))
    pixels = None if array is None else _pixels(array, stretched=stretched)
    if pixels is None:
        return []
    return [PIL.Image.fromarray(np.ascontiguousarray(pixels))]


def _pixels(array: Any, *, stretched: bool) -> Any:
    """Return an array of three dimensions as uint8 (H, W, 3), or None."""
    if not array.size or array.ndim != 3:
        return None
    if stretched:
        array = _drawable(array)
    if array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    pixels = np.moveaxis(array, 0, -1) if array.shape[0] == 3 else array
    if pixels.dtype != np.uint8 or pixels.shape[-1] != 3:
        return None
    return pixels


def _drawable(values: Any) -> Any:
    """Return an array with one channel as grey, and with its range in 0 to 1."""
    if values.shape[0] == 1:
        values = np.repeat(values, 3, axis=0)
    has_channels = 3 in (values.shape[0], values.shape[-1])
    if not has_channels or min(sorted(values.shape)[1:]) <= 3:
        return values
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float32), posinf=0, neginf=0)
        if values.min() < 0 or values.max() > 1:
            values = _stretched(values)
    return values


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a tensor or an array of numbers as an array, or None."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = (
            (value.float() if value.is_floating_point() else value)
            .detach()
            .cpu()
            .numpy()
        )
    return (
        value if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else None
    )


def _stretched(values: Any) -> Any:
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def thumbnail(picture: PIL.Image.Image, alt: str) -> str:
    """Return an image as HTML that holds it, small, in at most `THUMBNAIL_BYTES`."""
    if picture.mode.startswith("I") or picture.mode == "F":
        picture = PIL.Image.fromarray(
            np.uint8(255 * _stretched(np.asarray(picture, np.float32)))
        )
    small = picture.convert("RGBA")
    small.thumbnail((_SIDE, _SIDE))
    white = PIL.Image.new("RGBA", small.size, "white")
    small = PIL.Image.alpha_composite(white, small).convert("RGB")
    for quality in _QUALITIES:
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= THUMBNAIL_BYTES:
            break
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" width="{small.width}" '
        f'height="{small.height}" '
        f'alt="{text(alt[:300])}">'
    )


def figure(picture: PIL.Image.Image, name: str) -> str:
    """Return an image with a caption."""
    size = f"{picture.width:,} x {picture.height:,}"
    try:
        seen = thumbnail(picture, f"{name}, {picture.width} by {picture.height} pixels")
    except Exception as reason:  # whatever PIL raises of a file that it opened
        return error(f"{name}: {type(reason).__name__}: {reason}")
    below = f"<span>{text(name)}</span> <small>{size}</small>"
    return f"<figure>{seen}<figcaption>{below}</figcaption></figure>"


def error(reason: object) -> str:
    """Return an error message as a paragraph."""
    return f'<p class="error" role="note"><b>✕</b> {text(reason)}</p>'


def gallery(value: Any, name: str) -> str:
    """Return the first images in a value as figures; empty if there are none."""
    images = pictures_of(value, stretched=True)
    whole = isinstance(value, list | tuple) or getattr(value, "ndim", 3) == 4
    more = len(value) - len(images) if whole else 0
    rest = f"<p>and {more:,} more</p>" if images and more > 0 else ""
    shown = "".join(figure(image, name) for image in images)
    return f'<div class="images">{shown}</div>{rest}' if images else ""


# Values


def value_html(
    value: Any, name: str = "", depth: int = 0, *, bare: bool = False
) -> str:
    """Return a value as HTML.

    Images become pictures, numbers shape and range, turns a conversation; other values
    are formatted as text.

    Args:
        value: Any value.
        name: The name of its field.
        depth: The number of lists around it.
        bare: Show images without shape and range.
    """
    array = _array(value)
    if images := gallery(value, name):
        return (
            images
            if bare or array is None
            else f"<p>{_array_summary(array)}</p>{images}"
        )
    return _plain_html(value, array, name, depth)


def _plain_html(value: Any, array: Any, name: str, depth: int) -> str:
    """Return a value without images as HTML."""
    if array is not None:
        values = f" <code>{text(array.tolist())}</code>" if array.size <= 24 else ""
        return _array_summary(array) + values
    if isinstance(value, MediaDecoder):
        return _video(value, name)
    if isinstance(value, list | tuple) and value and depth < DEPTH:
        return _list_html(value, name, depth)
    if isinstance(value, str | int | float | None):
        return f'<div class="text" dir="auto">{text(value)}</div>'
    if isinstance(value, bytes):
        return f"{len(value):,} bytes <code>{text(value[:24])}</code>"
    return f"<pre>{text(format_sample_detailed(value))}</pre>"


def _list_html(values: Sequence[Any], name: str, depth: int) -> str:
    if all(isinstance(part, Turn) for part in values):
        return conversation(values)
    parts = (
        f"<li>{value_html(part, name, depth + 1)}</li>" for part in values[:PICTURES]
    )
    left = len(values) - PICTURES
    more = f"<p>and {left:,} more</p>" if left > 0 else ""
    return f"<ol>{''.join(parts)}</ol>{more}"


def _array_summary(array: np.ndarray[Any, Any]) -> str:
    summary = f"{array.dtype} {array.shape}"
    if array.size and array.dtype.kind != "b":
        finite = array[np.isfinite(array)]
        if finite.size:
            low = finite.min()
            high = finite.max()
            summary += f", {low:g} to {high:g}" if low != high else f", all {low:g}"
        summary += "" if finite.size == array.size else ", not all finite"
    return f"<code>{text(summary)}</code>"


def _video(decoder: MediaDecoder, name: str) -> str:
    """Return facts of a video or sound, and its first frame if PyAV is installed."""
    shown = f"<p>{text(decoder)}</p>"
    try:
        metadata = decoder.get_metadata(
            get_video_duration=False, get_video_frame_count=False
        )
        values = {
            key: value
            for key, value in fields_of(metadata).items()
            if value is not None
        }
        summary = ", ".join(f"{key} {value:g}" for key, value in values.items())
        shown += f"<p>{text(summary)}</p>"
        if metadata.video_width:
            frame = decoder.get_video_clips([(0, 0)], "frames")[0][0]
            shown += f'<div class="images">{figure(pictures_of(frame)[0], name)}</div>'
    except EnergizeError as reason:
        shown += error(reason)
    return shown


def conversation(
    turns: Sequence[Turn], images: Iterable[Any] = (), videos: Iterable[Any] = ()
) -> str:
    """Return turns by role, with the images and videos where the texts have their
    places.
    """
    media = {"image": iter(images), "video": iter(videos)}
    entries = []
    for turn, message in zip(turns, messages_of(turns), strict=True):
        pieces = [text(f"{name}: {value}") for name, value in turn.extra.items()]
        for piece in message["content"]:
            piece_type = piece["type"]
            medium = next(media[piece_type], None) if piece_type in media else None
            shown = text(piece.get("text", f"<{piece_type}>").strip("\n"))
            pieces.append(
                shown if medium is None else value_html(medium, piece_type, bare=True)
            )
        role = message["role"] if message["role"] in ("user", "assistant") else "other"
        entries.append(
            f'<li class="turn {role}"><b class="role">{text(message["role"])}</b>'
            f'<div class="text" dir="auto">{"".join(pieces)}</div></li>'
        )
    return f'<ol class="turns">{"".join(entries)}</ol>'


def tokens(ids: Any, labels: Any, words: Any = None) -> str | None:
    """Return rows of token ids as HTML, with masked tokens shaded.

    Args:
        ids: Integers of shape (L,) or (N, L).
        labels: Labels of the same shape; those of masked tokens are -100.
        words: Maps a list of ids to texts, as `tokenizer.convert_ids_to_tokens`. None
            or a failure of it: the ids are shown.

    Returns:
        HTML, or None if `ids` are not token ids.
    """
    numbers = _array(ids)
    if numbers is None or numbers.dtype.kind not in "iu" or numbers.ndim not in (1, 2):
        return None
    targets = _array(labels)
    masked = None
    if targets is not None and targets.shape == numbers.shape:
        masked = targets == _IGNORED
    shown = []
    for number, row in enumerate(np.atleast_2d(numbers)[:ROWS]):
        first = row[:TOKENS].tolist()
        names = _token_names(first, words)
        if names is None:
            words = None
            names = [str(token) for token in first]
        dark = [False] * len(first)
        if masked is not None:
            dark = np.atleast_2d(masked)[number].tolist()
        shown.append(_token_row(first, names, dark, len(row)))
    if masked is not None:
        part = f"{1 - masked.mean():.0%}" if masked.size else "none"
        shown.append(
            f"<p><small>Shaded: masked, label {_IGNORED}. {part} count in the "
            "loss</small></p>"
        )
    return "".join(shown)


def _token_row(
    ids: Sequence[int], names: Sequence[str], masked: Sequence[bool], length: int
) -> str:
    cells = "".join(
        (
            f"<span{' class=masked' if off else ''} "
            f'title="{token}">{text(name, 40)}</span>'
        )
        for token, name, off in zip(ids, names, masked[:TOKENS], strict=True)
    )
    more = f" … and {length - TOKENS:,} more" if length > TOKENS else ""
    return f'<p class="tokens">{cells}{more}</p>'


def _token_names(ids: list[int], words: Any) -> list[str] | None:
    if words is None:
        return None
    try:
        return [str(word) for word in words(ids)]
    except Exception:  # raised by the user's tokenizer
        return None


# Items


def fields_shown(item: Any) -> dict[str, Any]:
    """Return the fields of an item to display; without fields, the item itself."""
    fields = fields_of(item) if is_record(item) else {type(item).__name__: item}
    return {
        str(name): value
        for name, value in fields.items()
        if not (
            name in UNSEEN or (str(name).startswith("__") and value in (None, {}, ()))
        )
        and not (name == WEIGHTS and value is None)
    }


def item_html(item: Any, words: Any = None) -> str:
    """Return a sample or a batch as a table of its fields."""
    fields = fields_shown(item)
    labels = fields.get("labels")
    body = []
    for name, value in fields.items():
        shown = (
            tokens(value, labels, words) if name in ("input_ids", "tokens") else None
        )
        cell = value_html(value, name)
        body.append((f"<b>{text(name)}</b>", cell + (shown or "")))
    return rows(("field", type(item).__name__), body)


# Datasets


def dataset_html(
    dataset: Any, heading: str = "", names: Sequence[str] | None = None
) -> str:
    """Return a table of the sources of a dataset, with their shares at the start.

    Args:
        dataset: Any dataset.
        heading: Text before the name of its class.
        names: A name for each source; by default the label or the name of the source.

    Returns:
        HTML for notebooks.

    """
    sources = dataset.sources[:32]
    shares = ["-"] * len(dataset.sources)
    if dataset.indexed:
        counts = dataset.consumed(1000)
        shares = [f"{share:.1%}" for share in counts / max(1, counts.sum())]
    labels = names or [source.label or source.name for source in sources]
    body = [
        (text(labels[n]), _count_text(source), shares[n])
        for n, source in enumerate(sources)
    ]
    more = len(dataset.sources) - len(sources)
    if more > 0:
        body.append((f"and {more:,} more", "", ""))
    caption = f"{heading}{type(dataset).__name__}: {_size_text(dataset)}"
    return notebook(
        rows(("source", ">samples", ">of the first 1,000 items"), body, caption)
    )


def _count_text(source: Any) -> str:
    return f"{source.count:,}" if hasattr(source, "count") else "?"


def _size_text(dataset: Any) -> str:
    try:
        size = dataset.size
    except NotIndexedError:
        return "as many items as reading finds"
    return f"{size:,} items per epoch" if size < 2**53 else "without end"


def notebook(shown: str) -> str:
    """Return a part of a page as notebooks show it, which have no style of ours."""
    style = (
        ".energize img { max-height: 8rem; width: auto } .energize .images { display: "
        "flex; flex-wrap: wrap; gap: .5rem } .energize .masked { opacity: .4 } "
        ".energize figure { margin: 0 } .energize td, .energize th, .energize caption "
        "{ text-align: left }"
    )
    return f'<div class="energize"><style>{style}</style>{shown}</div>'


def mapping_html(values: Mapping[str, Any]) -> str:
    """Return a table of names and short values."""
    pairs = (
        f"<dt>{text(name)}</dt><dd>{text(value, 400)}</dd>"
        for name, value in values.items()
    )
    return f"<dl>{''.join(pairs)}</dl>"
