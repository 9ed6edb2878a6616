"""The event simulation against the timeline of the schedules, and the laws that hold for any prices."""

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program import Op, lower_pipeline, verify
from fourfold.program.compiled import CompiledStages
from fourfold.program.schedule import StageTimes
from fourfold.program.timeline import timeline
from fourfold.simulate.prediction import predict_memory, predict_step, simulated_microbatches
from fourfold.simulate.step import IDLE, simulate
from tests.support.combinations import OWN
from tests.support.grid import others_are_rest
from tests.support.opcodes import COMPUTE_OPS
from tests.support.programs import by_rank, make_spec, moved, positions, wait_of
from tests.support.schedules import FIXED, least_stages, stages_of
from tests.support.simulated import UNIT, free_prices, one_block_a_stage, real_prices, unit_blocks

SCHEDULES = [(name, P, v) for name in FIXED for v in stages_of(name, 3) for P in ((1, 2, 4, 8) if v == 1 else (2, 4))]


@pytest.mark.grid(2)
@pytest.mark.parametrize("microbatches", [1, 3, 8, 13])
@pytest.mark.parametrize(("schedule", "pp", "virtual"), SCHEDULES)
def test_with_free_links_the_step_is_the_timeline(
    schedule: str, pp: int, virtual: int, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makespan and bubble are equal: the compiled program holds no rank up."""
    spec = one_block_a_stage(schedule, pp, virtual, microbatches)
    unit_blocks(monkeypatch)
    times = simulate(spec, free_prices(spec)).times
    drawn = timeline(CompiledStages(spec).orders(spec), spec.layout.stage_ranks, StageTimes.uniform(pp * virtual))
    assert times.makespan == drawn.makespan
    for rank, program in enumerate(lower_pipeline(spec)):
        busy = sum(UNIT.get(s.op, 0.0) for s in program.instructions if (s.segment or "").startswith("b"))
        assert times.makespan - busy == drawn.idle[rank]


def test_1f1b_of_four_ranks_and_eight_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of 1 each: 22, of which 3/11 is bubble."""
    spec = one_block_a_stage("1f1b", 4, 1, 8)
    unit_blocks(monkeypatch, {**UNIT, Op.BACKWARD: 1.0})
    makespan = Fraction(simulate(spec, free_prices(spec)).times.makespan)
    assert makespan == 22
    assert (makespan - 8 * 2) / makespan == Fraction(3, 11)


LAYOUTS = [
    {"pp": 1, "accumulation": 3},
    {"pp": 2, "accumulation": 4, "dp_shard": 2, "zero": 1},
    {"pp": 2, "accumulation": 5, "dp_shard": 2, "zero": 3},
    {"pp": 4, "accumulation": 6, "dp_shard": 2, "dp_replicate": 2, "zero": 2, "tp": 2, "sequence_parallel": True},
    {"pp": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b", "accumulation": 4, "tp": 2, "zero": 3, "dp_shard": 2},
    {"pp": 2, "virtual_stages": 2, "schedule": "zb_v", "accumulation": 4, "dp_shard": 2, "recompute": "full"},
    {"pp": 4, "schedule": "zb_h1", "accumulation": 5, "dp_shard": 2, "zero": 1, "recompute": "selective"},
]  # fmt: skip
MODEL = {"num_layers": 6, "tie_embeddings": True}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_rank_s_seconds_are_accounted_for(layout: dict) -> None:
    """The kinds of time sum to the makespan, and none is negative."""
    spec = make_spec(MODEL, transport="native", precision={"compute": "bf16"}, **layout)
    simulation = simulate(spec, real_prices(spec))
    for rank, spent in enumerate(simulation.spent):
        assert sum(spent.values()) == pytest.approx(simulation.times.makespan, rel=1e-9)
        assert min(spent.values()) >= 0
        ends = simulation.times.ranks[rank].ends
        starts = simulation.times.ranks[rank].starts
        assert all(a <= b for a, b in zip(starts, ends, strict=True))
        assert all(a <= b + 1e-15 for a, b in zip(ends, starts[1:], strict=False))
    assert 0 <= simulation.bubble_fraction < 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_simulation_is_repeatable(layout: dict) -> None:
    spec = make_spec(MODEL, transport="native", **layout)
    first, second = (simulate(spec, real_prices(spec)).times for _ in range(2))
    assert first == second


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_transfer_runs_after_both_ends_asked_and_before_who_joins_goes_on(layout: dict) -> None:
    spec = make_spec(MODEL, transport="native", **layout)
    simulation = simulate(spec, real_prices(spec))
    for program, times in zip(simulation.programs, simulation.times.ranks, strict=True):
        started: dict[str, int] = {}
        for index, step in enumerate(program.instructions):
            started[step.short] = index
            if step.op is Op.WAIT:
                begin, end = times.streams[started[step.handle or ""]]
                assert times.starts[started[step.handle or ""]] <= begin <= end <= times.ends[index]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_slower_link_never_shortens_the_step(layout: dict) -> None:
    spec = make_spec(MODEL, transport="native", **layout)
    prices = real_prices(spec)
    before = simulate(spec, prices).times.makespan
    levels = prices.cluster.levels
    for slower in range(len(levels)):
        for factor in (1.5, 20.0):
            changed = tuple(
                replace(t, bytes_per_second=t.bytes_per_second / factor, latency_seconds=t.latency_seconds * factor)
                if i == slower
                else t
                for i, t in enumerate(levels)
            )
            cluster = replace(prices.cluster, levels=changed)
            after = simulate(spec, replace(prices, cluster=cluster)).times.makespan
            assert after >= before * (1 - 1e-12)


def test_waiting_is_for_the_slow_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone else idles by what the slow one works more."""
    spec = make_spec({"num_layers": 4}, pp=2, segments_per_stage=[2, 4], accumulation=16, transport="native")
    unit_blocks(monkeypatch)
    times = simulate(spec, free_prices(spec)).times
    assert times.makespan == pytest.approx(
        16 * 9 + 3
    )  # three blocks a microbatch, and the first forward and last backward


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    schedule=st.sampled_from(FIXED),
    pp=st.sampled_from([1, 2, 3, 4]),
    zero=st.integers(0, 3),
    tp=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    microbatches=st.integers(1, 40),
    layers=st.integers(8, 12),
    tied=st.booleans(),
    cp=st.sampled_from([1, 2]),
)
def test_the_straight_line_is_the_step(
    schedule: str, pp: int, zero: int, tp: int, recompute: str, microbatches: int, layers: int, tied: bool, cp: int
) -> None:
    """`predict_step` simulates few microbatches of many; the whole step takes as long, and holds as much, to 1 %; without a
    pipeline exactly so."""
    virtual = least_stages(schedule)
    spec = make_spec(
        {"num_layers": layers, "hidden_size": 512, "num_heads": 8, "ffn_size": 1536, "tie_embeddings": tied},
        sequence_length=512, accumulation=microbatches, transport="native", precision={"compute": "bf16"}, pp=pp,
        schedule=schedule, virtual_stages=virtual, dp_shard=2, zero=zero, tp=tp, cp=cp, recompute=recompute,
    )  # fmt: skip
    prices = real_prices(spec)
    predicted, simulated_fully = predict_step(spec, prices), simulate(spec, prices)
    assert predicted.seconds == pytest.approx(simulated_fully.seconds, rel=0.01 if pp > 1 else 1e-9)
    assert predicted.device_bytes == pytest.approx(simulated_fully.device_bytes, rel=0.01 if pp > 1 else 0)
    assert tuple(predict_memory(spec, prices)) == predicted.device_bytes
    for ours, theirs in zip(predicted.along(lambda s: s.spent), simulated_fully.spent, strict=True):
        assert sum(ours.values()) == pytest.approx(predicted.seconds, rel=1e-6)
        for kind in {*ours, *theirs} - {IDLE}:
            assert ours.get(kind, 0.0) == pytest.approx(theirs.get(kind, 0.0), abs=0.02 * simulated_fully.seconds)


@pytest.mark.parametrize(
    ("zero", "schedule", "pp"),
    [
        (3, "1f1b", 1),
        (2, "1f1b", 1),
        (3, "1f1b", 2),
        (3, "gpipe", 1),
        (3, "gpipe", 2),
        (3, "breadth_first", 1),
        (3, "interleaved_1f1b", 2),
    ],
)
def test_what_grows_once_grows_no_further(zero: int, schedule: str, pp: int) -> None:
    """From the third microbatch on the large embedding's backward has more beside it than before: once, not with each of 65."""
    spec = make_spec(
        {"num_layers": 2, "hidden_size": 512, "num_heads": 8, "ffn_size": 1536, "vocab_size": 30000, "tie_embeddings": True},
        sequence_length=256, accumulation=65, transport="native", precision={"compute": "bf16"}, pp=pp,
        schedule=schedule, virtual_stages=least_stages(schedule), dp_shard=4, zero=zero, cp=2, recompute="full",
    )  # fmt: skip
    prices = real_prices(spec)
    exact, predicted = simulate(spec, prices).device_bytes, predict_step(spec, prices)
    assert not predicted.is_full
    assert predicted.device_bytes == exact
    assert tuple(predict_memory(spec, prices)) == exact


def test_programs_that_wait_for_each_other_are_named() -> None:
    """A rank that waits for a gradient before it sends the activation it is made from."""
    spec = make_spec({"num_layers": 2}, pp=2, accumulation=2, transport="native")
    first, second = lower_pipeline(spec)
    send = positions(first, Op.SEND_ACTIVATION)[0]
    broken = moved(moved(first, wait_of(first, send), len(first.instructions)), send, len(first.instructions) - 1)
    with pytest.raises(
        UserError, match=r"pp 0 at #\d+ `wait R< .*` waits for pp 1(\n|.)*pp 1 at #\d+ .*waits for pp 0"
    ):
        simulate(spec, free_prices(spec), [broken, second])


def test_no_mutation_hangs() -> None:
    """Orders shuffled at random end or are refused; what the verifier finds sound always ends."""
    spec = make_spec({"num_layers": 2}, pp=2, accumulation=2, dp_shard=2, zero=3, transport="native")
    programs = lower_pipeline(spec)
    rng = random.Random(5)
    refused = []
    for _ in range(60):
        count = len(programs[0].instructions)
        mutant = [moved(programs[0], rng.randrange(count), rng.randrange(count)), programs[1]]
        try:
            simulate(spec, free_prices(spec), mutant)
        except UserError as error:
            refused.append(str(error))
            assert verify(by_rank(mutant, spec), spec)
    assert 0 < len(refused) < 60
    assert all("wait for each other" in text or "has not been started" in text for text in refused)


QUICK = ("1f1b", "interleaved_1f1b", "zb_v")


@pytest.mark.parametrize("schedule", others_are_rest(FIXED, QUICK))
def test_the_straight_line_of_a_long_pipeline(schedule: str) -> None:
    virtual = least_stages(schedule)
    spec = make_spec(
        {"num_layers": 32, "hidden_size": 2048, "num_heads": 16, "ffn_size": 8192},
        sequence_length=2048, accumulation=100, transport="native", precision={"compute": "bf16"}, pp=16,
        schedule=schedule, virtual_stages=virtual, dp_shard=2, zero=2, tp=2,
    )  # fmt: skip
    prices = real_prices(spec)
    predicted, simulated_fully = predict_step(spec, prices), simulate(spec, prices)
    assert not predicted.is_full
    assert predicted.seconds == pytest.approx(simulated_fully.seconds, rel=0.01)
    assert predicted.device_bytes == pytest.approx(simulated_fully.device_bytes, rel=0.01)


@pytest.mark.parametrize("schedule", ["auto", OWN])
def test_what_need_not_repeat_itself_is_simulated_in_full(schedule: str) -> None:
    spec = make_spec(pp=2, schedule=schedule, accumulation=30, transport="native")
    assert simulated_microbatches(spec) == 30
    assert tuple(predict_memory(spec, real_prices(spec))) == predict_step(spec, real_prices(spec)).device_bytes


def test_what_is_published_ahead_is_waited_for_by_the_next_step_alone() -> None:
    """Parameters that arrive while the next first forward runs: less than waiting for them, never less than not sending them."""
    degrees = {"pp": 1, "dp_shard": 4, "zero": 1}
    spec = make_spec(MODEL, transport="native", precision={"compute": "bf16"}, accumulation=3, **degrees)
    prices = real_prices(spec, overlap_data=False)  # nothing else runs beside kernels, and slows them
    waited, ahead, contended = (
        simulate(
            spec, replace(prices, software=replace(prices.software, overlap_param_gather=early, contention=contention))
        )
        for early, contention in ((False, 0.0), (True, 0.0), (True, 0.5))
    )
    published = sum(
        ahead.durations.collectives(s) for s in ahead.programs[0].instructions if s.op is Op.PARAMETER_ALL_GATHER
    )
    assert 0 < waited.times.makespan - ahead.times.makespan <= published * (1 + 1e-9)
    assert contended.times.makespan > ahead.times.makespan
    contention, sums = "compute/communication contention", "norm and other sums"
    assert contended.spent[0][contention] > ahead.spent[0].get(contention, 0.0)
    assert contended.spent[0][sums] == pytest.approx(ahead.spent[0][sums])
    assert min(min(spent.values()) for spent in (*ahead.spent, *contended.spent)) >= -1e-12


@pytest.mark.parametrize(
    ("layout", "hidden"), [({"zero": 0}, True), ({"zero": 1}, False), ({"zero": 0, "pp": 2}, False)]
)
def test_all_reduces_of_full_gradients_run_beside_backward_where_other_collectives_do_not(
    layout: dict, hidden: bool
) -> None:
    spec = make_spec(dp_shard=4, **layout)
    waited, beside = (
        simulate(spec, real_prices(spec, overlap_data=False, overlap_all_reduce=each)).seconds for each in (False, True)
    )
    assert (beside < waited) == hidden
    assert simulate(spec, real_prices(spec)).seconds <= beside


def test_what_leaves_the_node_shares_its_port_to_the_network() -> None:
    """Tensor parallelism over two nodes and the data axis' collectives: a step is no shorter than both together. Inside a node they
    have links of their own."""
    ports, steps = {}, {}
    for tp in (8, 16):
        spec = make_spec(
            {"num_layers": 8, "hidden_size": 4096, "num_heads": 32, "ffn_size": 14336, "num_kv_heads": 8, "vocab_size": 32000},
            sequence_length=4096, tp=tp, sequence_parallel=True, dp_shard=8, dp_replicate=2, zero=3, precision={"compute": "bf16"},
            transport="native",
        )  # fmt: skip
        prices = real_prices(spec, link_speed=0.2, contention=0.0)
        step = simulate(spec, prices)
        (program,) = step.programs
        started = [s for s in program.instructions if s.collectives and s.stream != "compute"]
        outside = sum(prices.network(c.kind, c.axes, c.bytes) for s in started for c in s.collectives)
        inside = sum(step.durations.phase(s).network for s in program.instructions if s.op in COMPUTE_OPS)
        assert (inside > 0) == (tp == 16)
        ports[tp], steps[tp] = outside + inside, step
        assert step.seconds >= ports[tp]
        spans = sorted(span for index, span in step.times.ranks[0].streams.items())
        assert all(begin >= end * (1 - 1e-12) for (_, end), (begin, _) in pairwise(spans)), "one after the other"
    assert steps[16].seconds < 1.5 * ports[16], "the port is what it waits for"
    lost = {tp: step.spent[0].get("compute/communication contention", 0.0) / step.seconds for tp, step in steps.items()}
    assert lost[16] > 0.01 > 1e-12 > lost[8]
