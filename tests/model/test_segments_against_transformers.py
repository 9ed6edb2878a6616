"""Loss, hidden states and every gradient of the segments' functions equal transformers' own models, in fp64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fourfold.config import ModelConfig
from fourfold.config.model_config import LayerException, RopeScaling
from fourfold.model.embedding import embedding_forward
from fourfold.model.layers import ropes_of
from fourfold.model.rope_tables import rope_tables
from tests.support.plain_model import PlainModel, random_tokens, transformers_model
from tests.support.reference_names import view_of

BASE = ModelConfig(
    num_layers=2, hidden_size=24, num_heads=4, num_kv_heads=2, head_dim=6, ffn_size=40, vocab_size=61, norm_eps=1e-5
)
SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
GPT2 = replace(
    BASE, family="gpt2", num_kv_heads=4, norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
    positions="learned", tie_embeddings=True, max_position=50,
)  # fmt: skip
MODELS = {
    "llama": BASE,
    "llama tied": replace(BASE, tie_embeddings=True),
    "llama, one kv head": replace(BASE, num_kv_heads=1),
    "llama, all kv heads": replace(BASE, num_kv_heads=4),
    "llama, wide heads": replace(BASE, head_dim=16),
    "llama 3.1, beyond its original positions": replace(BASE, rope_theta=5e5, rope_scaling=SCALING),
    "llama 3.1, wide heads": replace(BASE, rope_theta=1e4, rope_scaling=SCALING, head_dim=32),
    "mistral": replace(BASE, family="mistral", rope_theta=1e6, norm_eps=1e-6),
    "mistral, a window": replace(BASE, family="mistral", sliding_window=5),
    "qwen2, a window in some layers": replace(
        BASE,
        family="qwen2",
        qkv_bias=True,
        num_layers=3,
        sliding_window=7,
        exceptions=(LayerException(layers=(1,), sliding_window=0),),
    ),
    "qwen2": replace(BASE, family="qwen2", qkv_bias=True),
    "qwen2 tied": replace(BASE, family="qwen2", qkv_bias=True, tie_embeddings=True),
    "qwen3": replace(BASE, family="qwen3", qk_norm=True),
    "qwen3, wide heads, tied": replace(BASE, family="qwen3", qk_norm=True, head_dim=16, tie_embeddings=True),
    "gpt2": GPT2,
    "gpt2 untied": replace(GPT2, tie_embeddings=False),
    "one layer, one head": replace(BASE, num_layers=1, num_heads=1, num_kv_heads=1),
}
LENGTH = 37  # more than twice the original positions of the scaled models


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "rebuilt"])
def test_loss_and_every_gradient(name: str, keep: bool) -> None:
    model = MODELS[name]
    ours = PlainModel(model)
    theirs = transformers_model(model, ours.parameters())
    tokens, targets = random_tokens(model, 3, LENGTH)
    count = int((targets != -100).sum())

    loss = ours.loss_and_gradients(ours.microbatch(tokens, targets), count, keep)
    logits = theirs(tokens).logits
    expected = F.cross_entropy(logits.view(-1, model.vocab_size), targets.view(-1), ignore_index=-100, reduction="sum")
    (expected / count).backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert ours.loss(ours.microbatch(tokens, targets)).item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = {name: value.grad for name, value in theirs.named_parameters()}
    for parameter, value in ours.gradients().items():
        wanted = view_of(parameter, gradients)
        assert wanted.norm() > 0 or parameter.endswith("k_proj.bias")  # scores do not depend on the keys' bias
        torch.testing.assert_close(value, wanted, rtol=1e-8, atol=1e-11, msg=parameter)


@pytest.mark.parametrize("width", [24, 26, 1152, 5376])
def test_an_embedding_is_scaled_by_a_number_that_is_rounded_as_it_is(width: int) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    model = replace(BASE, hidden_size=width, num_heads=2, head_dim=width // 2, scaled_embedding=True)
    for dtype in (torch.bfloat16, torch.float32):
        ours = PlainModel(replace(model, num_layers=1), dtype)
        theirs = Gemma3TextScaledWordEmbedding(61, width, 0, width**0.5).to(dtype)
        theirs.weight.data = ours.parameters()["model.embed_tokens.weight"]
        tokens = torch.arange(61)[None]
        weights = ours.weights["embed"]
        assert torch.equal(embedding_forward(ours.env, tokens, weights), theirs(tokens)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
def test_hidden_states_after_every_block(name: str) -> None:
    model = MODELS[name]
    ours = PlainModel(model)
    theirs = transformers_model(model, ours.parameters())
    tokens, targets = random_tokens(model, 2, LENGTH)
    states = theirs(tokens, output_hidden_states=True).hidden_states
    batch = ours.microbatch(tokens, targets)
    for layers in range(model.num_layers):  # the last of theirs is after the final norm
        part = PlainModel(model)
        part.segments = (*part.segments[: layers + 1], part.segments[-1])
        torch.testing.assert_close(part.hidden(batch), states[layers].flatten(0, 1), rtol=1e-10, atol=1e-12)


def test_rope_scaling_changes_the_angles_that_it_should() -> None:
    """Without it the test above would pass whether scaling is honoured or not: long wavelengths differ, short ones do not."""
    scaling = SCALING.model_copy(update={"original_max_position": 64})
    scaled = replace(MODELS["llama 3.1, wide heads"], rope_scaling=scaling)
    plain = replace(scaled, rope_scaling=None)
    device = torch.device("cpu")
    with_scaling = rope_tables(*ropes_of(scaled), 256, torch.float64, device)[0]
    without = rope_tables(*ropes_of(plain), 256, torch.float64, device)[0]
    assert torch.equal(with_scaling[:, 0], without[:, 0])
    assert not torch.allclose(with_scaling[:, -1], without[:, -1])


def test_gradients_add_up_over_microbatches() -> None:
    model = MODELS["qwen3, wide heads, tied"]
    ours = PlainModel(model)
    tokens, targets = random_tokens(model, 4, 11)
    count = int((targets != -100).sum())
    full = ours.loss_and_gradients(ours.microbatch(tokens, targets), count)
    expected = {name: grad.clone() for name, grad in ours.gradients().items()}
    ours.zero_gradients()
    parts = [
        ours.loss_and_gradients(ours.microbatch(tokens[row : row + 1], targets[row : row + 1]), count)
        for row in range(4)
    ]
    assert sum(part.item() for part in parts) == pytest.approx(full.item(), rel=1e-12)
    for name, grad in ours.gradients().items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_what_is_rebuilt_in_backward_equals_what_is_kept_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]
    tokens, targets = random_tokens(model, 2, 19)
    results = []
    for keep in (True, False):
        ours = PlainModel(model, dtype)
        loss = ours.loss_and_gradients(ours.microbatch(tokens, targets), 20, keep)
        results.append((loss, ours.gradients()))
    assert torch.equal(results[0][0], results[1][0])
    for parameter, grad in results[0][1].items():
        assert torch.equal(grad, results[1][1][parameter]), parameter
        assert grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bf16_is_near_fp64(name: str) -> None:
    model = MODELS[name]
    tokens, targets = random_tokens(model, 3, 19)
    exact, coarse = PlainModel(model), PlainModel(model, torch.bfloat16)
    loss = exact.loss_and_gradients(exact.microbatch(tokens, targets), 30)
    approximate = coarse.loss_and_gradients(coarse.microbatch(tokens, targets), 30)
    assert approximate.dtype == torch.float32, "losses are summed in fp32"
    assert approximate.item() == pytest.approx(loss.item(), rel=0.02)
    for parameter, grad in exact.gradients().items():
        error = (coarse.gradients()[parameter].double() - grad).norm() / grad.norm()
        assert error < 0.12, parameter
