"""A calibration returns the values given at its points, interpolates logarithms between them, and names wrong ones."""

from dataclasses import replace
from typing import Any

import pytest
import tomli_w

from fourfold.config import UserError, parse_run
from fourfold.cost.calibration import ContentionProfile, Curve, constants_of
from fourfold.cost.prices import masked_share
from fourfold.hardware import Cluster, load_cluster, parse_cluster
from fourfold.huggingface import resolve_model
from fourfold.kernels.matmul.libraries import step_matmuls, total_flops
from fourfold.layout import resolve_layout
from fourfold.model.counts import WORTHWHILE_FLOPS
from fourfold.model.work import Attention, Elementwise, Gemm
from fourfold.program import StepSpec, lower_pipeline, resolve_step
from fourfold.simulate.engine import shared_times, simulate_times
from fourfold.simulate.run_prices import multiplies_by_torch, prices_for
from fourfold.simulate.state import SimulationState
from fourfold.simulate.step import simulate
from tests.calibrate.machine_table import cluster


def loaded(table: dict[str, Any]) -> Any:
    return parse_cluster(tomli_w.dumps(table), "machine.toml")


def profile_of(ranks: int) -> ContentionProfile:
    found = constants_of(loaded(cluster()))
    assert found is not None
    return found.contention_profile(ranks)


def test_a_curve_goes_through_its_points_and_is_straight_between_logarithms() -> None:
    curve = Curve(((1.0, 4.0), (10.0, 1000.0)), [[1.0, 100.0], [4.0, 400.0]])
    assert curve.at(1, 10) == pytest.approx(1)
    assert curve.at(4, 1000) == pytest.approx(400)
    assert curve.at(2, 100) == pytest.approx(20)
    assert curve.at(100, 1e6) == pytest.approx(400), "beyond the grid, as at its edge"


def test_kernels_take_what_their_rates_say() -> None:
    contention_profile = profile_of(2)
    gemm = Gemm(100, 200, 300)
    assert contention_profile.kernel(gemm) == pytest.approx(gemm.flops / 1e9)
    assert contention_profile.kernel(replace(gemm, accumulates=True)) == pytest.approx(gemm.flops / 1e9)
    attention = Attention(2, 64, 64, 4, 4, 32, 32)
    assert contention_profile.kernel(attention) == pytest.approx(attention.flops / 1e9)
    assert contention_profile.kernel(Elementwise(10**6, 0, launches=5)) == pytest.approx(1e-3 + 5e-6)


def test_collectives_beyond_the_largest_size_grow_with_it() -> None:
    link = profile_of(4).link("all_gather", 2)
    assert link.at(10**6) == pytest.approx(2e-3)
    assert link.at(10**7) == pytest.approx(2e-2)
    assert link.at(31622.7766) == pytest.approx((1e-3 * 2e-3) ** 0.5)


def test_the_nearest_number_of_ranks_stands_for_those_not_measured() -> None:
    assert profile_of(3).ranks in (2, 4)
    assert profile_of(100).ranks == 4


def test_a_cluster_without_a_calibration_has_no_such_constants() -> None:
    assert constants_of(load_cluster("dgx-h100")) is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("kernels", "launch_seconds"), -1.0, "calibration.ranks_2.kernels.launch_seconds"),
        (("kernels", "gemms", "plain"), [1.0], "calibration.ranks_2.kernels.gemms.plain"),
        (("kernels", "gemms", "sizes"), [3.0, 2.0], "calibration.ranks_2.kernels.gemms.sizes"),
        (("kernels", "gemms", "torch_speeds"), {"plain": 0.9}, "ranks_2.kernels.gemms.torch_speeds.accumulated"),
        (("software", "relative_speeds"), [1.0], "calibration.ranks_2.software.relative_speeds"),
        (("software",), 3.0, "calibration.ranks_2.software"),
        (("links", "group_2", "send"), 1.0, "calibration.ranks_2.links.group_2.send"),
    ],
)
def test_a_wrong_key_is_named(path: tuple[str, ...], value: Any, named: str) -> None:
    table = cluster()
    part = table["calibration"]["ranks_2"]
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    with pytest.raises(UserError, match=named) as caught:
        constants_of(loaded(table))
    assert "fourfold calibrate" in str(caught.value)


def run(layout: dict[str, Any], ranks: int) -> tuple[Any, StepSpec]:
    table = {
        "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "ffn_size": 64, "vocab_size": 64},
        "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 1},
        "layout": {"microbatch_sequences": 1, **layout},
        "precision": {"compute": "fp32"},
    }
    config = parse_run(table)
    model = resolve_model(config.model)
    return config, resolve_step(config, model, resolve_layout(config, model, ranks), "exchange")


LAYOUTS = [
    ({"pp": 2, "schedule": "1f1b"}, 2),
    ({"pp": 2, "schedule": "gpipe", "dp_shard": 2, "zero": 2}, 4),
    ({"pp": 4, "schedule": "1f1b"}, 4),
    ({"pp": 2, "schedule": "zb_v", "virtual_stages": 2, "tp": 2}, 4),
    ({"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "dp_shard": 2, "zero": 3}, 4),
]


@pytest.mark.parametrize(("layout", "ranks"), LAYOUTS)
def test_where_all_paces_are_one_and_nothing_slows_computing_both_simulations_agree(
    layout: dict[str, Any], ranks: int
) -> None:
    config, spec = run(layout, ranks)
    prices = prices_for(config, spec, loaded(cluster()))
    prices = replace(prices, software=replace(prices.software, contention=0.0))
    found = simulate(spec, prices)
    states = [SimulationState(found.programs, found.durations, spec.layout, prices) for _ in range(2)]
    shared, separate = shared_times(states[0], prices.contention_profile.relative_speeds), simulate_times(states[1])
    assert shared.makespan == pytest.approx(separate.makespan, rel=1e-6)
    for one, other in zip(shared.ranks, separate.ranks, strict=True):
        assert one.ends == pytest.approx(other.ends, rel=1e-6)


def test_a_stage_computes_faster_while_the_other_waits() -> None:
    config, spec = run({"pp": 2, "schedule": "1f1b"}, 2)
    table = cluster()
    slow = simulate(spec, prices_for(config, spec, loaded(table))).seconds
    table["calibration"]["ranks_2"]["software"]["relative_speeds"] = [2.0, 1.0]
    fast = simulate(spec, prices_for(config, spec, loaded(table))).seconds
    assert slow / 2 < fast < slow


def test_attention_within_documents_costs_its_share_here_too() -> None:
    config, spec = run({}, 1)
    masked = config.model_copy(
        update={"data": config.data.model_copy(update={"document_mask": True, "document_tokens": 4})}
    )
    unmasked, documents = (prices_for(each, spec, loaded(cluster())) for each in (config, masked))
    scores = Attention(1, 16, 16, 4, 4, 8, 8)
    assert documents.kernel(scores) == pytest.approx(unmasked.kernel(scores) * masked_share(16, 4))
    assert documents.memory(1e6) == unmasked.memory(1e6)


def test_a_run_too_short_to_compare_libraries_is_priced_with_pytorch_s_own() -> None:
    config, spec = run({"dp_shard": 2}, 2)
    table = cluster()
    table["calibration"]["ranks_2"]["kernels"]["gemms"]["torch_speeds"] = {"plain": 0.5, "accumulated": 0.8}
    machine, gemm = loaded(table), Gemm(100, 200, 300)

    def seconds(backend: str, steps: int) -> tuple[float, float]:
        batch, own = (
            config.batch.model_copy(update={"steps": steps}),
            config.run.model_copy(update={"matmul_backend": backend}),
        )
        prices = prices_for(config.model_copy(update={"batch": batch, "run": own}), spec, machine)
        return prices.kernel(gemm), prices.kernel(replace(gemm, accumulates=True))

    by_onednn = seconds("onednn", 1)
    by_torch = by_onednn[0] / 0.5, by_onednn[1] / 0.8
    assert seconds("torch", 10**9) == pytest.approx(by_torch)
    assert seconds("auto", 1) == pytest.approx(by_torch)
    assert seconds("auto", 10**9) == pytest.approx(by_onednn)


def test_a_measured_processor_is_slower_in_runs_too_short_to_compare_libraries() -> None:
    config, spec = run({"dp_shard": 2}, 2)
    cluster_ = load_cluster("dgx-h100:2")
    processor = replace(cluster_, device=replace(cluster_.device, torch_matmul_speed=0.5))
    gemm = Gemm(8192, 8192, 8192)

    def seconds(steps: int, on: Cluster = processor, **more: Any) -> float:
        update = {"batch": config.batch.model_copy(update={"steps": steps}), **more}
        return prices_for(config.model_copy(update=update), spec, on).kernel(gemm)

    assert seconds(1) == pytest.approx(2 * seconds(10**9), rel=1e-3)
    assert seconds(1, cluster_) == seconds(10**9, cluster_) == seconds(10**9)
    for backend, steps in (("torch", 1), ("onednn", 10**9)):
        own = config.run.model_copy(update={"matmul_backend": backend})
        assert seconds(1, run=own) == seconds(10**9, run=own) == seconds(steps)
    software = prices_for(config, spec, processor, "megatron").software
    assert software.gemm_speed == prices_for(config, spec, cluster_, "megatron").software.gemm_speed


@pytest.mark.parametrize("layout", [{}, {"pp": 2, "schedule": "1f1b"}, {"tp": 2}, {"dp_shard": 2}], ids=str)
def test_how_long_a_run_must_be_is_priced_as_it_is_chosen(layout: dict[str, Any]) -> None:
    """`kernels.matmul` counts the matmuls of a rank's program; the price the FLOPs of the model, attention and other ranks among
    them."""
    config, spec = run(layout, 1 if not layout else 2)
    chosen = max(total_flops(step_matmuls(program)) for program in lower_pipeline(spec))
    for times, by_torch in ((0.7, True), (1.4, False)):
        steps = max(1, round(times * WORTHWHILE_FLOPS / chosen))
        long = config.model_copy(update={"batch": config.batch.model_copy(update={"steps": steps})})
        assert (chosen * steps < WORTHWHILE_FLOPS) == by_torch
        assert multiplies_by_torch(long, spec) == by_torch
