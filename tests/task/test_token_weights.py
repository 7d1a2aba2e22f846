"""The mean of token losses is the same, however a global batch is divided."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import energize as ez
from energize.errors import ConfigError, EnergizeError, WeightError
from energize.packing import concat_pack
from tests.support.launching import launched
from tests.support.tables import row

MEANS = ("tokens", "samples", "sqrt_tokens")
POWERS = {"tokens": 1.0, "samples": 0.0, "sqrt_tokens": 0.5}

SAMPLES = st.lists(
    st.tuples(
        st.lists(st.booleans(), min_size=1, max_size=6),  # which tokens are learned
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=8,
)


def sample(learned, weight, number=0):
    """A sample whose losses are numbers of their own."""
    mask = torch.tensor([False, *learned])
    losses = torch.linspace(1, 2, len(mask)) + number
    labels = torch.where(mask, 7, -100)
    return {"labels": labels, "losses": losses, "sample_weight": weight}


def rows_of(samples):
    width = max(len(each["labels"]) for each in samples)
    batch = {
        name: torch.stack(
            [
                torch.nn.functional.pad(
                    each[name], (0, width - len(each[name])), value=fill
                )
                for each in samples
            ]
        )
        for name, fill in (("labels", -100), ("losses", 99.0))
    }
    return batch | {"sample_weights": ez.batch_weights(samples)}


def pack_of(samples):
    return concat_pack(samples, ["labels", "losses"])


def packs_of(samples):
    """A batch of packs of one to three samples, padded to one length."""
    packs = [samples[:1], samples[1:4], samples[4:]]
    batch = ez.generic_batch([pack_of(pack) for pack in packs if pack])
    beyond = torch.arange(batch["labels"].shape[1]) >= batch["cu_seqlens"][:, -1:]
    batch["labels"] = batch["labels"].masked_fill(beyond, -100)
    return batch


FORMS = {
    "padded": lambda samples: [rows_of(samples)],
    "a pack": lambda samples: [pack_of(samples)],
    "packs": lambda samples: [packs_of(samples)],
    "accumulated rows": lambda samples: [rows_of([each]) for each in samples],
    "accumulated packs": lambda samples: [
        pack_of(part) for part in (samples[:2], samples[2:]) if part
    ],
    "two ranks": lambda samples: [
        make(part)
        for make, part in ((rows_of, samples[::2]), (pack_of, samples[1::2]))
        if part
    ],
}


def mean_of(batches, mean):
    weights = [ez.token_weights(batch, mean) for batch in batches]
    total = ez.total_weight(weights)
    parts = [
        ez.weighted_mean(batch["losses"], part, total=total)
        for batch, part in zip(batches, weights, strict=True)
    ]
    return float(sum(parts)), float(total)


@pytest.mark.parametrize("mean", MEANS)
@given(SAMPLES)
def test_the_mean_is_the_same_in_every_form(mean, drawn):
    samples = [sample(*entry, number) for number, entry in enumerate(drawn)]
    counts = torch.tensor([float(sum(learned)) for learned, _ in drawn])
    factors = torch.tensor([weight for _, weight in drawn])
    sizes = torch.where(counts > 0, counts ** POWERS[mean], 0)
    means = torch.tensor(
        [
            float(each["losses"][each["labels"] == 7].mean()) if count else 0.0
            for each, count in zip(samples, counts, strict=True)
        ]
    )
    total = float((factors * sizes).sum())
    expected = float((factors * sizes * means).sum()) / total if total else 0.0
    for name, form in FORMS.items():
        with row(name):
            assert mean_of(form(samples), mean) == (
                pytest.approx(expected, rel=1e-5),
                pytest.approx(total, rel=1e-5),
            )


def test_weights_have_the_shape_of_labels_and_padding_counts_nothing():
    batch = rows_of([sample([True] * 4, 1.0), sample([True], 1.0)])
    del batch["sample_weights"]
    weights = ez.token_weights(batch, "sqrt_tokens")
    assert weights.tolist() == [[0.0] + [0.5] * 4, [0.0, 1.0, 0.0, 0.0, 0.0]]
    assert weights.dtype == torch.float32
    assert ez.token_weights(batch | {"__padding__": [1]}, "tokens").sum() == 4
    assert ez.token_weights(batch | {"__padding__": True}, "tokens").sum() == 0


def test_offsets_of_batched_packs_repeat_the_last_one():
    """Padded with zeros, they would descend, and attention would read elsewhere."""
    pieces = [{"ids": torch.arange(size)} for size in (3, 2, 4, 1)]
    packs = [concat_pack(part, ["ids"]) for part in (pieces[:3], pieces[3:])]
    batch = ez.generic_batch(packs)
    assert batch["cu_seqlens"].tolist() == [[0, 3, 5, 9], [0, 1, 1, 1]]
    assert batch["cu_seqlens"].dtype == torch.int32
    joined = ez.encoders.generic_concat([batch, ez.generic_batch(packs[1:])])
    assert joined["cu_seqlens"].tolist() == [[0, 3, 5, 9], [0, 1, 1, 1], [0, 1, 1, 1]]
    with pytest.raises(ConfigError, match="one packed row each cannot be joined"):
        ez.encoders.generic_concat(packs)


LABELS = torch.tensor([[-100, 5, 6]])
REFUSED = {
    "mean": (({"labels": LABELS}, "rows"), ConfigError, "mean"),
    "labels": (({"ids": LABELS}, "tokens"), ConfigError, "no tensor 'labels'"),
    "one dimension": (({"labels": LABELS[0]}, "tokens"), ConfigError, "cu_seqlens"),
    "offsets of zeros": (
        ({"labels": LABELS, "cu_seqlens": torch.tensor([0, 3, 0])}, "tokens"),
        WeightError,
        "Pass ascending offsets",
    ),
    "offsets of other packs": (
        ({"labels": LABELS, "cu_seqlens": torch.tensor([[0, 3], [0, 1]])}, "tokens"),
        WeightError,
        "the offsets of 1 packs",
    ),
    "longer offsets": (
        ({"labels": LABELS, "cu_seqlens": torch.tensor([0, 4])}, "tokens"),
        WeightError,
        "end at 4",
    ),
    "weights": (
        ({"labels": LABELS, "sample_weights": torch.ones(2)}, "tokens"),
        WeightError,
        "2 sample_weights for 1 samples",
    ),
    "padding of a row": (
        ({"labels": LABELS, "__padding__": [1]}, "tokens"),
        WeightError,
        "row 1",
    ),
}


def test_what_has_no_weights_of_tokens_is_an_error():
    for name, (arguments, kind, words) in REFUSED.items():
        with row(name), pytest.raises(EnergizeError) as caught:
            ez.token_weights(*arguments)
        assert caught.type is kind, name
        assert words in str(caught.value), name


@pytest.mark.jobs
def test_a_vision_language_model_has_one_mean_packed_padded_accumulated_and_on_ranks(
    tmp_path,
):
    pytest.importorskip("transformers")
    from tests.support import token_means

    out = tmp_path / "out.json"
    launched("tests.support.token_means", out, ranks=2)
    on_ranks = json.loads(out.read_text())
    assert len(on_ranks) == 6
    _, model = token_means.llava()
    for mean in MEANS:
        (whole,) = token_means.batches(model, [range(8)], packed=False)
        value, gradient = token_means.trained(model, [whole], mean)
        gradient = torch.cat(gradient)
        parts = [range(3), range(3, 8)]
        packs = token_means.batches(model, parts, packed=True)
        results = {"accumulated packs": token_means.trained(model, packs, mean)}
        results |= {
            name: (each, [torch.tensor(part)])
            for name, (each, part) in on_ranks.items()
            if name.startswith(f"{mean},")
        }
        assert len(results) == 3
        for name, (other, part) in results.items():
            with row(name):
                assert other == pytest.approx(value, abs=1e-5)
                torch.testing.assert_close(
                    torch.cat(part), gradient, rtol=1e-3, atol=1e-5
                )
