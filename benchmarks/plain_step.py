"""A training step of a Llama in plain torch: SDPA, autocast to bf16, fused AdamW, torch.compile."""

from collections.abc import Callable
from typing import Any

import torch

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from plain_llama import PlainLlama, Shape


def plain_step(table: dict[str, Any], device: torch.device, compiled: bool = False) -> Callable[[], None]:
    """A function that trains a step of this run on one device, on random tokens: fp32 weights, the same microbatches.

    `compiled`: every block is compiled by itself, once for all of them, which takes seconds where the full model takes minutes; and
    so is the loss.
    """
    config = parse_run(table)
    model = resolve_model(config.model)
    length, sequences = config.batch.sequence_length, config.batch.global_sequences
    shape = Shape(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        ffn_size=model.ffn_size,
        max_position=length,
        rope_theta=model.rope_theta,
    )
    with torch.device(device):
        module = PlainLlama(shape)
        if model.tie_embeddings:
            module.lm_head.weight = module.model.embed_tokens.weight
        tokens = torch.randint(shape.vocab_size, (1, length))
    if compiled:
        for layer in module.model.layers:
            layer.compile()
        module.loss = torch.compile(module.loss)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    mixed = config.precision.compute == "bf16"

    def step() -> None:
        for _ in range(sequences):
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                loss = module(tokens, tokens, float(sequences * length))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
