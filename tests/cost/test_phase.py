"""Laws of a pass over a segment: what is hidden, what the host adds, a head that is one product; and of what a software profile
holds."""

from dataclasses import replace
from typing import Any

import pytest

from fourfold.cost import Prices, phase_cost
from fourfold.cost.fitted import fitted
from fourfold.cost.kernels import Kernels
from fourfold.cost.memory import allocated_bytes, device_bytes, held_program, reserved_bytes, units_bytes
from fourfold.cost.phase import unchunked
from fourfold.cost.prices import OVERLAPPED_SHARE
from fourfold.hardware import load_cluster
from fourfold.model.work import Collective, Elementwise, Gemm, Join, Start, Work
from fourfold.program import StepSpec, lower_pipeline, rank_view
from fourfold.program.liveness import memory_peak
from fourfold.simulate.prediction import predict_step
from tests.support.priced import SOFTWARE, forward_of, lowered, prices_of

H100 = load_cluster("dgx-h100:64")


def _spec(**layout: Any) -> StepSpec:
    return lowered("llama3-8b", 128256, **{"microbatch_sequences": 1, **layout})


TP8 = _spec(tp=8, sequence_parallel=True, dp_shard=2, zero=1)
TP8_PP2 = _spec(tp=8, sequence_parallel=True, pp=2)


def test_parts_add_up() -> None:
    cost = phase_cost(forward_of(TP8), prices_of(TP8))
    assert cost.seconds == pytest.approx(sum(cost.busy.values()) + cost.exposed + cost.host)
    assert 0 <= cost.exposed <= sum(cost.communication.values()) * (1 + 1e-12)


def test_waiting_for_every_collective_is_not_faster() -> None:
    view = rank_view(TP8)
    block = view.footprint(view.stages.segments["b1"])
    overlapped, serial = (
        phase_cost(block.backward, prices_of(TP8, replace(SOFTWARE, overlap_inside=overlaps)))
        for overlaps in (True, False)
    )
    assert overlapped.seconds <= serial.seconds
    assert serial.exposed == pytest.approx(sum(serial.communication.values()))


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_overlapped_collectives_of_tensor_parallelism_hide_half_of_what_their_matmuls_can(phase: str) -> None:
    view = rank_view(TP8)
    work = getattr(view.footprint(view.stages.segments["b1"]), phase)
    quiet = replace(SOFTWARE, contention=0.0)
    exposed, overlapped = (
        phase_cost(work, prices_of(TP8, replace(quiet, overlap_tensor=overlaps))) for overlaps in (False, True)
    )
    prices, hidden = prices_of(TP8, quiet), 0.0
    for place, item in enumerate(work.items):
        if isinstance(item, Start) and work.items[place + 1] == Join(item.name):
            near = (
                work.items[place + 2 : place + 4]
                if item.collective.kind == "all_gather"
                else work.items[place - 1 : place]
            )
            beside = max(prices.kernel(each) for each in near if isinstance(each, Gemm))
            seconds = prices.collective(item.collective.kind, item.collective.axes, item.collective.bytes)
            hidden += OVERLAPPED_SHARE * min(seconds, beside)
    assert hidden > 0
    assert exposed.seconds - overlapped.seconds == pytest.approx(hidden)
    assert overlapped.communication == exposed.communication, "as much is sent"


def test_what_no_matmul_waits_for_is_not_overlapped() -> None:
    """An all-reduce, which has no parts that are ready before others, and the experts' group."""
    matmul = Gemm(4096, 4096, 4096)
    for kind, axes in (("all_reduce", "tp"), ("all_gather", "ep"), ("reduce_scatter", "cp")):
        there = Start(Collective(kind, axes, 10**8, 8), "sent")  # type: ignore[arg-type]
        work = Work((matmul, there, Join("sent"), matmul))
        plain, overlapped = (
            phase_cost(work, prices_of(TP8, replace(SOFTWARE, overlap_tensor=overlaps))) for overlaps in (False, True)
        )
        assert plain == overlapped


def test_a_pass_takes_no_less_than_its_launches() -> None:
    slow = phase_cost(forward_of(TP8), prices_of(TP8, replace(SOFTWARE, host_launch_seconds=1e-3)))
    launches = sum(1 for item in forward_of(TP8).items if isinstance(item, Gemm))
    assert slow.seconds > launches * 1e-3
    assert slow.host > 0
    assert (
        phase_cost(
            forward_of(TP8), prices_of(TP8, replace(SOFTWARE, host_launch_seconds=0.0, host_collective_seconds=0.0))
        ).host
        == 0
    )


def test_hosts_are_crowded_only_where_stages_send_between_nodes() -> None:
    crowded = replace(SOFTWARE, host_crowded_seconds=1e-3)
    assert phase_cost(forward_of(TP8), prices_of(TP8, crowded)).host == 0
    assert phase_cost(forward_of(TP8_PP2), prices_of(TP8_PP2, crowded)).host > 8e-3


def test_routing_costs_the_host_where_tokens_go_to_experts_and_nowhere_else() -> None:
    slow = prices_of(TP8, replace(SOFTWARE, host_route_seconds=1.0))
    experts, passes = Gemm(4096, 1024, 2048, groups=8), Elementwise(10**6, 10**6)
    gradient = Gemm(2048, 1024, 4096, accumulates=True, groups=8)
    assert phase_cost(Work((experts, passes)), slow).seconds >= 1.0
    assert phase_cost(Work((gradient, passes)), slow).seconds < 0.1
    assert phase_cost(Work((replace(experts, groups=1), passes)), slow).seconds < 0.1
    there = Start(Collective("all_to_all", "ep", 10**6, 8), "rows")
    assert phase_cost(Work((there, Join("rows"), replace(experts, groups=1))), slow).seconds >= 1.0, "one expert a rank"


def test_hooks_of_zero_3_cost_the_host_for_each_module_in_every_pass_over_it() -> None:
    hooked = replace(SOFTWARE, host_gather_seconds=1.0)
    sharded, full = _spec(dp_shard=64, zero=3), _spec(dp_shard=64, zero=2)
    view = rank_view(sharded)
    block = view.footprint(view.stages.segments["b1"])
    for work, modules in ((block.forward, 4), (block.backward, 4)):
        without, by_hooks = (phase_cost(work, prices_of(sharded, software)) for software in (SOFTWARE, hooked))
        assert by_hooks.issue - without.issue == pytest.approx(modules), (
            "queries with keys and values, output, both of the feed-forward"
        )
        assert by_hooks.seconds >= modules > 1 > phase_cost(work, prices_of(full, hooked)).seconds
        graph = prices_of(sharded, replace(hooked.without_host, contention=0.0))
        assert phase_cost(work, graph).issue == 0.0


def test_experts_of_half_the_speed_take_twice_as_long_and_nothing_else_does() -> None:
    experts, dense = Gemm(4096, 1024, 2048, groups=8), Gemm(4096, 1024, 2048)
    kernels = Kernels(launch_seconds=0.0)
    usual, slow = (
        Prices(H100, TP8.layout, replace(kernels, expert_speed=speed), SOFTWARE).kernel for speed in (1.0, 0.5)
    )
    assert slow(experts) == pytest.approx(2 * usual(experts))
    assert slow(dense) == usual(dense)
    for part, factor in (("sorted", 2), ("sent", 2), ("experts", 2), ("", 1)):
        item = Elementwise(10**8, 10**8, part=part)  # type: ignore[arg-type]
        assert slow(item) == pytest.approx(factor * usual(item)), part
    fast = Prices(H100, TP8.layout, replace(kernels, expert_speed=9.0), SOFTWARE).kernel(experts)
    ungrouped = Prices(H100, TP8.layout, replace(kernels, grouped_share=1.0), SOFTWARE).kernel(experts)
    assert fast == ungrouped, "grouped ones are no faster than others"


def test_experts_that_are_started_one_by_one_cost_their_launches() -> None:
    experts = Gemm(4096, 1024, 2048, groups=8)
    grouped, single = (
        Prices(H100, TP8.layout, Kernels(launch_seconds=1e-3, expert_launches=share), SOFTWARE).kernel(experts)
        for share in (0.0, 0.5)
    )
    assert single - grouped == pytest.approx(0.5 * 7 * 1e-3)


def test_an_unchunked_head_does_the_same_arithmetic_in_fewer_matmuls() -> None:
    view = rank_view(TP8)
    chunks = view.footprint(view.stages.segments["head"]).backward
    joined = unchunked(chunks)
    assert joined.flops == chunks.flops
    assert sum(item.bytes for item in joined.items if isinstance(item, Elementwise)) == sum(
        item.bytes for item in chunks.items if isinstance(item, Elementwise)
    )
    sent = [sum(t.bytes for t in phase.collectives) for phase in (chunks, joined)]
    assert sent[0] == sent[1]
    assert sum(isinstance(item, Gemm) for item in joined.items) == 3
    starts = [item.name for item in joined.items if isinstance(item, Start)]
    assert sorted(starts) == sorted(item.name for item in joined.items if isinstance(item, Join))
    prices = prices_of(TP8)
    assert phase_cost(joined, prices).seconds < phase_cost(chunks, prices).seconds


def test_passes_that_another_kernel_may_do_are_not_joined_with_others() -> None:
    sent, plain = Elementwise(8, 4, part="sent"), Elementwise(2, 1)
    assert set(unchunked(Work((sent, plain, plain))).items) == {sent, replace(plain, bytes=4, least_bytes=2)}


def test_a_runtime_of_zero_3_keeps_full_units_however_many_share_them() -> None:
    alone = _spec(dp_shard=1, zero=3)
    assert units_bytes(rank_view(alone), replace(SOFTWARE, unit_bytes=6.0)) == 0, "nothing is sharded on one device"
    for shards in (8, 64):
        spec = _spec(dp_shard=shards, zero=3)
        program, model = lower_pipeline(spec)[0], spec.model
        parts = {name: sum(p.numel for p in rank_view(spec).flats[name].parameters) for name in ("embed", "head", "b0")}
        more, none = (
            memory_peak(held_program(program, rank_view(spec), replace(SOFTWARE, unit_bytes=each))).bytes
            for each in (6.0, 0.0)
        )
        total = parts["embed"] + parts["head"] + 4 * parts["b0"]
        assert parts["embed"] == model.vocab_size * model.hidden_size
        assert more - none == pytest.approx(6 * total, rel=1e-4), "padding apart"


def test_a_software_profile_holds_what_it_says_beside_the_program() -> None:
    program = lower_pipeline(TP8)[0]
    bare = replace(SOFTWARE, logits_bytes=0.0)

    def peak(**options: float) -> int:
        return memory_peak(held_program(program, rank_view(TP8), replace(bare, **options))).bytes

    blocks, tokens, hidden = 32, 4096, TP8.model.hidden_size
    assert peak(saved_bytes=2.0) - peak() == 2 * blocks * tokens // 8 * hidden
    assert peak(gathered_bytes=2.0) - peak() == 2 * blocks * tokens * hidden
    assert peak(logits_bytes=16.0) > peak(logits_bytes=1.0) >= peak()
    resident = {
        kind: sum(b for n, b in program.buffers.items() if n.startswith(f"{kind}/")) for kind in ("optimizer", "master")
    }
    assert resident["optimizer"] == 2 * resident["master"] > 0
    assert peak() - peak(optimizer_bytes=2.0) == resident["optimizer"] // 2, "optimizer states in 16 bits"
    assert peak() - peak(master_bytes=0.0) == resident["master"], "no copy beside the parameters"
    saved = sum(size for name, size in program.buffers.items() if name.startswith("saved/") and name.endswith("/m0"))
    assert peak() - peak(saved_share=0.5) == pytest.approx(saved / 2, rel=0.05)
    assert peak(unit_bytes=6.0) == peak(), "nothing is gathered without ZeRO-3"
    software = replace(bare, extra=0.1, fragmentation=0.1, context_bytes=10**9)
    assert allocated_bytes(1000, software) == 1100
    assert reserved_bytes(1000, software) == 1210
    connected = replace(software, communicator_bytes=10**8)
    assert device_bytes(1000, connected, TP8, 0) == 13 * 10**8 + 1210, "of all ranks, along tp, along dp_shard"
    assert device_bytes(1000, connected, replace(TP8, transport="exchange"), 0) == 10**9 + 1210


def test_operands_of_deferred_weight_gradients_are_as_narrow_as_saved_ones() -> None:
    spec = _spec(pp=4, schedule="zb_v", virtual_stages=2)
    program, view = lower_pipeline(spec)[-1], rank_view(spec, pp_rank=3)
    deferred = [name for name in program.buffers if name.startswith("deferred/")]
    assert deferred

    def shares(**options: object) -> set[float]:
        held = held_program(program, view, replace(SOFTWARE, **options)).buffers  # type: ignore[arg-type]
        return {round(held[name] / program.buffers[name], 3) for name in deferred}

    assert shares(saved_share=0.55) == {0.55}
    assert shares(narrow_operands=True, gemm_dtype="fp8") == {0.5}
    assert shares(saved_share=1.2) == {1.0}, "operands are no more than what GEMMs read"


def test_no_software_profile_is_needed_for_the_order_of_layouts() -> None:
    """Tensor parallelism inside the node, over two nodes, over eight: by every software the first is fastest."""
    for name in ("unknown", "nanotron-2025", "nemo-2025"):
        software = fitted().software(name)
        times = []
        for tp in (8, 16, 32):
            spec = _spec(tp=tp, dp_shard=64 // tp, zero=1, sequence_parallel=True)
            times.append(predict_step(spec, prices_of(spec, software)).seconds)
        assert times == sorted(times), name
