"""Rotary frequencies and the factors of cosines are transformers' to the bit, for every kind of scaling and length of sequence;
temperatures of queries are their formula."""

from itertools import product
from math import log
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fourfold.config.model_config import LongRopeScaling, RopeScaling, YarnScaling
from fourfold.model.rope import Rope, Temperature
from fourfold.model.rope_tables import rope_frequencies, rope_tables

ORIGINAL, LONGEST = 4096, 4096 * 16
WIDTHS, BASES, FACTORS = (6, 96), (1e4, 5e5), (2.7, 8.0, 40.0)
LENGTHS = (10, ORIGINAL, ORIGINAL + 1, LONGEST, LONGEST + 1)


def theirs(width: int, theta: float, length: int, kind: str, **keys: Any) -> tuple[torch.Tensor, float]:
    """By transformers: frequencies and the factor of cosines and sines."""
    parameters = {"rope_theta": theta, "rope_type": kind, "original_max_position_embeddings": ORIGINAL, **keys}
    config = LlamaConfig(
        hidden_size=2 * width, num_attention_heads=2, head_dim=width, max_position_embeddings=LONGEST, rope_parameters=parameters
    )  # fmt: skip
    longer = (
        kind != "dynamic"
    )  # whose first frequencies hold until a sequence is longer than the model's, which no run has
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, seq_len=torch.tensor(length) if longer else None)
    return frequencies, float(scale)


def same(rope: Rope, length: int, expected: tuple[torch.Tensor, float]) -> bool:
    return torch.equal(rope_frequencies(rope, length), expected[0]) and rope.table_scale == expected[1]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "longrope"])
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    for width, theta, factor, length in product(WIDTHS, BASES, FACTORS, LENGTHS):
        keys: dict[str, Any] = {"factor": factor}
        rope = Rope(width, theta)
        if kind == "linear":
            rope = Rope(width, theta, divisor=factor)
        elif kind == "llama3":
            keys.update(low_freq_factor=1.0, high_freq_factor=4.0)
            rope = Rope(width, theta, RopeScaling(**keys, original_max_position=ORIGINAL))
        elif kind == "yarn":
            rope = Rope(width, theta, YarnScaling(**keys, original_max_position=ORIGINAL))
        elif kind == "longrope":
            keys["short_factor"] = tuple(1 + 0.37 * n for n in range(width // 2))
            keys["long_factor"] = tuple(2 + 1.7 * n for n in range(width // 2))
            rope = Rope(width, theta, LongRopeScaling(**keys, original_max_position=ORIGINAL))
            keys.update({key: [*keys[key]] for key in ("short_factor", "long_factor")})
        assert same(rope, length, theirs(width, theta, length, kind, **keys)), (width, theta, factor, length)


@pytest.mark.parametrize(
    "stated",
    [{"attention_factor": 0.7}, {"mscale": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.3}, {"beta_fast": 1.0, "beta_slow": 1.0},
     {"beta_fast": 4.0, "beta_slow": 2.0}, {"attention_factor": 1.3, "mscale": 0.5, "mscale_all_dim": 0.5}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("factor", [1.0, 3.0, 40.0])
def test_what_yarn_states_counts_as_in_transformers(stated: dict[str, float], factor: float) -> None:
    rope = Rope(64, 5e4, YarnScaling(factor=factor, original_max_position=ORIGINAL, **stated))
    assert same(rope, 10, theirs(64, 5e4, 10, "yarn", factor=factor, **stated))


@pytest.mark.parametrize(("factor", "stated"), [(0.5, None), (1.0, None), (32.0, None), (32.0, 1.25)])
def test_longropes_factor_of_cosines(factor: float, stated: float | None) -> None:
    lists = {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    scaling = LongRopeScaling(**lists, factor=factor, attention_factor=stated, original_max_position=ORIGINAL)
    expected = theirs(4, 1e4, 10, "longrope", factor=factor, attention_factor=stated, **lists)
    assert same(Rope(4, 1e4, scaling), 10, expected)


def test_a_run_takes_factors_by_the_length_of_its_sequences() -> None:
    """All positions alike: the first tokens of a long sequence turn as its last ones do, as in transformers."""
    scaling = LongRopeScaling(short_factor=(1.0, 2.0), long_factor=(4.0, 8.0), original_max_position=16, factor=4.0)
    cos = [rope_tables(Rope(4, 1e4, scaling), length, torch.float64, torch.device("cpu"))[0] for length in (8, 16, 17)]
    assert torch.equal(cos[0], cos[1][:8])
    assert not torch.allclose(cos[1][1:], cos[2][1:16])


@pytest.mark.parametrize("factor", FACTORS)
def test_llama3_may_leave_out_the_blend(factor: float) -> None:
    keys = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    rope = Rope(96, 5e5, RopeScaling(**keys, original_max_position=ORIGINAL))
    assert same(rope, 10, theirs(96, 5e5, 10, "llama3", **keys))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_temperatures_grow_by_steps_and_are_kept_in_two_numbers(dtype: torch.dtype) -> None:
    rounded, rest = rope_tables(Temperature(0.3, 4), 30, dtype, torch.device("cpu"))
    assert rounded.dtype == rest.dtype == dtype
    factors = (rounded.double() + rest.double()).flatten().tolist()
    precision = 2e-5 if dtype == torch.bfloat16 else 1e-7
    assert factors == pytest.approx([1 + 0.3 * log(1 + (p + 1) // 4) for p in range(30)], rel=precision)
    assert factors[:3] == [1.0] * 3 < factors[3:6]
