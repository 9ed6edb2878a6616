"""The static site in a real browser: it computes what the commands compute, to the last digit, and shows it before it can."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fourfold.explore.browser.engine import BOARD_RUN, OF_A_RUN
from fourfold.explore.documents import DOCUMENTS
from tests.explore.test_documents import BODIES
from tests.support.explore_server import Watched, until, watching
from tools.site_requests import places, request_text

pytestmark = [pytest.mark.page, pytest.mark.timeout(900)]

LARGE = ("preset:llama3-405b-16k", "h100-24576:16384")
_BEGIN = """([script, folder]) => {
  window.worker = new Worker(script, { type: "module" });
  window.replies = [];
  window.waits = {};
  window.worker.onmessage = ({ data }) => {
    if (data.kind === "answer") window.waits[data.id](data);
    else window.replies.push(data);
  };
  window.worker.postMessage({ folder: new URL(folder, document.baseURI).href });
}"""
_ASK = """([id, name, body]) => new Promise((resolve) => {
  window.waits[id] = resolve;
  window.worker.postMessage({ id, name, body });
})"""


class Asked:
    """A worker of the site, asked without the page."""

    def __init__(self, tab: Any) -> None:
        self._tab, self._count = tab, 0

    def __call__(self, name: str, body: Any) -> tuple[int, Any]:
        """The status and the document that it answers."""
        self._count += 1
        reply = self._tab.evaluate(_ASK, [self._count, name, json.dumps(body)])
        return reply["status"], json.loads(reply["text"])

    def heard(self) -> list[dict[str, Any]]:
        """Other messages of the worker."""
        return self._tab.evaluate("window.replies")


@pytest.fixture(scope="module")
def ask(browser: Any, site: str) -> Iterator[Asked]:
    with watching(browser, site) as watched:
        with watched.tab.expect_worker() as started:
            watched.open()
        folder = watched.tab.locator("meta[name=fourfold-engine]").get_attribute("content")
        watched.tab.evaluate(_BEGIN, [started.value.url, folder])
        until(watched.tab, "window.replies.length > 0")
        assert watched.tab.evaluate("window.replies.shift()") == {"kind": "ready"}
        yield Asked(watched.tab)


@pytest.fixture
def on_site(browser: Any, site: str) -> Iterator[Watched]:
    with watching(browser, site) as found:
        yield found


def printed(*words: str) -> Any:
    """The JSON that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.newer_sum", *words, "--json"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def served(requests: Any) -> list[Any]:
    """The documents of a server."""
    command = [sys.executable, "-m", "tests.support.newer_sum", "documents"]
    done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_405b_on_16384_devices_is_what_simulate_prints(ask: Asked) -> None:
    run, cluster = LARGE
    status, ours = ask("simulate", {"run": run, "cluster": cluster})
    theirs = printed("simulate", run, "--cluster", cluster)
    assert status == 200
    assert ours["devices"] == 16_384
    theirs.pop("advice", None)
    ours.pop("advice", None)
    assert ours == theirs


def test_405b_on_16384_devices_is_verified_as_show_prints(ask: Asked) -> None:
    run, cluster = LARGE
    status, ours = ask("verify", {"run": run, "cluster": cluster})
    assert status == 200
    assert ours == printed("show", run, "--cluster", cluster, "--verify")


def test_a_plan_with_a_budget_is_what_plan_prints(ask: Asked) -> None:
    """All but its clock."""
    body = {"overrides": BODIES["plan"]["overrides"], "cluster": "dgx-h100:8", "budget": 1, "tokens": "1G"}
    status, ours = ask("plan", body)
    [theirs] = served([("plan", body)])
    assert status == 200
    for each in (ours, theirs):
        assert each.pop("search_seconds") > 0
    assert ours == theirs
    assert ours["best"]
    shares = [each["share"] for each in ask.heard() if each["kind"] == "progress"]
    assert max(shares) > 0


NAMES = [name for name in DOCUMENTS if name not in OF_A_RUN]


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return dict(zip(NAMES, served([(name, BODIES[name]) for name in NAMES]), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_document_is_the_servers(ask: Asked, documents: dict[str, Any], name: str) -> None:
    status, ours = ask(name, BODIES[name])
    theirs = documents[name]
    for each in (ours, theirs):
        each.pop("search_seconds", None)
    assert (status, ours) == (200, theirs)


def test_a_board_is_proved_and_its_goal_reached_in_the_browser(ask: Asked) -> None:
    """The programs are compiled from the board's file there too."""
    body = {"ranks": 2, "microbatches": 4, "stages": [0, 1, 1, 0], "fill": "dualpipe_v"}
    status, ours = ask("board", body)
    [theirs] = served([("board", body)])
    assert (status, ours) == (200, theirs)
    assert ours["verdict"]["state"] == "proved"
    assert [goal["id"] for goal in ours["goals"] if goal["reached"]] == ["dualpipe-v"]
    assert "a browser trains nothing" in ask(BOARD_RUN, {"board": body})[1]["refused"]


def test_a_refusal_is_an_answer(ask: Asked) -> None:
    status, refusal = ask("simulate", {"run": LARGE[0], "overrides": {"layout.tp": 7}})
    assert status == 200
    assert "tp" in refusal["refused"]
    assert ask("simulate", {"run": "/etc/passwd"})[0] == 422
    for name in OF_A_RUN:
        assert "fourfold explore RUN" in ask(name, {})[1]["refused"]


def test_the_first_figures_do_not_wait_for_the_engine(browser: Any, site: str) -> None:
    """Every page, and every run of the literature, with an engine that never comes."""
    with watching(browser, site) as watched:
        asked = "() => window.fourfoldAsked"
        watched.tab.add_init_script(
            "window.fourfoldAsked = []; const own = Worker.prototype.postMessage;"
            "Worker.prototype.postMessage = function (said) {"
            " if (said.name) window.fourfoldAsked.push([said.name, said.body]); else own.call(this, said); };"
        )
        for place in places():
            watched.open(place)
            if "strategy" in place:
                watched.tab.wait_for_selector("figure:has-text('Memory')")
            watched.tab.wait_for_load_state("networkidle")
            late = [request_text(name, json.loads(body)) for name, body in watched.tab.evaluate(asked)]
            assert late == [], f"{place}: what works: python -m tools.site_requests"


def test_a_changed_key_is_computed_here(on_site: Watched) -> None:
    """405 billion parameters on 16,384 devices, by the page itself."""
    on_site.open("#/strategy?run=preset:llama3-405b-16k&layout.recompute=full")
    on_site.tab.wait_for_selector("figure:has-text('Memory')")
    assert "computes in your browser" in on_site.tab.locator("footer").inner_text()
    on_site.open("#/run")
    on_site.tab.get_by_text("fourfold explore RUN, with the folder of a run").wait_for()
    on_site.open("#/board")
    on_site.tab.get_by_text("A browser trains nothing").wait_for()
    assert on_site.tab.get_by_role("button", name="Train it on 3 CPU ranks").is_disabled()


def test_a_search_shows_its_progress_and_stops(on_site: Watched) -> None:
    on_site.open("#/strategy?model.preset=smollm2-135m&cluster=dgx-h100:8")
    on_site.tab.get_by_role("button", name="Find the best").click()
    on_site.tab.get_by_role("status").filter(has_text="bounding").wait_for()
    on_site.tab.get_by_role("button", name="Stop").click()
    on_site.tab.get_by_role("button", name="Find the best").click()
    on_site.tab.get_by_text("Best first").wait_for()


def test_a_figure_alone_has_the_state_of_its_address(on_site: Watched) -> None:
    on_site.tab.goto(f"{on_site.address}?embed=memory#/strategy?run=preset:llama3-70b")
    figure = on_site.tab.locator("figure.alone")
    figure.wait_for()
    assert figure.get_by_role("heading").inner_text() == "Memory"
    shown = on_site.tab.locator("h1, h2, nav, footer").all()
    assert [each.inner_text() for each in shown if each.is_visible() and each.inner_text()] == ["Memory"]
    box = figure.bounding_box()
    assert (box["width"], box["height"]) == (1360, 900)


def test_the_site_says_what_it_is_to_other_sites(on_site: Watched) -> None:
    on_site.open()
    for key in ("og:title", "og:description", "og:image"):
        assert on_site.tab.locator(f'meta[property="{key}"]').get_attribute("content")
