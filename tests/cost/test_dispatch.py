"""The cost of taking tokens to experts and back: who sends how many copies, which memory-bound kernels it takes, what hides it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from fourfold.cost import Prices, phase_cost
from fourfold.cost.fitted import Fitted
from fourfold.cost.prices import spared_copies
from fourfold.hardware import load_cluster
from fourfold.program import StepSpec
from tests.support.priced import SOFTWARE, forward_of, lowered, prices_of


def _experts(**layout: Any) -> StepSpec:
    """Mixtral 8x7B on 32 devices."""
    return lowered("mixtral-8x7b", 32000, **{"dp_shard": 16, "zero": 1, "ep": 8, **layout})


def _in_pairs(schedule: str) -> StepSpec:
    return _experts(pp=2, schedule=schedule, virtual_stages=2)


def test_dispatch_before_the_gather_and_once_to_a_node_send_less_between_nodes() -> None:
    layout = _experts(tp=2, sequence_parallel=True, etp=2).layout
    cluster = load_cluster("dgx-h100:32")

    def seconds(**options: Any) -> float:
        return Prices(cluster, layout, software=replace(SOFTWARE, **options), top_k=2).collective(
            "all_to_all", "ep", 10**9
        )

    assert seconds(dispatch_first=True) < seconds()
    assert seconds(dispatcher="deepep") < seconds()


def test_heads_of_ulysses_are_sent_whatever_dispatches_tokens() -> None:
    """An all-to-all of heads has one copy of each, which no dispatcher spares; nor does a gather over `etp` follow it."""
    layout = _experts(cp=4, cp_method="ulysses", dp_shard=4, ep=4, etp=2, tp=2, sequence_parallel=True).layout
    cluster = load_cluster("dgx-h100:32")
    options: tuple[dict[str, Any], ...] = (
        {},
        {"dispatcher": "deepep"},
        {"dispatcher": "hybridep"},
        {"dispatch_first": True},
    )
    each = [Prices(cluster, layout, software=replace(SOFTWARE, **some), top_k=4) for some in options]
    assert len({prices.collective("all_to_all", "cp_ulysses", 10**9) for prices in each}) == 1
    assert len({prices.network("all_to_all", "cp_ulysses", 10**9) for prices in each}) == 1


def test_a_forward_beside_a_backward_hides_what_goes_to_experts() -> None:
    """Hiding lasts as long as there is as much computation: a pass takes the longer of the two. Only in schedules that pair
    passes."""
    paired, alone = (_in_pairs(schedule) for schedule in ("dualpipe_v", "interleaved_1f1b"))
    overlapped = replace(SOFTWARE, overlap_experts=True, host_launch_seconds=0.0, host_collective_seconds=0.0)
    waited = replace(overlapped, overlap_experts=False)
    before, after = (phase_cost(forward_of(paired), prices_of(paired, software)) for software in (waited, overlapped))
    assert after.seconds == pytest.approx(max(sum(after.busy.values()), after.communication["ep"]))
    assert after.communication == before.communication
    assert after.seconds < before.seconds
    unpaired = [phase_cost(forward_of(alone), prices_of(alone, software)).seconds for software in (waited, overlapped)]
    assert unpaired[0] == unpaired[1]


def test_experts_on_few_nodes_send_less_between_nodes() -> None:
    """A token that has experts on at most one of two nodes crosses to the other half the times."""
    spec = _in_pairs("dualpipe_v")
    many_ranks = replace(spec.layout, ep=16)

    def seconds(top_nodes: int) -> float:
        software = replace(SOFTWARE, dispatcher="deepep")
        return Prices(
            load_cluster("dgx-h100:32"), many_ranks, software=software, top_k=8, top_nodes=top_nodes
        ).collective("all_to_all", "ep", 10**9)

    assert seconds(1) < seconds(2) == seconds(0)


@pytest.mark.parametrize(("places", "top_k"), [(2, 3), (3, 2), (4, 4)])
def test_copies_that_need_not_be_sent_are_those_to_a_place_that_has_one(places: int, top_k: int) -> None:
    """Counted over every choice of a token of place 0, its experts anywhere."""
    copies = once = 0
    for chosen in product(range(places), repeat=top_k):
        copies += sum(place != 0 for place in chosen)
        once += len(set(chosen) - {0})
    assert spared_copies(places, top_k) == pytest.approx(1 - once / copies)
    assert spared_copies(1, top_k) == 0


def test_a_dispatcher_that_sorts_on_the_way_takes_fewer_passes() -> None:
    spec = _experts(ep=4)
    spent = {}
    for dispatcher in ("alltoall", "deepep", "hybridep"):
        cost = phase_cost(forward_of(spec), prices_of(spec, replace(SOFTWARE, dispatcher=dispatcher), top_k=2))
        spent[dispatcher] = (cost.busy["memory-bound kernels"], cost.communication["ep"], cost.busy["matmuls"])
    assert spent["alltoall"][0] > spent["deepep"][0] > spent["hybridep"][0] > 0
    assert spent["alltoall"][1] > spent["deepep"][1] == spent["hybridep"][1]
    assert len({matmul for _, _, matmul in spent.values()}) == 1


def test_one_rank_of_experts_has_its_tokens_sorted_by_somebody() -> None:
    alone = _experts(ep=1)
    passes = [
        phase_cost(forward_of(alone), prices_of(alone, replace(SOFTWARE, dispatcher=dispatcher))).busy[
            "memory-bound kernels"
        ]
        for dispatcher in ("alltoall", "hybridep")
    ]
    assert passes[0] == passes[1]


def test_experts_in_one_kernel_need_scales_of_blocks() -> None:
    """Kernels between the experts' matmuls are part of them in MXFP8 and NVFP4, not in bf16."""
    constants = Fitted({}, {"default": {"fused": 0.5, "fused_experts": True}}, {})
    spec = _experts()

    def passes(**options: bool) -> float:
        software = replace(constants.software("any"), **options)
        return phase_cost(forward_of(spec), prices_of(spec, software, kernels=constants.kernels("any", software))).busy[
            "memory-bound kernels"
        ]

    assert (
        passes(fine_scales=True)
        < passes()
        == passes(fused_experts=False)
        == passes(fine_scales=True, fused_experts=False)
    )
