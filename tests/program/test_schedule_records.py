"""A schedule's orders do what its record states: every built-in schedule, many sizes."""

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest

from fourfold.program import Op, verify
from fourfold.program.compiled import CompiledStages, stage_flops
from fourfold.program.schedule import SCHEDULES, StageTimes, find_schedule, schedule_orders, stage_ranks
from fourfold.program.timeline import Timeline, timeline
from tests.support.programs import make_spec, training
from tests.support.schedules import FIXED, NAMES, least_stages, stages_of

SIZES = list(product((1, 2, 3, 4, 8), (1, 2, 3, 4, 7, 8, 16, 17)))
TIMES = [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (5.0, 4.0, 4.0), (2.0, 3.0, 1.0), (3.0, 1.0, 2.0)]
every_schedule = pytest.mark.parametrize("name", FIXED)


def run(name: str, P: int, v: int, M: int, *durations: float) -> Timeline:
    times = StageTimes.uniform(P * v, *durations)
    return timeline(schedule_orders(name, P, v, M), stage_ranks(name, P, v), times)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_what_the_schedule_is_and_is_found_by_its_name(name: str) -> None:
    schedule = find_schedule(name)
    assert find_schedule(name) is schedule
    assert schedule.name == name
    assert schedule.summary.endswith(".")
    assert any(year in schedule.paper for year in map(str, range(2018, 2030)))
    assert len(set(NAMES)) == len(SCHEDULES)


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_holds_as_many_stages_as_are_asked_for(name: str) -> None:
    for P, v in product((1, 2, 3, 8), stages_of(name)):
        assert Counter(stage_ranks(name, P, v)) == dict.fromkeys(range(P), v)


@every_schedule
def test_the_bubble_is_the_closed_form(name: str) -> None:
    for v, (P, M) in product(stages_of(name), SIZES):
        stated = find_schedule(name).bubble(P, v, M)
        if stated is not None:
            drawn = run(name, P, v, M)
            makespan, busy = Fraction(drawn.makespan), Fraction(sum(drawn.busy))
            assert (P * makespan - busy) / (P * makespan) == stated, (P, v, M)


@every_schedule
@pytest.mark.parametrize(("F", "I", "W"), TIMES)
def test_no_rank_idles_less_than_the_record_says(name: str, F: float, I: float, W: float) -> None:  # noqa: E741
    least = find_schedule(name).least_idle
    for v, (P, M) in product(stages_of(name), SIZES):
        rest = max(0.0, least.backward * (I + W) - least.weight * W)
        assert min(run(name, P, v, M, F, I, W).idle) >= (P - 1) * (least.forward * F + rest), (P, v, M)


@every_schedule
def test_the_fullest_rank_holds_at_least_the_microbatches_in_flight(name: str) -> None:
    schedule = find_schedule(name)
    for v, (P, M) in product(stages_of(name), SIZES):
        assert max(run(name, P, v, M).peak_activations) / v >= schedule.in_flight(P, v, M) - 1e-12, (P, v, M)


@every_schedule
def test_from_the_steady_state_on_memory_grows_with_the_microbatches_in_flight_alone(name: str) -> None:
    schedule = find_schedule(name)
    rounds = schedule.steady_rounds
    assert rounds is not None
    for v, P in product(stages_of(name), (1, 2, 3, 4)):
        few, many = rounds * P, 4 * rounds * P
        grown = schedule.in_flight(P, v, many) - schedule.in_flight(P, v, few)
        peaks = (run(name, P, v, number).peak_activations for number in (few, many))
        assert all(b - a == v * grown for a, b in zip(*peaks, strict=True)), (P, v)


@every_schedule
def test_halves_of_backwards_are_in_orders_that_split_them_alone(name: str) -> None:
    sizes = product(stages_of(name), SIZES)
    ops = {entry.op for v, (P, M) in sizes for order in schedule_orders(name, P, v, M) for entry in order}
    assert (Op.BACKWARD_WEIGHT in ops) == find_schedule(name).splits_backward


@pytest.mark.parametrize("name", NAMES)
def test_orders_follow_the_times_of_stages_where_the_record_says_so(name: str) -> None:
    """The head makes the last stage dear: the times that lowering gives are the stages' FLOPs."""
    v = least_stages(name)
    spec = make_spec({"num_layers": 4, "vocab_size": 5000}, pp=2, schedule=name, virtual_stages=v, accumulation=6)
    compiled = CompiledStages(spec)
    flops = stage_flops(compiled.stages, compiled.footprints)
    assert compiled.orders(spec) == schedule_orders(name, 2, v, 6, flops)
    assert (compiled.orders(spec) != schedule_orders(name, 2, v, 6)) == find_schedule(name).needs_times


@every_schedule
def test_programs_of_every_size_are_sound(name: str) -> None:
    for v, pp, M, zero in product(stages_of(name, 3), (1, 2, 3, 4), (1, 3, 4, 6), (1, 3)):
        model = {"num_layers": max(2, pp * v)}
        spec = make_spec(
            model, pp=pp, schedule=name, virtual_stages=v, accumulation=M, dp_shard=2, zero=zero, recompute="full:1"
        )
        assert verify(training(spec), spec) == [], (pp, v, M, zero)


def test_torch_has_the_schedules_under_the_names_of_the_records() -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    for schedule in SCHEDULES:
        if "torch" in schedule.names:
            assert hasattr(pipelining, f"Schedule{schedule.names['torch']}")
