"""Bytes that a step moves, against closed forms: ring collectives, ZeRO's arithmetic, transfers, scalars."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import DTYPE_BYTES
from fourfold.program import Op, Program, StepSpec, lower_pipeline, lower_step, rank_view, sent_bytes
from fourfold.program.liveness import ledger
from fourfold.program.totals import data_axes
from tests.support.opcodes import COMPUTE_OPS
from tests.support.programs import evaluation_pipeline, make_spec, make_view
from tests.support.strategies import lowerings

SOME = settings(max_examples=60, deadline=None)


def _scalar(spec: StepSpec, totals: Counter[str], axes: tuple[str, ...], size: int = 8) -> None:
    if axes:
        totals["+".join(axes)] += sent_bytes("all_reduce", size, spec.layout.group_size(axes))


def _scalars(spec: StepSpec) -> Counter[str]:
    """Every rank's sums in a step, 8 bytes each: the count of targets over the data axes; the loss over the stages too, with
    routers' two auxiliary losses beside it, of which each tensor-parallel rank has its tokens' part; the norm over all that
    hold different parts of the gradient; the loads of all experts of all routers."""
    layout, totals = spec.layout, Counter[str]()
    data = layout.active(("dp_replicate", "dp_shard", "cp"))
    _scalar(spec, totals, data)
    experts = spec.model.num_experts
    _scalar(spec, totals, layout.active(("pp", *data, *(("tp",) if experts else ()))), 24 if experts else 8)
    spread = layout.zero > 0 or layout.ep * layout.etp > 1
    _scalar(spec, totals, layout.active(("pp", *(("dp_shard", "cp") if spread else ()), "tp")))
    if experts:
        routers = sum(segment.moe for segment in spec.segments)
        _scalar(spec, totals, layout.active(("pp", *data, "tp")), 8 * experts * routers)
    return totals


def _bulk(spec: StepSpec, pp_rank: int = 0) -> dict[str, int]:
    """The ledger of a step without its scalars, by axes, zeros left out."""
    totals = Counter(ledger(lower_pipeline(spec)[pp_rank]))
    totals.subtract(_scalars(spec))
    assert min(totals.values(), default=0) >= 0
    return {axes: size for axes, size in totals.items() if size}


def _gradient_bytes(spec: StepSpec) -> int:
    return sum(flat.padded_numel for flat in rank_view(spec).flats.values()) * DTYPE_BYTES[spec.gradients]


def _reductions(spec: StepSpec, program: Program) -> Counter[str]:
    """The bytes of gradients by the rings, ZeRO's paper and the model's statement of who has partial sums."""
    layout, element, totals = spec.layout, DTYPE_BYTES[spec.gradients], Counter[str]()
    for unit, flat in rank_view(spec, program.pp_rank).flats.items():
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
def test_reductions_move_what_their_rings_move(spec: StepSpec) -> None:
    """ZeRO-0: 2(N-1)/N of the gradients over all data axes, `cp` among them. ZeRO-1: (S-1)/S of them over the shards, ZeRO-2
    and 3 once a microbatch; HSDP adds 2(R-1)/R of a shard's gradients over the replicas, once a step. Experts' gradients
    travel over `edp` in place of `dp_shard+cp`. Partial sums are summed over `tp` before, as often as the rest is."""
    for program in lower_pipeline(spec):
        moved: Counter[str] = Counter()
        for step in program.instructions:
            for c in step.collectives if step.op is Op.REDUCE else ():
                moved[c.axes] += c.sent_bytes
        assert +moved == +_reductions(spec, program)


@SOME
@given(lowerings())
def test_all_a_step_sends_is_what_these_kinds_of_instructions_send(spec: StepSpec) -> None:
    kinds = {
        Op.REDUCE,
        Op.REDUCE_TIED,
        Op.GATHER,
        Op.PARAMETER_ALL_GATHER,
        Op.SEND_ACTIVATION,
        Op.SEND_GRADIENT,
        *COMPUTE_OPS,
    }
    for program in lower_pipeline(spec):
        expected = _scalars(spec)
        for step in program.instructions:
            for c in step.collectives if step.op in kinds else ():
                expected[c.axes] += c.sent_bytes
        assert {axes: size for axes, size in ledger(program).items() if size} == dict(+expected)


@SOME
@given(lowerings())
def test_a_pipeline_sends_every_boundary_s_hidden_states_and_their_gradients_once_a_microbatch(spec: StepSpec) -> None:
    """2 x boundary x microbatches over all ranks: forward by the upper stage, backward by the lower one. A boundary is the hidden
    states of a microbatch on one rank: 1/cp of them, and 1/tp under sequence parallelism."""
    layout = spec.layout
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    tokens //= layout.tp if layout.sequence_parallel else 1
    boundary = tokens * spec.model.hidden_size * DTYPE_BYTES[spec.compute]
    sent = [0] * layout.pp
    for source, target in pairwise(layout.stage_ranks):
        if source != target:
            sent[source] += boundary * layout.num_microbatches
            sent[target] += boundary * layout.num_microbatches
    programs = lower_pipeline(spec)
    assert sent == [_sent_by(p, Op.SEND_ACTIVATION, Op.SEND_GRADIENT) for p in programs]
    crossings = sum(a != b for a, b in pairwise(layout.stage_ranks))
    assert sum(sent) == 2 * crossings * boundary * layout.num_microbatches


def _sent_by(program: Program, *ops: Op) -> int:
    return sum(c.sent_bytes for step in program.instructions if step.op in ops for c in step.collectives)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_tied_embeddings_add_one_sum_over_two_stages_of_what_each_rank_updates(zero: int) -> None:
    spec = make_spec({"tie_embeddings": True}, pp=3, dp_shard=2, zero=zero, accumulation=3, tp=2)
    table = spec.model.vocab_size // 2 * spec.model.hidden_size * 4
    for pp_rank, program in enumerate(lower_pipeline(spec)):
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
            make_spec({"tie_embeddings": tied}, dp_shard=ranks, zero=zero, accumulation=microbatches, prefetch=0)
        )
        for zero in range(4)
    }
    spec = make_spec({"tie_embeddings": tied}, dp_shard=ranks, zero=3, accumulation=microbatches)
    size = {name: flat.padded_numel * 4 for name, flat in rank_view(spec).flats.items()}
    model = sum(size.values())
    part = (ranks - 1) * model // ranks
    gathered = 2 * (size["b0"] + size["b1"]) + size["embed"] * (2 if tied else 1) + size["head"]
    assert total[0] == {"dp_shard": 2 * part}
    assert total[1] == {"dp_shard": 2 * part}
    assert total[2] == {"dp_shard": (microbatches + 1) * part}
    assert total[3] == {"dp_shard": microbatches * ((ranks - 1) * gathered // ranks + part)}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_add_a_ring_over_the_shard_alone(zero: int) -> None:
    one = _bulk(make_spec(dp_shard=4, zero=zero, accumulation=2))
    spec = make_spec(dp_replicate=3, dp_shard=4, zero=zero, accumulation=2)
    # The padding follows the number of data ranks, so the shards' own bytes are compared per padded element.
    scale = sum(f.padded_numel for f in rank_view(spec).flats.values()) / sum(
        f.padded_numel for f in make_view(dp_shard=4).flats.values()
    )
    both = _bulk(spec)
    assert both["dp_replicate"] == 2 * 2 * (_gradient_bytes(spec) // 4) // 3
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
        assert ledger(lower_step(make_view(zero=zero, accumulation=3))) == {}


@SOME
@given(lowerings())
def test_an_evaluation_sends_gathers_and_scalars_only(spec: StepSpec) -> None:
    """Beside what segments send inside, and hidden states down the pipeline."""
    for program in evaluation_pipeline(spec):
        expected: Counter[str] = Counter()
        units = rank_view(spec, program.pp_rank).flats
        _scalar(spec, expected, data_axes(spec.layout))
        experts = spec.model.num_experts > 0
        loss = spec.layout.active(("pp", *data_axes(spec.layout), *(("tp",) if experts else ())))
        _scalar(spec, expected, loss, 24 if experts else 8)
        for step in program.instructions:
            assert step.op not in (Op.REDUCE, Op.REDUCE_TIED, Op.PARAMETER_ALL_GATHER, Op.SEND_GRADIENT)
            assert step.op is not Op.GATHER or units[step.segment or ""].zero == 3
            for c in step.collectives if step.op in (Op.GATHER, Op.SEND_ACTIVATION, Op.FORWARD) else ():
                expected[c.axes] += c.sent_bytes
        assert {axes: size for axes, size in ledger(program).items() if size} == dict(+expected)
