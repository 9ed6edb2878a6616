"""The board: an order that a person builds is judged by the verifier, priced by the simulator, and read by the trainer as it is."""

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from fourfold.api.programs import compiled_run
from fourfold.config import UserError
from fourfold.explore.board.goals import known_results, orders_of, read_goals
from fourfold.explore.board.request import BETWEEN, fill_rows
from fourfold.explore.board.runs import BoardRunDocument, BoardRuns
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from fourfold.program.schedule import check_orders, schedule_orders, stage_ranks
from fourfold.program.schedule.auto import step_bound
from fourfold.program.schedule.check import token
from tests.explore.test_documents import silent
from tests.explore.test_pages import violations
from tests.support.explore_server import Watched, address_now, in_address, reads_its_file, until, watching
from tools.board_results import shortest


def judged(**body: Any) -> Any:
    """The board's document."""
    return json.loads(encoded("board", body, silent))


def goal_of(found: Any, name: str) -> Any:
    """A goal of the document."""
    return next(goal for goal in found["goals"] if goal["id"] == name)


def link(*rows: str) -> str:
    """Rows as an address has them."""
    return BETWEEN.join(rows)


def test_a_deadlock_is_named_with_the_entries_that_wait_for_each_other() -> None:
    found = judged(ranks=2, microbatches=2, rows=link("F0.0 B0.0 F0.1 B0.1", "F1.1 F1.0 B1.0 B1.1"))
    verdict = found["verdict"]
    assert verdict["state"] == "deadlock"
    assert "rank 0, entry 1: B0.0 waits for B1.0, entry 2 of rank 1" in verdict["message"]
    assert [tuple(place.values()) for place in verdict["places"]] == [(0, 1), (1, 0)]
    assert [tuple(place.values()) for place in verdict["awaited"]] == [(1, 2), (0, 2)]
    assert verdict["ran"] == [1, 0]
    assert found["timelines"][0]["ends"] == [1.0]


def test_a_deadlock_is_named_before_what_is_missing_since_no_entry_mends_it() -> None:
    found = judged(ranks=3, microbatches=2, rows=link("B0.0 F0.0", "", "F2.0"))
    assert found["verdict"]["state"] == "deadlock"
    assert "B0.0 waits for F0.0, its own entry 1" in found["verdict"]["message"]
    waits = {(each["rank"], each["needs"], each["at"]) for each in found["verdict"]["blocked"]}
    assert waits == {(0, "F0.0", 1), (2, "F1.0", None)}


def test_a_missing_backward_is_named_and_so_is_who_waits_for_it() -> None:
    rows = judged(ranks=3, microbatches=4, fill="1f1b")["rows"]
    rows[2].remove("B2.1")
    verdict = judged(ranks=3, microbatches=4, rows=link(*map(" ".join, rows)))["verdict"]
    assert (verdict["state"], verdict["missing"]) == ("unfinished", ["B2.1"])
    assert verdict["message"] == "rank 2 lacks B2.1 (of 4 microbatches); add B2.1 to its order"
    assert {"rank": 1, "index": 4, "needs": "B2.1 or I2.1", "holder": 2, "at": None} in verdict["blocked"]


@pytest.mark.parametrize(
    ("rows", "words", "places"),
    [
        (("F0.0 F1.0", ""), "F1.0: stage 1 is on rank 1", [(0, 1)]),
        (("F0.0 B0.0 F0.0", ""), "F0.0: stands here a second time", [(0, 2), (0, 0)]),
        (("F0.0 I0.0 B0.0", ""), "B0.0: I or W of the same stage and microbatch came before", [(0, 2), (0, 1)]),
        (("F0.7", ""), "F0.7: there is no microbatch 7; allowed: 0 to 1", [(0, 0)]),
    ],
)
def test_an_entry_in_a_wrong_place_is_named(rows: tuple[str, str], words: str, places: list[tuple[int, int]]) -> None:
    verdict = judged(ranks=2, microbatches=2, rows=link(*rows))["verdict"]
    assert verdict["state"] == "entry"
    assert words in verdict["message"]
    assert [tuple(place.values()) for place in verdict["places"]] == places


@pytest.mark.parametrize("goal", [goal for goal in read_goals() if goal.schedule], ids=lambda goal: goal.id)
def test_a_schedule_that_is_rebuilt_is_proved_and_reaches_its_goal_alone(goal: Any) -> None:
    virtual = len(goal.stage_ranks) // goal.ranks
    size = (goal.ranks, virtual, goal.microbatches)
    assert stage_ranks(goal.schedule, *size[:2]) == goal.stage_ranks
    rows = [" ".join(map(token, order)) for order in schedule_orders(goal.schedule, *size)]
    body = {"ranks": goal.ranks, "microbatches": goal.microbatches, "stages": list(goal.stage_ranks)}
    found = judged(**body, rows=link(*rows))
    assert found["verdict"]["state"] == "proved"
    assert [each["id"] for each in found["goals"] if each["reached"]] == [goal.id]
    cut = judged(**body, rows=link(*rows[:-1], rows[-1].rsplit(" ", 1)[0]))
    assert not goal_of(cut, goal.id)["reached"]
    assert goal_of(cut, goal.id)["agrees"] == [True] * (goal.ranks - 1) + [False]


def test_prices_are_those_of_the_closed_forms() -> None:
    """1F1B: bubble (P-1)/(P-1+M), P - r activations on rank r; zero bubble H1 idles a third of that."""
    plain, halves = (judged(ranks=4, microbatches=8, fill=name) for name in ("1f1b", "zb_h1"))
    assert plain["bubble_fraction"] == pytest.approx(3 / 11)
    assert [row["peak_live"] for row in plain["timelines"]] == [4, 3, 2, 1]
    idle = [sum(row["idle"] for row in found["timelines"]) for found in (plain, halves)]
    assert idle[1] == pytest.approx(idle[0] / 3)
    assert max(row["peak_live"] for row in halves["timelines"]) == 4


def test_its_file_is_a_schedule_that_a_run_takes(tmp_path: Path) -> None:
    """And opens again as the same board."""
    found = judged(ranks=2, microbatches=4, stages=[0, 1, 1, 0], fill="dualpipe_v")
    path = tmp_path / "board.txt"
    path.write_text(found["file"], encoding="utf-8")
    layout = {"layout.pp": 2, "layout.virtual_stages": 2, "layout.schedule": f"file:{path}"}
    run = {"model.preset": "tiny", "batch.global_sequences": 4, "batch.sequence_length": 64, "data.tokenizer": "bytes",
           "layout.microbatch_sequences": 1}  # fmt: skip
    resolved = compiled_run({}, run | layout, ranks=2)
    assert [list(map(token, order)) for order in resolved.compiled.orders(resolved.spec)] == found["rows"]
    opened = judged(file=found["file"])
    for key in ("ranks", "microbatches", "stages", "rows", "link", "verdict"):
        assert opened[key] == found[key]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rows": "F0.0 X1:F1.0"}, "rows: rank 0, entry 1: 'X1' is no entry; allowed: F, B, I or W"),
        ({"rows": "F0.0"}, "rows: 1 rows, but the board has 2 ranks"),
        ({"stages": [0, 0, 1]}, "allowed: each of the 2 ranks holds 1, or each 2; what works: stages 0 1"),
        ({"fill": "zb_v"}, "allowed: naive, gpipe, 1f1b, zb_h1, zb_h2, auto"),
        ({"file": "rank 0: F0.0\nrank 1: Q"}, "file:2: 'Q' is no entry"),
        ({"file": "no schedule"}, "the file has 0 lines of ranks"),
        ({"file": "rank 0: F0.99\nrank 1: F1.0"}, "the file has 100 microbatches; allowed here: 16"),
        ({"durations": [1.0]}, "one for each of the 2 stages; what works: [1, 1]"),
    ],
)
def test_a_text_that_is_no_board_is_refused_with_what_works(body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        judged(ranks=2, microbatches=2, **body)
    assert words in str(caught.value)
    assert not isinstance(caught.value, Malformed)


@pytest.mark.parametrize(
    "body", [{"ranks": 9}, {"rows": 3}, {"run": "x"}, {"times": {"F": -1.0}}, {"file": "a" * 30_000}]
)
def test_a_request_that_the_page_never_makes_is_malformed(body: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        judged(**body)


def test_known_results_are_proved_within_their_limits_and_as_short_as_they_say() -> None:
    known, goals = known_results(), [goal for goal in read_goals() if goal.schedule is None]
    assert known.keys() == {goal.id for goal in goals}
    for goal in goals:
        row = known[goal.id]
        orders = orders_of(row["link"])
        check_orders(orders, goal.stage_ranks, len(goal.stage_ranks), goal.microbatches)
        assert goal.step(orders) == row["best"]
        assert goal.holds(orders) <= goal.limit
        assert goal.step(goal.orders) == row["auto"]
        assert step_bound(goal.stage_ranks, goal.microbatches, goal.stage_times) == row["bound"]
        assert row["bound"] <= row["best"] < row["auto"]
        body = {"ranks": goal.ranks, "microbatches": goal.microbatches, "stages": list(goal.stage_ranks)}
        assert goal_of(judged(**body, rows=row["link"]), goal.id)["reached"]
        assert not goal_of(judged(**body, rows=link(*(" ".join(map(token, o)) for o in goal.orders))), goal.id)[
            "reached"
        ]


def test_a_step_shorter_than_autos_that_holds_more_than_the_limit_reaches_no_goal() -> None:
    body = {"ranks": 2, "microbatches": 6, "stages": [0, 1, 1, 0], "fill": "zb_v"}
    goal = goal_of(judged(**body), "heavy-third")
    assert goal["step"] < goal["known"]["auto"]
    assert goal["holds"] > goal["limit"]
    assert not goal["reached"]


def test_the_command_of_known_results_never_makes_a_step_longer_and_repeats_itself() -> None:
    goal = next(goal for goal in read_goals() if goal.id == "heavy-third")
    begin = fill_rows("auto", goal.stage_ranks, goal.microbatches, goal.stage_times, limit=2.0)
    found = shortest(goal, begin, rounds=1, seed=3)
    assert goal.step(found) < goal.step(begin)
    assert goal.holds(found) <= goal.limit
    assert found == shortest(goal, begin, rounds=1, seed=3)


# What a server trains


def refused(body: dict[str, Any], is_private: bool = True) -> str:
    """Why a server does not start a run."""
    with pytest.raises(UserError) as caught:
        asyncio.run(BoardRuns(is_private).answer(body))
    return str(caught.value)


def test_a_server_trains_what_is_proved_on_a_few_ranks_of_its_own_machine_alone() -> None:
    sound = {"board": {"ranks": 2, "microbatches": 1, "rows": "F0.0 B0.0:F1.0 B1.0"}}
    assert "starts no process for them" in refused(sound, is_private=False)
    assert "only what is proved is trained: deadlock" in refused({"board": {"ranks": 2, "rows": "B0.0 F0.0:"}})
    assert "allowed here: 2 to 4" in refused({"board": {"ranks": 5, "fill": "1f1b"}})
    assert "allowed: board, stop" in refused({"folder": "/tmp"})
    assert json.loads(asyncio.run(BoardRuns(True).answer({})))["state"] == "none"


def test_a_second_run_waits_for_the_first_and_stop_ends_its_processes() -> None:
    board = {"ranks": 2, "microbatches": 1, "rows": "F0.0 B0.0:F1.0 B1.0"}

    async def act() -> tuple[Any, str, Any]:
        runs = BoardRuns(is_private=True)
        begun = json.loads(await runs.answer({"board": board}))
        with pytest.raises(UserError) as caught:
            await runs.answer({"board": board})
        while not of_boards():
            await asyncio.sleep(0.05)
        return begun, str(caught.value), json.loads(await runs.answer({"stop": True}))

    begun, second, ended = asyncio.run(act())
    assert (begun["state"], begun["link"]) == ("running", board["rows"])
    assert "is being trained already" in second
    assert (ended["state"], ended["message"]) == ("failed", "stopped")
    assert of_boards() == []


def of_boards() -> list[str]:
    """Processes of boards that are trained below this one, by the folder that they are in."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if "fourfold-board-" in os.readlink(path / "cwd"):
                found.append(path.name)
    return found


@pytest.mark.rest
def test_a_board_is_trained_and_its_last_step_is_what_its_rows_say() -> None:
    """Zero bubble H1 on two ranks: measured entries keep the row's order, and what they wait for."""
    asked = {"board": {"ranks": 2, "microbatches": 2, "fill": "zb_h1"}}

    async def act() -> Any:
        runs = BoardRuns(is_private=True)
        found = json.loads(await runs.answer(asked))
        while found["state"] == "running":
            await asyncio.sleep(0.2)
            found = json.loads(await runs.answer({}))
        return found

    found = asyncio.run(act())
    TypeAdapter(BoardRunDocument).validate_python(found)
    assert found["state"] == "done", found["message"]
    rows = judged(**asked["board"])["rows"]
    timelines = found["measured"]["timelines"]
    assert [row["entries"] for row in timelines] == [row for row in rows for _ in range(2)]
    ends: dict[str, float] = {}
    for row in timelines[::2]:
        ends |= dict(zip(row["entries"], row["ends"], strict=True))
        pairs = zip(row["ends"], row["starts"][1:], strict=False)
        assert all(end <= start for end, start in pairs)
    starts = {
        entry: start for row in timelines[::2] for entry, start in zip(row["entries"], row["starts"], strict=True)
    }
    for m in range(2):
        assert ends[f"F0.{m}"] <= starts[f"F1.{m}"] + 1e-3
        assert ends[f"I1.{m}"] <= starts[f"I0.{m}"] + 1e-3
    assert found["measured"]["measured_seconds"] == pytest.approx(max(ends.values()))


# In a browser


def on_board(watched: Watched, place: str = "") -> Any:
    """The tab with the board of an address, its keys in hand."""
    watched.open(f"#/board{place}")
    watched.tab.locator("[data-verdict]").wait_for()
    watched.tab.get_by_role("application", name="Board of").focus()
    return watched.tab


def judges(tab: Any, state: str, *words: str) -> None:
    """Waits until the page has the verifier's sentence."""
    found = tab.locator(f"[data-verdict={state}]")
    for each in words:
        found.get_by_text(each, exact=False).first.wait_for()
    found.wait_for()


def entries(tab: Any) -> list[str]:
    """The entries on the board, row by row."""
    return tab.locator(".grid [data-entry]").evaluate_all("all => all.map(each => each.dataset.entry)")


@pytest.mark.page
def test_a_deadlock_that_keys_build_is_told_and_drawn_and_undone(watched: Watched) -> None:
    tab = on_board(watched, "?board.ranks=2&board.microbatches=1")
    for key in ("F", "ArrowDown", "B", "F"):
        tab.keyboard.press(key)
    judges(tab, "deadlock", "B1.0 waits for F1.0, its own entry 1")
    assert entries(tab) == ["F0.0", "B1.0", "F1.0"]
    assert tab.locator(".entry.wrong").evaluate_all("all => all.map(each => each.dataset.entry)") == ["B1.0", "F1.0"]
    assert tab.locator("path.arrow.strong").count() == 1
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Shift+ArrowLeft")
    judges(tab, "unfinished", "rank 0 lacks B0.0 (of 1 microbatches); add B0.0 to its order")
    assert entries(tab) == ["F0.0", "F1.0", "B1.0"]
    tab.keyboard.press("Control+z")
    judges(tab, "deadlock")


@pytest.mark.page
def test_1f1b_is_rebuilt_by_keys_opened_again_by_its_link_and_saved_as_a_file(watched: Watched, tmp_path: Path) -> None:
    tab = on_board(watched)
    for rank, order in enumerate(schedule_orders("1f1b", 3, 1, 4)):
        for entry in order:
            tab.keyboard.press(entry.op.value)
        if rank < 2:
            tab.keyboard.press("ArrowDown")
            tab.keyboard.press("Home")
    judges(tab, "proved", "nothing is read before it is written")
    tab.locator("[data-goal='1f1b'][data-reached=true]").wait_for()
    assert tab.locator("[data-reached=true]").count() == 1
    assert tab.locator("[data-figure=bubble]").inner_text() == "33.3 %"
    in_address(tab, "board.rows=F0.0+F0.1+F0.2+B0.0")
    address = address_now(tab)
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Save", exact=True).click()
    path = tmp_path / "board.txt"
    saved.value.save_as(path)
    assert path.read_text(encoding="utf-8") == judged(ranks=3, microbatches=4, fill="1f1b")["file"]

    reads_its_file(tab, path, ".grid [data-entry]", 24)
    tab.goto("about:blank")
    tab.goto(address)
    judges(tab, "proved")
    assert len(entries(tab)) == 24


@pytest.mark.page
def test_a_link_that_is_no_board_says_what_is_wrong_and_a_board_can_be_begun(watched: Watched) -> None:
    watched.open("#/board?board.rows=F0.0+X1:F1.0:")
    watched.tab.get_by_text("rows: rank 0, entry 1: 'X1' is no entry").wait_for()
    watched.tab.get_by_role("button", name="Empty the board").click()
    judges(watched.tab, "unfinished", "rank 0 lacks F0.0")


def centre(found: Any) -> tuple[float, float]:
    """The middle of an element on the screen."""
    box = found.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.page
def test_entries_are_dragged_in_along_and_out(watched: Watched) -> None:
    tab = on_board(watched, "?board.ranks=2&board.microbatches=2&board.rows=F0.0+B0.0:F1.0+B1.0")

    def drag(found: Any, x: float, y: float) -> None:
        found.scroll_into_view_if_needed()
        tab.mouse.move(*centre(found))
        tab.mouse.down()
        tab.mouse.move(x - 15, y, steps=3)
        tab.mouse.move(x, y)
        tab.mouse.up()

    second = tab.locator("[data-entry='B1.0']")
    end = centre(second)
    drag(tab.locator(".tray .entry").first, end[0] - 20, end[1])
    judges(tab, "entry", "F0.1: stage 0 is on rank 0")
    assert entries(tab) == ["F0.0", "B0.0", "F1.0", "F0.1", "B1.0"]
    there = centre(tab.locator("[data-entry='B0.0']"))
    drag(tab.locator("[data-entry='F0.1']"), there[0] - 20, there[1])
    judges(tab, "unfinished", "rank 0 lacks B0.1")
    assert entries(tab) == ["F0.0", "F0.1", "B0.0", "F1.0", "B1.0"]
    drag(tab.locator("[data-entry='B1.0']"), there[0], there[1] - 150)
    judges(tab, "unfinished")
    until(tab, "document.querySelectorAll('.grid [data-entry]').length === 4")


@pytest.mark.page
def test_fingers_build_on_a_phone_that_scrolls_no_page_sideways(browser: Any, address: str) -> None:
    """With rows longer than the screen."""
    with watching(browser, address, has_touch=True, is_mobile=True) as watched:
        watched.tab.set_viewport_size({"width": 390, "height": 844})
        tab = on_board(watched, "?board.ranks=2&board.microbatches=4")
        for _ in range(4):
            tab.locator(".tray .entry").first.tap()
        for _ in range(4):
            tab.locator(".tray .entry").nth(1).tap()
        until(tab, "document.querySelectorAll('.grid [data-entry]').length === 8")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        around = tab.locator(".around")
        assert around.evaluate("each => each.scrollWidth > each.clientWidth && each.scrollLeft > 0")
        tab.locator("[data-entry='B0.3']").tap()
        tab.get_by_role("button", name="earlier").tap()
        tab.get_by_role("button", name="take out").tap()
        until(tab, "document.querySelectorAll('.grid [data-entry]').length === 7")
        assert entries(tab)[-1] == "B0.2"
        x, y = centre(tab.locator("[data-entry='B0.2']"))
        tab.locator("[data-entry='B0.2']").tap()
        finger = tab.context.new_cdp_session(tab)
        for kind, at in (("Start", x), ("Move", x - 20), ("Move", x - 48 * 2), ("End", None)):
            points = [] if at is None else [{"x": at, "y": y}]
            finger.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        until(tab, "[...document.querySelectorAll('.grid [data-entry]')].at(-1).dataset.entry !== 'B0.2'")
        assert violations(tab) == []


@pytest.mark.page
def test_a_board_with_faults_bars_nobody(watched: Watched) -> None:
    """On light ground and on dark, axe-core finds nothing."""
    for theme in ("light", "dark"):
        watched.tab.emulate_media(color_scheme=theme)
        for rows in ("F0.0+B0.0+F0.1:F1.1+F1.0+B1.0", "F0.0+B0.0:F1.0+F0.1"):
            on_board(watched, f"?board.ranks=2&board.microbatches=2&board.rows={rows}")
            assert violations(watched.tab) == []


@pytest.mark.rest
@pytest.mark.page
def test_the_page_trains_a_board_and_draws_it_beside_the_simulation(watched: Watched) -> None:
    tab = on_board(watched, "?board.ranks=2&board.microbatches=2&board.rows=F0.0+F0.1+B0.0+B0.1:F1.0+B1.0+F1.1+B1.1")
    judges(tab, "proved")
    tab.get_by_role("button", name="Train it on 2 CPU ranks").click()
    tab.get_by_role("button", name="Stop").wait_for()
    tab.get_by_role("heading", name="As it ran, beside as it is simulated").wait_for()
