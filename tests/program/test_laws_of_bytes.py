"""Bytes that a step moves and keeps, against closed forms: ring collectives, ZeRO's arithmetic, the worked figures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import DTYPE_BYTES, ModelSection, resolve_model
from fourfold.model.spec import num_parameters, step_flops_per_token
from fourfold.program import Lowering, Op, lower_evaluation, lower_step, memory_peak, sent_bytes
from fourfold.program.liveness import ledger
from tests.support.programs import make_facts, positions
from tests.support.strategies import lowerings

SOME = settings(max_examples=150, deadline=None)


def _gradient_bytes(facts: Lowering) -> int:
    return sum(flat.padded_numel for flat in facts.flats.values()) * DTYPE_BYTES[facts.gradients]


def _parameter_bytes(facts: Lowering) -> int:
    return sum(flat.padded_numel for flat in facts.flats.values()) * DTYPE_BYTES[facts.compute]


def _scalars(facts: Lowering) -> dict[str, int]:
    """The count of targets and the loss over all data ranks, and from ZeRO-1 on the norm over the shards: 8 bytes each."""
    result: dict[str, int] = {}
    if facts.data_axes:
        degree = facts.layout.data_degree
        result["+".join(facts.data_axes)] = 2 * (2 * (degree - 1) * 8 // degree)
    if facts.zero:
        shards = facts.layout.dp_shard
        result["dp_shard"] = result.get("dp_shard", 0) + 2 * (shards - 1) * 8 // shards
    return result


def _bulk(facts: Lowering) -> dict[str, int]:
    """The ledger of a step without its scalars, by axes, zeros left out."""
    totals, scalars = ledger(lower_step(facts)), _scalars(facts)
    assert set(scalars) <= set(totals)
    return {axes: size - scalars.get(axes, 0) for axes, size in totals.items() if size != scalars.get(axes, 0)}


# Communication


@SOME
@given(lowerings())
def test_reductions_move_what_their_rings_move(facts: Lowering) -> None:
    """ZeRO-0: 2(N-1)/N of the gradients over all data ranks. ZeRO-1: (S-1)/S of them over the shards, ZeRO-2 and 3 once a
    microbatch; HSDP adds 2(R-1)/R of a shard's gradients over the replicas, once a step."""
    layout, gradients = facts.layout, _gradient_bytes(facts)
    moved: dict[str, int] = {}
    for step in lower_step(facts).instructions:
        for c in step.collectives if step.op is Op.REDUCE else ():
            moved[c.axes] = moved.get(c.axes, 0) + c.sent_bytes
    expected: dict[str, int] = {}
    if facts.zero == 0 and facts.data_axes:
        degree = layout.data_degree
        expected["+".join(facts.data_axes)] = 2 * (degree - 1) * gradients // degree
    elif facts.zero:
        times = layout.num_microbatches if facts.zero >= 2 else 1
        expected["dp_shard"] = times * (layout.dp_shard - 1) * gradients // layout.dp_shard
        if layout.dp_replicate > 1:
            shard = gradients // layout.dp_shard
            expected["dp_replicate"] = 2 * (layout.dp_replicate - 1) * shard // layout.dp_replicate
    assert moved == expected


@SOME
@given(lowerings())
def test_all_a_step_sends_is_reductions_gathers_and_scalars(facts: Lowering) -> None:
    program, expected = lower_step(facts), _scalars(facts)
    for step in program.instructions:
        for c in step.collectives if step.op in (Op.REDUCE, Op.GATHER, Op.PUBLISH) else ():
            expected[c.axes] = expected.get(c.axes, 0) + c.sent_bytes
    assert ledger(program) == expected


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_under_each_zero_stage(ranks: int, microbatches: int, tied: bool) -> None:
    """ZeRO-0 and 1 send 2(N-1)/N of the model a step, however many microbatches; ZeRO-2 a reduce-scatter more for each
    further microbatch; ZeRO-3 (no prefetch) gathers every block for forward and again for backward of each microbatch, the
    embedding for forward only, the head once, a tied embedding for both."""
    total = {
        zero: _bulk(
            make_facts({"tie_embeddings": tied}, dp_shard=ranks, zero=zero, accumulation=microbatches, prefetch=0)
        )
        for zero in range(4)
    }
    facts = make_facts({"tie_embeddings": tied}, dp_shard=ranks, zero=3, accumulation=microbatches)
    size = {name: flat.padded_numel * 4 for name, flat in facts.flats.items()}
    model = sum(size.values())
    part = (ranks - 1) * model // ranks
    gathered = 2 * (size["b0"] + size["b1"]) + size["embed"] * (2 if tied else 1) + size["head"]
    assert total[0] == {"dp_shard": 2 * part}
    assert total[1] == {"dp_shard": 2 * part}
    assert total[2] == {"dp_shard": (microbatches + 1) * part}
    assert total[3] == {"dp_shard": microbatches * ((ranks - 1) * gathered // ranks + part)}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_add_a_ring_over_the_shard_alone(zero: int) -> None:
    one = _bulk(make_facts(dp_shard=4, zero=zero, accumulation=2))
    facts = make_facts(dp_replicate=3, dp_shard=4, zero=zero, accumulation=2)
    # The padding follows the number of data ranks, so the shards' own bytes are compared per padded element.
    scale = sum(f.padded_numel for f in facts.flats.values()) / sum(
        f.padded_numel for f in make_facts(dp_shard=4).flats.values()
    )
    both = _bulk(facts)
    assert both["dp_replicate"] == 2 * 2 * (_gradient_bytes(facts) // 4) // 3
    assert both["dp_shard"] == pytest.approx(one["dp_shard"] * scale, rel=0.05)
    assert both.keys() == {"dp_replicate", "dp_shard"}


@SOME
@given(st.integers(1, 512), st.integers(0, 2**40))
def test_ring_bytes(ranks: int, unit: int) -> None:
    """2(N-1)/N x M for an all-reduce (Patarasuk & Yuan 2009), half of that for each of its halves."""
    size = unit * ranks
    assert sent_bytes("all_reduce", size, ranks) * ranks == 2 * (ranks - 1) * size
    halves = sent_bytes("reduce_scatter", size, ranks) + sent_bytes("all_gather", size, ranks)
    assert halves == sent_bytes("all_reduce", size, ranks)
    assert sent_bytes("all_to_all", size, ranks) == sent_bytes("all_gather", size, ranks)
    assert (sent_bytes("send", size, 2), sent_bytes("recv", size, 2)) == (size, 0)


def test_a_ring_all_reduce_of_a_gigabyte_on_8_ranks() -> None:
    assert sent_bytes("all_reduce", 10**9, 8) == 1_750_000_000


def test_one_rank_sends_nothing() -> None:
    for zero in range(4):
        assert ledger(lower_step(make_facts(zero=zero, accumulation=3))) == {}


@SOME
@given(lowerings())
def test_an_evaluation_sends_gathers_and_scalars_only(facts: Lowering) -> None:
    program = lower_evaluation(facts)
    expected: dict[str, int] = {}
    if facts.data_axes:
        degree = facts.layout.data_degree
        expected["+".join(facts.data_axes)] = 2 * (2 * (degree - 1) * 8 // degree)
    for index in positions(program, Op.GATHER):
        (c,) = program.instructions[index].collectives
        assert facts.zero == 3
        expected[c.axes] = expected.get(c.axes, 0) + c.sent_bytes
    assert ledger(program) == expected


# Memory


def _resident_bytes(facts: Lowering) -> int:
    program = lower_step(facts)
    return sum(program.buffers[name] for name in program.resident)


def _state_at_update(facts: Lowering) -> int:
    """Bytes of parameters, gradients and optimizer state when the gradient norm is taken: everything that is live then."""
    program = lower_step(facts)
    live = set(program.resident)
    for step in program.instructions:
        if step.op is Op.CLIP_NORM:
            break
        live = (live | set(step.writes)) - set(step.frees)
    kinds = ("params", "shard", "master", "moments", "grad", "grad_shard")
    return sum(program.buffers[name] for name in live if name.partition("/")[0] in kinds)


@SOME
@given(lowerings())
def test_each_zero_stage_keeps_no_more_than_the_one_before(facts: Lowering) -> None:
    stages = [replace(facts, layout=replace(facts.layout, zero=zero)) for zero in range(4)]
    resident = [_resident_bytes(stage) for stage in stages]
    state = [_state_at_update(stage) for stage in stages]
    assert resident == sorted(resident, reverse=True)
    assert state == sorted(state, reverse=True)
    if facts.layout.dp_shard > 1:
        assert resident[0] > resident[1] == resident[2] > resident[3]
        assert state[0] > state[1] > state[2] > state[3]
    else:
        assert len(set(resident)) == len(set(state)) == 1


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_arithmetic_of_the_zero_paper(ranks: int) -> None:
    """Rajbhandari et al. 2020, figure 1: of 2 + 2 + K bytes a parameter (bf16 weights, bf16 gradients, K = 12 for the fp32
    copy and two moments), stage 1 divides K by the ranks, stage 2 the gradients too, stage 3 all."""
    model = resolve_model(ModelSection(preset="llama3-8b"))
    parameters = num_parameters(model)
    expected = [2 + 2 + 12, 2 + 2 + 12 / ranks, 2 + (2 + 12) / ranks, 16 / ranks]
    for zero, per_parameter in enumerate(expected):
        facts = make_facts(
            model, dp_shard=ranks, zero=zero, sequence_length=512, precision={"compute": "bf16", "gradients": "bf16"}
        )
        assert _state_at_update(facts) / parameters == pytest.approx(per_parameter, rel=1e-3)


def test_gradients_accumulated_in_fp32_cost_two_bytes_more() -> None:
    """What the run file gives by default: 2 (bf16 weights) + 4 (fp32 gradients) + 4 (fp32 weights) + 8 (fp32 moments)."""
    model = resolve_model(ModelSection(preset="llama3-8b"))
    facts = make_facts(model, sequence_length=512, precision={"compute": "bf16"})
    assert _state_at_update(facts) / num_parameters(model) == pytest.approx(18, rel=1e-3)
    facts = make_facts(model, sequence_length=512, precision={"compute": "fp32"})
    assert _state_at_update(facts) / num_parameters(model) == pytest.approx(16, rel=1e-3)


def test_the_405b_model_on_1024_ranks() -> None:
    """12 bytes a parameter (bf16 weights and gradients, fp32 moments): 4.87 TB in all, 4.75 GB a rank within half a
    percent; with the fp32 copy 16 bytes, 6.5 TB."""
    model = resolve_model(ModelSection(preset="llama3-405b"))
    facts = make_facts(
        model, dp_shard=1024, zero=3, sequence_length=8192, recompute="full",
        precision={"compute": "bf16", "gradients": "bf16"},
    )  # fmt: skip
    program = lower_step(facts)
    by_kind = {
        kind: sum(size for name, size in program.buffers.items() if name.startswith(f"{kind}/"))
        for kind in ("shard", "grad_shard", "moments", "master")
    }
    twelve = by_kind["shard"] + by_kind["grad_shard"] + by_kind["moments"]
    assert twelve == pytest.approx(4.75e9, rel=5e-3)
    assert twelve * 1024 == pytest.approx(405.85e9 * 12, rel=1e-3)
    assert (twelve + by_kind["master"]) * 1024 == pytest.approx(405.85e9 * 16, rel=1e-3)
    assert memory_peak(program).bytes > twelve + by_kind["master"]


def test_state_is_split_evenly_to_the_last_padding() -> None:
    """Doubling the shards halves each rank's resident state but for padding of at most 16 elements a rank and unit."""
    model = resolve_model(ModelSection(preset="llama3.2-1b"))
    sizes = {}
    for ranks in (8, 16, 32):
        program = lower_step(make_facts(model, dp_shard=ranks, zero=3, sequence_length=128))
        sizes[ranks] = sum(program.buffers[n] for n in program.resident if n != "rope")
    assert sizes[8] == pytest.approx(2 * sizes[16], rel=1e-4)
    assert sizes[8] == pytest.approx(4 * sizes[32], rel=1e-4)


# Arithmetic


@pytest.mark.parametrize("preset", ["llama3-405b", "llama3-70b", "llama2-7b"])
def test_a_step_takes_six_flops_a_parameter_and_token(preset: str) -> None:
    """6 N D (Kaplan et al. 2020) within 1 %, at a short sequence, N without the embedding table, which is only looked up."""
    model = resolve_model(ModelSection(preset=preset))
    matrices = num_parameters(model) - model.vocab_size * model.hidden_size
    assert step_flops_per_token(model, 128) == pytest.approx(6 * matrices, rel=0.01)


def test_training_the_405b_model_on_15_trillion_tokens() -> None:
    """6 x 405e9 x 15e12 = 3.645e25 FLOPs: 1,168 years at 989 TFLOP/s, 17.4 days on 24,576 devices at 100 %, 43 at 40 %."""
    model = resolve_model(ModelSection(preset="llama3-405b"))
    flops = step_flops_per_token(model, 128) * 15e12
    assert flops == pytest.approx(3.645e25, rel=0.01)
    seconds = flops / 989e12
    assert seconds / (365.25 * 86400) == pytest.approx(1168, rel=0.01)
    assert seconds / 24576 / 86400 == pytest.approx(17.4, rel=0.01)
    assert seconds / 24576 / 86400 / 0.4 == pytest.approx(43.4, rel=0.01)


@SOME
@given(lowerings())
def test_a_program_does_the_useful_arithmetic_and_what_it_recomputes(facts: Lowering) -> None:
    """Without recompute: 6 per parameter of a matrix product and token, the head's forward among them, and attention's
    forward and 2.5-fold backward (flash attention, Dao et al. 2022, computes the scores again)."""
    model, layout = facts.model, facts.layout
    tokens = layout.microbatch_sequences * layout.sequence_length * layout.num_microbatches
    products = sum(p.numel for s in facts.segments for p in s.parameters if len(p.shape) == 2) - facts.segments[0].numel
    if model.tie_embeddings:
        products += facts.segments[0].numel
    attention = 2 * layout.sequence_length * model.num_heads * model.head_dim * model.num_layers
    forward = 2 * (products - model.vocab_size * model.hidden_size) // model.num_layers + attention // model.num_layers
    recomputed = sum(policy == "full" for policy in layout.recompute) * forward
    total = sum(step.flops for step in lower_step(facts).instructions)
    assert total == pytest.approx(tokens * (6 * products + 3.5 * attention + recomputed), abs=tokens * model.num_layers)
