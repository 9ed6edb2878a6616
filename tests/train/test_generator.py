"""Logits of one token at a time, with the keys and values of those before, equal those of all tokens at once."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.checkpoint.unit_shard import balance_bias_extra
from fourfold.config import ModelConfig
from fourfold.model.spec import build_segments
from fourfold.train import generator
from fourfold.train.generator import Generator
from tests.support.programs import DEEPSEEK, QWEN3_MOE

LLAMA = ModelConfig(3, 32, 4, 2, 8, 56, 61)
MODELS = {
    "llama": LLAMA,
    "qwen3": replace(LLAMA, qk_norm=True, tie_embeddings=True),
    "gpt2": replace(
        LLAMA, num_kv_heads=4, norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
        positions="learned", max_position=40,
    ),
    "experts": replace(LLAMA, **QWEN3_MOE),
    "mla": replace(LLAMA, num_kv_heads=4, head_dim=10, **DEEPSEEK),
    "mla, neighbours": replace(LLAMA, num_kv_heads=4, head_dim=10, **{**DEEPSEEK, "query_rank": None}, rope_interleave=True),
    "a window": replace(LLAMA, sliding_window=40),
}  # fmt: skip
MOST = 24


def reader(model: ModelConfig) -> Any:
    """A checkpoint of random weights in memory."""
    specs = [p for segment in build_segments(model) for unit in segment.own for p in unit.parameters]
    draw = torch.Generator().manual_seed(3)
    values = {s.name: (0.3 * torch.randn(s.shape, generator=draw) + (s.init_std is None)) for s in specs}
    biases = {}
    if model.router == "sigmoid":
        names = [balance_bias_extra(layer) for layer in range(model.num_layers) if model.is_moe(layer)]
        biases = {name: 0.1 * torch.randn(model.num_experts, generator=draw) for name in names}
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    return SimpleNamespace(shapes=shapes, get=values.__getitem__, extras=biases, extra=biases.__getitem__, path="here")


@pytest.mark.parametrize("name", MODELS)
def test_each_further_token_gives_the_logits_of_all_at_once(name: str) -> None:
    model = MODELS[name]
    stepwise, at_once = (Generator(model, reader(model), MOST) for _ in range(2))
    tokens = torch.randint(model.vocab_size, (MOST,), generator=torch.Generator().manual_seed(1)).tolist()
    for length in range(5, MOST + 1):
        ours, right = stepwise.logits(tokens[:length]), at_once.next_logits(torch.tensor(tokens[:length]))
        assert ours.argmax() == right.argmax()
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5 * float(right.abs().max()))


def test_a_further_token_costs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    block_forward = generator.block_forward

    def counted(segment: Any, env: Any, x: Tensor, *rest: Any) -> Tensor:
        rows.append(len(x))
        return block_forward(segment, env, x, *rest)

    monkeypatch.setattr(generator, "block_forward", counted)
    made = Generator(LLAMA, reader(LLAMA), MOST)
    for length in (6, 7, 8, 10):
        made.logits(list(range(length)))
    assert rows == [6] * 3 + [1] * 3 * 4


@pytest.mark.parametrize("change", ["another text", "a shorter text", "the window moves"])
def test_what_is_held_is_used_for_its_own_text_alone(change: str) -> None:
    text = list(range(MOST))
    then = {"another text": [7, *text[1:], 3], "a shorter text": text[:4], "the window moves": [*text[1:], 9]}[change][
        -MOST:
    ]
    used, fresh = (Generator(LLAMA, reader(LLAMA), MOST) for _ in range(2))
    used.logits(text)
    assert torch.equal(used.logits(then), fresh.logits(then))


def test_a_layer_that_forgets_a_key_is_found() -> None:
    """The comparison above can fail: without the first key the logits are others."""
    model = MODELS["llama"]
    made, right = (Generator(model, reader(model), MOST) for _ in range(2))
    made.logits(list(range(8)))
    for cache in made._caches:
        cache._keys[:, 0] = 0
    assert not torch.allclose(made.logits(list(range(9))), right.logits(list(range(9))), atol=1e-4)
