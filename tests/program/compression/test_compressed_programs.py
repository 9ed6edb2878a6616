"""Programs whose gradients travel in bf16: what changes in them, what the price knows of it, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from fourfold.config import UserError, parse_run
from fourfold.program import Op, lower_pipeline, memory_peak, verify
from fourfold.program.capabilities import check_planned
from fourfold.program.compression.steps import Compression, CompressionOp
from fourfold.report.program_table import legend_lines
from fourfold.simulate.durations import Durations
from fourfold.simulate.step import simulate
from tests.support.programs import QWEN3_MOE, make_spec
from tests.support.simulated import real_prices

KEY = "precision.gradient_communication = 'bf16'"
LAYOUTS: list[dict[str, Any]] = [
    {"dp_shard": 2, "zero": 1, "accumulation": 2},
    {"dp_shard": 4, "zero": 2, "accumulation": 2, "transport": "native"},
    {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "accumulation": 2},
    {"tp": 2, "sequence_parallel": True, "dp_shard": 2, "zero": 2},
    {"pp": 2, "cp": 2, "dp_shard": 2, "zero": 2, "accumulation": 2, "sequence_length": 16},
    {"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "zero": 3},
    {"dp_shard": 2, "zero": 2, "optimizer": "muon"},
]


def _pair(**case: Any) -> tuple[Any, Any]:
    """The step as it is, and with gradients that travel in bf16."""
    return make_spec(**case), make_spec(**case, precision={"gradient_communication": "bf16"})


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_every_sum_over_shards_travels_in_half_the_bytes(case: dict[str, Any]) -> None:
    """Nothing else changes: the same instructions stand in the same places, of the same segments and microbatches."""
    plain, compressed = _pair(**case)
    for before, after in zip(lower_pipeline(plain), lower_pipeline(compressed), strict=True):
        for old, new in zip(before.instructions, after.instructions, strict=False):
            if old.op is Op.WAIT or new.op is Op.WAIT:
                break  # a reduction with staging is joined earlier
            assert (old.segment, old.microbatch) == (new.segment, new.microbatch)
        reduced = [[s for s in program.instructions if s.op.is_reduction] for program in (before, after)]
        assert len(reduced[0]) == len(reduced[1]) > 0
        assert {s.op for s in reduced[1]} == {CompressionOp.COMPRESSED_REDUCE}
        for old, new in zip(*reduced, strict=True):
            assert (old.segment, old.microbatch, old.stream) == (new.segment, new.microbatch, new.stream)
            bytes_of = [[(c.kind, c.axes, c.bytes) for c in step.collectives] for step in (old, new)]
            halved = [
                ("all_to_all", a, n // 2) if kind == "reduce_scatter" else (kind, a, n) for kind, a, n in bytes_of[0]
            ]
            assert bytes_of[1] == halved
        rest = [
            sum(c.sent_bytes for s in p.instructions if not s.op.is_reduction for c in s.collectives)
            for p in (before, after)
        ]
        assert rest[0] == rest[1]
        assert legend_lines(after) != legend_lines(before)


def test_a_reduction_takes_its_all_to_all_and_its_kernels() -> None:
    """An all-to-all of 2 bytes an element; 4 read and 2 written to round; 2 read of every rank's part, 4 written to add them up."""
    _, spec = _pair(dp_shard=4, zero=2, transport="native")
    prices = real_prices(spec, "dgx-h100:8")
    durations, (program,) = Durations(prices), lower_pipeline(spec)
    for step in (step for step in program.instructions if step.op.is_reduction):
        full = program.buffers[f"grad/{step.segment}"]
        kernels = full + full // 2 + full // 2 + full // 4
        expected = prices.collective("all_to_all", "dp_shard", full // 2) + prices.memory(kernels)
        started = prices.software.host_collective_seconds if not prices.software.host_instruction_seconds else 0.0
        assert durations.collectives(step) == pytest.approx(expected + started)
    assert simulate(spec, prices).seconds > 0


def test_staging_counts_as_memory() -> None:
    """Memory holds what is sent and what arrives, two bytes an element each."""
    _, spec = _pair(dp_shard=2, zero=2)
    (program,) = lower_pipeline(spec)
    for buffer, size in program.buffers.items():
        if buffer.startswith("reduce/"):
            assert size == program.buffers[buffer.replace("reduce", "grad")]
    assert memory_peak(program).bytes > memory_peak(lower_pipeline(replace(spec, settings=()))[0]).bytes


@pytest.mark.parametrize(
    ("layout", "precision", "message"),
    [
        ({"dp_shard": 2, "zero": 0}, {}, f"{KEY}, and layout.zero = 0 .*; a value that works: layout.zero=1"),
        ({"dp_shard": 2, "zero": 1}, {"gradients": "bf16"}, f"{KEY}, .* in bf16: .* works: precision.gradients=fp32"),
        ({"dp_shard": 2, "zero": 1}, {"compute": "fp64"}, f"{KEY}, .* in fp64: .* works: precision.gradients=fp32"),
    ],
)
def test_what_would_round_sums_is_refused(layout: dict[str, Any], precision: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_spec(**layout, precision={**precision, "gradient_communication": "bf16"})


def test_one_rank_sends_nothing_and_is_not_refused() -> None:
    spec = make_spec(zero=0, precision={"gradient_communication": "bf16"})
    assert spec.setting(Compression) == Compression("bf16")
    assert not [s for s in lower_pipeline(spec)[0].instructions if s.op.is_reduction]


def test_the_planner_refuses_what_it_does_not_search() -> None:
    table = {"precision": {"gradient_communication": "bf16"}, "batch": {"global_sequences": 2, "sequence_length": 8}}
    with pytest.raises(UserError, match=f"{KEY}.*leave it out"):
        check_planned(parse_run({**table, "model": {"preset": "llama3-8b"}}, source="test"))


@pytest.mark.parametrize("compressed", [True, False])
def test_the_other_reduction_has_no_place_in_a_step(compressed: bool) -> None:
    """A reduction under the other operation's letter, whatever it declares: neither in place of the other."""
    specs = _pair(dp_shard=2, zero=2, accumulation=2)
    plain, other = lower_pipeline(specs[0])[0], lower_pipeline(specs[1])[0]
    program, spec = (other, specs[1]) if compressed else (plain, specs[0])
    letters = {"R": CompressionOp.COMPRESSED_REDUCE, "R~": Op.REDUCE}
    for index, step in enumerate(program.instructions):
        if step.op.is_reduction:
            steps = [*program.instructions]
            steps[index] = step._replace(op=letters[step.op.value])
            wait = next(i for i, each in enumerate(steps) if each.handle == step.short)
            steps[wait] = steps[wait]._replace(handle=steps[index].short)
            faults = verify(dict.fromkeys(range(2), program.with_instructions(steps)), spec)
            assert any("is no part of this step" in fault.message for fault in faults)
