"""Packed rows give the losses of padded samples, or the model is an error by name."""

from __future__ import annotations

import pickle
from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy, pad

pytest.importorskip("transformers")
import transformers

from energize import (
    ListSource,
    ProcessorTaskEncoder,
    TextSample,
    get_loader,
    get_train_dataset,
)
from energize.encoders import ModelPacking
from energize.errors import ConfigError, DataError
from energize.task.model_packing import block_mask, grid_positions
from energize.task.planning import PackPlan
from tests.support.flash import use_flash
from tests.support.models import MODELS, TEXT
from tests.support.processors import qwen, tokenizer
from tests.task.test_ready import chats, talk

pytestmark = pytest.mark.jobs

PACKS = [(0, 1, 2, 3, 0), (1, 1), (3, 2), (3, 3), (2,)]
"""Numbers of conversations; number 3 has no image."""


@cache
def weighed(name: str):
    """Return a processor and its model, which tests do not change."""
    return MODELS[name]()


def padded_and_packed(processor, model, numbers):
    padded = ProcessorTaskEncoder(processor)
    packed = ProcessorTaskEncoder(processor, packing=ModelPacking(model))
    samples = [padded.encode_sample(talk(number)) for number in numbers]
    return padded.batch(samples), packed.batch(samples)


def token_losses(model, batch):
    """Return the loss of each token, 0 where none is learned; of the shape of labels."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits[:, :-1].transpose(1, 2)
    losses = cross_entropy(logits, batch.labels[:, 1:], reduction="none")
    return pad(losses, (1, 0))


def sample_losses(model, batch):
    losses = token_losses(model, batch)
    if batch.cu_seqlens is None:
        return losses.sum(1)
    parts = losses[0].split(batch.cu_seqlens.diff().tolist())
    return torch.stack([part.sum() for part in parts])


def gradients(model, batch):
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("numbers", PACKS)
@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_a_pack_are_those_of_its_samples(name, numbers):
    processor, model = weighed(name)
    padded, packed = padded_and_packed(processor, model, numbers)
    losses = [sample_losses(model, batch) for batch in (padded, packed)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
    totals = [model(**batch).loss for batch in (padded, packed)]
    torch.testing.assert_close(*totals, rtol=0, atol=1e-5)
    both = [gradients(model, batch) for batch in (padded, packed)]
    torch.testing.assert_close(*both, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("numbers", PACKS)
@pytest.mark.parametrize("name", MODELS)
def test_flash_attention_gives_a_pack_the_losses_of_its_samples(
    name, numbers, monkeypatch
):
    processor, model = MODELS[name]()
    samples = [ProcessorTaskEncoder(processor).encode_sample(talk(n)) for n in numbers]
    expected = sample_losses(model, ProcessorTaskEncoder(processor).batch(samples))
    use_flash(model, monkeypatch)
    encoder = ProcessorTaskEncoder(processor, packing=ModelPacking(model))
    if name == "gemma3" and set(numbers) != {3}:
        with pytest.raises(ConfigError, match=r"Gemma3.* flash_attention_2"):
            encoder.batch(samples)
        return
    packed = encoder.batch(samples)
    losses = sample_losses(model, packed)
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_offsets_are_those_of_the_samples_and_positions_restart(name):
    processor, model = weighed(name)
    padded, packed = padded_and_packed(processor, model, PACKS[0])
    lengths = padded.attention_mask.sum(1)
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.cu_seqlens.tolist() == [0, *lengths.cumsum(0).tolist()]
    assert torch.equal(packed.cu_seq_lens_q, packed.cu_seq_lens_k)
    assert packed.max_length_q == packed.max_length_k == lengths.max()
    positions = packed.position_ids.reshape(-1, packed.input_ids.shape[1])
    assert positions[0].tolist() == [i for length in lengths for i in range(length)]
    assert not positions[:, packed.cu_seqlens[:-1].long()].any()
    assert "cu_seqlens" not in packed  # a vision tower would take it for its own


def test_a_batch_of_packs_is_one_row():
    processor, model = weighed("qwen2_vl")
    packing = ModelPacking(model)
    encoder = ProcessorTaskEncoder(processor, packing=packing, max_length=99)
    samples = [encoder.encode_sample(talk(number)) for number in (0, 1, 2, 3)]
    packs = [encoder.pack_selected_samples(part) for part in (samples[:3], samples[3:])]
    expected = encoder.batch(samples)
    batch = encoder.batch(packs)
    assert batch.cu_seqlens.tolist() == expected.cu_seqlens.tolist()
    assert (batch.cu_seqlens.diff() > 0).all()
    for key, value in expected.items():
        torch.testing.assert_close(batch[key], value)


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "smolvlm"])
def test_planned_packs_have_the_losses_of_their_samples(name):
    processor, model = weighed(name)
    padded = ProcessorTaskEncoder(processor)
    samples = [padded.encode_sample(talk(number)) for number in PACKS[0]]
    alone = [sample_losses(model, padded.batch([sample])) for sample in samples]
    expected = dict(zip(map(str, PACKS[0]), torch.cat(alone), strict=True))
    columns = {"tokens": [sample.tokens for sample in samples]}
    talks = ListSource([talk(number) for number in PACKS[0]], columns=columns)
    encoder = ProcessorTaskEncoder(processor, packing=ModelPacking(model))
    plan = PackPlan("tokens", 64, measure="tokens")
    packs = encoder.build_batch(
        encoder.build_encode_sample(talks), batch_size=1, packing_buffer_size=plan
    )
    seen = []
    for pack in [packs[i] for i in range(len(packs))]:
        assert pack.input_ids.shape[1] <= 64
        for key, loss in zip(pack.__key__, sample_losses(model, pack), strict=True):
            torch.testing.assert_close(loss, expected[key], rtol=0, atol=1e-5)
            seen.append(int(key))
    assert sorted(seen) == sorted(PACKS[0])


def test_planned_packs_of_a_column_that_is_too_short_are_within_the_capacity():
    processor, model = weighed("smolvlm")
    columns = {"tokens": [4] * len(PACKS[0])}
    talks = ListSource([talk(number) for number in PACKS[0]], columns=columns)
    encoder = ProcessorTaskEncoder(processor, packing=ModelPacking(model))
    packs = encoder.build_batch(
        encoder.build_encode_sample(talks),
        batch_size=1,
        packing_buffer_size=PackPlan("tokens", 64),
    )
    assert max(packs[i].input_ids.shape[1] for i in range(len(packs))) <= 64


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_on_three_axes_are_those_of_the_model(name):
    processor, model = weighed(name)
    padded, packed = padded_and_packed(processor, model, PACKS[0])
    positions, _ = model.model.get_rope_index(
        padded.input_ids,
        mm_token_type_ids=padded.mm_token_type_ids,
        image_grid_thw=padded.image_grid_thw,
        attention_mask=padded.attention_mask,
    )
    expected = positions[:, padded.attention_mask.bool()]
    assert torch.equal(packed.position_ids[1:, 0], expected)


def test_a_tokenizer_packs_for_a_model_of_three_axes_if_the_model_is_known():
    _, model = weighed("qwen2_vl")
    words = tokenizer()
    texts = [TextSample(__key__=str(i), text="red " * (i + 2)) for i in range(3)]
    encoders = [
        ProcessorTaskEncoder(words, packing=packing)
        for packing in (False, ModelPacking(model))
    ]
    losses = []
    for encoder in encoders:
        batch = encoder.batch([encoder.encode_sample(text) for text in texts])
        losses.append(sample_losses(model, batch))
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)


def test_a_packing_is_sent_to_workers_without_the_model():
    _, model = weighed("gemma3")
    packing = ModelPacking(model)
    again = pickle.loads(pickle.dumps(packing))
    assert vars(again) == vars(packing)
    assert len(pickle.dumps(packing)) < 1000


def test_masks_of_eager_attention_are_added():
    processor, model = MODELS["gemma3"]()
    model.set_attn_implementation("eager")
    padded, packed = padded_and_packed(processor, model, PACKS[0])
    losses = [sample_losses(model, batch) for batch in (padded, packed)]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)


def test_an_image_of_one_sample_does_not_continue_in_the_next():
    mask = block_mask([2, 2], torch.ones(4, dtype=torch.bool))
    assert mask.int().tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2


def test_images_side_by_side_have_their_own_positions():
    is_image = torch.tensor([True, True, True])
    positions = grid_positions(is_image, torch.tensor([[1, 1, 2], [1, 1, 1]]))
    assert positions[1:].tolist() == [[0, 0, 2], [0, 0, 2], [0, 1, 2]]
    for grids in ([[1, 1, 2]], [[1, 2, 2]], [[1, 1, 3], [1, 1, 1]]):
        with pytest.raises(DataError):
            grid_positions(is_image, torch.tensor(grids))


# Models that mix the samples of a row.

SMALL = TEXT | {"vocab_size": 40}
MIXING = {
    "GptOss": SMALL | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "OPT": SMALL | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "Bloom": {"vocab_size": 40, "hidden_size": 16, "n_head": 2, "n_layer": 2},
    "Falcon": {name: SMALL[name] for name in SMALL if name != "head_dim"},
    "Mamba": SMALL | {"state_size": 4},
    "Jamba": SMALL | {"num_experts": 2, "use_mamba_kernels": False},
    "MiniMax": SMALL | {"num_local_experts": 2},
}
SEPARATING = {
    "Llama": SMALL,
    "Qwen3": SMALL,
    "Mistral": SMALL | {"sliding_window": 3},
    "Mixtral": SMALL | {"num_local_experts": 2},
    "GPT2": {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2},
}


def small(name, options, attention="eager"):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **options, attn_implementation=attention
    )
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_samples_is_an_error_by_name(name):
    with pytest.raises(ConfigError, match=f"{name}.*mixes packed samples"):
        ModelPacking(small(name, MIXING[name]))


def test_linear_attention_without_its_library_is_an_error_by_name():
    linear = {f"linear_num_{part}_heads": 2 for part in ("key", "value")}
    linear |= {f"linear_{part}_head_dim": 8 for part in ("key", "value")}
    options = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    options |= {"num_hidden_layers": 4, "shared_expert_intermediate_size": 8}
    model = small("Qwen3Next", SMALL | linear | options)
    with pytest.raises(ConfigError, match=r"Qwen3Next.*packed"):
        ModelPacking(model)


@pytest.mark.parametrize("name", SEPARATING)
def test_a_model_that_separates_samples_keeps_its_modes_and_gradients(name):
    model = small(name, SEPARATING[name], "sdpa").train()
    next(model.children()).eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    ModelPacking(model)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_ignores_positions_is_an_error():
    class Unplaced(transformers.GPT2LMHeadModel):
        """It separates samples, and gives their tokens the positions of the row."""

        def forward(self, input_ids, position_ids, **options):
            mask = (position_ids[..., None] - position_ids[:, None]).tril() >= 0
            numbers = (position_ids == 0).cumsum(-1)
            mask &= (numbers[..., None] == numbers[:, None]).tril()
            order = torch.arange(input_ids.shape[1])[None]
            return super().forward(
                input_ids, position_ids=order, attention_mask=mask[:, None]
            )

    config = transformers.GPT2Config(**SEPARATING["GPT2"], initializer_range=0.5)
    with pytest.raises(ConfigError, match=r"Unplaced.*does not use position_ids"):
        ModelPacking(Unplaced(config))


def test_what_is_no_model_with_weights_is_an_error():
    config = transformers.LlamaConfig(**SMALL)
    with pytest.raises(ConfigError, match="needs a model of transformers"):
        ModelPacking(config)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no weights yet"):
        ModelPacking(model)


def test_a_processor_for_another_model_is_an_error():
    encoder = ProcessorTaskEncoder(
        qwen(), packing=ModelPacking(small("Llama", SMALL, "sdpa"))
    )
    with pytest.raises(
        ConfigError, match="need positions that follow from image_grid_thw"
    ):
        encoder.batch([encoder.encode_sample(talk(1))])


def test_packing_for_an_unknown_model_is_logged_once(caplog):
    encoder = ProcessorTaskEncoder(tokenizer(), packing=True)
    sample = encoder.encode_sample(TextSample(__key__="0", text="red"))
    for _ in range(2):
        encoder.batch([sample])
    assert caplog.text.count("packing=ModelPacking(model)") == 1


def test_masks_come_from_workers_and_move_with_their_batch(tmp_path):
    processor, model = weighed("gemma3")
    encoder = ProcessorTaskEncoder(
        processor, packing=ModelPacking(model), max_length=64
    )
    dataset = get_train_dataset(chats(tmp_path, 8), batch_size=3, task_encoder=encoder)
    losses = []
    for workers in (0, 2):
        with get_loader(dataset, num_workers=workers) as loader:
            batch = next(iter(loader)).to("cpu")
            assert batch.attention_mask.keys() == {
                "full_attention",
                "sliding_attention",
            }
            losses.append(model(**batch).loss)
    torch.testing.assert_close(*losses)
