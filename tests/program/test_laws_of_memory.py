"""Bytes that a rank keeps, against closed forms: ZeRO's arithmetic, activations under pipelines and split layers."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from fourfold.config import ModelSection
from fourfold.huggingface import resolve_model
from fourfold.model.counts import num_parameters
from fourfold.program import Op, Program, StepSpec, lower_pipeline, lower_step, memory_peak, rank_view
from fourfold.program.capabilities import buffer_bytes
from tests.support.programs import make_spec, make_view
from tests.support.strategies import lowerings

SOME = settings(max_examples=60, deadline=None)


def _resident_bytes(spec: StepSpec, pp_rank: int = 0) -> int:
    program = lower_step(rank_view(spec, pp_rank))
    return sum(program.buffers[name] for name in program.resident)


def _state_at_update(spec: StepSpec, pp_rank: int = 0) -> int:
    """Bytes of parameters, gradients and optimizer state when the gradient norm is taken: everything that is live then."""
    program = lower_step(rank_view(spec, pp_rank))
    live = set(program.resident)
    for step in program.instructions:
        if step.op is Op.CLIP_NORM:
            break
        live = (live | set(step.writes)) - set(step.frees)
    kinds = ("params", "shard", "master", "optimizer", "grad", "grad_shard")
    return sum(program.buffers[name] for name in live if name.partition("/")[0] in kinds)


@SOME
@given(lowerings())
def test_each_zero_stage_keeps_no_more_than_the_one_before(spec: StepSpec) -> None:
    """On every pipeline rank. There is something to shard over where `dp_shard x cp` is more than one, for experts `edp`."""
    stages = [replace(spec, layout=replace(spec.layout, zero=zero)) for zero in range(4)]
    for pp_rank in range(spec.layout.pp):
        resident = [_resident_bytes(stage, pp_rank) for stage in stages]
        state = [_state_at_update(stage, pp_rank) for stage in stages]
        assert resident == sorted(resident, reverse=True)
        assert state == sorted(state, reverse=True)
        if spec.layout.dp_shard * spec.layout.cp > 1:
            assert resident[0] > resident[1] == resident[2] > resident[3]
            assert state[0] > state[1] > state[2] > state[3]
        elif spec.layout.edp == 1:
            assert len(set(resident)) == len(set(state)) == 1


@pytest.mark.parametrize(("dp_shard", "cp"), [(2, 1), (8, 1), (64, 1), (1, 8), (4, 4)])
def test_the_arithmetic_of_the_zero_paper(dp_shard: int, cp: int) -> None:
    """Rajbhandari et al. 2020, figure 1: a parameter takes 2 + 2 + K bytes (bf16 weights, bf16 gradients, K = 12 for the
    fp32 copy and two optimizer states). Stage 1 divides K by the ranks, stage 2 the gradients too, stage 3 all. Context-parallel
    ranks hold the same parameters and shard as the others do."""
    ranks = dp_shard * cp
    model = resolve_model(ModelSection(preset="llama3-8b"))
    parameters = num_parameters(model)
    expected = [2 + 2 + 12, 2 + 2 + 12 / ranks, 2 + (2 + 12) / ranks, 16 / ranks]
    for zero, per_parameter in enumerate(expected):
        spec = make_spec(
            model, dp_shard=dp_shard, cp=cp, zero=zero, sequence_length=512,
            precision={"compute": "bf16", "gradients": "bf16"},
        )  # fmt: skip
        assert _state_at_update(spec) / parameters == pytest.approx(per_parameter, rel=1e-3)


def test_gradients_accumulated_in_fp32_cost_two_bytes_more() -> None:
    """The run file's default formats: 2 (bf16 weights) + 4 (fp32 gradients) + 4 (fp32 weights) + 8 (fp32 optimizer states)."""
    model = resolve_model(ModelSection(preset="llama3-8b"))
    spec = make_spec(model, sequence_length=512, precision={"compute": "bf16"})
    assert _state_at_update(spec) / num_parameters(model) == pytest.approx(18, rel=1e-3)
    spec = make_spec(model, sequence_length=512, precision={"compute": "fp32"})
    assert _state_at_update(spec) / num_parameters(model) == pytest.approx(16, rel=1e-3)


def test_the_405b_model_on_1024_ranks() -> None:
    """12 bytes a parameter (bf16 weights and gradients, fp32 optimizer states): 4.87 TB in all, 4.75 GB a rank within half a
    percent; with the fp32 copy 16 bytes, 6.5 TB."""
    model = resolve_model(ModelSection(preset="llama3-405b"))
    spec = make_spec(
        model, dp_shard=1024, zero=3, sequence_length=8192, recompute="full",
        precision={"compute": "bf16", "gradients": "bf16"},
    )  # fmt: skip
    program = lower_step(rank_view(spec))
    by_kind = {
        kind: sum(size for name, size in program.buffers.items() if name.startswith(f"{kind}/"))
        for kind in ("shard", "grad_shard", "optimizer", "master")
    }
    twelve = by_kind["shard"] + by_kind["grad_shard"] + by_kind["optimizer"]
    assert twelve == pytest.approx(4.75e9, rel=5e-3)
    assert twelve * 1024 == pytest.approx(405.85e9 * 12, rel=1e-3)
    assert (twelve + by_kind["master"]) * 1024 == pytest.approx(405.85e9 * 16, rel=1e-3)
    assert memory_peak(program).bytes > twelve + by_kind["master"]


def test_state_is_split_evenly_to_the_last_padding() -> None:
    """Doubling the shards halves each rank's resident state but for padding of at most 16 elements a rank and unit."""
    model = resolve_model(ModelSection(preset="llama3.2-1b"))
    sizes = {}
    for ranks in (8, 16, 32):
        program = lower_step(make_view(model, dp_shard=ranks, zero=3, sequence_length=128))
        sizes[ranks] = sum(program.buffers[n] for n in program.resident if n != "rope")
    assert sizes[8] == pytest.approx(2 * sizes[16], rel=1e-4)
    assert sizes[8] == pytest.approx(4 * sizes[32], rel=1e-4)


def _peak_activations(program: Program) -> int:
    """The most bytes of microbatches' tensors at once: batches, hidden states, what backward needs."""
    kinds = ("batch", "hidden", "dhidden", "saved", "deferred")
    live: set[str] = set()
    highest = 0
    for step in program.instructions:
        live |= {name for name in step.writes if name.partition("/")[0] in kinds}
        highest = max(highest, sum(program.buffers[name] for name in live))
        live -= set(step.frees)
    return highest


def _most_saved(program: Program) -> int:
    """The most microbatches whose saved tensors of one block are there at once."""
    live: set[str] = set()
    highest = 0
    for step in program.instructions:
        live |= {name for name in step.writes if name.startswith("saved/")}
        highest = max([highest, *Counter(name.split("/")[1] for name in live).values()])
        live -= set(step.frees)
    return highest


@pytest.mark.parametrize("microbatches", [1, 3, 4, 9])
@pytest.mark.parametrize("pp", [2, 4])
def test_activations_of_a_stage_under_1f1b_and_gpipe(pp: int, microbatches: int) -> None:
    """Narayanan et al. 2021, section 2.2: GPipe keeps all M microbatches' activations on every stage, 1F1B min(P - rank, M)."""
    make = {"model": {"num_layers": 2 * pp}, "pp": pp, "accumulation": microbatches}
    gpipe, alternating = (
        lower_pipeline(make_spec(**make, schedule=schedule))
        for schedule in ("gpipe", "1f1b")  # type: ignore[arg-type]
    )
    assert [_most_saved(p) for p in gpipe] == [microbatches] * pp
    assert [_most_saved(p) for p in alternating] == [min(pp - rank, microbatches) for rank in range(pp)]
    for a, b in zip(alternating, gpipe, strict=True):
        assert _peak_activations(a) <= _peak_activations(b)
    if microbatches > pp:
        assert _peak_activations(alternating[0]) > _peak_activations(alternating[-1]), "early stages hold more"


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_activations_of_a_gpt_layer_with_tensor_and_sequence_parallelism(tp: int) -> None:
    """Korthikanti et al. 2022, table 2: sbh (34 + 5as/h) bytes a layer in 16-bit, (34 + 5as/h)/t with TP and SP, 34 sbh/t with
    selective recomputation or, as here, with an attention that keeps no matrix. Their 34 are: norms' inputs 4, attention's
    input 2, queries and keys 4, values 2, output projection's input 2, dropout's mask 1, feed-forward 19 (input 2, up's
    output 8, activation's output 8, dropout's mask 1).

    Our GPT block has no dropout, so 32, the first norm's input among them, which is the segment's input (`hidden`); and beside
    them, which the paper leaves out as small, the softmax's log-sum (4 bytes a head and token) and the norms' mean and scale."""
    hidden, heads, sequence, sequences = 2048, 16, 1024, 2
    model = {
        **{"num_layers": 2, "hidden_size": hidden, "num_heads": heads, "num_kv_heads": heads, "ffn_size": 4 * hidden},
        **{"norm": "layer", "activation": "gelu", "gated": False, "linear_bias": True, "qkv_bias": True},
        **{"positions": "learned", "vocab_size": 128},
    }
    spec = make_spec(
        model, tp=tp, sequence_parallel=tp > 1, sequence_length=sequence, microbatch_sequences=sequences,
        precision={"compute": "bf16"},
    )  # fmt: skip
    kept = buffer_bytes(rank_view(spec), "saved/b1/m0") + buffer_bytes(rank_view(spec), "hidden/b1/m0")
    tokens = sequence * sequences
    statistics = 4 * heads + 2 * 2 * 4
    assert kept * tp == tokens * (32 * hidden + statistics)
