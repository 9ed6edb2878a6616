"""The traces that fourfold gives away open in the Perfetto UI, with slices, tracks and flows between ranks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fourfold.explore.documents import encoded
from fourfold.report.run_trace import MEASURED, write_run_trace
from fourfold.simulate.step import Simulation, simulate
from fourfold.simulate.trace import meetings, trace_events, transfers
from tests.explore.test_documents import SMALL, silent
from tests.explore.test_strategy import saved
from tests.report.test_comparison import CLUSTER, as_predicted, compare
from tests.support.explore_server import Watched
from tests.support.opcodes import RECEIVES, SENDS
from tests.support.perfetto import FLOWS, Perfetto, served
from tests.support.programs import make_spec
from tests.support.simulated import real_prices

MODEL = {"num_layers": 4}


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    with served() as address:
        yield address


def stepped() -> Simulation:
    spec = make_spec(MODEL, pp=4, dp_shard=2, accumulation=6)
    return simulate(spec, real_prices(spec))


def test_every_transfer_has_a_flow_and_so_has_what_ranks_enter_together() -> None:
    """Without a browser: arrows begin and end on slices that are there, sends at one rank and receives at its peer."""
    found = stepped()
    steps = [program.instructions for program in found.programs]
    pairs = list(transfers(found.programs))
    assert len(pairs) == sum(step.op in SENDS for each in steps for step in each) > 10
    for (rank, index), (peer, other) in pairs:
        sent, received = steps[rank][index], steps[peer][other]
        assert (sent.op in SENDS, received.op in RECEIVES) == (True, True)
        assert (sent.peer, received.peer) == (peer, rank)
        assert sent.microbatch == received.microbatch
        assert found.times.ranks[rank].streams[index] == found.times.ranks[peer].streams[other]
    assert all({rank for rank, _ in each} == {0, 1, 2, 3} for each in meetings(found.programs))
    events = list(trace_events(found))
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    flows = [e for e in events if e["ph"] in "stf"]
    assert {(e["pid"], e["tid"], e["ts"]) for e in flows} <= slices
    assert sum(e["ph"] == "s" and e["name"] == "transfer" for e in flows) == len(pairs)


def test_a_simulated_step_opens(browser: Any, perfetto: str) -> None:
    found = stepped()
    text = json.dumps({"traceEvents": list(trace_events(found))})
    with Perfetto.of(browser, perfetto, text) as trace:
        [[slices]] = trace.ask("select count(*) as n from slice")
        assert slices == sum(each["ph"] == "X" for each in trace_events(found))
        flows = trace.ask(FLOWS)
        pairs = list(transfers(found.programs))
        between = [row for row in flows if row[0].startswith(("S>", "S<"))]
        assert len(between) == len(pairs)
        for sent, received, source, target in between:
            assert sent.split()[0] in ("S>", "S<")
            assert received.split()[0] == sent.split()[0].replace("S", "R")
            assert int(sent.rpartition("r")[2]) == target != source == int(received.rpartition("r")[2])
        assert any(source != target and not name.startswith("S") for name, _, source, target in flows)
        [[tracks]] = trace.ask("select count(distinct track_id) as n from slice")
        assert tracks == len({(each["pid"], each["tid"]) for each in trace_events(found) if each["ph"] == "X"})
        [[names]] = trace.ask("select count(distinct string_value) as n from args where key = 'args.ranks of dp_shard'")
        assert names == 4


def test_a_run_opens_with_what_was_measured(browser: Any, perfetto: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    found = compare(as_predicted(tmp_path / "run"), CLUSTER)
    write_run_trace(found, path)
    with Perfetto.of(browser, perfetto, path.read_text()) as trace:
        measured = [row for row in trace.ask(FLOWS) if row[2] >= MEASURED]
        assert len(measured) == len(list(transfers(found.programs)))
        assert all(target >= MEASURED and source != target for _, _, source, target in measured)
        [[dropped]] = trace.ask("select sum(value) as n from stats where severity in ('error', 'data_loss')")
        assert dropped == 0


def test_the_page_s_export_opens(watched: Watched, browser: Any, perfetto: str) -> None:
    watched.open("#/pipeline?pipeline.schedule=1f1b")
    watched.tab.wait_for_selector("[role=application] canvas")
    text = saved(watched.tab, "Every rank over time", "Perfetto")
    own = {"ranks": 4, "microbatches": 8, "schedule": "1f1b", "times": {"F": 1, "I": 1, "W": 1, "transfer": 0}}
    expected = json.loads(encoded("trace", {"overrides": SMALL, "cluster": "dgx-h100:8", **own}, silent))
    assert json.loads(text) == expected
    with Perfetto.of(browser, perfetto, text) as trace:
        flows = trace.ask(FLOWS)
        assert len(flows) == 2 * 3 * 8
        assert ["F0 m3", "F1 m3", 0, 1] in flows
        assert ["B3 m0", "B2 m0", 3, 2] in flows
