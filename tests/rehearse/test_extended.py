"""A full step of many microbatches, told from a short one, is the step that runs in full."""

from dataclasses import replace

import pytest

from fourfold.program import lower_pipeline
from fourfold.program.view import rank_views
from fourfold.rehearse.rank import RankRehearsal, rehearse_rank
from fourfold.rehearse.run import class_ranks, rehearse, shortened
from fourfold.rehearse.shapes import KnownShapes
from tests.rehearse.rehearsed import layout_spec


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "name",
    [
        "interleaved",
        "experts, first blocks dense",
        *(pytest.param(n, marks=pytest.mark.rest) for n in ("pipeline", "pipeline, tied")),
    ],
)
@pytest.mark.parametrize("microbatches", [12, 17])
def test_a_full_step(name: str, microbatches: int) -> None:
    spec, optimizer = layout_spec(name)
    spec = spec.with_microbatches(microbatches)
    ran: list[RankRehearsal] = []
    found = rehearse(spec, optimizer, ran.append)
    assert shortened(spec) is not spec
    programs, firsts = lower_pipeline(spec), class_ranks(spec)[0]
    for view, program, rank, result in zip(rank_views(spec), programs, firsts, found, strict=True):
        full = rehearse_rank(view, program, rank, optimizer, KnownShapes())
        assert _counts(result) == _counts(full)
        assert result.instructions == len(program.instructions)
        assert len(result.waits) == len(full.waits)


def test_of_pipeline_ranks_that_hold_alike_one_runs_in_full() -> None:
    spec, optimizer = layout_spec("zero bubble")
    spec = spec.with_microbatches(24)
    ran: list[RankRehearsal] = []
    found = rehearse(spec, optimizer, ran.append)
    most = max(len(result.calls) for result in ran)
    assert [result.pp_rank for result in ran if len(result.calls) > most / 2] == [0, 1, 3]
    assert [len(result.calls) == result.num_calls for result in found] == [True, True, False, True]


def _counts(result: RankRehearsal) -> RankRehearsal:
    return replace(result, calls=(), waits=(), joins={})
