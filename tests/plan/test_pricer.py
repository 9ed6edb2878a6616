"""A pricer keeps what layouts of the same computation share, and says what one that keeps nothing says."""

from dataclasses import replace

import pytest

from fourfold.config import UserError
from fourfold.plan.budget import INSTRUCTION, MEMORY, SIMULATION, SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer, candidate_spec
from fourfold.program import compiled
from fourfold.program.expand import expand_segments
from fourfold.program.schedule.execution import execute
from fourfold.simulate.stage_times import estimate_makespan, stage_seconds
from tests.plan.test_bounds import EXPERTS, MLA, request

LAYOUT = Candidate(
    pp=2, schedule="1f1b", virtual_stages=1, dp_replicate=1, dp_shard=4, zero=1, cp=1, cp_method="ring", tp=2, ep=1, etp=1,
    microbatch_sequences=1, recompute="none",
)  # fmt: skip
DIVISIONS = [
    {"zero": 0, "dp_replicate": 4, "dp_shard": 1},
    {"zero": 1},
    {"zero": 1, "dp_replicate": 2, "dp_shard": 2},
    {"zero": 2, "dp_replicate": 2, "dp_shard": 2, "outermost": "dp_replicate"},
    {"zero": 3},
    {"zero": 3, "outermost": "dp"},
]


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("more", "layout"),
    [
        ({}, {}),
        ({}, {"schedule": "zb_h1", "recompute": "full"}),
        ({}, {"schedule": "interleaved_1f1b", "virtual_stages": 2, "recompute": "selective:2"}),
        (EXPERTS, {"ep": 2}),
        (MLA, {"ep": 2}),
    ],
    ids=["1f1b", "zero bubble", "interleaved", "experts", "latent"],
)
@pytest.mark.parametrize("sequences", [16, 256], ids=["whole", "straight line"])
def test_what_is_kept_of_other_divisions_of_the_data_changes_nothing(more: dict, layout: dict, sequences: int) -> None:
    asked = request(16, sequences, **more)
    keeping, seen = Pricer(asked), set()
    for division in (*DIVISIONS, *reversed(DIVISIONS)):
        candidate = replace(LAYOUT, **layout, **division)
        kept, alone = (_predicted(each, candidate) for each in (keeping, Pricer(asked)))
        assert kept == alone, candidate.words()
        seen.add(alone[0] if isinstance(alone, tuple) else alone)
    assert len(seen) > 3, "divisions differ in their times"


def test_what_fits_does_with_what_is_kept_of_others() -> None:
    asked = request(16, 16)
    layouts = [replace(LAYOUT, **division) for division in DIVISIONS]
    held = sorted(max(Pricer(asked).predict(layout).device_bytes) for layout in layouts)
    tight = replace(asked, memory_bytes=(held[0] + held[-1]) // 2)
    keeping = Pricer(tight)
    fits = [keeping.fits(layout) for layout in (*layouts, *reversed(layouts))]
    assert fits == [Pricer(tight).fits(layout) for layout in (*layouts, *reversed(layouts))]
    assert len(set(fits)) == 2


def test_what_is_computed_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(order, view, training=True):  # type: ignore[no-untyped-def]
        made.append(view.pp_rank)
        return expand_segments(order, view, training)

    monkeypatch.setattr(compiled, "expand_segments", counted)
    pricer = Pricer(request(16, 8))
    for division in DIVISIONS:
        pricer.predict(replace(LAYOUT, **division))
    assert made == [0, 1], "of each stage's rank, for all divisions of the data"
    pricer.predict(replace(LAYOUT, recompute="full"))
    assert made == [0, 1, 0, 1], "recomputation is another computation"


def _predicted(pricer: Pricer, candidate: Candidate) -> object:
    try:
        step = pricer.predict(candidate)
    except UserError as error:
        return str(error)
    return step.seconds, step.device_bytes, step.simulation.programs


def test_layouts_that_compute_otherwise_share_nothing() -> None:
    pricer = Pricer(request(16, 16))
    for candidate in (LAYOUT, replace(LAYOUT, recompute="full"), replace(LAYOUT, tp=4, dp_shard=2), LAYOUT):
        assert _predicted(pricer, candidate) == _predicted(Pricer(pricer.request), candidate), candidate.words()


@pytest.mark.parametrize(
    ("schedule", "virtual_stages"), [("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h2", 1), ("dualpipe_v", 2), ("zb_v", 2)]
)
def test_the_timeline_of_a_long_pipeline_is_that_of_all_its_microbatches(schedule: str, virtual_stages: int) -> None:
    asked = request(16, 16 * 9, num_layers=30)
    layout = replace(LAYOUT, pp=16, tp=1, dp_shard=1, schedule=schedule, virtual_stages=virtual_stages)
    spec = candidate_spec(asked, layout)
    prices, stages = asked.prices(spec.layout), compiled.CompiledStages(spec)
    every = execute(stages.orders(spec), stages.stages.ranks, stage_seconds(spec, prices, stages)).makespan
    assert estimate_makespan(spec, prices) == pytest.approx(every, rel=1e-3)


def test_the_step_of_the_fastest_layout_that_fits_is_kept() -> None:
    asked = request(16)
    pricer = Pricer(asked)
    first, slower = pricer.predict(LAYOUT), pricer.predict(replace(LAYOUT, recompute="full"))
    assert slower.seconds > first.seconds
    assert pricer.predict(LAYOUT) is first
    assert pricer.within(asked, SearchBudget(1.0)).predict(LAYOUT) is first, "whatever the constraints"


@pytest.mark.parametrize(("price", "share"), [("figures", 1.0), ("fits", MEMORY), ("end_ranks_bytes", 0.75 * MEMORY)])
def test_the_instructions_that_are_lowered_are_counted_as_work_once(price: str, share: float) -> None:
    asked, layout = request(16, 64), replace(LAYOUT, pp=4, dp_shard=2)
    pricer = Pricer(asked, SearchBudget(1e9))
    getattr(pricer, price)(layout)
    assert (spent := pricer.budget.spent) >= share * (SIMULATION + 100 * INSTRUCTION)
    getattr(pricer, price)(layout)
    pricer.end_ranks_bytes(layout)
    assert pricer.budget.spent == spent, "what is known costs nothing"
    pricer.figures(replace(layout, dp_shard=1, dp_replicate=2))
    assert pricer.budget.spent >= spent + SIMULATION


def test_ranks_whose_memory_is_known_are_not_all_ranks() -> None:
    asked, layout = request(16, 64), replace(LAYOUT, pp=4, dp_shard=2)
    keeping, alone = Pricer(asked), Pricer(asked)
    ends = keeping.end_ranks_bytes(layout)
    held = alone.held(layout)
    assert held is not None
    assert keeping.held(layout) == held
    assert ends == max(held[rank] for rank in (0, 1, 3))
    for most, fits in ((max(held), True), (max(held) - 1, False)):
        asked_again = replace(asked, memory_bytes=most)
        limited = Pricer(asked_again)
        limited.end_ranks_bytes(layout)
        assert limited.fits(layout) == fits


def test_what_another_shape_s_timeline_added_is_taken_over_for_a_pipeline_alone() -> None:
    asked = request(16, 64)
    for pp, added in ((1, False), (2, True), (4, True)):
        pricer, layout = Pricer(asked), replace(LAYOUT, pp=pp, dp_shard=8 // pp)
        timeline = pricer.timeline(layout, 0.0)
        assert (pricer.like(layout, timeline / 2) == pytest.approx(timeline)) == added
