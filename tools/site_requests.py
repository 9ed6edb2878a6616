"""Writes down what each page asks for before a person has changed anything: `make site` computes those answers once, so that the
site's first figures do not wait for its engine.

python -m tools.site_requests       looks at the page of `fourfold explore` in Chromium, and writes `first_requests.txt`
"""

import json
from collections.abc import Iterator
from typing import Any

from fourfold.explore.catalog import catalog_document
from tests.support.explore_server import FLAGS, needs_browser, running, watching
from tools.build_site import FIRST

PAGES = ("strategy", "pipeline", "parallelism", "collectives", "device", "cluster", "tasks", "board", "accuracy")
_LATER = ("estimate", "plan", "board_run")
"""Documents that are asked for where a machine is slow, or by a person."""


def places() -> list[str]:
    """The addresses that a person begins with: every page, every part of two of them, and every run of the literature."""
    return [
        *(f"#/{name}" for name in PAGES),
        *(f"#/parallelism?parallelism.part={part}" for part in ("context", "expert", "zero")),
        *(f"#/board?board.part={part}" for part in ("program", "collective")),
        *(f"#/strategy?run={each['name']}" for each in catalog_document()["presets"]),
    ]


def request_text(name: str, body: Any) -> str:
    """A request as `requestText` of the page writes it."""
    return json.dumps([name, body], sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def asked(tab: Any, found: set[str]) -> None:
    """Notes what a tab asks its server for."""

    def note(request: Any) -> None:
        name = request.url.partition("/api/")[2]
        if name and name not in _LATER:
            found.add(request_text(name, json.loads(request.post_data)))

    tab.on("request", note)


def _looks(browser: Any, address: str) -> Iterator[str]:
    with watching(browser, address) as watched:
        found = set[str]()
        asked(watched.tab, found)
        for place in places():
            watched.open(place)
            watched.tab.wait_for_load_state("networkidle")
        watched.open("#/tour")
        scene = watched.tab.get_by_role("button", name="Next scene")
        while scene.count():
            watched.tab.wait_for_selector(".room[data-ready=true]")
            watched.tab.wait_for_load_state("networkidle")
            scene.click()
        watched.open()
        for button in watched.tab.get_by_role("group", name="Trials").get_by_role("button").all():
            button.click()
            watched.tab.wait_for_load_state("networkidle")
        # advice follows every step, as soon as that is shown
        steps = [json.loads(text) for text in found if text.startswith('["simulate"') and '"memory"' not in text]
        found |= {
            request_text("advice", {key: each for key, each in body.items() if key != "flows"}) for _, body in steps
        }
        yield from sorted(found)


def main() -> None:
    from playwright.sync_api import sync_playwright

    path = needs_browser()
    with running() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        FIRST.write_text("".join(f"{line}\n" for line in _looks(browser, address)), encoding="utf-8")


if __name__ == "__main__":
    main()
