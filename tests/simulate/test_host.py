"""A step is the slower of host and device at every point: the host issues instructions ahead of the device."""

from dataclasses import replace

import pytest

from fourfold.config import parse_run
from fourfold.cost.fitted import fitted
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program.instruction import Op
from fourfold.program.launches import step_launches, waits_of_host, work_launches
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec
from fourfold.simulate.critical_path import HOST, critical_path
from fourfold.simulate.prediction import predict_step
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import Simulation, simulate
from tests.support.parity_runs import run_table
from tests.support.programs import MIXTRAL, make_spec
from tests.support.simulated import real_prices

MICROSECOND = 1e-6
TINY = make_spec({}, accumulation=4, transport="native")
LARGE = make_spec(
    {"hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "ffn_size": 14336, "vocab_size": 8192},
    accumulation=4,
    transport="native",
    sequence_length=4096,
    precision={"compute": "bf16"},
)
PIPELINE = make_spec({"num_layers": 8}, pp=4, dp_shard=2, zero=1, schedule="1f1b", accumulation=8, transport="native")
INSTRUCTION, LAUNCH, COLLECTIVE = 5 * MICROSECOND, 5 * MICROSECOND, 20 * MICROSECOND


def _simulated(spec: StepSpec, instruction: float = INSTRUCTION, launch: float = LAUNCH) -> Simulation:
    own = replace(
        fitted().software("fourfold"),
        host_instruction_seconds=instruction,
        host_launch_seconds=launch,
        host_collective_seconds=COLLECTIVE,
    )
    prices = real_prices(spec)
    return simulate(spec, replace(prices, software=own, kernels=fitted().kernels(prices.cluster.device.key, own)))


def test_a_tiny_model_on_a_fast_device_is_bound_by_its_host() -> None:
    """The step takes what the host takes for all instructions and all launches."""
    found = _simulated(TINY)
    program, view = found.programs[0], found.views[0]
    own = len(program.instructions) * INSTRUCTION
    starts = sum(len(s.collectives) for s in program.instructions) * COLLECTIVE
    issued = own + starts + step_launches(program, view) * LAUNCH
    assert found.seconds == pytest.approx(issued, rel=0.02)
    assert found.spent[0][HOST] > 0.4 * found.seconds, "the rest is the device's own"
    assert set(found.host_bound[0]) >= {"forward", "backward"}


def test_a_large_one_is_not() -> None:
    found = _simulated(LARGE)
    assert found.spent[0].get(HOST, 0.0) < 0.01 * found.seconds
    alone = _simulated(LARGE, 1e-12, 0.0).seconds
    assert alone < found.seconds < 1.001 * alone


@pytest.mark.parametrize("spec", [TINY, LARGE, PIPELINE], ids=["tiny", "large", "pipeline"])
def test_the_parts_sum_to_the_step(spec: StepSpec) -> None:
    found = _simulated(spec)
    for rank in found.spent:
        assert sum(rank.values()) == pytest.approx(found.times.makespan)
    assert sum(critical_path(found).reasons.values()) == pytest.approx(found.times.makespan)


@pytest.mark.parametrize("spec", [TINY, LARGE, PIPELINE], ids=["tiny", "large", "pipeline"])
def test_a_slower_host_makes_no_step_shorter(spec: StepSpec) -> None:
    seconds = [_simulated(spec, each * MICROSECOND).seconds for each in (1, 5, 50, 500)]
    assert seconds == sorted(seconds)
    assert seconds[-1] >= max(len(p.instructions) for p in _simulated(spec).programs) * 500 * MICROSECOND


def test_the_host_runs_ahead_of_the_device() -> None:
    """Looked at pass by pass, an embedding is as long as its launch; ahead of the device, it is issued during the block before."""
    by_pass, ahead = (_simulated(LARGE, each, 100 * MICROSECOND) for each in (0.0, 1e-9))
    assert "forward" in by_pass.host_bound[0]
    assert ahead.spent[0][HOST] < by_pass.spent[0][HOST]


def test_a_value_that_the_host_must_see_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher's counts: the host of a mixture of experts is never ahead of the device by more than a block."""
    model = {**MIXTRAL, "hidden_size": 2048, "moe_ffn_size": 4096, "head_dim": 128, "num_layers": 3}
    spec = make_spec(model, accumulation=4, transport="native", sequence_length=4096)
    found = _simulated(spec)
    waits = [s for s in found.programs[0].instructions if waits_of_host(s, found.views[0])]
    assert {s.op for s in waits} == {Op.FORWARD}
    assert len(waits) == 3 * 4
    launch = (
        1.2 * found.durations.compute(waits[0]) / work_launches(waits[0].work)
    )  # more than the device takes to run them
    stopped = _simulated(spec, launch=launch).seconds
    monkeypatch.setattr("fourfold.simulate.engine.waits_of_host", lambda step, view: 0)
    assert _simulated(spec, launch=launch).seconds < stopped


def test_unknown_hosts_are_looked_at_pass_by_pass() -> None:
    """0 is the value where nothing is known: nothing of the host's stream is in such a step."""
    found = _simulated(PIPELINE, 0.0)
    assert not any(times.host for times in found.times.ranks)
    assert found.seconds == predict_step(PIPELINE, found.prices).seconds


def test_a_replayed_step_waits_for_no_host() -> None:
    """A step as a CUDA graph is what the device alone takes."""
    own = fitted().software("fourfold").without_host
    prices = real_prices(TINY)
    kernels = fitted().kernels(prices.cluster.device.key, own)
    found = simulate(TINY, replace(prices, software=own, kernels=kernels))
    assert found.spent[0].get(HOST, 0.0) == 0.0
    assert found.seconds == pytest.approx(_simulated(TINY, 1e-12, 0.0).seconds, rel=0.05)
    assert found.seconds < 0.6 * _simulated(TINY).seconds


def test_a_run_file_asks_for_it() -> None:
    table = run_table(layout={"microbatch_sequences": 4})
    costs = []
    for graphs in (False, True):
        config = parse_run({**table, "run": {"cuda_graphs": graphs}})
        model = resolve_model(config.model)
        spec = resolve_step(config, model, resolve_layout(config, model, 1), "native")
        costs.append(prices_for(config, spec, load_cluster("dgx-h100:1")).software.host_launch_seconds)
    assert costs[0] > costs[1] == 0.0
