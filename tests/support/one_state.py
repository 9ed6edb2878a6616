"""A sight of a page without its controls, and the law that it shows one state at a time."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.explore_server import Watched, until

CONTROLS = (
    "[aria-label=Setup], [aria-label=Trials], div.dial, div.list:has(> select), fieldset:has(input[type=radio]), "
    ".rail .summary"
)
"""Controls, which stand at the newer state from the moment when a person changes them."""
SEEN = """(controls) => {
  const main = document.querySelector("main");
  const pictures = [...main.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
  const copy = main.cloneNode(true);
  for (const each of copy.querySelectorAll(controls)) each.remove();
  for (const each of copy.querySelectorAll("*")) {
    for (const name of ["data-milliseconds", "id", "for", "name", "aria-labelledby", "popovertarget", "fill", "href"])
      each.removeAttribute(name);
    each.removeAttribute("aria-busy");
    each.classList.remove("waiting");
  }
  return [document.title, copy.innerHTML.replace(/<!--.*?-->/g, ""), ...pictures];
}"""
"""The title, the page without its controls and its busy mark, and the pixels of its drawings."""


DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass
class Held:
    """Answers of the server to a tab, which are held back while `holds`."""

    tab: Any
    holds: bool = False
    routes: list[Any] = field(default_factory=list)
    open: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tab.route("**/api/*", lambda route: self.routes.append(route) if self.holds else route.continue_())
        self.tab.on("request", lambda request: self.open.add(request))
        for event in ("requestfinished", "requestfailed"):
            self.tab.on(event, lambda request: self.open.discard(request))

    def release(self) -> None:
        self.holds = False
        while self.routes:
            with suppress(Exception):  # the page has given this request up
                self.routes.pop(0).continue_()

    def settle(self, more: str) -> None:
        """Waits until everything that the page asks for is answered and drawn."""
        busy = "main [aria-busy=true], main .empty, main div.room"
        while self.open or not self.tab.evaluate(f"document.querySelector({busy!r}) === null && ({more})"):
            self.tab.wait_for_timeout(10)
        self.tab.evaluate(DRAWN)


def seen(held: Held, more: str) -> list[str]:
    held.settle(more)
    return held.tab.evaluate(SEEN, f"{CONTROLS}, .renewing")


def first_difference(before: list[str], after: list[str]) -> str:
    """Where two sights differ, as a person would say it."""
    for one, other in zip(before, after, strict=True):
        if one != other:
            if one.startswith("data:"):
                return "a drawing"
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            return f"{one[max(0, at - 120) : at + 80]!r}\n  became\n{other[max(0, at - 120) : at + 80]!r}"
    return ""


def check_one_state(watched: Watched, address: str, act: Callable[[Any], None], more: str) -> None:
    tab, held = watched.tab, Held(watched.tab)
    watched.open(address)
    before, place = seen(held, more), tab.evaluate("location.hash")
    held.holds = True
    act(tab)
    until(tab, f"location.hash !== {json.dumps(place)}")
    while not held.routes:
        tab.wait_for_timeout(10)
    tab.evaluate(DRAWN)
    during = tab.evaluate(SEEN, f"{CONTROLS}, .renewing")
    assert during == before, f"two states at once:\n{first_difference(before, during)}"
    held.release()
    after = seen(held, more)
    assert after != before, "nothing has changed: this test looks at nothing"
    watched.open(tab.evaluate("location.hash"))
    fresh = seen(held, more)
    assert after == fresh, f"what was changed to is not what its address shows:\n{first_difference(fresh, after)}"
