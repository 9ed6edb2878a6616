"""`ff.Program` and `ff.verify`: look at programs, change them, and learn what is wrong; a rank without a program is refused."""

from pathlib import Path

import pytest

import fourfold as ff
from fourfold.program import Op

OVERRIDES = {"layout": {"pp": 2, "dp_shard": 2, "zero": 3, "microbatch_sequences": 3}}


@pytest.fixture
def program(here: Path) -> ff.Program:
    return ff.Program.of("run.toml", OVERRIDES)


def test_a_program_tells_its_instructions_and_its_memory(program) -> None:
    assert len(program.lists) == 2
    for pp_rank in (0, 1):
        steps, curve, peak = program.instructions(pp_rank), program.memory_curve(pp_rank), program.memory_peak(pp_rank)
        assert len(steps) == len(curve)
        assert curve[peak.index] == max(curve) == peak.bytes
        assert {Op.BACKWARD, Op.GATHER, Op.UPDATE} <= {step.op for step in steps}
    assert program.by_rank().keys() == set(range(4))
    assert repr(program).startswith("Program(train, 4 ranks, 2 lists of ")
    with pytest.raises(ff.UserError, match=r"pp_rank 2: the run has pp = 2; allowed: 0, 1"):
        program.instructions(2)


def test_a_text_that_is_read_back_is_the_same_program(program) -> None:
    assert program.with_text(program.text(1)) == program
    changed = program.with_text(program.text(1).replace("B head m0", "B head m1", 1))
    assert not ff.verify(changed)
    evaluation = ff.Program.of("run.toml", OVERRIDES, kind="evaluate")
    with pytest.raises(ff.UserError, match="kind evaluate; allowed: train"):
        program.with_text(evaluation.text())
    with pytest.raises(ff.UserError, match="kind trane: did you mean train"):
        ff.Program.of("run.toml", kind="trane")


def test_a_sound_program_is_true_and_has_a_proof(program) -> None:
    check = ff.verify(program)
    assert check
    assert check.sound
    assert [each["ranks"] for each in check.proofs()] == [4]
    assert [each["kind"] for each in ff.verify("run.toml", OVERRIDES).proofs()] == ["train", "evaluate"]
    assert repr(check) == "Verification(sound, 4 ranks)"


def test_a_broken_instruction_is_refused_by_name(program) -> None:
    steps = list(program.instructions(1))
    index = next(index for index, step in enumerate(steps) if step.op is Op.REDUCE)
    broken = program.with_instructions(steps[:index] + steps[index + 1 :], pp_rank=1)
    check = ff.verify(broken)
    assert not check
    assert check.faults[0].rank == 2
    assert check.to_json()["sound"] is False
    assert check.to_json()["faults"][0]["message"] in repr(check)
    assert check.proofs() == []
    assert ff.verify(program), "the program itself is as it was"


def test_a_peak_above_the_limit_is_a_fault(program) -> None:
    peak = max(program.memory_peak(pp_rank).bytes for pp_rank in (0, 1))
    assert ff.verify(program, memory_limit_bytes=peak)
    assert "the limit" in ff.verify(program, memory_limit_bytes=peak - 1).faults[0].message


def test_ranks_without_a_program_are_refused(program) -> None:
    every = program.by_rank()
    assert ff.verify("run.toml", OVERRIDES, programs=every)
    for missing in ((3,), (0, 1), (0, 1, 2, 3)):
        some = {rank: each for rank, each in every.items() if rank not in missing}
        check = ff.verify("run.toml", OVERRIDES, programs=some)
        assert not check
        assert f"for rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of" in check.faults[0].message
    more = ff.verify("run.toml", OVERRIDES, programs={**every, 4: every[0]})
    assert "for rank 4, and the layout has ranks 0 to 3" in more.faults[0].message
    half = ff.verify(ff.Program(program.resolved, "train", program.lists[:1]))
    assert "ranks 2, 3" in half.faults[0].message
    assert half.to_json()["sound"] is False


def test_options_of_a_run_beside_a_program_are_refused(program) -> None:
    with pytest.raises(ff.UserError, match=r"what works: fourfold\.verify\(program\)"):
        ff.verify(program, ranks=4)


def test_a_program_is_compiled_for_the_transport_of_a_cluster(here: Path) -> None:
    there, own = (ff.Program.of("run.toml", OVERRIDES, cluster=each) for each in ("dgx-h100", None))
    assert there.resolved.spec.transport == "native"
    assert own.resolved.spec.transport == "exchange"
    assert ff.verify(there)


def test_an_automatic_layout_is_that_of_the_cluster(here: Path) -> None:
    program = ff.Program.of("run.toml", {"layout": "auto"}, cluster="dgx-h100:4")
    assert program.resolved.layout.world_size == 4
    assert ff.verify(program)
