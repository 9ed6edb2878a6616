"""A bound is never above what the simulation of the layout's program says, and every layout that is enumerated can be."""

import random

import pytest

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.config.kernel_choice import KernelChoice
from fourfold.config.layout_section import LayoutSection
from fourfold.config.schema import PrecisionSection
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.bound import Bounder
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes
from fourfold.simulate.run_prices import SoftwareOverrides

DENSE = {"num_layers": 6, "hidden_size": 1024, "num_heads": 16, "num_kv_heads": 4, "ffn_size": 4096, "vocab_size": 8192}
EXPERTS = {"family": "qwen3_moe", "num_experts": 8, "top_k": 2, "moe_ffn_size": 1024, "head_dim": 64}
LARGE_BLOCKS = {"num_layers": 2, "hidden_size": 4096, "num_heads": 32, "ffn_size": 16384}
MLA = {
    "family": "deepseek_v3", "num_experts": 8, "top_k": 2, "moe_ffn_size": 1024, "num_shared_experts": 1, "first_dense_layers": 1,
    "num_kv_heads": 16, "router": "sigmoid", "query_rank": 256, "key_value_rank": 128, "nope_head_dim": 64,
    "rope_head_dim": 32, "value_head_dim": 64, "mtp_layers": 1,
}  # fmt: skip


OVERLAPPED = KernelChoice(
    tp_collectives="overlapped", ep_collectives="overlapped", dispatcher="hybridep", launches="graph"
)


def model(**more) -> ModelConfig:
    return resolve_model(ModelSection(**DENSE | more))


def request(devices: int, sequences: int = 32, software: str | None = None, **more) -> Request:
    own = {key: more.pop(key) for key in ("precision", "layout", "software_overrides", "optimizer") if key in more}
    return Request.of(model(**more), load_cluster(f"dgx-h100:{devices}"), 2048, sequences, software=software, **own)


def drawn(asked: Request, count: int, seed: int) -> list[tuple]:
    """Layouts with their bounds, drawn evenly from all shapes."""
    rng, bounder = random.Random(seed), Bounder(asked)
    shapes = list(block_shapes(asked))
    found = []
    while len(found) < count:
        bounds = bounder.bounds(rng.choice(shapes))
        if bounds is not None:
            index = rng.randrange(len(bounds))
            found.append((bounds.candidate(index), bounds.seconds[index], bounds.memory_bytes[index]))
    return found


@pytest.mark.parametrize("count", [8, pytest.param(60, marks=pytest.mark.rest)])
@pytest.mark.parametrize(
    ("devices", "more"),
    [
        (8, {}),
        (16, {}),
        (16, EXPERTS),
        (64, EXPERTS),
        (32, MLA),
        (32, MLA | {"software": "deepseek-2024"}),
        (16, {"software": "nemo-2025", "software_overrides": SoftwareOverrides(gemm_dtype="fp8")}),
        (16, EXPERTS | {"software": "megatron-2025", "software_overrides": SoftwareOverrides(gemm_dtype="fp8-block")}),
        (16, {"software": "torchtitan", "software_overrides": SoftwareOverrides(kernels=OVERLAPPED)}),
        (64, EXPERTS | {"software": "megatron-2025", "software_overrides": SoftwareOverrides(kernels=OVERLAPPED)}),
        (16, {"precision": PrecisionSection(compute="fp32")}),
        (16, {"precision": PrecisionSection(compute="fp64"), "layout": LayoutSection(prefetch=0)}),
        (16, {"precision": PrecisionSection(compute="bf16", gradients="bf16"), "layout": LayoutSection(prefetch=2)}),
    ],
    ids=[
        "8",
        "16",
        "16 experts",
        "64 experts",
        "32 latent",
        "32 latent, narrow states, hidden experts",
        "operands in 8 bits",
        "operands in 8 bits, experts",
        "overlapped collectives",
        "overlapped collectives, experts",
        "fp32",
        "fp64",
        "bf16 gradients",
    ],
)
def test_no_bound_is_above_the_simulation(devices: int, more: dict, count: int) -> None:
    asked = request(devices, 64, **more)
    refused = 0
    for candidate, seconds, memory_bytes in drawn(asked, count, seed=devices):
        try:
            step = Pricer(asked).predict(candidate)
        except UserError:
            refused += 1
            continue
        assert seconds <= step.seconds * 1.001, candidate.words()
        assert memory_bytes <= max(step.device_bytes) * 1.001, candidate.words()
    assert refused <= 3


@pytest.mark.parametrize(
    ("more", "shape", "around", "least_bytes", "least_seconds"),
    [
        ({}, {}, {"zero": 3, "dp_shard": 8}, 0.93, 0.9),
        ({}, {"microbatch_sequences": 4}, {"zero": 3, "dp_shard": 8}, 0.8, 0.95),
        (LARGE_BLOCKS, {"recompute": "full"}, {"zero": 3, "dp_shard": 8}, 0.68, 0.82),
        ({}, {"microbatch_sequences": 2}, {"pp": 4, "schedule": "1f1b", "zero": 1}, 0.78, 0.82),
        (
            {},
            {"microbatch_sequences": 4, "recompute": "selective"},
            {"pp": 2, "schedule": "1f1b", "zero": 1},
            0.92,
            0.85,
        ),
        (EXPERTS, {"microbatch_sequences": 2, "ep": 4}, {"pp": 2, "schedule": "1f1b", "zero": 1}, 0.92, 0.85),
    ],
    ids=["sharded", "large microbatches", "large blocks, recomputed", "pipeline", "selective", "experts"],
)
def test_bounds_are_near_the_simulation(
    more: dict, shape: dict, around: dict, least_bytes: float, least_seconds: float
) -> None:
    """Bounds that were far below it would leave the order of layouts to chance."""
    asked = request(8, 64, **more)
    wanted = {"tp": 1, "cp": 1, "ep": 1, "microbatch_sequences": 1, "recompute": "none"} | shape
    bounds = Bounder(asked).bounds(next(each for each in block_shapes(asked) if vars(each).items() >= wanted.items()))
    assert bounds is not None
    rows = bounds.where({"pp": 1, "dp_shard": 8 // around.get("pp", 1)} | around)
    step = Pricer(asked).predict(rows.candidate(0))
    assert rows.memory_bytes[0] >= least_bytes * max(step.device_bytes)
    assert rows.seconds[0] >= least_seconds * step.seconds


def test_bounds_are_the_same_whatever_was_bounded_before() -> None:
    asked = request(8, 16, **EXPERTS)
    shapes = [shape for shape in block_shapes(asked) if shape.tp == 2 and shape.recompute == "none"][::2]
    kept = Bounder(asked)
    assert {(shape.ep, shape.etp) for shape in shapes} > {(2, 1), (2, 2)}
    for shape in shapes:
        one, other = kept.bounds(shape), Bounder(asked).bounds(shape)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            layouts, alone = ([each.candidate(row) for row in range(len(each))] for each in (one, other))
            assert layouts == alone
            assert one.memory_bytes == pytest.approx(other.memory_bytes)
            assert one.seconds == pytest.approx(other.seconds)


def test_a_sharper_price_of_the_pipeline_stands_where_the_bounds_own_stood() -> None:
    asked = Request.of(model(), load_cluster("gcp-a3-mega:64"), 32, 64)
    found = 0
    for shape in list(block_shapes(asked))[::7]:
        bounds = Bounder(asked).bounds(shape)
        for index in range(0, len(bounds) if bounds is not None else 0, 5):
            parts, seconds = bounds.parts(index), float(bounds.seconds[index])
            assert parts.around(parts.compute) == pytest.approx(seconds)
            assert parts.around(2 * seconds) == pytest.approx(2 * seconds + parts.after)
            found += parts.beside > parts.compute
    assert found, "traffic that no computation hides"


def test_the_space_holds_what_papers_ran() -> None:
    """Llama 3 405B on 16,384 devices: tp 8, pp 16, dp 128 (Llama 3, table 4)."""
    asked = Request.of(resolve_model(ModelSection(preset="llama3-405b")), load_cluster("dgx-h100:16384"), 8192, 2048)
    shape = next(
        s for s in block_shapes(asked) if (s.tp, s.cp, s.microbatch_sequences, s.recompute) == (8, 1, 1, "none")
    )
    bounds = Bounder(asked).bounds(shape)
    assert bounds is not None
    rows = bounds.where({"pp": 16, "schedule": "interleaved_1f1b", "virtual_stages": 8, "zero": 1, "dp_shard": 128})
    assert len(rows) == 1
    assert rows.candidate(0).words() == (
        "tp 8 x pp 16 (interleaved_1f1b, VPP 8) x dp 128, ZeRO-1, microbatch 1, recompute none"
    )
