"""Bytes that a step moves and keeps, against closed forms: ring collectives, ZeRO's arithmetic, the worked figures."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import DTYPE_BYTES, ModelSection, resolve_model
from fourfold.model.spec import num_parameters, step_flops_per_token
from fourfold.program import Collective, Lowering, Op, Program, lower_pipeline, lower_step, memory_peak, sent_bytes
from fourfold.program.instruction import COMPUTE_OPS
from fourfold.program.liveness import ledger
from tests.support.programs import MIXTRAL, evaluation_pipeline, make_facts
from tests.support.strategies import lowerings

SOME = settings(max_examples=60, deadline=None)


def _scalar(facts: Lowering, totals: Counter[str], axes: tuple[str, ...], size: int = 8) -> None:
    if axes:
        totals["+".join(axes)] += sent_bytes("all_reduce", size, facts.layout.group_size(axes))


def _scalars(facts: Lowering) -> Counter[str]:
    """What every rank sums a step, 8 bytes each: the count of targets over the data axes; the loss over the stages too, with
    routers' two auxiliary losses beside it, of which each tensor-parallel rank has its tokens' part; the norm over all that
    hold different parts of the gradient; the loads of all experts of all routers."""
    layout, totals = facts.layout, Counter[str]()
    data = layout.active(("dp_replicate", "dp_shard", "cp"))
    _scalar(facts, totals, data)
    experts = facts.model.num_experts
    _scalar(facts, totals, layout.active(("pp", *data, *(("tp",) if experts else ()))), 24 if experts else 8)
    spread = layout.zero > 0 or layout.ep * layout.etp > 1
    _scalar(facts, totals, layout.active(("pp", *(("dp_shard", "cp") if spread else ()), "tp")))
    if experts:
        routers = sum(segment.moe for segment in facts.segments)
        _scalar(facts, totals, layout.active(("pp", *data, "tp")), 8 * experts * routers)
    return totals


def _bulk(facts: Lowering, pp_rank: int = 0) -> dict[str, int]:
    """The ledger of a step without its scalars, by axes, zeros left out."""
    totals = Counter(ledger(lower_pipeline(facts)[pp_rank]))
    totals.subtract(_scalars(facts))
    assert min(totals.values(), default=0) >= 0
    return {axes: size for axes, size in totals.items() if size}


def _gradient_bytes(facts: Lowering) -> int:
    return sum(flat.padded_numel for flat in facts.flats.values()) * DTYPE_BYTES[facts.gradients]


# Communication


def _reductions(facts: Lowering, program: Program) -> Counter[str]:
    """What gradients move by the rings, ZeRO's paper and the model's statement of who has partial sums."""
    layout, element, totals = facts.layout, DTYPE_BYTES[facts.gradients], Counter[str]()
    for unit, flat in facts.flats.items():
        size, dense = flat.padded_numel * element, flat.domain == "dense"
        shard = layout.active(("dp_shard", "cp") if dense else ("edp",))
        replicas = layout.active(("dp_replicate",))
        writers = {s.microbatch: i for i, s in enumerate(program.instructions) if f"grad/{unit}" in s.writes}
        users = layout.num_microbatches if layout.zero >= 2 and shard else 1
        assert len(writers) >= users
        for axis, start, end in flat.sums:
            totals[axis] += users * sent_bytes("all_reduce", (end - start) * element, layout.degree(axis))
        if layout.zero and shard:
            totals["+".join(shard)] += users * sent_bytes("reduce_scatter", size, layout.group_size(shard))
            size //= layout.group_size(shard)
            shard = ()
        axes = replicas + shard
        if axes:
            totals["+".join(axes)] += sent_bytes("all_reduce", size, layout.group_size(axes))
    return totals


@SOME
@given(lowerings())
def test_reductions_move_what_their_rings_move(facts: Lowering) -> None:
    """ZeRO-0: 2(N-1)/N of the gradients over all data axes, `cp` among them. ZeRO-1: (S-1)/S of them over the shards, ZeRO-2
    and 3 once a microbatch; HSDP adds 2(R-1)/R of a shard's gradients over the replicas, once a step. Experts' gradients
    travel over `edp` in place of `dp_shard+cp`. Partial sums are summed over `tp` before, as often as the rest is."""
    for pp_rank, program in enumerate(lower_pipeline(facts)):
        moved: Counter[str] = Counter()
        for step in program.instructions:
            for c in step.collectives if step.op is Op.REDUCE else ():
                moved[c.axes] += c.sent_bytes
        assert +moved == +_reductions(facts.at(pp_rank), program)


@SOME
@given(lowerings())
def test_all_a_step_sends_is_what_these_kinds_of_instructions_send(facts: Lowering) -> None:
    kinds = {Op.REDUCE, Op.REDUCE_TIED, Op.GATHER, Op.PUBLISH, Op.SEND_ACTIVATION, Op.SEND_GRADIENT, *COMPUTE_OPS}
    for program in lower_pipeline(facts):
        expected = _scalars(facts)
        for step in program.instructions:
            for c in step.collectives if step.op in kinds else ():
                expected[c.axes] += c.sent_bytes
        assert {axes: size for axes, size in ledger(program).items() if size} == dict(+expected)


@SOME
@given(lowerings())
def test_a_pipeline_sends_every_boundary_s_hidden_states_and_their_gradients_once_a_microbatch(facts: Lowering) -> None:
    """2 x boundary x microbatches over all ranks: forward by the upper stage, backward by the lower one. A boundary is the hidden
    states of a microbatch on one rank: 1/cp of them, and 1/tp under sequence parallelism."""
    layout = facts.layout
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    tokens //= layout.tp if layout.sequence_parallel else 1
    boundary = tokens * facts.model.hidden_size * DTYPE_BYTES[facts.compute]
    sent = [0] * layout.pp
    for source, target in pairwise(layout.stage_ranks):
        if source != target:
            sent[source] += boundary * layout.num_microbatches
            sent[target] += boundary * layout.num_microbatches
    programs = lower_pipeline(facts)
    assert sent == [_sent_by(p, Op.SEND_ACTIVATION, Op.SEND_GRADIENT) for p in programs]
    crossings = sum(a != b for a, b in pairwise(layout.stage_ranks))
    assert sum(sent) == 2 * crossings * boundary * layout.num_microbatches


def _sent_by(program: Program, *ops: Op) -> int:
    return sum(c.sent_bytes for step in program.instructions if step.op in ops for c in step.collectives)


def _inside(facts: Lowering, *ops: Op) -> list[Collective]:
    """The collectives of the last block's forward or backward, of one microbatch."""
    programs = lower_pipeline(facts)
    name = facts.segments[-2].name
    steps = [s for p in programs for s in p.instructions if s.op in ops and s.segment == name and s.microbatch == 0]
    return [c for step in steps for c in step.collectives]


def _kinds(collectives: list[Collective]) -> Counter[tuple[str, str, int]]:
    return Counter((c.kind, c.axes, c.bytes) for c in collectives)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("cp", [1, 2])
def test_tensor_parallelism_all_reduces_twice_a_block_each_way(tp: int, cp: int) -> None:
    """Megatron (Shoeybi et al. 2019, section 3): one all-reduce after attention and one after the feed-forward; backward the
    same before them. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) each is an all-gather and a
    reduce-scatter, of the same bytes together; backward gathers the inputs of the column-split products again for their weight
    gradients, since forward keeps a rank's part of them alone. (`cp` all_gather's own collectives are on other axes.)"""
    make = {"model": {"num_heads": 4, "num_kv_heads": 4}, "tp": tp, "cp": cp, "sequence_length": 64}
    plain = make_facts(**make)  # type: ignore[arg-type]
    whole = plain.layout.tokens * plain.model.hidden_size * 4
    forward, backward = _of(plain, "tp", Op.FORWARD), _of(plain, "tp", Op.BACKWARD)
    assert forward == backward == {("all_reduce", "tp", whole): 2}
    split = make_facts(**make, sequence_parallel=True)  # type: ignore[arg-type]
    gather, scatter = ("all_gather", "tp", whole), ("reduce_scatter", "tp", whole)
    assert _of(split, "tp", Op.FORWARD) == {gather: 2, scatter: 2}
    assert _of(split, "tp", Op.BACKWARD) == {gather: 4, scatter: 2}, (
        "two of the gathers are of the forward's inputs again"
    )
    moved = [sum(c.sent_bytes for c in _inside(f, Op.FORWARD) if c.axes == "tp") for f in (plain, split)]
    assert moved[0] == moved[1] == 4 * (tp - 1) * whole // tp


def _of(facts: Lowering, axis: str, *ops: Op) -> Counter[tuple[str, str, int]]:
    return _kinds([c for c in _inside(facts, *ops) if c.axes == axis])


@pytest.mark.parametrize("cp", [2, 4])
def test_ring_attention_shifts_keys_and_values_around(cp: int) -> None:
    """Liu et al. 2023: forward sends a rank's keys and values cp - 1 times. Backward again, and as often their gradients: begun by
    the first rank that they reach, they come home after as many hops."""
    facts = make_facts(cp=cp, sequence_length=32)
    own = 2 * facts.layout.tokens * facts.model.num_kv_heads * facts.model.head_dim * 4
    forward = [c for c in _inside(facts, Op.FORWARD) if c.axes == "cp_ring"]
    assert {c.kind for c in forward} == {"shift"}
    assert sum(c.sent_bytes for c in forward) == (cp - 1) * own
    backward = sum(c.sent_bytes for c in _inside(facts, Op.BACKWARD) if c.axes == "cp_ring")
    assert backward == 2 * (cp - 1) * own


@pytest.mark.parametrize("cp", [2, 4])
def test_gathered_keys_and_values_are_one_all_gather_and_one_reduce_scatter(cp: int) -> None:
    """Llama 3 (section 3.3.2): every rank has all keys and values; their gradients are summed back to their owners."""
    facts = make_facts(cp=cp, cp_method="all_gather", sequence_length=32)
    whole = 2 * cp * facts.layout.tokens * facts.model.num_kv_heads * facts.model.head_dim * 4
    forward, backward = (
        [c for c in _inside(facts, op) if set(c.axes.split("+")) & {"cp", "cp_ring"}]
        for op in (Op.FORWARD, Op.BACKWARD)
    )
    assert sum(c.bytes for c in forward if c.kind == "all_gather") == whole
    assert sum(c.bytes for c in backward if c.kind == "reduce_scatter") == whole
    assert {c.kind for c in forward} == {"all_gather"}


@pytest.mark.parametrize("cp", [2, 4])
def test_ulysses_exchanges_heads_for_positions_and_back(cp: int) -> None:
    """Jacobs et al. 2023: all-to-alls of queries, keys, values and outputs, (N-1)/N of each leaves the rank; backward the same."""
    facts = make_facts({"num_kv_heads": 4}, cp=cp, cp_method="ulysses", sequence_length=32)
    model, tokens = facts.model, facts.layout.tokens
    all_four = tokens * model.head_dim * 4 * 4 * model.num_heads
    for op in (Op.FORWARD, Op.BACKWARD):
        exchanged = [c for c in _inside(facts, op) if c.axes in ("cp_ulysses", "cp")]
        assert {c.kind for c in exchanged} == {"all_to_all"}
        assert sum(c.sent_bytes for c in exchanged) == (cp - 1) * all_four // cp


@pytest.mark.parametrize("ep", [2, 4])
def test_experts_are_reached_by_balanced_all_to_alls(ep: int) -> None:
    """Lepikhin et al. 2020: a rank's tokens, top_k copies of each, to their experts and back, as if every expert had as many:
    (N-1)/N of top_k x tokens x hidden each way, forward and backward."""
    facts = make_facts({**MIXTRAL}, dp_shard=4, ep=ep)
    sent = facts.model.top_k * facts.layout.tokens * facts.model.hidden_size * 4
    for op in (Op.FORWARD, Op.BACKWARD):
        exchanged = [c for c in _inside(facts, op) if c.axes == "ep" and c.kind == "all_to_all" and c.bytes >= sent]
        assert [c.bytes for c in exchanged] == [sent, sent]
        assert sum(c.sent_bytes for c in exchanged) == 2 * (ep - 1) * sent // ep


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_tied_embeddings_add_one_sum_over_two_stages_of_what_each_rank_updates(zero: int) -> None:
    facts = make_facts({"tie_embeddings": True}, pp=3, dp_shard=2, zero=zero, accumulation=3, tp=2)
    table = facts.model.vocab_size // 2 * facts.model.hidden_size * 4
    for pp_rank, program in enumerate(lower_pipeline(facts)):
        sent = _sent_by(program, Op.REDUCE_TIED)
        kept = table // 2 if zero else table
        assert sent == (pytest.approx(kept, rel=0.02) if pp_rank in (0, 2) else 0), "2 x 1/2 of the shard"


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
    """Beside what segments send inside, and hidden states down the pipeline."""
    for program in evaluation_pipeline(facts):
        expected: Counter[str] = Counter()
        _scalar(facts, expected, facts.data_axes)
        experts = facts.model.num_experts > 0
        loss = facts.layout.active(("pp", *facts.data_axes, *(("tp",) if experts else ())))
        _scalar(facts, expected, loss, 24 if experts else 8)
        for step in program.instructions:
            assert step.op not in (Op.REDUCE, Op.REDUCE_TIED, Op.PUBLISH, Op.SEND_GRADIENT)
            assert step.op is not Op.GATHER or facts.zero_of(step.segment or "") == 3
            for c in step.collectives if step.op in (Op.GATHER, Op.SEND_ACTIVATION, Op.FORWARD) else ():
                expected[c.axes] += c.sent_bytes
        assert {axes: size for axes, size in ledger(program).items() if size} == dict(+expected)


# Memory


def _resident_bytes(facts: Lowering, pp_rank: int = 0) -> int:
    program = lower_step(facts.at(pp_rank))
    return sum(program.buffers[name] for name in program.resident)


def _state_at_update(facts: Lowering, pp_rank: int = 0) -> int:
    """Bytes of parameters, gradients and optimizer state when the gradient norm is taken: everything that is live then."""
    program = lower_step(facts.at(pp_rank))
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
    """On every pipeline rank. There is something to shard over where `dp_shard x cp` is more than one, for experts `edp`."""
    stages = [replace(facts, layout=replace(facts.layout, zero=zero)) for zero in range(4)]
    for pp_rank in range(facts.layout.pp):
        resident = [_resident_bytes(stage, pp_rank) for stage in stages]
        state = [_state_at_update(stage, pp_rank) for stage in stages]
        assert resident == sorted(resident, reverse=True)
        assert state == sorted(state, reverse=True)
        if facts.layout.dp_shard * facts.layout.cp > 1:
            assert resident[0] > resident[1] == resident[2] > resident[3]
            assert state[0] > state[1] > state[2] > state[3]
        elif facts.layout.edp == 1:
            assert len(set(resident)) == len(set(state)) == 1


@pytest.mark.parametrize(("dp_shard", "cp"), [(2, 1), (8, 1), (64, 1), (1, 8), (4, 4)])
def test_the_arithmetic_of_the_zero_paper(dp_shard: int, cp: int) -> None:
    """Rajbhandari et al. 2020, figure 1: of 2 + 2 + K bytes a parameter (bf16 weights, bf16 gradients, K = 12 for the fp32
    copy and two moments), stage 1 divides K by the ranks, stage 2 the gradients too, stage 3 all. Ranks that have parts of the
    same sequences hold the same parameters: they shard as the others do."""
    ranks = dp_shard * cp
    model = resolve_model(ModelSection(preset="llama3-8b"))
    parameters = num_parameters(model)
    expected = [2 + 2 + 12, 2 + 2 + 12 / ranks, 2 + (2 + 12) / ranks, 16 / ranks]
    for zero, per_parameter in enumerate(expected):
        facts = make_facts(
            model, dp_shard=dp_shard, cp=cp, zero=zero, sequence_length=512,
            precision={"compute": "bf16", "gradients": "bf16"},
        )  # fmt: skip
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
        lower_pipeline(make_facts(**make, schedule=schedule))
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
    facts = make_facts(
        model, tp=tp, sequence_parallel=tp > 1, sequence_length=sequence, microbatch_sequences=sequences,
        precision={"compute": "bf16"},
    )  # fmt: skip
    kept = facts.buffer_bytes("saved/b1/m0") + facts.buffer_bytes("hidden/b1/m0")
    tokens = sequence * sequences
    statistics = 4 * heads + 2 * 2 * 4
    assert kept * tp == tokens * (32 * hidden + statistics)


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
@given(lowerings(shapes=("dense",), tensor=False))
def test_a_program_does_the_useful_arithmetic_and_what_it_recomputes(facts: Lowering) -> None:
    """Without recompute: 6 per parameter of a matrix product and token, the head's forward among them, and attention's
    forward and 2.5-fold backward (flash attention, Dao et al. 2022, computes the scores again). Over all stages."""
    model, layout = facts.model, facts.layout
    tokens = layout.microbatch_sequences * layout.sequence_length * layout.num_microbatches
    blocks = sum(p.numel for s in facts.segments for p in s.parameters if s.kind == "block" and len(p.shape) == 2)
    products = blocks + model.vocab_size * model.hidden_size
    attention = 2 * layout.sequence_length * model.num_heads * model.head_dim * model.num_layers
    forward = (2 * blocks + attention) // model.num_layers
    recomputed = sum(policy == "full" for policy in layout.recompute) * forward
    total = sum(step.flops for program in lower_pipeline(facts) for step in program.instructions)
    assert total == pytest.approx(tokens * (6 * products + 3.5 * attention + recomputed), abs=tokens * model.num_layers)


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v"])
def test_the_halves_of_backward_do_its_arithmetic(schedule: str) -> None:
    """Input and weight gradients are half each of the products' backward (Qi et al. 2023); together the whole."""
    make = {"model": {"num_layers": 6}, "pp": 2, "virtual_stages": 2 if schedule == "zb_v" else 1, "accumulation": 4}
    halves, whole = (
        sum(step.flops for p in lower_pipeline(make_facts(**make, schedule=s)) for step in p.instructions)  # type: ignore[arg-type]
        for s in (schedule, "interleaved_1f1b" if schedule == "zb_v" else "1f1b")
    )
    assert halves == whole
