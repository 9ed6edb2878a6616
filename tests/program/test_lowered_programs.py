"""Laws of every compiled program, whatever the model and the layout."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelSection, load_run, preset_names, run_preset_names
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import (
    Op,
    Program,
    StepSpec,
    lower_evaluation,
    lower_pipeline,
    lower_step,
    memory_curve,
    memory_peak,
    rank_view,
    verify,
)
from fourfold.program.liveness import ledger
from fourfold.program.schedule import find_schedule
from fourfold.program.stage_map import stage_map
from tests.support.opcodes import COMPUTE_OPS
from tests.support.programs import evaluation, evaluation_pipeline, make_spec, make_view, positions, training
from tests.support.schedules import FIXED, least_stages
from tests.support.strategies import lowerings

SOME = settings(max_examples=30, deadline=None)


def _check_verified(spec: StepSpec) -> None:
    for programs in (training(spec), evaluation(spec)):
        assert verify(programs, spec) == [], spec.layout


@settings(max_examples=50, deadline=None)
@given(lowerings())
def test_every_lowered_program_is_verified(spec: StepSpec) -> None:
    _check_verified(spec)


@pytest.mark.sweep
@settings(max_examples=3000, deadline=None)
@given(lowerings())
def test_every_lowered_program_is_verified_at_length(spec: StepSpec) -> None:
    _check_verified(spec)


@SOME
@given(lowerings())
def test_every_segment_runs_once_forward_and_once_backward_for_every_microbatch(spec: StepSpec) -> None:
    """On the pipeline rank that has it, backward in full or in halves; the head has no forward of its own and, like the embedding,
    no halves."""
    for program in lower_pipeline(spec):
        runs = Counter((s.op, s.segment, s.microbatch) for s in program.instructions if s.op in COMPUTE_OPS)
        halves = {segment for op, segment, _ in runs if op is Op.BACKWARD_INPUT}
        expected: Counter[tuple[Op, str | None, int | None]] = Counter()
        for segment in rank_view(spec, program.pp_rank).segments:
            ops = [Op.FORWARD] if segment.kind != "head" else []
            ops += [Op.RECOMPUTE] if stage_map(spec).policies[segment.name] == "full" else []
            for m in range(spec.layout.num_microbatches):
                split = (Op.BACKWARD_INPUT, segment.name, m) in runs
                assert not split or segment.kind == "block"
                for op in (*ops, *((Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT) if split else (Op.BACKWARD,))):
                    expected[op, segment.name, m] = 1
        assert runs == expected
        assert bool(halves) <= find_schedule(spec.layout.schedule).splits_backward


@SOME
@given(lowerings())
def test_the_peak_is_the_highest_point_of_the_curve_and_its_buffers_add_up(spec: StepSpec) -> None:
    for program in lower_pipeline(spec):
        peak = memory_peak(program)
        assert peak.bytes == max(memory_curve(program)) == memory_curve(program)[peak.index]
        assert peak.bytes == sum(size for _, size in peak.buffers) + peak.workspace_bytes
        assert sum(peak.by_kind().values()) == peak.bytes


@SOME
@given(lowerings())
def test_after_the_step_what_was_live_before_it_is_live_and_nothing_else(spec: StepSpec) -> None:
    for program in (*lower_pipeline(spec), *evaluation_pipeline(spec)):
        live = set(program.resident)
        for step in program.instructions:
            assert live >= set(step.reads)
            live = (live | set(step.writes)) - set(step.frees)
        assert live == set(program.resident)


@SOME
@given(lowerings())
def test_a_rank_s_program_is_the_same_lowered_alone_and_with_its_pipeline(spec: StepSpec) -> None:
    for pp_rank, program in enumerate(lower_pipeline(spec)):
        assert lower_step(rank_view(spec, pp_rank)) == program


# Gathers


def _under_zero_3(spec: StepSpec) -> StepSpec:
    return replace(spec, layout=replace(spec.layout, zero=3, dp_shard=2 * spec.layout.ep * spec.layout.etp))


def _window(program: Program, position: int, distance: int, spec: StepSpec) -> set[str]:
    """Sharded units that the computation at this position and the `distance` after it read."""
    computes = positions(program, *COMPUTE_OPS)[position : position + distance + 1]
    names = {n for i in computes for n in program.instructions[i].reads if n.startswith("params/")}
    flats = rank_view(spec, program.pp_rank).flats
    return {n for n in names if flats[n.removeprefix("params/")].zero == 3}


@SOME
@given(lowerings())
def test_nothing_is_gathered_earlier_or_kept_longer_than_the_prefetch_distance_allows(spec: StepSpec) -> None:
    """At any time the gathered units are among those that the next prefetch + 1 computations read."""
    spec = _under_zero_3(spec)
    for program in lower_pipeline(spec):
        position = 0
        live: set[str] = set()
        for step in program.instructions:
            live |= {n for n in step.writes if n.startswith("params/")}
            if step.op is Op.GATHER or step.op in COMPUTE_OPS:
                assert live <= _window(program, position, spec.layout.prefetch, spec)
            position += step.op in COMPUTE_OPS
            live -= set(step.frees)


@SOME
@given(lowerings())
def test_a_gather_starts_as_early_as_the_prefetch_distance_allows(spec: StepSpec) -> None:
    """Between the start of a gather and its first use stand `prefetch` computations, or all there are."""
    spec = _under_zero_3(spec)
    for program in lower_pipeline(spec):
        computes = positions(program, *COMPUTE_OPS)
        for index in positions(program, Op.GATHER):
            (buffer,) = program.instructions[index].writes
            use = next(i for i in computes if i > index and buffer in program.instructions[i].reads)
            between = sum(index < i < use for i in computes)
            before = sum(i < use for i in computes)
            assert between == min(spec.layout.prefetch, before)


@pytest.mark.parametrize("tied", [False, True])
def test_a_longer_prefetch_never_gathers_more(tied: bool) -> None:
    counts = []
    for prefetch in range(12):
        spec = make_spec({"tie_embeddings": tied}, dp_shard=2, zero=3, accumulation=3, prefetch=prefetch)
        counts.append(len(positions(lower_step(rank_view(spec)), Op.GATHER)))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == len(rank_view(spec).flats), "with everything within reach, every unit is gathered once"
    assert counts[0] > counts[-1]


# Recompute


@SOME
@given(lowerings())
def test_full_recompute_saves_nothing_until_the_segment_goes_backward(spec: StepSpec) -> None:
    """A fully recomputed block's saved tensors live from its Recompute to its Backward, and those are neighbours."""
    spec = replace(spec, layout=replace(spec.layout, recompute=("none", *["full"] * spec.model.num_layers, "none")))
    for program in lower_pipeline(spec):
        live: set[str] = set()
        last: object = None
        for step in program.instructions:
            live |= {n for n in step.writes if n.startswith("saved/")}
            if step.op is Op.FORWARD:
                assert not live
            if step.op in COMPUTE_OPS:
                if step.op in (Op.BACKWARD, Op.BACKWARD_INPUT) and (step.segment or "").startswith("b"):
                    assert last == (Op.RECOMPUTE, step.segment, step.microbatch)
                    assert live == {f"saved/{step.segment}/m{step.microbatch}"}
                last = (step.op, step.segment, step.microbatch)
            live -= set(step.frees)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_more_recompute_needs_less_memory(zero: int, compute: str) -> None:
    peaks = []
    for recompute in ("none", "selective", "full"):
        spec = make_spec(
            {"num_layers": 8}, dp_shard=2, zero=zero, recompute=recompute, sequence_length=256,
            microbatch_sequences=4, precision={"compute": compute},
        )  # fmt: skip
        peaks.append(memory_peak(lower_step(rank_view(spec))).bytes)
    assert peaks[0] > peaks[1] > peaks[2]


def test_recomputing_one_block_more_never_needs_more_memory() -> None:
    peaks = []
    for count in range(7):
        spec = make_spec({"num_layers": 6}, dp_shard=2, zero=2, recompute=f"full:{count}", sequence_length=256)
        peaks.append(memory_peak(lower_step(rank_view(spec))).bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.7 * peaks[0]


# Size


@SOME
@given(lowerings(pipelines=False), st.sampled_from(["step", "evaluation"]))
def test_every_microbatch_after_the_second_adds_the_same_number_of_instructions(spec: StepSpec, kind: str) -> None:
    """The length is linear in the number of microbatches: no microbatch costs more than another."""
    lower = lower_step if kind == "step" else lower_evaluation
    counts = [
        len(lower(rank_view(replace(spec, layout=replace(spec.layout, num_microbatches=n, prefetch=1)))).instructions)
        for n in (3, 4, 5, 7)
    ]
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[3] - counts[2] == 2 * (counts[2] - counts[1])


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("schedule", [s for s in FIXED if s not in ("gpipe", "interleaved_1f1b")])
def test_once_a_pipeline_is_full_every_microbatch_adds_the_same_number_of_instructions(
    schedule: str, zero: int
) -> None:
    virtual = least_stages(schedule)
    lengths = []
    for microbatches in (16, 20, 24, 28):
        spec = make_spec(
            {"num_layers": 8}, pp=4, virtual_stages=virtual, schedule=schedule, accumulation=microbatches, dp_shard=2,
            zero=zero,
        )  # fmt: skip
        lengths.append([len(program.instructions) for program in lower_pipeline(spec)])
    growth = [[b - a for a, b in zip(x, y, strict=True)] for x, y in pairwise(lengths)]
    assert growth[0] == growth[1] == growth[2]


def test_the_ledger_is_the_sum_over_the_instructions() -> None:
    program = lower_step(make_view(dp_replicate=2, dp_shard=2, zero=3, accumulation=2))
    totals: Counter[str] = Counter()
    for step in program.instructions:
        for collective in step.collectives:
            totals[collective.axes] += collective.sent_bytes
    assert ledger(program) == dict(totals)
    assert len(totals) == 3


@pytest.mark.parametrize("preset", [p for p in preset_names() if p != "tiny"])
def test_presets_lower_and_verify_on_many_ranks(preset: str) -> None:
    model = resolve_model(ModelSection(preset=preset))
    spec = make_spec(
        model, dp_replicate=2, dp_shard=16, zero=3, accumulation=2, sequence_length=2048, precision={"compute": "bf16"}
    )
    _check_verified(spec)


LITERATURE = """
import sys, time
for blocked in ("torch", "transformers", "safetensors", "tokenizers", "numpy"):
    sys.modules[blocked] = None
from pathlib import Path
from fourfold.config import load_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import lower_pipeline, memory_peak, resolve_step, verify
start = time.process_time()
config = load_run(Path("preset:" + sys.argv[1]))
model = resolve_model(config.model)
spec = resolve_step(config, model, resolve_layout(config, model), "native")
lowered = lower_pipeline(spec)
middle = time.process_time()
layout = spec.layout
programs = {rank: lowered[layout.coordinates(rank)["pp"]] for rank in range(layout.world_size)}
faults = verify(programs, spec)
end = time.process_time()
peak = max(memory_peak(program).bytes for program in lowered)
instructions = sum(len(program.instructions) for program in lowered)
print(layout.world_size, layout.pp, instructions, len(faults), peak, round(middle - start, 2), round(end - middle, 2))
"""


LARGEST = "megatron-1t"
"""3,072 sequences in microbatches of one: some 20 seconds."""
SOME_RUNS = ("llama3-405b-16k", "mixtral-8x22b-256")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.sweep if name == LARGEST else pytest.mark.rest if name not in SOME_RUNS else ()
        )
        for name in run_preset_names()
    ],
)
def test_runs_of_the_literature_lower_and_verify_on_all_pipeline_ranks_without_torch(name: str) -> None:
    """A program needs neither torch nor numpy nor the tokenizers: they cannot even be imported here."""
    command = [sys.executable, "-c", LITERATURE, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ranks, stages, instructions, faults, peak, lower_seconds, verify_seconds = done.stdout.split()
    print(
        f"{name}: {ranks} ranks, {instructions} instructions, lowered in {lower_seconds} s, verified in {verify_seconds} s"
    )
    config = load_run(Path(f"preset:{name}"))
    layout = resolve_layout(config, resolve_model(config.model))
    assert (int(ranks), int(stages), int(faults)) == (layout.world_size, layout.pp, 0)
    blocks = resolve_model(config.model).num_layers
    assert int(instructions) > 2 * blocks * layout.num_microbatches
    assert int(peak) > 2**30
