"""Batches and learning rates of published pretraining runs, step by step, from what their reports state."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from fourfold.config import parse_run
from fourfold.config.stages import Course, course_of

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}
T, B = 10**12, 10**9


def course(batch: dict[str, Any], optimizer: dict[str, Any], stages: list[dict[str, Any]] | None = None) -> Course:
    return course_of(parse_run({"model": MODEL, "batch": batch, "optimizer": optimizer, "stage": stages or []}))


def looked_at(found: Course) -> Iterator[int]:
    """The first steps, those around every change, the last ones, and a thousand in between."""
    changes = {0, 2000, found.steps, *(each.step for each in found.batches), *(stage.begin for stage in found.stages)}
    near = {step + by for step in changes for by in range(-3, 4)}
    return iter(
        sorted({step for step in {*near, *range(0, found.steps, found.steps // 1000)} if 0 <= step < found.steps})
    )


def cosine(high: float, low: float, share: float) -> float:
    return low + (high - low) * (1 + math.cos(math.pi * share)) / 2


def test_deepseek_v3() -> None:
    """DeepSeek-AI 2024 (arXiv 2412.19437), section 4.2: 0 to 2.2e-4 in 2K steps, constant until 10T tokens, to 2.2e-5 in 4.3T by
    a cosine, then 333B at it and 167B at 7.3e-6; batches from 3,072 to 15,360 sequences of 4K in the first 469B."""
    constant = {"schedule": "constant"}
    found = course(
        {
            "global_sequences": 15360,
            "sequence_length": 4096,
            "tokens": 14_800 * B,
            "ramp": [{"global_sequences": 3072, "by": 768, "until_tokens": 469 * B}],
        },
        {"lr": 2.2e-4, "warmup_steps": 2000, "rate_at": "before", **constant},
        [
            {"until_tokens": 10 * T},
            {
                "until_tokens": 14_300 * B,
                "optimizer": {
                    "schedule": "decay",
                    "decay_shape": "cosine",
                    "min_lr_ratio": 0.1,
                    "progress": "tokens",
                    "rate_at": "before",
                },
            },
            {"until_tokens": 14_633 * B, "optimizer": {"lr": 2.2e-5, **constant}},
            {"optimizer": {"lr": 7.3e-6, **constant}},
        ],
    )
    begin, end = (found.tokens_before(found.stages[1].begin), found.tokens_before(found.stages[1].end))
    for step in looked_at(found):
        tokens = found.tokens_before(step)
        size = 3072 + 768 * min(16, tokens * 16 // (469 * B))
        assert found.batch_at(step).sequences == size, step
        if tokens < 10 * T:
            expected = 2.2e-4 * min(1.0, step / 2000)
        elif tokens < 14_300 * B:
            expected = cosine(2.2e-4, 2.2e-5, (tokens - begin) / (end - begin))
        else:
            expected = 2.2e-5 if tokens < 14_633 * B else 7.3e-6
        assert found.learning_rate(step) == pytest.approx(expected, rel=1e-9, abs=1e-15), step
    assert 0 <= begin - 10 * T < 15360 * 4096
    assert found.tokens_before(found.steps) - 14_800 * B < 15360 * 4096


def test_llama_3_405b() -> None:
    """Grattafiori et al. 2024 (arXiv 2407.21783), section 3.4.1: 8e-5 after 8,000 steps, to 8e-7 over 1,200,000 by a cosine; 4M
    tokens of sequences of 4,096, after 252M tokens 8M of 8,192, after 2.87T tokens 16M."""
    found = course(
        {"global_sequences": 1024, "sequence_length": 4096, "tokens": 15_600 * B},
        {
            "lr": 8e-5,
            "warmup_steps": 8000,
            "schedule": "cosine",
            "min_lr_ratio": 0.01,
            "horizon_steps": 1_200_000,
            "rate_at": "before",
        },
        [
            {"until_tokens": 252_000_000},
            {"until_tokens": 2_870 * B, "batch": {"sequence_length": 8192}},
            {"batch": {"global_sequences": 2048}},
        ],
    )
    for step in looked_at(found):
        tokens = found.tokens_before(step)
        size = 4 * 2**20 if tokens < 252_000_000 else 8 * 2**20 if tokens < 2_870 * B else 16 * 2**20
        assert found.batch_at(step).step_tokens == size, step
        warm = 8e-5 * step / 8000
        expected = warm if step <= 8000 else cosine(8e-5, 8e-7, (step - 8000) / (1_200_000 - 8000))
        assert found.learning_rate(step) == pytest.approx(expected, rel=1e-9), step


@pytest.mark.parametrize(
    ("tokens", "sequences", "lr", "least", "warmup", "decay", "shape"),
    [
        (15_500 * B, 16384, 2e-4, 0.1, 500, 5_500 * B, "cosine"),
        (11_200 * B, 576, 2e-4, 0.0, 2000, 1_120 * B, "linear"),
    ],
    ids=["Kimi-K2 (arXiv 2507.20534, section 2.5)", "SmolLM3 (Hugging Face 2025)"],
)
def test_warmup_stable_decay(
    tokens: int, sequences: int, lr: float, least: float, warmup: int, decay: int, shape: str
) -> None:
    """Constant after warm-up; the last tokens by a cosine or a line."""
    found = course(
        {"global_sequences": sequences, "sequence_length": 4096, "tokens": tokens},
        {
            "lr": lr,
            "schedule": "wsd",
            "progress": "tokens",
            "rate_at": "before",
            "warmup_steps": warmup,
            "decay_tokens": decay,
            "decay_shape": shape,
            "min_lr_ratio": least,
        },
    )
    for step in looked_at(found):
        share = max(0.0, (found.tokens_before(step) - (found.tokens - decay)) / decay)
        falls = cosine(lr, least * lr, share) if shape == "cosine" else lr - (lr - least * lr) * share
        expected = lr * step / warmup if step <= warmup else falls
        assert found.learning_rate(step) == pytest.approx(expected, rel=1e-9), step


def test_sizes_by_thresholds() -> None:
    """Megatron-LM's `--step-batch-size-schedule`, "0:768 1T:1536 4T:3072": the size of the last threshold that the tokens behind a
    step have reached."""
    thresholds = [(0, 768), (T, 1536), (4 * T, 3072)]
    ramp = [{"global_sequences": size, "until_tokens": end} for (_, size), (end, _) in pairwise(thresholds)]
    found = course({"global_sequences": 3072, "sequence_length": 8192, "tokens": 5 * T, "ramp": ramp}, {})
    samples = 0
    for each in found.batches:
        assert each.samples == samples
        assert each.sequences == max(size for begin, size in thresholds if begin <= each.tokens)
        last = found.tokens_before(each.end - 1)
        assert each.sequences == max(size for begin, size in thresholds if begin <= last)
        samples += (each.end - each.step) * each.sequences
