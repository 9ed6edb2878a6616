"""Ranks that no longer get on are named, with their instruction, and the run recovers; a slow one is flagged and goes on."""

import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.config import RunFailure, parse_run
from fourfold.launch.resolve import resolve_run
from fourfold.program.liveness import ledger
from fourfold.runtime.progress import READING, TRAINING, Position
from fourfold.supervise import watch
from fourfold.supervise.blame import Blame, Sighting
from fourfold.supervise.observation import Observation
from fourfold.train.measured import check_sent
from tests.support.hangs_in_turn import hang_in_turn
from tests.support.supervised import Supervised, left_by, queued_seconds, write_run

RUN = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 320},
    "data": {"tokenizer": "bytes"},
    "batch": {"global_sequences": 12, "sequence_length": 32, "steps": 1},
    "layout": {"zero": 1},
}


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), 16)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed") as run:
        assert run.finish() == 0, run.printed
        assert run.events("failure") == []
        return left_by(run.out)


def test_a_collective_left_out_shows_in_the_bytes_of_the_step() -> None:
    resolved = resolve_run(parse_run(RUN), 2, 320)
    program = resolved.train_programs[0]
    declared = ledger(program)
    check_sent(program, declared, declared, 1, 7)
    reduction = next(step for step in program.instructions if step.short.startswith("R b1"))
    less = {**declared, "dp_shard": declared["dp_shard"] - sum(c.sent_bytes for c in reduction.collectives)}
    with pytest.raises(RunFailure, match=r"rank 1 sent .* over dp_shard in step 7, .* left out `R b\d"):
        check_sent(program, declared, less, 1, 7)


def test_a_rank_too_busy_to_say_where_it_is_computes_without_end() -> None:
    """The rank has come to the sum that its peer waits for; its calls are not known, and it wants the processor."""
    resolved = resolve_run(parse_run(RUN), 2, 320)
    at = next(i for i, step in enumerate(resolved.train_programs[0].instructions) if step.short == "C")
    place = Position(7, at, 0.0, 0.0, TRAINING, 1)
    waiting = Sighting(place, "S", ("torch/distributed/distributed_c10d.py", "runtime/collectives.py"))
    verdict = Blame(resolved).verdict([waiting, Sighting(place, "R")])
    assert (verdict.rank, verdict.cause, verdict.instruction) == (1, "looping", "C")


@pytest.mark.parametrize(
    ("stated", "transport", "seconds", "told"),
    [(None, "exchange", 5.0, 0), (None, "native", 90.0, 1), (7.0, "native", 7.0, 0), (0.0, "native", 0.0, 0)],
)
def test_the_limit_of_a_hang_depends_on_where_ranks_compute(
    stated: float | None, transport: str, seconds: float, told: int
) -> None:
    """A link may be away for tens of seconds, and NCCL gets over that; where it is a default on CUDA, the launch says so."""
    resolved = resolve_run(parse_run({**RUN, "faults": {"stall_seconds": stated}}), 2, 320, transport)  # type: ignore[arg-type]
    watching = watch.Watch(resolved.config.faults, 600.0, Blame(resolved))
    assert watching.stall_seconds == seconds
    assert [line.split()[1] for line in watching.notes()] == ["90,"] * told


class TwoRanks:
    """Ranks of which 0 waits for 1 from second 0 on, while 1 reads its data and stands still from second 0.3 on."""

    def __init__(self, clock: list[float], at: int) -> None:
        self._clock, self._at = clock, at

    def observe(self) -> list[Observation]:
        late = 1 if self._clock[0] > 0.3 else 0
        waiting, reading = Position(7, self._at, 0.0, 0.0, TRAINING, 1), Position(6 + late, 0, 0.0, 0.0, READING, 2)
        return [Observation(waiting, "S"), Observation(reading, "S")]

    def tracebacks(self) -> dict[int, tuple[str, ...]]:
        return {0: ("runtime/collectives.py",), 1: ("data/batches.py",)}


def test_the_rank_at_fault_is_named_as_soon_as_it_has_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait for it are late a moment before; nobody then looks away for a second."""
    resolved = resolve_run(parse_run(RUN), 2, 320)
    at = next(i for i, step in enumerate(resolved.train_programs[0].instructions) if step.short == "C")
    clock = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    watching = watch.Watch(parse_run(RUN).faults, 600.0, Blame(resolved), {TRAINING: 0.1, READING: 0.1})
    watching.begin()
    verdict, ranks = None, TwoRanks(clock, at)
    while verdict is None and clock[0] < 10:
        clock[0] += 0.05
        verdict = watching.look(ranks)
    assert verdict is not None
    assert (verdict.rank, verdict.cause) == (1, "hung")
    assert clock[0] < 4.8


class PartedRanks:
    """Rank 1, on another machine, stands in the sum of step 6, which rank 0 has left; it is heard for a second, or always."""

    def __init__(self, clock: list[float], at: int, hears: bool) -> None:
        self._clock, self._at, self._hears = clock, at, hears

    def observe(self) -> list[Observation]:
        here, there = (Position(step, self._at, 0.0, 0.0, TRAINING, 1) for step in (7, 6))
        return [Observation(here, "S"), Observation(there, "S", is_fresh=self._hears or self._clock[0] < 1)]

    def tracebacks(self) -> dict[int, tuple[str, ...]]:
        return dict.fromkeys((0, 1), ("runtime/collectives.py",))


@pytest.mark.parametrize("hears", [True, False])
def test_a_silent_machine_is_judged_by_its_silence(monkeypatch: pytest.MonkeyPatch, hears: bool) -> None:
    """Where it is heard, rank 0 left a sum out; where it is not, its silence is what gets named."""
    resolved = resolve_run(parse_run(RUN), 2, 320)
    at = next(i for i, step in enumerate(resolved.train_programs[0].instructions) if step.short == "C")
    clock = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    watching = watch.Watch(parse_run(RUN).faults, 600.0, Blame(resolved), {TRAINING: 0.1})
    watching.begin()
    verdicts = []
    while clock[0] < 10:
        clock[0] += 0.05
        verdicts += filter(None, [watching.look(PartedRanks(clock, at, hears))])
    assert {(each.rank, each.cause) for each in verdicts} == ({(0, "skipped")} if hears else set())


class UnevenRanks:
    """Two pipeline ranks that each work so many seconds a step, at ten steps a second."""

    def __init__(self, clock: list[float], seconds: list[float]) -> None:
        self._clock, self._seconds = clock, seconds

    def observe(self) -> list[Observation]:
        step = int(10 * self._clock[0])
        places = (Position(step, 0, 0.0, each * step, TRAINING, 1) for each in self._seconds)
        return [Observation(each, "R") for each in places]


@pytest.mark.parametrize(("slower", "named"), [(1.0, []), (1.3, []), (3.0, [1])])
def test_a_pipeline_rank_with_more_blocks_is_not_slow(
    monkeypatch: pytest.MonkeyPatch, slower: float, named: list[int]
) -> None:
    """The second rank has four of five blocks: it may take as much longer, and no more."""
    model = {**RUN["model"], "num_layers": 5}
    layout = {"pp": 2, "dp_shard": 1, "segments_per_stage": [2, 5]}
    resolved = resolve_run(parse_run({**RUN, "model": model, "layout": layout}), 2, 320)
    blame, clock = Blame(resolved), [0.0]
    first, second = blame.work(2)
    assert second > 2 * first
    assert blame.work(3) == [1.0] * 3
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    watching = watch.Watch(parse_run(RUN).faults, 600.0, blame)
    watching.begin()
    found, ranks = [], UnevenRanks(clock, [0.02 * first, slower * 0.02 * second])
    while clock[0] < 12:
        clock[0] += 0.5
        found += watching.stragglers(ranks)  # type: ignore[arg-type]
    assert [each.rank for each in found] == named


def test_a_rank_with_little_to_compute_may_take_as_long_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches and copies are most of a small step, whatever its FLOPs."""
    layout = {"pp": 2, "dp_shard": 1, "segments_per_stage": [2, 5]}
    resolved = resolve_run(parse_run({**RUN, "model": {**RUN["model"], "num_layers": 5}, "layout": layout}), 2, 320)
    clock = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])
    watching = watch.Watch(parse_run(RUN).faults, 600.0, Blame(resolved))
    watching.begin()
    found, ranks = [], UnevenRanks(clock, [0.05, 0.05])
    while clock[0] < 12:
        clock[0] += 0.5
        found += watching.stragglers(ranks)  # type: ignore[arg-type]
    assert found == []


def check_recovered(run: Supervised, undisturbed, rank: int, cause: str) -> dict:
    assert run.finish() == 0, run.printed
    (failure,) = run.events("failure")
    assert (failure["rank"], failure["cause"]) == (rank, cause), failure["message"]
    assert left_by(run.out) == undisturbed
    return failure


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.faults), 1])
def test_a_stopped_rank(run_file: Path, undisturbed, tmp_path: Path, rank: int) -> None:
    with Supervised(run_file, tmp_path / "run", fault=f"stop:{rank}:7:1") as run:
        run.wait_for_stop(rank)
        begun, queued = time.time(), queued_seconds(run.process.pid)
        run.wait_until(lambda: run.events("failure"))
        queued = queued_seconds(run.process.pid) - queued
        failure = check_recovered(run, undisturbed, rank, "stopped")
        assert failure["time"] - begun - queued < 5.0
        assert f"rank {rank} is stopped" in failure["message"]
        assert f"rank {1 - rank} waits at" in failure["message"]


@pytest.mark.faults
def test_an_endless_loop(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", fault="loop:1:7:1") as run:
        failure = check_recovered(run, undisturbed, 1, "looping")
        assert failure["instruction"] == "C"
        assert failure["step"] == 7


@pytest.mark.rest
def test_a_hung_data_reader(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", fault="sleep:0:7:1") as run:
        failure = check_recovered(run, undisturbed, 0, "hung")
        assert "reading the data of step 7" in failure["message"]
        assert "rank 1 waits at step 7" in failure["message"]


@pytest.mark.faults
def test_a_hang_in_the_copy_that_a_save_begins_with(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", "faults.stall_seconds=1", fault="starve:1:8:1") as run:
        failure = check_recovered(run, undisturbed, 1, "hung")
        assert "rank 1 hangs at copying the state of step 10" in failure["message"]


@pytest.mark.faults
def test_a_skipped_collective(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", fault="skip:1:7:1") as run:
        failure = check_recovered(run, undisturbed, 1, "skipped")
        assert "which went past it" in failure["message"]


@pytest.mark.faults
def test_a_slow_rank_is_flagged_and_goes_on(run_file: Path, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", "batch.steps=150", fault="slow:1:0:0") as run:
        run.wait_until(lambda: run.events("straggler"))
        assert {event["rank"] for event in run.events("straggler")} == {1}
        assert run.finish() == 0, run.printed
        assert run.events("failure") == []


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_hundred_hangs_are_named(tmp_path: Path) -> None:
    named = hang_in_turn(write_run(tmp_path), tmp_path / "run", 100)
    assert [each for each in named if not each.right] == []
    assert all(each.seconds < 5.0 for each in named if each.kind == "stop")
