"""Arguments of Megatron-Energon that say how samples are decoded, beside the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energize.errors import ConfigError
from energize.ignored import accepted
from energize.task_encoder.augment import AugmentTaskEncoder
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder

_OPTIONS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


class _Decoding(AugmentTaskEncoder[Any, Any, Any, Any]):
    """An encoder with another decoder; the one that was given stays as it is."""

    decoder = None

    def __init__(
        self, task_encoder: TaskEncoder[Any, Any, Any, Any], decoder: SampleDecoder | None
    ) -> None:
        super().__init__(task_encoder)
        self.decoder = decoder


def decoding_as(owner: str, encoder: Any, older: Mapping[str, Any]) -> Any:
    """The encoder, or each of a dict of them, decoding as older arguments of `owner` say.

    `auto_decode=False` leaves the bytes of parts; the others are parameters of `SampleDecoder`.
    What else is given is accepted with a word in the log, or an error where nobody knows it. Raises
    `ConfigError` where the encoder has a decoder of its own, too.
    """
    options = {name: older[name] for name in _OPTIONS if name in older}
    auto = older.get("auto_decode", True)
    accepted(
        owner,
        **{
            name: value
            for name, value in older.items()
            if name not in _OPTIONS and name != "auto_decode"
        },
    )
    if not options and auto is not False:
        return encoder
    if isinstance(encoder, Mapping):
        return {kind: decoding_as(owner, each, older) for kind, each in encoder.items()}
    own = type(encoder).decoder if isinstance(encoder, TaskEncoder) else TaskEncoder.decoder
    if own is not TaskEncoder.decoder:
        raise ConfigError(
            f"{owner}: {', '.join([*options, 'auto_decode'][: len(options) or 1])} says how samples"
            f" are decoded, and so does the decoder of {type(encoder).__name__}; leave one out"
        )
    decoder = SampleDecoder(**options) if auto is not False else None
    return _Decoding(DefaultTaskEncoder() if encoder is None else encoder, decoder)
