"""Model FLOPs by their conventions, and step times from whatever a source states."""

from dataclasses import replace

import pytest

from case import PublishedCase
from flops import active_parameters, step_flops
from fourfold.config import ModelConfig
from normalise import normalise
from tests.support.published import CASES, ROWS


def test_hardware_flops_are_equation_3_of_narayanan() -> None:
    model = CASES["papers:0"].model
    batch, s, layers, h, v = 1536, 2048, 48, 8192, 51200
    expected = 96 * batch * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert step_flops(model, s, batch, "hardware", "full") == pytest.approx(expected, rel=1e-12)


def test_their_table_1_in_seconds() -> None:
    assert CASES["papers:0"].measured.step_seconds == pytest.approx(14.453, abs=1e-3)
    assert CASES["papers:0"].measured.step_from == "flops"


def test_full_and_causal_differ_by_half_of_attention() -> None:
    model, s = CASES["sweep:0"].model, 4096
    full, causal = (step_flops(model, s, 1, convention) for convention in ("full", "causal"))
    assert full - causal == 3 * 2 * model.num_layers * model.num_heads * model.head_dim * s * s
    assert causal == pytest.approx(6 * active_parameters(model) * s + (full - causal))


def test_6nd_counts_parameters_alone() -> None:
    untied = replace(CASES["papers:0"].model, tie_embeddings=False)
    assert step_flops(untied, 2048, 3, "6nd") == 6 * 2048 * 3 * (12 * 48 * 8192**2 + 2 * 51200 * 8192)


def test_deepseek_v3_has_37_billion_active_parameters() -> None:
    model = replace(CASES["vendor:0"].model, mtp_layers=0)
    total = active_parameters(model) + model.vocab_size * model.hidden_size
    assert total == pytest.approx(37.5e9, rel=0.01)


def test_mixtral_has_13_billion_active_parameters() -> None:
    model = ModelConfig(32, 4096, 32, 8, 128, 14336, 32000, num_experts=8, top_k=2, moe_ffn_size=14336)
    assert active_parameters(model) + 32000 * 4096 == pytest.approx(12.9e9, rel=0.01)


@pytest.mark.parametrize(
    ("source", "remark", "convention"),
    [
        ("Megatron-LM of 2024", "Megatron's log", "full"),
        ("Megatron-LM of 2026", "Megatron's log", "causal"),
        ("Megatron-LM of 2026", "Megatron's, whole attention matrix counted (not causal half)", "full"),
        ("Megatron-DeepSpeed of 2025", "Megatron's log", "full"),
        ("a trainer of 2024", "6 x weights and half of the attention matrix", "causal"),
    ],
)
def test_megatron_counts_half_of_the_attention_matrix_since_2025(source: str, remark: str, convention: str) -> None:
    row = replace(ROWS["papers:1"], source=source, framework="", notes="", flops_convention=remark)
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert case.measured.mfu_convention == convention


@pytest.mark.parametrize(("name", "convention"), [("papers:1", "full"), ("papers:2", "causal"), ("papers:3", "6nd")])
def test_mfu_goes_by_the_rows_own_convention(name: str, convention: str) -> None:
    case = CASES[name]
    flops = step_flops(case.model, 2048, 1536, convention)
    assert case.measured.step_from == "mfu"
    assert case.measured.mfu_convention == convention
    assert case.measured.step_seconds == pytest.approx(flops / (0.4 * 312e12 * 512))


def test_a_stated_time_is_never_replaced() -> None:
    assert (CASES["sweep:0"].measured.step_seconds, CASES["sweep:0"].measured.step_from) == (4.0, "stated")
    assert (CASES["papers:9"].measured.step_seconds, CASES["papers:9"].measured.step_from) == (14.5, "stated")


def test_times_from_rates() -> None:
    assert CASES["sweep:2"].measured.step_seconds == 256 * 4096 / (8192 * 16)
    assert CASES["papers:5"].measured.step_seconds == 1536 / (0.25 * 64)
    assert CASES["papers:6"].measured.step_seconds == 1536 / 100
    assert CASES["papers:4"].measured.step_seconds == pytest.approx(84 * 86400 * 1536 * 2048 / 300e9)
    assert [CASES[n].measured.step_from for n in ("sweep:2", "papers:5", "papers:4")] == ["tokens", "samples", "days"]


def test_a_rate_in_integers_is_no_contradiction() -> None:
    assert not any("by samples" in text for text in CASES["papers:16"].defaults), "2 samples/s, of 2.56"


def test_memory_and_what_it_counts() -> None:
    kinds = {name: (c.measured.memory_bytes, c.measured.memory_kind) for name, c in CASES.items()}
    assert kinds["sweep:0"] == (20 * 2**30, "allocated"), "nanotron's GB are GiB"
    assert kinds["papers:5"] == (40 * 2**30, "unstated"), "so are those of Megatron's forks"
    other = normalise(replace(ROWS["papers:5"], source="a trainer by FSDP, 2024"))
    assert isinstance(other, PublishedCase)
    assert other.measured.memory_bytes == 40e9
    assert kinds["papers:23"] == (60 * 2**30, "allocated")
    assert kinds["flags:0"] == (2.5e9, "allocated")
    assert CASES["flags:0"].measured.last_rank_alone


def test_failures_and_regression_tests_have_no_time_to_compare() -> None:
    assert CASES["sweep:4"].measured.failed
    assert CASES["vendor:12"].measured.failed
    assert CASES["sweep:4"].measured.step_seconds is None
    assert not CASES["flags:0"].measured.time_counts
