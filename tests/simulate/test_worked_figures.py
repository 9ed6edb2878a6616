"""Figures that papers and textbooks work out by hand, out of the code."""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from flops import step_flops
from fourfold.config import ModelConfig, load_run
from fourfold.cost.memory import DROPOUT_BYTES
from fourfold.hardware import load_cluster, load_device
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import resolve_run
from fourfold.model.counts import step_flops_per_token
from fourfold.model.work import Gemm
from fourfold.program import StepSpec, rank_view, sent_bytes
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.schedule import StageTimes, schedule_orders, stage_ranks
from fourfold.program.timeline import timeline
from fourfold.simulate.campaign import Assumptions, campaign
from fourfold.simulate.prediction import predict_step
from fourfold.simulate.run_prices import prices_for, transport_on
from fourfold.simulate.step import simulate
from fourfold.simulate.summary import StepSummary
from tests.support.programs import make_spec
from tests.support.simulated import free_prices, one_block_a_stage, unit_blocks

YEAR = 365.25 * 86_400
DAY = 86_400


def preset(name: str, *overrides: str) -> StepSpec:
    return resolve_run(load_run(Path(f"preset:{name}"), overrides), None, None, "native").spec


def summary(name: str, cluster: str, *overrides: str, software: str | None = None) -> StepSummary:
    """The step that `fourfold simulate preset:NAME --cluster CLUSTER --software SOFTWARE` finds."""
    machine = load_cluster(cluster)
    run = resolve_run(load_run(Path(f"preset:{name}"), overrides), None, None, transport_on(machine))
    step = predict_step(run.spec, prices_for(run.config, run.spec, machine, software))
    return StepSummary(step, run.layout.num_microbatches)


# Bytes of state


def bytes_a_parameter(*kinds: str, precision: dict, **layout: int) -> float:
    """Bytes of one rank's buffers of these kinds / parameters of the full model."""
    model = resolve_model(load_run(Path("preset:llama3-405b-16k")).model)
    spec = make_spec(model, precision=precision, **layout)
    view = rank_view(spec)
    held = sum(buffer_bytes(view, f"{kind}/{unit}") for unit in view.flats for kind in kinds)
    return held / sum(segment.numel for segment in spec.segments)


def test_state_of_405e9_parameters() -> None:
    """Weights and AdamW states in fp32: 12 bytes, 4.86 TB. With bf16 weights and gradients and an fp32 master copy: 16, 6.48 TB."""
    assert 405e9 * bytes_a_parameter("params", "optimizer", precision={"compute": "fp32"}) == pytest.approx(4.86e12)
    mixed = {"compute": "bf16", "gradients": "bf16"}
    sixteen = bytes_a_parameter("params", "grad", "master", "optimizer", precision=mixed)
    assert 405e9 * sixteen == pytest.approx(6.48e12)


def test_what_a_checkpoint_holds() -> None:
    """12 bytes a parameter; of a model with 7e9, 84 GB."""
    spec = preset("llama3-405b-16k")
    numel = sum(segment.numel for segment in spec.segments)
    assert numel == pytest.approx(405e9, rel=0.003)
    assert spec.checkpoint_bytes == 12 * numel
    assert 7e9 * spec.checkpoint_bytes / numel == 84e9


def test_zero_3_on_1024_ranks() -> None:
    share = bytes_a_parameter("shard", "optimizer", precision={"compute": "fp32"}, dp_shard=1024, zero=3)
    assert 405e9 * share == pytest.approx(4.75e9, rel=0.002)


# Arithmetic


def test_6nd_of_405e9_parameters_and_15e12_tokens() -> None:
    flops, peak = 6 * 405e9 * 15e12, load_device("h100-sxm").peak("bf16")
    assert flops == pytest.approx(3.645e25)
    assert flops / peak / YEAR == pytest.approx(1168, rel=0.001)

    def days(mfu: float) -> float:
        step_seconds = 6 * 405e9 * 16e6 / (24_576 * peak * mfu)
        return campaign(15 * 10**12, 16 * 10**6, step_seconds, 24_576, 8, Assumptions(None, 1.0)).training_seconds / DAY

    assert days(1.0) == pytest.approx(17.4, abs=0.05)
    assert days(0.4) == pytest.approx(43.4, abs=0.1)


def test_6nd_is_what_our_own_count_comes_to() -> None:
    """But for the embedding, which is looked up, and attention's own products, 4 % at 8,192 tokens."""
    model = resolve_model(load_run(Path("preset:llama3-405b-16k")).model)
    assert step_flops(model, 8192, 1, "6nd") / 8192 == pytest.approx(6 * 405.9e9, rel=0.001)
    assert step_flops_per_token(model, 8192) == pytest.approx(6 * 405.9e9, rel=0.04)


def test_intensity_of_a_matmul_and_the_ridge() -> None:
    """4096 x 4096 x 4096 in bf16: 1365 FLOP a byte where the result is written too, 2048 where only operands are read. An H100
    needs 295 to be bound by arithmetic."""
    n, element = 4096, 2
    gemm = Gemm(n, n, n)
    assert gemm.flops / (3 * n * n * element) == pytest.approx(1365, abs=0.5)
    assert gemm.flops / (2 * n * n * element) == 2048
    device = load_device("h100-sxm")
    assert device.peak("bf16") / device.memory_bytes_per_second == pytest.approx(295, abs=0.5)


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_a_ring_all_reduce_sends_twice_the_buffer_but_one_part(ranks: int) -> None:
    size = 1024 * 3 * 7
    assert sent_bytes("all_reduce", size, ranks) == 2 * (ranks - 1) * size // ranks
    assert (
        sent_bytes("reduce_scatter", size, ranks)
        == sent_bytes("all_gather", size, ranks)
        == (ranks - 1) * size // ranks
    )


@pytest.mark.parametrize(
    ("ranks", "microbatches", "shown"), [(4, 8, "27.3"), (4, 32, "8.6"), (16, 8, "65.2"), (16, 64, "19.0")]
)
def test_bubbles(ranks: int, microbatches: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(P - 1) / (P - 1 + M) of the simulated step waits."""
    spec = one_block_a_stage("1f1b", ranks, 1, microbatches)
    unit_blocks(monkeypatch)
    makespan = simulate(spec, free_prices(spec)).times.makespan
    assert f"{1 - 3 * microbatches / makespan:.1%}" == f"{shown}%"


# Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"

FIGURE_1 = {
    # layers, hidden, heads, pp, virtual, microbatch: GiB of parameters and optimizer, of all activations, of those with sequence
    # parallelism and selective recomputation (8 rows)
    "22B": (48, 6144, 64, 1, 1, 4, 45.5625, 59.25, 9.5625),
    "175B": (96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3515625),
    "530B": (105, 20480, 128, 35, 3, 1, 31.640625, 114.0234375, 23.076171875),
    "1T": (128, 25600, 160, 64, 1, 1, 32.958984375, 131.25, 26.5625),
}
TP, SEQUENCE, GIB = 8, 2048, 2**30


def gpt(layers: int, hidden: int, heads: int) -> ModelConfig:
    plain = ModelConfig(layers, hidden, heads, heads, hidden // heads, 4 * hidden, 51200)
    return replace(
        plain, family="gpt2", norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
        positions="learned", max_position=SEQUENCE,
    )  # fmt: skip


def block_spec(name: str, sequence_parallel: bool) -> StepSpec:
    """The step of one block with tp 8, as a rank of the full model has it."""
    _, hidden, heads, _, _, sequences, *_ = FIGURE_1[name]
    return make_spec(
        gpt(1, hidden, heads), tp=TP, sequence_parallel=sequence_parallel, microbatch_sequences=sequences,
        sequence_length=SEQUENCE, precision={"compute": "bf16"}, transport="native",
    )  # fmt: skip


def in_flight(name: str) -> float:
    """Blocks whose activations the first pipeline rank holds at once, by our schedules: L; interleaved L (1 + (p - 1)/(p m))."""
    layers, _, _, pp, virtual, *_ = FIGURE_1[name]
    schedule = "1f1b" if virtual == 1 else "interleaved_1f1b"
    orders = schedule_orders(schedule, pp, virtual, 8 * pp)
    drawn = timeline(orders, stage_ranks(schedule, pp, virtual), StageTimes.uniform(pp * virtual))
    return drawn.peak_activations[0] * layers / (pp * virtual)


def kept_a_block(spec: StepSpec) -> int:
    """By our own footprints: what a block saves, and its input."""
    block = spec.segments[1]
    return rank_view(spec).footprint(block).saved_bytes + rank_view(spec).footprint(block).output_bytes


@pytest.mark.parametrize("name", FIGURE_1)
def test_parameters_and_optimizer_of_the_paper(name: str) -> None:
    """18 bytes a parameter of the blocks' matrices: bf16 weights, fp32 gradients, master weights and optimizer states."""
    layers, _, _, pp, *_ = FIGURE_1[name]
    spec = block_spec(name, True)
    held = sum(buffer_bytes(rank_view(spec), f"{kind}/b0") for kind in ("params", "grad", "master", "optimizer"))
    assert held / rank_view(spec).flats["b0"].padded_numel == 18
    assert held * layers / pp / GIB == pytest.approx(FIGURE_1[name][6], rel=0.01)


@pytest.mark.parametrize("selective", [False, True], ids=["tensor parallel", "sequence parallel, selective"])
@pytest.mark.parametrize("name", FIGURE_1)
def test_activations_of_the_paper(name: str, selective: bool) -> None:
    """Equations 2 and 4 with selective recomputation, out of our footprints and schedules.

    The paper's blocks have two dropouts whose masks are kept, a byte an element (2sbh), and write the matrix of scores (5 a s^2 b
    over t, rebuilt by its selective recomputation). Ours have neither: fused attention keeps one number a row instead. These terms
    added, ours are the paper's.
    """
    _, hidden, heads, _, _, sequences, _, full, least = FIGURE_1[name]
    spec = block_spec(name, selective)
    sbh = SEQUENCE * sequences * hidden
    masks = 2 * sbh // (TP if selective else 1)
    scores = 0 if selective else (2 + DROPOUT_BYTES) * heads // TP * SEQUENCE**2 * sequences
    ours = (kept_a_block(spec) + masks + scores) * in_flight(name) / GIB
    assert ours == pytest.approx(least if selective else full, rel=0.01)

    t, a, s = TP, heads, SEQUENCE
    paper = sbh * (34 / t if selective else 10 + 24 / t + 5 * a * s / (hidden * t)) * in_flight(name) / GIB
    assert paper == pytest.approx(least if selective else full, rel=1e-6)


@pytest.mark.parametrize("name", FIGURE_1)
def test_our_own_blocks_keep_32_sbh_over_t(name: str) -> None:
    """34sbh/t less the two masks; with our selective recomputation, which rebuilds norms and the activation, 20sbh/t."""
    _, hidden, _, _, _, sequences, *_ = FIGURE_1[name]
    sbh = SEQUENCE * sequences * hidden
    spec = block_spec(name, True)
    assert kept_a_block(spec) == pytest.approx(32 * sbh / TP, rel=0.003)
    layout = replace(spec.layout, recompute=("none", "selective", "none"))
    assert kept_a_block(replace(spec, layout=layout)) == pytest.approx(20 * sbh / TP, rel=0.003)


# Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(24, 2304, 24), (96, 12288, 96), (128, 25600, 160)])
def test_equation_3(layers: int, hidden: int, heads: int) -> None:
    """F = 96 B s l h^2 (1 + s/6h + V/16lh), all blocks recomputed."""
    B, s, V = 512, SEQUENCE, 51200
    paper = 96 * B * s * layers * hidden**2 * (1 + s / (6 * hidden) + V / (16 * layers * hidden))
    assert step_flops(gpt(layers, hidden, heads), s, B, "hardware", "full") == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize(
    ("parameters", "tokens", "devices", "rate", "days"),
    [(175e9, 300e9, 1024, 140e12, 34), (1e12, 450e9, 3072, 163e12, 84)],
)
def test_equation_4(parameters: float, tokens: float, devices: int, rate: float, days: float) -> None:
    """Some 8TP / nX of training."""
    step = 8 * 1e6 * parameters / (devices * rate)
    run = campaign(int(tokens), 10**6, step, devices, 8, Assumptions(None, 1.0))
    assert run.training_seconds / DAY == pytest.approx(days, abs=1)


# Published campaigns, predicted from their shipped run files


@pytest.mark.parametrize(
    ("name", "published"), [("llama3-405b-8k", 430e12), ("llama3-405b-16k", 400e12), ("llama3-405b-128k", 380e12)]
)
def test_llama_3_table_4(name: str, published: float) -> None:
    """FLOP/s a device, with their software. Gradients are kept whole and reduced once a step (ZeRO-1), as the paper's are; ZeRO-2,
    which here reduces once a microbatch, is slower, and so is this project's own software, whose attention is the slower one."""
    shipped = summary(name, "h100-24576", software="meta-2024")
    each = summary(name, "h100-24576", "layout.zero=2", software="meta-2024")
    assert each.model_flops_per_second < shipped.model_flops_per_second
    assert shipped.model_flops_per_second == pytest.approx(published, rel=0.15)
    assert summary(name, "h100-24576").model_flops_per_second < shipped.model_flops_per_second


def test_deepseek_v3_s_hours() -> None:
    """2.664 M H800 hours for 14.8 T tokens (DeepSeek-AI 2024, table 1), within 15 %, with their software: products in fp8, a token
    sent once to each of at most four nodes, dispatch beside the other direction's computation. This project's own, in bf16 and
    without any of that, would take more than half as long again."""

    def hours(software: str | None) -> float:
        found = summary("deepseek-v3-2k", "h800-2048", software=software)
        run = campaign(14_800_000_000_000, found.tokens, found.seconds, found.devices, 8, Assumptions(None, 1.0))
        return run.training_device_hours

    theirs = hours("deepseek-2024")
    assert theirs == pytest.approx(2.664e6, rel=0.15)
    assert hours(None) > 1.5 * theirs


def test_a_rank_class_is_simulated_once() -> None:
    """24,576 devices cost what one replica costs: the programs are as many as pipeline ranks."""
    spec = preset("llama3-405b-128k-24k")
    found = simulate(spec, free_prices(spec))
    assert spec.layout.world_size == 24_576 == prod((16, 12, 16, 8))
    assert len(found.programs) == 16
