"""Every way we know to break the programs of a step: the verifier names rank, index, instruction and what would mend it."""

import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fourfold.program import Program, StepSpec, lower_pipeline, memory_peak, rank_view, verify
from fourfold.program.declarations import check_declarations
from tests.support.program_mutations import MUTATIONS, PIPELINE_MUTATIONS, Mutant
from tests.support.programs import (
    QWEN3_MOE,
    SAMPLED,
    by_rank,
    deepseek,
    evaluation,
    evaluation_pipeline,
    make_spec,
    training,
)

TIED = {"model": {"tie_embeddings": True}}
COMPRESSED = {"precision": {"gradient_communication": "bf16"}}
CASES: dict[str, dict[str, Any]] = {
    "one_rank": {"accumulation": 2},
    "zero0": {"dp_shard": 2, "zero": 0},
    "zero0_accumulated": {"dp_shard": 2, "zero": 0, "accumulation": 2},
    "zero1_accumulated": {"dp_shard": 2, "zero": 1, "accumulation": 2},
    "zero2": {"dp_shard": 4, "zero": 2},
    "zero2_accumulated": {"dp_shard": 2, "zero": 2, "accumulation": 2, **TIED},
    "zero3": {"dp_shard": 4, "zero": 3, "prefetch": 2},
    "zero3_full": {"dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full", "prefetch": 0},
    "zero3_tied": {"dp_shard": 2, "zero": 3, "accumulation": 2, **TIED},
    "hsdp0": {"dp_replicate": 2, "dp_shard": 2, "zero": 0, "accumulation": 2},
    "hsdp1": {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "accumulation": 2, "transport": "native"},
    "hsdp2": {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "accumulation": 2, "recompute": "full:1"},
    "hsdp3": {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full"},
    "mixed": {"dp_shard": 2, "zero": 2, "precision": {"compute": "bf16"}, "document_mask": True},
    "compressed_zero1": {"dp_shard": 2, "zero": 1, "accumulation": 2, **COMPRESSED},
    "compressed_hsdp3": {
        "dp_replicate": 2,
        "dp_shard": 2,
        "zero": 3,
        "accumulation": 2,
        "transport": "native",
        **COMPRESSED,
    },
    "compressed_tensor": {
        "tp": 2,
        "sequence_parallel": True,
        "dp_shard": 2,
        "zero": 2,
        "accumulation": 2,
        **COMPRESSED,
    },
    "tensor": {"tp": 2, "dp_shard": 2, "accumulation": 2},
    "tensor_sequence": {"tp": 4, "sequence_parallel": True, "dp_shard": 2, "zero": 2, "accumulation": 2},
    "context": {"cp": 2, "dp_shard": 2, "zero": 3, "sequence_length": 16},
    "context_ulysses": {"cp": 4, "cp_method": "ring+ulysses:2", "zero": 1, "sequence_length": 16},
    "experts": {"model": QWEN3_MOE, "dp_shard": 2, "tp": 2, "ep": 2, "sequence_parallel": True, "zero": 2},
    "experts_split": {"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "etp": 2, "zero": 0, "dp_replicate": 2},
    "1f1b": {"pp": 2, "accumulation": 3},
    "1f1b_tied": {"pp": 2, "accumulation": 2, "dp_shard": 2, "zero": 1, **TIED},
    "gpipe_tied_zero2": {"pp": 3, "schedule": "gpipe", "accumulation": 2, "dp_shard": 2, "zero": 2, **TIED},
    "zb_h1": {"pp": 2, "schedule": "zb_h1", "accumulation": 3, "dp_shard": 2, "zero": 2, "recompute": "full:1"},
    "interleaved": {
        **{"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "accumulation": 3, "tp": 2},
        **{"model": {"num_layers": 4}},
    },
    "zb_v_zero3": {"pp": 2, "schedule": "zb_v", "virtual_stages": 2, "accumulation": 2, "dp_shard": 2, "zero": 3},
    "checked": {"dp_shard": 2, "zero": 0, "accumulation": 2, "checked": True, **TIED},
    "checked_hsdp3": {
        "dp_replicate": 2,
        "dp_shard": 2,
        "zero": 3,
        "accumulation": 2,
        "recompute": "full",
        "checked": True,
    },
    "checked_zb_h1": {
        **{"pp": 2, "schedule": "zb_h1", "accumulation": 3, "dp_shard": 2, "zero": 2, "tp": 2, "checked": True, **TIED},
        **{"sequence_parallel": True},
    },
    "checked_experts": {
        "model": deepseek(),
        "pp": 2,
        "dp_shard": 2,
        "ep": 2,
        "zero": 1,
        "accumulation": 2,
        "checked": True,
    },
    "muon_zero0": {"dp_shard": 2, "zero": 0, "accumulation": 2, "optimizer": "muon"},
    "muon_hsdp1": {
        "dp_replicate": 2,
        "dp_shard": 2,
        "zero": 1,
        "pp": 2,
        "accumulation": 2,
        "optimizer": "muon",
        **TIED,
    },
    "muon_experts": {"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "zero": 3, "checked": True, "optimizer": "muon"},
    "muon_tensor": {
        **{"tp": 2, "sequence_parallel": True, "dp_shard": 2, "zero": 1, "accumulation": 2},
        "optimizer": {"name": "muon", "placement": "shard"},
    },
    "muon_homes": {
        **{"tp": 2, "cp": 2, "dp_replicate": 2, "dp_shard": 2, "zero": 3, "sequence_length": 16},
        "optimizer": {"name": "muon", "placement": "owner"},
    },
    "muon_experts_homes": {
        **{"model": deepseek(), "dp_shard": 4, "ep": 2, "etp": 2, "zero": 2},
        "optimizer": {"name": "muon", "placement": "owner", "per_head": True},
    },
    "offload": {"accumulation": 2, "offload": "activations", "offload_optimizer": True, "model": {"num_layers": 4}},
    "offload_zero3": {
        **{"dp_shard": 2, "zero": 3, "accumulation": 2, "offload": "activations:2", "offload_optimizer": True},
        **{"precision": {"compute": "bf16"}, "model": {"num_layers": 5}, "recompute": "full:1"},
    },
    "offload_zb_h1": {
        **{"pp": 2, "schedule": "zb_h1", "accumulation": 3, "dp_shard": 2, "zero": 1, "offload": "activations"},
        **{"offload_optimizer": True, "optimizer": "muon", "checked": True, "model": {"num_layers": 4}},
    },
    "deepseek": {"model": deepseek(), "pp": 2, "dp_shard": 2, "ep": 2, "zero": 1, "accumulation": 2},
    "overlap": {"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "zero": 2, "accumulation": 3, "overlap_experts": True},
    "overlap_zero3": {
        **{"model": deepseek(), "dp_shard": 2, "ep": 2, "zero": 3, "accumulation": 2, "recompute": "full"},
        "overlap_experts": True,
    },
    "overlap_dualpipe_v": {
        **{"model": {**QWEN3_MOE, "num_layers": 4}, "pp": 2, "schedule": "dualpipe_v", "accumulation": 4},
        **{"dp_shard": 2, "ep": 2, "zero": 1, "overlap_experts": True},
    },
    "sampled_zero3": {"dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full", "sampled": SAMPLED, **TIED},
    "sampled_1f1b": {
        "pp": 3,
        "accumulation": 2,
        "tp": 2,
        "sampled": ("attention", "activations"),
        "document_mask": True,
    },
    "sampled_context": {
        **{
            "cp": 4,
            "cp_method": "ring+ulysses:2",
            "tp": 2,
            "sequence_parallel": True,
            "sequence_length": 16,
            "zero": 1,
        },
        **{"sampled": SAMPLED, "precision": {"compute": "bf16"}, "optimizer": "muon"},
    },
    "sampled_experts": {
        **{"model": QWEN3_MOE, "dp_shard": 4, "ep": 2, "zero": 2, "accumulation": 3, "overlap_experts": True},
        **{"sampled": SAMPLED, "offload": "activations", "offload_optimizer": True},
    },
    "everything": {
        **{"model": {**QWEN3_MOE, "tie_embeddings": True}, "pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2},
        **{
            "ep": 4,
            "sequence_parallel": True,
            "schedule": "zb_h1",
            "zero": 2,
            "accumulation": 2,
            "sequence_length": 16,
        },
    },
}
SAMPLE = 4
"""Mutants of each kind and case that are drawn; `make test-all` checks them all."""
CASES_A_KIND = 3
"""Cases, of those that a kind applies to, in which `make test` looks at it; `make test-rest` looks in all."""


@functools.cache
def _spec(case: str) -> StepSpec:
    return make_spec(**CASES[case])


@functools.cache
def _programs(case: str) -> list[Program]:
    return lower_pipeline(_spec(case))


def _mutants(kind: str, spec: StepSpec, programs: list[Program]) -> Iterator[Mutant]:
    """Mutants of all stages' programs, stage by stage where the kind is one of a single program's."""
    if kind in PIPELINE_MUTATIONS:
        yield from PIPELINE_MUTATIONS[kind](programs, spec)
        return
    for program in programs:
        for mutant in MUTATIONS[kind](program, rank_view(spec, program.pp_rank)):
            if isinstance(mutant, Program):
                yield [*programs[: program.pp_rank], mutant, *programs[program.pp_rank + 1 :]]
            else:
                yield mutant


def _sample(kind: str, case: str, mutants: Iterator[Mutant], size: int) -> list[tuple[int, Mutant]]:
    """Some of them at random, the same ones every time; with their numbers."""
    rng, chosen = random.Random(f"{kind} {case}"), []
    for number, mutant in enumerate(mutants):
        if len(chosen) < size:
            chosen.append((number, mutant))
        elif (place := rng.randrange(number + 1)) < size:
            chosen[place] = (number, mutant)
    return chosen


def _check_caught(mutant: Mutant, programs: list[Program], spec: StepSpec, where: str) -> None:
    given = by_rank(programs if isinstance(mutant, dict) else mutant, spec)  # type: ignore[arg-type]
    given |= mutant if isinstance(mutant, dict) else {}
    assert given != by_rank(programs, spec), f"{where}: breaks nothing"
    faults = verify(given, spec)
    assert faults, f"{where}: not caught"
    for fault in faults:
        steps = given[fault.rank].instructions
        if fault.instruction is None:
            assert "declarations" in str(fault)
        else:
            assert steps[fault.index] is fault.instruction, f"{where}: {fault} names another instruction"
            assert f"rank {fault.rank}, #{fault.index} `{fault.instruction.short}`" in str(fault)
        assert fault.message
        assert fault.fix


KINDS = [*MUTATIONS, *PIPELINE_MUTATIONS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_mutation_applies_somewhere_and_is_caught(kind: str) -> None:
    applied = 0
    for case in random.Random(kind).sample(list(CASES), len(CASES)):
        spec, programs = _spec(case), _programs(case)
        chosen = _sample(kind, case, _mutants(kind, spec, programs), SAMPLE)
        for number, mutant in chosen:
            _check_caught(mutant, programs, spec, f"{kind} {number} of {case}")
        applied += bool(chosen)
        if applied == CASES_A_KIND:
            break
    assert applied


@pytest.mark.rest
@pytest.mark.parametrize("case", CASES)
def test_every_mutation_is_caught(case: str) -> None:
    spec, programs = _spec(case), _programs(case)
    for kind in KINDS:
        for number, mutant in _sample(kind, case, _mutants(kind, spec, programs), SAMPLE):
            _check_caught(mutant, programs, spec, f"{kind} {number} of {case}")


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mutation_is_caught_everywhere(kind: str, case: str) -> None:
    spec, programs = _spec(case), _programs(case)
    for number, mutant in enumerate(_mutants(kind, spec, programs)):
        _check_caught(mutant, programs, spec, f"{kind} {number} of {case}")


def test_no_two_kinds_have_one_name() -> None:
    assert len(set(KINDS)) == len(KINDS) > 100


@pytest.mark.parametrize("case", CASES)
def test_the_unbroken_programs_are_accepted(case: str) -> None:
    assert verify(training(_spec(case)), _spec(case)) == []
    assert verify(evaluation(_spec(case)), _spec(case)) == []


EVALUATION = [
    "any_instruction_dropped",
    "any_instruction_doubled",
    "any_start_dropped_with_its_wait",
    "any_read_undeclared",
    "any_write_undeclared",
    "any_free_undeclared",
    "freed_before_its_last_reader",
    "gather_of_the_wrong_unit",
    "gather_over_wrong_axes",
    "one_microbatch_left_out",
    "one_microbatch_run_as_another",
    "scalar_over_wrong_axes",
    "scalar_without_a_collective",
    "scalar_summed_twice",
    "wait_before_its_start",
    "wrong_collective_bytes",
    "wrong_group_size",
    "one_rank_with_one_collective_fewer",
    "one_rank_stops_early",
    "workspace_understated",
    "transfer_dropped_at_one_end",
    "transfer_dropped_at_both_ends",
    "transfer_doubled_at_both_ends",
    "transfers_started_in_another_order_at_one_end",
    "transfer_with_another_peer",
    "transfer_of_the_wrong_bytes",
    "received_after_its_use",
    "transfer_never_joined",
    "a_microbatch_left_out_by_all_stages",
    "inner_collective_left_out_or_doubled",
    "inner_collective_over_another_axis",
    "programs_of_two_stages_exchanged",
]


def _check_evaluations(kind: str, case: str, size: int) -> None:
    spec = _spec(case)
    programs = evaluation_pipeline(spec)
    for number, mutant in _sample(kind, case, _mutants(kind, spec, programs), size):
        _check_caught(mutant, programs, spec, f"{kind} {number} of {case}'s evaluation")


@pytest.mark.grid(1, of=lambda case: CASES[case])
@pytest.mark.parametrize("case", CASES)
def test_evaluations_are_guarded_as_well(case: str) -> None:
    for kind in EVALUATION:
        _check_evaluations(kind, case, SAMPLE)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", EVALUATION)
def test_evaluations_are_guarded_everywhere(kind: str, case: str) -> None:
    _check_evaluations(kind, case, 10**9)


@pytest.mark.parametrize("case", CASES)
def test_a_peak_above_the_limit_names_its_instruction(case: str) -> None:
    spec, programs = _spec(case), _programs(case)
    peaks = [memory_peak(program) for program in programs]
    highest = max(peak.bytes for peak in peaks)
    assert verify(by_rank(programs, spec), spec, highest) == []
    faults = verify(by_rank(programs, spec), spec, highest - 1)
    assert len(faults) == sum(peak.bytes == highest for peak in peaks)
    for fault in faults:
        peak = peaks[spec.layout.coordinates(fault.rank)["pp"]]
        assert fault.index == peak.index
        assert fault.instruction is programs[spec.layout.coordinates(fault.rank)["pp"]].instructions[peak.index]
        assert str(highest) in str(fault)
        assert peak.buffers[0][0] in str(fault)


@pytest.mark.parametrize("lost", [[1], [0, 3], list(range(1, 16))], ids=len)
def test_an_incomplete_set_of_ranks_is_refused(lost: list[int]) -> None:
    spec = make_spec(pp=2, dp_shard=4, tp=2, zero=1, accumulation=2)
    programs = {rank: program for rank, program in training(spec).items() if rank not in lost}
    (fault,) = verify(programs, spec)
    named = " and 7 more" if len(lost) > 8 else ""
    assert f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost[:8]))}{named} of the layout's 16 ranks" in str(
        fault
    )
    assert (fault.rank, fault.index) == (lost[0], 0)


def test_a_rank_that_the_layout_lacks_is_refused() -> None:
    spec = make_spec(dp_shard=2, zero=1)
    programs = training(spec)
    (fault,) = verify({**programs, 2: programs[0]}, spec)
    assert "given for rank 2, and the layout has ranks 0 to 1" in str(fault)
    assert (fault.rank, fault.index) == (2, 0)


@pytest.mark.parametrize(
    "case", [{"pp": 2, "schedule": "zb_h1"}, {"dp_shard": 2, "zero": 2, "recompute": "full"}], ids=str
)
def test_a_late_microbatch_is_checked_like_the_first(case: dict[str, Any]) -> None:
    """Instructions that differ by their microbatch alone are checked once: one that differs by more never passes for them."""
    spec = make_spec(**case, accumulation=12)
    for program in lower_pipeline(spec):
        view = rank_view(spec, program.pp_rank)
        assert check_declarations(0, program, view) == []
        for index, step in enumerate(program.instructions):
            if step.microbatch is None or step.microbatch < 10:
                continue
            own, other = f"/m{step.microbatch}", f"/m{step.microbatch - 1}"
            moved = {key: tuple(name.replace(own, other) for name in getattr(step, key)) for key in ("reads", "writes")}
            stripped = {
                key: tuple(name.removesuffix(own) for name in getattr(step, key)) for key in ("reads", "writes")
            }
            for changed in (
                *(step._replace(**{key: names}) for key, names in moved.items() if names != getattr(step, key)),
                *(step._replace(**{key: names}) for key, names in stripped.items() if names != getattr(step, key)),
                step._replace(workspace_bytes=step.workspace_bytes + 1),
                step._replace(stream="elsewhere"),
                step._replace(microbatch=12),
            ):
                steps = [*program.instructions[:index], changed, *program.instructions[index + 1 :]]
                faults = check_declarations(0, program.with_instructions(steps), view)
                assert any(fault.index == index for fault in faults), changed
