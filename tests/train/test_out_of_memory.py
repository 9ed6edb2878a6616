"""Memory that is not there for an instruction: told as that, wherever it happens, final, with keys that need less."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fourfold.config import FinalFailure, parse_run
from fourfold.config.errors import is_out_of_memory
from fourfold.huggingface import resolve_model
from fourfold.kernels.backend import Backend
from fourfold.kernels.choose import Alone, choose
from fourfold.kernels.norm import KIND, NormCase
from fourfold.kernels.timed import TimedContest
from fourfold.layout import resolve_layout
from fourfold.program import lower_pipeline, lower_step, memory_peak, rank_view, resolve_step
from fourfold.runtime.collectives import make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.step import StepOutOfMemory
from fourfold.runtime.units import share_parameters
from fourfold.train.out_of_memory import SAVES_ENOUGH, _asked, out_of_memory
from tests.support.parity_ranks import LINKS, initialized_units, prepare_rank
from tests.support.parity_runs import RankData, global_batch, run_table
from tests.support.ranks import run_on_ranks
from tests.support.supervised import Supervised, write_run

CPU = torch.device("cpu")


def _told_of_every_instruction(rank: int, table: dict[str, Any], ranks: int) -> list[tuple[str, str]]:
    """For every instruction of a step, that one without memory: its short form, and the failure that comes of it."""
    config, view = prepare_rank(rank, table, ranks)
    spec = view.spec
    groups = make_groups(spec.layout, rank, groups_of(spec), 60.0, LINKS)
    units = initialized_units(config, view, rank)
    share_parameters(spec, units, groups)
    program = lower_step(view)
    batch = global_batch(0, config.batch.global_sequences, config.batch.sequence_length, 96, False)
    told = []
    for index, step in enumerate(program.instructions):
        executor = Executor(view, units, groups, config.optimizer, CPU, rank)
        handler, places = (
            executor._handlers[step.op],
            [i for i, s in enumerate(program.instructions) if s.op is step.op],
        )
        seen = iter(places)

        def without_memory(step: Any, wanted: int = index, handler: Any = handler, seen: Any = seen) -> None:
            if next(seen) == wanted:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            handler(step)

        executor._handlers[step.op] = without_memory
        try:
            executor.run(program, RankData(batch, spec, rank), 1e-3)
            told.append((step.short, "nothing"))
        except StepOutOfMemory as error:
            told.append((step.short, program.instructions[error.index].short))
    return told


@pytest.mark.parametrize(
    "sections",
    [
        {"layout": {"zero": 3}, "optimizer": {"name": "muon"}},
        {"layout": {"offload": "activations", "offload_optimizer": True}, "model": {"num_layers": 4}},
    ],
    ids=str,
)
def test_every_instruction_without_memory_is_named(sections: dict[str, dict[str, Any]]) -> None:
    batch = {"global_sequences": 2, "sequence_length": 8}
    table = run_table(**{**sections, "batch": batch, "model": {"vocab_size": 96, **sections.get("model", {})}})
    (told,) = run_on_ranks(1, _told_of_every_instruction, table=table, ranks=1)
    assert len(told) > 20
    assert [pair for pair in told if pair[0] != pair[1]] == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (
            RuntimeError("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO): Cuda failure 2 'out of memory'"),
            True,
        ),
        (RuntimeError("Timed out waiting 60000ms for send operation to complete"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_an_allocators_word_is_told_from_others(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def _failure(index: int, **sections: dict[str, Any]) -> tuple[FinalFailure, dict[str, Any], int]:
    """The failure of rank 0 at an instruction, the run's table, and the predicted peak of its training step."""
    table = run_table(
        model={"vocab_size": 96, "num_layers": 4}, batch={"global_sequences": 8, "sequence_length": 64}, **sections
    )
    config = parse_run(table)
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, 2))
    program = lower_step(rank_view(spec))
    context: Any = SimpleNamespace(rank=0, device=CPU)
    error = StepOutOfMemory(index, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"))
    peak = max(memory_peak(each).bytes for each in lower_pipeline(spec))
    return out_of_memory(error, program, config, spec, context, 7), table, peak


def test_the_failure_names_the_place_and_a_layout_that_needs_less() -> None:
    failure, table, peak = _failure(5, layout={"dp_shard": 2, "microbatch_sequences": 4})
    text = str(failure)
    assert text.startswith("rank 0 ran out of memory at step 7 #5 `")
    assert "Tried to allocate 2.00 GiB.]" in text
    keys, _, size = text.partition("; with ")[2].partition(" the predicted peak is ")
    changed = dict(each.removeprefix("layout.").split("=") for each in keys.split())
    config = parse_run({**table, "layout": {**table["layout"], **{key: _value(each) for key, each in changed.items()}}})
    model = resolve_model(config.model)
    programs = lower_pipeline(resolve_step(config, model, resolve_layout(config, model, 2)))
    needed = max(memory_peak(program).bytes for program in programs)
    assert needed <= SAVES_ENOUGH * peak
    assert size == f"{needed / 1e6:.2f} MB"


def _value(word: str) -> Any:
    return int(word) if word.isdecimal() else {"true": True}.get(word, word)


def test_a_lack_between_two_steps_is_told_as_one_and_is_final(tmp_path: Path) -> None:
    with Supervised(write_run(tmp_path), tmp_path / "run", fault="allocator:1:3:9") as run:
        assert run.finish() == 1, run.printed
        assert "rank 1 ran out of memory around its steps: a step's predicted peak " in run.printed
        assert "you tried]; with layout." in run.printed
        assert len(run.events("failure")) == 1
        assert run.events("restart") == []


NO_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB."
PLAIN = {name: Backend[NormCase](name) for name in ("one", "other")}


def _contest(problems: dict[str, str]) -> TimedContest[NormCase]:
    return TimedContest(
        kind=KIND,
        backends=PLAIN,
        case=NormCase(rows=2, width=4, dtype=torch.float32, device=CPU, eps=1e-5),
        examine=lambda backend: problems.get(backend.name),
        timed=lambda backend: lambda: None,
    )


@pytest.mark.parametrize("named", ["auto", "one"])
def test_a_trial_without_memory_is_no_fault_of_a_back_end(named: str, tmp_path: Path) -> None:
    contest, cache = _contest(dict.fromkeys(PLAIN, NO_MEMORY)), tmp_path / "norms.json"
    with pytest.raises(MemoryError, match=r"a trial of this run.s norms: .*Tried to allocate"):
        choose(contest, Alone(CPU), named, "", cache, lambda call: 1.0, True)


def test_what_lacked_memory_once_is_tried_again(tmp_path: Path) -> None:
    cache = tmp_path / "norms.json"
    times = iter([2.0, 1.0, 2.0])
    chosen = choose(_contest({"one": NO_MEMORY}), Alone(CPU), "auto", "", cache, lambda call: next(times), True)
    assert chosen.backend.name == "other"
    chosen = choose(_contest({}), Alone(CPU), "auto", "", cache, lambda call: next(times), True)
    assert chosen.backend.name == "one"


def test_of_a_long_message_of_the_device_the_request_is_kept() -> None:
    long = (
        "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.12 GiB is free. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )
    assert _asked(torch.OutOfMemoryError(long)) == "CUDA out of memory. Tried to allocate 1.96 GiB."
    assert _asked(RuntimeError("out of memory: you tried\nmore")) == "out of memory: you tried"


def test_where_nothing_is_left_to_change_more_ranks_are_named() -> None:
    least = {"zero": 3, "microbatch_sequences": 1, "recompute": "full", "offload_optimizer": True}
    failure, _, _ = _failure(3, layout={"dp_shard": 2, **least})
    assert "more ranks" in str(failure)
