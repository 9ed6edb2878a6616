"""Dispatch and combine as instructions: the same work as without, and another microbatch's computation behind each."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from fourfold.config import UserError
from fourfold.program import Op, Program, StepSpec, lower_pipeline
from fourfold.program.liveness import ledger
from fourfold.program.text import from_text, to_text
from tests.support.opcodes import ALL_TO_ALLS, COMPUTE_OPS
from tests.support.programs import QWEN3_MOE, deepseek, make_spec, wait_of
from tests.support.strategies import overlapping

MODEL = {**QWEN3_MOE, "num_layers": 8}
SHARED: dict[str, Any] = {"model": MODEL, "dp_shard": 2, "ep": 2, "overlap_experts": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "accumulation": {"accumulation": 4},
    "1f1b": {"pp": 4, "accumulation": 8},
    "interleaved": {"pp": 2, "accumulation": 8, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "dualpipe_v": {"pp": 2, "accumulation": 12, "schedule": "dualpipe_v"},
}

PASSES = {Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT}


def _plain(spec: StepSpec) -> StepSpec:
    return replace(spec, layout=replace(spec.layout, overlap_experts=False))


def _collectives(program: Program, op: Op) -> Counter[str | None]:
    """How often each unit takes part in it."""
    return Counter(step.segment for step in program.instructions if step.op is op)


def _sent(program: Program, axes: str) -> int:
    return ledger(program).get(axes, 0)


@settings(max_examples=25, deadline=None)
@given(overlapping())
def test_arithmetic_and_traffic_are_those_of_the_step_without(spec: StepSpec) -> None:
    """A reduction of ZeRO-2 and 3 may serve two microbatches at once, and is never more. A gather of ZeRO-3 may as well; where the
    other microbatch's head comes between two passes of a block that follow each other without it, it is gathered once more."""
    for ours, plain in zip(lower_pipeline(spec), lower_pipeline(_plain(spec)), strict=True):
        for kinds in (COMPUTE_OPS, {Op.UPDATE}):
            flops = [sum(s.flops for s in p.instructions if s.op in kinds) for p in (ours, plain)]
            assert flops[0] == flops[1]
        assert _sent(ours, "ep") == _sent(plain, "ep")
        assert _sent(ours, "pp") == _sent(plain, "pp")
        for op in (Op.REDUCE, Op.PARAMETER_ALL_GATHER):
            assert not _collectives(ours, op) - _collectives(plain, op)
        passes = Counter(step.segment for step in ours.instructions if step.op in PASSES)
        assert all(times <= max(passes.values()) for times in _collectives(ours, Op.GATHER).values())
        assert from_text(to_text(ours)).instructions == ours.instructions


@pytest.mark.parametrize("name", LAYOUTS)
def test_another_microbatch_computes_while_rows_travel(name: str) -> None:
    """Between the start of an all-to-all and its join; but for the first dispatch of a backward's partner, all are hidden."""
    for program in lower_pipeline(make_spec(**SHARED, **LAYOUTS[name])):
        found = [i for i, step in enumerate(program.instructions) if step.op in ALL_TO_ALLS]
        assert found
        for start in found:
            own = program.instructions[start].microbatch
            between = program.instructions[start : wait_of(program, start)]
            assert any(s.op in COMPUTE_OPS and s.microbatch != own for s in between)


@pytest.mark.parametrize("name", LAYOUTS)
def test_only_pairs_are_in_parts(name: str) -> None:
    """Whoever has no partner runs in one piece: its shared experts compute while its own rows travel."""
    for program in lower_pipeline(make_spec(**SHARED, **{**LAYOUTS[name], "accumulation": 1})):
        assert not [step for step in program.instructions if step.op in ALL_TO_ALLS]


def test_two_microbatches_are_in_flight_where_they_go_two_by_two() -> None:
    program = lower_pipeline(make_spec(**SHARED, accumulation=5))[0]
    order = [s.microbatch for s in program.instructions if s.segment == "embed" and s.op is Op.FORWARD]
    assert order == [0, 1, 2, 3, 4]
    backward = [s.microbatch for s in program.instructions if s.op is Op.BACKWARD and s.segment == "head"]
    assert backward == [0, 1, 2, 3, 4]
    live, most = set[str](), 0
    for step in program.instructions:
        live |= {name for name in step.writes if name.startswith("saved/b0/")}
        live -= set(step.frees)
        most = max(most, len(live))
    assert most == 2


def test_a_pair_is_reduced_once() -> None:
    """ZeRO-2 reduces every microbatch; while another adds to the buffer, it waits for that."""
    spec = make_spec(**SHARED, zero=2, accumulation=4)
    reductions = Counter(s.segment for s in lower_pipeline(spec)[0].instructions if s.op is Op.REDUCE)
    plain = Counter(s.segment for s in lower_pipeline(_plain(spec))[0].instructions if s.op is Op.REDUCE)
    assert (reductions["b3"], plain["b3"]) == (2, 4)


def test_steps_that_compute_twice_do_without() -> None:
    spec = make_spec(**SHARED, accumulation=2, checked=True)
    assert not [s for s in lower_pipeline(spec)[0].instructions if s.op in ALL_TO_ALLS]


def test_blocks_without_experts_stay_in_one_piece() -> None:
    program = lower_pipeline(make_spec(**{**SHARED, "model": deepseek()}, accumulation=2))[0]
    assert {s.segment for s in program.instructions if s.op in ALL_TO_ALLS} == {"b1", "b2"}


def test_without_expert_parallelism_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"layout.overlap_experts = true .* layout.ep, which is 1"):
        make_spec(MODEL, dp_shard=2, overlap_experts=True)


def test_parts_of_a_pass_share_a_gather_without_prefetch() -> None:
    layout = {"pp": 2, "schedule": "naive", "dp_shard": 2, "ep": 2, "zero": 3, "prefetch": 0}
    spec = make_spec({**QWEN3_MOE, "num_layers": 1}, accumulation=2, overlap_experts=True, **layout)
    for ours, plain in zip(lower_pipeline(spec), lower_pipeline(_plain(spec)), strict=True):
        assert _sent(ours, "dp_shard") <= _sent(plain, "dp_shard")
