"""The Pipeline page: every schedule that it draws is the program that runs, and is proved."""

import json
from collections import Counter
from itertools import accumulate, pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from fourfold.api.programs import RunProgram
from fourfold.config import UserError
from fourfold.explore.documents import encoded
from fourfold.explore.packed import unpacked
from fourfold.explore.setup import Malformed
from fourfold.program.schedule import SCHEDULES
from tests.explore.test_documents import SMALL, silent
from tests.explore.test_strategy import saved
from tests.support.explore_server import Watched, in_address, until

TIMES = {"F": 1, "I": 1, "W": 1, "transfer": 0}


def document(name: str = "pipeline", **own: Any) -> Any:
    body = {"overrides": SMALL, "cluster": "dgx-h100:8", "ranks": 4, "microbatches": 8, **own}
    found = json.loads(encoded(name, body, silent))
    return by_rank(found) if name == "pipeline" else found


def by_rank(found: Any) -> Any:
    """A pipeline's document with its columns as rows of each rank: a slot is (start, end, operation, stage, microbatch)."""
    slots, activations = found["slots"], found["activations"]
    first = [0, *accumulate(slots["number"])]
    places = [(rank, slot) for rank, number in enumerate(slots["number"]) for slot in range(number)]
    start, end, operation, stage, microbatch, waits, critical = (
        unpacked(slots[name]).tolist()
        for name in ("start", "end", "operation", "stage", "microbatch", "waits", "critical")
    )
    events = list(zip(start, end, (found["operations"][each] for each in operation), stage, microbatch, strict=True))
    live, idle = (
        [activations["bytes"][each] for each in unpacked(activations[name]).tolist()] for name in ("live", "idle")
    )
    rows: dict[str, Any] = {
        name: [column[begin:stop] for begin, stop in pairwise(first)]
        for name, column in (("events", events), ("live_bytes", live), ("idle_bytes", idle))
    }
    rows["waits"] = [
        [(slot, *places[waits[begin + slot]]) for slot in range(stop - begin) if waits[begin + slot] >= 0]
        for begin, stop in pairwise(first)
    ]
    path = [place for place, on in zip(places, critical, strict=True) if on]
    rows["critical"] = sorted(path, key=lambda place: rows["events"][place[0]][place[1]][:2])
    return {**found, **rows}


@pytest.mark.grid(1)
@pytest.mark.parametrize("schedule", [each.name for each in SCHEDULES])
@pytest.mark.parametrize(("ranks", "microbatches", "virtual_stages"), [(4, 8, 2), (3, 5, 3), (2, 1, 1), (1, 2, 1)])
def test_what_is_drawn_passes_the_verifier(schedule: str, ranks: int, microbatches: int, virtual_stages: int) -> None:
    own = {"ranks": ranks, "microbatches": microbatches, "virtual_stages": virtual_stages}
    drawn = document(schedule=schedule, times=TIMES, **own)
    proof = json.loads(encoded("verify", drawn["setup"], silent))
    assert proof["sound"]
    assert proof["layout"]["schedule"] == schedule == drawn["schedule"]
    assert proof["layout"]["pp"] == ranks
    assert proof["layout"]["num_microbatches"] == microbatches
    for rank in range(ranks):
        slots = document("slots", schedule=schedule, pp_rank=rank, **own)
        program = json.loads(encoded("program", {**drawn["setup"], "pp_rank": rank}, silent))
        assert slots["program"] == program["program"]
        order = [slot for slot in slots["slots"] if slot >= 0]
        assert order == sorted(order)
        for row, slot in zip(slots["program"], slots["slots"], strict=True):
            if slot >= 0:
                op, segment, m = row["instruction"].split()
                _, _, drawn_op, stage, microbatch = drawn["events"][rank][slot]
                assert segment in drawn["stages"][stage]
                assert m == f"m{microbatch}"
                assert (op == "F") == (drawn_op == "F")


def test_times_are_those_of_the_schedule() -> None:
    """1F1B with P = 4, M = 8 and B = 2F has a bubble of 3/11; several stages a rank share its time."""
    plain, interleaved = (
        document(schedule=name, virtual_stages=2, times=TIMES) for name in ("1f1b", "interleaved_1f1b")
    )
    assert plain["makespan"] == 33
    assert plain["bubble_fraction"] == pytest.approx(3 / 11)
    assert interleaved["busy"] == plain["busy"]
    assert interleaved["bubble_fraction"] < plain["bubble_fraction"]
    priced = document(schedule="1f1b")
    assert 0 < priced["makespan"] < 10
    assert priced["transfer"] > 0


def test_an_idle_slot_waits_for_what_comes_last() -> None:
    drawn = document(schedule="1f1b", times={**TIMES, "transfer": 0.5})
    count = 0
    for rank, (events, waits) in enumerate(zip(drawn["events"], drawn["waits"], strict=True)):
        waiting = {index: (by, slot) for index, by, slot in waits}
        free = 0.0
        for index, (start, end, *_) in enumerate(events):
            assert (index in waiting) == (start > free)
            if index in waiting:
                by, slot = waiting[index]
                assert start == drawn["events"][by][slot][1] + (0.5 if by != rank else 0)
                count += 1
            free = end
    assert count > 10


def test_the_critical_path_makes_up_the_step() -> None:
    """Slots of the critical path and the transfers between them follow one another without a gap."""
    for schedule in ("gpipe", "zb_h1", "interleaved_1f1b"):
        drawn = document(schedule=schedule, virtual_stages=2, times={**TIMES, "transfer": 0.25})
        time, before = 0.0, None
        for rank, slot in drawn["critical"]:
            start, end, *_ = drawn["events"][rank][slot]
            assert start == time + (0.25 if before not in (None, rank) else 0)
            time, before = end, rank
        assert time == drawn["makespan"]


def test_activations_are_those_of_the_timeline() -> None:
    gpipe, plain = (document(schedule=name, times=TIMES)["live_bytes"] for name in ("gpipe", "1f1b"))
    assert max(gpipe[1]) == 8 / 3 * max(plain[1])
    assert [max(row) for row in gpipe] == [row[8] for row in gpipe]


def test_a_shallow_model_is_drawn_deeper() -> None:
    drawn = document(schedule="1f1b", ranks=64, microbatches=2, times=TIMES)
    assert (drawn["stated_layers"], drawn["num_layers"]) == (30, 64)
    assert RunProgram.of({}, drawn["setup"]["overrides"]).resolved.model.num_layers == 64


def test_a_run_of_the_literature_is_drawn_with_other_stages() -> None:
    for run, ranks in (("llama3-405b-16k", 4), ("llama3-405b-16k", 64), ("deepseek-v3-2k", 8)):
        found = json.loads(encoded("pipeline", {"run": f"preset:{run}", "ranks": ranks, "microbatches": 8}, silent))
        assert len(by_rank(found)["events"]) == ranks


def test_a_pipeline_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UserError, match="what works"):
        document(ranks=128, microbatches=1024)
    for wrong in ({"times": {"F": 1}}, {"times": {**TIMES, "F": -1}}, {"ranks": "4"}):
        with pytest.raises(Malformed):
            document(**wrong)


def test_the_page_draws_the_schedule_and_its_proof(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/pipeline?pipeline.schedule=gpipe")
    tab.wait_for_selector("text=The verifier proved")
    assert tab.locator("[data-figure=bubble]").inner_text() == "27.3 %"
    tab.select_option("select", "zb_h1")
    tab.wait_for_selector("h1:has-text('ZB-H1')")
    tab.wait_for_selector("[data-figure=bubble]:text-is('11.1 %')")
    tab.wait_for_selector("text=The verifier proved")
    in_address(tab, "pipeline.schedule=zb_h1")


def test_a_long_pipeline_is_proved_too(watched: Watched) -> None:
    """2,048 slots; a proof that is no longer wanted is given up for the next."""
    tab = watched.tab
    watched.open("#/pipeline?pipeline.schedule=interleaved_1f1b&pipeline.ranks=16&pipeline.microbatches=64")
    tab.wait_for_selector("text=/The verifier (reads|proved)/")  # a quick machine has proved it by now
    tab.get_by_label("microbatches, M, exact value").fill("48")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("text=16 ranks, 48 microbatches")
    tab.wait_for_selector("text=The verifier proved")


def test_an_idle_slot_tells_what_it_waits_for(watched: Watched) -> None:
    """With the pointer; and the program underneath is the rank's that is pointed at."""
    tab = watched.tab
    watched.open("#/pipeline?pipeline.schedule=1f1b")
    box = tab.locator("[role=application] canvas").bounding_box()
    tab.mouse.move(box["x"] + 96, box["y"] + box["height"] - 16)
    tab.wait_for_selector("text=for F2.0 of rank 2, which ends at 3")
    tab.wait_for_selector("tr.own code:has-text('m0')")
    assert tab.locator("text=Rank 3 at F3.0").count() == 1


def test_the_step_is_played_and_gone_through_by_keys(watched: Watched) -> None:
    tab = watched.tab
    watched.open("#/pipeline?pipeline.schedule=1f1b")
    tab.wait_for_selector("[role=application] canvas")
    tab.get_by_role("button", name="One event on").click()
    tab.get_by_role("button", name="One event on").click()
    assert tab.locator("output").inner_text() == "2"
    tab.get_by_role("button", name="Play").click()
    until(tab, "Number(document.querySelector('output').textContent) > 2.1")
    tab.get_by_role("button", name="Pause").click()
    assert float(tab.locator("output").inner_text()) > 2.1
    tab.locator("[role=application]").focus()
    tab.keyboard.press("ArrowRight")
    tab.wait_for_selector("text=F0.0: forward")


def test_timelines_are_given_away_as_the_shapes_that_are_seen(watched: Watched) -> None:
    """With every rank, and every slot's microbatch; of several canvases in a frame all, each with its name."""
    tab = watched.tab
    watched.open("#/pipeline?pipeline.schedule=1f1b")
    tab.wait_for_selector("text=The verifier proved")

    def texts(title: str) -> list[str]:
        picture = ElementTree.fromstring(saved(tab, title, "SVG"))
        assert not [each for each in picture.iter() if each.tag.endswith("image")]
        return ["".join(each.itertext()) for each in picture.iter() if each.tag.endswith("text")]

    words = texts("Every rank over time")
    assert {f"rank {rank}" for rank in range(4)} <= {*words}
    slots = Counter(
        str(microbatch) for events in document(schedule="1f1b", times=TIMES)["events"] for *_, microbatch in events
    )
    assert slots.total() == 64
    assert slots - Counter(words) == Counter(), "a microbatch's number in each of its slots"
    tab.wait_for_selector("li:has-text('bubble') canvas")
    assert {"GPipe", "1F1B", "ZB-V"} <= {*texts("All schedules on one axis of time")}


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe_v"])
def test_passes_in_turns_stay_in_their_slots(schedule: str) -> None:
    """With their all-to-alls overlapped, the parts of two passes alternate: each is an instruction of its own pass's slot."""
    overrides = SMALL | {"model.num_experts": 4, "model.top_k": 2, "layout.ep": 2, "layout.overlap_experts": True}
    own = {"overrides": overrides, "schedule": schedule, "ranks": 2, "microbatches": 8}
    drawn, seen = document(**own), set()
    for rank in range(2):
        slots = document("slots", pp_rank=rank, **own)
        order = [slot for slot in slots["slots"] if slot >= 0]
        assert order != sorted(order)
        for row, slot in zip(slots["program"], slots["slots"], strict=True):
            op, *name = row["instruction"].split()
            if op in ("D>", "E>", "C>", "Z>", "D<", "E<", "C<", "Z<"):
                _, _, drawn_op, stage, microbatch = drawn["events"][rank][slot]
                assert drawn_op == ("F" if op[1] == ">" else "B")
                assert name[0] in drawn["stages"][stage]
                assert name[1] == f"m{microbatch}"
                seen.add(op)
    assert len(seen) == 8
