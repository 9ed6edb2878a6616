"""On devices that their hosts are far ahead of: a rank at fault is named with the instruction that its device completed last, and
steps, replays and saves that merely take long raise no alarm."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from fourfold.config import parse_run
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.program import Op
from fourfold.runtime.progress import own_work
from tests.support.fake_device.faults import PlantedFault
from tests.support.fake_device.ranks import FakeRun
from tests.support.opcodes import RECEIVES, SENDS, STARTS

RUN: dict[str, Any] = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 320},
    "data": {"tokenizer": "bytes"},
    "batch": {"global_sequences": 16, "sequence_length": 32, "steps": 1000},
    "run": {"cuda_graphs": False},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"zero": 3, "dp_shard": 4, "microbatch_sequences": 2},
    "pipeline": {"pp": 2, "dp_shard": 2, "zero": 1, "microbatch_sequences": 2},
}


def resolved(layout: str, **faults: Any) -> ResolvedRun:
    return resolve_run(parse_run({**RUN, "layout": LAYOUTS[layout], "faults": faults}), 4, 320, "native")


def place(run: ResolvedRun, rank: int, kind: str, step: int) -> int:
    """The middlemost instruction of a rank's program in that step where a fault of that kind may be."""
    program = run.programs_at("train", step)[run.layout.pp_rank(rank)]
    own, steps = own_work(program), program.instructions
    fits = {
        "compute": lambda i: own[i] and steps[i].op not in STARTS and steps[i].op not in (Op.FREE, Op.LOAD),
        "host": lambda i: own[i] and steps[i].op not in STARTS,
        "collective": lambda i: bool(steps[i].collectives) and steps[i].op in STARTS,
        "transfer": lambda i: steps[i].op in SENDS,
        "link": lambda i: steps[i].op in RECEIVES or (steps[i].op is Op.REDUCE),
        "wait": lambda i: steps[i].op is Op.WAIT,
    }[kind]
    found = [index for index in range(len(steps)) if fits(index)]
    return found[len(found) // 2]


def short(run: ResolvedRun, rank: int, index: int, step: int) -> str:
    return run.programs_at("train", step)[run.layout.pp_rank(rank)].instructions[index].short


@pytest.mark.grid(1)
@pytest.mark.parametrize("kind", ["compute", "collective", "host", "wait"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_hang_is_blamed_on_its_rank_and_instruction(
    tmp_path: Path, layout: str, kind: str, rank: int, graphs: bool
) -> None:
    run = resolved(layout)
    step = 2 if graphs and kind != "compute" else 4  # a replay is one call of the host, which stops before or after it
    index = place(run, rank, kind, step)
    fault = PlantedFault("host" if kind == "wait" else kind, rank, step, index)
    found = FakeRun(run, tmp_path, [fault], graphs=graphs).run(1000)
    assert found is not None, "nobody was named"
    assert (found.rank, found.cause) == (rank, "hung"), found.message
    if graphs and kind == "compute":  # marked where ranks wait for each other
        own = own_work(run.programs_at("train", step)[run.layout.pp_rank(rank)])
        steps = run.programs_at("train", step)[run.layout.pp_rank(rank)].instructions
        assert found.instruction in [each.short for each in steps[: index + 1]]
        assert all(own[[each.short for each in steps].index(found.instruction) : index + 1])
        return
    assert found.instruction == short(run, rank, index, step), found.message
    assert found.completed == short(run, rank, index - 1, step), found.message
    assert f"completed `{found.completed}` last" in found.message


@pytest.mark.parametrize("rank", [0, 3])
def test_a_transfer_that_a_host_never_starts_is_blamed_on_it(tmp_path: Path, rank: int) -> None:
    run = resolved("pipeline")
    index = place(run, rank, "transfer", 4)
    found = FakeRun(run, tmp_path, [PlantedFault("transfer", rank, 4, index)]).run(1000)
    assert found is not None
    assert (found.rank, found.instruction) == (rank, short(run, rank, index, 4)), found.message


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_the_last_instruction_of_a_step_is_told_from_its_end(tmp_path: Path, layout: str) -> None:
    """All hosts stand at the end; one device hangs in the update, which is not that of rank 0."""
    run = resolved(layout)
    program = run.programs_at("train", 4)[run.layout.pp_rank(2)]
    index = max(i for i, each in enumerate(program.instructions) if each.op is Op.UPDATE)
    fake = FakeRun(run, tmp_path, [PlantedFault("compute", 2, 4, index)])
    found = fake.run(1000)
    assert found is not None
    assert all(each.position.counter == len(program.instructions) for each in fake.observe() if each.position.step == 4)
    assert (found.rank, found.instruction, found.issued) == (2, program.instructions[index].short, "end")


def test_a_message_that_is_lost_names_its_instruction_and_no_rank_alone(tmp_path: Path) -> None:
    run = resolved("sharded")
    index = place(run, 1, "link", 4)
    found = FakeRun(run, tmp_path, [PlantedFault("link", 1, 4, index)]).run(1000)
    assert found is not None
    assert (found.cause, found.instruction) == ("lost", f"wait {short(run, 1, index, 4)}"), found.message
    assert "4 ranks stand there, and none of them can be told from the others" in found.message


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_reader_that_waits_is_named(tmp_path: Path, rank: int, graphs: bool) -> None:
    found = FakeRun(resolved("sharded"), tmp_path, [PlantedFault("reader", rank, 5)], graphs=graphs).run(1000)
    assert found is not None
    assert (found.rank, found.cause, found.instruction) == (rank, "hung", "reading the data"), found.message


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_save_that_blocks_is_blamed_on_the_rank_whose_part_it_is(
    tmp_path: Path, rank: int, is_beside: bool, asked: bool
) -> None:
    fault = PlantedFault("save", rank, 6)
    found = FakeRun(resolved("sharded"), tmp_path, [fault], saves=3, is_beside=is_beside, asked=asked).run(3000)
    assert found is not None
    assert (found.rank, found.cause, found.instruction) == (rank, "hung", "saving"), found.message


@pytest.mark.parametrize("rank", [0, 3])
def test_a_slow_device_is_flagged_though_its_host_is_as_fast_as_others(tmp_path: Path, rank: int) -> None:
    fake = FakeRun(resolved("sharded"), tmp_path, [PlantedFault("slow", rank, 4, factor=2.0)], step_seconds=1.0)
    assert fake.run(100) is None
    assert {each.rank for each in fake.stragglers} == {rank}


@pytest.mark.grid(1)
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("stall", [None, 5.0])
def test_steps_that_take_long_raise_no_alarm(tmp_path: Path, layout: str, graphs: bool, stall: float | None) -> None:
    fake = FakeRun(resolved(layout, stall_seconds=stall), tmp_path, graphs=graphs, saves=10, is_beside=True)
    assert fake.run(1000) is None, fake.verdicts
    assert min(fake.steps) >= 25
    assert fake.stragglers == []


@pytest.mark.parametrize("stall", [None, 5.0])
def test_a_wait_for_a_full_step_raises_no_alarm(tmp_path: Path, stall: float | None) -> None:
    """A replay that says nothing of where it is: the host stands at its end for all of it."""
    fake = FakeRun(resolved("sharded", stall_seconds=stall), tmp_path, graphs=True, marked=False)
    assert fake.run(1000) is None, fake.verdicts
    assert min(fake.steps) >= 25


def test_a_replay_that_hangs_is_not_blamed_on_the_first_rank_for_want_of_knowledge(tmp_path: Path) -> None:
    run = resolved("sharded")
    fault = PlantedFault("compute", 2, 6, place(run, 2, "compute", 6))
    found = FakeRun(run, tmp_path, [fault], graphs=True, marked=False).run(1000)
    assert found is not None
    assert (found.rank, found.cause) == (2, "hung") or "none of them can be told from the others" in found.message


@pytest.mark.parametrize("seconds", [40.0, 70.0])
def test_a_link_that_flaps_raises_no_alarm(tmp_path: Path, seconds: float) -> None:
    run = resolved("pipeline")
    flaps = [
        PlantedFault("link", rank, step, place(run, rank, "link", step), seconds) for rank, step in ((0, 3), (2, 6))
    ]
    fake = FakeRun(run, tmp_path, flaps)
    assert fake.run(500) is None, fake.verdicts
    assert min(fake.steps) >= 8
