"""Flows over simulated time sum to the bytes of the step, and are never beyond what a link carries."""

from typing import Any

import pytest

from fourfold.api.simulation import simulate
from fourfold.results.prediction import flow_record
from fourfold.simulate.flows import flows_over_time
from fourfold.simulate.summary import level_bytes

RUN: dict[str, Any] = {
    "model.preset": "llama3.2-1b",
    "batch.global_sequences": 64,
    "batch.sequence_length": 4096,
    "precision.compute": "bf16",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor, pipeline, ZeRO-1": {"layout.tp": 8, "layout.pp": 4, "layout.zero": 1},
    "interleaved, context": {
        "layout.tp": 2, "layout.cp": 2, "layout.pp": 2, "layout.virtual_stages": 2, "layout.schedule": "interleaved_1f1b",
    },
    "ZeRO-3": {"layout.zero": 3},
    "HSDP": {"layout.zero": 3, "layout.dp_replicate": 8},
}  # fmt: skip


def found(name: str) -> Any:
    return simulate({}, RUN | LAYOUTS[name], cluster="h100-24576:64")


@pytest.mark.parametrize("name", LAYOUTS)
def test_flows_sum_to_the_bytes_of_the_step(name: str) -> None:
    simulation = found(name).summary.step.simulation
    for rank, expected in enumerate(level_bytes(simulation)):
        for spans in (1, 7, 120):
            flows = flows_over_time(simulation, rank, spans)
            assert len(flows.ends) == spans
            assert flows.ends[-1] == pytest.approx(simulation.times.makespan)
            length = flows.ends[0]
            sums = {flow: length * sum(rates) for flow, rates in flows.rates.items()}
            assert sums == pytest.approx(expected)
            assert min(min(rates) for rates in flows.rates.values()) >= 0


@pytest.mark.parametrize("count", [4, 8])
def test_messages_between_stages_of_one_node_stay_in_it(count: int) -> None:
    result = simulate({}, RUN | {"layout.tp": 2, "layout.pp": 2}, cluster=f"h100-24576:{count}")
    assert message_levels(result) == [{0}, {0}]


def test_messages_between_nodes_leave_through_the_network_alone() -> None:
    """Nodes have eight devices: stages of eight lie in nodes of their own."""
    levels = message_levels(found("tensor, pipeline, ZeRO-1"))
    assert all(levels)
    assert all(0 not in row for row in levels)


def message_levels(result: Any) -> list[set[int]]:
    """By pipeline rank, the levels that its messages to other stages go through."""
    sums = level_bytes(result.summary.step.simulation)
    return [{level for axes, level in row if axes == "pp"} for row in sums]


def test_a_message_flows_while_it_is_on_its_way() -> None:
    """The first activations leave rank 0 once it has computed them: nothing flows along pp before."""
    simulation = found("tensor, pipeline, ZeRO-1").summary.step.simulation
    flows = flows_over_time(simulation, 0, 400)
    rates = next(rates for (axes, _), rates in flows.rates.items() if axes == "pp")
    first = next(index for index, rate in enumerate(rates) if rate > 0)
    sends = [
        stream
        for index, stream in simulation.times.ranks[0].streams.items()
        if simulation.programs[0].instructions[index].op.is_send
    ]
    begin = min(begin for begin, _ in sends)
    assert flows.ends[first] - flows.ends[0] <= begin < flows.ends[first]


def test_no_level_carries_more_than_its_links_do() -> None:
    """Up to the share that a span's edge, or a rank's two streams at once, adds: both are counted at the level's stated rate."""
    for name in LAYOUTS:
        result = found(name)
        document = result.to_json(advice=False, flows=True)
        for curve in document["flows_over_time"]:
            for level, link in zip(curve["levels"], document["links"], strict=True):
                for axes, rates in level.items():
                    assert max(rates) <= 1.001 * link["device_bytes_per_second"], (name, link["name"], axes)


def test_the_document_has_every_pipeline_rank_and_level() -> None:
    result = found("tensor, pipeline, ZeRO-1")
    document = result.to_json(advice=False, flows=True)
    curves = document["flows_over_time"]
    assert [curve["pp_rank"] for curve in curves] == [0, 1, 2, 3]
    assert {len(curve["levels"]) for curve in curves} == {len(result.cluster.levels)}
    assert all(
        set(level) <= {*link["sent_bytes"]}
        for c in curves
        for level, link in zip(c["levels"], document["links"], strict=True)
    )
    assert "flows_over_time" not in result.to_json(advice=False)
    assert flow_record(0, result.summary.step.simulation).levels == curves[0]["levels"]
