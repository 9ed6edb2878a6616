"""What holds for every program that lowering makes, whatever the model and the layout."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelSection, preset_names, resolve_model
from fourfold.program import Lowering, Op, Program, lower_evaluation, lower_step, memory_curve, memory_peak, verify
from fourfold.program.instruction import BACKWARD_OPS, COMPUTE_OPS
from fourfold.program.liveness import ledger
from tests.support.programs import make_facts, on_all_ranks, positions
from tests.support.strategies import lowerings

SOME = settings(max_examples=120, deadline=None)


@SOME
@given(lowerings())
def test_every_lowered_program_is_verified(facts: Lowering) -> None:
    assert verify(on_all_ranks(lower_step(facts), facts), facts) == []
    assert verify(on_all_ranks(lower_evaluation(facts), facts), facts) == []


@pytest.mark.sweep
@settings(max_examples=3000, deadline=None)
@given(lowerings())
def test_every_lowered_program_is_verified_at_length(facts: Lowering) -> None:
    assert verify(on_all_ranks(lower_step(facts), facts), facts) == []
    assert verify(on_all_ranks(lower_evaluation(facts), facts), facts) == []


@SOME
@given(lowerings())
def test_every_segment_runs_once_forward_and_once_backward_for_every_microbatch(facts: Lowering) -> None:
    runs = Counter((s.op, s.segment, s.microbatch) for s in lower_step(facts).instructions if s.op in COMPUTE_OPS)
    expected: Counter[tuple[Op, str | None, int | None]] = Counter()
    for segment in facts.segments:
        for m in range(facts.layout.num_microbatches):
            expected[Op.BACKWARD, segment.name, m] = 1
            if segment.kind != "head":
                expected[Op.FORWARD, segment.name, m] = 1
            if facts.policy(segment) == "full":
                expected[Op.RECOMPUTE, segment.name, m] = 1
    assert runs == expected


@SOME
@given(lowerings())
def test_the_peak_is_the_highest_point_of_the_curve_and_its_buffers_add_up(facts: Lowering) -> None:
    program = lower_step(facts)
    peak = memory_peak(program)
    assert peak.bytes == max(memory_curve(program)) == memory_curve(program)[peak.index]
    assert peak.bytes == sum(size for _, size in peak.buffers) + peak.workspace_bytes
    assert sum(peak.by_kind().values()) == peak.bytes


@SOME
@given(lowerings())
def test_after_the_step_what_was_live_before_it_is_live_and_nothing_else(facts: Lowering) -> None:
    for program in (lower_step(facts), lower_evaluation(facts)):
        live = set(program.resident)
        for step in program.instructions:
            assert live >= set(step.reads)
            live = (live | set(step.writes)) - set(step.frees)
        assert live == set(program.resident)


# Gathers


def _window(program: Program, position: int, distance: int) -> set[str]:
    """Units that the computation at this position and the `distance` after it read."""
    computes = positions(program, *COMPUTE_OPS)[position : position + distance + 1]
    return {n for i in computes for n in program.instructions[i].reads if n.startswith("params/")}


@SOME
@given(lowerings())
def test_nothing_is_gathered_earlier_or_kept_longer_than_the_prefetch_distance_allows(facts: Lowering) -> None:
    """At any time the gathered units are among those that the next prefetch + 1 computations read."""
    if facts.zero < 3:
        facts = replace(facts, layout=replace(facts.layout, zero=3, dp_shard=2))
    program, position = lower_step(facts), 0
    live: set[str] = set()
    for step in program.instructions:
        live |= {n for n in step.writes if n.startswith("params/")}
        if step.op is Op.GATHER or step.op in COMPUTE_OPS:
            assert live <= _window(program, position, facts.layout.prefetch)
        position += step.op in COMPUTE_OPS
        live -= set(step.frees)


@SOME
@given(lowerings())
def test_a_gather_starts_as_early_as_the_prefetch_distance_allows(facts: Lowering) -> None:
    """Between the start of a gather and its first use stand `prefetch` computations, or all there are."""
    facts = replace(facts, layout=replace(facts.layout, zero=3, dp_shard=2))
    program = lower_step(facts)
    computes = positions(program, *COMPUTE_OPS)
    for index in positions(program, Op.GATHER):
        (buffer,) = program.instructions[index].writes
        use = next(i for i in computes if i > index and buffer in program.instructions[i].reads)
        between = sum(index < i < use for i in computes)
        before = sum(i < use for i in computes)
        assert between == min(facts.layout.prefetch, before)


@pytest.mark.parametrize("tied", [False, True])
def test_a_longer_prefetch_never_gathers_more(tied: bool) -> None:
    counts = []
    for prefetch in range(12):
        facts = make_facts({"tie_embeddings": tied}, dp_shard=2, zero=3, accumulation=3, prefetch=prefetch)
        counts.append(len(positions(lower_step(facts), Op.GATHER)))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == len(facts.flats), "with everything within reach, every unit is gathered once"
    assert counts[0] > counts[-1]


# Recompute


@SOME
@given(lowerings())
def test_full_recompute_saves_nothing_until_the_segment_goes_backward(facts: Lowering) -> None:
    """A fully recomputed block's saved tensors live from its Recompute to its Backward, and those are neighbours."""
    facts = replace(facts, layout=replace(facts.layout, recompute=("none", *["full"] * facts.model.num_layers, "none")))
    live: set[str] = set()
    last: object = None
    for step in lower_step(facts).instructions:
        live |= {n for n in step.writes if n.startswith("saved/")}
        if step.op is Op.FORWARD:
            assert not live
        if step.op in COMPUTE_OPS:
            if step.op in BACKWARD_OPS and (step.segment or "").startswith("b"):
                assert last == (Op.RECOMPUTE, step.segment, step.microbatch)
                assert live == {f"saved/{step.segment}/m{step.microbatch}"}
            last = (step.op, step.segment, step.microbatch)
        live -= set(step.frees)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_more_recompute_needs_less_memory(zero: int, compute: str) -> None:
    peaks = []
    for recompute in ("none", "selective", "full"):
        facts = make_facts(
            {"num_layers": 8}, dp_shard=2, zero=zero, recompute=recompute, sequence_length=256,
            microbatch_sequences=4, precision={"compute": compute},
        )  # fmt: skip
        peaks.append(memory_peak(lower_step(facts)).bytes)
    assert peaks[0] > peaks[1] > peaks[2]


def test_recomputing_one_block_more_never_needs_more_memory() -> None:
    peaks = []
    for count in range(7):
        facts = make_facts({"num_layers": 6}, dp_shard=2, zero=2, recompute=f"full:{count}", sequence_length=256)
        peaks.append(memory_peak(lower_step(facts)).bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.7 * peaks[0]


# Size


@SOME
@given(lowerings(), st.sampled_from(["step", "evaluation"]))
def test_every_microbatch_after_the_second_adds_the_same_number_of_instructions(facts: Lowering, kind: str) -> None:
    """The length is linear in the number of microbatches: no microbatch costs more than another."""
    lower = lower_step if kind == "step" else lower_evaluation
    counts = [
        len(lower(replace(facts, layout=replace(facts.layout, num_microbatches=n, prefetch=1))).instructions)
        for n in (3, 4, 5, 7)
    ]
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert counts[3] - counts[2] == 2 * (counts[2] - counts[1])


def test_the_ledger_is_the_sum_over_the_instructions() -> None:
    program = lower_step(make_facts(dp_replicate=2, dp_shard=2, zero=3, accumulation=2))
    totals: Counter[str] = Counter()
    for step in program.instructions:
        for collective in step.collectives:
            totals[collective.axes] += collective.sent_bytes
    assert ledger(program) == dict(totals)
    assert len(totals) == 3


@pytest.mark.parametrize("preset", [p for p in preset_names() if p != "tiny"])
def test_presets_lower_and_verify_on_many_ranks(preset: str) -> None:
    model = resolve_model(ModelSection(preset=preset))
    facts = make_facts(
        model, dp_replicate=2, dp_shard=16, zero=3, accumulation=2, sequence_length=2048, precision={"compute": "bf16"}
    )
    assert verify(on_all_ranks(lower_step(facts), facts), facts) == []


BIG = """
import sys, time
from fourfold.config import parse_run, resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import Lowering, lower_step, memory_peak, verify
start = time.process_time()
config = parse_run({
    "model": {"preset": "llama3-405b"},
    "batch": {"global_sequences": 16384, "sequence_length": 8192},
    "layout": {"dp_replicate": 16, "dp_shard": 64, "zero": 3, "recompute": "full"},
    "precision": {"compute": "bf16"},
})
model = resolve_model(config.model)
facts = Lowering.of(config, model, resolve_layout(config, model))
program = lower_step(facts)
assert verify(dict.fromkeys(range(facts.layout.world_size), program), facts) == []
assert memory_peak(program).bytes > 0
seconds = time.process_time() - start
loaded = [name for name in ("torch", "transformers", "safetensors", "tokenizers") if name in sys.modules]
print(len(program.instructions), seconds, loaded)
"""


def test_the_405b_model_on_1024_ranks_lowers_and_verifies_in_seconds_without_torch() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    instructions, seconds, loaded = done.stdout.split(maxsplit=2)
    assert loaded.strip() == "[]"
    assert int(instructions) > 16 * 126 * 3
    assert float(seconds) < 2
