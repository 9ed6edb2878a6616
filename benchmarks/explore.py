"""How soon the page of `fourfold explore` redraws: from a slider's move to the pixels, in a headless Chromium.

    python benchmarks/explore.py [--cores 2] [--only NAME] [--markdown FILE]

Server and browser share the cores. Every move asks for a document that was not asked for before. A row divides the time of its
moves into the server's, from the request to the first byte of its answer, and the page's, which is everything else.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.explore.server import PAGE
from tests.support.explore_server import CHROMIUM, FLAGS, running

WATCH = """
(() => {
  const ask = window.fetch;
  window.answered = () => {};
  window.fetch = async (address, request) => {
    const view = request?.headers?.["X-View"];
    const answer = await ask(address, request);
    const read = answer.json.bind(answer);
    answer.json = async () => {
      const found = await read();
      window.answered(view, answer.url);
      return found;
    };
    return answer;
  };
})()
"""
"""Tells when the page has read an answer, for which of its views."""
MOVE = """
async ({ label, index, view }) => {
  const sliders = [...document.querySelectorAll("input[type=range]")];
  const named = slider => slider.labels?.[0]?.textContent.trim() ?? slider.ariaLabel ?? "";
  const slider = sliders.find(each => named(each).startsWith(label));
  const count = Number(slider.max) - Number(slider.min) + 1;
  const value = String(Number(slider.min) + index % count);
  if (slider.value === value) return null;
  performance.clearResourceTimings();
  const answer = view && new Promise(done => {
    window.answered = (name, address) => view.split(" ").includes(name) && setTimeout(() => done(address));
    setTimeout(() => done(null), 20000);
  });
  slider.value = value;
  const begun = performance.now();
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  const address = await answer;
  await new Promise(requestAnimationFrame);
  const channel = new MessageChannel();
  await new Promise(done => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
  const milliseconds = performance.now() - begun;
  const asked = address && performance.getEntriesByName(address).at(-1);
  return { milliseconds, server: asked ? asked.responseStart - asked.requestStart : 0 };
}
"""
"""Moves a slider; waits for its document, for the frame that draws it, and for the message after that frame."""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
EIGHT = {
    "model.preset": "llama3-8b", "cluster": "dgx-h100:8", "batch.global_sequences": "64", "batch.sequence_length": "8192",
    "precision.compute": "bf16", "layout.zero": "3", "layout.recompute": "selective", "tokens": "15T", "price": "2.5",
}  # fmt: skip


@dataclass(frozen=True)
class Drag:
    """A slider that is moved through its places, on addresses that differ in `keys`. `view`: who asks for the document,
    the first of several that is answered; None: nothing is asked for."""

    name: str
    page: str
    label: str
    view: str | None
    keys: dict[str, str]
    varied: dict[str, tuple[str, ...]]
    places: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 0)

    def addresses(self) -> Iterator[str]:
        for values in product(*self.varied.values()):
            yield f"#/{self.page}?{urlencode(self.keys | dict(zip(self.varied, values, strict=True)))}"


BATCHES = {"batch.global_sequences": ("32", "64", "128")}
TIMES = {"pipeline.F": ("1", "1.25", "1.5")}
DRAGS = (
    Drag("Strategy, 8B: sequence length", "strategy", "sequence length", "strategy.first", EIGHT, BATCHES),
    Drag("Strategy, 8B: tensor parallelism", "strategy", "tensor, tp", "strategy.first", EIGHT, BATCHES, (1, 2, 3, 0)),
    Drag("Strategy, 70B on 64: tensor, outline", "strategy", "tensor, tp", "strategy.outline strategy.first",
         {"run": "preset:llama3-70b"}, {"batch.sequence_length": ("2048", "3072", "4096", "8192")}, (1, 2, 3, 0)),
    Drag("Pipeline, 4 to 64 ranks", "pipeline", "stages, P", "pipeline.drawn", EIGHT | {"pipeline.microbatches": "16"},
         TIMES, (3, 5, 7, 9, 10, 11, 12, 14)),
    Drag("Pipeline, 8 ranks: microbatches", "pipeline", "microbatches, M", "pipeline.drawn", EIGHT | {"pipeline.ranks": "8"},
         TIMES, (3, 5, 7, 9, 10, 11, 12, 14)),
    Drag("Pipeline, 64 x 256: time of W", "pipeline", "weight gradient, W", "pipeline.drawn",
         EIGHT | {"pipeline.ranks": "64", "pipeline.microbatches": "256"}, TIMES),
    Drag("Collectives: ranks", "collectives", "ranks", "collectives.steps", EIGHT,
         {"collectives.bytes": ("1000000", "3000000", "70000000")}, (1, 3, 5, 7, 9, 11, 13, 14)),
    Drag("Collectives: bytes of the buffer", "collectives", "MB of the buffer", "collectives.steps",
         EIGHT | {"collectives.ranks": "16"}, {"collectives.per_node": ("4", "8", "16")}),
    Drag("Parallelism, ZeRO: moment of the step", "parallelism", "Moment of the step", None, EIGHT | {"parallelism.part": "zero"},
         BATCHES, tuple(range(3, 90, 11))),
)  # fmt: skip


def share(values: list[float], part: float) -> float:
    return (
        statistics.quantiles(values, n=100, method="inclusive")[round(100 * part) - 1] if len(values) > 1 else values[0]
    )


def opened(browser: Any, address: str, place: str) -> Any:
    tab = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
    tab.add_init_script(WATCH)
    tab.goto(address + place)
    tab.wait_for_selector("input[type=range]", state="attached")
    tab.wait_for_load_state("networkidle")
    return tab


def dragged(browser: Any, address: str, drag: Drag) -> str:
    moves: list[dict[str, float]] = []
    for place in drag.addresses():
        tab = opened(browser, address, place)
        for index in drag.places:
            found = tab.evaluate(MOVE, {"label": drag.label, "index": index, "view": drag.view})
            if found is not None:
                moves.append(found)
        tab.context.close()
    times, servers = [each["milliseconds"] for each in moves], [each["server"] for each in moves]
    median, server = statistics.median(times), statistics.median(servers)
    return f"| {drag.name} | {len(moves)} | {median:.0f} | {share(times, 0.95):.0f} | {server:.0f} | {median - server:.0f} |"


def painted(browser: Any, address: str, loads: int) -> str:
    paints, figures = [], []
    for _ in range(loads):
        tab = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        tab.goto(address)
        tab.wait_for_selector("[data-figure]")
        figures.append(tab.evaluate("performance.now()"))
        paints.append(tab.evaluate(PAINT))
        tab.context.close()
    return (
        f"First paint, empty cache, {loads} loads: median {statistics.median(paints):.0f} ms, p95 {share(paints, 0.95):.0f} ms; "
        f"the first figures: {statistics.median(figures):.0f} and {share(figures, 0.95):.0f} ms."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default="", help="drags whose names have this text")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    if CHROMIUM is None or not (PAGE / "index.html").is_file():
        print("needs Chromium and the built page; what works: apt-get install chromium, make page", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    lines = ["| slider | moves | median, ms | p95, ms | server, ms | page, ms |", "|---|---|---|---|---|---|"]
    with running() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for drag in DRAGS:
            if arguments.only in drag.name:
                lines.append(dragged(browser, address, drag))
                print(lines[-1], flush=True)
        lines += ["", painted(browser, address, 10)]
        print(lines[-1])
        browser.close()
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
